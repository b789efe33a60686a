"""Runs, bases, sizes and rows that lie far from the others, and what the forecast is without them.

One run far from the law widens the band of every new run: the spread of runs is estimated with it.
"""

import numpy as np
import pandas as pd
from scipy import stats

from bayeslaw.checks.held_out import refitted
from bayeslaw.checks.part import RARE, Part, listed
from bayeslaw.common.arrays import Bools
from bayeslaw.common.errors import TableError
from bayeslaw.common.formatting import count
from bayeslaw.evaluate.datatree import prior_draws
from bayeslaw.evaluate.residuals import innovations, residual
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import effects
from bayeslaw.tables.table import LossTable, subset
from bayeslaw.tables.validation import COVARIATES

type Rows = LossTable | pd.DataFrame

OUTLYING = 3.0
"""Least distance of an outlier from the others, in scales."""
MOST = 5
"""Most outliers that are named and left out: those with the largest deviations."""
UNRELIABLE = 1.1
"""R-hat beyond which the numbers of a short refit are not shown."""


def outliers_part(fit: Posterior, rows: Rows | None, seed: int = 0) -> Part:
    """Name outliers, and compare the forecast of `rows` with that of a refit without them."""
    found = pd.concat([outlying_groups(fit), outlying_rows(fit)], ignore_index=True)
    if found.empty:
        return Part("outliers", "ok", ("No run, base, size or row stands out.",), found)
    found = found.sort_values("deviation", key=abs, ascending=False, ignore_index=True)[:MOST]
    names = [f"{row['name']} ({100 * row['deviation']:+.2g} %)" for _, row in found.iterrows()]
    words = [f"Farthest from the others, in loss: {listed(names)}."]
    if rows is None:
        return Part("outliers", "ok", tuple(words), found)
    level, text, facts = _without(fit, rows, _kept(fit, found), seed)
    return Part("outliers", level, (*words, text), found, facts)


def outlying_groups(fit: Posterior) -> pd.DataFrame:
    """Groups with a random effect beyond three times the scales of its prior and of all groups.

    It is beyond them from the median effect, because the law itself moves towards an outlier. The
    scale of the prior is the prior median of the standard deviation of the effects, and that of the
    groups is 1.48 times the median absolute deviation of their effects.
    """
    prior, found = prior_draws(fit), []
    for name in fit.spec.effects:
        fitted = fit.draws[f"{name}_effect"].median(("chain", "draw"))
        middle = float(fitted.median())
        scale = max(
            float(np.median(prior[f"tau_{name}"])),
            float(stats.median_abs_deviation(fitted.values, scale="normal")),
        )
        for label, value in zip(fitted[name].values, fitted.values, strict=True):
            if abs(value - middle) > OUTLYING * scale:
                written = count(float(label)) if name == effects.SIZE.name else label
                found.append((name, label, f"{name} {written}", float(value)))
    return pd.DataFrame(found, columns=["level", "label", "name", "deviation"])


def outlying_rows(fit: Posterior) -> pd.DataFrame:
    """Rows whose error is beyond three scales of the noise, and beyond what chance gives."""
    frame = fit.table.frame
    given = residual(fit, fit.table, fit.spec.effects)
    error, scale = innovations(fit, frame, given, fit.scale(frame))
    z = np.median(error / scale, axis=0)
    limit = max(OUTLYING, float(stats.norm.isf(RARE / (2 * len(z)))))
    shown = [c for c in COVARIATES if c in fit.columns]
    found = []
    for i in np.flatnonzero(np.abs(z) > limit):
        where = ", ".join(f"{c} {count(frame[c].iloc[i])}" for c in shown)
        found.append(("row", i, f"the row at {where}", float(np.median(given[:, i]))))
    return pd.DataFrame(found, columns=["level", "label", "name", "deviation"])


def _kept(fit: Posterior, found: pd.DataFrame) -> Bools:
    """Training rows that belong to none of the outliers."""
    frame, kept = fit.table.frame, np.ones(len(fit.table), bool)
    for level, label in found[["level", "label"]].itertuples(index=False):
        of_rows = np.arange(len(frame)) if level == "row" else effects.labels(frame, level)
        kept &= of_rows != label
    return kept


def _without(
    fit: Posterior, rows: Rows, kept: Bools, seed: int
) -> tuple[str, str, dict[str, object]]:
    """Level, finding and numbers of the forecast without the outliers."""
    try:
        again = refitted(fit, subset(fit.table, kept), seed)
    except TableError as error:
        return "ok", f"The law cannot be fitted without them: {error}", {}
    gate = "; ".join(again.convergence.failures) or "converged"
    if again.convergence.rhat > UNRELIABLE:
        return "ok", f"A short refit without them did not converge ({gate}).", {"gate": gate}
    old, new = (
        np.log(each.forecast(rows, seed=seed, allow_unconverged=True).quantile([0.05, 0.5, 0.95]))
        for each in (fit, again)
    )
    move, half = new[1] - old[1], [100 * np.median(q[2] - q[0]) / 2 for q in (old, new)]
    most = float(move[np.abs(move).argmax()])
    text = (
        f"Without them, by a short refit to {kept.sum()} rows ({gate}), the forecasts move by up "
        f"to {100 * most:+.2g} %, and the 90 % band is ± {half[1]:.2g} % instead of "
        f"± {half[0]:.2g} %."
    )
    # A move that the band allows for is no reason to distrust it.
    large = bool((np.abs(move) > (old[2] - old[0]) / 4).any())
    facts = {"move": most, "half_width": half[0], "half_width_without": half[1], "gate": gate}
    return "caution" if large else "ok", text, facts
