"""Which of several recipes has the lowest loss at a target, and what choosing wrongly costs.

A recipe is a way of training, such as a mixture of data; each has a posterior of its own, of losses
on the same evaluation data.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import BayeslawError, LawError
from bayeslaw.common.progress import step
from bayeslaw.common.shown import SYNTHETIC, Block, Format, Note, Showing, Shown, Table
from bayeslaw.derive.budgets import (
    Budgets,
    Range,
    budgets_of,
    checked_flops,
    reach_of,
    training_flops,
)
from bayeslaw.derive.derived import Derived, derived, marked
from bayeslaw.derive.intervals import interval, quantile
from bayeslaw.derive.reach import REACHED, check_same_data
from bayeslaw.derive.verdicts import (
    Verdicts,
    checked,
    positions_of,
    verdict_blocks,
    verdict_on,
    warn_beyond,
    worst_of,
)
from bayeslaw.inference.pools import pair_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.table import Rows, is_synthetic, rows_of
from bayeslaw.tables.units import check_units
from bayeslaw.tables.validation import COVARIATES
from bayeslaw.tables.verdict import Verdict

EQUAL_REGRET = 1e-9
"""Nats by which regrets of equal recipes may differ."""
REGRET = "regret: expected nats above the best if chosen now"
BEHIND = "behind: loss less the lowest of the others"
MULTIPLIERS_TITLE = (
    "Compute multiplier: FLOPs over those that the recipe needs for the same loss"
)
CROSSINGS_TITLE = "FLOPs where the order changes"
FARTHER = 100.0
"""Budgets up to this many times the greatest budget of any training row are searched."""
CROSSING_STEP = 0.25
"""Distance of the budgets at which recipes are compared, in log C."""


@dataclass(frozen=True)
class Recipes(Showing):
    """Recipes compared at targets.

    Parameters
    ----------
    losses : DataArray
        Latent loss in nats per token, dims (recipe, draw, target).
    targets : DataFrame
        One row per target: its covariates, or its budget in `flops`.
    multipliers : Derived or None
        Of targets that are budgets, for each recipe but the first: the m of each draw for which
        the recipe has, with C / m FLOPs, the loss that the first has with C. 2 means half the
        FLOPs; 0 where the recipe does not reach that loss.
    crossings : Derived or None
        Of targets that are budgets, for each recipe but the first: the budget from which the order
        of the two is no longer that at the greatest budget of which all fits have rows; infinite
        where it stays. Searched up to 100 times the greatest budget of any fit.
    notes, failures : tuple of str
        How draws were paired, and the range searched; convergence checks that failed, if allowed.
    verdicts : mapping of str to Verdict
        Where the targets lie beside the rows of each recipe; see `Derived`.
    synthetic : bool
        Whether some fitted losses are simulated.
    """

    losses: xr.DataArray = field(repr=False)
    targets: pd.DataFrame = field(repr=False)
    multipliers: Derived | None = field(default=None, repr=False)
    crossings: Derived | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    verdicts: Verdicts = field(default_factory=dict, repr=False)
    synthetic: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the recipes."""
        return tuple(map(str, self.losses["recipe"].values))

    @property
    def places(self) -> dict[str, pd.DataFrame]:
        """Where the targets lie beside the rows of each recipe, as `bayeslaw.locate` gives it."""
        return positions_of(self.verdicts)

    def to_frame(self, level: float = 0.9) -> pd.DataFrame:
        """One row per target and recipe.

        Parameters
        ----------
        level : float
            Probability of the intervals.

        Returns
        -------
        DataFrame
            The columns of `targets`; `recipe`; `loss`, `lower` and `upper`: median and interval;
            `p_best`, the probability that its loss is the lowest; `regret`, the expected loss
            above the lowest if it is chosen now, in nats per token; `behind`, `behind_lower` and
            `behind_upper`: its loss less the lowest of the others.
        """
        rows = []
        for i, target in enumerate(self.targets.to_dict("records")):
            losses = self.losses.values[:, :, i]
            lowest = losses.min(0)
            won = losses == lowest
            p_best = (won / won.sum(0)).mean(1)  # ties are shared
            for k, name in enumerate(self.names):
                row = {**target, "recipe": name}
                row["loss"] = quantile(losses[k], 0.5)
                row["lower"], row["upper"] = interval(losses[k], level)
                row["p_best"] = float(p_best[k])
                row["regret"] = float((losses[k] - lowest).mean())
                lowest_other = np.delete(losses, k, axis=0).min(0)
                behind = losses[k] - lowest_other
                row["behind"] = quantile(behind, 0.5)
                row["behind_lower"], row["behind_upper"] = interval(behind, level)
                rows.append(row)
        return marked(pd.DataFrame(rows), self.failures)

    def sentence(self) -> str:
        """What to choose at the last target, in one sentence."""
        recipes = self.to_frame().tail(len(self.names))
        # Of equal recipes the first: rounding, which differs between processors, does not choose.
        least = recipes["regret"].min()
        best = recipes[recipes["regret"] <= least + EQUAL_REGRET].iloc[0]
        target = self.targets.iloc[-1]
        values = [f"{name} {value:.3g}" for name, value in target.items()]
        where = ", ".join(values)
        return (
            f"At {where}, {best['recipe']} has the lowest loss with probability "
            f"{best['p_best']:.2f}; choosing it now costs {best['regret']:.2g} nats in expectation."
        )

    def shown(self, level: float = 0.9) -> Shown:
        """The recipes at each target, and what only budgets have.

        Parameters
        ----------
        level : float
            Probability of the intervals.
        """
        frame = self.to_frame(level)
        blocks: list[Block] = []
        if self.synthetic:
            blocks.append(Note(SYNTHETIC, "synthetic"))
        blocks.append(self.sentence())
        blocks += verdict_blocks(self.verdicts, self.targets)
        blocks.append(self._table(frame, f"{100 * level:g} %"))
        document: dict[str, object] = {
            "sentence": self.sentence(),
            "level": level,
            "recipes": frame.to_dict("records"),
            "notes": list(self.notes),
            "evidence": worst_of(self.verdicts).evidence or None,
            "synthetic": self.synthetic,
            "multipliers": None,
            "crossings": None,
        }
        if self.multipliers is not None:
            shown = self.multipliers.shown([level])
            blocks += ["", Note(MULTIPLIERS_TITLE), *shown.blocks]
            document["multipliers"] = shown.document["numbers"]
        if self.crossings is not None:
            shown = self.crossings.shown([level])
            blocks += ["", Note(CROSSINGS_TITLE), *shown.blocks]
            document["crossings"] = shown.document["numbers"]
        blocks.append("")
        for note in (f"{REGRET}; {BEHIND}", *self.notes):
            blocks.append(Note(note, "quiet"))
        return Shown("Recipes", blocks, document)

    def _table(self, frame: pd.DataFrame, share: str) -> Table:
        """A row for each target and recipe of `to_frame`, with intervals of a share."""
        lower = frame["lower"].map("{:.4f}".format)
        upper = frame["upper"].map("{:.4f}".format)
        behind_lower = frame["behind_lower"].map("{:+.4f}".format)
        behind_upper = frame["behind_upper"].map("{:+.4f}".format)
        # Two columns are headed by the share; the space keeps their names apart.
        of_behind = f"{share} "
        columns = {name: frame[name] for name in self.targets.columns}
        columns["recipe"] = frame["recipe"]
        columns["loss"] = frame["loss"]
        columns[share] = lower + " – " + upper
        columns["P(best)"] = frame["p_best"]
        columns["regret"] = frame["regret"]
        columns["behind"] = frame["behind"]
        columns[of_behind] = behind_lower + " – " + behind_upper
        formats: dict[str, Format] = {}
        for column in self.targets.columns:
            formats[str(column)] = ".4g"
        formats |= {"loss": ".4f", "P(best)": ".3f", "regret": ".2g", "behind": "+.4f"}
        optional = (of_behind, "behind")
        return Table(pd.DataFrame(columns), "", formats, optional, ("recipe",))


@step("comparing recipes")
def compare_recipes(
    fits: Mapping[str, Posterior],
    targets: Rows | pd.DataFrame | None = None,
    *,
    flops: float | Sequence[float] | None = None,
    search: Range | None = None,
) -> Recipes:
    """Compare recipes at targets: which has the lowest loss, how surely, and at what cost.

    Losses are latent: without measurement noise and random effects. Give `targets` or `flops`.

    Parameters
    ----------
    fits : mapping of str to Posterior
        A posterior for each recipe, by name, of losses on the same data; the first is the one that
        multipliers and crossings are relative to. Their draws are independent.
    targets : LossTable or DataFrame, optional
        Rows with the covariates of all laws, such as N and D.
    flops : float or sequence of float, optional
        Budgets C = 6 N D, each split compute-optimally by every recipe and draw.
    search : tuple of float, optional
        Least and greatest tokens per parameter among which the best is searched; by default those
        of the rows of each recipe, as for `derive.compute_optimal`.

    Returns
    -------
    Recipes

    Raises
    ------
    LawError
        If `flops` is given and a law depends on more than N and D.
    FitError
        If the fits are of other domains or roles.

    Warns
    -----
    TableWarning
        If a target lies so far beyond the rows of a recipe that `bayeslaw forecast` would refuse
        it, and if a table does not say of which domain its losses are.

    Examples
    --------
    >>> found = bl.compare_recipes({"c4": c4, "web": web}, flops=[1e21, 1e23])  # doctest: +SKIP
    >>> found.to_frame()[["flops", "recipe", "p_best", "regret"]]  # doctest: +SKIP
    >>> found.multipliers.to_frame()  # doctest: +SKIP
    """
    if len(fits) < 2:
        raise BayeslawError(
            "give the posteriors of two recipes or more, each with its name."
        )
    if (targets is None) == (flops is None):
        raise BayeslawError(
            "say where to compare: at rows (targets=, --at) or at budgets (flops=, --flops)."
        )
    posteriors = list(fits.values())
    failures = checked(*posteriors)
    check_same_data(posteriors)
    index, how = pair_draws(posteriors)
    if targets is not None:
        compared = _at_rows(fits, index, targets)
    elif flops is not None:
        budgets = checked_flops(posteriors, flops)
        compared = _at_budgets(fits, index, budgets, search)
    warn_beyond(compared.verdicts, posteriors)
    return replace(
        compared,
        notes=(f"draws paired {how}", *compared.notes),
        failures=failures,
        synthetic=any(is_synthetic(fit.table) for fit in posteriors),
    )


def _at_rows(
    fits: Mapping[str, Posterior], index: Sequence[Ints], targets: Rows | pd.DataFrame
) -> Recipes:
    """The recipes compared at rows, in paired draws."""
    used: set[str] = set()
    for fit in fits.values():
        targets = fit.rows(targets, "targets")
        check_units(targets.frame, "targets", fit.table.frame)
        used.update(fit.columns)
    rows = Rows(rows_of(targets).frame.reset_index(drop=True))
    # In the order of the covariates; those that laws declare come last.
    ordered = dict.fromkeys((*COVARIATES, *sorted(used)))
    columns = [name for name in ordered if name in used]
    losses = []
    verdicts = {}
    for (name, fit), draws in zip(fits.items(), index, strict=True):
        design = fit.design(rows)
        losses.append(fit.law_loss(design)[draws])
        verdicts[name] = verdict_on(fit, rows.frame)
    array = _labelled(np.stack(losses), fits)
    return Recipes(array, rows.frame[columns], verdicts=verdicts)


def _at_budgets(
    fits: Mapping[str, Posterior],
    index: Sequence[Ints],
    flops: list[float],
    search: Range | None,
) -> Recipes:
    """The recipes compared at budgets, which each draw of each recipe splits as is best for it."""
    for name, fit in fits.items():
        if set(fit.columns) != {"params", "tokens"}:
            raise LawError(
                f"{name}: a budget is split between N and D, and law {fit.law.name} depends on "
                f"{', '.join(fit.columns)}; give rows instead (targets=, --at)."
            )
    budgets: dict[str, Budgets] = {}
    losses: list[Floats] = []
    verdicts: dict[str, Verdict] = {}
    notes: list[str] = []
    for (name, fit), draws in zip(fits.items(), index, strict=True):
        of_recipe = budgets_of(fit, search, {}, draws)
        ratios = []
        least = []
        for c in flops:
            best = of_recipe.best(math.log(c))
            ratios.append(best.ratio)
            least.append(best.loss)
        budgets[name] = of_recipe
        losses.append(np.stack(least, 1))
        split = np.stack(ratios, 1)
        verdicts[name], notes_of_recipe = of_recipe.splits(flops, split)
        notes += [f"{name}: {note}" for note in notes_of_recipe]
    # The order is known where all fits have rows; from there on we look for a change.
    most = [training_flops(fit).max() for fit in fits.values()]
    start = min(most)
    end = FARTHER * max(most)
    notes.append(f"changes of order searched from {start:.3g} to {end:.3g} FLOPs")
    reach = reach_of([*fits.values()])
    return Recipes(
        _labelled(np.stack(losses), fits),
        pd.DataFrame({"flops": flops}),
        multipliers=_multipliers(budgets, flops, losses[0], reach),
        crossings=_crossings(budgets, start, end),
        notes=tuple(notes),
        verdicts=verdicts,
    )


def _multipliers(
    budgets: Mapping[str, Budgets],
    flops: list[float],
    first_losses: Floats,
    reach: Range,
) -> Derived:
    """FLOPs over those that each recipe needs for the losses of the first, (draws, flops).

    They are the first recipe's losses in the draw, not at their median: that would add what is
    uncertain about the first's own FLOPs, which are given here.
    """
    first, *later = budgets
    multipliers = {}
    at_bound = {}
    for name in later:
        needed, bound = budgets[name].flops_to(first_losses, reach)
        pair = f"{name} over {first}"
        multipliers[pair] = (np.asarray(flops) / needed, "1")
        at_bound[pair] = bound
    cases = pd.DataFrame({"flops": flops})
    notes = [REACHED.format(*reach)]
    return derived(multipliers, cases, at_bound=at_bound, notes=notes)


def _crossings(budgets: Mapping[str, Budgets], start: float, end: float) -> Derived:
    """Budgets between a start and an end where the order of the first and another changes."""
    log_start = math.log(start)
    log_end = math.log(end)
    steps = math.ceil(math.log(end / start) / CROSSING_STEP) + 1
    nodes = np.linspace(log_start, log_end, steps)
    first, *later = budgets
    least_of_first = budgets[first].least(nodes)
    crossings = {}
    for name in later:
        least = budgets[name].least(nodes)
        difference = least_of_first - least
        crossing = _crossing(difference, nodes)[:, None]
        crossings[f"{first} and {name}"] = (crossing, "FLOPs")
    return derived(crossings, pd.DataFrame(index=[0]))


def _labelled(losses: Floats, fits: Mapping[str, Posterior]) -> xr.DataArray:
    dims = ("recipe", "draw", "target")
    units = {"units": "nats per token"}
    return xr.DataArray(losses, {"recipe": list(fits)}, dims, attrs=units)


def _crossing(difference: Floats, nodes: Floats) -> Floats:
    """Budget at which a difference, (nodes, draws), first changes its sign, by interpolation."""
    changed = np.sign(difference) != np.sign(difference[0])
    draws = np.flatnonzero(changed.any(0))
    end = changed.argmax(0)[draws]
    left = difference[end - 1, draws]
    right = difference[end, draws]
    budgets = np.full(difference.shape[1], np.inf)
    share = left / (left - right)
    start = nodes[end - 1]
    budgets[draws] = np.exp(start + share * (nodes[end] - start))
    return budgets
