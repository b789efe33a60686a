"""Commands of a plan: ``plan``."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bayeslaw.cli.app import command, show
from bayeslaw.cli.options import Json, Seed, Unconverged, given
from bayeslaw.cli.steps import check_writable
from bayeslaw.common.errors import BayeslawError

if TYPE_CHECKING:
    from bayeslaw.planning.result import Plan

NEEDED = ("target", "source", "params", "ptpp", "max_loss", "max_forgetting")


@command(
    """bayeslaw plan --target french.nc --source english.nc --params 8.1e9 --ptpp 279 \\
    --max-loss 1.8 --max-forgetting .02 --baseline 2.05 --confidence .9""",
    "bayeslaw plan --example paper --json",
)
def plan(
    *,
    target: Annotated[
        list[Path] | None, given("Posterior of the target domain; several may be given.")
    ] = None,
    source: Annotated[Path | None, given("Posterior of the source domain.")] = None,
    params: Annotated[float | None, given("Parameters of the model.")] = None,
    ptpp: Annotated[float | None, given("Its pre-training tokens per parameter.")] = None,
    max_loss: Annotated[
        list[float] | None, given("Limit of the target loss, nats per token; one a target.")
    ] = None,
    max_forgetting: Annotated[
        float | None, given("Limit of the rise of the source loss over its baseline.")
    ] = None,
    max_cvar: Annotated[
        float | None,
        given("Limit of the mean excess over --max-forgetting in the draws that forget most."),
    ] = None,
    baseline: Annotated[
        str | None,
        given(
            "Measured source loss of the un-adapted model, asymptote, law, or matched; without it "
            "the source table's row with tokens = 0.",
            metavar="LOSS|asymptote|law|matched",
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Probability to meet all limits.")] = 0.9,
    relative: Annotated[
        bool,
        typer.Option(
            "--relative/--absolute", help="Forgetting as a share of the baseline, or in nats."
        ),
    ] = True,
    noise: Annotated[
        Literal["latent", "predictive"],
        typer.Option(help="Limits on the laws' losses, or on measured ones of a new run."),
    ] = "latent",
    replay: Annotated[
        str | None, given("Fixed replay ratio, or several to search: .3 or .1,.2,.3.")
    ] = None,
    max_tokens: Annotated[
        float | None, given("Cap on tokens: also the likeliest choice under it.")
    ] = None,
    max_flops: Annotated[float | None, given("Cap on FLOPs, 6 N D.")] = None,
    example: Annotated[
        Literal["paper"] | None, given("Plan the paper's use case on its synthetic world.")
    ] = None,
    figure: Annotated[Path | None, given("Draw the landscape (PNG, PDF or SVG).")] = None,
    allow_unconverged: Unconverged = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Plan the smallest adaptation budget and its replay ratio.

    The least tokens per parameter (ATPP) that keep the target loss and the forgetting of the source
    domain within their limits with the stated probability, under the posteriors that `bayeslaw fit
    --out` saved. Beside it stands the plan of the point fits with its probability of failure.
    """
    from bayeslaw.cli import render_plan as tell_plan

    check_writable(figure)
    settings: dict[str, Any] = {
        "confidence": confidence,
        "noise": noise,
        "replay_grid": _ratios(replay),
        "allow_unconverged": allow_unconverged,
        "seed": seed,
    }
    asked = dict(zip(NEEDED, (target, source, params, ptpp, max_loss, max_forgetting), strict=True))
    if example is None:
        most = math.inf if max_cvar is None else max_cvar
        settings |= {"relative": relative, "max_cvar": most, "baseline": _number(baseline)}
        found, synthetic = _planned(asked, settings)
    else:
        for name, value in (asked | {"max_cvar": max_cvar, "baseline": baseline}).items():
            if value not in (None, []):
                raise BayeslawError(f"--{name.replace('_', '-')} has no effect on --example.")
        if not relative:
            raise BayeslawError("--absolute has no effect on --example.")
        from bayeslaw.planning.paper_case import plan_example

        found, synthetic = plan_example(**settings), True
    if figure is not None:
        from bayeslaw.plots.plans import plan_landscape

        try:
            plan_landscape(found).savefig(figure, dpi=200)
        except ValueError as error:  # an ending that Matplotlib does not write
            raise BayeslawError(f"--figure {figure}: {error}") from error
    caps = {"tokens": max_tokens, "flops": max_flops}
    cap = {name: math.inf if value is None else value for name, value in caps.items()}
    capped = cap if any(value is not None for value in caps.values()) else None
    show(json, "plan", tell_plan.plan(found, capped, synthetic), {"out": figure and str(figure)})


def _planned(asked: dict[str, Any], settings: dict[str, Any]) -> tuple["Plan", bool]:
    """A plan from saved posteriors, and whether a table of theirs is synthetic."""
    from bayeslaw.inference.storage import load
    from bayeslaw.planning.planner import plan
    from bayeslaw.tables.reading import is_synthetic

    missing = [name for name, value in asked.items() if value is None or value == []]
    if missing:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise BayeslawError(f"a plan needs {options} (or --example paper).")
    targets, source = [load(path) for path in asked["target"]], load(asked["source"])
    found = plan(**asked | settings | {"target": targets, "source": source})
    return found, any(is_synthetic(fit.table) for fit in (*targets, source))


def _number(baseline: str | None) -> float | str | None:
    try:
        return baseline if baseline is None else float(baseline)
    except ValueError:
        return baseline


def _ratios(text: str | None) -> list[float] | None:
    """Replay ratios of ``".1,.2"``."""
    if text is None:
        return None
    try:
        return [float(ratio) for ratio in text.split(",")]
    except ValueError:
        raise BayeslawError(
            f"--replay: cannot read {text!r}; write it as 0.3 or 0.1,0.2."
        ) from None
