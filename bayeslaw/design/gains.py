"""What candidate measurements would teach: the Bayes-linear update of posterior draws.

Log losses at candidates and targets have a joint covariance under the posterior, estimated from its
draws. Measuring candidates with known noise then reduces the targets' variances by an amount that
does not depend on what is measured (Goldstein and Wooff 2007, *Bayes Linear Statistics*).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

type Floats = npt.NDArray[np.float64]
type Ints = npt.NDArray[np.int64]
type Flags = npt.NDArray[np.bool_]

NEGLIGIBLE = 1e-10
"""Share of the targets' variance along axes that are left out."""


@dataclass(frozen=True)
class Beliefs:
    """Joint beliefs about measurements of candidate rows and about targets.

    An *option* is a candidate row: its run trained up to that row, measured there and at all rows
    of the run with fewer tokens. A row may be measured in several domains.

    Parameters
    ----------
    measured : array, shape (draws, measurements)
        Centred draws of what would be measured, log loss, over ``sqrt(draws - 1)``.
    targets : array, shape (draws, targets)
        The same of the quantities of interest.
    noise : array, shape (measurements,)
        Variance of the noise of each measurement alone.
    shared : sequence of (array of shape (measurements,), float)
        Effects shared by several measurements: who shares (equal codes, -1 for none), and the
        variance.
    slots : array, shape (runs, longest)
        Measurements of each run in order of tokens; -1 fills up.
    option : array, shape (measurements,)
        Candidate row of each measurement.
    """

    measured: Floats
    targets: Floats
    noise: Floats
    shared: Sequence[tuple[Ints, float]]
    slots: Ints
    option: Ints

    @cached_property
    def variance(self) -> Floats:
        """Variance of each target before any measurement, shape (targets,)."""
        return np.asarray((self.targets**2).sum(0))

    @cached_property
    def _axes(self) -> Floats:
        """Principal axes of the targets, shape (targets, axes): few, since losses vary together."""
        size, axes = np.linalg.eigh(self.targets.T @ self.targets)
        return np.asarray(axes[:, np.cumsum(size) > NEGLIGIBLE * size.sum()])

    @cached_property
    def _cross(self) -> Floats:
        """Covariance of the targets along their axes with the measurements."""
        return (self.targets @ self._axes).T @ self.measured

    def _covariance(self, i: int) -> Floats:
        """Covariance of one measurement's loss with all, kept: searches ask for few, often."""
        if i not in self._covariances:
            self._covariances[i] = self.measured[:, i] @ self.measured
        return self._covariances[i]

    @cached_property
    def _covariances(self) -> dict[int, Floats]:
        return {}

    @cached_property
    def _last(self) -> Ints:
        """Place in `slots`, flattened, of each option's last measurement."""
        last = np.empty(self.option.max() + 1, int)
        places = np.flatnonzero(self.slots.ravel() >= 0)
        last[self.option[self.slots.ravel()[places]]] = places  # the later place wins
        return last

    @cached_property
    def _within(self) -> tuple[Floats, Floats]:
        """Covariances among each run's measurements: of noise and effects alone, and with them."""
        z = np.where(self.slots >= 0, self.measured[:, self.slots], 0.0)
        block = np.einsum("srm,srn->rmn", z, z, optimize=True)
        effects = self._effects(self.slots[:, :, None], self.slots[:, None, :])
        own = np.where(self.slots >= 0, self.noise[self.slots], 1.0)
        effects += own[:, :, None] * np.eye(self.slots.shape[1])
        return effects, block + effects

    def _effects(self, one: Ints, two: Ints) -> Floats:
        """Covariance of shared effects, zero where an index is -1."""
        there = (one >= 0) & (two >= 0)
        total = np.zeros(there.shape)
        for code, variance in self.shared:
            total += variance * (there & (code[one] == code[two]) & (code[one] >= 0))
        return total

    def brought(self, options: Sequence[int]) -> Ints:
        """Measurements that come with options: each run up to its longest one."""
        chosen = np.isin(self.option[self.slots], options) & (self.slots >= 0)
        upto = np.flip(np.logical_or.accumulate(np.flip(chosen, 1), 1), 1)
        return self.slots[upto & (self.slots >= 0)]

    def given(self, options: Sequence[int]) -> "Learnt":
        """What is left to learn after these options, and what each option would add."""
        have = self.brought(options)
        open_ = (self.slots >= 0) & ~np.isin(self.slots, have)
        alone, block = self._within
        effects = self._effects(have[:, None], np.arange(len(self.noise))[None])
        covariances = [self._covariance(i) for i in have]
        whole = effects + np.array(covariances).reshape(effects.shape)
        root, known, roots = self._condition(whole, have, block, open_)
        noise_root, _, noise_roots = self._condition(effects, have, alone, open_)
        targets = np.linalg.solve(root, self._cross[:, have].T)
        left = (self._cross - targets.T @ known).T[self.slots] * open_[..., None]
        bits = np.log(_diagonal(roots) / _diagonal(noise_roots)).cumsum(1)
        return Learnt(
            variance=self.variance - ((targets @ self._axes.T) ** 2).sum(0),
            known=float(np.log(np.diagonal(root) / np.diagonal(noise_root)).sum()),
            information=bits.ravel()[self._last],
            steps=np.linalg.solve(roots, left),
            axes=self._axes,
            last=self._last,
        )

    def _condition(
        self, rows: Floats, have: Ints, within: Floats, open_: Flags
    ) -> tuple[Floats, Floats, Floats]:
        """What measurements leave open among those of each run.

        From the covariances of those taken with all (`rows`) and of each run's own (`within`): the
        Cholesky root of those taken, the whitened `rows`, and the root of each run's covariance
        given them. Roots of a run's first rows are nested, so one serves all its options.
        """
        root = np.linalg.cholesky(rows[:, have] + np.diag(self.noise[have]))
        known = np.linalg.solve(root, rows)
        seen = (known[:, self.slots] * open_).transpose(1, 0, 2)
        both = open_[:, :, None] & open_[:, None, :]
        left = np.where(both, within - seen.swapaxes(1, 2) @ seen, np.eye(self.slots.shape[1]))
        return root, known, np.linalg.cholesky(left)


@dataclass(frozen=True)
class Learnt:
    """State of knowledge after some measurements, and what each option would add.

    Parameters
    ----------
    variance : array, shape (targets,)
        Of each target.
    known : float
        Nats brought about the law's losses, whatever the targets.
    information : array, shape (options,)
        Further nats that each option would bring.
    steps : array, shape (runs, longest, axes)
        Covariance of the targets, along their axes, with what is new in each measurement of a run
        after those before it, in units of its standard deviation.
    axes : array, shape (targets, axes)
    last : array of int, shape (options,)
        Place of each option's last measurement in the first two dimensions of `steps`.
    """

    variance: Floats
    known: float
    information: Floats
    steps: Floats
    axes: Floats
    last: Ints

    def drop(self) -> Floats:
        """By how much each option would reduce each target's variance, (options, targets)."""
        drop = ((self.steps @ self.axes.T) ** 2).cumsum(1)
        return np.asarray(drop.reshape(-1, len(self.axes))[self.last])

    def mean_drop(self, weights: Floats) -> Floats:
        """The same, summed over targets with weights, shape (options,)."""
        form = self.axes.T @ (weights[:, None] * self.axes)
        drop = np.einsum("rmq,rmq->rm", self.steps @ form, self.steps).cumsum(1)
        return np.asarray(drop.ravel()[self.last])


def _diagonal(roots: Floats) -> Floats:
    return np.diagonal(roots, axis1=1, axis2=2)


def centred(values: Floats) -> Floats:
    """Draws (draws, columns), less their mean, over ``sqrt(draws - 1)``."""
    return np.asarray((values - values.mean(0)) / np.sqrt(len(values) - 1))


def slots_of(run: Ints, tokens: Floats, option: Ints) -> Ints:
    """Measurements of each run by tokens, then row, shape (runs, longest); -1 fills up."""
    order = np.lexsort([option, tokens, run])
    ordered = run[order]
    first = np.searchsorted(ordered, ordered)
    place = np.arange(len(run)) - first
    slots = np.full((int(run.max()) + 1, int(place.max()) + 1), -1)
    slots[ordered, place] = order
    return slots
