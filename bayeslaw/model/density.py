"""The log density of a specification on a table, in the sampler's coordinates.

Parameters of the law, scales and noise are on the real line (`bayeslaw.model.coordinates`).
Weights of deviations and random effects are whitened (`bayeslaw.model.whitening`). Effects of a
second level with many groups, or of many groups in several domains, are sampled as standard normals
as they are. The same density as a PyMC model is `bayeslaw.model.building.build`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.laws.deviations import WHOLE, Linear, Walk
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.terms import Values
from bayeslaw.model import whitening
from bayeslaw.model.building import cholesky_rows, partial_exponents
from bayeslaw.model.coordinates import coordinates, log_prior, on_the_line
from bayeslaw.model.noise import LENGTH, NUGGET, decay
from bayeslaw.model.spec import Arrays, JointSpec, Spec
from bayeslaw.model.tape import FUNCTIONS, SPREAD, Node, Tape

MOST = 40
"""Most groups, of all levels but the one with most, whose effects are whitened.

The whitening takes the cube of the number of these and other weights."""
MOST_CORRELATED = 120
"""Most effects of a level of several domains, groups times domains, that are whitened."""


@dataclass(frozen=True)
class Weight:
    """A standard normal: of which variable, its place in it, and the variable's mean and sd."""

    name: str
    place: int = -1
    mean: float = 0.0
    sd: float = 1.0


@dataclass(frozen=True)
class Density:
    """Log density and gradient at points of the sampler's space.

    Its coordinates are the parameters on the real line, the whitened weights, and effects.

    Parameters
    ----------
    names : tuple of str
        Parameters on the real line.
    start : array, shape (parameters,)
    weights, effects : sequence of Weight
        What is whitened, the effects of the level with most groups last; and what is sampled as it
        is.
    domains : mapping of prefix to (Spec, mapping)
        Spec and reference point of each domain.
    arguments : tuple
        Of `bayeslaw.model.whitening.density`, after the point.
    """

    names: tuple[str, ...]
    start: Floats
    weights: Sequence[Weight]
    effects: Sequence[Weight]
    domains: Mapping[str, tuple[Spec, Values]]
    arguments: tuple[Any, ...] = field(repr=False)

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return len(self.names) + len(self.weights) + len(self.effects)

    @property
    def levels_of_loss(self) -> list[int]:
        """Places of the losses at the reference points, which the data determine."""
        return [i for i, name in enumerate(self.names) if name.split("::")[-1] == "L_ref"]

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

    def unwhitened(self, point: Floats) -> Floats:
        """The point with weights in place of whitened ones."""
        _, _, weights = whitening.density(point, *self.arguments)
        first = len(self.names)
        return np.concatenate([point[:first], weights, point[first + len(weights) :]])

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
            scale = np.sqrt(1 - rho**2 + NUGGET)
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
        """Draws by name, of points of `unwhitened`, shape (chains, draws, coordinates)."""
        z = {name: points[..., i] for i, name in enumerate(self.names)}
        found: dict[str, Floats] = {}
        for prefix, (spec, at) in self.domains.items():
            own = {n.removeprefix(prefix): v for n, v in z.items() if n.startswith(prefix)}
            q, _ = parameters(spec, at, own)
            found |= {f"{prefix}{name}": np.asarray(value) for name, value in q.items()}
        vectors: dict[str, dict[int, Floats]] = {}
        for name in self.names:
            base, _, place = name.partition("[")
            if place:
                value = z[name] if base.endswith("_z") else FUNCTIONS.sigmoid(z[name])
                vectors.setdefault(base, {})[int(place[:-1])] = value
        for k, weight in enumerate((*self.weights, *self.effects), len(self.names)):
            value = weight.mean + weight.sd * points[..., k]
            if weight.place >= 0:
                vectors.setdefault(weight.name, {})[weight.place] = value
            elif weight.name:
                found[weight.name] = value
        none = np.zeros(points.shape[:-1])
        for name, by_place in vectors.items():
            count = max(by_place) + 1
            found[name] = np.stack([by_place.get(j, none) for j in range(count)], axis=-1)
            if len(self.domains) > 1 and name.endswith("_z") and "::" not in name:
                shape = *none.shape, -1, len(self.domains)  # effects that are correlated
                found[name] = found[name].reshape(shape)
        return found


def parameters(spec: Spec, at: Values, z: Values) -> tuple[dict[str, Any], Any]:
    """Parameters of a spec that are no weights, and the log density of their priors.

    Parameters
    ----------
    spec : Spec
    at : mapping of str to float
        The reference point.
    z : mapping of str to value
        Coordinates on the real line: nodes of a tape, or arrays.
    """
    q, log = coordinates(spec.law, spec.priors, at, z, normal_coefficients(spec))
    for name in _other_parameters(spec):
        prior = spec.priors[spec.likelihood.parameters.get(name, name)]
        q[name], part = on_the_line(prior.support, z[name])
        log = log + part + log_prior(prior, q[name])
    return q, log


def normal_coefficients(spec: Spec) -> dict[str, Prior]:
    """Coefficients of deviations whose priors are normal: they are sampled as weights."""
    law = spec.law
    names = [n for d in law.deviations if isinstance(d, Linear) for n in d.parameters]
    names += law.offset.local if law.offset else ()
    return {name: spec.priors[name] for name in names if spec.priors[name].name == "Normal"}


def _other_parameters(spec: Spec) -> list[str]:
    """Parameters on the real line that are not the law's."""
    names = ["sigma", *spec.likelihood.parameters, *[LENGTH] * (spec.errors == "run")]
    return names + [f"tau_{level}" for level in spec.effects]


def make_density(spec: Spec | JointSpec, arrays: Arrays) -> Density:
    """The density of a spec on the arrays of a `Data`, or of several on `joint_arrays`."""
    return _Builder(spec, arrays).build()


class _Builder:
    """A tape, the weights, and the effects, to which each part of a spec adds its own."""

    def __init__(self, spec: Spec | JointSpec, arrays: Arrays) -> None:
        self.spec, self.tape = spec, Tape()
        self.specs = list(spec.domains.items())
        self.arrays = [
            {n.removeprefix(prefix): v for n, v in arrays.items() if n.startswith(prefix)}
            for prefix, _ in self.specs
        ]
        self.counts = [len(own["observed"]) for own in self.arrays]
        self.inputs: dict[str, Floats] = {}
        self.columns: list[Floats] = []
        self.of_share: list[int] = []
        self.of_scale: list[int] = []
        self.weights: list[Weight] = []
        self.level: tuple[Ints, int, list[Weight]] = (np.full(sum(self.counts), -1), 0, [])
        self.effects: list[Weight] = []
        self.shares: list[Node] = []
        self.scales: list[Node] = []
        self.factors: list[Node] = []
        self.groups: list[Ints] = []

    def build(self) -> Density:
        """The density, whitened at its start."""
        names = self.names()
        z = {name: self.tape.input(name) for name in names}
        q: list[dict[str, Any]] = []
        log_loss: Any = 0.0
        scale: Any = 0.0
        information: Any = 0.0
        rho: Any = 0.0
        log: Any = 0.0
        for d, (prefix, spec) in enumerate(self.specs):
            own = {n.removeprefix(prefix): v for n, v in z.items() if n.startswith(prefix)}
            found, prior = parameters(spec, self.reference(d), own)
            q.append(found)
            inside, sigma = self.inside(d), found["sigma"]
            log_loss = log_loss + inside * self.law(d, found)
            information = information + 1.0 / spec.likelihood.information_variance(sigma, found)
            if spec.errors == "run":
                gap = self.row(f"{prefix}gap", self.spread(d, self.arrays[d]["gap"]))
                each = inside * decay(gap, found[LENGTH], FUNCTIONS)
                rho = rho + each
                sigma = sigma * FUNCTIONS.sqrt(1 - each * each + NUGGET)
            scale = scale + inside * sigma
            log = log + prior
        log = log + self.add_effects(q, z)
        if not self.weights:  # one without effect, so that the block is not empty
            self.add(np.zeros(self.one_size), -1, self.tape.constant(1.0), Weight(""))
        return self.compile(names, q, log_loss, rho, information / len(q), scale, log)

    @property
    def one_size(self) -> int:
        """Number of rows."""
        return sum(self.counts)

    def compile(
        self,
        names: list[str],
        q: list[dict[str, Any]],
        log_loss: Any,
        rho: Any,
        information: Node,
        scale: Any,
        log: Any,
    ) -> Density:
        """The density of what was added."""
        tape = self.tape
        shares, factors = map(self.rows, (self.shares, self.factors))
        log_loss, rho, scale = self.rows([log_loss, rho, scale])
        seen = [log_loss, rho, *shares, *factors, information, *self.scales]
        errors = tape.input("errors", row=True)
        total = log
        for d, (_, spec) in enumerate(self.specs):
            each = spec.likelihood.log_density(errors, scale, q[d])
            total = total + FUNCTIONS.sum(self.inside(d) * each)
        (by_error,) = self.rows(tape.gradient(total, [errors]))
        weighted, cotangents = total, []
        for k, node in enumerate(seen):
            cotangents.append(f"cotangent {k}")
            product = node * tape.input(cotangents[-1], row=node.row)
            weighted = weighted + (FUNCTIONS.sum(product) if product.row else product)
        derivatives = tape.gradient(weighted, [tape.inputs[name] for name in names])
        order = [*names, *self.inputs, "errors", *cotangents]
        stages = [seen, [total, by_error], derivatives]
        program = tape.compile([node for stage in stages for node in stage], order)
        of_seen, of_likelihood, of_theta = np.split(
            program.outputs, [len(seen), len(seen) + len(stages[1])]
        )
        ends = np.array([len(order), of_seen.max() + 1, of_likelihood.max() + 1])
        first, last = 2 + len(shares), 2 + len(shares) + len(factors)
        of_seen, of_likelihood, of_theta = map(program.places, (of_seen, of_likelihood, of_theta))
        places = (
            *(of_seen[0], of_seen[last], of_seen[1], of_seen[2:first], of_seen[last + 1 :]),
            *(of_seen[first:last], *of_likelihood, len(self.inputs), len(self.inputs) + 1),
        )
        group, of_tau, own = self.level
        columns = np.ascontiguousarray(self.columns)
        block = columns, np.array(self.of_share), np.array(self.of_scale)
        groups = np.array(self.groups, np.int64).reshape(len(self.groups), self.one_size)
        observed = np.concatenate([own["observed"] for own in self.arrays]).astype(float)
        data = np.stack(list(self.inputs.values()))
        arguments = (
            *(observed, program.code, program.constants, program.sizes, ends, places, of_theta),
            *(data, block, (group, of_tau), groups, self.before()),
        )
        domains = {prefix: (spec, self.reference(d)) for d, (prefix, spec) in enumerate(self.specs)}
        start = self.start(names)
        weights = [*self.weights, *own]
        density = Density(tuple(names), start, weights, self.effects, domains, arguments)
        return density.whitened_at(start)

    # -- rows of the domains --------------------------------------------------------------------

    def row(self, name: str, values: Floats) -> Node:
        """An input that is a row of data."""
        self.inputs[name] = np.asarray(values, float)
        return self.tape.input(name, row=True)

    def rows(self, nodes: Sequence[Any]) -> list[Node]:
        """The values as rows."""
        found = [x if isinstance(x, Node) else self.tape.constant(x) for x in nodes]
        return [x if x.row else self.tape.apply(SPREAD, x) for x in found]

    def spread(self, d: int, values: Any, fill: float = 0.0) -> Floats:
        """Values of a domain's rows, shape (..., its rows), over the rows of all domains."""
        first = sum(self.counts[:d])
        found = np.full((*np.shape(values)[:-1], self.one_size), fill)
        found[..., first : first + self.counts[d]] = values
        return found

    def inside(self, d: int) -> Any:
        """1 in the rows of a domain, and 0 in others."""
        if len(self.specs) == 1:
            return 1.0
        name = f"inside {d}"
        if name not in self.inputs:
            return self.row(name, self.spread(d, np.ones(self.counts[d])))
        return self.tape.inputs[name]

    def before(self) -> Ints:
        """The row before each row in its run, if errors are correlated."""
        if not any(spec.errors == "run" for _, spec in self.specs):
            return np.zeros(0, np.int64)
        firsts = np.cumsum([0, *self.counts])
        found = []
        for own, count, first in zip(self.arrays, self.counts, firsts, strict=False):
            found.append(first + own.get("before", np.arange(count)))
        return np.concatenate(found).astype(np.int64)

    def reference(self, d: int) -> dict[str, float]:
        """Reference point of a domain."""
        law = self.specs[d][1].law
        return {n: float(v) for n, v in zip(law.covariate_names, self.arrays[d]["at"], strict=True)}

    # -- parts ----------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Parameters on the real line."""
        names = []
        for prefix, spec in self.specs:
            weights = normal_coefficients(spec)
            own = [name for name in spec.law.coordinates if name not in weights]
            names += [f"{prefix}{name}" for name in (*own, *_other_parameters(spec))]
        count = len(self.specs)
        for level in self.correlated:
            names += [f"{level}_partial[{k}]" for k in range(count * (count - 1) // 2)]
        return names

    @property
    def correlated(self) -> tuple[str, ...]:
        """Levels whose effects are correlated between domains."""
        return self.spec.effects if isinstance(self.spec, JointSpec) else ()

    def start(self, names: list[str]) -> Floats:
        """A point of plausible parameters, with the loss at the reference point from the data."""
        found = np.zeros(len(names))
        for d, (prefix, spec) in enumerate(self.specs):
            typical = {"L_ref": float(np.mean(self.arrays[d]["observed"]))}
            locals_ = {term.local for term in spec.law.terms}
            for name in names:
                own = name.removeprefix(prefix)
                if not name.startswith(prefix) or "[" in name:
                    continue
                prior = spec.priors.get(spec.likelihood.parameters.get(own, own))
                if own in typical:
                    value = typical[own]
                elif (
                    own in locals_
                    and prior
                    and prior.support[0] == 0
                    and np.isinf(prior.support[1])
                ):
                    value = -0.7  # a third of the loss that is left
                else:
                    value = _typical(prior) if prior else 0.0
                found[names.index(name)] = value
        return found

    def law(self, d: int, q: dict[str, Any]) -> Any:
        """Log loss of the law, to which coefficients that are no weights are added."""
        (prefix, spec), at = self.specs[d], self.reference(d)
        law = spec.law
        values = dict(zip(law.covariate_names, self.arrays[d]["x"].astype(float), strict=True))
        x = {
            name: self.row(f"{prefix}{name}", self.spread(d, value, at[name]))
            for name, value in values.items()
        }
        law, normal = law.over(values, at), normal_coefficients(spec)
        p = law.amounts({**q, **dict.fromkeys(normal, 0.0)}, at, FUNCTIONS)
        log_loss, shares = replace(law, offset=None).log(p, x, at, FUNCTIONS)
        places = {WHOLE: -1}
        for of, share in shares.items():
            if of != WHOLE:
                places[of] = len(self.shares)
                self.shares.append(share)
        one = self.tape.constant(1.0)
        known, seen = law.of_deviations(values), law.of_deviations(x, FUNCTIONS)
        for each in law.deviations:
            share, place = shares[each.of], places[each.of]
            if isinstance(each, Walk):
                for j, column in enumerate(each.sd * self.spread(d, each.columns(known, at))):
                    weight = Weight(f"{prefix}{each.steps}", j)
                    self.add(column, place, q[each.scale], weight)
            elif isinstance(each, Linear):
                log_loss = log_loss + self.linear(d, each, each.parameters, q, known, share, place)
            else:
                log_loss = log_loss + share * each.value(q, seen, at, FUNCTIONS)
        if law.offset:
            own = law.offset
            log_loss = log_loss + self.linear(d, own, own.local, q, values, one, -1)
        return log_loss

    def linear(
        self,
        d: int,
        deviation: Linear,
        coordinates: Sequence[str],
        q: dict[str, Any],
        x: Values,
        share: Any,
        place: int,
    ) -> Any:
        """Add the coefficients with normal priors as weights; what the rest, and means, add."""
        (prefix, spec), at = self.specs[d], self.reference(d)
        normal, total = normal_coefficients(spec), 0.0
        for parameter, name in zip(deviation.parameters, coordinates, strict=True):
            column = self.spread(d, deviation.column(parameter, x, at) * np.ones(self.counts[d]))
            mean = q.get(name, 0.0)
            if name in normal:
                mean, sd = normal[name].kwargs.get("mu", 0.0), normal[name].kwargs.get("sigma", 1.0)
                weight = Weight(f"{prefix}{name}", mean=mean, sd=sd)
                self.add(sd * column, place, self.tape.constant(1.0), weight)
            if isinstance(mean, Node) or mean:
                total = total + mean * share * self.row(f"{prefix}{name} column", column)
        return total

    def add(self, column: Floats, share: int, scale: Node, weight: Weight) -> None:
        """Add a weight."""
        self.columns.append(column)
        self.of_share.append(share)
        self.of_scale.append(self.place(scale))
        self.weights.append(weight)

    def place(self, scale: Node) -> int:
        """Place of a scale among those of the weights."""
        if scale.place not in [node.place for node in self.scales]:
            self.scales.append(scale)
        return [node.place for node in self.scales].index(scale.place)

    def add_effects(self, q: list[dict[str, Any]], z: Mapping[str, Node]) -> Any:
        """Add random effects; the log prior of their correlations."""
        log: Any = 0.0
        for level in self.correlated:
            log = log + self.add_correlated(level, q, z)
        alone = [level for level in self.spec.effects if level not in self.correlated]
        counts = {level: len(self.arrays[0][f"{level}_groups"]) for level in alone}
        whitened = 0
        for level, count in counts.items():
            index, tau = self.arrays[0][f"{level}_index"], q[0][f"tau_{level}"]
            weights = [Weight(f"{level}_z", g) for g in range(count)]
            if not self.level[2] and count == max(counts.values()):
                self.level = np.asarray(index, np.int64), self.place(tau), weights
            elif whitened + count <= MOST:
                whitened += count
                for g, weight in enumerate(weights):
                    self.add(np.asarray(index == g, float), -1, tau, weight)
            else:
                self.groups.append(index + len(self.effects))
                self.factors.append(tau)
                self.effects += weights
        return log

    def add_correlated(self, level: str, q: list[dict[str, Any]], z: Mapping[str, Node]) -> Any:
        """Add effects that are correlated between domains; the log prior of the correlations."""
        count, log = len(self.specs), 0.0
        partial = []
        for k, b in enumerate(partial_exponents(count)):
            half = FUNCTIONS.sigmoid(z[f"{level}_partial[{k}]"])
            log = log + b * (FUNCTIONS.log(half) + FUNCTIONS.log(1.0 - half))
            partial.append(2.0 * half - 1.0)
        rows = cholesky_rows(partial, count, FUNCTIONS)
        size = len(self.arrays[0][f"{level}_groups"])
        index = np.concatenate([own[f"{level}_index"] for own in self.arrays])
        for j in range(count):
            factor = sum(
                self.inside(d) * q[d][f"tau_{level}"] * row[j]
                for d, row in enumerate(rows)
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


def _typical(prior: Prior) -> float:
    """A plausible value of a parameter on the real line."""
    low, high = prior.support
    if np.isinf(low):
        return float(prior.kwargs.get("mu", 0.0))
    if not np.isinf(high):
        return 0.0
    return float(prior.kwargs.get("mu", 0.0)) if prior.name == "LogNormal" else -0.5
