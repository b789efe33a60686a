"""Render a check: text for a terminal and a JSON document."""

from rich.markup import escape
from rich.padding import Padding

from bayeslaw.checks.checkup import Check
from bayeslaw.cli.render import describe, heading, labelled
from bayeslaw.cli.terminal import Block, Rendered
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.table import LossTable

COLORS = {"ok": "green", "caution": "yellow", "refuse": "bold red"}


def check(
    fitted: Posterior | Pool,
    rows: LossTable | None,
    found: Check,
    train: str | None,
    test: str | None,
) -> Rendered:
    """Render the verdict and the findings of each part; their numbers are in the document."""
    document = describe(fitted, train) | {"test": test} | found.to_dict()
    blocks: list[Block] = [*heading(fitted, train)]
    if rows is not None:
        where = f" ({test})" if test else ""
        blocks.append(escape(f"to forecast {len(rows)} row{'s' * (len(rows) != 1)}{where}"))
    blocks += ["", f"[{COLORS[found.level]}]{escape(found.verdict)}[/]"]
    for part in found.parts:
        blocks += ["", f"[bold]{part.name}[/]  [{COLORS[part.level]}]{part.level}[/]"]
        blocks += [Padding(escape(words), (0, 0, 0, 2)) for words in part.words]
    return Rendered(document, labelled(document, blocks))
