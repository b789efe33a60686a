"""A planned run as each fit sees it: its base, its loss curve, and its deviations from the curve.

Measured log losses of the run deviate from the latent loss by the effects of its base and run, and
by measurement noise. Effects of groups with training rows have their posterior; those of new groups
are drawn.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.interpolate import RegularGridInterpolator

from bayeslaw.checks.findings import SEVERITIES, judge_extrapolation
from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.common.formatting import listed
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Fit
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import error_draws, new_size_effects, too_few_sizes
from bayeslaw.inference.variance import latent_parts, shares
from bayeslaw.laws.law import Law
from bayeslaw.laws.steps import Departure, Factor, Repetition
from bayeslaw.laws.terms import ORIGIN
from bayeslaw.model import effects
from bayeslaw.planning.grid import Curve, LawDraws
from bayeslaw.planning.problem import Deviations
from bayeslaw.tables.hull import MEASURED_DECADES, evidence, farthest, locate, of_measured
from bayeslaw.tables.table import Rows, grid
from bayeslaw.tables.validation import COVARIATES

NEW_BASE = "new"
"""In place of the label of a base: one without rows."""
BASE_COVARIATES = ("start", "deviation")
"""Covariates of the base, of a law that starts from it."""


@dataclass(frozen=True)
class PlannedRun:
    """The run that is planned, but for its budget and replay ratio."""

    params: float
    ptpp: float | None = None  # not needed where no law knows it
    base: str | None = None  # without a label, a law that starts from one takes that of N and P
    unique_tokens: float | None = None  # without it, no tokens repeat
    seed: int = 0  # of the noise, and of random effects that are drawn
    # Where the effect of a new size is taken; by default at one token per parameter.
    tokens: float | None = None
    replay: float = 0.5

    @property
    def row(self) -> pd.DataFrame:
        """A row of the run, for random effects and noise.

        Only the effect of a new size depends on tokens and replay, and only if the fitted sizes are
        too few for random effects; see `moving_size_effect`.
        """
        tokens = self.tokens or self.params
        row = grid(params=self.params, tokens=tokens, replay=self.replay)
        others = {"ptpp": self.ptpp, "base": self.base, "unique_tokens": self.unique_tokens}
        return row.assign(**{name: value for name, value in others.items() if value is not None})


def planned_base(fits: Sequence[Fit], run: PlannedRun) -> tuple[str | None, str]:
    """Label of the base that a plan starts from, and its description.

    By default it is the only base of that N and P in the tables, or a new one if there are none or
    several. Where the tables have a base "new", the name is that base's.
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
        if base not in (None, NEW_BASE):
            raise BayeslawError(f"base={base!r}: the tables have no column base; leave it out.")
        return None, "a base that the tables do not label"

    def planned(n: float, p: float) -> bool:
        return bool(np.isclose(n, params) and (ptpp is None or np.isclose(p, ptpp)))

    same = [k for k, v in known.items() if any(planned(*x) for x in v)]
    if base is None:
        base = same[0] if len(same) == 1 else NEW_BASE
        if base == NEW_BASE and NEW_BASE in known and same != [NEW_BASE]:
            raise BayeslawError(
                f"a base is labelled {NEW_BASE!r}, so a new one cannot be planned for: give "
                "base=, one of the tables' bases, or rename that one and fit again."
            )
    if base == NEW_BASE and NEW_BASE not in known:
        return NEW_BASE, "a new base: its effect and starting losses are drawn"
    if base not in known:
        raise BayeslawError(unknown("base", base, (*same, NEW_BASE)))
    if base not in same:
        n, p = next(iter(known[base]))
        raise BayeslawError(f"base {base!r} has params = {n:g}, ptpp = {p:g}, not those planned.")
    what = "with rows of its own" if base in pilot else "known by its own losses at tokens = 0"
    return base, f"base {base}, {what}"


def curve_of(
    fit: Fit, run: PlannedRun, *, median: bool = False, seed: Sequence[int] | None = None
) -> Curve:
    """Loss of a fit's law at the model and stage of a planned run.

    It is one curve for each draw or, if `median`, one at the posterior medians of the reference
    coordinates. It includes the random effect of the model's size: that of a size without training
    rows is drawn with `seed`, of which the first number is the plan's, and is zero without it.
    """
    curve = Curve((), (), run.params, run.ptpp, _lowest_budget(fit, run.params))
    if isinstance(fit, PointFit):
        return replace(curve, members=(_point(fit, run),), places=(np.arange(1),))
    if median:
        middle = _draws(fit.first, run, curve.extent, seed, median)
        return replace(curve, members=(middle,), places=(np.arange(1),))
    members = [
        (_draws(member, run, curve.extent, seed).take(i), at) for member, i, at in fit.by_member()
    ]
    parts, places = zip(*members, strict=True)
    return replace(curve, members=parts, places=places)


def _lowest_budget(fit: Fit, params: float) -> float:
    """Smallest log ATPP of the fitted rows, also of a model of so many parameters."""
    if fit.table is None:
        return -math.inf
    rows = fit.table.frame
    return float(np.log(rows["tokens"] / np.maximum(rows["params"], params)).min())


def _point(fit: PointFit, run: PlannedRun) -> LawDraws:
    law, unique = fit.law, run.unique_tokens if fit.law.step(Repetition) else None
    p = {name: np.array([float(value)]) for name, value in fit.parameters.items()}
    x = law.covariates(Rows(run.row)) if law.step(Departure) else {}
    base = {name: x[name] for name in BASE_COVARIATES if name in x}
    return LawDraws(_planned(law, unique), p, ORIGIN, base, unique)


def _planned(law: Law, unique: float | None) -> Law:
    """The law of an annealed run at its best rate, which repeats tokens if `unique` is given."""
    return law.without(Factor) if unique else law.without(Factor, Repetition)


def _draws(
    fit: Posterior,
    run: PlannedRun,
    extent: tuple[float, float],
    seed: Sequence[int] | None,
    median: bool = False,
) -> LawDraws:
    law, row = fit.law, run.row
    unique = run.unique_tokens if law.step(Repetition) else None
    # Where data repeat, the most tokens that they are worth depend on replay.
    tokens = run.params * np.exp(np.repeat(extent, 2))
    held = law.held.get("replay")
    ratios = [0.0, 1.0] * 2 if held is None else [held] * 4
    law, values = fit.extended(Rows(row.loc[[0] * 4].assign(tokens=tokens, replay=ratios)))
    effect = effects.latent_effects(fit.draws, fit.spec.effects, row)[:, 0]
    if seed is not None:
        effect = effect + new_size_effects(fit, row, np.random.default_rng(seed))[:, 0]
    x = fit.covariates(Rows(row)) if law.step(Departure) else {}
    base = {n: np.broadcast_to(x[n][..., 0], fit.count) for n in BASE_COVARIATES if n in x}
    if median:
        values = fit.medians(law, values)
        base = {name: np.median(value, axis=0, keepdims=True) for name, value in base.items()}
        effect = np.median(effect, keepdims=True)
    if "start" in base:
        # The effect of a size is on the whole curve, and so on the loss that it starts from.
        base["start"] = base["start"] + effect
    law = _planned(law, unique)
    p = law.amounts({name: value[:, 0] for name, value in values.items()}, fit.at)
    # An effect on the log loss multiplies the floor and every term.
    p |= {name: p[name] * np.exp(effect) for name in ("E", *law.coefficients)}
    return LawDraws(law, p, fit.at, base, unique)


def deviations(fits: Sequence[Fit], run: PlannedRun) -> list[Deviations]:
    """Deviation of a planned run from its latent loss in each domain; domains are independent."""
    row, rng = run.row, np.random.default_rng(run.seed)
    domains = []
    for fit in fits:
        joined = {"noise": np.zeros(fit.count)}  # of a point fit they are zero
        for member, index, at in fit.by_member():
            for name, part in _deviation(member, row, rng).items():
                joined.setdefault(name, np.zeros(fit.count))[at] = part[index]
        domains.append(Deviations(joined))
    return domains


def _deviation(fit: Posterior, row: pd.DataFrame, rng: np.random.Generator) -> dict[str, Floats]:
    """Parts of the deviation of one domain."""
    parts = {"noise": error_draws(fit, row, rng)[:, 0]}
    for level in fit.spec.effects:
        if effects.level(level).latent:
            continue
        if effects.is_fitted(fit.draws, level, row)[0]:
            parts[level] = effects.draw(fit.draws, (level,), row, None)[:, 0]
        else:
            parts[level] = fit.values()[f"tau_{level}"][:, 0] * rng.standard_normal(fit.count)
    return parts


def moving_size_effect(fit: Fit, run: PlannedRun) -> bool:
    """Whether the effect of the planned size depends on tokens and replay.

    The law goes through sizes that are too few for random effects, so the forecast is shifted by
    its response to theirs; see `bayeslaw.inference.residuals.response`.
    """
    for member in fit.members.values():
        fitted = effects.labels(member.table.frame, "size")
        if too_few_sizes(member) and effects.labels(run.row, "size", fitted)[0] not in fitted:
            return True
    return False


def spread(
    fits: Mapping[str, Fit],
    deviations: Sequence[Deviations],
    streams: Sequence[int],
    run: PlannedRun,
    tokens: float,
    replay: float,
) -> pd.DataFrame:
    """`bayeslaw.inference.variance.shares` of a planned run, a row per domain but point fits.

    `deviations` and `streams` are those of `fits`; see `bayeslaw.planning.planner.Request`.
    """
    row, domains = run.row.assign(tokens=tokens, replay=replay), []
    for (name, fit), noise, stream in zip(fits.items(), deviations, streams, strict=True):
        members = []
        for member, draws, at in fit.by_member() if fit.members else ():
            rng = np.random.default_rng([run.seed, stream])
            parts = {n: v[draws] for n, v in latent_parts(member, row, rng).items()}
            for part, values in noise.parts.items():
                parts[part] = parts.get(part, 0.0) + values[at, None]
            members.append((len(at), parts))
        domains += [shares(members, pd.Index([name]))] if members else []
    # Far outside the rows a law's loss is not positive.
    return pd.concat([pd.DataFrame(), *domains]).dropna()


def common_ranges(fits: Sequence[Fit]) -> dict[str, tuple[float, float]]:
    """Ranges of params, ptpp, replay and ATPP that the training rows of every fit cover."""
    ranges: dict[str, tuple[float, float]] = {}
    for rows in (fit.table.frame for fit in fits if fit.table is not None):
        rows = rows.assign(atpp=rows["tokens"] / rows["params"])
        for name in (c for c in ("params", "ptpp", "replay", "atpp") if c in rows):
            values = rows[name]
            least, most = ranges.get(name, (-math.inf, math.inf))
            ranges[name] = max(float(values.min()), least), min(float(values.max()), most)
    return ranges


def extrapolations(
    fits: Mapping[str, Fit], row: pd.DataFrame, *, refuse: bool = False
) -> tuple[str, str, tuple[str, ...]]:
    """How a planned run lies outside the training rows of the fits, as `bayeslaw.check` says it.

    Returns the worst level and the words of `bayeslaw.tables.hull.evidence`; and all else that
    the check says of the distance, each text once, with the names of its fits. Only if it is to
    `refuse`, the level is "refuse" where a fit is not `accepted` so far out.
    """
    said: dict[str, list[str]] = {}
    judged = [("ok", "")]
    for name, fit in fits.items():
        if fit.table is None:
            continue
        fit = fit if refuse else fit.accepted(beyond_evidence=True)
        finding = judge_extrapolation(fit, row)
        located = finding.frame
        judged.append(evidence(located, fit.about, refuse=not fit.accepts_beyond))
        far = [f"{position} by {distance}." for position, distance in farthest(located).items()]
        # The last words of the finding are the position.
        for text in (*far, *finding.words[:-1]):
            if text != judged[-1][1]:
                said.setdefault(text, []).append(name)
    level, words = max(judged, key=lambda each: SEVERITIES.index(each[0]))
    return level, words, tuple(f"{listed(names)}: {text}" for text, names in said.items())


def farness(fits: Mapping[str, Fit], run: PlannedRun) -> RegularGridInterpolator | None:
    """Whether runs lie farther from the rows of a fit than bands were measured, if so positive.

    A function of log ATPP and replay ratio. The distance over the measured one is convex in both,
    so that between the nodes, where it is interpolated, it is at least the exact one. None if no
    fit has a table.
    """
    tables: dict[object, tuple[pd.DataFrame, Sequence[str]]] = {}
    for fit in fits.values():
        if fit.table is not None:
            rows = fit.table.frame[[c for c in COVARIATES if c in fit.table.frame]]
            rows = rows.drop_duplicates()  # those of target and source are often the same
            tables[rows.to_numpy().tobytes(), fit.columns] = rows, fit.columns
    if not tables:
        return None
    seen = pd.concat([rows["tokens"] for rows, _ in tables.values()])
    reach = 2 * 10 ** MEASURED_DECADES["tokens"]  # beyond it all runs lie beyond the evidence
    tokens, ratios = np.geomspace(seen.min() / reach, seen.max() * reach, 31), np.linspace(0, 1, 31)
    stage = {} if run.ptpp is None else {"ptpp": run.ptpp}
    asked = grid(params=run.params, **stage, tokens=tokens, replay=ratios)
    far = [of_measured(locate(rows, asked, c), c).max(axis=1) for rows, c in tables.values()]
    # A plan at the very edge is still inside after its tokens are rounded.
    excess = np.max(far, axis=0).reshape(31, 31) - 1 + 1e-6
    places = np.log(tokens / run.params), ratios
    return RegularGridInterpolator(places, excess, bounds_error=False, fill_value=None)
