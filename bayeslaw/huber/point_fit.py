"""The paper's deterministic fit: the parameters with the least Huber loss of the log residuals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Never, Self

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.formatting import count, digits
from bayeslaw.common.shown import Block, Format, Note, Showing, Shown, Table
from bayeslaw.design.described import described, units
from bayeslaw.design.design import Design
from bayeslaw.design.fits import BaseFit
from bayeslaw.laws.law import Law
from bayeslaw.laws.steps import UNIQUE
from bayeslaw.tables.table import LossTable, Rows, is_synthetic
from bayeslaw.tables.units import check_units
from bayeslaw.tables.validation import COVARIATES

SAME_FORECAST = 1e-4
"""Forecasts are unique if starts that agree forecast log losses that differ by less than this."""
WIDE = 0.01
"""Relative width from which the range of a parameter is shown."""


@dataclass(frozen=True, repr=False)
class PointFit(Showing, BaseFit):
    """A deterministic fit.

    Parameters
    ----------
    law : Law
    parameters : mapping
        Paper coordinates, with D in the law's token unit.
    at : mapping
        Logarithms of the covariates at the reference point.
    objective : float
        Mean Huber loss of the log residuals on the training table.
    delta : float
        Threshold of the Huber loss, in log loss.
    starts, polished : int
        Starts screened, and of those, polished to an optimum.
    agreeing : float
        Fraction of the polished starts that ended at this optimum (objectives within 1e-5).
    at_bounds : mapping of str to float
        Parameters that ended on a bound, and the bound; there the optimum is not interior.
    table : LossTable, optional
        Training table.
    bounds : {"paper", "prior"}
        Bounds of the parameters, as in `fit_huber`.
    solutions : sequence of mapping
        Where the starts that agree ended, in paper coordinates; the first is `parameters`. They
        differ where the table does not determine all parameters.
    """

    law: Law
    parameters: Mapping[str, float]
    at: Mapping[str, float]
    objective: float
    delta: float
    starts: int
    polished: int
    agreeing: float
    at_bounds: Mapping[str, float] = field(default_factory=dict)
    table: LossTable | None = None
    bounds: str = "paper"
    solutions: Sequence[Mapping[str, float]] = ()

    @property
    def interior(self) -> bool:
        """Whether no parameter lies on a bound."""
        return not self.at_bounds

    @property
    def laws(self) -> tuple[Law, ...]:
        return (self.law,)

    @property
    def first(self) -> Self:
        return self

    @property
    def members(self) -> dict[str, Never]:
        """None: a point fit has no posterior."""
        return {}

    def by_member(self, draws: Ints | None = None) -> Iterator[Never]:
        """Nothing, as there are no `members`."""
        return iter(())

    @property
    def count(self) -> int:
        return 1

    def require_converged(self) -> tuple[str, ...]:
        """Nothing: there are no draws that could fail a convergence check."""
        return ()

    def losses(self, rows: Rows | pd.DataFrame, draws: Ints | None = None) -> Floats:
        """Loss per row, nats per token, shape (1, rows): that of the only draw."""
        design = Design(self.law, self._valid(rows))
        loss = self.law.loss(self.parameters, design.x)
        losses = np.atleast_2d(loss)
        return losses if draws is None else losses[draws]

    def span(self, table: Rows | pd.DataFrame) -> Floats:
        """Least and greatest predicted loss of the starts that agree, nats per token.

        Returns
        -------
        array, shape (2, rows)
            Both are `predict` if the fit has no other solutions.
        """
        design = Design(self.law, self.rows(table))
        predicted = []
        for parameters in self._optima:
            predicted.append(self.law.loss(parameters, design.x))
        lowest = np.min(predicted, axis=0)
        highest = np.max(predicted, axis=0)
        return np.array([lowest, highest])

    def forecast(self, table: Rows | pd.DataFrame) -> pd.DataFrame:
        """Predicted losses, and their range over the starts that agree.

        The range is no band. It contains losses that fits as good as this one predict; a
        fit from more starts can only widen it.

        Parameters
        ----------
        table : LossTable or DataFrame
            Rows with the law's covariates; a loss is not needed.

        Returns
        -------
        DataFrame
            The rows with `prediction`, `lowest` and `highest` in nats per token, and `unique`:
            whether lowest and highest differ by less than 1e-4 of the loss.

        Examples
        --------
        >>> import bayeslaw as bl
        >>> rows = bl.grid(params=[1e8, 3e8, 1e9], tokens=[1e9, 3e9, 1e10, 3e10])
        >>> truth = {"E": 1.7, "A": 400.0, "alpha": 0.34, "B": 410.0, "beta": 0.28}
        >>> point = bl.fit_huber("chinchilla", bl.simulate("chinchilla", truth, rows))
        >>> point.forecast(rows.assign(params=1e10))["unique"].all().item()
        True
        """
        rows = self.rows(table)
        if self.table is not None:
            check_units(rows.frame, rows.name, self.table.frame)
        lowest, highest = self.span(rows)
        frame = table.frame if isinstance(table, Rows) else table
        if is_synthetic(self.table) and "synthetic" not in frame:
            frame = frame.assign(synthetic=True)
        return frame.assign(
            prediction=self.predict(rows),
            lowest=lowest,
            highest=highest,
            unique=np.log(highest / lowest) < SAME_FORECAST,
        )

    def summary(self) -> pd.DataFrame:
        """Parameters, and their range over the starts that agree.

        Returns
        -------
        DataFrame
            One row per parameter, first of the paper's coordinates, then of the reference
            coordinates: `value`, `lowest`, `highest`.
        """
        optima = []
        for parameters in self._optima:
            reference = self.law.to_reference(parameters, self.at)
            optima.append({**reference, **parameters})
        names = dict.fromkeys([*self.law.parameters, *self.law.coordinates])
        values = pd.DataFrame(optima, columns=list(names), dtype=float)
        ends = {
            "value": values.iloc[0],
            "lowest": values.min(),
            "highest": values.max(),
        }
        return pd.DataFrame(ends).rename_axis("name")

    def reference(self) -> dict[str, float]:
        """The parameters in reference coordinates."""
        q = self.law.to_reference(self.parameters, self.at)
        return {name: float(value) for name, value in q.items()}

    def heading(self) -> Shown:
        """The law, its training rows and the optimum, without the parameters."""
        shown = described(self.law, self.table, self.at)
        agreeing = round(self.agreeing * self.polished)
        words = (
            f"mean Huber loss {self.objective:.6g} (delta {self.delta:g}); {agreeing} of "
            f"{self.polished} starts agree"
        )
        if any(row.published for row in self.law.by_symbol.values()):
            origin = "priors" if self.bounds == "prior" else self.bounds
            words += f"; bounds of the {origin}"
        blocks: list[Block] = [*shown.blocks, words, units(self.law, self.at)]
        if self.at_bounds:
            hit = [f"{name} = {bound:g}" for name, bound in self.at_bounds.items()]
            words = f"On a bound: {', '.join(hit)}; the optimum is not interior."
            blocks.append(Note(words, "refuse"))
        return replace(shown, blocks=blocks).adding(
            objective=self.objective,
            delta=self.delta,
            bounds=self.bounds,
            starts=self.starts,
            polished=self.polished,
            agreeing=self.agreeing,
            interior=self.interior,
            at_bounds=self.at_bounds,
        )

    def shown(self) -> Shown:
        """The heading, and the parameters in both coordinates."""
        summary = self.summary()
        sides = []
        ranges = []
        for name, (_, low, high) in summary.iterrows():
            of_formula = name in self.law.parameters
            sides.append("formula" if of_formula else "reference point")
            largest = max(abs(low), abs(high))
            if high - low > WIDE * largest:
                ranges.append(f"{name} {digits(low)} to {digits(high)}")
        values = summary[["value"]].set_index([sides, summary.index])
        values.index.names = ["", ""]
        blocks: list[Block] = [Table(values)]
        if ranges:
            words = f"Not unique: starts that agree have {', '.join(ranges)}."
            blocks.append(Note(words, "refuse"))
        return self.heading() + Shown(
            blocks=blocks,
            document={
                "parameters": dict(self.parameters),
                "reference": self.reference(),
                "lowest": summary["lowest"].to_dict(),
                "highest": summary["highest"].to_dict(),
            },
        )

    @property
    def _optima(self) -> tuple[Mapping[str, float], ...]:
        """The parameters, and those of the starts that agree."""
        return (self.parameters, *self.solutions)


def shown_points(frame: pd.DataFrame, covariates: Sequence[str]) -> Shown:
    """Show the predictions of `PointFit.forecast`, and their range where they are not unique.

    `covariates` are those of the law.
    """
    all_covariates = dict.fromkeys((*COVARIATES, *covariates, UNIQUE))
    names = [name for name in all_covariates if name in frame]
    measured = "loss" in frame
    unique = frame["unique"]
    columns = {name: frame[name] for name in names}
    if measured:
        columns["loss"] = frame["loss"]
    columns["prediction"] = frame["prediction"]
    if measured:
        relative = frame["prediction"] / frame["loss"] - 1
        columns["error"] = 100 * relative
    if not unique.all():
        low = frame["lowest"].map("{:.4f}".format)
        high = frame["highest"].map("{:.4f}".format)
        ranges = low + "–" + high
        columns["range"] = ranges.where(~unique, "")
    formats: dict[str, Format] = dict.fromkeys(names, count)
    formats["loss"] = ".4f"
    formats["prediction"] = ".4f"
    formats["error"] = "{:+.1f} %".format
    shown = pd.DataFrame(columns).reset_index(drop=True)
    blocks: list[Block] = [Table(shown, "", formats)]
    if not unique.all():
        spread = 100 * (frame["highest"] / frame["lowest"] - 1)
        words = (
            "Not unique: starts that agree forecast losses that differ by "
            f"{spread.mean():.2g} % on average over these rows, by {spread.max():.2g} % at most."
        )
        blocks.append(Note(words, "refuse"))
    return Shown(
        "Forecast: point fit, nats per token",
        blocks,
        {"rows": frame.to_dict("records")},
    )
