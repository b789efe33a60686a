"""Random effects on log loss of groups of rows: models of one size, bases, and runs.

Models of one size have architecture and hyperparameters in common, which a law does not describe.
Runs adapted from one pre-trained base have that base's deviation in common, and the rows of one run
that run's. Rows flagged as undertuned each lie above the law.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Bools, Floats, Namespace, Strings, Tensor
from bayeslaw.common.errors import LawError, TableError, unknown
from bayeslaw.laws.priors import GROUP_SD, NOISE, Prior
from bayeslaw.tables.validation import label_texts, whole

OTHERS = "(others)"
"""Label of rows without a flag."""
UNLABELLED = "(row"
"""Prefix of the label that a row without one gets: a group of its own, always a new one."""


@dataclass(frozen=True)
class Level:
    """A level of grouping whose groups each have a random effect on log loss.

    Parameters
    ----------
    name : str
        Its standard deviation is the parameter ``tau_<name>``, its effects ``<name>_effect``.
    column : str
        Column of a table that labels the groups.
    fewest : int
        Number of groups below which ``effects="auto"`` leaves the level out, because the spread
        between them is not identified beside the law.
    latent : bool
        Whether the effect of a fitted group belongs to the latent loss, as that of a model size
        does, and not to the deviation of a measurement from it.
    with_discrepancy : bool
        Whether ``effects="auto"`` uses the level only beside a discrepancy.
    prior : Prior
        Of the standard deviation, where the law file states none.
    """

    name: str
    column: str
    fewest: int = 3
    latent: bool = False
    with_discrepancy: bool = False
    prior: Prior = GROUP_SD

    def labels(self, frame: pd.DataFrame) -> Strings:
        """Group of each row, shape (rows,); a row without a label is a group of its own."""
        rows = np.array([f"{UNLABELLED} {i})" for i in range(len(frame))])
        if self.column not in frame:
            return rows
        if self.column == "params":
            return whole(frame["params"].to_numpy(float)).astype(str)
        texts = label_texts(frame[self.column])
        return np.where(texts.notna(), texts, rows).astype(str)

    def effect(self, tau: Tensor, z: Tensor, xp: Namespace = np) -> Tensor:
        """Effects on log loss from the standard deviation and standard normals."""
        return tau * z

    def affected(self, names: Strings) -> Floats:
        """1 for groups that have an effect, 0 for others, shape (groups,)."""
        return np.ones(len(names))

    @property
    def plain(self) -> bool:
        """Whether all groups have an effect ``tau z``; those of a joint fit are then correlated."""
        own = type(self)
        return own.effect is Level.effect and own.affected is Level.affected

    def present(self, frame: pd.DataFrame) -> bool:
        """Whether ``effects="auto"`` may use the level for these rows."""
        return self.fewest <= len(np.unique(self.labels(frame))) < len(frame)


@dataclass(frozen=True)
class OneSided(Level):
    """Rows flagged in a column lie above the law, each by a positive amount of its own.

    The amount is ``tau exp(z)`` in log loss, z standard normal: tau is its median. Other rows have
    none, and neither have forecasts without the flag.
    """

    def labels(self, frame: pd.DataFrame) -> Strings:
        """A label for each flagged row, a hash of its numbers; all others share one."""
        if self.column not in frame:
            return np.full(len(frame), OTHERS)
        columns = [c for c in ("params", "tokens", "replay", "ptpp", "loss") if c in frame]
        numbers = pd.util.hash_pandas_object(frame[columns].astype(float), index=False).astype(str)
        return np.where(frame[self.column].to_numpy(float) == 1, numbers, OTHERS)

    def effect(self, tau: Tensor, z: Tensor, xp: Namespace = np) -> Tensor:
        """``tau exp(z)``."""
        return tau * xp.exp(z)

    def affected(self, names: Strings) -> Floats:
        """0 for the group of all rows that are not flagged."""
        return np.asarray(np.asarray(names).astype(str) != OTHERS, float)

    def present(self, frame: pd.DataFrame) -> bool:
        """Whether any row is flagged."""
        return bool((self.labels(frame) != OTHERS).any())


_REGISTERED: dict[str, Level] = {}


def register(level: Level) -> Level:
    """Let ``effects="auto"`` find a level; the coarser levels are registered first."""
    _REGISTERED[level.name] = level
    return level


SIZE = register(
    Level("size", "params", 4, latent=True, with_discrepancy=True, prior=NOISE["tau_size"])
)
BASE = register(Level("base", "base"))
RUN = register(Level("run", "run"))
UNDERTUNED = register(
    OneSided("undertuned", "undertuned", 1, prior=Prior("LogNormal", median=0.01, sigma=1.0))
)


def level(name: str) -> Level:
    """The registered level of that name, or the level of the column of that name."""
    return _REGISTERED.get(name) or Level(name, name)


def registered() -> tuple[str, ...]:
    """Names of the registered levels, the coarser first."""
    return tuple(_REGISTERED)


def choose(
    effects: str | Sequence[str], frame: pd.DataFrame, name: str, *, discrepancy: bool = False
) -> tuple[str, ...]:
    """Levels that get a random effect.

    Parameters
    ----------
    effects : "auto", "none", or levels, such as ``"base,run"``
        A level is ``size``, ``base``, ``run``, or any column of the table that labels groups.
        ``"auto"`` takes every registered level whose labels repeat in `frame`, if it has at least
        `Level.fewest` groups, and no finer level has the same groups.
    frame : DataFrame
        Training rows.
    name : str
        Name of the table, for messages.
    discrepancy : bool
        Whether the law has a discrepancy: random effects of size are a part of it.

    Raises
    ------
    LawError
        If a level is neither registered nor a column.
    TableError
        If the column of a registered level is missing.
    """
    if effects == "none":
        return ()
    if effects == "auto":
        known = [each for each in _REGISTERED.values() if discrepancy or not each.with_discrepancy]
        return tuple(each.name for each in known if each.column in frame and _repeats(frame, each))
    names = effects.split(",") if isinstance(effects, str) else effects
    asked = tuple(each.strip() for each in names)
    for each in asked:
        if each in ("chain", "draw"):
            raise LawError(f"{name}: a column {each!r} cannot be an effect; rename the column.")
        if each in _REGISTERED and level(each).column not in frame:
            raise TableError(
                f"{name}: no column {level(each).column!r} for the effect; add it or drop it."
            )
        if each not in _REGISTERED and each not in frame:
            raise LawError(unknown("effect", each, ("auto", "none", *_REGISTERED, *frame.columns)))
    columns = [each for each in dict.fromkeys(asked) if each not in _REGISTERED]
    return (*(each for each in _REGISTERED if each in asked), *columns)


def labels(frame: pd.DataFrame, name: str) -> Strings:
    """Group of each row at a level, shape (rows,); a row without a label is its own group."""
    return level(name).labels(frame)


def unlabelled(names: Strings) -> Bools:
    """Which names of `labels` stand for rows without a label: groups of their own, always new."""
    return np.char.startswith(np.asarray(names, str), UNLABELLED)


def check_runs(frame: pd.DataFrame, name: str, columns: Sequence[str]) -> None:
    """Raise `TableError` unless the rows of a run are equal in the law's `columns` but tokens.

    A label that names runs of several models, such as a seed, would give these one random effect
    and one path of errors.
    """
    run = pd.Series(labels(frame, "run"), index=frame.index)
    for column in [c for c in ("params", "ptpp", "replay") if c in frame and c in columns]:
        values = frame[column].groupby(run).agg(["min", "max"])
        differ = ~np.isclose(values["min"], values["max"], rtol=1e-6, atol=0)
        if differ.any():
            label, least, most = next(values[differ].itertuples())
            raise TableError(
                f"{name}: {column!r} differs within a run (run {label}: {least:g} to {most:g}); "
                "checkpoints differ in tokens alone. Give the runs of each model labels of "
                "their own, or drop the column 'run'."
            )


def labelled(frame: pd.DataFrame, levels: Sequence[str], source: str) -> pd.DataFrame:
    """The rows, with labels where these are missing; no other `source` has these labels."""
    frame = frame.copy()
    for each in map(level, levels):
        of_rows = each.labels(frame).astype(str)
        alone = unlabelled(of_rows)
        if alone.any():
            frame[each.column] = np.where(alone, np.char.add(of_rows, f" of {source}"), of_rows)
    return frame


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
    one per group, or are zero without `rng`. A row without a label is a new group, but if `frame`
    has the `training` rows it is the group that was fitted for it.
    """
    total = np.zeros((draws.sizes["chain"] * draws.sizes["draw"], len(frame)))
    for name in levels:
        groups, index = np.unique(labels(frame, name), return_inverse=True)
        values, known = _fitted(draws, name, groups, training)
        if level(name).latent:
            values[:] = 0.0
        if rng is not None:
            tau = draws[f"tau_{name}"].values.reshape(-1, 1)
            kind, z = level(name), rng.standard_normal(values.shape)
            values = np.where(known, values, kind.effect(tau, z) * kind.affected(groups))
        total += values[:, index]
    return total


def latent_effects(draws: xr.Dataset, levels: Sequence[str], frame: pd.DataFrame) -> Floats:
    """Effects of fitted groups of the latent levels, shape (draws, rows); zero for new groups."""
    total = np.zeros((draws.sizes["chain"] * draws.sizes["draw"], len(frame)))
    for name in levels:
        if level(name).latent:
            groups, index = np.unique(labels(frame, name), return_inverse=True)
            total += _fitted(draws, name, groups)[0][:, index]
    return total


def is_fitted(draws: xr.Dataset, name: str, frame: pd.DataFrame) -> Bools:
    """Whether each row's group at a level was fitted, shape (rows,)."""
    of_rows = labels(frame, name).astype(str)
    known = np.isin(of_rows, draws[name].values.astype(str))
    return known & ~unlabelled(of_rows)


def _fitted(
    draws: xr.Dataset, name: str, groups: Strings, training: bool = False
) -> tuple[Floats, Bools]:
    """Effects of groups, shape (draws, groups), zero for new ones, and which were fitted."""
    effects = draws[f"{name}_effect"].transpose("chain", "draw", name)
    flat = effects.values.reshape(-1, effects.sizes[name])
    place = dict(zip(effects[name].values, range(flat.shape[1]), strict=True))
    known = np.array([g in place for g in groups]) & (training | ~unlabelled(groups))
    values = np.zeros((len(flat), len(groups)))
    values[:, known] = flat[:, [place[g] for g in groups[known]]]
    return values, known


def _repeats(frame: pd.DataFrame, each: Level) -> bool:
    """Whether rows repeat within enough groups of a level, and it differs from the finer ones."""
    names = list(_REGISTERED)
    below = [level(other) for other in names[names.index(each.name) + 1 :]]
    finer = [other.labels(frame) for other in below if other.column in frame]
    of_rows = each.labels(frame)
    if any(_same_groups(of_rows, other) for other in finer):
        return False
    return each.present(frame)


def _same_groups(one: Strings, two: Strings) -> bool:
    """Whether two labelings of rows are the same partition of them."""
    pairs = len(set(zip(one, two, strict=True)))
    return len(np.unique(one)) == pairs == len(np.unique(two))
