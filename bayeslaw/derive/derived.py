"""Derived numbers with their draws: their intervals, words and tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.shown import Block, Format, Note, Showing, Shown, Table
from bayeslaw.derive.intervals import interval, is_determined, number, quantile
from bayeslaw.derive.verdicts import (
    Verdicts,
    checked,
    positions_of,
    verdict_blocks,
    worst_of,
)
from bayeslaw.inference.bands import BAND_LEVELS, band_columns
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.files import write_frame

TITLES = {
    "accuracy": "Accuracy",
    "E": "Floor",
    "params": "Compute-optimal split of a budget, C = 6 N D",
    "flops": "FLOPs to reach a loss, split compute-optimally",
    "multiplier": "Compute multiplier over the other recipe",
    "alpha": "Local exponents",
}
"""Titles by the first of the numbers."""
LEAST_SHOWN_SHARE = 0.05
"""Least fraction of infinite, undefined or bounded draws that is shown."""
WORDS = {"infinite": "infinite", "undefined": "undefined", "at_bound": "on bound"}
"""Words for these fractions, by their columns."""
NOT_DETERMINED = "not determined"


@dataclass(frozen=True)
class Derived(Showing):
    """Draws of derived numbers, and their intervals.

    Parameters
    ----------
    draws : Dataset
        A variable per number, dims (draw, case), with its unit in ``attrs["units"]``. Infinity
        where a number has no finite solution, NaN where it is not defined.
    cases : DataFrame
        What each case was asked for, such as its budget in `flops`.
    at_bound : mapping of str to array, shape (draws, cases)
        Whether a number lies on the bound of the range that was searched.
    notes, failures : tuple of str
        Remarks, such as the range searched; and convergence checks that failed, if accepted.
    verdicts : mapping of str to Verdict
        Where the cases lie beside the rows of each fit, and whether bands were ever tested so far
        out: rows that were asked for, or the split of a budget at the median of the draws. Of a
        single fit the name is empty.
    with_drift : Derived or None
        If those of `draws` are of the law as stated, and the fit has a discrepancy: the numbers of
        this fit, whose exponents drift as in forecasts. Sizes and exponents are those of its own
        best split, and `loss` is that of the split which `draws` recommend, at their median.
    answers : tuple of str
        The recommended answer, and why it is, in words.
    """

    draws: xr.Dataset = field(repr=False)
    cases: pd.DataFrame = field(repr=False)
    at_bound: Mapping[str, Bools] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    verdicts: Verdicts = field(default_factory=dict, repr=False)
    with_drift: "Derived | None" = field(default=None, repr=False)
    answers: tuple[str, ...] = field(default=(), repr=False)

    @property
    def places(self) -> dict[str, pd.DataFrame]:
        """Where the cases lie beside the rows of each fit, as `bayeslaw.locate` gives it."""
        return positions_of(self.verdicts)

    def to_frame(self, levels: Sequence[float] = BAND_LEVELS) -> pd.DataFrame:
        """Median and central credible intervals of each number and case.

        Parameters
        ----------
        levels : sequence of float
            Probabilities of the intervals, between 0 and 1.

        Returns
        -------
        DataFrame
            One row per number and case: `quantity`, the columns of `cases`, `median`, a lower and
            an upper column per level, `unit`, `determined`, and fractions of the draws:
            `infinite`, `undefined` and `at_bound`; of a single fit `position` and `decades` of
            `places`; of a rule also `drift_median`, `drift_lower_90` and so on, and
            `drift_determined`, of `with_drift`. Quantiles are over the draws where the number is
            defined, infinite ones included. A number is not determined if the ends of its 90 %
            interval differ in sign or by a factor of 10 or more.
        """
        positions = self.places.get("", pd.DataFrame())
        positions = positions.reindex(self.cases.index)
        located = positions.columns.intersection(["position", "decades"])
        positions_of_cases = positions[located].to_dict("records")
        cases = self.cases.to_dict("records")
        rows = []
        for name, draws in self.draws.data_vars.items():
            nowhere = np.zeros(draws.shape, bool)
            on_bound = self.at_bound.get(str(name), nowhere)
            for i, case in enumerate(cases):
                values = draws.values[:, i]
                row: dict[str, object] = {"quantity": name}
                for column, value in case.items():
                    row[str(column)] = value
                row |= _intervals(values, levels)
                row["unit"] = draws.attrs["units"]
                row["determined"] = is_determined(values)
                row["infinite"] = _share(np.isinf(values))
                row["undefined"] = _share(np.isnan(values))
                row["at_bound"] = _share(on_bound[:, i])
                rows.append(row | positions_of_cases[i])
        frame = pd.DataFrame(rows)
        if self.with_drift is not None:
            drift = self.with_drift.to_frame(levels)
            columns = ["median"]
            for level in levels:
                columns += band_columns(level)
            columns.append("determined")
            frame = frame.join(drift[columns].add_prefix("drift_"))
        return marked(frame, self.failures)

    def shown(self, levels: Sequence[float] = BAND_LEVELS) -> Shown:
        """Medians and credible intervals, with the notes.

        Parameters
        ----------
        levels : sequence of float
            Probabilities of the intervals; the widest is shown in a narrow terminal, too.
        """
        frame = self.to_frame(levels)
        blocks: list[Block] = [*self.answers]
        blocks += verdict_blocks(self.verdicts, self.cases)
        blocks.append(self._table(frame, levels))
        for note in self.notes:
            blocks.append(Note(note, "quiet"))
        for failure in self.failures:
            blocks.append(Note(f"NOT CONVERGED: {failure}", "refuse"))
        document: dict[str, object] = {
            "numbers": frame.to_dict("records"),
            "notes": list(self.notes),
            "evidence": worst_of(self.verdicts).evidence or None,
        }
        if self.answers:
            document["answers"] = list(self.answers)
        names = [str(name) for name in self.draws.data_vars]
        title = TITLES.get(names[0], "")
        if self.with_drift is not None:
            title += ", of the law as stated"
        return Shown(title, blocks, document)

    def _table(self, frame: pd.DataFrame, levels: Sequence[float]) -> Table:
        """A row for each number and case of `to_frame`, with an interval for each level."""
        percents = [f"{100 * level:g}" for level in levels]
        heads = [f"{percent} % interval" for percent in percents]
        columns = {column: frame[column] for column in self.cases.columns}
        median = frame["median"].map(number)
        columns["median"] = median.where(frame["determined"], NOT_DETERMINED)
        for percent, head in zip(percents, heads, strict=True):
            columns[head] = _interval_texts(frame, "", percent)
        if self.with_drift is not None and percents:
            widest = max(percents, key=float)
            drift = _interval_texts(frame, "drift_", widest)
            drift = drift.where(frame["drift_determined"], NOT_DETERMINED)
            columns[f"{widest} % with drift"] = drift
        remarks = frame.apply(_remark, axis=1)
        if remarks.any():
            columns[" "] = remarks
        table = pd.DataFrame(columns).set_index(frame["quantity"].rename(None))
        formats: dict[str, Format] = {}
        for column in self.cases.columns:
            formats[str(column)] = number
        return Table(table, "", formats, heads[:-1])

    def write(self, path: str | Path, levels: Sequence[float] = BAND_LEVELS) -> None:
        """Write `to_frame` as Parquet if the path ends in ``.parquet``, otherwise as CSV."""
        write_frame(self.to_frame(levels), path)


def _share(draws: Bools) -> float:
    return float(draws.mean())


def _intervals(values: Floats, levels: Sequence[float]) -> dict[str, float]:
    """Median and intervals of draws, by the names of their columns."""
    intervals = {"median": quantile(values, 0.5)}
    for level in levels:
        lower, upper = band_columns(level)
        intervals[lower], intervals[upper] = interval(values, level)
    return intervals


def _interval_texts(frame: pd.DataFrame, prefix: str, percent: str) -> pd.Series:
    """The intervals of a level, in per cent, as text."""
    low = frame[f"{prefix}lower_{percent}"].map(number)
    high = frame[f"{prefix}upper_{percent}"].map(number)
    return low + " – " + high


def _remark(row: pd.Series) -> str:
    """Which share of the draws is infinite, undefined or on a bound."""
    shares = []
    for column, word in WORDS.items():
        if row[column] >= LEAST_SHOWN_SHARE:
            shares.append(f"{100 * row[column]:.3g} % {word}")
    return ", ".join(shares)


def marked(frame: pd.DataFrame, failures: Sequence[str]) -> pd.DataFrame:
    """The frame, with the convergence checks that failed in a column."""
    if failures:
        return frame.assign(unconverged="; ".join(failures))
    return frame


def derived(
    numbers: Mapping[str, tuple[Floats, str]],
    cases: pd.DataFrame,
    fits: Sequence[Posterior] = (),
    *,
    at_bound: Mapping[str, Bools] | None = None,
    notes: Sequence[str] = (),
    verdicts: Verdicts | None = None,
) -> Derived:
    """Make the result from arrays of shape (draws, cases) and their units."""
    variables = {}
    for name, (values, unit) in numbers.items():
        variables[name] = (("draw", "case"), values, {"units": unit})
    return Derived(
        xr.Dataset(variables),
        cases,
        at_bound=at_bound or {},
        notes=tuple(notes),
        failures=checked(*fits),
        verdicts=verdicts or {},
    )
