"""A report of a fit: what its forecast, checks and plan show, with figures, as one page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import cast

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bayeslaw import plots
from bayeslaw.checks._check import check
from bayeslaw.common.progress import step
from bayeslaw.common.shown import (
    Block,
    Detail,
    Note,
    Severity,
    Showing,
    Shown,
    rendered,
)
from bayeslaw.evaluate._backtest import Backtest
from bayeslaw.evaluate.scores import scored, shown_comparison, shown_scores
from bayeslaw.inference.bands import BAND_LEVELS
from bayeslaw.inference.forecast import Forecast
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.planning.result import Plan
from bayeslaw.reporting.origin import beyond, data, in_brackets, provenance
from bayeslaw.reporting.pages import Page, Picture, formula, picture
from bayeslaw.tables.hull import BEYOND_PREFIX, EPOCHS, epochs, in_words
from bayeslaw.tables.table import LossTable, Rows, rows_of

MEANINGS = [
    "rmse_log: root mean square of the log residuals; .01 is about 1 %.",
    "mae_rel: mean of |forecast − measured| / measured.",
    "coverage: fraction of the measured losses inside the band; the ideal is its level.",
    "width_90: mean width of the 90 % band, in log loss.",
    "crps, winkler_90: scores of the whole forecast and of its 90 % band; lower is better.",
]
POSITION = (
    "An interpolation lies in the convex hull of the training rows, in the logarithms of the law's "
    "covariates; an extrapolation lies outside; a projection has another value of a covariate that "
    "was never varied. decades: distance from the hull, in log10 of N, D and PTPP and in r."
)
CAPTIONS = {
    "overview": "Dots are fitted runs, lines the law's median through them. Of the rows to "
    "forecast: the median, 50 and 90 % bands of a new run, and a diamond where the loss was "
    "measured, crossed if it lies outside its 90 % band.",
    "forecast": "Posterior predictive median with 50 and 90 % bands of a new run, by model size. "
    "Filled markers are measured losses; a cross marks a loss outside its 90 % band. Panels are "
    "grey where all lines are extrapolations, and hatched where they are projections; where only "
    "some are, their lines are thin. Each panel has its own loss axis.",
    "in_sample": "The same for the training rows.",
    "coverage": "Above the dashed line bands are too wide, below it too narrow. The grey region is "
    "the 90 % interval of as many independent rows.",
    "residuals": "A trend indicates a systematic error of the law.",
    "plan_landscape": "P(both), the probability that all limits are met, over budget and replay. "
    "Hatching marks what lies outside the training rows.",
    "plan_frontier": "Smallest budget and its replay ratio by confidence.",
}


@dataclass(frozen=True)
class Report(Page, Showing):
    """A report of a fit, as a self-contained page.

    ``print`` shows its warnings and summary.
    """

    title: str  # the answer: the plan, or else the forecast
    verdict: Note  # of the checks
    lead: str  # what was fitted and forecast
    warnings: Sequence[str]  # at the top, such as that a posterior has not converged
    # By anchor; figures are names of pictures.
    sections: Mapping[str, Shown] = field(repr=False)
    pictures: Mapping[str, Picture] = field(repr=False)

    @property
    def html(self) -> str:
        return rendered("report.html", page=self)

    def shown(self) -> Shown:
        """The warnings and the summary."""
        (summary,) = self.sections["summary"].blocks
        document = {
            "title": self.title,
            "verdict": self.verdict.text,
            "warnings": [*self.warnings],
            "summary": summary,
            "sections": [*self.sections],
        }
        notes = [Note(text, "refuse") for text in self.warnings]
        return Shown(self.title, [*notes, self.verdict, summary], document)


@step("report: forecasts and figures")
def report(
    fit: Posterior | Pool,
    rows: Rows | pd.DataFrame,
    *,
    train: str | None = None,
    test: str | None = None,
    comparison: pd.DataFrame | None = None,
    plan: Plan | None = None,
    backtest: Backtest | None = None,
    command: str | None = None,
    seed: int = 0,
) -> Report:
    """Report a fit and its forecast of some rows as one self-contained page.

    Parameters
    ----------
    fit : Posterior or Pool
        Of a fit that has not converged, and is `accepted`, the page starts with a warning.
    rows : LossTable or DataFrame
        Rows to forecast, with the law's covariates; if they have a `loss` (nats per token), the
        forecast is scored on it.
    train, test : str, optional
        Queries that selected the training rows and the rows to forecast, shown on the page; by
        default those that the tables remember.
    comparison : DataFrame, optional
        From `bayeslaw.compare`.
    plan : Plan, optional
    backtest : Backtest, optional
        Of the same law on these or like runs; quoted in the summary.
    command : str, optional
        Command that reproduces the report; shown on the page.
    seed : int
        Of the predictive noise.

    Examples
    --------
    >>> bl.report(fit, rows).write("report.html")  # doctest: +SKIP
    """
    if not isinstance(rows, LossTable):
        valid = rows_of(rows)
        rows = LossTable(valid.frame, valid.name)
    train = train or fit.table.selection
    test = test or rows.selection
    # The verdict of the check, at the top, says how far the rows lie.
    forecast = fit.accepted("beyond-evidence").forecast(rows, seed=seed)
    checked = check(fit, rows, seed=seed)
    shown = forecast.shown()
    warnings = _warnings(fit, shown, plan)
    answer = _answer(forecast)
    summary = _summary(fit, forecast, plan, backtest)
    title = answer if plan is None else plan.shown().title
    sections: dict[str, Shown] = {}
    pictures: dict[str, Picture] = {}

    def add(
        name: str,
        result: Shown,
        of_section: Mapping[str, Picture] = MappingProxyType({}),
    ) -> None:
        """Add a section of what a result shows, but for what stands at the top."""
        blocks: list[Block] = []
        if result.title not in ("", name, title):
            blocks.append(Note(result.title))
        for block in result.blocks:
            at_the_top = getattr(block, "text", None) in warnings
            if not at_the_top and not isinstance(block, Detail):
                blocks.append(block)
        sections[name.lower()] = Shown(name, blocks, figures=[*of_section])
        pictures.update(of_section)

    words = f"{answer}. {' '.join(summary[:2])}"
    overview = plots.overview(fit, rows, seed=seed)
    add("Summary", Shown(blocks=[summary]), _drawn(words, overview=overview))
    if plan is not None:
        of_plan = {}
        for name in plan.shown().figures:
            of_plan[name] = getattr(plots, name)(plan)
        add("Plan", plan.shown(), _drawn(plan.sentence, **of_plan))
    add("Checks", checked.shown())
    panels = {}
    # In N and D alone, the overview has all that the panels by size would show.
    if "tokens" in rows.frame and {*fit.columns} - {"params", "tokens"}:
        panels["forecast"] = plots.forecast(fit, rows, seed=seed)
        panels["in_sample"] = plots.in_sample(fit, seed=seed)
    explained = shown + Shown(blocks=[POSITION])
    add("Forecast", explained, _drawn(words, **panels))
    if "loss" in rows.frame:
        in_sample = fit.forecast(fit.table, seed=seed)
        drawn = _drawn(
            forecast.held_words(BAND_LEVELS),
            coverage=plots.coverage(forecast),
            residuals=plots.residuals(forecast, in_sample),
        )
        scores = shown_scores(*scored(forecast, rows))
        add("Scores", scores + Shown(blocks=[MEANINGS]), drawn)
    if comparison is not None:
        add("Laws", shown_comparison(comparison))
    formulas = {}
    for law in fit.laws:
        formulas[f"formula of {law.name}"] = formula(law.latex())
    add("Parameters", fit.shown(), formulas)
    add("Data", data(fit, rows.frame, train, test))
    add("Provenance", provenance(fit, rows, command, seed))
    verdict = Note(checked.verdict, cast("Severity", checked.level))
    lead = _lead(fit, rows, train, test)
    return Report(title, verdict, lead, warnings, sections, pictures)


def _lead(
    fit: Posterior | Pool, rows: LossTable, train: str | None, test: str | None
) -> str:
    """What was fitted to which rows, and how many rows are forecast."""
    law = f"pool {fit.name}" if isinstance(fit, Pool) else f"law {fit.law.name}"
    table = Path(fit.table.name).name
    noun = "rows" if len(rows) > 1 else "row"
    return (
        f"The {law}, fitted to {len(fit.table)} losses of {table}{in_brackets(train)}, forecasts "
        f"{len(rows)} {noun}{in_brackets(test)}."
    )


def _drawn(words: str, **figures: Figure) -> dict[str, Picture]:
    """Figures by name as pictures; `words` say what they show."""
    pictures = {}
    for name, figure in figures.items():
        alt = f"Figure {name.replace('_', ' ')}. {words}"
        pictures[name] = picture(figure, alt, CAPTIONS[name])
    return pictures


def _warnings(fit: Posterior | Pool, forecast: Shown, plan: Plan | None) -> list[str]:
    """What the forecast says of a fit that has failed or of data that are not measured."""
    notes = [block for block in forecast.blocks if isinstance(block, Note)]
    texts = [note.text for note in notes if note.level == "refuse"]
    failures = [f"{fit.table.name}: {failure}" for failure in fit.convergence.failures]
    if plan is not None and {*plan.unconverged}.difference(failures):
        texts.append(
            "NOT CONVERGED: the plan uses a source posterior that has not converged."
        )
    texts += [note.text for note in notes if note.level == "synthetic"]
    return texts


def _answer(forecast: Forecast) -> str:
    """The forecast in a line: its medians, and the width of their bands."""
    median = forecast.median
    low, high = forecast.quantile([0.05, 0.95])
    half = 50 * np.median((high - low) / median)
    if len(median) == 1:
        return f"Forecast: {median.min():.4g} nats per token, 90 % band ± {half:.2g} %"
    medians = f"{median.min():.4g} to {median.max():.4g}"
    return f"Forecast: {medians} nats per token, 90 % band typically ± {half:.2g} %"


def _summary(
    fit: Posterior | Pool,
    forecast: Forecast,
    plan: Plan | None,
    backtest: Backtest | None,
) -> list[str]:
    """What a reader must know of the forecast, in sentences."""
    sentences = []
    if plan is not None:
        sentences.append(plan.sentence)
        sentences.append(f"{_answer(forecast)}.")
    if "loss" in forecast.frame:
        held_out = forecast.held_out
        relative = held_out.median / held_out.frame["loss"] - 1
        error = 100 * float(np.mean(np.abs(relative)))
        inside = forecast.held_words(BAND_LEVELS[::2])
        sentences.append(
            f"{inside} The mean absolute error of the median is {error:.2g} %."
        )
    else:
        sentences.append(
            "These rows have no loss: the checks compare bands with training rows instead."
        )
    positions = in_words(forecast.positions)
    sentences.append(f"Position of the rows: {positions}. {_ranges(fit, forecast)}")
    if backtest is not None:
        sentences.append(backtest.looking(fit.table, forecast.frame))
    if fit.convergence.ok:
        state = str(fit.convergence)
        sentences.append(f"{state[0].upper()}{state[1:]}.")
    law = "no discrepancy"
    if fit.first.law.discrepancy_parameters:
        law = f"its discrepancy, {fit.first.spec.discrepancy.words}"
    sentences.append(
        "A 90 % band contains a new measured loss with 90 % probability if the law (with "
        f"{law}), the priors and the likelihood are right. Held-out rows test whether they are."
    )
    return sentences


def _ranges(fit: Posterior | Pool, forecast: Forecast) -> str:
    """How far the rows lie beyond the range of each covariate, in a sentence."""
    frame = forecast.frame
    training = fit.table.frame
    factors = {}
    for column, covariate in fit.about.items():
        factors[covariate.alias] = beyond(training[column], frame[column])
    if BEYOND_PREFIX + EPOCHS.name in forecast.positions:
        factors[EPOCHS.text] = beyond(epochs(training), epochs(frame))
    farther = []
    for name, factor in factors.items():
        if factor != "inside":
            farther.append(f"{name} {factor}")
    if not farther:
        return "Each covariate is within the range of the training rows."
    return f"Beyond the range of the training rows: {', '.join(farther)}."
