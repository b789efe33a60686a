"""Deviations of the measured log losses of a planned run from the latent loss.

They are the effects of its base and run, and measurement noise. Effects of groups with training
rows have their posterior; those of new groups are drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Fit, Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import error_draws, new_size_effects, too_few_sizes
from bayeslaw.model import effects
from bayeslaw.model.effects import BASE
from bayeslaw.planning.limits import Noise
from bayeslaw.tables.table import grid

PARTS = ("law", "parameters", "discrepancy", "size", "base", "run", "noise")
"""Sources of variance: which law of a pool is right, its parameters and discrepancy, the effects of
a new size, of the base and of the run (and of any other level), and measurement noise."""


@dataclass(frozen=True)
class PlannedRun:
    """The run that is planned, but for its budget and replay ratio.

    Parameters
    ----------
    params, ptpp : float
        Parameters N of the model, and its pre-training tokens per parameter.
    base : str, optional
        Label of the pre-trained model. Without it, a law that starts from one takes the only one of
        that N and P, if there is one.
    unique_tokens : float, optional
        Distinct tokens of the new data; without it, none repeat.
    seed : int
        Of the noise and of random effects that are drawn.
    tokens, replay : float, optional
        Where the effect of a new size is taken; by default at one token per parameter.
    """

    params: float
    ptpp: float
    base: str | None = None
    unique_tokens: float | None = None
    seed: int = 0
    tokens: float | None = None
    replay: float = 0.5

    @property
    def row(self) -> pd.DataFrame:
        """A row of the run, for random effects and noise.

        Only the effect of a new size depends on tokens and replay, and only if the fitted sizes are
        too few for random effects; see `moving_size_effect`.
        """
        tokens = self.tokens or self.params
        row = grid(params=self.params, ptpp=self.ptpp, tokens=tokens, replay=self.replay)
        others = {"base": self.base, "unique_tokens": self.unique_tokens}
        return row.assign(**{name: value for name, value in others.items() if value is not None})


@dataclass(frozen=True)
class Deviation:
    """Deviation on log loss of a new run from the latent loss.

    Parameters
    ----------
    parts : mapping of str to array, shape (draws,)
        Effects by level of grouping, and ``noise``.
    """

    parts: Mapping[str, Floats]

    def part(self, *names: str) -> Floats:
        """Sum of some parts; zero without any."""
        return np.asarray(sum(self.parts.get(name, 0.0) for name in names))

    @property
    def noise(self) -> Noise:
        """The deviation as noise of a limit."""
        total = self.part(*self.parts)
        return Noise(total, self.part(BASE.name) * np.ones(len(total)))

    def take(self, draws: Ints) -> "Deviation":
        """That of some of the draws."""
        return Deviation({name: part[draws] for name, part in self.parts.items()})


def deviations(fits: Sequence[Fit], run: PlannedRun) -> list[Deviation]:
    """Deviation of a planned run in each domain.

    Effects of new groups are correlated between domains that were fitted jointly; otherwise domains
    are independent.
    """
    row, rng = run.row, np.random.default_rng(run.seed)
    found = []
    for fit in fits:
        if isinstance(fit, PointFit):  # it has no noise
            found.append(Deviation({"noise": np.zeros(1)}))
            continue
        own = _joint_normals(fit, run.seed)
        members = [(_deviation(m, row, own, rng).take(i), at) for m, i, at in fit.by_member()]
        joined: dict[str, Floats] = {}
        for each, at in members:
            for name, part in each.parts.items():
                joined.setdefault(name, np.zeros(fit.count))[at] = part
        found.append(Deviation(joined))
    return found


def moving_size_effect(fit: Fit, run: PlannedRun) -> bool:
    """Whether the effect of the planned size depends on tokens and replay.

    The law goes through sizes that are too few for random effects, so the forecast is shifted by
    its response to theirs; see `bayeslaw.inference.residuals.response`.
    """
    if isinstance(fit, PointFit):
        return False
    (size,) = effects.labels(run.row, "size")
    members = (member for member, *_ in fit.by_member())
    return any(
        too_few_sizes(member) and size not in effects.labels(member.table.frame, "size")
        for member in members
    )


def planned_size_effects(fit: Posterior, frame: pd.DataFrame, seed: Sequence[int]) -> Floats:
    """Effects of new sizes on log loss, shape (draws, rows); of joint fits they are correlated."""
    drawn = new_size_effects(fit, frame, np.random.default_rng(seed))
    own = _joint_normals(fit, seed[0]).get(effects.SIZE.name)
    if own is None or len(frame) != 1 or effects.is_fitted(fit.draws, "size", frame)[0]:
        return drawn
    return fit.values()["tau_size"] * own[:, None]


def _joint_normals(fit: Posterior | Pool, seed: int) -> dict[str, Floats]:
    """Standard normals of a new group of each level, shape (draws,), for a joint fit.

    Domains of one joint fit have normals with the posterior medians of its correlations. Other fits
    have none.
    """
    name, place = fit.settings.get("joint"), fit.settings.get("place")
    if name is None or place is None:
        return {}
    rng = np.random.default_rng([seed, int(name, 16)])
    return {
        level: rng.multivariate_normal(np.zeros(len(r)), r, fit.count, method="eigh")[:, place]
        for level, r in fit.settings["correlation"].items()
    }


def _deviation(
    fit: Posterior, row: pd.DataFrame, given: Mapping[str, Floats], rng: np.random.Generator
) -> Deviation:
    """Deviation of one domain; `given` has standard normals of its new groups, by level."""
    parts = {"noise": error_draws(fit, row, rng)[:, 0]}
    for level in fit.spec.effects:
        if effects.level(level).latent:
            continue
        if effects.is_fitted(fit.draws, level, row)[0]:
            parts[level] = effects.draw(fit.draws, (level,), row, None)[:, 0]
        else:
            z = given[level] if level in given else rng.standard_normal(fit.count)
            parts[level] = fit.values()[f"tau_{level}"][:, 0] * z
    return Deviation(parts)


def spread(
    fits: Mapping[str, Fit],
    deviations: Sequence[Deviation],
    streams: Sequence[int],
    run: PlannedRun,
    tokens: float,
    replay: float,
) -> pd.DataFrame:
    """Shares of the variance of the measured log loss of a planned run.

    The log loss is a sum of parts; the share of a part is its covariance with the sum over the
    variance of the sum. Shares sum to 1, and one is negative if its part is offset by the others.

    One row per domain, point fits left out: `sd`, the standard deviation of log loss, and the
    shares of `PARTS`. `deviations` and `streams` are those of `fits`; see `Request.streams`.
    """
    row, found = run.row.assign(tokens=tokens, replay=replay), {}
    for (name, fit), own, stream in zip(fits.items(), deviations, streams, strict=True):
        if isinstance(fit, PointFit):
            continue
        parts = {part: np.zeros(fit.count) for part in PARTS}
        for member, draws, at in fit.by_member():
            with np.errstate(invalid="ignore", divide="ignore"):
                own_parts = _latent_parts(member, row, [run.seed, stream])
            for part, values in own_parts.items():
                parts[part][at] = values[draws]
            centre = parts["parameters"][at].mean() + parts["discrepancy"][at].mean()
            parts["law"][at] = centre
            for part in ("parameters", "discrepancy"):
                parts[part][at] -= parts[part][at].mean()
        for part, values in own.parts.items():
            parts[part if part in PARTS else "run"] += values
        total = np.sum(list(parts.values()), axis=0)
        variance = total.var()
        if not np.isfinite(variance):  # far outside the rows, where a law's loss is not positive
            continue
        shares = {part: np.cov(v, total, ddof=0)[0, 1] / variance for part, v in parts.items()}
        found[name] = {"sd": float(np.sqrt(variance))} | shares
    return pd.DataFrame.from_dict(found, orient="index")


def _latent_parts(fit: Posterior, row: pd.DataFrame, seed: Sequence[int]) -> dict[str, Floats]:
    """Parts of the latent log loss that vary, each of shape (draws,)."""
    q, plain = fit.values(), fit.law.without_discrepancy
    p, x = plain.amounts(q, fit.at), fit.covariates(row)
    middle = {name: np.median(v, axis=0) if np.ndim(v) > 1 else v for name, v in x.items()}

    def log_loss(x: Mapping[str, Floats]) -> Floats:
        return np.log(np.broadcast_to(plain.loss(p, x, fit.at), (fit.count, 1)))[:, 0]

    law, fitted = log_loss(middle), log_loss(x)
    return {
        "parameters": law,
        BASE.name: fitted - law,
        "discrepancy": np.log(fit.latent(row))[:, 0] - fitted,
        "size": planned_size_effects(fit, row, seed)[:, 0],
    }
