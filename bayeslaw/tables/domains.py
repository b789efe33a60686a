"""Losses of several domains in columns of one row, as in exports of continual pre-training."""

import re
from collections.abc import Mapping, Sequence

import pandas as pd

from bayeslaw.common.errors import TableError, argument
from bayeslaw.tables.column_names import quoted


def domains_of_columns(
    losses: Sequence[str], name: str, said: list[str]
) -> dict[str, str]:
    """Columns of losses by their domains: the words of each name that the others do not share.

    Such as math and web of ``val/loss_math`` and ``val/loss_web``. What is read is `said`.
    """
    words = [re.split(r"[^A-Za-z0-9]+", column.strip()) for column in losses]
    shared = set.intersection(*(set(column) for column in words))
    domains: dict[str, str] = {}
    for column, parts in zip(losses, words, strict=True):
        own = "_".join(part for part in parts if part not in shared)
        if not own or own in domains:
            one = argument("columns", {"loss": quoted(losses[0])})
            raise TableError(
                f"{name}: each of {', '.join(losses)} may be the losses, or those of a domain; say "
                f"which, such as {one}."
            )
        domains[own] = column
    listed = ", ".join(f"{domain} ({column})" for domain, column in domains.items())
    said.append(f"Each row has a loss of {len(domains)} domains: {listed}.")
    return domains


def as_rows(frame: pd.DataFrame, domains: Mapping[str, str]) -> pd.DataFrame:
    """A row for each loss: its columns in one, `loss`, and a column `domain`."""
    others = frame.drop(columns=[*domains.values()])
    parts = []
    for domain, column in domains.items():
        parts.append(others.assign(domain=domain, loss=frame[column]))
    return pd.concat(parts)
