"""Compute-optimal splits of budgets, budgets that losses need, and their ratios.

A budget of C FLOPs trains N parameters on D tokens with C = 6 N D [1]_; at a given C the loss
depends on D / N alone. Numbers are read from the losses of every draw on a lattice of both.

References
----------
.. [1] J. Hoffmann et al. (2022). Training compute-optimal large language models. arXiv:2203.15556.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.common.errors import (
    BayeslawError,
    FitError,
    LawError,
    TableWarning,
    argument,
)
from bayeslaw.common.formatting import count, listed, percent
from bayeslaw.common.progress import step
from bayeslaw.derive.derived import (
    LEAST_SHOWN_SHARE,
    Derived,
    checked,
    derived,
    determined,
    interval,
    quantile,
    verdict_on,
    warn_beyond,
)
from bayeslaw.derive.law_as_stated import law_as_stated
from bayeslaw.inference.pools import pair_draws, role_of
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.departure import Departure
from bayeslaw.tables.comparison import labels_of
from bayeslaw.tables.table import Rows, is_synthetic
from bayeslaw.tables.units import check_units
from bayeslaw.tables.validation import flops_of
from bayeslaw.tables.verdict import MEASURED_DECADES, Verdict

FLOPS = 6.0
"""FLOPs per parameter and token."""
WIDER = 10 ** MEASURED_DECADES["tokens"]
"""Factor by which the range of tokens per parameter that is searched exceeds that of the rows.

Bands were compared with measured losses as far out along D.
"""
SEARCHED = "searched {:.4g} to {:.4g} tokens per parameter"
REACHED = "searched {:.3g} to {:.3g} FLOPs"
# Far below the rows a walking law may bend down again, and reach a low loss a second time: of 2000
# draws of Gadre's RefinedWeb a quarter did at a hundredth of the least budget.
FLOPS_REACH = (1.0, 1e9)
"""Budgets searched for a loss, over the least and the greatest budget of the training rows."""
WHY = (
    "It is the best split of the law itself, fitted to the same rows without discrepancy: a rule "
    "for sizes is a statement about the law, and drift serves forecasts. Its interval holds if the "
    "law does."
)
WITH_DRIFT = (
    "with drift: best split of the fit whose exponents drift, and the loss that this fit forecasts "
    "for the recommended split"
)
RATIO_STEP = 0.01
WIDE_RATIO_STEP = 0.05
"""Spacing of the lattice in log(D / N): for the best split, and for the least loss alone."""
FLOPS_STEP = 1.0
FINE_FLOPS_STEP = 0.05
"""Spacing of budgets in log C: of all, and of those between which a loss is first reached."""

type Range = tuple[float, float]


@dataclass(frozen=True)
class Budgets:
    """Losses of some draws of a fit over budgets C and tokens per parameter, `search`."""

    fit: Posterior
    losses: Callable[[Rows], Floats]  # of rows, (draws, rows)
    search: Range
    given: Mapping[str, float]  # the other covariates of the law

    def rows(self, log_flops: float | Floats, log_ratio: Floats) -> pd.DataFrame:
        """Rows of budgets at some log(D / N)."""
        return pd.DataFrame({**split_of(log_flops, log_ratio), **self.given})

    def ratios(self, step: float = RATIO_STEP) -> Floats:
        """Nodes of log(D / N)."""
        low, high = np.log(self.search)
        return np.linspace(low, high, max(3, math.ceil((high - low) / step) + 1))

    def along(self, log_flops: float, ratios: Floats) -> Floats:
        """Losses of a budget at some log(D / N), (draws, ratios)."""
        losses = self.losses(Rows(self.rows(log_flops, ratios)))
        # A draw overflows far from its rows.
        return np.where(np.isnan(losses), np.inf, losses)

    def best(self, log_flops: float, step: float = RATIO_STEP) -> tuple[Floats, Floats]:
        """Best log(D / N) of each draw at a budget, and the loss there, each (draws,).

        They are those of the parabola through the best node and its neighbours.
        """
        ratios = self.ratios(step)
        losses = self.along(log_flops, ratios)
        draw = np.arange(len(losses))
        node = losses.argmin(1)
        inner = np.clip(node, 1, len(ratios) - 2)
        before, middle, after = (losses[draw, inner + side] for side in (-1, 0, 1))
        with np.errstate(all="ignore"):
            slope = 0.5 * (after - before)
            bend = before - 2 * middle + after
            shift = np.clip(np.where(bend > 0, -slope / bend, node - inner), -1, 1)
        least = middle + slope * shift + 0.5 * bend * shift**2
        smooth = np.isfinite(least)
        best = ratios[inner] + shift * (ratios[1] - ratios[0])
        return np.where(smooth, best, ratios[node]), np.where(
            smooth, least, losses[draw, node]
        )

    def least(self, log_flops: Floats) -> Floats:
        """Least loss of each draw at budgets, (budgets, draws)."""
        return np.array([self.best(node, WIDE_RATIO_STEP)[1] for node in log_flops])

    def loss_of(self, log_flops: Floats, log_ratio: Floats) -> Floats:
        """Loss of each draw at one split of each budget, (draws, flops)."""
        losses = self.losses(Rows(self.rows(log_flops, log_ratio)))
        return np.where(np.isnan(losses), np.inf, losses)

    def flops_to(
        self, losses: Sequence[float] | Floats, reach: Range
    ) -> tuple[Floats, Bools]:
        """Least budget that reaches each loss, and whether it is the least searched.

        Losses are (targets,), or one for each draw, (draws, targets); both results have the shape
        (draws, targets). Infinity where no budget searched reaches the loss.
        """
        low, high = np.log(reach)
        nodes = np.linspace(low, high, math.ceil((high - low) / FLOPS_STEP) + 1)
        least = [self.least(nodes[:1])[0]]
        targets = np.broadcast_to(losses, (len(least[0]), np.shape(losses)[-1]))
        for node in nodes[1:]:
            if (least[-1] <= targets.min(1)).all():
                break
            least.append(self.least(np.array([node]))[0])
        coarse = np.array(least)
        log_flops = np.stack(
            [self._first(nodes, coarse, target) for target in targets.T], 1
        )
        return np.exp(log_flops), log_flops == low

    def _first(self, nodes: Floats, losses: Floats, target: Floats) -> Floats:
        """Least log budget of each draw that reaches its target, given losses at some nodes."""
        held = losses <= target
        reached = held.any(0)
        node = held.argmax(0)
        if not (inner := reached & (node > 0)).any():
            return np.where(reached, nodes[0], np.inf)
        start = nodes[node[inner].min() - 1]
        end = nodes[node[inner].max()]
        fine = np.linspace(start, end, math.ceil((end - start) / FINE_FLOPS_STEP) + 1)
        least = self.least(fine)
        # The first crossing within the step in which the draw crosses.
        held = (least <= target) & (fine[:, None] > nodes[np.maximum(node - 1, 0)])
        after = np.maximum(held.argmax(0), 1)
        draw = np.arange(len(target))
        excess = [least[k, draw] - target for k in (after - 1, after)]
        with np.errstate(all="ignore"):
            share = np.nan_to_num(excess[0] / (excess[0] - excess[1]), nan=1.0)
        crossing = fine[after] - (1 - np.clip(share, 0, 1)) * (fine[1] - fine[0])
        return np.where(inner, crossing, np.where(reached, nodes[0], np.inf))

    def on_bounds(self, log_ratio: Floats) -> Bools:
        """Whether some log(D / N) are the least, and the greatest searched, (..., 2)."""
        return np.isclose(log_ratio[..., None], np.log(self.search), rtol=0, atol=1e-9)

    def splits(
        self, flops: Sequence[float], log_ratio: Floats
    ) -> tuple[Verdict, list[str]]:
        """Where the splits of budgets lie beside the fitted rows, and notes about the search.

        Of the best log(D / N), (draws, flops), the median is located. Budgets that are infinite
        have no split.
        """
        rows = self.rows(np.log(flops), np.median(log_ratio, 0))
        notes, (low, high) = [SEARCHED.format(*self.search)], self.search
        bound = self.on_bounds(log_ratio)
        shares = bound.any(-1).mean(0)
        if (share := float(shares.max())) >= LEAST_SHOWN_SHARE:
            at_low, at_high = bound.any((0, 1))
            wider = (
                float(f"{low / 10:.2g}") if at_low else low,
                float(f"{10 * high:.2g}") if at_high else high,
            )
            notes.append(
                f"the best split of {flops[int(shares.argmax())]:.3g} FLOPs lies at an end of this "
                f"range in {percent(share)} of the draws; to search further: "
                f"{argument('search', wider)}"
            )
        return verdict_on(self.fit, rows[np.isfinite(flops)]), notes

    def median_splits(self, flops: Floats) -> tuple[Verdict, list[str]]:
        """`splits` at the medians of some budgets, (draws, targets)."""
        middle = [quantile(column, 0.5) for column in flops.T]
        never = np.full(len(flops), np.nan)
        best = [
            self.best(math.log(c))[0] if math.isfinite(c) else never for c in middle
        ]
        return self.splits(middle, np.stack(best, 1))


def check_given(
    posterior: Posterior, given: Mapping[str, float | None]
) -> dict[str, float]:
    """The covariates beside N and D that a law reads; `LawError` unless they are those given."""
    law = posterior.law
    if lacking := {"params", "tokens"} - set(law.columns):
        raise LawError(
            f"law {law.name} does not depend on {', '.join(sorted(lacking))}; "
            "a compute-optimal split needs a law of both params and tokens."
        )
    if law.step(Departure):
        raise LawError(
            f"law {law.name} starts from the loss of a base, of one N and P; derive "
            "from the fit of a law without one, such as form1n."
        )
    for name, value in (dict.fromkeys(law.declared) | dict(given)).items():
        if name in law.columns and value is None:
            raise LawError(f"law {law.name} depends on {name}; give it, as {name}=...")
        if value is not None and name not in law.columns:
            raise LawError(f"law {law.name} does not depend on {name}; leave it out.")
    values = {name: value for name, value in given.items() if value is not None}
    check_units(pd.DataFrame([values]), "derive", posterior.table.frame)
    return values


def split_of(log_flops: float | Floats, log_ratio: Floats) -> dict[str, Floats]:
    """N and D of budgets C = 6 N D at some log(D / N)."""
    log_nd = np.asarray(log_flops) - math.log(FLOPS)
    return {
        "params": np.exp(0.5 * (log_nd - log_ratio)),
        "tokens": np.exp(0.5 * (log_nd + log_ratio)),
    }


def searched(fit: Posterior, search: Range | None) -> Range:
    """Tokens per parameter to search: those asked for, or those of the rows and somewhat beyond."""
    if search is None:
        ratios = fit.table.frame["tokens"] / fit.table.frame["params"]
        return float(ratios.min()) / WIDER, float(ratios.max()) * WIDER
    low, high = search
    if not 0 < low < high < math.inf:
        raise BayeslawError(
            f"search {low:g} to {high:g} is not a range of tokens per parameter; "
            "write the least first, such as (0.1, 1e4)."
        )
    return low, high


def budgets_of(
    posterior: Posterior,
    search: Range | None,
    given: Mapping[str, float | None],
    draws: Ints | slice = slice(None),
) -> Budgets:
    """Budgets under some draws.

    Rows are of annealed checkpoints, and no data repeat.
    """
    values = check_given(posterior, given)
    ratios = searched(posterior, search)
    return Budgets(
        posterior, lambda rows: posterior.losses(rows)[draws], ratios, values
    )


def training_flops(fit: Posterior) -> Floats:
    rows = fit.table.frame
    return flops_of(rows).to_numpy(float)


def reach_of(fits: Sequence[Posterior]) -> Range:
    flops = np.concatenate([training_flops(fit) for fit in fits])
    return FLOPS_REACH[0] * float(flops.min()), FLOPS_REACH[1] * float(flops.max())


@step("compute-optimal N and D")
def compute_optimal(
    posterior: Posterior,
    flops: float | Sequence[float],
    *,
    span: float = 10.0,
    search: Range | None = None,
    replay: float | None = None,
    ptpp: float | None = None,
    drift: bool = False,
    **own: float,
) -> Derived:
    """Compute-optimal model size and tokens of a budget, and the loss there.

    The recommended split is that of the law as stated. Of a fit with a discrepancy, whose exponents
    drift, it comes from a second fit of the same law to the same rows without discrepancy, which is
    sampled here in a few seconds: it is ``fit(law, table, discrepancy="none")`` with the priors,
    the likelihood and the seed of the posterior. A rule for sizes is a statement about the law, and
    its interval holds if the law does; drift serves forecasts. The best split of the fit whose
    exponents drift is beside it, in `with_drift`, with the loss that this fit gives the recommended
    split.

    Parameters
    ----------
    posterior : Posterior
        Of a law that depends on N and D.
    flops : float or sequence of float
        Budgets C, in FLOPs; C = 6 N D.
    span : float
        Factor of budget, around C, over which the exponents of N and D are mean slopes.
    search : tuple of float, optional
        Least and greatest tokens per parameter among which the best is searched; by default those
        of the fitted rows, and .83 decades beyond: as far as bands were tested along D.
    replay, ptpp : float, optional
        Replay ratio, and pre-training tokens per parameter, of a law that depends on them.
    drift : bool
        Give the best split of the fit as it is, with exponents that drift, and recommend none. Of
        a fit that was saved without its losses there is no other.
    **own : float
        Covariates that the law declares, by their names.

    Returns
    -------
    Derived
        `params`, `tokens`, `tokens_per_param`, `loss` (nats per token), and the exponents
        `params_exponent` and `tokens_exponent`: the mean of d log N / d log C and of
        d log D / d log C over `span`. They add up to 1. An optimum on a bound of `search` is the
        bound, and `at_bound` says so. `places` says how far the split of each budget lies beyond
        the fitted rows, with the median N and D.

    Raises
    ------
    LawError
        If the law does not depend on N and D, or another of its covariates is lacking.
    FitError
        If the law has to be fitted without discrepancy, and the losses were not saved.
    NotConverged
        If a fit failed the convergence checks, unless that is `accepted` of the posterior.

    Warns
    -----
    TableWarning
        If a split lies so far out that `bayeslaw forecast` would refuse it.
    FitWarning
        If random effects explain what the law should explain in the fit without discrepancy.

    Examples
    --------
    >>> table = bl.simulate(
    ...     "chinchilla",
    ...     {"E": 1.7, "A": 400.0, "alpha": 0.34, "B": 410.0, "beta": 0.28},
    ...     bl.grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[1e9, 3e9, 1e10, 3e10, 1e11]),
    ...     sigma=0.003,
    ... )
    >>> fit = bl.fit("chinchilla", table, discrepancy="none")  # doctest: +SKIP
    >>> best = bl.derive.compute_optimal(fit, [1e21, 1e24])  # doctest: +SKIP
    >>> best.to_frame()[["quantity", "flops", "median"]]  # doctest: +SKIP
    """
    asked = asked_budgets([posterior], flops)
    if not span > 1:
        raise BayeslawError(f"span {span:g} is not above 1; it is a factor of budget.")
    checked(posterior)
    drifting = budgets_of(posterior, search, {"replay": replay, "ptpp": ptpp, **own})
    if drift:
        found = _optimum(drifting, asked, span)
        warn_beyond(found.verdicts, [posterior])
        return found
    law = law_as_stated(posterior)
    found = _optimum(replace(drifting, fit=law, losses=law.losses), asked, span)
    warn_beyond(found.verdicts, [posterior])
    found = replace(found, answers=_recommended(found))
    return (
        found
        if law is posterior
        else _beside(found, drifting, _optimum(drifting, asked, span))
    )


def _recommended(found: Derived) -> tuple[str, ...]:
    """The recommended split of each budget, in words."""
    answers = []
    for case, flops in enumerate(found.cases["flops"]):
        draws = {
            str(name): of.values[:, case] for name, of in found.draws.data_vars.items()
        }
        sure = {
            name: determined(*interval(values, 0.9)) for name, values in draws.items()
        }
        words = f"{count(np.median(draws['params']))} parameters, "
        words += f"{count(np.median(draws['tokens']))} tokens"
        if sure["tokens_per_param"]:
            words += f" ({np.median(draws['tokens_per_param']):.3g} per parameter)"
        if not sure["params"]:
            words = "no size, since the best one is not determined"
        elif (
            found.at_bound["params"][:, case].mean() >= 0.5
        ):  # then the median is the bound
            words = "no size, since the best one lies at an end of the range searched"
        answers.append(f"Recommended for {flops:.3g} FLOPs: {words}.")
    return tuple(answers)


def _beside(rule: Derived, drifting: Budgets, drift: Derived) -> Derived:
    """The rule of the law as stated, beside what the fit whose exponents drift says."""
    # The least loss of each draw would be below that of any one split, which is what is trained.
    log_ratio = np.log(np.median(rule.draws["tokens_per_param"].values, axis=0))
    losses = drifting.loss_of(np.log(rule.cases["flops"].to_numpy()), log_ratio)
    draws = drift.draws.assign(
        loss=(("draw", "case"), losses, drift.draws["loss"].attrs)
    )
    at_bound = {name: bound for name, bound in drift.at_bound.items() if name != "loss"}
    failures = (
        *drift.failures,
        *(f"without discrepancy, {failure}" for failure in rule.failures),
    )
    return replace(
        rule,
        answers=(*rule.answers, WHY),
        notes=(*rule.notes, WITH_DRIFT),
        failures=failures,
        with_drift=replace(drift, draws=draws, at_bound=at_bound),
    )


def _optimum(budgets: Budgets, flops: Sequence[float], span: float) -> Derived:
    """The best splits of budgets, and mean slopes over a span of each."""
    # At the ends of the span and in the middle: with kinks, a mean slope over the span is
    # determined where a derivative jumps.
    shifts = np.log(span) * np.array([-0.5, 0.0, 0.5])
    best = np.array(
        [[budgets.best(np.log(c) + shift) for shift in shifts] for c in flops]
    )
    low, log_ratio, high = (best[:, k, 0].T for k in range(3))
    slope = (high - low) / math.log(span)
    at_low, at_bound, at_high = (
        budgets.on_bounds(ratio).any(-1) for ratio in (low, log_ratio, high)
    )
    params, tokens = split_of(np.log(flops), log_ratio).values()
    numbers = {
        "params": (params, "parameters"),
        "tokens": (tokens, "tokens"),
        "tokens_per_param": (np.exp(log_ratio), "tokens per parameter"),
        "params_exponent": (0.5 * (1 - slope), "1"),
        "tokens_exponent": (0.5 * (1 + slope), "1"),
        "loss": (best[:, 1, 1].T, "nats per token"),
    }
    bounded = {
        name: at_low | at_high if "exponent" in name else at_bound for name in numbers
    }
    verdict, notes = budgets.splits(flops, log_ratio)
    notes.append(f"exponents: mean slopes over a factor {span:g} of budget")
    return derived(
        numbers,
        pd.DataFrame({"flops": flops}),
        [budgets.fit],
        at_bound=bounded,
        notes=notes,
        verdicts={"": verdict},
    )


@step("FLOPs to reach a loss")
def flops_to_reach(
    posterior: Posterior,
    loss: float | Sequence[float],
    *,
    search: Range | None = None,
    replay: float | None = None,
    ptpp: float | None = None,
    **own: float,
) -> Derived:
    """Smallest budget that reaches a loss, if it is split compute-optimally.

    Budgets are searched from the least to 1e9 times the greatest budget 6 N D of the
    training rows. The first crossing is found on budgets an e-fold apart, and refined.

    Parameters
    ----------
    posterior : Posterior
        Of a law that depends on N and D.
    loss : float or sequence of float
        Losses to reach, nats per token.
    search, replay, ptpp, own
        As for `compute_optimal`, as are errors and warnings.

    Returns
    -------
    Derived
        `flops`. Infinity where the loss is at or below the floor, or is not reached by the
        budgets searched; the least budget, marked in `at_bound`, where that reaches it already.
        `places` is of the split of the median budget.

    Examples
    --------
    >>> bl.derive.flops_to_reach(fit, [2.2, 2.0]).to_frame()  # doctest: +SKIP
    """
    targets = positive("loss", loss)
    checked(posterior)
    reach = reach_of([posterior])
    budgets = budgets_of(posterior, search, {"replay": replay, "ptpp": ptpp, **own})
    flops, at_bound = budgets.flops_to(targets, reach)
    verdict, notes = budgets.median_splits(flops)
    warn_beyond({"": verdict}, [posterior])
    return derived(
        {"flops": (flops, "FLOPs")},
        pd.DataFrame({"loss": targets}),
        [posterior],
        at_bound={"flops": at_bound},
        notes=[*notes, REACHED.format(*reach)],
        verdicts={"": verdict},
    )


@step("compute multipliers")
def compute_multiplier(
    posterior: Posterior,
    reference: Posterior,
    loss: float | Sequence[float],
    *,
    search: Range | None = None,
) -> Derived:
    """Compute multiplier of one recipe over another: ratio of their FLOPs to reach a loss.

    Parameters
    ----------
    posterior, reference : Posterior
        Of the recipe, and of the recipe it is compared with; both of losses on the same data.
    loss : float or sequence of float
        Losses to reach, nats per token.
    search
        As for `compute_optimal`.

    Returns
    -------
    Derived
        `multiplier`: FLOPs of `reference` over FLOPs of `posterior`; 2 means half the FLOPs.
        Infinity where only `reference` does not reach the loss, 0 where only `posterior` does not,
        NaN where neither does. `notes` says how draws were paired: those of separate fits are
        independent.

    Raises
    ------
    FitError
        If the fits are of other domains or roles.

    Warns
    -----
    TableWarning
        As for `compute_optimal`, and if a table does not say of which domain its losses are.

    Examples
    --------
    >>> bl.derive.compute_multiplier(fit, reference, 2.2).to_frame()  # doctest: +SKIP
    """
    targets = positive("loss", loss)
    fits = [posterior, reference]
    checked(*fits)
    check_same_data(fits)
    index, how = pair_draws(fits)
    reach = reach_of(fits)
    verdicts: dict[str, Verdict] = {}
    reached: list[tuple[Floats, Bools]] = []
    notes = [f"draws paired {how}"]
    for name, fit, draws in zip(("recipe", "reference"), fits, index, strict=True):
        budgets = budgets_of(fit, search, {}, draws)
        reached.append(budgets.flops_to(targets, reach))
        verdicts[name], of_recipe = budgets.median_splits(reached[-1][0])
        notes += [f"{name}: {note}" for note in of_recipe]
    (flops, bound), (reference_flops, reference_bound) = reached
    with np.errstate(invalid="ignore"):  # infinity over infinity is not defined
        ratio = reference_flops / flops
    warn_beyond(verdicts, fits)
    return derived(
        {"multiplier": (ratio, "1")},
        pd.DataFrame({"loss": targets}),
        fits,
        at_bound={"multiplier": reference_bound | bound},
        notes=[*notes, REACHED.format(*reach)],
        verdicts=verdicts,
    )


def check_same_data(fits: Sequence[Posterior]) -> None:
    """Refuse fits whose losses are of other domains or roles; warn where a table names no domain.

    Losses of the domain pre-trained on are of no recipe for the domain adapted to.
    """
    same = "recipes are compared by losses on the same data"
    if {"target", "source"} <= {*map(role_of, fits)}:
        raise FitError(
            f"the fits are of role target and of role source, so of two domains; {same}."
        )
    tables = [fit.table for fit in fits]
    domains = [", ".join(sorted(labels_of(table.frame, "domain"))) for table in tables]
    named = [*dict.fromkeys(name for name in domains if name)]
    if len(named) > 1:
        raise FitError(
            f"the fits are of losses of other domains ({'; '.join(named)}); {same}."
        )
    files = [*dict.fromkeys(table.name for table in tables)]
    silent = [
        table.name
        for table, name in zip(tables, domains, strict=True)
        if not (name or is_synthetic(table))
    ]
    # All rows of one file without the column are of one validation set.
    if silent and len(files) > 1:
        silent = [*dict.fromkeys(silent)]
        warnings.warn(
            f"{listed(silent)} {'does' if len(silent) == 1 else 'do'} not say which validation set "
            f"the losses are of; {same}: check that they are, and give tables a column 'domain'.",
            TableWarning,
            stacklevel=3,
        )


def positive(name: str, values: float | Sequence[float]) -> list[float]:
    numbers = [float(value) for value in np.atleast_1d(np.asarray(values, float))]
    if not numbers or not all(0 < value < math.inf for value in numbers):
        raise BayeslawError(f"{name} must be positive numbers; got {values!r}.")
    return numbers


def asked_budgets(
    fits: Sequence[Posterior], flops: float | Sequence[float]
) -> list[float]:
    """Budgets, checked against those of the fitted rows."""
    asked = positive("flops", flops)
    for fit in fits:
        fitted = pd.DataFrame({"flops": training_flops(fit)})
        check_units(pd.DataFrame({"flops": asked}), "derive", fitted)
    return asked
