"""Coordinates in which the sampler sees gates and curvatures; priors and posterior are unchanged.

Data at a few pre-training stages fix little more than the slope of the gated exponent in log P, so
depth and rate lie along a curve: about ``depth * |rate| * sigmoid'`` is constant, and the depth
runs into its upper bound where the rate is small. The logarithm of the rate and the logit of the
depth along that curve are nearly straight and nearly independent.

A curvature c and its term's exponent k lie along a curve too: what bends the loss is
``slope * (k + c / k)``, the second derivative of the term over its slope.
"""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.transforms import Transform

from bayeslaw.priors import Prior

SMALL = 0.1
"""Rates below this are not stretched further: there the gate hardly moves."""


class Stretch(Transform):  # type: ignore[misc]
    """A rate by ``asinh(rate / SMALL)``: logarithmic on both sides of zero."""

    name = "stretch"

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Sampler's coordinate of a rate."""
        return pt.arcsinh(value / SMALL)

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Rate at a coordinate."""
        return SMALL * pt.sinh(value)

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Log of the derivative of `backward`."""
        return np.log(SMALL) + pt.log(pt.cosh(value))


class Straighten(Transform):  # type: ignore[misc]
    """A depth in (0, 1) by its logit plus the log of the gate's slope per odds of the depth."""

    name = "straight"

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Sampler's coordinate of a depth."""
        return pt.log(value) - pt.log1p(-value) + _bend(*inputs)

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Depth at a coordinate."""
        return pt.sigmoid(value - _bend(*inputs))

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Log of the derivative of `backward`."""
        odds = value - _bend(*inputs)
        return -pt.softplus(odds) - pt.softplus(-odds)


def _bend(*inputs: Any) -> Any:
    rate, log_ptpp = inputs[-2:]
    flat = 1 - pt.tanh(0.5 * rate * log_ptpp) ** 2
    return 0.5 * pt.log(rate**2 + SMALL**2) + pt.log(flat + 1e-9)


def gate(names: tuple[str, str], priors: tuple[Prior, Prior], log_ptpp: Any) -> tuple[Any, Any]:
    """Depth and rate of a gate as random variables of the PyMC model in context."""
    rate = priors[1].rv(names[1], default_transform=Stretch())

    def logp(value: Any, rate: Any, log_ptpp: Any) -> Any:
        return pm.logp(priors[0].dist(), value)

    def random(rate: Any, log_ptpp: Any, rng: np.random.Generator, size: Any = None) -> Any:
        return priors[0].sample(rng, size)

    def center(rv: Any, size: Any, rate: Any, log_ptpp: Any) -> Any:
        return pt.full_like(rate, sum(priors[0].support) / 2)

    depth = pm.CustomDist(
        names[0],
        rate,
        log_ptpp,
        logp=logp,
        random=random,
        support_point=center,
        default_transform=Straighten(),
    )
    return depth, rate


class Unbend(Transform):  # type: ignore[misc]
    """A curvature by how much it bends the loss for its slope, given the term's exponent."""

    name = "unbent"

    def __init__(self, own: bool) -> None:
        self.own = float(own)

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Sampler's coordinate of a curvature."""
        return unbent(value, inputs[-1], self.own)

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Curvature at a coordinate."""
        k = inputs[-1]
        return value * (k + SMALL) - self.own * k**2

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Log of the derivative of `backward`."""
        return pt.log(inputs[-1] + SMALL) + 0 * value


def unbent(curvature: Any, exponent: Any, own: float) -> Any:
    """Sampler's coordinate of a curvature along the term's leading covariate, or across it."""
    return (curvature + own * exponent**2) / (exponent + SMALL)


def bend(name: str, prior: Prior, exponent: Any, own: bool) -> Any:
    """A curvature as random variable of the PyMC model in context."""

    def logp(value: Any, exponent: Any) -> Any:
        return pm.logp(prior.dist(), value)

    def random(exponent: Any, rng: np.random.Generator, size: Any = None) -> Any:
        return pm.draw(prior.dist(size=size), random_seed=rng)

    def center(rv: Any, size: Any, exponent: Any) -> Any:
        return pt.zeros_like(exponent)

    return pm.CustomDist(
        name,
        exponent,
        logp=logp,
        random=random,
        support_point=center,
        default_transform=Unbend(own),
    )
