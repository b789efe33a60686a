"""A report of a fit: what its forecast, checks and plan show, with figures, as one page."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import binom

from bayeslaw import plots
from bayeslaw.checks._check import check
from bayeslaw.checks.findings import Check
from bayeslaw.common.errors import FitWarning
from bayeslaw.common.formatting import count, listed
from bayeslaw.common.progress import step
from bayeslaw.common.shown import Block, Detail, Note, Severity, Showing, Shown, Table
from bayeslaw.evaluate._backtest import Backtest
from bayeslaw.evaluate.scores import row_name, score, shown_comparison
from bayeslaw.huber.point_fit import PointFit, fit_huber
from bayeslaw.inference.forecast import BAND_LEVELS, Forecast, inside_words
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import effects
from bayeslaw.planning.result import Plan
from bayeslaw.plots.style import axis_label
from bayeslaw.reporting.pages import Page, Picture, formula, picture, rendered
from bayeslaw.tables.hull import in_words, locate
from bayeslaw.tables.table import LossTable, Rows, is_synthetic, rows_of
from bayeslaw.tables.validation import COVARIATES, label_texts

MEANINGS = {
    "huber_log": "mean Huber loss of log residuals, threshold .02",
    "rmse_log": "root mean square of log residuals; .01 is about 1 %",
    "mae_rel": "mean of |forecast − measured| / measured",
    "mape_clip": "the same with small losses clipped; equal here unless a loss is below 1e-8",
    "intercept, slope": "of log measured on log forecast; 0 and 1 are ideal",
    "coverage_50, _80, _90": "fraction of measured losses inside the band; the ideal is its level",
    "width_90": "mean width of the 90 % band, in log loss",
    "crps, winkler_90": "proper scores of the whole forecast and of the 90 % band; lower is better",
}
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
    "grey where the forecast is an extrapolation, and hatched where it is a projection. Each panel "
    "has its own loss axis.",
    "in_sample": "The same for the training rows.",
    "observed": "On the dashed line the measured loss equals the posterior predictive median.",
    "coverage": "Above the dashed line bands are too wide, below it too narrow. The grey region is "
    "the 90 % interval of as many independent rows.",
    "residuals": "A trend indicates a systematic error of the law.",
    "compare": "The dashed line is the score of a perfect forecast.",
    "plan_landscape": "Forgetting and target loss over budget and replay. Contours are P(both), "
    "the probability that all limits are met.",
    "plan_frontier": "Smallest budget and its replay ratio by confidence.",
}
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Report(Page, Showing):
    """A report of a fit, as a self-contained page.

    ``print`` shows its warnings and summary.

    Parameters
    ----------
    title : str
    verdict : Note
        Of the checks; bands that failed on held-out rows come before anything else.
    lead : str
        The question that the report answers.
    warnings : sequence of str
        Shown at the top, such as that a posterior has not converged.
    sections : mapping of str to Shown
        Title, text and tables of each section, by its anchor, and the names of its figures.
    pictures : mapping of str to Picture
        Figures by name.
    """

    title: str
    verdict: Note
    lead: str
    warnings: Sequence[str]
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
            "question": self.lead,
            "warnings": [*self.warnings],
            "summary": summary,
            "sections": [*self.sections],
        }
        notes = [Note(text, "refuse") for text in self.warnings]
        return Shown(self.title, [*notes, summary], document)


@dataclass(frozen=True)
class _Results:
    """What a report is made from."""

    fit: Posterior | Pool
    forecast: Forecast
    train: str | None
    test: str | None
    question: str | None  # as asked, not the one that every report answers
    point: PointFit
    scores: pd.DataFrame | None  # of the posterior and the point fit, on measured rows
    checked: Check
    comparison: pd.DataFrame | None
    plan: Plan | None
    backtest: Backtest | None

    @property
    def first(self) -> Posterior:
        """The posterior, or of a pool the member with the largest weight."""
        return self.fit.first

    @property
    def rows(self) -> pd.DataFrame:
        return self.forecast.frame


@step("report: forecasts and figures")
def report(
    fit: Posterior | Pool,
    rows: Rows | pd.DataFrame,
    *,
    train: str | None = None,
    test: str | None = None,
    question: str | None = None,
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
        Of a pool, parameters are those of each member. Of a fit that has not converged, and is
        `accepted`, the page starts with a warning.
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
    backtest : Backtest, optional
        From `bayeslaw.backtest`, of the same law on these or like runs; quoted in the summary.
    command : str, optional
        Command that reproduces the report; shown on the page.
    seed : int
        Seed of the predictive noise.

    Returns
    -------
    Report
        ``report.write("report.html")`` writes it.

    Raises
    ------
    TableError
        If `rows` lack a covariate of the law.
    """
    if not isinstance(rows, LossTable):
        valid = rows_of(rows)
        rows = LossTable(valid.frame, valid.name)
    train, test = train or fit.table.selection, test or rows.selection
    # The verdict of the check, at the top, says how far the rows lie.
    fc = fit.accepted(beyond_evidence=True).forecast(rows, seed=seed)
    first = fit.first
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the page reports it
        law = first.law.without_discrepancy
        point = fit_huber(law, fit.table, delta=first.spec.delta, seed=seed)
    scores = None
    if "loss" in rows.frame:
        by_fit = {"posterior": score(fc, rows), "Huber point fit": score(point, rows)}
        scores = pd.DataFrame(by_fit).T
    checked = check(fit, rows, seed=seed)
    results = _Results(
        fit, fc, train, test, question, point, scores, checked, comparison, plan, backtest
    )
    top = _warnings(results)
    sections = _sections(results, top) | {"provenance": _provenance(results, command)}
    sections["checklist"] = _checklist(results)
    pictures = {}
    for section, name, draw, alt in _figures(results):
        pictures[name] = picture(draw(), alt, CAPTIONS[name])
        figures = [*sections[section].figures, name]
        sections[section] = replace(sections[section], figures=figures)
    for member in fit.members.values():
        name = "formula" if member is fit else f"formula {member.law.name}"
        pictures[name] = formula(member.law.latex())
    if question is None:
        losses = f"{len(fit.table)} losses" + (f" with {train}" if train else "")
        asked = f"the {len(rows)} rows" + (f" with {test}" if test else " to forecast")
        question = f"Given {losses}, what loss will {asked} have, and how certain is the forecast?"
    name = f"Pool {fit.name}" if len(fit.members) > 1 else first.law.title
    title = f"{name}, on {Path(fit.table.name).name}"
    verdict = Note(checked.verdict, cast("Severity", checked.level))
    return Report(title, verdict, question, top, sections, pictures)


def _warnings(of: _Results) -> list[str]:
    """What the forecast says of a fit that has failed or of data that are not measured."""
    notes = [block for block in of.forecast.shown().blocks if isinstance(block, Note)]
    texts = [note.text for note in notes if note.level == "refuse"]
    known = {f"{of.fit.table.name}: {failure}" for failure in of.fit.convergence.failures}
    if of.plan is not None and set(of.plan.unconverged) - known:
        texts.append("NOT CONVERGED: the plan uses a source posterior that has not converged.")
    return texts + [note.text for note in notes if note.level == "synthetic"]


# -- sections -------------------------------------------------------------------------------------


def _sections(of: _Results, top: Sequence[str]) -> dict[str, Shown]:
    """What the results show, but for what stands at the top, and what a report adds."""

    def blocks(shown: Shown) -> list[Block]:
        read = [b for b in shown.blocks if not isinstance(b, Detail)]
        return [b for b in read if not (isinstance(b, Note) and b.text in top)]

    sections = {"summary": Shown("Summary", [_summary(of)])}
    if of.plan is not None:
        shown = of.plan.shown()
        whole = [Note(shown.title), *blocks(shown)]
        sections["plan"] = replace(shown, title="Plan", blocks=whole, figures=())
    sections["data"] = _data(of)
    sections["checks"] = replace(of.checked.shown(), title="Checks")
    sections["forecast"] = Shown("Forecast", [*blocks(of.forecast.shown()), POSITION])
    if of.scores is not None:
        sections["scores"] = _scores(of, of.scores)
        sections["calibration"] = _calibration(of.forecast)
    for member in of.fit.members.values():
        name = "" if member is of.fit else f" {member.law.name}"
        title = f"Parameters of{name}" if name else "Parameters"
        section = replace(member.shown(), title=title, figures=[f"formula{name}"])
        sections[f"parameters{name}".replace(" ", "-")] = section
    if of.comparison is not None:
        sections["laws"] = replace(shown_comparison(of.comparison), figures=())
    return sections


def _summary(of: _Results) -> list[str]:
    fc, frame, training = of.forecast, of.rows, of.fit.table.frame
    low, high = fc.quantile([0.05, 0.95])
    half = 50 * np.median((high - low) / fc.median)
    tested = "These rows have no loss: the checks compare bands with training rows instead."
    if of.scores is not None:
        error = 100 * float(of.scores["mae_rel"]["posterior"])
        inside = inside_words(fc.to_frame(), BAND_LEVELS[::2])
        tested = f"{inside} The mean absolute error of the median is {error:.2g} %."
        tested += _unexpected(_coverage(fc))
    reaches = {row.alias: beyond(training[c], frame[c]) for c, row in of.fit.about.items()}
    farther = ", ".join(f"{name} {reach}" for name, reach in reaches.items() if reach != "inside")
    ranges = "Each covariate is within the range of the training rows."
    ranges = f"Beyond the range of the training rows: {farther}." if farther else ranges
    exact = not of.first.law.discrepancy_parameters
    words = "no discrepancy" if exact else f"its discrepancy, {of.first.spec.discrepancy.words}"
    state = str(of.fit.convergence)
    medians = f"{fc.median.min():.4g}"
    if len(frame) > 1:
        medians = f"from {medians} to {fc.median.max():.4g}"
    answer = f"{of.question} Answer: median {medians}" if of.question else f"Median {medians}"
    return [
        f"{answer} nats per token; the 90 % band is ± {half:.2g} % of the median"
        f"{' (median over rows)' * (len(frame) > 1)}.{_own_test(of.checked)}",
        tested,
        f"Position of the rows: {in_words(fc.positions)}.",
        ranges,
        *([] if of.backtest is None else [of.backtest.looking(of.fit.table, frame)]),
        *([] if of.plan is None else [of.plan.sentence]),
        *([f"{state[0].upper()}{state[1:]}."] if of.fit.convergence.ok else []),
        "A 90 % band contains a new measured loss with 90 % probability if the law (with "
        f"{words}), the priors and the likelihood are right. Calibration on held-out rows tests "
        "whether they are.",
    ]


def _own_test(checked: Check) -> str:
    """How many of its farthest training rows a refit to the others caught, if it was made."""
    for part in checked.parts:
        if part.name == "held out" and part.facts["own"] and "inside_90" in part.frame:
            inside = part.frame["inside_90"]
            text = f"Forecast from the others by a refit, {int(inside.sum())} of the farthest "
            return f" {text}{len(inside)} training rows are in their 90 % band."
    return ""


def _data(of: _Results) -> Shown:
    """The training rows, and how far the forecast extrapolates."""
    frame, rows, law = of.fit.table.frame, of.rows, of.first.law
    kinds = {"run": "training run", "base": "pre-trained base", "domain": "domain"}
    counts = {name: label_texts(frame[c]).nunique() for c, name in kinds.items() if c in frame}
    named = [f"{n} {name}" + "s" * (n > 1) for name, n in counts.items()]
    text = f"The law is fitted to {len(frame)} losses" + (f" ({of.train})" if of.train else "")
    text += f", from {', '.join(named)}. " if named else ". "
    text += f"The forecast is of {len(rows)} rows" + (f" ({of.test}). " if of.test else ". ")
    text += f"The training runs cost {cost(frame)}. "
    text += " ".join(_groups(of.first, rows, level) for level in of.first.spec.effects)
    ranges = {}
    for column in dict.fromkeys((*COVARIATES, *law.columns, "loss")):
        if column in frame:
            spans = [_range(frame[column]), _range(rows[column]) if column in rows else UNKNOWN]
            reach = "" if column == "loss" else "not in the law"
            reach = beyond(frame[column], rows[column]) if column in law.columns else reach
            ranges[axis_label(column, law.declared)] = [*spans, reach]
    costs = [6 * f["params"] * f["tokens"] for f in (frame, rows)]
    spans = [f"{c.min():.2g} – {c.max():.2g}" for c in costs]
    ranges["compute of a row, 6 N D, FLOPs"] = [*spans, beyond(*costs)]
    heads = ["training rows", "rows to forecast", "beyond the range"]
    table = pd.DataFrame.from_dict(ranges, orient="index", columns=heads)
    title = "Range, and number of distinct values in brackets"
    return Shown("Data", [text, Table(table, title)])


def _groups(fit: Posterior, rows: pd.DataFrame, level: str) -> str:
    """Which runs, bases or sizes of the rows to forecast are among the training rows."""
    groups = effects.labels(rows, level, fit.draws[level].values)
    labels = {*groups[~effects.unlabelled(groups)]}
    if not labels:
        return f"The rows to forecast name no {level}; each has the random effect of a new one."
    known = len({*groups[effects.is_fitted(fit.draws, level, rows)]})
    share = {0: "None", len(labels): "All"}.get(known, str(known))
    new = f"; the effect of a new {level} is drawn from its distribution"
    new = "" if known == len(labels) else new
    return f"{share} of the {len(labels)} {level}s to forecast are in the training rows{new}."


def _scores(of: _Results, scores: pd.DataFrame) -> Shown:
    bounds = ", ".join(f"{n} = {v:g}" for n, v in of.point.at_bounds.items())
    words = (
        "The posterior is scored by its median and its bands, a Huber fit of the same law by "
        f"its prediction; {100 * of.point.agreeing:.0f} % of its starts agree."
    )
    words += f" On a bound: {bounds}." if bounds else ""
    counted = scores.assign(rows=len(of.fit.table), scored=len(of.rows), note="")
    meanings = [f"{name}: {meaning}." for name, meaning in MEANINGS.items()]
    blocks = [words, *shown_comparison(counted).blocks, meanings]
    return Shown("Scores on the held-out rows", blocks)


def _coverage(fc: Forecast) -> pd.DataFrame:
    """How many losses lie in each band, and the 90 % interval of that for independent rows."""
    inside = fc.to_frame(BAND_LEVELS)[[f"inside_{100 * level:g}" for level in BAND_LEVELS]].sum()
    least, most = binom.interval(0.9, len(fc.frame), BAND_LEVELS)
    names = pd.Index([f"{100 * level:g} %" for level in BAND_LEVELS], name="band")
    return pd.DataFrame({"inside": inside.to_numpy(), "least": least, "most": most}, names)


def _unexpected(coverage: pd.DataFrame) -> str:
    """Which bands hold fewer or more losses than expected, as a sentence."""
    inside, parts = coverage["inside"], []
    off = {"more": inside < coverage["least"], "fewer": inside > coverage["most"]}
    for words, levels in off.items():
        if levels.any():
            parts.append(f"{words} in the {listed([*inside.index[levels]])} band")
    return f" Of independent rows we would expect {' and '.join(parts)}." if parts else ""


def _calibration(fc: Forecast) -> Shown:
    coverage, n = _coverage(fc), len(fc.frame)
    counts = pd.DataFrame(index=coverage.index)
    counts["inside"] = [f"{held} of {n}" for held in coverage["inside"]]
    ends = zip(coverage["least"], coverage["most"], strict=True)
    counts["expected"] = [f"{least:.0f} to {most:.0f}" for least, most in ends]
    title = f"Measured losses inside each band, and 90 % interval for {n} independent rows"
    words = "Forecast errors are correlated between rows, so the counts vary more than expected of "
    return Shown("Calibration", [Table(counts, title), words + "independent rows."])


# -- figures --------------------------------------------------------------------------------------

type Drawing = tuple[str, str, Callable[[], Figure], str]
"""Section and name of a figure, how to draw it, and its alternative text."""


def _figures(of: _Results) -> list[Drawing]:
    fit, fc, rows, seed = of.fit, of.forecast, of.rows, of.forecast.seed
    words = " ".join(_summary(of)[:2])
    forecast = f"Loss against compute and against tokens. {words}"
    figures: list[Drawing] = [
        ("summary", "overview", partial(plots.overview, fit, rows, seed=seed), forecast)
    ]
    # In N and D alone, the overview has all that the panels by size would show.
    if set(fit.columns) - {"params", "tokens"}:
        residual = np.log(fit.table.loss / np.median(fit.losses(fit.table), 0))
        fitted = f"Fitted curves through {len(fit.table)} training losses. Root mean square "
        fitted += f"residual {100 * np.sqrt(np.mean(residual**2)):.2g} %."
        forecast = f"Loss against tokens by model size. {words}"
        figures += [
            ("forecast", "forecast", partial(plots.forecast, fit, rows, seed=seed), forecast),
            ("forecast", "in_sample", partial(plots.in_sample, fit, seed=seed), fitted),
        ]
    if of.scores is not None:
        inside = inside_words(fc.to_frame(BAND_LEVELS), BAND_LEVELS)
        error = 100 * (rows["loss"] / fc.median - 1)
        left = f"Residuals of held-out rows: mean {error.mean():+.2f} %, from {error.min():+.2f} "
        left += f"to {error.max():+.2f} %."
        fitted_rows = partial(fit.forecast, fit.table, seed=seed)
        figures += [
            (
                "calibration",
                "observed",
                partial(plots.observed, fc),
                f"Measured against forecast loss. {inside}",
            ),
            (
                "calibration",
                "coverage",
                partial(plots.coverage, fc),
                f"Coverage by level. {inside}",
            ),
            ("calibration", "residuals", lambda: plots.residuals(fc, fitted_rows()), left),
        ]
    if (laws := of.comparison) is not None:
        best = f"{row_name(laws['rmse_log'].idxmin())}, {laws['rmse_log'].min():.4f}"
        words = f"Scores of {len(laws)} laws on the held-out rows; smallest RMSE of log loss: "
        figures.append(("laws", "compare", partial(plots.compare, laws), f"{words}{best}."))
    if (plan := of.plan) is not None:
        landscape = partial(plots.plan_landscape, plan)
        figures.append(("plan", "plan_landscape", landscape, plan.sentence))
        frontier = partial(plots.plan_frontier, plan)
        figures.append(("plan", "plan_frontier", frontier, plan.sentence))
    return figures


# -- provenance -----------------------------------------------------------------------------------

NAMED = (*COVARIATES, "loss", "run", "base", "domain", "synthetic")
_LICENCE = re.compile(r"\*\*Licen[cs]e\*\*:?\s*(.+?)(?=\n\s*\n|\n\s*[-*#|]|\Z)", re.I | re.S)
_HEADING = re.compile(r"^#+\s*Licen[cs]e\s*\n+(.+?)(?=\n\s*\n|\n#|\Z)", re.I | re.S | re.M)


def licence(table: LossTable) -> str:
    """The licence of a table, as stated in the README beside it, or ``"unknown"``."""
    readme = Path(table.name).parent / "README.md"
    if is_synthetic(table):
        return "none: the losses are simulated by this package"
    if not Path(table.name).is_file() or not readme.is_file():
        return UNKNOWN
    text = readme.read_text(encoding="utf-8", errors="replace")
    found = _LICENCE.search(text) or _HEADING.search(text)
    text = " ".join(found[1].split()) if found else UNKNOWN
    return re.sub(r"\[([^]]+)\]\([^)]*\)|[`*]", r"\1", text)


def cost(frame: pd.DataFrame) -> str:
    """The sum of 6 N D over runs; checkpoints of one run cost its longest D."""
    flops = 6 * frame["params"] * frame["tokens"]
    if "run" not in frame:
        return f"{flops.sum():.2g} FLOPs (6 N D, every row counted as one run)"
    return f"{flops.groupby(effects.labels(frame, 'run')).max().sum():.2g} FLOPs (6 N D)"


def beyond(training: pd.Series, new: pd.Series) -> str:
    """How far `new` extends beyond `training`, as a factor; half a per cent is rounding."""
    parts = []
    if new.max() > 1.005 * training.max():
        parts.append(f"{new.max() / training.max():.3g} × the largest")
    if new.min() < 0.995 * training.min():
        least = f"{new.min() / training.min():.2g} × the smallest"
        parts.append(least if new.min() else "down to 0")
    return "; ".join(parts) or "inside"


def _range(values: pd.Series) -> str:
    low, high = float(values.min()), float(values.max())
    show = (lambda v: f"{v:.4g}") if values.name == "loss" else count
    return show(low) if low == high else f"{show(low)} – {show(high)} ({values.nunique()})"


def _provenance(of: _Results, command: str | None) -> Shown:
    """What is needed to reproduce a report, beside what the section on parameters says."""
    table, members = of.fit.table, [*of.fit.members.values()]
    laws = [f"{m.law.name}: {m.law.title}. {m.law.reference}" for m in members]
    seeds = ", ".join(dict.fromkeys(str(m.settings.get("seed", UNKNOWN)) for m in members))
    versions = members[0].settings.get("versions", {})
    sha256 = LossTable(of.rows).sha256
    facts = {
        "command": command or "bayeslaw.report, from Python",
        "data": table.name,
        "licence of the data": licence(table),
        "training rows": f"{len(table)}; SHA-256 {table.sha256}",
        "rows to forecast": f"{len(of.rows)}; SHA-256 {sha256}",
        "law": " ".join(laws),
        "compute": "6 N D FLOPs per run, D the tokens of this table; checkpoints counted once",
        "seed": f"{seeds} of the fit, {of.forecast.seed} of the forecast",
        "versions": ", ".join(f"{n} {v}" for n, v in versions.items()) or UNKNOWN,
    }
    lead = "What reproduces this page, with the settings of the fit under parameters."
    return Shown("Provenance", [Table(pd.DataFrame({"": facts}), lead, left=[""])])


def _checklist(of: _Results) -> Shown:
    """The checklist of Li, Kudugunta and Zettlemoyer (2025), "(Mis)Fitting", from the fit."""
    fit, rows = of.first, of.rows
    law, frame, state = fit.law, fit.table.frame, fit.convergence

    def distinct(column: str) -> str:
        if column not in frame:
            return f"{UNKNOWN} (no column {column})"
        return str(len({*effects.labels(frame, column)}))

    checkpoints = f"{UNKNOWN} (no column run)"
    if "run" in frame:
        repeated = bool(frame["run"].dropna().duplicated().any())
        checkpoints = "several rows of one run" if repeated else "one row per run"
    domains = frame["domain"].dropna().unique() if "domain" in frame else ()
    domain = ", ".join(map(str, domains)) or UNKNOWN
    others = ", ".join(map(str, [c for c in frame.columns if c not in (*NAMED, *law.columns)]))
    known = f"not in the fit; further columns of the table: {others}" if others else UNKNOWN
    bounds = ", ".join(f"{n} = {v:g}" for n, v in of.point.at_bounds.items()) or "nothing"
    added = len(law.discrepancy_parameters)
    size = f"{len(law.terms)} terms, {len(law.parameters) - added} parameters"
    size += f" and {added} of the discrepancy" if added else ""
    sizes = sorted(frame["params"].unique())
    told = {*COVARIATES, *law.columns, "domain"} & {*frame}
    repeats = int(frame.duplicated([*told]).sum())
    reach = [f"{c} {far}" for c in law.columns if (far := beyond(frame[c], rows[c])) != "inside"]
    none = "none: the rows forecast have no measured loss"
    answers = {
        "The law": {
            "formula": f"{law.title}; {size}",
            "response": f"validation loss, nats per token, domain {domain}",
            "variables": "; ".join(axis_label(c, law.declared) for c in law.columns),
            "how N is counted": f"{UNKNOWN}: the table does not say whether embeddings count",
            "compute": "6 N D; attention and embeddings not counted separately",
        },
        "The training runs": {
            "runs": distinct("run"),
            "pre-trained bases": distinct("base"),
            "model sizes": f"{len(sizes)}, {count(sizes[0])} to {count(sizes[-1])}",
            "tokens": _range(frame["tokens"]),
            "compute of the training runs": cost(frame),
            "architecture, optimiser, schedule": known,
            "tokenizer and training text": UNKNOWN,
            "seeds of the runs": known if "seed" in frame else UNKNOWN,
        },
        "The data": {
            "training rows": f"{len(frame)}" + (f" ({of.train})" if of.train else ""),
            "rows to forecast": f"{len(rows)}" + (f" ({of.test})" if of.test else ""),
            "checkpoints": checkpoints,
            "repeated settings": str(repeats),
            "outliers removed": "none by this package",
        },
        "The fit": {
            "objective, priors, optimiser": "a posterior; see parameters and provenance",
            "converged": "yes" if state.ok else f"NO: {'; '.join(state.failures)}",
            "on a bound": f"in the Huber fit: {bounds}; posterior draws are never on a bound",
            "uncertainty": "central bands of the posterior predictive",
            "validation": f"{len(rows)} held-out rows" if "loss" in rows else none,
            "extrapolation": "; ".join([*reach, in_words(locate(frame, rows, law.about))]),
        },
    }
    pairs = {(group, item): a for group, items in answers.items() for item, a in items.items()}
    index = pd.MultiIndex.from_tuples(pairs, names=["", ""])
    lead = "What scaling-law papers are asked to report (Li, Kudugunta and Zettlemoyer, 2025)."
    facts = pd.DataFrame({"": [*pairs.values()]}, index)
    return Shown("Reporting checklist", [Table(facts, lead, left=[""])])
