"""Commands that score: ``backtest | score | compare``."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import bayeslaw as bl
from bayeslaw.cli import options as opt
from bayeslaw.cli import parsing, sources
from bayeslaw.cli.app import command
from bayeslaw.cli.options import as_in, option, output, query
from bayeslaw.common.shown import SYNTHETIC, Note, Shown

DISCREPANCIES = ("none", "curvature", "walk", "trend", "adaptation")
"""Names of rivals; any other rival is a law."""


@dataclass(frozen=True)
class Comparing(opt.Fitting):
    """How laws that are compared are fitted."""

    method: Literal["nuts", "huber"] = as_in("compare", default="huber")


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
    along: Literal["flops", "params", "tokens", "ptpp"] = as_in("backtest", default="flops"),
    cuts: str | None = as_in("backtest", metavar="VALUE,..."),
    rivals: str | None = option(
        "Other models: discrepancies (none, curvature, walk, trend) or laws.", metavar="NAME,..."
    ),
    jobs: int = as_in("backtest", default=1, min=1),
    figure: Path | None = output("Draw errors by distance (PNG, PDF or SVG).", *opt.FIGURES),
    out: Path | None = output(
        "Write the rows (CSV or Parquet); other commands quote them.", *opt.TABLES
    ),
    sampling: opt.Sampling,
) -> Shown:
    """Forecast, at earlier cuts of a table, the rows that came later.

    At each cut only the rows up to it are fitted. The table shows what the bands held and how large
    the errors were, by how far ahead the rows lay.
    """
    losses = reading.table(table, source_table)
    result = bl.backtest(
        losses,
        sources.required(law, losses),
        along=along,
        cuts=parsing.numbers(cuts, "--cuts") or None,
        rivals={
            name: {"discrepancy" if name in DISCREPANCIES else "law": name}
            for name in parsing.names(rivals or "")
        },
        jobs=jobs,
        **sampling.settings(),
    )
    if out is not None:
        result.write(out)
    opt.save_figure(figure, lambda: bl.plots.backtest(result))
    return result.shown().adding(seed=sampling.seed, out=out)


@command(
    """bayeslaw score data/delphi/isotoken.csv --law chinchilla --method huber \\
    --train "scale <= 3e20" --test "scale >= 1e21\"""",
    "bayeslaw score fit.nc --rows measured.csv",
)
def score(
    *,
    source: Path = opt.SOURCE,
    choice: opt.Selection,
    allow_unconverged: bool = opt.UNCONVERGED,
    fitting: opt.Fitting,
) -> Shown:
    """Score a fit on measured losses."""
    from bayeslaw.evaluate.scores import shown_scores
    from bayeslaw.huber.point_fit import shown_points

    fitted, rows = sources.fit_or_load(source, choice, fitting, measured=True)
    fitted = fitted.accepted(unconverged=allow_unconverged)
    scores = bl.score(fitted, rows, seed=fitting.seed)
    shown = replace(shown_scores(scores), title=f"Scores on {rows}").adding(rows=len(rows))
    if isinstance(fitted, bl.PointFit):
        points = fitted.forecast(rows)
        spread = float((points["highest"] / points["lowest"] - 1).max())
        of_points = shown_points(points, fitted.columns).blocks[1:]
        shown = replace(shown, blocks=[*shown.blocks, *of_points]).adding(spread=spread)
    shown = opt.beside(fitted, shown, choice, rows)
    return shown if sources.is_posterior(source) else shown.adding(**fitting.document())


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
    allow_unconverged: bool = opt.UNCONVERGED,
    fitting: Comparing,
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

    names, settings = parsing.names(laws, "--laws", "law"), fitting.settings()
    starts = source if any(bl.load_law(name).step(Departure) for name in names) else None
    if source is not None:
        opt.refuse("beside --source, which says it", role=reading.role)
        reading = replace(reading, role="target")
    target = reading.table(table, starts)
    other = None if source is None else replace(reading, role="source").table(source, starts)
    settings |= {"train": train, "test": test, "anchors": anchors}
    settings |= {"method": fitting.method, "unconverged": allow_unconverged}
    scores = bl.compare(target, source=other, laws=names, **settings)
    synthetic = is_synthetic(target) or is_synthetic(other)
    document: dict[str, object] = {
        "table": target.name,
        "source": None if other is None else other.name,
        **{"train": train, "test": test, "anchors": anchors},
        **fitting.document(),
        "synthetic": synthetic,
    }
    head = Shown("Laws compared", [Note(SYNTHETIC, "synthetic")] * synthetic, document)
    return head + replace(shown_comparison(scores), title="")
