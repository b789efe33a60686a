"""Beliefs of a posterior, or of the two behind a plan, about candidates and targets."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import ndtri
from scipy.stats import rankdata

from bayeslaw.common.errors import TableError, TableWarning
from bayeslaw.design.costs import bases
from bayeslaw.design.gains import Beliefs, centred, slots_of
from bayeslaw.evaluate.new_sizes import new_size_effects
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import likelihoods as noises
from bayeslaw.model import random_effects as effects
from bayeslaw.planning.chance import meet
from bayeslaw.planning.limits import typical
from bayeslaw.planning.result import Plan
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import canonical

type Floats = npt.NDArray[np.float64]
type Ints = npt.NDArray[np.int64]

DRAWS = 4000
"""Posterior draws used at most."""
KNOWN = 1e-6
"""Relative difference of covariates below which a candidate has been measured already."""


def candidate_rows(posterior: Posterior, candidates: LossTable | pd.DataFrame) -> pd.DataFrame:
    """Candidate rows that are not fitted yet."""
    law = posterior.law
    frame = canonical(frame_of(candidates), "candidates", law.columns)
    law.covariates(frame, "candidates")  # refuses rows with tokens = 0
    columns = [c for c in ("params", "tokens", "replay", "ptpp") if c in law.columns]
    here = frame[columns].to_numpy(float)[:, None]
    there = posterior.table.frame[columns].to_numpy(float)
    known = np.isclose(here, there, rtol=KNOWN, atol=0).all(-1).any(1)
    if known.all():
        raise TableError("candidates: all of them are rows that were fitted; nothing to buy.")
    if known.any():
        warnings.warn(
            f"candidates: {known.sum()} of {len(frame)} are rows that were fitted; left out.",
            TableWarning,
            stacklevel=3,
        )
        frame = frame[~known].reset_index(drop=True)
    run = effects.labels(frame, "run")
    fixed = [c for c in ("params", "replay", "ptpp") if c in columns]
    for column in fixed:
        if (frame.groupby(run)[column].nunique() > 1).any():
            raise TableError(
                f"candidates: {column!r} differs within a run; checkpoints differ in tokens alone."
            )
    return frame


def beliefs_of(
    fits: Sequence[Posterior],
    frame: pd.DataFrame,
    run: Ints,
    aim: pd.DataFrame,
    plan: Plan | None = None,
    most: int = DRAWS,
) -> tuple[Beliefs, Floats]:
    """Beliefs about each row in the domain of each fit; and each draw's smallest log budget."""
    count = len(fits[0].values()["sigma"]) if plan is None else plan.problem.draws
    keep = np.unique(np.linspace(0, count - 1, min(most, count)).astype(int))
    every = np.arange(count)
    index = (every, every) if plan is None else (plan.problem.index[0], plan.problem.index[-1])
    both = pd.concat([frame, aim], join="inner")
    measured, targets, needed = [], [], np.empty(0)
    for domain, (fit, paired) in enumerate(zip(fits, index, strict=False)):  # perhaps no source
        kept = paired[keep]
        p = fit.law.sizes({n: v[kept] for n, v in fit.values().items()}, fit.at)
        known = effects.draw(fit.draws, fit.spec.effects, frame, None)
        new = new_sizes(fit, both, plan, domain)
        loss = _log_loss(fit, p, both, kept) + new[kept]
        measured.append(loss[:, : len(frame)] + known[kept])
        targets.append(loss[:, len(frame) :])
    drawn = [targets[0]]
    if plan is not None:
        least = meet(plan.problem.sets([plan.replay])).lower.min(0)[0]
        needed = np.sort(least)
        scores = ndtri((rankdata(least)[keep] - 0.5) / count)
        drawn.append((scores / scores.std(ddof=1))[:, None])
    option = np.tile(np.arange(len(frame)), len(fits))
    shared = [
        (_apart([_group(fit, frame, level) for fit in fits]), effect_variance(fits[0], level))
        for level in effects.LEVELS
        if level != "size"  # in the draws
    ]
    tokens = np.tile(frame["tokens"], len(fits))
    return Beliefs(
        measured=centred(np.hstack(measured)),
        targets=centred(np.hstack(drawn)),
        noise=np.concatenate([noise_variance(fit, frame) for fit in fits]),
        shared=shared,
        slots=slots_of(np.tile(run, len(fits)), tokens, option),
        option=option,
    ), needed


def new_sizes(fit: Posterior, frame: pd.DataFrame, plan: Plan | None, domain: int) -> Floats:
    """Effects of sizes that were not fitted, shape (draws, rows): one for candidates and targets.

    Those of the plan's size are what its curves drew.
    """
    if plan is None:
        return new_size_effects(fit, frame, np.random.default_rng([0, domain]))
    seed = [plan.seed, len(plan.problem.targets) if domain else 0]  # as `plan` counts its fits
    drawn = new_size_effects(fit, frame, np.random.default_rng(seed))
    n, ptpp = plan.limits["params"], plan.limits["ptpp"]
    own = new_size_effects(fit, typical(n, ptpp), np.random.default_rng(seed))
    return np.where((frame["params"] == n).to_numpy(), own, drawn)


def noise_variance(posterior: Posterior, frame: pd.DataFrame) -> Floats:
    """Noise variance of a measured log loss per row, shape (rows,), as informative as the noise is.

    A Student-t measurement tells as much about its centre as a normal one of variance
    ``sigma^2 (dof + 3) / (dof + 1)``, the inverse of its Fisher information; its variance is larger
    and may be infinite.
    """
    q = posterior.values()
    variance = q["sigma"] ** 2
    if "dof_above_floor" in q:
        dof = q["dof_above_floor"] + noises.DOF_FLOOR
        variance = variance * (dof + 3) / (dof + 1)
    if posterior.spec.noise == "loglinear":
        distance = np.log(frame["params"].to_numpy(float)) - posterior.at["params"]
        variance = variance * np.exp(2 * q["noise_slope"] * distance)
    return np.broadcast_to(np.median(variance, axis=0), (len(frame),)).copy()


def effect_variance(posterior: Posterior, level: str) -> float:
    """Variance of the effect that rows of a new `run` or `base` share; 0 if none was fitted."""
    if level not in posterior.spec.effects:
        return 0.0
    return float(np.median(posterior.values()[f"tau_{level}"] ** 2))


def frame_of(table: LossTable | pd.DataFrame) -> pd.DataFrame:
    """Rows of a table or grid."""
    return table.frame if isinstance(table, LossTable) else table


# -- parts ----------------------------------------------------------------------------------------


def _log_loss(fit: Posterior, p: Mapping[str, Floats], frame: pd.DataFrame, kept: Ints) -> Floats:
    loss = np.log(fit.law.loss(p, fit.law.covariates(frame), fit.at))
    return np.asarray(loss + effects.of_size(fit.draws, fit.spec.effects, frame)[kept])


def _group(fit: Posterior, frame: pd.DataFrame, level: str) -> Ints:
    """Which rows share a new effect of a level; -1 where the effect was fitted."""
    if level == "base" and "base" not in frame and {"params", "ptpp"} <= {*frame}:
        return bases(frame)[0]
    names = effects.labels(frame, level)
    known: Any = fit.draws[level].values if level in fit.spec.effects else []
    return np.where(np.isin(names, known), -1, np.unique(names, return_inverse=True)[1])


def _apart(codes: Sequence[Ints]) -> Ints:
    """Codes of several domains, one after the other and distinct."""
    step = 1 + max(int(code.max()) for code in codes)
    return np.concatenate([np.where(c < 0, -1, c + i * step) for i, c in enumerate(codes)])
