"""What ``bayeslaw report`` says: the page in short."""

from typing import Any

from rich.markup import escape

from bayeslaw.cli.render import about, heading
from bayeslaw.cli.terminal import Told
from bayeslaw.inference.posterior import Posterior
from bayeslaw.planning.result import Plan
from bayeslaw.reporting import Report


def report(page: Report, fitted: Posterior, train: str | None, plan: Plan | None) -> Told:
    """Headline and findings of the page, which is written to a file."""
    short = [item for part in page.sections[0].parts if isinstance(part, list) for item in part]
    document: dict[str, Any] = about(fitted, train) | {
        "title": page.title,
        "question": page.lead,
        "warnings": list(page.warnings),
        "short": short,
        "sections": [section.name for section in page.sections],
        "plan": None if plan is None else plan.to_dict(),
    }
    parts: list[Any] = [*heading(fitted, train), ""]
    parts += [f"[bold red]{escape(text)}[/]" for text in page.warnings]
    return Told(document, [*parts, *(f"- {escape(text)}" for text in short)])
