"""The command that shows how numbers depend on the floor: ``floor``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayeslaw.cli.app import command, show
from bayeslaw.cli.options import Json, Unconverged, covariates, numbers, option
from bayeslaw.cli.steps import check_writable
from bayeslaw.common.errors import BayeslawError

if TYPE_CHECKING:
    from bayeslaw.derive import Derived
    from bayeslaw.evaluate.forecast import Forecast


@command(
    "bayeslaw floor fit.nc --flops 1e24",
    'bayeslaw floor fit.nc --grid "params=7e10 tokens=1.4e12" --figure floor.png --json',
)
def floor(
    *,
    posterior: Annotated[
        Path, typer.Argument(help="Posterior saved by `bayeslaw fit --out`.", show_default=False)
    ],
    flops: Annotated[
        str | None, option("Budgets: compute-optimal N, D and loss.", metavar="FLOPS,...")
    ] = None,
    loss: Annotated[
        str | None, option("Losses: FLOPs to reach each, split optimally.", metavar="NATS,...")
    ] = None,
    grid: Annotated[
        str | None, option('Rows to forecast: "params=7e10 tokens=1.4e12".', metavar="SPEC")
    ] = None,
    slices: Annotated[int, typer.Option(help="Slices of the draws by the floor.", min=2)] = 9,
    figure: Annotated[Path | None, option("File for the figure, such as floor.png.")] = None,
    allow_unconverged: Unconverged = False,
    json: Json = False,
) -> None:
    """Show how a forecast or derived number depends on the floor E, and on its prior.

    Give one of --flops, --loss and --grid. The draws are cut into slices by E; the numbers in a
    slice are those of a fit with E fixed there. A number is marked as following the floor's prior
    if E explains at least half of its variance and a flat prior of E would move it.
    """
    from bayeslaw import derive
    from bayeslaw.cli import render_derived
    from bayeslaw.inference.storage import load_posterior
    from bayeslaw.tables import table

    check_writable(figure)
    if sum(given is not None for given in (flops, loss, grid)) != 1:
        raise BayeslawError("give one of --flops, --loss and --grid.")
    fit = load_posterior(posterior)
    of: Derived | Forecast
    if flops:
        budgets = numbers(flops, "--flops")
        of = derive.compute_optimal(fit, budgets, allow_unconverged=allow_unconverged)
    elif loss:
        targets = numbers(loss, "--loss")
        of = derive.flops_to_reach(fit, targets, allow_unconverged=allow_unconverged)
    else:
        rows = table.grid(**covariates(grid or ""))
        of = fit.forecast(rows, kind="latent", allow_unconverged=allow_unconverged)
    found = derive.floor_sensitivity(fit, of, slices=slices, allow_unconverged=allow_unconverged)
    if figure is not None:
        from bayeslaw.plots import floor_sensitivity

        try:
            floor_sensitivity(found).savefig(figure, dpi=200)
        except ValueError as error:  # a file format that Matplotlib does not write
            raise BayeslawError(f"--figure {figure}: {error}") from error
    show(json, "floor", render_derived.floor(fit, found), {"out": str(figure) if figure else None})
