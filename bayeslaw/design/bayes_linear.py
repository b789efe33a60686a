"""The Bayes-linear update: how far candidate measurements would reduce the variance of targets.

The posterior draws give the joint covariance of log losses at candidates and targets. Conditioning
a Gaussian with these covariances on measurements of known noise variance reduces the targets'
variances by an amount that does not depend on the measured values [1]_. The information gain is the
mutual information of the measurements and the law's losses [2]_ [3]_.

References
----------
.. [1] M. Goldstein and D. Wooff (2007). Bayes Linear Statistics: Theory and Methods. Wiley.
.. [2] D. V. Lindley (1956). On a measure of the information provided by an experiment. Annals of
   Mathematical Statistics, 27(4), 986-1005.
.. [3] K. Chaloner and I. Verdinelli (1995). Bayesian experimental design: a review. Statistical
   Science, 10(3), 273-304.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bayeslaw.common.arrays import Bools, Floats, Ints
from bayeslaw.model.noise import decay

NEGLIGIBLE = 1e-10
"""Fraction of the targets' total variance that the omitted principal axes may have."""


@dataclass(frozen=True)
class JointGaussian:
    """Joint Gaussian of measured log losses and targets, from posterior draws.

    A *candidate* is a row that could be bought: its run trained up to that row and measured there
    and at all rows of the run with fewer tokens. A row may be measured in several domains, so a
    candidate has one or more measurements of its own.

    Parameters
    ----------
    measured : array, shape (draws, measurements)
        Draws of the log losses that would be measured, without noise, as from `centred`.
    targets : array, shape (draws, targets)
        Draws of the target quantities, as from `centred`.
    noise : array, shape (measurements,)
        Variance of each measurement's own noise.
    effects : sequence of (array of int, shape (measurements,), float)
        Random effects of groups without training rows: the group of each measurement, -1 for none,
        and the variance of the effect.
    by_run : array of int, shape (runs, longest)
        Measurements of each run in order of tokens, padded with -1.
    candidate : array of int, shape (measurements,)
        Candidate that each measurement belongs to.
    errors : (array of int, array, float), optional
        Run and log tokens of each measurement, shape (measurements,), and the correlation length in
        e-folds, where errors are correlated within a run.

    Examples
    --------
    One candidate that measures the target itself; signal and noise variance are both 1, so the
    measurement halves the target's variance.

    >>> draws = centred(np.array([[-1.0], [0.0], [1.0]]))
    >>> zero = np.array([0])
    >>> joint = JointGaussian(draws, draws, np.array([1.0]), [], np.array([[0]]), zero)
    >>> joint.update([]).variance.round(6).tolist()
    [1.0]
    >>> joint.update([0]).variance.round(6).tolist()
    [0.5]
    """

    measured: Floats
    targets: Floats
    noise: Floats
    effects: Sequence[tuple[Ints, float]]
    by_run: Ints
    candidate: Ints
    errors: tuple[Ints, Floats, float] | None = None

    @cached_property
    def variance(self) -> Floats:
        """Variance of each target before any measurement, shape (targets,)."""
        return np.asarray((self.targets**2).sum(0))

    @cached_property
    def _axes(self) -> Floats:
        """Principal axes of the targets, shape (targets, axes).

        Losses at different targets are strongly correlated, so there are few axes.
        """
        size, axes = np.linalg.eigh(self.targets.T @ self.targets)
        return np.asarray(axes[:, np.cumsum(size) > NEGLIGIBLE * size.sum()])

    @cached_property
    def _cross(self) -> Floats:
        """Covariance of the targets, along their axes, with the measurements."""
        return (self.targets @ self._axes).T @ self.measured

    def _covariance(self, i: int) -> Floats:
        """Covariance of one measurement's log loss with all; cached, since searches repeat it."""
        if i not in self._covariances:
            self._covariances[i] = self.measured[:, i] @ self.measured
        return self._covariances[i]

    @cached_property
    def _covariances(self) -> dict[int, Floats]:
        return {}

    @cached_property
    def _last(self) -> Ints:
        """Position of each candidate's last measurement in the flattened `by_run`."""
        last = np.empty(self.candidate.max() + 1, int)
        positions = np.flatnonzero(self.by_run.ravel() >= 0)
        # Positions ascend within a run, so the last assignment is the one that remains.
        last[self.candidate[self.by_run.ravel()[positions]]] = positions
        return last

    @cached_property
    def _within_runs(self) -> tuple[Floats, Floats]:
        """Covariances among each run's measurements, shape (runs, longest, longest).

        The first is of noise and random effects alone, the second includes the law's losses.
        """
        z = np.where(self.by_run >= 0, self.measured[:, self.by_run], 0.0)
        law = np.einsum("srm,srn->rmn", z, z, optimize=True)
        residual = self._effect_covariance(self.by_run[:, :, None], self.by_run[:, None, :])
        own = np.where(self.by_run >= 0, self.noise[self.by_run], 1.0)
        residual += own[:, :, None] * np.eye(self.by_run.shape[1])
        return residual, law + residual

    def _effect_covariance(self, one: Ints, two: Ints) -> Floats:
        """Covariance of effects and errors of two measurements; zero where an index is -1."""
        exists = (one >= 0) & (two >= 0)
        total = np.zeros(exists.shape)
        for group, variance in self.effects:
            total += variance * (exists & (group[one] == group[two]) & (group[one] >= 0))
        if self.errors:
            run, log_tokens, ell = self.errors
            apart = np.abs(log_tokens[one] - log_tokens[two])
            sd = np.sqrt(self.noise)
            among = exists & (run[one] == run[two]) & (one != two)
            total += among * sd[one] * sd[two] * decay(apart, ell)
        return total

    def measurements_of(self, candidates: Sequence[int]) -> Ints:
        """Measurements made when candidates are bought: each run up to its longest candidate."""
        chosen = np.isin(self.candidate[self.by_run], candidates) & (self.by_run >= 0)
        upto = np.flip(np.logical_or.accumulate(np.flip(chosen, 1), 1), 1)
        return self.by_run[upto & (self.by_run >= 0)]

    def noise_covariance(self, have: Ints) -> Floats:
        """Covariance of noise and effects of some measurements, shape (made, made)."""
        among = self._effect_covariance(have[:, None], have[None, :])
        return among + np.diag(self.noise[have])

    def update(self, candidates: Sequence[int]) -> "Update":
        """Condition on the measurements made when some candidates are bought."""
        have = self.measurements_of(candidates)
        free = (self.by_run >= 0) & ~np.isin(self.by_run, have)
        residual_within, total_within = self._within_runs
        residual = self._effect_covariance(have[:, None], np.arange(len(self.noise))[None])
        law = [self._covariance(i) for i in have]
        total = residual + np.array(law).reshape(residual.shape)
        root, explained, roots = self._condition(total, have, total_within, free)
        residual_root, _, residual_roots = self._condition(residual, have, residual_within, free)
        targets = np.linalg.solve(root, self._cross[:, have].T)
        left = (self._cross - targets.T @ explained).T[self.by_run] * free[..., None]
        # Mutual information is half the log ratio of the determinants of the total and the residual
        # covariance; the log diagonal of a Cholesky root sums to half a log determinant.
        gain = np.log(_diagonals(roots) / _diagonals(residual_roots)).cumsum(1)
        return Update(
            variance=self.variance - ((targets @ self._axes.T) ** 2).sum(0),
            information=float(np.log(np.diagonal(root) / np.diagonal(residual_root)).sum()),
            further_information=gain.ravel()[self._last],
            innovations=np.linalg.solve(roots, left),
            axes=self._axes,
            last=self._last,
        )

    def _condition(
        self, rows: Floats, have: Ints, within: Floats, free: Bools
    ) -> tuple[Floats, Floats, Floats]:
        """Condition the measurements of each run on those made, `have`.

        `rows` has the covariances, without noise, of the measurements made with all measurements,
        shape (made, measurements); `within` those among each run's measurements, shape (runs,
        longest, longest); `free` says which of these are not made yet.

        Returns the Cholesky root of the covariance of the measurements made, ``root^-1 rows``, and
        the Cholesky root of each run's conditional covariance, shape (runs, longest, longest). That
        of a run's first measurements is its leading block, so one serves all candidates of the run.
        """
        root = np.linalg.cholesky(rows[:, have] + np.diag(self.noise[have]))
        explained = np.linalg.solve(root, rows)
        seen = (explained[:, self.by_run] * free).transpose(1, 0, 2)
        both = free[:, :, None] & free[:, None, :]
        left = np.where(both, within - seen.swapaxes(1, 2) @ seen, np.eye(self.by_run.shape[1]))
        return root, explained, np.linalg.cholesky(left)


@dataclass(frozen=True)
class Update:
    """A `JointGaussian` after some measurements, and what each further candidate would change.

    Parameters
    ----------
    variance : array, shape (targets,)
        Variance of each target.
    information : float
        Mutual information of the measurements made and the law's losses, in nats.
    further_information : array, shape (candidates,)
        Further nats that each candidate would bring.
    innovations : array, shape (runs, longest, axes)
        Covariance of the targets, along their axes, with the innovation of each measurement of a
        run: its deviation from the prediction by those before it, scaled to variance 1.
    axes : array, shape (targets, axes)
        Principal axes of the targets.
    last : array of int, shape (candidates,)
        Position of each candidate's last measurement in the first two dimensions of `innovations`.
    """

    variance: Floats
    information: float
    further_information: Floats
    innovations: Floats
    axes: Floats
    last: Ints

    def reductions(self) -> Floats:
        """Reduction of each target's variance by each candidate, shape (candidates, targets)."""
        reduction = ((self.innovations @ self.axes.T) ** 2).cumsum(1)
        return np.asarray(reduction.reshape(-1, len(self.axes))[self.last])

    def weighted_reduction(self, weights: Floats) -> Floats:
        """Weighted sum of `reductions` over the targets, shape (candidates,).

        It is computed along the axes, which is faster than from `reductions`.
        """
        form = self.axes.T @ (weights[:, None] * self.axes)
        by_step = np.einsum("rmq,rmq->rm", self.innovations @ form, self.innovations).cumsum(1)
        return np.asarray(by_step.ravel()[self.last])


def _diagonals(roots: Floats) -> Floats:
    return np.diagonal(roots, axis1=1, axis2=2)


def centred(values: Floats) -> Floats:
    """Deviations of draws from their mean over ``sqrt(draws - 1)``, shape (draws, columns).

    The covariance matrix of the columns is then ``centred.T @ centred``.

    Examples
    --------
    >>> z = centred(np.array([[1.0], [3.0]]))
    >>> (z.T @ z).round(6).tolist()
    [[2.0]]
    """
    return np.asarray((values - values.mean(0)) / np.sqrt(len(values) - 1))


def measurements_by_run(run: Ints, tokens: Floats, candidate: Ints) -> Ints:
    """Measurements of each run in order of tokens, then candidate.

    The arguments have shape (measurements,), the result (runs, longest), padded with -1.

    Examples
    --------
    >>> run, tokens = np.array([0, 0, 1]), np.array([2e9, 1e9, 1e9])
    >>> measurements_by_run(run, tokens, np.arange(3)).tolist()
    [[1, 0], [2, -1]]
    """
    order = np.lexsort([candidate, tokens, run])
    ordered = run[order]
    first = np.searchsorted(ordered, ordered)
    place = np.arange(len(run)) - first
    by_run = np.full((int(run.max()) + 1, int(place.max()) + 1), -1)
    by_run[ordered, place] = order
    return by_run
