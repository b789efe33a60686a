"""Command that chooses the next runs: ``anchors``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bayeslaw.cli.app import command, show
from bayeslaw.cli.options import Json, Unconverged, covariates, query
from bayeslaw.cli.steps import check_writable
from bayeslaw.errors import BayeslawError, TableError

if TYPE_CHECKING:
    import pandas as pd

    from bayeslaw.planning.planner import Plan

ROWS = "TABLE_OR_GRID"
LIMITS = ("params", "ptpp", "max_loss", "max_forgetting", "baseline")


@command(
    """bayeslaw anchors fit.nc --k 4 \\
    --candidates "params=241e6,517e6 tokens=1e9,1e10 replay=.1,.5 ptpp=279" \\
    --targets "params=8.1e9 tokens=1e10,1e11 replay=.1,.5 ptpp=279\"""",
    "bayeslaw anchors fit.nc --candidates pool.csv --targets goals.csv --budget 1e20",
)
def anchors(
    *,
    posterior: Annotated[
        Path, typer.Argument(help="Posterior saved by `bayeslaw fit --out`.", show_default=False)
    ],
    candidates: Annotated[
        str,
        typer.Option(
            metavar=ROWS,
            help="Rows that could be measured; those of one `run` are its checkpoints.",
            show_default=False,
        ),
    ],
    targets: Annotated[
        str | None,
        typer.Option(metavar=ROWS, help="Rows whose loss matters.", show_default=False),
    ] = None,
    where: Annotated[str | None, query("Candidates to use at all.")] = None,
    aim: Annotated[str | None, query("Targets to use at all.")] = None,
    k: Annotated[
        int | None, typer.Option("--k", min=1, help="Number of runs.", show_default=False)
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="Most FLOPs for all runs.", show_default=False)
    ] = None,
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
        float | None,
        typer.Option(
            help="Gains are divided by cost to this power (1 under a budget, else 0).",
            show_default=False,
        ),
    ] = None,
    second_size: Annotated[
        bool, typer.Option(help="At least one run of a second size, or not.")
    ] = True,
    source: Annotated[
        Path | None,
        typer.Option(help="For --gain plan: posterior of the source domain.", show_default=False),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help='For --gain plan: "params=8.1e9 ptpp=279 max_loss=1.8 max_forgetting=.02 '
            'baseline=2.05 confidence=.9".',
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the rows to measure (CSV or Parquet).", show_default=False),
    ] = None,
    allow_unconverged: Unconverged = False,
    json: Json = False,
) -> None:
    """Choose which runs to buy next.

    Those whose losses would teach most about the targets for their cost, in the order to buy them,
    with the certainty that is predicted after each: stop where the next is not worth its FLOPs.
    """
    from bayeslaw.anchoring.anchors import choose_anchors
    from bayeslaw.cli import tell_anchors
    from bayeslaw.storage import load
    from bayeslaw.tables import write_frame

    check_writable(out)
    if k is None and budget is None:
        raise BayeslawError("say how many runs (--k) or what they may cost (--budget).")
    if (gain == "plan") != (plan is not None) or (gain == "plan") != (source is not None):
        raise BayeslawError("--gain plan, --source and --plan go together.")
    if targets is None and gain != "plan":
        raise BayeslawError("say where the loss matters, with --targets.")
    pool = _rows(candidates, "--candidates", where)
    goals = None if targets is None else _rows(targets, "--targets", aim)
    fitted = load(posterior)
    known: dict[str, Any] = {}
    if plan is not None and source is not None:
        other = load(source)
        known = {"source": other, "plan": _plan(plan, fitted, other, allow_unconverged)}
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
    show(json, "anchors", tell_anchors.anchors(found, fitted), {"out": out and str(out)})


def _rows(text: str, option: str, where: str | None) -> "pd.DataFrame":
    """Rows of a table, or of a grid such as ``"params=1e9 tokens=1e9,1e10"``."""
    from bayeslaw.tables import LossTable, canonical, grid, read_frame

    if Path(text).is_file() or "=" not in text:
        frame, name = canonical(read_frame(text), text, ()), text
        if "tokens" in frame:
            frame = frame[frame["tokens"] > 0]
    else:
        try:
            frame, name = canonical(grid(**covariates(text)), option, ()), option
        except TableError as error:
            raise TableError(str(error).replace("--grid", option)) from None
    return LossTable(frame, frame.iloc[:0], name).query(where).frame


def _plan(text: str, target: Any, source: Any, allow: bool) -> "Plan":
    from bayeslaw.planning.planner import plan

    try:
        given = {name: values[0] for name, values in covariates(text).items()}
    except TableError as error:
        raise TableError(str(error).replace("--grid", "--plan").split(";")[0] + ".") from None
    if lacking := [name for name in LIMITS[:4] if name not in given]:
        raise BayeslawError(f"--plan lacks {', '.join(lacking)}.")
    if more := given.keys() - {*LIMITS, "confidence"}:
        raise BayeslawError(f"--plan: unknown {sorted(more)[0]!r}. Valid: {', '.join(LIMITS)}.")
    limits: Any = given
    return plan(target=target, source=source, allow_unconverged=allow, **limits)
