"""Recipes with two losses, of a target and of what is to be retained: which are on the frontier.

Such as mid-training: more replay retains more, and learns less. A recipe is a row, such as a replay
ratio and a budget, of one fit of each loss; or a fit of each loss of its own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.errors import BayeslawError, FitError, TableError
from bayeslaw.common.progress import step
from bayeslaw.common.shown import SYNTHETIC, Block, Format, Note, Showing, Shown, Table
from bayeslaw.derive.derived import marked
from bayeslaw.derive.intervals import interval, quantile
from bayeslaw.derive.reach import check_same_data
from bayeslaw.derive.verdicts import Verdicts, verdict_on, warn_beyond, worst_of
from bayeslaw.inference.pools import Pool, check_roles, pair_draws, with_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.comparison import labels_of
from bayeslaw.tables.table import Rows, is_synthetic, rows_of
from bayeslaw.tables.units import check_units
from bayeslaw.tables.validation import COVARIATES

type Fits = Posterior | Pool | Mapping[str, Posterior | Pool]
"""One fit that reads the recipe from its rows, or a fit for each recipe by its name."""

OUTPUTS = ("target", "source")
OF_DOMAIN = ("domain", "role", "loss", "run")
"""Columns of rows of the target that are not those of the same runs' source."""
ON_FRONTIER = 0.5
"""Recipes are named as on the frontier from this probability on."""


def on_frontier(target: Floats, source: Floats) -> Bools:
    """Whether no other recipe is better in both losses.

    Parameters
    ----------
    target, source : array
        Losses, shape (recipes, ...).

    Returns
    -------
    array of bool
        Of the same shape.
    """
    kept = np.empty(target.shape, bool)
    for i in range(len(target)):
        better_in_both = (target < target[i]) & (source < source[i])
        kept[i] = ~better_in_both.any(0)
    return kept


@dataclass(frozen=True)
class Frontier(Showing):
    """Recipes with the losses of a target and of a source, which is to be retained.

    Parameters
    ----------
    losses : DataArray
        Latent loss in nats per token, dims (output, recipe, draw), outputs `target` and `source`.
    rows : DataFrame
        The covariates of each recipe, in the order of the recipes.
    limit : float or None
        Greatest source loss, nats per token.
    weight : float or None
        Nats of target loss that a nat of source loss is worth.
    confidence : float
        Least probability with which a chosen recipe keeps the limit.
    notes, failures : tuple of str
        How draws were paired; convergence checks that failed, if allowed.
    verdicts : mapping of str to Verdict
        Where the recipes lie beside the rows of each fit.
    synthetic : bool
        Whether some fitted losses are simulated.
    """

    losses: xr.DataArray = field(repr=False)
    rows: pd.DataFrame = field(repr=False)
    limit: float | None = None
    weight: float | None = None
    confidence: float = 0.8
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    verdicts: Verdicts = field(default_factory=dict, repr=False)
    synthetic: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the recipes."""
        return tuple(map(str, self.losses["recipe"].values))

    @property
    def target(self) -> Floats:
        """Draws of the target loss, (recipes, draws)."""
        return np.asarray(self.losses.sel(output="target"))

    @property
    def source(self) -> Floats:
        """Draws of the source loss, (recipes, draws)."""
        return np.asarray(self.losses.sel(output="source"))

    def regrets(self) -> Floats:
        """Nats above the best recipe of each draw, (recipes, draws).

        With a limit, target loss above that of the best recipe that keeps it in the draw, 0 of a
        recipe that is better since it breaks it, and NaN where none keeps it. With a weight, target
        loss plus weight times source loss above the least. NaN without either.
        """
        if self.weight is not None:
            score = self.target + self.weight * self.source
            return np.asarray(score - score.min(0))
        if self.limit is None:
            return np.full(self.target.shape, np.nan)
        kept = np.where(self.source <= self.limit, self.target, np.inf)
        best = kept.min(0)
        best[np.isinf(best)] = np.nan
        return np.asarray(np.maximum(self.target - best, 0.0))

    def to_frame(self, level: float = 0.9) -> pd.DataFrame:
        """One row per recipe.

        Parameters
        ----------
        level : float
            Probability of the intervals.

        Returns
        -------
        DataFrame
            `recipe`; the columns of `rows`; `target`, `target_lower` and `target_upper`, and the
            same of `source`: median and interval in nats per token; `p_frontier`, the probability
            that no other recipe is better in both; with a limit `p_limit`, the probability that
            the recipe keeps it; with a limit or a weight `regret`, the expected value of
            `regrets` over the draws in which it is defined.
        """
        frame = self.rows.reset_index(drop=True)
        frame.insert(0, "recipe", self.names)
        for output, draws in (("target", self.target), ("source", self.source)):
            bands = [interval(of_recipe, level) for of_recipe in draws]
            frame[output] = [quantile(of_recipe, 0.5) for of_recipe in draws]
            frame[f"{output}_lower"] = [low for low, _ in bands]
            frame[f"{output}_upper"] = [high for _, high in bands]
        frame["p_frontier"] = on_frontier(self.target, self.source).mean(1)
        if self.limit is not None:
            frame["p_limit"] = (self.source <= self.limit).mean(1)
        if self.limit is not None or self.weight is not None:
            regrets = self.regrets()
            defined = ~np.isnan(regrets[0])
            frame["regret"] = np.nan
            if defined.any():
                frame["regret"] = regrets[:, defined].mean(1)
        return marked(frame, self.failures)

    @property
    def choice(self) -> str | None:
        """The recipe to choose: of those likely to keep the limit the least target loss.

        That is the least in expectation; with a weight the least weighted loss of all recipes.
        None without limit and weight, and if no recipe keeps the limit with the probability
        `confidence`.
        """
        if self.weight is not None:
            score = (self.target + self.weight * self.source).mean(1)
        elif self.limit is not None:
            likely = (self.source <= self.limit).mean(1) >= self.confidence
            score = np.where(likely, self.target.mean(1), np.inf)
        else:
            return None
        best = int(score.argmin())
        return self.names[best] if np.isfinite(score[best]) else None

    def sentence(self) -> str:
        """What to choose, in one sentence."""
        frame = self.to_frame()
        frame.index = pd.Index(self.names)
        chosen = self.choice
        if self.limit is not None:
            says = f"a source loss of at most {self.limit:.4g} nats"
            if chosen is None:
                likeliest = str(frame["p_limit"].idxmax())
                most = frame["p_limit"].max()
                return (
                    f"No recipe keeps {says} with probability {self.confidence:g}; "
                    f"the likeliest is {likeliest}, with {most:.2f}."
                )
            share = frame["p_limit"][chosen]
            return (
                f"{chosen} keeps {says} with probability {share:.2f}; choosing it "
                f"now costs {frame['regret'][chosen]:.2g} nats of target loss in expectation."
            )
        if chosen is not None:
            return (
                f"With a nat of source loss worth {self.weight:g} of target loss, choose {chosen}; "
                f"choosing it now costs {frame['regret'][chosen]:.2g} nats in expectation."
            )
        likely = int((frame["p_frontier"] >= ON_FRONTIER).sum())
        return (
            f"{likely} of {len(frame)} recipes are on the frontier with probability "
            f"{ON_FRONTIER:g} or more."
        )

    def shown(self, level: float = 0.9) -> Shown:
        """The recipes, and what to choose.

        Parameters
        ----------
        level : float
            Probability of the intervals.
        """
        frame = self.to_frame(level)
        share = f"{100 * level:g} %"
        columns: dict[str, object] = {"recipe": frame["recipe"]}
        for output, blank in (("target", ""), ("source", " ")):
            low = frame[f"{output}_lower"].map("{:.4f}".format)
            high = frame[f"{output}_upper"].map("{:.4f}".format)
            columns[output] = frame[output]
            columns[share + blank] = low + " – " + high
        columns["P(frontier)"] = frame["p_frontier"]
        formats: dict[str, Format] = {"target": ".4f", "source": ".4f"}
        formats |= {"P(frontier)": ".2f", "P(limit)": ".2f", "regret": ".2g"}
        if "p_limit" in frame:
            columns["P(limit)"] = frame["p_limit"]
        if "regret" in frame:
            columns["regret"] = frame["regret"]
        optional = (f"{share} ", share)
        table = Table(pd.DataFrame(columns), "", formats, optional, ("recipe",))
        blocks: list[Block] = []
        if self.synthetic:
            blocks.append(Note(SYNTHETIC, "synthetic"))
        blocks.append(self.sentence())
        evidence = worst_of(self.verdicts).evidence
        if evidence:
            blocks.append(Note(evidence, "no evidence"))
        words = "P(frontier): probability that no other recipe is better in both"
        notes = [words, *self.notes]
        blocks += [table, "", *(Note(note, "quiet") for note in notes)]
        document: dict[str, object] = {
            "sentence": self.sentence(),
            "choice": self.choice,
            "level": level,
            "limit": self.limit,
            "weight": self.weight,
            "confidence": self.confidence,
            "recipes": frame.to_dict("records"),
            "notes": list(self.notes),
            "evidence": evidence or None,
            "synthetic": self.synthetic,
        }
        return Shown("Frontier of recipes", blocks, document, ("frontier",))


@step("the frontier of recipes")
def frontier(
    target: Fits,
    source: Fits,
    rows: Rows | pd.DataFrame,
    *,
    limit: float | None = None,
    weight: float | None = None,
    confidence: float = 0.8,
) -> Frontier:
    """Tell which recipes are on the frontier of target loss and source loss, and what to choose.

    Losses are latent: without measurement noise and the random effects of bases and runs.

    Parameters
    ----------
    target, source : Posterior, Pool, or mapping of str to these
        The fits of the loss that is to fall, and of the loss that is to be retained. Each is one
        fit that reads the recipe from `rows`, such as its replay ratio; or a fit for each recipe.
    rows : LossTable or DataFrame
        The covariates of all laws. Of one fit, a row for each recipe, named by a column `recipe` or
        by the covariates that vary. Of a fit for each recipe, one row for all. `start_loss` and
        `base_loss`, if there, are of the target; those of the source follow from them.
    limit : float, optional
        Greatest source loss, nats per token.
    weight : float, optional
        Nats of target loss that a nat of source loss is worth. Give `limit` or `weight` or neither.
    confidence : float
        Least probability with which a chosen recipe keeps the limit.

    Returns
    -------
    Frontier

    Raises
    ------
    FitError
        If target and source are swapped or of one domain, or if the fits of one loss are of
        several domains.
    TableError
        If the rows are not those of two recipes or more.

    Warns
    -----
    TableWarning
        If a recipe lies so far beyond the rows of a fit that `bayeslaw forecast` would refuse it.

    Examples
    --------
    >>> recipes = bl.grid(params=1e9, tokens=2e10, replay=[0.1, 0.25, 0.5])
    >>> found = bl.derive.frontier(math, web, recipes, limit=2.9)  # doctest: +SKIP
    >>> found.to_frame()[["recipe", "p_frontier", "p_limit", "regret"]]  # doctest: +SKIP
    """
    _check_numbers(limit, weight, confidence)
    names, frame = _recipes(target, source, rows)
    frames = {"target": frame, "source": _of_source(frame)}
    parts = {"target": _parts(target, names), "source": _parts(source, names)}
    of_target = [part.fit for part in parts["target"]]
    of_source = [part.fit for part in parts["source"]]
    _check_fits(of_target, of_source)
    fits = [*of_target, *of_source]
    failures: dict[str, None] = {}
    for fit in fits:
        failures |= dict.fromkeys(fit.require_converged())
    index, how = pair_draws(fits)
    losses = np.empty((2, len(names), len(index[0])))
    verdicts = {}
    columns: dict[str, None] = {}
    paired = iter(index)
    for k, output in enumerate(OUTPUTS):
        for part in parts[output]:
            asked = frames[output].iloc[part.recipes].reset_index(drop=True)
            valid = part.fit.rows(asked, f"rows of the {output}")
            check_units(valid.frame, valid.name, part.fit.table.frame)
            # In one call: what a fit draws beyond its rows is the same for all recipes of a draw.
            losses[k, part.recipes] = part.fit.losses(valid, next(paired)).T
            verdicts[f"{output}{part.label}"] = verdict_on(part.fit, valid.frame)
            columns |= dict.fromkeys(part.fit.columns)
    warn_beyond(verdicts, fits)
    coordinates = {"output": list(OUTPUTS), "recipe": names}
    units = {"units": "nats per token"}
    kept = [c for c in dict.fromkeys((*COVARIATES, *columns)) if c in columns]
    return Frontier(
        xr.DataArray(losses, coordinates, ("output", "recipe", "draw"), attrs=units),
        frame[[c for c in kept if c in frame]],
        limit,
        weight,
        confidence,
        (f"draws paired {how}",),
        tuple(failures),
        verdicts,
        any(is_synthetic(fit.table) for fit in fits),
    )


class _Part(NamedTuple):
    """A fit, the recipes it knows by their numbers, and the end of its name in messages."""

    fit: Posterior | Pool
    recipes: list[int]
    label: str


def _parts(fits: Fits, names: Sequence[str]) -> list[_Part]:
    """The fit of all recipes, or that of each."""
    if isinstance(fits, Mapping):
        return [_Part(fits[name], [i], f" of {name}") for i, name in enumerate(names)]
    return [_Part(fits, [*range(len(names))], "")]


def _check_numbers(
    limit: float | None, weight: float | None, confidence: float
) -> None:
    """Refuse a limit, a weight or a confidence that means nothing."""
    if limit is not None and weight is not None:
        raise BayeslawError("give a limit on the source loss or its weight, not both.")
    for name, value in (("limit", limit), ("weight", weight)):
        if value is not None and not 0 < value < math.inf:
            raise BayeslawError(f"{name} must be a positive number; got {value!r}.")
    if not 0 < confidence < 1:
        raise BayeslawError(f"confidence must lie between 0 and 1; got {confidence!r}.")


def _check_fits(
    targets: Sequence[Posterior | Pool], sources: Sequence[Posterior | Pool]
) -> None:
    """Refuse fits without draws, swapped, of one domain, or of several domains of one loss."""
    for fit in (*targets, *sources):
        with_draws(fit, "frontier")
    for target in targets:
        for source in sources:
            check_roles(target, source)
            common = labels_of(target.table.frame, "domain") & labels_of(
                source.table.frame, "domain"
            )
            if common:
                raise FitError(
                    f"target and source are both of domain {', '.join(sorted(common))}; give the "
                    "fit of the losses to be retained as the source."
                )
    check_same_data([fit.first for fit in targets])
    check_same_data([fit.first for fit in sources])


def _recipes(
    target: Fits, source: Fits, rows: Rows | pd.DataFrame
) -> tuple[list[str], pd.DataFrame]:
    """Names of the recipes, and a row for each."""
    frame = rows_of(rows).frame.reset_index(drop=True)
    mappings = [fits for fits in (target, source) if isinstance(fits, Mapping)]
    names = [*dict.fromkeys(str(name) for fits in mappings for name in fits)]
    for fits in mappings:
        missing = [name for name in names if name not in fits]
        if missing:
            raise FitError(
                f"target and source are fits of other recipes: one has no {missing[0]!r}."
            )
    if not names:
        names = _names(frame)
    elif len(frame) == 1:
        frame = frame.iloc[[0] * len(names)].reset_index(drop=True)
    elif "recipe" in frame and sorted(frame["recipe"].astype(str)) == sorted(names):
        names = [*frame["recipe"].astype(str)]
    else:
        raise TableError(
            f"rows: give one row for all {len(names)} recipes, or a row for each, with its name "
            "in column 'recipe'."
        )
    if len(names) < 2 or len({*names}) < len(names):
        raise TableError(
            f"rows: give two recipes or more, each with its own name; got {', '.join(names)}."
        )
    return names, frame


def _names(frame: pd.DataFrame) -> list[str]:
    """Names of rows: column `recipe`, or else the covariates that vary."""
    if "recipe" in frame:
        return [*frame["recipe"].astype(str)]
    varied = [c for c in COVARIATES if c in frame and frame[c].nunique() > 1]
    records = frame[varied].to_dict("records")
    return [", ".join(f"{c} {v:.4g}" for c, v in row.items()) for row in records]


def _of_source(frame: pd.DataFrame) -> pd.DataFrame:
    """The same runs as rows of the source, whose start is the loss of the base itself."""
    rows = frame.drop(columns=[c for c in OF_DOMAIN if c in frame])
    if "base_loss" in rows:
        rows["start_loss"] = rows["base_loss"]
    return rows
