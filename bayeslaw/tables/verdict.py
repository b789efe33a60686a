"""The verdict on rows: how far they lie from the fitted rows, and what follows from that."""

import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import pandas as pd

from bayeslaw.common.errors import Acceptance, TableError, TableWarning, accept
from bayeslaw.common.formatting import listed
from bayeslaw.tables.covariates import FLOPS, TABLE, Columns, Covariate, about
from bayeslaw.tables.hull import BEYOND_PREFIX, EPOCHS, locate
from bayeslaw.tables.table import Rows

Level = Literal["ok", "caution", "no evidence", "refuse"]
SEVERITIES: tuple[Level, ...] = ("ok", "caution", "no evidence", "refuse")
"""Levels of verdicts and of the findings of a check, the worst last."""
# That from the hull is from `benchmarks/distance.csv`.
MEASURED_DECADES = {
    **{c: row.measured for c, row in TABLE.items()},
    # Fits of data/datablations up to 4, 8 and 16 epochs: up to .15 decades beyond, 90 % bands hold
    # 14 of 15 losses, farther out .05 to 1.00 of them.
    EPOCHS.name: EPOCHS.measured,
    # Of ladders, from the largest of `benchmarks/ladder.csv`.
    FLOPS: 2.046,
    "decades": 1.385,
}
"""Farthest distance at which held-out losses were compared with bands, in decades: of each
covariate beyond its range, and of a row from the hull."""
LEAST_MEASURED = min(row.measured for row in TABLE.values() if row.logged)
"""The same for a covariate of a law's own, of which nothing was measured, for `TOO_FAR` alone."""
TOO_FAR = 2.0
"""Multiple of these distances from which a forecast is refused."""


@dataclass(frozen=True)
class Verdict:
    """Where rows lie beside the fitted rows, and whether bands were ever tested so far out.

    Parameters
    ----------
    positions : DataFrame
        Rows of `bayeslaw.locate`, with the index of the rows that were judged.
    level : {"ok", "no evidence", "refuse"}
        "no evidence" if some rows lie farther out than bands were ever compared with losses, and
        "refuse" if some lie `TOO_FAR` times as far.
    evidence : str
        How far the farthest rows lie, in a sentence; empty if the level is "ok".
    """

    positions: pd.DataFrame = field(repr=False)
    level: Level = "ok"
    evidence: str = ""

    @property
    def words(self) -> str:
        """The evidence, and what to do where rows are refused."""
        if self.level != "refuse":
            return self.evidence
        return (
            f"{self.evidence.removesuffix('.')}; from twice that on forecasts are refused: ask "
            f"for nearer rows, or {accept('beyond-evidence')}."
        )

    def accepting(self, accepts: Collection[Acceptance]) -> "Verdict":
        """The verdict of a user who accepts something: "beyond-evidence", and none is refused."""
        if self.level == "refuse" and "beyond-evidence" in accepts:
            return replace(self, level="no evidence")
        return self

    def of(self, name: str) -> "Verdict":
        """The verdict with the name of the fit before its words; an empty name changes nothing."""
        if not (name and self.evidence):
            return self
        return replace(self, evidence=f"{name}: {self.evidence}")

    def require(self, name: str = "") -> None:
        """Raise `TableError` for rows that are refused, under the name of their table."""
        if self.level == "refuse":
            raise TableError(self.of(name).words)

    def warn(self, name: str = "", *, stacklevel: int = 2) -> None:
        """Warn of rows that are refused, under the name of their table."""
        if self.level == "refuse":
            words = self.of(name).words
            warnings.warn(words, TableWarning, stacklevel=stacklevel + 1)


def judge(
    fitted: Rows | pd.DataFrame, rows: Rows | pd.DataFrame, columns: Columns
) -> Verdict:
    """The verdict on rows beside fitted rows, in the covariates of a law.

    Parameters
    ----------
    fitted, rows : LossTable or DataFrame
        Rows with covariates; losses are not used. Without any rows the level is "ok".
    columns : sequence of str, or mapping of str to Covariate
        Such as `BaseFit.about`.

    Raises
    ------
    TableError
        If a covariate is missing or invalid, or D = 0.
    """
    frame = rows.frame if isinstance(rows, Rows) else rows
    if len(frame) == 0:
        return Verdict(frame)
    positions = locate(fitted, rows, columns).set_index(frame.index)
    covariates = about(columns)
    if BEYOND_PREFIX + EPOCHS.name in positions:
        covariates[EPOCHS.name] = EPOCHS
    far = of_measured(positions, covariates).max()
    # Of a covariate for which no distance was measured, any is beyond the evidence.
    beyond = [str(n) for n in far.index if far[n] > (n in MEASURED_DECADES)]
    if not beyond:
        return Verdict(positions)
    # The distance from the hull is told only where no covariate alone explains it.
    told = [name for name in beyond if name in covariates] or beyond
    distances = [
        _distance(name, float(far[name]), covariates.get(name)) for name in told
    ]
    evidence = (
        f"No evidence: rows lie up to {listed(distances)} beyond the training rows."
    )
    near = bool((far < TOO_FAR).all())
    return Verdict(positions, "no evidence" if near else "refuse", evidence)


def _distance(name: str, far: float, covariate: Covariate | None) -> str:
    """How far rows lie along a covariate, or from the hull, and how far bands were tested."""
    tested = MEASURED_DECADES.get(name)
    text = f"{far * (LEAST_MEASURED if tested is None else tested):.2g}"
    if covariate is None:
        text += " decades"
    elif covariate.logged:
        text += f" decades of {covariate.text}"
    elif tested is None:
        text += f" ranges of {covariate.text}"
    else:
        text += f" of {covariate.text}"
    if tested is None:
        return f"{text} (bands were never tested)"
    return f"{text} (bands were tested to {tested:.2g})"


def of_measured(positions: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    """Distances of rows of `locate`, over the farthest at which bands were measured."""
    names = [*columns]
    # Along FLOPs alone, the distance from the hull is theirs.
    if names != [FLOPS]:
        names.append("decades")
    distances = {}
    for name in names:
        column = name if name == "decades" else BEYOND_PREFIX + name
        distances[name] = positions[column] / MEASURED_DECADES.get(name, LEAST_MEASURED)
    return pd.DataFrame(distances)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The first verdict of the worst level; "ok" of none."""
    return max(
        verdicts,
        key=lambda verdict: SEVERITIES.index(verdict.level),
        default=Verdict(pd.DataFrame()),
    )
