"""The finding about distance: how far rows lie from the training rows, and along what."""

import pandas as pd

from bayeslaw.checks.findings import Finding
from bayeslaw.inference.pools import Fit
from bayeslaw.model.effects import SIZE
from bayeslaw.tables.covariates import TABLE
from bayeslaw.tables.hull import BEYOND_PREFIX, NEAR_DECADES, in_words
from bayeslaw.tables.verdict import SEVERITIES, Level, Verdict

# With fewer values of a covariate no curvature along it is identified.
FEWEST_VALUES = 3
EXACT_LAW = (
    "The law is taken as exact (no discrepancy): beyond the training rows its bands ignore that "
    "measured losses deviate from the law. On 29 of 35 splits of public tables such bands held "
    "less than .8."
)


def judge_extrapolation(fit: Fit, verdict: Verdict) -> Finding:
    """The verdict on rows, and what the fit's law and training rows add to it."""
    assert fit.table is not None
    training = fit.table.frame
    positions = verdict.positions
    covariates = TABLE | fit.about
    values: dict[str, int] = {}
    words: list[str] = []
    levels: list[Level] = ["ok"]
    for name in covariates:
        if name not in training:
            continue
        values[name] = int(training[name].nunique())
        judged = _judge_covariate(fit, name, values[name], positions)
        if judged is not None:
            level, sentence = judged
            levels.append(level)
            words.append(sentence)
    levels.append(verdict.level)
    if verdict.words:
        words.append(verdict.words)
    # Of a pool, the member with the most weight says whether its laws are taken as exact.
    exact = not fit.first.law.discrepancy_parameters
    if exact and positions["decades"].max() > NEAR_DECADES:
        levels.append("caution")
        words.append(EXACT_LAW)
    words.append(f"Rows to forecast: {in_words(positions)}.")
    worst = max(levels, key=SEVERITIES.index)
    facts = {"levels": values}
    return Finding("extrapolation", worst, tuple(words), positions, facts)


def _judge_covariate(
    fit: Fit, name: str, count: int, positions: pd.DataFrame
) -> tuple[Level, str] | None:
    """Level and sentence on rows beyond the values of a covariate; None if there is no reason."""
    column = BEYOND_PREFIX + name
    if column not in positions:
        return None
    beyond = float(positions[column].max())
    if not beyond > NEAR_DECADES:
        return None
    covariate = (TABLE | fit.about)[name]
    if name not in fit.columns:
        if count > 1:
            # It varies in the training rows, and the law does without it.
            return None
        return "caution", (
            f"{covariate.text} differs from its only value in the training rows, and the law has "
            "no term in it."
        )
    in_decades = name in TABLE or covariate.logged
    unit = "decades" if in_decades else "times its range"
    text = (
        f"{covariate.text} lies up to {beyond:.2g} {unit} beyond the training rows, and"
    )
    if count == 1:
        return (
            "refuse",
            f"{text} one value says nothing on others: too far to forecast.",
        )
    if name == "params" and count < SIZE.fewest:
        return (
            "caution",
            f"{text} {count} sizes are too few to estimate the effect of a size.",
        )
    if count < FEWEST_VALUES:
        return "caution", f"{text} {count} values cannot identify a curvature."
    return None
