"""A report of a fit: what its forecast, checks and plan show, with figures, as one page."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import binom

from bayeslaw import plots
from bayeslaw.checks._check import check
from bayeslaw.common.errors import FitWarning
from bayeslaw.common.formatting import count, listed
from bayeslaw.common.progress import step
from bayeslaw.common.shown import Block, Level, Note, Shown, Table
from bayeslaw.evaluate._backtest import Backtest
from bayeslaw.evaluate.scores import row_name, score, shown_comparison
from bayeslaw.huber.point_fit import PointFit, fit_huber
from bayeslaw.inference.forecast import Forecast
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import effects
from bayeslaw.planning.result import Plan
from bayeslaw.plots.style import SHORT
from bayeslaw.reporting.pages import Page, Picture, formula, picture, rendered
from bayeslaw.tables.hull import in_words, locate
from bayeslaw.tables.table import LossTable, is_synthetic
from bayeslaw.tables.validation import COVARIATES, canonical, label_texts

LEVELS = (0.5, 0.8, 0.9)
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
NAMES = {
    "params": "N, parameters",
    "tokens": "D, tokens",
    "replay": "r, replay ratio",
    "ptpp": "PTPP, pre-training tokens per parameter",
    "loss": "loss, nats per token",
}


@dataclass(frozen=True)
class Report(Page):
    """A report of a fit, as a self-contained page.

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


type Draw = Callable[[str, Figure, str], str]
"""Put a figure with its alternative text on the page; its name."""


def _scores(scores: pd.DataFrame, point: PointFit, fitted: int, scored: int) -> Shown:
    bounds = ", ".join(f"{n} = {v:g}" for n, v in point.at_bounds.items())
    words = (
        "The posterior is scored by its median and its bands, a Huber fit of the same law by "
        f"its prediction; {100 * point.agreeing:.0f} % of its starts agree."
    )
    words += f" On a bound: {bounds}." if bounds else ""
    counted = scores.assign(rows=fitted, scored=scored, note="")
    meanings = [f"{name}: {meaning}." for name, meaning in MEANINGS.items()]
    blocks = [words, *shown_comparison(counted).blocks, meanings]
    return Shown("Scores on the held-out rows", blocks)


def _calibration(fc: Forecast, fitted: Forecast, inside: Mapping[float, int], draw: Draw) -> Shown:
    loss = fc.frame["loss"].to_numpy()
    residual = 100 * (loss / fc.median - 1)
    spread = f"from {residual.min():+.2f} to {residual.max():+.2f} %"
    held = [f"{inside[level]} in the {100 * level:g} % band" for level in LEVELS]
    alts = {
        "observed": f"Measured against forecast loss for {len(loss)} rows; measured less "
        f"forecast runs {spread}.",
        "coverage": f"Coverage by nominal level, of {len(loss)} losses: {', '.join(held)}.",
        "residuals": f"Residuals of held-out rows: mean {residual.mean():+.2f} %, {spread}, "
        "against the covariates that vary; training rows behind them.",
    }
    drawn = {"observed": plots.observed(fc), "coverage": plots.coverage(fc)}
    drawn |= {"residuals": plots.residuals(fc, fitted)}
    figures = [draw(name, figure, alts[name]) for name, figure in drawn.items()]
    return Shown("Calibration", _coverage(inside, len(loss)), figures=figures)


def _laws(comparison: pd.DataFrame, draw: Draw) -> Shown:
    best = row_name(comparison["rmse_log"].idxmin())
    alt = f"Scores of {len(comparison)} laws on the held-out rows; smallest RMSE of log loss: "
    alt += f"{best}, {comparison['rmse_log'].min():.4f}."
    figures = [draw("compare", plots.compare(comparison), alt)]
    return replace(shown_comparison(comparison), figures=figures)


def _plan(plan: Plan, draw: Draw) -> Shown:
    whole, alt = plan.shown(), answer(plan)
    figures = [
        draw("plan_landscape", plots.plan_landscape(plan), alt),
        draw("plan_frontier", plots.plan_frontier(plan), alt),
    ]
    return replace(whole, title="Plan", blocks=[Note(whole.title), *whole.blocks], figures=figures)


@step("report: forecasts and figures")
def report(
    fit: Posterior | Pool,
    rows: LossTable | pd.DataFrame,
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
        rows = canonical(rows, "rows", ())
        rows = LossTable(rows, rows.iloc[:0], "rows")
    table, frame, training = rows, rows.frame, fit.table
    train, test = train or training.selection, test or table.selection
    # The verdict of the check, at the top, says how far the rows lie.
    fc = fit.accepted(beyond_evidence=True).forecast(table, seed=seed)
    fitted = fit.forecast(training, seed=seed)
    first, members = fit.first, [*fit.members.values()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the page reports it
        law = first.law.without_discrepancy
        point = fit_huber(law, training, delta=first.spec.delta, seed=seed)
    checked = check(fit, table, seed=seed)
    pictures: dict[str, Picture] = {}

    def draw(name: str, figure: Figure, alt: str) -> str:
        pictures[name] = picture(figure, alt, CAPTIONS[name.split(" ")[0]])
        return name

    # -- forecast and calibration ------------------------------------------------------------------
    median, bands = fc.median, fc.to_frame(LEVELS)
    alt = f"Posterior predictive loss against tokens, {_axes(fit, frame)}. The median runs from "
    alt += f"{median.max():.3f} to {median.min():.3f} nats per token."
    inside: dict[float, int] = {}
    if measured := "loss" in frame:
        for level in LEVELS:
            low, high = bands[f"lower_{100 * level:g}"], bands[f"upper_{100 * level:g}"]
            inside[level] = int(frame["loss"].between(low, high).sum())
        alt += f" {inside[0.9]} of {len(frame)} held-out losses lie in the 90 % band."
    rms = np.sqrt(np.mean(np.log(training.loss / np.median(fit.latent(training), 0)) ** 2))
    words = f"Fitted curves through {len(training)} training losses, {_axes(fit, training.frame)}. "
    words += f"Root mean square residual {100 * rms:.2g} %."
    first_figure = draw("overview", plots.overview(fit, frame, seed=seed), alt)
    # In N and D alone, the overview has all that the panels by size would show.
    curves = []
    if set(fit.columns) - {"params", "tokens"}:
        curves.append(draw("forecast", plots.forecast(fit, frame, seed=seed), alt))
        curves.append(draw("in_sample", plots.in_sample(fit, seed=seed), words))
    # Without its notes, which are among the warnings at the top.
    shown = [block for block in fc.shown().blocks if not isinstance(block, Note)]
    label = next((c for c in ("run", "base") if c in frame), None)
    if label and frame.duplicated([c for c in COVARIATES if c in frame]).any():
        # Rows that differ in no covariate are told apart by their run or base.
        shown = [_labelled(b, label, frame[label]) if isinstance(b, Table) else b for b in shown]
    sections = {
        "data": _data(first, frame, train, test),
        "checks": replace(checked.shown(), title="Checks"),
        "forecast": Shown("Forecast", [*shown, POSITION], figures=curves),
    }
    scores = None
    if measured:
        scores = pd.DataFrame(
            {"posterior": score(fc, table), "Huber point fit": score(point, table)}
        ).T
        sections["scores"] = _scores(scores, point, len(training), len(frame))
        sections["calibration"] = _calibration(fc, fitted, inside, draw)

    # -- parameters, laws, plan -------------------------------------------------------------------
    for member in members:
        name = "" if member is fit else f" {member.law.name}"
        title = f"Parameters of{name}" if name else "Parameters"
        pictures[f"formula{name}"] = formula(member.law.latex())
        section = replace(member.shown(), title=title, figures=[f"formula{name}"])
        sections[f"parameters{name}".replace(" ", "-")] = section
    if comparison is not None:
        sections["laws"] = _laws(comparison, draw)
    if plan is not None:
        sections["plan"] = _plan(plan, draw)

    # -- top and end ------------------------------------------------------------------------------
    summary = _summary(fit, fc, scores, inside, plan, backtest)
    summary = replace(summary, figures=[first_figure])
    top = {"summary": summary} | {n: s for n, s in sections.items() if n == "plan"}
    sections = top | sections
    sections["provenance"] = _provenance(fit, frame, seed, command)
    sections["checklist"] = _checklist(first, frame, point, train, test)
    if question is None:
        losses = f"{len(training)} losses" + (f" with {train}" if train else "")
        asked = f"the {len(table)} rows" + (f" with {test}" if test else " to forecast")
        question = f"Given {losses}, what loss will {asked} have, and how certain is the forecast?"
    name = first.law.title if len(members) == 1 else f"Pool {fit.name}"
    title = f"{name}, on {Path(training.name).name}"
    verdict = Note(checked.verdict, cast("Level", checked.level))
    return Report(title, verdict, question, _warnings(fit, table, plan), sections, pictures)


# -- top ------------------------------------------------------------------------------------------


def _warnings(fit: Posterior | Pool, rows: LossTable, plan: Plan | None) -> list[str]:
    texts, failures = [], fit.convergence.failures
    if not fit.convergence.ok:
        texts.append(
            f"NOT CONVERGED: {'; '.join(failures)}. Do not trust the numbers on this page: fit "
            "again with more tuning and draws."
        )
    known = {f"{fit.table.name}: {failure}" for failure in failures}
    if plan is not None and set(plan.unconverged) - known:
        texts.append("NOT CONVERGED: the plan uses a source posterior that has not converged.")
    if is_synthetic(fit.table) or is_synthetic(rows):
        texts.append("Synthetic data: losses simulated from a stated law, not measured.")
    return texts


def _summary(
    fit: Posterior | Pool,
    fc: Forecast,
    scores: pd.DataFrame | None,
    inside: Mapping[float, int],
    plan: Plan | None,
    backtest: Backtest | None,
) -> Shown:
    diagnostics, frame, median = fit.convergence, fc.frame, fc.median
    low, high = fc.quantile([0.05, 0.95])
    half = 50 * np.median((high - low) / median)
    tested = "These rows have no loss: the checks compare bands with training rows instead."
    if scores is not None:
        error = 100 * float(scores["mae_rel"]["posterior"])
        tested = f"Of {len(frame)} held-out losses, {inside[0.5]} lie in the 50 % band and "
        tested += f"{inside[0.9]} in the 90 % band; the mean absolute error of the median is "
        tested += f"{error:.2g} %.{_unexpected(inside, len(frame))}"
    reaches = {c: beyond(fit.table.frame[c], frame[c]) for c in fit.columns}
    farther = ", ".join(f"{SHORT[c]} {reach}" for c, reach in reaches.items() if reach != "inside")
    ranges = "Each covariate is within the range of the training rows."
    ranges = f"Beyond the range of the training rows: {farther}." if farther else ranges
    ess = min(diagnostics.ess_bulk, diagnostics.ess_tail)
    state = "Converged" if diagnostics.ok else "Not converged"
    first = fit.first
    words = f"its {first.spec.discrepancy.words}" if first.law.discrepancy_parameters else "no"
    sentences = [
        f"Median forecasts run from {median.min():.4g} to {median.max():.4g} nats per token; the "
        f"90 % band is ± {half:.2g} % of the median (median over rows).",
        tested,
        f"Position of the rows: {in_words(fc.positions)}.",
        ranges,
        *([] if backtest is None else [backtest.looking(fit.table, frame)]),
        *([] if plan is None else [answer(plan)]),
        f"{state}: largest R-hat {diagnostics.rhat:.3f}, smallest effective sample size {ess:.0f}, "
        f"{diagnostics.diverged}.",
        f"A 90 % band contains a new measured loss with 90 % probability if the law (with {words} "
        "discrepancy), the priors and the likelihood are right. Calibration on held-out rows tests "
        "whether they are.",
    ]
    return Shown("Summary", [sentences])


def answer(plan: Plan) -> str:
    if plan.best is not None:
        return f"Plan: {plan.verdict}; binding limit: {plan.binds}."
    repeated = "" if plan.epochs is None else f", {plan.epochs:.3g} epochs of the new data"
    held = f"meets the limits with probability {100 * plan.p_both:.3g} %{repeated}"
    return f"Plan: {plan.verdict}. It {held}. {'' if plan.cheaper else plan.evidence}".strip()


# -- sections -------------------------------------------------------------------------------------


def _data(fit: Posterior, rows: pd.DataFrame, train: str | None, test: str | None) -> Shown:
    """The training rows, and how far the forecast extrapolates."""
    frame, law = fit.table.frame, fit.law
    kinds = {"run": "training run", "base": "pre-trained base", "domain": "domain"}
    counts = {name: label_texts(frame[c]).nunique() for c, name in kinds.items() if c in frame}
    named = [f"{n} {name}" + "s" * (n > 1) for name, n in counts.items()]
    text = f"The law is fitted to {len(frame)} losses" + (f" ({train})" if train else "")
    text += f", from {', '.join(named)}. " if named else ". "
    text += f"The forecast is of {len(rows)} rows" + (f" ({test}). " if test else ". ")
    text += f"The training runs cost {cost(frame)}. "
    text += " ".join(_groups(fit, rows, level) for level in fit.spec.effects)
    ranges = {}
    for column in (*COVARIATES, "loss"):
        if column in frame:
            spans = [_range(frame[column]), _range(rows[column]) if column in rows else UNKNOWN]
            reach = "" if column == "loss" else "not in the law"
            reach = beyond(frame[column], rows[column]) if column in law.columns else reach
            ranges[NAMES[column]] = [*spans, reach]
    costs = [6 * f["params"] * f["tokens"] for f in (frame, rows)]
    spans = [f"{c.min():.2g} – {c.max():.2g}" for c in costs]
    ranges["compute of a row, 6 N D, FLOPs"] = [*spans, beyond(*costs)]
    heads = ["training rows", "rows to forecast", "beyond the range"]
    table = pd.DataFrame.from_dict(ranges, orient="index", columns=heads)
    title = "Range, and number of distinct values in brackets"
    return Shown("Data", [text, Table(table, title)])


def _groups(fit: Posterior, rows: pd.DataFrame, level: str) -> str:
    """Which runs, bases or sizes of the rows to forecast are among the training rows."""
    groups = effects.labels(rows, level)
    labels = {*groups[~effects.unlabelled(groups)]}
    if not labels:
        return f"The rows to forecast name no {level}; each has the random effect of a new one."
    known = len({*groups[effects.is_fitted(fit.draws, level, rows)]})
    share = {0: "None", len(labels): "All"}.get(known, str(known))
    new = f"; the effect of a new {level} is drawn from its distribution"
    new = "" if known == len(labels) else new
    return f"{share} of the {len(labels)} {level}s to forecast are in the training rows{new}."


def _axes(fit: Posterior | Pool, frame: pd.DataFrame) -> str:
    """The panels and lines of a figure, in words."""
    words = []
    for column in ("params", "replay", "ptpp"):
        if column in fit.columns:
            values = [count(v) for v in sorted(frame[column].unique())]
            listed = f"{values[0]} to {values[-1]}" if len(values) > 6 else ", ".join(values)
            words.append(f"{SHORT[column]} {listed}")
    return "; ".join(words) or "one panel"


def _labelled(table: Table, name: str, labels: pd.Series) -> Table:
    rows = table.frame.copy()
    rows.insert(0, name, [*labels.map(str)])
    return replace(table, frame=rows, left=[name, *table.left])


def _expected(level: float, n: int) -> tuple[float, float]:
    """The 90 % interval of how many of n independent losses lie in a band."""
    low, high = binom.interval(0.9, n, level)
    return float(low), float(high)


def _unexpected(inside: Mapping[float, int], n: int) -> str:
    """Which bands hold fewer or more losses than expected, as a sentence."""
    parts = []
    for words, sign in (("more", -1), ("fewer", 1)):
        ends = {level: _expected(level, n)[sign > 0] for level in inside}
        levels = [f"{100 * v:g} %" for v, held in inside.items() if sign * (held - ends[v]) > 0]
        parts += [f"{words} in the {listed(levels)} band"] if levels else []
    return f" Of independent rows we would expect {' and '.join(parts)}." if parts else ""


def _coverage(inside: Mapping[float, int], n: int) -> list[Block]:
    rows = []
    for level, held in inside.items():
        low, high = _expected(level, n)
        rows.append((f"{100 * level:g} %", f"{held} of {n}", f"{low:.0f} to {high:.0f}"))
    counts = pd.DataFrame(rows, columns=["band", "inside", "expected"]).set_index("band")
    title = f"Measured losses inside each band, and 90 % interval for {n} independent rows"
    words = "Forecast errors are correlated between rows, so the counts vary more than expected of "
    return [Table(counts, title), words + "independent rows."]


# -- provenance -----------------------------------------------------------------------------------

NAMED = ("params", "tokens", "replay", "ptpp", "loss", "run", "base", "domain", "synthetic")
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


def _provenance(fit: Posterior | Pool, rows: pd.DataFrame, seed: int, command: str | None) -> Shown:
    """What is needed to reproduce a report, beside what the section on parameters says."""
    table, members = fit.table, [*fit.members.values()]
    laws = [f"{m.law.name}: {m.law.title}. {m.law.reference}" for m in members]
    seeds = ", ".join(dict.fromkeys(str(m.settings.get("seed", UNKNOWN)) for m in members))
    versions = members[0].settings.get("versions", {})
    facts = {
        "command": command or "bayeslaw.report, from Python",
        "data": table.name,
        "licence of the data": licence(table),
        "training rows": f"{len(table)}; SHA-256 {table.sha256}",
        "rows to forecast": f"{len(rows)}; SHA-256 {LossTable(rows, rows.iloc[:0]).sha256}",
        "law": " ".join(laws),
        "compute": "6 N D FLOPs per run, D the tokens of this table; checkpoints counted once",
        "seed": f"{seeds} of the fit, {seed} of the forecast",
        "versions": ", ".join(f"{n} {v}" for n, v in versions.items()) or UNKNOWN,
    }
    frame = pd.DataFrame({"": facts})
    lead = "What reproduces this page, with the settings of the fit under parameters."
    return Shown("Provenance", [Table(frame, lead, left=[""])])


def _checklist(
    fit: Posterior, rows: pd.DataFrame, point: PointFit, train: str | None, test: str | None
) -> Shown:
    """The checklist of Li, Kudugunta and Zettlemoyer (2025), "(Mis)Fitting", from the fit."""
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
    others = ", ".join(map(str, [c for c in frame.columns if c not in NAMED]))
    known = f"not in the fit; further columns of the table: {others}" if others else UNKNOWN
    bounds = ", ".join(f"{n} = {v:g}" for n, v in point.at_bounds.items()) or "nothing"
    added = len(law.discrepancy_parameters)
    size = f"{len(law.terms)} terms, {len(law.parameters) - added} parameters"
    size += f" and {added} of the discrepancy" if added else ""
    sizes = sorted(frame["params"].unique())
    repeats = int(frame.duplicated([c for c in (*COVARIATES, "domain") if c in frame]).sum())
    reach = [f"{c} {far}" for c in law.columns if (far := beyond(frame[c], rows[c])) != "inside"]
    none = "none: the rows forecast have no measured loss"
    answers = {
        "The law": {
            "formula": f"{law.title}; {size}",
            "response": f"validation loss, nats per token, domain {domain}",
            "variables": "; ".join(NAMES[c] for c in law.columns),
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
            "training rows": f"{len(frame)}" + (f" ({train})" if train else ""),
            "rows to forecast": f"{len(rows)}" + (f" ({test})" if test else ""),
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
            "extrapolation": "; ".join([*reach, in_words(locate(frame, rows, law.columns))]),
        },
    }
    pairs = {(group, item): a for group, items in answers.items() for item, a in items.items()}
    index = pd.MultiIndex.from_tuples(pairs, names=["", ""])
    lead = "What scaling-law papers are asked to report (Li, Kudugunta and Zettlemoyer, 2025)."
    facts = pd.DataFrame({"": [*pairs.values()]}, index)
    return Shown("Reporting checklist", [Table(facts, lead, left=[""])])
