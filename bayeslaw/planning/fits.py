"""From fits to paired draws and loss curves, and the ranges of the rows they were fitted to."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from bayeslaw.checks.extrapolation import evidence
from bayeslaw.common.errors import BayeslawError, argument, unknown
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Fit, Pool, draw_count
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.law import Law
from bayeslaw.laws.terms import ORIGIN
from bayeslaw.model import effects
from bayeslaw.planning.deviations import PlannedRun, planned_size_effects
from bayeslaw.planning.loss_curves import Curve, LossCurve, PooledCurve
from bayeslaw.tables.hull import farthest, locate
from bayeslaw.tables.validation import other_units

NOISE = ("latent", "predictive")
"""Whether limits are on latent losses, or on measured losses of a new run."""
NEW = "new"
"""In place of the label of a base: one without rows."""
BASE_COVARIATES = ("start", "deviation")
"""Covariates of the base, of a law that starts from it."""
MAX_ATPP = 1e4
"""ATPP up to which a discrepancy is extended; beyond, and below the fitted rows, exponents stay."""


def planned_base(fits: Sequence[Fit], run: PlannedRun) -> tuple[str | None, str]:
    """Label of the base that a plan starts from, and its description.

    By default it is the only base of that N and P in the tables, or a new one if there are none or
    several.

    Raises
    ------
    BayeslawError
        If no table has a base of that label, or if it has another N or P.
    """
    params, ptpp, base = run.params, run.ptpp, run.base
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


def point_description(fits: Sequence[Fit]) -> str:
    """Describe the parameters of the deterministic plan: those that `curve_of` takes of `fits`."""
    points = sum(isinstance(fit, PointFit) for fit in fits)
    medians = "posterior medians of the reference coordinates"
    if points == len(fits):
        return "point fits as given"
    return f"{medians}, and point fits as given" if points else medians


def autocorrelation_length(fits: Sequence[Fit]) -> int:
    """Number of draws per effective draw, rounded up, of the fit with the most."""
    posteriors = [fit for fit in fits if not isinstance(fit, PointFit)]
    return max(
        [1, *(math.ceil(draw_count(fit) / max(fit.convergence.ess_bulk, 1)) for fit in posteriors)]
    )


def curve_of(
    fit: Fit, run: PlannedRun, *, median: bool = False, seed: Sequence[int] | None = None
) -> Curve:
    """Loss of a fit's law at the model and stage of a planned run.

    Parameters
    ----------
    fit, run
    median : bool
        Whether to give one curve, at the posterior medians of the reference coordinates, instead of
        one for each draw.
    seed : sequence of int, optional
        The curve includes the random effect of the model's size. That of a size without training
        rows is drawn with this seed, and is zero without it. The first number is that of the plan.
    """
    if isinstance(fit, Pool) and not median:
        parts = [_curve(member, run, median, seed).take(own) for member, own, _ in fit.by_member()]
        return PooledCurve(tuple(parts), tuple(at for *_, at in fit.by_member()))
    return _curve(fit.first if isinstance(fit, Pool) else fit, run, median, seed)


def _curve(
    fit: Posterior | PointFit, run: PlannedRun, median: bool, seed: Sequence[int] | None
) -> LossCurve:
    law, row = fit.law, run.row
    unique = run.unique_tokens if law.repetition else None
    if isinstance(fit, PointFit):
        point = {name: np.array([float(value)]) for name, value in fit.parameters.items()}
        x = law.covariates(row) if law.departure else {}
        base = {name: x[name] for name in BASE_COVARIATES if name in x}
        law = _planned(law, unique)
        return LossCurve(law, point, ORIGIN, run.params, run.ptpp, base, unique)
    law, values = fit.extended(row.assign(tokens=MAX_ATPP * run.params, replay=0.0))
    q = {name: value[:, 0] for name, value in values.items()}
    effect = effects.latent_effects(fit.draws, fit.spec.effects, row)[:, 0]
    if seed is not None:
        effect = effect + planned_size_effects(fit, row, seed)[:, 0]
    x = fit.covariates(row) if law.departure else {}
    base = {n: np.broadcast_to(x[n][..., 0], fit.count) for n in BASE_COVARIATES if n in x}
    if median:
        q = {name: value[:, 0] for name, value in fit.medians(law, values).items()}
        base = {name: np.median(value, axis=0, keepdims=True) for name, value in base.items()}
        effect = np.median(effect, keepdims=True)
    if "start" in base:
        base["start"] = base["start"] + effect
    law = _planned(law, unique)
    p = law.amounts(q, fit.at)
    p |= {name: p[name] * np.exp(effect) for name in ("E", *law.coefficients)}
    return LossCurve(law, p, fit.at, run.params, run.ptpp, base, unique)


def _planned(law: Law, unique: float | None) -> Law:
    """The law of a run that ends annealed, and repeats its tokens only if `unique` is given."""
    return replace(law, repetition=law.repetition and bool(unique), offset=None)


def noise_kind(noise: str | None, fits: Sequence[Fit]) -> str:
    """Kind of losses that the limits are on: predictive or latent."""
    points = [fit for fit in fits if isinstance(fit, PointFit)]
    if noise is None:
        noise = "latent" if len(points) == len(fits) else "predictive"
    if noise not in NOISE:
        raise BayeslawError(unknown("noise", noise, NOISE))
    if noise == "predictive" and points:
        raise BayeslawError(
            f"a point fit of {points[0].law.name} has no noise; give a posterior or "
            f"{argument('noise', 'latent')}."
        )
    return noise


def training_ranges(fit: Fit) -> dict[str, tuple[float, float]]:
    """Smallest and largest params, ptpp, replay and ATPP of a fit's training rows."""
    if fit.table is None:
        return {}
    rows = fit.table.frame.assign(atpp=fit.table.frame["tokens"] / fit.table.frame["params"])
    columns = [c for c in ("params", "ptpp", "replay", "atpp") if c in rows]
    return {c: (float(rows[c].min()), float(rows[c].max())) for c in columns}


def common_ranges(fits: Sequence[Fit]) -> dict[str, tuple[float, float]]:
    """Intersections of the fits' training ranges."""
    ranges: dict[str, tuple[float, float]] = {}
    for name, (low, high) in (item for fit in fits for item in training_ranges(fit).items()):
        least, most = ranges.get(name, (-math.inf, math.inf))
        ranges[name] = max(low, least), min(high, most)
    return ranges


def extrapolations(
    fits: Mapping[str, Fit], params: float, ptpp: float, replay: float, atpp: float
) -> tuple[str, ...]:
    """How a planned run lies outside the training rows of each fit, as text.

    Quantities outside their range are named first. Then comes the distance of the plan from the
    convex hull of the training rows (see `bayeslaw.locate`), also if each quantity is in its range;
    whether bands were ever compared with losses that far out; and what may be in another unit.
    """
    found: list[str] = []
    planned = {"params": params, "ptpp": ptpp, "replay": replay, "atpp": atpp}
    row = pd.DataFrame([{**planned, "tokens": params * atpp}])
    for name, fit in fits.items():
        if fit.table is None:
            continue
        own = []
        for column, (low, high) in training_ranges(fit).items():
            value = planned[column]
            if math.isfinite(value) and not low * (1 - 1e-9) <= value <= high * (1 + 1e-9):
                range_ = (
                    f"{low:.4g} to {high:.4g}" if low < high else f"all {low:.4g} (a projection)"
                )
                own.append(f"{column} {value:.4g} is outside the {name}'s rows, {range_}")
        if 0 < atpp < math.inf:
            located = locate(fit.table, row, fit.columns)
            for far in farthest(located).values():
                own.append(f"the plan lies beyond the {name}'s rows by {far}")
            level, text = evidence(located, fit.columns, beyond_evidence=True)
            own += [] if level == "ok" else [f"{name}: {text.removesuffix('.')}"]
            own += [
                f"{name}: {text.removesuffix('.')}" for text, _ in other_units(row, fit.table.frame)
            ]
        found += own
    return tuple(found)
