"""Budgets C = 6 N D: the loss of every draw over tokens per parameter, and what is read from it.

A budget of C FLOPs trains N parameters on D tokens with C = 6 N D [1]_; at a given C the loss
depends on D / N alone.

References
----------
.. [1] J. Hoffmann et al. (2022). Training compute-optimal large language models. arXiv:2203.15556.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.common.errors import BayeslawError, LawError, argument
from bayeslaw.common.formatting import percent
from bayeslaw.derive.derived import LEAST_SHOWN_SHARE
from bayeslaw.derive.intervals import quantile
from bayeslaw.derive.verdicts import verdict_on
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.departure import Departure
from bayeslaw.tables.compute import flops_of
from bayeslaw.tables.table import Rows
from bayeslaw.tables.units import check_units
from bayeslaw.tables.verdict import MEASURED_DECADES, Verdict

FLOPS = 6.0
"""FLOPs per parameter and token."""
WIDER = 10 ** MEASURED_DECADES["tokens"]
"""Factor by which the range of tokens per parameter that is searched exceeds that of the rows.

Bands were compared with measured losses as far out along D.
"""
SEARCHED = "searched {:.4g} to {:.4g} tokens per parameter"
# Far below the rows a walking law may bend down again, and reach a low loss a second time: of 2000
# draws of Gadre's RefinedWeb a quarter did at a hundredth of the least budget.
FLOPS_REACH = (1.0, 1e9)
"""Budgets searched for a loss, over the least and the greatest budget of the training rows."""
RATIO_STEP = 0.01
WIDE_RATIO_STEP = 0.05
"""Spacing of the lattice in log(D / N): for the best split, and for the least loss alone."""
FLOPS_STEP = 1.0
FINE_FLOPS_STEP = 0.05
"""Spacing of budgets in log C: of all, and of those between which a loss is first reached."""

type Range = tuple[float, float]


class Best(NamedTuple):
    """The best log(D / N) of each draw at a budget, and the loss there, each (draws,)."""

    ratio: Floats
    loss: Floats


@dataclass(frozen=True)
class Budgets:
    """Losses of some draws of a fit over budgets C and tokens per parameter.

    Parameters
    ----------
    fit : Posterior
    losses : callable
        Of rows their losses, (draws, rows).
    search : (float, float)
        Least and greatest tokens per parameter that are searched.
    covariates : mapping of str to float
        The covariates of the law beside N and D.
    """

    fit: Posterior
    losses: Callable[[Rows], Floats]
    search: Range
    covariates: Mapping[str, float]

    def rows(self, log_flops: float | Floats, log_ratio: Floats) -> pd.DataFrame:
        """Rows of budgets at some log(D / N)."""
        return pd.DataFrame({**split_of(log_flops, log_ratio), **self.covariates})

    def ratios(self, step: float = RATIO_STEP) -> Floats:
        """Nodes of log(D / N)."""
        low, high = np.log(self.search)
        # The parabola of `best` needs three.
        return _nodes(low, high, step, fewest=3)

    def along(self, log_flops: float | Floats, log_ratio: Floats) -> Floats:
        """Losses of a budget at some log(D / N), (draws, ratios), or of budgets at one each."""
        losses = self.losses(Rows(self.rows(log_flops, log_ratio)))
        # A draw overflows far from its rows.
        return np.where(np.isnan(losses), np.inf, losses)

    def best(self, log_flops: float, step: float = RATIO_STEP) -> Best:
        """Best log(D / N) of each draw at a budget, and the loss there.

        They are those of the parabola through the best node and its neighbours.
        """
        ratios = self.ratios(step)
        losses = self.along(log_flops, ratios)
        draw = np.arange(len(losses))
        node = losses.argmin(1)
        inner = np.clip(node, 1, len(ratios) - 2)
        before = losses[draw, inner - 1]
        middle = losses[draw, inner]
        after = losses[draw, inner + 1]
        with np.errstate(all="ignore"):
            slope = 0.5 * (after - before)
            bend = before - 2 * middle + after
            vertex = np.where(bend > 0, -slope / bend, node - inner)
            shift = np.clip(vertex, -1, 1)
        least = middle + slope * shift + 0.5 * bend * shift**2
        spacing = ratios[1] - ratios[0]
        best = ratios[inner] + shift * spacing
        smooth = np.isfinite(least)
        ratio = np.where(smooth, best, ratios[node])
        loss = np.where(smooth, least, losses[draw, node])
        return Best(ratio, loss)

    def least(self, log_flops: Floats) -> Floats:
        """Least loss of each draw at budgets, (budgets, draws)."""
        least = []
        for log_budget in log_flops:
            best = self.best(log_budget, WIDE_RATIO_STEP)
            least.append(best.loss)
        return np.array(least)

    def flops_to(
        self, losses: Sequence[float] | Floats, reach: Range
    ) -> tuple[Floats, Bools]:
        """Least budget that reaches each loss, and whether it is the least searched.

        Losses are (targets,), or one for each draw, (draws, targets); both results have the shape
        (draws, targets). Infinity where no budget searched reaches the loss.
        """
        low, high = np.log(reach)
        nodes = _nodes(low, high, FLOPS_STEP)
        first = self.best(nodes[0], WIDE_RATIO_STEP).loss
        least = [first]
        shape = len(first), np.shape(losses)[-1]
        targets = np.broadcast_to(losses, shape)
        lowest_targets = targets.min(1)
        for node in nodes[1:]:
            if (least[-1] <= lowest_targets).all():
                break
            best = self.best(node, WIDE_RATIO_STEP)
            least.append(best.loss)
        coarse = np.array(least)
        crossings = []
        for target in targets.T:
            crossings.append(self._first(nodes, coarse, target))
        log_flops = np.stack(crossings, 1)
        return np.exp(log_flops), log_flops == low

    def _first(self, nodes: Floats, losses: Floats, target: Floats) -> Floats:
        """Least log budget of each draw that reaches its target, given losses at some nodes."""
        reaching = losses <= target
        reached = reaching.any(0)
        node = reaching.argmax(0)
        at_first_node = np.where(reached, nodes[0], np.inf)
        inner = reached & (node > 0)
        if not inner.any():
            return at_first_node
        start = nodes[node[inner].min() - 1]
        end = nodes[node[inner].max()]
        fine = _nodes(start, end, FINE_FLOPS_STEP)
        least = self.least(fine)
        # The first crossing within the step in which the draw crosses.
        before_step = nodes[np.maximum(node - 1, 0)]
        reaching = (least <= target) & (fine[:, None] > before_step)
        after = np.maximum(reaching.argmax(0), 1)
        draw = np.arange(len(target))
        excess_before = least[after - 1, draw] - target
        excess_after = least[after, draw] - target
        with np.errstate(all="ignore"):
            share = excess_before / (excess_before - excess_after)
            share = np.nan_to_num(share, nan=1.0)
        spacing = fine[1] - fine[0]
        share = np.clip(share, 0, 1)
        crossing = fine[after] - (1 - share) * spacing
        return np.where(inner, crossing, at_first_node)

    def on_bounds(self, log_ratio: Floats) -> Bools:
        """Whether some log(D / N) are the least, and the greatest searched, (..., 2)."""
        ends = np.log(self.search)
        return np.isclose(log_ratio[..., None], ends, rtol=0, atol=1e-9)

    def splits(
        self, flops: Sequence[float], log_ratio: Floats
    ) -> tuple[Verdict, list[str]]:
        """Where the splits of budgets lie beside the fitted rows, and notes about the search.

        Of the best log(D / N), (draws, flops), the median is located. Budgets that are infinite
        have no split.
        """
        notes = [SEARCHED.format(*self.search)]
        bound = self.on_bounds(log_ratio)
        shares = bound.any(-1).mean(0)
        share = float(shares.max())
        if share >= LEAST_SHOWN_SHARE:
            at_low, at_high = bound.any((0, 1))
            low, high = self.search
            if at_low:
                low = float(f"{low / 10:.2g}")
            if at_high:
                high = float(f"{10 * high:.2g}")
            most_bound = flops[int(shares.argmax())]
            notes.append(
                f"the best split of {most_bound:.3g} FLOPs lies at an end of this "
                f"range in {percent(share)} of the draws; to search further: "
                f"{argument('search', (low, high))}"
            )
        median_ratio = np.median(log_ratio, 0)
        rows = self.rows(np.log(flops), median_ratio)
        verdict = verdict_on(self.fit, rows[np.isfinite(flops)])
        return verdict, notes

    def median_splits(self, flops: Floats) -> tuple[Verdict, list[str]]:
        """`splits` at the medians of some budgets, (draws, targets)."""
        medians = [quantile(column, 0.5) for column in flops.T]
        best = []
        for median in medians:
            if math.isfinite(median):
                best.append(self.best(math.log(median)).ratio)
            else:
                best.append(np.full(len(flops), np.nan))
        return self.splits(medians, np.stack(best, 1))


def _nodes(low: float, high: float, spacing: float, fewest: int = 1) -> Floats:
    """Equidistant nodes between two ends, at most a spacing apart."""
    intervals = math.ceil((high - low) / spacing)
    return np.linspace(low, high, max(fewest, intervals + 1))


def split_of(log_flops: float | Floats, log_ratio: Floats) -> dict[str, Floats]:
    """N and D of budgets C = 6 N D at some log(D / N)."""
    log_nd = np.asarray(log_flops) - math.log(FLOPS)
    log_params = 0.5 * (log_nd - log_ratio)
    log_tokens = 0.5 * (log_nd + log_ratio)
    return {
        "params": np.exp(log_params),
        "tokens": np.exp(log_tokens),
    }


def budgets_of(
    posterior: Posterior,
    search: Range | None,
    covariates: Mapping[str, float | None],
    draws: Ints | slice = slice(None),
) -> Budgets:
    """Budgets under some draws.

    Rows are of annealed checkpoints, and no data repeat.
    """
    values = check_covariates(posterior, covariates)

    def losses(rows: Rows) -> Floats:
        return posterior.losses(rows)[draws]

    return Budgets(posterior, losses, searched(posterior, search), values)


def check_covariates(
    posterior: Posterior, covariates: Mapping[str, float | None]
) -> dict[str, float]:
    """The covariates beside N and D that are not None; `LawError` unless the law reads just these.

    The law must read N and D, and must not start from a base.
    """
    law = posterior.law
    lacking = {"params", "tokens"} - set(law.columns)
    if lacking:
        raise LawError(
            f"law {law.name} does not depend on {', '.join(sorted(lacking))}; "
            "a compute-optimal split needs a law of both params and tokens."
        )
    if law.step(Departure):
        raise LawError(
            f"law {law.name} starts from the loss of a base, of one N and P; derive "
            "from the fit of a law without one, such as form1n."
        )
    all_covariates: dict[str, float | None] = dict.fromkeys(law.declared)
    all_covariates |= covariates
    for name, value in all_covariates.items():
        needed = name in law.columns
        if needed and value is None:
            raise LawError(f"law {law.name} depends on {name}; give it, as {name}=...")
        if not needed and value is not None:
            raise LawError(f"law {law.name} does not depend on {name}; leave it out.")
    values = {name: value for name, value in covariates.items() if value is not None}
    check_units(pd.DataFrame([values]), "derive", posterior.table.frame)
    return values


def searched(fit: Posterior, search: Range | None) -> Range:
    """Tokens per parameter to search: those asked for, or those of the rows and somewhat beyond."""
    if search is None:
        rows = fit.table.frame
        ratios = rows["tokens"] / rows["params"]
        least = float(ratios.min())
        most = float(ratios.max())
        return least / WIDER, most * WIDER
    low, high = search
    if not 0 < low < high < math.inf:
        raise BayeslawError(
            f"search {low:g} to {high:g} is not a range of tokens per parameter; "
            "write the least first, such as (0.1, 1e4)."
        )
    return low, high


def training_flops(fit: Posterior) -> Floats:
    """Budgets 6 N D of the training rows."""
    rows = fit.table.frame
    return flops_of(rows).to_numpy(float)


def reach_of(fits: Sequence[Posterior]) -> Range:
    """The least and the greatest budget that are searched for a loss."""
    flops = np.concatenate([training_flops(fit) for fit in fits])
    low, high = FLOPS_REACH
    least = float(flops.min())
    most = float(flops.max())
    return low * least, high * most


def positive(name: str, values: float | Sequence[float]) -> list[float]:
    """The values as a list; `BayeslawError` unless they are positive, finite numbers."""
    array = np.atleast_1d(np.asarray(values, float))
    numbers = [float(value) for value in array]
    if not numbers or not all(0 < value < math.inf for value in numbers):
        raise BayeslawError(f"{name} must be positive numbers; got {values!r}.")
    return numbers


def checked_flops(
    fits: Sequence[Posterior], flops: float | Sequence[float]
) -> list[float]:
    """Budgets as a list, whose unit is compared with that of the fitted rows."""
    budgets = positive("flops", flops)
    for fit in fits:
        fitted = pd.DataFrame({"flops": training_flops(fit)})
        check_units(pd.DataFrame({"flops": budgets}), "derive", fitted)
    return budgets
