"""Parts of a check: prediction of the training rows by cell, by group, and of rows left out."""

import numpy as np
import pandas as pd
from scipy import stats

from bayeslaw.checks.part import NAMES, RARE, Part
from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.evaluate.crossval import leave_out
from bayeslaw.evaluate.residuals import innovations, residual, residual_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import random_effects

CELL = ("params", "ptpp", "replay")
"""Covariates that are equal within a cell; the tokens differ."""
FEWEST = 4
"""Rows of a group from which its noise scale is looked at."""
UNRELIABLE = 0.1
"""Fraction of units with a large Pareto k beyond which the others do not represent the table."""


def cells(fit: Posterior, seed: int = 0) -> pd.DataFrame:
    """Posterior predictive check of the mean log loss of every cell of one N, PTPP and r.

    Returns
    -------
    DataFrame
        Per cell of the training table: `rows`; `miss`, mean measured minus predicted log loss; and
        `p`, the fraction of replicated cell means below the measured one. Replicates have new noise
        and the posterior random effects of their bases and runs.
    """
    frame, law = fit.table.frame, fit.law
    columns = [c for c in CELL if c in law.columns and frame[c].nunique() > 1] or ["params"]
    groups = frame.groupby(columns)
    index = groups.ngroup().to_numpy()
    average = (index == np.arange(groups.ngroups)[:, None]).astype(float)
    average /= average.sum(1, keepdims=True)
    measured = residual(fit, fit.table) @ average.T
    replicated = residual_draws(fit, frame, np.random.default_rng(seed)) @ average.T
    found = groups.size().rename("rows").reset_index()
    return found.assign(
        miss=np.median(measured, 0), p=(replicated < measured).mean(0).clip(0.5 / len(measured))
    )


def scales(fit: Posterior, seed: int = 0) -> pd.DataFrame:
    """Posterior predictive check of the noise scale, between the groups of each level.

    The statistic is the standard deviation, over the groups with at least four rows, of the log of
    the mean absolute residual, in units of the fitted scale and given fitted random effects.

    Returns
    -------
    DataFrame
        Per level with two such groups or more: `groups`; `ratio`, of the largest to the smallest
        mean absolute residual; `largest`, the group of the largest; and `p`, the fraction of
        replicates with at least the measured statistic.
    """
    frame = fit.table.frame
    given = residual(fit, fit.table, fit.spec.effects)
    own, scale = innovations(fit, frame, given, fit.scale(frame))
    measured = np.abs(own / scale)
    rng, ones = np.random.default_rng(seed), np.ones(measured.shape)
    replicated = np.abs(fit.spec.likelihood.sample(rng, ones.shape, ones, fit.values()))
    found = {}
    for name in random_effects.registered():
        level = random_effects.level(name)
        if level.column not in frame:
            continue
        names, index, rows = np.unique(level.labels(frame), return_inverse=True, return_counts=True)
        kept = np.flatnonzero(rows >= FEWEST)
        if len(kept) < 2:
            continue
        own, other = (_log_means(values, index, kept) for values in (measured, replicated))
        middle = np.median(own, axis=0)
        found[name] = {
            "groups": len(kept),
            "ratio": float(np.exp(np.ptp(middle))),
            "largest": str(names[kept[middle.argmax()]]),
            "p": float((other.std(axis=1) >= own.std(axis=1)).mean().clip(0.5 / len(own))),
        }
    columns = ["groups", "ratio", "largest", "p"]
    return pd.DataFrame.from_dict(found, orient="index", columns=columns)


def _log_means(values: Floats, index: Ints, groups: Ints) -> Floats:
    """Log of the mean of each group, shape (draws, groups)."""
    return np.log(np.stack([values[:, index == g].mean(axis=1) for g in groups], axis=1))


def cells_part(fit: Posterior, seed: int) -> Part:
    """Posterior predictive check by cell."""
    frame = cells(fit, seed)
    off = ~frame["p"].between(0.05, 0.95)
    rare = stats.binom.sf(off.sum() - 1, len(frame), 0.1) < RARE
    worst = frame.loc[(frame["p"] - 0.5).abs().sort_values().index[-1]]
    where = ", ".join(f"{NAMES[c]} {worst[c]:.4g}" for c in CELL if c in frame)
    words = (
        f"Of {len(frame)} cell means {off.sum()} lie outside their 90 % posterior predictive "
        f"intervals ({'more than' if rare else 'no more than'} chance explains); the most extreme, "
        f"at {where}, differs by {100 * worst['miss']:+.2f} % from its prediction."
    )
    return Part("cells", "caution" if rare else "ok", (words,), frame, {"outside": int(off.sum())})


def noise_part(fit: Posterior, seed: int) -> Part:
    """Whether the noise scale differs between groups more than the model expects."""
    frame = scales(fit, seed).rename_axis("level")
    if not len(frame):
        return Part("noise", "ok", ("No level has two groups of four rows to compare.",), frame)
    name, worst = next(frame.sort_values("p").iterrows())
    rare = worst["p"] * len(frame) < RARE
    words = (
        f"Residuals, in units of the fitted noise scale, differ in size by a factor of "
        f"{worst['ratio']:.2g} between the {worst['groups']} groups of {name}, "
        f"{'more than' if rare else 'no more than'} chance explains (p {worst['p']:.2g})"
        + (f"; they are largest in {worst['largest']}. Try noise='{name}'." if rare else ".")
    )
    return Part("noise", "caution" if rare else "ok", (words,), frame)


def left_out_part(fit: Posterior, seed: int) -> Part:
    """PIT values and Pareto k of runs, or rows, left out by importance sampling."""
    found = leave_out(fit, seed)
    p, bad, count = found.uniformity(), found.unreliable, len(found.pit)
    uneven = p < RARE
    text = f"The PIT values of {count} {found.unit}s, each predicted from the others, are "
    text += f"{'not ' if uneven else ''}compatible with calibrated bands (p = {p:.2g})."
    words = [text]
    if bad:
        words.append(
            f"For {bad} of them the estimate is unreliable (Pareto k above {found.good_k:.2g}): "
            "use bayeslaw.cross_validate, which refits without them."
        )
    facts = {"unit": found.unit, "p": p, "elpd": float(found.elpd.sum()), "unreliable": bad}
    return Part(
        "left out",
        "caution" if uneven or bad > UNRELIABLE * count else "ok",
        tuple(words),
        found.to_frame(),
        facts,
    )
