"""Draws of a law with its discrepancy, mixed with draws of the law alone."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from bayeslaw.common.arrays import Ints
from bayeslaw.inference.pools import spread_draws
from bayeslaw.inference.sampling import Sampled
from bayeslaw.inference.settings import FitSettings


def mixed(
    deviating: Sampled, exact: Sampled, share: float, settings: FitSettings
) -> Sampled:
    """Draws of a law with its discrepancy, and among them a `share` of draws of the law alone.

    These have no discrepancy: its parameters are zero. They stand in no order, and
    ``stats["exact"]`` marks them.
    """
    available = [part.draws.sizes["draw"] for part in (deviating, exact)]
    longest = min(available[0] / (1 - share), available[1] / share)
    total = settings.draws or math.floor(longest + 1e-9)  # 600 / (2 / 3) is 899.99
    counts = [total - round(total * share), round(total * share)]
    draws = []
    stats = []
    for part, count, mark in zip(
        (deviating, exact), counts, (False, True), strict=True
    ):
        kept = {"draw": spread_draws(part.draws.sizes["draw"], count)}
        draws.append(part.draws.isel(kept))
        marks = xr.full_like(part.stats["diverging"], mark, bool)
        stats.append(part.stats.assign(exact=marks).isel(kept))
    missing = [name for name in draws[0].data_vars if name not in draws[1]]
    zeros = draws[0][missing].isel(draw=np.zeros(counts[1], int)) * 0.0
    draws[1] = draws[1].assign(zeros.assign_coords(draw=draws[1]["draw"]).data_vars)
    rng = np.random.default_rng(settings.seed)
    chains = draws[0].sizes["chain"]
    order = np.array([rng.permutation(total) for _ in range(chains)])
    return replace(
        deviating,
        draws=_shuffled(draws, order),
        stats=_shuffled(stats, order),
        convergence=deviating.convergence.worst(exact.convergence),
    )


def _shuffled(parts: Sequence[xr.Dataset], order: Ints) -> xr.Dataset:
    """The draws of all parts, in an order for each chain."""
    names = [name for name in parts[0].data_vars if all(name in part for part in parts)]
    both = xr.concat(
        [part[names] for part in parts], "draw", coords="minimal", compat="override"
    )
    chains = xr.DataArray(np.arange(len(order)), dims="chain")
    found = both.isel(chain=chains, draw=xr.DataArray(order, dims=("chain", "draw")))
    return found.assign_coords(
        chain=np.arange(len(order)), draw=np.arange(order.shape[1])
    )
