"""Arguments of a plan: checks, the base it starts from, and the baseline of forgetting."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product, repeat
from typing import Any

import numpy as np

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import REMOVED, BayeslawError, argument, unknown
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Fit, Pool, draw_count, with_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.bases import Bases
from bayeslaw.laws.law import Law
from bayeslaw.planning.grid import Curve
from bayeslaw.planning.planned_run import NEW, PlannedRun, curve_of, planned_base
from bayeslaw.planning.problem import ForgettingLimit, LossLimit, Noise, Problem, numbered
from bayeslaw.tables.table import of_domains
from bayeslaw.tables.validation import check_units, label_texts

BASELINES = {
    "asymptote": "least source loss that pure replay can reach, draw by draw",
    "law": "source law's own loss at D = 0, draw by draw",
}
"""Baselines that are computed from the source law, and their descriptions."""
NOISE = ("latent", "predictive")
"""Whether limits are on latent losses, or on measured losses of a new run."""
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
    run : PlannedRun
    ratios : array, optional
        Replay ratios that are searched, if given.
    confidence, relative, noise
        As of `bayeslaw.plan`.
    baseline, base : str
        Descriptions of the baselines, and of the base.
    """

    targets: Sequence[Fit]
    sources: Sequence[Fit]
    max_loss: Sequence[float]
    max_forgetting: Sequence[float]
    baselines: Sequence[Any]
    run: PlannedRun
    confidence: float
    relative: bool
    ratios: Floats | None = None
    noise: str = "latent"
    baseline: str = ""
    base: str = ""

    def check(self) -> None:
        """Raise `BayeslawError` unless each fit has a limit and all numbers are in range."""
        targets, sources, run = len(self.targets), len(self.sources), self.run
        for what, given in (("max_forgetting", self.max_forgetting), ("baseline", self.baselines)):
            if len(given) != sources:
                raise BayeslawError(
                    f"{sources} sources and {len(given)} of {what}; give each source its own."
                )
        for name in self.baselines[1:]:
            if isinstance(name, str):
                raise BayeslawError(
                    f"baseline={name!r}: only the first source may have a baseline by name; give "
                    "the others' measured losses."
                )
        if not targets or targets != len(self.max_loss):
            raise BayeslawError(
                f"{targets} targets and {len(self.max_loss)} limits max_loss; give each target its "
                "own."
            )
        positive = [("params", run.params), ("ptpp", run.ptpp)]
        for name, value in (*positive, *(("max_loss", loss) for loss in self.max_loss)):
            if not 0 < value < math.inf:
                raise BayeslawError(f"{name}={value:g}: give a positive number.")
        for rise in self.max_forgetting:
            if not -1 < rise < math.inf:
                raise BayeslawError(f"max_forgetting={rise:g}: 0.02 allows a rise of 2 %.")
            if self.relative and rise > 1:
                raise BayeslawError(
                    f"max_forgetting={rise:g}: give a fraction, not a percentage; "
                    f"{rise / 100:g} allows a rise of {rise:g} %. Limits in nats need "
                    "relative=False (--absolute)."
                )
        if not 0 < self.confidence < 1:
            raise BayeslawError(
                f"confidence={self.confidence:g} is not between 0 and 1; 0.9 is 90 %."
            )
        if run.unique_tokens is not None:
            self._check_repetition(run.unique_tokens)
        self._check_domains()
        asked = run.row.drop(columns=["tokens", "replay"])
        for fit in (*self.targets, *self.sources):
            if fit.table is not None:
                check_units(asked, "plan", fit.table.frame)

    def _check_repetition(self, unique_tokens: float) -> None:
        """Raise `BayeslawError` unless all targets tell what repeated tokens are worth."""
        if not 0 < unique_tokens < math.inf:
            raise BayeslawError(
                f"unique_tokens={unique_tokens:g}: give a positive number of tokens."
            )
        for law in laws_of(*self.targets):
            if not law.repetition:
                raise BayeslawError(
                    f"unique_tokens: {law.name} was fitted to a table without the column "
                    "unique_tokens, so it does not know what repeated tokens are worth; add "
                    "the column and fit again."
                )

    def _check_domains(self) -> None:
        """Raise `BayeslawError` unless targets differ from sources, and laws know the ratios."""
        for target, source in product(self.targets, self.sources):
            if _same(target, source):
                raise BayeslawError(
                    "target and source are one posterior; give that of the domain adapted to, and "
                    "that of the domain that may be forgotten."
                )
        for law in laws_of(*self.targets, *self.sources):
            if "replay" not in law.columns and (self.ratios is None or (self.ratios != 1).any()):
                raise BayeslawError(
                    f"the law {law.name} does not know replay, so no ratio can be planned: fit one "
                    "that does, such as form1n, or fix replay_grid=[1] (--replay 1)."
                )

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
        count, silent = len(self.targets), Noise(*np.zeros((2, curves[0].draws)))
        own = [None] * len(curves) if index is None else index
        targets = map(LossLimit, curves, self.max_loss, repeat(silent), own)
        sources = [
            ForgettingLimit(curve, most, silent, i, baseline=start, relative=self.relative)
            for curve, most, i, start in zip(
                curves[count:], self.max_forgetting, own[count:], baselines, strict=True
            )
        ]
        return Problem((*targets, *sources), self.confidence)


def requested(
    target: Fit | Sequence[Fit],
    source: Fit | Sequence[Fit],
    max_loss: float | Sequence[float],
    max_forgetting: float | Sequence[float],
    baseline: Baseline | Sequence[Baseline],
    run: PlannedRun,
    *,
    noise: str | None,
    **how: Any,
) -> Request:
    """Check the arguments of `bayeslaw.plan`, and find the base and the baselines.

    Raises
    ------
    BayeslawError
        If an argument is not valid, or there is no baseline.
    """
    targets, sources = (
        list(each) if isinstance(each, Sequence) else [each] for each in (target, source)
    )
    for fit in (*targets, *sources):
        if not isinstance(fit, PointFit):
            with_draws(fit, "plan")
    losses, rises = (
        np.atleast_1d(np.asarray(x, float)).tolist() for x in (max_loss, max_forgetting)
    )
    given: list[Any] = baseline if isinstance(baseline, list) else [baseline]
    given = given * len(sources) if given == [None] else given
    request = Request(targets, sources, losses, rises, given, run, **how)
    request.check()
    fits = [*targets, *sources]
    label, base = planned_base(fits, run)
    run = replace(run, base=label)
    pairs = zip(given, sources, strict=True)
    baselines, texts = zip(*(baseline_of(own, fit, run) for own, fit in pairs), strict=True)
    return replace(
        request,
        baselines=baselines,
        baseline="; ".join(dict.fromkeys(texts)),
        run=run,
        base=base,
        noise=noise_kind(noise, fits),
    )


def baseline_of(
    baseline: Baseline, source: Fit, run: PlannedRun
) -> tuple[float | tuple[float, float] | str, str]:
    """Baseline of forgetting, and its description.

    None stands for the row with ``tokens = 0`` of the base in the source's table, on its domain.

    Raises
    ------
    BayeslawError
        If the baseline is not valid, the law has no loss at D = 0, or there is no such row.
    """
    if isinstance(baseline, str) and baseline not in BASELINES:
        removed = REMOVED.get(baseline)
        why = f"baseline={baseline!r} {removed}"
        raise BayeslawError(why if removed else unknown("baseline", baseline, BASELINES))
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
    finite = np.isfinite(curve_of(source, replace(run, unique_tokens=None)).loss_at_zero()).all()
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
    rows, name = of_domains(source.table.baselines, source.table.frame), source.table.name
    for column, value in (("params", params), ("ptpp", ptpp)):
        if column in rows:
            rows = rows[np.isclose(rows[column], value, rtol=1e-6, atol=0)]
    if base is not None and "base" in rows:
        rows = rows[label_texts(rows["base"]) == base]
    if len(rows) != 1:
        raise BayeslawError(
            f"{name}: {len(rows)} rows with tokens = 0 for params = {params:g}, ptpp = {ptpp:g}"
            f"{'' if base is None else f', base {base}'}, not one; {why}."
        )
    return float(rows["loss"].iloc[0]), f"row with tokens = 0 of {name}"


def laws_of(*fits: Fit) -> list[Law]:
    """Laws of fits; those of a pool are the laws of its members."""
    members = (fit.members.values() if isinstance(fit, Pool) else (fit,) for fit in fits)
    return [member.law for each in members for member in each]


def _same(one: Fit, other: Fit) -> bool:
    """Whether two fits are one posterior, or pools of the same posteriors."""
    if isinstance(one, Pool) and isinstance(other, Pool):
        pairs = zip(one.members.values(), other.members.values(), strict=False)
        return len(one.members) == len(other.members) and all(_same(*pair) for pair in pairs)
    if isinstance(one, Posterior) and isinstance(other, Posterior):
        return one is other or one.draws.equals(other.draws)
    return False


def law_of_bases(source: Fit) -> Bases | None:
    """Losses of pre-trained models that a source's fit knows, and their laws, if it does."""
    if isinstance(source, PointFit):
        return None
    return next((law.bases for law in laws_of(source) if law.bases is not None), None)


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
        drawn = known.draws(row, fit.count, [int(rng.integers(2**32))])
        return np.exp(known.logs(row, drawn)[0][:, 0])

    return source.gathered(starts) if isinstance(source, Pool) else starts(source)


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
