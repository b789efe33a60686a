"""Assembly of a report: a fit, its forecast, its scores and its checks as one page."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from bayeslaw.checks._check import check
from bayeslaw.checks.findings import Check
from bayeslaw.common.errors import FitWarning
from bayeslaw.derive.recipes import Recipes
from bayeslaw.evaluate._backtest import Backtest
from bayeslaw.evaluate.scores import score
from bayeslaw.huber.point_fit import PointFit, fit_huber
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Forecast, Posterior
from bayeslaw.planning.result import Plan
from bayeslaw.plots.style import SHORT
from bayeslaw.reporting import provenance, sections
from bayeslaw.reporting.pages import Report, Section
from bayeslaw.tables.hull import in_words
from bayeslaw.tables.table import LossTable, is_synthetic
from bayeslaw.tables.validation import canonical


def report(
    fit: Posterior | Pool,
    rows: LossTable | pd.DataFrame,
    *,
    train: str | None = None,
    test: str | None = None,
    question: str | None = None,
    comparison: pd.DataFrame | None = None,
    plan: Plan | None = None,
    recipes: Recipes | None = None,
    backtest: Backtest | None = None,
    command: str | None = None,
    seed: int = 0,
    allow_unconverged: bool = False,
) -> Report:
    """Report a fit and its forecast of some rows as one self-contained page.

    Parameters
    ----------
    fit : Posterior or Pool
        Of a pool, parameters and provenance are those of each member.
    rows : LossTable or DataFrame
        Rows to forecast, with the law's covariates; if they have a `loss` (nats per token), the
        forecast is scored on it.
    train, test : str, optional
        Queries that selected the training rows and the rows to forecast, shown on the page; by
        default those that the tables remember.
    question : str, optional
        Question that the report answers; by default it is built from the queries.
    comparison : DataFrame, optional
        From `bayeslaw.compare`.
    plan : Plan, optional
        From `bayeslaw.plan`.
    recipes : Recipes, optional
        From `bayeslaw.compare_recipes`.
    backtest : Backtest, optional
        From `bayeslaw.backtest`, of the same law on these or like runs; quoted in the summary.
    command : str, optional
        Command that reproduces the report; shown on the page.
    seed : int
        Seed of the predictive noise.
    allow_unconverged : bool
        Report a posterior that has not converged; the page starts with a warning.

    Returns
    -------
    Report
        ``report.write("report.html")`` writes it.

    Raises
    ------
    NotConverged
        If the posterior has not converged and `allow_unconverged` is false.
    TableError
        If `rows` lack a covariate of the law.
    """
    table = rows if isinstance(rows, LossTable) else _loss_table(rows)
    train, test = train or fit.table.selection, test or table.selection
    fc = fit.forecast(table, seed=seed, allow_unconverged=allow_unconverged)
    fitted = fit.forecast(fit.table, seed=seed, allow_unconverged=allow_unconverged)
    first = fit.first if isinstance(fit, Pool) else fit
    members = [member for member, *_ in fit.by_member()]
    point, measured, scores = _huber(first, seed), "loss" in table.frame, None
    if measured:
        found = {"posterior": score(fc, table), "Huber point fit": score(point, table)}
        scores = pd.DataFrame(found)
    checked = check(fit, table, seed=seed)
    origins = [provenance.provenance(member, table.frame, seed, command) for member in members]
    parts = [
        _summary(fit, fc, scores, plan, backtest),
        sections.data(first, table.frame, train, test),
        sections.checks(checked),
        sections.forecast(fit, fc, seed=seed, allow_unconverged=allow_unconverged),
        sections.scores(scores, point),
        sections.calibration(fc, fitted, seed) if measured else None,
        *(_named(sections.parameters(member, seed), member, fit) for member in members),
        sections.laws(comparison),
        sections.recipes(recipes),
        sections.plan(plan),
        *(_named(each, member, fit) for each, member in zip(origins, members, strict=True)),
        provenance.checklist(first, table.frame, point, train, test),
    ]
    lead = question or _question(fit, table, train, test)
    name = f"Pool {fit.name}" if isinstance(fit, Pool) else fit.law.title
    title = f"{name}, on {Path(fit.table.name).name}"
    return Report(
        title, lead, _warnings(fit, table, checked, plan), [p for p in parts if p is not None]
    )


# -- question, warnings, summary ------------------------------------------------------------------


def _question(fit: Posterior | Pool, rows: LossTable, train: str | None, test: str | None) -> str:
    given = f"{len(fit.table)} losses" + (f" with {train}" if train else "")
    wanted = f"the {len(rows)} rows" + (f" with {test}" if test else " to forecast")
    return f"Given {given}, what loss will {wanted} have, and how certain is the forecast?"


def _warnings(
    fit: Posterior | Pool, rows: LossTable, checked: Check, plan: Plan | None
) -> list[str]:
    found, failures = [], fit.convergence.failures
    if not fit.convergence.ok:
        found.append(
            f"NOT CONVERGED: {'; '.join(failures)}. Do not trust the numbers on this page: fit "
            "again with more tuning and draws."
        )
    known = {f"{fit.table.name}: {failure}" for failure in failures}
    if plan is not None and set(plan.unconverged) - known:
        found.append("NOT CONVERGED: the plan uses a source posterior that has not converged.")
    if is_synthetic(fit.table) or is_synthetic(rows):
        found.append("Synthetic data: losses simulated from a stated law, not measured.")
    bad = {part.name for part in checked.parts if part.level in ("no evidence", "refuse")}
    if bad - {"convergence"}:  # which has a warning of its own
        found.append(f"{checked.verdict} See the section on checks.")
    return found


def _summary(
    fit: Posterior | Pool,
    fc: Forecast,
    scores: pd.DataFrame | None,
    plan: Plan | None,
    backtest: Backtest | None,
) -> Section:
    diagnostics, frame = fit.convergence, fc.frame
    median, (low, high) = fc.median, fc.quantile([0.05, 0.95])
    half = 50 * np.median((high - low) / median)
    sentences = [
        f"Median forecasts run from {median.min():.4g} to {median.max():.4g} nats per token; the "
        f"90 % band is ± {half:.2g} % of the median (median over rows)."
    ]
    if scores is None:
        sentences.append(
            "These rows have no loss: the checks compare bands with training rows instead."
        )
    else:
        inside, error = sections.inside(fc), 100 * float(scores["posterior"]["mae_rel"])
        sentences.append(
            f"Of {len(frame)} held-out losses, {inside[0.5]} lie in the 50 % band and "
            f"{inside[0.9]} in the 90 % band; the mean absolute error of the median is "
            f"{error:.2g} %."
        )
    sentences.append(f"Position of the rows: {in_words(fc.positions)}.")
    beyond = [
        f"{SHORT[c]} {reach}"
        for c in fit.columns
        if (reach := provenance.beyond(fit.table.frame[c], frame[c])) != "inside"
    ]
    sentences.append(
        f"Beyond the range of the training rows: {', '.join(beyond)}."
        if beyond
        else "Each covariate is within the range of the training rows."
    )
    sentences += [] if backtest is None else [backtest.looking(fit.table, frame)]
    sentences += [] if plan is None else [sections.answer(plan)]
    ess = min(diagnostics.ess_bulk, diagnostics.ess_tail)
    state = "Converged" if diagnostics.ok else "Not converged"
    sentences.append(
        f"{state}: largest R-hat {diagnostics.rhat:.3f}, smallest effective sample size {ess:.0f}, "
        f"{diagnostics.divergences} divergences."
    )
    first = fit.first if isinstance(fit, Pool) else fit
    words = first.spec.discrepancy.words
    discrepancy = f"its {words}" if first.law.discrepancy_parameters else "no"
    sentences.append(
        "A 90 % band contains a new measured loss with 90 % probability if the law (with "
        f"{discrepancy} discrepancy), the priors and the likelihood are right. Calibration on "
        "held-out rows tests whether they are."
    )
    return Section("summary", "Summary", [sentences])


def _loss_table(rows: pd.DataFrame) -> LossTable:
    frame = canonical(rows, "rows", ())
    return LossTable(frame, frame.iloc[:0], "rows")


def _huber(fit: Posterior, seed: int) -> PointFit:
    """Return the Huber fit of the same law, without discrepancy, to the same rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the page reports it
        return fit_huber(fit.law.without_discrepancy, fit.table, delta=fit.spec.delta, seed=seed)


def _named(section: Section, member: Posterior, fit: Posterior | Pool) -> Section:
    """The section, named after its member of a pool."""
    if member is fit:
        return section
    name, title = f"{section.name}-{member.law.name}", f"{section.title} of {member.law.name}"
    return replace(section, name=name, title=title)
