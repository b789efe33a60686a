"""Residuals of log loss: their density, covariance and predictive draws, with random effects.

From fewer than `SIZE.fewest` model sizes their random effects are not identified: the law can
absorb them. Ignoring them would make forecasts for new sizes overconfident, so with
``effects="auto"`` each training size draws an effect from the prior here, and the forecast is
shifted by the posterior's response to it.
"""

import warnings

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import logsumexp

from bayeslaw.common.arrays import Bools, Floats, Ints, Strings
from bayeslaw.common.errors import TableWarning, argument
from bayeslaw.huber.doubts import LEAST_SPREAD
from bayeslaw.inference.fitted import FittedLaw
from bayeslaw.model import effects, noise
from bayeslaw.tables.table import LossTable, Rows
from bayeslaw.tables.validation import row_numbers

LAST_ERROR = "last_error"
"""Name of the residuals of `last_errors`, which older files without losses have."""
LAST_ROWS = ("last_run", "last_tokens")
"""Run and tokens of each of the residuals of `last_errors`."""
QUADRATURE_NODES = 15
"""Number of nodes of the Gauss-Hermite quadrature over the random effect of a run."""
SCORE_STEP = 1e-6
"""Step in log loss of the central difference that gives the derivative of the log likelihood."""
MOST_SPREAD = 10.0
"""Posterior over prior median of the standard deviation of effects from which they explain what the
law should. In 26 fits whose forecasts were good it was .2 to 7, in two that were off by a third 36
and 72."""
HALF_BAND = 1.645
"""Half the width of a 90 % band of normal noise, in standard deviations."""


def residual(fit: FittedLaw, table: LossTable, levels: tuple[str, ...] = ()) -> Floats:
    """Measured minus latent log loss, and minus fitted effects of training rows, (draws, rows)."""
    fitted = effects.draw(fit.draws, levels, table.frame, None, training=True)
    return np.asarray(np.log(table.loss) - np.log(fit.losses(table)) - fitted)


def log_likelihood(fit: FittedLaw) -> Floats:
    """Log likelihood of each training row given the random effects, shape (draws, rows)."""
    return density(fit, fit.table.frame, residual(fit, fit.table, fit.spec.effects))


def unit_likelihood(fit: FittedLaw, unit: Ints) -> tuple[Floats, dict[str, Bools]]:
    """Log density of each unit 0, 1, ... of training rows, (draws, units), without its effects.

    Random effects whose group is the unit are integrated out, and named with their rows: their
    posterior depends on the unit so much that importance weights would be heavy-tailed.
    """
    from scipy import stats  # takes a second, and forecasts need none of it

    frame = fit.table.frame
    q = fit.values()
    integrated: dict[str, Bools] = {}
    residuals = residual(fit, fit.table)
    for level in fit.spec.fitted_effects:
        if not effects.level(level).latent:
            group = np.unique(effects.labels(frame, level), return_inverse=True)[1]
            both = np.unique(np.stack([group, unit]), axis=1, return_inverse=True)[1]
            counts = [np.bincount(index)[index] for index in (group, unit, both)]
            integrated[level] = (counts[0] == counts[2]) & (counts[1] == counts[2])
        fitted = effects.draw(fit.draws, (level,), frame, None, training=True)
        residuals = residuals - np.where(integrated.get(level, False), 0.0, fitted)
    sigma = fit.scale(frame)
    nodes, weights = np.polynomial.hermite_e.hermegauss(QUADRATURE_NODES)
    total = density(fit, frame, residuals) @ (
        unit[:, None] == np.arange(unit.max() + 1)
    )
    for i in range(total.shape[1]):
        rows = unit == i
        levels = [level for level, of_unit in integrated.items() if of_unit[rows].all()]
        if not levels:
            continue
        tau = np.sqrt(sum(q[f"tau_{level}"] ** 2 for level in levels))
        moved, scale = innovations(
            fit, frame[rows], np.ones((1, rows.sum())), sigma[:, rows]
        )
        innovation = innovations(fit, frame[rows], residuals[:, rows], sigma[:, rows])[
            0
        ]
        precision = (moved**2 / scale**2).sum(1, keepdims=True) + 1 / tau**2
        centre = (moved * innovation / scale**2).sum(1, keepdims=True) / precision
        # Gauss-Hermite nodes about the posterior mean of the sum of the effects under normal noise;
        # wider than that posterior, since Student-t noise has heavier tails.
        width = 1.5 / np.sqrt(precision)
        effect = centre + width * nodes
        terms = (
            np.log(weights)
            + 0.5 * nodes**2
            + np.log(width)
            + stats.norm.logpdf(effect / tau)
        )
        terms -= np.log(tau)
        for k in range(QUADRATURE_NODES):
            moved_by = innovation - moved * effect[:, [k]]
            terms[:, k] += fit.spec.likelihood.log_density(moved_by, scale, q).sum(1)
        total[:, i] = logsumexp(terms, 1)
    return total, integrated


def overruled(fit: FittedLaw, huber: Floats | None) -> str:
    """How effects, or errors within runs, explain what the law should, in words; empty if not.

    `huber` are log losses of a Huber fit of the law to the training rows, shape (rows,), if there
    are enough rows for one. A law with its discrepancy follows the rows at least as closely, unless
    effects follow them in its place.
    """
    said = []
    for level in fit.spec.fitted_effects:
        name = f"tau_{level}"
        prior = fit.spec.priors[name].sample(np.random.default_rng(0), (4000,))
        times = float(fit.draws[name].median()) / float(np.median(prior))
        if times > MOST_SPREAD:
            said.append(
                f"the standard deviation of the {level} effects is {times:.0f} times the median of "
                "its prior"
            )
    if huber is not None:
        missed = float(np.abs(np.median(residual(fit, fit.table), axis=0)).mean())
        of_huber = np.abs(np.log(fit.table.loss) - huber)
        # The band of the Huber fit: effects and correlated errors widen the posterior's own.
        band = HALF_BAND * max(float(np.sqrt((of_huber**2).mean())), LEAST_SPREAD)
        if missed - of_huber.mean() > band:
            said.append(
                f"without them the law misses the fitted rows by {100 * missed:.2g} % on average, "
                f"and a Huber fit by {100 * of_huber.mean():.2g} %"
            )
    if not said:
        return ""
    what = "Random effects"
    mend = argument("effects", "none")
    if not fit.spec.fitted_effects:
        what = "Errors within runs"
        mend = argument("errors", "independent")
    return (
        f"{what} explain what the law should explain: {' and '.join(said)}. Forecasts of other "
        f"rows may be far off: fit with {mend}, or with another law."
    )


def covariance(fit: FittedLaw) -> Floats:
    """Covariance of the noise and random effects of the training rows, at median scales."""
    frame = fit.table.frame
    sigma = np.median(fit.scale(frame), 0)
    total = np.diag(sigma**2)
    if fit.spec.errors == "run":
        run = noise.runs(frame)
        ell = float(fit.draws[noise.LENGTH].median())
        total = (
            sigma[:, None]
            * sigma
            * noise.correlation(run, frame["tokens"].to_numpy(), ell)
        )
    for level in fit.spec.fitted_effects:
        group = effects.labels(frame, level)
        same = group[:, None] == group
        total += float(fit.draws[f"tau_{level}"].median()) ** 2 * same
    return total


def averaging(index: Ints) -> Floats:
    """Matrix of the means over the rows of each group 0, 1, ..., shape (groups, rows)."""
    weights = (index == np.arange(index.max() + 1)[:, None]).astype(float)
    return np.asarray(weights / weights.sum(1, keepdims=True))


def density(fit: FittedLaw, frame: pd.DataFrame, residual: Floats) -> Floats:
    """Log density of residuals given the earlier ones of their run, shape (draws, rows)."""
    innovation, scale = innovations(fit, frame, residual, fit.scale(frame))
    return np.asarray(fit.spec.likelihood.log_density(innovation, scale, fit.values()))


def innovations(
    fit: FittedLaw, frame: pd.DataFrame, residual: Floats, sigma: Floats
) -> tuple[Floats, Floats]:
    """Residuals given the earlier ones of their run, and their scale; linear in both."""
    if fit.spec.errors == "independent":
        return residual, sigma
    rows = noise.order(frame)
    ell = fit.values()[noise.LENGTH]
    return noise.innovations(residual, sigma, ell, rows, np)


def error_draws(
    fit: FittedLaw, frame: pd.DataFrame, rng: np.random.Generator
) -> Floats:
    """Draws of the errors of log loss of new measurements, shape (draws, rows).

    Of correlated errors, a run is one path, and a fitted run goes on from its last residual.
    """
    sigma = fit.scale(frame)
    q = fit.values()
    if fit.spec.errors == "independent":
        return fit.spec.likelihood.sample(rng, sigma.shape, sigma, q)
    count = len(frame)
    run = noise.runs(frame)
    tokens = frame["tokens"].to_numpy(float)
    ends = fit.draws[LAST_ERROR] if LAST_ERROR in fit.draws else last_errors(fit, run)
    last = ends["last_tokens"].to_series()
    beyond = tokens > last.reindex(run).to_numpy()
    ends = ends.isel(last_run=np.isin(last.index, run[beyond]))
    # Rows within the range of a fitted run are of another run of the same settings.
    path = np.where(
        beyond, run, effects.renamed(run, ends["last_run"].values.astype(str))
    )
    paths = pd.DataFrame(
        {
            "run": np.concatenate([path, ends["last_run"].values.astype(str)]),
            "tokens": np.concatenate([tokens, ends["last_tokens"].values]),
        }
    )
    rows = noise.order(paths)
    last_residuals = ends.values.reshape(len(sigma), -1)
    sigma = np.hstack([sigma, np.ones(last_residuals.shape)])
    fitted = np.arange(count, paths.shape[0]), last_residuals
    return noise.draw_paths(fit.spec.likelihood, rng, sigma, q, rows, fitted)[:, :count]


def last_errors(fit: FittedLaw, runs: Strings | None = None) -> xr.DataArray:
    """Residuals of the last row of each labelled training run, dims (chain, draw, last_run).

    With `runs`, of those among them alone. There are none of a fit that was saved without losses.
    """
    if "loss" not in fit.table.frame:
        runs = np.array([], str)
    run = noise.runs(fit.table.frame)
    tokens = fit.table.frame["tokens"].to_numpy(float)
    last = pd.Series(tokens).groupby(run).max().reindex(run).to_numpy()
    ends = (
        (tokens == last)
        & ~effects.unlabelled(run)
        & (runs is None or np.isin(run, runs))
    )
    sizes = fit.draws.sizes["chain"], fit.draws.sizes["draw"]
    count = int(ends.sum())
    errors = (
        residual(fit, fit.table, fit.spec.effects)[:, ends] if count else np.empty(0)
    )
    return xr.DataArray(
        errors.reshape(*sizes, count),
        {"last_run": run[ends], "last_tokens": ("last_run", tokens[ends])},
        ("chain", "draw", "last_run"),
    )


def warn_of_lost_ends(fit: FittedLaw, rows: pd.DataFrame, name: str) -> None:
    """Warn of rows that go on fitted runs, if the fit was saved without what its runs ended at."""
    fitted = fit.table.frame
    if fit.spec.errors == "independent" or "loss" in fitted or LAST_ERROR in fit.draws:
        return
    last = fitted["tokens"].groupby(noise.runs(fitted)).max()
    further = rows["tokens"] > last.reindex(noise.runs(rows)).to_numpy()
    if further.any():
        warnings.warn(
            f"{name}: {row_numbers(further)} go on fitted runs, whose last losses the fit does not "
            "have, as it was saved without its losses: they are forecast as rows of other runs of "
            "the same settings, with wider bands; forecast them from the fit with its losses.",
            TableWarning,
            stacklevel=3,
        )


def too_few_sizes(fit: FittedLaw) -> bool:
    """Whether sizes should have random effects, but are too few to fit them."""
    spec = fit.spec
    of_sizes = (
        spec.new_sizes and spec.discrepancy.size_effects and "size" not in spec.effects
    )
    if not of_sizes or "params" not in spec.law.columns:
        return False
    return len(np.unique(effects.labels(fit.table.frame, "size"))) < effects.SIZE.fewest


def group_effects(
    fit: FittedLaw,
    frame: pd.DataFrame,
    rng: np.random.Generator,
    *,
    training: bool = False,
) -> Floats:
    """Sum of the effects that the latent loss does not include: bases, runs, and new sizes."""
    levels = tuple(level for level in fit.spec.effects if level != "size")
    total = new_size_effects(fit, frame, rng)
    total += effects.draw(fit.draws, levels, frame, rng, training=training)
    return total


def new_size_effects(
    fit: FittedLaw,
    frame: pd.DataFrame,
    rng: np.random.Generator,
    scores: Floats | None = None,
) -> Floats:
    """Random effects on log loss of sizes without training rows, shape (draws, rows).

    Of many frames, `size_scores` are computed once.
    """
    if "size" in fit.spec.effects:
        return effects.draw(fit.draws, ("size",), frame, rng)
    count = len(fit.values()["sigma"])
    fitted = np.unique(effects.labels(fit.table.frame, "size"))
    groups, index = np.unique(
        effects.labels(frame, "size", fitted), return_inverse=True
    )
    new = ~np.isin(groups, fitted)
    if not (too_few_sizes(fit) and new.any()):
        return np.zeros((count, len(frame)))
    tau = fit.spec.priors["tau_size"].sample(rng, (count, 1))
    # The latent loss follows the training sizes, each with an effect that the law absorbed: take
    # out the prior's draw of these, and add that of the new size. Those of training sizes are drawn
    # first, so that generators in the same state draw the same ones for every frame.
    moved = (
        tau * rng.standard_normal((count, len(fitted))) @ response(fit, frame, scores).T
    )
    effect = tau * rng.standard_normal((count, len(groups)))
    return np.where(new[index], effect[:, index] - moved, 0.0)


def size_scores(fit: FittedLaw) -> Floats:
    """Derivative of the log likelihood by the log losses of each size, (draws, sizes)."""
    rows = fit.table.frame
    sizes, index = np.unique(
        effects.labels(rows, "size").astype(float), return_inverse=True
    )
    residuals = residual(fit, fit.table, fit.spec.effects)
    up, down = (density(fit, rows, residuals + sign * SCORE_STEP) for sign in (1, -1))
    # Differences, since a likelihood of one's own gives no derivative.
    scores: Floats = (
        (up - down) / (2 * SCORE_STEP) @ (index[:, None] == np.arange(len(sizes)))
    )
    return scores


def response(
    fit: FittedLaw, frame: pd.DataFrame, scores: Floats | None = None
) -> Floats:
    """Derivative of forecasts by the log of the training losses of each size, (rows, sizes).

    It is the posterior covariance ``Cov(log loss, d log likelihood / d log losses)``.
    """
    scores = size_scores(fit) if scores is None else scores
    log_loss = np.log(fit.losses(Rows(frame)))
    return np.asarray(
        (log_loss - log_loss.mean(0)).T @ (scores - scores.mean(0)) / len(scores)
    )


def residual_draws(
    fit: FittedLaw,
    frame: pd.DataFrame,
    rng: np.random.Generator,
    *,
    training: bool = False,
) -> Floats:
    """Predictive draws of measured minus latent log loss: noise and effects, (draws, rows)."""
    errors = error_draws(fit, frame, rng)
    total = group_effects(fit, frame, rng, training=training)
    total += errors
    return total
