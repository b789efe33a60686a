"""Runs to buy next: what they cost, which to take, and what is predicted once they are measured."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.common.formatting import count, digits
from bayeslaw.common.shown import Block, Format, Note, Showing, Shown, Table
from bayeslaw.design.gaussian import (
    JointGaussian,
    bases,
    candidate_rows,
    joint_gaussian,
    run_of_each,
)
from bayeslaw.inference.pools import Pool, check_roles, with_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.planning.result import Plan
from bayeslaw.tables.table import LossTable, Rows, rows_of
from bayeslaw.tables.validation import COVARIATES, check_rows

COSTS = {
    "flops": "6 N D, and the pre-training of each new base once",
    "adaptation": "6 N D of adaptation",
}
"""Costs that are computed from N, D and PTPP."""
# Random is the default: runs of least predicted variance gave e^(.24 ± .28) times its CRPS.
GAINS = {
    "random": "drawn at random: no gain gave better forecasts of measured losses",
    "plan": "chosen to reduce the variance of the budget of the plan",
}
"""Ways to choose runs."""
MOST_RUNS = 20
"""Most runs under a budget if `k` is not given."""
SLACK = 1 + 1e-9
"""Factor by which rounding may exceed the budget."""
AROUND = np.linspace(-3.0, 3.0, 61)
"""Budgets around the plan's, e-folds."""
REPLAY_STEPS, REPLAY_GRID = np.linspace(-0.1, 0.1, 5), np.linspace(0.04, 0.96, 9)
"""Replay ratios next to the plan's, and others."""
TRUTHS, PLANNED = 100, 400
"""Simulations, and draws in each."""


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

    def further(self, bought: Sequence[int]) -> Floats:
        """Further cost of each run once the runs `bought` are paid, shape (runs,)."""
        left = self.setup.copy()
        left[self.base[list(bought)]] = 0
        return self.own + left[self.base]

    def total(self, bought: Sequence[int] | Ints) -> float:
        chosen = np.unique(np.asarray(bought, int))
        return float(self.own[chosen].sum() + self.setup[np.unique(self.base[chosen])].sum())

    def choose(self, scores: Callable[[list[int]], Floats], k: int, budget: float) -> list[int]:
        """Take the run of largest finite score, given those taken, while the limits allow one."""
        picks: list[int] = []
        while len(picks) < k:
            allowed = self.further(picks) <= budget * SLACK - self.total(picks)
            allowed[picks] = False
            rates = np.where(allowed, scores(picks), -math.inf)
            # Runs that may not be bought have this score.
            if np.isneginf(rates.max()):
                break
            picks.append(int(rates.argmax()))
        return picks

    def shuffled(self, seed: int | Sequence[int]) -> Floats:
        """Scores of runs in random order, shape (runs,)."""
        order = np.random.default_rng(seed).permutation(len(self.own))
        # The inverse of a permutation: of each run its place in the order.
        return -np.argsort(order).astype(float)


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
        own = 6 * frame["params"].to_numpy(float) * frame["tokens"].to_numpy(float)
    elif cost in frame:
        own = pd.to_numeric(frame[cost], errors="coerce").to_numpy(float)
    else:
        raise BayeslawError(unknown("cost", cost, [*COSTS, *map(str, frame.columns)]))
    if not ((own > 0) & np.isfinite(own)).all():
        raise BayeslawError(f"cost {cost!r}: not a positive number in every candidate row.")
    code = run_of_each(frame)
    # The other rows of a run are its checkpoints, and free.
    longest = pd.Series(own).groupby(code).idxmax().to_numpy()
    if "ptpp" not in columns:
        return Costs(own[longest], np.zeros(len(longest), int), np.zeros(1), code)
    base, unique = bases(frame)
    # 6 N D, where D is N times PTPP.
    setup = 6 * unique[:, 0] ** 2 * unique[:, 1]
    if cost != "flops":
        # A column may be in another unit, to which FLOPs cannot be added.
        setup[:] = 0
    elif fitted is not None:
        known = pd.concat([fitted.frame, fitted.baselines])
        existing = known[["params", "ptpp"]].to_numpy(float)
        # A base that was fitted, or measured before adaptation, is paid for.
        setup[np.isclose(unique[:, None], existing, rtol=1e-6).all(-1).any(1)] = 0
    return Costs(own[longest], base[longest], setup, code)


@dataclass(frozen=True)
class Anchors(Showing):
    """Runs to buy, in order, with the predicted effect of each.

    Parameters
    ----------
    picks : DataFrame
        One row per run: the covariates of its longest row, `run` if the candidates have it, `rows`,
        the number of rows measured; `flops`, its further cost, and `flops_total`; `sd_before` and
        `sd`, the predicted posterior standard deviation of log loss before and after it, root mean
        square over the targets, and `sd_max`, the largest after it. For the gain of a plan also
        `p_plan` and `atpp`: predicted probability that there is a plan at the stated confidence
        once it is measured, and the median of its budget.
    frame : DataFrame
        Rows to measure, those of one run together; the column `pick` counts the runs from 1.
    sd : array, shape (picks + 1, targets)
        Predicted posterior standard deviation of log loss before any run and after each.
    targets : DataFrame
    gain, cost : str
    seed : int
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
    seed: int
    budget: float
    unconverged: tuple[str, ...] = ()
    atpp: float = math.nan

    @property
    def flops(self) -> float:
        """Cost of all runs."""
        return float(self.picks["flops"].sum())

    def shown(self) -> Shown:
        """The runs in the order to buy them, with what is predicted after each."""
        picks, unit = self.picks, "FLOPs" if self.cost in COSTS else self.cost
        columns: dict[str, list[float | str]] = {}
        for name in picks.columns[: picks.columns.get_loc("rows")]:
            if name != "pick":
                columns[name] = ["", *picks[name].map(str if name == "run" else count)]
        columns[unit] = ["", *picks["flops"].map("{:.2g}".format)]
        columns["total"] = ["", *picks["flops_total"].map("{:.2g}".format)]
        columns["sd"] = [picks["sd_before"].iloc[0], *picks["sd"]]
        columns["max sd"] = list(self.sd.max(1))
        columns["drop"] = [math.nan, *(picks["sd_before"] - picks["sd"])]
        legend = (
            "sd, max sd: predicted posterior standard deviation of log loss in percent, root mean "
            f"square and largest over {len(self.targets)} target{'s' * (len(self.targets) != 1)}; "
            "drop: reduction of sd by the run."
        )
        if "atpp" in picks:
            columns["ATPP"] = [self.atpp, *picks["atpp"]]
            columns["P(plan)"] = [math.nan, *picks["p_plan"]]
            legend += (
                " P(plan): predicted probability that a plan at the stated confidence exists once "
                "the runs are measured; ATPP: the median of its budget over what they may show."
            )
        index = pd.Index(["now", *range(1, len(picks) + 1)], dtype=object)
        formats: dict[str, Format] = dict.fromkeys(("sd", "max sd", "drop"), percent_sd)
        formats |= {"ATPP": digits, "P(plan)": ".2f"}
        table = Table(pd.DataFrame(columns, index), "", formats, ("total", "max sd"))
        how = GAINS[self.gain] + (f"; seed {self.seed}" if self.gain == "random" else "")
        blocks: list[Block] = [how, table, Note(legend, "quiet")]
        if (sizes := picks["params"].nunique()) == 1 < len(picks):
            words = "All of one size: these runs cannot show that the law is wrong about N."
            blocks.append(Note(words, "caution"))
        if more := len(self.frame) - len(picks):
            blocks.append(
                f"{more} further rows are checkpoints of these runs, free (--out, --json)."
            )
        document = {
            "gain": self.gain,
            "cost": self.cost,
            "budget": self.budget,
            "flops": self.flops,
            "targets": len(self.targets),
            "sd_now": picks["sd_before"].iloc[0],
            "atpp_now": self.atpp,
            "unconverged": list(self.unconverged),
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
    targets: Rows | pd.DataFrame | None = None,
    *,
    k: int | None = None,
    budget: float | None = None,
    cost: str = "flops",
    gain: str = "random",
    plan: Plan | None = None,
    source: Posterior | Pool | None = None,
    seed: int = 0,
) -> Anchors:
    """Choose the runs to buy next, at random or for a plan, and predict what they will tell.

    Parameters
    ----------
    posterior : Posterior or Pool
    candidates : LossTable or DataFrame
        Rows that could be measured. Rows with the same `run` are checkpoints of one run, which
        costs what its longest row costs, and have a common random effect. Rows with the same
        `base`, or without that column the same N and PTPP, have a common random effect of base.
    targets : LossTable or DataFrame, optional
        Rows whose losses are to be forecast. Required unless the gain is that of a plan.
    k : int, optional
        Number of runs; with a `budget` the most, by default 20.
    budget : float, optional
        Most FLOPs for all runs together.
    cost : "flops", "adaptation", or a column of the candidates
        ``"flops"`` is 6 N D for each run and, for laws with `ptpp`, the pre-training of each base
        (6 N times N PTPP tokens), unless it is in the posterior's table, if only by a row with
        ``tokens = 0``. ``"adaptation"`` is 6 N D alone. A column has the costs in any unit.
    gain : {"random", "plan"}
        ``"random"``: in random order, as forecasts with chosen runs were no better
        (docs/anchors.md). ``"plan"``: in turn the run that most reduces the variance of the budget
        that `plan` needs; with a `budget`, for its cost.
    plan : Plan, optional
        For ``gain="plan"``: the plan made with `posterior` as its (first) target. It may be
        infeasible; then the runs are chosen for its most likely choice.
    source : Posterior or Pool, optional
        Posterior of the plan's source domain; each run is then measured in both domains.
    seed : int
        Of random runs.

    Returns
    -------
    Anchors

    Raises
    ------
    TableError
        If a covariate is missing or a run is inconsistent, or all candidates are fitted rows.
    BayeslawError
        If an argument is not valid, or nothing can be bought for the budget.

    Notes
    -----
    Predictions are those of a Gaussian with the posterior's covariances: approximate, since laws
    are not linear in their parameters. Candidates that were fitted are left out with a warning.
    """
    if gain not in GAINS:
        raise BayeslawError(unknown("gain", gain, GAINS))
    if k is None and budget is None:
        raise BayeslawError("say how many runs to choose (k=) or what they may cost (budget=).")
    if (k is not None and k < 1) or (budget is not None and not budget > 0):
        raise BayeslawError("k and budget must be positive.")
    if (gain == "plan") != (plan is not None):
        raise BayeslawError("gain='plan' needs plan=, a Plan; random runs do not take one.")
    if plan is not None and (plan.chosen is None or not 0 < plan.chosen.tokens < math.inf):
        raise BayeslawError(
            f"no draw meets the limits at any budget, so there is nothing to aim at: {plan.binds}"
        )
    fits = [posterior] if source is None else [posterior, source]
    for fit in fits:
        with_draws(fit, "choose_anchors").require_converged()
    check_roles(fits[:1] if source is not None else [], fits[1:])
    columns = [*posterior.columns]
    frame = candidate_rows(posterior, candidates)
    price = costs(frame, posterior.columns, cost=cost, fitted=posterior.table)
    if targets is not None:
        aims = rows_of(targets, "targets", columns).frame
        check_rows(aims, "targets", posterior.table.frame)
        for law in posterior.laws:
            aims = law.at_held(aims, "targets")
    elif plan is None or plan.chosen is None:
        raise BayeslawError("say where the loss matters (targets=): a table or a grid.")
    else:
        planned = plan.run.row.assign(tokens=plan.chosen.tokens, replay=plan.chosen.replay)
        aims = rows_of(planned, "targets", columns).frame
    joint, keep = joint_gaussian(fits, frame, aims, plan)

    def rates(picks: list[int]) -> Floats:
        """Reduction of the variance of the plan's budget, the last target, by each run."""
        now, extra = joint.variances(picks)[-1], price.further(picks)
        gains = np.array([now - joint.variances([*picks, i])[-1] for i in range(len(extra))])
        # A budget is spent best by gain per cost; k runs, by gain.
        return gains / extra if budget else gains

    order = price.shuffled(seed)
    most = budget or math.inf
    picks = price.choose((lambda _: order) if plan is None else rates, k or MOST_RUNS, most)
    if not picks:
        least = price.further([]).min()
        raise BayeslawError(f"nothing to buy for {budget:.3g} FLOPs: the least costs {least:.3g}.")
    steps = [picks[:i] for i in range(len(picks) + 1)]
    sd = np.sqrt([joint.variances(bought)[: len(aims)] for bought in steps])
    spent = np.array([price.total(bought) for bought in steps])
    rows = [frame[price.code == pick].assign(pick=i) for i, pick in enumerate(picks, 1)]
    shown = [c for c in dict.fromkeys(("run", *COVARIATES, *columns)) if c in frame]
    table = pd.concat([part.nlargest(1, "tokens")[shown] for part in rows], ignore_index=True)
    table["rows"] = [len(part) for part in rows]
    table["flops"], table["flops_total"] = np.diff(spent), spent[1:]
    mean = np.sqrt((sd**2).mean(1))
    table["sd_before"], table["sd"], table["sd_max"] = mean[:-1], mean[1:], sd[1:].max(1)
    if plan is not None:
        after = [plan_after(plan, joint, keep, bought) for bought in steps[1:]]
        table["atpp"], table["p_plan"] = zip(*after, strict=True)
    return Anchors(
        picks=table,
        frame=pd.concat(rows, ignore_index=True),
        sd=sd,
        targets=aims,
        gain=gain,
        cost=cost,
        seed=seed,
        budget=most,
        unconverged=tuple(failure for fit in fits for failure in fit.convergence.failures),
        atpp=plan.atpp if plan is not None else math.nan,
    )


def plan_after(
    plan: Plan, joint: JointGaussian, keep: Ints, picks: Sequence[int]
) -> tuple[float, float]:
    """Median ATPP of the plan once candidates are measured, and the probability of a plan.

    Each simulation takes a draw as the truth and draws the losses that the runs would have. Every
    other draw is moved by its regression on the measured losses (Matheron's rule [1]_), which gives
    draws of the Gaussian posterior after the purchase. `joint` has the candidates at the plan's
    paired draws `keep`. The margins move on a fixed grid: a search would need the losses, moved
    likewise, at other nodes for each of the `TRUTHS`.

    References
    ----------
    .. [1] J. T. Wilson et al. (2021). Pathwise conditioning of Gaussian processes. Journal of
       Machine Learning Research, 22(105), 1-47.
    """
    assert plan.chosen is not None
    rng = np.random.default_rng(0)
    atpp = plan.chosen.atpp * np.exp(AROUND)
    least, most = plan.replay_grid[[0, -1]]
    ratios = np.unique(np.clip(np.r_[plan.chosen.replay + REPLAY_STEPS, REPLAY_GRID], least, most))
    chosen = rng.permutation(len(keep))[:PLANNED]
    problem = plan.problem.take(keep[chosen])
    with np.errstate(invalid="ignore", divide="ignore"):
        # In logs, in which measurements and draws are taken as jointly normal.
        losses = [np.log(limit.curve.loss(np.log(atpp), ratios)) for limit in problem.limits]
        thresholds = [np.log(limit.threshold) for limit in problem.limits]
        margin = np.array([t - loss for t, loss in zip(thresholds, losses, strict=True)])
    # Only the sign of a margin counts, and infinite ones would have no covariance.
    margin = np.nan_to_num(margin, nan=-1.0, posinf=1.0, neginf=-1.0)  # limits, ATPP, r, draws
    have = joint.of(picks)
    # `centred` has divided by this; the regression here is of the deviations themselves.
    x = joint.measured[chosen][:, have] * math.sqrt(len(joint.measured) - 1)
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
        enough = ((after >= 0).all(0).sum(-1) >= problem.rank).any(-1)
        budgets.append(float(atpp[enough.argmax()]) if enough.any() else math.inf)
    # An order statistic: between a finite and an infinite budget there is no mean.
    median = float(np.quantile(budgets, 0.5, method="higher"))
    return median, float(np.isfinite(budgets).mean())
