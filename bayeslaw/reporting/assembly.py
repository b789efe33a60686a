"""``report``: a fit and its forecast as one page for someone who missed both."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bayeslaw.checks.checkup import Check, check
from bayeslaw.common.errors import FitWarning
from bayeslaw.evaluate.forecast import Forecast
from bayeslaw.evaluate.scores import score
from bayeslaw.huber.point_fit import PointFit, fit_huber
from bayeslaw.inference.posterior import Posterior
from bayeslaw.plots.style import SHORT
from bayeslaw.reporting import fits, forecasts, provenance
from bayeslaw.reporting.pages import Report, Section, Sheet
from bayeslaw.tables.reading import is_synthetic
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import COVARIATES, canonical

if TYPE_CHECKING:
    from bayeslaw.planning.result import Plan


def report(
    fit: Posterior,
    rows: LossTable | pd.DataFrame,
    *,
    train: str | None = None,
    test: str | None = None,
    question: str | None = None,
    comparison: pd.DataFrame | None = None,
    plan: "Plan | None" = None,
    command: str | None = None,
    seed: int = 0,
    allow_unconverged: bool = False,
) -> Report:
    """Report a fit and its forecast of some rows as one self-contained page.

    Parameters
    ----------
    fit : Posterior
    rows : LossTable or DataFrame
        Rows to forecast, with the law's covariates; where they have a `loss` (nats per token) the
        forecast is checked against it.
    train, test : str, optional
        Queries that chose the fitted and the forecast rows, to be shown.
    question : str, optional
        What the report is to answer; by default it is put together from the queries.
    comparison : DataFrame, optional
        From `bayeslaw.compare`.
    plan : Plan, optional
        From `bayeslaw.plan`.
    command : str, optional
        Command that repeats the report, to be shown.
    seed : int
        Of the predictive noise.
    allow_unconverged : bool
        Report a posterior that failed its gate; the page says so on top.

    Returns
    -------
    Report
        ``report.write("report.html")`` writes it.

    Raises
    ------
    NotConverged
        If the posterior failed its gate and `allow_unconverged` is false.
    TableError
        If `rows` lack a covariate of the law.
    """
    table = rows if isinstance(rows, LossTable) else _table(rows)
    fc = fit.forecast(table, seed=seed, allow_unconverged=allow_unconverged)
    run: dict[str, Any] = {"seed": seed, "allow_unconverged": allow_unconverged}
    fitted = fit.forecast(fit.table, **run)
    point, measured = _huber(fit, seed), "loss" in table.frame
    scores = None
    if measured:
        scores = pd.DataFrame(
            {"posterior": score(fc, table), "Huber point fit": score(point, table)}
        )
    checked = check(fit, table, seed=seed)
    parts = [
        _short(fit, fc, scores, plan),
        fits.data(fit, table.frame, train, test),
        fits.limits(checked),
        forecasts.forecast(fit, fc, run),
        forecasts.scores(scores, point),
        forecasts.calibration(fc, fitted, seed) if measured else None,
        fits.parameters(fit, seed),
        fits.laws(comparison),
        fits.plan(plan),
        _sheet(
            "provenance", "Provenance", provenance.provenance(fit, table.frame, seed, command),
            "What is needed to repeat this page.",
        ),
        _sheet(
            "checklist", "Reporting checklist",
            provenance.checklist(fit, table.frame, point, train, test),
            "What scaling-law papers are asked to report (after Li, Kudugunta and Zettlemoyer, "
            "2025), answered from the fit.",
        ),
    ]  # fmt: skip
    asked = question or _question(fit, table, train, test)
    title = f"{fit.law.title}, on {Path(fit.table.name).name}"
    return Report(
        title, asked, _warnings(fit, table, checked, plan), [p for p in parts if p is not None]
    )


# -- what stands on top ---------------------------------------------------------------------------


def _question(fit: Posterior, rows: LossTable, train: str | None, test: str | None) -> str:
    seen = f"{len(fit.table)} losses" + (f" with {train}" if train else "")
    asked = f"the {len(rows)} rows" + (f" with {test}" if test else " asked for")
    return f"Given {seen}, what loss will {asked} have, and how sure is that?"


def _warnings(fit: Posterior, rows: LossTable, checked: Check, plan: "Plan | None") -> list[str]:
    found = []
    if not fit.convergence.ok:
        failures = "; ".join(fit.convergence.failures)
        found.append(
            f"NOT CONVERGED: {failures}. Do not trust the numbers on this page: fit again with "
            "more tuning and draws."
        )
    if plan is not None and set(plan.unconverged) - {
        f"{fit.table.name}: {failure}" for failure in fit.convergence.failures
    }:
        found.append("NOT CONVERGED: the plan uses a source posterior that failed its gate.")
    if is_synthetic(fit.table) or is_synthetic(rows):
        found.append("Synthetic data: losses simulated from a stated law, not measured.")
    refusing = {part.name for part in checked.parts if part.level == "refuse"}
    if refusing - {"convergence"}:  # that is said above
        found.append(f"{checked.verdict} See what the data cannot determine.")
    return found


def _short(
    fit: Posterior, fc: Forecast, scores: pd.DataFrame | None, plan: "Plan | None"
) -> Section:
    gate, frame = fit.convergence, fc.frame
    median, (low, high) = fc.median, fc.quantile([0.05, 0.95])
    half = 50 * np.median((high - low) / median)
    words = [
        f"Median forecasts run from {median.min():.4g} to {median.max():.4g} nats per token; "
        f"a 90 % band reaches {half:.2g} % to either side (median row)."
    ]
    if scores is None:
        words.append("These rows have no loss: nothing on this page checks the forecast.")
    else:
        held, miss = forecasts.inside(fc), 100 * float(scores["posterior"]["mae_rel"])
        words.append(
            f"Of {len(frame)} held-out losses, {held[0.5]} lie in the 50 % band and {held[0.9]} in "
            f"the 90 % band; the median is off by {miss:.2g} % on average."
        )
    far = [
        f"{SHORT[c]} {reach}"
        for c in COVARIATES
        if c in frame and c in fit.table.frame
        if (reach := provenance.beyond(fit.table.frame[c], frame[c])) != "inside"
    ]
    words.append(f"Beyond the fitted data: {', '.join(far)}." if far else "No extrapolation.")
    words += [] if plan is None else [fits.answer(plan)]
    ess = min(gate.ess_bulk, gate.ess_tail)
    state = "Converged" if gate.ok else "Not converged"
    words.append(
        f"{state}: largest R-hat {gate.rhat:.3f}, smallest effective sample size {ess:.0f}, "
        f"{gate.divergences} divergences."
    )
    words.append(
        "A 90 % band is where a new measured loss falls with 90 % probability if the law (with "
        f"{'its bends' if fit.law.discrepancy_parameters else 'nothing added'}), the priors and "
        "the noise are right. Whether they are is what calibration on held-out rows shows."
    )
    return Section("short", "In short", [words])


def _table(rows: pd.DataFrame) -> LossTable:
    frame = canonical(rows, "rows", ())
    return LossTable(frame, frame.iloc[:0], "rows")


def _huber(fit: Posterior, seed: int) -> PointFit:
    """The paper's fit of the same law as written, to the same rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the page says it
        return fit_huber(fit.law.plain, fit.table, delta=fit.spec.delta, seed=seed)


def _sheet(name: str, title: str, rows: list[list[str]], caption: str) -> Section:
    return Section(name, title, [Sheet(caption, ["", ""], rows, words=True)])
