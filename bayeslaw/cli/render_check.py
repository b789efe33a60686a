"""What ``bayeslaw check`` says."""

from typing import Any

from rich.markup import escape
from rich.padding import Padding

from bayeslaw.checks.checkup import Check
from bayeslaw.cli.render import SYNTHETIC, about, heading
from bayeslaw.cli.terminal import Told
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.table import LossTable

COLORS = {"ok": "green", "caution": "yellow", "refuse": "bold red"}


def check(
    fitted: Posterior, rows: LossTable | None, found: Check, train: str | None, test: str | None
) -> Told:
    """The verdict, then each part in words; the numbers are in the JSON document."""
    document = about(fitted, train) | {"test": test} | found.to_dict()
    parts: list[Any] = [SYNTHETIC] if document["synthetic"] else []
    parts += heading(fitted, train)
    if rows is not None:
        where = f" ({test})" if test else ""
        parts.append(escape(f"to forecast {len(rows)} row{'s' * (len(rows) != 1)}{where}"))
    parts += ["", f"[{COLORS[found.level]}]{escape(found.verdict)}[/]"]
    for part in found.parts:
        parts += ["", f"[bold]{part.name}[/]  [{COLORS[part.level]}]{part.level}[/]"]
        parts += [Padding(escape(words), (0, 0, 0, 2)) for words in part.words]
    return Told(document, parts)
