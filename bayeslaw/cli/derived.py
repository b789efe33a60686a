"""Commands that derive numbers from saved fits: ``derive | floor | recipes``."""

from pathlib import Path
from typing import Annotated, Any

import bayeslaw as bl
from bayeslaw.cli import options as opt
from bayeslaw.cli.app import command
from bayeslaw.cli.options import argument, option, output
from bayeslaw.cli.steps import save_figure, save_frame
from bayeslaw.cli.terminal import Rendered
from bayeslaw.common.errors import BayeslawError

Budgets = Annotated[
    str | None, option("Budgets: compute-optimal N, D and loss.", metavar="FLOPS,...")
]
Losses = Annotated[
    str | None, option("Losses: FLOPs to reach each, split optimally.", metavar="NATS,...")
]


@command(
    "bayeslaw derive fit.nc --flops 1e21,1e24 --loss 2.2",
    "bayeslaw derive fit.nc --loss 2.2 --against other.nc --json",
    'bayeslaw derive fit.nc --at "params=1e9 tokens=2e10"',
    'bayeslaw derive cpt.nc --scratch scratch.nc --at "params=1e9 replay=.3 ptpp=20"',
)
def derive(
    *,
    posterior: opt.Saved,
    flops: Budgets = None,
    loss: Losses = None,
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
        float, option("Factor of budget over which exponents of N and D are means.")
    ] = 10.0,
    search: Annotated[
        str, option("Least and greatest tokens per parameter.", metavar="LOW,HIGH")
    ] = "1e-3,1e6",
    levels: Annotated[
        str, option("Probabilities of the intervals.", metavar="P,...")
    ] = "0.5,0.8,0.9",
    out: Annotated[
        Path | None, output("File for all intervals, .csv or .parquet.", *opt.TABLES)
    ] = None,
    allow_unconverged: opt.Unconverged = False,
) -> Rendered:
    """Derive numbers from a fit, each with its median and credible intervals.

    The floor E, and as asked: the compute-optimal split of a budget C = 6 N D, the FLOPs that reach
    a loss, the compute multiplier over another recipe, the tokens at which continual pre-training
    beats training from scratch, and local exponents. All are of the latent loss, without noise and
    random effects.
    """
    import pandas as pd

    from bayeslaw.cli import render_derived
    from bayeslaw.inference.pools import load_posterior

    chosen, given = opt.band_levels(levels), {} if at is None else opt.covariates(at, "--at")
    budgets = [] if flops is None else opt.numbers(flops, "--flops")
    losses = [] if loss is None else opt.numbers(loss, "--loss")
    ends = opt.numbers(search, "--search", "write it as 1e-3,1e6", size=2)
    if given and not (budgets or losses or scratch or given.keys() & {"params", "tokens"}):
        raise BayeslawError("--at needs params and tokens, or --flops, --loss or --scratch.")
    if against and not losses:
        raise BayeslawError("--against compares FLOPs to reach a loss; give --loss.")
    fit, derive = load_posterior(posterior), bl.derive
    allow: dict[str, Any] = {"allow_unconverged": allow_unconverged}
    within = allow | {"search": (ends[0], ends[1])}
    fixed: dict[str, Any] = {n: one(n, given) for n in ("replay", "ptpp") if n in given}
    found = {"floor": derive.floor(fit, **allow)}
    if budgets:
        found["compute_optimal"] = derive.compute_optimal(
            fit, budgets, span=span, **fixed, **within
        )
    if losses and not against:
        found["flops_to_reach"] = derive.flops_to_reach(fit, losses, **fixed, **within)
    if against:
        found["compute_multiplier"] = derive.compute_multiplier(
            fit, load_posterior(against), losses, **within
        )
    if scratch:
        other = load_posterior(scratch)
        found["crossover"] = derive.crossover(fit, other, one("params", given), **fixed, **within)
    elif given.keys() & {"params", "tokens"}:
        found["local_exponents"] = derive.local_exponents(fit, bl.grid(**given), **allow)
    frames = [each.to_frame(chosen).assign(derived=name) for name, each in found.items()]
    save_frame(out, pd.concat(frames, ignore_index=True))
    return render_derived.derived(fit, found, chosen).adding(out=out)


@command(
    "bayeslaw floor fit.nc --flops 1e24",
    'bayeslaw floor fit.nc --grid "params=7e10 tokens=1.4e12" --figure floor.png --json',
)
def floor(
    *,
    posterior: opt.Saved,
    flops: Budgets = None,
    loss: Losses = None,
    grid: Annotated[
        str | None, option('Rows to forecast: "params=7e10 tokens=1.4e12".', metavar="SPEC")
    ] = None,
    slices: Annotated[int, option("Slices of the draws by the floor.", min=2)] = 9,
    figure: Annotated[
        Path | None, output("File for the figure, such as floor.png.", *opt.FIGURES)
    ] = None,
    allow_unconverged: opt.Unconverged = False,
) -> Rendered:
    """Show how a forecast or derived number depends on the floor E, and on its prior.

    Give one of --flops, --loss and --grid. The draws are cut into slices by E; the numbers in a
    slice are those of a fit with E fixed there. A number is marked as following the floor's prior
    if E explains at least half of its variance and a flat prior of E would move it.
    """
    from bayeslaw.cli import render_derived
    from bayeslaw.inference.pools import load_posterior

    if sum(given is not None for given in (flops, loss, grid)) != 1:
        raise BayeslawError("give one of --flops, --loss and --grid.")
    fit, derive = load_posterior(posterior), bl.derive
    allow: dict[str, Any] = {"allow_unconverged": allow_unconverged}
    of: bl.derive.Derived | bl.Forecast
    if flops is not None:
        of = derive.compute_optimal(fit, opt.numbers(flops, "--flops"), **allow)
    elif loss is not None:
        of = derive.flops_to_reach(fit, opt.numbers(loss, "--loss"), **allow)
    else:
        of = fit.forecast(bl.grid(**opt.covariates(grid or "")), kind="latent", **allow)
    found = derive.floor_sensitivity(fit, of, slices=slices, **allow)
    save_figure(figure, lambda: bl.plots.floor_sensitivity(found))
    return render_derived.floor(fit, found).adding(out=figure)


@command(
    "bayeslaw recipes c4.nc refinedweb.nc redpajama.nc --flops 1e21,1e23",
    'bayeslaw recipes c4.nc refinedweb.nc --at "params=6.9e9 tokens=1.4e11" --json',
)
def recipes(
    *,
    posteriors: Annotated[
        list[Path], argument("A posterior for each recipe, of losses on the same data.")
    ],
    flops: Annotated[
        str | None, option("Budgets, each split compute-optimally.", metavar="FLOPS,...")
    ] = None,
    at: Annotated[str | None, option('Rows: "params=6.9e9 tokens=1.4e11".', metavar="SPEC")] = None,
    level: Annotated[float, option("Probability of the intervals.")] = 0.9,
    out: Annotated[
        Path | None, output("File for the table, .csv or .parquet.", *opt.TABLES)
    ] = None,
    allow_unconverged: opt.Unconverged = False,
) -> Rendered:
    """Compare recipes: which has the lowest loss, how surely, and what choosing now may cost.

    Recipes are named after their files. With --flops also the compute multiplier over the first
    recipe, and the budget at which the order of the two changes.
    """
    from bayeslaw.cli import render_derived
    from bayeslaw.inference.pools import load_posterior

    if len({path.stem for path in posteriors}) < len(posteriors):
        raise BayeslawError("two posteriors have the same file name; rename one.")
    fits = {path.stem: load_posterior(path) for path in posteriors}
    found = bl.compare_recipes(
        fits,
        None if at is None else bl.grid(**opt.covariates(at, "--at")),
        flops=None if flops is None else opt.numbers(flops, "--flops"),
        allow_unconverged=allow_unconverged,
    )
    save_frame(out, found.to_frame(level))
    return render_derived.recipes(fits, found, level).adding(out=out)


def one(name: str, given: dict[str, list[float]]) -> float:
    """Return the single value of a covariate of --at."""
    values = given.get(name, [])
    if len(values) != 1:
        raise BayeslawError(f"--at: give one value of {name}, such as {name}=1e9.")
    return values[0]
