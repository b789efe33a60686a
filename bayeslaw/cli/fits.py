"""Commands of a fit: ``fit | forecast | score | compare | simulate``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bayeslaw.cli.app import command, note, show
from bayeslaw.cli.options import (
    LAWS,
    Bounds,
    Columns,
    Json,
    LawOption,
    Quoted,
    Sampling,
    Seed,
    Selection,
    Source,
    SourceTable,
    Table,
    Test,
    Train,
    Unconverged,
    Where,
    band_levels,
    columns_of,
    law_names,
    option,
    query,
)
from bayeslaw.cli.steps import (
    check_writable,
    compared,
    fit_or_load,
    fit_table,
    is_posterior,
    required,
)
from bayeslaw.common.errors import BayeslawError, FileError, TableError

if TYPE_CHECKING:
    from bayeslaw.evaluate.forecast import Forecast

LEVELS = "0.5,0.9"
"""Levels of bands."""
FitMethod = Annotated[
    Literal["nuts", "map", "huber"], typer.Option(help="How a table is fitted first.")
]


@command(
    """bayeslaw fit data/delphi/isotoken.csv --law chinchilla \\
    --train "scale <= 3e20" --out fit.nc""",
    'bayeslaw fit losses.csv --law form3 --train "ptpp <= 31" --method huber',
)
def fit(
    *,
    table: Table,
    law: LawOption = None,
    source_table: SourceTable = None,
    columns: Columns = None,
    where: Where = None,
    train: Train = None,
    method: Annotated[
        Literal["nuts", "map", "huber"], typer.Option(help="Posterior, its mode, or a Huber fit.")
    ] = "nuts",
    bounds: Bounds = "paper",
    out: Annotated[Path | None, option("Save the posterior (NetCDF).")] = None,
    seed: Seed = 0,
    json: Json = False,
    sampling: Sampling,
) -> None:
    """Fit a law to a table of losses.

    Shows the parameters in the paper's coordinates and at the reference point, and the convergence
    diagnostics of the sampler.
    """
    from bayeslaw.cli import render
    from bayeslaw.huber.point_fit import PointFit
    from bayeslaw.tables.reading import read_table

    if out is not None and method != "nuts":
        raise FileError(f"--out saves a posterior; --method {method} has none (use --json).")
    check_writable(out)
    rows = read_table(
        table, columns=columns_of(columns), where=where, source=source_table
    ).training(train)
    fitted = fit_table(required(law), rows, method, sampling, seed, bounds)
    if not isinstance(fitted, PointFit) and out is not None:
        fitted.save(out)
    how, fields = render.method(method, sampling.likelihood, sampling.priors)
    more = {**fields, "seed": seed, "out": out and str(out)}
    show(json, "fit", render.fit(fitted, train, how), more)


@command(
    """bayeslaw forecast data/delphi/isotoken.csv --law chinchilla \\
    --train "scale <= 3e20" --test "scale >= 1e21\"""",
    """bayeslaw forecast losses.csv --law form3 --method huber --train "ptpp <= 31" \\
    --test "ptpp == 279\"""",
    """bayeslaw forecast fit.nc \\
    --grid "params=8.1e9 tokens=1e9,1e10 replay=.1,.3 ptpp=279\"""",
    "bayeslaw forecast fit.nc --rows planned.csv --register planned.json",
)
def forecast(
    *,
    source: Source,
    choice: Selection,
    method: FitMethod = "nuts",
    bounds: Bounds = "paper",
    levels: Annotated[str, typer.Option(help="Levels of the bands.")] = LEVELS,
    kind: Annotated[
        Literal["predictive", "latent"],
        typer.Option(help="Posterior predictive, or latent loss without noise."),
    ] = "predictive",
    out: Annotated[Path | None, option("Write the bands (CSV or Parquet).")] = None,
    register: Annotated[
        Path | None,
        option(
            "Register the forecast in a new file (JSON), for `bayeslaw verify`.", metavar="FILE"
        ),
    ] = None,
    backtest: Quoted = None,
    register_draws: Annotated[
        int,
        typer.Option(help="For --register: draws per row to store; the CRPS needs them.", min=0),
    ] = 0,
    allow_unconverged: Unconverged = False,
    seed: Seed = 0,
    json: Json = False,
    sampling: Sampling,
) -> None:
    """Forecast losses with bands.

    From a table: fits the law to the --train rows and forecasts the --test rows. From a posterior:
    forecasts --rows or --grid. Measured losses, if there are any, are shown beside the bands. Each
    row is an interpolation, extrapolation or projection of the training rows. --register writes the
    forecast to a file with its hash, before the losses are measured. A point fit (--method huber or
    map) has no bands; where starts with the same objective forecast different losses, their range
    is shown.
    """
    from bayeslaw.cli import render, render_forecast
    from bayeslaw.evaluate import registration
    from bayeslaw.evaluate.backtesting import read_backtest
    from bayeslaw.huber.point_fit import PointFit
    from bayeslaw.tables.reading import write_frame

    bands = band_levels(levels)
    check_writable(out)
    check_writable(register)
    if register is not None:
        registration.check_new(register)
        if method != "nuts":
            raise BayeslawError(f"--register needs bands, which --method {method} does not have.")
        if kind != "predictive":
            raise BayeslawError("--register needs --kind predictive: measured losses have noise.")
    elif register_draws:
        raise BayeslawError("--register-draws has no effect without --register.")
    if method != "nuts" and (levels, kind) != (LEVELS, "predictive"):
        raise BayeslawError(f"--levels and --kind have no effect on --method {method}.")
    fitted, rows = fit_or_load(source, choice, method, sampling, seed, bounds)
    fields: dict[str, object] = {"out": out and str(out)}
    if isinstance(fitted, PointFit):
        if out is not None:
            write_frame(fitted.forecast(rows), out)
        how, described = render.method(method, sampling.likelihood, sampling.priors)
        points = render_forecast.point_forecast(fitted, rows, choice.train, choice.test, how)
        show(json, "forecast", points, {**fields, **described, "seed": seed})
        return
    predicted: Forecast = fitted.forecast(
        rows, kind=kind, seed=seed, allow_unconverged=allow_unconverged
    )
    if out is not None:
        predicted.write(out, bands)
    quoted = None if backtest is None else read_backtest(backtest).looking(fitted.table, rows.frame)
    sha256 = None
    if register is not None:
        sha256 = registration.register(predicted, register, draws=register_draws)
    rendered = render_forecast.forecast(
        fitted, predicted, rows, bands, choice.train, choice.test, quoted
    )
    fields |= {"register": register and str(register), "sha256": sha256}
    show(json, "forecast", rendered, fields)
    if register is not None and not json:
        note(f"registered {register}, SHA-256 {sha256}")


@command(
    """bayeslaw score data/delphi/isotoken.csv --law chinchilla --method huber \\
    --train "scale <= 3e20" --test "scale >= 1e21\"""",
    "bayeslaw score fit.nc --rows measured.csv",
)
def score(
    *,
    source: Source,
    choice: Selection,
    method: FitMethod = "nuts",
    bounds: Bounds = "paper",
    allow_unconverged: Unconverged = False,
    seed: Seed = 0,
    json: Json = False,
    sampling: Sampling,
) -> None:
    """Score a fit on measured losses."""
    from bayeslaw.cli import render, render_forecast
    from bayeslaw.evaluate.scores import score

    fitted, rows = fit_or_load(source, choice, method, sampling, seed, bounds)
    if "loss" not in rows.frame:
        raise TableError(f"{rows.name}: no column 'loss'; scores need measured losses.")
    scores = score(fitted, rows, seed=seed, allow_unconverged=allow_unconverged)
    how, fields = render.method(method, sampling.likelihood, sampling.priors)
    rendered = render_forecast.score(fitted, rows, scores, choice.train, choice.test, how)
    show(json, "score", rendered, {} if is_posterior(source) else fields | {"seed": seed})


@command(
    """bayeslaw compare french.csv --source english.csv --train "ptpp <= 31" \\
    --test "ptpp == 279" --anchors "ptpp == 279 and params < 3e8\"""",
)
def compare(
    *,
    table: Table,
    source: Annotated[Path | None, option("Loss table of the source domain.")] = None,
    columns: Columns = None,
    where: Where = None,
    train: Train = None,
    test: Test = None,
    anchors: Annotated[str | None, query("Test rows to add to the training rows.")] = None,
    laws: Annotated[
        str, typer.Option(help=f"Laws, separated by commas: {LAWS}, or paths.")
    ] = "form1,form2,form3,dcpt",
    method: Annotated[
        Literal["huber", "nuts"], typer.Option(help="Huber fits, or posteriors with bands.")
    ] = "huber",
    bounds: Bounds = "paper",
    allow_unconverged: Unconverged = False,
    seed: Seed = 0,
    json: Json = False,
    sampling: Sampling,
) -> None:
    """Compare several laws on one split, in each domain.

    Each law is fitted to the --train rows and the --anchors and scored on the other --test rows.
    dcpt, which has no pre-training budget among its covariates, is fitted twice: to the --train
    rows without anchors (transfer), and to all --test rows, on which it is also scored (oracle).
    The table has the numbers of rows fitted and scored.
    """
    from bayeslaw.cli import render_forecast
    from bayeslaw.laws.lawfiles import load_law
    from bayeslaw.tables.reading import read_table

    names = law_names(laws, "--laws")
    if method == "huber":
        sampling.refuse("a Huber fit", keep=("delta",))
    starts = source if any(load_law(name).departure for name in names) else None
    losses = read_table(table, columns=columns_of(columns), where=where, source=starts)
    other = (
        None
        if source is None
        else read_table(source, columns=columns_of(columns), where=where, source=starts)
    )
    queries = {"train": train, "test": test, "anchors": anchors}
    splits = [each.split(**queries) for each in (losses, other) if each is not None]
    scores = compared(
        losses,
        names,
        method,
        sampling,
        source=other,
        bounds=bounds,
        **queries,
        seed=seed,
        allow_unconverged=allow_unconverged,
    )
    show(json, "compare", render_forecast.compare(scores, splits, method, bounds, queries, seed))


@command("bayeslaw simulate --domain french --seed 1 --out french.csv")
def simulate(
    *,
    out: Annotated[Path, option("Table to write (CSV or Parquet).")],
    domain: Annotated[
        Literal["french", "english_arabic", "both"], typer.Option(help="Domain of the losses.")
    ] = "french",
    noise: Annotated[bool, typer.Option(help="Add noise to log loss, or not.")] = True,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Write a synthetic loss table.

    Losses on the paper's grid from known true laws, calibrated to the results in the paper.
    """
    import pandas as pd

    from bayeslaw.cli import render
    from bayeslaw.simulation.worlds import paper_world
    from bayeslaw.tables.reading import write_frame

    check_writable(out)
    world = paper_world()
    table = world.table(None if domain == "both" else domain, seed=seed, noise=noise)
    write_frame(pd.concat([table.frame, table.baselines], ignore_index=True), out)
    show(json, "simulate", render.simulate(world, table, noise, seed, out))
