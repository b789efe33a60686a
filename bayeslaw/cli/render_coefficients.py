"""Render exported coefficients: text for a terminal and a JSON document."""

from rich.markup import escape

from bayeslaw.cli.render import describe, heading, labelled
from bayeslaw.cli.terminal import Block, Document, Rendered, ruled
from bayeslaw.common.formatting import digits
from bayeslaw.evaluate.coefficients import Coefficients
from bayeslaw.inference.posterior import Posterior

COLUMNS = ("point", "median", "q05", "q25", "q75", "q95")


def coefficients(exported: Coefficients, fitted: Posterior) -> Rendered:
    """Render the paper's parameters with their intervals, below the heading of the fit."""
    frame = exported.parameters
    document: Document = describe(fitted, None) | {
        "draws_exported": exported.draws,
        "sha256": exported.document["training"]["sha256"],
        "parameters": frame.rename_axis("name").reset_index().to_dict("records"),
    }
    table = ruled("", "point", "median", "5 %", "25 %", "75 %", "95 %")
    for name, row in frame.iterrows():
        table.add_row(escape(str(name)), *(digits(row[c], 4) for c in COLUMNS))
    draws = f"{exported.draws} draws" if exported.draws else "no draws: point forecasts only"
    blocks: list[Block] = [*heading(fitted, None), "", [table], "", f"{draws}."]
    return Rendered(document, labelled(document, blocks))
