"""Arguments of a plan: checks, the base it starts from, and the baseline of forgetting."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.bases import Bases
from bayeslaw.model import random_effects as effects
from bayeslaw.planning.chance_constraints import Problem, numbered
from bayeslaw.planning.deviations import Fit, PlannedRun
from bayeslaw.planning.fits import curve_of, draw_count, noise_kind
from bayeslaw.planning.limits import ForgettingLimit, LossLimit, no_noise
from bayeslaw.planning.loss_curves import Curve

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


@dataclass(frozen=True)
class Request:
    """What a plan is asked of: the arguments of `bayeslaw.plan`, checked and with their defaults.

    Parameters
    ----------
    targets, sources : sequence of Fit
    max_loss, max_forgetting : sequence of float
        The limit of each target, and of each source.
    baselines : sequence of float, (float, float) or str
        That of each source.
    baseline : str
        Description of the baselines.
    run : PlannedRun
    base : str
        Description of the base.
    confidence, max_cvar, relative, noise
        As of `bayeslaw.plan`.
    """

    targets: Sequence[Fit]
    sources: Sequence[Fit]
    max_loss: Sequence[float]
    max_forgetting: Sequence[float]
    baselines: Sequence[float | tuple[float, float] | str]
    baseline: str
    run: PlannedRun
    base: str
    confidence: float
    max_cvar: float
    relative: bool
    noise: str

    @property
    def fits(self) -> dict[str, Fit]:
        """All fits by name, those of the targets first."""
        targets, sources = len(self.targets), len(self.sources)
        names = numbered("target", targets) + numbered("source", sources)
        return dict(zip(names, (*self.targets, *self.sources), strict=True))

    @property
    def streams(self) -> list[int]:
        """Place of each fit in the order of random numbers: those of the first source come last."""
        first, count = len(self.targets), len(self.targets) + len(self.sources)
        return [*range(first), count - 1, *range(first, count - 1)]

    @property
    def limits(self) -> dict[str, Any]:
        """`Plan.limits`."""

        def one_or_all(values: Sequence[object]) -> object:
            return values[0] if len(values) == 1 else [*values]

        return {
            "params": self.run.params,
            "ptpp": self.run.ptpp,
            "base": self.run.base,
            "unique_tokens": self.run.unique_tokens,
            "max_loss": one_or_all(self.max_loss),
            "max_forgetting": one_or_all(self.max_forgetting),
            "max_cvar": self.max_cvar,
            "relative": self.relative,
            "baseline": one_or_all(self.baselines),
        }

    def problem(
        self,
        curves: Sequence[Curve],
        baselines: Sequence[float | Floats | str],
        index: Sequence[Ints] | None = None,
    ) -> Problem:
        """The limits on latent losses, for curves of all fits and baselines of the sources."""
        count, silent = len(self.targets), no_noise(curves[0].draws)
        own = [None] * len(curves) if index is None else index
        targets = map(LossLimit, curves, self.max_loss, repeat(silent), own)
        sources = [
            ForgettingLimit(curve, most, silent, i, baseline=start, relative=self.relative)
            for curve, most, i, start in zip(
                curves[count:], self.max_forgetting, own[count:], baselines, strict=True
            )
        ]
        return Problem((*targets, *sources), self.confidence, self.max_cvar)


def requested(
    target: Fit | Sequence[Fit],
    source: Fit | Sequence[Fit],
    max_loss: float | Sequence[float],
    max_forgetting: float | Sequence[float],
    baseline: Baseline | Sequence[Baseline],
    run: PlannedRun,
    *,
    confidence: float,
    max_cvar: float,
    relative: bool,
    noise: str | None,
) -> Request:
    """Check the arguments of `bayeslaw.plan`, and find the base and the baselines.

    Raises
    ------
    BayeslawError
        If an argument is not valid, or there is no baseline.
    """
    targets, sources = _fits(target), _fits(source)
    losses, rises = _numbers(max_loss), _numbers(max_forgetting)
    baselines: list[Any] = baseline if isinstance(baseline, list) else [baseline]
    baselines = baselines * len(sources) if baselines == [None] else baselines
    _check_fits(targets, sources, losses, rises, baselines)
    _check_numbers(run, losses, rises, max_cvar, confidence)
    if run.unique_tokens is not None:
        _check_repetition(targets, run.unique_tokens)
    fits = [*targets, *sources]
    label, base = planned_base(fits, run.params, run.ptpp, run.base)
    run = replace(run, base=label)
    pairs = zip(baselines, sources, strict=True)
    found = [baseline_of(own, source, run) for own, source in pairs]
    return Request(
        targets,
        sources,
        losses,
        rises,
        [level for level, _ in found],
        "; ".join(dict.fromkeys(text for _, text in found)),
        run,
        base,
        confidence,
        max_cvar,
        relative,
        noise_kind(noise, fits),
    )


def _fits(given: Fit | Sequence[Fit]) -> list[Fit]:
    return [given] if isinstance(given, Posterior | Pool | PointFit) else list(given)


def _numbers(given: float | Sequence[float]) -> list[float]:
    return [float(each) for each in np.atleast_1d(np.asarray(given, float))]


def _check_fits(
    targets: Sequence[Fit],
    sources: Sequence[Fit],
    max_loss: Sequence[float],
    max_forgetting: Sequence[float],
    baselines: Sequence[Baseline],
) -> None:
    """Raise `BayeslawError` unless each fit has a limit, and each source a baseline."""
    for what, given in (("max_forgetting", max_forgetting), ("baseline", baselines)):
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
    if not targets or len(targets) != len(max_loss):
        raise BayeslawError(
            f"{len(targets)} targets and {len(max_loss)} limits max_loss; give each target its own."
        )


def _check_numbers(
    run: PlannedRun,
    max_loss: Sequence[float],
    max_forgetting: Sequence[float],
    max_cvar: float,
    confidence: float,
) -> None:
    """Raise `BayeslawError` unless the numbers of a plan are in their ranges."""
    positive = [("params", run.params), ("ptpp", run.ptpp), *(("max_loss", x) for x in max_loss)]
    for name, value in positive:
        if not 0 < value < math.inf:
            raise BayeslawError(f"{name}={value:g}: give a positive number.")
    for rise in max_forgetting:
        if not -1 < rise < math.inf:
            raise BayeslawError(f"max_forgetting={rise:g}: 0.02 allows a rise of 2 %.")
    if math.isnan(max_cvar) or max_cvar == -math.inf:
        raise BayeslawError(f"max_cvar={max_cvar:g}: give a number; 0 keeps the mean at the limit.")
    if not 0 < confidence < 1:
        raise BayeslawError(f"confidence={confidence:g} is not between 0 and 1; 0.9 is 90 %.")


def _check_repetition(targets: Sequence[Fit], unique_tokens: float) -> None:
    """Raise `BayeslawError` unless all targets tell what repeated tokens are worth."""
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
    baseline: Baseline, source: Fit, run: PlannedRun
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
    params, ptpp, base = run.params, run.ptpp, run.base
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
    baseline: float | tuple[float, float] | str, source: Fit, run: PlannedRun
) -> float | Floats | str:
    """Baseline of a `ForgettingLimit`: a number, a name, or draws of shape (draws,).

    Draws of a new base are those that the source's curve starts from, where its law starts from
    the base.
    """
    row, rng = run.row, np.random.default_rng([run.seed, 11])
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
