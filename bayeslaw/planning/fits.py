"""From fits to the paired draws, loss curves and noise that a plan is made of."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.terms import ORIGIN
from bayeslaw.model import random_effects as effects
from bayeslaw.planning.deviations import planned_row, planned_size_effects
from bayeslaw.planning.loss_curves import Curve, LossCurve, PooledCurve
from bayeslaw.tables.table import grid

type Fit = Posterior | Pool | PointFit

NEW = "new"
"""In place of the label of a base: one without rows."""
REACH = 1e4
"""ATPP up to which a discrepancy is extended; beyond, and below the fitted rows, exponents stay."""


def draw_count(fit: Fit) -> int:
    """Number of draws; 1 for a point fit."""
    return 1 if isinstance(fit, PointFit) else fit.count


def pair_draws(fits: Sequence[Fit]) -> tuple[list[Ints], str]:
    """Pair the draws of several fits.

    Draws of a joint fit are paired as they were sampled. Separate fits are independent, so any
    pairing of their draws is valid.

    Returns
    -------
    list of int array, shape (draws,)
        For each fit, the draw in each pair. The number of pairs is that of the posterior with the
        fewest draws; the others are thinned.
    str
        How they were paired.
    """
    posteriors = [fit for fit in fits if not isinstance(fit, PointFit)]
    if not posteriors:
        return [np.zeros(1, int) for _ in fits], "no draws: all fits are point fits"
    draws = min(draw_count(fit) for fit in posteriors)
    names: list[object] = [fit.settings.get("joint") or id(fit) for fit in posteriors]
    groups = list(dict.fromkeys(names))
    index, left = [], iter(names)
    for fit in fits:
        if isinstance(fit, PointFit):
            index.append(np.zeros(draws, int))
            continue
        # Chains sampled with the same seed can be correlated between fits, so the draws of each
        # group are shifted against those of the others.
        shift = groups.index(next(left)) * draws // len(groups)
        index.append(np.roll(np.arange(draws) * draw_count(fit) // draws, shift))
    if len(posteriors) == 1:
        return index, "one posterior: the other fits are point fits"
    if len(groups) == 1:
        return index, "jointly: draw by draw of one fit"
    if len(groups) == len(posteriors):
        return index, f"independently: {len(groups)} fits, draws paired at random"
    return index, f"jointly within each of {len(groups)} fits, at random between them"


def point_description(fits: Sequence[Fit]) -> str:
    """Describe the parameters of the deterministic plan: those that `curve_of` takes of `fits`."""
    points = sum(isinstance(fit, PointFit) for fit in fits)
    medians = "posterior medians of the reference coordinates"
    if points == len(fits):
        return "point fits as given"
    return f"{medians}, and point fits as given" if points else medians


def convergence_failures(fits: Sequence[Fit], allowed: bool) -> tuple[str, ...]:
    """Failures of the convergence gate, as text.

    Raises
    ------
    NotConverged
        If a posterior failed the gate and that is not allowed.
    """
    found: list[str] = []
    for fit in fits:
        if not isinstance(fit, PointFit):
            fit.require_converged(allowed)
            found += [f"{fit.table.name}: {what}" for what in fit.convergence.failures]
    return tuple(found)


def autocorrelation_length(fits: Sequence[Fit]) -> int:
    """Number of draws per effective draw, rounded up, of the fit with the most."""
    posteriors = [fit for fit in fits if not isinstance(fit, PointFit)]
    return max(
        [1, *(math.ceil(draw_count(fit) / max(fit.convergence.ess_bulk, 1)) for fit in posteriors)]
    )


def curve_of(
    fit: Fit,
    params: float,
    ptpp: float,
    *,
    base: str | None = None,
    unique: float | None = None,
    median: bool = False,
    seed: Sequence[int] | None = None,
) -> Curve:
    """Loss of a fit's law at a model and stage.

    Parameters
    ----------
    fit : Posterior, Pool or PointFit
    params, ptpp : float
        Parameters N of the model, and its pre-training tokens per parameter.
    base : str, optional
        Label of the pre-trained model; without it, see `planned_row`.
    unique : float, optional
        Distinct tokens of the new data; without it, no data repeat.
    median : bool
        Whether to give one curve, at the posterior medians of the reference coordinates, instead of
        one for each draw.
    seed : sequence of int, optional
        The curve includes the random effect of the model's size. That of a size without training
        rows is drawn with this seed, and is zero without it. The first number is that of the plan.
    """
    if isinstance(fit, Pool):
        if median:
            return curve_of(fit.first, params, ptpp, base=base, unique=unique, median=True)
        found = [
            (_curve(m, params, ptpp, base, unique, seed=seed), own, at)
            for m, own, at in fit.parts()
        ]
        parts = [curve.take(own) for curve, own, _ in found]
        return PooledCurve(tuple(parts), tuple(at for *_, at in found))
    return _curve(fit, params, ptpp, base, unique, median=median, seed=seed)


def _curve(
    fit: Posterior | PointFit,
    params: float,
    ptpp: float,
    base: str | None,
    unique: float | None,
    *,
    median: bool = False,
    seed: Sequence[int] | None = None,
) -> LossCurve:
    law = fit.law
    unique = unique if law.repetition else None
    if isinstance(fit, PointFit):
        point = {name: np.array([float(value)]) for name, value in fit.parameters.items()}
        law = replace(law, repetition=law.repetition if unique else None, offset=None)
        return LossCurve(law, point, ORIGIN, params, ptpp, unique=unique)
    row = planned_row(params, ptpp, base)
    law, values = fit.extended(grid(params=params, ptpp=ptpp, tokens=REACH * params, replay=0.5))
    q = {name: value[:, 0] for name, value in values.items()}
    effect = effects.latent_effects(fit.draws, fit.spec.effects, row)[:, 0]
    if seed is not None:
        effect = effect + planned_size_effects(fit, row, seed)[:, 0]
    if median:
        q = {name: np.median(value, axis=0, keepdims=True) for name, value in q.items()}
        effect = np.median(effect, keepdims=True)
    given: dict[str, Floats] = {}
    if law.departure:
        x = fit.covariates(row)
        given = {n: np.broadcast_to(x[n][..., 0], len(effect)) for n in ("start", "deviation")}
        given = {n: np.median(v, keepdims=True) if median else v for n, v in given.items()}
        given["start"] = given["start"] + effect
    here = {"params": np.log(params), "ptpp": np.log(ptpp)}
    law = replace(law, repetition=law.repetition if unique else None, offset=None)
    law, p = law.at_model(law.sizes(q, fit.at), here, fit.at)
    p |= {name: p[name] * np.exp(effect) for name in ("E", *law.coefficients)}
    return LossCurve(law, p, fit.at, params, ptpp, given, unique)


def noise_kind(noise: str | None, fits: Sequence[Fit]) -> str:
    """Kind of losses that the limits are on: predictive or latent.

    Raises
    ------
    BayeslawError
        If the kind is unknown, or a point fit should have noise.
    """
    kinds, points = ("predictive", "latent"), [fit for fit in fits if isinstance(fit, PointFit)]
    if noise is None:
        noise = kinds[len(points) == len(fits)]
    if noise not in kinds:
        raise BayeslawError(unknown("noise", noise, kinds))
    if noise == "predictive" and points:
        raise BayeslawError(
            f"a point fit of {points[0].law.name} has no noise; give a posterior or noise='latent'."
        )
    return noise


def planned_base(
    fits: Sequence[Fit], params: float, ptpp: float, base: str | None
) -> tuple[str | None, str]:
    """Label of the base that a plan starts from, and its description.

    Parameters
    ----------
    fits : sequence of Posterior, Pool or PointFit
    params, ptpp : float
    base : str, optional
        A label in the tables' column `base`, or "new". By default the only base of that N and P in
        the tables, or a new one if there are none or several.

    Raises
    ------
    BayeslawError
        If no table has a base of that label, or if it has another N or P.
    """
    known: dict[str, set[tuple[float, float]]] = {}
    pilot: set[str] = set()
    for table in (fit.table for fit in fits if fit.table is not None):
        for rows in (table.frame, table.baselines):
            if not {"base", "params", "ptpp"} <= {*rows}:
                continue
            labels = effects.labels(rows, "base").astype(str)
            for label, n, p in zip(labels.tolist(), rows["params"], rows["ptpp"], strict=True):
                known.setdefault(label, set()).add((float(n), float(p)))
            pilot |= {*labels} if rows is table.frame else set()
    known = {k: v for k, v in known.items() if not k.startswith(effects.UNLABELLED)}
    if not known:
        if base not in (None, NEW):
            raise BayeslawError(f"base={base!r}: the tables have no column base; leave it out.")
        return None, "a base that the tables do not label"
    here = [k for k, v in known.items() if any(np.allclose(x, (params, ptpp)) for x in v)]
    if base is None:
        base = here[0] if len(here) == 1 else NEW
    if base == NEW:
        return NEW, "a new base: its effect and starting losses are drawn"
    if base not in known:
        raise BayeslawError(unknown("base", base, (*here, NEW)))
    if base not in here:
        n, p = next(iter(known[base]))
        raise BayeslawError(f"base {base!r} has params = {n:g}, ptpp = {p:g}, not those planned.")
    what = "with rows of its own" if base in pilot else "known by its own losses at tokens = 0"
    return base, f"base {base}, {what}"
