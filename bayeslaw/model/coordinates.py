"""The coordinates in which parameters are sampled, and the log density of their priors there.

Positive parameters are sampled as logarithms, those between bounds as logits. Others depend on each
other, and have coordinates in which a posterior is closer to a normal distribution:

- The floor and the term sizes at the reference point add up to a loss that the data determine well,
  and none may be negative. The coordinate of a term's leading exponent is the logit of the fraction
  that its size takes of the loss that earlier terms leave, within the bounds of their priors.
- A few pre-training stages determine little more than the slope of a gated exponent in log P. The
  rate of the gate is sampled on a logarithmic scale on both sides of zero, and its depth as the
  logit of that slope over its largest value at the rate, plus the log of that value.
- Of a coupling the data determine the mixed derivative of the loss along two terms, which is
  ``1 - 1 / kappa`` over their sum, better than kappa: the coordinate is log kappa over the coupled
  terms' share of the loss.
- Along a covariate that leads one term and is a factor of another, to a power of either sign, the
  data determine the slope of the loss, to which the terms add up. In place of the power, the
  coordinate is that slope in nats per e-fold, unless the term is so small that the prior of the
  power says more than the data.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from bayeslaw.common.arrays import Array, Untyped
from bayeslaw.laws.deviations import Linear
from bayeslaw.laws.law import Law
from bayeslaw.laws.priors import FLOOR, Prior
from bayeslaw.laws.steps import KAPPA, Coupling
from bayeslaw.laws.tape import FUNCTIONS as F
from bayeslaw.laws.terms import Named, Term, Values, column_of
from bayeslaw.model.noise import LENGTH
from bayeslaw.model.spec import Data, Spec

FLAT = Prior("Flat")
LITTLE_NATS = 0.15
"""Nats of a term below which data hardly determine its slopes: its powers are then sampled."""
SMALL_RATE = 0.1
"""Rate below which a gate hardly changes with P, and its coordinate is linear."""


def parameters[A: Array](spec: Spec, at: Values, z: Named[A]) -> tuple[dict[str, A], A]:
    """Parameters of a spec that are no weights, and the log density of their priors."""
    law, priors = spec.law, spec.priors
    gated = {n: t for t in law.terms for n in _gate(t, priors)}
    coupled = [KAPPA] if law.step(Coupling) else []
    dependent = {"L_ref", *coupled, *normal_coefficients(spec), *gated}
    dependent |= {term.local for term in _divided(law)} | {*_factors(spec)}
    q: dict[str, Untyped] = {}
    # Log derivative of L_ref, which is exp(z) above its least value; see `_add_sizes`.
    log: Untyped = z["L_ref"]
    for name in (name for name in law.coordinates if name not in dependent):
        q[name], part = on_the_line(priors[name].support, z[name])
        log = log + part + priors[name].log_density(q[name], F)
    for term in {t.coefficient: t for t in gated.values()}.values():
        log = log + _add_gate(q, term, priors, at, z)
    log = _add_sizes(q, log, spec, at, z)
    q = {name: q[name] for name in law.coordinates if name in q}
    for name in _other_parameters(spec):
        prior = priors[spec.likelihood.parameters.get(name, name)]
        q[name], part = on_the_line(prior.support, z[name])
        log = log + part + prior.log_density(q[name], F)
    return q, log


def _divided(law: Law) -> list[Term]:
    """Terms whose sizes are sampled in place of their leading exponents.

    Those of others, whose local exponent is not proportional to the leading one, or which have it
    in common with another term, follow from exponents that are sampled as they are.
    """
    names = [name for term in law.terms for name in term.exponents]
    return [t for t in law.terms if t.proportional and names.count(t.leading) == 1]


class _Factor(NamedTuple):
    """A power of a covariate in a term, where the covariate leads other terms."""

    term: Term
    covariate: str
    sign: float  # of the exponent
    others: list[str]  # slopes of the terms that the covariate leads


def _factors(spec: Spec) -> dict[str, _Factor]:
    """Factors by their exponents, which can have either sign."""
    found: dict[str, _Factor] = {}
    terms = spec.law.terms
    names = [name for term in terms for name in term.exponents]
    for term in terms:
        for covariate in term.covariates[1:]:
            others = [t.slope for t in terms if column_of(t.covariates[0]) == covariate]
            name, sign = term.power_along(covariate)
            alone = names.count(name) == 1 and spec.priors[name].support == FLAT.support
            if others and alone:
                found[name] = _Factor(term, covariate, sign, others)
    return found


def _add_sizes(q: dict[str, Array], log: Array, spec: Spec, at: Values, z: Values) -> Array:
    """Add the loss L at the reference point, leading exponents, powers and kappa; the density.

    A term of slope s and exponent k has the size ``m = s / k`` at the reference point, in nats, so
    bounds of the prior of k are bounds of m: ``least <= m <= least + width``. The prior of the
    floor ``m_0`` bounds it likewise; bounds of its share of the loss are times L. With S the
    logistic function, and sums over the terms and the floor::

        L    = least L + exp(z_L)                or + span S(z_L), if all widths are finite
        left = L - sum of least
        for each term i, in the order of the law:
            more = max(left - sum of widths of later terms and the floor, 0)
            free = min(left, width_i) - more
            m_i  = least_i + more + free S(z_i)  so that k_i = s_i / m_i
            left = left - (m_i - least_i)
        m_0  = least_0 + left

    Sizes are positive and add up to L, which the data determine. `more` is what later sizes have
    no room for. The log density gets the logs of dL / dz_L and of
    ``|dk_i / dz_i| = s_i free S(z_i) (1 - S(z_i)) / m_i^2``.

    A power f of a covariate in a term of size m has ``z = f c - w m / c``, ``c = sqrt(m^2 + e^2)``
    with e = `LITTLE_NATS`, where w is how fast the rest of the loss changes along the covariate.
    Kappa has ``z = log(kappa) / share``, the share of L that the coupled terms have.
    """
    law, priors, divided = spec.law, spec.priors, _divided(spec.law)
    factors = _factors(spec)
    q |= dict.fromkeys(factors, 0.0)  # local exponents do not depend on them
    relative = FLOOR in priors
    low, high = priors[FLOOR if relative else "E"].support
    low, most = max(low, 0.0), math.inf if relative and high == 1 else high
    slope: dict[str, Array] = {}
    size: dict[str, Array] = {}
    least: dict[str, Array] = {}
    widths: dict[str, Array | None] = {}  # most size less the least, or None
    for term in law.terms:
        name = term.coefficient
        if term not in divided:
            size[name] = q[term.slope] / term.local_exponent(term.from_local(q, at, F), at, F)
            log = log + _where_positive(size[name])
            continue
        unit = term.local_exponent(term.from_local({**q, term.local: 1.0}, at, F), at, F)
        slope[name] = q[term.slope] / unit
        bottom, top = priors[term.local].support
        least[name] = 0.0 if math.isinf(top) else slope[name] / top
        widths[name] = slope[name] / bottom - least[name] if bottom > 0 else None

    def loss_of(floor: float, terms: Array) -> Array:
        return terms / (1.0 - floor) if relative else terms + floor

    terms = sum([*least.values(), *size.values()], 0.0)
    all_widths = _total(widths.values())
    q["L_ref"] = loss = loss_of(low, terms) + F.exp(z["L_ref"])
    # With bounds of every term and of the floor, the loss at the reference point is bounded too.
    if all_widths is not None and math.isfinite(most):
        span = loss_of(most, terms + all_widths) - loss_of(low, terms)
        share, part = on_the_line((0.0, 1.0), z["L_ref"])
        q["L_ref"] = loss = loss_of(low, terms) + span * share
        log = log + part + F.log(span) - z["L_ref"]
    nats = loss if relative else 1.0  # of a unit of the floor's prior
    least_floor = low * nats
    later = [*widths.values(), (most - low) * nats if math.isfinite(most) else None]
    left = loss - least_floor - terms
    for term in divided:
        name, width = term.coefficient, later.pop(0)
        room = _total(later)
        more = 0.0 if room is None else F.maximum(left - room, 0.0)
        free = (left if width is None else F.minimum(width, left)) - more
        # Written so that nothing cancels: s / (free S), and least + more over free S.
        steepest = slope[name] / free * (1 + F.exp(-z[term.local]))
        beside = steepest / slope[name] * (least[name] + more)
        q[term.local] = steepest / (1 + beside)
        log = log + F.log(slope[name] / free) - z[term.local] - 2 * F.log1p(beside)
        log = log + priors[term.local].log_density(q[term.local], F)
        size[name] = slope[name] / q[term.local]
        left = left - (size[name] - least[name])
    for name, (term, covariate, sign, others) in factors.items():
        # The slope of the term's log but for this factor, whose exponent is zero up to here.
        rest = term.slope_along(covariate, term.from_local(q, at, F), at, F)
        of_term = size[term.coefficient]
        scale = F.sqrt(of_term * of_term + LITTLE_NATS**2)
        of_others = of_term * (sum(q[other] for other in others) - rest * of_term) / scale
        q[name] = (z[name] + sign * of_others) / scale
        log = log - F.log(scale) + priors[name].log_density(q[name], F)
    if coupling := law.step(Coupling):
        share = sum(size[name] for name in coupling.along) / loss
        q[KAPPA], part = on_the_line(priors[KAPPA].support, z[KAPPA] * share)
        log = log + part + F.log(share) + priors[KAPPA].log_density(q[KAPPA], F)
    return log + log_prior_of_floor(priors, least_floor + left, loss)


def _total(parts: Iterable[Array | None]) -> Array | None:
    """Their sum, or None if one is None, which stands for no bound."""
    total: Array = 0.0
    for part in parts:
        if part is None:
            return None
        total = total + part
    return total


def _where_positive(x: Array) -> Array:
    """0 where x is positive, and elsewhere minus infinity."""
    log: Array = F.log((x > 0.0) * 1.0)
    return log


def normal_coefficients(spec: Spec) -> dict[str, Prior]:
    """Coefficients of deviations whose priors are normal: they are sampled as weights."""
    law = spec.law
    names = [n for d in law.deviations if isinstance(d, Linear) for n in d.parameters]
    names += [n for step in law.steps if isinstance(step, Linear) for n in step.local]
    return {name: spec.priors[name] for name in names if spec.priors[name].name == "Normal"}


def _other_parameters(spec: Spec) -> list[str]:
    names = ["sigma", *spec.likelihood.parameters, *[LENGTH] * (spec.errors == "run")]
    return names + [f"tau_{level}" for level in spec.effects]


def log_prior_of_floor(priors: Mapping[str, Prior], floor: Array, loss: Array) -> Array:
    """Log prior density of the floor in nats, given the term sizes, up to a constant.

    `loss` is the loss at the reference point.
    """
    if FLOOR not in priors:
        return priors["E"].log_density(floor, F)
    # The floor is its share over what is left of it times the term sizes, so its density is that
    # of the share times ``(1 - share) / loss``.
    share = floor / loss
    log: Array = priors[FLOOR].log_density(share, F) + F.log(1.0 - share) - F.log(loss)
    return log


def _gate(term: Term, priors: Mapping[str, Prior]) -> tuple[str, ...]:
    """Depth and rate of a gate whose priors have the whole support of their coordinates."""
    if not (term.stated and term.gated):
        return ()
    depth, rate = term.gated
    whole = priors[depth].support == (0, 1) and math.isinf(priors[rate].support[0])
    return (depth, rate) if whole else ()


def _add_gate(
    q: dict[str, Array], term: Term, priors: Mapping[str, Prior], at: Values, z: Values
) -> Array:
    """Add depth and rate of a gate; the log density of their priors.

    At the reference point the factor ``1 - depth s`` of the exponent, s the gate there, falls by
    ``rate s u`` per e-fold of P, with u = ``depth (1 - s) / (1 - depth s)`` between 0 and 1.
    """
    assert term.gated
    of_depth, of_rate = term.gated
    # A hyperbolic sine: linear about a rate of zero, logarithmic on both sides of it.
    up = F.exp(z[of_rate])
    rate: Array = 0.5 * SMALL_RATE * (up - 1 / up)
    log: Array = F.log(0.5 * SMALL_RATE * (up + 1 / up))
    gate, rest = F.sigmoid(rate * at["ptpp"]), F.sigmoid(-rate * at["ptpp"])
    y = z[of_depth] - (0.5 * F.log(rate * rate + SMALL_RATE**2) - F.softplus(-rate * at["ptpp"]))
    u = F.sigmoid(y)
    depth: Array = u / (rest + gate * u)
    q |= {of_rate: rate, of_depth: depth}
    log = log - F.softplus(y) - F.softplus(-y) + F.log(rest) - 2 * F.log(rest + gate * u)
    return log + priors[of_rate].log_density(rate, F) + priors[of_depth].log_density(depth, F)


def on_the_line[A: Array](support: tuple[float, float], z: A) -> tuple[A, A | float]:
    """A value within a support, and the log of its derivative by its coordinate."""
    low, high = support
    if math.isinf(high):
        return (z, 0.0) if math.isinf(low) else (F.exp(z), z)
    share: A = F.sigmoid(z)
    log: A = F.log(share) + F.log(1.0 - share)
    return low + (high - low) * share, log


def start(data: Data) -> dict[str, float]:
    """Plausible parameters on the real line; the loss at the reference point is the data's."""
    spec, weights = data.spec, normal_coefficients(data.spec)
    divided = {term.local for term in _divided(spec.law)}
    names = [name for name in spec.law.coordinates if name not in weights]
    values: dict[str, float] = {}
    for name in (*names, *_other_parameters(spec)):
        prior = spec.priors.get(spec.likelihood.parameters.get(name, name), FLAT)
        if name == "L_ref":
            values[name] = float(np.mean(data.observed))
        elif name in divided:
            values[name] = -0.7  # a third of the loss that is left
        elif prior.name == "LogNormal" or math.isinf(prior.support[0]):
            values[name] = prior.kwargs.get("mu", 0.0)
        else:
            values[name] = -0.5 if math.isinf(prior.support[1]) else 0.0
    for name, factor in _factors(spec).items():
        # Where the factor's own exponent is zero, the slope along its covariate is the others'.
        values[name] = -factor.sign * sum(math.exp(values[other]) for other in factor.others)
    return values
