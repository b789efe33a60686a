"""Derived numbers with their draws, local exponents, and the floor E."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.formatting import digits
from bayeslaw.common.shown import Block, Format, Note, Showing, Shown, Table
from bayeslaw.inference.bands import BAND_LEVELS, band_columns, ends
from bayeslaw.inference.pools import of_one_law
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.steps import UNIQUE
from bayeslaw.laws.symbols import Values, symbol_of
from bayeslaw.tables.covariates import FLOPS
from bayeslaw.tables.files import write_frame
from bayeslaw.tables.hull import in_words
from bayeslaw.tables.table import Rows
from bayeslaw.tables.units import check_units
from bayeslaw.tables.verdict import Verdict, worst

DETERMINED = 10.0
"""Factor between the ends of a 90 % interval from which the number is not determined."""
LOG_STEP = 1e-4
"""Step of the central differences, in log N or log D."""
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


def checked(*fits: Posterior) -> tuple[str, ...]:
    """Failures of the convergence checks of fits, each the posterior of one law."""
    posteriors = [of_one_law(fit, "derive") for fit in fits]
    return tuple(failure for fit in posteriors for failure in fit.require_converged())


type Verdicts = Mapping[str, Verdict]
"""Where cases lie beside the rows of each fit, by its name; that of a single fit is empty."""


def verdict_on(fit: Posterior, rows: pd.DataFrame) -> Verdict:
    """The verdict on some cases, in the covariates of the law of a fit."""
    return fit.verdict(rows[_read(fit.columns, rows)])


def _read(columns: Iterable[str], rows: pd.DataFrame) -> list[str]:
    """Covariates of a law, and the distinct tokens of rows that state them."""
    return [*columns, *rows.columns.intersection([UNIQUE])]


def worst_of(verdicts: Verdicts) -> Verdict:
    """The verdict on the case that lies farthest beyond the evidence, with the name of its fit."""
    return worst(verdict.of(name) for name, verdict in verdicts.items())


def warn_beyond(verdicts: Verdicts, fits: Iterable[Posterior]) -> None:
    """Warn of cases that `bayeslaw forecast` would refuse as rows, unless all fits accept them."""
    accepts = frozenset.intersection(*(fit.accepts for fit in fits))
    worst_of(verdicts).accepting(accepts).warn(stacklevel=4)


def positions_of(verdicts: Verdicts) -> dict[str, pd.DataFrame]:
    """Where cases lie beside the rows of each fit, as `bayeslaw.locate` gives it."""
    return {name: verdict.positions for name, verdict in verdicts.items()}


def verdict_blocks(verdicts: Verdicts, cases: pd.DataFrame) -> list[Block]:
    """The evidence, and where each case lies."""
    evidence = worst_of(verdicts).evidence
    blocks: list[Block] = []
    if evidence:
        blocks.append(Note(evidence, "no evidence"))
    asked = [
        ", ".join(f"{c} {number(v)}" for c, v in row.items())
        for row in cases.to_dict("records")
    ]
    for name, verdict in verdicts.items():
        rows = verdict.positions
        words = [
            f"{asked[i]} {in_words(rows.loc[[i]]).partition(' ')[2]}"
            for i in rows.index
        ]
        if words:
            whose = f" of {name}" if name else ""
            blocks.append(f"Beside the fitted rows{whose}: {'; '.join(words)}.")
    return blocks


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
        rows = []
        places = self.places.get("", pd.DataFrame()).reindex(self.cases.index)
        marks = places[places.columns.intersection(["position", "decades"])].to_dict(
            "records"
        )
        for name, numbers in self.draws.data_vars.items():
            on_bound = self.at_bound.get(str(name), np.zeros(numbers.shape, bool))
            for case, asked in enumerate(self.cases.to_dict("records")):
                values = numbers.values[:, case]
                low, high = interval(values, 0.9)
                row = {"quantity": name, **asked, "median": quantile(values, 0.5)}
                for level in levels:
                    row |= dict(
                        zip(band_columns(level), interval(values, level), strict=True)
                    )
                row |= {
                    "unit": numbers.attrs["units"],
                    "determined": determined(low, high),
                    "infinite": float(np.isinf(values).mean()),
                    "undefined": float(np.isnan(values).mean()),
                    "at_bound": float(on_bound[:, case].mean()),
                    **marks[case],
                }
                rows.append(row)
        frame = pd.DataFrame(rows)
        if self.with_drift is not None:
            drift = self.with_drift.to_frame(levels)
            bounds = [end for level in levels for end in band_columns(level)]
            frame = frame.join(
                drift[["median", *bounds, "determined"]].add_prefix("drift_")
            )
        return marked(frame, self.failures)

    def shown(self, levels: Sequence[float] = BAND_LEVELS) -> Shown:
        """Medians and credible intervals, with the notes.

        Parameters
        ----------
        levels : sequence of float
            Probabilities of the intervals; the widest is shown in a narrow terminal, too.
        """
        frame = self.to_frame(levels)
        names = {f"{100 * level:g}": f"{100 * level:g} % interval" for level in levels}

        def remark(row: pd.Series) -> str:
            shares = {
                word: row[c] for c, word in WORDS.items() if row[c] >= LEAST_SHOWN_SHARE
            }
            return ", ".join(
                f"{100 * share:.3g} % {word}" for word, share in shares.items()
            )

        columns = {c: frame[c] for c in self.cases.columns}
        median = frame["median"].map(number)
        columns["median"] = median.where(frame["determined"], "not determined")
        for n, head in names.items():
            low, high = (frame[f"{end}_{n}"].map(number) for end in ("lower", "upper"))
            columns[head] = low + " – " + high
        if self.with_drift is not None and names:
            level = max(names, key=float)
            low, high = (
                frame[f"drift_{end}_{level}"].map(number) for end in ("lower", "upper")
            )
            is_determined = frame["drift_determined"]
            columns[f"{level} % with drift"] = (low + " – " + high).where(
                is_determined, "not determined"
            )
        columns[" "] = frame.apply(remark, axis=1)
        if not columns[" "].any():
            del columns[" "]
        table = pd.DataFrame(columns).set_index(frame["quantity"].rename(None))
        formats: dict[str, Format] = dict.fromkeys(map(str, self.cases.columns), number)
        blocks: list[Block] = [*self.answers]
        blocks += verdict_blocks(self.verdicts, self.cases)
        blocks.append(Table(table, "", formats, [*names.values()][:-1]))
        blocks += [Note(note, "quiet") for note in self.notes]
        blocks += [Note(f"NOT CONVERGED: {text}", "refuse") for text in self.failures]
        document = {"numbers": frame.to_dict("records"), "notes": list(self.notes)}
        document["evidence"] = worst_of(self.verdicts).evidence or None
        if self.answers:
            document["answers"] = list(self.answers)
        title = TITLES.get(str(next(iter(self.draws.data_vars))), "")
        if self.with_drift is not None:
            title += ", of the law as stated"
        return Shown(title, blocks, document)

    def write(self, path: str | Path, levels: Sequence[float] = BAND_LEVELS) -> None:
        """Write `to_frame` as Parquet if the path ends in ``.parquet``, otherwise as CSV."""
        write_frame(self.to_frame(levels), path)


def number(value: float) -> str:
    return f"{value:.4g}" if not 1e-3 < value < 1e4 else digits(value, 4)


def quantile(values: Floats, q: float) -> float:
    """Quantile of the defined values; between a finite and an infinite one it is infinite."""
    defined = values[~np.isnan(values)]
    if not len(defined):
        return np.nan
    with np.errstate(invalid="ignore"):
        between = float(np.quantile(defined, q))
    # Interpolation beside an infinite value gives NaN, also where its weight is 0.
    return (
        float(np.quantile(defined, q, method="higher"))
        if np.isnan(between)
        else between
    )


def interval(values: Floats, level: float) -> tuple[float, float]:
    low, high = ends(level)
    return quantile(values, low), quantile(values, high)


def determined(low: float, high: float) -> bool:
    """Whether a number with these ends of its 90 % interval counts as determined."""
    near, far = sorted((abs(low), abs(high)))
    return low == high or (low * high > 0 and far < DETERMINED * near)


def marked(frame: pd.DataFrame, failures: Sequence[str]) -> pd.DataFrame:
    """The frame, with the convergence checks that failed in a column."""
    return frame.assign(unconverged="; ".join(failures)) if failures else frame


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
    dims = ("draw", "case")
    variables = {
        name: (dims, values, {"units": unit})
        for name, (values, unit) in numbers.items()
    }
    remarks = tuple(notes), checked(*fits)
    return Derived(
        xr.Dataset(variables), cases, at_bound or {}, *remarks, verdicts or {}
    )


def local_exponents(posterior: Posterior, rows: Rows | pd.DataFrame) -> Derived:
    """Local exponents of the terms, of the reducible loss and of the loss, at given rows.

    They are central differences over 2e-4 e-folds. At a knot of a walking exponent, where the
    exponent changes by a step, this is the mean of both sides.

    Parameters
    ----------
    posterior : Posterior
    rows : LossTable or DataFrame
        Rows with the law's covariates, such as ``bl.grid(params=1e9, tokens=2e10)``.

    Returns
    -------
    Derived
        Without a unit, and positive where the loss falls: for each term that leads with N or D,
        under its exponent's name, such as `alpha`, minus d log(term) / d log x, the term with its
        deviations; `reducible_N` and `reducible_D`, minus d log(loss - floor) / d log x; `loss_N`
        and `loss_D`, minus d log(loss) / d log x. The reducible ones are NaN where the loss is
        below the floor.

    Examples
    --------
    >>> rows = bl.grid(params=1e9, tokens=2e10)
    >>> bl.derive.local_exponents(fit, rows).to_frame()  # doctest: +SKIP
    """
    frame = _asked(posterior, rows)
    design = posterior.design(Rows(frame))
    law, q = posterior.extended(design)
    at = posterior.at
    x = posterior.covariates(design)  # losses of new bases are drawn
    p = law.amounts(q, at)

    def logs(x: Values) -> dict[str, Floats]:
        loss = law.loss(p, x, at)
        with np.errstate(invalid="ignore", divide="ignore"):
            logs = {
                "reducible": np.log(loss - law.floor(p, x, at)),
                "loss": np.log(loss),
            }
        for term in law.terms:
            # To first order the deviations of a term are additions to its log.
            added = [d for d in law.deviations if d.of == term.coefficient]
            deviations = sum(d.value(p, law.of_deviations(x), at, np) for d in added)
            # Of repeated tokens what they are worth, as in the loss.
            log_ratio = term.log_ratio(p, law.effective(p, x), at, np)
            logs[term.leading] = np.asarray(log_ratio + deviations)
        return logs

    exponents: dict[str, tuple[Floats, str]] = {}
    totals: dict[str, tuple[Floats, str]] = {}
    leading = [c for c in ("params", "tokens", FLOPS) if c in law.covariate_names]
    for along in leading:
        low, high = (
            logs({**x, along: x[along] + step}) for step in (-LOG_STEP, LOG_STEP)
        )
        slopes = {name: (low[name] - high[name]) / (2 * LOG_STEP) for name in low}
        for term in law.terms:
            if term.covariates[0] == along:
                slope = np.broadcast_to(slopes[term.leading], slopes["loss"].shape)
                exponents[term.leading] = slope, "1"
        for name in ("reducible", "loss"):
            totals[f"{name}_{symbol_of(along)}"] = slopes[name], "1"
    verdicts = {"": verdict_on(posterior, frame)}
    warn_beyond(verdicts, [posterior])
    cases = frame[_read(law.columns, frame)].reset_index(drop=True)
    return derived({**exponents, **totals}, cases, [posterior], verdicts=verdicts)


def _asked(posterior: Posterior, rows: Rows | pd.DataFrame) -> pd.DataFrame:
    checked(posterior)
    # Exponents trade off against each other where losses have long converged.
    posterior.require_converged(parameters=True)
    frame = posterior.rows(rows).frame
    check_units(frame, "rows", posterior.table.frame)
    return frame


def floor(posterior: Posterior) -> Derived:
    """Floor E of the law: the loss that remains where all terms vanish.

    Parameters
    ----------
    posterior : Posterior

    Returns
    -------
    Derived
        `E`, nats per token.

    Examples
    --------
    >>> bl.derive.floor(fit).to_frame()  # doctest: +SKIP
    """
    checked(posterior)
    values = posterior.paper["E"].values.reshape(-1, 1)
    return derived(
        {"E": (values, "nats per token")}, pd.DataFrame(index=[0]), [posterior]
    )
