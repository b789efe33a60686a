"""Coordinates in which the sampler sees a gate; priors and posterior are unchanged.

Data at a few pre-training stages fix little more than the slope of the gated exponent in log P, so
depth and rate lie along a curve: about ``depth * |rate| * sigmoid'`` is constant, and the depth
runs into its upper bound where the rate is small. The logarithm of the rate and the logit of the
depth along that curve are nearly straight and nearly independent.
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
