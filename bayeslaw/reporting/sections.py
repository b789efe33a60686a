"""Sections of a report: data, checks, forecast, scores, calibration, parameters, laws, plan."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import binom

from bayeslaw import plots
from bayeslaw.checks.findings import Check
from bayeslaw.common.formatting import count, digits
from bayeslaw.derive.recipes import REGRET, Recipes, cells
from bayeslaw.evaluate.scores import BANDS, POINT, row_name
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Forecast, Posterior
from bayeslaw.laws.priors import floor_words
from bayeslaw.model import effects
from bayeslaw.planning import texts
from bayeslaw.planning.result import Plan
from bayeslaw.plots.style import SHORT
from bayeslaw.reporting import provenance
from bayeslaw.reporting.pages import Part, Section, Table, formula, picture
from bayeslaw.tables.validation import COVARIATES, label_texts

LEVELS = (0.5, 0.8, 0.9)
POSITION = (
    "An interpolation lies in the convex hull of the training rows, in the logarithms of the law's "
    "covariates; an extrapolation lies outside; a projection has another value of a covariate that "
    "was never varied. decades: distance from the hull, in log10 of N, D and PTPP and in r."
)
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
CELLS = texts.Cells(percent=".3g", probability="#.3g")


def data(fit: Posterior, rows: pd.DataFrame, train: str | None, test: str | None) -> Section:
    """Describe the training rows, and how far the forecast extrapolates."""
    frame = fit.table.frame
    kinds = {"run": "training run", "base": "pre-trained base", "domain": "domain"}
    found = {name: label_texts(frame[c]).nunique() for c, name in kinds.items() if c in frame}
    counts = [f"{n} {name}" + "s" * (n > 1) for name, n in found.items()]
    text = f"The law is fitted to {len(frame)} losses" + (f" ({train})" if train else "")
    text += f", from {', '.join(counts)}. " if counts else ". "
    text += f"The forecast is of {len(rows)} rows" + (f" ({test}). " if test else ". ")
    text += f"The training runs cost {provenance.cost(frame)}. "
    text += " ".join(_effects(fit, rows, level) for level in fit.spec.effects)
    head = ["", "training rows", "rows to forecast", "beyond the range"]
    ranges = provenance.ranges(fit.law, frame, rows)
    table = Table("Range, and number of distinct values in brackets", head, ranges)
    return Section("data", "Data", [text, table])


def _effects(fit: Posterior, rows: pd.DataFrame, level: str) -> str:
    """Describe which runs, bases or sizes of the rows to forecast are among the training rows."""
    groups = effects.labels(rows, level)
    labels = {*groups[~effects.unlabelled(groups)]}
    if not labels:
        return f"The rows to forecast name no {level}; each has the random effect of a new one."
    known = len({*groups[effects.is_fitted(fit.draws, level, rows)]})
    some = {0: "None", len(labels): "All"}.get(known, str(known))
    new = f"; the effect of a new {level} is drawn from its distribution"
    new = "" if known == len(labels) else new
    return f"{some} of the {len(labels)} {level}s to forecast are in the training rows{new}."


def checks(check: Check) -> Section:
    """Describe the findings of the checks."""
    found = [[f"{part.name}: {part.level}", " ".join(part.words)] for part in check.parts]
    table = Table("Findings of each check", ["check", "finding"], found, words=True)
    return Section("checks", "Checks", [check.verdict, table])


def forecast(
    fit: Posterior | Pool, fc: Forecast, *, seed: int = 0, allow_unconverged: bool = False
) -> Section:
    """Show curves and bands of the rows to forecast, and of the training rows."""
    frame, median = fc.frame, fc.median
    alt = f"Posterior predictive loss against tokens, {_axes(fit, frame)}. The median runs from "
    alt += f"{median.max():.3f} to {median.min():.3f} nats per token."
    if "loss" in frame:
        within = inside(fc)
        alt += f" {within[0.9]} of {len(frame)} held-out losses lie in the 90 % band."
    rms = np.sqrt(np.mean(np.log(fit.table.loss / np.median(fit.latent(fit.table), 0)) ** 2))
    grid = (
        f"Fitted curves through {len(fit.table)} training losses, {_axes(fit, fit.table.frame)}. "
        f"Root mean square residual {100 * rms:.2g} %."
    )
    caption = (
        "Posterior predictive median with 50 and 90 % bands of a new run, by model size. Filled "
        "markers are measured losses; a cross marks a loss outside its 90 % band. Panels are grey "
        "where the forecast is an extrapolation, and hatched where it is a projection. Each panel "
        "has its own loss axis."
    )
    curves = plots.forecast(fit, frame, seed=seed, allow_unconverged=allow_unconverged)
    fitted = plots.in_sample(fit, seed=seed, allow_unconverged=allow_unconverged)
    parts: list[Part] = [picture(curves, alt, caption), _bands(fc), POSITION]
    parts.append(picture(fitted, grid, "The same for the training rows."))
    return Section("forecast", "Forecast", parts)


def _axes(fit: Posterior | Pool, frame: pd.DataFrame) -> str:
    """Describe the panels and lines of a figure."""
    words = []
    for column in ("params", "replay", "ptpp"):
        if column in fit.columns:
            values = [count(v) for v in sorted(frame[column].unique())]
            listed = f"{values[0]} to {values[-1]}" if len(values) > 6 else ", ".join(values)
            words.append(f"{SHORT[column]} {listed}")
    return "; ".join(words) or "one panel"


def _bands(fc: Forecast) -> Table:
    """Tabulate median and bands of each row, its measured loss, and its position."""
    frame = fc.to_frame((0.5, 0.9))
    used = [c for c in COVARIATES if c in frame]
    shown = [c for c in used if c in fc.columns or frame[c].nunique() > 1]
    repeated = bool(frame.duplicated(shown).any())
    labels = [c for c in ("run", "base") if c in frame][:1] if repeated else []
    loss = "{:.4f}".format
    cells = {c: frame[c].map(str) for c in labels} | {SHORT[c]: frame[c].map(count) for c in shown}
    cells |= {"measured": frame["loss"].map(loss)} if "loss" in frame else {}
    cells["median"] = frame["median"].map(loss)
    for level in ("50", "90"):
        low, high = frame[f"lower_{level}"], frame[f"upper_{level}"]
        band = low.map(loss) + "–" + high.map(loss)
        if "loss" in frame:
            band = band + np.where(frame["loss"].between(low, high), "  in", " out")
        cells[f"{level} % band"] = band
    cells |= {"position": frame["position"], "decades": frame["decades"].map("{:.2f}".format)}
    tall = len(frame) > 20
    caption = f"All {len(frame)} rows, nats per token" + ("; the table scrolls" if tall else "")
    return Table(caption, list(cells), list(zip(*cells.values(), strict=True)), tall=tall)


def scores(scores: pd.DataFrame | None, point: PointFit) -> Section | None:
    """Show the paper's scores and those of the bands; None without measured losses."""
    if scores is None:
        return None

    def table(caption: str, columns: Sequence[str], names: Sequence[str]) -> Table:
        rows = [[name, *(digits(float(scores[name][c])) for c in columns)] for name in names]
        return Table(caption, ["", *columns], rows)

    bounds = ", ".join(f"{n} = {v:g}" for n, v in point.at_bounds.items())
    text = (
        "The posterior is scored by its median and its bands, the paper's Huber fit of the same "
        f"law by its prediction; {100 * point.agreeing:.0f} % of its polished starts agree."
    )
    parts: list[Part] = [
        text + (f" On a bound: {bounds}." if bounds else ""),
        table("The paper's six columns", POINT, [str(name) for name in scores]),
        table("Bands, on log loss", BANDS, ["posterior"]),
        [f"{name}: {meaning}." for name, meaning in MEANINGS.items()],
    ]
    return Section("scores", "Scores on the held-out rows", parts)


def calibration(fc: Forecast, fitted: Forecast, seed: int) -> Section:
    """Compare the bands with the measured losses of the held-out rows."""
    n, within = len(fc.frame), inside(fc)
    pit = plots.pit_values(fc)
    residual = 100 * (fc.frame["loss"].to_numpy() / fc.median - 1)
    rows = []
    for level in LEVELS:
        low, high = binom.interval(0.9, n, level)
        rows.append([f"{100 * level:g} %", f"{within[level]} of {n}", f"{low:.0f} to {high:.0f}"])
    caption = f"Measured losses inside each band, and 90 % interval for {n} independent rows"
    parts: list[Part] = [
        Table(caption, ["band", "inside", "expected"], rows),
        "Forecast errors are correlated between rows, so the counts vary more than expected of "
        "independent rows.",
        picture(
            plots.observed(fc),
            f"Measured against forecast loss for {n} rows; measured less forecast runs from "
            f"{residual.min():+.2f} to {residual.max():+.2f} %.",
            "On the dashed line the measured loss equals the posterior predictive median.",
        ),
        picture(
            plots.coverage(fc),
            f"Coverage by nominal level: {within[0.5]} of {n} in the 50 % band, {within[0.8]} in "
            f"the 80 % band, {within[0.9]} in the 90 % band.",
            "Above the dashed line bands are too wide, below it too narrow. The grey region is the "
            "90 % interval of as many independent rows.",
        ),
    ]
    if n >= 4:
        alt = f"PIT values of {n} rows: {(pit < 0.5).sum()} below one half, mean {pit.mean():.2f}."
        caption = "Above zero, measured losses are lower than forecast; below zero, higher."
        parts.append(picture(plots.pit(fc, seed=seed), alt, caption))
    alt = (
        f"Residuals of held-out rows: mean {residual.mean():+.2f} %, from {residual.min():+.2f} to "
        f"{residual.max():+.2f} %, against the covariates that vary; training rows behind them."
    )
    caption = "A trend indicates a systematic error of the law."
    parts.append(picture(plots.residuals(fc, fitted), alt, caption))
    return Section("calibration", "Calibration", parts)


def inside(fc: Forecast) -> dict[float, int]:
    """Count the measured losses inside each central band."""
    frame, counts = fc.to_frame(LEVELS), {}
    for level in LEVELS:
        low, high = frame[f"lower_{100 * level:g}"], frame[f"upper_{100 * level:g}"]
        counts[level] = int(frame["loss"].between(low, high).sum())
    return counts


def parameters(fit: Posterior, seed: int) -> Section:
    """Describe the law, its parameters in both coordinates, their priors and the sampling."""
    law, summary = fit.law, fit.summary()
    local = [n for n in law.coordinates if n not in law.parameters]
    noise = [n for n in summary.index if n not in (*law.parameters, *law.coordinates)]
    rows: list[list[str]] = []
    for title, names in {
        "parameters of the formula": law.parameters,
        f"at the reference point ({provenance.reference(fit)}), slopes in nats per e-fold": local,
        "noise and random effects" if fit.spec.effects else "noise on log loss": noise,
    }.items():
        rows.append([title])
        for name in names:
            row = summary.loc[name]
            prior = fit.spec.priors.get("dof" if name == "dof_above_floor" else name, "")
            prior = floor_words(fit.spec.priors) if name == "E" else prior
            numbers = [digits(row[c], 4) for c in ("median", "q05", "q95")]
            ess = min(row["ess_bulk"], row["ess_tail"])
            rows.append([name, *numbers, f"{row['rhat']:.3f}", f"{ess:.0f}", str(prior)])
    head = ["", "median", "5 %", "95 %", "R-hat", "ESS", "prior"]
    shown = "The law, without its discrepancy." if law.discrepancy_parameters else "The law."
    table = Table("Posterior of every parameter", head, rows)
    parts: list[Part] = [shown, formula(law.latex()), table]
    contracted = [n for n in fit.spec.sampled if n in summary.index and n in fit.spec.priors]
    if any(fit.spec.priors[n].name not in ("Flat", "HalfFlat") for n in contracted):
        alt = f"Prior and posterior density of {len(contracted)} parameters; the table above has "
        alt += "the posterior's numbers and the priors."
        caption = "Where the two densities agree, the data say little, and the forecast depends on "
        caption += "the prior."
        parts.append(picture(plots.prior_posterior(fit, seed=seed), alt, caption))
    alt = f"Rank plots of the chains; largest R-hat {fit.convergence.rhat:.3f}, smallest bulk ESS "
    alt += f"{fit.convergence.ess_bulk:.0f}."
    caption = "Chains that sampled the same distribution stay near zero; p is from a test of that."
    parts.append(picture(plots.ranks(fit), alt, caption))
    return Section("parameters", "Parameters", parts)


def laws(scores: pd.DataFrame | None) -> Section | None:
    """Show the scores of several laws, from `bayeslaw.compare`."""
    if scores is None:
        return None
    columns = [c for c in (*POINT, *BANDS) if scores[c].notna().any()]
    named = [(row_name(law), row) for law, row in scores.iterrows()]
    rows = [
        [law, *(digits(row[c]) for c in columns), *(str(row[c]) for c in ("rows", "scored"))]
        for law, row in named
    ]
    notes = [f"{law}: {row['note']}" for law, row in named if row["note"]]
    best = row_name(scores["rmse_log"].idxmin())
    alt = f"Scores of {len(scores)} laws on the held-out rows; smallest RMSE of log loss: {best}, "
    alt += f"{scores['rmse_log'].min():.4f}."
    parts: list[Part] = [
        "Each law is fitted to the same rows and scored on the same held-out rows; an oracle is "
        "fitted to the held-out rows themselves. The last columns are the numbers of rows fitted "
        "and scored.",
        Table("Scores of each law", ["law", *columns, "rows", "scored"], rows),
        picture(plots.compare(scores), alt, "The dashed line is the score of a perfect forecast."),
    ]
    return Section("laws", "Laws compared", [*parts, *([notes] if notes else [])])


def recipes(found: Recipes | None) -> Section | None:
    """Show which recipe has the lowest loss at each target."""
    if found is None:
        return None
    heads = [*found.targets.columns, "recipe", "loss", "90 %", "P(best)", "regret"]
    table = Table(f"Latent losses; {REGRET}", heads, cells(found, 0.9, " to "))
    parts: list[Part] = [found.sentence(), table, list(found.notes)]
    return Section("recipes", "Recipes", parts)


def plan(found: Plan | None) -> Section | None:
    """Show a plan, the plan of the point fits, their probabilities, and budgets by confidence."""
    if found is None:
        return None
    plan = found if found.status == "feasible" else None
    choices = {"plan": plan, "likeliest": found.best, "deterministic": found.deterministic}
    caption = f"Budgets and probabilities to meet the limits; deterministic: {found.point}"
    steps = CELLS.frontier(found.frontier())
    notes = texts.monte_carlo(found)
    notes += [f"Outside the data: {text}." for text in found.outside]
    notes += [f"Not converged: {text}." for text in found.unconverged]
    notes += [found.note] if found.note else []
    summary, landscape, frontier = answer(found), plots.plan_landscape, plots.plan_frontier
    shown = "Forgetting and target loss over budget and replay. Contours are P(both), the "
    shown += "probability that all limits are met."
    parts: list[Part] = [
        _question(found),
        summary,
        *([notes] if notes else []),
        Table(caption, texts.CHOICE, CELLS.choices(choices)),
        picture(landscape(found), summary, shown),
        Table("Smallest budget by confidence", ["confidence", *texts.BUDGET], steps),
        picture(frontier(found), summary, "Smallest budget and its replay ratio by confidence."),
    ]
    return Section("plan", "Plan", parts)


def answer(found: Plan) -> str:
    """Summarise a plan in one sentence."""
    if found.status == "infeasible":
        best = found.best.p_both if found.best else 0.0
        return (
            f"Infeasible: no budget meets the limits with probability {100 * found.confidence:g} "
            f"%, at most {100 * best:.3g} %; binding limit: {found.binds}."
        )
    atpp, replay, tokens, flops = CELLS.budget(found)
    repeated = "" if found.epochs is None else f", {found.epochs:.3g} epochs of the new data"
    return (
        f"Plan: {atpp} adaptation tokens per parameter at {replay} replay ({tokens} tokens, "
        f"{flops} FLOPs{repeated}) meet the limits with probability {100 * found.p_both:.3g} %."
    )


def _question(found: Plan) -> str:
    limits, problem = found.limits, found.problem
    level = "".join(f"{loss}, " for loss in texts.baseline_losses(found))
    unique = limits["unique_tokens"]
    scarce = "" if unique is None else f" There are {count(unique)} distinct new tokens."
    return (
        f"For N {count(limits['params'])} at PTPP {limits['ptpp']:g}: the smallest budget that "
        f"keeps the target loss within {texts.stated(problem.targets)} and forgetting within "
        f"{texts.stated(problem.sources)} over {level}the {found.baseline}, with probability "
        f"{100 * found.confidence:g} %. From {found.draws} draws, {found.pairing}; {found.noise} "
        f"losses.{scarce}"
    )
