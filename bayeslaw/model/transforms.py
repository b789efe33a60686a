"""Coordinates of single variables for the sampler: one transform for each kind of parameter."""

from collections.abc import Callable
from inspect import signature

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.transforms import Transform

from bayeslaw.common.arrays import Tensor
from bayeslaw.laws.priors import Prior

SMALL = 0.1
"""Scale of `ASINH`: below it the gate hardly changes with P, and the coordinate is linear."""


class Coordinate(Transform):  # type: ignore[misc]  # PyMC ships no types
    """A variable's coordinate on the real line, which depends on other variables.

    Parameters
    ----------
    name : str
    forward, backward : callable
        Coordinate from the value, and value from the coordinate, each given the other variables.
    slope : callable
        Log of the derivative of `backward`, of the same arguments as `backward`.
    start : float
        Coordinate at which the sampler's jitter is centred.
    jitter : float
        Scale of that jitter.
    """

    def __init__(
        self,
        name: str,
        forward: Callable[..., Tensor],
        backward: Callable[..., Tensor],
        slope: Callable[..., Tensor],
        start: float = 0.0,
        jitter: float = 1.0,
    ) -> None:
        self.name, self.start, self.jitter = name, start, jitter
        self._count = len(signature(backward).parameters) - 1
        self._forward, self._backward, self._slope = forward, backward, slope

    def forward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """The coordinate of a value."""
        return self._forward(value, *self._others(inputs))

    def backward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """The value at a coordinate."""
        return self._backward(value, *self._others(inputs))

    def log_jac_det(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Log of the derivative of `backward`; of the shape of `value`."""
        return self._slope(value, *self._others(inputs))

    def _others(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The other variables: the last inputs of the random variable."""
        return inputs[len(inputs) - self._count :]


SIZE_FRACTION = Coordinate(
    "size_fraction",
    lambda k, slope, left: pt.log(slope) - pt.log(left * k - slope),
    lambda y, slope, left: slope / left * (1 + pt.exp(-y)),
    lambda y, slope, left: pt.log(slope / left) - y,
    start=-0.7,  # a third of the loss left
)
"""An exponent k, as the logit of the fraction that its term's size, slope / k, takes of the loss
that earlier terms leave. A fraction below 1 keeps the floor positive."""

ASINH = Coordinate(
    "asinh",
    lambda rate: pt.arcsinh(rate / SMALL),
    lambda y: SMALL * pt.sinh(y),
    lambda y: np.log(SMALL) + pt.log(pt.cosh(y)),
)
"""A rate, logarithmic on both sides of zero."""


def _gate(rate: Tensor, log_ptpp: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log of the largest slope at the rate, the gate at the reference P, and one minus the gate."""
    gate, rest = pt.sigmoid(rate * log_ptpp), pt.sigmoid(-rate * log_ptpp)
    return 0.5 * pt.log(rate**2 + SMALL**2) - pt.softplus(-rate * log_ptpp), gate, rest


def _slope_of_depth(depth: Tensor, rate: Tensor, log_ptpp: Tensor) -> Tensor:
    most, gate, rest = _gate(rate, log_ptpp)
    return pt.log(-pt.log1p(-depth * rest / (1 - depth * gate))) + most


def _depth(y: Tensor, rate: Tensor, log_ptpp: Tensor) -> Tensor:
    most, gate, rest = _gate(rate, log_ptpp)
    u = -pt.expm1(-pt.exp(y - most))
    return u / (rest + gate * u)


def _log_slope_of_depth(y: Tensor, rate: Tensor, log_ptpp: Tensor) -> Tensor:
    most, gate, rest = _gate(rate, log_ptpp)
    log = y - most
    u = -pt.expm1(-pt.exp(log))
    return log - pt.exp(log) + pt.log(rest) - 2 * pt.log(rest + gate * u)


GATE_SLOPE = Coordinate("gate_slope", _slope_of_depth, _depth, _log_slope_of_depth, start=-1.0)
"""A gate's depth in (0, 1), as the gated exponent's slope in log P over its maximum.

At the reference point the factor ``1 - depth s`` of the exponent, s the gate there, falls by
``rate s u`` per e-fold of P, with u = ``depth (1 - s) / (1 - depth s)`` in (0, 1). The coordinate
is the log of that slope where u is small, and grows no faster than ``log(-log(1 - u))`` where the
depth approaches 1. Depths and rates of equal slope form a straight ridge in these coordinates."""

CAUTIOUS = 0.1
"""Jitter of curvatures: a large one sends the first leapfrog steps far from the data."""

OWN_DERIVATIVE = Coordinate(
    "second_derivative",
    lambda c, k: (c + k**2) / (k + SMALL),
    lambda y, k: y * (k + SMALL) - k**2,
    lambda y, k: pt.log(k + SMALL) + 0 * y,
    jitter=CAUTIOUS,
)
"""A curvature c along a term's leading covariate, as the second derivative of the loss over its
slope, given the exponent k."""

CROSSED_DERIVATIVE = Coordinate(
    "second_derivative",
    lambda c, k: c / (k + SMALL),
    lambda y, k: y * (k + SMALL),
    lambda y, k: pt.log(k + SMALL) + 0 * y,
    jitter=CAUTIOUS,
)
"""The same of a curvature across another covariate."""

NET_SLOPE = Coordinate(
    "net_slope",
    lambda tilt, power, share: tilt + power / share,
    lambda y, power, share: y - power / share,
    lambda y, power, share: 0 * y,
)
"""A tilt, as the total slope in r of its term's log: that of the tilt and of the power of r."""

CHANGE_SIZE = Coordinate(
    "change_size",
    lambda c, size: c * size,
    lambda y, size: y / size,
    lambda y, size: 0 * y - pt.log(size),
)
"""A coefficient in the log of a term, as the change of the loss in nats that it causes."""

COUPLING = Coordinate(
    "coupling",
    lambda kappa, share: pt.log(kappa) / share,
    lambda y, share: pt.exp(y * share),
    lambda y, share: y * share + pt.log(share),
)
"""A coupling's kappa, as log kappa over the coupled terms' fraction of the loss.

The data determine the mixed derivative of the loss along two terms, ``1 - 1/kappa`` over the sum of
the terms, better than kappa."""

CENTRING = Coordinate(
    "centring",
    lambda z, sd, power: z * pt.exp(power * pt.log(sd)),
    lambda y, sd, power: y * pt.exp(-power * pt.log(sd)),
    lambda y, sd, power: -power * pt.log(sd) + 0 * y,
)
"""A standardised random effect z, as its product with a power of its standard deviation: 0 leaves
it standardised (the non-centred form), 1 gives the effect itself (the centred form)."""


def transformed(through: Coordinate, name: str, prior: Prior, *inputs: Tensor) -> Tensor:
    """A random variable with a stated prior, in a coordinate that depends on other variables."""

    def logp(value: Tensor, *inputs: Tensor) -> Tensor:
        return pm.logp(prior.dist(), value)

    def start(rv: Tensor, size: Tensor, *inputs: Tensor) -> Tensor:
        return through.backward(pt.as_tensor(through.start), *inputs)

    return pm.CustomDist(name, *inputs, logp=logp, support_point=start, default_transform=through)


def standardised_effects(name: str, sd: Tensor, power: Tensor) -> Tensor:
    """Independent standard normal effects, in the coordinates of `CENTRING`.

    Parameters
    ----------
    name : str
    sd : PyTensor variable
        Standard deviation of the effects.
    power : PyTensor variable, shape (groups,)
    """

    def logp(value: Tensor, *inputs: Tensor) -> Tensor:
        return -0.5 * value**2 - 0.5 * np.log(2 * np.pi)

    def start(rv: Tensor, size: Tensor, *inputs: Tensor) -> Tensor:
        return pt.zeros_like(power)

    return pm.CustomDist(
        name,
        sd,
        power,
        logp=logp,
        support_point=start,
        default_transform=CENTRING,
        shape=power.shape,
    )
