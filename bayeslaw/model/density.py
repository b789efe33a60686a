"""The log density of a specification on a table, in the sampler's coordinates, as one program.

Parameters have the coordinates of `bayeslaw.model.coordinates`. Weights of deviations and random
effects are whitened (`bayeslaw.engine.whitening`). Effects of a second level with many groups are
sampled as standard normals as they are. The same density as a PyMC model is
`bayeslaw.model.building.build`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from bayeslaw.common.arrays import Floats, Ints, Untyped
from bayeslaw.engine.machine import run, value_and_gradient
from bayeslaw.engine.program import Program, assemble
from bayeslaw.engine.tape import FUNCTIONS as F
from bayeslaw.engine.tape import Node, Tape, gather, scatter, spread, stack
from bayeslaw.engine.whitening import (
    CorrelatedColumns,
    Groups,
    Kept,
    innovation_scale,
    whitened,
)
from bayeslaw.laws.deviations import WHOLE, Linear, Scaled
from bayeslaw.laws.symbols import Values
from bayeslaw.model.coordinates import normal_coefficients, parameters, start
from bayeslaw.model.noise import LENGTH, decay
from bayeslaw.model.training import Data

MAX_WHITENED = 40
"""Most groups, of all levels but the one with most, whose effects are whitened.

The whitening takes the cube of the number of these and other weights."""


class Weight(NamedTuple):
    """A standard normal: of which variable, whether that is a vector, and its mean and sd."""

    name: str
    vector: bool = False
    mean: float = 0.0
    sd: float = 1.0


class Block(NamedTuple):
    """Successive weights whose columns enter the log loss times the same share of it."""

    share: Node
    columns: list[Floats]


@dataclass(frozen=True)
class Density:
    """Log density and gradient at points of the sampler's space.

    Its coordinates are the parameters on the real line, the whitened weights, and effects. A
    density computes in its own memory, so each thread needs a `copy`.
    """

    names: tuple[str, ...]
    start: Floats
    weights: Sequence[Weight]
    effects: Sequence[Weight]
    data: Data
    program: Program = field(repr=False)
    memory: Floats = field(repr=False)
    design: CorrelatedColumns | None = field(repr=False)

    @property
    def size(self) -> int:
        return len(self.names) + len(self.weights) + len(self.effects)

    def __call__(self, point: Floats) -> tuple[float, Floats]:
        """Log density up to a constant, and its gradient."""
        program, ((first, _), (by, _), *_) = self.program, self.program.outputs
        code = program.code
        index = program.index
        value, gradient = value_and_gradient(code, index, self.memory, point, first, by)
        return value, gradient

    def expand(self, point: Floats) -> Floats:
        """A point with parameters on the real line and weights in place of whitened ones."""
        self(point)
        return self.program.read(self.memory, 2).ravel()

    def copy(self, **constants: Floats) -> "Density":
        """The density with a memory of its own, in which some constants are others."""
        memory = self.memory.copy()
        for name, values in constants.items():
            if name in self.program.named:
                memory[self.program.named[name] :][: values.size] = values.ravel()
        run(self.program.once, self.program.index, memory)
        return replace(self, memory=memory)

    def scaled(self, centre: Floats, factor: Floats) -> "Density":
        """The density where parameters are ``centre`` plus ``factor`` times their coordinates."""
        return self.copy(centre=centre, factor=factor)

    def whitened_at(self, parameters: Floats) -> "Density":
        """The density whitened by the matrix at a point on the real line."""
        if self.design is None:  # each point has a matrix of its own
            return self
        size = len(parameters)
        plain = self.scaled(np.zeros(size), np.eye(size))
        plain(np.concatenate([parameters, np.zeros(self.size - size)]))
        count = len(self.program.outputs)
        rho, *shares = (
            self.program.read(plain.memory, k).ravel() for k in range(3, count)
        )
        return self.copy(**self.design.kept(np.array(shares), rho)._asdict())

    def variables(self, points: Floats) -> dict[str, Floats]:
        """Draws by name, of points of `expand`, shape (chains, draws, coordinates)."""
        z = {name: points[..., i] for i, name in enumerate(self.names)}
        q, _ = parameters(self.data.spec, self.data.at, z)
        drawn = {name: np.asarray(value) for name, value in q.items()}
        vectors: dict[str, list[Floats]] = {}
        for k, weight in enumerate((*self.weights, *self.effects), len(self.names)):
            value = weight.mean + weight.sd * points[..., k]
            if weight.vector:
                vectors.setdefault(weight.name, []).append(value)
            elif weight.name:
                drawn[weight.name] = value
        return drawn | {
            name: np.stack(values, axis=-1) for name, values in vectors.items()
        }


# -- the program -----------------------------------------------------------------------------------


def make_density(data: Data) -> Density:
    """The density of a fit; see `build` for the same as a PyMC model."""
    return _Builder(data).build()


class _Builder:
    """A tape, the weights, and the effects, to which each part of a spec adds its own."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.tape = Tape()
        self.count = len(data)
        self.q: dict[str, Node] = {}
        # Of correlated errors: the row before each in its run, and the correlation with its error.
        self.order: tuple[Ints, Node] | None = None
        self.blocks: list[Block] = []
        self.scales: list[Node] = []  # of the weights
        self.weights: list[Weight] = []
        # The level with most groups: of each row the group, the scale, and the effects.
        self.level: tuple[Ints, Node, list[Weight]] = (
            np.zeros(0, np.int64),
            self.node(0.0),
            [],
        )
        # Of effects that are sampled as they are: the scale, and of each row the place.
        self.unwhitened: list[tuple[Node, Ints]] = []
        self.effects: list[Weight] = []

    def build(self) -> Density:
        """The density, whitened at its start."""
        data = self.data
        tape = self.tape
        first = start(self.data)
        size = len(first)
        factor = tape.constant(np.eye(size), "factor")
        own = tape.input("parameters", size)
        # The sampler's coordinates are scaled here, so that the gradient comes out in them.
        theta = tape.constant(np.zeros(size), "centre") + own @ factor.T
        z = {name: theta.view(k, (1, 1)) for k, name in enumerate(first)}
        self.q, total = parameters(data.spec, data.at, z)
        if data.order:
            rho = decay(tape.constant(data.order.gap), self.q[LENGTH], F)
            self.order = data.order.before, self.of_rows(rho)
        log_loss = self.of_rows(self.law())
        self.add_effects()
        if not self.weights:  # one without effect, so that there is a block
            self.add(np.zeros((1, self.count)), 1.0, 1.0, [Weight("")])
        sizes = {
            "eps": self.weights,
            "eps of level": self.level[2],
            "effects": self.effects,
        }
        inputs = {name: tape.input(name, len(of)) for name, of in sizes.items() if of}
        r = tape.constant(data.observed) - log_loss
        effects = inputs.get("effects")
        if effects is not None:
            for scale, index in self.unwhitened:
                r = r - scale * gather(effects, tape.index(index, len(self.effects)))
            total = total - 0.5 * F.sum(effects * effects)
        weights, of_level, errors, jacobian = self.whiten(
            r, inputs["eps"], inputs.get("eps of level")
        )
        total = total + jacobian + self.likelihood(errors)
        by = tape.gradient(total, [*z.values(), *inputs.values()])
        gradient = stack([stack(by[:size], 1) @ factor, *by[size:]], 1)
        expanded = stack(
            [theta, *(x for x in (weights, of_level, effects) if x is not None)], 1
        )
        return self.density(first, [total, gradient, expanded])

    def density(self, first: Mapping[str, float], outputs: list[Node]) -> Density:
        (group, _, of_level), design = self.level, None
        if self.order:
            before, rho = self.order
            outputs = [
                *outputs,
                rho,
                *(spread(b.share, (1, self.count)) for b in self.blocks),
            ]
            of_block = np.repeat(
                np.arange(len(self.blocks)), [len(b.columns) for b in self.blocks]
            )
            columns = np.concatenate([block.columns for block in self.blocks])
            design = CorrelatedColumns(columns, of_block, before, group, len(of_level))
        program = assemble(self.tape, outputs)
        point = np.array(list(first.values()))
        weights = [*self.weights, *of_level]
        density = Density(
            *(tuple(first), point, weights, self.effects, self.data),
            *(program, program.memory, design),
        )
        return density.copy().whitened_at(point)

    def node(self, value: Node | float | Floats) -> Node:
        return value if isinstance(value, Node) else self.tape.constant(value)

    def of_rows(self, value: Node | float) -> Node:
        """A value for each row."""
        return spread(self.node(value), (1, self.count))

    # -- whitening ------------------------------------------------------------------------------

    def whiten(
        self, r: Node, eps: Node, eps_level: Node | None
    ) -> tuple[Node, Node | None, Node, Node]:
        """Weights, effects of the level, independent errors, and the log density of the first two.

        `r` is the measured log loss less that of the law.
        """
        tape, (group, tau, of_level) = self.tape, self.level
        index = tape.index(group, len(of_level))
        columns = [tape.constant(np.array(block.columns)) for block in self.blocks]
        unique = list(dict.fromkeys(self.scales))
        places = [unique.index(scale) for scale in self.scales]
        scales = gather(stack(unique, 1), tape.index(places, len(unique)))
        typical = scales
        groups = None
        if self.order is None:
            f = stack(
                [own * b.share for b, own in zip(self.blocks, columns, strict=True)]
            )
            gram = f @ f.T
            with_r = r @ f.T
            if eps_level:
                norms = tape.constant(np.bincount(group, minlength=len(of_level)))
                groups = Groups(
                    tau, eps_level, scatter(f, index), norms, scatter(r, index)
                )
        else:
            fixed, means = self.fixed()
            gram = fixed.gram
            with_r = r @ fixed.columns.T
            typical = scales * means
            if eps_level:
                with_level = scatter(r * fixed.level, index)
                groups = Groups(tau, eps_level, fixed.cross, fixed.norms, with_level)
        w = self.node(
            1.0
            / self.data.spec.likelihood.information_variance(self.q["sigma"], self.q)
        )
        weights, effects, log = whitened(gram, with_r, typical, w, eps, groups)
        moved = scales * weights
        first = 0
        errors = r
        for (share, _), own in zip(self.blocks, columns, strict=True):
            of_block = moved.view(first, (1, own.shape[0]))
            errors = errors - share * (of_block @ own)
            first += own.shape[0]
        if effects is not None:
            errors = errors - tau * gather(effects, index)
        if self.order:
            before, rho = self.order
            errors = errors - rho * gather(errors, tape.index(before, self.count))
        return weights, effects, errors, log

    def fixed(self) -> tuple[Kept[Node], Node]:
        """Products of columns at a fixed point; how large columns are, relative to that point."""
        k = len(self.weights)
        n = self.count
        groups = len(self.level[2])
        shapes = Kept(
            (k, n), (k, k), (k, n), (1, n), (1, groups), (k, groups)
        )._asdict()
        nodes = {
            name: self.tape.constant(np.zeros(s), name) for name, s in shapes.items()
        }
        fixed = Kept(**nodes)
        first = 0
        sizes = []
        for share, columns in self.blocks:
            mean = fixed.mean.view(first * n, (len(columns), n))
            sizes.append(spread(share, (1, n)) @ mean.T)
            first += len(columns)
        return fixed, stack(sizes, 1)

    def likelihood(self, errors: Node) -> Node:
        """Log density of independent errors."""
        sigma = self.q["sigma"]
        if self.order:
            sigma = innovation_scale(sigma, self.order[1], F)
        density: Node = F.sum(
            self.data.spec.likelihood.log_density(errors, sigma, self.q)
        )
        return density

    # -- parts ----------------------------------------------------------------------------------

    def law(self) -> Node:
        """Log loss of the law, to which coefficients that are no weights are added."""
        data = self.data
        at = self.data.at
        q = self.q
        law = data.law
        typical = data.law.of_deviations(data.x)
        x = {name: self.tape.constant(data.x[name]) for name in law.covariate_names}
        # At zero: their columns follow as weights, in which the log loss is linear.
        p = law.amounts(
            q | dict.fromkeys(normal_coefficients(data.spec), self.node(0.0)), at, F
        )
        steps = tuple(step for step in law.steps if not isinstance(step, Linear))
        loss, shares = replace(law, steps=steps).stated(p, x, at, F)
        log_loss: Node = F.log(loss)
        seen = law.of_deviations(x, F)
        for deviation in law.deviations:
            share: Untyped = 1.0 if deviation.of == WHOLE else shares[deviation.of]
            if isinstance(deviation, Scaled):
                columns = deviation.sd * np.asarray(deviation.columns(typical, at))
                weights = [Weight(deviation.steps, vector=True)] * len(columns)
                self.add(columns, share, q[deviation.scale], weights)
            elif isinstance(deviation, Linear):
                added = self.linear(deviation, deviation.parameters, typical, share)
                log_loss = log_loss + added
            else:
                log_loss = log_loss + share * deviation.value(q, seen, at, F)
        for step in law.steps:
            if isinstance(step, Linear):
                log_loss = log_loss + self.linear(step, step.local, data.x, 1.0)
        return log_loss

    def linear(
        self, deviation: Linear, names: Sequence[str], x: Values, share: Node | float
    ) -> Node:
        """Add the coefficients with normal priors as weights; what the rest, and means, add."""
        total = self.node(0.0)
        normal = normal_coefficients(self.data.spec)
        for parameter, name in zip(deviation.parameters, names, strict=True):
            column = np.ones(self.count) * np.asarray(
                deviation.column(parameter, x, self.data.at)
            )
            mean: Node | float = self.q.get(name, 0.0)
            if name in normal:
                mean = normal[name].kwargs.get("mu", 0.0)
                sd = normal[name].kwargs.get("sigma", 1.0)
                self.add(
                    sd * column[None], share, 1.0, [Weight(name, mean=mean, sd=sd)]
                )
            if isinstance(mean, Node) or mean:
                total = total + mean * share * self.tape.constant(column)
        return total

    def add(
        self,
        columns: Floats,
        share: Node | float,
        scale: Node | float,
        weights: Sequence[Weight],
    ) -> None:
        """Add weights to the log loss: with these columns, times a share of it and a scale."""
        share = self.node(share)
        # Columns that enter times one share are multiplied as one matrix.
        if not self.blocks or self.blocks[-1].share is not share:
            self.blocks.append(Block(share, []))
        self.blocks[-1].columns.extend(columns)
        self.scales += [self.node(scale)] * len(weights)
        self.weights += weights

    def add_effects(self) -> None:
        """Add random effects."""
        data = self.data
        most = max(map(len, data.groups.values()), default=0)
        whitened = 0
        for level, labels in data.groups.items():
            index = data.index[level]
            tau = self.q[f"tau_{level}"]
            weights = [Weight(f"{level}_z", vector=True)] * len(labels)
            # Given the weights, effects of one level are independent: the largest level needs no
            # matrix.
            if not self.level[2] and len(labels) == most:
                self.level = np.asarray(index, np.int64), tau, weights
            elif whitened + len(labels) <= MAX_WHITENED:
                whitened += len(labels)
                groups = np.equal.outer(np.arange(len(labels)), index) * 1.0
                self.add(groups, 1.0, tau, weights)
            else:
                self.unwhitened.append((tau, index + len(self.effects)))
                self.effects += weights
