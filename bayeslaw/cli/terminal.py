"""Text and JSON on stdout: tables that fit the terminal, and numbers as a person reads them."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table


@dataclass(frozen=True)
class Told:
    """A result: a JSON document, and what a terminal shows."""

    document: dict[str, Any]
    parts: Sequence[RenderableType | Sequence[Table]]


def ruled(first: str, *rest: str) -> Table:
    """Return an empty table with a rule under its header; all but the first column are numbers."""
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
    )
    table.add_column(first, no_wrap=True)
    for name in rest:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def show(told: Told) -> None:
    """Print to stdout; of alternative tables, the first that fits the terminal."""
    console = Console(highlight=False)
    for part in told.parts:
        if isinstance(part, list):
            wide = console.options.update(width=10_000)
            widths = [Measurement.get(console, wide, table).maximum for table in part]
            fits = next((i for i, w in enumerate(widths) if w <= console.width), len(part) - 1)
            room = max(console.width, widths[fits])  # wider than the terminal, but whole
            Console(highlight=False, width=room).print(part[fits])
        else:
            console.print(part)


def dumps(document: Mapping[str, Any]) -> str:
    """JSON with numbers as numbers and what is not finite as null."""
    return json.dumps(_plain(document), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str | None) else str(value)
