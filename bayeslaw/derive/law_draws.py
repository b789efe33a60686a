"""Losses of draws of a law over arrays of its covariates, and minima of functions of one axis."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.laws.law import Law
from bayeslaw.laws.steps import until_repeated


@dataclass(frozen=True)
class LawDraws:
    """Draws of a law's parameters, the arguments `p` of `Law.loss`, stated at the point `at`.

    Shapes are (draws,) or, of steps of walks, (draws, knots). `base` are covariates of the base,
    `start` and `deviation`, (draws,), of a law that starts from it; `unique` the distinct tokens of
    the new data, for a law with repetition.
    """

    law: Law
    p: Mapping[str, Floats]
    at: Mapping[str, float]
    base: Mapping[str, Floats] = field(default_factory=dict)
    unique: float | None = None

    @property
    def count(self) -> int:
        return len(self.p["E"])

    def take(self, draws: Ints | slice) -> "LawDraws":
        p, base = (
            # With the draws of a knot side by side, losses of a grid take a tenth less time.
            {n: np.asfortranarray(v[draws]) for n, v in values.items()}
            for values in (self.p, self.base)
        )
        return replace(self, p=p, base=base)

    def loss(
        self,
        params: float | Floats,
        tokens: float | Floats,
        replay: float | Floats | None = None,
        ptpp: float | Floats | None = None,
    ) -> Floats:
        """Loss in nats per token, shape (..., draws).

        Arguments are in the units of a table, and broadcast with (..., draws): an axis of length 1
        at their end stands for the draws. A law without replay or PTPP needs none;
        what a law declares, it holds. Where a law has no value, as at D = 0, the loss is infinite
        or NaN.
        """
        with np.errstate(all="ignore"):
            x = {"params": np.log(params), "tokens": np.log(tokens) - np.log(self.law.token_unit)}
            return self._at(x, replay, ptpp)

    def _at(
        self,
        x: dict[str, Floats],
        replay: float | Floats | None,
        ptpp: float | Floats | None,
    ) -> Floats:
        ptpp, replay = (
            self.law.held.get(name) if value is None else value
            for name, value in (("ptpp", ptpp), ("replay", replay))
        )
        if ptpp is not None:
            x["ptpp"] = np.log(ptpp)
        for name, row in self.law.declared.items():
            if name in self.law.held:
                value = np.asarray(self.law.held[name])
                x[name] = np.log(value) if row.logged else value
        if replay is not None:
            x |= self.law.shares(np.asarray(replay, float))
        if self.unique is not None:
            share = 0.0 if replay is None else replay
            x["unique"] = until_repeated(self.unique / self.law.token_unit, share)
        shape = np.broadcast_shapes(*map(np.shape, x.values()), (self.count,))
        # With fewer than two axes, columns of knots would be taken for those of rows of a table.
        x = {name: np.reshape(v, (1,) * (2 - np.ndim(v)) + np.shape(v)) for name, v in x.items()}
        loss = self.law.loss(self.p, x | dict(self.base), self.at)
        return np.asarray(np.broadcast_to(loss, (1,) * (2 - len(shape)) + shape)).reshape(shape)

    def knots(self, along: str, over: str = "") -> Floats:
        """Log N ("params"), log D ("tokens") or log(D/N) where exponents change, shape (knots,).

        The last is that of ``along="tokens", over="params"``. There a loss may have a minimum that
        is no smooth one.
        """
        places = [
            walk.knots.positions + self.at[along] - (self.at[over] if over else 0.0)
            for walk in self.law.walks
            if (walk.along, walk.over) == (along, over) and walk.knots is not None
        ]
        unit = np.log(self.law.token_unit) if along == "tokens" else 0.0
        return np.asarray(np.unique(np.concatenate([*places, []])) + unit)


def minima(
    function: Callable[[Floats], Floats], nodes: Floats, tolerance: float = 1e-9
) -> tuple[Floats, Floats]:
    """Where each element of a function of one axis is least, and its value there; (elements,).

    The function takes points of shape (points, elements), and gives values of that shape. `nodes`,
    (nodes, 1 or elements), ascend; the lowest is refined between its neighbours, so that they must
    be near enough to tell which of several minima is the least.
    """
    values = function(nodes)
    nodes = np.broadcast_to(nodes, values.shape)
    node, element = values.argmin(0), np.arange(values.shape[1])
    low, high = (np.clip(node + step, 0, len(nodes) - 1) for step in (-1, 1))
    place, least = zoom(function, nodes[low, element], nodes[high, element], tolerance)
    # With several minima beside the node, the refined one may be above the node.
    better = values[node, element] <= least
    return (
        np.where(better, nodes[node, element], place),
        np.where(better, values[node, element], least),
    )


def zoom(
    function: Callable[[Floats], Floats], low: Floats, high: Floats, tolerance: float = 1e-9
) -> tuple[Floats, Floats]:
    """The minimum of each element between two points, and its value, each of shape (elements,)."""
    fractions = np.linspace(0, 1, 9)[:, None]
    while True:
        points = low + (high - low) * fractions
        values = function(points)
        node, element = values.argmin(0), np.arange(values.shape[1])
        if (high - low).max(initial=0.0) <= tolerance:
            return points[node, element], values[node, element]
        low, high = (
            points[np.maximum(node - 1, 0), element],
            points[np.minimum(node + 1, 8), element],
        )
