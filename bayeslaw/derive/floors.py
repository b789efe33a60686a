"""A forecast at several values of the floor E, which few runs determine."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import FitError, FitWarning, TableWarning
from bayeslaw.common.formatting import count
from bayeslaw.common.shown import Block, Format, Note, Showing, Shown, Table
from bayeslaw.derive.verdicts import checked
from bayeslaw.inference.bands import BAND_LEVELS, band_columns, ends
from bayeslaw.inference.points import fit_huber
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.law import Law
from bayeslaw.tables.files import write_frame
from bayeslaw.tables.table import Rows

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the posterior of E that are the default floors."""
NEAREST = 0.1
"""Share of the draws that stands for a floor: those whose E is nearest to it."""
HELD = 1e-9
"""Relative width of the bounds of a floor that a Huber fit holds."""


@dataclass(frozen=True)
class AtFloors(Showing):
    """A forecast with the floor free, and at several values of it.

    Parameters
    ----------
    frame : DataFrame
        For each row of the forecast one row with the floor free (`floor` is NaN) and one for each
        floor. Columns: the law's covariates; `floor`, nats per token; `least_E` and `most_E`, the
        floors of the draws that were used; `draws`, their number; `median`, `lower_90`, `upper_90`
        and so on, the forecast of these draws; `huber`, the point that a Huber fit of the law
        without discrepancy predicts with E held there.
    covariates : tuple of str
        Columns that say which row is forecast.
    name : str
        The law.
    failures : tuple of str
        Convergence checks that failed, if accepted.
    """

    frame: pd.DataFrame = field(repr=False)
    covariates: tuple[str, ...]
    name: str
    failures: tuple[str, ...] = ()

    @property
    def range(self) -> pd.Series:
        """How far the median moves from the lowest floor to the highest, in percent, by row."""
        held = self.frame[self.frame["floor"].notna()]
        medians = held.groupby(list(self.covariates), sort=False)["median"]
        return 100 * (medians.max() / medians.min() - 1)

    def to_frame(self) -> pd.DataFrame:
        """The table as a data frame, a copy."""
        return self.frame.copy()

    def shown(self) -> Shown:
        """The forecast at each floor, with how far it moves."""
        floors = self.frame["floor"].map("{:.3f}".format)
        columns = {c: self.frame[c] for c in self.covariates}
        columns["floor E"] = floors.where(self.frame["floor"].notna(), "free")
        columns["of draws with E"] = (
            self.frame["least_E"].map("{:.3f}".format)
            + " – "
            + self.frame["most_E"].map("{:.3f}".format)
        )
        columns["median"] = self.frame["median"]
        columns["90 % band"] = (
            self.frame["lower_90"].map("{:.4f}".format)
            + " – "
            + self.frame["upper_90"].map("{:.4f}".format)
        )
        columns["Huber, E held"] = self.frame["huber"]
        formats: dict[str, Format] = dict.fromkeys(self.covariates, count)
        formats |= dict.fromkeys(("median", "Huber, E held"), ".4f")
        table = Table(pd.DataFrame(columns), "", formats, ("of draws with E",))
        held = self.frame["floor"].dropna()
        words = (
            f"From E = {held.min():.3f} to {held.max():.3f} the median moves by "
            f"{self.range.max():.2g} %"
        )
        words += " at most." if len(self.range) > 1 else "."
        words += " The free forecast averages over the floors that the runs allow."
        blocks: list[Block] = [words, table]
        blocks += [Note(f"NOT CONVERGED: {text}", "refuse") for text in self.failures]
        rows = self.frame.astype(object).where(self.frame.notna(), None)
        document = {"floors": rows.to_dict("records")}
        return Shown(f"Forecast of {self.name} by floor", blocks, document)

    def write(self, path: str | Path) -> None:
        """Write the table as Parquet if the path ends in ``.parquet``, otherwise as CSV."""
        write_frame(self.frame, path)


def at_floors(
    posterior: Posterior,
    rows: Rows | pd.DataFrame,
    floors: Iterable[float] | None = None,
    *,
    levels: Sequence[float] = BAND_LEVELS,
    seed: int = 0,
) -> AtFloors:
    """Forecast rows with the floor E free, and at several values of it.

    Runs of a few budgets hardly determine E, and a forecast far beyond them moves with it. A
    floor is stood for by the tenth of the posterior's draws whose E is nearest to it, so nothing is
    fitted again. Beside it stands a Huber fit of the law without discrepancy that holds E there,
    which is what is often done by hand.

    Parameters
    ----------
    posterior : Posterior
    rows : LossTable or DataFrame
        Rows with the law's covariates, such as ``bl.grid(flops=1e23)``.
    floors : iterable of float, optional
        Values of E in nats per token; by default the 5, 25, 50, 75 and 95 % quantiles of its
        posterior.
    levels : sequence of float
        Probabilities of the bands; 0.9 is always among them.
    seed : int
        Of the noise of the forecast.

    Returns
    -------
    AtFloors

    Raises
    ------
    FitError
        If a floor is not below the least fitted loss, or is farther out than all draws of E; if the
        fit is a pool.
    NotConverged
        If the posterior failed the convergence checks, unless that is `accepted`.
    TableError
        If a covariate is missing or invalid.

    Examples
    --------
    >>> bl.derive.at_floors(fit, bl.grid(flops=1e23), [1.4, 1.6, 1.8])  # doctest: +SKIP
    """
    failures = checked(posterior)
    forecast = posterior.forecast(rows, seed=seed)
    samples = forecast.samples
    of_draws = posterior.paper["E"].values.reshape(-1)
    if floors is None:
        held = [float(value) for value in np.quantile(of_draws, QUANTILES)]
    else:
        held = [float(floor) for floor in floors]
        _check(posterior, held, of_draws)
    valid = posterior.rows(rows)
    levels = tuple(dict.fromkeys((*levels, 0.9)))
    covariates = tuple(c for c in posterior.columns if c in forecast.frame)
    names = forecast.frame[list(covariates)].reset_index(drop=True)
    parts = [_part(samples, np.arange(len(of_draws)), of_draws, levels)]
    parts[0]["huber"] = _by_hand(posterior, None, valid)
    for floor in held:
        part = _part(samples, _nearest(of_draws, floor), of_draws, levels)
        parts.append(part.assign(floor=floor, huber=_by_hand(posterior, floor, valid)))
    joined = pd.concat([names.join(part) for part in parts])
    # All floors of a row stand together.
    frame = joined.sort_index(kind="stable").reset_index(drop=True)
    return AtFloors(frame, covariates, posterior.name, failures)


def _check(posterior: Posterior, floors: Sequence[float], of_draws: Floats) -> None:
    """Raise `FitError` unless the draws can stand for these floors."""
    least = float(posterior.table.measured["loss"].min())
    low = float(of_draws.min())
    high = float(of_draws.max())
    if not floors:
        raise FitError("give one floor or more, in nats per token, such as 1.6.")
    for floor in floors:
        if not 0 <= floor < least:
            raise FitError(
                f"floor {floor:g}: give a number from 0 to below {least:.4g}, the least fitted "
                "loss."
            )
        if not low <= floor <= high:
            raise FitError(
                f"floor {floor:g} lies beyond all draws of E ({low:.3g} to {high:.3g}): these runs "
                "exclude it under the fit's prior; fit with a prior of your own, such as "
                f"E = 'Normal(mu={floor:g}, sigma=0.01)'."
            )


def _nearest(
    of_draws: Floats, floor: float
) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The draws whose E is nearest to a floor."""
    size = max(1, round(NEAREST * len(of_draws)))
    return np.argsort(np.abs(of_draws - floor), kind="stable")[:size]


def _part(
    samples: Floats,
    chosen: np.ndarray[tuple[int], np.dtype[np.intp]],
    of_draws: Floats,
    levels: Sequence[float],
) -> pd.DataFrame:
    """The forecast by some draws, one row for each row that is forecast."""
    some = samples[chosen]
    part = pd.DataFrame(
        {
            "floor": np.nan,
            "least_E": of_draws[chosen].min(),
            "most_E": of_draws[chosen].max(),
            "draws": len(chosen),
            "median": np.median(some, axis=0),
        }
    )
    for level in levels:
        part[band_columns(level)] = np.quantile(some, ends(level), axis=0).T
    return part


def _by_hand(posterior: Posterior, floor: float | None, rows: Rows) -> Floats:
    """What a Huber fit of the law as stated predicts, with E free or held."""
    law = posterior.law.without_discrepancy
    if floor is not None:
        law = _holding(law, floor)
    with warnings.catch_warnings():
        # E is on its bounds by intention, and the posterior has said what is doubtful.
        warnings.simplefilter("ignore", FitWarning)
        warnings.simplefilter("ignore", TableWarning)
        return fit_huber(law, posterior.table).predict(rows)


def _holding(law: Law, floor: float) -> Law:
    """The law with the floor between bounds that are almost equal."""
    rows = dict(law.by_symbol)
    ends_of_floor = (floor * (1 - HELD), floor * (1 + HELD) + HELD)
    rows["E"] = replace(rows["E"], bounds=ends_of_floor, published=None)
    return replace(law, by_symbol=rows)
