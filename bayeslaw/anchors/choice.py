"""Runs to buy next, in random order: their costs, and the predicted standard deviation after each.

The posterior draws give the joint covariance of log losses at candidates and targets. Conditioning
a Gaussian with these covariances on measurements of known noise variance reduces the targets'
variances by an amount that does not depend on the measured values: the Bayes-linear update of
M. Goldstein and D. Wooff (2007), Bayes Linear Statistics: Theory and Methods, Wiley.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.common.errors import BayeslawError, TableError, TableWarning, unknown
from bayeslaw.common.formatting import count
from bayeslaw.common.shown import Block, Note, Showing, Shown, Table
from bayeslaw.design.design import Design
from bayeslaw.inference.pools import Pool, spread_draws, with_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import new_size_effects
from bayeslaw.model import effects
from bayeslaw.model.noise import LENGTH, correlation
from bayeslaw.tables.comparison import IDENTITY, completed, is_among
from bayeslaw.tables.table import LossTable, Rows, rows_of
from bayeslaw.tables.units import check_units
from bayeslaw.tables.validation import COVARIATES, OF_DOMAIN, flops_of

COSTS = {
    "flops": "6 N D, and the pre-training of each new base once",
    "adaptation": "6 N D of adaptation",
}
"""Costs that are computed from N, D and PTPP."""
MOST_RUNS = 20
"""Most runs under a budget if `k` is not given."""
SLACK = 1 + 1e-9
"""Factor by which rounding may exceed the budget."""
MOST_DRAWS = 4000
"""Most posterior draws of which covariances are computed."""


def codes_of_runs(frame: pd.DataFrame) -> Ints:
    """Run of each row as a code, shape (rows,); a row without a label is a run of its own."""
    return np.unique(effects.labels(frame, "run"), return_inverse=True)[1]


def codes_of_bases(frame: pd.DataFrame) -> tuple[Ints, Floats]:
    """Base of each row, (rows,), and N and PTPP of each base, (bases, 2): their distinct pairs."""
    pairs = frame[["params", "ptpp"]].to_numpy(float)
    unique, index = np.unique(pairs, axis=0, return_inverse=True)
    return index.ravel(), unique


# -- costs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """Costs of runs: `own` of each, of its longest row, and `setup` of each base.

    That of a base, the code `base` of each run, is paid with the first run from it; it is 0 if the
    base exists. `code` is the run of each row.
    """

    own: Floats
    base: Ints
    setup: Floats
    code: Ints

    @property
    def alone(self) -> Floats:
        """Cost of each run if no other is bought, shape (runs,)."""
        return self.own + self.setup[self.base]

    def total(self, runs: Sequence[int] | Ints) -> float:
        bought = np.unique(np.asarray(runs, int))
        return float(
            self.own[bought].sum() + self.setup[np.unique(self.base[bought])].sum()
        )

    def buy(self, order: Iterable[int], k: int, budget: float) -> list[int]:
        """The first `k` runs of the order that the budget allows, each after those before it."""
        bought: list[int] = []
        for run in order:
            if len(bought) < k and self.total([*bought, run]) <= budget * SLACK:
                bought.append(int(run))
        return bought

    def shuffled(self, seed: int | Sequence[int]) -> Ints:
        """The runs in random order."""
        return np.random.default_rng(seed).permutation(len(self.own))


def costs(
    frame: pd.DataFrame,
    columns: Sequence[str],
    *,
    cost: str = "flops",
    fitted: LossTable | None = None,
) -> Costs:
    """Costs of the runs of a table or grid; `cost` is that of `bayeslaw.choose_anchors`.

    Bases have a cost only if `ptpp` is one of the law's `columns`. Those of the training table
    `fitted` exist, also those that are known only by a row with ``tokens = 0``. 6 N D is the
    approximation of J. Kaplan et al. (2020), Scaling laws for neural language models,
    arXiv:2001.08361.
    """
    if cost in COSTS:
        own = flops_of(frame).to_numpy(float)
    elif cost in frame:
        own = pd.to_numeric(frame[cost], errors="coerce").to_numpy(float)
    else:
        raise BayeslawError(unknown("cost", cost, [*COSTS, *map(str, frame.columns)]))
    if not ((own > 0) & np.isfinite(own)).all():
        raise BayeslawError(
            f"cost {cost!r}: not a positive number in every candidate row."
        )
    code = codes_of_runs(frame)
    # The other rows of a run are its checkpoints, and free.
    longest = pd.Series(own).groupby(code).idxmax().to_numpy()
    if "ptpp" not in columns:
        return Costs(own[longest], np.zeros(len(longest), int), np.zeros(1), code)
    base, unique = codes_of_bases(frame)
    # 6 N D, where D is N times PTPP.
    setup = 6 * unique[:, 0] ** 2 * unique[:, 1]
    if cost != "flops":
        # A column may be in another unit, to which FLOPs cannot be added.
        setup[:] = 0
    elif fitted is not None:
        trained = pd.concat([fitted.frame, fitted.baselines])[
            ["params", "ptpp"]
        ].to_numpy(float)
        # A base that was fitted, or measured before adaptation, is paid for.
        setup[np.isclose(unique[:, None], trained, rtol=1e-6).all(-1).any(1)] = 0
    return Costs(own[longest], base[longest], setup, code)


# -- predicted standard deviations ----------------------------------------------------------------


@dataclass(frozen=True)
class JointGaussian:
    """Joint Gaussian of log losses: `measured`, (draws, rows), and `targets`, (draws, targets).

    Both are as from `centred` and without noise. `noise`, (rows, rows), is the covariance of what
    the draws do not contain: measurement noise, and effects of new groups.
    """

    measured: Floats
    targets: Floats
    noise: Floats

    def variances(self, rows: Bools) -> Floats:
        """Variance of each target once the rows are measured, shape (targets,)."""
        measured = self.measured[:, rows]
        root = np.linalg.cholesky(
            measured.T @ measured + self.noise[np.ix_(rows, rows)]
        )
        explained = np.linalg.solve(root, measured.T @ self.targets)
        return np.asarray((self.targets**2).sum(0) - (explained**2).sum(0))


def centred(values: Floats) -> Floats:
    """Deviations of draws from their mean, scaled so that ``z.T @ z`` is the covariance matrix."""
    return np.asarray((values - values.mean(0)) / np.sqrt(len(values) - 1))


def joint_gaussian(
    fit: Posterior | Pool, frame: pd.DataFrame, targets: pd.DataFrame
) -> JointGaussian:
    """Joint Gaussian of measurements of `frame` and latent log losses of `targets`."""
    draws = spread_draws(fit.count, MOST_DRAWS)
    # Candidates may state a domain, and targets not; the losses are of the fit's.
    frame = frame.drop(columns=[*OF_DOMAIN], errors="ignore")
    rows = pd.concat(completed([frame, targets]), join="inner")
    log_loss = np.empty((len(draws), len(rows)))
    noise = np.zeros((len(frame), len(frame)))
    for member, of_member, index in fit.by_member(draws):
        # Candidates and targets of one new size have the same effect.
        losses = np.log(member.latent(rows))
        losses += new_size_effects(member, rows, np.random.default_rng([0, 0]))
        # Fitted effects belong to what is measured; targets are latent losses.
        losses[:, : len(frame)] += effects.draw(
            member.draws, member.spec.effects, frame, None
        )
        log_loss[index] = losses[of_member]
    for member, of_member, _ in fit.by_member():
        # The noise of a pool is that of its members, by their shares of the draws.
        noise += len(of_member) / fit.count * _noise(member, frame)
    measured, aims = np.split(log_loss, [len(frame)], axis=1)
    return JointGaussian(centred(measured), centred(aims), noise)


def _noise(fit: Posterior, frame: pd.DataFrame) -> Floats:
    """Covariance of the noise of measured log losses, and of the effects of new groups."""
    # The inverse of the Fisher information about the location: a normal measurement of that
    # variance is as informative as one with this likelihood.
    variances = fit.spec.likelihood.information_variance(fit.scale(frame), fit.values())
    sd = np.sqrt(np.median(variances, axis=0))
    among = np.eye(len(frame))
    if fit.spec.errors == "run":
        ell = float(np.median(fit.values()[LENGTH]))
        among = correlation(codes_of_runs(frame), frame["tokens"].to_numpy(float), ell)
    total = sd[:, None] * sd * among
    for name in fit.spec.effects:
        if effects.level(name).latent:
            continue  # these effects are part of the draws
        group = effects.labels(frame, name, fit.draws[name].values)
        new = ~effects.is_fitted(fit.draws, name, frame)
        if name == "base" and "base" not in frame and {"params", "ptpp"} <= {*frame}:
            group = codes_of_bases(frame)[0].astype(str)
            new = np.ones(len(frame), bool)
        variance = float(np.median(fit.values()[f"tau_{name}"] ** 2))
        total += variance * ((group[:, None] == group) & new & new[:, None])
    return total


def candidate_rows(
    posterior: Posterior | Pool, candidates: Rows | pd.DataFrame
) -> pd.DataFrame:
    """Valid candidate rows that are not training rows of the posterior."""
    columns = [*posterior.columns]
    rows = posterior.rows(candidates, "candidates")
    check_units(rows.frame, rows.name, posterior.table.frame)
    for law in posterior.laws:
        _ = Design(law, rows).x  # raises for rows with tokens = 0
    frame = rows.frame
    levels = [
        level for member in posterior.members.values() for level in member.spec.effects
    ]
    match = [*IDENTITY, *columns, *(effects.level(level).column for level in levels)]
    fitted = is_among(frame, posterior.table.frame, match)
    if fitted.all():
        raise TableError(
            "candidates: all of them are rows that were fitted; nothing to buy."
        )
    if fitted.any():
        warnings.warn(
            f"candidates: {fitted.sum()} of {len(frame)} are rows that were fitted; left out.",
            TableWarning,
            stacklevel=3,
        )
        frame = frame[~fitted].reset_index(drop=True)
    effects.check_runs(frame, "candidates", columns)
    return frame


def predicted_sd(
    posterior: Posterior, rows: Rows | pd.DataFrame, targets: Rows | pd.DataFrame
) -> Floats:
    """Predicted standard deviation of log loss at each target once `rows`, if any, are measured.

    The random effect of a target's size is included if the size has no training rows.
    """
    aims = rows_of(targets, "targets").frame
    frame = candidate_rows(posterior, rows) if len(rows) else aims
    joint = joint_gaussian(posterior, frame, aims)
    return np.sqrt(joint.variances(np.full(len(frame), len(rows) > 0)))


# -- the runs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Anchors(Showing):
    """Runs to buy, in order, with the predicted effect of each.

    Parameters
    ----------
    picks : DataFrame
        One row per run: the covariates of its longest row, `run` if the candidates have it, `rows`,
        the number of rows measured; `flops`, its further cost, and `flops_total`; `sd`, the
        predicted posterior standard deviation of log loss after it, root mean square over targets.
    frame : DataFrame
        Rows to measure, those of one run together; the column `pick` counts the runs from 1.
    sd : array, shape (picks + 1, targets)
        Predicted posterior standard deviation of log loss before any run and after each.
    cost : str
    budget : float
        Infinite if none was given.
    seed : int
    """

    picks: pd.DataFrame
    frame: pd.DataFrame = field(repr=False)
    sd: Floats = field(repr=False)
    cost: str
    budget: float
    seed: int

    @property
    def flops(self) -> float:
        """Cost of all runs."""
        return float(self.picks["flops"].sum())

    @property
    def sd_now(self) -> float:
        """Standard deviation before any run, as `sd` of `picks`."""
        return float(np.sqrt((self.sd[0] ** 2).mean()))

    def shown(self) -> Shown:
        """The runs in the order to buy them, with what is predicted after each."""
        picks = self.picks
        targets = self.sd.shape[1]
        unit = "FLOPs" if self.cost in COSTS else self.cost
        columns: dict[str, list[float | str]] = {}
        for name in picks.columns[: picks.columns.get_loc("rows")]:
            columns[name] = ["", *picks[name].map(str if name == "run" else count)]
        for name, source in ((unit, "flops"), ("total", "flops_total")):
            columns[name] = ["", *picks[source].map("{:.2g}".format)]
        columns["sd"] = [self.sd_now, *picks["sd"]]
        index = pd.Index(["now", *range(1, len(picks) + 1)], dtype=object)
        legend = (
            "sd: predicted posterior standard deviation of log loss in percent, root mean square "
            f"over {targets} target{'s' * (targets != 1)}."
        )
        blocks: list[Block] = [
            "drawn at random: no criterion gave better forecasts of measured losses; "
            f"seed {self.seed}",
            Table(pd.DataFrame(columns, index), "", {"sd": percent_sd}, ("total",)),
            Note(legend, "quiet"),
        ]
        sized = "params" if "params" in picks else "flops"
        if (sizes := picks[sized].nunique()) == 1 < len(picks):
            one_size = (
                "All of one size: these runs cannot show that the law is wrong about N."
            )
            blocks.append(Note(one_size, "caution"))
        if more := len(self.frame) - len(picks):
            blocks.append(
                f"{more} further rows are checkpoints of these runs, free (--out, --json)."
            )
        document = {
            "cost": self.cost,
            "budget": self.budget,
            "flops": self.flops,
            "targets": targets,
            "sd_now": self.sd_now,
            "picks": picks.to_dict("records"),
            "rows": self.frame.to_dict("records"),
        }
        within = f" of {self.budget:.3g}" if math.isfinite(self.budget) else ""
        cost = COSTS.get(self.cost, "cost by that column")
        title = f"{len(picks)} runs of {sizes} sizes: {self.flops:.3g}{within} {unit} ({cost})"
        return Shown(title, blocks, document)


def percent_sd(value: float) -> str:
    return f"{100 * value:#.3g} %".replace(". %", " %")


def choose_anchors(
    posterior: Posterior | Pool,
    candidates: Rows | pd.DataFrame,
    targets: Rows | pd.DataFrame,
    *,
    k: int | None = None,
    budget: float | None = None,
    cost: str = "flops",
    seed: int = 0,
) -> Anchors:
    """Draw the runs to buy next at random, and predict what they will tell.

    Parameters
    ----------
    posterior : Posterior or Pool
    candidates : LossTable or DataFrame
        Rows that could be measured. Rows with the same `run` are checkpoints of one run, which
        costs what its longest row costs, and have a common random effect. Rows with the same
        `base`, or without that column the same N and PTPP, have a common random effect of base.
    targets : LossTable or DataFrame
        Rows whose losses are to be forecast.
    k : int, optional
        Number of runs; with a `budget` the most, by default 20.
    budget : float, optional
        Most FLOPs for all runs together.
    cost : "flops", "adaptation", or a column of the candidates
        ``"flops"`` is 6 N D for each run and, for laws with `ptpp`, the pre-training of each base
        (6 N times N PTPP tokens), unless it is in the posterior's table, if only by a row with
        ``tokens = 0``. ``"adaptation"`` is 6 N D alone. A column has the costs in any unit.
    seed : int

    Returns
    -------
    Anchors

    Notes
    -----
    Predictions are those of a Gaussian with the posterior's covariances: approximate, since laws
    are not linear in their parameters. Candidates that were fitted are left out with a warning.

    Examples
    --------
    >>> fit = bl.fit("chinchilla", bl.example_table(), discrepancy="none", effects="none")
    >>> candidates = bl.grid(params=[5e8, 2e9], tokens=[1e10, 1e11])
    >>> found = bl.choose_anchors(fit, candidates, bl.grid(params=1e10, tokens=1e12), k=2)
    >>> found.picks["flops_total"].tolist() == found.picks["flops"].cumsum().tolist()
    True
    """
    if k is None and budget is None:
        raise BayeslawError(
            "say how many runs to choose (k=) or what they may cost (budget=)."
        )
    if (k is not None and k < 1) or (budget is not None and not budget > 0):
        raise BayeslawError("k and budget must be positive.")
    with_draws(posterior, "choose_anchors").require_converged()
    columns = [*posterior.columns]
    frame = candidate_rows(posterior, candidates)
    price = costs(frame, posterior.columns, cost=cost, fitted=posterior.table)
    aims = posterior.rows(targets, "targets").frame
    check_units(aims, "targets", posterior.table.frame)
    most = budget or math.inf
    runs = price.buy(price.shuffled(seed), k or MOST_RUNS, most)
    if not runs:
        least = price.alone.min()
        raise BayeslawError(
            f"nothing to buy for {budget:.3g} FLOPs: the least costs {least:.3g}."
        )
    bought = [runs[:i] for i in range(len(runs) + 1)]
    joint = joint_gaussian(posterior, frame, aims)
    sd = np.sqrt([joint.variances(np.isin(price.code, few)) for few in bought])
    spent = np.array([price.total(few) for few in bought])
    rows = [frame[price.code == run].assign(pick=i) for i, run in enumerate(runs, 1)]
    names = [c for c in dict.fromkeys(("run", *COVARIATES, *columns)) if c in frame]
    longest = [of_run.loc[[flops_of(of_run).idxmax()], names] for of_run in rows]
    picks = pd.concat(longest, ignore_index=True)
    picks["rows"] = [len(of_run) for of_run in rows]
    picks["flops"] = np.diff(spent)
    picks["flops_total"] = spent[1:]
    picks["sd"] = np.sqrt((sd[1:] ** 2).mean(1))
    return Anchors(picks, pd.concat(rows, ignore_index=True), sd, cost, most, seed)
