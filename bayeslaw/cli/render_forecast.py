"""Render forecasts, scores and comparisons of laws: text for a terminal and a JSON document."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd
from rich.markup import escape
from rich.table import Table

from bayeslaw.cli.render import chosen, describe, heading, labelled
from bayeslaw.cli.terminal import Block, Document, Rendered, ruled
from bayeslaw.common.formatting import count, digits
from bayeslaw.evaluate.backtesting import Backtest
from bayeslaw.evaluate.forecast import Forecast
from bayeslaw.evaluate.scores import BANDS, POINT, row_name
from bayeslaw.evaluate.scores import score as score_of
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.hull import in_words
from bayeslaw.tables.reading import is_synthetic
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import COVARIATES

BACKTEST = ("rows", "error", "bias", "in 50 %", "in 80 %", "in 90 %", "width")
"""Columns of a backtest's tables."""
MAX_ROWS = 60
"""Rows shown in a terminal; --json and --out have all."""


def forecast(
    fitted: Posterior | Pool,
    predicted: Forecast,
    rows: LossTable,
    levels: Sequence[float],
    train: str | None,
    test: str | None,
    backtest: str | None = None,
) -> Rendered:
    """Render median and bands of each row; with measured losses also the scores."""
    measured = "loss" in rows.frame
    frame = predicted.to_frame(levels)
    names = [f"{100 * level:g}" for level in levels]
    if measured:
        for n in names:
            frame[f"inside_{n}"] = frame["loss"].between(frame[f"lower_{n}"], frame[f"upper_{n}"])
    scores = score_of(predicted, rows) if measured else None
    document = describe(fitted, train) | {
        "test": test,
        "kind": predicted.kind,
        "levels": list(levels),
        "positions": in_words(predicted.positions),
        "rows": frame.to_dict("records"),
        "scores": None if scores is None else scores.to_dict(),
        "backtest": backtest,
    }
    document["synthetic"] = document["synthetic"] or is_synthetic(rows)
    covariates = _covariates(fitted, rows)
    kind = "posterior predictive" if predicted.kind == "predictive" else "latent loss"
    title = f"Forecast of {chosen(rows, test, fitted.table)}: {kind}, nats per token"
    constant = {c: v for c, v in _constants(frame[covariates]).items() if len(frame) > 1}
    varying = [c for c in covariates if c not in constant]
    # Widest first; the terminal shows the first that fits.
    mixed = ["position"] * (frame["position"].nunique() > 1)
    distances = [c for c in ("efolds", "decades") if frame[c].any() and frame[c].notna().any()]
    places = [[*mixed, *distances], [*mixed, *distances[-1:]], mixed]
    shown = [*product([True, False] if measured else [False], places), (False, [])]
    tables = [bands_table(frame, varying, names, error, place) for error, place in shown]
    blocks: list[Block] = [*heading(fitted, train), "", f"[bold]{escape(title)}[/]"]
    if constant:
        blocks.append("all at " + ", ".join(f"{c} {count(v)}" for c, v in constant.items()))
    blocks += [escape(f"{in_words(predicted.positions)}."), tables]
    if len(frame) > MAX_ROWS:
        blocks.append(_more(frame))
    if scores is not None:
        blocks += ["", inside(frame, names), "", score_table(scores)]
    if backtest is not None:
        blocks += ["", escape(backtest)]
    return Rendered(document, labelled(document, blocks))


def score(
    fitted: Posterior | Pool | PointFit,
    rows: LossTable,
    scores: pd.Series,
    train: str | None,
    test: str | None,
    how: str = "",
) -> Rendered:
    """Render the scores of a fit on measured rows."""
    document = describe(fitted, train) | {
        "test": test,
        "rows": len(rows),
        "scores": scores.to_dict(),
    }
    document["synthetic"] = document["synthetic"] or is_synthetic(rows)
    title = f"[bold]{escape(f'Scores on {chosen(rows, test, fitted.table)}')}[/]"
    blocks: list[Block] = [*heading(fitted, train, how), "", title, score_table(scores)]
    if isinstance(fitted, PointFit):
        lowest, highest = fitted.span(rows)
        document["spread"] = float((highest / lowest - 1).max())
        blocks += _not_unique(fitted.forecast(rows))
    return Rendered(document, labelled(document, blocks))


def point_forecast(
    fitted: PointFit, rows: LossTable, train: str | None, test: str | None, how: str
) -> Rendered:
    """Render the prediction of each row, and its range over the starts that agree."""
    frame, measured = fitted.forecast(rows), "loss" in rows.frame
    scores = score_of(fitted, rows) if measured else None
    document = describe(fitted, train) | {
        "test": test,
        "rows": frame.to_dict("records"),
        "scores": None if scores is None else scores.to_dict(),
    }
    document["synthetic"] = document["synthetic"] or is_synthetic(rows)
    covariates = _covariates(fitted, rows)
    table = ruled(*covariates, *["loss"] * measured, "prediction", *["error"] * measured, "range")
    table.columns[0].justify = "right"
    for _, row in frame.head(MAX_ROWS).iterrows():
        cells = [count(row[c]) for c in covariates]
        cells += [f"{row['loss']:.4f}"] if measured else []
        cells += [f"{row['prediction']:.4f}"]
        cells += [f"{100 * (row['prediction'] / row['loss'] - 1):+.1f} %"] if measured else []
        cells += ["" if row["unique"] else f"{row['lowest']:.4f}–{row['highest']:.4f}"]
        table.add_row(*cells)
    title = f"Forecast of {chosen(rows, test, fitted.table)}: point fit, nats per token"
    blocks: list[Block] = [*heading(fitted, train, how), "", f"[bold]{escape(title)}[/]", [table]]
    if len(frame) > MAX_ROWS:
        blocks.append(_more(frame))
    blocks += _not_unique(frame)
    blocks += ["", score_table(scores)] if scores is not None else []
    return Rendered(document, labelled(document, blocks))


def compare(
    scores: pd.DataFrame,
    splits: Sequence[tuple[LossTable, LossTable]],
    method: str,
    bounds: str,
    queries: Mapping[str, str | None],
    seed: int,
) -> Rendered:
    """Render the table of a comparison, one row per law, or per domain and law."""
    document: Document = {
        **queries,
        "table": splits[0][0].name,
        "source": splits[1][0].name if len(splits) > 1 else None,
        "method": method,
        **({"bounds": bounds} if method == "huber" else {}),
        "seed": seed,
        "rows_train": sum(len(fitted) for fitted, _ in splits),
        "rows_test": sum(len(held_out) for _, held_out in splits),
        "synthetic": any(is_synthetic(rows) for pair in splits for rows in pair),
        "laws": scores.reset_index().to_dict("records"),
    }
    used = " or ".join(query for name in ("train", "anchors") if (query := queries[name]))
    blocks: list[Block] = [
        escape(
            f"fitted to {chosen(fitted, used)}\n"
            f"scored on {chosen(held_out, queries['test'], fitted)}"
        )
        for fitted, held_out in splits
    ]
    short = [name for name in POINT if name != "mape_clip"]  # where losses exceed CLIP, mae_rel
    blocks += ["", [_laws(scores, columns, ("rows", "scored")) for columns in (POINT, short)]]
    if method == "nuts":
        blocks += ["", [_laws(scores, BANDS)]]
    notes = [f"{row_name(law)}: {row['note']}" for law, row in scores.iterrows() if row["note"]]
    blocks += ["", *(f"[yellow]Note[/] {escape(text)}" for text in notes)] if notes else []
    return Rendered(document, labelled(document, blocks))


def backtest(found: Backtest) -> Rendered:
    """Render a backtest: one sentence, and scores by model and by distance."""
    whole = found.summary().rename_axis("model").reset_index().to_dict("records")
    by_distance = found.by_distance().reset_index().to_dict("records")
    failed = found.rows[found.rows["gate"] != "passed"]
    document: Document = {
        "table": found.name,
        "along": found.along,
        "sentence": found.sentence(),
        "models": whole,
        "by_distance": by_distance,
        "rows": found.rows.to_dict("records"),
    }
    ahead = ruled("", "decades ahead", *BACKTEST)
    for row in by_distance:
        least, most = (f"{row[name]:g}" for name in ("least", "most"))
        far = f"over {least}" if most == "inf" else f"{least} to {most}"
        ahead.add_row(row["model"], far, *_backtested(row))
    total = ruled("", *BACKTEST)
    for row in whole:
        total.add_row(row["model"], *_backtested(row))
    blocks: list[Block] = [found.sentence(), "", [total], "", [ahead]]
    blocks.append(
        "error: median absolute error; bias: mean error, positive where the forecast is too high; "
        "width: of the 90 % band; all of log loss."
    )
    for (model, cut), rows in failed.groupby(["model", "cut"], sort=False):
        gate = escape(rows["gate"].iloc[0])
        blocks.append(f"[bold red]NOT CONVERGED[/]: {escape(str(model))} at {cut:.4g}: {gate}.")
    return Rendered(document, blocks)


def _backtested(row: Mapping[Any, Any]) -> list[str]:
    percent = [f"{100 * row[name]:.2g} %" for name in ("error", "bias")]
    inside = [f"{row[f'coverage_{level}']:.2f}" for level in (50, 80, 90)]
    return [f"{row['rows']:.0f}", *percent, *inside, f"{100 * row['width_90']:.2g} %"]


# -- tables ---------------------------------------------------------------------------------------


def bands_table(
    frame: pd.DataFrame,
    covariates: list[str],
    names: list[str],
    error: bool,
    place: Sequence[str] = (),
) -> Table:
    """Return a table of medians and bands, with errors and the columns `place` if asked."""
    measured = "loss" in frame
    narrow = min(float((frame[f"upper_{n}"] - frame[f"lower_{n}"]).min()) for n in names)
    places = min(max(3, 1 - math.floor(math.log10(narrow))), 6) if narrow > 0 else 4
    heads = [*covariates, *["loss"] * measured, "median", *["error"] * error]
    table = ruled(heads[0], *heads[1:])
    table.columns[0].justify = "right"
    for n in names:
        table.add_column(f"{n} % band", justify="right", no_wrap=True)
        if measured:
            table.add_column("", no_wrap=True)
    for c in place:
        head = {"efolds": "e-folds", "decades": "decades\nof FLOPs"}.get(c, c)
        table.add_column(head, justify="left" if c == "position" else "right", no_wrap=True)
    for _, row in frame.head(MAX_ROWS).iterrows():
        cells = [count(row[c]) for c in covariates]
        cells += [f"{row['loss']:.{places}f}"] if measured else []
        cells += [f"{row['median']:.{places}f}"]
        cells += [f"{100 * (row['median'] / row['loss'] - 1):+.1f} %"] if error else []
        for n in names:
            cells.append(f"{row[f'lower_{n}']:.{places}f}–{row[f'upper_{n}']:.{places}f}")
            if measured:
                cells.append("[green]in[/]" if row[f"inside_{n}"] else "[red]out[/]")
        cells += [row[c] if c == "position" else f"{row[c]:.2f}" for c in place]
        table.add_row(*cells)
    return table


def inside(frame: pd.DataFrame, names: list[str]) -> str:
    """Return how many measured losses lie inside each band, in words."""
    counts = [f"{int(frame[f'inside_{n}'].sum())} in the {n} % band" for n in names]
    return f"Of {len(frame)} measured losses, {' and '.join(counts)}."


def _laws(scores: pd.DataFrame, columns: Sequence[str], counts: Sequence[str] = ()) -> Table:
    """Return a row of scores for each law, below the name of its domain if there are several."""
    table = ruled("law", *(name.replace("_", "\n") for name in (*columns, *counts)))
    above = None
    for law, row in scores.iterrows():
        cells = [*(digits(row[c]) for c in columns), *(str(row[c]) for c in counts)]
        if isinstance(law, tuple):
            domain, name = law
            if domain != above:
                table.add_row(f"[bold]{escape(domain)}[/]")
            above, law = domain, f"  {name}"
        table.add_row(escape(str(law)), *cells)
    return table


def _not_unique(frame: pd.DataFrame) -> list[Block]:
    """Return a sentence on the range of a point fit's forecasts; none if they are unique."""
    if frame["unique"].all():
        return []
    spread = 100 * (frame["highest"] / frame["lowest"] - 1)
    return [
        "[bold red]Not unique[/]: starts that agree forecast losses that differ by "
        f"{spread.mean():.2g} % on average over these rows, by {spread.max():.2g} % at most."
    ]


def _more(frame: pd.DataFrame) -> str:
    return f"[dim]... and {len(frame) - MAX_ROWS} more rows: use --json or --out for all.[/]"


def score_table(scores: pd.Series) -> Table:
    """Return a table of point scores and, if there are any, scores of bands."""
    banded = scores[list(BANDS)].notna().any()
    table = Table.grid(padding=(0, 2))
    for side in range(2 if banded else 1):
        table.add_column(min_width=11)
        table.add_column(justify="right", min_width=12 - 4 * side)
    for left, right in zip(POINT, BANDS, strict=True):
        cells = [left, digits(scores[left])]
        table.add_row(*cells, *([right, digits(scores[right])] if banded else []))
    return table


def _covariates(fitted: Posterior | Pool | PointFit, rows: LossTable) -> list[str]:
    laws = [m.law for m, *_ in fitted.parts()] if isinstance(fitted, Pool) else [fitted.law]
    used = [*fitted.columns, *(["unique_tokens"] if any(law.repetition for law in laws) else [])]
    return [c for c in (*COVARIATES, "unique_tokens") if c in used and c in rows.frame]


def _constants(frame: pd.DataFrame) -> dict[str, float]:
    return {str(c): float(frame[c].iloc[0]) for c in frame if frame[c].nunique() == 1}
