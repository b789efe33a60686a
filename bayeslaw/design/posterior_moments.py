"""Joint moments of candidate measurements and targets, estimated from posterior draws."""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.special import ndtri
from scipy.stats import rankdata

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.common.errors import TableError, TableWarning
from bayeslaw.design.bayes_linear import JointGaussian, centred, measurements_by_run
from bayeslaw.design.set_search import bases, run_of_each
from bayeslaw.inference import residuals
from bayeslaw.inference.pools import Pool, pair_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.adjustments import completed
from bayeslaw.laws.law import Law
from bayeslaw.model import effects
from bayeslaw.model.noise import LENGTH
from bayeslaw.planning.deviations import planned_size_effects
from bayeslaw.planning.intervals import intersection
from bayeslaw.planning.result import Plan
from bayeslaw.tables.table import LossTable, frame_of
from bayeslaw.tables.validation import COVARIATES, canonical, check_units

DRAWS = 4000
"""Most posterior draws used."""
SAME = 1e-6
"""Relative difference of covariates below which a candidate equals a training row."""


def candidate_rows(
    posterior: Posterior | Pool, candidates: LossTable | pd.DataFrame
) -> pd.DataFrame:
    """Valid candidate rows that are not training rows of the posterior.

    Raises
    ------
    TableError
        If no candidate is left, a covariate is missing, or a run's rows differ in more than tokens.

    Warns
    -----
    TableWarning
        If training rows were removed.
    """
    columns = [c for c in COVARIATES if c in posterior.columns]
    frame = canonical(frame_of(candidates), "candidates", columns)
    check_units(frame, "candidates", posterior.table.frame)
    for member, *_ in posterior.by_member():
        member.law.covariates(frame, "candidates")  # raises for rows with tokens = 0
    rows = frame[columns].to_numpy(float)[:, None]
    trained = posterior.table.frame[columns].to_numpy(float)
    measured = np.isclose(rows, trained, rtol=SAME, atol=0).all(-1).any(1)
    if measured.all():
        raise TableError("candidates: all of them are rows that were fitted; nothing to buy.")
    if measured.any():
        warnings.warn(
            f"candidates: {measured.sum()} of {len(frame)} are rows that were fitted; left out.",
            TableWarning,
            stacklevel=3,
        )
        frame = frame[~measured].reset_index(drop=True)
    effects.check_runs(frame, "candidates", columns)
    return frame


def joint_gaussian(
    fits: Sequence[Posterior | Pool],
    frame: pd.DataFrame,
    targets: pd.DataFrame,
    plan: Plan | None = None,
    most: int = DRAWS,
) -> tuple[JointGaussian, Ints]:
    """Joint Gaussian of candidate measurements and targets under one or two posteriors.

    Parameters
    ----------
    fits : sequence of Posterior or Pool
        Of the target domain, and of the source domain if each run is measured in both.
    frame, targets : DataFrame
        Candidate rows, and rows whose log losses are the target quantities.
    plan : Plan, optional
        Adds a target quantity: the smallest feasible budget at the replay ratio of the plan, or of
        its most likely choice, in normal scores, so that infinite budgets have finite values.
    most : int
        Most posterior draws used. They are the second result: of the plan's paired draws, or of
        the pairs of the fits.
    """
    limits = [] if plan is None else [plan.problem.targets[0], plan.problem.source]
    index = [each.index for each in limits if each.index is not None] or pair_draws(fits)[0]
    count = len(index[0])
    keep = np.unique(np.linspace(0, count - 1, min(most, count)).astype(int))
    both = pd.concat(completed([frame, targets]), join="inner")
    measured, at_targets = [], []
    # Without a source there is one fit for two indices.
    for domain, (fit, paired) in enumerate(zip(fits, index, strict=False)):
        loss, fitted = np.empty((len(keep), len(both))), np.empty((len(keep), len(frame)))
        for member, own, place in fit.by_member(paired[keep]):
            law, values = member.extended(both)
            p = law.amounts({n: v[own] for n, v in values.items()}, member.at)
            new = new_size_effects(member, both, plan, domain)
            loss[place] = _log_loss(member, law, p, both, own) + new[own]
            fitted[place] = effects.draw(member.draws, member.spec.effects, frame, None)[own]
        if plan is not None and plan.noise == "predictive":
            # The effect of the planned base, if it is new, is the one that the plan's draws have.
            drawn = limits[domain].noise.base[keep]
            fitted += drawn[:, None] * _pilots(fit, frame, plan)
        measured.append(loss[:, : len(frame)] + fitted)
        at_targets.append(loss[:, len(frame) :])
    quantities = [at_targets[0]]
    if plan is not None and plan.chosen is not None:
        feasible = intersection(plan.problem.feasible_sets([plan.chosen.replay]))
        smallest = feasible.lower.min(0)[0]
        scores = ndtri((rankdata(smallest)[keep] - 0.5) / count)
        quantities.append((scores / scores.std(ddof=1))[:, None])
    candidate = np.tile(np.arange(len(frame)), len(fits))
    groups = [
        (
            _in_domain(_new_groups(member, frame, level, plan), domain, len(fits)),
            weight * float(np.median(member.values()[f"tau_{level}"] ** 2)),
        )
        for domain, fit in enumerate(fits)
        for member, weight in _weighted(fit)
        for level in member.spec.effects
        if not effects.level(level).latent  # these effects are part of the draws
    ]
    run, tokens = run_of_each(frame), np.tile(frame["tokens"], len(fits))
    return JointGaussian(
        measured=centred(np.hstack(measured)),
        targets=centred(np.hstack(quantities)),
        noise=np.concatenate(
            [sum(w * noise_variance(member, frame) for member, w in _weighted(fit)) for fit in fits]
        ),
        effects=groups,
        by_run=measurements_by_run(np.tile(run, len(fits)), tokens, candidate),
        candidate=candidate,
        errors=_errors(fits, run, tokens),
    ), keep


def new_size_effects(fit: Posterior, frame: pd.DataFrame, plan: Plan | None, domain: int) -> Floats:
    """Random effects of sizes without training rows, shape (draws, rows).

    Candidates and targets of one size have the same effect. For the plan's size it is the one that
    the plan's loss curves have, so the seeds here are those of `bayeslaw.plan`.
    """
    if plan is None:
        return residuals.new_size_effects(fit, frame, np.random.default_rng([0, domain]))
    last = len(plan.problem.limits) - 1
    seed = [plan.seed, last if domain else 0]
    drawn = residuals.new_size_effects(fit, frame, np.random.default_rng(seed))
    own = planned_size_effects(fit, plan.run.row, seed)
    return np.where((frame["params"] == plan.run.params).to_numpy(), own, drawn)


def noise_variance(posterior: Posterior, frame: pd.DataFrame) -> Floats:
    """Effective noise variance of a measured log loss per row, shape (rows,).

    It is the inverse of the Fisher information about the location, at the posterior median: a
    normal measurement of that variance is as informative. See `Likelihood.information_variance`.
    """
    likelihood = posterior.spec.likelihood
    variance = likelihood.information_variance(posterior.scale(frame), posterior.values())
    return np.asarray(np.median(variance, axis=0))


def _weighted(fit: Posterior | Pool) -> list[tuple[Posterior, float]]:
    """Members of a pool and their shares of its draws; a posterior alone."""
    return [(member, len(own) / fit.count) for member, own, _ in fit.by_member()]


def _errors(
    fits: Sequence[Posterior | Pool], run: Ints, tokens: Floats
) -> tuple[Ints, Floats, float] | None:
    """Run and log tokens of each measurement, and the correlation length of errors in a run.

    Domains have errors of their own. A correlation length of several fits is the mean of theirs.
    """
    members = [member for fit in fits for member, _ in _weighted(fit)]
    lengths = [float(np.median(m.values()[LENGTH])) for m in members if m.spec.errors == "run"]
    if not lengths:
        return None
    own = [run + domain * (run.max() + 1) for domain in range(len(fits))]
    return np.concatenate(own), np.log(tokens), float(np.mean(lengths))


def _log_loss(
    fit: Posterior, law: Law, p: Mapping[str, Floats], frame: pd.DataFrame, kept: Ints
) -> Floats:
    """Latent log loss at the draws `kept`, shape (draws, rows)."""
    x = {name: v[kept] if np.ndim(v) > 1 else v for name, v in fit.covariates(frame).items()}
    loss = np.log(law.loss(p, x, fit.at))
    return np.asarray(loss + effects.latent_effects(fit.draws, fit.spec.effects, frame)[kept])


def _pilots(fit: Posterior | Pool, frame: pd.DataFrame, plan: Plan | None) -> Bools:
    """Rows of a planned base whose effect was not fitted, shape (rows,)."""
    label = None if plan is None else plan.limits["base"]
    if label is None or "base" not in frame:
        return np.zeros(len(frame), bool)
    fitted = any(
        "base" in member.draws.coords and label in member.draws["base"].values.astype(str)
        for member, *_ in fit.by_member()
    )
    own = (effects.labels(frame, "base").astype(str) == label) & (not fitted)
    return np.asarray(own)


def _new_groups(fit: Posterior, frame: pd.DataFrame, level: str, plan: Plan | None) -> Ints:
    """Group of each row at a level of grouping, as a code; -1 where its effect is in the draws."""
    if level == "base" and "base" not in frame and {"params", "ptpp"} <= {*frame}:
        return bases(frame)[0]
    names = effects.labels(frame, level)
    known = effects.is_fitted(fit.draws, level, frame)
    if level == "base" and plan is not None and plan.noise == "predictive":
        known |= _pilots(fit, frame, plan)
    return np.where(known, -1, np.unique(names, return_inverse=True)[1])


def _in_domain(codes: Ints, domain: int, count: int) -> Ints:
    """Group codes of the measurements of all domains; -1 outside the given domain."""
    every = np.full((count, len(codes)), -1)
    every[domain] = codes
    return every.ravel()
