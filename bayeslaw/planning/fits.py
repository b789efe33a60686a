"""From fits to the paired draws, loss curves and noise that a plan is made of."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.evaluate.new_sizes import new_size_effects, residual_draws
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.terms import ORIGIN
from bayeslaw.model.random_effects import latent_effects
from bayeslaw.planning.loss_curves import LossCurve
from bayeslaw.planning.pooled_curves import PooledCurve
from bayeslaw.tables.table import grid

type Fit = Posterior | Pool | PointFit

REACH = 1e4
"""ATPP up to which a discrepancy is extended; beyond, and below the fitted rows, exponents stay."""


def draw_count(fit: Fit) -> int:
    """Number of draws; 1 for a point fit."""
    return 1 if isinstance(fit, PointFit) else fit.count


def pair_draws(fits: Sequence[Fit]) -> tuple[list[Ints], str]:
    """Pair the draws of several fits.

    Draws of a joint fit are paired as they were sampled. Separate fits are independent, so any
    pairing of their draws is valid.

    Returns
    -------
    list of int array, shape (draws,)
        For each fit, the draw in each pair. The number of pairs is that of the posterior with the
        fewest draws; the others are thinned.
    str
        How they were paired.
    """
    posteriors = [fit for fit in fits if not isinstance(fit, PointFit)]
    if not posteriors:
        return [np.zeros(1, int) for _ in fits], "no draws: all fits are point fits"
    draws = min(draw_count(fit) for fit in posteriors)
    names: list[object] = [fit.settings.get("joint") or id(fit) for fit in posteriors]
    groups = list(dict.fromkeys(names))
    index, left = [], iter(names)
    for fit in fits:
        if isinstance(fit, PointFit):
            index.append(np.zeros(draws, int))
            continue
        # Chains sampled with the same seed can be correlated between fits, so the draws of each
        # group are shifted against those of the others.
        shift = groups.index(next(left)) * draws // len(groups)
        index.append(np.roll(np.arange(draws) * draw_count(fit) // draws, shift))
    if len(posteriors) == 1:
        return index, "one posterior: the other fits are point fits"
    if len(groups) == 1:
        return index, "jointly: draw by draw of one fit"
    if len(groups) == len(posteriors):
        return index, f"independently: {len(groups)} fits, draws paired at random"
    return index, f"jointly within each of {len(groups)} fits, at random between them"


def point_description(fits: Sequence[Fit]) -> str:
    """Describe the parameters of the deterministic plan: those that `curve_of` takes of `fits`."""
    points = sum(isinstance(fit, PointFit) for fit in fits)
    medians = "posterior medians of the reference coordinates"
    if points == len(fits):
        return "point fits as given"
    return f"{medians}, and point fits as given" if points else medians


def convergence_failures(fits: Sequence[Fit], allowed: bool) -> tuple[str, ...]:
    """Failures of the convergence gate, as text.

    Raises
    ------
    NotConverged
        If a posterior failed the gate and that is not allowed.
    """
    found: list[str] = []
    for fit in fits:
        if not isinstance(fit, PointFit):
            fit.require_converged(allowed)
            found += [f"{fit.table.name}: {what}" for what in fit.convergence.failures]
    return tuple(found)


def autocorrelation_length(fits: Sequence[Fit]) -> int:
    """Number of draws per effective draw, rounded up, of the fit with the most."""
    posteriors = [fit for fit in fits if not isinstance(fit, PointFit)]
    return max(
        [1, *(math.ceil(draw_count(fit) / max(fit.convergence.ess_bulk, 1)) for fit in posteriors)]
    )


def curve_of(
    fit: Fit,
    params: float,
    ptpp: float,
    *,
    median: bool = False,
    rng: np.random.Generator | None = None,
) -> LossCurve | PooledCurve:
    """Loss of a fit's law at a model and stage.

    Parameters
    ----------
    fit : Posterior, Pool or PointFit
    params, ptpp : float
        Parameters N of the model, and its pre-training tokens per parameter.
    median : bool
        Whether to give one curve, at the posterior medians of the reference coordinates, instead of
        one for each draw.
    rng : numpy Generator, optional
        The curve includes the random effect of the model's size. That of a size without training
        rows is drawn with `rng`, and is zero without it.
    """
    if isinstance(fit, Pool):
        if median:
            return curve_of(fit.first, params, ptpp, median=True)
        found = [(_curve(m, params, ptpp, rng=rng), own, at) for m, own, at in fit.parts()]
        parts = [curve.take(own) for curve, own, _ in found]
        return PooledCurve(tuple(parts), tuple(at for *_, at in found))
    return _curve(fit, params, ptpp, median=median, rng=rng)


def _curve(
    fit: Posterior | PointFit,
    params: float,
    ptpp: float,
    *,
    median: bool = False,
    rng: np.random.Generator | None = None,
) -> LossCurve:
    law = fit.law
    if isinstance(fit, PointFit):
        point = {name: np.array([float(value)]) for name, value in fit.parameters.items()}
        return LossCurve(law, point, ORIGIN, params, ptpp)
    row = planned_row(params, ptpp, fit)
    law, values = fit.extended(grid(params=params, ptpp=ptpp, tokens=REACH * params, replay=0.5))
    q = {name: value[:, 0] for name, value in values.items()}
    effect = latent_effects(fit.draws, fit.spec.effects, row)[:, 0]
    if rng is not None:
        effect = effect + new_size_effects(fit, row, rng)[:, 0]
    if median:
        q = {name: np.median(value, axis=0, keepdims=True) for name, value in q.items()}
        effect = np.median(effect, keepdims=True)
    base: dict[str, Floats] = {}
    if law.departure:
        x = fit.covariates(row)
        base = {n: np.broadcast_to(x[n][..., 0], len(effect)) for n in ("start", "deviation")}
        base = {n: np.median(v, keepdims=True) if median else v for n, v in base.items()}
        base["start"] = base["start"] + effect
    here = {"params": np.log(params), "ptpp": np.log(ptpp)}
    law, p = law.at_model(law.sizes(q, fit.at), here, fit.at)
    p |= {name: p[name] * np.exp(effect) for name in ("E", *law.coefficients)}
    return LossCurve(law, p, fit.at, params, ptpp, base)


def noise_of(fit: Fit, kind: str, params: float, ptpp: float, rng: np.random.Generator) -> Floats:
    """Noise on log loss of a new run at a model and stage, shape (draws,).

    Parameters
    ----------
    fit : Posterior, Pool or PointFit
    kind : {"latent", "predictive"}
        Zeros, or draws of the measurement noise and of the random effects of run and base.
    params, ptpp : float
    rng : numpy Generator
    """
    if kind not in ("latent", "predictive"):
        raise BayeslawError(unknown("noise", kind, ("latent", "predictive")))
    if kind == "latent":
        return np.zeros(draw_count(fit))
    if isinstance(fit, PointFit):
        raise BayeslawError(
            f"a point fit of {fit.law.name} has no noise; give a posterior or noise='latent'."
        )
    if isinstance(fit, Pool):
        return fit.gathered(lambda member: noise_of(member, kind, params, ptpp, rng))
    return residual_draws(fit, planned_row(params, ptpp, fit), rng, sizes=False)[:, 0]


def planned_row(params: float, ptpp: float, fit: Posterior) -> pd.DataFrame:
    """A row at the model and stage, for random effects and noise.

    For a law that starts from the base, it names a base of the table of that N and P, if any.

    The effect of a size without training rows depends on tokens and replay only weakly, the others
    not at all; the values here are arbitrary.
    """
    row = grid(params=params, ptpp=ptpp, tokens=params, replay=0.5)
    if fit.law.departure:
        known = pd.concat([fit.table.baselines, fit.table.frame])
        alike = np.isclose(known[["params", "ptpp"]], [params, ptpp], rtol=1e-6, atol=0).all(1)
        if alike.any() and "base" in known:
            row["base"] = known.loc[alike, "base"].iloc[0]
    return row
