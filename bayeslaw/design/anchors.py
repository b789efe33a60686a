"""Choice of anchors: the runs to buy next for a small posterior variance at targets per FLOP.

The posterior after the purchase is predicted by a Bayes-linear update (`bayeslaw.design.search`),
which needs neither the measured losses nor a refit.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy.linalg import block_diag
from scipy.special import ndtri
from scipy.stats import rankdata

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.common.errors import BayeslawError, TableError, TableWarning, unknown
from bayeslaw.design.search import GAINS, JointGaussian, Search, bases, centred, costs, run_of_each
from bayeslaw.inference import residuals
from bayeslaw.inference.pools import Pool, pair_draws, with_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.adjustments import completed
from bayeslaw.model import effects
from bayeslaw.model.noise import LENGTH, correlation
from bayeslaw.planning.deviations import planned_size_effects
from bayeslaw.planning.intervals import intersection
from bayeslaw.planning.result import Plan
from bayeslaw.tables.table import LossTable, frame_of
from bayeslaw.tables.validation import COVARIATES, canonical, check_units

MOST = 20
"""Most runs under a budget if `k` is not given."""
DRAWS = 4000
"""Most posterior draws used."""
BUDGETS = np.linspace(-3.0, 3.0, 61)
"""Budgets around the plan's, e-folds."""
NEAR, EVERY = np.linspace(-0.1, 0.1, 5), np.linspace(0.04, 0.96, 9)
"""Replay ratios next to the plan's, and others."""
TRUTHS, PLANNED = 100, 400
"""Simulations, and draws in each."""
SAME = 1e-6
"""Relative difference of covariates below which a candidate equals a training row."""


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
    in `bayeslaw.design.search`.
    """
    if gain not in GAINS:
        raise BayeslawError(unknown("gain", gain, GAINS))
    if k is None and budget is None:
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
    fits = [posterior] if source is None else [posterior, source]
    for fit in fits:
        with_draws(fit, "choose_anchors").require_converged(allow_unconverged)
    columns = [c for c in COVARIATES if c in posterior.columns]
    frame = candidate_rows(posterior, candidates)
    price = costs(frame, posterior.columns, cost=cost, fitted=posterior.table)
    if targets is not None:
        aims = canonical(frame_of(targets), "targets", columns)
        check_units(aims, "targets", posterior.table.frame)
    elif plan is None or plan.chosen is None:
        raise BayeslawError("say where the loss matters (targets=): a table or a grid.")
    else:
        planned = plan.run.row.assign(tokens=plan.chosen.tokens, replay=plan.chosen.replay)
        aims = canonical(planned, "targets", columns)
    weight = np.ones(len(aims)) if weights is None else np.asarray(weights, float)
    if weight.shape != (len(aims),) or not (weight >= 0).all() or not weight.sum() > 0:
        raise BayeslawError(f"weights: give {len(aims)} numbers, one per target, none negative.")
    weight = weight / weight.sum()
    joint, keep = joint_gaussian(fits, frame, aims, plan, draws)
    search = Search(
        joint=joint,
        costs=price,
        size=np.unique(frame["params"], return_inverse=True)[1],
        gain=gain,
        weights=weight if plan is None else np.r_[0 * weight, 1.0],
        k=k or MOST,
        budget=math.inf if budget is None else budget,
        power=(0.0 if budget is None else 1.0) if power is None else power,
        second_size=second_size,
    )
    picks = search.best()
    if not picks:
        least = price.further([]).min()
        raise BayeslawError(f"nothing to buy for {budget:.3g} FLOPs: the least costs {least:.3g}.")
    steps = [picks[:i] for i in range(len(picks) + 1)]
    sd = np.sqrt([joint.variances(bought)[0][: len(aims)] for bought in steps])
    spent = np.array([price.total(bought) for bought in steps])
    rows = [np.unique(joint.candidate[joint.measurements_of([pick])]) for pick in picks]
    shown = [c for c in ("run", *COVARIATES) if c in frame]
    table = frame.loc[picks, shown].reset_index(drop=True)
    table["rows"] = [len(measured) for measured in rows]
    table["flops"], table["flops_total"] = np.diff(spent), spent[1:]
    mean = np.sqrt(sd**2 @ weight)
    table["sd_before"], table["sd"], table["sd_max"] = mean[:-1], mean[1:], sd[1:].max(1)
    table["gain"] = np.diff([search.worths(bought)[0] for bought in steps])
    table["gain_per_flop"] = table["gain"] / table["flops"]
    if plan is not None:
        after = [plan_after(plan, joint, keep, bought) for bought in steps[1:]]
        table["atpp"], table["p_plan"] = zip(*after, strict=True)
    bought_rows = [frame.loc[measured].assign(pick=i + 1) for i, measured in enumerate(rows)]
    return Anchors(
        picks=table,
        frame=pd.concat(bought_rows, ignore_index=True),
        sd=sd,
        targets=aims,
        gain=gain,
        cost=cost,
        method="greedy, then exchanges",
        budget=search.budget,
        unconverged=tuple(failure for fit in fits for failure in fit.convergence.failures),
        atpp=plan.atpp if plan is not None else math.nan,
    )


def candidate_rows(
    posterior: Posterior | Pool, candidates: LossTable | pd.DataFrame
) -> pd.DataFrame:
    """Valid candidate rows that are not training rows of the posterior.

    Raises
    ------
    TableError
        If no candidate is left, a covariate is missing, or a run's rows differ in more than tokens.

    Warns
    -----
    TableWarning
        If training rows were removed.
    """
    columns = [c for c in COVARIATES if c in posterior.columns]
    frame = canonical(frame_of(candidates), "candidates", columns)
    check_units(frame, "candidates", posterior.table.frame)
    for member, *_ in posterior.by_member():
        member.law.covariates(frame, "candidates")  # raises for rows with tokens = 0
    rows = frame[columns].to_numpy(float)[:, None]
    trained = posterior.table.frame[columns].to_numpy(float)
    measured = np.isclose(rows, trained, rtol=SAME, atol=0).all(-1).any(1)
    if measured.all():
        raise TableError("candidates: all of them are rows that were fitted; nothing to buy.")
    if measured.any():
        warnings.warn(
            f"candidates: {measured.sum()} of {len(frame)} are rows that were fitted; left out.",
            TableWarning,
            stacklevel=3,
        )
        frame = frame[~measured].reset_index(drop=True)
    effects.check_runs(frame, "candidates", columns)
    return frame


def predicted_sd(
    posterior: Posterior, rows: LossTable | pd.DataFrame, targets: LossTable | pd.DataFrame
) -> Floats:
    """Predicted standard deviation of log loss at each target once `rows` are measured.

    Without rows it is the posterior's own. The random effect of a target's size is included if the
    size has no training rows.
    """
    aims = frame_of(targets)
    frame = candidate_rows(posterior, rows) if len(rows) else aims
    joint, _ = joint_gaussian([posterior], frame, aims)
    return np.sqrt(joint.variances(range(len(frame)) if len(rows) else [])[0])


def joint_gaussian(
    fits: Sequence[Posterior | Pool],
    frame: pd.DataFrame,
    targets: pd.DataFrame,
    plan: Plan | None = None,
    most: int = DRAWS,
) -> tuple[JointGaussian, Ints]:
    """Joint Gaussian of candidate measurements and targets under one or two posteriors.

    Parameters
    ----------
    fits : sequence of Posterior or Pool
        Of the target domain, and of the source domain if each run is measured in both.
    frame, targets : DataFrame
        Candidate rows, and rows whose log losses are the target quantities.
    plan : Plan, optional
        Adds a target quantity: the smallest feasible budget at the replay ratio of the plan, or of
        its most likely choice, in normal scores, so that infinite budgets have finite values.
    most : int
        Most posterior draws used. They are the second result: of the plan's paired draws, or of
        the pairs of the fits.
    """
    limits = [] if plan is None else [plan.problem.targets[0], plan.problem.source]
    index = [each.index for each in limits if each.index is not None] or pair_draws(fits)[0]
    count = len(index[0])
    keep = np.unique(np.linspace(0, count - 1, min(most, count)).astype(int))
    both = pd.concat(completed([frame, targets]), join="inner")
    measured, aims, noise = [], [], []
    # Without a source there is one fit for two indices.
    for domain, (fit, paired) in enumerate(zip(fits, index, strict=False)):
        log_loss, share = np.empty((len(keep), len(both))), 1 / fit.count
        covariance = np.zeros((len(frame), len(frame)))
        for member, own, place in fit.by_member(paired[keep]):
            losses = np.log(member.latent(both)) + new_size_effects(member, both, plan, domain)
            losses[:, : len(frame)] += effects.draw(member.draws, member.spec.effects, frame, None)
            log_loss[place] = losses[own]
        for member, own, _ in fit.by_member():
            covariance += len(own) * share * _noise(member, frame, plan)
        if plan is not None and plan.noise == "predictive":
            # The effect of the planned base, if it is new, is the one that the plan's draws have.
            pilots = np.flatnonzero(_of_planned_base(fit, frame, plan))
            log_loss[:, pilots] += limits[domain].noise.base[keep, None]
        measured.append(log_loss[:, : len(frame)])
        aims.append(log_loss[:, len(frame) :])
        noise.append(covariance)
    quantities = [aims[0]]
    if plan is not None and plan.chosen is not None:
        feasible = intersection(plan.problem.feasible_sets([plan.chosen.replay]))
        smallest = feasible.lower.min(0)[0]
        scores = ndtri((rankdata(smallest)[keep] - 0.5) / count)
        quantities.append((scores / scores.std(ddof=1))[:, None])
    return JointGaussian(
        measured=centred(np.hstack(measured)),
        targets=centred(np.hstack(quantities)),
        noise=block_diag(*noise),
        run=np.tile(run_of_each(frame), len(fits)),
        candidate=np.tile(np.arange(len(frame)), len(fits)),
        tokens=np.tile(frame["tokens"], len(fits)),
    ), keep


def new_size_effects(fit: Posterior, frame: pd.DataFrame, plan: Plan | None, domain: int) -> Floats:
    """Random effects of sizes without training rows, shape (draws, rows).

    Candidates and targets of one size have the same effect. For the plan's size it is the one that
    the plan's loss curves have, so the seeds here are those of `bayeslaw.plan`.
    """
    if plan is None:
        return residuals.new_size_effects(fit, frame, np.random.default_rng([0, domain]))
    last = len(plan.problem.limits) - 1
    seed = [plan.seed, last if domain else 0]
    drawn = residuals.new_size_effects(fit, frame, np.random.default_rng(seed))
    own = planned_size_effects(fit, plan.run.row, seed)
    return np.where((frame["params"] == plan.run.params).to_numpy(), own, drawn)


def _noise(fit: Posterior, frame: pd.DataFrame, plan: Plan | None) -> Floats:
    """Covariance of the noise of measured log losses, and of the effects of new groups."""
    # The inverse of the Fisher information about the location: a normal measurement of that
    # variance is as informative as one with this likelihood.
    variances = fit.spec.likelihood.information_variance(fit.scale(frame), fit.values())
    sd = np.sqrt(np.median(variances, axis=0))
    among = np.eye(len(frame))
    if fit.spec.errors == "run":
        ell = float(np.median(fit.values()[LENGTH]))
        among = correlation(run_of_each(frame), frame["tokens"].to_numpy(float), ell)
    total = sd[:, None] * sd * among
    for name in fit.spec.effects:
        if effects.level(name).latent:
            continue  # these effects are part of the draws
        group, new = effects.labels(frame, name), ~effects.is_fitted(fit.draws, name, frame)
        if name == "base" and "base" not in frame and {"params", "ptpp"} <= {*frame}:
            group, new = bases(frame)[0].astype(str), np.ones(len(frame), bool)
        elif name == "base" and plan is not None and plan.noise == "predictive":
            new &= ~_of_planned_base(fit, frame, plan)
        variance = float(np.median(fit.values()[f"tau_{name}"] ** 2))
        total += variance * ((group[:, None] == group) & new & new[:, None])
    return total


def _of_planned_base(fit: Posterior | Pool, frame: pd.DataFrame, plan: Plan) -> Bools:
    """Rows of the plan's base, if its effect was not fitted, shape (rows,)."""
    label = plan.limits["base"]
    fitted = any(
        "base" in member.draws.coords and label in member.draws["base"].values.astype(str)
        for member, *_ in fit.by_member()
    )
    if label is None or fitted or "base" not in frame:
        return np.zeros(len(frame), bool)
    return np.asarray(effects.labels(frame, "base").astype(str) == label)


def plan_after(
    plan: Plan, joint: JointGaussian, keep: Ints, picks: Sequence[int], seed: int = 0
) -> tuple[float, float]:
    """Median ATPP of the plan once candidates are measured, and the probability of a plan.

    Each simulation takes a draw as the truth and draws the losses that the runs would have. Every
    other draw is moved by its regression on the measured losses (Matheron's rule [1]_), which gives
    draws of the Gaussian posterior after the purchase. `joint` has the candidates at the plan's
    paired draws `keep`.

    References
    ----------
    .. [1] J. T. Wilson et al. (2021). Pathwise conditioning of Gaussian processes. Journal of
       Machine Learning Research, 22(105), 1-47.
    """
    assert plan.chosen is not None
    rng = np.random.default_rng(seed)
    atpp = plan.chosen.atpp * np.exp(BUDGETS)
    least, most = plan.replay_grid[[0, -1]]
    ratios = np.unique(np.clip(np.r_[plan.chosen.replay + NEAR, EVERY], least, most))
    some = rng.permutation(len(keep))[:PLANNED]
    problem = plan.problem.take(keep[some])
    bounds = np.array([np.broadcast_to(b.limit, problem.draws) for b in problem.bounds])
    with np.errstate(invalid="ignore", divide="ignore"):
        margin = np.log(bounds)[:, None, None] - np.log(
            [[b.curve.loss(ratios, u) for u in np.log(atpp)] for b in problem.bounds]
        )
    margin = np.nan_to_num(margin, nan=-1.0, posinf=1.0, neginf=-1.0)  # limits, ATPP, r, draws
    have = joint.measurements_of(picks)
    if not len(have):
        found = _smallest(margin, atpp, problem.rank)
        return found, float(np.isfinite(found))
    x = joint.measured[some][:, have] * math.sqrt(len(joint.measured) - 1)
    noise = joint.noise[np.ix_(have, have)]
    shape, flat = margin.shape, margin.reshape(-1, margin.shape[-1])
    moved = x - x.mean(0)
    total = moved.T @ moved / (len(x) - 1) + noise
    gain = (flat - flat.mean(1, keepdims=True)) @ moved / (len(x) - 1) @ np.linalg.inv(total)
    root = np.linalg.cholesky(noise)
    budgets = []
    for t in range(TRUTHS):
        # Errors of the other draws are drawn anew, so that their chance averages out over truths.
        seen = x + rng.standard_normal(x.shape) @ root.T
        truth = x[t % len(x)] + rng.standard_normal(x.shape[1]) @ root.T
        after = (flat + gain @ (truth - seen).T).reshape(shape)
        budgets.append(_smallest(after, atpp, problem.rank))
    median = float(np.quantile(budgets, 0.5, method="higher"))
    return median, float(np.isfinite(budgets).mean())


def _smallest(margin: Floats, atpp: Floats, rank: int) -> float:
    """Smallest ATPP of the grid with at least `rank` draws within all limits at some ratio."""
    enough = ((margin >= 0).all(0).sum(-1) >= rank).any(-1)
    return float(atpp[enough.argmax()]) if enough.any() else math.inf
