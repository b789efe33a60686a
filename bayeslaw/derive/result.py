"""The result of a derivation: draws of each number, and their intervals as a data frame."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.errors import BayeslawError
from bayeslaw.inference.pools import convergence_failures, of_one_law
from bayeslaw.inference.posterior import LEVELS, Posterior, band_columns
from bayeslaw.tables.table import write_frame

DETERMINED = 10.0
"""Factor between the ends of a 90 % interval from which the number is not determined."""


def checked(fits: Sequence[Posterior], allowed: bool) -> tuple[str, ...]:
    """`convergence_failures` of fits, each the posterior of one law."""
    return convergence_failures([of_one_law(fit, "derive") for fit in fits], allowed)


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
            an upper column per level, `unit`, `determined`, and fractions of the draws:
            `infinite`, `undefined` and `at_bound`. Quantiles are over the draws where the number is
            defined, infinite ones included. A number is not determined if the ends of its 90 %
            interval differ in sign or by a factor of 10 or more.

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
                    "determined": determined(values),
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

    Between a finite value and an infinite one it is infinite.

    Examples
    --------
    >>> quantile(np.array([1.0, 2.0, np.inf, np.inf, np.nan]), 0.5)
    inf
    >>> quantile(np.array([1.0, 2.0, np.inf]), 0.5)
    2.0
    """
    defined = values[~np.isnan(values)]
    if not len(defined):
        return np.nan
    with np.errstate(invalid="ignore"):
        found = float(np.quantile(defined, q))
    # Interpolation beside an infinite value gives NaN, also where its weight is 0.
    return float(np.quantile(defined, q, method="higher")) if np.isnan(found) else found


def interval(values: Floats, level: float) -> tuple[float, float]:
    """Ends of the central interval of the defined values."""
    return quantile(values, (1 - level) / 2), quantile(values, (1 + level) / 2)


def determined(values: Floats) -> bool:
    """Whether the ends of the 90 % interval have one sign and differ by less than a factor of 10.

    Examples
    --------
    >>> determined(np.array([1.0, 2.0, 5.0])), determined(np.array([1.0, 2.0, 50.0]))
    (True, False)
    """
    low, high = interval(values, 0.9)
    near, far = sorted((abs(low), abs(high)))
    return low == high or (low * high > 0 and far < DETERMINED * near)


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
