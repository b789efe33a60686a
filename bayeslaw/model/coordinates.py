"""Coordinates in which the sampler sees a law; priors and posterior are those of the law.

**Term sizes.** The floor and the term sizes at the reference point add up to a loss that the data
determine well, and none may be negative. Exponents as coordinates would put the floor's zero at a
boundary inside the sampled space. Instead the coordinate of a term's exponent is the logit of the
fraction its size takes of the loss that earlier terms leave (`SIZE_FRACTION`).

**Gates.** A few pre-training stages determine little more than the slope of a gated exponent in
log P, so the gate's depth and rate are strongly correlated. The logarithm of the rate, and that of
the slope as a fraction of its maximum at that rate, are nearly independent (`ASINH`, `GATE_SLOPE`).

**Curvatures and tilts.** The data determine the second derivative of the loss along a covariate,
``slope * (k + c / k)``, better than the curvature c or the exponent k. We sample that derivative
over the slope in place of c (`OWN_DERIVATIVE`, `CROSSED_DERIVATIVE`). For the same reason the tilt
of a term with a power of r is sampled as the net slope in r (`NET_SLOPE`), and any other
coefficient in the log of a term as the change in nats that it makes (`CHANGE_SIZE`).
"""

from collections.abc import Callable, Mapping
from functools import singledispatch
from itertools import chain
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from bayeslaw.common.arrays import Tensor
from bayeslaw.laws.law import Law
from bayeslaw.laws.modifiers import ModifiedTerm, Modifier, Polynomial
from bayeslaw.laws.parts import KAPPA
from bayeslaw.laws.powers import GatedPower
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.terms import Term, Values
from bayeslaw.model.curvature import rise_in_replay
from bayeslaw.model.transforms import (
    ASINH,
    CHANGE_SIZE,
    COUPLING,
    CROSSED_DERIVATIVE,
    GATE_SLOPE,
    NET_SLOPE,
    OWN_DERIVATIVE,
    SIZE_FRACTION,
    Coordinate,
    transformed,
)

START = 3.0
"""Loss at the reference point in a model's initial point, nats per token; chains start at the mean
of the data."""


class Dependent(NamedTuple):
    """A parameter of a term's modifier whose coordinate depends on other variables."""

    name: str
    through: Coordinate
    inputs: Callable[[Values, Values, Values], tuple[Tensor, ...]]
    """The other variables, from the law's other coordinates, the term sizes by local exponent, and
    the reference point."""


def coordinates(law: Law, priors: Mapping[str, Prior], at: Values) -> dict[str, Tensor]:
    """Reference coordinates as random variables of the PyMC model in context, for the sampler.

    The joint density is that of the stated priors. The loss at the reference point is sampled and
    the floor follows from it, so the prior of the floor is a potential. Prior draws come from the
    model with ``for_sampling=False``.
    """
    plain = [term.plain for term in law.terms]
    fractions = [term for term in law.terms if priors[term.plain.local].support == (0, np.inf)]
    modifying = [
        each
        for term in law.terms
        if isinstance(term, ModifiedTerm)
        for each in modifier_coordinates(term.modifier, term)
        if priors[each.name].support == (-np.inf, np.inf)  # as the transforms need it
    ]
    dependent = {"L_ref", *(each.name for each in modifying)}
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
            q[name] = transformed(SIZE_FRACTION, name, priors[name], slope, left)
        size[name] = slope / q[name]
        left = left - size[name]
    if law.coupled:
        together = [term.plain.local for term in law.terms if term.coefficient in law.coupled]
        share = sum(size[name] for name in together) / q["L_ref"]
        q[KAPPA] = transformed(COUPLING, KAPPA, priors[KAPPA], share)
    # Curvatures last: the order of the variables is part of what a seed gives.
    for name, through, inputs in sorted(modifying, key=_is_curvature):
        q[name] = transformed(through, name, priors[name], *inputs(q, size, at))
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
    rate = priors[term.rate].rv(term.rate, default_transform=ASINH)
    depth = transformed(GATE_SLOPE, term.depth, priors[term.depth], rate, at["ptpp"])
    return {term.rate: rate, term.depth: depth}


@singledispatch
def modifier_coordinates(modifier: Modifier, term: ModifiedTerm) -> list[Dependent]:
    """Parameters of a term's modifier that the sampler sees in coordinates of their own.

    A kind of modifier may register its own. The others are sampled as they are.
    """
    return []


@modifier_coordinates.register
def _of_polynomial(modifier: Polynomial, term: ModifiedTerm) -> list[Dependent]:
    power, found = rise_in_replay(term), []
    for name, along in modifier.coefficients.items():
        if len(along) == 2 and along[1] == term.plain.covariates[0]:
            through = OWN_DERIVATIVE if along[0] == along[1] else CROSSED_DERIVATIVE
            found.append(Dependent(name, through, lambda q, sizes, at: (q[term.local],)))
        elif along == ("share",) and power:
            found.append(Dependent(name, NET_SLOPE, lambda q, sizes, at: (q[power], at["share"])))
        else:
            found.append(Dependent(name, CHANGE_SIZE, lambda q, sizes, at: (sizes[term.local],)))
    return found


def _is_curvature(parameter: Dependent) -> bool:
    return parameter.through in (OWN_DERIVATIVE, CROSSED_DERIVATIVE)
