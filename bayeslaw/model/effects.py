"""Random effects on log loss of groups of rows: models of one size, bases, and runs.

Models of one size have architecture and hyperparameters in common, which a law does not describe.
Runs adapted from one pre-trained base have that base's deviation in common, and the rows of one run
that run's.
"""

import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Bools, Floats, Ints, Strings
from bayeslaw.common.errors import LawError, TableError, TableWarning, unknown
from bayeslaw.laws.priors import GROUP_SD, NOISE, Prior
from bayeslaw.tables.validation import label_texts, whole

DIMENSIONS = ("chain", "draw", "row", "sample", "last_run", "last_tokens", "last_error")
"""Names beside those of parameters that draws have in memory and in files."""
SAME_SIZE = 0.01
"""Relative difference up to which two sizes are one: digitised tables have several of each model.
Sizes of a ladder differ by far more."""
MOST_COINCIDING = 2
"""Most covariates whose values together make groups that coincide with them."""
UNLABELLED = "(row"
"""Prefix of the label that a row without one gets: a group of its own, always a new one."""


@dataclass(frozen=True)
class Level:
    """A level of grouping whose groups each have a random effect on log loss, ``tau z``."""

    name: str  # its standard deviation is the parameter ``tau_<name>``
    column: str  # of a table that labels the groups
    # With fewer groups ``effects="auto"`` leaves the level out: their spread is not identified.
    fewest: int = 3
    # Whether a fitted group's effect belongs to the latent loss, as that of a size does, and not to
    # the deviation of a measurement from it.
    latent: bool = False
    with_discrepancy: bool = (
        False  # whether ``effects="auto"`` uses it only beside a discrepancy
    )
    # Share of groups with several rows that ``effects="auto"`` needs more of.
    least_several: float = 0.0
    prior: Prior = GROUP_SD  # of the standard deviation, where the law file states none


SIZE = Level(
    "size",
    "params",
    4,
    latent=True,
    with_discrepancy=True,
    # In a table of isoFLOP curves most sizes have one run.
    least_several=0.5,
    prior=NOISE["tau_size"],
)
BASE = Level("base", "base")
RUN = Level("run", "run")
GROUP_LEVELS: dict[str, Level] = {level.name: level for level in (SIZE, BASE, RUN)}
"""Levels that ``effects="auto"`` knows, the coarser first; a level of one's own can be added."""


def level(name: str) -> Level:
    return GROUP_LEVELS.get(name) or Level(name, name)


def labels(frame: pd.DataFrame, name: str, fitted: Strings | None = None) -> Strings:
    """Group of each row at a level, shape (rows,); a row without a label is a group of its own.

    Sizes within `SAME_SIZE` are one group, named by its smallest if that is `fitted`. If
    bases have labels, these say which models are the same, and sizes are taken as they are.
    """
    column = level(name).column
    rows = np.array([f"{UNLABELLED} {i})" for i in range(len(frame))])
    if column not in frame:
        return rows
    if column == "params":
        sizes = whole(frame["params"].to_numpy(float))
        if "base" not in frame:
            sizes = _one_size(sizes, None if fitted is None else fitted.astype(float))
        return sizes.astype(str)
    texts = label_texts(frame[column])
    return np.where(texts.notna(), texts, rows).astype(str)


def _one_size(sizes: Floats, fitted: Floats | None) -> Floats:
    """The size by which each is called: the smallest of its group, if that is `fitted`."""
    unique, index = np.unique(sizes, return_inverse=True)
    called = unique.copy()
    last = -np.inf
    for i, size in enumerate(unique):
        last = last if size <= (1 + SAME_SIZE) * last else size
        # A new size near a fitted one, as in a grid, is a new one: else losses would jump there.
        if fitted is None or (size not in fitted and last in fitted):
            called[i] = last
    return called[index]


def unlabelled(names: Strings) -> Bools:
    """Which names of `labels` stand for rows without a label, each always a new group."""
    return np.char.startswith(np.asarray(names, str), UNLABELLED)


def renamed(names: Strings, taken: Strings) -> Strings:
    """Labels of further groups: none is among the names, nor among those `taken`."""
    longest = max(int(np.char.str_len(some).max(initial=0)) for some in (names, taken))
    return np.char.add("new ".ljust(longest), names)


def choose(
    effects: str | Sequence[str],
    frame: pd.DataFrame,
    name: str,
    *,
    columns: Sequence[str] = (),
    discrepancy: bool = False,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Levels that get a random effect, the coarser first; and those of them that are not fitted.

    `columns` are the covariates that the law reads. By ``"auto"`` a level whose groups coincide
    with some of them is not fitted: its effects could explain what the law should. A level that is
    named is fitted, with a warning.
    """
    if effects == "none":
        return (), ()
    if effects == "auto":
        return _allowed(frame, columns, discrepancy)
    names = effects.split(",") if isinstance(effects, str) else effects
    named = tuple(name.strip() for name in names)
    for effect in named:
        if effect in ("loss", "tokens"):
            raise LawError(
                f"{name}: {effect!r} is no label, so no effect; name another column."
            )
        if level(effect).column not in frame:
            if effect in GROUP_LEVELS:
                column = GROUP_LEVELS[effect].column
                raise TableError(
                    f"{name}: no column {column!r} for the effect; add it or drop it."
                )
            valid = ("auto", "none", *GROUP_LEVELS, *frame.columns)
            raise LawError(unknown("effect", effect, valid))
        if same := coinciding(effect, frame, columns):
            warnings.warn(
                f"{name}: the groups of the effect {effect!r} are those of {' and '.join(same)}, "
                "so effects can take the place of the law's terms in them, and forecasts be far "
                f"off; leave {effect!r} out of the effects.",
                TableWarning,
                stacklevel=4,
            )
    further = [effect for effect in dict.fromkeys(named) if effect not in GROUP_LEVELS]
    return (*(effect for effect in GROUP_LEVELS if effect in named), *further), ()


def _allowed(
    frame: pd.DataFrame, columns: Sequence[str], discrepancy: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Levels that ``effects="auto"`` gives an effect, and those of them that are not fitted."""
    fitted: dict[str, Strings] = {}
    drawn: dict[str, Strings] = {}
    # From the finer to the coarser: levels with the same groups have one effect, the finer's.
    for name, kind in reversed(GROUP_LEVELS.items()):
        if kind.column not in frame or (kind.with_discrepancy and not discrepancy):
            continue
        of_rows = labels(frame, name)
        sizes = np.unique(of_rows, return_counts=True)[1]
        # Of a group with one row, the effect cannot be told from the noise.
        several = (sizes > 1).mean()
        if len(sizes) < kind.fewest or several <= kind.least_several:
            continue
        of_kind = drawn if coinciding(name, frame, columns) else fitted
        if not any(_same(of_rows, finer) for finer in of_kind.values()):
            of_kind[name] = of_rows
    for name, of_rows in list(drawn.items()):
        if any(_same(of_rows, other) for other in fitted.values()):
            del drawn[name]
    levels = tuple(name for name in GROUP_LEVELS if name in fitted or name in drawn)
    return levels, tuple(name for name in levels if name in drawn)


def coinciding(
    name: str, frame: pd.DataFrame, columns: Sequence[str]
) -> tuple[str, ...]:
    """The fewest covariates whose values make the groups of a level; empty if none do.

    Such are runs of which each has its own size, or bases of which each has its own size and
    budget: effects of such groups can explain whatever the law's terms in these covariates should
    explain. Rows of a run differ in tokens, so these are not looked at. Sizes always coincide with
    ``params``: their effects have a narrow prior, and are not meant. Nor are runs by size, budget
    and ratio: without their effects, bands of how a fitted run goes on held less.
    """
    if name == SIZE.name:
        return ()
    of_rows = labels(frame, name)
    covariates = [
        c for c in columns if c in frame and c != "tokens" and frame[c].nunique() > 1
    ]
    for count in range(1, MOST_COINCIDING + 1):
        for some in combinations(covariates, count):
            cells = frame.groupby(list(some), dropna=False).ngroup()
            if _same(of_rows, np.asarray(cells, dtype=np.int64)):
                return some
    return ()


def not_fitted(
    levels: Sequence[str],
    priors: Mapping[str, Prior],
    frame: pd.DataFrame,
    draws: xr.Dataset,
) -> xr.Dataset:
    """The draws with those of levels that are not fitted: ``tau`` from its prior, no effects.

    So new groups have effects in forecasts, and those of the training rows none.
    """
    sizes = draws.sizes["chain"], draws.sizes["draw"]
    for name in levels:
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        groups = np.unique(labels(frame, name))
        tau = priors[f"tau_{name}"].sample(rng, sizes)
        effects = np.zeros((*sizes, len(groups)))
        draws = draws.assign(
            {
                f"tau_{name}": (("chain", "draw"), tau),
                f"{name}_effect": (("chain", "draw", name), effects),
            }
        )
        draws = draws.assign_coords({name: groups})
    return draws


def _same(one: Strings, two: Strings | Ints) -> bool:
    pairs = len(set(zip(one, two, strict=True)))
    return len(np.unique(one)) == pairs == len(np.unique(two))


def check_runs(frame: pd.DataFrame, name: str, columns: Sequence[str]) -> None:
    """Raise `TableError` unless the rows of a run are equal in the law's `columns` but tokens.

    A label that names runs of several models, such as a seed, would give these one random effect
    and one path of errors.
    """
    run = labels(frame, "run")
    for column in [
        c for c in ("params", "ptpp", "replay") if c in frame and c in columns
    ]:
        values = frame[column].groupby(run).agg(["min", "max"])
        differ = ~np.isclose(values["min"], values["max"], rtol=1e-6, atol=0)
        if differ.any():
            label, least, most = next(values[differ].itertuples())
            raise TableError(
                f"{name}: {column!r} differs within a run (run {label}: {least:g} to {most:g}); "
                "checkpoints differ in tokens alone. Give the runs of each model labels of "
                "their own, or drop the column 'run'."
            )


def draw(
    draws: xr.Dataset,
    levels: Sequence[str],
    frame: pd.DataFrame,
    rng: np.random.Generator | None,
    *,
    training: bool = False,
) -> Floats:
    """Sum of the effects on log loss of each row, shape (draws, rows).

    Fitted groups have their posterior effects, but those of latent levels are zero here: they are
    in the latent loss, see `latent_effects`. New groups draw theirs from the level's distribution,
    one per group, or are zero without `rng`. A row without a label is a new group, unless `frame`
    has the `training` rows.
    """
    total = np.zeros((draws.sizes["chain"] * draws.sizes["draw"], len(frame)))
    for name in levels:
        values, fitted, index = _groups(draws, name, frame, training)
        if level(name).latent:
            values[:] = 0.0
        if rng is not None:
            tau = draws[f"tau_{name}"].values.reshape(-1, 1)
            values = np.where(fitted, values, tau * rng.standard_normal(values.shape))
        total += values[:, index]
    return total


def latent_effects(
    draws: xr.Dataset, levels: Sequence[str], frame: pd.DataFrame
) -> Floats:
    """Effects of fitted groups of the latent levels, shape (draws, rows); zero for new groups."""
    total = np.zeros((draws.sizes["chain"] * draws.sizes["draw"], len(frame)))
    for name in levels:
        if level(name).latent:
            values, _, index = _groups(draws, name, frame)
            total += values[:, index]
    return total


def is_fitted(draws: xr.Dataset, name: str, frame: pd.DataFrame) -> Bools:
    """Whether each row's group at a level was fitted, shape (rows,)."""
    fitted = draws[name].values.astype(str)
    of_rows = labels(frame, name, fitted)
    return np.isin(of_rows, fitted) & ~unlabelled(of_rows)


def _groups(
    draws: xr.Dataset, name: str, frame: pd.DataFrame, training: bool = False
) -> tuple[Floats, Bools, Ints]:
    """Effects of the rows' groups, (draws, groups), zero for new ones; which were fitted; rows'."""
    of_rows = labels(frame, name, draws[name].values)
    groups, index = np.unique(of_rows, return_inverse=True)
    effects = draws[f"{name}_effect"].transpose("chain", "draw", name)
    flat = effects.values.reshape(-1, effects.sizes[name])
    place = {group: k for k, group in enumerate(effects[name].values)}
    fitted = np.array([g in place for g in groups]) & (training | ~unlabelled(groups))
    values = np.zeros((len(flat), len(groups)))
    values[:, fitted] = flat[:, [place[g] for g in groups[fitted]]]
    return values, fitted, index
