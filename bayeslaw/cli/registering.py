"""The command that scores a registered forecast: ``verify``."""

from pathlib import Path
from typing import Annotated

import typer

from bayeslaw.cli.app import command, show
from bayeslaw.cli.options import Json, Where, option
from bayeslaw.common.defaults import TOLERANCE
from bayeslaw.common.errors import BayeslawError


@command(
    """bayeslaw forecast fit.nc --rows planned.csv --register planned.json
bayeslaw verify planned.json measured.csv""",
    "bayeslaw verify planned.json",
)
def verify(
    *,
    file: Annotated[
        Path,
        typer.Argument(help="File written by `bayeslaw forecast --register`.", show_default=False),
    ],
    measured: Annotated[
        Path | None,
        typer.Argument(help="Losses measured so far, CSV or Parquet.", show_default=False),
    ] = None,
    where: Where = None,
    sha256: Annotated[
        str | None, option("Hash that was published when the forecast was registered.")
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(help="Largest relative difference of a planned and a measured covariate."),
    ] = TOLERANCE,
    json: Json = False,
) -> None:
    """Check a registered forecast, and score it on the losses measured so far.

    Stops if the forecast was edited. Measured rows are matched to the forecast's by covariates and
    labels; rows that are still missing, and rows that were not forecast, are named. The scores are
    appended to the file; without a table of losses nothing is scored or written.
    """
    from bayeslaw.cli import render_registered
    from bayeslaw.evaluate.registration import verify as check
    from bayeslaw.tables.reading import read_table

    if measured is None and where is not None:
        raise BayeslawError("--where has no effect without a table of losses.")
    losses = None if measured is None else read_table(measured, where=where)
    found = check(file, losses, sha256=sha256, tolerance=tolerance)
    show(json, "verify", render_registered.verification(found, file, losses))
