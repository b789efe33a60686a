"""The paper's deterministic fit: the parameters with the least Huber loss of the log residuals."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Never

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.defaults import DELTA
from bayeslaw.common.errors import FitError, FitWarning, TableError, unknown
from bayeslaw.common.files import models_dir
from bayeslaw.common.formatting import count, digits
from bayeslaw.common.progress import step
from bayeslaw.common.shown import SYNTHETIC, Block, Format, Note, Showing, Shown, Table
from bayeslaw.huber.descent import Objective, agree, polish_best, screened_starts, solutions
from bayeslaw.laws.adjustments import (
    ANNEALED,
    RATE,
    UNIQUE,
    Bases,
    base_table,
    log_slopes,
    total_tokens,
)
from bayeslaw.laws.fits import FitOfLaw
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.tables.table import LossTable, frame_of, from_frame, is_synthetic, require_table
from bayeslaw.tables.validation import (
    BASE_LOSSES,
    COVARIATES,
    canonical,
    check_rows,
    label_texts,
    missing_columns,
)

STARTS, POLISH = 64, 3
"""Defaults of the starts that are screened and polished, for each exponent of the law."""
FEWEST = 6
"""Least number of starts polished first; otherwise a third. The rest only if these differ."""
BEYOND = 10
"""Factor beyond the training rows at which forecasts of starts that agree are compared."""
SAME = 1e-4
"""Forecasts are unique if starts that agree forecast log losses that differ by less than this."""
BASES_DELTA, BASES_STARTS, BASES_POLISH = 0.01, 64, 6
"""Huber threshold, starts screened and starts polished in fits to the losses of bases.

Losses of bases of one kind differ by less than a per cent."""
WIDE = 0.01
"""Relative width from which the range of a parameter is shown."""

type Bounds = Literal["paper", "prior"]
"""Bounds of the parameters in a Huber fit."""


def described(law: Law, table: LossTable | None, at: Mapping[str, float]) -> Shown:
    synthetic = is_synthetic(table)
    blocks: list[Block] = [Note(SYNTHETIC, "synthetic")] if synthetic else []
    blocks += [] if table is None else [f"fitted to {table}"]
    blocks += [Note(law.note, "caution")] if law.note else []
    document = {
        "law": law.name,
        "title": law.title,
        "table": table.name if table else None,
        "train": table.selection or None if table else None,
        "rows_train": len(table) if table else None,
        "synthetic": synthetic,
        "token_unit": law.token_unit,
        "reference_point": law.point(at),
    }
    shown = Shown(f"{law.name}: {law.title}", blocks, document)
    return shown.adding(held=dict(law.held), left_out=list(law.left_out)) if law.held else shown


def units(law: Law, at: Mapping[str, float]) -> str:
    """The unit of tokens and the reference point of a fit, in words."""
    unit = "1 token" if law.token_unit == 1 else f"{law.token_unit:g} tokens"
    point = ", ".join(f"{n} {count(v)}" for n, v in law.point(at).items())
    return f"D in units of {unit}; reference point {point}"


@dataclass(frozen=True, repr=False)
class PointFit(Showing, FitOfLaw):
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
    def members(self) -> dict[str, Never]:
        """None: a point fit has no posterior."""
        return {}

    def by_member(self, draws: Ints | None = None) -> Iterator[Never]:
        """Nothing, as there are no `members`."""
        return iter(())

    @property
    def count(self) -> int:
        """Number of draws: one, without noise."""
        return 1

    def require_converged(self) -> tuple[str, ...]:
        """Nothing: there are no draws that could fail a convergence check."""
        return ()

    def predict(self, table: LossTable | pd.DataFrame) -> Floats:
        """Predicted loss per row, nats per token."""
        loss: Floats = self.law.loss(self.parameters, self.law.covariates(frame_of(table)))
        return loss

    def span(self, table: LossTable | pd.DataFrame) -> Floats:
        """Least and greatest predicted loss of the starts that agree, nats per token.

        Returns
        -------
        array, shape (2, rows)
            Both are `predict` if the fit has no other solutions.
        """
        x = self.law.covariates(frame_of(table))
        losses = np.array([self.law.loss(p, x) for p in self._known])
        return np.array([losses.min(0), losses.max(0)])

    def forecast(self, table: LossTable | pd.DataFrame) -> pd.DataFrame:
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
        if self.table is not None:
            check_rows(canonical(frame_of(table), "rows", ()), "rows", self.table.frame)
        lowest, highest = self.span(table)
        return frame_of(table).assign(
            prediction=self.predict(table),
            lowest=lowest,
            highest=highest,
            unique=np.log(highest / lowest) < SAME,
        )

    def summary(self) -> pd.DataFrame:
        """Parameters, and their range over the starts that agree.

        Returns
        -------
        DataFrame
            One row per parameter, first of the paper's coordinates, then of the reference
            coordinates: `value`, `lowest`, `highest`.
        """
        known = [{**self.law.to_reference(p, self.at), **p} for p in self._known]
        names = dict.fromkeys([*self.law.parameters, *self.law.coordinates])
        values = pd.DataFrame(known, columns=list(names), dtype=float)
        ends = {"value": values.iloc[0], "lowest": values.min(), "highest": values.max()}
        return pd.DataFrame(ends).rename_axis("name")

    def reference(self) -> dict[str, float]:
        """The parameters in reference coordinates."""
        q = self.law.to_reference(self.parameters, self.at)
        return {name: float(value) for name, value in q.items()}

    def heading(self) -> Shown:
        """The law, its training rows and the optimum, without the parameters."""
        shown = described(self.law, self.table, self.at)
        agreeing = round(self.agreeing * self.polished)
        words = f"mean Huber loss {self.objective:.6g} (delta {self.delta:g}); "
        words += f"{agreeing} of {self.polished} starts agree"
        if self.law.paper_bounds:
            words += f"; bounds of the {'priors' if self.bounds == 'prior' else self.bounds}"
        blocks: list[Block] = [*shown.blocks, words, units(self.law, self.at)]
        if self.at_bounds:
            hit = ", ".join(f"{n} = {v:g}" for n, v in self.at_bounds.items())
            blocks.append(Note(f"On a bound: {hit}; the optimum is not interior.", "refuse"))
        optimum = ("objective", "delta", "bounds", "starts", "polished", "agreeing", "interior")
        document = {name: getattr(self, name) for name in (*optimum, "at_bounds")}
        return replace(shown, blocks=blocks).adding(**document)

    def shown(self) -> Shown:
        """The heading, and the parameters in both coordinates."""
        summary, names = self.summary(), self.law.parameters
        sides = ["formula" if name in names else "reference point" for name in summary.index]
        values = summary[["value"]].set_index([sides, summary.index])
        values.index.names = ["", ""]
        blocks: list[Block] = [Table(values)]
        ranges = [
            f"{name} {digits(low)} to {digits(high)}"
            for name, (_, low, high) in summary.iterrows()
            if high - low > WIDE * max(abs(low), abs(high))
        ]
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
    def _known(self) -> tuple[Mapping[str, float], ...]:
        return (self.parameters, *self.solutions)


def shown_points(frame: pd.DataFrame) -> Shown:
    """Show the predictions of `PointFit.forecast`, and their range where they are not unique."""
    names = [c for c in (*COVARIATES, UNIQUE, RATE) if c in frame]
    columns = {c: frame[c] for c in (*names, *["loss"] * ("loss" in frame), "prediction")}
    if "loss" in frame:
        columns["error"] = 100 * (frame["prediction"] / frame["loss"] - 1)
    low, high = (frame[c].map("{:.4f}".format) for c in ("lowest", "highest"))
    if not frame["unique"].all():
        columns["range"] = (low + "–" + high).where(~frame["unique"], "")
    formats: dict[str, Format] = dict.fromkeys(names, count)
    formats |= {"loss": ".4f", "prediction": ".4f", "error": "{:+.1f} %".format}
    blocks: list[Block] = [Table(pd.DataFrame(columns).reset_index(drop=True), "", formats)]
    if not frame["unique"].all():
        spread = 100 * (frame["highest"] / frame["lowest"] - 1)
        words = (
            "Not unique: starts that agree forecast losses that differ by "
            f"{spread.mean():.2g} % on average over these rows, by {spread.max():.2g} % at most."
        )
        blocks.append(Note(words, "refuse"))
    return Shown(
        "Forecast of a point fit: nats per token", blocks, {"rows": frame.to_dict("records")}
    )


@step("Huber fit")
def fit_huber(
    law: str | Law,
    table: LossTable,
    *,
    delta: float = DELTA,
    bounds: Bounds = "paper",
    starts: int | None = None,
    polish: int | None = None,
    seed: int = 0,
) -> PointFit:
    """Fit a law as the paper does: minimise the Huber loss [1]_ of ``log L_hat - log L``.

    Starts are screened over the exponents, and the best are polished together by a projected
    Levenberg-Marquardt method with exact derivatives that solves for the linear parameters
    (floor and coefficients) again after every step, as in variable projection [2]_.

    Parameters
    ----------
    law : str, path or Law
    table : LossTable
    delta : float
        Huber threshold in log loss.
    bounds : {"paper", "prior"}
        ``"paper"``: as published. ``"prior"``: the narrower bounds within which the priors of
        `bayeslaw.fit` lie. They differ in Forms 2 and 3, which the paper prints with lambda > 0;
        the priors have lambda in (0, 1). Exponents are never searched beyond 20.
    starts : int, optional
        Points over the exponents to screen (a scrambled Sobol sequence); 64 an exponent.
    polish : int, optional
        How many of the best to polish to convergence; 3 an exponent. A third of them (6 at least)
        is polished first; if all of these agree, also in their forecasts, the rest is not. Where a
        law has more than three exponents, they are chosen after a few steps from several times as
        many.
    seed : int
        Of the Sobol sequence.

    Returns
    -------
    PointFit

    Raises
    ------
    TableError
        If the table lacks a column the law needs, or that column does not vary.
    FitError
        If `delta` is not positive, `bounds` is unknown, there are no starts, or none gives a finite
        objective.

    Warns
    -----
    FitWarning
        If the optimum lies on a bound.

    References
    ----------
    .. [1] P. J. Huber (1964), Robust estimation of a location parameter, Annals of Mathematical
       Statistics 35, 73-101.
    .. [2] G. H. Golub and V. Pereyra (1973), The differentiation of pseudo-inverses and nonlinear
       least squares problems whose variables separate, SIAM Journal on Numerical Analysis 10,
       413-432.

    Examples
    --------
    Losses without noise return the parameters that they were computed from.

    >>> import bayeslaw as bl
    >>> rows = bl.grid(params=[1e8, 3e8, 1e9], tokens=[1e9, 3e9, 1e10, 3e10])
    >>> truth = {"E": 1.7, "A": 400.0, "alpha": 0.34, "B": 410.0, "beta": 0.28}
    >>> point = bl.fit_huber("chinchilla", bl.simulate("chinchilla", truth, rows, sigma=0.0))
    >>> {name: round(value, 3) for name, value in point.parameters.items()}
    {'E': 1.7, 'A': 400.0, 'alpha': 0.34, 'B': 410.0, 'beta': 0.28}
    >>> point.agreeing, point.interior
    (1.0, True)
    """
    law = for_table(load_law(law), table)
    if not delta > 0:
        raise FitError(f"delta must be positive, not {delta!r}.")
    if bounds not in ("paper", "prior"):
        raise FitError(unknown("bounds", bounds, ("paper", "prior")))
    law.check_fits(table, table.name)
    exponents = len(law.exponents)
    objective = Objective(law if bounds == "prior" else law.published, table, delta)
    starts = STARTS * exponents if starts is None else starts
    polish = min(POLISH * exponents if polish is None else polish, starts)
    if polish < 1:
        raise FitError("starts and polish must be 1 or more.")
    points = screened_starts(objective, starts, seed)[: polish * max(1, exponents - 2)]
    few = min(polish, max(FEWEST, polish // 3))
    first, rest = np.split(points, [few * len(points) // polish])
    found = points, values, ends = polish_best(objective, first, few)
    best, agreed = int(np.argmin(values)), agree(values, len(table)).all()
    if len(rest) and not (agreed and _unique(objective, points[best], ends)):
        more = polish_best(objective, rest, polish - few)
        points, values, ends = map(np.concatenate, zip(found, more, strict=True))
        # Starts of the rest that only agree are other solutions, not better ones.
        if not (agreed and agree(values, len(table))[best]):
            best = int(np.argmin(values))
    if not np.isfinite(values[best]):
        raise FitError(f"{table.name}: no start of {law.name} gave a finite objective.")
    at_bounds = objective.on_bound(points[best])
    if at_bounds:
        names = ", ".join(f"{name} = {value:g}" for name, value in at_bounds.items())
        warnings.warn(
            f"{law.name} on {table.name}: the optimum lies on a bound ({names}).",
            FitWarning,
            stacklevel=2,
        )
    agreeing = agree(values, len(table))
    same = solutions(objective, points[best], ends[agreeing])
    return PointFit(
        law=law,
        parameters=objective.paper(points[best]),
        at=objective.at,
        objective=float(values[best]) / len(table),
        delta=delta,
        starts=starts,
        polished=len(points),
        agreeing=float(agreeing.mean()),
        at_bounds=at_bounds,
        table=table,
        bounds=bounds,
        solutions=[objective.paper(point) for point in same],
    )


def _unique(objective: Objective, best: Floats, ends: Floats) -> bool:
    """Whether starts that agree also forecast the same, with a covariate `BEYOND` times larger."""
    points, x = solutions(objective, best, ends), objective.x
    named = {name: points[:, i, None] for i, name in enumerate(objective.names)}
    columns = [c for c in ("params", "tokens", "ptpp") if c in objective.law.columns]
    far = [{**x, c: x[c] + math.log(BEYOND)} for c in columns]
    logs = [np.log(objective.law.loss(named, rows, objective.at)) for rows in far]
    return float(np.ptp(logs, axis=1).max()) < SAME


def for_table(law: Law, table: LossTable, *, whole: bool = False) -> Law:
    """The law with what the columns of a table call for.

    Unless it is to be `whole`, it is without what rows that agree in a column do not determine.
    With `unique_tokens` it has a term of repetition, with rows that are `annealed` and others that
    are not, an offset of the latter, and with several values of `rate` a best one. One that starts
    from the base has what the table says of bases: both losses of these are
    fitted by Chinchilla's law of N and D = P N.
    """
    require_table(table)
    if not {*law.columns} <= {*table.frame.columns}:
        lacking = missing_columns(table.frame, law.needs)
        names = sorted(path.stem for path in models_dir().glob("*.toml"))
        able = [n for n in names if not missing_columns(table.frame, load_law(n).columns)]
        raise TableError(
            f"{table.name}: {lacking} Laws that need only columns that are there: "
            f"{', '.join(able) or 'none'}."
        )
    law = law if whole else law.for_rows(table.frame, table.name)
    law = law.repeating() if UNIQUE in table.frame else law
    if ANNEALED in table.frame and table.frame[ANNEALED].nunique() == 2:
        law = law.annealing()
    if RATE in table.frame and table.frame[RATE].nunique() > 1:
        law = law.tuned()
    if law.departure is None or law.bases is not None:
        return law
    bases, chinchilla = base_table(table.frame, table.baselines, table.name), load_law("chinchilla")
    free = max(len(bases) - len(chinchilla.parameters), 1)
    parameters, errors, residuals = {}, {}, []
    for column in BASE_LOSSES:
        frame = total_tokens(bases).assign(loss=bases[column], run=np.arange(len(bases)))
        rows = from_frame(frame, f"bases of {table.name}", loss_unit="nats")
        objective = Objective(chinchilla, rows, BASES_DELTA)
        starts = screened_starts(objective, BASES_STARTS, 0)
        points, values, _ = polish_best(objective, starts, BASES_POLISH)
        best = points[int(np.argmin(values))]
        parameters[column] = objective.paper(best)
        residuals.append(-objective.residuals(best[None])[0])
        slopes = log_slopes(chinchilla, parameters[column], frame)
        variance = (residuals[-1] ** 2).sum() / free
        errors[column] = _rows(variance * np.linalg.pinv(slopes @ slopes.T, hermitian=True))
    spread = _rows(np.array(residuals) @ np.array(residuals).T / free)
    known = {}
    if "base" in bases:
        numbers = bases.set_index(label_texts(bases["base"]))[["params", "ptpp", *BASE_LOSSES]]
        numbers = numbers[numbers.index.notna()].astype(float)
        differ = ~np.isclose(numbers, numbers.groupby(level=0).transform("first"), 1e-6, 0).all(1)
        if differ.any():
            raise TableError(
                f"{table.name}: base {numbers.index[differ][0]} has several params, ptpp, "
                "start_loss or base_loss; give each pre-trained model a label of its own."
            )
        known = {base: tuple(own) for base, *own in numbers.itertuples()}
    law = replace(law, bases=Bases(known, chinchilla, parameters, spread, errors))
    return law if whole else law.for_bases(table)


def _rows(matrix: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, matrix.tolist()))
