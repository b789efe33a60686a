"""Command that compares anchor designs: ``study``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bayeslaw.cli.app import command, show
from bayeslaw.cli.options import Json, LawOption, Seed, Where, given, query
from bayeslaw.cli.steps import check_writable, required, terminal
from bayeslaw.common.errors import BayeslawError

if TYPE_CHECKING:
    from bayeslaw.studies.cases import Case


@dataclass(frozen=True)
class Refits:
    """The model and the sampler of a study's refits."""

    discrepancy: Annotated[
        Literal["curvature", "none"], typer.Option(help="Whether the law's terms may bend.")
    ] = "none"
    effects: Annotated[
        Literal["auto", "none"], typer.Option(help="Whether runs and bases have effects.")
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
            help="Measured pool; without it the paper's grid is simulated.", show_default=False
        ),
    ] = None,
    out: Annotated[Path, given("Results (Parquet or CSV), and OUT.cells.")],
    law: LawOption = None,
    where: Where = None,
    train: Annotated[str | None, query("Rows fitted first.")] = None,
    pool: Annotated[str | None, query("Rows that can be bought.")] = None,
    targets: Annotated[str | None, query("Rows to forecast.")] = None,
    designs: Annotated[
        str,
        typer.Option(
            help="Of none, random, cheapest, grid, doptimal, variance, entropy, plan.",
        ),
    ] = "none,random,cheapest,grid,doptimal,variance",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 10,
    seed: Seed = 0,
    budget: Annotated[
        float | None, given("FLOPs of each design; by default what the design grid costs.")
    ] = None,
    cost: Annotated[str, typer.Option(help="adaptation, flops, or a column.")] = "adaptation",
    vary: Annotated[
        float, typer.Option(min=0, help="Simulated: spread, in logs, of the truth over seeds.")
    ] = 0.0,
    planning: Annotated[
        bool, typer.Option("--planning", help="Simulated: plan the use case as well.")
    ] = False,
    confidence: Annotated[float, typer.Option(help="For --planning: of the plans.")] = 0.9,
    backend: Annotated[
        Literal["loky", "dask", "threading", "sequential"], typer.Option(help="Of joblib.")
    ] = "loky",
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    scheduler: Annotated[str | None, given("Address of a Dask scheduler.")] = None,
    json: Json = False,
    refits: Refits,
) -> None:
    """Compare ways to buy anchors at equal FLOPs.

    Each design buys from the same pool, the law is refitted, the targets are forecast and scored.
    The study may be stopped at any time: the same command goes on where it was.
    """
    from bayeslaw.cli import render_anchors as tell_anchors
    from bayeslaw.studies.study import study, summary

    check_writable(out)
    if scheduler is not None and backend != "dask":
        raise BayeslawError("--scheduler needs --backend dask.")
    if not 0 < refits.target_accept < 1:
        raise BayeslawError(f"--target-accept {refits.target_accept:g} is not between 0 and 1.")
    names = [name.strip() for name in designs.split(",") if name.strip()]
    if not names:
        raise BayeslawError("--designs names no design.")
    queries = {"train": train, "pool": pool, "targets": targets}
    cases = _cases(table, law, where, queries, range(seed, seed + seeds), vary)
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
    told = tell_anchors.study(results, summary(results, against), against)
    show(json, "study", told, {"out": str(out), "seed": seed})


def _cases(
    table: Path | None,
    law: str | None,
    where: str | None,
    queries: dict[str, str | None],
    seeds: range,
    vary: float,
) -> "list[Case]":
    """Cases of a measured pool, or of the simulated world."""
    from bayeslaw.studies.cases import pool_cases, world_cases
    from bayeslaw.tables.reading import read_table

    asked: Any = {name: query for name, query in queries.items() if query is not None}
    if table is None:
        if law is not None or where is not None:
            raise BayeslawError("--law and --where need a TABLE; the simulated world has its own.")
        return world_cases(seeds, vary=vary, **asked)
    if vary:
        raise BayeslawError("--vary has no effect on a measured pool.")
    if lacking := [name for name in queries if name not in asked]:
        raise BayeslawError(f"a measured pool needs --{' and --'.join(lacking)}.")
    rows = read_table(table, where=where)
    return pool_cases(rows, required(law), seeds=seeds, **asked)
