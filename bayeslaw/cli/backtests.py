"""The command that forecasts the past: ``backtest``."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bayeslaw.cli.app import command, show
from bayeslaw.cli.options import (
    Columns,
    Json,
    LawOption,
    Sampling,
    Seed,
    SourceTable,
    Table,
    Where,
    columns_of,
    numbers,
    option,
)
from bayeslaw.cli.steps import check_writable, required, terminal
from bayeslaw.common.errors import BayeslawError

RIVALS = ("none", "curvature", "walk", "adaptation")
"""Discrepancies; any other rival is a law."""


@command(
    "bayeslaw backtest data/delphi/isotoken.csv --law chinchilla --rivals none",
    "bayeslaw backtest losses.csv --law form1 --along ptpp --figure backtest.png",
)
def backtest(
    *,
    table: Table,
    law: LawOption = None,
    source_table: SourceTable = None,
    columns: Columns = None,
    where: Where = None,
    along: Annotated[
        Literal["flops", "params", "tokens", "ptpp"],
        typer.Option(help="Quantity that the table is cut along; FLOPs are 6 N D."),
    ] = "flops",
    cuts: Annotated[
        str | None, option("Cuts; by default at most five of the table.", metavar="VALUE,...")
    ] = None,
    rivals: Annotated[
        str | None,
        option("Other models: discrepancies (none, curvature, walk) or laws.", metavar="NAME,..."),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 1,
    figure: Annotated[Path | None, option("Draw errors by distance (PNG, PDF or SVG).")] = None,
    out: Annotated[
        Path | None, option("Write the rows (CSV or Parquet); other commands quote them.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
    sampling: Sampling,
) -> None:
    """Forecast, at earlier cuts of a table, the rows that came later.

    At each cut only the rows up to it are fitted. The table shows what the bands held and how large
    the errors were, by how far ahead the rows lay.
    """
    from bayeslaw.cli import render_forecast
    from bayeslaw.evaluate.backtesting import backtest as run
    from bayeslaw.tables.reading import read_table

    check_writable(figure)
    check_writable(out)
    losses = read_table(table, columns=columns_of(columns), where=where, source=source_table)
    names = [name.strip() for name in (rivals or "").split(",") if name.strip()]
    others: dict[str, dict[str, Any]] = {
        name: {"discrepancy": name} if name in RIVALS else {"law": name} for name in names
    }
    found = run(
        losses,
        required(law),
        along=along,
        cuts=None if cuts is None else numbers(cuts, "--cuts"),
        rivals=others,
        seed=seed,
        jobs=jobs,
        progress=terminal(),
        **asdict(sampling),
    )
    if out is not None:
        found.write(out)
    if figure is not None:
        from bayeslaw.plots import backtest as draw

        try:
            draw(found).savefig(figure, dpi=200)
        except ValueError as error:  # a file format that Matplotlib does not write
            raise BayeslawError(f"--figure {figure}: {error}") from error
    show(json, "backtest", render_forecast.backtest(found), {"seed": seed, "out": out and str(out)})
