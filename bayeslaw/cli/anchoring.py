"""Command that chooses the next runs: ``anchors``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bayeslaw.cli.app import command, show
from bayeslaw.cli.options import Json, Seed, Unconverged, covariates, given, query
from bayeslaw.cli.steps import PLAN, check_writable, limits_of, terminal
from bayeslaw.common.errors import BayeslawError

if TYPE_CHECKING:
    import pandas as pd

    from bayeslaw.design.anchors import Anchors

ROWS = "TABLE_OR_GRID"


@dataclass(frozen=True)
class Worth:
    """What runs are worth to the plan."""

    worth: Annotated[
        int | None,
        given(
            "Refit and plan again in so many simulated truths: FLOPs that runs save on the target "
            "run, after the first, two, four and so on, and all. Takes minutes.",
            min=2,
            metavar="SIMULATIONS",
        ),
    ] = None
    against: Annotated[
        list[str] | None, given("For --worth: other runs to compare with.", metavar=ROWS)
    ] = None
    jobs: Annotated[int, typer.Option(min=1, help="For --worth: processes.")] = 2
    seed: Seed = 0


@command(
    """bayeslaw anchors fit.nc --k 4 \\
    --candidates "params=241e6,517e6 tokens=1e9,1e10 replay=.1,.5 ptpp=279" \\
    --targets "params=8.1e9 tokens=1e10,1e11 replay=.1,.5 ptpp=279\"""",
    "bayeslaw anchors fit.nc --candidates pool.csv --targets goals.csv --budget 1e20",
    """bayeslaw anchors french.nc --candidates pool.csv --budget 1e20 --gain plan --worth 20 \\
    --source english.nc \\
    --plan "params=8.1e9 ptpp=279 max_loss=1.8 max_forgetting=.02 baseline=2.05\"""",
)
def anchors(
    *,
    posterior: Annotated[
        Path, typer.Argument(help="Posterior saved by `bayeslaw fit --out`.", show_default=False)
    ],
    candidates: Annotated[
        str,
        given("Rows that could be measured; those of one `run` are its checkpoints.", metavar=ROWS),
    ],
    targets: Annotated[str | None, given("Rows whose loss matters.", metavar=ROWS)] = None,
    where: Annotated[str | None, query("Candidates to use at all.")] = None,
    aim: Annotated[str | None, query("Targets to use at all.")] = None,
    k: Annotated[int | None, given("Number of runs.", min=1)] = None,
    budget: Annotated[float | None, given("Most FLOPs for all runs.")] = None,
    cost: Annotated[
        str,
        typer.Option(
            help="flops (6 N D and each new base's pre-training), adaptation (6 N D), or a column."
        ),
    ] = "flops",
    gain: Annotated[
        Literal["variance", "entropy", "plan", "doptimal"],
        typer.Option(help="What to gain: certainty at the targets, of the plan, or of the law."),
    ] = "variance",
    power: Annotated[
        float | None, given("Gains are divided by cost to this power (1 under a budget, else 0).")
    ] = None,
    second_size: Annotated[
        bool, typer.Option(help="At least one run of a second size, or not.")
    ] = True,
    source: Annotated[
        Path | None, given("For --gain plan and --worth: posterior of the source domain.")
    ] = None,
    plan: Annotated[
        str | None, given(f'For --gain plan and --worth: "{PLAN}".', metavar="LIMITS")
    ] = None,
    out: Annotated[Path | None, given("Write the rows to measure (CSV or Parquet).")] = None,
    allow_unconverged: Unconverged = False,
    json: Json = False,
    value: Worth,
) -> None:
    """Choose which runs to buy next.

    Those whose losses would teach most about the targets for their cost, in the order to buy them,
    with the certainty that is predicted after each: stop where the next is not worth its FLOPs.
    With --worth also what they are worth to a plan, by simulation and refit.
    """
    from bayeslaw.cli import render_anchors as tell_anchors
    from bayeslaw.design.anchors import choose_anchors
    from bayeslaw.design.evsi import anchor_value
    from bayeslaw.inference.storage import load
    from bayeslaw.planning.planner import plan as make_plan
    from bayeslaw.tables.reading import write_frame

    check_writable(out)
    if k is None and budget is None:
        raise BayeslawError("say how many runs (--k) or what they may cost (--budget).")
    _check(gain == "plan", source, plan, value)
    if targets is None and gain != "plan":
        raise BayeslawError("say where the loss matters, with --targets.")
    pool = _rows(candidates, "--candidates", where)
    goals = None if targets is None else _rows(targets, "--targets", aim)
    others = {text: _rows(text, "--against", None) for text in value.against or ()}
    fitted = load(posterior)
    both: dict[str, Any] = {"target": fitted, "allow_unconverged": allow_unconverged}
    if plan is not None and source is not None:
        both |= {"source": load(source), "seed": value.seed} | limits_of(plan)
    known = {"source": both["source"], "plan": make_plan(**both)} if gain == "plan" else {}
    found = choose_anchors(
        fitted,
        pool,
        goals,
        k=k,
        budget=budget,
        cost=cost,
        gain=gain,
        power=power,
        second_size=second_size,
        allow_unconverged=allow_unconverged,
        **known,
    )
    if out is not None:
        write_frame(found.frame, out)
    worth = None
    if value.worth is not None:
        worth = anchor_value(
            _first(found) | others,
            simulations=value.worth,
            cost=cost,
            jobs=value.jobs,
            progress=terminal(),
            **both,
        )
    told = tell_anchors.anchors(found, fitted, worth)
    show(json, "anchors", told, {"out": out and str(out), "seed": value.seed})


def _check(planned: bool, source: Path | None, plan: str | None, value: Worth) -> None:
    if (source is None) != (plan is None):
        raise BayeslawError("--source and --plan go together.")
    if planned and plan is None:
        raise BayeslawError("--gain plan needs --source and --plan.")
    if value.worth is not None and plan is None:
        raise BayeslawError("--worth needs --source and --plan.")
    if value.worth is None and value.against:
        raise BayeslawError("--against needs --worth.")
    if value.worth is None and plan is not None and not planned:
        raise BayeslawError("--source and --plan have no effect without --gain plan or --worth.")


def _first(found: "Anchors") -> "dict[str, pd.DataFrame]":
    """Rows of the first pick, of the first two, four and so on, and of all."""
    count, sets = len(found.picks), {}
    for first in (2**i for i in range(count.bit_length())):
        if first < count:
            sets[f"first {first}"] = found.frame[found.frame["pick"] <= first]
    return sets | {f"all {count}": found.frame}


def _rows(text: str, option: str, where: str | None) -> "pd.DataFrame":
    """Rows of a table, or of a grid such as ``"params=1e9 tokens=1e9,1e10"``."""
    from bayeslaw.tables.reading import read_frame
    from bayeslaw.tables.table import LossTable, grid
    from bayeslaw.tables.validation import canonical

    if Path(text).is_file() or "=" not in text:
        frame, name = canonical(read_frame(text), text, ()), text
        if "tokens" in frame:
            frame = frame[frame["tokens"] > 0]
    else:
        frame, name = canonical(grid(**covariates(text, option)), option, ()), option
    return LossTable(frame, frame.iloc[:0], name).query(where).frame
