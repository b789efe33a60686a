"""The planned run as each fit sees it: its losses, its noise, and how far it lies from the rows."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd
import xarray as xr
from scipy.interpolate import RegularGridInterpolator

from bayeslaw.checks.findings import SEVERITIES, judge_extrapolation
from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.formatting import listed
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Fit, pair_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import (
    error_draws,
    new_size_effects,
    size_scores,
    too_few_sizes,
)
from bayeslaw.inference.variance import latent_parts, shares
from bayeslaw.laws.steps import Bases, Departure
from bayeslaw.model import effects
from bayeslaw.tables.hull import MEASURED_DECADES, evidence, farthest, locate, of_measured
from bayeslaw.tables.table import Rows, grid
from bayeslaw.tables.validation import COVARIATES

MOST_DRAWS = 4000
"""Most paired draws, evenly spread."""
CHUNK = 400
"""Rows that are evaluated at once: fewer take longer each, and more do not fit into the cache."""


@dataclass(frozen=True)
class PlannedRun:
    """The run that is planned, but for its budget and replay ratio."""

    params: float
    ptpp: float | None = None  # not needed where no law knows it
    base: str | None = None  # without a label, a law that starts from one takes that of N and P
    unique_tokens: float | None = None  # without it, no tokens repeat
    seed: int = 0  # of the noise, and of random effects that are drawn
    replay: float = 0.5  # of the row for these; a law that was fitted to one ratio knows no other

    def rows(self, budgets: float | Floats, ratios: float | Floats) -> pd.DataFrame:
        """A row for each pair of a budget, log ATPP, and a replay ratio."""
        budgets, ratios = np.broadcast_arrays(np.atleast_1d(budgets), ratios)
        columns = {"params": self.params, "tokens": self.params * np.exp(budgets), "replay": ratios}
        stated = {"ptpp": self.ptpp, "base": self.base, "unique_tokens": self.unique_tokens}
        given = {name: value for name, value in stated.items() if value is not None}
        return pd.DataFrame(columns | given)

    @property
    def row(self) -> pd.DataFrame:
        """A row for random effects and noise, which depend on neither budget nor replay."""
        return self.rows(0.0, self.replay)


@dataclass(frozen=True)
class Domain:
    """A fit as the planned run sees it; draw i of all domains of a plan is a pair.

    Parameters
    ----------
    fit : Posterior, Pool or PointFit
    run : PlannedRun
    stream : int
        Of the random effects of a size without training rows.
    pairs : array
        Of each pair the draw of the fit.
    deviations : mapping of str to array
        Log of the measured loss over the latent one, as a sum of ``noise`` and of effects by level,
        each of shape (pairs,).
    """

    fit: Fit
    run: PlannedRun
    stream: int
    pairs: Ints = field(repr=False)
    deviations: Mapping[str, Floats] = field(default_factory=dict, repr=False)

    @cached_property
    def deviation(self) -> Floats:
        """Sum of the deviations, (pairs,)."""
        return np.asarray(sum(self.deviations.values()))

    def losses(self, rows: pd.DataFrame) -> Floats:
        """Latent loss in nats per token, shape (rows, pairs)."""
        starts = range(0, len(rows), CHUNK)
        return np.concatenate([self._losses(rows[i : i + CHUNK]) for i in starts])

    def _losses(self, rows: pd.DataFrame) -> Floats:
        if isinstance(self.fit, PointFit):
            return np.broadcast_to(self.fit.losses(Rows(rows)).T, (len(rows), len(self.pairs)))
        losses = np.empty((len(rows), len(self.pairs)))
        with np.errstate(all="ignore"):
            for member, draws, places, scores in self.members:
                loss = member.losses(Rows(rows))
                loss = loss * np.exp(self._size_effects(member, rows, scores))
                losses[:, places] = loss[draws].T
        return losses

    @cached_property
    def members(self) -> list[tuple[Posterior, Ints, Ints, Floats | None]]:
        """Posteriors of the paired draws, which pairs they are, and `size_scores` of a new size."""
        members = []
        for member, draws, places in self.fit.by_member(self.pairs):
            kept, position = np.arange(member.count), draws
            if member.count > MOST_DRAWS:  # those that are not paired need no losses
                kept, position = np.unique(draws, return_inverse=True)
            some = member if len(kept) == member.count else _of_draws(member, kept)
            scores = (
                size_scores(some) if too_few_sizes(some) and _is_new_size(some, self.run) else None
            )
            members.append((some, position, places, scores))
        return members

    def starts(self, bases: Bases) -> Floats:
        """Losses that the run starts from, (pairs,), by the law or else by those of the bases."""
        row, losses = self.run.row, np.empty(len(self.pairs))
        for k, (member, draws, places, _) in enumerate(self.members):
            if member.law.step(Departure):
                start = member.covariates(Rows(row))["start"]
            else:
                drawn = bases.draws(row, member.count, [self.run.seed, k])
                start = bases.logs(row, drawn)[0]
            losses[places] = np.exp(np.broadcast_to(start[..., 0], member.count))[draws]
        return losses

    def _size_effects(
        self, member: Posterior, rows: pd.DataFrame, scores: Floats | None
    ) -> Floats | float:
        """Random effects of a size without training rows, the same draws for any rows."""
        if scores is None and "size" not in member.spec.effects:
            return 0.0
        rng = np.random.default_rng([self.run.seed, self.stream])
        return new_size_effects(member, rows, rng, scores)


def _is_new_size(fit: Posterior, run: PlannedRun) -> bool:
    fitted = effects.labels(fit.table.frame, "size")
    return effects.labels(run.row, "size", fitted)[0] not in fitted


def _of_draws(fit: Posterior, kept: Ints) -> Posterior:
    """The posterior of some of the draws, as one chain."""
    sample = {}
    for name, values in fit.draws.data_vars.items():
        values = values.transpose("chain", "draw", ...)
        flat = values.values.reshape(-1, *values.shape[2:])
        sample[name] = (values.dims, flat[None, kept])
    labels = {n: v for n, v in fit.draws.coords.items() if not {"chain", "draw"} & {*v.dims}}
    return replace(fit, draws=xr.Dataset(sample, labels))


def domains_of(fits: Sequence[Fit], run: PlannedRun) -> tuple[list[Domain], str]:
    """Domains with paired draws and the deviations of a run in each, and how they were paired."""
    index, pairing = pair_draws(fits)
    count = len(index[0])
    kept = np.linspace(0, count - 1, min(count, MOST_DRAWS)).round().astype(int)
    rng, domains = np.random.default_rng(run.seed), []
    for stream, (fit, draws) in enumerate(zip(fits, index, strict=True)):
        domain = Domain(fit, run, stream, draws[kept])
        domains.append(replace(domain, deviations=_deviations(domain, rng)))
    return domains, pairing


def _deviations(domain: Domain, rng: np.random.Generator) -> dict[str, Floats]:
    """Parts of the run's deviation from its latent log loss, each (pairs,); 0 of a point fit."""
    row, parts = domain.run.row, {"noise": np.zeros(len(domain.pairs))}
    for member, draws, places, _ in domain.members:
        of_member = {"noise": error_draws(member, row, rng)[:, 0]}
        for level in member.spec.effects:
            if effects.level(level).latent:
                continue
            if effects.is_fitted(member.draws, level, row)[0]:
                of_member[level] = effects.draw(member.draws, (level,), row, None)[:, 0]
            else:
                scale = member.values()[f"tau_{level}"][:, 0]
                of_member[level] = scale * rng.standard_normal(member.count)
        for name, part in of_member.items():
            parts.setdefault(name, np.zeros(len(domain.pairs)))[places] = part[draws]
    return parts


def spread(domains: Mapping[str, Domain], tokens: float, replay: float) -> pd.DataFrame:
    """`bayeslaw.inference.variance.shares` of a planned run, a row per domain but point fits."""
    rows = []
    for name, domain in domains.items():
        members = []
        row = domain.run.row.assign(tokens=tokens, replay=replay)
        for member, draws, places, _ in domain.members:
            rng = np.random.default_rng([domain.run.seed, domain.stream])
            parts = {n: v[draws] for n, v in latent_parts(member, row, rng).items()}
            for part, values in domain.deviations.items():
                parts[part] = parts.get(part, 0.0) + values[places, None]
            members.append((len(places), parts))
        rows += [shares(members, pd.Index([name]))] if members else []
    # Far outside the rows a law's loss is not positive.
    return pd.concat([pd.DataFrame(), *rows]).dropna()


# -- distance from the fitted rows ----------------------------------------------------------------


def judged(
    fits: Mapping[str, Fit], row: pd.DataFrame, *, refuse: bool = False
) -> tuple[str, str, tuple[str, ...]]:
    """How a planned run lies outside the training rows of the fits, as `bayeslaw.check` says it.

    Returns the worst level and the words of `bayeslaw.tables.hull.evidence`; and all else that
    the check says of the distance, each text once, with the names of its fits. Only if it is to
    `refuse`, the level is "refuse" where a fit is not `accepted` so far out.
    """
    named: dict[str, list[str]] = {}
    levels = [("ok", "")]
    for name, fit in fits.items():
        if fit.table is None:
            continue
        fit = fit if refuse else fit.accepted(beyond_evidence=True)
        finding = judge_extrapolation(fit, row)
        levels.append(evidence(finding.frame, fit.about, refuse=not fit.accepts_beyond))
        far = [f"{position} by {away}." for position, away in farthest(finding.frame).items()]
        # The last words of the finding are the position.
        for text in (*far, *finding.words[:-1]):
            if text != levels[-1][1]:
                named.setdefault(text, []).append(name)
    level, words = max(levels, key=lambda pair: SEVERITIES.index(pair[0]))
    return level, words, tuple(f"{listed(names)}: {text}" for text, names in named.items())


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
    nodes = np.log(tokens / run.params), ratios
    return RegularGridInterpolator(nodes, excess, bounds_error=False, fill_value=None)


def common_ranges(fits: Collection[Fit]) -> dict[str, tuple[float, float]]:
    """Ranges of params, ptpp, replay and ATPP that the training rows of every fit cover."""
    ranges: dict[str, tuple[float, float]] = {}
    for rows in (fit.table.frame for fit in fits if fit.table is not None):
        rows = rows.assign(atpp=rows["tokens"] / rows["params"])
        for name in (c for c in ("params", "ptpp", "replay", "atpp") if c in rows):
            least, most = ranges.get(name, (-math.inf, math.inf))
            ranges[name] = max(float(rows[name].min()), least), min(float(rows[name].max()), most)
    return ranges
