"""The coordinates in which parameters are sampled, and the log density of their priors there.

Positive parameters are sampled as logarithms, those between bounds as logits. Others depend on each
other, and have coordinates in which a posterior is closer to a normal distribution: sizes of the
terms and the floor, powers of a covariate that leads another term, kappa of a coupling, depth and
rate of a gate. Each is a method of `_Parameters`, which explains it.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from bayeslaw.common.arrays import Array, Untyped
from bayeslaw.laws.deviations import Linear
from bayeslaw.laws.law import Law
from bayeslaw.laws.priors import FLOOR, LINE, UNIT, Prior
from bayeslaw.laws.steps import KAPPA, Coupling
from bayeslaw.laws.symbols import Named, Values, column_of
from bayeslaw.laws.tape import FUNCTIONS as F
from bayeslaw.laws.terms import Term
from bayeslaw.model.noise import LENGTH
from bayeslaw.model.spec import Spec
from bayeslaw.model.training import Data

FLAT = Prior("Flat")
LITTLE_NATS = 0.15
"""Nats of a term below which data hardly determine its slopes: its powers are then sampled."""
SMALL_RATE = 0.1
"""Rate below which a gate hardly changes with P, and its coordinate is linear."""


def parameters[A: Array](spec: Spec, at: Values, z: Named[A]) -> tuple[dict[str, A], A]:
    """Parameters of a spec that are no weights, and the log density of their priors."""
    law = spec.law
    adding = _Parameters(spec, at, z)
    powers = _powers(spec)
    gates = _gates(spec)
    coupling = law.step(Coupling)
    dependent = {"L_ref", *normal_coefficients(spec), *powers, *sum(gates, ())}
    dependent |= {
        *(term.local for term in _divided(law)),
        *[KAPPA] * (coupling is not None),
    }
    for name in law.coordinates:
        if name not in dependent:
            adding.plain(name)
    for depth, rate in gates:
        adding.gate(depth, rate)
    adding.q |= dict.fromkeys(powers, 0.0)  # local exponents do not depend on them
    floor = adding.sizes()
    for name, power in powers.items():
        adding.power(name, power)
    if coupling:
        adding.kappa(coupling)
    adding.log = adding.log + log_prior_of_floor(spec.priors, floor, adding.q["L_ref"])
    adding.q = {name: adding.q[name] for name in law.coordinates if name in adding.q}
    for name in _other_parameters(spec):
        adding.plain(name, spec.likelihood.parameters.get(name, name))
    return adding.q, adding.log


class _Parameters[A: Array]:
    """Parameters `q` from coordinates `z`, and the log density of those that were added."""

    def __init__(self, spec: Spec, at: Values, z: Named[A]) -> None:
        self.spec = spec
        self.priors = spec.priors
        self.at = at
        self.z = z
        self.q: dict[str, Untyped] = {}
        self.size: dict[str, Array] = {}  # of the terms at the reference point, in nats
        # Log derivative of L_ref, which is exp(z) above its least value; see `sizes`.
        self.log = z["L_ref"]

    def plain(self, name: str, prior: str = "") -> None:
        """Add a parameter that depends on no other."""
        of_name = self.priors[prior or name]
        self.q[name], of_derivative = on_the_line(of_name.support, self.z[name])
        self.log = self.log + of_derivative + of_name.log_density(self.q[name], F)

    def gate(self, of_depth: str, of_rate: str) -> None:
        """Add depth and rate of a gate.

        A few pre-training stages determine little more than the slope of the gated exponent in
        log P. At the reference point the factor ``1 - depth s`` of the exponent, s the gate there,
        falls by ``rate s u`` per e-fold of P, with u = ``depth (1 - s) / (1 - depth s)`` between 0
        and 1. The rate is sampled on a logarithmic scale on both sides of zero, and the depth as
        the logit of that slope over its largest value at the rate, plus the log of that value.
        """
        z = self.z
        log_ptpp = self.at["ptpp"]
        # A hyperbolic sine: linear about a rate of zero, logarithmic on both sides of it.
        up = F.exp(z[of_rate])
        rate: Array = 0.5 * SMALL_RATE * (up - 1 / up)
        log: Array = F.log(0.5 * SMALL_RATE * (up + 1 / up))
        gate = F.sigmoid(rate * log_ptpp)
        rest = F.sigmoid(-rate * log_ptpp)
        y = z[of_depth] - (
            0.5 * F.log(rate * rate + SMALL_RATE**2) - F.softplus(-rate * log_ptpp)
        )
        u = F.sigmoid(y)
        depth: Array = u / (rest + gate * u)
        self.q |= {of_rate: rate, of_depth: depth}
        log = (
            log
            - F.softplus(y)
            - F.softplus(-y)
            + F.log(rest)
            - 2 * F.log(rest + gate * u)
        )
        log = log + self.priors[of_rate].log_density(rate, F)
        self.log = self.log + (log + self.priors[of_depth].log_density(depth, F))

    def sizes(self) -> Array:
        """Add the loss L at the reference point and leading exponents; the floor, in nats.

        A term of slope s and exponent k has the size ``m = s / k`` at the reference point, in nats,
        so bounds of the prior of k are bounds of m: ``least <= m <= least + width``. The prior of
        the floor ``m_0`` bounds it likewise; bounds of its share of the loss are times L. With S
        the logistic function, and sums over the terms and the floor::

            L    = least L + exp(z_L)                or + span S(z_L), if all widths are finite
            left = L - sum of least
            for each term i, in the order of the law:
                more = max(left - sum of widths of later terms and the floor, 0)
                free = min(left, width_i) - more
                m_i  = least_i + more + free S(z_i)  so that k_i = s_i / m_i
                left = left - (m_i - least_i)
            m_0  = least_0 + left

        Sizes are positive and add up to L, which the data determine. `more` is what later sizes
        have no room for. The log density gets the logs of dL / dz_L and of
        ``|dk_i / dz_i| = s_i free S(z_i) (1 - S(z_i)) / m_i^2``.
        """
        q = self.q
        z = self.z
        at = self.at
        priors = self.priors
        size = self.size
        law = self.spec.law
        divided = _divided(self.spec.law)
        relative = FLOOR in self.priors
        low, high = priors[FLOOR if relative else "E"].support
        low = max(low, 0.0)
        most = math.inf if relative and high == 1 else high
        slope: dict[str, Array] = {}
        least: dict[str, Array] = {}
        widths: dict[str, Array | None] = {}  # most size less the least, or None
        for term in law.terms:
            name = term.coefficient
            if term not in divided:
                size[name] = q[term.slope] / term.local_exponent(
                    term.from_local(q, at, F), at, F
                )
                self.log = self.log + F.log(
                    (size[name] > 0.0) * 1.0
                )  # 0, or minus infinity
                continue
            unit = term.local_exponent(
                term.from_local({**q, term.local: 1.0}, at, F), at, F
            )
            slope[name] = q[term.slope] / unit
            bottom, top = priors[term.local].support
            least[name] = 0.0 if math.isinf(top) else slope[name] / top
            widths[name] = slope[name] / bottom - least[name] if bottom > 0 else None

        def loss_of(floor: float, terms: Array) -> Array:
            return terms / (1.0 - floor) if relative else terms + floor

        terms = sum([*least.values(), *size.values()], 0.0)
        all_widths = _total(widths.values())
        q["L_ref"] = loss_of(low, terms) + F.exp(z["L_ref"])
        # With bounds of every term and of the floor, the loss at the reference point is bounded.
        if all_widths is not None and math.isfinite(most):
            span = loss_of(most, terms + all_widths) - loss_of(low, terms)
            share, of_derivative = on_the_line(UNIT, z["L_ref"])
            q["L_ref"] = loss_of(low, terms) + span * share
            self.log = self.log + of_derivative + F.log(span) - z["L_ref"]
        nats = q["L_ref"] if relative else 1.0  # of a unit of the floor's prior
        least_floor = low * nats
        later = [*widths.values(), (most - low) * nats if math.isfinite(most) else None]
        left: Array = q["L_ref"] - least_floor - terms
        for term in divided:
            name = term.coefficient
            width = later.pop(0)
            room = _total(later)
            more = 0.0 if room is None else F.maximum(left - room, 0.0)
            free = (left if width is None else F.minimum(width, left)) - more
            # Written so that nothing cancels: s / (free S), and least + more over free S.
            steepest = slope[name] / free * (1 + F.exp(-z[term.local]))
            beside = steepest / slope[name] * (least[name] + more)
            q[term.local] = steepest / (1 + beside)
            log = (
                self.log
                + F.log(slope[name] / free)
                - z[term.local]
                - 2 * F.log1p(beside)
            )
            self.log = log + priors[term.local].log_density(q[term.local], F)
            size[name] = slope[name] / q[term.local]
            left = left - (size[name] - least[name])
        return least_floor + left

    def power(self, name: str, power: "_Power") -> None:
        """Add the exponent of a power, which is zero in `q` up to here.

        The data determine the slope of the loss along the covariate, to which the terms add up. So
        the power f in a term of size m has ``z = f c - w m / c``, ``c = sqrt(m^2 + e^2)`` with e =
        `LITTLE_NATS`, where w is how fast the rest of the loss changes along the covariate. Where m
        is small z is f e, because the prior of f says more than the data.
        """
        (term, covariate, sign, slopes), q, at = power, self.q, self.at
        # The slope of the term's log but for this power.
        rest = term.slope_along(covariate, term.from_local(q, at, F), at, F)
        size = self.size[term.coefficient]
        scale = F.sqrt(size * size + LITTLE_NATS**2)
        of_rest = size * (sum(q[slope] for slope in slopes) - rest * size) / scale
        q[name] = (self.z[name] + sign * of_rest) / scale
        self.log = self.log - F.log(scale) + self.priors[name].log_density(q[name], F)

    def kappa(self, coupling: Coupling) -> None:
        """Add kappa.

        The data determine the mixed derivative of the loss along two terms, ``1 - 1 / kappa`` over
        their sum, better than kappa. So ``z = log(kappa) / share``, the share of L that the coupled
        terms have.
        """
        q = self.q
        prior = self.priors[KAPPA]
        share = sum(self.size[name] for name in coupling.along) / q["L_ref"]
        q[KAPPA], of_derivative = on_the_line(prior.support, self.z[KAPPA] * share)
        self.log = (
            self.log + of_derivative + F.log(share) + prior.log_density(q[KAPPA], F)
        )


def _divided(law: Law) -> list[Term]:
    """Terms whose sizes are sampled in place of their leading exponents.

    Those of others, whose local exponent is not proportional to the leading one, or which have it
    in common with another term, follow from exponents that are sampled as they are.
    """
    names = [name for term in law.terms for name in term.exponents]
    return [t for t in law.terms if t.proportional and names.count(t.leading) == 1]


def _gates(spec: Spec) -> list[tuple[str, str]]:
    """Depth and rate of gates whose priors have the whole support of their coordinates."""
    gates = dict.fromkeys(
        term.gated for term in spec.law.terms if term.stated and term.gated
    )
    support = {name: prior.support for name, prior in spec.priors.items()}
    return [
        (d, r) for d, r in gates if support[d] == UNIT and math.isinf(support[r][0])
    ]


class _Power(NamedTuple):
    """A power of a covariate in a term, where the covariate leads other terms."""

    term: Term
    covariate: str
    sign: float  # of the exponent
    slopes: list[str]  # of the terms that the covariate leads


def _powers(spec: Spec) -> dict[str, _Power]:
    """Powers by their exponents, which can have either sign."""
    powers: dict[str, _Power] = {}
    terms = spec.law.terms
    names = [name for term in terms for name in term.exponents]
    for term in terms:
        for covariate in term.covariates[1:]:
            slopes = [t.slope for t in terms if column_of(t.covariates[0]) == covariate]
            name, sign = term.power_along(covariate)
            if slopes and names.count(name) == 1 and spec.priors[name].support == LINE:
                powers[name] = _Power(term, covariate, sign, slopes)
    return powers


def _total(parts: Iterable[Array | None]) -> Array | None:
    """Their sum, or None if one is None, which stands for no bound."""
    total: Array = 0.0
    for part in parts:
        if part is None:
            return None
        total = total + part
    return total


def normal_coefficients(spec: Spec) -> dict[str, Prior]:
    """Coefficients of deviations whose priors are normal: they are sampled as weights."""
    law = spec.law
    names = [n for d in law.deviations if isinstance(d, Linear) for n in d.parameters]
    names += [n for step in law.steps if isinstance(step, Linear) for n in step.local]
    return {
        name: spec.priors[name] for name in names if spec.priors[name].name == "Normal"
    }


def _other_parameters(spec: Spec) -> list[str]:
    names = ["sigma", *spec.likelihood.parameters, *[LENGTH] * (spec.errors == "run")]
    return names + [f"tau_{level}" for level in spec.fitted_effects]


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
    spec = data.spec
    weights = normal_coefficients(data.spec)
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
    for name, power in _powers(spec).items():
        # Where the power's own exponent is zero, the slope along its covariate is the others'.
        values[name] = -power.sign * sum(
            math.exp(values[slope]) for slope in power.slopes
        )
    return values
