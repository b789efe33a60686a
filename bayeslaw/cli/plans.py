"""The command that plans an adaptation: ``plan``."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import bayeslaw as bl
from bayeslaw.cli import options as opt
from bayeslaw.cli.app import command
from bayeslaw.cli.options import option, output
from bayeslaw.cli.steps import save_figure
from bayeslaw.cli.terminal import Rendered
from bayeslaw.common.errors import BayeslawError


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
) -> Rendered:
    """Plan the smallest adaptation budget and its replay ratio.

    Finds the fewest adaptation tokens per parameter (ATPP) with which the target loss and the
    forgetting of the source domain stay within their limits with the stated probability, under
    posteriors saved by `bayeslaw fit --out`. For comparison it shows the plan of the point fits,
    with its probability of failure.
    """
    from bayeslaw.cli import render_plan
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
    rendered = render_plan.plan(found, capped, yours, enough, synthetic, quoted)
    rendered = replace(rendered, notes=notes, code=2 if notes else 0)
    return rendered.adding(out=figure, page=None if notes else explore)


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
