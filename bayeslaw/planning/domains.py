"""Domains: the losses and the noise of the planned run under the fit of each domain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.inference.pools import Fit, pair_draws, spread_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import (
    error_draws,
    new_size_effects,
    size_scores,
    too_few_sizes,
)
from bayeslaw.inference.variance import latent_parts, shares
from bayeslaw.model import effects
from bayeslaw.planning.planned_run import PlannedRun
from bayeslaw.tables.table import Rows

MOST_PAIRS = 4000
"""Most paired draws, evenly spread."""
CHUNK = 400
"""Rows that are evaluated at once: fewer take longer each, and more do not fit into the cache."""


class _SizeEffect(NamedTuple):
    """What draws the effect of the run's size in the losses of one member."""

    member: Posterior
    draws: Ints
    pairs: Ints
    scores: Floats | None


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
    deviations: Mapping[str, Floats] = field(repr=False)

    @cached_property
    def deviation(self) -> Floats:
        """Sum of the deviations, (pairs,)."""
        return np.asarray(sum(self.deviations.values()))

    def losses(self, rows: pd.DataFrame) -> Floats:
        """Latent loss in nats per token, shape (rows, pairs)."""
        losses = np.empty((len(rows), len(self.pairs)))
        for start in range(0, len(rows), CHUNK):
            chunk = rows[start : start + CHUNK]
            with np.errstate(all="ignore"):
                losses[start : start + CHUNK] = self._losses_of_chunk(chunk)
        return losses

    def _losses_of_chunk(self, rows: pd.DataFrame) -> Floats:
        losses = self.fit.losses(Rows(rows), self.pairs).T
        for member, draws, pairs, scores in self._size_effects:
            # A generator for each chunk: the effects are the same for any rows.
            rng = np.random.default_rng([self.run.seed, self.stream])
            effect = new_size_effects(member, rows, rng, scores)
            losses[:, pairs] *= np.exp(effect)[draws].T
        return losses

    @cached_property
    def _size_effects(self) -> list[_SizeEffect]:
        """For each member that may draw an effect of the run's size: what draws it."""
        drawn = []
        for member, draws, pairs in self.fit.by_member(self.pairs):
            if "size" in member.spec.effects:
                drawn.append(_SizeEffect(member, draws, pairs, None))
            elif too_few_sizes(member) and self._is_new_size(member):
                scores = size_scores(member)
                drawn.append(_SizeEffect(member, draws, pairs, scores))
        return drawn

    def _is_new_size(self, member: Posterior) -> bool:
        """Whether a member has no training rows of the run's size."""
        fitted_sizes = effects.labels(member.table.frame, "size")
        size = effects.labels(self.run.row, "size", fitted_sizes)[0]
        return size not in fitted_sizes


def domains_of(fits: Sequence[Fit], run: PlannedRun) -> tuple[list[Domain], str]:
    """Domains with paired draws and the deviations of a run in each, and how they were paired."""
    draws_of_fits, pairing = pair_draws(fits)
    kept = spread_draws(len(draws_of_fits[0]), MOST_PAIRS)
    rng = np.random.default_rng(run.seed)
    domains = []
    for stream, (fit, draws) in enumerate(zip(fits, draws_of_fits, strict=True)):
        pairs = draws[kept]
        deviations = _deviations(fit, run, pairs, rng)
        domains.append(Domain(fit, run, stream, pairs, deviations))
    return domains, pairing


def _deviations(
    fit: Fit, run: PlannedRun, pairs: Ints, rng: np.random.Generator
) -> dict[str, Floats]:
    """Parts of the run's deviation from its latent log loss, each (pairs,); 0 of a point fit."""
    deviations = {"noise": np.zeros(len(pairs))}
    for member, draws, pairs_of_member in fit.by_member(pairs):
        for name, values in _deviations_of_member(member, run, rng).items():
            deviation = deviations.setdefault(name, np.zeros(len(pairs)))
            deviation[pairs_of_member] = values[draws]
    return deviations


def _deviations_of_member(
    member: Posterior, run: PlannedRun, rng: np.random.Generator
) -> dict[str, Floats]:
    """Noise, and effects that are not latent, of a run under each draw of a member."""
    row = run.row
    deviations = {"noise": error_draws(member, row, rng)[:, 0]}
    for level in member.spec.effects:
        if effects.level(level).latent:
            continue
        if effects.is_fitted(member.draws, level, row)[0]:
            deviations[level] = effects.draw(member.draws, (level,), row, None)[:, 0]
        else:
            scale = member.values()[f"tau_{level}"][:, 0]
            deviations[level] = scale * rng.standard_normal(member.count)
    return deviations


def spread(
    domains: Mapping[str, Domain], tokens: float, replay: float, *, measured: bool
) -> pd.DataFrame:
    """Shares of the variance of the log losses of a planned run; see `inference.variance.shares`.

    One row for each domain, except those of point fits. The losses are latent, or measured ones.
    """
    frames = [pd.DataFrame()]
    for name, domain in domains.items():
        row = domain.run.at(tokens, replay)
        members = []
        for member, draws, pairs in domain.fit.by_member(domain.pairs):
            rng = np.random.default_rng([domain.run.seed, domain.stream])
            parts = {}
            for part, values in latent_parts(member, row, rng).items():
                parts[part] = values[draws]
            if measured:
                for level, deviation in domain.deviations.items():
                    parts[level] = parts.get(level, 0.0) + deviation[pairs, None]
            members.append((len(pairs), parts))
        if members:
            frames.append(shares(members, pd.Index([name])))
    # Far outside the rows a law's loss is not positive.
    return pd.concat(frames).dropna()
