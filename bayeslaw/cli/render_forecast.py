"""What the command line says of forecasts, their scores, and laws compared by them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich.markup import escape
from rich.table import Table

from bayeslaw.cli.render import about, heading, labelled, where
from bayeslaw.cli.terminal import Told, ruled
from bayeslaw.common.formatting import count, digits
from bayeslaw.evaluate.forecast import Forecast
from bayeslaw.evaluate.scores import BANDS, POINT
from bayeslaw.evaluate.scores import score as score_of
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.reading import is_synthetic
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import COVARIATES

MOST = 60
"""Rows shown in a terminal; JSON and --out hold all."""


def forecast(
    fitted: Posterior,
    predicted: Forecast,
    rows: LossTable,
    levels: Sequence[float],
    train: str | None,
    test: str | None,
) -> Told:
    """Median and bands of each row, beside the measured loss; scores where there is one."""
    measured = "loss" in rows.frame
    frame = predicted.to_frame(levels)
    names = [f"{100 * level:g}" for level in levels]
    if measured:
        for n in names:
            frame[f"inside_{n}"] = frame["loss"].between(frame[f"lower_{n}"], frame[f"upper_{n}"])
    scores = score_of(predicted, rows) if measured else None
    document = about(fitted, train) | {
        "test": test,
        "kind": predicted.kind,
        "levels": list(levels),
        "rows": frame.to_dict("records"),
        "scores": None if scores is None else scores.to_dict(),
    }
    document["synthetic"] = document["synthetic"] or is_synthetic(rows)
    mine = _mine(fitted, rows)
    noise = "with" if predicted.kind == "predictive" else "without"
    chosen = where(rows, test, fitted.table)
    title = f"Forecast of {chosen}, nats per token, {noise} measurement noise"
    constant = {c: v for c, v in _constants(frame[mine]).items() if len(frame) > 1}
    varying = [c for c in mine if c not in constant]
    tables = [
        _bands(frame, varying, names, error) for error in ((True, False) if measured else (False,))
    ]
    parts: list[Any] = [*heading(fitted, train), "", f"[bold]{escape(title)}[/]"]
    if constant:
        parts.append("all at " + ", ".join(f"{c} {count(v)}" for c, v in constant.items()))
    parts.append(tables)
    if len(frame) > MOST:
        parts.append(f"[dim]... and {len(frame) - MOST} more rows: --json or --out has all.[/]")
    if scores is not None:
        parts += "", _verdict(frame, names), "", _scores(scores)
    return Told(document, labelled(document, parts))


def score(
    fitted: Posterior | PointFit,
    rows: LossTable,
    scores: pd.Series,
    train: str | None,
    test: str | None,
    how: str = "",
) -> Told:
    """Scores of a fit on measured rows."""
    document = about(fitted, train) | {"test": test, "rows": len(rows), "scores": scores.to_dict()}
    document["synthetic"] = document["synthetic"] or is_synthetic(rows)
    title = f"[bold]{escape(f'Scores on {where(rows, test, fitted.table)}')}[/]"
    parts = [*heading(fitted, train, how), "", title, _scores(scores)]
    return Told(document, labelled(document, parts))


def compare(
    scores: pd.DataFrame,
    fitted: LossTable,
    held: LossTable,
    method: str,
    queries: Mapping[str, str | None],
    seed: int,
) -> Told:
    """The paper's table: one row per law."""
    document = {
        **queries,
        "table": fitted.name,
        "method": method,
        "seed": seed,
        "rows_train": len(fitted),
        "rows_test": len(held),
        "synthetic": is_synthetic(fitted) or is_synthetic(held),
        "laws": scores.rename_axis("law").reset_index().to_dict("records"),
    }
    used = " or ".join(query for name in ("train", "anchors") if (query := queries[name]))
    split = f"fitted to {where(fitted, used)}\nscored on {where(held, queries['test'], fitted)}"
    point = ruled("law", *POINT)
    for law, row in scores.iterrows():
        point.add_row(str(law), *(digits(row[c]) for c in POINT))
    parts: list[Any] = [escape(split), "", [point]]
    if method == "nuts":
        heads = (c.replace("_", "\n") for c in BANDS)
        bands = ruled("law", *heads)
        for law, row in scores.iterrows():
            bands.add_row(str(law), *(digits(row[c]) for c in BANDS))
        parts += ["", [bands]]
    notes = [f"{law}: {row['note']}" for law, row in scores.iterrows() if row["note"]]
    parts += ["", *(f"[yellow]Note[/] {escape(text)}" for text in notes)] if notes else []
    return Told(document, labelled(document, parts))


# -- tables ---------------------------------------------------------------------------------------


def _bands(frame: pd.DataFrame, covariates: list[str], names: list[str], error: bool) -> Table:
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
    for _, row in frame.head(MOST).iterrows():
        cells = [count(row[c]) for c in covariates]
        cells += [f"{row['loss']:.{places}f}"] if measured else []
        cells += [f"{row['median']:.{places}f}"]
        cells += [f"{100 * (row['median'] / row['loss'] - 1):+.1f} %"] if error else []
        for n in names:
            cells.append(f"{row[f'lower_{n}']:.{places}f}–{row[f'upper_{n}']:.{places}f}")
            if measured:
                cells.append("[green]in[/]" if row[f"inside_{n}"] else "[red]out[/]")
        table.add_row(*cells)
    return table


def _verdict(frame: pd.DataFrame, names: list[str]) -> str:
    held = [f"{int(frame[f'inside_{n}'].sum())} in the {n} % band" for n in names]
    return f"Of {len(frame)} measured losses, {' and '.join(held)}."


def _scores(scores: pd.Series) -> Table:
    banded = scores[list(BANDS)].notna().any()
    table = Table.grid(padding=(0, 2))
    for side in range(2 if banded else 1):
        table.add_column(min_width=11)
        table.add_column(justify="right", min_width=12 - 4 * side)
    for left, right in zip(POINT, BANDS, strict=True):
        cells = [left, digits(scores[left])]
        table.add_row(*cells, *([right, digits(scores[right])] if banded else []))
    return table


def _mine(fitted: Posterior, rows: LossTable) -> list[str]:
    return [c for c in COVARIATES if c in fitted.law.columns and c in rows.frame]


def _constants(frame: pd.DataFrame) -> dict[str, float]:
    return {str(c): float(frame[c].iloc[0]) for c in frame if frame[c].nunique() == 1}
