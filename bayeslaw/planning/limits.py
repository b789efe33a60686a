"""From fits to a problem: which draws go together, the baseline, and what lies outside the data."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.evaluate.new_sizes import new_size_effects, residual_draws
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.terms import ORIGIN
from bayeslaw.model.random_effects import of_size
from bayeslaw.planning.choices import Choice
from bayeslaw.planning.curves import Curve
from bayeslaw.planning.intervals import Floats
from bayeslaw.tables.table import grid

type Fit = Posterior | PointFit

BASELINES = {
    "asymptote": "least source loss that pure replay can reach, draw by draw",
    "law": "source law's own loss at D = 0, draw by draw",
    "matched": "source loss of pure replay for the same tokens, draw by draw",
}


def replay_ratios(replay: Sequence[float] | Floats) -> Floats:
    """Replay ratios in order, each once."""
    ratios = np.unique(np.asarray(replay, float))
    if not len(ratios) or not ((ratios >= 0) & (ratios <= 1)).all():
        raise BayeslawError("replay ratios lie in [0, 1]; give at least one, as fractions.")
    return ratios


def check_limits(
    targets: Sequence[Fit],
    max_loss: Sequence[float],
    params: float,
    ptpp: float,
    max_forgetting: float,
    max_cvar: float,
    confidence: float,
) -> None:
    """Refuse limits and a model that no plan can be made for."""
    if not targets or len(targets) != len(max_loss):
        raise BayeslawError(
            f"{len(targets)} targets and {len(max_loss)} limits max_loss; give each target its own."
        )
    positive = [("params", params), ("ptpp", ptpp), *(("max_loss", loss) for loss in max_loss)]
    for name, value in positive:
        if not 0 < value < math.inf:
            raise BayeslawError(f"{name}={value:g}: give a positive number.")
    if not -1 < max_forgetting < math.inf:
        raise BayeslawError(f"max_forgetting={max_forgetting:g}: 0.02 allows a rise of 2 %.")
    if math.isnan(max_cvar) or max_cvar == -math.inf:
        raise BayeslawError(f"max_cvar={max_cvar:g}: give a number; 0 keeps the mean at the limit.")
    if not 0 < confidence < 1:
        raise BayeslawError(f"confidence={confidence:g} is not between 0 and 1; 0.9 is 90 %.")


def baseline_of(
    baseline: float | str | None, source: Fit, params: float, ptpp: float
) -> tuple[float | str, str]:
    """The baseline, and what it is in words."""
    if isinstance(baseline, str) and baseline not in BASELINES:
        raise BayeslawError(unknown("baseline", baseline, BASELINES))
    if baseline is not None and not isinstance(baseline, str):
        if not 0 < baseline < math.inf:
            raise BayeslawError(f"baseline={baseline:g}: give a source loss in nats per token.")
        return float(baseline), "measured source loss of the un-adapted model, as given"
    valued = np.isfinite(curve_of(source, params, ptpp).unadapted()).all()
    ways = ", ".join(repr(name) for name in BASELINES if valued or name != "law")
    why = f"pass baseline= (--baseline) as the measured source loss of that model, or one of {ways}"
    if not valued:
        why = (
            f"the law {source.law.name} has no value at D = 0, where its term in D diverges, so "
            f"the un-adapted model's loss cannot come from the fit: {why}"
        )
    if baseline == "law" and not valued:
        raise BayeslawError(f"baseline='law': {why}.")
    if baseline is not None:
        return baseline, BASELINES[baseline]
    if source.table is None:
        raise BayeslawError(f"No baseline for the un-adapted model: {why}.")
    rows, name = source.table.baselines, source.table.name
    for column, value in (("params", params), ("ptpp", ptpp)):
        if column in rows:
            rows = rows[np.isclose(rows[column], value, rtol=1e-6, atol=0)]
    if len(rows) != 1:
        raise BayeslawError(
            f"{name}: {len(rows)} rows with tokens = 0 for params = {params:g}, ptpp = {ptpp:g}, "
            f"not one; {why}."
        )
    return float(rows["loss"].iloc[0]), f"row with tokens = 0 of {name}"


def pair(fits: Sequence[Fit]) -> tuple[list[Any], str]:
    """Indices of each fit's draws that go together, and that in words."""
    posteriors = [fit for fit in fits if isinstance(fit, Posterior)]
    if not posteriors:
        return [np.zeros(1, int) for _ in fits], "no draws: all fits are certain"
    draws = min(draws_of(fit) for fit in posteriors)
    names = [fit.settings.get("joint") or id(fit) for fit in posteriors]
    groups = list(dict.fromkeys(names))
    index, left = [], iter(names)
    for fit in fits:
        if isinstance(fit, PointFit):
            index.append(np.zeros(draws, int))
            continue
        # Part of a turn for each group, because chains of equal seeds may move in step.
        turn = groups.index(next(left)) * draws // len(groups)
        index.append(np.roll(np.arange(draws) * draws_of(fit) // draws, turn))
    if len(posteriors) == 1:
        return index, "one posterior: the other fits are certain"
    if len(groups) == 1:
        return index, "jointly: draw by draw of one fit"
    if len(groups) == len(posteriors):
        return index, f"independently: {len(groups)} fits, draws paired at random"
    return index, f"jointly within each of {len(groups)} fits, at random between them"


def draws_of(fit: Fit) -> int:
    """Number of draws; 1 of a point fit."""
    return 1 if isinstance(fit, PointFit) else fit.draws.sizes["chain"] * fit.draws.sizes["draw"]


def unconverged_of(fits: Sequence[Fit], allowed: bool) -> tuple[str, ...]:
    """What fails in posteriors that failed the gate; they are refused unless allowed."""
    found: list[str] = []
    for fit in fits:
        if isinstance(fit, Posterior):
            fit.require_converged(allowed)
            found += [f"{fit.table.name}: {what}" for what in fit.convergence.failures]
    return tuple(found)


def dependence(fits: Sequence[Fit]) -> int:
    """Length over which draws are dependent: draws per effective draw of the slowest fit."""
    posteriors = [fit for fit in fits if isinstance(fit, Posterior)]
    return max(
        [1, *(math.ceil(draws_of(fit) / max(fit.convergence.ess_bulk, 1)) for fit in posteriors)]
    )


def curve_of(
    fit: Fit,
    params: float,
    ptpp: float,
    *,
    median: bool = False,
    rng: np.random.Generator | None = None,
) -> Curve:
    """A fit's law at a model and stage, for each draw or at the median reference coordinates.

    With what models of that size share; of a new size that is drawn, or zero without `rng`.
    """
    law = fit.law
    if isinstance(fit, PointFit):
        p = {name: np.array([float(value)]) for name, value in fit.parameters.items()}
        return Curve(law, p, ORIGIN, params, ptpp)
    q = {name: value.ravel() for name, value in fit.values().items()}
    row = typical(params, ptpp)
    shared = of_size(fit.draws, fit.spec.effects, row)[:, 0]
    if rng is not None:
        shared = shared + new_size_effects(fit, row, rng)[:, 0]
    if median:
        q = {name: np.median(value, keepdims=True) for name, value in q.items()}
        shared = np.median(shared, keepdims=True)
    here = {"params": np.log(params), "ptpp": np.log(ptpp)}
    law, p = law.settled(law.sizes(q, fit.at), here, fit.at)
    p |= {name: p[name] * np.exp(shared) for name in ("E", *law.coefficients)}
    return Curve(law, p, fit.at, params, ptpp)


def noise_of(fit: Fit, kind: str, params: float, ptpp: float, rng: np.random.Generator) -> Floats:
    """Log of a measured loss of a new run over that of `curve_of`, shape (draws,)."""
    if kind not in ("latent", "predictive"):
        raise BayeslawError(unknown("noise", kind, ("latent", "predictive")))
    if kind == "latent":
        return np.zeros(draws_of(fit))
    if isinstance(fit, PointFit):
        raise BayeslawError(
            f"a point fit of {fit.law.name} has no noise; give a posterior or noise='latent'."
        )
    return residual_draws(fit, typical(params, ptpp), rng, sizes=False)[:, 0]


def typical(params: float, ptpp: float) -> pd.DataFrame:
    """A row of the model and stage: what rows share hardly varies with tokens and replay."""
    return grid(params=params, ptpp=ptpp, tokens=params, replay=0.5)


def outside_data(
    choice: Choice, fits: Sequence[Fit], names: Sequence[str], params: float, ptpp: float
) -> tuple[str, ...]:
    """What of a choice lies outside the rows that each law was fitted to, in words."""
    found = []
    asked = {"params": params, "ptpp": ptpp, "replay": choice.replay, "atpp": choice.atpp}
    for name, fit in zip(names, fits, strict=True):
        for column, (low, high) in spans(fit).items():
            value = asked[column]
            if math.isfinite(value) and not low * (1 - 1e-9) <= value <= high * (1 + 1e-9):
                rows = f"the {name}'s rows, {low:.4g} to {high:.4g}"
                found.append(f"{column} {value:.4g} is outside {rows}")
    return tuple(found)


def spans(fit: Fit) -> dict[str, tuple[float, float]]:
    """Least and largest params, ptpp, replay and ATPP of the rows that a law was fitted to."""
    if fit.table is None:
        return {}
    rows = fit.table.frame.assign(atpp=fit.table.frame["tokens"] / fit.table.frame["params"])
    columns = [c for c in ("params", "ptpp", "replay", "atpp") if c in rows]
    return {c: (float(rows[c].min()), float(rows[c].max())) for c in columns}


def covered(fits: Sequence[Fit]) -> dict[str, tuple[float, float]]:
    """What the rows of every fit cover."""
    ranges: dict[str, tuple[float, float]] = {}
    for name, (low, high) in (item for fit in fits for item in spans(fit).items()):
        least, most = ranges.get(name, (-math.inf, math.inf))
        ranges[name] = max(low, least), min(high, most)
    return ranges
