"""The command that writes the coefficients of a fit: ``export``."""

from pathlib import Path
from typing import Annotated

import typer

from bayeslaw.cli.app import command, show
from bayeslaw.cli.options import Json, Unconverged
from bayeslaw.cli.steps import check_writable


@command("bayeslaw export fit.nc coefficients.json --draws 1000")
def export(
    *,
    posterior: Annotated[
        Path, typer.Argument(help="Posterior saved by `bayeslaw fit --out`.", show_default=False)
    ],
    out: Annotated[Path, typer.Argument(help="File to write (JSON).", show_default=False)],
    draws: Annotated[
        int,
        typer.Option(help="Draws to include; forecasts with bands need them.", min=0),
    ] = 0,
    allow_unconverged: Unconverged = False,
    json: Json = False,
) -> None:
    """Write the coefficients of a fit, in the paper's symbols, without the training losses.

    The file has medians, 50 and 90 % intervals and units, the law, the reference point, the hash of
    the training table and the versions. `bayeslaw.read_coefficients` forecasts from it.
    """
    from bayeslaw.cli import render_coefficients
    from bayeslaw.evaluate.coefficients import read_coefficients, write_coefficients
    from bayeslaw.inference.storage import load_posterior

    check_writable(out)
    fitted = load_posterior(posterior)
    write_coefficients(fitted, out, draws=draws, allow_unconverged=allow_unconverged)
    rendered = render_coefficients.coefficients(read_coefficients(out), fitted)
    show(json, "export", rendered, {"out": str(out)})
