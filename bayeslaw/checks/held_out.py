"""Coverage of the bands on held-out rows: those given, or the farthest of the training rows.

Errors of models of one size are correlated, so coverage is counted by groups of rows of one size,
not by rows. Errors of different groups of one forecast are correlated too, through the parameters
of the law: the mean error of the farther half of the groups is compared with its joint posterior
predictive distribution.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import betainc

from bayeslaw.checks.part import Part
from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.common.errors import TableError
from bayeslaw.evaluate.forecast import Forecast, ends
from bayeslaw.inference.fitting import refit
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.hull import NEAR, axes, decades, displacement
from bayeslaw.tables.table import LossTable, subset

GROUPS = ("params", "ptpp", "replay")
"""Covariates that define groups: as many of them as are needed for `FEWEST` groups."""
FEWEST = 3
"""Fewest groups from which coverage is judged."""
ROWS = 8
"""Fewest rows that are fitted when the others are held out."""
FAILED, DOUBTFUL = 0.05, 0.2
"""P-values below which coverage by groups is a failure, and doubtful.

The mean error of the farther half is a second, two-sided test: a failure at a tenth of `FAILED`,
doubtful at a quarter of `DOUBTFUL`.
"""


def held_out_part(fit: Posterior | Pool, rows: LossTable, seed: int = 0) -> Part:
    """How the forecast of measured rows did."""
    fc = fit.forecast(rows, seed=seed, allow_unconverged=True)
    frame = judged(fc, rows)
    level, words, facts = verdict(frame)
    if level == "refuse":
        words = (f"the bands failed here: {words[0]}", *words[1:])
    return Part("held out", level, words, frame, facts | {"own": False})


def own_held_out_part(
    fit: Posterior | Pool, rows: pd.DataFrame | None = None, seed: int = 0
) -> Part:
    """Forecast the farthest of the training rows from the others, by a short refit.

    "Farthest" is in the direction in which `rows` lie beyond the training rows, and as far beyond
    the others as `rows` lie beyond all. Without such rows it is that of the FLOPs.
    """
    for near in cuts(fit.table, fit.columns, rows):
        train, test = subset(fit.table, near), subset(fit.table, ~near)
        try:
            again = refitted(fit, train, seed)
        except TableError:  # a covariate that the law needs no longer varies
            continue
        fc = again.forecast(test, seed=seed, allow_unconverged=True)
        frame = judged(fc, test)
        level, words, facts = verdict(frame)
        # Where bands failed here, they often held on the rows to forecast, which are forecast from
        # all training rows (`benchmarks/verdicts.csv`).
        level = "caution" if level == "refuse" else level
        gate = "; ".join(again.convergence.failures) or "converged"
        how = f"The farthest {len(test)} training rows, forecast from the {len(train)} others by a "
        how += f"short refit ({gate})"
        words = (f"{how}: {words[0]}", *words[1:])
        return Part("held out", level, words, frame, facts | {"own": True, "gate": gate})
    few = "The training rows are too few to forecast some of them from the others."
    return Part("held out", "caution", (few,), facts={"own": True})


def refitted(fit: Posterior | Pool, table: LossTable, seed: int) -> Posterior | Pool:
    """The same model fitted to other rows by short chains."""
    if isinstance(fit, Pool):
        members = {name: refit(each.spec, table, seed) for name, each in fit.members.items()}
        return Pool(members, fit.weights, fit.name)
    return refit(fit.spec, table, seed)


def cuts(table: LossTable, columns: tuple[str, ...], rows: pd.DataFrame | None) -> Iterator[Bools]:
    """Rows to fit when the others are held out, the best choice first."""
    points = axes(table.frame, columns)
    along, asked = np.isin(columns, ("params", "tokens")).astype(float), np.inf
    if rows is not None:
        away = displacement(points, axes(rows, columns))
        mean = away.mean(axis=0)
        if np.linalg.norm(mean) > NEAR:
            along, asked = mean, float(np.median(np.linalg.norm(away, axis=1)))
    value = np.round(points @ (along / np.linalg.norm(along)), 6)
    sizes, choices = table.frame["params"], []
    for level in np.unique(value)[:-1]:
        near = value <= level
        few = near.sum() < max(ROWS, len(table) // 2)
        if few or sizes[near].nunique() < min(2, sizes.nunique()):
            continue
        far = decades(table.frame[near], table.frame[~near], columns)
        groups = len(np.unique(grouped(table.frame[~near])))
        # Without rows to forecast a quarter of the training rows is held out.
        off = abs(np.median(far) - asked) if np.isfinite(asked) else abs(near.mean() - 0.75)
        choices.append((groups < FEWEST, off, near))
    choices.sort(key=lambda choice: choice[:2])
    yield from (near for *_, near in choices)


def grouped(frame: pd.DataFrame) -> Ints:
    """Group of each row: its size, then size and PTPP, then replay too, until there are three."""
    present, index = [c for c in GROUPS if c in frame], np.zeros(len(frame), int)
    for count in range(1, len(present) + 1):
        index = frame.groupby(present[:count]).ngroup().to_numpy()
        if len(np.unique(index)) >= FEWEST:
            break
    return index


def judged(fc: Forecast, rows: LossTable) -> pd.DataFrame:
    """One row per measured row: `group`, `decades`, `error`, `pit`, and whether inside the bands.

    `far` marks the farther half of the groups, and `far_pit`, the same in all rows, is the
    predictive probability that their mean log loss is below the measured one.
    """
    samples, measured = np.log(fc.samples), np.log(rows.loss)
    frame = fc.positions[["decades"]].reset_index(drop=True)
    frame = frame.assign(
        group=grouped(rows.frame),
        error=np.median(samples, axis=0) - measured,
        pit=(samples < measured).mean(axis=0),
    )
    for level in (0.5, 0.9):
        low, high = np.quantile(samples, ends(level), axis=0)
        frame[f"inside_{100 * level:g}"] = (low <= measured) & (measured <= high)
    distance = frame.groupby("group")["decades"].mean()
    farther = distance.sort_values(kind="stable").index[len(distance) // 2 :]
    frame["far"] = frame["group"].isin(farther)
    each = frame["far"] / frame.groupby("group")["far"].transform("sum").clip(lower=1)
    weights = each.to_numpy() / each.sum()
    return frame.assign(far_pit=float((samples @ weights < measured @ weights).mean()))


def verdict(frame: pd.DataFrame) -> tuple[str, tuple[str, ...], dict[str, object]]:
    """Level, findings and numbers of judged rows."""
    inside = frame.groupby("group")[["inside_50", "inside_90"]].mean()
    groups, held = len(inside), float(inside["inside_90"].sum())
    p = at_most(held, groups, 0.9)
    least, most = stats.binom.interval(0.9, groups, 0.9)
    far_pit = float(frame["far_pit"].iloc[0])
    tail = 2 * min(far_pit, 1 - far_pit)
    failed = p < FAILED or (tail < FAILED / 10 and groups >= FEWEST)
    doubtful = p < DOUBTFUL or tail < DOUBTFUL / 4
    level = "refuse" if failed else "caution" if doubtful or groups < FEWEST else "ok"
    words = [
        f"the 90 % band holds {int(frame['inside_90'].sum())} of {len(frame)} losses, the 50 % "
        f"band {int(frame['inside_50'].sum())}; by group, {held:.3g} of {groups} "
        f"(expected {least:.0f} to {most:.0f})."
    ]
    if groups < FEWEST:
        words.append(f"{groups} group{'s' * (groups > 1)} of rows cannot show that bands hold.")
    error = frame.loc[frame["far"], "error"]
    if tail < DOUBTFUL / 4:
        words.append(
            f"In the farther half the forecasts are too {'low' if far_pit > 0.5 else 'high'} by "
            f"{100 * abs(error.mean()):.2g} % on average (PIT of that mean {far_pit:.3f})."
        )
    facts: dict[str, object] = {
        "groups": groups,
        "held": held,
        "p": p,
        "far_pit": far_pit,
        "coverage_50": float(frame["inside_50"].mean()),
        "coverage_90": float(frame["inside_90"].mean()),
    }
    return level, tuple(words), facts


def at_most(held: Floats | float, groups: int, level: float) -> float:
    """Probability that at most `held` of `groups` are inside, each with probability `level`.

    The binomial distribution function, continued to fractions of groups.

    Examples
    --------
    >>> round(at_most(3, 6, 0.9), 3), round(at_most(0, 1, 0.9), 2)
    (0.016, 0.1)
    """
    return 1.0 if held >= groups else float(betainc(groups - held, held + 1, 1 - level))
