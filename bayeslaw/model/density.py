"""The log density of a specification on a table, in the sampler's coordinates.

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

Weights of deviations and random effects are whitened (`bayeslaw.model.whitening`). Effects of a
second level with many groups, or of many groups in several domains, are sampled as standard normals
as they are. The same density as a PyMC model is `bayeslaw.model.building.build`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from bayeslaw.common.arrays import Floats, Ints, Tensor
from bayeslaw.laws.deviations import WHOLE, Linear, Walk
from bayeslaw.laws.law import KAPPA, Law
from bayeslaw.laws.priors import FLOOR, Prior
from bayeslaw.laws.tape import FUNCTIONS as F
from bayeslaw.laws.tape import SPREAD, Node, Tape
from bayeslaw.laws.terms import Term, Values
from bayeslaw.model import whitening
from bayeslaw.model.building import cholesky_rows, partial_exponents
from bayeslaw.model.noise import LENGTH, decay, innovation_scale
from bayeslaw.model.spec import Data, Spec

MOST = 40
"""Most groups, of all levels but the one with most, whose effects are whitened.

The whitening takes the cube of the number of these and other weights."""
MOST_CORRELATED = 120
"""Most effects of a level of several domains, groups times domains, that are whitened."""
FLAT = Prior("Flat")
SMALL = 0.1
"""Rate below which a gate hardly changes with P, and its coordinate is linear."""

type Pair = tuple[Tensor, Tensor]
"""A value, and the log of its derivative by the coordinate or of a density."""


class Weight(NamedTuple):
    """A standard normal: of which variable, its place in it, and the variable's mean and sd."""

    name: str
    place: int = -1
    mean: float = 0.0
    sd: float = 1.0


@dataclass(frozen=True)
class Density:
    """Log density and gradient at points of the sampler's space.

    Its coordinates are the parameters on the real line, the whitened weights, and effects.
    """

    names: tuple[str, ...]
    start: Floats
    weights: Sequence[Weight]
    effects: Sequence[Weight]
    domains: Mapping[str, Data]
    arguments: tuple[Any, ...] = field(repr=False)

    @property
    def size(self) -> int:
        return len(self.names) + len(self.weights) + len(self.effects)

    def __call__(self, point: Floats) -> tuple[float, Floats]:
        """Log density up to a constant, and its gradient."""
        value, gradient, _ = whitening.density(point, *self.arguments)
        if not np.isfinite(value + gradient.sum()):
            return -np.inf, np.zeros(self.size)
        return value, gradient

    def scaled(self, point: Floats, centre: Floats, factor: Floats) -> tuple[float, Floats, Floats]:
        """Log density and gradient where parameters are ``centre`` plus ``factor`` times theirs.

        The last array is the point, with weights in place of whitened ones.
        """
        value, gradient, moved = whitening.scaled(point, centre, factor, self.arguments)
        return value, gradient, moved

    def whitened_at(self, parameters: Floats) -> "Density":
        """The density whitened by the matrix at a point on the real line."""
        y, code, constants, sizes, ends, places, _, inputs, block, level, _, before = self.arguments
        columns, of_share, of_scale, *_ = block
        group, of_tau, *_ = level
        v, s = np.empty((sizes[0], len(y))), np.empty(sizes[1])
        v[: len(inputs)], s[: len(parameters)] = inputs, parameters
        whitening.evaluate(code, constants, ends[0], ends[1], v, s)
        shares = np.vstack([v[places[3]], np.ones(len(y))])  # the last one is for the whole loss
        every = np.vstack([columns * shares[of_share], group >= 0])
        mean = every[:-1] * columns / np.maximum((every[:-1] ** 2).sum(1, keepdims=True), 1e-300)
        fixed = seen = every
        if len(before):
            rho = v[places[2]]
            scale = innovation_scale(1.0, rho)
            seen = (every - rho * every[:, before]) / scale
            fixed = seen / scale
            np.subtract.at(fixed.T, before, (seen / scale * rho).T.copy())
        weights = len(seen) - 1  # beside those of the level
        products = np.zeros((len(self.weights) - weights, weights + 1))
        inside = group >= 0
        np.add.at(products, group[inside], (seen * seen[-1]).T[inside])
        fixed, of_group = np.ascontiguousarray(fixed[:-1]), fixed[-1].copy()
        moved = list(self.arguments)
        moved[8] = columns, of_share, of_scale, fixed, seen[:-1] @ seen[:-1].T, mean
        moved[9] = group, of_tau, of_group, products[:, -1].copy(), products[:, :-1].copy()
        return replace(self, arguments=tuple(moved))

    def variables(self, points: Floats) -> dict[str, Floats]:
        """Draws by name, of points of `scaled`, shape (chains, draws, coordinates)."""
        z = {name: points[..., i] for i, name in enumerate(self.names)}
        drawn: dict[str, Floats] = {}
        for prefix, data in self.domains.items():
            q, _ = parameters(data.spec, data.at, _within(z, prefix))
            drawn |= {f"{prefix}{name}": np.asarray(value) for name, value in q.items()}
        vectors: dict[str, dict[int, Floats]] = {}
        for name in self.names:
            vector, _, place = name.partition("[")
            if place:
                vectors.setdefault(vector, {})[int(place[:-1])] = F.sigmoid(z[name])
        for k, weight in enumerate((*self.weights, *self.effects), len(self.names)):
            value = weight.mean + weight.sd * points[..., k]
            if weight.place >= 0:
                vectors.setdefault(weight.name, {})[weight.place] = value
            elif weight.name:
                drawn[weight.name] = value
        for name, by_place in vectors.items():
            drawn[name] = np.stack([by_place[j] for j in sorted(by_place)], axis=-1)
            if len(self.domains) > 1 and name.endswith("_z"):  # effects that are correlated
                drawn[name] = drawn[name].reshape(*points.shape[:-1], -1, len(self.domains))
        return drawn


def _within[T](values: Mapping[str, T], prefix: str) -> dict[str, T]:
    return {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)}


# -- parameters from the real line --------------------------------------------------------------


def parameters(spec: Spec, at: Values, z: Values) -> tuple[dict[str, Any], Tensor]:
    """Parameters of a spec that are no weights, and the log density of their priors."""
    law, priors = spec.law, spec.priors
    gated = {n: t for t in law.terms for n in _gate(t, priors)}
    dependent = {"L_ref", KAPPA if law.coupled else "L_ref", *normal_coefficients(spec), *gated}
    dependent |= {term.local for term in _divided(law)}
    q: dict[str, Tensor] = {}
    log: Tensor = z["L_ref"]
    for name in (name for name in law.coordinates if name not in dependent):
        q[name], part = on_the_line(priors[name].support, z[name])
        log = log + part + log_prior(priors[name], q[name])
    for term in {t.coefficient: t for t in gated.values()}.values():
        log = log + _add_gate(q, term, priors, at, z)
    log = _add_sizes(q, log, spec, at, z)
    q = {name: q[name] for name in law.coordinates if name in q}
    for name in _other_parameters(spec):
        prior = priors[spec.likelihood.parameters.get(name, name)]
        q[name], part = on_the_line(prior.support, z[name])
        log = log + part + log_prior(prior, q[name])
    return q, log


def _divided(law: Law) -> list[Term]:
    """Terms whose sizes are sampled in place of their leading exponents.

    Those of others, whose local exponent is not proportional to the leading one, or which have it
    in common with another term, follow from exponents that are sampled as they are.
    """
    names = [name for term in law.terms for name in term.exponents]
    return [t for t in law.terms if t.proportional and names.count(t.leading) == 1]


def _add_sizes(q: dict[str, Tensor], log: Tensor, spec: Spec, at: Values, z: Values) -> Tensor:
    """Add the loss at the reference point, leading exponents, and kappa; their part of `log`.

    The prior of a leading exponent bounds its term's size, that of the floor bounds the floor. What
    the loss is above the least sizes is divided among the terms, in their order, and the floor.
    Each takes a fraction of what it may have, but leaves no more than the later ones may have.
    """
    law, priors, divided = spec.law, spec.priors, _divided(spec.law)
    relative = FLOOR in priors
    low, high = priors[FLOOR if relative else "E"].support
    low, most = max(low, 0.0), math.inf if relative and high == 1 else high
    slope: dict[str, Tensor] = {}
    size: dict[str, Tensor] = {}
    least: dict[str, Tensor] = {}
    widths: dict[str, Tensor] = {}  # most size less the least, or None
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

    def loss_of(floor: float, terms: Tensor) -> Tensor:
        return terms / (1.0 - floor) if relative else terms + floor

    terms = sum([*least.values(), *size.values()], 0.0)
    all_widths = _total(widths.values())
    q["L_ref"] = loss = loss_of(low, terms) + F.exp(z["L_ref"])
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
        name, own = term.coefficient, later.pop(0)
        rest = _total(later)
        more = 0.0 if rest is None else F.maximum(left - rest, 0.0)
        free = (left if own is None else F.minimum(own, left)) - more
        inverse = slope[name] / free * (1 + F.exp(-z[term.local]))
        beside = inverse / slope[name] * (least[name] + more)
        q[term.local] = inverse / (1 + beside)
        log = log + F.log(slope[name] / free) - z[term.local] - 2 * F.log1p(beside)
        log = log + log_prior(priors[term.local], q[term.local])
        size[name] = slope[name] / q[term.local]
        left = left - (size[name] - least[name])
    if law.coupled:
        share = sum(size[name] for name in law.coupled) / loss
        q[KAPPA], part = on_the_line(priors[KAPPA].support, z[KAPPA] * share)
        log = log + part + F.log(share) + log_prior(priors[KAPPA], q[KAPPA])
    return log + log_prior_of_floor(priors, least_floor + left, loss)


def _total(parts: Iterable[Tensor]) -> Tensor:
    """Their sum, or None if one is None, which stands for no bound."""
    known = list(parts)
    return None if any(part is None for part in known) else sum(known, 0.0)


def _where_positive(x: Tensor) -> Tensor:
    """0 where x is positive, and elsewhere minus infinity."""
    return F.log((x > 0.0) * 1.0)


def normal_coefficients(spec: Spec) -> dict[str, Prior]:
    """Coefficients of deviations whose priors are normal: they are sampled as weights."""
    law = spec.law
    names = [n for d in law.deviations if isinstance(d, Linear) for n in d.parameters]
    names += law.offset.local if law.offset else ()
    return {name: spec.priors[name] for name in names if spec.priors[name].name == "Normal"}


def _other_parameters(spec: Spec) -> list[str]:
    names = ["sigma", *spec.likelihood.parameters, *[LENGTH] * (spec.errors == "run")]
    return names + [f"tau_{level}" for level in spec.effects]


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
    mu, sigma = given.get("mu", 0.0), given.get("sigma", 1.0)
    match prior.name:
        case "Flat" | "HalfFlat" | "Uniform":
            return 0.0
        case "Normal" | "HalfNormal":
            u = (x - mu) / sigma
            return -0.5 * u * u
        case "LogNormal":
            log = F.log(x)
            u = (log - mu) / sigma
            return -0.5 * u * u - log
        case "StudentT" | "HalfStudentT":
            u = (x - mu) / sigma
            return -0.5 * (given["nu"] + 1) * F.log1p(u * u / given["nu"])
        case "Exponential":
            return -x / given["scale"] if "scale" in given else -given["lam"] * x
    if "alpha" in given:
        alpha, beta = given["alpha"], given["beta"]
    elif prior.name == "Gamma":
        alpha, beta = (mu / sigma) ** 2, mu / sigma**2
    elif prior.name == "InverseGamma":
        alpha = (2 * sigma**2 + mu**2) / sigma**2
        beta = mu * (mu**2 + sigma**2) / sigma**2
    else:
        total = mu * (1 - mu) / sigma**2 - 1
        alpha, beta = mu * total, (1 - mu) * total
    if prior.name == "Gamma":
        return (alpha - 1) * F.log(x) - beta * x
    if prior.name == "InverseGamma":
        return -(alpha + 1) * F.log(x) - beta / x
    assert prior.name == "Beta", prior.name
    return (alpha - 1) * F.log(x) + (beta - 1) * F.log(1.0 - x)


# -- the tape and the weights -------------------------------------------------------------------


def make_density(domains: Mapping[str, Data]) -> Density:
    """The density of one fit, ``{"": data}``, or of several domains by prefix; see `build`."""
    return _Builder(domains).build()


class _Builder:
    """A tape, the weights, and the effects, to which each part of a spec adds its own."""

    def __init__(self, domains: Mapping[str, Data]) -> None:
        self.domains, self.tape = domains, Tape()
        self.firsts = dict(zip(domains, np.cumsum([0, *map(len, domains.values())]), strict=False))
        self.count = sum(map(len, domains.values()))
        self.inputs: dict[str, Floats] = {}
        self.columns: list[Floats] = []
        self.of_share: list[int] = []
        self.of_scale: list[int] = []
        self.weights: list[Weight] = []
        self.level: tuple[Ints, int, list[Weight]] = (np.full(self.count, -1), 0, [])
        self.effects: list[Weight] = []
        self.shares: list[Node] = []
        self.scales: list[Node] = []
        self.factors: list[Node] = []
        self.groups: list[Ints] = []

    def build(self) -> Density:
        """The density, whitened at its start."""
        start = self.start()
        z = {name: self.tape.input(name) for name in start}
        q: dict[str, dict[str, Any]] = {}
        log_loss: Any = 0.0
        scale: Any = 0.0
        information: Any = 0.0
        rho: Any = 0.0
        log: Any = 0.0
        for prefix, data in self.domains.items():
            spec = data.spec
            q[prefix], prior = parameters(spec, data.at, _within(z, prefix))
            inside, sigma = self.inside(prefix), q[prefix]["sigma"]
            log_loss = log_loss + inside * self.law(prefix, q[prefix])
            variance = spec.likelihood.information_variance(sigma, q[prefix])
            information = information + 1.0 / variance
            if data.order:
                gap = self.row(f"{prefix}gap", self.spread(prefix, data.order.gap))
                correlation = inside * decay(gap, q[prefix][LENGTH], F)
                rho = rho + correlation
                sigma = innovation_scale(sigma, correlation, F)
            scale = scale + inside * sigma
            log = log + prior
        log = log + self.add_effects(q, z)
        information = information / len(q)
        if not self.weights:  # one without effect, so that the block is not empty
            self.add(np.zeros(self.count), -1, self.tape.constant(1.0), Weight(""))
        # What the weights need, then the likelihood, then derivatives by what the weights needed.
        tape = self.tape
        shares, factors = map(self.rows, (self.shares, self.factors))
        log_loss, rho, scale = self.rows([log_loss, rho, scale])
        seen = [log_loss, rho, *shares, *factors, information, *self.scales]
        errors = tape.input("errors", row=True)
        total = log
        for prefix, data in self.domains.items():
            density = data.spec.likelihood.log_density(errors, scale, q[prefix])
            total = total + F.sum(self.inside(prefix) * density)
        (by_error,) = self.rows(tape.gradient(total, [errors]))
        weighted, cotangents = total, []
        for k, node in enumerate(seen):
            cotangents.append(f"cotangent {k}")
            product = node * tape.input(cotangents[-1], row=node.row)
            weighted = weighted + (F.sum(product) if product.row else product)
        derivatives = tape.gradient(weighted, [z[name] for name in start])
        order = [*start, *self.inputs, "errors", *cotangents]
        program = tape.compile([*seen, total, by_error, *derivatives], order)
        stages = np.split(program.outputs, [len(seen), len(seen) + 2])
        ends = np.array([len(order), stages[0].max() + 1, stages[1].max() + 1])
        of_seen, of_likelihood, of_theta = (program.code[stage, 3].copy() for stage in stages)
        first, last = 2 + len(shares), 2 + len(shares) + len(factors)
        places = (
            *(of_seen[0], of_seen[last], of_seen[1], of_seen[2:first], of_seen[last + 1 :]),
            *(of_seen[first:last], *of_likelihood, len(self.inputs), len(self.inputs) + 1),
        )
        group, of_tau, of_level = self.level
        block = np.ascontiguousarray(self.columns), np.array(self.of_share), np.array(self.of_scale)
        groups = np.array(self.groups, np.int64).reshape(len(self.groups), self.count)
        observed = np.concatenate([data.observed for data in self.domains.values()])
        inputs = np.stack(list(self.inputs.values()))
        arguments = (
            *(observed, program.code, program.constants, program.sizes, ends, places, of_theta),
            *(inputs, block, (group, of_tau), groups, self.before()),
        )
        point, weights = np.array(list(start.values())), [*self.weights, *of_level]
        density = Density(tuple(start), point, weights, self.effects, self.domains, arguments)
        return density.whitened_at(point)

    def start(self) -> dict[str, float]:
        """Plausible parameters on the real line; the loss at the reference point is the data's."""
        values: dict[str, float] = {}
        for prefix, data in self.domains.items():
            spec, weights = data.spec, normal_coefficients(data.spec)
            divided = {term.local for term in _divided(spec.law)}
            names = [name for name in spec.law.coordinates if name not in weights]
            for name in (*names, *_other_parameters(spec)):
                prior = spec.priors.get(spec.likelihood.parameters.get(name, name), FLAT)
                if name == "L_ref":
                    value = float(np.mean(data.observed))
                elif name in divided:
                    value = -0.7  # a third of the loss that is left
                elif prior.name == "LogNormal" or math.isinf(prior.support[0]):
                    value = prior.kwargs.get("mu", 0.0)
                else:
                    value = -0.5 if math.isinf(prior.support[1]) else 0.0
                values[f"{prefix}{name}"] = value
        count = len(self.domains)
        pairs = range(count * (count - 1) // 2)
        return values | {f"{v}_partial[{k}]": 0.0 for v in self.correlated for k in pairs}

    @property
    def correlated(self) -> tuple[str, ...]:
        """Levels whose effects are correlated between domains."""
        return next(iter(self.domains.values())).spec.effects if len(self.domains) > 1 else ()

    # -- rows of the domains --------------------------------------------------------------------

    def row(self, name: str, values: Floats) -> Node:
        self.inputs[name] = np.asarray(values, float)
        return self.tape.input(name, row=True)

    def rows(self, values: Sequence[Any]) -> list[Node]:
        nodes = [x if isinstance(x, Node) else self.tape.constant(x) for x in values]
        return [x if x.row else self.tape.apply(SPREAD, x) for x in nodes]

    def spread(self, prefix: str, values: Any, fill: float = 0.0) -> Floats:
        """Values of a domain's rows, shape (..., its rows), over the rows of all domains."""
        first = self.firsts[prefix]
        spread = np.full((*np.shape(values)[:-1], self.count), fill)
        spread[..., first : first + len(self.domains[prefix])] = values
        return spread

    def inside(self, prefix: str) -> Any:
        """1 in the rows of a domain, and 0 in others."""
        if len(self.domains) == 1:
            return 1.0
        name = f"inside {prefix}"
        if name not in self.inputs:
            return self.row(name, self.spread(prefix, np.ones(len(self.domains[prefix]))))
        return self.tape.inputs[name]

    def before(self) -> Ints:
        """The row before each row in its run; empty if no errors are correlated."""
        if not any(data.order for data in self.domains.values()):
            return np.zeros(0, np.int64)
        rows = [
            self.firsts[prefix] + (data.order.before if data.order else np.arange(len(data)))
            for prefix, data in self.domains.items()
        ]
        return np.concatenate(rows).astype(np.int64)

    # -- parts ----------------------------------------------------------------------------------

    def law(self, prefix: str, q: dict[str, Any]) -> Any:
        """Log loss of the law, to which coefficients that are no weights are added."""
        data, at = self.domains[prefix], self.domains[prefix].at
        law, known = data.law, data.law.of_deviations(data.x)
        x = {
            name: self.row(f"{prefix}{name}", self.spread(prefix, data.x[name], at[name]))
            for name in law.covariate_names
        }
        p = law.amounts({**q, **dict.fromkeys(normal_coefficients(data.spec), 0.0)}, at, F)
        log_loss, shares = replace(law, offset=None).log(p, x, at, F)
        places = {WHOLE: -1}
        for of, share in shares.items():
            if of != WHOLE:
                places[of] = len(self.shares)
                self.shares.append(share)
        seen = law.of_deviations(x, F)
        for each in law.deviations:
            share, place = shares[each.of], places[each.of]
            if isinstance(each, Walk):
                columns = each.sd * self.spread(prefix, each.columns(known, at))
                for j, column in enumerate(columns):
                    self.add(column, place, q[each.scale], Weight(f"{prefix}{each.steps}", j))
            elif isinstance(each, Linear):
                names = each.parameters
                log_loss = log_loss + self.linear(prefix, each, names, q, known, share, place)
            else:
                log_loss = log_loss + share * each.value(q, seen, at, F)
        if law.offset:
            own, one = law.offset, self.tape.constant(1.0)
            log_loss = log_loss + self.linear(prefix, own, own.local, q, data.x, one, -1)
        return log_loss

    def linear(
        self,
        prefix: str,
        deviation: Linear,
        names: Sequence[str],
        q: dict[str, Any],
        x: Values,
        share: Any,
        place: int,
    ) -> Any:
        """Add the coefficients with normal priors as weights; what the rest, and means, add."""
        data, total = self.domains[prefix], 0.0
        normal = normal_coefficients(data.spec)
        for parameter, name in zip(deviation.parameters, names, strict=True):
            column = deviation.column(parameter, x, data.at) * np.ones(len(data))
            column = self.spread(prefix, column)
            mean = q.get(name, 0.0)
            if name in normal:
                mean, sd = normal[name].kwargs.get("mu", 0.0), normal[name].kwargs.get("sigma", 1.0)
                weight = Weight(f"{prefix}{name}", mean=mean, sd=sd)
                self.add(sd * column, place, self.tape.constant(1.0), weight)
            if isinstance(mean, Node) or mean:
                total = total + mean * share * self.row(f"{prefix}{name} column", column)
        return total

    def add(self, column: Floats, share: int, scale: Node, weight: Weight) -> None:
        self.columns.append(column)
        self.of_share.append(share)
        self.of_scale.append(self.place(scale))
        self.weights.append(weight)

    def place(self, scale: Node) -> int:
        if scale.place not in [node.place for node in self.scales]:
            self.scales.append(scale)
        return [node.place for node in self.scales].index(scale.place)

    def add_effects(self, q: Mapping[str, dict[str, Any]], z: Mapping[str, Node]) -> Any:
        """Add random effects; the log prior of their correlations."""
        log: Any = 0.0
        for level in self.correlated:
            log = log + self.add_correlated(level, q, z)
        if len(self.domains) > 1:
            return log
        (data,), (values,) = self.domains.values(), q.values()
        most, whitened = max(map(len, data.groups.values()), default=0), 0
        for level, labels in data.groups.items():
            index, tau = data.index[level], values[f"tau_{level}"]
            weights = [Weight(f"{level}_z", g) for g in range(len(labels))]
            if not self.level[2] and len(labels) == most:
                self.level = np.asarray(index, np.int64), self.place(tau), weights
            elif whitened + len(labels) <= MOST:
                whitened += len(labels)
                for g, weight in enumerate(weights):
                    self.add(np.asarray(index == g, float), -1, tau, weight)
            else:
                self.groups.append(index + len(self.effects))
                self.factors.append(tau)
                self.effects += weights
        return log

    def add_correlated(
        self, level: str, q: Mapping[str, dict[str, Any]], z: Mapping[str, Node]
    ) -> Any:
        """Add effects that are correlated between domains; the log prior of the correlations."""
        count, log = len(self.domains), 0.0
        partial = []
        for k, b in enumerate(partial_exponents(count)):
            half = F.sigmoid(z[f"{level}_partial[{k}]"])
            log = log + b * (F.log(half) + F.log(1.0 - half))
            partial.append(2.0 * half - 1.0)
        rows = dict(zip(self.domains, cholesky_rows(partial, count, F), strict=True))
        size = len(next(iter(self.domains.values())).groups[level])
        index = np.concatenate([data.index[level] for data in self.domains.values()])
        for j in range(count):
            factor = sum(
                self.inside(prefix) * q[prefix][f"tau_{level}"] * row[j]
                for prefix, row in rows.items()
                if j < len(row)
            )
            weights = [Weight(f"{level}_z", g * count + j) for g in range(size)]
            if size * count <= MOST_CORRELATED:
                self.shares.append(factor)
                for g, weight in enumerate(weights):
                    own = np.asarray(index == g, float)
                    self.add(own, len(self.shares) - 1, self.tape.constant(1.0), weight)
            else:
                self.factors.append(factor)
                self.groups.append(index + len(self.effects))
                self.effects += weights
        return log
