"""Specification and PyMC model of several domains measured on the same runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from bayeslaw.common.arrays import Model, Namespace, Tensor
from bayeslaw.laws.terms import Array
from bayeslaw.model.building import build
from bayeslaw.model.spec import Spec

AGREE = 2.0
"""LKJ concentration of the correlation between domains: 1 is flat, above 1 favours none."""


@dataclass(frozen=True)
class JointSpec:
    """Specs of several domains whose random effects are correlated.

    Parameters
    ----------
    domains : mapping of domain to Spec
        Of the same levels of effects.
    """

    domains: Mapping[str, Spec]

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Cache key of a compiled model; see `Spec.key`."""
        return tuple((name, spec.key) for name, spec in self.domains.items())

    @property
    def parts(self) -> Mapping[str, Spec]:
        """Specs by the prefix of their variables' names."""
        return {f"{name}::": spec for name, spec in self.domains.items()}

    @property
    def effects(self) -> tuple[str, ...]:
        """Levels that have effects."""
        return next(iter(self.domains.values())).effects


def build_joint(
    spec: JointSpec, values: Mapping[str, npt.NDArray[np.generic]], *, for_sampling: bool = False
) -> Model:
    """The ``pm.Model``: each domain's under its name, and the effects they share."""
    import pymc as pm

    count = len(spec.domains)
    with pm.Model() as model:
        shared = {}
        for level in spec.effects:
            size = next(len(v) for n, v in values.items() if n.endswith(f"::{level}_groups"))
            shared[level] = correlated_effects(level, size, count)
        for k, (prefix, part) in enumerate(spec.parts.items()):
            mine = {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)}
            effects = {level: effect[k] for level, effect in shared.items()}
            name = prefix.removesuffix("::")
            build(part, mine, for_sampling=for_sampling, name=name, standardised=effects)
    return model


def correlated_effects(level: str, size: int, count: int) -> list[Tensor]:
    """Standardised random effects of `size` groups in each of `count` domains.

    The correlation between the domains is LKJ(`AGREE`).
    """
    import pymc as pm
    import pytensor.tensor as pt

    z = pm.Normal(f"{level}_z", shape=(size, count))
    b = AGREE + np.array([(count - 2 - j) / 2 for _, j in _below(count)])
    partial = 2 * pm.Beta(f"{level}_partial", b, b, shape=len(b)) - 1
    rows = cholesky_rows([partial[k] for k in range(len(b))], count, pt)
    return [sum(z[:, j] * v for j, v in enumerate(row)) for row in rows]


def _below(count: int) -> list[tuple[int, int]]:
    """Row and column of each element below the diagonal."""
    return [(i, j) for i in range(count) for j in range(i)]


def cholesky_rows(partial: Sequence[Array], count: int, xp: Namespace) -> list[list[Array]]:
    """Cholesky factor of a correlation matrix, by rows, from its partial correlations.

    With ``(partial + 1) / 2`` of column j, of K, Beta(b, b), b = eta + (K - 2 - j) / 2, the matrix
    is LKJ(eta): Lewandowski, Kurowicka and Joe (2009). With PyMC's `LKJCorr`, which is the same
    factor, a model of two domains takes 1.6 times as long to compile, 76 s against 48 s, and with
    `LKJCholeskyCov`, which has standard deviations of its own, 1.3 times; a gradient takes as long
    (``python benchmarks/lkj.py --repeats 3``).
    """
    rows: list[list[Array]] = []
    left = iter(partial)
    for i in range(count):
        row: list[Array] = []
        rest: Array = 1.0
        for _ in range(i):
            z = next(left)
            row.append(z * xp.sqrt(rest))
            rest = rest * (1 - z**2)
        rows.append([*row, xp.sqrt(rest)])
    return rows
