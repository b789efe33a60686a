"""``check``: every finding about a fit, and those about its training rows and held-out rows.

Errors of models of one size are correlated, so rows of one group count as fewer independent losses
when the coverage of bands is judged. Errors of different groups of one forecast are correlated too,
through the parameters of the law: the mean error of the farther half of the groups is compared with
its joint posterior predictive distribution.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import betainc

from bayeslaw.checks.findings import (
    RARE,
    Check,
    Finding,
    judge_curvature,
    judge_directions,
    judge_extrapolation,
    prior_of,
)
from bayeslaw.checks.left_out import left_out
from bayeslaw.common.arrays import Bools, Ints
from bayeslaw.common.errors import TableError
from bayeslaw.common.formatting import count, listed
from bayeslaw.common.progress import step
from bayeslaw.huber.doubts import huber_losses
from bayeslaw.inference.fitting import refit
from bayeslaw.inference.forecast import Forecast
from bayeslaw.inference.pools import Pool, with_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import innovations, overruled, residual
from bayeslaw.model import effects
from bayeslaw.tables.comparison import fitted_rows
from bayeslaw.tables.covariates import FLOPS, Covariate
from bayeslaw.tables.hull import NEAR_DECADES, axes, decades, displacement
from bayeslaw.tables.table import LossTable, Rows, subset
from bayeslaw.tables.units import check_units
from bayeslaw.tables.validation import row_numbers

# Covariates that define the groups of held-out rows: as many of them as give `MIN_GROUPS`.
GROUPS = ("params", "ptpp", "replay")
MIN_GROUPS = 3  # groups from which coverage is judged
# Correlation, within groups, of whether a row is inside its 90 % band. Over 4,283 held-out rows of
# 94 splits it was .3 to .7 (benchmarks/verdicts_rows.csv of commit d39318f).
WITHIN_GROUP = 0.5
MIN_FITTED = 8  # fitted at least when the others are held out
# P-values below which coverage is a failure, and doubtful. The mean error of the farther
# half is a second, two-sided test: a failure at a tenth, doubtful at a quarter of these.
FAILED = 0.05
DOUBTFUL = 0.2
OUTLYING = 3.0  # least distance of an outlier from the others, in scales
HALF_CUTS = (
    16  # half of the most cuts that are compared, each by the distances of its rows
)
MAX_OUTLIERS = (
    5  # outliers that are named and left out: those with the largest deviations
)
UNRELIABLE = 1.1  # R-hat beyond which the numbers of a short refit are not shown


def check(
    fit: Posterior | Pool, rows: Rows | pd.DataFrame | None = None, *, seed: int = 0
) -> Check:
    """Check a fit, and its forecasts of some rows.

    Parameters
    ----------
    fit : Posterior or Pool
        Converged or not. Of a pool, held-out rows and distances are judged as a whole, and the
        other parts are those of its members, under their labels.
    rows : LossTable or DataFrame, optional
        Rows to forecast, with the law's covariates. If they have a loss, the forecast is compared
        with it; otherwise the farthest part of the training rows is forecast from the rest, which
        takes a short refit. Without rows, the other parts about forecasts are left out.
    seed : int
        Seed of the predictive noise.

    Returns
    -------
    Check
        ``print(check)`` shows the findings; ``check["directions"].frame`` has the numbers of a
        part. The parts are

        - `held out`: whether the bands hold on rows that were not fitted;
        - `extrapolation`: distance of the rows beyond the training rows, which is not refused if
          rows beyond the evidence are `accepted`;
        - `convergence`: R-hat, effective sample sizes, divergences, E-BFMI;
        - `effects`: whether random effects, or errors within runs, explain what the law should
          explain;
        - `directions`: combinations of parameters that the data do not determine;
        - `curvature`: whether the discrepancy is consistent with its prior;
        - `outliers`: runs, bases, sizes and rows far from the others, and the forecast without
          them, by a short refit;
        - `left out`: calibration of leave-one-out predictions.

    Raises
    ------
    TableError
        If `rows` lack a covariate of the law, or are of a domain or a kind that the fit
        does not know.
    """
    with_draws(fit, "check")
    table = None
    if rows is not None:
        name = rows.name if isinstance(rows, LossTable) else "rows"
        frame = fit.rows(rows, name).frame
        check_units(frame, name, fit.table.frame)
        table = LossTable(frame, name)
    # First, since the verdict cites it where bands failed on measured rows.
    findings = [judge_held_out(fit, table, seed)]
    if table is not None:
        verdict = fit.verdict(table).accepting(fit.accepts)
        findings.append(judge_extrapolation(fit, verdict))
    for label, member in fit.members.items():
        prefix = f"{label}: " if label else ""
        alone = [*judge_alone(member, table, seed), judge_outliers(member, table, seed)]
        findings += [replace(finding, name=prefix + finding.name) for finding in alone]
    return Check(
        tuple(findings), fit.name, fit.table.name, 0 if table is None else len(table)
    )


# -- held-out rows --------------------------------------------------------------------------------


@step("checking the bands on rows that were not fitted")
def judge_held_out(
    fit: Posterior | Pool, table: LossTable | None, seed: int = 0
) -> Finding:
    """Bands against losses not fitted: those of `table`, else of the farthest training rows."""
    if table is not None and "loss" in table.frame:
        # Bands hold on rows that were fitted; a table may contain some of them.
        new = ~fitted_rows(table.frame, fit.table.frame)
        if new.any():
            test = subset(table, new)
            frame = judged_rows(_forecast(fit, test, seed), test)
            level, words, facts = verdict(frame)
            if not new.all():
                which = row_numbers(pd.Series(~new))
                words += (
                    f"Left out, since a fitted row is equal in every column: {which}.",
                )
            if level == "refuse":
                words = (f"the bands failed here: {words[0]}", *words[1:])
            return Finding("held out", level, words, frame, facts | {"own": False})
    # Farthest in the direction in which the rows to forecast lie beyond the training rows, and as
    # far beyond the others as they lie beyond all; without rows, in the direction of FLOPs.
    for near in cuts(fit.table, fit.about, None if table is None else table.frame):
        train = subset(fit.table, near)
        test = subset(fit.table, ~near)
        try:
            members = {n: refit(m.spec, train, seed) for n, m in fit.members.items()}
            again = fit.with_members(members)
            drawn = _forecast(again, test, seed)
        except TableError:  # a column that the law needs no longer varies
            continue
        frame = judged_rows(drawn, test)
        level, words, facts = verdict(frame)
        # Where bands failed here, they often held on the rows to forecast, which are forecast from
        # all training rows (`benchmarks/verdicts.csv`).
        level = "caution" if level == "refuse" else level
        gate = "; ".join(again.convergence.failures) or "converged"
        how = f"The farthest {len(test)} training rows, forecast from the {len(train)} others by a "
        words = (f"{how}short refit ({gate}): {words[0]}", *words[1:])
        return Finding(
            "held out", level, words, frame, facts | {"own": True, "gate": gate}
        )
    few = "The training rows are too few to forecast some of them from the others."
    return Finding("held out", "caution", (few,), facts={"own": True})


def cuts(
    table: LossTable, columns: Mapping[str, Covariate], rows: pd.DataFrame | None
) -> Iterator[Bools]:
    """Rows to fit when the others are held out, the best choice first."""
    points = axes(table.frame, columns, table.frame)
    along = np.isin([*columns], ("params", "tokens")).astype(float)
    asked = np.inf
    along = along if along.any() else np.ones(len(columns))
    if rows is not None:
        away = displacement(points, axes(rows, columns, table.frame))
        mean = away.mean(axis=0)
        if np.linalg.norm(mean) > NEAR_DECADES:
            along = mean
            asked = float(np.median(np.linalg.norm(away, axis=1)))
    # Rounded, so that rows of one budget are held out together.
    position = np.round(points @ (along / np.linalg.norm(along)), 6)
    # Of a ladder in FLOPs, each row is a size.
    sizes = table.frame["params" if "params" in table.frame else FLOPS]
    possible = []
    choices = []
    for level in np.unique(position)[:-1]:
        near = position <= level
        # A refit of few rows, or of one size where there were more, is another problem.
        few = near.sum() < max(MIN_FITTED, len(table) // 2)
        if not few and sizes[near].nunique() >= min(2, sizes.nunique()):
            possible.append(near)
    for near in possible[:: max(len(possible) // HALF_CUTS, 1)]:
        groups = len(np.unique(grouped(table.frame[~near])))
        # Without rows to forecast a quarter of the training rows is held out.
        off = abs(near.mean() - 0.75)
        if np.isfinite(asked):
            off = abs(
                np.median(decades(table.frame[near], table.frame[~near], columns))
                - asked
            )
        choices.append((groups < MIN_GROUPS, off, near))
    choices.sort(key=lambda choice: choice[:2])
    yield from (near for *_, near in choices)


def grouped(frame: pd.DataFrame) -> Ints:
    """Group of each row: its size, then size and PTPP, then replay too, until there are three."""
    present = [c for c in GROUPS if c in frame]
    if not present and FLOPS in frame:
        present = [FLOPS]
    index = np.zeros(len(frame), int)
    for number in range(1, len(present) + 1):
        index = frame.groupby(present[:number]).ngroup().to_numpy()
        if len(np.unique(index)) >= MIN_GROUPS:
            break
    return index


def _forecast(fit: Posterior | Pool, rows: LossTable, seed: int) -> Forecast:
    """The forecast of any rows by any fit: other findings judge distance and convergence."""
    return fit.accepted({"unconverged", "beyond-evidence"}).forecast(rows, seed=seed)


def judged_rows(fc: Forecast, rows: LossTable) -> pd.DataFrame:
    """Each measured row against its bands; `far` marks the farther half of the groups."""
    # `far_pit`, the same in all rows: predictive P(their mean log loss < the measured one).
    samples = np.log(fc.samples)
    measured = np.log(rows.loss)
    bands = fc.to_frame((0.5, 0.9)).reset_index(drop=True)
    frame = bands[["decades", "inside_50", "inside_90"]].assign(
        group=grouped(rows.frame),
        error=np.median(samples, axis=0) - measured,
        pit=(samples < measured).mean(axis=0),
    )
    distance = frame.groupby("group")["decades"].mean()
    farther = distance.sort_values(kind="stable").index[len(distance) // 2 :]
    frame["far"] = frame["group"].isin(farther)
    # A mean over groups: rows of a group share their weight.
    shares = frame["far"] / frame.groupby("group")["far"].transform("sum").clip(lower=1)
    weights = shares.to_numpy() / shares.sum()
    return frame.assign(far_pit=float((samples @ weights < measured @ weights).mean()))


def verdict(frame: pd.DataFrame) -> tuple[str, tuple[str, ...], dict[str, object]]:
    """Level, words and numbers of judged rows."""
    by_group = frame.groupby("group")["inside_90"]
    groups = by_group.ngroups
    count = independent(np.asarray(by_group.size(), dtype=np.int64))
    held = float(by_group.mean().mean()) * count
    # One-sided: this looks for bands that are too narrow.
    p = at_most(held, count, 0.9)
    least, most = stats.binom.interval(0.9, round(count), 0.9)
    far_pit = float(frame["far_pit"].iloc[0])
    tail = 2 * min(far_pit, 1 - far_pit)
    failed = p < FAILED or (tail < FAILED / 10 and groups >= MIN_GROUPS)
    doubtful = p < DOUBTFUL or tail < DOUBTFUL / 4
    level = (
        "refuse" if failed else "caution" if doubtful or groups < MIN_GROUPS else "ok"
    )
    words = [
        f"the 90 % band holds {int(frame['inside_90'].sum())} of {len(frame)} losses, the 50 % "
        f"band {int(frame['inside_50'].sum())}; as rows of one size deviate together, that is "
        f"{held:.3g} of {count:.3g} independent losses (expected {least:.0f} to {most:.0f})."
    ]
    if groups < MIN_GROUPS:
        words.append(
            f"{groups} group{'s' * (groups > 1)} of rows cannot show that bands hold."
        )
    error = frame.loc[frame["far"], "error"]
    if tail < DOUBTFUL / 4:
        words.append(
            f"In the farther half the forecasts are too {'low' if far_pit > 0.5 else 'high'} by "
            f"{100 * abs(error.mean()):.2g} % on average (PIT of that mean {far_pit:.3f})."
        )
    facts: dict[str, object] = {
        "groups": groups,
        "independent": count,
        "held": held,
        "p": p,
    }
    facts |= {"far_pit": far_pit}
    facts |= {f"coverage_{n}": float(frame[f"inside_{n}"].mean()) for n in (50, 90)}
    return level, tuple(words), facts


def independent(sizes: Ints) -> float:
    """How many independent losses the rows of groups of these sizes are worth.

    That is the sum over groups of ``m / (1 + (m - 1) rho)`` with the correlation `WITHIN_GROUP`
    (Kish, Survey Sampling, 1965): a large group counts as ``1 / rho`` losses.
    """
    return float((sizes / (1 + (sizes - 1) * WITHIN_GROUP)).sum())


def at_most(held: float, count: float, level: float) -> float:
    """P(at most `held` of `count` inside, each with P = `level`), also for parts of losses."""
    return 1.0 if held >= count else float(betainc(count - held, held + 1, 1 - level))


# -- one posterior --------------------------------------------------------------------------------


@step("checking parameters and predictions of left-out rows")
def judge_alone(fit: Posterior, table: LossTable | None, seed: int) -> list[Finding]:
    """The findings about one posterior that need no other fit."""
    rows = None if table is None else table.frame
    findings = (
        judge_convergence(fit),
        judge_effects(fit),
        judge_directions(fit.deviating, rows),
        judge_curvature(fit.deviating, rows),
        judge_left_out(fit, seed),
    )
    return [finding for finding in findings if finding]


def judge_convergence(fit: Posterior) -> Finding:
    gate = fit.convergence
    frame = fit.summary()[["rhat", "ess_bulk", "ess_tail"]].rename_axis("name")
    facts = {
        "divergences": gate.divergences,
        "bfmi": gate.bfmi,
        "failures": list(gate.failures),
    }
    text = f"R-hat at most {gate.rhat:.3f}, ESS at least {min(gate.ess_bulk, gate.ess_tail):.0f}, "
    text += f"{gate.diverged}, E-BFMI {gate.bfmi:.2f}."
    if not gate.ok:
        text = f"The sampler has not converged ({'; '.join(gate.failures)}), so the other findings "
        text += "are not reliable: fit again with more tune and draws."
    elif not gate.enough:
        text += f" {gate.cost}; more draws make that less."
    return Finding("convergence", gate.note.level, (text,), frame, facts)


def judge_effects(fit: Posterior) -> Finding | None:
    """Whether random effects, or errors within runs, explain what the law should explain."""
    levels = fit.spec.fitted_effects
    if not levels and fit.spec.errors == "independent":
        return None
    words = overruled(fit, huber_losses(fit.law.without_discrepancy, fit.table))
    sds = {name: float(fit.draws[f"tau_{name}"].median()) for name in levels}
    if words:
        return Finding("effects", "refuse", (words,), facts={"sd": sds})
    if not levels:
        return None
    names = [f"{100 * sd:.2g} % ({name})" for name, sd in sds.items()]
    text = f"Standard deviation of the random effects: {listed(names)}."
    return Finding("effects", "ok", (text,), facts={"sd": sds})


def judge_left_out(fit: Posterior, seed: int) -> Finding:
    """PIT values and Pareto k of runs, or rows, left out by importance sampling."""
    from arviz_stats.base import array_stats

    psis, pit = left_out(fit, seed)
    frame = pd.DataFrame({"elpd": psis.elpd_i, "pit": pit, "pareto_k": psis.pareto_k})
    frame.index = pit.to_series().index
    reliable = (frame["pareto_k"] <= psis.good_k).to_numpy()
    tested = frame["pit"].to_numpy()[reliable]
    unit = str(frame.index.name)
    p = float(array_stats.uniformity_test(tested)[0]) if len(tested) > 1 else np.nan
    uneven = p < RARE
    bad = int((~reliable).sum())
    compatible = "not compatible" if uneven else "compatible"
    words = [
        f"The PIT values of {len(frame)} {unit}s, each predicted from the others, are "
        f"{compatible} with calibrated bands (p = {p:.2g})."
    ]
    if bad:
        k = f"Pareto k above {psis.good_k:.2g}"
        words.append(
            f"For {bad} of them the estimate is unreliable ({k}): this test is without them."
        )
    facts = {"unit": unit, "p": p, "elpd": float(psis.elpd), "unreliable": bad}
    return Finding(
        "left out", "caution" if uneven else "ok", tuple(words), frame, facts
    )


# -- outliers -------------------------------------------------------------------------------------


@step("checking the forecast without outliers")
def judge_outliers(fit: Posterior, rows: LossTable | None, seed: int = 0) -> Finding:
    """Name outliers, and compare the forecast of `rows` with that of a refit without them."""
    # One run far from the law widens the band of every new run, by the estimated spread of runs.
    far = [*outlying_groups(fit), *outlying_rows(fit)]
    outliers = pd.DataFrame(far, columns=["level", "label", "name", "deviation"])
    if outliers.empty:
        text = "No run, base, size or row stands out."
        return Finding("outliers", "ok", (text,), outliers)
    outliers = outliers.sort_values(
        "deviation", key=abs, ascending=False, ignore_index=True
    )[:MAX_OUTLIERS]
    names = [
        f"{row['name']} ({100 * row['deviation']:+.2g} %)"
        for _, row in outliers.iterrows()
    ]
    words = [f"Farthest from the others, in loss: {listed(names)}."]
    if rows is None:
        return Finding("outliers", "ok", tuple(words), outliers)
    level, text, facts = _without(fit, rows, outliers, seed)
    return Finding("outliers", level, (*words, text), outliers, facts)


def outlying_groups(fit: Posterior) -> Iterator[tuple[str, object, str, float]]:
    """Level, label, name and deviation of groups whose random effect is far from the median one."""
    # From the median, because the law itself moves towards an outlier; beyond three times both the
    # prior median of the effects' sd and their scaled median absolute deviation.
    prior = prior_of(fit)
    for name in fit.spec.fitted_effects:
        fitted = fit.draws[f"{name}_effect"].median(("chain", "draw"))
        middle = float(fitted.median())
        scale = max(
            float(np.median(prior[f"tau_{name}"])),
            float(stats.median_abs_deviation(fitted.values, scale="normal")),
        )
        for label, value in zip(fitted[name].values, fitted.values, strict=True):
            if abs(value - middle) > OUTLYING * scale:
                written = count(float(label)) if name == effects.SIZE.name else label
                yield name, label, f"{name} {written}", float(value)


def outlying_rows(fit: Posterior) -> Iterator[tuple[str, object, str, float]]:
    """Rows whose error is beyond three scales of the noise, and beyond what chance gives."""
    frame = fit.table.frame
    residuals = residual(fit, fit.table, fit.spec.effects)
    error, scale = innovations(fit, frame, residuals, fit.scale(frame))
    z = np.median(fit.spec.likelihood.even(error, fit.values(), np) / scale, axis=0)
    # The farthest of many rows is farther than 3 scales by chance.
    limit = max(OUTLYING, float(stats.norm.isf(RARE / (2 * len(z)))))
    shown = [*fit.columns]
    for i in np.flatnonzero(np.abs(z) > limit):
        where = ", ".join(f"{c} {count(frame[c].iloc[i])}" for c in shown)
        yield "row", i, f"the row at {where}", float(np.median(residuals[:, i]))


def _without(
    fit: Posterior, rows: LossTable, outliers: pd.DataFrame, seed: int
) -> tuple[str, str, dict[str, object]]:
    """Level, words and numbers of the forecast without the outliers."""
    frame = fit.table.frame
    kept = np.ones(len(fit.table), bool)
    for name, label in outliers[["level", "label"]].itertuples(index=False):
        labels = np.arange(len(frame)) if name == "row" else effects.labels(frame, name)
        kept &= labels != label
    try:
        again = refit(fit.spec, subset(fit.table, kept), seed)
    except TableError as error:
        return "ok", f"The law cannot be fitted without them: {error}", {}
    gate = "; ".join(again.convergence.failures) or "converged"
    if again.convergence.rhat > UNRELIABLE:
        return (
            "ok",
            f"A short refit without them did not converge ({gate}).",
            {"gate": gate},
        )
    old, new = (
        np.log(_forecast(f, rows, seed).quantile([0.05, 0.5, 0.95]))
        for f in (fit, again)
    )
    move = new[1] - old[1]
    half = [100 * np.median(q[2] - q[0]) / 2 for q in (old, new)]
    most = float(move[np.abs(move).argmax()])
    text = (
        f"Without them, by a short refit to {kept.sum()} rows ({gate}), the forecasts move by up "
        f"to {100 * most:+.2g} %, and the 90 % band is ± {half[1]:.2g} % instead of "
        f"± {half[0]:.2g} %."
    )
    # A move that the band allows for is no reason to distrust it.
    large = bool((np.abs(move) > (old[2] - old[0]) / 4).any())
    facts = {
        "move": most,
        "half_width": half[0],
        "half_width_without": half[1],
        "gate": gate,
    }
    return "caution" if large else "ok", text, facts
