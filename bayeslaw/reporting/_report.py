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
from bayeslaw.common.formatting import count
from bayeslaw.common.progress import step
from bayeslaw.common.shown import (
    Detail,
    Note,
    Severity,
    Showing,
    Shown,
    Table,
    rendered,
)
from bayeslaw.evaluate._backtest import Backtest
from bayeslaw.evaluate.scores import scored, shown_comparison, shown_scores
from bayeslaw.inference.bands import BAND_LEVELS
from bayeslaw.inference.forecast import Forecast
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import effects
from bayeslaw.planning.result import Plan
from bayeslaw.plots.style import axis_label
from bayeslaw.reporting.pages import Page, Picture, formula, picture
from bayeslaw.tables.covariates import FLOPS
from bayeslaw.tables.hull import BEYOND_PREFIX, EPOCHS, epochs, in_words
from bayeslaw.tables.table import LossTable, Rows, rows_of
from bayeslaw.tables.validation import COVARIATES, flops_of, label_texts

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
UNKNOWN = "unknown"


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
    warnings, (answer, summary) = (
        _warnings(fit, shown, plan),
        _summary(fit, forecast, plan, backtest),
    )
    title = answer if plan is None else plan.shown().title
    sections: dict[str, Shown] = {}
    pictures: dict[str, Picture] = {}

    def add(
        name: str,
        result: Shown,
        of_section: Mapping[str, Picture] = MappingProxyType({}),
    ) -> None:
        """Add a section of what a result shows, but for what stands at the top."""
        head = [Note(result.title)] if result.title not in ("", name, title) else []
        below = [b for b in result.blocks if getattr(b, "text", None) not in warnings]
        blocks = [*head, *(b for b in below if not isinstance(b, Detail))]
        sections[name.lower()] = Shown(name, blocks, figures=[*of_section])
        pictures.update(of_section)

    words = f"{answer}. {' '.join(summary[:2])}"
    overview = plots.overview(fit, rows, seed=seed)
    add("Summary", Shown(blocks=[summary]), _drawn(words, overview=overview))
    if plan is not None:
        of_plan = {name: getattr(plots, name)(plan) for name in plan.shown().figures}
        add("Plan", plan.shown(), _drawn(plan.sentence, **of_plan))
    add("Checks", checked.shown())
    panels = {}
    # In N and D alone, the overview has all that the panels by size would show.
    if "tokens" in rows.frame and {*fit.columns} - {"params", "tokens"}:
        panels["forecast"] = plots.forecast(fit, rows, seed=seed)
        panels["in_sample"] = plots.in_sample(fit, seed=seed)
    add("Forecast", shown + Shown(blocks=[POSITION]), _drawn(words, **panels))
    if "loss" in rows.frame:
        inside = forecast.held_words(BAND_LEVELS)
        of_scores = {"coverage": plots.coverage(forecast)}
        of_scores["residuals"] = plots.residuals(
            forecast, fit.forecast(fit.table, seed=seed)
        )
        meant = shown_scores(*scored(forecast, rows)) + Shown(blocks=[MEANINGS])
        add("Scores", meant, _drawn(inside, **of_scores))
    if comparison is not None:
        add("Laws", shown_comparison(comparison))
    formulas = {f"formula of {law.name}": formula(law.latex()) for law in fit.laws}
    add("Parameters", fit.shown(), formulas)
    add("Data", _data(fit, rows.frame, train, test))
    add("Provenance", _provenance(fit, rows, command, seed))
    verdict = Note(checked.verdict, cast("Severity", checked.level))
    lead = _lead(fit, rows, train, test)
    return Report(title, verdict, lead, warnings, sections, pictures)


def _lead(
    fit: Posterior | Pool, rows: LossTable, train: str | None, test: str | None
) -> str:
    name = (
        f"The pool {fit.name}" if isinstance(fit, Pool) else f"The law {fit.law.name}"
    )
    fitted = f"{name}, fitted to {len(fit.table)} losses of {Path(fit.table.name).name}"
    asked = f"{len(rows)} row{'s' * (len(rows) > 1)}{_asked(test)}"
    return f"{fitted}{_asked(train)}, forecasts {asked}."


def _drawn(words: str, **figures: Figure) -> dict[str, Picture]:
    """Figures by name as pictures; `words` say what they show."""
    return {
        name: picture(
            figure, f"Figure {name.replace('_', ' ')}. {words}", CAPTIONS[name]
        )
        for name, figure in figures.items()
    }


def _asked(query: str | None) -> str:
    return f" ({query})" if query else ""


def _warnings(fit: Posterior | Pool, forecast: Shown, plan: Plan | None) -> list[str]:
    """What the forecast says of a fit that has failed or of data that are not measured."""
    notes = [block for block in forecast.blocks if isinstance(block, Note)]
    texts = [note.text for note in notes if note.level == "refuse"]
    of_fit = {f"{fit.table.name}: {failure}" for failure in fit.convergence.failures}
    if plan is not None and {*plan.unconverged} - of_fit:
        texts.append(
            "NOT CONVERGED: the plan uses a source posterior that has not converged."
        )
    return texts + [note.text for note in notes if note.level == "synthetic"]


def _summary(
    fit: Posterior | Pool,
    forecast: Forecast,
    plan: Plan | None,
    backtest: Backtest | None,
) -> tuple[str, list[str]]:
    """The forecast in a line, and what a reader must know of it."""
    frame = forecast.frame
    training = fit.table.frame
    median = forecast.median
    low, high = forecast.quantile([0.05, 0.95])
    half = 50 * np.median((high - low) / median)
    medians = f"{median.min():.4g}"
    typical = ""
    if len(frame) > 1:
        medians = f"{medians} to {median.max():.4g}"
        typical = "typically "
    answer = f"Forecast: {medians} nats per token, 90 % band {typical}± {half:.2g} %"
    tested = (
        "These rows have no loss: the checks compare bands with training rows instead."
    )
    if "loss" in frame:
        held_out = forecast.held_out
        error = 100 * float(
            np.mean(np.abs(held_out.median / held_out.frame["loss"] - 1))
        )
        tested = forecast.held_words(BAND_LEVELS[::2])
        tested += f" The mean absolute error of the median is {error:.2g} %."
    factors = {row.alias: beyond(training[c], frame[c]) for c, row in fit.about.items()}
    if BEYOND_PREFIX + EPOCHS.name in forecast.positions:
        factors[EPOCHS.text] = beyond(epochs(training), epochs(frame))
    farther = ", ".join(
        f"{name} {far}" for name, far in factors.items() if far != "inside"
    )
    ranges = f"Beyond the range of the training rows: {farther}." if farther else ""
    ranges = ranges or "Each covariate is within the range of the training rows."
    spec = fit.first.spec
    state = str(fit.convergence)
    exact = not fit.first.law.discrepancy_parameters
    law = "no discrepancy" if exact else f"its discrepancy, {spec.discrepancy.words}"
    return answer, [
        *([] if plan is None else [plan.sentence, f"{answer}."]),
        tested,
        f"Position of the rows: {in_words(forecast.positions)}. {ranges}",
        *([] if backtest is None else [backtest.looking(fit.table, frame)]),
        *([f"{state[0].upper()}{state[1:]}."] if fit.convergence.ok else []),
        "A 90 % band contains a new measured loss with 90 % probability if the law (with "
        f"{law}), the priors and the likelihood are right. Held-out rows test whether they are.",
    ]


# -- data and provenance ---------------------------------------------------------------------------


def _data(
    fit: Posterior | Pool, rows: pd.DataFrame, train: str | None, test: str | None
) -> Shown:
    """The training rows and the rows to forecast: how many, and their ranges."""
    frame = fit.table.frame
    about = fit.first.law.declared
    kinds = {"run": "training run", "base": "pre-trained base", "domain": "domain"}
    counts = {
        name: label_texts(frame[c]).nunique() for c, name in kinds.items() if c in frame
    }
    named = ", ".join(f"{n} {name}" + "s" * (n > 1) for name, n in counts.items())
    text = f"The law is fitted to {len(frame)} losses{_asked(train)}"
    text += f", from {named}. " if named else ". "
    text += f"The forecast is of {len(rows)} rows{_asked(test)}. "
    text += f"The training runs cost {cost(frame)}. "
    text += " ".join(
        _groups(fit.first, rows, level) for level in fit.first.spec.effects
    )
    ranges = {}
    for column in dict.fromkeys((*COVARIATES, *fit.columns, "loss")):
        if column in frame:
            spans = [
                _range(frame[column]),
                _range(rows[column]) if column in rows else UNKNOWN,
            ]
            factor = "" if column == "loss" else "not in the law"
            factor = (
                beyond(frame[column], rows[column]) if column in fit.columns else factor
            )
            ranges[axis_label(column, about)] = [*spans, factor]
    if FLOPS not in fit.columns:
        costs = [flops_of(f) for f in (frame, rows)]
        spans = [f"{c.min():.2g} – {c.max():.2g}" for c in costs]
        ranges["compute of a row, 6 N D, FLOPs"] = [*spans, beyond(*costs)]
    heads = ["training rows", "rows to forecast", "beyond the range"]
    table = pd.DataFrame.from_dict(ranges, orient="index", columns=heads)
    return Shown(
        "Data", [text, Table(table, "Range, and number of distinct values in brackets")]
    )


def _groups(fit: Posterior, rows: pd.DataFrame, level: str) -> str:
    """Which runs, bases or sizes of the rows to forecast are among the training rows."""
    groups = effects.labels(rows, level, fit.draws[level].values)
    labels = {*groups[~effects.unlabelled(groups)]}
    if not labels:
        return f"The rows to forecast name no {level}; each has the random effect of a new one."
    fitted = len({*groups[effects.is_fitted(fit.draws, level, rows)]})
    share = {0: "None", len(labels): "All"}.get(fitted, str(fitted))
    new = f"; the effect of a new {level} is drawn from its distribution"
    new = "" if fitted == len(labels) else new
    return f"{share} of the {len(labels)} {level}s to forecast are in the training rows{new}."


def cost(frame: pd.DataFrame) -> str:
    """The sum of 6 N D over runs; checkpoints of one run cost its longest D."""
    flops = flops_of(frame)
    how = "6 N D" if "params" in frame else "as the table says"
    if "run" not in frame:
        return f"{flops.sum():.2g} FLOPs ({how}, every row counted as one run)"
    of_runs = flops.groupby(effects.labels(frame, "run")).max()
    return f"{of_runs.sum():.2g} FLOPs ({how})"


def beyond(training: pd.Series, new: pd.Series) -> str:
    """How far `new` extends beyond `training`, as a factor; half a per cent is rounding."""
    factors = []
    if new.max() > 1.005 * training.max():
        factors.append(f"{new.max() / training.max():.3g} × the largest")
    if new.min() < 0.995 * training.min():
        least = f"{new.min() / training.min():.2g} × the smallest"
        factors.append(least if new.min() else "down to 0")
    return "; ".join(factors) or "inside"


def _range(values: pd.Series) -> str:
    low = float(values.min())
    high = float(values.max())
    show = (lambda v: f"{v:.4g}") if values.name == "loss" else count
    return (
        show(low) if low == high else f"{show(low)} – {show(high)} ({values.nunique()})"
    )


def _provenance(
    fit: Posterior | Pool, rows: LossTable, command: str | None, seed: int
) -> Shown:
    """What is needed to reproduce a report, beside what the section on parameters says."""
    members = [*fit.members.values()]
    laws = [f"{m.law.name}: {m.law.title}. {m.law.reference}" for m in members]
    seeds = ", ".join(
        dict.fromkeys(str(m.settings.get("seed", UNKNOWN)) for m in members)
    )
    versions = members[0].settings.get("versions", {})
    facts = {
        "command": command or "bayeslaw.report, from Python",
        "data": fit.table.name,
        "training rows": f"{len(fit.table)}; SHA-256 {fit.table.sha256}",
        "rows to forecast": f"{len(rows)}; SHA-256 {rows.sha256}",
        "law": " ".join(laws),
        "seed": f"{seeds} of the fit, {seed} of the forecast",
        "versions": ", ".join(f"{n} {v}" for n, v in versions.items()) or UNKNOWN,
    }
    lead = "What reproduces this page, with the settings of the fit under parameters."
    return Shown("Provenance", [Table(pd.DataFrame({"": facts}), lead, left=[""])])
