"""Anchors: which runs to buy next, so that forecasts at the targets become certain for few FLOPs.

The predicted posterior is the Bayes-linear one (`bayeslaw.design.gains`): no refit is made, and
what the runs would measure is not needed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import ndtr, ndtri

from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.design.beliefs import DRAWS, beliefs_of, candidate_rows, frame_of, new_sizes
from bayeslaw.design.costs import costs
from bayeslaw.design.picking import GAINS, Search
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model.random_effects import labels
from bayeslaw.planning.result import Plan
from bayeslaw.tables.table import LossTable, grid
from bayeslaw.tables.validation import COVARIATES, canonical

type Floats = npt.NDArray[np.float64]

MOST = 20
"""Picks under a budget, unless `k` says otherwise."""


@dataclass(frozen=True)
class Anchors:
    """Runs to buy, in order, and what each is predicted to do.

    Parameters
    ----------
    picks : DataFrame
        One row per pick, in the order to buy: the covariates of its longest row, `run` if the
        candidates have it, `rows` measured; `flops`, what it adds to the cost, and `flops_total`;
        `sd_before`, `sd` and `sd_max`, predicted posterior standard deviation of log loss at the
        targets before and after it (root mean square over the targets), and the largest after it;
        `gain`, in the unit of the gain, and `gain_per_flop`. With the plan's gain also `atpp`, the
        budget that the plan would need.
    frame : DataFrame
        Candidate rows to measure, those of one run together; `pick` counts from 1.
    sd : array, shape (picks + 1, targets)
        Predicted standard deviation of log loss before any pick and after each.
    targets : DataFrame
    gain, cost, method : str
        What was maximised, what runs cost, and how the set was found.
    budget : float
        FLOPs allowed; infinite without a budget.
    unconverged : tuple of str
        What fails in a posterior that failed the convergence gate.
    atpp : float
        With the plan's gain, the budget of the plan before any pick.
    """

    picks: pd.DataFrame
    frame: pd.DataFrame = field(repr=False)
    sd: Floats = field(repr=False)
    targets: pd.DataFrame = field(repr=False)
    gain: str
    cost: str
    method: str
    budget: float
    unconverged: tuple[str, ...] = ()
    atpp: float = math.nan

    @property
    def flops(self) -> float:
        """Cost of all picks."""
        return float(self.picks["flops"].sum())


def choose_anchors(
    posterior: Posterior,
    candidates: LossTable | pd.DataFrame,
    targets: LossTable | pd.DataFrame | None = None,
    *,
    k: int | None = None,
    budget: float | None = None,
    cost: str = "flops",
    gain: str = "variance",
    power: float | None = None,
    weights: Sequence[float] | Floats | None = None,
    second_size: bool = True,
    plan: Plan | None = None,
    source: Posterior | None = None,
    draws: int = DRAWS,
    allow_unconverged: bool = False,
) -> Anchors:
    """Choose the runs whose losses would teach most about the targets, for their cost.

    Parameters
    ----------
    posterior : Posterior
    candidates : LossTable or DataFrame
        Rows that could be measured. Rows of equal `run` are checkpoints of one run: it costs what
        its longest bought row costs, the rows before come free, and they share the run's effect.
        Rows from one `base` (without the column: of equal N and PTPP) share that base's effect.
    targets : LossTable or DataFrame, optional
        Rows whose losses matter. Needed unless the gain is the plan's.
    k : int, optional
        Number of runs; with a `budget` the most there may be (20 if not given).
    budget : float, optional
        Most FLOPs for all runs together.
    cost : "flops", "adaptation", or a column of the candidates
        Of a run: 6 N D and once per base, unless the posterior was fitted to rows from it, the
        pre-training of its stage (6 N times N PTPP tokens; for laws with `ptpp`); 6 N D alone; or
        as the column says, in any unit.
    gain : {"variance", "entropy", "plan", "doptimal"}
        Mean variance of log loss at the targets; mean of its logarithm, so that a target known
        well counts like one known badly; variance of the budget that `plan` needs; or information
        about the law's losses anywhere, whatever the targets (Bayesian D-optimality).
    power : float, optional
        Gains are divided by the cost to this power: 1 under a budget, otherwise 0. Under a budget,
        unless given, 0 is tried as well.
    weights : sequence of float, optional
        Of the targets.
    second_size : bool
        Whether two or more runs must not all have the same N, since a law that is wrong about N
        cannot be found out by anchors of one size.
    plan : Plan, optional
        For ``gain="plan"``: the plan made with `posterior` as its (first) target.
    source : Posterior, optional
        The posterior of the plan's source domain: each run is then measured in both domains.
    draws : int
        Posterior draws used at most, evenly spread.
    allow_unconverged : bool
        Choose although the posterior failed the convergence gate; the result carries it.

    Returns
    -------
    Anchors

    Raises
    ------
    NotConverged
        If a posterior failed the gate and `allow_unconverged` is false.
    TableError
        If a covariate is missing or a run is inconsistent, or all candidates are fitted rows.
    BayeslawError
        If an argument is not valid, or nothing can be bought for the budget.

    Warns
    -----
    TableWarning
        If candidates are rows that the posterior was fitted to; they are left out.

    Notes
    -----
    Predicted standard deviations are those of a Gaussian with the posterior's covariances, and do
    not know how far a measurement moves the posterior of a law that is not linear.
    """
    _check(k, budget, gain, plan)
    fits = [posterior] if source is None else [posterior, source]
    for fit in fits:
        fit.require_converged(allow_unconverged)
    law = posterior.law
    frame = candidate_rows(posterior, candidates)
    price = costs(frame, law, cost=cost, fitted=posterior.table.frame)
    if targets is None:
        if plan is None:
            raise BayeslawError("say where the loss matters (targets=): a table or a grid.")
        targets = _point(plan)
    aim = canonical(frame_of(targets), "targets", law.columns)
    share = _shares(weights, len(aim))
    beliefs, needed = beliefs_of(fits, frame, price.run, aim, plan, draws)
    search = Search(
        beliefs=beliefs,
        costs=price,
        size=np.unique(frame["params"], return_inverse=True)[1],
        gain=gain,
        weights=share if plan is None else np.r_[0 * share, 1.0],
        k=k or MOST,
        budget=math.inf if budget is None else budget,
        power=(0.0 if budget is None else 1.0) if power is None else power,
        second_size=second_size,
    )
    picks, method = search.best()
    if not picks:
        least = price.further([]).min()
        raise BayeslawError(f"nothing to buy for {budget:.3g} FLOPs: the least costs {least:.3g}.")
    steps = [beliefs.given(picks[:i]) for i in range(len(picks) + 1)]
    sd = np.sqrt(np.stack([step.variance for step in steps]))
    rows = [np.unique(beliefs.option[beliefs.brought([pick])]) for pick in picks]
    shown = [c for c in ("run", *COVARIATES) if c in frame]
    table = frame.loc[picks, shown].reset_index(drop=True)
    table["rows"] = [len(each) for each in rows]
    spent = np.array([price.total(picks[:i]) for i in range(len(picks) + 1)])
    table["flops"], table["flops_total"] = np.diff(spent), spent[1:]
    mean = np.sqrt(sd[:, : len(aim)] ** 2 @ share)
    table["sd_before"], table["sd"] = mean[:-1], mean[1:]
    table["sd_max"] = sd[1:, : len(aim)].max(1)
    table["gain"] = np.diff([search.value(step) for step in steps])
    table["gain_per_flop"] = table["gain"] / table["flops"]
    if plan is not None:
        table["atpp"] = _budgets(plan, needed, sd[1:, -1])
    bought = [frame.loc[each].assign(pick=i + 1) for i, each in enumerate(rows)]
    return Anchors(
        picks=table,
        frame=pd.concat(bought, ignore_index=True),
        sd=sd[:, : len(aim)],
        targets=aim,
        gain=gain,
        cost=cost,
        method=method,
        budget=search.budget,
        unconverged=tuple(failure for fit in fits for failure in fit.convergence.failures),
        atpp=plan.atpp if plan is not None else math.nan,
    )


def predicted_sd(
    posterior: Posterior, rows: LossTable | pd.DataFrame, targets: LossTable | pd.DataFrame
) -> Floats:
    """Predicted standard deviation of log loss at the targets once `rows` are measured.

    With that of the effect of a target's size, where the size is new.

    Parameters
    ----------
    posterior : Posterior
    rows : LossTable or DataFrame
        May be empty: then the posterior's own.
    targets : LossTable or DataFrame

    Returns
    -------
    array, shape (targets,)
    """
    aim = frame_of(targets)
    if not len(rows):
        log_loss = np.log(posterior.latent(aim)) + new_sizes(posterior, aim, None, 0)
        return np.asarray(log_loss.std(0, ddof=1))
    frame = candidate_rows(posterior, rows)
    run = np.unique(labels(frame, "run"), return_inverse=True)[1]
    beliefs, _ = beliefs_of([posterior], frame, run, aim)
    return np.sqrt(beliefs.given(list(frame.index)).variance)


# -- parts ----------------------------------------------------------------------------------------


def _check(k: int | None, budget: float | None, gain: str, plan: Plan | None) -> None:
    if gain not in GAINS:
        raise BayeslawError(unknown("gain", gain, GAINS))
    if (k is None) and (budget is None):
        raise BayeslawError("say how many runs to choose (k=) or what they may cost (budget=).")
    if (k is not None and k < 1) or (budget is not None and not budget > 0):
        raise BayeslawError("k and budget must be positive.")
    if (gain == "plan") != (plan is not None):
        raise BayeslawError("gain='plan' needs plan=, a Plan; other gains do not take one.")
    if plan is not None and not math.isfinite(plan.atpp):
        raise BayeslawError("the plan is infeasible: it has no budget that anchors could reduce.")


def _shares(weights: Sequence[float] | Floats | None, count: int) -> Floats:
    share = np.ones(count) if weights is None else np.asarray(weights, float)
    if share.shape != (count,) or not (share >= 0).all() or not share.sum() > 0:
        raise BayeslawError(f"weights: give {count} numbers, one per target, none negative.")
    return np.asarray(share / share.sum())


def _point(plan: Plan) -> pd.DataFrame:
    """The planned run."""
    n, ptpp = plan.limits["params"], plan.limits["ptpp"]
    return grid(params=n, tokens=plan.tokens, replay=plan.replay, ptpp=ptpp)


def _budgets(plan: Plan, needed: Floats, sd: Floats) -> Floats:
    """ATPP of the plan once the budget each draw needs is known to some sd in normal scores.

    `needed` holds the log budgets of the draws in order.
    """
    level = ndtr(ndtri(plan.confidence) * sd)
    return np.asarray(np.exp(needed[np.ceil(level * len(needed)).astype(int) - 1]))
