"""What runs would tell: the predicted posterior variance of targets once they are measured.

The posterior draws give the joint covariance of log losses at candidates and targets. Conditioning
a Gaussian with these covariances on measurements of known noise variance reduces the targets'
variances by an amount that does not depend on the measured values: the Bayes-linear update of
M. Goldstein and D. Wooff (2007), Bayes Linear Statistics: Theory and Methods, Wiley.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.linalg import block_diag
from scipy.special import ndtri
from scipy.stats import rankdata

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.common.errors import TableError, TableWarning
from bayeslaw.inference import residuals
from bayeslaw.inference.pools import Pool, pair_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.steps import completed
from bayeslaw.model import effects
from bayeslaw.model.noise import LENGTH, correlation
from bayeslaw.planning.result import Plan
from bayeslaw.tables.table import Rows, rows_of
from bayeslaw.tables.validation import IDENTITY, OF_DOMAIN, check_rows, same_rows

MOST_JOINT_DRAWS = 4000
"""Most posterior draws used."""


def run_of_each(frame: pd.DataFrame) -> Ints:
    """Run of each row as a code, shape (rows,); a row without a label is a run of its own."""
    return np.unique(effects.labels(frame, "run"), return_inverse=True)[1]


def bases(frame: pd.DataFrame) -> tuple[Ints, Floats]:
    """Base of each row, (rows,), and N and PTPP of each base, (bases, 2): their distinct pairs."""
    pairs = frame[["params", "ptpp"]].to_numpy(float)
    unique, index = np.unique(pairs, axis=0, return_inverse=True)
    return index.ravel(), unique


@dataclass(frozen=True)
class JointGaussian:
    """Joint Gaussian of measured log losses and targets, from posterior draws.

    `measured` and `targets`, (draws, ...), are as from `centred` and without noise; `noise` is the
    covariance of what the draws do not contain: measurement noise, and effects of new groups. `run`
    is the run of each measurement; a run measured in several domains has measurements in each.
    """

    measured: Floats
    targets: Floats
    noise: Floats
    run: Ints

    def of(self, runs: Sequence[int] | Ints) -> Ints:
        """Measurements made when runs are bought."""
        return np.flatnonzero(np.isin(self.run, runs))

    def variances(self, runs: Sequence[int] | Ints) -> Floats:
        """Variance of each target once runs are bought, shape (targets,)."""
        have = self.of(runs)
        measured = self.measured[:, have]
        root = np.linalg.cholesky(measured.T @ measured + self.noise[np.ix_(have, have)])
        known = np.linalg.solve(root, measured.T @ self.targets)
        return np.asarray((self.targets**2).sum(0) - (known**2).sum(0))


def centred(values: Floats) -> Floats:
    """Deviations of draws from their mean, scaled so that ``z.T @ z`` is the covariance matrix."""
    return np.asarray((values - values.mean(0)) / np.sqrt(len(values) - 1))


def candidate_rows(posterior: Posterior | Pool, candidates: Rows | pd.DataFrame) -> pd.DataFrame:
    """Valid candidate rows that are not training rows of the posterior."""
    columns = [*posterior.columns]
    rows = rows_of(candidates, "candidates", columns)
    check_rows(rows.frame, rows.name, posterior.table.frame)
    for law in posterior.laws:
        rows = law.rows(rows)
        law.covariates(rows)  # raises for rows with tokens = 0
    frame = rows.frame
    levels = [level for member in posterior.members.values() for level in member.spec.effects]
    known = [*IDENTITY, *columns, *(effects.level(level).column for level in levels)]
    measured = same_rows(frame, posterior.table.frame, known).any(axis=1)
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
) -> tuple[JointGaussian, Ints]:
    """Joint Gaussian of candidate measurements and targets, and the draws that it is made of.

    `fits` are posteriors of the target domain and, if each run is measured in both, of the source
    domain. `targets` are rows whose log losses are the target quantities. A plan adds one: the
    smallest feasible budget at its replay ratio, or that of its most likely choice, in normal
    scores, so that infinite budgets have finite values. The draws, at most `MOST_JOINT_DRAWS`, are
    of the plan's paired draws, or of the pairs of the fits.
    """
    limits = [] if plan is None else [plan.problem.targets[0], plan.problem.source]
    index = [each.index for each in limits if each.index is not None] or pair_draws(fits)[0]
    count = len(index[0])
    keep = np.unique(np.linspace(0, count - 1, min(MOST_JOINT_DRAWS, count)).astype(int))
    # The rows are measured in each domain, whatever columns say of theirs.
    frame = frame.drop(columns=[*OF_DOMAIN], errors="ignore")
    both = pd.concat(completed([frame, targets]), join="inner")
    measured, aims, noise = [], [], []
    # Without a source there is one fit for two indices.
    for domain, (fit, paired) in enumerate(zip(fits, index, strict=False)):
        log_loss, share = np.empty((len(keep), len(both))), 1 / fit.count
        covariance = np.zeros((len(frame), len(frame)))
        for member, draws, place in fit.by_member(paired[keep]):
            losses = np.log(member.latent(both)) + new_size_effects(member, both, plan, domain)
            # Fitted effects belong to what is measured; targets are latent losses.
            losses[:, : len(frame)] += effects.draw(member.draws, member.spec.effects, frame, None)
            log_loss[place] = losses[draws]
        for member, draws, _ in fit.by_member():
            # The noise of a pool is that of its members, by their shares of the draws.
            covariance += len(draws) * share * _noise(member, frame, plan)
        if plan is not None and plan.noise == "predictive":
            # The effect of the planned base, if it is new, is the one that the plan's draws have.
            pilots = np.flatnonzero(_of_planned_base(fit, frame, plan))
            log_loss[:, pilots] += limits[domain].noise.base[keep, None]
        measured.append(log_loss[:, : len(frame)])
        aims.append(log_loss[:, len(frame) :])
        noise.append(covariance)
    quantities = [aims[0]]
    if plan is not None and plan.chosen is not None:
        smallest = replace(plan.problem, beyond=None).needed(plan.chosen.replay)
        scores = ndtri((rankdata(smallest)[keep] - 0.5) / count)
        quantities.append((scores / scores.std(ddof=1))[:, None])
    return JointGaussian(
        measured=centred(np.hstack(measured)),
        targets=centred(np.hstack(quantities)),
        noise=block_diag(*noise),
        run=np.tile(run_of_each(frame), len(fits)),
    ), keep


def predicted_sd(
    posterior: Posterior, rows: Rows | pd.DataFrame, targets: Rows | pd.DataFrame
) -> Floats:
    """Predicted standard deviation of log loss at each target once `rows`, if any, are measured.

    The random effect of a target's size is included if the size has no training rows.
    """
    aims = rows_of(targets, "targets").frame
    frame = candidate_rows(posterior, rows) if len(rows) else aims
    joint, _ = joint_gaussian([posterior], frame, aims)
    return np.sqrt(joint.variances(joint.run if len(rows) else []))


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
    planned = residuals.new_size_effects(fit, plan.run.row, np.random.default_rng(seed))
    return np.where((frame["params"] == plan.run.params).to_numpy(), planned, drawn)


def _noise(fit: Posterior, frame: pd.DataFrame, plan: Plan | None) -> Floats:
    """Covariance of the noise of measured log losses, and of the effects of new groups."""
    # The inverse of the Fisher information about the location: a normal measurement of that
    # variance is as informative as one with this likelihood.
    variances = fit.spec.likelihood.information_variance(fit.scale(frame), fit.values())
    sd = np.sqrt(np.median(variances, axis=0))
    among = np.eye(len(frame))
    if fit.spec.errors == "run":
        ell = float(np.median(fit.values()[LENGTH]))
        among = correlation(run_of_each(frame), frame["tokens"].to_numpy(float), ell)
    total = sd[:, None] * sd * among
    for name in fit.spec.effects:
        if effects.level(name).latent:
            continue  # these effects are part of the draws
        known = fit.draws[name].values
        group, new = effects.labels(frame, name, known), ~effects.is_fitted(fit.draws, name, frame)
        if name == "base" and "base" not in frame and {"params", "ptpp"} <= {*frame}:
            group, new = bases(frame)[0].astype(str), np.ones(len(frame), bool)
        elif name == "base" and plan is not None and plan.noise == "predictive":
            new &= ~_of_planned_base(fit, frame, plan)
        variance = float(np.median(fit.values()[f"tau_{name}"] ** 2))
        total += variance * ((group[:, None] == group) & new & new[:, None])
    return total


def _of_planned_base(fit: Posterior | Pool, frame: pd.DataFrame, plan: Plan) -> Bools:
    """Rows of the plan's base, if its effect was not fitted, shape (rows,)."""
    label = plan.limits["base"]
    fitted = any(
        "base" in member.draws.coords and label in member.draws["base"].values.astype(str)
        for member in fit.members.values()
    )
    if label is None or fitted or "base" not in frame:
        return np.zeros(len(frame), bool)
    return np.asarray(effects.labels(frame, "base").astype(str) == label)
