"""Sets of runs to buy: their cost, how far they reduce the variance of targets, and the best set.

The posterior draws give the joint covariance of log losses at candidates and targets. Conditioning
a Gaussian with these covariances on measurements of known noise variance reduces the targets'
variances by an amount that does not depend on the measured values [1]_: the Bayes-linear update.
The information gain is the mutual information of the measurements and the law's losses [2]_.

A set is built greedily, by gain per cost [3]_, and improved by exchanging single runs as in optimal
experimental design [4]_.

References
----------
.. [1] M. Goldstein and D. Wooff (2007). Bayes Linear Statistics: Theory and Methods. Wiley.
.. [2] K. Chaloner and I. Verdinelli (1995). Bayesian experimental design: a review. Statistical
   Science, 10(3), 273-304.
.. [3] A. Krause, A. Singh and C. Guestrin (2008). Near-optimal sensor placements in Gaussian
   processes. Journal of Machine Learning Research, 9, 235-284.
.. [4] V. V. Fedorov (1972). Theory of Optimal Experiments. Academic Press.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
from scipy.linalg import block_diag
from scipy.special import ndtri
from scipy.stats import rankdata

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.common.errors import BayeslawError, TableError, TableWarning, unknown
from bayeslaw.inference import residuals
from bayeslaw.inference.pools import Pool, pair_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.adjustments import completed
from bayeslaw.model import effects
from bayeslaw.model.noise import LENGTH, correlation
from bayeslaw.planning.planned_run import planned_size_effects
from bayeslaw.planning.result import Plan
from bayeslaw.tables.table import LossTable, frame_of
from bayeslaw.tables.validation import COVARIATES, IDENTITY, canonical, check_rows, same_rows

COSTS = {
    "flops": "6 N D, and the pre-training of each new base once",
    "adaptation": "6 N D of adaptation",
}
"""Costs that are computed from N, D and PTPP."""
GAINS = {
    "random": "drawn at random: no gain gave better forecasts of measured losses",
    "variance": "minimises the mean variance of log loss at the targets",
    "entropy": "minimises the mean log variance of log loss at the targets",
    "plan": "minimises the variance of the budget of the plan",
    "doptimal": "maximises the information about the law (Bayesian D-optimality)",
}
"""Gains of `bayeslaw.choose_anchors`; for that of a plan all weight is on the plan's budget."""
STARTS = 24
"""First runs that sets are built from, over the number of runs."""
PASSES = 5
"""Most passes of exchanges."""
DRAWS = 4000
"""Most posterior draws used."""
SLACK = 1 + 1e-9
"""Factor by which rounding may exceed the budget."""


@dataclass(frozen=True)
class Costs:
    """Costs of candidate rows, each of which stands for its run trained up to that row.

    Rows of one run are its checkpoints: together they cost what the most expensive of them costs.
    `own` is the cost of the run up to each row, `setup` that of each base, paid with the first run
    from it; 0 if the base exists.
    """

    own: Floats
    run: Ints
    base: Ints
    setup: Floats

    def further(self, bought: Sequence[int]) -> Floats:
        """Further cost of each row once the rows `bought` are paid, shape (rows,)."""
        left = self.setup.copy()
        left[self.base[list(bought)]] = 0
        return np.maximum(self.own - self._paid(bought)[self.run], 0) + left[self.base]

    def total(self, bought: Sequence[int]) -> float:
        bases = np.unique(self.base[list(bought)])
        return float(self._paid(bought).sum() + self.setup[bases].sum())

    def measured(self, bought: Sequence[int]) -> list[int]:
        """The rows `bought`, and the cheaper rows of their runs, which come for free."""
        return np.flatnonzero(self.own <= self._paid(bought)[self.run]).tolist()

    def shuffled(self, seed: int | Sequence[int]) -> list[int]:
        """The longest row of each run, in random order."""
        whole = pd.Series(self.own).groupby(self.run).idxmax().to_numpy()
        order: list[int] = np.random.default_rng(seed).permutation(whole).tolist()
        return order

    def longest(self, bought: Sequence[int]) -> list[int]:
        """The rows `bought` but for checkpoints of a run of which a later one is bought too."""
        return [row for row in bought if self.own[row] >= self._paid(bought)[self.run[row]]]

    def _paid(self, bought: Sequence[int]) -> Floats:
        """Cost of each run without its base, shape (runs,)."""
        paid = np.zeros(self.run.max() + 1)
        np.maximum.at(paid, self.run[list(bought)], self.own[list(bought)])
        return paid


def costs(
    frame: pd.DataFrame,
    columns: Sequence[str],
    *,
    cost: str = "flops",
    fitted: LossTable | None = None,
) -> Costs:
    """Costs of the rows of a table or grid; `cost` is that of `bayeslaw.choose_anchors`.

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
    run = run_of_each(frame)
    if "ptpp" not in columns:
        return Costs(own, run, np.zeros(len(frame), int), np.zeros(1))
    base, unique = bases(frame)
    setup = 6 * unique[:, 0] ** 2 * unique[:, 1]
    if cost != "flops":
        setup[:] = 0
    elif fitted is not None:
        known = pd.concat([fitted.frame, fitted.baselines])
        existing = known[["params", "ptpp"]].to_numpy(float)
        setup[np.isclose(unique[:, None], existing, rtol=1e-6).all(-1).any(1)] = 0
    return Costs(own, run, base, setup)


def run_of_each(frame: pd.DataFrame) -> Ints:
    """Run of each row as a code, shape (rows,); a row without a label is a run of its own."""
    return np.unique(effects.labels(frame, "run"), return_inverse=True)[1]


def bases(frame: pd.DataFrame) -> tuple[Ints, Floats]:
    """Base of each row, (rows,), and N and PTPP of each base, (bases, 2): their distinct pairs."""
    pairs = frame[["params", "ptpp"]].to_numpy(float)
    unique, index = np.unique(pairs, axis=0, return_inverse=True)
    return index.ravel(), unique


@dataclass(frozen=True)
class JointGaussian:
    """Joint Gaussian of measured log losses and targets, from posterior draws.

    A *candidate* is a row that could be bought: its run trained up to that row and measured there
    and at all rows of the run with fewer tokens; if in several domains, with a measurement in each.
    `measured` and `targets`, (draws, ...), are as from `centred` and without noise; `noise` is the
    covariance of what the draws do not contain: measurement noise, and effects of new groups.
    """

    measured: Floats
    targets: Floats
    noise: Floats
    run: Ints
    candidate: Ints
    tokens: Floats

    @cached_property
    def _steps(self) -> Ints:
        """Measurements of each run in order of tokens, shape (runs, longest), padded with -1."""
        order = np.lexsort([self.candidate, self.tokens, self.run])
        ordered = self.run[order]
        place = np.arange(len(order)) - np.searchsorted(ordered, ordered)
        steps = np.full((ordered[-1] + 1, place.max() + 1), -1)
        steps[ordered, place] = order
        return steps

    @cached_property
    def _last(self) -> Ints:
        """Position of each candidate's last measurement in the flattened `_steps`."""
        last = np.empty(self.candidate.max() + 1, int)
        positions = np.flatnonzero(self._steps.ravel() >= 0)
        # Positions ascend within a run, so the last assignment is the one that remains.
        last[self.candidate[self._steps.ravel()[positions]]] = positions
        return last

    @cached_property
    def _covariance(self) -> Floats:
        return self.measured.T @ self.measured + self.noise

    @cached_property
    def _cross(self) -> Floats:
        return self.targets.T @ self.measured

    def measurements_of(self, candidates: Sequence[int]) -> Ints:
        """Measurements made when candidates are bought: each run up to its longest candidate."""
        steps = self._steps
        chosen = np.isin(self.candidate[steps], candidates) & (steps >= 0)
        upto = np.flip(np.logical_or.accumulate(np.flip(chosen, 1), 1), 1)
        return steps[upto & (steps >= 0)]

    def variances(self, bought: Sequence[int]) -> tuple[Floats, Floats]:
        """Variance of each target once candidates are bought, and with each further candidate.

        The shapes are (targets,) and (candidates, targets).
        """
        have, free, root, explained, roots = self._conditioned(self._covariance, bought)
        cross = self._cross
        known = np.linalg.solve(root, cross[:, have].T)
        left = (cross - known.T @ explained).T[self._steps] * free[..., None]
        # Covariances of the targets with each measurement's deviation from its prediction by those
        # before it, scaled to variance 1: their squares add up along a run.
        reduction = (np.linalg.solve(roots, left) ** 2).cumsum(1)
        now = (self.targets**2).sum(0) - (known**2).sum(0)
        return now, now - reduction.reshape(-1, len(now))[self._last]

    def information(self, bought: Sequence[int]) -> tuple[float, Floats]:
        """Mutual information, in nats, of the measurements and the law's losses.

        For the candidates bought, and with each further one, shape (candidates,).
        """
        # Half the log ratio of the determinants of the whole covariance and that of the noise; the
        # log diagonal of a Cholesky root sums to half a log determinant.
        now, then = 0.0, np.zeros(self._steps.shape)
        for matrix, sign in ((self._covariance, 1), (self.noise, -1)):
            _, _, root, _, roots = self._conditioned(matrix, bought)
            now += sign * float(np.log(np.diagonal(root)).sum())
            then += sign * np.log(np.diagonal(roots, axis1=1, axis2=2))
        return now, now + then.cumsum(1).ravel()[self._last]

    def _conditioned(
        self, matrix: Floats, bought: Sequence[int]
    ) -> tuple[Ints, Bools, Floats, Floats, Floats]:
        """Condition the measurements of each run, with this covariance, on those made.

        Gives the measurements made; which of `_steps` are not; the Cholesky root of the covariance
        of those made; ``root^-1 matrix[made]``; and the Cholesky root of each run's conditional
        covariance. That of a run's first measurements is its leading block, for all candidates.
        """
        steps, have = self._steps, self.measurements_of(bought)
        free = (steps >= 0) & ~np.isin(steps, have)
        root = np.linalg.cholesky(matrix[np.ix_(have, have)])
        explained = np.linalg.solve(root, matrix[have])
        seen = explained[:, steps].transpose(1, 0, 2)
        left = matrix[steps[:, :, None], steps[:, None, :]] - seen.swapaxes(1, 2) @ seen
        both = free[:, :, None] & free[:, None, :]
        roots = np.linalg.cholesky(np.where(both, left, np.eye(steps.shape[1])))
        return have, free, root, explained, roots


def centred(values: Floats) -> Floats:
    """Deviations of draws from their mean, scaled so that ``z.T @ z`` is the covariance matrix."""
    return np.asarray((values - values.mean(0)) / np.sqrt(len(values) - 1))


def candidate_rows(
    posterior: Posterior | Pool, candidates: LossTable | pd.DataFrame
) -> pd.DataFrame:
    """Valid candidate rows that are not training rows of the posterior."""
    columns = [c for c in COVARIATES if c in posterior.columns]
    frame = canonical(frame_of(candidates), "candidates", columns)
    check_rows(frame, "candidates", posterior.table.frame)
    for member, *_ in posterior.by_member():
        member.law.covariates(frame, "candidates")  # raises for rows with tokens = 0
    levels = [level for member, *_ in posterior.by_member() for level in member.spec.effects]
    known = [*IDENTITY, *(effects.level(level).column for level in levels)]
    measured = same_rows(frame, posterior.table.frame, known).any(axis=1)
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


def joint_gaussian(
    fits: Sequence[Posterior | Pool],
    frame: pd.DataFrame,
    targets: pd.DataFrame,
    plan: Plan | None = None,
) -> tuple[JointGaussian, Ints]:
    """Joint Gaussian of candidate measurements and targets, and the draws that it is made of.

    `fits` are posteriors of the target domain and, if each run is measured in both, of the source
    domain. `targets` are rows whose log losses are the target quantities. A plan adds one: the
    smallest feasible budget at its replay ratio, or that of its most likely choice, in normal
    scores, so that infinite budgets have finite values. The draws, at most `DRAWS`, are of the
    plan's paired draws, or of the pairs of the fits.
    """
    limits = [] if plan is None else [plan.problem.targets[0], plan.problem.source]
    index = [each.index for each in limits if each.index is not None] or pair_draws(fits)[0]
    count = len(index[0])
    keep = np.unique(np.linspace(0, count - 1, min(DRAWS, count)).astype(int))
    both = pd.concat(completed([frame, targets]), join="inner")
    measured, aims, noise = [], [], []
    # Without a source there is one fit for two indices.
    for domain, (fit, paired) in enumerate(zip(fits, index, strict=False)):
        log_loss, share = np.empty((len(keep), len(both))), 1 / fit.count
        covariance = np.zeros((len(frame), len(frame)))
        for member, draws, place in fit.by_member(paired[keep]):
            losses = np.log(member.latent(both)) + new_size_effects(member, both, plan, domain)
            losses[:, : len(frame)] += effects.draw(member.draws, member.spec.effects, frame, None)
            log_loss[place] = losses[draws]
        for member, draws, _ in fit.by_member():
            covariance += len(draws) * share * _noise(member, frame, plan)
        if plan is not None and plan.noise == "predictive":
            # The effect of the planned base, if it is new, is the one that the plan's draws have.
            pilots = np.flatnonzero(_of_planned_base(fit, frame, plan))
            log_loss[:, pilots] += limits[domain].noise.base[keep, None]
        measured.append(log_loss[:, : len(frame)])
        aims.append(log_loss[:, len(frame) :])
        noise.append(covariance)
    quantities = [aims[0]]
    if plan is not None and plan.chosen is not None:
        smallest = replace(plan.problem, beyond=None).needed(plan.chosen.replay)
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
    planned = planned_size_effects(fit, plan.run.row, seed)
    return np.where((frame["params"] == plan.run.params).to_numpy(), planned, drawn)


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


@dataclass(frozen=True)
class Search:
    """Search for a set of candidates of largest gain under limits on number and cost.

    Greedy steps take the candidate of largest gain over its cost to the `power`; without a budget
    whole sets are compared in the same way. `size` is the code of each candidate's N; with
    `second_size` two or more candidates must not all have the same.
    """

    joint: JointGaussian
    costs: Costs
    size: Ints
    gain: str
    weights: Floats
    k: int
    budget: float
    power: float
    second_size: bool

    def random(self, seed: int) -> list[int]:
        """Whole runs in random order, as long as the limits allow one."""
        picks: list[int] = []
        order = self.costs.shuffled(seed)
        while len(picks) < self.k:
            allowed = self._allowed(picks, last=len(picks) + 1 == self.k)
            left = (row for row in order if allowed[row] and row not in picks)
            if (pick := next(left, None)) is None:
                break
            picks.append(pick)
        return picks

    def best(self) -> list[int]:
        """The best set that was found, in the order to buy it."""
        # Gain per cost alone can fill the budget with cheap runs, and gain alone with one dear run.
        powers = {self.power, 0.0} if math.isfinite(self.budget) else {self.power}
        sets: list[list[int]] = [[]]
        for power in sorted(powers, reverse=True):
            # Exchanges of single runs cannot leave every set of two or three, so small sets are
            # built from several first runs.
            allowed = self._allowed([], last=self.k == 1)
            rates = np.where(allowed, self._rates([], power), -math.inf)
            firsts = np.argsort(-rates, kind="stable")[: max(STARTS // self.k, 1)]
            sets += [
                self._exchanged(self.greedy([i], power)) for i in firsts.tolist() if rates[i] > 0
            ]
        ordered: list[int] = []
        left = max(sets, key=self._objective)
        while left:
            rates = self._rates(ordered, self.power)
            ordered.append(max(left, key=lambda pick: rates[pick]))
            left = [pick for pick in left if pick != ordered[-1]]
        return ordered

    def worths(self, picks: Sequence[int]) -> tuple[float, Floats]:
        """Worth of a set in the unit of the gain, and with each candidate added to it."""
        if self.gain == "doptimal":
            return self.joint.information(picks)
        now, then = self.joint.variances(picks)
        if self.gain == "entropy":
            now, then = np.log(now) / 2, np.log(then) / 2
        return -float(now @ self.weights), -then @ self.weights

    def _rates(self, picks: Sequence[int], power: float) -> Floats:
        now, then = self.worths(picks)
        return (then - now) / np.maximum(self.costs.further(picks), np.finfo(float).tiny) ** power

    def _objective(self, picks: Sequence[int]) -> float:
        gain = self.worths(picks)[0] - self.worths([])[0]
        if math.isfinite(self.budget) or not picks:
            return gain
        return float(gain / self.costs.total(picks) ** self.power)

    def greedy(self, picks: list[int], power: float) -> list[int]:
        while len(picks) < self.k:
            allowed = self._allowed(picks, last=len(picks) + 1 == self.k)
            # Rounding may give rows that are measured already a gain, at no cost.
            allowed[self.costs.measured(picks) if picks else []] = False
            rates = np.where(allowed, self._rates(picks, power), -math.inf)
            best = int(rates.argmax())
            if not rates[best] > 0:
                break
            picks = self.costs.longest([*picks, best])
        return picks

    def _exchanged(self, picks: list[int]) -> list[int]:
        """Replace single picks by better ones, and add more, until nothing improves."""
        nothing, _ = self.worths([])
        for _ in range(PASSES):
            before = list(picks)
            for pick in before:
                if pick not in picks:
                    continue
                others = [other for other in picks if other != pick]
                gains = self.worths(others)[1] - nothing
                if math.isinf(self.budget):
                    gains /= (self.costs.total(others) + self.costs.further(others)) ** self.power
                gains = np.where(self._allowed(others, last=True), gains, -math.inf)
                best = int(gains.argmax())
                if gains[best] > gains[pick] + 1e-12 * abs(gains[best]):
                    picks = self.costs.longest([*others, best])
            picks = self.greedy(picks, self.power) if math.isfinite(self.budget) else picks
            if picks == before:
                break
        return picks

    def _allowed(self, picks: list[int], last: bool) -> Bools:
        """Candidates that the rest of the budget allows.

        While all picks have one N and a second is required, only those that have another N or leave
        enough for a candidate with another N, if there are any.
        """
        extra = self.costs.further(picks)
        left = self.budget * SLACK - self.costs.total(picks)
        allowed = extra <= left
        if last and math.isinf(self.budget):
            # A run picked already costs nothing more, but the number of runs is `k`.
            allowed &= np.isin(self.costs.run, self.costs.run[picks], invert=True)
        if not self.second_size or self.k < 2 or len({*self.size[picks]}) > 1:
            return allowed
        second = np.isin(self.size, self.size[picks], invert=True) & bool(picks)
        if not last:
            for size in np.unique(self.size):
                here = self.size == size
                second |= here & (extra + extra[~here].min(initial=math.inf) <= left)
        return allowed & second if (allowed & second).any() else allowed
