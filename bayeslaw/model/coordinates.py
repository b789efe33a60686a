"""Coordinates in which the sampler sees a law; priors and posterior are unchanged.

The floor and the terms' sizes at the reference point add up to a loss that the data know well, and
none may be negative. With exponents as coordinates the floor would end at a wall that trajectories
run into; with the share that each term takes of what the terms before it leave, there is none.

Data at a few pre-training stages fix little more than the slope of the gated exponent in log P, so
depth and rate lie along a curve, which ends where the depth would have to pass 1. The logarithm of
the rate and that of the slope, as a share of the most the rate allows, are nearly independent.

A curvature c and its term's exponent k lie along a curve too: what bends the loss is
``slope * (k + c / k)``, the second derivative of the term over its slope. So do a tilt and what
tilts beside it: data know the slope in r of ``r^nu exp(c r)``, and of ``C exp(c r)`` the nats.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.transforms import Transform

from bayeslaw.laws.law import Law
from bayeslaw.laws.priors import Prior

START = 3.0
"""Loss at the reference point where PyMC's own sampler starts, nats per token."""
SMALL = 0.1
"""Rates below this are not stretched further: there the gate hardly moves."""


def coordinates(law: Law, priors: Mapping[str, Prior], at: Mapping[str, Any]) -> dict[str, Any]:
    """Reference coordinates as random variables of the PyMC model in context, for the sampler.

    The joint density is that of the stated priors. It is no forward model: the prior of the floor
    is a potential, since the loss at the reference point comes first here.
    """
    shares = [term for term in law.terms if priors[term.plain.local].support == (0, np.inf)]
    gates = [(term.depth, term.rate) for term in law.terms_gated]
    own = {"L_ref", *chain.from_iterable(gates), *(n for n, *_ in (*law.bends, *law.tilts))}
    own |= {term.plain.local for term in shares}
    q = {name: priors[name].rv(name) for name in law.coordinates if name not in own}
    for depth, rate in gates:
        q[rate] = priors[rate].rv(rate, default_transform=Stretch())
        q[depth] = _seen(Straighten(), depth, priors[depth], q[rate], at["ptpp"])
    size: dict[str, Any] = {}
    room = q["L_ref"] = pm.Flat("L_ref", initval=START)
    for term in [term for term in law.terms if term not in shares] + shares:
        name = term.plain.local
        unit = term.exponent(term.plain.from_local({**q, name: 1.0}, at, pt), at, pt)
        slope = q[term.slope] / unit
        if term in shares:
            q[name] = _seen(Share(), name, priors[name], slope, room)
        size[name] = slope / q[name]
        room = room - size[name]
    for name, exponent, power in law.tilts:
        if power:
            q[name] = _seen(Lean(), name, priors[name], q[power], at["share"])
        else:
            q[name] = _seen(Amount(), name, priors[name], size[exponent])
    for name, exponent, along in law.bends:
        q[name] = _seen(Unbend(along), name, priors[name], q[exponent])
    pm.Potential("floor", pm.logp(priors["E"].dist(), law.sizes(q, at, pt)["E"]))
    return q


def _seen(through: Transform, name: str, prior: Prior, *inputs: Any) -> Any:
    """A random variable of stated prior, in a coordinate that depends on other variables."""

    def logp(value: Any, *inputs: Any) -> Any:
        return pm.logp(prior.dist(), value)

    def start(rv: Any, size: Any, *inputs: Any) -> Any:
        return through.backward(pt.as_tensor(through.start), *inputs)

    return pm.CustomDist(name, *inputs, logp=logp, support_point=start, default_transform=through)


class Share(Transform):  # type: ignore[misc]
    """An exponent by the logit of its term's size over the room left: size = slope / exponent."""

    name = "share"
    start = -0.7  # a third of the room

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Sampler's coordinate of an exponent."""
        slope, room = inputs[-2:]
        return pt.log(slope) - pt.log(room * value - slope)

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Exponent at a coordinate."""
        slope, room = inputs[-2:]
        return slope / room * (1 + pt.exp(-value))

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Log of the derivative of `backward`."""
        slope, room = inputs[-2:]
        return pt.log(slope / room) - value


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
    """A depth in (0, 1) by what it bends: the gate's slope in log P, of the most it can be.

    At the reference point the open share ``1 - depth s`` of the exponent, s the gate there, falls
    by ``rate s u`` per e-fold of P, with u = ``depth (1 - s) / (1 - depth s)`` in (0, 1). The
    coordinate is log of the slope where u is small, and grows no faster than ``log(-log(1 - u))``
    where the depth runs into 1: data that know the slope are a straight band in it.
    """

    name = "straight"
    start = -1.0

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Sampler's coordinate of a depth."""
        most, gate, rest = _gate(*inputs)
        return pt.log(-pt.log1p(-value * rest / (1 - value * gate))) + most

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Depth at a coordinate."""
        most, gate, rest = _gate(*inputs)
        u = -pt.expm1(-pt.exp(value - most))
        return u / (rest + gate * u)

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Log of the derivative of `backward`."""
        most, gate, rest = _gate(*inputs)
        log = value - most
        u = -pt.expm1(-pt.exp(log))
        return log - pt.exp(log) + pt.log(rest) - 2 * pt.log(rest + gate * u)


def _gate(*inputs: Any) -> tuple[Any, Any, Any]:
    """Log of the steepest slope the gate can have, the gate at P, and what it leaves shut."""
    rate, log_ptpp = inputs[-2:]
    gate, rest = pt.sigmoid(rate * log_ptpp), pt.sigmoid(-rate * log_ptpp)
    return 0.5 * pt.log(rate**2 + SMALL**2) - pt.softplus(-rate * log_ptpp), gate, rest


class Unbend(Transform):  # type: ignore[misc]
    """A curvature by how much it bends the loss for its slope, given the term's exponent.

    `own` says whether it is along the term's leading covariate, or across.
    """

    name = "unbent"
    start = 0.0

    def __init__(self, own: bool) -> None:
        self.own = float(own)

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Sampler's coordinate of a curvature."""
        k = inputs[-1]
        return (value + self.own * k**2) / (k + SMALL)

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Curvature at a coordinate."""
        k = inputs[-1]
        return value * (k + SMALL) - self.own * k**2

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Log of the derivative of `backward`."""
        return pt.log(inputs[-1] + SMALL) + 0 * value


class Lean(Transform):  # type: ignore[misc]
    """A tilt with the slope that the power of r beside it has at the reference point."""

    name = "lean"
    start = 0.0

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Sampler's coordinate of a tilt."""
        power, share = inputs[-2:]
        return value + power / share

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Tilt at a coordinate."""
        power, share = inputs[-2:]
        return value - power / share

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Log of the derivative of `backward`."""
        return 0 * value


class Amount(Transform):  # type: ignore[misc]
    """A tilt by the nats that it is worth, given the size of its term."""

    name = "amount"
    start = 0.0

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Sampler's coordinate of a tilt."""
        return value * inputs[-1]

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Tilt at a coordinate."""
        return value / inputs[-1]

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Log of the derivative of `backward`."""
        return 0 * value - pt.log(inputs[-1])
