"""The finding about curvature: whether the discrepancy is consistent with its prior."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.special import ndtri

from bayeslaw.checks.findings import RARE, Finding
from bayeslaw.checks.prior_draws import prior_of, spread
from bayeslaw.common.arrays import Floats
from bayeslaw.common.formatting import listed
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.symbols import column_of
from bayeslaw.tables.hull import BEYOND_PREFIX, NEAR_DECADES


def judge_curvature(fit: Posterior, rows: pd.DataFrame | None) -> Finding | None:
    """Whether the data imply more curvature than the prior of the discrepancy expects."""
    if not fit.law.discrepancy_parameters:
        return None
    prior = prior_of(fit)
    drawn = fit.values()
    off: dict[str, float] = {}
    for name in fit.law.discrepancy_parameters:
        expected = np.median(prior[name])
        shift = float(np.median(drawn[name]) - expected)
        off[name] = shift / spread(prior[name])
    off |= _walked(fit, prior)
    frame = pd.DataFrame({"off": off}).rename_axis("name")
    distances = frame["off"].abs().sort_values(ascending=False)
    # The test has two sides, and looks at all parameters.
    limit = -ndtri(RARE / (2 * len(distances)))
    strained = distances[distances > limit]
    if strained.empty:
        text = (
            "The curvature of the discrepancy is consistent with its prior (posterior medians at "
            f"most {distances.iloc[0]:.1f} prior sds from the prior median: {distances.index[0]})."
        )
        return Finding("curvature", "ok", (text,), frame)
    names = []
    named = []
    for parameter, distance in strained.items():
        names.append(str(parameter))
        named.append(f"{parameter} by {distance:.1f}")
    words = [
        "The data imply more curvature than the prior of the discrepancy expects, in prior sds: "
        f"{listed(named)}."
    ]
    level = "caution"
    if rows is not None:
        bent = _bent_columns(fit, names)
        beyond = _left_behind(fit, bent, rows)
        if beyond:
            level = "refuse"
            words.append(
                f"A forecast beyond the {listed(beyond)} of the training rows extrapolates this "
                "curvature: choose another law."
            )
        if (
            "replay" in bent
            and not rows["replay"].isin(fit.table.frame["replay"]).all()
        ):
            words.append(
                "Between fitted replay ratios it may bend, too: leave one out, and see whether its "
                "band holds, before you forecast another."
            )
    return Finding("curvature", level, tuple(words), frame)


def _walked(fit: Posterior, prior: Mapping[str, Floats]) -> dict[str, float]:
    """Largest deviation of a fitted row by each walk, in standard deviations of its prior."""
    law = fit.law_with_knots
    q = fit.values() | fit.steps()
    x = law.of_deviations(fit.fitted.x)
    farthest: dict[str, float] = {}
    for walk in law.walks:
        scales = prior[walk.scale]
        scale = float(np.sqrt((scales**2).mean()))
        columns = walk.columns(x, fit.at)
        expected = scale * walk.sd * np.sqrt((columns**2).sum(0))
        values = walk.value(q, x, fit.at, np)
        deviation = np.median(values, axis=0)
        # At the reference point no deviation is expected, and there is none.
        away = expected > 0
        ratios = np.abs(deviation[away] / expected[away])
        farthest[walk.steps] = float(ratios.max(initial=0.0))
    return farthest


def _bent_columns(fit: Posterior, names: list[str]) -> set[str]:
    """Columns of the table along which these parameters and walks bend the law."""
    along = dict(fit.law.covariates_of)
    for walk in fit.law.walks:
        bounds = (walk.along, walk.over or walk.along)
        along[walk.steps] = tuple(map(column_of, bounds))
    columns: set[str] = set()
    for name in names:
        columns.update(along[name])
    return columns


def _left_behind(fit: Posterior, columns: set[str], rows: pd.DataFrame) -> list[str]:
    """Those of some columns beyond whose fitted values the rows lie, as messages call them."""
    positions = fit.verdict(rows).positions
    beyond = []
    for column in fit.columns:
        if column not in columns:
            continue
        farthest = positions[BEYOND_PREFIX + column].max()
        if farthest > NEAR_DECADES:
            beyond.append(fit.about[column].text)
    return beyond
