"""The command that plans an adaptation: ``plan``."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

import typer

from bayeslaw.cli.app import command, show
from bayeslaw.cli.options import Json, Quoted, Seed, Unconverged, option
from bayeslaw.cli.steps import CONFIDENCE, check_writable
from bayeslaw.common.errors import BayeslawError

if TYPE_CHECKING:
    from bayeslaw.planning.result import Plan
    from bayeslaw.tables.table import LossTable


class Settings(TypedDict):
    """Settings of a plan that do not depend on the fits."""

    confidence: float
    noise: str | None
    replay_grid: list[float] | None
    allow_unconverged: bool
    seed: int


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
            "Limit of the rise of the source loss over its baseline; one per source.",
            metavar="RISE",
        ),
    ] = None,
    max_cvar: Annotated[
        float | None,
        option("Limit of the CVaR: mean excess over --max-forgetting in the worst draws."),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        option(
            "Source loss of the un-adapted model, measured, with a standard deviation or not, or "
            "asymptote, law, or matched; by default the base's row with tokens = 0. One per "
            "source.",
            metavar="LOSS[,SD]|asymptote|law|matched",
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
    confidence: Annotated[float, typer.Option(help="Probability to meet all limits.")] = CONFIDENCE,
    relative: Annotated[
        bool,
        typer.Option(
            "--relative/--absolute", help="Forgetting relative to the baseline, or in nats."
        ),
    ] = True,
    noise: Annotated[
        Literal["predictive", "latent"] | None,
        option("Limits on measured losses of a new run, the default, or on latent losses."),
    ] = None,
    replay: Annotated[
        str | None, option("Fixed replay ratio, or several to search: .3 or .1,.2,.3.")
    ] = None,
    max_tokens: Annotated[
        float | None, option("Cap on tokens; shows the best choices under it as well.")
    ] = None,
    max_flops: Annotated[float | None, option("Cap on FLOPs, 6 N D.")] = None,
    at: Annotated[
        str | None,
        option("A budget and a replay ratio of your own, to judge as well.", metavar="ATPP,REPLAY"),
    ] = None,
    price: Annotated[
        float | None,
        option("FLOPs that a violated limit costs; shows the choice of least expected cost."),
    ] = None,
    stop: Annotated[
        str | None,
        option(
            "Least fall of the target loss that so many further tokens are worth; shows from "
            "which budget they buy less.",
            metavar="NATS,TOKENS",
        ),
    ] = None,
    backtest: Quoted = None,
    example: Annotated[
        Literal["paper"] | None, option("Plan the paper's use case on its synthetic world.")
    ] = None,
    figure: Annotated[Path | None, option("Draw the landscape (PNG, PDF or SVG).")] = None,
    explore: Annotated[
        Path | None, option("Write a page on which the limits can be moved (HTML).")
    ] = None,
    allow_unconverged: Unconverged = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Plan the smallest adaptation budget and its replay ratio.

    Finds the fewest adaptation tokens per parameter (ATPP) with which the target loss and the
    forgetting of the source domain stay within their limits with the stated probability, under
    posteriors saved by `bayeslaw fit --out`. For comparison it shows the plan of the point fits,
    with its probability of failure.
    """
    from bayeslaw.cli import render_plan

    check_writable(figure)
    check_writable(explore)
    settings: Settings = {
        "confidence": confidence,
        "noise": noise,
        "replay_grid": _ratios(replay),
        "allow_unconverged": allow_unconverged,
        "seed": seed,
    }
    needed: dict[str, object] = {
        "target": target,
        "source": source,
        "params": params,
        "ptpp": ptpp,
        "max_loss": max_loss,
        "max_forgetting": max_forgetting,
    }
    if example is not None:
        own_fits = {"max_cvar": max_cvar, "baseline": baseline, "base": base, "backtest": backtest}
        own_fits |= {"unique_tokens": unique_tokens}
        _refuse(needed | own_fits, relative)
        from bayeslaw.planning.planner import plan_example

        found, synthetic, quoted = plan_example(**settings), True, None
    elif (
        not target
        or not source
        or params is None
        or ptpp is None
        or not max_loss
        or not max_forgetting
    ):
        missing = [name for name, value in needed.items() if value in (None, [])]
        options = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise BayeslawError(f"a plan needs {options} (or --example paper).")
    else:
        from bayeslaw.inference.storage import load
        from bayeslaw.planning.planner import plan
        from bayeslaw.tables.reading import is_synthetic

        targets, forgotten = ([load(path) for path in paths] for paths in (target, source))
        own = [_number(text) for text in baseline or []]
        found = plan(
            target=targets,
            source=forgotten,
            params=params,
            ptpp=ptpp,
            max_loss=max_loss,
            max_forgetting=max_forgetting,
            relative=relative,
            max_cvar=math.inf if max_cvar is None else max_cvar,
            baseline=own[0] if len(own) == 1 else own or None,
            base=base,
            unique_tokens=unique_tokens,
            **settings,
        )
        synthetic = any(is_synthetic(fit.table) for fit in (*targets, *forgotten))
        quoted = None if backtest is None else _quoted(backtest, targets[0].table, found)
    if figure is not None:
        from bayeslaw.plots.plans import plan_landscape

        try:
            plan_landscape(found).savefig(figure, dpi=200)
        except ValueError as error:  # a file format that Matplotlib does not write
            raise BayeslawError(f"--figure {figure}: {error}") from error
    if explore is not None:
        from bayeslaw.reporting.explorer import explore as page

        page(found).write(explore)
    caps = {"tokens": max_tokens, "flops": max_flops}
    cap = {name: math.inf if value is None else value for name, value in caps.items()}
    capped = cap if any(value is not None for value in caps.values()) else None
    yours = None if at is None else _pair(at, "--at", "8,.3")
    enough = None if stop is None else _pair(stop, "--stop", ".002,1e9")
    rendered = render_plan.plan(found, capped, yours, price, enough, synthetic, quoted)
    show(json, "plan", rendered, {"out": figure and str(figure), "page": explore and str(explore)})


def _refuse(given: Mapping[str, object], relative: bool) -> None:
    """Raise `BayeslawError` for an option that the example does not use."""
    for name, value in given.items():
        if value not in (None, []):
            raise BayeslawError(f"--{name.replace('_', '-')} has no effect on --example.")
    if not relative:
        raise BayeslawError("--absolute has no effect on --example.")


def _number(baseline: str) -> float | tuple[float, float] | str:
    """Parse a baseline: a number, two of them, or the name of one."""
    try:
        loss, *sd = (float(text) for text in baseline.split(","))
    except ValueError:
        return baseline
    if len(sd) > 1:
        raise BayeslawError(f"--baseline {baseline}: give a loss, or a loss and its sd.")
    return (loss, sd[0]) if sd else loss


def _quoted(path: Path, train: "LossTable", found: "Plan") -> str | None:
    """What a backtest of the target says of the planned run."""
    from bayeslaw.evaluate.backtesting import read_backtest
    from bayeslaw.tables.table import grid

    tested, chosen = read_backtest(path), found.chosen
    if chosen is None or not 0 < chosen.tokens < math.inf:
        return None
    n, p = found.limits["params"], found.limits["ptpp"]
    run = grid(params=n, ptpp=p, tokens=chosen.tokens, replay=chosen.replay)
    return tested.looking(train, run)


def _pair(text: str, option: str, example: str) -> tuple[float, float]:
    """Parse two numbers such as ``"8,.3"``."""
    try:
        first, second = (float(each) for each in text.split(","))
    except ValueError:
        raise BayeslawError(f"{option}: cannot read {text!r}; write it as {example}.") from None
    return first, second


def _ratios(text: str | None) -> list[float] | None:
    """Parse replay ratios such as ``".1,.2"``."""
    if text is None:
        return None
    try:
        return [float(ratio) for ratio in text.split(",")]
    except ValueError:
        raise BayeslawError(
            f"--replay: cannot read {text!r}; write it as 0.3 or 0.1,0.2."
        ) from None
