"""Render the verification of a registered forecast: text for a terminal and a JSON document."""

from pathlib import Path

import numpy as np
import pandas as pd
from rich.markup import escape

from bayeslaw.cli.render import SYNTHETIC
from bayeslaw.cli.render_forecast import MAX_ROWS, bands_table, inside, score_table
from bayeslaw.cli.terminal import Block, Document, Rendered
from bayeslaw.evaluate.forecast import LEVELS
from bayeslaw.evaluate.registration import Verification
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import COVARIATES, row_numbers


def verification(found: Verification, path: Path, measured: LossTable | None) -> Rendered:
    """Render what was registered, the measured rows beside it, and their scores."""
    registered, frame = found.forecast, found.frame
    done = frame[frame["loss"].notna()]
    document: Document = {
        "file": str(path),
        "sha256": found.sha256,
        "registered": registered["date"],
        "law": registered["law"],
        "synthetic": registered["synthetic"],
        "losses_known": registered["losses_known"],
        "failures": registered["failures"],
        "measured": None if measured is None else measured.name,
        "missing": list(found.missing),
        "extra": list(found.extra),
        "rows": frame.astype(object).where(frame.notna(), None).to_dict("records"),
        "scores": None if measured is None else found.scores.to_dict(),
        "results": list(found.results),
    }
    blocks: list[Block] = [SYNTHETIC] if registered["synthetic"] else []
    blocks += [
        f"[bold]{escape(registered['law'])}[/]  {len(frame)} rows registered {registered['date']}",
        f"SHA-256 {found.sha256}",
        "[green]unchanged[/] since it was registered",
    ]
    blocks += [
        f"{escape(label)}: fitted to {fit['training']['rows']} rows of "
        f"{escape(fit['training']['name'])}, SHA-256 {fit['training']['sha256'][:12]}..."
        for label, fit in registered["fits"].items()
    ]
    if registered["failures"]:
        words = escape("; ".join(registered["failures"]))
        blocks.append(f"[bold red]NOT CONVERGED[/] when it was registered: {words}.")
    if known := registered["losses_known"]:
        blocks.append(
            f"[yellow]{known} of {len(frame)} rows already had a measured loss when the forecast "
            "was registered.[/]"
        )
    if measured is None:
        count = len(found.results)
        blocks.append(f"{count} result{'s' * (count != 1)} in the file; no losses to score.")
        return Rendered(document, blocks)
    text = f"{len(done)} of {len(frame)} rows are measured"
    if found.missing:
        text += f"; missing: {_rows(found.missing, len(frame))}"
    blocks.append(f"{text}.")
    if found.extra:
        where = _rows(found.extra, len(measured))
        blocks.append(f"Not forecast: {where} of {escape(measured.name)}.")
    names = [f"{100 * level:g}" for level in LEVELS[::2]]
    used = {name for fit in registered["fits"].values() for name in fit["covariates"]}
    heads = ["row", *(name for name in COVARIATES if name in used)]
    tables = [bands_table(done, heads, names, error) for error in (True, False)]
    blocks += ["", tables]
    if len(done) > MAX_ROWS:
        blocks.append(f"[dim]... and {len(done) - MAX_ROWS} more rows: use --json for all.[/]")
    blocks += ["", inside(done, names), "", score_table(found.scores)]
    if "draws" not in registered:
        blocks.append("[dim]No CRPS: the forecast was registered without draws.[/]")
    return Rendered(document, blocks)


def _rows(rows: tuple[int, ...], count: int) -> str:
    return row_numbers(pd.Series(np.isin(np.arange(count), rows)))
