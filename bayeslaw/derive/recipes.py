"""Which of several recipes has the lowest loss at a target, and what choosing wrongly costs.

A recipe is a way of training, such as a mixture of data; each has a posterior of its own, of losses
on the same evaluation data.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import BayeslawError, LawError
from bayeslaw.derive.result import Derived, checked, derived, interval, marked, quantile
from bayeslaw.derive.surface import (
    SEARCH,
    Range,
    best_losses,
    check_budgets,
    flops_ratios,
    optimum,
    reach_of,
    surface_at,
    training_flops,
)
from bayeslaw.inference.pools import pair_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.table import LossTable, frame_of
from bayeslaw.tables.validation import COVARIATES, canonical, check_units

REGRET = "regret: expected nats above the best if chosen now"
FARTHER = 100.0
"""Budgets up to this many times the greatest budget of any training row are searched."""
CROSSING_STEP = 0.25
"""Distance of the budgets at which recipes are compared, in log C."""


@dataclass(frozen=True)
class Recipes:
    """Recipes compared at targets.

    Parameters
    ----------
    losses : DataArray
        Latent loss in nats per token, dims (recipe, draw, target).
    targets : DataFrame
        One row per target: its covariates, or its budget in `flops`.
    multipliers : Derived or None
        Of targets that are budgets, for each recipe but the first: FLOPs of the first over FLOPs
        of the recipe, to reach the loss that the first has there (its posterior median).
    crossings : Derived or None
        Of targets that are budgets, for each recipe but the first: the budget from which the order
        of the two is no longer that at the greatest budget of which all fits have rows; infinite
        where it stays. Searched up to 100 times the greatest budget of any fit.
    notes : tuple of str
        How draws of the fits were paired, and the range searched.
    failures : tuple of str
        Convergence checks that failed, if these were allowed.
    """

    losses: xr.DataArray = field(repr=False)
    targets: pd.DataFrame = field(repr=False)
    multipliers: Derived | None = field(default=None, repr=False)
    crossings: Derived | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the recipes."""
        return tuple(map(str, self.losses["recipe"].values))

    def to_frame(self, level: float = 0.9) -> pd.DataFrame:
        """One row per target and recipe.

        Parameters
        ----------
        level : float
            Probability of the intervals.

        Returns
        -------
        DataFrame
            The columns of `targets`; `recipe`; `loss`, `lower` and `upper`: median and interval;
            `p_best`, the probability that its loss is the lowest; `regret`, the expected loss
            above the lowest if it is chosen now, in nats per token; `behind`, `behind_lower` and
            `behind_upper`: its loss less the lowest of the others.
        """
        if not 0 < level < 1:
            raise BayeslawError(f"level {level:g} is not between 0 and 1; 0.9 is a 90 % interval.")
        rows = []
        for i, target in enumerate(self.targets.to_dict("records")):
            losses = self.losses.values[:, :, i]
            for k, name in enumerate(self.names):
                behind = losses[k] - np.delete(losses, k, axis=0).min(0)
                row = {**target, "recipe": name, "loss": quantile(losses[k], 0.5)}
                row["lower"], row["upper"] = interval(losses[k], level)
                row["p_best"] = float(_won(losses)[k])
                row["regret"] = float((losses[k] - losses.min(0)).mean())
                row["behind"] = quantile(behind, 0.5)
                row["behind_lower"], row["behind_upper"] = interval(behind, level)
                rows.append(row)
        return marked(pd.DataFrame(rows), self.failures)

    def sentence(self) -> str:
        """What to choose at the last target, in one sentence."""
        last = self.to_frame().tail(len(self.names)).sort_values("regret")
        best, asked = last.iloc[0], self.targets.iloc[-1]
        where = ", ".join(f"{name} {value:.3g}" for name, value in asked.items())
        return (
            f"At {where}, {best['recipe']} has the lowest loss with probability "
            f"{best['p_best']:.2f}; choosing it now costs {best['regret']:.2g} nats in expectation."
        )


def cells(found: Recipes, level: float, between: str) -> list[list[str]]:
    """The rows of `Recipes.to_frame` as text, up to `regret`, with intervals in one cell."""
    return [
        [
            *(f"{row[name]:.4g}" for name in found.targets.columns),
            str(row["recipe"]),
            f"{row['loss']:.4f}",
            f"{row['lower']:.4f}{between}{row['upper']:.4f}",
            f"{row['p_best']:.3f}",
            f"{row['regret']:.2g}",
        ]
        for _, row in found.to_frame(level).iterrows()
    ]


def compare_recipes(
    fits: Mapping[str, Posterior],
    targets: LossTable | pd.DataFrame | None = None,
    *,
    flops: float | Sequence[float] | None = None,
    search: Range = SEARCH,
    allow_unconverged: bool = False,
) -> Recipes:
    """Compare recipes at targets: which has the lowest loss, how surely, and at what cost.

    Losses are latent: without measurement noise and random effects. Give `targets` or `flops`.

    Parameters
    ----------
    fits : mapping of str to Posterior
        A posterior for each recipe, by name, of losses on the same data; the first is the one that
        multipliers and crossings are relative to. Separate fits are independent; fits of
        `bayeslaw.fit_joint` have the correlation that was learnt.
    targets : LossTable or DataFrame, optional
        Rows with the covariates of all laws, such as N and D.
    flops : float or sequence of float, optional
        Budgets C = 6 N D, each split compute-optimally by every recipe and draw.
    search : tuple of float
        Least and greatest tokens per parameter among which the best is searched.
    allow_unconverged : bool
        Whether to use posteriors that failed the convergence checks.

    Returns
    -------
    Recipes

    Raises
    ------
    NotConverged
        If a posterior failed the convergence checks and `allow_unconverged` is false.
    LawError
        If `flops` is given and a law depends on more than N and D.
    BayeslawError
        If there are fewer than two fits, or not one of `targets` and `flops`.

    Examples
    --------
    >>> found = bl.compare_recipes({"c4": c4, "web": web}, flops=[1e21, 1e23])  # doctest: +SKIP
    >>> found.to_frame()[["flops", "recipe", "p_best", "regret"]]  # doctest: +SKIP
    >>> found.multipliers.to_frame()  # doctest: +SKIP
    """
    if len(fits) < 2:
        raise BayeslawError("give the posteriors of two recipes or more, each with its name.")
    if (targets is None) == (flops is None):
        raise BayeslawError(
            "say where to compare: at rows (targets=, --at) or at budgets (flops=, --flops)."
        )
    every = list(fits.values())
    failures = checked(every, allow_unconverged)
    index, how = pair_draws(every)
    if flops is not None:
        found = _at_budgets(fits, index, flops, search)
    else:
        assert targets is not None
        columns = [c for c in COVARIATES if any(c in fit.columns for fit in every)]
        frame = canonical(frame_of(targets), "targets", columns).reset_index(drop=True)
        for fit in every:
            check_units(frame, "targets", fit.table.frame)
        losses = np.stack([fit.law_loss(frame)[i] for fit, i in zip(every, index, strict=True)])
        found = Recipes(_array(fits, losses), frame[columns])
    return replace(found, notes=(f"draws paired {how}", *found.notes), failures=failures)


# -- budgets --------------------------------------------------------------------------------------


def _at_budgets(
    fits: Mapping[str, Posterior],
    index: Sequence[Ints],
    flops: float | Sequence[float],
    search: Range,
) -> Recipes:
    """Compare recipes at budgets, and along them, for paired draws."""
    budgets = [float(c) for c in np.atleast_1d(np.asarray(flops, float))]
    if not all(0 < c < math.inf for c in budgets):
        raise BayeslawError("flops: give positive budgets, such as 1e21.")
    for name, fit in fits.items():
        if set(fit.columns) != {"params", "tokens"}:
            raise LawError(
                f"{name}: a budget is split between N and D, and law {fit.law.name} depends on "
                f"{', '.join(fit.columns)}; give rows instead (targets=, --at)."
            )
    every = list(fits.values())
    check_budgets(every, budgets)
    most = [training_flops(fit).max() for fit in every]
    start, end = min(most), FARTHER * max(most)
    reach = reach_of(every)
    surfaces = [surface_at(f, reach, search).take(i) for f, i in zip(every, index, strict=True)]
    losses = [
        np.stack([optimum(each, math.log(c), search).loss for c in budgets], axis=-1)
        for each in surfaces
    ]
    steps = math.ceil(math.log(end / start) / CROSSING_STEP) + 1
    nodes = np.linspace(math.log(start), math.log(end), steps)
    along = [best_losses(each, nodes, search) for each in surfaces]
    at = np.median(losses[0], axis=0)
    first, *others = fits
    saved, changed = {}, {}
    ratios = flops_ratios(surfaces, list(at), reach, search)
    for name, (ratio, _), least in zip(others, ratios, along[1:], strict=True):
        saved[f"{name} over {first}"] = ratio, "1"
        changed[f"{first} and {name}"] = _crossing(along[0] - least, nodes)[:, None], "FLOPs"
    cases = pd.DataFrame({"flops": budgets})
    return Recipes(
        _array(fits, np.stack(losses)),
        cases,
        derived(saved, cases.assign(loss=at)),
        derived(changed, pd.DataFrame(index=[0])),
        (f"changes of order searched from {start:.3g} to {end:.3g} FLOPs",),
    )


def _crossing(difference: Floats, nodes: Floats) -> Floats:
    """Budget of each draw at which a difference first changes its sign, by linear interpolation.

    `difference` has shape (draws, nodes); `nodes` are log budgets.

    Examples
    --------
    >>> _crossing(np.array([[1.0, 1.0, -1.0], [1.0, 2.0, 3.0]]), np.array([0.0, 2.0, 4.0])).round(1)
    array([20.1,  inf])
    """
    other = np.sign(difference) != np.sign(difference[:, :1])
    rows = np.flatnonzero(other.any(1))
    found, end = np.full(len(difference), np.inf), other.argmax(1)[rows]
    left, right = difference[rows, end - 1], difference[rows, end]
    share = left / (left - right)
    found[rows] = np.exp(nodes[end - 1] + share * (nodes[end] - nodes[end - 1]))
    return found


def _array(fits: Mapping[str, Posterior], losses: Floats) -> xr.DataArray:
    return xr.DataArray(
        losses,
        dims=("recipe", "draw", "target"),
        coords={"recipe": list(fits)},
        attrs={"units": "nats per token"},
    )


def _won(losses: Floats) -> Floats:
    """Probability that each recipe has the lowest loss; ties are shared. Shape (recipes,).

    Examples
    --------
    >>> _won(np.array([[1.0, 2.0], [1.0, 1.5]])).tolist()
    [0.25, 0.75]
    """
    best = losses == losses.min(0)
    return np.asarray((best / best.sum(0)).mean(1))
