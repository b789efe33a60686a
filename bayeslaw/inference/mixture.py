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
    longest = min(
        deviating.draws.sizes["draw"] / (1 - share), exact.draws.sizes["draw"] / share
    )
    total = settings.draws or math.floor(longest + 1e-9)  # 600 / (2 / 3) is 899.99
    of_law_alone = round(total * share)
    draws, stats = _thinned(deviating, total - of_law_alone, exact=False)
    exact_draws, exact_stats = _thinned(exact, of_law_alone, exact=True)
    missing = [name for name in draws.data_vars if name not in exact_draws]
    zeros = draws[missing].isel(draw=np.zeros(of_law_alone, int)) * 0.0
    zeros = zeros.assign_coords(draw=exact_draws["draw"])
    exact_draws = exact_draws.assign(zeros.data_vars)
    rng = np.random.default_rng(settings.seed)
    order = np.array([rng.permutation(total) for _ in range(draws.sizes["chain"])])
    return replace(
        deviating,
        draws=_shuffled([draws, exact_draws], order),
        stats=_shuffled([stats, exact_stats], order),
        convergence=deviating.convergence.worst(exact.convergence),
    )


def _thinned(
    sampled: Sampled, count: int, *, exact: bool
) -> tuple[xr.Dataset, xr.Dataset]:
    """So many draws of each chain, and their statistics, in which `exact` marks them."""
    kept = {"draw": spread_draws(sampled.draws.sizes["draw"], count)}
    marks = xr.full_like(sampled.stats["diverging"], exact, bool)
    return sampled.draws.isel(kept), sampled.stats.assign(exact=marks).isel(kept)


def _shuffled(parts: Sequence[xr.Dataset], order: Ints) -> xr.Dataset:
    """The draws of all parts, in an order for each chain."""
    names = [name for name in parts[0].data_vars if all(name in part for part in parts)]
    common = [part[names] for part in parts]
    both = xr.concat(common, "draw", coords="minimal", compat="override")
    chain = np.arange(len(order))
    draw = np.arange(order.shape[1])
    of_chain = xr.DataArray(chain, dims="chain")
    of_draw = xr.DataArray(order, dims=("chain", "draw"))
    shuffled = both.isel(chain=of_chain, draw=of_draw)
    return shuffled.assign_coords(chain=chain, draw=draw)
