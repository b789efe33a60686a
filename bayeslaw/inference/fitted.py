"""Draws of a law's parameters given a table, and the law's loss on any rows under each draw."""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import NotConverged, accept
from bayeslaw.design.bases import drawn_bases, unknown_bases
from bayeslaw.design.design import Design
from bayeslaw.design.fits import BaseFit
from bayeslaw.inference.convergence import Convergence
from bayeslaw.laws.departure import Departure
from bayeslaw.laws.law import Law
from bayeslaw.model import effects
from bayeslaw.model.spec import Spec
from bayeslaw.tables.table import LossTable, Rows

EXTENSION = "extension_seed"
"""Setting of a posterior without losses; see `FittedLaw.extension_seed`."""

VALUES_AT_ONCE = 2**20
"""Losses that are evaluated at once: each array of a law's terms has 8 MB."""


@dataclass(frozen=True)
class FittedLaw(BaseFit):
    """What is known of a law after a fit; `Posterior` adds what is made from it."""

    spec: Spec
    table: LossTable
    at: Mapping[str, float]
    draws: xr.Dataset = field(repr=False)
    stats: xr.Dataset = field(repr=False)
    convergence: Convergence
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def members(self) -> dict[str, Self]:
        """Posteriors of one law by label: this one, without a label."""
        return {"": self}

    def by_member(self, draws: Ints | None = None) -> Iterator[tuple[Self, Ints, Ints]]:
        """Yield each posterior, its draws among those chosen, and where they stand among them."""
        chosen = np.arange(self.count) if draws is None else draws
        # A pool yields one such part for each law, so what takes a fit asks for parts alone.
        yield self, chosen, np.arange(len(chosen))

    @property
    def law(self) -> Law:
        """The law that was fitted."""
        return self.spec.law

    @property
    def laws(self) -> tuple[Law, ...]:
        return (self.law,)

    @property
    def first(self) -> Self:
        """The member with the largest weight: the posterior itself."""
        return self

    @property
    def count(self) -> int:
        """Number of draws of all chains."""
        return int(self.draws.sizes["chain"] * self.draws.sizes["draw"])

    @property
    def scalars(self) -> xr.Dataset:
        """The draws without vectors, such as random effects."""
        return self.draws.drop_dims(set(self.draws.dims) - {"chain", "draw"})

    @cached_property
    def deviating(self) -> Self:
        """The posterior of the draws in which the law has its discrepancy: by default all."""
        if "exact" not in self.stats or not (marks := self.stats["exact"].values).any():
            return self
        # Each chain has as many of them.
        order = np.argsort(marks, axis=1, kind="stable")[:, : int((~marks[0]).sum())]
        draws = xr.DataArray(order, dims=("chain", "draw"))
        chains = xr.DataArray(np.arange(len(order)), dims="chain")
        return replace(
            self, draws=self.draws.isel(chain=chains, draw=draws), stats=xr.Dataset()
        )

    def values(self) -> dict[str, Floats]:
        """Draws of the coordinates and the noise, each (chains * draws, 1), chain by chain."""
        return {
            str(n): v.values.reshape(-1, 1) for n, v in self.scalars.data_vars.items()
        }

    def steps(self) -> dict[str, Floats]:
        """Steps of the walks at the knots of the training rows, each (draws, 1, knots)."""
        steps = {walk.steps: self.draws[walk.steps].values for walk in self.law.walks}
        # The axis between is that of rows, for all of which a knot has one step.
        return {name: v.reshape(-1, 1, v.shape[-1]) for name, v in steps.items()}

    @property
    def paper(self) -> xr.Dataset:
        """Draws of the paper's parameters (E, A, alpha, ...), dims (chain, draw)."""
        q = {name: self.draws[name].values for name in self.law.coordinates}
        p = self.law.to_paper(q, self.at)
        return xr.Dataset(
            {n: (("chain", "draw"), v) for n, v in p.items()}, self.draws.coords
        )

    def losses(self, rows: Rows | pd.DataFrame, draws: Ints | None = None) -> Floats:
        """Noise-free loss per draw and row, nats per token, shape (draws, rows).

        The law's loss, times the exponential of the random effect of the row's size, if fitted.
        With `draws` only these are evaluated, in their order. A frame is checked as by `rows`.
        """
        design = self.design(self._valid(rows))
        loss = self.law_loss(design, draws)
        # Sizes alone: the effects of a base and a run belong to a measurement.
        if any(effects.level(name).latent for name in self.spec.effects):
            of_sizes = effects.latent_effects(
                self.draws, self.spec.effects, design.frame
            )
            kept = slice(None) if draws is None else draws
            loss *= np.exp(of_sizes[kept])
        return loss

    def design(self, rows: Rows) -> Design:
        """The law with some valid rows, at the reference point of the fit."""
        return Design(self.law, rows, at=self.at)

    @cached_property
    def fitted(self) -> Design:
        """The law with the training rows."""
        return self.design(self.table)

    @property
    def law_with_knots(self) -> Law:
        """The law with knots of its random walks that cover the training rows."""
        return self.fitted.law_with_knots

    def law_loss(self, design: Design, draws: Ints | None = None) -> Floats:
        """The law's loss per draw and row, without random effects, shape (draws, rows)."""
        kept = slice(None) if draws is None else draws
        law, q = self.extended(design)
        q = {name: values[kept] for name, values in q.items()}
        x = {}
        for name, values in self.covariates(design).items():
            # Of rows that are alike in a covariate, what depends on it alone is computed once.
            alike = bool((values == values[..., :1]).all())
            x[name] = values[..., :1] if alike else values
            # Those of bases that are not known have a value for each draw.
            if values.ndim > 1:
                x[name] = x[name][kept]
        losses = np.empty((self.count if draws is None else len(draws), len(design)))
        # Some draws at a time, since a law has a dozen arrays of the size of the losses at once.
        size = max(1, VALUES_AT_ONCE // max(1, len(design)))
        for start in range(0, len(losses), size):
            some = slice(start, start + size)
            of_draws = {name: values[some] for name, values in q.items()}
            at_rows = {name: v[some] if v.ndim > 1 else v for name, v in x.items()}
            losses[some] = law.loss(law.amounts(of_draws, self.at), at_rows, self.at)
        return losses

    def extended(self, design: Design) -> tuple[Law, dict[str, Floats]]:
        """The law and its `values`, with discrepancy parameters that only some rows need."""
        q = self.values() | self.steps()
        return self.spec.discrepancy.extend(
            self.law_with_knots, q, self.at, design.x, self.extension_seed
        )

    def covariates(self, design: Design) -> dict[str, Floats]:
        """The covariates of some rows, with losses of new bases: (rows,) or (draws, rows)."""
        departure = self.law.step(Departure)
        bases = departure.bases if departure else None
        if bases is None:
            return design.x
        unknown = unknown_bases(bases, design.frame)
        if not unknown.any():
            return design.x
        # Losses of bases that are not known are drawn from the laws of bases, the same every time.
        drawn = drawn_bases(bases, design.frame, self.count, [self.extension_seed])
        start, deviation = bases.logs(design.columns, np.where(unknown, drawn, 0.0))
        return {**design.x, "start": start, "deviation": deviation}

    @property
    def extension_seed(self) -> int:
        """Seed of discrepancy parameters beyond the training rows.

        Posteriors of other losses draw independently, also with equal seeds. One that was saved
        without its losses has it in its settings.
        """
        if EXTENSION in self.settings:
            return int(self.settings[EXTENSION])
        # Not `hash`, which differs from process to process.
        return zlib.crc32(self.table.loss.tobytes()) + int(self.settings.get("seed", 0))

    def scale(self, frame: pd.DataFrame) -> Floats:
        """Scale of the noise on log loss per draw and row, shape (draws, rows)."""
        return np.broadcast_to(self.values()["sigma"], (self.count, len(frame)))

    def require_converged(self, *, parameters: bool = False) -> tuple[str, ...]:
        """Failures of the convergence check, in words; `NotConverged` unless they are accepted.

        With `parameters`, none may be slow either.
        """
        name = f"{self.law.name} on {self.table.name}"
        state = self.convergence
        accepted = "unconverged" in self.accepts
        if parameters and state.slow and not accepted:
            raise NotConverged(
                f"{name}: {', '.join(state.slow)} did not converge, though the losses did: "
                "forecast from it, fit again with more draws or a simpler law, or "
                f"{accept('unconverged')}."
            )
        if not (state.ok or accepted):
            raise NotConverged(
                f"{name}: {'; '.join(state.failures)}. Fit again with more tune and draws or a "
                f"higher target_accept, simplify the law, or {accept('unconverged')}."
            )
        return tuple(f"{self.table.name}: {failure}" for failure in state.failures)
