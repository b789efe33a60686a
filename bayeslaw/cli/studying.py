"""The command that compares anchor designs: ``study``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

import typer

from bayeslaw.cli.app import command, show
from bayeslaw.cli.options import Columns, Json, LawOption, Seed, Where, columns_of, option, query
from bayeslaw.cli.steps import check_writable, required, terminal
from bayeslaw.common.errors import BayeslawError

if TYPE_CHECKING:
    from bayeslaw.studies.cases import Case


class Queries(TypedDict, total=False):
    """Queries that select the rows of a case; those not given have a default in `world_cases`."""

    train: str
    pool: str
    targets: str


@dataclass(frozen=True)
class Refits:
    """The model and the sampler of a study's refits."""

    discrepancy: Annotated[
        Literal["auto", "walk", "adaptation", "curvature", "none"],
        typer.Option(help="Discrepancy of the law."),
    ] = "none"
    effects: Annotated[
        Literal["auto", "none"], typer.Option(help="Random effects of runs and bases, or none.")
    ] = "none"
    chains: Annotated[int, typer.Option(help="Chains of each refit.", min=2)] = 2
    draws: Annotated[int, typer.Option(help="Draws of each chain.", min=10)] = 300
    tune: Annotated[int, typer.Option(help="Tuning steps of each chain.", min=10)] = 300
    target_accept: Annotated[float, typer.Option(help="Target acceptance, between 0 and 1.")] = 0.9


@command(
    "bayeslaw study --seeds 10 --out world.parquet",
    """bayeslaw study data/delphi/isotoken.csv --law chinchilla --train "scale < 3e19" \\
    --pool "3e19 <= scale < 1e21" --targets "scale >= 1e21" --out delphi.parquet""",
)
def study(
    *,
    table: Annotated[
        Path | None,
        typer.Argument(
            help="Measured losses; without a table the paper's grid is simulated.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, option("Results (Parquet or CSV), and OUT.cells.")],
    law: LawOption = None,
    columns: Columns = None,
    where: Where = None,
    train: Annotated[str | None, query("Training rows before any purchase.")] = None,
    pool: Annotated[str | None, query("Rows that can be bought.")] = None,
    targets: Annotated[str | None, query("Rows to forecast.")] = None,
    designs: Annotated[
        str,
        typer.Option(
            help="Some of none, random, cheapest, grid, doptimal, variance, entropy, plan.",
        ),
    ] = "none,random,cheapest,grid,doptimal,variance",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 10,
    seed: Seed = 0,
    budget: Annotated[
        float | None, option("FLOPs of each design; by default the cost of the design grid.")
    ] = None,
    cost: Annotated[str, typer.Option(help="adaptation, flops, or a column.")] = "adaptation",
    vary: Annotated[
        float, typer.Option(min=0, help="Simulated world: sd of log true parameters over seeds.")
    ] = 0.0,
    planning: Annotated[
        bool, typer.Option("--planning", help="Simulated world: plan the paper's use case as well.")
    ] = False,
    confidence: Annotated[
        float, typer.Option(help="For --planning: confidence of the plans.")
    ] = 0.9,
    backend: Annotated[
        Literal["loky", "dask", "threading", "sequential"], typer.Option(help="Backend of joblib.")
    ] = "loky",
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    scheduler: Annotated[str | None, option("Address of a Dask scheduler.")] = None,
    json: Json = False,
    refits: Refits,
) -> None:
    """Compare ways to buy anchors at equal FLOPs.

    Each design buys from the same pool; then the law is refitted, and the targets are forecast and
    scored. A study that was stopped continues when the same command is given again.
    """
    from bayeslaw.cli import render_anchors
    from bayeslaw.studies.study import study, summary

    check_writable(out)
    if scheduler is not None and backend != "dask":
        raise BayeslawError("--scheduler needs --backend dask.")
    if not 0 < refits.target_accept < 1:
        raise BayeslawError(f"--target-accept {refits.target_accept:g} is not between 0 and 1.")
    names = [name.strip() for name in designs.split(",") if name.strip()]
    if not names:
        raise BayeslawError("--designs names no design.")
    queries: Queries = {}
    if train is not None:
        queries["train"] = train
    if pool is not None:
        queries["pool"] = pool
    if targets is not None:
        queries["targets"] = targets
    cases = _cases(table, law, columns, where, queries, range(seed, seed + seeds), vary)
    results = study(
        cases,
        names,
        out=out,
        budget=budget,
        cost=cost,
        planning=planning,
        confidence=confidence,
        backend=backend,
        jobs=jobs,
        scheduler=scheduler,
        progress=terminal(),
        **vars(refits),
    )
    against = "random" if "random" in names else names[0]
    rendered = render_anchors.study(results, summary(results, against), against)
    show(json, "study", rendered, {"out": str(out), "seed": seed})


def _cases(
    table: Path | None,
    law: str | None,
    columns: str | None,
    where: str | None,
    queries: Queries,
    seeds: range,
    vary: float,
) -> "list[Case]":
    """Return cases of a measured pool, or of the simulated world."""
    from bayeslaw.studies.cases import pool_cases, world_cases
    from bayeslaw.tables.reading import read_table

    if table is None:
        if any(given is not None for given in (law, columns, where)):
            raise BayeslawError(
                "--law, --columns and --where need a TABLE; the simulated world has its own."
            )
        return world_cases(seeds, vary=vary, **queries)
    if vary:
        raise BayeslawError("--vary has no effect on a measured pool.")
    if lacking := [name for name in ("train", "pool", "targets") if name not in queries]:
        raise BayeslawError(f"a measured pool needs --{' and --'.join(lacking)}.")
    rows = read_table(table, columns=columns_of(columns), where=where)
    return pool_cases(rows, required(law), seeds=seeds, **queries)
