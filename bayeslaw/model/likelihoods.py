"""Noise on log loss: Student-t, normal, and the density whose mode is the Huber fit."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.special import ndtr, ndtri

from bayeslaw.common.errors import LawError, unknown

LIKELIHOODS = ("studentt", "normal", "huber")
DOF_FLOOR = 2.0
"""With a free dof below about .4 a Student-t on few rows is unbounded as sigma goes to 0."""


def check_likelihood(name: str) -> str:
    """`name` if it is a likelihood; otherwise raise `LawError` naming the valid ones."""
    if name not in LIKELIHOODS:
        raise LawError(unknown("likelihood", name, LIKELIHOODS))
    return name


def observe(likelihood: str, mu: Any, sigma: Any, dof: Any, delta: Any, observed: Any) -> Any:
    """Add the observed log losses to the PyMC model in context."""
    import pymc as pm

    name = "log_loss"
    if likelihood == "studentt":
        return pm.StudentT(name, nu=dof, mu=mu, sigma=sigma, observed=observed)
    if likelihood == "normal":
        return pm.Normal(name, mu=mu, sigma=sigma, observed=observed)
    args = (mu, sigma, delta)
    return pm.CustomDist(name, *args, logp=huber_logp, random=_huber_random, observed=observed)


def huber_logp(value: Any, mu: Any, sigma: Any, delta: Any) -> Any:
    r"""Log of ``exp(-Huber_delta(r) / s^2) / (s Z(delta/s))``, r = value - mu.

    ``Z(k) = sqrt(2 pi) (2 Phi(k) - 1) + (2/k) exp(-k^2/2)``. The threshold is fixed in the units of
    the residual, so for every s the mode over mu is the Huber minimiser.
    """
    import pytensor.tensor as pt

    r, k = pt.abs(value - mu), delta / sigma
    loss = pt.switch(r <= delta, 0.5 * r**2, delta * (r - 0.5 * delta))
    inside = math.sqrt(2 * math.pi) * pt.erf(k / math.sqrt(2))
    return -loss / sigma**2 - pt.log(sigma) - pt.log(inside + 2 / k * pt.exp(-0.5 * k**2))


def log_density(
    likelihood: str, residual: Any, sigma: Any, dof_above_floor: Any = None, delta: float = 0.02
) -> npt.NDArray[np.float64]:
    """Log density of a residual of log loss under the noise; arguments broadcast."""
    if likelihood == "studentt":
        return np.asarray(stats.t.logpdf(residual, dof_above_floor + DOF_FLOOR, scale=sigma))
    if likelihood == "normal":
        return np.asarray(stats.norm.logpdf(residual, scale=sigma))
    wide = np.broadcast_arrays(residual, 0.0, sigma, delta)
    return np.asarray(huber_logp(*wide).eval(mode="FAST_COMPILE"), float)


def sample(
    likelihood: str,
    rng: np.random.Generator,
    shape: tuple[int, ...],
    sigma: Any,
    dof: Any = math.inf,
    delta: float = 0.02,
) -> npt.NDArray[np.float64]:
    """Residuals of log loss drawn from the noise, of the given shape."""
    if likelihood == "studentt":
        return np.asarray(sigma * rng.standard_t(np.broadcast_to(dof, shape)))
    if likelihood == "normal":
        return np.asarray(sigma * rng.standard_normal(shape))
    k = np.broadcast_to(delta / np.asarray(sigma, float), shape)
    inside = math.sqrt(2 * math.pi) * (2 * ndtr(k) - 1)
    tail = 2 / k * np.exp(-0.5 * k**2)
    u, sign = rng.random(shape), np.where(rng.random(shape) < 0.5, -1.0, 1.0)
    core = ndtri(0.5 + u * (ndtr(k) - 0.5))
    far = k + rng.exponential(size=shape) / k
    return np.asarray(
        sigma * sign * np.where(rng.random(shape) * (inside + tail) < inside, core, far)
    )


def _huber_random(
    mu: Any, sigma: Any, delta: Any, rng: np.random.Generator | None = None, size: Any = None
) -> Any:
    shape = tuple(size) if size is not None else np.broadcast(mu, sigma).shape
    rng = rng or np.random.default_rng()
    return mu + sample("huber", rng, shape, sigma, delta=float(np.asarray(delta).ravel()[0]))
