"""The finding about held-out rows: whether bands hold on losses that were not fitted.

Errors of models of one size are correlated, so rows of one group count as fewer independent losses
when the coverage of bands is judged. Errors of different groups of one forecast are correlated too,
through the parameters of the law: the mean error of the farther half of the groups is compared with
its joint posterior predictive distribution.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import betainc

from bayeslaw.checks.findings import Finding
from bayeslaw.checks.refits import converged_in_words, forecast_of_any
from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.common.errors import TableError
from bayeslaw.common.progress import step
from bayeslaw.inference.fitting import refit
from bayeslaw.inference.forecast import Forecast
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.comparison import fitted_rows
from bayeslaw.tables.covariates import FLOPS, Covariate
from bayeslaw.tables.hull import NEAR_DECADES, axes, decades, displacement
from bayeslaw.tables.table import LossTable, subset
from bayeslaw.tables.validation import row_numbers

# Covariates that define the groups of held-out rows: as many of them as give `MIN_GROUPS`.
GROUPS = ("params", "ptpp", "replay")
# Groups from which coverage is judged.
MIN_GROUPS = 3
# Correlation, within groups, of whether a row is inside its 90 % band. Over 4,283 held-out rows of
# 94 splits it was .3 to .7 (benchmarks/verdicts_rows.csv of commit d39318f).
WITHIN_GROUP = 0.5
# Rows that are fitted at least when the others are held out.
MIN_FITTED = 8
# Fraction of the training rows that is fitted if there are no rows to forecast.
FITTED_FRACTION = 0.75
# P-values below which coverage is a failure, and doubtful. The mean error of the farther
# half is a second, two-sided test: a failure at a tenth, doubtful at a quarter of these.
FAILED = 0.05
DOUBTFUL = 0.2
# Half of the most cuts that are compared, each by the distances of its rows.
HALF_CUTS = 16


@step("checking the bands on rows that were not fitted")
def judge_held_out(
    fit: Posterior | Pool, table: LossTable | None, seed: int = 0
) -> Finding:
    """Bands against losses not fitted: those of `table`, else of the farthest training rows."""
    if table is not None and "loss" in table.frame:
        # Bands hold on rows that were fitted; a table may contain some of them.
        new = ~fitted_rows(table.frame, fit.table.frame)
        if new.any():
            return _judge_measured(fit, table, new, seed)
    rows = None if table is None else table.frame
    for near in cuts(fit.table, fit.about, rows):
        finding = _judge_cut(fit, near, seed)
        if finding is not None:
            return finding
    few = "The training rows are too few to forecast some of them from the others."
    return Finding("held out", "caution", (few,), facts={"own": True})


def _judge_measured(
    fit: Posterior | Pool, table: LossTable, new: Bools, seed: int
) -> Finding:
    """The finding about the `new` rows of a table with losses, those that were not fitted."""
    test = subset(table, new)
    frame = judged_rows(forecast_of_any(fit, test, seed), test)
    level, words, facts = verdict(frame)
    if level == "refuse":
        words[0] = f"the bands failed here: {words[0]}"
    if not new.all():
        fitted = row_numbers(pd.Series(~new))
        words.append(
            f"Left out, since a fitted row is equal in every column: {fitted}."
        )
    facts["own"] = False
    return Finding("held out", level, tuple(words), frame, facts)


def _judge_cut(fit: Posterior | Pool, near: Bools, seed: int) -> Finding | None:
    """The finding about a refit to the training rows that are `near`, which forecasts the others.

    None if the law cannot be fitted to them, because a column that it needs no longer varies.
    """
    train = subset(fit.table, near)
    test = subset(fit.table, ~near)
    members = {}
    try:
        for label, member in fit.members.items():
            members[label] = refit(member.spec, train, seed)
        shortly = fit.with_members(members)
        forecast = forecast_of_any(shortly, test, seed)
    except TableError:
        return None
    frame = judged_rows(forecast, test)
    level, words, facts = verdict(frame)
    # Where bands failed here, they often held on the rows to forecast, which are forecast from
    # all training rows (`benchmarks/verdicts.csv`).
    level = "caution" if level == "refuse" else level
    gate = converged_in_words(shortly)
    words[0] = (
        f"The farthest {len(test)} training rows, forecast from the {len(train)} others by a "
        f"short refit ({gate}): {words[0]}"
    )
    facts["own"] = True
    facts["gate"] = gate
    return Finding("held out", level, tuple(words), frame, facts)


# -- which training rows are held out -------------------------------------------------------------


def cuts(
    table: LossTable, columns: Mapping[str, Covariate], rows: pd.DataFrame | None
) -> Iterator[Bools]:
    """Rows to fit when the others are held out, the best choice first.

    Held out are the rows farthest in the direction in which the rows to forecast lie beyond the
    training rows, as far beyond the fitted ones as those lie beyond all. Without rows to forecast,
    or if they lie within, the direction is that of FLOPs, and a quarter of the rows is held out.
    """
    points = axes(table.frame, columns, table.frame)
    direction = np.isin([*columns], ("params", "tokens")).astype(float)
    if not direction.any():
        direction = np.ones(len(columns))
    distance = None
    if rows is not None:
        away = displacement(points, axes(rows, columns, table.frame))
        mean = away.mean(axis=0)
        if np.linalg.norm(mean) > NEAR_DECADES:
            direction = mean
            distances = np.linalg.norm(away, axis=1)
            distance = float(np.median(distances))
    unit = direction / np.linalg.norm(direction)
    # Rounded, so that rows of one budget are held out together.
    position = np.round(points @ unit, 6)
    possible = _possible_cuts(table, position)
    every = max(len(possible) // HALF_CUTS, 1)
    choices = []
    for near in possible[::every]:
        fitted = table.frame[near]
        held_out = table.frame[~near]
        few_groups = len(np.unique(grouped(held_out))) < MIN_GROUPS
        if distance is None:
            off = abs(near.mean() - FITTED_FRACTION)
        else:
            of_cut = np.median(decades(fitted, held_out, columns))
            off = abs(of_cut - distance)
        choices.append((few_groups, off, near))
    choices.sort(key=lambda choice: choice[:2])
    for _, _, near in choices:
        yield near


def _possible_cuts(table: LossTable, position: Floats) -> list[Bools]:
    """Rows up to each position, where a refit of them is no other problem than the fit."""
    # Of a ladder in FLOPs, each budget is a size.
    sizes = table.frame["params" if "params" in table.frame else FLOPS]
    fewest_sizes = min(2, sizes.nunique())
    fewest_rows = max(MIN_FITTED, len(table) // 2)
    possible = []
    for farthest in np.unique(position)[:-1]:
        near = position <= farthest
        enough_rows = near.sum() >= fewest_rows
        enough_sizes = sizes[near].nunique() >= fewest_sizes
        if enough_rows and enough_sizes:
            possible.append(near)
    return possible


def grouped(frame: pd.DataFrame) -> Ints:
    """Group of each row: its size, then size and PTPP, then replay too, until there are three."""
    columns = [column for column in GROUPS if column in frame]
    if not columns and FLOPS in frame:
        columns = [FLOPS]
    index = np.zeros(len(frame), int)
    for number in range(1, len(columns) + 1):
        groups = frame.groupby(columns[:number])
        index = groups.ngroup().to_numpy()
        if len(np.unique(index)) >= MIN_GROUPS:
            break
    return index


# -- whether bands hold on them -------------------------------------------------------------------


def judged_rows(fc: Forecast, rows: LossTable) -> pd.DataFrame:
    """Each measured row against its bands.

    `far` marks the farther half of the groups. `far_pit`, the same in all rows, is the predictive
    probability that the mean log loss of this half is below the measured mean.
    """
    samples = np.log(fc.samples)
    measured = np.log(rows.loss)
    bands = fc.to_frame((0.5, 0.9)).reset_index(drop=True)
    frame = bands[["decades", "inside_50", "inside_90"]].assign(
        group=grouped(rows.frame),
        error=np.median(samples, axis=0) - measured,
        pit=(samples < measured).mean(axis=0),
    )
    distances = frame.groupby("group")["decades"].mean()
    distances = distances.sort_values(kind="stable")
    farther = distances.index[len(distances) // 2 :]
    frame["far"] = frame["group"].isin(farther)
    # A mean over groups: rows of a group share their weight.
    of_group = frame.groupby("group")["far"].transform("sum")
    shares = frame["far"] / of_group.clip(lower=1)
    weights = shares.to_numpy() / shares.sum()
    below = samples @ weights < measured @ weights
    frame["far_pit"] = float(below.mean())
    return frame


def verdict(frame: pd.DataFrame) -> tuple[str, list[str], dict[str, object]]:
    """Level, words and numbers of judged rows."""
    by_group = frame.groupby("group")["inside_90"]
    groups = by_group.ngroups
    sizes = np.asarray(by_group.size(), dtype=np.int64)
    count = independent(sizes)
    inside = float(by_group.mean().mean()) * count
    # One-sided: this looks for bands that are too narrow.
    p = at_most(inside, count, 0.9)
    far_pit = float(frame["far_pit"].iloc[0])
    tail = 2 * min(far_pit, 1 - far_pit)
    few_groups = groups < MIN_GROUPS
    biased = tail < DOUBTFUL / 4
    level = "ok"
    if p < FAILED or (tail < FAILED / 10 and not few_groups):
        level = "refuse"
    elif p < DOUBTFUL or biased or few_groups:
        level = "caution"
    least, most = stats.binom.interval(0.9, round(count), 0.9)
    words = [
        f"the 90 % band holds {int(frame['inside_90'].sum())} of {len(frame)} losses, the 50 % "
        f"band {int(frame['inside_50'].sum())}; as rows of one size deviate together, that is "
        f"{inside:.3g} of {count:.3g} independent losses (expected {least:.0f} to {most:.0f})."
    ]
    if few_groups:
        noun = "groups" if groups > 1 else "group"
        words.append(f"{groups} {noun} of rows cannot show that bands hold.")
    if biased:
        side = "low" if far_pit > 0.5 else "high"
        error = frame.loc[frame["far"], "error"].mean()
        percent = 100 * abs(error)
        words.append(
            f"In the farther half the forecasts are too {side} by {percent:.2g} % on average (PIT "
            f"of that mean {far_pit:.3f})."
        )
    facts: dict[str, object] = {
        "groups": groups,
        "independent": count,
        "held": inside,
        "p": p,
        "far_pit": far_pit,
        "coverage_50": float(frame["inside_50"].mean()),
        "coverage_90": float(frame["inside_90"].mean()),
    }
    return level, words, facts


def independent(sizes: Ints) -> float:
    """How many independent losses the rows of groups of these sizes are worth.

    That is the sum over groups of ``m / (1 + (m - 1) rho)`` with the correlation `WITHIN_GROUP`
    (Kish, Survey Sampling, 1965): a large group counts as ``1 / rho`` losses.
    """
    inflation = 1 + (sizes - 1) * WITHIN_GROUP
    return float((sizes / inflation).sum())


def at_most(held: float, count: float, level: float) -> float:
    """P(at most `held` of `count` inside, each with P = `level`), also for parts of losses."""
    if held >= count:
        return 1.0
    return float(betainc(count - held, held + 1, 1 - level))
