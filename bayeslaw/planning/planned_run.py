"""The planned run: its arguments, checked, its losses under each fit, and how far it lies out."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.interpolate import RegularGridInterpolator

from bayeslaw.checks.extrapolation import judge_extrapolation
from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import Acceptance, BayeslawError, argument, unknown
from bayeslaw.common.formatting import listed
from bayeslaw.design.bases import drawn_bases, of_bases
from bayeslaw.design.design import with_held
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.forecast import KINDS
from bayeslaw.inference.pools import (
    Fit,
    check_roles,
    pair_draws,
    spread_draws,
    with_draws,
)
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import (
    error_draws,
    new_size_effects,
    size_scores,
    too_few_sizes,
)
from bayeslaw.inference.variance import latent_parts, shares
from bayeslaw.laws.departure import Departure
from bayeslaw.laws.steps import UNIQUE, Repetition
from bayeslaw.model import effects
from bayeslaw.tables.hull import EPOCHS, epochs, farthest, locate
from bayeslaw.tables.table import Rows, grid, of_domains
from bayeslaw.tables.units import check_units
from bayeslaw.tables.validation import COVARIATES, label_texts
from bayeslaw.tables.verdict import MEASURED_DECADES, Verdict, of_measured, worst

MOST_PAIRS = 4000
"""Most paired draws, evenly spread."""
CHUNK = 400
"""Rows that are evaluated at once: fewer take longer each, and more do not fit into the cache."""
NEW_BASE = "new"
"""In place of the label of a base: one without rows."""
type Baseline = float | tuple[float, float] | None
"""Argument of `bayeslaw.plan`: a loss, a loss and its standard deviation, or none."""


# -- arguments ------------------------------------------------------------------------------------


def check_limits(
    limits: Mapping[str, float | None],
    atpp: float | None,
    confidence: float,
    *,
    relative: bool,
) -> None:
    """Raise `BayeslawError` unless limits or a budget are given, and all are in range."""
    for name, example in (("max_loss", 1.8), ("max_forgetting", 0.02)):
        if atpp is None and limits[name] is None:
            raise BayeslawError(
                f"a plan needs {name} ({argument(name, example)}), or a fixed budget "
                f"({argument('atpp', 8)})."
            )
    _check_positive(atpp=atpp, max_loss=limits["max_loss"])
    if (rise := limits["max_forgetting"]) is not None:
        if not -1 < rise < math.inf:
            raise BayeslawError(f"max_forgetting={rise:g}: 0.02 allows a rise of 2 %.")
        if relative and rise > 1:
            raise BayeslawError(
                f"max_forgetting={rise:g}: give a fraction, not a percentage; {rise / 100:g} "
                f"allows a rise of {rise:g} %. Limits in nats need relative=False (--absolute)."
            )
    check_confidence(confidence)


def check_confidence(confidence: float) -> None:
    """Raise `BayeslawError` unless it is a probability between 0 and 1."""
    if not 0 < confidence < 1:
        raise BayeslawError(
            f"confidence={confidence:g} is not between 0 and 1; 0.9 is 90 %."
        )


def are_measured(losses: str) -> bool:
    """Whether losses of a kind are measured ones; `BayeslawError` unless the kind is known."""
    if losses not in KINDS:
        raise BayeslawError(unknown("kind of losses", losses, KINDS))
    return losses == "predictive"


def _check_positive(**numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and not 0 < value < math.inf:
            of_tokens = " of tokens" if name == "unique_tokens" else ""
            raise BayeslawError(f"{name}={value:g}: give a positive number{of_tokens}.")


def check_fits(target: Fit, source: Fit, ratios: Floats, *, repeated: bool) -> None:
    """Raise `BayeslawError` unless the fits are of two domains, and know what is looked for."""
    for law in target.laws:
        if repeated and not law.step(Repetition):
            raise BayeslawError(
                f"unique_tokens: {law.name} was fitted to a table without the column "
                "unique_tokens, so it does not know what repeated tokens are worth; add "
                "the column and fit again."
            )
    one, other = ([m.draws for m in fit.members.values()] for fit in (target, source))
    # A file that is loaded twice gives two objects with the same draws.
    if (
        one
        and len(one) == len(other)
        and all(a.equals(b) for a, b in zip(one, other, strict=True))
    ):
        raise BayeslawError(
            "target and source are one posterior; give that of the domain adapted to, and "
            "that of the domain that may be forgotten."
        )
    check_roles(target, source)
    for law in (*target.laws, *source.laws):
        only = law.held.get("replay", 1.0)
        if "replay" not in law.columns and (ratios != only).any():
            why = "does not know replay, so no ratio can be planned: fit one that does, such as"
            why = (
                f"{why} form1n" if only == 1 else f"was fitted to replay {only:g} alone"
            )
            raise BayeslawError(
                f"the law {law.name} {why}, or fix replay=[{only:g}] (--replay {only:g})."
            )


@dataclass(frozen=True)
class PlannedRun:
    """The run that is planned, but for its budget and replay ratio."""

    params: float
    ptpp: float | None  # not needed where no law knows it
    # Without a label, a law that starts from one takes that of N and P.
    base: str | None
    unique_tokens: float | None  # without it, no tokens repeat
    seed: int  # of the noise, and of random effects that are drawn
    replay: (
        float  # of the row for these; a law that was fitted to one ratio knows no other
    )

    def rows(self, budgets: float | Floats, ratios: float | Floats) -> pd.DataFrame:
        """A row for each pair of a budget, log ATPP, and a replay ratio."""
        budgets, ratios = np.broadcast_arrays(np.atleast_1d(budgets), ratios)
        columns = {
            "params": self.params,
            "tokens": self.params * np.exp(budgets),
            "replay": ratios,
        }
        stated = {
            "ptpp": self.ptpp,
            "base": self.base,
            "unique_tokens": self.unique_tokens,
        }
        given = {name: value for name, value in stated.items() if value is not None}
        return pd.DataFrame(columns | given)

    @property
    def row(self) -> pd.DataFrame:
        """A row for random effects and noise, which depend on neither budget nor replay."""
        return self.rows(0.0, self.replay)

    def at(self, tokens: float, replay: float) -> pd.DataFrame:
        """The row of a budget and a replay ratio."""
        return self.row.assign(tokens=tokens, replay=replay)


def run_of(
    fits: Sequence[Fit],
    params: float | None,
    ptpp: float | None,
    base: str | None,
    unique_tokens: float | None,
    seed: int,
) -> tuple[PlannedRun, str]:
    """The planned run, if the fits know it, and its base in words."""
    for fit in fits:
        if not isinstance(fit, PointFit):
            with_draws(fit, "plan")
    bases = _labelled(fits)
    named = bases[bases["label"] == base]
    if params is None and named["params"].nunique() == 1:
        params = float(named["params"].iloc[0])
    if ptpp is None and named["ptpp"].nunique() == 1:
        ptpp = float(named["ptpp"].iloc[0])
    if params is None:
        if base is not None and base != NEW_BASE:
            _base_of(bases, base, math.nan, None)  # says which bases there are
        raise BayeslawError(
            "a plan needs params= (--params), or base= (--base), a known one."
        )
    stage = _stage_of(fits, ptpp)
    _check_positive(params=params, ptpp=stage, unique_tokens=unique_tokens)
    label, words = _base_of(bases, base, params, stage)
    of_base = _alike(bases[bases["label"] == label], params, stage)
    if len(of_base):
        # Its own numbers: those given may be rounded.
        params = float(of_base["params"].iloc[0])
        stage = None if stage is None else float(of_base["ptpp"].iloc[0])
    laws = [law for fit in fits for law in fit.laws]
    replay = next((law.held["replay"] for law in laws if "replay" in law.held), 0.5)
    run = PlannedRun(params, stage, label, unique_tokens, seed, replay)
    # Tokens and replay are what the plan looks for.
    asked = run.row.drop(columns=["tokens", "replay"])
    for law in laws:
        with_held(law, asked, "plan")
    for fit in fits:
        if fit.table is not None:
            check_units(asked, "plan", fit.table.frame)
    return run, words


def _stage_of(fits: Sequence[Fit], ptpp: float | None) -> float | None:
    """Pre-training tokens per parameter: as given, or the only value in the fits' tables."""
    tables = [fit.table.frame for fit in fits if fit.table is not None]
    stages = {
        float(value) for rows in tables if "ptpp" in rows for value in rows["ptpp"]
    }
    if ptpp is None and len(stages) == 1:
        return stages.pop()
    for fit in fits:
        if own := [c for law in fit.laws for c in law.declared if c in law.columns]:
            raise BayeslawError(
                f"{fit.name}: a plan does not know {', '.join(own)}; fit the rows of one value, "
                f"such as {argument('where', f'{own[0]} == 8')}."
            )
    if ptpp is None and any("ptpp" in fit.columns for fit in fits):
        raise BayeslawError(
            "a plan needs ptpp= (--ptpp): the laws know pre-training budgets."
        )
    return ptpp


# -- the un-adapted model -------------------------------------------------------------------------


ALIKE = 0.01
"""Relative difference up to which a size or a stage is that of a base: people round them."""


def _labelled(fits: Sequence[Fit]) -> pd.DataFrame:
    """Labels of the bases of all rows, with their N and P, and whether they are adapted."""
    labelled = [
        rows[["params", "ptpp"]].assign(
            label=label_texts(rows["base"]), adapted=adapted
        )
        for adapted in (True, False)
        for table in (fit.table for fit in fits if fit.table is not None)
        for rows in [table.frame if adapted else table.baselines]
        if {"base", "params", "ptpp"} <= {*rows}
    ]
    if not labelled:
        return pd.DataFrame(columns=["params", "ptpp", "label", "adapted"])
    return pd.concat(labelled).dropna(subset="label")


def _alike(bases: pd.DataFrame, params: float, ptpp: float | None) -> pd.DataFrame:
    """Rows of `_labelled` of these N and P; without any, those that differ by `ALIKE` at most."""
    for tolerance in (1e-5, ALIKE):
        planned = np.isclose(bases["params"], params, rtol=tolerance)
        planned &= ptpp is None or np.isclose(bases["ptpp"], ptpp, rtol=tolerance)
        if planned.any():
            return bases[planned]
    return bases[:0]


def _base_of(
    bases: pd.DataFrame, base: str | None, params: float, ptpp: float | None
) -> tuple[str | None, str]:
    """Label of the base that a plan starts from, and its description.

    By default it is the only base of that N and P in the tables, or a new one if there are none or
    several. Where the tables have a base "new", the name is that base's.
    """
    if bases.empty:
        if base not in (None, NEW_BASE):
            raise BayeslawError(
                f"base={base!r}: the tables have no column base; leave it out."
            )
        return None, "a base that the tables do not label"
    labels = {*bases["label"]}
    alike = [*_alike(bases, params, ptpp)["label"].unique()]
    if base is None:
        base = alike[0] if len(alike) == 1 else NEW_BASE
        if base == NEW_BASE and NEW_BASE in labels and alike != [NEW_BASE]:
            raise BayeslawError(
                f"a base is labelled {NEW_BASE!r}, so a new one cannot be planned for: give "
                "base=, one of the tables' bases, or rename that one and fit again."
            )
    if base == NEW_BASE and NEW_BASE not in labels:
        return NEW_BASE, "a new base: its effect and starting losses are drawn"
    if base not in labels:
        raise BayeslawError(unknown("base", base, (*labels, NEW_BASE)))
    rows = bases[bases["label"] == base]
    if _alike(rows, params, ptpp).empty:
        n, p = rows[["params", "ptpp"]].iloc[0]
        raise BayeslawError(
            f"base {base!r} has params = {n:g}, ptpp = {p:g}, not those planned."
        )
    if rows["adapted"].any():
        return base, f"base {base}, with rows of its own"
    return base, f"base {base}, known by its own losses at tokens = 0"


# -- losses and noise under a fit ------------------------------------------------------------------


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
            some = rows[start : start + CHUNK]
            loss = losses[start : start + CHUNK]
            with np.errstate(all="ignore"):
                loss[:] = self.fit.losses(Rows(some), self.pairs).T
                for member, draws, places, scores in self._of_new_size:
                    # The same draws for any rows.
                    rng = np.random.default_rng([self.run.seed, self.stream])
                    effect = new_size_effects(member, some, rng, scores)
                    loss[:, places] *= np.exp(effect)[draws].T
        return losses

    @cached_property
    def _of_new_size(self) -> list[tuple[Posterior, Ints, Ints, Floats | None]]:
        """`by_member` of the pairs, of those that may draw an effect of the run's size."""
        members: list[tuple[Posterior, Ints, Ints, Floats | None]] = []
        for member, draws, places in self.fit.by_member(self.pairs):
            if "size" in member.spec.effects:
                members.append((member, draws, places, None))
            elif too_few_sizes(member):
                fitted = effects.labels(member.table.frame, "size")
                if effects.labels(self.run.row, "size", fitted)[0] not in fitted:
                    members.append((member, draws, places, size_scores(member)))
        return members


def domains_of(fits: Sequence[Fit], run: PlannedRun) -> tuple[list[Domain], str]:
    """Domains with paired draws and the deviations of a run in each, and how they were paired."""
    index, pairing = pair_draws(fits)
    kept = spread_draws(len(index[0]), MOST_PAIRS)
    rng = np.random.default_rng(run.seed)
    return [
        Domain(fit, run, stream, draws[kept], _deviations(fit, run, draws[kept], rng))
        for stream, (fit, draws) in enumerate(zip(fits, index, strict=True))
    ], pairing


def _deviations(
    fit: Fit, run: PlannedRun, pairs: Ints, rng: np.random.Generator
) -> dict[str, Floats]:
    """Parts of the run's deviation from its latent log loss, each (pairs,); 0 of a point fit."""
    row = run.row
    parts = {"noise": np.zeros(len(pairs))}
    for member, draws, places in fit.by_member(pairs):
        of_member = {"noise": error_draws(member, row, rng)[:, 0]}
        for level in member.spec.effects:
            if effects.level(level).latent:
                continue
            if effects.is_fitted(member.draws, level, row)[0]:
                of_member[level] = effects.draw(member.draws, (level,), row, None)[:, 0]
            else:
                scale = member.values()[f"tau_{level}"][:, 0]
                of_member[level] = scale * rng.standard_normal(member.count)
        for name, values in of_member.items():
            parts.setdefault(name, np.zeros(len(pairs)))[places] = values[draws]
    return parts


def spread(
    domains: Mapping[str, Domain], tokens: float, replay: float, *, measured: bool
) -> pd.DataFrame:
    """`bayeslaw.inference.variance.shares` of a planned run, a row per domain but point fits.

    Of its latent losses, or of its measured ones.
    """
    rows = []
    for name, domain in domains.items():
        members = []
        row = domain.run.at(tokens, replay)
        for member, draws, places in domain.fit.by_member(domain.pairs):
            rng = np.random.default_rng([domain.run.seed, domain.stream])
            parts = {n: v[draws] for n, v in latent_parts(member, row, rng).items()}
            deviations = domain.deviations if measured else {}
            for level, values in deviations.items():
                parts[level] = parts.get(level, 0.0) + values[places, None]
            members.append((len(places), parts))
        rows += [shares(members, pd.Index([name]))] if members else []
    # Far outside the rows a law's loss is not positive.
    return pd.concat([pd.DataFrame(), *rows]).dropna()


# -- the baseline of forgetting --------------------------------------------------------------------


class Start(NamedTuple):
    """Source loss of the un-adapted model, a number or (pairs,); in words; and as in `limits`."""

    loss: float | Floats
    words: str
    stated: float | tuple[float, float] | str


def baseline_of(baseline: Baseline, source: Domain) -> Start:
    """Baseline of forgetting of a source.

    None stands for the row with ``tokens = 0`` of the base in the source's table, on its domain.
    """
    if baseline is None:
        return _start_of_base(source)
    loss, *sd = np.atleast_1d(np.asarray(baseline, float)).tolist()
    if (
        not 0 < loss < math.inf
        or any(not 0 <= error < math.inf for error in sd)
        or len(sd) > 1
    ):
        stated = f"{loss:g}" if not sd else f"{baseline}"
        raise BayeslawError(
            f"baseline={stated}: give a source loss in nats per token, or that and its "
            "standard deviation."
        )
    words = "measured source loss of the un-adapted model, as given"
    if not sd:
        return Start(loss, words, loss)
    # A stream beside those of noise and effects, which have the same seed.
    normal = np.random.default_rng([source.run.seed, 11]).standard_normal(
        source.fit.count
    )
    drawn = loss + sd[0] * normal[source.pairs]
    return Start(drawn, f"{words}, with sd {sd[0]:g}", (loss, sd[0]))


def _start_of_base(source: Domain) -> Start:
    """The loss of the base in the source's table; of a new base, draws of it."""
    fit = source.fit
    run = source.run
    bases = next(
        (step.bases for law in fit.laws if (step := law.step(Departure))), None
    )
    if (
        fit.members
        and run.base == NEW_BASE
        and bases is not None
        and NEW_BASE not in bases.known
    ):
        losses = np.empty(len(source.pairs))
        for k, (member, draws, places) in enumerate(fit.by_member(source.pairs)):
            if member.law.step(Departure):
                start = member.covariates(member.design(Rows(run.row)))["start"]
            else:
                drawn = drawn_bases(bases, run.row, member.count, [run.seed, k])
                start = bases.logs(of_bases(bases, run.row), drawn)[0]
            losses[places] = np.exp(np.broadcast_to(start[..., 0], member.count))[draws]
        return Start(
            losses,
            "starting loss of a new base, drawn from the law of the bases",
            "drawn",
        )
    why = "pass baseline= (--baseline), the measured source loss of that model"
    if fit.table is None:
        raise BayeslawError(f"No baseline for the un-adapted model: {why}.")
    rows = of_domains(fit.table.baselines, fit.table.frame)
    name = fit.table.name
    for column, value in (("params", run.params), ("ptpp", run.ptpp)):
        if column in rows and value is not None:
            rows = rows[np.isclose(rows[column], value, rtol=1e-6, atol=0)]
    if run.base is not None and "base" in rows:
        rows = rows[label_texts(rows["base"]) == run.base]
    if len(rows) != 1:
        raise BayeslawError(
            f"{name}: {len(rows)} rows with tokens = 0 for params = {run.params:g}"
            f"{'' if run.ptpp is None else f', ptpp = {run.ptpp:g}'}"
            f"{'' if run.base is None else f', base {run.base}'}, not one; {why}."
        )
    loss = float(rows["loss"].iloc[0])
    return Start(loss, f"row with tokens = 0 of {name}", loss)


# -- distance from the fitted rows ----------------------------------------------------------------


def judged(
    fits: Mapping[str, Fit], row: pd.DataFrame, *, refuse: bool = False
) -> tuple[Verdict, tuple[str, ...]]:
    """How a planned run lies outside the training rows of the fits, as `bayeslaw.check` says it.

    Returns the worst verdict; and all else that the check says of the distance, each text once,
    with the names of its fits. Only if it is to `refuse`, the level is "refuse", unless all fits
    that have rows are accepted so far out. A run without a budget, of infinite tokens, is not
    judged.
    """
    if np.isinf(row["tokens"]).any():
        return Verdict(row), ()
    accepts: frozenset[Acceptance] = frozenset(["beyond-evidence"])
    with_rows = {name: fit for name, fit in fits.items() if fit.table is not None}
    if refuse and with_rows:
        accepts = frozenset.intersection(*(fit.accepts for fit in with_rows.values()))
    verdicts: list[Verdict] = []
    named: dict[str, list[str]] = {}
    for name, fit in with_rows.items():
        verdict = fit.verdict(row)
        verdicts.append(verdict)
        finding = judge_extrapolation(fit, verdict)
        far = farthest(verdict.positions)
        texts = [f"{position} by {away}." for position, away in far.items()]
        # The last words of the finding are the position.
        texts += [text for text in finding.words[:-1] if text != verdict.words]
        for text in texts:
            named.setdefault(text, []).append(name)
    outside = [f"{listed(names)}: {text}" for text, names in named.items()]
    return worst(verdicts).accepting(accepts), tuple(outside)


@dataclass(frozen=True)
class Farness:
    """How far runs lie from the rows of a fit, over the distance at which bands were measured.

    It is less 1, and so positive beyond the evidence; a function of log ATPP and replay ratio. The
    distance from the hull is convex in both, so that between the nodes, where it is interpolated,
    it is at least the exact one. That of epochs is not convex, and is computed for each run.
    """

    run: PlannedRun
    of_hull: RegularGridInterpolator
    most_epochs: (
        float  # of the rows of every fit that knows them; infinite if none does
    )

    def __call__(self, places: tuple[Floats | float, ...]) -> Floats:
        budgets, ratios = np.broadcast_arrays(*map(np.atleast_1d, places))
        far = np.asarray(self.of_hull((budgets, ratios)))
        if self.most_epochs < math.inf:
            repeated = epochs(self.run.rows(budgets.ravel(), ratios.ravel())).to_numpy()
            beyond = np.log10(repeated / self.most_epochs).reshape(far.shape)
            far = np.maximum(far, _excess(beyond / MEASURED_DECADES[EPOCHS.name]))
        return far

    def most_budgets(self, ratios: Floats) -> Floats:
        """Budgets, log ATPP, from which on data repeat too often; infinite if none has too many."""
        most = self.most_epochs * 10 ** (MEASURED_DECADES[EPOCHS.name] * (1 - 1e-5))
        fresh = most * (self.run.unique_tokens or math.inf) / self.run.params
        with np.errstate(divide="ignore"):  # of pure replay no new data repeat
            return np.asarray(np.log(fresh) - np.log1p(-ratios))

    @cached_property
    def least(self) -> float:
        """Of all runs, at any budget and replay ratio."""
        budgets, ratios = self.of_hull.grid
        # Budgets between the nodes too: few of those near the rows may be within the epochs.
        finer = np.interp(
            np.arange(0, len(budgets) - 1 + 1e-9, 0.1), range(len(budgets)), budgets
        )
        return float(self((finer[:, None], ratios)).min())


def _excess(far: Floats) -> Floats:
    # A plan at the very edge is still inside after its tokens are rounded.
    return far - 1 + 1e-6


def farness(fits: Mapping[str, Fit], run: PlannedRun) -> Farness | None:
    """Whether runs lie beyond the evidence of a fit; None if no fit has a table."""
    tables: dict[object, tuple[pd.DataFrame, Sequence[str]]] = {}
    most_epochs = math.inf
    for fit in fits.values():
        if fit.table is None:
            continue
        frame = fit.table.frame
        rows = frame[[c for c in COVARIATES if c in frame]]
        rows = rows.drop_duplicates()  # those of target and source are often the same
        tables[rows.to_numpy().tobytes(), fit.columns] = rows, fit.columns
        if run.unique_tokens is not None and UNIQUE in frame:
            most_epochs = min(most_epochs, float(epochs(frame).max()))
    if not tables:
        return None
    fitted = pd.concat([rows["tokens"] for rows, _ in tables.values()])
    # Beyond it all runs lie beyond the evidence.
    reach = 2 * 10 ** MEASURED_DECADES["tokens"]
    tokens = np.geomspace(fitted.min() / reach, fitted.max() * reach, 31)
    ratios = np.linspace(0, 1, 31)
    stage = {} if run.ptpp is None else {"ptpp": run.ptpp}
    asked = grid(params=run.params, **stage, tokens=tokens, replay=ratios)
    far = [
        of_measured(locate(rows, asked, c), c).max(axis=1)
        for rows, c in tables.values()
    ]
    excess = _excess(np.max(far, axis=0)).reshape(31, 31)
    nodes = np.log(tokens / run.params), ratios
    of_hull = RegularGridInterpolator(
        nodes, excess, bounds_error=False, fill_value=None
    )
    return Farness(run, of_hull, most_epochs)


def common_ranges(fits: Collection[Fit]) -> dict[str, tuple[float, float]]:
    """Ranges of params, ptpp, replay and ATPP that the training rows of every fit cover."""
    ranges: dict[str, tuple[float, float]] = {}
    for rows in (fit.table.frame for fit in fits if fit.table is not None):
        rows = rows.assign(atpp=rows["tokens"] / rows["params"])
        for name in (c for c in ("params", "ptpp", "replay", "atpp") if c in rows):
            least, most = ranges.get(name, (-math.inf, math.inf))
            ranges[name] = (
                max(float(rows[name].min()), least),
                min(float(rows[name].max()), most),
            )
    return ranges
