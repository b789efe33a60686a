"""Choice of anchors: the runs to buy next for a small posterior variance at targets per FLOP.

The posterior after the purchase is predicted by a Bayes-linear update
(`bayeslaw.design.bayes_linear`), which needs neither the measured losses nor a refit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.design.evsi import plan_after
from bayeslaw.design.posterior_moments import DRAWS, candidate_rows, joint_gaussian
from bayeslaw.design.set_search import GAINS, Search, costs
from bayeslaw.inference.pools import Pool, with_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.planning.result import Plan
from bayeslaw.tables.table import LossTable, frame_of
from bayeslaw.tables.validation import COVARIATES, canonical, check_units

MOST = 20
"""Most runs under a budget if `k` is not given."""


@dataclass(frozen=True)
class Anchors:
    """Runs to buy, in order, with the predicted effect of each.

    Parameters
    ----------
    picks : DataFrame
        One row per run, in the order to buy:

        - the covariates of its row with the most tokens, `run` if the candidates have it, and
          `rows`, the number of rows measured;
        - `flops`, its further cost, and `flops_total`, the cost up to and including it;
        - `sd_before`, `sd`, `sd_max`: predicted posterior standard deviation of log loss at the
          targets before and after it (root weighted mean square over the targets), and the largest
          over the targets after it;
        - `gain`, in the unit of the gain, and `gain_per_flop`;
        - for the gain of a plan, `p_plan` and `atpp`: predicted probability that there is a plan
          at the stated confidence once it is measured, and the median of its budget.
    frame : DataFrame
        Rows to measure, those of one run together; the column `pick` counts the runs from 1.
    sd : array, shape (picks + 1, targets)
        Predicted posterior standard deviation of log loss before any run and after each.
    targets : DataFrame
    gain, cost, method : str
        Gain that was maximised, cost of runs, and method of the search.
    budget : float
        Most FLOPs; infinite without a budget.
    unconverged : tuple of str
        Failures of the convergence check.
    atpp : float
        For the gain of a plan, the plan's budget before any run.
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
        """Cost of all runs."""
        return float(self.picks["flops"].sum())


def choose_anchors(
    posterior: Posterior | Pool,
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
    source: Posterior | Pool | None = None,
    draws: int = DRAWS,
    allow_unconverged: bool = False,
) -> Anchors:
    """Choose the runs of largest expected information gain about the targets for their cost.

    Parameters
    ----------
    posterior : Posterior or Pool
    candidates : LossTable or DataFrame
        Rows that could be measured. Rows with the same `run` are checkpoints of one run: the run
        costs what its longest bought row costs, and shorter rows are measured for free. They have a
        common random effect of run. Rows with the same `base`, or without that column the same N
        and PTPP, have a common random effect of base.
    targets : LossTable or DataFrame, optional
        Rows whose losses are to be forecast. Required unless the gain is that of a plan.
    k : int, optional
        Number of runs; all if the candidates have fewer. With a `budget`, the most runs (20 if not
        given).
    budget : float, optional
        Most FLOPs for all runs together.
    cost : "flops", "adaptation", or a column of the candidates
        ``"flops"`` is 6 N D for each run and, for laws with `ptpp`, the pre-training of each base
        (6 N times N PTPP tokens), unless it is in the posterior's table, if only by a row with
        ``tokens = 0``.
        ``"adaptation"`` is 6 N D alone. A column has the costs in any unit.
    gain : {"variance", "entropy", "plan", "doptimal"}
        ``"variance"`` is the reduction of the mean variance of log loss at the targets;
        ``"entropy"`` that of half its mean logarithm, which weighs relative reductions equally;
        ``"plan"`` that of the variance of the budget that `plan` needs; ``"doptimal"`` the
        information about the law's losses, whatever the targets (Bayesian D-optimality).
    power : float, optional
        Gains are divided by the cost to this power; by default 1 with a budget, 0 without. With a
        budget, a search with power 0 is made as well.
    weights : sequence of float, optional
        Weights of the targets.
    second_size : bool
        Whether two or more runs must not all have the same N. Anchors of a single size cannot
        reveal that a law is wrong about N.
    plan : Plan, optional
        For ``gain="plan"``: the plan made with `posterior` as its (first) target. It may be
        infeasible; then the runs are chosen for its most likely choice.
    source : Posterior or Pool, optional
        Posterior of the plan's source domain; each run is then measured in both domains.
    draws : int
        Most posterior draws used, evenly spread.
    allow_unconverged : bool
        Choose although a posterior failed the convergence check; the result lists the failures.

    Returns
    -------
    Anchors

    Raises
    ------
    NotConverged
        If a posterior failed the convergence check and `allow_unconverged` is false.
    TableError
        If a covariate is missing or a run is inconsistent, or all candidates are fitted rows.
    BayeslawError
        If an argument is not valid, or nothing can be bought for the budget.

    Warns
    -----
    TableWarning
        If candidates are training rows of the posterior; they are left out.

    Notes
    -----
    Predicted standard deviations are those of a Gaussian with the posterior's covariances. They are
    approximate, since laws are not linear in their parameters. The methods and their references are
    in `bayeslaw.design.bayes_linear` and `bayeslaw.design.set_search`.
    """
    _check(k, budget, gain, power, plan)
    fits = [posterior] if source is None else [posterior, source]
    for fit in fits:
        with_draws(fit, "choose_anchors").require_converged(allow_unconverged)
    columns = [c for c in COVARIATES if c in posterior.columns]
    frame = candidate_rows(posterior, candidates)
    price = costs(frame, posterior.columns, cost=cost, fitted=posterior.table)
    if targets is None:
        if plan is None:
            raise BayeslawError("say where the loss matters (targets=): a table or a grid.")
        aim = canonical(_planned_run(plan), "targets", columns)
    else:
        aim = canonical(frame_of(targets), "targets", columns)
        check_units(aim, "targets", posterior.table.frame)
    weight = _normalised(weights, len(aim))
    joint, keep = joint_gaussian(fits, frame, aim, plan, draws)
    search = Search(
        joint=joint,
        costs=price,
        size=np.unique(frame["params"], return_inverse=True)[1],
        gain=GAINS[gain],
        weights=weight if plan is None else np.r_[0 * weight, 1.0],
        k=k or MOST,
        budget=math.inf if budget is None else budget,
        power=(0.0 if budget is None else 1.0) if power is None else power,
        second_size=second_size,
    )
    picks, method = search.best()
    if not picks:
        least = price.further([]).min()
        raise BayeslawError(f"nothing to buy for {budget:.3g} FLOPs: the least costs {least:.3g}.")
    updates = [joint.update(picks[:i]) for i in range(len(picks) + 1)]
    sd = np.sqrt(np.stack([update.variance for update in updates]))
    rows = [np.unique(joint.candidate[joint.measurements_of([pick])]) for pick in picks]
    shown = [c for c in ("run", *COVARIATES) if c in frame]
    table = frame.loc[picks, shown].reset_index(drop=True)
    table["rows"] = [len(each) for each in rows]
    spent = np.array([price.total(picks[:i]) for i in range(len(picks) + 1)])
    table["flops"], table["flops_total"] = np.diff(spent), spent[1:]
    mean = np.sqrt(sd[:, : len(aim)] ** 2 @ weight)
    table["sd_before"], table["sd"] = mean[:-1], mean[1:]
    table["sd_max"] = sd[1:, : len(aim)].max(1)
    table["gain"] = np.diff([search.gain.value(update, search.weights) for update in updates])
    table["gain_per_flop"] = table["gain"] / table["flops"]
    if plan is not None:
        after = [plan_after(plan, joint, keep, picks[:i]) for i in range(1, len(picks) + 1)]
        table["atpp"] = [each.atpp for each in after]
        table["p_plan"] = [each.feasible for each in after]
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


# -- parts ----------------------------------------------------------------------------------------


def _check(
    k: int | None, budget: float | None, gain: str, power: float | None, plan: Plan | None
) -> None:
    """Raise `BayeslawError` unless the arguments are valid."""
    if gain not in GAINS:
        raise BayeslawError(unknown("gain", gain, GAINS))
    if (k is None) and (budget is None):
        raise BayeslawError("say how many runs to choose (k=) or what they may cost (budget=).")
    if (k is not None and k < 1) or (budget is not None and not budget > 0):
        raise BayeslawError("k and budget must be positive.")
    if power is not None and not 0 <= power < math.inf:
        raise BayeslawError(f"power={power:g}: give 0 or more; 1 divides gains by the cost.")
    if (gain == "plan") != (plan is not None):
        raise BayeslawError("gain='plan' needs plan=, a Plan; other gains do not take one.")
    if plan is not None and (plan.chosen is None or not 0 < plan.chosen.tokens < math.inf):
        raise BayeslawError(
            f"no draw meets the limits at any budget, so there is nothing to aim at: {plan.binds}"
        )


def _normalised(weights: Sequence[float] | Floats | None, count: int) -> Floats:
    """Weights of the targets that sum to 1; equal ones if none are given."""
    weight = np.ones(count) if weights is None else np.asarray(weights, float)
    if weight.shape != (count,) or not (weight >= 0).all() or not weight.sum() > 0:
        raise BayeslawError(f"weights: give {count} numbers, one per target, none negative.")
    return np.asarray(weight / weight.sum())


def _planned_run(plan: Plan) -> pd.DataFrame:
    """The row of the planned run."""
    assert plan.chosen is not None
    return plan.run.row.assign(tokens=plan.chosen.tokens, replay=plan.chosen.replay)
