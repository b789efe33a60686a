"""Forecasts: draws of the loss of some rows, with bands and where the rows lie."""

import math
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
from bayeslaw.common.shown import SYNTHETIC, Block, Format, Note, Showing, Shown, Table
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
BAND_LEVELS = (0.5, 0.8, 0.9)


def ends(level: float) -> list[float]:
    """Probabilities of the ends of a central band, whose level is strictly between 0 and 1."""
    if not 0 < level < 1:
        raise TableError(
            f"band level {level:g} is not between 0 and 1; 0.9 is a 90 % band."
        )
    return [(1 - level) / 2, (1 + level) / 2]


def _listed(levels: float | Sequence[float]) -> Sequence[float]:
    """Levels of bands, of which one may be given as a number."""
    return [levels] if isinstance(levels, int | float) else levels


def band_columns(level: float) -> list[str]:
    """Columns with the ends of a central band, such as ``lower_90`` and ``upper_90``."""
    return [f"{side}_{100 * level:g}" for side in ("lower", "upper")]


def inside(frame: pd.DataFrame, levels: Sequence[float]) -> pd.DataFrame:
    """Whether losses lie inside their bands: `inside_90` and so on, missing without a loss."""
    loss = frame["loss"]
    marks = {}
    for level in levels:
        lower, upper = (frame[column] for column in band_columns(level))
        marks[f"inside_{100 * level:g}"] = loss.between(lower, upper)
    within = pd.DataFrame(marks, frame.index)
    # A row that was not measured lies neither inside nor outside.
    return (
        within.astype("boolean").where(loss.notna(), axis=0) if loss.hasnans else within
    )


def band_table(
    frame: pd.DataFrame, covariates: Sequence[str], levels: Sequence[float]
) -> Table:
    """Medians and bands of rows; beside measured losses the error, and whether they lie inside."""
    ends = [band_columns(level) for level in levels]
    narrow = min(
        (float((frame[high] - frame[low]).min()) for low, high in ends), default=0.0
    )
    # As many as tell the ends of the narrowest band apart: of more, other draws have others.
    decimals = min(max(3, -math.floor(math.log10(narrow / 2))), 6) if narrow > 0 else 4
    loss = f".{decimals}f"
    columns = {c: frame[c] for c in covariates}
    if measured := "loss" in frame:
        columns["loss"] = frame["loss"]
    columns["median"] = frame["median"]
    if measured:
        columns["error"] = 100 * (frame["median"] / frame["loss"] - 1)
    for level, (low, high) in zip(levels, ends, strict=True):
        name = f"{100 * level:g}"
        band = (
            frame[low].map(f"{{:{loss}}}".format)
            + "–"
            + frame[high].map(f"{{:{loss}}}".format)
        )
        if measured:
            band += frame[f"inside_{name}"].map({True: "  in", False: " out"})
        columns[f"{name} % band"] = band
    if "position" in frame and frame["position"].nunique() > 1:
        columns["position"] = frame["position"]
    # Rows inside the hull would have a column of zeros.
    if "decades" in frame and frame["decades"].any():
        columns["decades"] = frame["decades"]
    formats: dict[str, Format] = {
        c: count for c in covariates if c not in ("row", *LABEL_COLUMNS)
    }
    formats |= {
        "loss": loss,
        "median": loss,
        "error": "{:+z.1f} %".format,
        "decades": ".2f",
    }
    shown = pd.DataFrame(columns).reset_index(drop=True)
    left = ("position", *LABEL_COLUMNS)
    return Table(shown, "", formats, ("decades", "error", "position"), left)


def inside_words(frame: pd.DataFrame, levels: Sequence[float]) -> str:
    """How many measured losses lie inside each band."""
    names = [f"{100 * level:g}" for level in levels]
    *counts, last = [
        f"{int(frame[f'inside_{n}'].sum())} in the {n} % band" for n in names
    ]
    words = f"{', '.join(counts)} and {last}" if counts else last
    return f"Of {len(frame)} measured losses, {words}."


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
        return {
            c: row for fit in self.fits.values() for c, row in fit.law.about.items()
        }

    @property
    def stated(self) -> pd.DataFrame:
        """The rows, with domain, role and kind of all fitted rows where they state none."""
        rows = self.frame
        for fitted in (fit.table.frame for fit in self.fits.values()):
            for column in (*OF_DOMAIN, ANNEALED):
                by_losses = column == "role"  # or by a column of labels
                stated = (
                    [*labels_of(fitted, column)]
                    if by_losses
                    else distinct(fitted, column)
                )
                # With one value in all fitted rows, a forecast is of that one, stated or not.
                if column not in rows and len(stated) == 1:
                    rows = rows.assign(**{column: stated[0]})
        return rows

    @property
    def labels(self) -> tuple[str, ...]:
        """Columns of labels by which rows are told apart."""
        levels = [level for fit in self.fits.values() for level in fit.spec.effects]
        return tuple(
            dict.fromkeys(
                [*LABEL_COLUMNS, *(effects.level(name).column for name in levels)]
            )
        )

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
        levels = _listed(levels)
        if not len(levels):
            raise TableError("bands needs at least one level, such as 0.9.")
        columns = dict.fromkeys((*COVARIATES, *self.columns, *COLUMNS))
        rows = (
            self.frame[[c for c in columns if c in self.frame]]
            .rename_axis("row")
            .reset_index()
        )
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
        members = [
            (self.weights.get(name, 1.0), fit) for name, fit in self.fits.items()
        ]
        return shares(
            [
                (w, parts_of(fit, self.frame, self.kind, self.seed))
                for w, fit in members
            ],
            self.frame.index,
        )

    def to_frame(self, levels: float | Sequence[float] = BAND_LEVELS) -> pd.DataFrame:
        """The rows of the forecast with their bands.

        The columns of the table or grid; `median`, and `lower_90`, `upper_90` and so on of each
        level, in nats per token; `inside_90` and so on beside a measured loss; `position` and
        `decades` of `positions`.
        """
        levels = _listed(levels)
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
        levels = _listed(levels)
        frame = self.to_frame(levels)
        rows = len(self.frame)
        measured = "loss" in frame
        laws = [fit.law for fit in self.fits.values()]
        used = [*(self.columns or COVARIATES)]
        used += {step.called_by for law in laws for step in law.steps} & {UNIQUE}
        # Rows are annealed unless a table says otherwise, so only the others are news.
        used += [ANNEALED] * (ANNEALED in frame and not frame[ANNEALED].all())
        order = dict.fromkeys((*COVARIATES, *self.columns, UNIQUE, ANNEALED))
        used = [c for c in order if c in used and c in frame]
        # What all rows share is said once above the table.
        constant = [c for c in used if rows > 1 and frame[c].nunique() == 1]
        kind = "posterior predictive" if self.kind == "predictive" else "latent loss"
        words = in_words(self.positions) if self.fits else ""
        far = self.verdict.evidence
        blocks: list[Block] = []
        if far:
            blocks.append(Note(far, "no evidence"))
        blocks += [Note(SYNTHETIC, "synthetic")] * self.synthetic
        if not self.convergence.enough:
            blocks.append(self.convergence.note)
        if constant:
            same = ", ".join(f"{c} {count(frame[c].iloc[0])}" for c in constant)
            blocks.append(f"all at {same}")
        blocks += [f"{words}."] if words else []
        fitted_columns = {
            *used,
            *(c for fit in self.fits.values() for c in fit.table.frame),
        }
        if other := [c for c in COVARIATES if c in frame and c not in fitted_columns]:
            text = f"The fit does not know {' and '.join(other)}: the forecast is the same at any."
            blocks.append(Note(text, "caution"))
        columns = [c for c in used if c not in constant]
        if frame.duplicated(used).any():
            # Rows that differ in no covariate are told apart by their run or base.
            columns = [*[c for c in ("run", "base") if c in frame][:1], *columns]
        blocks.append(band_table(frame, columns, levels))
        if measured:
            blocks += [self.held_words(levels)]
        apart: dict[str, object] = {}
        if why:
            variance = self.variance()
            labelled = pd.concat([frame[columns], variance], axis=1).reset_index(
                drop=True
            )
            labels: dict[str, Format] = {
                c: count for c in columns if c not in LABEL_COLUMNS
            }
            blocks += shares_blocks(labelled, labels)
            apart = {"variance": variance.to_dict("records")}
        document = {
            "kind": self.kind,
            "levels": list(levels),
            "positions": words,
            "evidence": far or None,
            "synthetic": self.synthetic,
            "rows": frame.to_dict("records"),
            **apart,
        }
        figures = ("observed", "coverage") if measured else ()
        title = f"Forecast of {rows} row{'s' * (rows != 1)}: {kind}, nats per token"
        return Shown(title, blocks, document, figures)

    @property
    def held_out(self) -> "Forecast":
        """The forecast of the rows that were not fitted, or of all if there are only fitted ones.

        A row was fitted if a training row is equal to it in every column, its loss among them.
        Scores, coverage and the points of figures are of these rows.
        """
        new = ~self._fitted
        if new.all() or not new.any():
            return self
        places = np.flatnonzero(new)
        return replace(
            self, draws=self.draws.isel(row=places), frame=self.frame.iloc[places]
        )

    def held_words(self, levels: Sequence[float]) -> str:
        """How many measured losses of `held_out` lie inside each band, and which were fitted."""
        words = inside_words(self.held_out.to_frame(levels), levels)
        return " ".join(filter(None, [fitted_words(self._fitted), words]))

    @cached_property
    def _fitted(self) -> Bools:
        """Whether each row was fitted, (rows,); none of a forecast without its fits, or losses."""
        if not self.fits or "loss" not in self.frame:
            return np.zeros(len(self.frame), bool)
        table = next(
            iter(self.fits.values())
        ).table  # all fits of a pool are of one table
        return fitted_rows(self.frame, table.frame)

    def write(
        self, path: str | Path, levels: float | Sequence[float] = BAND_LEVELS
    ) -> None:
        """Write `to_frame` as Parquet if the path ends in ``.parquet``, otherwise as CSV."""
        write_frame(self.to_frame(levels), path)

    def _marks(self) -> dict[str, Floats | Strings | str | bool]:
        """Columns of every exported table: positions, and what a reader must know of the fit."""
        positions = self.positions
        failures = self.convergence.failures
        marks: dict[str, Floats | Strings | str | bool] = {
            c: positions[c].to_numpy()
            for c in ("position", "decades")
            if c in positions
        }
        if self.synthetic and "synthetic" not in self.frame:
            marks["synthetic"] = True
        if failures:
            marks["unconverged"] = "; ".join(failures)
        return marks
