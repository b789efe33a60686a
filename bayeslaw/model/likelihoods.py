"""Likelihoods of log loss: Student-t, normal, and the density whose mode is the Huber fit.

A likelihood is a location-scale family: the location is the log of the modelled loss, the scale is
``sigma``, the same for all rows. Its other parameters are its own.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import ndtr, ndtri

from bayeslaw.common.arrays import Floats, Namespace, Tensor
from bayeslaw.common.defaults import DELTA
from bayeslaw.common.errors import FitError
from bayeslaw.common.registry import Registry
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.terms import Array

DOF_FLOOR = 2.0
"""Least degrees of freedom: below about .4 a Student-t on few rows is unbounded as sigma -> 0."""
OBSERVED = "log_loss"
"""Name of the observed variable of a PyMC model."""


class Likelihood(ABC):
    """A density of measured log loss; subclasses are frozen dataclasses."""

    kind: ClassVar[str] = ""
    """Its name."""
    words: ClassVar[str] = ""
    """What it is, for reports."""
    parameters: ClassVar[Mapping[str, str]] = {}
    """Sampled variables beside ``sigma``, each with the name of its prior in `Spec.priors`.

    `log_density` and `sample` are given these; `observe` is given what `variables` returns."""
    priors: ClassVar[Mapping[str, Prior]] = {}
    """Default priors that no law file states."""

    @abstractmethod
    def observe(self, mu: Tensor, sigma: Tensor, q: Mapping[str, Tensor], observed: Tensor) -> None:
        """Add the observed log losses to the PyMC model in context, as the variable `OBSERVED`.

        Parameters
        ----------
        mu, sigma : PyTensor variable, shape (rows,)
            Location and scale of log loss; `sigma` may be a scalar.
        q : mapping
            The variables of `parameters`.
        observed : PyTensor variable, shape (rows,)
        """

    @abstractmethod
    def log_density(self, residual: Floats, sigma: Floats, q: Mapping[str, Floats]) -> Floats:
        """Log density of residuals of log loss; arguments broadcast, (draws, rows).

        They are arrays, or nodes of a `bayeslaw.model.tape.Tape`; use its `FUNCTIONS`.
        """

    @abstractmethod
    def sample(
        self,
        rng: np.random.Generator,
        shape: tuple[int, ...],
        sigma: float | Floats,
        q: Mapping[str, Floats],
    ) -> Floats:
        """Residuals of log loss, of the given shape; `sigma` and `q` broadcast to it."""

    def variables(self, priors: Mapping[str, Prior]) -> dict[str, Tensor]:
        """Random variables of its parameters, in the PyMC model in context."""
        return {name: priors[prior].rv(name) for name, prior in self.parameters.items()}

    def information_variance(self, sigma: Floats, q: Mapping[str, Floats]) -> Floats:
        """Inverse of the Fisher information of one measurement about its location.

        A normal measurement of that variance tells as much about the location. By default
        ``sigma^2``, which is exact for normal noise.
        """
        variance: Floats = sigma**2
        return variance


LIKELIHOODS: Registry[Likelihood] = Registry("likelihood", Likelihood)


@LIKELIHOODS.register
@dataclass(frozen=True)
class StudentT(Likelihood):
    """Student-t noise with estimated degrees of freedom above `DOF_FLOOR`."""

    kind: ClassVar[str] = "studentt"
    words: ClassVar[str] = "Student-t"
    parameters: ClassVar[Mapping[str, str]] = {"dof_above_floor": "dof"}

    def variables(self, priors: Mapping[str, Prior]) -> dict[str, Tensor]:
        """Degrees of freedom above the floor; their sum with it is a deterministic."""
        import pymc as pm

        q = super().variables(priors)
        return q | {"dof": pm.Deterministic("dof", DOF_FLOOR + q["dof_above_floor"])}

    def observe(self, mu: Tensor, sigma: Tensor, q: Mapping[str, Tensor], observed: Tensor) -> None:
        """Add the observed log losses to the PyMC model in context."""
        import pymc as pm

        pm.StudentT(OBSERVED, nu=q["dof"], mu=mu, sigma=sigma, observed=observed)

    def log_density(self, residual: Floats, sigma: Floats, q: Mapping[str, Floats]) -> Floats:
        """Log density of residuals of log loss."""
        from bayeslaw.model.tape import FUNCTIONS as F

        dof, u = q["dof_above_floor"] + DOF_FLOOR, residual / sigma
        one = F.gammaln(0.5 * dof + 0.5) - F.gammaln(0.5 * dof) - 0.5 * F.log(dof * math.pi)
        density: Floats = one - F.log(sigma) - (0.5 * dof + 0.5) * F.log1p(u * u / dof)
        return density

    def sample(
        self,
        rng: np.random.Generator,
        shape: tuple[int, ...],
        sigma: float | Floats,
        q: Mapping[str, Floats],
    ) -> Floats:
        """Residuals of log loss."""
        dof = np.broadcast_to(q["dof_above_floor"] + DOF_FLOOR, shape)
        return np.asarray(sigma * rng.standard_t(dof))

    def information_variance(self, sigma: Floats, q: Mapping[str, Floats]) -> Floats:
        """``sigma^2 (dof + 3) / (dof + 1)`` [1]_; the variance is larger and may be infinite.

        References
        ----------
        .. [1] Lange, Little and Taylor, Robust statistical modeling using the t distribution.
           Journal of the American Statistical Association 84 (1989).
        """
        dof = q["dof_above_floor"] + DOF_FLOOR
        variance: Floats = sigma**2 * (dof + 3) / (dof + 1)
        return variance


@LIKELIHOODS.register
@dataclass(frozen=True)
class Normal(Likelihood):
    """Normal noise."""

    kind: ClassVar[str] = "normal"
    words: ClassVar[str] = "Normal"

    def observe(self, mu: Tensor, sigma: Tensor, q: Mapping[str, Tensor], observed: Tensor) -> None:
        """Add the observed log losses to the PyMC model in context."""
        import pymc as pm

        pm.Normal(OBSERVED, mu=mu, sigma=sigma, observed=observed)

    def log_density(self, residual: Floats, sigma: Floats, q: Mapping[str, Floats]) -> Floats:
        """Log density of residuals of log loss."""
        from bayeslaw.model.tape import FUNCTIONS as F

        u = residual / sigma
        density: Floats = -0.5 * u * u - F.log(sigma) - 0.5 * math.log(2 * math.pi)
        return density

    def sample(
        self,
        rng: np.random.Generator,
        shape: tuple[int, ...],
        sigma: float | Floats,
        q: Mapping[str, Floats],
    ) -> Floats:
        """Residuals of log loss."""
        return np.asarray(sigma * rng.standard_normal(shape))


@LIKELIHOODS.register
@dataclass(frozen=True)
class Huber(Likelihood):
    r"""The density ``exp(-Huber_delta(r) / s^2) / (s Z(delta/s))`` of a residual r.

    ``Z(k) = sqrt(2 pi) (2 Phi(k) - 1) + (2/k) exp(-k^2/2)``. The threshold is fixed in the units of
    the residual, so for every s the mode over the location is the Huber minimiser [1]_.

    Parameters
    ----------
    delta : float
        Threshold, in log loss.

    Raises
    ------
    FitError
        If `delta` is not positive.

    References
    ----------
    .. [1] Huber, Robust estimation of a location parameter. Annals of Mathematical Statistics 35
       (1964).
    """

    delta: float = DELTA
    kind: ClassVar[str] = "huber"
    words: ClassVar[str] = "Huber"

    def __post_init__(self) -> None:
        if not self.delta > 0:
            raise FitError(f"delta must be positive, not {self.delta!r}.")

    def observe(self, mu: Tensor, sigma: Tensor, q: Mapping[str, Tensor], observed: Tensor) -> None:
        """Add the observed log losses to the PyMC model in context."""
        import pymc as pm
        import pytensor.tensor as pt

        def logp(value: Tensor, mu: Tensor, sigma: Tensor, delta: Tensor) -> Tensor:
            return huber_log_density(value - mu, sigma, delta, pt)

        arguments = (mu, sigma, self.delta)
        pm.CustomDist(OBSERVED, *arguments, logp=logp, random=_huber_random, observed=observed)

    def log_density(self, residual: Floats, sigma: Floats, q: Mapping[str, Floats]) -> Floats:
        """Log density of residuals of log loss."""
        from bayeslaw.model.tape import FUNCTIONS

        density: Floats = huber_log_density(residual, sigma, self.delta, FUNCTIONS)
        return density

    def sample(
        self,
        rng: np.random.Generator,
        shape: tuple[int, ...],
        sigma: float | Floats,
        q: Mapping[str, Floats],
    ) -> Floats:
        """Residuals of log loss: a truncated normal inside, exponential tails outside."""
        k = np.broadcast_to(self.delta / np.asarray(sigma, float), shape)
        inside = math.sqrt(2 * math.pi) * (2 * ndtr(k) - 1)
        tail = 2 / k * np.exp(-0.5 * k**2)
        u, sign = rng.random(shape), np.where(rng.random(shape) < 0.5, -1.0, 1.0)
        core = ndtri(0.5 + u * (ndtr(k) - 0.5))
        far = k + rng.exponential(size=shape) / k
        return np.asarray(
            sigma * sign * np.where(rng.random(shape) * (inside + tail) < inside, core, far)
        )

    def information_variance(self, sigma: Floats, q: Mapping[str, Floats]) -> Floats:
        """``sigma^2`` over the probability of a residual within the threshold.

        The score is ``r / sigma^2`` there and constant beyond, so its derivative, whose mean is
        the information, is that probability over ``sigma^2``.
        """
        from bayeslaw.model.tape import FUNCTIONS as F

        k = self.delta / sigma
        inside = math.sqrt(2 * math.pi) * F.erf(k / math.sqrt(2))
        variance: Floats = sigma**2 * (1 + 2 / k * F.exp(-0.5 * k**2) / inside)
        return variance


def huber_log_density(residual: Array, sigma: Array, delta: float, xp: Namespace) -> Array:
    """Log density of `Huber`."""
    r, k = xp.maximum(residual, -residual), delta / sigma
    near = xp.minimum(r, delta)
    loss = 0.5 * near**2 + delta * (r - near)
    inside = math.sqrt(2 * math.pi) * xp.erf(k / math.sqrt(2))
    return -loss / sigma**2 - xp.log(sigma) - xp.log(inside + 2 / k * xp.exp(-0.5 * k**2))


def _huber_random(
    mu: Floats,
    sigma: Floats,
    delta: Floats,
    rng: np.random.Generator | None = None,
    size: tuple[int, ...] | None = None,
) -> Floats:
    shape = tuple(size) if size is not None else np.broadcast(mu, sigma).shape
    rng = rng or np.random.default_rng()
    drawn = Huber(float(np.asarray(delta).ravel()[0])).sample(rng, shape, sigma, {})
    return np.asarray(mu + drawn)
