"""The result of a derivation: draws of each number, and their intervals as a data frame."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.errors import BayeslawError
from bayeslaw.evaluate.forecast import LEVELS, band_columns
from bayeslaw.tables.reading import write_frame


@dataclass(frozen=True)
class Derived:
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
    notes : tuple of str
        The range searched, how draws of several fits were paired, and other remarks.
    failures : tuple of str
        Convergence checks that failed, if these were allowed.
    """

    draws: xr.Dataset = field(repr=False)
    cases: pd.DataFrame = field(repr=False)
    at_bound: Mapping[str, Bools] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()

    def to_frame(self, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Median and central credible intervals of each number and case.

        Parameters
        ----------
        levels : sequence of float
            Probabilities of the intervals.

        Returns
        -------
        DataFrame
            One row per number and case: `quantity`, the columns of `cases`, `median`, a lower and
            an upper column per level, `unit`, and fractions of the draws: `infinite`, `undefined`
            and `at_bound`. Quantiles are over the draws where the number is defined, infinite ones
            included.

        Raises
        ------
        BayeslawError
            If a level is not strictly between 0 and 1.
        """
        if wrong := [level for level in levels if not 0 < level < 1]:
            raise BayeslawError(
                f"level {wrong[0]:g} is not between 0 and 1; 0.9 is a 90 % interval."
            )
        rows = []
        for name, each in self.draws.data_vars.items():
            on_bound = self.at_bound.get(str(name), np.zeros(each.shape, bool))
            for case, asked in enumerate(self.cases.to_dict("records")):
                values = each.values[:, case]
                row = {"quantity": name, **asked, "median": quantile(values, 0.5)}
                for level in levels:
                    row |= dict(zip(band_columns(level), interval(values, level), strict=True))
                row |= {
                    "unit": each.attrs["units"],
                    "infinite": float(np.isinf(values).mean()),
                    "undefined": float(np.isnan(values).mean()),
                    "at_bound": float(on_bound[:, case].mean()),
                }
                rows.append(row)
        return marked(pd.DataFrame(rows), self.failures)

    def write(self, path: str | Path, levels: Sequence[float] = LEVELS) -> None:
        """Write `to_frame` as Parquet if the path ends in ``.parquet``, otherwise as CSV."""
        write_frame(self.to_frame(levels), path)


def quantile(values: Floats, q: float) -> float:
    """Quantile of the defined values, some of which may be infinite; NaN if none is defined.

    Examples
    --------
    >>> quantile(np.array([1.0, 2.0, np.inf, np.inf, np.nan]), 0.5)
    inf
    """
    defined = values[~np.isnan(values)]
    if not len(defined):
        return np.nan
    with np.errstate(invalid="ignore"):
        found = float(np.quantile(defined, q))
    return np.inf if np.isnan(found) else found  # between two infinite draws


def interval(values: Floats, level: float) -> tuple[float, float]:
    """Ends of the central interval of the defined values."""
    return quantile(values, (1 - level) / 2), quantile(values, (1 + level) / 2)


def marked(frame: pd.DataFrame, failures: Sequence[str]) -> pd.DataFrame:
    """The frame, with the convergence checks that failed in a column."""
    return frame.assign(unconverged="; ".join(failures)) if failures else frame


def derived(
    numbers: Mapping[str, tuple[Floats, str]],
    cases: pd.DataFrame,
    *,
    at_bound: Mapping[str, Bools] | None = None,
    notes: Sequence[str] = (),
    failures: Sequence[str] = (),
) -> Derived:
    """Make the result from arrays of shape (draws, cases) and their units."""
    variables = {
        name: (("draw", "case"), values, {"units": unit})
        for name, (values, unit) in numbers.items()
    }
    return Derived(xr.Dataset(variables), cases, at_bound or {}, tuple(notes), tuple(failures))
