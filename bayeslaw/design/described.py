"""What a fit says of its law: the table, the units, the reference point, what is held."""

import math
from collections.abc import Mapping

from bayeslaw.common.formatting import count
from bayeslaw.common.shown import SYNTHETIC, Block, Note, Shown
from bayeslaw.laws.law import Law
from bayeslaw.tables.covariates import TABLE
from bayeslaw.tables.table import LossTable, is_synthetic


def held_columns(law: Law) -> str:
    """What the law holds, and what was left out for it, in words; empty if nothing is."""
    if not law.held:
        return ""
    values = ", ".join(f"{name} {value:g}" for name, value in law.held.items())
    without = ""
    if law.left_out:
        left_out = ", ".join(law.left_out)
        without = f"; without {left_out}, part of the floor or of coefficients"
    return f"all rows at {values}: other values are refused{without}."


def described(law: Law, table: LossTable | None, at: Mapping[str, float]) -> Shown:
    """What a fit of the law says first: the law, the table and its selection."""
    blocks: list[Block] = []
    synthetic = is_synthetic(table)
    if synthetic:
        blocks.append(Note(SYNTHETIC, "synthetic"))
    if table is not None:
        blocks.append(f"fitted to {table}")
    if law.held:
        blocks.append(Note(held_columns(law), "caution"))
    document: dict[str, object] = {
        "law": law.name,
        "title": law.title,
        "table": table.name if table else None,
        "train": table.selection or None if table else None,
        "rows_train": len(table) if table else None,
        "synthetic": synthetic,
        "token_unit": law.token_unit,
        "reference_point": point(law, at),
    }
    if law.held:
        document["held"] = dict(law.held)
        document["left_out"] = list(law.left_out)
    return Shown(f"{law.name}: {law.title}", blocks, document)


def units(law: Law, at: Mapping[str, float]) -> str:
    """The unit of tokens and the reference point of a fit, in words."""
    unit = "1 token" if law.token_unit == 1 else f"{law.token_unit:g} tokens"
    values = ", ".join(f"{n} {count(value)}" for n, value in point(law, at).items())
    own = {"target": "1 - replay", "source": "replay"}.get(law.role)
    share = f"; share of the domain's own text s = {own}" if own else ""
    return f"D in units of {unit}; reference point {values}{share}"


def point(law: Law, at: Mapping[str, float]) -> dict[str, float]:
    """Covariates at the reference point `at`, in the units of a table."""
    values = {}
    for column in law.columns:
        if column not in at:
            continue
        logged = column not in law.declared or law.declared[column].logged
        values[column] = math.exp(at[column]) if logged else at[column]
    if "tokens" in values:
        values["tokens"] *= law.token_unit
    values |= law.held
    # Columns of all tables first, in the order in which tables show them.
    names = dict.fromkeys((*TABLE, *values))
    return {name: values[name] for name in names if name in values}
