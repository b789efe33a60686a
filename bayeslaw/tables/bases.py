"""Losses of the bases that rows start from, joined by the labels of the bases."""

from dataclasses import replace

import numpy as np
import pandas as pd

from bayeslaw.common.errors import TableError, argument
from bayeslaw.tables.comparison import SAME_VALUE, check_role_by_losses, labels_of
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import label_texts


def starting(table: LossTable, source: LossTable) -> LossTable:
    """The table with the losses of each row's base as `start_loss` and `base_loss`.

    The table has a column `base`, and rows of tokens = 0: the bases' own losses on its domain.
    `source` is the same on the domain that the bases were pre-trained on.
    """
    # One file may have the losses on both domains; a column `role` tells them apart.
    roles = labels_of(table.frame, "role")
    own = replace(table, baselines=_of_roles(table.baselines, roles))
    pretrained = _of_roles(source.baselines, {"source"})
    if pretrained.empty and len(source.baselines):
        raise TableError(
            f"{source.name}: no row with tokens = 0 is of role 'source', of the domain that the "
            "bases were pre-trained on; add their losses there, or drop the column 'role'."
        )
    source = replace(source, baselines=pretrained)
    losses = {
        "base_loss": _losses_of_bases(source, table),
        "start_loss": _losses_of_bases(own, own),
    }
    frame, baselines = (
        rows.assign(
            **{name: label_texts(rows["base"]).map(own) for name, own in losses.items()}
        )
        for rows in (table.frame, table.baselines)
    )
    check_role_by_losses(frame, table.name)
    return replace(table, frame=frame, baselines=baselines)


def _of_roles(baselines: pd.DataFrame, roles: set[str]) -> pd.DataFrame:
    """Baselines of some roles, and those that state none; all if no role is asked for."""
    if "role" not in baselines or not roles:
        return baselines
    return baselines[baselines["role"].isna() | baselines["role"].isin(roles)]


def _losses_of_bases(part: LossTable, table: LossTable) -> pd.Series:
    """Losses at tokens = 0 in a part by the label of the base, one for each base of the table."""
    if "base" not in table.frame or "base" not in part.baselines:
        raise TableError(
            f"{part.name}: give its rows a column 'base', and add rows with tokens = 0: the "
            "losses of the bases before adaptation."
        )
    labelled = part.baselines.assign(base=label_texts(part.baselines["base"])).dropna(
        subset="base"
    )
    for rows in [rows for rows in (table.frame, table.baselines) if "base" in rows]:
        pairs = rows.assign(base=label_texts(rows["base"])).merge(labelled, on="base")
        for column in [c for c in ("params", "ptpp") if c in rows and c in labelled]:
            here = pairs[f"{column}_x"]
            there = pairs[f"{column}_y"]
            differ = (here - there).abs() > SAME_VALUE * np.maximum(here, there)
            if differ.any():
                i = int(differ.argmax())
                raise TableError(
                    f"{part.name}: base {pairs['base'][i]} has {column} {there[i]:g} at "
                    f"tokens = 0, and {here[i]:g} in {table.name}; give each base a label of its "
                    "own in both tables."
                )
    by_base = labelled.groupby("base")["loss"]
    if (counts := by_base.nunique()).max() > 1:
        raise TableError(
            f"{part.name}: base {counts.idxmax()!r} has several losses at tokens = 0; keep one. "
            "If they are of two domains, add a column 'role' (target or source), and choose rows "
            f"of one role by {argument('where', "role == 'target'")}."
        )
    labels = label_texts(table.frame["base"])
    if (without := ~labels.isin(counts.index)).any():
        names = ", ".join(map(str, labels[without].unique()[:5]))
        raise TableError(
            f"{part.name}: no row with tokens = 0 for the base {names}; add its loss before "
            "adaptation."
        )
    return by_base.first()
