"""Forecasts: draws of the loss of some rows, with bands and where the rows lie."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Bools, Floats, Strings
from bayeslaw.common.errors import TableError
from bayeslaw.common.formatting import count
from bayeslaw.common.shown import SYNTHETIC, Block, Format, Note, Showing, Shown
from bayeslaw.inference.bands import (
    BAND_LEVELS,
    band_columns,
    band_table,
    ends,
    inside,
    inside_words,
    listed,
)
from bayeslaw.inference.convergence import Convergence
from bayeslaw.inference.fitted import FittedLaw
from bayeslaw.inference.variance import parts_of, shares, shares_blocks
from bayeslaw.laws.steps import ANNEALED, UNIQUE
from bayeslaw.model import effects
from bayeslaw.tables.comparison import distinct, fitted_rows, fitted_words, labels_of
from bayeslaw.tables.covariates import Covariate
from bayeslaw.tables.files import write_frame
from bayeslaw.tables.hull import in_words
from bayeslaw.tables.table import is_synthetic
from bayeslaw.tables.validation import COLUMNS, COVARIATES, LABEL_COLUMNS, OF_DOMAIN
from bayeslaw.tables.verdict import Verdict, judge

KINDS = ("predictive", "latent")


@dataclass(frozen=True)
class Forecast(Showing):
    """Draws of the loss for each row of a table or grid.

    Parameters
    ----------
    draws : DataArray
        Loss in nats per token, dims (chain, draw, row); the covariates are coordinates of `row`.
    frame : DataFrame
        The rows of the table or grid.
    law : str
        Name of the law.
    kind : {"predictive", "latent"}
        Posterior predictive draws of a measured loss, or draws of the latent loss.
    convergence : Convergence
        Convergence checks of the posterior, or of the first of a pool that failed them. If they
        failed, every exported table has a column `unconverged` with the reasons.
    fits : mapping of label to Posterior
        The posteriors that the forecast was made from: one, by the name of its law, or those of a
        pool.
    seed : int
        Seed of the noise and of the random effects of new groups.
    weights : mapping of label to float
        Weights of the posteriors of a pool.
    """

    draws: xr.DataArray = field(repr=False)
    frame: pd.DataFrame = field(repr=False)
    law: str
    kind: str
    convergence: Convergence
    fits: Mapping[str, FittedLaw] = field(
        default_factory=dict, repr=False, kw_only=True
    )
    seed: int = field(default=0, kw_only=True)
    weights: Mapping[str, float] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        # Of NumPy, which files cannot hold.
        object.__setattr__(self, "seed", int(self.seed))

    @property
    def positions(self) -> pd.DataFrame:
        """Where each row lies with respect to the training rows; see `bayeslaw.locate`.

        Columns `position` (interpolation, extrapolation or projection), `decades`, the same by
        covariate, and `unvaried`. Without posteriors it has no columns.
        """
        return self.verdict.positions

    @cached_property
    def verdict(self) -> Verdict:
        """Where the rows lie, and whether bands were ever tested so far out."""
        # A forecast may come without its fits, as one of draws alone.
        if not self.fits:
            return Verdict(pd.DataFrame(index=self.frame.index))
        first, *_ = self.fits.values()  # all fits of a pool are of one table
        return judge(first.table, self.frame, self.about)

    @property
    def columns(self) -> tuple[str, ...]:
        """Covariates of the laws."""
        return tuple(self.about)

    @property
    def about(self) -> dict[str, Covariate]:
        """What is known of each of the `columns`; see `bayeslaw.Law.about`."""
        about: dict[str, Covariate] = {}
        for fit in self.fits.values():
            about |= fit.law.about
        return about

    @property
    def stated(self) -> pd.DataFrame:
        """The rows, with domain, role and kind of all fitted rows where they state none."""
        rows = self.frame
        for fit in self.fits.values():
            fitted = fit.table.frame
            for column in (*OF_DOMAIN, ANNEALED):
                if column == "role":  # which losses and labels tell as well as a column
                    values = [*labels_of(fitted, column)]
                else:
                    values = distinct(fitted, column)
                # With one value in all fitted rows, a forecast is of that one, stated or not.
                if column not in rows and len(values) == 1:
                    rows = rows.assign(**{column: values[0]})
        return rows

    @property
    def labels(self) -> tuple[str, ...]:
        """Columns of labels by which rows are told apart."""
        columns = dict.fromkeys(LABEL_COLUMNS)
        for fit in self.fits.values():
            for name in fit.spec.effects:
                columns[effects.level(name).column] = None
        return tuple(columns)

    @property
    def synthetic(self) -> bool:
        """Whether losses of the rows, or those fitted, are simulated."""
        tables = [fit.table for fit in self.fits.values()]
        return is_synthetic(self.frame) or any(map(is_synthetic, tables))

    @property
    def samples(self) -> Floats:
        """Draws as an array of shape (draws, rows), chain by chain."""
        flat = self.draws.transpose("chain", "draw", "row").values.reshape(
            -1, len(self.frame)
        )
        return np.asarray(flat, float)

    @property
    def median(self) -> Floats:
        """Median loss per row, nats per token."""
        return np.median(self.samples, axis=0)

    def quantile(self, q: float | Sequence[float]) -> Floats:
        """Quantiles of the loss in nats per token, shape (quantiles, rows).

        `TableError` if one is not between 0 and 1.
        """
        probabilities = np.atleast_1d(q)
        for probability in probabilities:
            if not 0 <= probability <= 1:
                raise TableError(
                    f"quantile {probability:g} is not between 0 and 1; 0.95 is the 95 % quantile."
                )
        return np.asarray(np.quantile(self.samples, probabilities, axis=0))

    def bands(self, levels: float | Sequence[float] = BAND_LEVELS) -> pd.DataFrame:
        """Central posterior predictive intervals as a tidy data frame.

        One row per row of the forecast and level, such as 0.9 for a 90 % band: `row`, `level`, the
        covariates, `position` and `decades` of `positions`, and `median`, `lower`, `upper`
        in nats per token. `TableError` if a level is not strictly between 0 and 1.
        """
        levels = listed(levels)
        if not len(levels):
            raise TableError("bands needs at least one level, such as 0.9.")
        columns = dict.fromkeys((*COVARIATES, *self.columns, *COLUMNS))
        present = [column for column in columns if column in self.frame]
        rows = self.frame[present].rename_axis("row").reset_index()
        marks = self._marks()
        by_level = []
        for level in levels:
            lower, upper = self.quantile(ends(level))
            # Last, since a terminal leaves out columns in the middle.
            band = {"median": self.median, "lower": lower, "upper": upper}
            rows_of_level = rows.assign(**marks, **band)
            rows_of_level.insert(1, "level", level)
            by_level.append(rows_of_level)
        return pd.concat(by_level, ignore_index=True)

    def variance(self) -> pd.DataFrame:
        """Where the variance of each row comes from: why a band is as wide as it is.

        The log loss of a row is a sum of parts, draw by draw, and the share of a part is its
        covariance with the sum over the variance of the sum. Shares add up to 1; one is negative if
        other parts offset it. The variance between the members of a pool is that of their means.

        Returns
        -------
        DataFrame
            One row per row of the forecast: `sd`, the standard deviation of the log loss, which is
            relative; and the shares of `law`, which of a pool's laws is right, `parameters` and
            `discrepancy` of the laws, the effects of `size`, `base` and `run` (with other levels),
            and `noise`. NaN where losses are not finite.

        Raises
        ------
        TableError
            If the forecast comes without its fits.

        Examples
        --------
        >>> table = bl.example_table()  # doctest: +SKIP
        >>> fit.forecast(table).variance()  # doctest: +SKIP
        """
        if not self.fits:
            raise TableError(
                "this forecast comes without its fits; forecast again from them."
            )
        members = []
        for name, fit in self.fits.items():
            parts = parts_of(fit, self.frame, self.kind, self.seed)
            members.append((self.weights.get(name, 1.0), parts))
        return shares(members, self.frame.index)

    def to_frame(self, levels: float | Sequence[float] = BAND_LEVELS) -> pd.DataFrame:
        """The rows of the forecast with their bands.

        The columns of the table or grid; `median`, and `lower_90`, `upper_90` and so on of each
        level, in nats per token; `inside_90` and so on beside a measured loss; `position` and
        `decades` of `positions`.
        """
        levels = listed(levels)
        frame = self.frame.assign(median=self.median)
        for level in levels:
            frame[band_columns(level)] = self.quantile(ends(level)).T
        if "loss" in frame:
            frame = pd.concat([frame, inside(frame, levels)], axis=1)
        return frame.assign(**self._marks())

    def shown(
        self, levels: float | Sequence[float] = (0.5, 0.9), *, why: bool = False
    ) -> Shown:
        """Median and bands of each row beside its loss, and where the rows lie.

        Parameters
        ----------
        levels : float or sequence of float
            Probabilities of the bands.
        why : bool
            Whether to take the variance of each row apart: law, parameters, discrepancy, effects,
            noise; see `variance`.
        """
        levels = listed(levels)
        frame = self.to_frame(levels)
        used = self._shown_covariates()
        # What all rows share is said once above the table.
        constant = []
        if len(frame) > 1:
            constant = [column for column in used if frame[column].nunique() == 1]
        columns = [column for column in used if column not in constant]
        if frame.duplicated(used).any():
            # Rows that differ in no covariate are told apart by their run or base.
            labels = [column for column in ("run", "base") if column in frame]
            columns = [*labels[:1], *columns]
        words = in_words(self.positions) if self.fits else ""
        blocks = self._notes()
        if constant:
            same = ", ".join(f"{c} {count(frame[c].iloc[0])}" for c in constant)
            blocks.append(f"all at {same}")
        if words:
            blocks.append(f"{words}.")
        blocks += self._notes_on_columns(used)
        blocks.append(band_table(frame, columns, levels))
        document = {
            "kind": self.kind,
            "levels": list(levels),
            "positions": words,
            "evidence": self.verdict.evidence or None,
            "synthetic": self.synthetic,
            "rows": frame.to_dict("records"),
        }
        figures: tuple[str, ...] = ()
        if "loss" in frame:
            blocks.append(self.held_words(levels))
            figures = ("observed", "coverage")
        if why:
            variance = self.variance()
            labelled = pd.concat([frame[columns], variance], axis=1)
            formats: dict[str, Format] = {}
            for column in columns:
                if column not in LABEL_COLUMNS:
                    formats[column] = count
            blocks += shares_blocks(labelled.reset_index(drop=True), formats)
            document["variance"] = variance.to_dict("records")
        kind = "posterior predictive" if self.kind == "predictive" else "latent loss"
        rows = "1 row" if len(frame) == 1 else f"{len(frame)} rows"
        title = f"Forecast of {rows}: {kind}, nats per token"
        return Shown(title, blocks, document, figures)

    def _shown_covariates(self) -> list[str]:
        """Columns of the rows that a reader needs beside a band."""
        used = {*(self.columns or COVARIATES)}
        for fit in self.fits.values():
            for step in fit.law.steps:
                if step.called_by == UNIQUE:
                    used.add(UNIQUE)
        # Rows are annealed unless a table says otherwise, so only the others are news.
        if ANNEALED in self.frame and not self.frame[ANNEALED].all():
            used.add(ANNEALED)
        order = dict.fromkeys((*COVARIATES, *self.columns, UNIQUE, ANNEALED))
        return [column for column in order if column in used and column in self.frame]

    def _notes(self) -> list[Block]:
        """What a reader must know of the fit and of how far out the rows lie."""
        notes: list[Block] = []
        if self.verdict.evidence:
            notes.append(Note(self.verdict.evidence, "no evidence"))
        if self.synthetic:
            notes.append(Note(SYNTHETIC, "synthetic"))
        if not self.convergence.enough:
            notes.append(self.convergence.note)
        return notes

    def _notes_on_columns(self, used: Sequence[str]) -> list[Block]:
        """Covariates of the rows that no fit has read."""
        fitted = {*used}
        for fit in self.fits.values():
            fitted.update(map(str, fit.table.frame.columns))
        unread = [c for c in COVARIATES if c in self.frame and c not in fitted]
        if not unread:
            return []
        text = f"The fit does not know {' and '.join(unread)}: the forecast is the same at any."
        return [Note(text, "caution")]

    @property
    def held_out(self) -> "Forecast":
        """The forecast of the rows that were not fitted, or of all if there are only fitted ones.

        A row was fitted if a training row is equal to it in every column, its loss among them.
        Scores, coverage and the points of figures are of these rows.
        """
        new = ~self._fitted
        if new.all() or not new.any():
            return self
        rows = np.flatnonzero(new)
        draws = self.draws.isel(row=rows)
        return replace(self, draws=draws, frame=self.frame.iloc[rows])

    def held_words(self, levels: Sequence[float]) -> str:
        """How many measured losses of `held_out` lie inside each band, and which were fitted."""
        words = inside_words(self.held_out.to_frame(levels), levels)
        return " ".join(filter(None, [fitted_words(self._fitted), words]))

    @cached_property
    def _fitted(self) -> Bools:
        """Whether each row was fitted, (rows,); none of a forecast without its fits, or losses."""
        if not self.fits or "loss" not in self.frame:
            return np.zeros(len(self.frame), bool)
        first, *_ = self.fits.values()  # all fits of a pool are of one table
        return fitted_rows(self.frame, first.table.frame)

    def write(
        self, path: str | Path, levels: float | Sequence[float] = BAND_LEVELS
    ) -> None:
        """Write `to_frame` as Parquet if the path ends in ``.parquet``, otherwise as CSV."""
        write_frame(self.to_frame(levels), path)

    def _marks(self) -> dict[str, Floats | Strings | str | bool]:
        """Columns of every exported table: positions, and what a reader must know of the fit."""
        positions = self.positions
        failures = self.convergence.failures
        marks: dict[str, Floats | Strings | str | bool] = {}
        for column in ("position", "decades"):
            if column in positions:
                marks[column] = positions[column].to_numpy()
        if self.synthetic and "synthetic" not in self.frame:
            marks["synthetic"] = True
        if failures:
            marks["unconverged"] = "; ".join(failures)
        return marks
