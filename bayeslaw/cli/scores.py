"""Commands that score: ``backtest | score | compare``."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import bayeslaw as bl
from bayeslaw.cli import options as opt
from bayeslaw.cli import sources
from bayeslaw.cli.app import command
from bayeslaw.cli.options import option, output, query
from bayeslaw.cli.parsing import Laws, Numbers
from bayeslaw.common.shown import SYNTHETIC, Block, Note, Shown
from bayeslaw.inference.settings import FitSettings


@command(
    "bayeslaw backtest data/delphi/example.csv --law chinchilla --rivals none",
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
    cuts: Numbers = option(
        "Rows up to each are fitted, those beyond are forecast; by default at most five of the "
        "quantity's values, with at least 8 rows at two or more sizes before each and one after "
        "it.",
        metavar="VALUE,...",
    ),
    rivals: Laws = option(
        "Other models: laws, or none, curvature, walk, adaptation, from_base.",
        metavar="NAME,...",
    ),
    jobs: int = option("Number of processes.", default=1, min=1),
    figure: Path | None = output(
        "Draw errors by distance (PNG, PDF or SVG).", *opt.FIGURES
    ),
    out: Path | None = output(
        "Write the rows (CSV or Parquet); other commands quote them.", *opt.TABLES
    ),
    sampling: FitSettings,
) -> Shown:
    """Forecast, at earlier cuts of a table, the rows that came later.

    At each cut only the rows up to it are fitted. The table shows what the bands held and how large
    the errors were, by how far ahead the rows lay.
    """
    from bayeslaw.model.discrepancy import DISCREPANCIES

    losses = reading.table(table, source_table)
    result = bl.backtest(
        losses,
        sources.required(law, losses),
        along=along,
        cuts=cuts or None,
        rivals={n: {"discrepancy" if n in DISCREPANCIES else "law": n} for n in rivals},
        jobs=jobs,
        **sampling.arguments(),
    )
    if out is not None:
        result.write(out)
    sources.save_figure(figure, lambda: bl.plots.backtest(result))
    return result.shown().adding(seed=sampling.seed, out=out)


@command(
    """bayeslaw score data/delphi/example.csv --law chinchilla --method huber \\
    --train "scale <= 3e20" --test "scale >= 1e21\"""",
    "bayeslaw score fit.nc --rows measured.csv",
)
def score(
    *,
    source: Path = opt.SOURCE,
    choice: opt.Selection,
    accept: opt.Unconverged = opt.UNCONVERGED,
    fitting: opt.Fitting,
) -> Shown:
    """Score a fit on measured losses."""
    from bayeslaw.evaluate.scores import scored, shown_scores
    from bayeslaw.huber.point_fit import shown_points

    fitted, rows = sources.fit_or_load(source, choice, fitting, "measured")
    fitted = fitted.accepted(accept)
    scores = scored(fitted, rows, seed=fitting.seed)
    shown = replace(shown_scores(*scores), title=f"Scores on {rows}").adding(
        rows=len(rows)
    )
    if isinstance(fitted, bl.PointFit):
        points = fitted.forecast(rows)
        spread = float((points["highest"] / points["lowest"] - 1).max())
        of_points = shown_points(points, fitted.columns).blocks[1:]
        shown = replace(shown, blocks=[*shown.blocks, *of_points]).adding(spread=spread)
    shown = sources.beside(fitted, shown, choice, rows)
    return shown if sources.is_posterior(source) else shown.adding(**fitting.document())


@dataclass(frozen=True)
class Comparing(opt.Fitting):
    """How laws that are compared are fitted."""

    method: Literal["nuts", "huber"] = option(
        "Deterministic fits, or posteriors, whose bands are scored as well.",
        default="huber",
    )


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
    laws: Laws = option(
        f"Laws, separated by commas: {opt.LAWS}, or paths.",
        default="form1,form2,form3,dcpt",
    ),
    accept: opt.Unconverged = opt.UNCONVERGED,
    fitting: Comparing,
) -> Shown:
    """Compare several laws on one split, in each domain.

    Each law is fitted to the --train rows and the --anchors and scored on the other --test rows.
    dcpt, which has no pre-training budget among its covariates, is fitted twice: to the --train
    rows without anchors (transfer), and to all --test rows, on which it is also scored (oracle).
    The table has the numbers of rows fitted and scored.
    """
    from bayeslaw.evaluate.scores import shown_comparison
    from bayeslaw.laws.departure import Departure
    from bayeslaw.tables.table import is_synthetic

    settings = fitting.arguments() | {"method": fitting.method, "accepts": accept}
    starts = source if any(bl.load_law(name).step(Departure) for name in laws) else None
    if source is not None:
        opt.refuse("beside --source, which says it", "role")
        reading = replace(reading, role="target")
    target = reading.table(table, starts)
    other = (
        None
        if source is None
        else replace(reading, role="source").table(source, starts)
    )
    split: dict[str, Any] = {"train": train, "test": test, "anchors": anchors}
    scores = bl.compare(target, source=other, laws=laws, **settings, **split)
    synthetic = is_synthetic(target) or is_synthetic(other)
    document: dict[str, object] = {
        "table": target.name,
        "source": None if other is None else other.name,
        **split,
        **fitting.document(),
        "synthetic": synthetic,
    }
    blocks: list[Block] = []
    if synthetic:
        blocks.append(Note(SYNTHETIC, "synthetic"))
    head = Shown("Laws compared", blocks, document)
    return head + replace(shown_comparison(scores), title="")
