"""Arguments of a plan: their checks, the base that it starts from, and the baseline."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import BayeslawError, argument, unknown
from bayeslaw.inference.pools import Fit, check_roles
from bayeslaw.laws.steps import Departure, Repetition
from bayeslaw.model import effects
from bayeslaw.planning.planned_run import Domain, PlannedRun
from bayeslaw.tables.table import of_domains
from bayeslaw.tables.validation import check_units, label_texts

NEW_BASE = "new"
"""In place of the label of a base: one without rows."""
type Baseline = float | tuple[float, float] | None
"""Argument of `bayeslaw.plan`: a loss, a loss and its standard deviation, or none."""


def check_numbers(
    run: PlannedRun,
    max_loss: float | None,
    max_forgetting: float | None,
    atpp: float | None,
    confidence: float,
    *,
    relative: bool,
) -> None:
    """Raise `BayeslawError` unless limits are given, and all numbers are in range."""
    if atpp is None and (max_loss is None or max_forgetting is None):
        lacking = "max_loss" if max_loss is None else "max_forgetting"
        raise BayeslawError(
            f"a plan needs {lacking} ({argument(lacking, 0.02 if 'f' in lacking else 1.8)}), or a "
            f"fixed budget ({argument('atpp', 8)})."
        )
    positive = {"params": run.params, "ptpp": run.ptpp, "atpp": atpp, "max_loss": max_loss}
    for name, value in (positive | {"unique_tokens": run.unique_tokens}).items():
        if value is not None and not 0 < value < math.inf:
            of_tokens = " of tokens" if name == "unique_tokens" else ""
            raise BayeslawError(f"{name}={value:g}: give a positive number{of_tokens}.")
    if (rise := max_forgetting) is not None:
        if not -1 < rise < math.inf:
            raise BayeslawError(f"max_forgetting={rise:g}: 0.02 allows a rise of 2 %.")
        if relative and rise > 1:
            raise BayeslawError(
                f"max_forgetting={rise:g}: give a fraction, not a percentage; {rise / 100:g} "
                f"allows a rise of {rise:g} %. Limits in nats need relative=False (--absolute)."
            )
    if not 0 < confidence < 1:
        raise BayeslawError(f"confidence={confidence:g} is not between 0 and 1; 0.9 is 90 %.")


def check_fits(target: Fit, source: Fit, run: PlannedRun, ratios: Floats) -> None:
    """Raise `BayeslawError` unless the fits know what is planned."""
    for law in target.laws:
        if run.unique_tokens is not None and not law.step(Repetition):
            raise BayeslawError(
                f"unique_tokens: {law.name} was fitted to a table without the column "
                "unique_tokens, so it does not know what repeated tokens are worth; add "
                "the column and fit again."
            )
    if _same(target, source):
        raise BayeslawError(
            "target and source are one posterior; give that of the domain adapted to, and "
            "that of the domain that may be forgotten."
        )
    check_roles(target, source)
    # Tokens and replay are what the plan looks for.
    asked = run.row.drop(columns=["tokens", "replay"])
    for law in (*target.laws, *source.laws):
        only = law.held.get("replay", 1.0)
        if "replay" not in law.columns and (ratios != only).any():
            why = "does not know replay, so no ratio can be planned: fit one that does, such as"
            why = f"{why} form1n" if only == 1 else f"was fitted to replay {only:g} alone"
            raise BayeslawError(
                f"the law {law.name} {why}, or fix replay_grid=[{only:g}] (--replay {only:g})."
            )
        law.at_held(asked, "plan")
    for fit in (target, source):
        if fit.table is not None:
            check_units(asked, "plan", fit.table.frame)


def stage_of(fits: Sequence[Fit], ptpp: float | None) -> float | None:
    """Pre-training tokens per parameter: as given, or the only value in the fits' tables."""
    tables = [fit.table.frame for fit in fits if fit.table is not None]
    known = {float(value) for rows in tables if "ptpp" in rows for value in rows["ptpp"]}
    if ptpp is None and len(known) == 1:
        return known.pop()
    for fit in fits:
        if own := [c for law in fit.laws for c in law.declared if c in law.columns]:
            raise BayeslawError(
                f"{fit.name}: a plan does not know {', '.join(own)}; fit the rows of one value, "
                f"such as {argument('where', f'{own[0]} == 8')}."
            )
    if ptpp is None and any("ptpp" in fit.columns for fit in fits):
        raise BayeslawError("a plan needs ptpp= (--ptpp): the laws know pre-training budgets.")
    return ptpp


def _same(one: Fit, other: Fit) -> bool:
    """Whether two fits are one posterior, or pools of the same posteriors."""
    pairs = [*zip(one.members.values(), other.members.values(), strict=False)]
    # A file that is loaded twice gives two objects with the same draws.
    same = all(a.draws is b.draws or a.draws.equals(b.draws) for a, b in pairs)
    return bool(pairs) and same and len(one.members) == len(other.members)


# -- the un-adapted model -------------------------------------------------------------------------


def base_of(fits: Sequence[Fit], run: PlannedRun) -> tuple[str | None, str]:
    """Label of the base that a plan starts from, and its description.

    By default it is the only base of that N and P in the tables, or a new one if there are none or
    several. Where the tables have a base "new", the name is that base's.
    """
    tables = [fit.table for fit in fits if fit.table is not None]
    frames = [(t.frame, True) for t in tables] + [(t.baselines, False) for t in tables]
    labelled = [
        rows[["params", "ptpp"]].assign(label=effects.labels(rows, "base"), adapted=adapted)
        for rows, adapted in frames
        if {"base", "params", "ptpp"} <= {*rows}
    ]
    bases = pd.concat(labelled) if labelled else pd.DataFrame(columns=["label"])
    bases = bases[~bases["label"].astype(str).str.startswith(effects.UNLABELLED)]
    base, labels = run.base, {*bases["label"]}
    if bases.empty:
        if base not in (None, NEW_BASE):
            raise BayeslawError(f"base={base!r}: the tables have no column base; leave it out.")
        return None, "a base that the tables do not label"
    planned = np.isclose(bases["params"], run.params)
    planned &= run.ptpp is None or np.isclose(bases["ptpp"], run.ptpp)
    alike = [*dict.fromkeys(bases["label"][planned])]
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
        raise BayeslawError(unknown("base", base, (*alike, NEW_BASE)))
    rows = bases[bases["label"] == base]
    if base not in alike:
        n, p = rows[["params", "ptpp"]].iloc[0]
        raise BayeslawError(f"base {base!r} has params = {n:g}, ptpp = {p:g}, not those planned.")
    if rows["adapted"].any():
        return base, f"base {base}, with rows of its own"
    return base, f"base {base}, known by its own losses at tokens = 0"


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
    if not 0 < loss < math.inf or any(not 0 <= error < math.inf for error in sd) or len(sd) > 1:
        stated = f"{loss:g}" if not sd else f"{baseline}"
        raise BayeslawError(
            f"baseline={stated}: give a source loss in nats per token, or that and its "
            "standard deviation."
        )
    words = "measured source loss of the un-adapted model, as given"
    if not sd:
        return Start(loss, words, loss)
    # A stream beside those of noise and effects, which have the same seed.
    normal = np.random.default_rng([source.run.seed, 11]).standard_normal(source.fit.count)
    drawn = loss + sd[0] * normal[source.pairs]
    return Start(drawn, f"{words}, with sd {sd[0]:g}", (loss, sd[0]))


def _start_of_base(source: Domain) -> Start:
    """The loss of the base in the source's table; of a new base, draws of it."""
    fit, run = source.fit, source.run
    departures = [step for law in fit.laws if (step := law.step(Departure))]
    if fit.members and run.base == NEW_BASE and departures:
        bases = departures[0].bases
        if bases is not None and NEW_BASE not in bases.known:
            words = "starting loss of a new base, drawn from the law of the bases"
            return Start(source.starts(bases), words, "drawn")
    why = "pass baseline= (--baseline), the measured source loss of that model"
    if fit.table is None:
        raise BayeslawError(f"No baseline for the un-adapted model: {why}.")
    rows, name = of_domains(fit.table.baselines, fit.table.frame), fit.table.name
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
