"""Render the summary of a report: text for a terminal and a JSON document."""

from rich.markup import escape

from bayeslaw.cli.render import describe, heading
from bayeslaw.cli.terminal import Block, Document, Rendered
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.planning.result import Plan
from bayeslaw.reporting import Report


def report(
    page: Report, fitted: Posterior | Pool, train: str | None, plan: Plan | None
) -> Rendered:
    """Render the warnings and the summary of a page, which is written to a file."""
    summary = [item for part in page.sections[0].parts if isinstance(part, list) for item in part]
    document: Document = describe(fitted, train) | {
        "title": page.title,
        "question": page.lead,
        "warnings": list(page.warnings),
        "summary": summary,
        "sections": [section.name for section in page.sections],
        "plan": None if plan is None else plan.to_dict(),
    }
    blocks: list[Block] = [*heading(fitted, train), ""]
    blocks += [f"[bold red]{escape(text)}[/]" for text in page.warnings]
    return Rendered(document, [*blocks, *(f"- {escape(text)}" for text in summary)])
