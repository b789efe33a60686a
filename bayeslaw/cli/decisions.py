"""Commands that derive numbers and plans from saved fits: ``derive | floor | recipes | plan``."""

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import bayeslaw as bl
from bayeslaw.cli import options as opt
from bayeslaw.cli.app import Result, command
from bayeslaw.cli.options import (
    argument,
    beside,
    option,
    output,
    save_figure,
    save_frame,
)
from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.formatting import count
from bayeslaw.common.shown import SYNTHETIC, Note, Shown

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
) -> Shown:
    """Derive numbers from a fit, each with its median and credible intervals.

    The floor E, and as asked: the compute-optimal split of a budget C = 6 N D, the FLOPs that reach
    a loss, the compute multiplier over another recipe, the tokens at which continual pre-training
    beats training from scratch, and local exponents. All are of the latent loss, without noise and
    random effects.
    """
    import pandas as pd

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
    whole, document = Shown(), {}
    for name, numbers in found.items():
        shown = numbers.shown(chosen)
        document[name] = dict(shown.document)
        blocks = [b for b in shown.blocks if not (isinstance(b, Note) and b.level == "refuse")]
        whole += Shown("", [Note(shown.title), *blocks])
    whole = beside(fit, replace(whole, document={}))
    return whole.adding(levels=chosen, derived=document, out=out)


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
) -> Shown:
    """Show how a forecast or derived number depends on the floor E, and on its prior.

    Give one of --flops, --loss and --grid. The draws are cut into slices by E; the numbers in a
    slice are those of a fit with E fixed there. A number is marked as following the floor's prior
    if E explains at least half of its variance and a flat prior of E would move it.
    """
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
    return beside(fit, found.shown()).adding(out=figure)


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
) -> Shown:
    """Compare recipes: which has the lowest loss, how surely, and what choosing now may cost.

    Recipes are named after their files. With --flops also the compute multiplier over the first
    recipe, and the budget at which the order of the two changes.
    """
    from bayeslaw.inference.pools import load_posterior
    from bayeslaw.tables.table import is_synthetic

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
    synthetic = any(is_synthetic(fit.table) for fit in fits.values())
    shown = found.shown(level).adding(synthetic=synthetic, out=out)
    labels = [Note(SYNTHETIC, "synthetic")] * synthetic
    return replace(shown, blocks=[*labels, *shown.blocks])


def one(name: str, given: dict[str, list[float]]) -> float:
    """Return the single value of a covariate of --at."""
    values = given.get(name, [])
    if len(values) != 1:
        raise BayeslawError(f"--at: give one value of {name}, such as {name}=1e9.")
    return values[0]


@command(
    """bayeslaw plan --target french.nc --source english.nc --params 8.1e9 --ptpp 279 \\
    --max-loss 1.8 --max-forgetting .02 --baseline 2.05 --confidence .9""",
    "bayeslaw plan --example paper --json",
)
def plan(
    *,
    target: Annotated[
        list[Path] | None,
        option("Posterior of the target domain; may be repeated.", metavar="POSTERIOR"),
    ] = None,
    source: Annotated[
        list[Path] | None,
        option("Posterior of the source domain; may be repeated.", metavar="POSTERIOR"),
    ] = None,
    params: Annotated[float | None, option("Number of parameters of the model.")] = None,
    ptpp: Annotated[float | None, option("Pre-training tokens per parameter.")] = None,
    max_loss: Annotated[
        list[float] | None,
        option("Limit of the target loss, nats per token; one per target.", metavar="LOSS"),
    ] = None,
    max_forgetting: Annotated[
        list[float] | None,
        option(
            "Limit of the rise of the source loss over its baseline, as a fraction (.02 is 2 %) or "
            "with --absolute in nats; one per source.",
            metavar="RISE",
        ),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        option(
            "Source loss of the un-adapted model, measured, with a standard deviation or not, or "
            "asymptote or law; by default the base's row with tokens = 0. One per source.",
            metavar="LOSS[,SD]|asymptote|law",
        ),
    ] = None,
    base: Annotated[
        str | None,
        option(
            "Base that the run starts from: its label in the tables' column base, or new. By "
            "default the only one of that model and stage, or a new one.",
            metavar="LABEL|new",
        ),
    ] = None,
    unique_tokens: Annotated[
        float | None,
        option("Distinct tokens of the new data; further ones repeat. By default none do."),
    ] = None,
    confidence: Annotated[float, option("Probability to meet all limits.")] = opt.CONFIDENCE,
    relative: Annotated[
        bool, option("Forgetting relative to the baseline, or in nats.", "--relative/--absolute")
    ] = True,
    noise: Annotated[
        Literal["predictive", "latent"] | None,
        option("Limits on measured losses of a new run, the default, or on latent losses."),
    ] = None,
    replay: Annotated[
        str | None,
        option(
            "Fixed replay ratio, or several to search: .3 or .1,.2,.3. Laws without replay need 1."
        ),
    ] = None,
    max_tokens: Annotated[
        float | None,
        option("Cap on tokens; shows the best choices under it as well.", callback=opt.positive),
    ] = None,
    max_flops: Annotated[
        float | None, option("Cap on FLOPs, 6 N D.", callback=opt.positive)
    ] = None,
    at: Annotated[
        str | None,
        option("A budget and a replay ratio of your own, to judge as well.", metavar="ATPP,REPLAY"),
    ] = None,
    stop: Annotated[
        str | None,
        option(
            "Least fall of the target loss that so many further tokens are worth; shows from "
            "which budget they buy less.",
            metavar="NATS,TOKENS",
        ),
    ] = None,
    backtest: opt.Quoted = None,
    example: Annotated[
        Literal["paper"] | None, option("Plan the paper's use case on its synthetic world.")
    ] = None,
    figure: Annotated[
        Path | None, output("Draw the landscape (PNG, PDF or SVG).", *opt.FIGURES)
    ] = None,
    explore: Annotated[
        Path | None, output("Write a page on which the limits can be moved (HTML).", ".html")
    ] = None,
    allow_unconverged: opt.Unconverged = False,
    seed: opt.Seed = 0,
) -> Result:
    """Plan the smallest adaptation budget and its replay ratio.

    Finds the fewest adaptation tokens per parameter (ATPP) with which the target loss and the
    forgetting of the source domain stay within their limits with the stated probability, under
    posteriors saved by `bayeslaw fit --out`. For comparison it shows the plan of the point fits,
    with its probability of failure.
    """
    from bayeslaw.planning.choices import choice_table, fields
    from bayeslaw.reporting.explorer import check_plotly
    from bayeslaw.tables.table import is_synthetic

    yours = None if at is None else _pair(at, "--at", "8,.3", most=1)
    enough = None if stop is None else _pair(stop, "--stop", ".002,1e9")
    tested = None if backtest is None else bl.read_backtest(backtest)
    if explore is not None:
        check_plotly()
        if max(map(len, (target or [], source or []))) > 1:
            raise BayeslawError("--explore shows one target and one source; give no more.")

    how = "write it as 0.3 or 0.1,0.2"
    settings: dict[str, Any] = {
        "confidence": confidence,
        "noise": noise,
        "replay_grid": None if replay is None else opt.numbers(replay, "--replay", how),
        "allow_unconverged": allow_unconverged,
        "seed": seed,
    }
    fits = {"target": target, "source": source}
    limits: dict[str, Any] = {
        "params": params,
        "ptpp": ptpp,
        "max_loss": max_loss,
        "max_forgetting": max_forgetting,
    }
    synthetic, quoted = True, None
    if example is not None:
        more: dict[str, Any] = {"baseline": baseline, "base": base, "backtest": backtest}
        more |= {"unique_tokens": unique_tokens, "absolute": not relative}
        opt.refuse("on --example", **fits, **limits, **more)
        found = bl.plan_example(**settings)
    elif missing := [name for name, given in (fits | limits).items() if given in (None, [])]:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise BayeslawError(f"a plan needs {options} (or --example paper).")
    else:
        loaded = {name: [bl.load(path) for path in paths or ()] for name, paths in fits.items()}
        own = [_baseline(text) for text in baseline or []]
        found = bl.plan(
            target=loaded["target"],
            source=loaded["source"],
            **limits,
            relative=relative,
            baseline=own[0] if len(own) == 1 else own or None,
            base=base,
            unique_tokens=unique_tokens,
            **settings,
        )
        synthetic = any(is_synthetic(fit.table) for each in loaded.values() for fit in each)
        if tested is not None:
            quoted = _quoted(tested, loaded["target"][0].table, found)
    save_figure(figure, lambda: bl.plots.plan_landscape(found))
    notes = [] if explore is None else _explored(found, explore)
    caps = {"tokens": max_tokens, "flops": max_flops}
    cap = {name: math.inf if value is None else value for name, value in caps.items()}
    capped = None if max_tokens is None and max_flops is None else cap
    shown = found.shown()
    if synthetic:
        shown = replace(shown, blocks=[Note(SYNTHETIC, "synthetic"), *shown.blocks])
    shown = shown.adding(synthetic=synthetic, backtest=quoted)
    if yours is not None:
        choice = found.at(atpp=yours[0], replay=yours[1])
        around = found.around(atpp=yours[0], replay=yours[1])
        shown += Shown(
            blocks=[choice_table({"yours": choice}, "Your choice"), _around(found, around)]
        )
        shown = shown.adding(at=fields(choice) | {"around": around})
    if capped is not None:
        likeliest, cheapest = found.within(**capped), found.least_loss(**capped)
        named = {"tokens": count(cap["tokens"]), "FLOPs": f"{cap['flops']:.3g}"}
        words = " and ".join(f"{v} {n}" for n, v in named.items() if cap[n.lower()] < math.inf)
        title = f"Under a cap of {words}: largest P(both), and least expected target loss with "
        title += f"P(forgetting) at least {100 * found.confidence:g} %"
        shown += Shown(
            blocks=[choice_table({"likeliest": likeliest, "least loss": cheapest}, title)]
        )
        shown = shown.adding(cap=dict(cap), within=fields(likeliest), least_loss=fields(cheapest))
    if enough is not None:
        from_here = found.stop(*enough)
        title = (
            f"From here {enough[1]:.3g} more tokens lower the expected target loss by less than "
        )
        title += f"{enough[0]:g} nats"
        shown += Shown(blocks=[choice_table({"enough": from_here}, title)])
        shown = shown.adding(stop={"nats": enough[0], "tokens": enough[1]} | vars(from_here))
    if quoted is not None:
        shown += Shown(blocks=[quoted])
    shown = shown.adding(out=figure, page=None if notes else explore)
    return Result(shown, notes, 2 if notes else 0)


def _around(found: "bl.Plan", around: Mapping[str, tuple[float, float]]) -> str:
    """How far the user's own choice can be moved."""
    (low, high), (least, most) = around["atpp"], around["replay"]
    budgets = "no ATPP" if math.isnan(low) else f"ATPP {low:.3g} to {high:.3g}"
    ratios = "no ratio" if math.isnan(least) else f"replay {100 * least:.1f} to {100 * most:.1f} %"
    return (
        f"At its replay {budgets}, at its budget {ratios} keeps all limits with "
        f"{100 * found.confidence:g} %."
    )


def _explored(found: "bl.Plan", page: Path) -> list[str]:
    """Write the page of a plan, or say why there is none."""
    try:
        bl.explore(found).write(page)
    except BayeslawError as error:
        return [f"error: {page} is not written: {error}"]
    return []


def _baseline(baseline: str) -> float | tuple[float, float] | str:
    """Parse a baseline: a number, two of them, or the name of one."""
    try:
        loss, *sd = (float(text) for text in baseline.split(","))
    except ValueError:
        return baseline
    if len(sd) > 1:
        raise BayeslawError(f"--baseline {baseline}: give a loss, or a loss and its sd.")
    return (loss, sd[0]) if sd else loss


def _quoted(tested: "bl.Backtest", train: "bl.LossTable", found: "bl.Plan") -> str | None:
    """What a backtest of the target says of the planned run."""
    chosen = found.chosen
    if chosen is None or not 0 < chosen.tokens < math.inf:
        return None
    run = found.run.row.assign(tokens=chosen.tokens, replay=chosen.replay)
    return tested.looking(train, run)


def _pair(
    text: str, option: str, example: str, most: float = sys.float_info.max
) -> tuple[float, float]:
    first, second = opt.numbers(text, option, f"write it as {example}", size=2)
    if not (0 < first < math.inf and 0 <= second <= most):
        raise BayeslawError(f"{option} {text}: give numbers such as {example}.")
    return first, second
