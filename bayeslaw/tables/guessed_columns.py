"""Which columns of an export are sizes, tokens, losses and runs, by names; their units."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from bayeslaw.common.errors import TableError, argument
from bayeslaw.tables.column_names import TRAINING, likely_names, quoted, scaled
from bayeslaw.tables.compute import amounts_in
from bayeslaw.tables.domains import domains_of_columns
from bayeslaw.tables.queries import parsed
from bayeslaw.tables.validation import KNOWN, missing_columns, named

RUN_NAMES = ("run_name", "run name", "run.name", "run_id", "run id", "name")
"""Names, in lower case, of a column that labels runs; the first that is there is taken."""
EXPORTED = ("state", "_step", "step")
"""Columns, in lower case, of exports of logs; elsewhere a `name` may be that of a family."""
NOT_FLOPS = ("per", "util", "mfu", "hour", "/s", "sec")
"""Parts of names that only look like those of training FLOPs."""


@dataclass
class Export:
    """The frame of a file or of a user, and what has been said of it so far."""

    frame: pd.DataFrame
    name: str
    words: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)


def guess_columns(
    export: Export, given: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Expressions of columns, and columns of losses by their domains if there are several."""
    frame = export.frame
    here = named(frame)
    used = names_in(given)
    unused: dict[str, str] = {}
    for column, meaning in here.items():
        if meaning not in KNOWN and column not in used:
            unused[str(column).lower()] = str(column)
    known = {*here.values(), *given}
    columns = dict(given)
    for count in ("params", "tokens"):
        if count not in known:
            _guess_count(export, count, unused, columns)
    params = columns.get("params") or "params"
    sized = "params" in {*known, *columns}
    if sized and "tokens" not in known and "tokens" not in columns:
        _guess_tokens_of_flops(unused, columns, params)
    if "ptpp" not in known:
        _guess_ptpp(export, unused, columns, params)
    if "replay" not in known:
        _guess_replay(unused, columns)
    if "run" not in known:
        _guess_run(unused, columns)
    domains: dict[str, str] = {}
    if "loss" not in given:
        domains = _guess_loss(export, "loss" in known, unused, columns)
    _require(export, columns, domains)
    guesses = [f"{c} = {text}" for c, text in columns.items() if c not in given]
    if guesses:
        export.words.insert(0, f"Columns are read as {', '.join(guesses)}.")
    return columns, domains


def names_in(given: Mapping[str, str]) -> set[str]:
    """Columns of a file that expressions name, as far as these can be read."""
    names: set[str] = set()
    for text in given.values():
        names.add(text)
        try:
            names.update(parsed(text)[1].values())
        except SyntaxError:  # `renamed` says what is wrong
            continue
    return names


def _guess_count(
    export: Export, count: str, unused: dict[str, str], columns: dict[str, str]
) -> None:
    """Guess sizes or tokens, in the unit that the name of the column says."""
    near = likely_names(count, unused)
    if not near:
        return
    if len(near) > 1:
        one = scaled(near[0], export.frame[near[0]])
        listed = ", ".join(near)
        raise TableError(
            f"{export.name}: each of {listed} may be {count!r}; say which, such as "
            f"{argument('columns', {count: one})}."
        )
    columns[count] = scaled(near[0], export.frame[near[0]])
    del unused[near[0].lower()]


def _guess_tokens_of_flops(
    unused: dict[str, str], columns: dict[str, str], params: str
) -> None:
    """Tokens from training FLOPs, 6 N D."""
    flops = []
    for lower, theirs in unused.items():
        if "flop" in lower and not any(part in lower for part in NOT_FLOPS):
            flops.append(theirs)
    if len(flops) == 1:
        columns["tokens"] = f"{quoted(flops[0])} / 6 / {_factor(params)}"


def _guess_ptpp(
    export: Export, unused: dict[str, str], columns: dict[str, str], params: str
) -> None:
    """Pre-training tokens per parameter, if it is there under another name, or can be computed."""
    near = likely_names("ptpp", unused)
    if len(near) == 1:
        columns["ptpp"] = quoted(near[0])
        return
    before = likely_names("pretraining", unused)
    if len(before) == 1:
        tokens = scaled(before[0], export.frame[before[0]])
        columns["ptpp"] = f"{tokens} / {_factor(params)}"


def _factor(params: str) -> str:
    return f"({params})" if "*" in params else params


def _guess_replay(unused: dict[str, str], columns: dict[str, str]) -> None:
    near = likely_names("replay", unused)
    if len(near) == 1:
        percent = "pct" in near[0].lower() or "percent" in near[0].lower()
        columns["replay"] = quoted(near[0]) + (" / 100" if percent else "")


def _guess_run(unused: dict[str, str], columns: dict[str, str]) -> None:
    """The label of runs; a `name` is one in an export of logs alone."""
    exported = not unused.keys().isdisjoint(EXPORTED)
    for lower in RUN_NAMES:
        if lower in unused and (exported or lower != "name"):
            columns["run"] = quoted(unused[lower])
            return


def _guess_loss(
    export: Export, known: bool, unused: dict[str, str], columns: dict[str, str]
) -> dict[str, str]:
    """Guess the column of losses; of several, return each by its domain."""
    candidates = dict(unused)
    if known:
        candidates["loss"] = "loss"
    near = likely_names("loss", candidates)
    if not near or "loss" in near:
        return {}
    others = []
    for theirs in candidates.values():
        if "loss" in theirs.lower() and theirs not in near:
            others.append(theirs)
    if others and not TRAINING.search(near[0]):
        export.words.append(f"Validation losses are taken, not {', '.join(others)}.")
    if len(near) == 1:
        columns["loss"] = quoted(near[0])
        return {}
    return domains_of_columns(near, export.name, export.words)


def _require(
    export: Export, columns: Mapping[str, str], domains: Mapping[str, str]
) -> None:
    """Refuse an export without a column that every table has, and say what to write."""
    here = {*named(export.frame).values(), *columns}
    if domains:
        here.add("loss")
    lacking = [c for c in (*amounts_in(here), "loss") if c not in here]
    if lacking:
        words = missing_columns(export.frame, lacking)
        raise TableError(f"{export.name}: {words}")
