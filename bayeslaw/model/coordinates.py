"""Coordinates in which the sampler sees a law; priors and posterior are those of the law.

**Term sizes.** The floor and the term sizes at the reference point add up to a loss that the data
determine well, and none may be negative. Exponents as coordinates would put the floor's zero at a
boundary inside the sampled space. Instead the coordinate of a term's exponent is the logit of the
fraction its size takes of the loss that earlier terms leave (`SizeFraction`).

**Gates.** A few pre-training stages determine little more than the slope of a gated exponent in
log P, so the gate's depth and rate are strongly correlated. The logarithm of the rate, and that of
the slope as a fraction of its maximum at that rate, are nearly independent (`Asinh`, `GateSlope`).

**Curvatures and tilts.** The data determine the second derivative of the loss along a covariate,
``slope * (k + c / k)``, better than the curvature c or the exponent k. We sample that derivative
over the slope in place of c (`SecondDerivative`). For the same reason the tilt of a term with a
power of r is sampled as the net slope in r (`NetSlope`), and any other coefficient in the log of a
term as the change in nats that it makes (`ChangeSize`).
"""

from collections.abc import Mapping
from functools import singledispatch
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.transforms import Transform

from bayeslaw.common.arrays import Tensor
from bayeslaw.laws.law import KAPPA, Law
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.terms import GatedPower, Term, Values

if TYPE_CHECKING:
    from bayeslaw.model.discrepancies import Discrepancy

START = 3.0
"""Loss at the reference point where PyMC's own sampler starts, nats per token."""
SMALL = 0.1
"""Scale of `Asinh`: below it the gate hardly changes with P, and the coordinate is linear."""


def coordinates(
    law: Law, priors: Mapping[str, Prior], at: Values, discrepancy: "Discrepancy"
) -> dict[str, Tensor]:
    """Reference coordinates as random variables of the PyMC model in context, for the sampler.

    The joint density is that of the stated priors. The loss at the reference point is sampled and
    the floor follows from it, so the prior of the floor is a potential. Prior draws come from the
    model with ``for_sampling=False``.
    """
    plain = [term.plain for term in law.terms]
    fractions = [term for term in law.terms if priors[term.plain.local].support == (0, np.inf)]
    dependent = {"L_ref", *discrepancy.dependent(law)}
    dependent |= set(chain.from_iterable(dependent_exponents(term, priors) for term in plain))
    dependent |= {term.plain.local for term in fractions}
    dependent |= {KAPPA} if law.coupled else set()
    q = {name: priors[name].rv(name) for name in law.coordinates if name not in dependent}
    for term in plain:
        q |= exponent_coordinates(term, priors, at)
    size: dict[str, Tensor] = {}
    left = q["L_ref"] = pm.Flat("L_ref", initval=START)
    for term in [term for term in law.terms if term not in fractions] + fractions:
        name = term.plain.local
        unit = term.exponent(term.plain.from_local({**q, name: 1.0}, at, pt), at, pt)
        slope = q[term.slope] / unit
        if term in fractions:
            q[name] = transformed(SizeFraction(), name, priors[name], slope, left)
        size[name] = slope / q[name]
        left = left - size[name]
    if law.coupled:
        together = [term.plain.local for term in law.terms if term.coefficient in law.coupled]
        share = sum(size[name] for name in together) / q["L_ref"]
        q[KAPPA] = transformed(Coupling(), KAPPA, priors[KAPPA], share)
    q |= discrepancy.coordinates(law, priors, at, q, size)
    pm.Potential("floor", pm.logp(priors["E"].dist(), law.sizes(q, at, pt)["E"]))
    return q


@singledispatch
def dependent_exponents(term: Term, priors: Mapping[str, Prior]) -> tuple[str, ...]:
    """Exponents, besides the leading one, for which a kind of term defines coordinates."""
    return ()


@singledispatch
def exponent_coordinates(term: Term, priors: Mapping[str, Prior], at: Values) -> dict[str, Tensor]:
    """Random variables of `dependent_exponents`; a kind of term may register its own."""
    return {}


@dependent_exponents.register
def _gate_parameters(term: GatedPower, priors: Mapping[str, Prior]) -> tuple[str, ...]:
    supports = priors[term.depth].support, priors[term.rate].support
    return (term.depth, term.rate) if supports == ((0, 1), (-np.inf, np.inf)) else ()


@exponent_coordinates.register
def _gate_coordinates(
    term: GatedPower, priors: Mapping[str, Prior], at: Values
) -> dict[str, Tensor]:
    if not dependent_exponents(term, priors):  # the transforms are for the whole supports
        return {}
    rate = priors[term.rate].rv(term.rate, default_transform=Asinh())
    depth = transformed(GateSlope(), term.depth, priors[term.depth], rate, at["ptpp"])
    return {term.rate: rate, term.depth: depth}


def transformed(through: Transform, name: str, prior: Prior, *inputs: Tensor) -> Tensor:
    """A random variable with a stated prior, in a coordinate that depends on other variables."""

    def logp(value: Tensor, *inputs: Tensor) -> Tensor:
        return pm.logp(prior.dist(), value)

    def start(rv: Tensor, size: Tensor, *inputs: Tensor) -> Tensor:
        return through.backward(pt.as_tensor(through.start), *inputs)

    return pm.CustomDist(name, *inputs, logp=logp, support_point=start, default_transform=through)


class SizeFraction(Transform):  # type: ignore[misc]  # PyMC ships no types
    """An exponent, as the logit of the fraction its term takes of the loss left to it.

    The term's size is slope / exponent; the inputs end with the slope and the loss left.
    """

    name = "size_fraction"
    start = -0.7  # a third of the loss left

    def forward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Sampler's coordinate of an exponent."""
        slope, left = inputs[-2:]
        return pt.log(slope) - pt.log(left * value - slope)

    def backward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Exponent at a coordinate."""
        slope, left = inputs[-2:]
        return slope / left * (1 + pt.exp(-value))

    def log_jac_det(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Log of the derivative of `backward`."""
        slope, left = inputs[-2:]
        return pt.log(slope / left) - value


class Asinh(Transform):  # type: ignore[misc]
    """A rate as ``asinh(rate / SMALL)``: logarithmic on both sides of zero."""

    name = "asinh"

    def forward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Sampler's coordinate of a rate."""
        return pt.arcsinh(value / SMALL)

    def backward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Rate at a coordinate."""
        return SMALL * pt.sinh(value)

    def log_jac_det(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Log of the derivative of `backward`."""
        return np.log(SMALL) + pt.log(pt.cosh(value))


class GateSlope(Transform):  # type: ignore[misc]
    """A gate's depth in (0, 1), as the gated exponent's slope in log P over its maximum.

    At the reference point the factor ``1 - depth s`` of the exponent, s the gate there, falls by
    ``rate s u`` per e-fold of P, with u = ``depth (1 - s) / (1 - depth s)`` in (0, 1). The
    coordinate is the log of that slope where u is small, and grows no faster than
    ``log(-log(1 - u))`` where the depth approaches 1. Depths and rates of equal slope form a
    straight ridge in these coordinates.
    """

    name = "gate_slope"
    start = -1.0

    def forward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Sampler's coordinate of a depth."""
        most, gate, rest = _gate(*inputs)
        return pt.log(-pt.log1p(-value * rest / (1 - value * gate))) + most

    def backward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Depth at a coordinate."""
        most, gate, rest = _gate(*inputs)
        u = -pt.expm1(-pt.exp(value - most))
        return u / (rest + gate * u)

    def log_jac_det(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Log of the derivative of `backward`."""
        most, gate, rest = _gate(*inputs)
        log = value - most
        u = -pt.expm1(-pt.exp(log))
        return log - pt.exp(log) + pt.log(rest) - 2 * pt.log(rest + gate * u)


def _gate(*inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log of the largest slope at the rate, the gate at the reference P, and one minus the gate."""
    rate, log_ptpp = inputs[-2:]
    gate, rest = pt.sigmoid(rate * log_ptpp), pt.sigmoid(-rate * log_ptpp)
    return 0.5 * pt.log(rate**2 + SMALL**2) - pt.softplus(-rate * log_ptpp), gate, rest


class SecondDerivative(Transform):  # type: ignore[misc]
    """A curvature, as the second derivative of the loss over its slope, given the exponent.

    Parameters
    ----------
    own : bool
        Whether the curvature is along the term's leading covariate, or across it.
    """

    name = "second_derivative"
    start = 0.0

    def __init__(self, own: bool) -> None:
        self.own = float(own)

    def forward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Sampler's coordinate of a curvature."""
        k = inputs[-1]
        return (value + self.own * k**2) / (k + SMALL)

    def backward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Curvature at a coordinate."""
        k = inputs[-1]
        return value * (k + SMALL) - self.own * k**2

    def log_jac_det(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Log of the derivative of `backward`."""
        return pt.log(inputs[-1] + SMALL) + 0 * value


class NetSlope(Transform):  # type: ignore[misc]
    """A tilt, as the total slope in r of its term's log: that of the tilt and of the power of r."""

    name = "net_slope"
    start = 0.0

    def forward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Sampler's coordinate of a tilt."""
        power, share = inputs[-2:]
        return value + power / share

    def backward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Tilt at a coordinate."""
        power, share = inputs[-2:]
        return value - power / share

    def log_jac_det(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Log of the derivative of `backward`."""
        return 0 * value


class ChangeSize(Transform):  # type: ignore[misc]
    """A coefficient in the log of a term, as the change of the loss in nats that it causes.

    The inputs end with the term's size.
    """

    name = "change_size"
    start = 0.0

    def forward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Sampler's coordinate of a coefficient."""
        return value * inputs[-1]

    def backward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Coefficient at a coordinate."""
        return value / inputs[-1]

    def log_jac_det(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Log of the derivative of `backward`."""
        return 0 * value - pt.log(inputs[-1])


class Coupling(Transform):  # type: ignore[misc]
    """A coupling's kappa, as log kappa over the coupled terms' fraction of the loss.

    The data determine the mixed derivative of the loss along two terms, ``1 - 1/kappa`` over the
    sum of the terms, better than kappa.
    """

    name = "coupling"
    start = 0.0

    def forward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Sampler's coordinate of kappa."""
        return pt.log(value) / inputs[-1]

    def backward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Kappa at a coordinate."""
        return pt.exp(value * inputs[-1])

    def log_jac_det(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Log of the derivative of `backward`."""
        return value * inputs[-1] + pt.log(inputs[-1])


class Centring(Transform):  # type: ignore[misc]
    """A standardised random effect, as its product with a power of its standard deviation.

    The inputs end with the standard deviation and the power: 0 leaves it standardised (the
    non-centred form), 1 gives the effect itself (the centred form).
    """

    name = "centring"

    def forward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Sampler's coordinate of a standardised effect."""
        sd, power = inputs[-2:]
        return value * pt.exp(power * pt.log(sd))

    def backward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Standardised effect at a coordinate."""
        sd, power = inputs[-2:]
        return value * pt.exp(-power * pt.log(sd))

    def log_jac_det(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Log of the derivative of `backward`."""
        sd, power = inputs[-2:]
        return -power * pt.log(sd) + 0 * value


def standardised_effects(name: str, sd: Tensor, power: Tensor) -> Tensor:
    """Independent standard normal effects, in the coordinates of `Centring`.

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
        default_transform=Centring(),
        shape=power.shape,
    )
