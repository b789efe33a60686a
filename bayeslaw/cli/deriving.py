"""Commands that derive numbers from fits, with intervals: ``derive`` and ``recipes``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayeslaw.cli.app import command, show
from bayeslaw.cli.options import (
    Json,
    Unconverged,
    band_levels,
    covariates,
    numbers,
    option,
)
from bayeslaw.cli.steps import check_writable
from bayeslaw.common.errors import BayeslawError

if TYPE_CHECKING:
    from bayeslaw.derive import Derived


@command(
    "bayeslaw derive fit.nc --flops 1e21,1e24 --loss 2.2",
    "bayeslaw derive fit.nc --loss 2.2 --against other.nc --json",
    'bayeslaw derive fit.nc --at "params=1e9 tokens=2e10"',
    'bayeslaw derive cpt.nc --scratch scratch.nc --at "params=1e9 replay=.3 ptpp=20"',
)
def derive(
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
    against: Annotated[
        Path | None, option("Posterior of a recipe: multiplier over it, at each --loss.")
    ] = None,
    scratch: Annotated[
        Path | None,
        option("Posterior of training from scratch: tokens at which it is beaten, at --at."),
    ] = None,
    at: Annotated[
        str | None,
        option(
            'Rows of local exponents: "params=1e9 tokens=1e10"; other covariates of --flops.',
            metavar="SPEC",
        ),
    ] = None,
    span: Annotated[
        float, typer.Option(help="Factor of budget over which exponents of N and D are means.")
    ] = 10.0,
    search: Annotated[
        str, typer.Option(help="Least and greatest tokens per parameter.", metavar="LOW,HIGH")
    ] = "1e-3,1e6",
    levels: Annotated[
        str, typer.Option(help="Probabilities of the intervals.", metavar="P,...")
    ] = "0.5,0.8,0.9",
    out: Annotated[Path | None, option("File for all intervals, .csv or .parquet.")] = None,
    allow_unconverged: Unconverged = False,
    json: Json = False,
) -> None:
    """Derive numbers from a fit, each with its median and credible intervals.

    The floor E, and as asked: the compute-optimal split of a budget C = 6 N D, the FLOPs that reach
    a loss, the compute multiplier over another recipe, the tokens at which continual pre-training
    beats training from scratch, and local exponents. All are of the latent loss, without noise and
    random effects.
    """
    from bayeslaw import derive as library
    from bayeslaw.cli import render_derived
    from bayeslaw.inference.storage import load_posterior
    from bayeslaw.tables.reading import write_frame
    from bayeslaw.tables.table import grid

    check_writable(out)
    chosen, given = band_levels(levels), covariates(at, "--at") if at else {}
    budgets = numbers(flops, "--flops") if flops else []
    losses = numbers(loss, "--loss") if loss else []
    ends = numbers(search, "--search")
    if len(ends) != 2:
        raise BayeslawError(f"--search: cannot read {search!r}; write it as 1e-3,1e6.")
    if against and not losses:
        raise BayeslawError("--against compares FLOPs to reach a loss; give --loss.")
    fit = load_posterior(posterior)
    replay, ptpp = (one(name, given) if name in given else None for name in ("replay", "ptpp"))
    within, allow = (ends[0], ends[1]), allow_unconverged
    found: dict[str, Derived] = {"floor": library.floor(fit, allow_unconverged=allow)}
    if budgets:
        found["compute_optimal"] = library.compute_optimal(
            fit,
            budgets,
            span=span,
            search=within,
            replay=replay,
            ptpp=ptpp,
            allow_unconverged=allow,
        )
    if losses and not against:
        found["flops_to_reach"] = library.flops_to_reach(
            fit, losses, search=within, replay=replay, ptpp=ptpp, allow_unconverged=allow
        )
    if against:
        found["compute_multiplier"] = library.compute_multiplier(
            fit, load_posterior(against), losses, search=within, allow_unconverged=allow
        )
    if scratch:
        found["crossover"] = library.crossover(
            fit,
            load_posterior(scratch),
            one("params", given),
            replay=replay,
            ptpp=ptpp,
            search=within,
            allow_unconverged=allow,
        )
    elif given.keys() & {"params", "tokens"}:
        found["local_exponents"] = library.local_exponents(
            fit, grid(**given), allow_unconverged=allow
        )
    rendered = render_derived.derived(fit, found, chosen)
    if out:
        write_frame(render_derived.joined(found, chosen), out)
    show(json, "derive", rendered, {"out": str(out) if out else None})


@command(
    "bayeslaw recipes c4.nc refinedweb.nc redpajama.nc --flops 1e21,1e23",
    'bayeslaw recipes c4.nc refinedweb.nc --at "params=6.9e9 tokens=1.4e11" --json',
)
def recipes(
    *,
    posteriors: Annotated[
        list[Path],
        typer.Argument(
            help="A posterior for each recipe, of losses on the same data.", show_default=False
        ),
    ],
    flops: Annotated[
        str | None, option("Budgets, each split compute-optimally.", metavar="FLOPS,...")
    ] = None,
    at: Annotated[str | None, option('Rows: "params=6.9e9 tokens=1.4e11".', metavar="SPEC")] = None,
    level: Annotated[float, typer.Option(help="Probability of the intervals.")] = 0.9,
    out: Annotated[Path | None, option("File for the table, .csv or .parquet.")] = None,
    allow_unconverged: Unconverged = False,
    json: Json = False,
) -> None:
    """Compare recipes: which has the lowest loss, how surely, and what choosing now may cost.

    Recipes are named after their files. With --flops also the compute multiplier over the first
    recipe, and the budget at which the order of the two changes.
    """
    from bayeslaw.cli import render_derived
    from bayeslaw.derive.recipes import compare_recipes
    from bayeslaw.inference.storage import load_posterior
    from bayeslaw.tables.reading import write_frame
    from bayeslaw.tables.table import grid

    check_writable(out)
    names = [path.stem for path in posteriors]
    if len(set(names)) < len(names):
        raise BayeslawError("two posteriors have the same file name; rename one.")
    fits = {name: load_posterior(path) for name, path in zip(names, posteriors, strict=True)}
    found = compare_recipes(
        fits,
        grid(**covariates(at, "--at")) if at else None,
        flops=numbers(flops, "--flops") if flops else None,
        allow_unconverged=allow_unconverged,
    )
    if out:
        write_frame(found.to_frame(level), out)
    rendered = render_derived.recipes(fits, found, level)
    show(json, "recipes", rendered, {"out": str(out) if out else None})


def one(name: str, given: dict[str, list[float]]) -> float:
    """Return the single value of a covariate of --at."""
    values = given.get(name, [])
    if len(values) != 1:
        raise BayeslawError(f"--at: give one value of {name}, such as {name}=1e9.")
    return values[0]
