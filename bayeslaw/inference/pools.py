"""Pools: posteriors of several laws on one table, used as one."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import FitError, LawError
from bayeslaw.inference.convergence import Convergence
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.law import Law
from bayeslaw.tables.table import LossTable

if TYPE_CHECKING:
    from bayeslaw.evaluate.stacking import StackedForecast

POOLS = {"adaptation": ("form1n", "transfer")}
"""Names of pools and their laws."""


@dataclass(frozen=True)
class Pool:
    """Posteriors of several laws given one table, as a mixture with fixed weights.

    A draw of the pool is a draw of one of its members, in proportion to their weights. Those of
    different members alternate in no order, and those of one member keep theirs.

    Parameters
    ----------
    members : mapping of label to Posterior
    weights : mapping of label to float
        They sum to 1.
    name : str
        What the pool is called in messages.
    """

    members: Mapping[str, Posterior]
    weights: Mapping[str, float] = field(default_factory=dict)
    name: str = "adaptation"

    def __post_init__(self) -> None:
        weights = dict(self.weights) or dict.fromkeys(self.members, 1.0)
        total = sum(weights.values())
        if (
            weights.keys() != self.members.keys()
            or not 0 < total < math.inf
            or min(weights.values()) < 0
        ):
            raise LawError(f"pool {self.name}: give each member a weight of 0 or more, not all 0.")
        if len({fit.table.sha256 for fit in self.members.values()}) > 1:
            raise LawError(f"pool {self.name}: its members are fits of different tables.")
        object.__setattr__(
            self, "weights", {n: float(weight / total) for n, weight in weights.items()}
        )

    def __str__(self) -> str:
        """The weights, then each member."""
        shares = ", ".join(f"{100 * weight:.0f} % {n}" for n, weight in self.weights.items())
        return "\n\n".join([f"Pool {self.name}: {shares}", *map(str, self.members.values())])

    @property
    def first(self) -> Posterior:
        """The member with the largest weight."""
        return self.members[max(self.weights, key=lambda name: self.weights[name])]

    @property
    def table(self) -> LossTable:
        """The training table."""
        return self.first.table

    @property
    def columns(self) -> tuple[str, ...]:
        """Covariates of the members' laws."""
        return tuple(dict.fromkeys(c for fit in self.members.values() for c in fit.columns))

    @property
    def settings(self) -> Mapping[str, Any]:
        """Seed, settings of the sampler, and versions, of the first member."""
        return self.first.settings

    @property
    def convergence(self) -> Convergence:
        """Convergence of the member that mixed worst."""
        return max(
            (fit.convergence for fit in self.members.values()),
            key=lambda gate: (not gate.ok, gate.rhat),
        )

    def require_converged(self, allow: bool = False) -> None:
        """Raise `NotConverged` unless every member passes its check or `allow` is true."""
        for fit in self.members.values():
            fit.require_converged(allow)

    @cached_property
    def _layout(self) -> tuple[list[Posterior], Ints, Ints]:
        """Members with weight; of each draw of the pool, its member and place among its draws."""
        used = {name: fit for name, fit in self.members.items() if self.weights[name] > 0}
        total = min(fit.count / self.weights[name] for name, fit in used.items())
        rng, owner, draw, key = np.random.default_rng(0), [], [], []
        for k, (name, fit) in enumerate(used.items()):
            count = round(total * self.weights[name])
            owner.append(np.full(count, k))
            draw.append(np.linspace(0, fit.count - 1, count).round().astype(int))
            key.append(np.sort((np.arange(count) + rng.random(count)) / count))
        order = np.argsort(np.concatenate(key), kind="stable")
        return list(used.values()), np.concatenate(owner)[order], np.concatenate(draw)[order]

    @property
    def count(self) -> int:
        """Number of draws."""
        return len(self._layout[1])

    def parts(self, draws: Ints | None = None) -> Iterator[tuple[Posterior, Ints, Ints]]:
        """Members, with the draws of theirs that some draws of the pool are, and their places."""
        fits, owner, draw = self._layout
        wanted = np.arange(self.count) if draws is None else draws
        for k, fit in enumerate(fits):
            place = np.flatnonzero(owner[wanted] == k)
            yield fit, draw[wanted[place]], place

    def gathered(self, values: Callable[[Posterior], Floats], draws: Ints | None = None) -> Floats:
        """Values of all members, each of shape (draws, ...), for draws of the pool."""
        gathered, places = [], []
        for fit, some, place in self.parts(draws):
            if len(some):
                gathered.append(values(fit)[some])
                places.append(place)
        return np.concatenate(gathered)[np.argsort(np.concatenate(places))]

    def latent(self, table: LossTable | pd.DataFrame) -> Floats:
        """Noise-free loss per draw and row, nats per token, shape (draws, rows)."""
        return self.gathered(lambda fit: fit.latent(table))

    def predict(
        self, table: LossTable | pd.DataFrame, *, allow_unconverged: bool = False
    ) -> Floats:
        """Central loss per row, nats per token: the median of the latent loss."""
        self.require_converged(allow_unconverged)
        return np.median(self.latent(table), axis=0)

    def forecast(
        self,
        table: LossTable | pd.DataFrame,
        *,
        kind: str = "predictive",
        seed: int = 0,
        allow_unconverged: bool = False,
    ) -> "StackedForecast":
        """Forecast the loss of each row by the mixture of the members.

        Raises
        ------
        NotConverged
            If a member failed its convergence check and `allow_unconverged` is false.
        TableError
            If a covariate is missing or invalid.
        """
        from bayeslaw.evaluate.stacking import mixture

        return mixture(
            self.members, self.weights, table, kind=kind, seed=seed, allow=allow_unconverged
        )

    def summary(self) -> pd.DataFrame:
        """`Posterior.summary` of each member, whose label is the first level of the index."""
        return pd.concat({name: fit.summary() for name, fit in self.members.items()})

    def to_datatree(self, *, seed: int = 0, prior: int = 1000) -> xr.DataTree:
        """The members' trees for ArviZ, by their labels."""
        trees = {
            name: fit.to_datatree(seed=seed, prior=prior) for name, fit in self.members.items()
        }
        return xr.DataTree(children=trees)

    def save(self, path: str | Path) -> None:
        """Write the pool to one NetCDF file, which `bayeslaw.load` reads."""
        from bayeslaw.inference.storage import save_pool

        save_pool(self, path)


def of_one_law(fit: Posterior | Pool, what: str) -> Posterior:
    """The fit, if it is the posterior of one law.

    Raises
    ------
    FitError
        If it is a pool, or has no draws; `what` in the message names what needs them.
    """
    if isinstance(fit, Pool):
        names = ", ".join(fit.members)
        raise FitError(f"{what} needs the fit of one law, not a pool; take a member: {names}.")
    return with_draws(fit, what)


def with_draws[Fit](fit: Fit, what: str) -> Fit:
    """The fit, if it is a posterior or a pool; see `of_one_law`."""
    if not isinstance(fit, Posterior | Pool):
        kind = type(fit).__name__
        raise FitError(f"{what} needs a posterior, which bayeslaw.fit gives, not a {kind}.")
    return fit


def member_laws(law: object) -> Sequence[str | Path | Law] | None:
    """Laws of a pool by its name, or those of a sequence; None for a single law."""
    if isinstance(law, str):
        return POOLS.get(law)
    return law if isinstance(law, Sequence) else None
