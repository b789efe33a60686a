"""Parameters from the sampler's coordinates on the real line, with the density of their priors.

Positive parameters are sampled as logarithms, those between bounds as logits. Others depend on each
other, and have coordinates in which a posterior is closer to a normal distribution:

- The floor and the term sizes at the reference point add up to a loss that the data determine well,
  and none may be negative. The coordinate of a term's leading exponent is the logit of the fraction
  that its size takes of the loss that earlier terms leave.
- A few pre-training stages determine little more than the slope of a gated exponent in log P. The
  rate of the gate is sampled on a logarithmic scale on both sides of zero, and its depth as the
  logit of that slope over its largest value at the rate, plus the log of that value.
- Of a coupling the data determine the mixed derivative of the loss along two terms, which is
  ``1 - 1 / kappa`` over their sum, better than kappa: the coordinate is log kappa over the coupled
  terms' share of the loss.

Values are nodes of a `bayeslaw.model.tape.Tape`, or arrays.
"""

import math
from collections.abc import Collection, Mapping

from bayeslaw.common.arrays import Tensor
from bayeslaw.laws.law import KAPPA, Law
from bayeslaw.laws.priors import FLOOR, Prior
from bayeslaw.laws.terms import Term, Values
from bayeslaw.model.tape import FUNCTIONS as F

SMALL = 0.1
"""Rate below which a gate hardly changes with P, and its coordinate is linear."""

type Pair = tuple[Tensor, Tensor]
"""A value, and the log of its derivative by the coordinate or of a density."""


def coordinates(
    law: Law, priors: Mapping[str, Prior], at: Values, z: Values, weights: Collection[str]
) -> Pair:
    """The law's reference coordinates by name, and the log density of their priors.

    Parameters
    ----------
    law : Law
    priors : mapping of str to Prior
    at : mapping of str to float
        The reference point.
    z : mapping of str to value
        Coordinates on the real line, of all but the weights.
    weights : collection of str
        Coefficients of deviations that are sampled as weights.

    Returns
    -------
    q : dict of str to value
    log : value
        Log density in z, up to a constant; weights are not part of it.
    """
    fractions = [t for t in law.terms if priors[t.local].support == (0, math.inf)]
    gated = {n: t for t in law.terms for n in _gate(t, priors)}
    dependent = {"L_ref", KAPPA if law.coupled else "L_ref", *weights, *gated}
    dependent |= {term.local for term in fractions}
    q: dict[str, Tensor] = {"L_ref": F.exp(z["L_ref"])}
    log: Tensor = z["L_ref"]
    for name in (name for name in law.coordinates if name not in dependent):
        q[name], part = on_the_line(priors[name].support, z[name])
        log = log + part + log_prior(priors[name], q[name])
    for term in {t.coefficient: t for t in gated.values()}.values():
        log = log + _add_gate(q, term, priors, at, z)
    left, size = q["L_ref"], {}
    for term in [t for t in law.terms if t not in fractions] + fractions:
        name = term.local
        unit = term.local_exponent(term.from_local({**q, name: 1.0}, at, F), at, F)
        slope = q[term.slope] / unit
        if term in fractions:
            q[name] = slope / left * (1 + F.exp(-z[name]))
            log = log + F.log(slope / left) - z[name] + log_prior(priors[name], q[name])
        size[term.coefficient] = slope / q[name]
        left = left - size[term.coefficient]
    if law.coupled:
        share = sum(size[name] for name in law.coupled) / q["L_ref"]
        q[KAPPA] = F.exp(z[KAPPA] * share)
        log = log + z[KAPPA] * share + F.log(share) + log_prior(priors[KAPPA], q[KAPPA])
    log = log + log_prior_of_floor(priors, left, q["L_ref"])
    return {name: q[name] for name in law.coordinates if name in q}, log


def log_prior_of_floor(priors: Mapping[str, Prior], floor: Tensor, loss: Tensor) -> Tensor:
    """Log prior density of the floor in nats, given the term sizes, up to a constant.

    `loss` is the loss at the reference point.
    """
    if FLOOR not in priors:
        return log_prior(priors["E"], floor)
    # The floor is its share over what is left of it times the term sizes, so its density is that
    # of the share times ``(1 - share) / loss``.
    share = floor / loss
    return log_prior(priors[FLOOR], share) + F.log(1.0 - share) - F.log(loss)


def _gate(term: Term, priors: Mapping[str, Prior]) -> tuple[str, ...]:
    """Depth and rate of a gate whose priors have the whole support of their coordinates."""
    if not (term.stated and term.gate):
        return ()
    depth, rate = term.gate
    whole = priors[depth].support == (0, 1) and math.isinf(priors[rate].support[0])
    return (depth, rate) if whole else ()


def _add_gate(
    q: dict[str, Tensor], term: Term, priors: Mapping[str, Prior], at: Values, z: Values
) -> Tensor:
    """Add depth and rate of a gate; the log density of their priors.

    At the reference point the factor ``1 - depth s`` of the exponent, s the gate there, falls by
    ``rate s u`` per e-fold of P, with u = ``depth (1 - s) / (1 - depth s)`` between 0 and 1.
    """
    assert term.gate
    of_depth, of_rate = term.gate
    up = F.exp(z[of_rate])
    rate = q[of_rate] = 0.5 * SMALL * (up - 1 / up)
    log = F.log(0.5 * SMALL * (up + 1 / up))
    gate, rest = F.sigmoid(rate * at["ptpp"]), F.sigmoid(-rate * at["ptpp"])
    y = z[of_depth] - (0.5 * F.log(rate * rate + SMALL**2) - F.softplus(-rate * at["ptpp"]))
    u = F.sigmoid(y)
    depth = q[of_depth] = u / (rest + gate * u)
    log = log - F.softplus(y) - F.softplus(-y) + F.log(rest) - 2 * F.log(rest + gate * u)
    return log + log_prior(priors[of_rate], rate) + log_prior(priors[of_depth], depth)


def on_the_line(support: tuple[float, float], z: Tensor) -> Pair:
    """A value within a support, and the log of its derivative by its coordinate."""
    low, high = support
    if math.isinf(high):
        return (z, 0.0) if math.isinf(low) else (F.exp(z), z)
    share = F.sigmoid(z)
    return low + (high - low) * share, F.log(share) + F.log(1.0 - share)


def log_prior(prior: Prior, x: Tensor) -> Tensor:
    """Log density of a prior, up to a constant."""
    given = prior.kwargs
    match prior.name:
        case "Flat" | "HalfFlat" | "Uniform":
            return 0.0
        case "Normal" | "HalfNormal":
            return _square((x - given.get("mu", 0.0)) / given.get("sigma", 1.0))
        case "LogNormal":
            log = F.log(x)
            return _square((log - given.get("mu", 0.0)) / given.get("sigma", 1.0)) - log
        case "StudentT" | "HalfStudentT":
            u = (x - given.get("mu", 0.0)) / given.get("sigma", 1.0)
            return -0.5 * (given["nu"] + 1) * F.log1p(u * u / given["nu"])
        case "Exponential":
            return -x / given["scale"] if "scale" in given else -given["lam"] * x
        case "Gamma":
            shape, rate = given.get("alpha"), given.get("beta")
            if shape is None or rate is None:
                mu, sigma = given["mu"], given["sigma"]
                shape, rate = (mu / sigma) ** 2, mu / sigma**2
            return (shape - 1) * F.log(x) - rate * x
        case "InverseGamma":
            shape, rate = given.get("alpha"), given.get("beta")
            if shape is None or rate is None:
                mu, sigma = given["mu"], given["sigma"]
                shape = (2 * sigma**2 + mu**2) / sigma**2
                rate = mu * (mu**2 + sigma**2) / sigma**2
            return -(shape + 1) * F.log(x) - rate / x
        case "Beta":
            one, two = given.get("alpha"), given.get("beta")
            if one is None or two is None:
                mu, sigma = given["mu"], given["sigma"]
                total = mu * (1 - mu) / sigma**2 - 1
                one, two = mu * total, (1 - mu) * total
            return (one - 1) * F.log(x) + (two - 1) * F.log(1.0 - x)
    raise AssertionError(prior.name)


def _square(u: Tensor) -> Tensor:
    return -0.5 * u * u
