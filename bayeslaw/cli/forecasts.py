"""Commands that forecast and score: ``forecast | verify | backtest | score | compare``."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import bayeslaw as bl
from bayeslaw.cli import options as opt
from bayeslaw.cli.app import Result, command
from bayeslaw.cli.options import argument, option, output, query
from bayeslaw.common.defaults import COVARIATE_TOLERANCE
from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.shown import SYNTHETIC, Block, Note, Shown

NO_SCORES = Shown(document={"scores": None})
DEFAULT_LEVELS = "0.5,0.9"
METHOD = option("How a table is fitted first.", default="nuts")
RIVALS = ("none", "curvature", "walk", "trend", "adaptation")  # any other rival is a law


@command(
    """bayeslaw forecast data/delphi/isotoken.csv --law chinchilla \\
    --train "scale <= 3e20" --test "scale >= 1e21\"""",
    """bayeslaw forecast losses.csv --law form3 --method huber --train "ptpp <= 31" \\
    --test "ptpp == 279\"""",
    """bayeslaw forecast fit.nc \\
    --grid "params=8.1e9 tokens=1e9,1e10 replay=.1,.3 ptpp=279\"""",
    "bayeslaw forecast fit.nc --rows planned.csv --register planned.json",
    """bayeslaw forecast fit.nc --rows planned.csv --accuracy pairs.csv \\
    --pairs "task == 'hellaswag'\"""",
    """bayeslaw forecast finished.csv --law chinchilla --running run.csv \\
    --grid tokens=1e11""",
)
def forecast(
    *,
    source: Path = opt.SOURCE,
    choice: opt.Selection,
    running: Path | None = option(
        "Rows so far of a run that goes on, fitted with the table; its end is --rows or --grid."
    ),
    method: opt.Method = METHOD,
    bounds: opt.Bounds = opt.BOUNDS,
    levels: str = option("Levels of the bands.", default=DEFAULT_LEVELS),
    kind: Literal["predictive", "latent"] = option(
        "Posterior predictive, or latent loss without noise.", default="predictive"
    ),
    why: bool = option(
        "Take the variance of each row apart: law, parameters, discrepancy, effects, noise.",
        default=False,
    ),
    out: Path | None = output("Write the bands (CSV or Parquet).", *opt.TABLES),
    register: Path | None = output(
        "Register the forecast in a new file (JSON), for `bayeslaw verify`.",
        ".json",
        metavar="FILE",
    ),
    backtest: Path | None = opt.QUOTED,
    figure: Path | None = output("Draw the forecast (PNG, PDF or SVG).", *opt.FIGURES),
    accuracy: Path | None = option(
        "Pairs of loss and accuracy of measured models (CSV or Parquet), by task if there is a "
        "column task: forecasts accuracy too.",
        metavar="FILE",
    ),
    pairs: str | None = query("Pairs of --accuracy to use."),
    register_draws: int = option(
        "For --register: draws per row to store; the CRPS needs them.", default=0, min=0
    ),
    allow_unconverged: bool = opt.UNCONVERGED,
    beyond_evidence: bool = opt.BEYOND_EVIDENCE,
    seed: int = opt.SEED,
    sampling: opt.Sampling,
) -> Result | Shown:
    """Forecast losses with bands.

    From a table: fits the law to the --train rows and forecasts the --test rows. From a posterior:
    forecasts --rows or --grid. Measured losses, if there are any, are shown beside the bands. Each
    row is an interpolation, extrapolation or projection of the training rows; rows twice as far out
    as bands were ever tested are refused. --register writes the forecast to a file with its hash,
    before the losses are measured. A point fit (--method huber or map) has no bands; where starts
    with the same objective forecast different losses, their range is shown.
    """
    from bayeslaw.derive.downstream import read_pairs
    from bayeslaw.evaluate import registered
    from bayeslaw.evaluate.scores import shown_scores
    from bayeslaw.huber.point_fit import shown_points

    bands = opt.band_levels(levels)
    _refuse_unused(register, register_draws, method, kind, levels, accuracy, pairs)
    if why and method != "nuts":
        raise BayeslawError(f"--why takes bands apart, which --method {method} does not have.")
    measured = None if accuracy is None else read_pairs(accuracy, pairs, **choice.unit)
    if measured is not None and choice.rows is None and opt.is_posterior(source):
        choice = replace(choice, loss_unit=None, bytes_per_token=None)  # they are of the pairs
    tested = None if backtest is None else bl.read_backtest(backtest)
    fitted, rows = opt.fit_or_load(
        source, choice, method, sampling, seed, bounds, near=not beyond_evidence, running=running
    )
    # Rows too far out were refused above.
    fitted = fitted.accepted(unconverged=allow_unconverged, beyond_evidence=True)
    opt.save_figure(figure, lambda: bl.plots.forecast(fitted, rows, seed=seed))
    if isinstance(fitted, bl.PointFit):
        points = fitted.forecast(rows)
        opt.save_frame(out, points)
        title = f"Forecast of {rows}: point fit, nats per token"
        shown = replace(shown_points(points, fitted.columns), title=title)
        scores = shown_scores(bl.score(fitted, rows)) if "loss" in rows.frame else NO_SCORES
        whole = opt.beside(fitted, shown + scores, choice, rows)
        return whole.adding(out=out, **opt.how(method, sampling), seed=seed)
    predicted = fitted.forecast(rows, kind=kind, seed=seed)
    if out is not None:
        predicted.write(out, bands)
    sha256, notes = None, []
    if register is not None:
        sha256 = registered.register(predicted, register, draws=register_draws)
        notes = [f"registered {register}, SHA-256 {sha256}"]
    quoted = None if tested is None else tested.looking(fitted.table, rows.frame)
    shown = predicted.shown(bands, why=why)
    title = f"Forecast of {rows}:{shown.title.partition(':')[2]}"
    whole = replace(shown, title=title)
    whole += shown_scores(bl.score(predicted, rows)) if "loss" in rows.frame else NO_SCORES
    if measured is not None:
        found = bl.derive.accuracy(predicted, measured, seed=seed).shown(bands)
        whole += replace(found, title="Accuracy", document={"accuracy": found.document})
    if quoted is not None:
        whole += Shown(blocks=[quoted])
    document = {"backtest": quoted, "register": register, "sha256": sha256}
    return Result(opt.beside(fitted, whole, choice, rows).adding(out=out, **document), notes)


def _refuse_unused(
    register: Path | None,
    register_draws: int,
    method: str,
    kind: str,
    levels: str,
    accuracy: Path | None,
    pairs: str | None,
) -> None:
    """Refuse options that have no effect on what is asked."""
    from bayeslaw.evaluate import registered

    if register is not None:
        registered.check_new(register, register_draws)
        if method != "nuts":
            raise BayeslawError(f"--register needs bands, which --method {method} does not have.")
        if kind != "predictive":
            raise BayeslawError("--register needs --kind predictive: measured losses have noise.")
    else:
        opt.refuse("without --register", register_draws=register_draws > 0)
    if method != "nuts" and (levels, kind) != (DEFAULT_LEVELS, "predictive"):
        raise BayeslawError(f"--levels and --kind have no effect on --method {method}.")
    if accuracy is None:
        opt.refuse("without --accuracy", pairs=pairs)
    elif method != "nuts" or kind != "predictive":
        how = f"--method {method}" if method != "nuts" else f"--kind {kind}"
        raise BayeslawError(f"--accuracy has no effect on {how}.")


@command(
    """bayeslaw forecast fit.nc --rows planned.csv --register planned.json
bayeslaw verify planned.json measured.csv""",
    "bayeslaw verify planned.json",
)
def verify(
    *,
    file: Path = argument("File written by `bayeslaw forecast --register`."),
    measured: Path | None = argument("Losses measured so far, CSV or Parquet.", default=None),
    reading: opt.Reading,
    sha256: str | None = option("Hash that was published when the forecast was registered."),
    tolerance: float = option(
        "Largest relative difference of a planned and a measured covariate.",
        default=COVARIATE_TOLERANCE,
    ),
) -> Shown:
    """Check a registered forecast, and score it on the losses measured so far.

    Stops if the forecast was edited. Measured rows are matched to the forecast's by covariates and
    labels; rows that are still missing, and rows that were not forecast, are named. The scores are
    appended to the file; without a table of losses nothing is scored or written.
    """
    import numpy as np
    import pandas as pd

    from bayeslaw.tables.validation import row_numbers

    if measured is None:
        opt.refuse("without a table of losses", **vars(reading))
    losses = None if measured is None else reading.table(measured)
    verified = bl.verify(file, losses, sha256=sha256, tolerance=tolerance)
    shown = verified.shown()
    if losses is None:
        return shown.adding(file=str(file), measured=None)
    if verified.extra:
        where = row_numbers(pd.Series(np.isin(np.arange(len(losses)), verified.extra)))
        shown += Shown(blocks=[f"Not forecast: {where} of {losses.name}."])
    return shown.adding(file=str(file), measured=losses.name)


@command(
    "bayeslaw backtest data/delphi/isotoken.csv --law chinchilla --rivals none",
    "bayeslaw backtest losses.csv --law form1 --along ptpp --figure backtest.png",
)
def backtest(
    *,
    table: Path = opt.LOSS_TABLE,
    law: str | None = opt.LAW,
    source_table: Path | None = opt.SOURCE_TABLE,
    reading: opt.Reading,
    along: Literal["flops", "params", "tokens", "ptpp"] = option(
        "Quantity that the table is cut along; FLOPs are 6 N D.", default="flops"
    ),
    cuts: str | None = option("Cuts; by default at most five of the table.", metavar="VALUE,..."),
    rivals: str | None = option(
        "Other models: discrepancies (none, curvature, walk, trend) or laws.", metavar="NAME,..."
    ),
    jobs: int = option("Processes.", default=1, min=1),
    figure: Path | None = output("Draw errors by distance (PNG, PDF or SVG).", *opt.FIGURES),
    out: Path | None = output(
        "Write the rows (CSV or Parquet); other commands quote them.", *opt.TABLES
    ),
    seed: int = opt.SEED,
    sampling: opt.Sampling,
) -> Shown:
    """Forecast, at earlier cuts of a table, the rows that came later.

    At each cut only the rows up to it are fitted. The table shows what the bands held and how large
    the errors were, by how far ahead the rows lay.
    """
    losses = reading.table(table, source_table)
    others: dict[str, dict[str, Any]] = {
        name: {"discrepancy": name} if name in RIVALS else {"law": name}
        for name in opt.names(rivals or "")
    }
    result = bl.backtest(
        losses,
        opt.required(law, losses),
        along=along,
        cuts=None if cuts is None else opt.numbers(cuts, "--cuts"),
        rivals=others,
        seed=seed,
        jobs=jobs,
        **asdict(sampling),
    )
    if out is not None:
        result.write(out)
    opt.save_figure(figure, lambda: bl.plots.backtest(result))
    return result.shown().adding(seed=seed, out=out)


@command(
    """bayeslaw score data/delphi/isotoken.csv --law chinchilla --method huber \\
    --train "scale <= 3e20" --test "scale >= 1e21\"""",
    "bayeslaw score fit.nc --rows measured.csv",
)
def score(
    *,
    source: Path = opt.SOURCE,
    choice: opt.Selection,
    method: opt.Method = METHOD,
    bounds: opt.Bounds = opt.BOUNDS,
    allow_unconverged: bool = opt.UNCONVERGED,
    seed: int = opt.SEED,
    sampling: opt.Sampling,
) -> Shown:
    """Score a fit on measured losses."""
    from bayeslaw.evaluate.scores import shown_scores
    from bayeslaw.huber.point_fit import shown_points

    fitted, rows = opt.fit_or_load(source, choice, method, sampling, seed, bounds, measured=True)
    fitted = fitted.accepted(unconverged=allow_unconverged)
    scores = bl.score(fitted, rows, seed=seed)
    shown = replace(shown_scores(scores), title=f"Scores on {rows}").adding(rows=len(rows))
    if isinstance(fitted, bl.PointFit):
        points = fitted.forecast(rows)
        spread = float((points["highest"] / points["lowest"] - 1).max())
        shown = replace(
            shown, blocks=[*shown.blocks, *shown_points(points, fitted.columns).blocks[1:]]
        )
        shown = shown.adding(spread=spread)
    shown = opt.beside(fitted, shown, choice, rows)
    if not opt.is_posterior(source):
        shown = shown.adding(**opt.how(method, sampling), seed=seed)
    return shown


@command(
    """bayeslaw compare french.csv --source english.csv --train "ptpp <= 31" \\
    --test "ptpp == 279" --anchors "ptpp == 279 and params < 3e8\"""",
)
def compare(
    *,
    table: Path = opt.LOSS_TABLE,
    source: Path | None = option("Loss table of the source domain."),
    reading: opt.Reading,
    train: str | None = opt.TRAIN,
    test: str | None = opt.TEST,
    anchors: str | None = query("Test rows to add to the training rows."),
    laws: str = option(
        f"Laws, separated by commas: {opt.LAWS}, or paths.", default="form1,form2,form3,dcpt"
    ),
    method: Literal["huber", "nuts"] = option(
        "Huber fits, or posteriors with bands.", default="huber"
    ),
    bounds: opt.Bounds = opt.BOUNDS,
    allow_unconverged: bool = opt.UNCONVERGED,
    seed: int = opt.SEED,
    sampling: opt.Sampling,
) -> Shown:
    """Compare several laws on one split, in each domain.

    Each law is fitted to the --train rows and the --anchors and scored on the other --test rows.
    dcpt, which has no pre-training budget among its covariates, is fitted twice: to the --train
    rows without anchors (transfer), and to all --test rows, on which it is also scored (oracle).
    The table has the numbers of rows fitted and scored.
    """
    from bayeslaw.evaluate.scores import shown_comparison
    from bayeslaw.laws.steps import Departure
    from bayeslaw.tables.table import is_synthetic

    names = opt.names(laws, "--laws", "law")
    if method == "huber":
        opt.refuse("on a Huber fit", **sampling.given("delta"))
    starts = source if any(bl.load_law(name).step(Departure) for name in names) else None
    if source is not None:
        opt.refuse("beside --source, which says it", role=reading.role)
        reading = replace(reading, role="target")
    losses = reading.table(table, starts)
    other = None if source is None else replace(reading, role="source").table(source, starts)
    queries = {"train": train, "test": test, "anchors": anchors}
    splits = [domain.split(**queries) for domain in (losses, other) if domain is not None]
    scores = opt.compared(
        losses,
        names,
        method,
        sampling,
        bounds,
        source=other,
        **queries,
        seed=seed,
        unconverged=allow_unconverged,
    )
    used = " or ".join(query for query in (train, anchors) if query)
    synthetic = any(is_synthetic(rows) for pair in splits for rows in pair)
    blocks: list[Block] = [Note(SYNTHETIC, "synthetic")] * synthetic
    for fitted, held_out in splits:
        rows = replace(fitted, selection=fitted.selection or used)
        blocks += [f"fitted to {rows}", f"scored on {held_out}"]
    document: dict[str, object] = {
        **queries,
        "table": splits[0][0].name,
        "source": splits[1][0].name if len(splits) > 1 else None,
        "method": method,
        **({"bounds": bounds} if method == "huber" else {}),
        "seed": seed,
        "rows_train": sum(len(fitted) for fitted, _ in splits),
        "rows_test": sum(len(held_out) for _, held_out in splits),
        "synthetic": synthetic,
    }
    return Shown("Laws compared", blocks, document) + replace(shown_comparison(scores), title="")
