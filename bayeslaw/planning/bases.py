"""The base that a planned run starts from, looked up in the tables of the fits."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from bayeslaw.common.errors import BayeslawError, unknown
from bayeslaw.inference.pools import Fit
from bayeslaw.tables.validation import label_texts

NEW_BASE = "new"
"""In place of the label of a base: one without rows."""
ALIKE = 0.01
"""Relative difference up to which a size or a stage is that of a base: people round them."""


def labelled_bases(fits: Sequence[Fit]) -> pd.DataFrame:
    """Labels of the bases of all rows, with their N and P, and whether they are adapted."""
    tables = [fit.table for fit in fits if fit.table is not None]
    # Adapted rows come first: of a base with both, the first row decides.
    frames = [(table.frame, True) for table in tables]
    frames += [(table.baselines, False) for table in tables]
    labelled = []
    for rows, adapted in frames:
        if {"base", "params", "ptpp"} <= {*rows}:
            labels = label_texts(rows["base"])
            bases = rows[["params", "ptpp"]].assign(label=labels, adapted=adapted)
            labelled.append(bases)
    if not labelled:
        return pd.DataFrame(columns=["params", "ptpp", "label", "adapted"])
    return pd.concat(labelled).dropna(subset="label")


def alike(bases: pd.DataFrame, params: float, ptpp: float | None) -> pd.DataFrame:
    """Bases of these N and P; if there are none, those that differ by `ALIKE` at most."""
    for tolerance in (1e-5, ALIKE):
        same = np.isclose(bases["params"], params, rtol=tolerance)
        if ptpp is not None:
            same &= np.isclose(bases["ptpp"], ptpp, rtol=tolerance)
        if same.any():
            return bases[same]
    return bases[:0]


def base_of(
    bases: pd.DataFrame, base: str | None, params: float, ptpp: float | None
) -> tuple[str | None, str]:
    """Label of the base that a plan starts from, and its description.

    By default it is the only base of that N and P in the tables, or a new one if there are none or
    several. If a base of the tables is labelled "new", the label means that base.
    """
    if bases.empty:
        if base not in (None, NEW_BASE):
            raise BayeslawError(
                f"base={base!r}: the tables have no column base; leave it out."
            )
        return None, "a base that the tables do not label"
    labels = {*bases["label"]}
    if base is None:
        base = _only_base(alike(bases, params, ptpp), labels)
    if base == NEW_BASE and NEW_BASE not in labels:
        return NEW_BASE, "a new base: its effect and starting losses are drawn"
    if base not in labels:
        raise BayeslawError(unknown("base", base, (*labels, NEW_BASE)))
    rows = bases[bases["label"] == base]
    if alike(rows, params, ptpp).empty:
        n, p = rows[["params", "ptpp"]].iloc[0]
        raise BayeslawError(
            f"base {base!r} has params = {n:g}, ptpp = {p:g}, not those planned."
        )
    if rows["adapted"].any():
        return base, f"base {base}, with rows of its own"
    return base, f"base {base}, known by its own losses at tokens = 0"


def _only_base(candidates: pd.DataFrame, labels: set[str]) -> str:
    """Label of the only base among some; `NEW_BASE` if there is none, or more than one."""
    distinct = [*candidates["label"].unique()]
    base: str = distinct[0] if len(distinct) == 1 else NEW_BASE
    ambiguous = NEW_BASE in labels and distinct != [NEW_BASE]
    if base == NEW_BASE and ambiguous:
        raise BayeslawError(
            f"a base is labelled {NEW_BASE!r}, so a new one cannot be planned for: give "
            "base=, one of the tables' bases, or rename that one and fit again."
        )
    return base
