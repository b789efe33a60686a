"""Arguments of a plan: checks, the base it starts from, and the baseline of forgetting."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.bases import Bases
from bayeslaw.model import random_effects as effects
from bayeslaw.planning.deviations import Fit
from bayeslaw.planning.fits import curve_of, draw_count

NEW = "new"
"""In place of the label of a base: one without rows."""
BASELINES = {
    "asymptote": "least source loss that pure replay can reach, draw by draw",
    "law": "source law's own loss at D = 0, draw by draw",
    "matched": "source loss of pure replay for the same tokens, draw by draw",
}
"""Baselines that are computed from the source law, and their descriptions."""
type Baseline = float | tuple[float, float] | str | None
"""Argument of `bayeslaw.plan`: a loss, a loss and its standard deviation, a name, or none."""


def replay_ratios(replay: Sequence[float] | Floats) -> Floats:
    """Distinct replay ratios in ascending order.

    Examples
    --------
    >>> replay_ratios([0.5, 0.1, 0.5]).tolist()
    [0.1, 0.5]
    """
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
    """Raise `BayeslawError` unless the arguments of `bayeslaw.plan` are valid."""
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


def check_sources(
    sources: Sequence[Fit], rises: Sequence[float], baselines: Sequence[object]
) -> None:
    """Raise `BayeslawError` unless each source has a limit and a baseline of its own."""
    for what, given in (("max_forgetting", rises), ("baseline", baselines)):
        if len(given) != len(sources):
            raise BayeslawError(
                f"{len(sources)} sources and {len(given)} of {what}; give each source its own."
            )
    for name in baselines[1:]:
        if isinstance(name, str):
            raise BayeslawError(
                f"baseline={name!r}: only the first source may have a baseline by name; give the "
                "others' measured losses."
            )


def check_repetition(targets: Sequence[Fit], unique_tokens: float | None) -> None:
    """Raise `BayeslawError` unless all targets tell what repeated tokens are worth, if asked."""
    if unique_tokens is None:
        return
    if not 0 < unique_tokens < math.inf:
        raise BayeslawError(f"unique_tokens={unique_tokens:g}: give a positive number of tokens.")
    for fit in targets:
        for law in [m.law for m, *_ in fit.parts()] if isinstance(fit, Pool) else [fit.law]:
            if law.repetition is None:
                raise BayeslawError(
                    f"unique_tokens: {law.name} was fitted to a table without the column "
                    "unique_tokens, so it does not know what repeated tokens are worth; add the "
                    "column and fit again."
                )


def planned_base(
    fits: Sequence[Fit], params: float, ptpp: float, base: str | None
) -> tuple[str | None, str]:
    """Label of the base that a plan starts from, and its description.

    By default it is the only base of that N and P in the tables, or a new one if there are none or
    several.

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


def baseline_of(
    baseline: Baseline, source: Fit, params: float, ptpp: float, base: str | None
) -> tuple[float | tuple[float, float] | str, str]:
    """Baseline of forgetting, and its description.

    None stands for the row with ``tokens = 0`` of the base in the source's table.

    Raises
    ------
    BayeslawError
        If the baseline is not valid, the law has no loss at D = 0, or there is no such row.
    """
    if isinstance(baseline, str) and baseline not in BASELINES:
        raise BayeslawError(unknown("baseline", baseline, BASELINES))
    if baseline is not None and not isinstance(baseline, str):
        loss, *sd = np.atleast_1d(np.asarray(baseline, float)).tolist()
        if not 0 < loss < math.inf or any(not 0 <= each < math.inf for each in sd) or len(sd) > 1:
            given = f"{loss:g}" if not sd else f"{baseline}"
            raise BayeslawError(
                f"baseline={given}: give a source loss in nats per token, or that and its "
                "standard deviation."
            )
        text = "measured source loss of the un-adapted model, as given"
        return ((loss, sd[0]), f"{text}, with sd {sd[0]:g}") if sd else (loss, text)
    finite = np.isfinite(curve_of(source, params, ptpp, base=base).loss_at_zero()).all()
    ways = ", ".join(repr(name) for name in BASELINES if finite or name != "law")
    why = f"pass baseline= (--baseline) as the measured source loss of that model, or one of {ways}"
    if not finite:
        name = source.name if isinstance(source, Pool) else source.law.name
        why = (
            f"the law {name} has no value at D = 0, where its term in D diverges, so "
            f"the un-adapted model's loss cannot come from the fit: {why}"
        )
    if baseline == "law" and not finite:
        raise BayeslawError(f"baseline='law': {why}.")
    if baseline is not None:
        return baseline, BASELINES[baseline]
    if base == NEW and law_of_bases(source) is not None:
        return "drawn", "starting loss of a new base, drawn from the law of the bases"
    if source.table is None:
        raise BayeslawError(f"No baseline for the un-adapted model: {why}.")
    rows, name = source.table.baselines, source.table.name
    for column, value in (("params", params), ("ptpp", ptpp)):
        if column in rows:
            rows = rows[np.isclose(rows[column], value, rtol=1e-6, atol=0)]
    if base is not None and "base" in rows:
        rows = rows[rows["base"].astype(str) == base]
    if len(rows) != 1:
        raise BayeslawError(
            f"{name}: {len(rows)} rows with tokens = 0 for params = {params:g}, ptpp = {ptpp:g}"
            f"{'' if base is None else f', base {base}'}, not one; {why}."
        )
    return float(rows["loss"].iloc[0]), f"row with tokens = 0 of {name}"


def law_of_bases(source: Fit) -> Bases | None:
    """Losses of pre-trained models that a source's fit knows, and their laws, if it does."""
    if isinstance(source, PointFit):
        return None
    laws = (member.law for member, *_ in source.parts())
    return next((law.bases for law in laws if law.bases is not None), None)


def baseline_draws(
    baseline: float | tuple[float, float] | str, source: Fit, row: pd.DataFrame, seed: int
) -> float | Floats | str:
    """Baseline of a `Problem`: a number, a name, or draws of shape (draws,).

    Draws of a new base are those that the source's curve starts from, where its law starts from
    the base.
    """
    rng = np.random.default_rng([seed, 11])
    if isinstance(baseline, tuple):
        return baseline[0] + baseline[1] * rng.standard_normal(draw_count(source))
    known = law_of_bases(source)
    if baseline != "drawn" or known is None or isinstance(source, PointFit):
        return baseline

    def starts(fit: Posterior) -> Floats:
        if fit.law.departure:
            return np.exp(np.broadcast_to(fit.covariates(row)["start"][..., 0], fit.count))
        return np.exp(known.logs(row, known.draws(row, fit.count, rng))[0][:, 0])

    return source.gathered(starts) if isinstance(source, Pool) else starts(source)
