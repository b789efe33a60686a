"""Predicted standard deviations of forecasts once some runs are measured.

The posterior draws give the joint covariance of log losses at candidates and targets. Conditioning
a Gaussian with these covariances on measurements of known noise variance reduces the targets'
variances by an amount that does not depend on the measured values: the Bayes-linear update of
M. Goldstein and D. Wooff (2007), Bayes Linear Statistics: Theory and Methods, Wiley.
"""

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bayeslaw.anchors.costs import codes_of_bases, codes_of_runs
from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.errors import TableError, TableWarning
from bayeslaw.design.design import Design
from bayeslaw.inference.pools import Pool, spread_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import new_size_effects
from bayeslaw.model import effects
from bayeslaw.model.noise import LENGTH, correlation
from bayeslaw.tables.comparison import IDENTITY, completed, is_among
from bayeslaw.tables.table import Rows, rows_of
from bayeslaw.tables.units import check_units
from bayeslaw.tables.validation import OF_DOMAIN

MOST_DRAWS = 4000
"""Most posterior draws of which covariances are computed."""


@dataclass(frozen=True)
class JointGaussian:
    """Joint Gaussian of log losses: `measured`, (draws, rows), and `targets`, (draws, targets).

    Both are as from `centred` and without noise. `noise`, (rows, rows), is the covariance of what
    the draws do not contain: measurement noise, and effects of new groups.
    """

    measured: Floats
    targets: Floats
    noise: Floats

    def variances(self, rows: Bools) -> Floats:
        """Variance of each target once the rows are measured, shape (targets,)."""
        measured = self.measured[:, rows]
        noise = self.noise[np.ix_(rows, rows)]
        root = np.linalg.cholesky(measured.T @ measured + noise)
        explained = np.linalg.solve(root, measured.T @ self.targets)
        before = (self.targets**2).sum(0)
        return np.asarray(before - (explained**2).sum(0))


def centred(values: Floats) -> Floats:
    """Deviations of draws from their mean, scaled so that ``z.T @ z`` is the covariance matrix."""
    deviations = values - values.mean(0)
    return np.asarray(deviations / np.sqrt(len(values) - 1))


def joint_gaussian(
    fit: Posterior | Pool, frame: pd.DataFrame, targets: pd.DataFrame
) -> JointGaussian:
    """Joint Gaussian of measurements of `frame` and latent log losses of `targets`."""
    draws = spread_draws(fit.count, MOST_DRAWS)
    # Candidates may have a domain, and targets not; the losses are of the fit's.
    frame = frame.drop(columns=[*OF_DOMAIN], errors="ignore")
    candidates = len(frame)
    frames = completed([frame, targets])
    rows = pd.concat(frames, join="inner")
    log_loss = np.empty((len(draws), len(rows)))
    for member, of_member, index in fit.by_member(draws):
        losses = np.log(member.latent(rows))
        # Candidates and targets of one new size have the same effect.
        rng = np.random.default_rng([0, 0])
        losses += new_size_effects(member, rows, rng)
        # Fitted effects belong to what is measured; targets are latent losses.
        levels = member.spec.effects
        fitted = effects.draw(member.draws, levels, frame, None)
        losses[:, :candidates] += fitted
        log_loss[index] = losses[of_member]
    noise = np.zeros((candidates, candidates))
    for member, of_member, _ in fit.by_member():
        # The noise of a pool is that of its members, by their shares of the draws.
        share = len(of_member) / fit.count
        noise += share * _noise(member, frame)
    measured = centred(log_loss[:, :candidates])
    return JointGaussian(measured, centred(log_loss[:, candidates:]), noise)


def _noise(fit: Posterior, frame: pd.DataFrame) -> Floats:
    """Covariance of the noise of measured log losses, and of the effects of new groups."""
    drawn = fit.values()
    # The inverse of the Fisher information about the location: a normal measurement of that
    # variance is as informative as one with this likelihood.
    scale = fit.scale(frame)
    variances = fit.spec.likelihood.information_variance(scale, drawn)
    sd = np.sqrt(np.median(variances, axis=0))
    among = np.eye(len(frame))
    if fit.spec.errors == "run":
        length = float(np.median(drawn[LENGTH]))
        tokens = frame["tokens"].to_numpy(float)
        among = correlation(codes_of_runs(frame), tokens, length)
    total = sd[:, None] * sd * among
    for name in fit.spec.effects:
        # Latent effects are part of the draws.
        if not effects.level(name).latent:
            total += _variance_of_new_groups(fit, frame, name)
    return np.asarray(total)


def _variance_of_new_groups(fit: Posterior, frame: pd.DataFrame, level: str) -> Floats:
    """Covariance of the random effects of groups without training rows, (rows, rows)."""
    group = effects.labels(frame, level, fit.draws[level].values)
    new = ~effects.is_fitted(fit.draws, level, frame)
    has_pairs = {"params", "ptpp"} <= {*frame}
    if level == "base" and "base" not in frame and has_pairs:
        codes, _ = codes_of_bases(frame)
        group = codes.astype(str)
        new = np.ones(len(frame), bool)
    tau = fit.values()[f"tau_{level}"]
    variance = float(np.median(tau**2))
    same_group = group[:, None] == group
    both_new = new & new[:, None]
    return np.asarray(variance * (same_group & both_new))


def candidate_rows(
    posterior: Posterior | Pool, candidates: Rows | pd.DataFrame
) -> pd.DataFrame:
    """Valid candidate rows that are not training rows of the posterior."""
    columns = [*posterior.columns]
    rows = posterior.rows(candidates, "candidates")
    check_units(rows.frame, rows.name, posterior.table.frame)
    for law in posterior.laws:
        # Covariates of rows with tokens = 0 are an error.
        _ = Design(law, rows).x
    frame = rows.frame
    match = [*IDENTITY, *columns]
    for member in posterior.members.values():
        for level in member.spec.effects:
            match.append(effects.level(level).column)
    fitted = is_among(frame, posterior.table.frame, match)
    if fitted.all():
        raise TableError(
            "candidates: all of them are rows that were fitted; nothing to buy."
        )
    if fitted.any():
        warnings.warn(
            f"candidates: {fitted.sum()} of {len(frame)} are rows that were fitted; left out.",
            TableWarning,
            stacklevel=3,
        )
        frame = frame[~fitted].reset_index(drop=True)
    effects.check_runs(frame, "candidates", columns)
    return frame


def predicted_sd(
    posterior: Posterior, rows: Rows | pd.DataFrame, targets: Rows | pd.DataFrame
) -> Floats:
    """Predicted standard deviation of log loss at each target once `rows`, if any, are measured.

    The random effect of a target's size is included if the size has no training rows.
    """
    at_targets = rows_of(targets, "targets").frame
    frame = candidate_rows(posterior, rows) if len(rows) else at_targets
    joint = joint_gaussian(posterior, frame, at_targets)
    measured = np.full(len(frame), len(rows) > 0)
    return np.sqrt(joint.variances(measured))
