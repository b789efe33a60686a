"""Runs to buy next: their choice, and what a plan saves once they are measured.

The posterior after a purchase is predicted by a Bayes-linear update (`bayeslaw.design.search`),
which needs neither the measured losses nor a refit. The expected value of sample information (EVSI)
needs both: measured losses are simulated, laws refitted with them, and planned again [1]_.

References
----------
.. [1] H. Raiffa and R. Schlaifer (1961). Applied Statistical Decision Theory. Harvard University.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.common.files import results
from bayeslaw.common.formatting import count, digits, percent
from bayeslaw.common.shown import Block, Format, Note, Showing, Shown, Table
from bayeslaw.design.search import (
    COSTS,
    GAINS,
    JointGaussian,
    Search,
    candidate_rows,
    costs,
    joint_gaussian,
)
from bayeslaw.inference.fitting import joined, refit
from bayeslaw.inference.pools import Pool, with_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import residual_draws
from bayeslaw.laws.adjustments import completed
from bayeslaw.planning.planner import plan
from bayeslaw.planning.result import Plan
from bayeslaw.tables.table import LossTable, frame_of
from bayeslaw.tables.validation import ABSENT, COVARIATES, canonical, check_rows

MOST = 20
"""Most runs under a budget if `k` is not given."""
BUDGETS = np.linspace(-3.0, 3.0, 61)
"""Budgets around the plan's, e-folds."""
NEAR, EVERY = np.linspace(-0.1, 0.1, 5), np.linspace(0.04, 0.96, 9)
"""Replay ratios next to the plan's, and others."""
TRUTHS, PLANNED = 100, 400
"""Simulations, and draws in each."""

ENOUGH = 0.9
"""Fraction of the total reduction of the sd up to which picks are counted."""


@dataclass(frozen=True)
class Anchors(Showing):
    """Runs to buy, in order, with the predicted effect of each.

    Parameters
    ----------
    picks : DataFrame
        One row per run, in the order to buy:

        - the covariates of its row with the most tokens, `run` if the candidates have it, and
          `rows`, the number of rows measured;
        - `flops`, its further cost, and `flops_total`, the cost up to and including it;
        - `sd_before`, `sd`, `sd_max`: predicted posterior standard deviation of log loss at the
          targets before and after it (root mean square over the targets), and the largest
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
        Gain that was maximised, or ``"random"``; cost of runs; method of the search.
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

    def shown(self) -> Shown:
        """The runs in the order to buy them, with what is predicted after each."""
        picks, unit = self.picks, "FLOPs" if self.cost in COSTS else self.cost
        drop, sizes = picks["sd_before"] - picks["sd"], picks["params"].nunique()
        scale = 10.0 ** math.floor(math.log10(self.flops / len(picks)))
        per = f"per {scale:.0e}".replace("+", "")

        columns: dict[str, list[float | str]] = {}
        for name in ("run", *COVARIATES):
            if name in picks:
                columns[name] = ["", *picks[name].map(str if name == "run" else count)]
        columns[unit] = ["", *picks["flops"].map("{:.2g}".format)]
        columns["total"] = ["", *picks["flops_total"].map("{:.2g}".format)]
        columns["sd"] = [picks["sd_before"].iloc[0], *picks["sd"]]
        columns["max sd"] = list(self.sd.max(1))
        columns["drop"] = [math.nan, *drop]
        columns[per] = [math.nan, *(drop / picks["flops"] * scale)]
        if planned := "atpp" in picks:
            columns["ATPP"] = [self.atpp, *picks["atpp"]]
            columns["P(plan)"] = [math.nan, *picks["p_plan"]]
        index = pd.Index(["now", *range(1, len(picks) + 1)], dtype=object)
        formats: dict[str, Format] = dict.fromkeys(("sd", "max sd", "drop", per), percent_sd)
        formats |= {"ATPP": digits, "P(plan)": ".2f"}
        targets = len(self.targets)
        legend = (
            "sd, max sd: predicted posterior standard deviation of log loss in percent, root mean "
            f"square and largest over {targets} target{'s' * (targets != 1)}; drop: reduction of "
            f"sd by the run; {per}: drop for {per.removeprefix('per ')} {unit}."
        )
        within = f" of {self.budget:.3g}" if math.isfinite(self.budget) else ""
        table = Table(pd.DataFrame(columns, index), "", formats, ("total", "max sd"))
        criterion = f"{GAINS[self.gain]}; {self.method}"
        blocks: list[Block] = [criterion, table, Note(legend, "quiet")]
        if planned:
            words = (
                "P(plan): predicted probability that a plan at the stated confidence exists once "
                "the runs are measured; ATPP: the median of its budget over what they may show."
            )
            blocks.append(Note(words, "quiet"))
        # Picks until ENOUGH of the whole reduction.
        so_far = picks["sd_before"].iloc[0] - picks["sd"]
        first = int((so_far >= ENOUGH * so_far.max()).to_numpy().argmax()) + 1
        if first < len(picks):
            fraction = picks["flops_total"].iloc[first - 1] / self.flops
            blocks.append(
                f"The first {first} give {percent(ENOUGH)} of the reduction of sd by all "
                f"{len(picks)}, for {percent(fraction)} of the cost."
            )
        if sizes == 1 and len(picks) > 1:
            words = "All of one size: these runs cannot show that the law is wrong about N."
            blocks.append(Note(words, "caution"))
        if more := len(self.frame) - len(picks):
            blocks.append(
                f"{more} further rows are checkpoints of these runs, free (--out, --json)."
            )
        document = {
            "gain": self.gain,
            "cost": self.cost,
            "method": self.method,
            "budget": self.budget,
            "flops": self.flops,
            "targets": targets,
            "sd_now": picks["sd_before"].iloc[0],
            "atpp_now": self.atpp,
            "picks_for_90_percent": first,
            "unconverged": list(self.unconverged),
            "picks": picks.to_dict("records"),
            "rows": self.frame.to_dict("records"),
        }
        cost = COSTS.get(self.cost, "cost by that column")
        title = f"{len(picks)} runs of {sizes} sizes: {self.flops:.3g}{within} {unit} ({cost})"
        return Shown(title, blocks, document)


def percent_sd(value: float) -> str:
    return f"{100 * value:#.3g} %".replace(". %", " %")


def shown_value(evsi: pd.DataFrame) -> Shown:
    """What `anchor_value` found: FLOPs saved on the target run against those spent."""
    names = {"flops": "FLOPs", "atpp": "ATPP", "atpp_90": "90 %", "less": "lower"}
    names |= {"infeasible": "no\nplan", "saved": "saved", "net": "net", "mean": "mean saved"}
    frame = evsi.set_index(evsi["set"].str.slice(0, 20)).rename_axis("runs")
    means = frame["saved_mean"].map("{:.2g}".format) + frame["saved_error"].map(" ± {:.1g}".format)
    frame = frame.assign(mean=means).rename(columns=names)[list(names.values())]
    formats: dict[str, Format] = dict.fromkeys(("FLOPs", "saved", "net"), ".2g")
    formats |= dict.fromkeys(("lower", "no\nplan"), percent)
    formats |= dict.fromkeys(("ATPP", "90 %"), digits)
    best = int(evsi["net"].argmax())
    largest = f"largest net saving: {frame.index[best]}"
    pays = largest if evsi["net"][best] > 0 else "no set pays off"
    legend = (
        "ATPP, 90 %: budget planned after the runs, median and 90 % quantile over simulations; "
        "lower, no plan: fraction of simulations in which the budget falls, and in which no plan "
        "is left; saved: FLOPs saved on the target run, median; net: saved less the cost of the "
        "runs; mean saved: over simulations with a plan, with its Monte Carlo error."
    )
    now = f"Plan now {digits(evsi['atpp_now'].iloc[0])} ATPP; {pays}."
    blocks: list[Block] = [now, Table(frame, "", formats, ("90 %", "lower")), Note(legend, "quiet")]
    title = "Expected value of sample information"
    return Shown(title, blocks, {"evsi": evsi.to_dict("records")})


def choose_anchors(
    posterior: Posterior | Pool,
    candidates: LossTable | pd.DataFrame,
    targets: LossTable | pd.DataFrame | None = None,
    *,
    k: int | None = None,
    budget: float | None = None,
    cost: str = "flops",
    gain: str = "random",
    second_size: bool = True,
    plan: Plan | None = None,
    source: Posterior | Pool | None = None,
    seed: int = 0,
    allow_unconverged: bool = False,
) -> Anchors:
    """Choose the runs to buy next, at random or by their expected information gain for their cost.

    By default at random: on measured tables, forecasts with runs chosen by a gain were no better
    (docs/anchors.md).

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
        Number of runs; all if the candidates have fewer. With a `budget`, the most runs, by default
        20.
    budget : float, optional
        Most FLOPs for all runs together.
    cost : "flops", "adaptation", or a column of the candidates
        ``"flops"`` is 6 N D for each run and, for laws with `ptpp`, the pre-training of each base
        (6 N times N PTPP tokens), unless it is in the posterior's table, if only by a row with
        ``tokens = 0``. ``"adaptation"`` is 6 N D alone. A column has the costs in any unit.
    gain : {"random", "variance", "entropy", "plan", "doptimal"}
        ``"random"`` takes whole runs in random order while `k` and `budget` allow one;
        ``"variance"`` is the reduction of the mean variance of log loss at the targets;
        ``"entropy"`` that of half its mean logarithm, which weighs relative reductions equally;
        ``"plan"`` that of the variance of the budget that `plan` needs; ``"doptimal"`` the
        information about the law's losses, whatever the targets (Bayesian D-optimality). With a
        budget, sets are built by gain per cost and by gain alone, and the better one is taken.
    second_size : bool
        Whether two or more runs must not all have the same N. Anchors of a single size cannot
        reveal that a law is wrong about N.
    plan : Plan, optional
        For ``gain="plan"``: the plan made with `posterior` as its (first) target. It may be
        infeasible; then the runs are chosen for its most likely choice.
    source : Posterior or Pool, optional
        Posterior of the plan's source domain; each run is then measured in both domains.
    seed : int
        Of random runs.
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
        check_rows(aims, "targets", posterior.table.frame)
    elif plan is None or plan.chosen is None:
        raise BayeslawError("say where the loss matters (targets=): a table or a grid.")
    else:
        planned = plan.run.row.assign(tokens=plan.chosen.tokens, replay=plan.chosen.replay)
        aims = canonical(planned, "targets", columns)
    joint, keep = joint_gaussian(fits, frame, aims, plan)
    weight = np.full(len(aims), 1 / len(aims))
    search = Search(
        joint=joint,
        costs=price,
        size=np.unique(frame["params"], return_inverse=True)[1],
        gain=gain,
        weights=weight if plan is None else np.r_[0 * weight, 1.0],
        k=k or MOST,
        budget=math.inf if budget is None else budget,
        power=0.0 if budget is None else 1.0,
        second_size=second_size,
    )
    picks = search.random(seed) if gain == "random" else search.best()
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
        method=f"seed {seed}" if gain == "random" else "greedy, then exchanges",
        budget=search.budget,
        unconverged=tuple(failure for fit in fits for failure in fit.convergence.failures),
        atpp=plan.atpp if plan is not None else math.nan,
    )


def predicted_sd(
    posterior: Posterior, rows: LossTable | pd.DataFrame, targets: LossTable | pd.DataFrame
) -> Floats:
    """Predicted standard deviation of log loss at each target once `rows`, if any, are measured.

    The random effect of a target's size is included if the size has no training rows.
    """
    aims = frame_of(targets)
    frame = candidate_rows(posterior, rows) if len(rows) else aims
    joint, _ = joint_gaussian([posterior], frame, aims)
    return np.sqrt(joint.variances(range(len(frame)) if len(rows) else [])[0])


def plan_after(
    plan: Plan, joint: JointGaussian, keep: Ints, picks: Sequence[int], seed: int = 0
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
    rng = np.random.default_rng(seed)
    atpp = plan.chosen.atpp * np.exp(BUDGETS)
    least, most = plan.replay_grid[[0, -1]]
    ratios = np.unique(np.clip(np.r_[plan.chosen.replay + NEAR, EVERY], least, most))
    chosen = rng.permutation(len(keep))[:PLANNED]
    problem = plan.problem.take(keep[chosen])
    with np.errstate(invalid="ignore", divide="ignore"):
        losses = [np.log(limit.curve.loss(np.log(atpp), ratios)) for limit in problem.limits]
        levels = [np.log(limit.level) for limit in problem.limits]
        margin = np.array([level - loss for level, loss in zip(levels, losses, strict=True)])
    margin = np.nan_to_num(margin, nan=-1.0, posinf=1.0, neginf=-1.0)  # limits, ATPP, r, draws
    have = joint.measurements_of(picks)
    if not len(have):
        budget = _smallest(margin, atpp, problem.rank)
        return budget, float(np.isfinite(budget))
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
        budgets.append(_smallest(after, atpp, problem.rank))
    median = float(np.quantile(budgets, 0.5, method="higher"))
    return median, float(np.isfinite(budgets).mean())


def _smallest(margin: Floats, atpp: Floats, rank: int) -> float:
    enough = ((margin >= 0).all(0).sum(-1) >= rank).any(-1)
    return float(atpp[enough.argmax()]) if enough.any() else math.inf


def anchor_value(
    sets: Mapping[str, pd.DataFrame],
    *,
    target: Posterior,
    source: Posterior,
    simulations: int = 20,
    cost: str = "flops",
    seed: int = 0,
    jobs: int = 1,
    progress: bool | None = None,
    allow_unconverged: bool = False,
    **planned: Any,
) -> pd.DataFrame:
    """Expected value of sample information of sets of anchors for a plan.

    Parameters
    ----------
    sets : mapping of name to DataFrame
        Rows to measure in both domains, such as ``choose_anchors(...).frame``. They are annealed,
        at their best rate, and repeat no tokens, unless their columns say so.
    target, source : Posterior
        Posteriors of the domain adapted to and of the one that may be forgotten. Each is refitted
        alone.
    simulations : int
        Number of parameter draws taken as the truth. They are the same for all sets, and a row has
        the same simulated loss in all sets. Each requires two refits per set.
    cost : "flops", "adaptation", or a column
        See `bayeslaw.choose_anchors`; a column must be in FLOPs.
    seed : int
    jobs : int
        Number of processes.
    progress : bool, optional
        As for `bayeslaw.fit`.
    allow_unconverged : bool
        Start although a posterior failed the convergence check. The refits are short and are used
        whether they pass the check or not; the column `rhat` shows their convergence.
    **planned
        For `bayeslaw.plan`: ``params``, ``ptpp``, ``max_loss``, ``max_forgetting``, ``baseline``,
        ``confidence`` and so on.

    Returns
    -------
    DataFrame
        One row per set:

        - `flops`, its cost;
        - `atpp_now`, the planned budget before it;
        - `atpp`, `atpp_90`: median and 90 % quantile over simulations of the budget planned after
          it, where a simulation without a feasible plan counts as infinite;
        - `less`, `infeasible`: fraction of simulations in which the budget falls, and in which
          there is no feasible plan;
        - `saved`, `net`: median FLOPs saved on the target run, and the same minus `flops`;
        - `saved_mean`, `saved_error`: mean FLOPs saved over the simulations with a plan, which
          estimates the expected value of sample information, and its Monte Carlo standard error. A
          few simulations with very large budgets can dominate the mean;
        - `rhat`: median over simulations of the larger R-hat of the two refits.

    Raises
    ------
    NotConverged
        If a posterior failed the convergence check and `allow_unconverged` is false.
    BayeslawError
        If there is no set, no simulation, or no feasible plan before the anchors.
    """
    if not sets or simulations < 1:
        raise BayeslawError("give at least one set of anchors, and one simulation.")
    planned |= {"seed": seed, "allow_unconverged": True, "beyond_evidence": True}
    fits = target, source
    for fit in fits:
        fit.require_converged(allow_unconverged)
    now = plan(target=target, source=source, **planned)
    if not math.isfinite(now.atpp):
        raise BayeslawError(f"no plan now, so no budget that could fall: {now.binds}")
    frames = [canonical(rows, f"anchors {name!r}", target.columns) for name, rows in sets.items()]
    rows, code = distinct_rows(frames)
    losses = simulated_losses(fits, rows, simulations, seed)
    spent, calls = [], []
    for frame, places in zip(frames, code, strict=True):
        price = costs(frame, target.columns, cost=cost, fitted=target.table)
        spent.append(price.total(range(len(frame))))
        # The rows are measured in both domains; their tables have the column.
        bare = frame.drop(columns="domain", errors="ignore")
        for i in range(simulations):  # the same truths for all sets, so that their values compare
            measured = [bare.assign(loss=domain[i, places]) for domain in losses]
            calls.append((_refitted_plan, (fits, measured, i, planned)))
    plans = list(results(calls, jobs, "refits and plans", progress))
    parts = np.array(plans).reshape(len(sets), simulations, 3)
    return pd.DataFrame(
        {"set": name, "flops": flops} | summary_of_set(now, flops, *part.T)
        for name, flops, part in zip(sets, spent, parts, strict=True)
    )


def distinct_rows(frames: Sequence[pd.DataFrame]) -> tuple[pd.DataFrame, list[Ints]]:
    """Distinct rows of all frames, and the positions of each frame's rows among them."""
    rows = pd.concat(completed(frames), ignore_index=True)
    same = [name for name in ("run", *ABSENT, *COVARIATES) if name in rows]
    code = rows.groupby(same, sort=False, dropna=False).ngroup().to_numpy()
    ends = np.cumsum([len(frame) for frame in frames])
    return rows[~rows.duplicated(same)].reset_index(drop=True), np.split(code, ends[:-1])


def simulated_losses(
    fits: tuple[Posterior, Posterior], rows: pd.DataFrame, count: int, seed: int
) -> list[Floats]:
    """Losses measured in each domain, (simulations, rows), where the truth is a draw."""
    measured = []
    for i, fit in enumerate(fits):
        rng = np.random.default_rng([seed, i])
        truth = rng.integers(len(fit.values()["sigma"]), size=count)
        measured.append((fit.latent(rows) * np.exp(residual_draws(fit, rows, rng)))[truth])
    return measured


def _refitted_plan(
    fits: tuple[Posterior, Posterior],
    measured: list[pd.DataFrame],
    seed: int,
    planned: Mapping[str, Any],
) -> tuple[float, float, float]:
    """ATPP and FLOPs of the plan after refits with measured losses, and the larger R-hat."""
    target, source = (
        refit(fit.spec, joined(fit.table, LossTable(rows, rows.iloc[:0])), seed)
        for fit, rows in zip(fits, measured, strict=True)
    )
    new: Plan = plan(target=target, source=source, **planned)
    return new.atpp, new.flops, max(target.convergence.rhat, source.convergence.rhat)


def summary_of_set(
    now: Plan, spent: float, atpp: Floats, flops: Floats, rhat: Floats
) -> dict[str, object]:
    saved = now.flops - flops
    median = np.quantile(saved, 0.5, method="lower")
    feasible = pd.Series(saved[np.isfinite(flops)])
    return {
        "atpp_now": now.atpp,
        "atpp": np.quantile(atpp, 0.5, method="higher"),
        "atpp_90": np.quantile(atpp, 0.9, method="higher"),
        "less": (atpp < now.atpp).mean(),
        "infeasible": 1 - len(feasible) / len(saved),
        "saved": median,
        "net": median - spent,
        "saved_mean": feasible.mean(),
        "saved_error": feasible.sem(),
        "rhat": np.median(rhat),
    }
