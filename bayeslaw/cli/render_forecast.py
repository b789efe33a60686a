"""Render forecasts and their scores, of fits, of registered forecasts and of several laws."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.markup import escape
from rich.table import Table

import bayeslaw as bl
from bayeslaw.checks.extrapolation import evidence
from bayeslaw.cli.render import chosen, describe, heading
from bayeslaw.cli.steps import Fitted
from bayeslaw.cli.terminal import Block, Document, Rendered, labelled, tables
from bayeslaw.common.formatting import count, digits
from bayeslaw.evaluate.scores import BANDS, POINT, row_name
from bayeslaw.inference.posterior import LEVELS
from bayeslaw.tables.hull import in_words
from bayeslaw.tables.table import is_synthetic
from bayeslaw.tables.validation import COVARIATES, row_numbers

BACKTEST = ("rows", "error", "bias", "in 50 %", "in 80 %", "in 90 %", "width")
"""Heads of a backtest's tables."""
MAX_ROWS = 60
"""Rows shown in a terminal; --json and --out have all."""


def forecast(
    fitted: bl.Posterior | bl.Pool,
    predicted: bl.Forecast,
    rows: bl.LossTable,
    levels: Sequence[float],
    train: str | None,
    test: str | None,
    backtest: str | None = None,
) -> Rendered:
    """Render median and bands of each row; with measured losses also the scores."""
    frame, names = predicted.to_frame(levels), _percents(levels)
    scores = bl.score(predicted, rows) if "loss" in rows.frame else None
    if scores is not None:
        for n in names:
            frame[f"inside_{n}"] = frame["loss"].between(frame[f"lower_{n}"], frame[f"upper_{n}"])
    far = evidence(predicted.positions, predicted.columns, beyond_evidence=True)[1]
    document = describe(fitted, train, rows) | {
        "test": test,
        "kind": predicted.kind,
        "evidence": far or None,
        "levels": list(levels),
        "positions": in_words(predicted.positions),
        "rows": frame.to_dict("records"),
        "scores": None if scores is None else scores.to_dict(),
        "backtest": backtest,
    }
    covariates = _covariates(fitted, rows)
    constant = {}
    if len(frame) > 1:
        constant = {c: frame[c].iloc[0] for c in covariates if frame[c].nunique() == 1}
    varying = [c for c in covariates if c not in constant]
    mixed = {"position": "position"} if frame["position"].nunique() > 1 else {}
    away = {"decades": "decades"} if frame["decades"].any() else {}
    kind = "posterior predictive" if predicted.kind == "predictive" else "latent loss"
    title = f"Forecast of {chosen(rows, test, fitted.table)}: {kind}, nats per token"
    blocks: list[Block] = [*heading(fitted, train), "", f"[bold]{escape(title)}[/]"]
    if constant:
        blocks.append("all at " + ", ".join(f"{c} {count(v)}" for c, v in constant.items()))
    blocks.append(escape(f"{in_words(predicted.positions)}."))
    blocks += [f"[red]{escape(far)}[/]"] if far else []
    heads = list(away.values())
    narrower = product([[], ["error"]], [[], heads[:-1], heads])
    left_out = [*([*error, *place] for error, place in narrower), ["error", "position", *heads]]
    blocks.append(_bands(frame, varying, names, left_out, mixed | away))
    blocks += _more(frame, "--json or --out")
    if scores is not None:
        blocks += ["", _inside(frame, names), "", _score_table(scores)]
    if backtest is not None:
        blocks += ["", escape(backtest)]
    return labelled(document, blocks)


def point_forecast(
    fitted: bl.PointFit, rows: bl.LossTable, train: str | None, test: str | None, how: str
) -> Rendered:
    """Render the prediction of each row, and its range over the starts that agree."""
    frame, measured = fitted.forecast(rows), "loss" in rows.frame
    scores = bl.score(fitted, rows) if measured else None
    document = describe(fitted, train, rows) | {
        "test": test,
        "rows": frame.to_dict("records"),
        "scores": None if scores is None else scores.to_dict(),
    }
    covariates = _covariates(fitted, rows)
    heads = [*covariates, *["loss"] * measured, "prediction", *["error"] * measured, "range"]
    lines = []
    for _, row in frame.head(MAX_ROWS).iterrows():
        spread = "" if row["unique"] else f"{row['lowest']:.4f}–{row['highest']:.4f}"
        lines.append([*_forecast(row, covariates, "prediction", 4), spread])
    title = f"Forecast of {chosen(rows, test, fitted.table)}: point fit, nats per token"
    blocks: list[Block] = [*heading(fitted, train, how), "", f"[bold]{escape(title)}[/]"]
    blocks += [tables(heads, lines, left=()), *_more(frame, "--json or --out"), *_not_unique(frame)]
    blocks += ["", _score_table(scores)] if scores is not None else []
    return labelled(document, blocks)


def score(
    fitted: Fitted,
    rows: bl.LossTable,
    scores: pd.Series,
    train: str | None,
    test: str | None,
    how: str = "",
) -> Rendered:
    """Render the scores of a fit on measured rows."""
    document = describe(fitted, train, rows) | {
        "test": test,
        "rows": len(rows),
        "scores": scores.to_dict(),
    }
    title = f"[bold]{escape(f'Scores on {chosen(rows, test, fitted.table)}')}[/]"
    blocks: list[Block] = [*heading(fitted, train, how), "", title, _score_table(scores)]
    if isinstance(fitted, bl.PointFit):
        lowest, highest = fitted.span(rows)
        document["spread"] = float((highest / lowest - 1).max())
        blocks += _not_unique(fitted.forecast(rows))
    return labelled(document, blocks)


def compare(
    scores: pd.DataFrame,
    splits: Sequence[tuple[bl.LossTable, bl.LossTable]],
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
    blocks += ["", _laws(scores, POINT, ("rows", "scored"))]
    if method == "nuts":
        blocks += ["", _laws(scores, BANDS)]
    notes = [f"{row_name(law)}: {row['note']}" for law, row in scores.iterrows() if row["note"]]
    blocks += ["", *(f"[yellow]Note[/] {escape(text)}" for text in notes)] if notes else []
    return labelled(document, blocks)


def backtest(found: "bl.Backtest") -> Rendered:
    """Render a backtest: one sentence, and scores by model and by distance."""
    whole = found.summary().rename_axis("model").reset_index().to_dict("records")
    by_distance = found.by_distance().reset_index().to_dict("records")
    document: Document = {
        "table": found.name,
        "along": found.along,
        "sentence": found.sentence(),
        "models": whole,
        "by_distance": by_distance,
        "rows": found.rows.to_dict("records"),
    }
    ahead = []
    for row in by_distance:
        least, most = (f"{row[name]:g}" for name in ("least", "most"))
        far = f"over {least}" if most == "inf" else f"{least} to {most}"
        ahead.append([row["model"], far, *_backtested(row)])
    total = tables(("", *BACKTEST), [[row["model"], *_backtested(row)] for row in whole])
    blocks: list[Block] = [found.sentence(), "", total, ""]
    blocks += [
        tables(("", "decades ahead", *BACKTEST), ahead),
        "error: median absolute error; bias: mean error, positive where the forecast is too high; "
        "width: of the 90 % band; all of log loss.",
    ]
    failed = found.rows[found.rows["gate"] != "passed"]
    for (model, cut), rows in failed.groupby(["model", "cut"], sort=False):
        gate = escape(rows["gate"].iloc[0])
        blocks.append(f"[bold red]NOT CONVERGED[/]: {escape(str(model))} at {cut:.4g}: {gate}.")
    return Rendered(document, blocks)


def verification(found: "bl.Verification", path: Path, measured: bl.LossTable | None) -> Rendered:
    """Render what was registered, the measured rows beside it, and their scores."""
    registered, frame = found.forecast, found.frame
    done = frame[frame["loss"].notna()]
    document: Document = {
        "file": str(path),
        "sha256": found.sha256,
        "registered": registered["date"],
        "law": registered["law"],
        "synthetic": registered["synthetic"],
        "losses_known": registered["losses_known"],
        "failures": registered["failures"],
        "measured": None if measured is None else measured.name,
        "missing": list(found.missing),
        "extra": list(found.extra),
        "rows": frame.to_dict("records"),
        "scores": None if measured is None else found.scores.to_dict(),
        "results": list(found.results),
    }
    blocks: list[Block] = [
        f"[bold]{escape(registered['law'])}[/]  {len(frame)} rows registered {registered['date']}",
        f"SHA-256 {found.sha256}",
        "[green]unchanged[/] since it was registered",
    ]
    blocks += [
        f"{escape(label)}: fitted to {fit['training']['rows']} rows of "
        f"{escape(fit['training']['name'])}, SHA-256 {fit['training']['sha256'][:12]}..."
        for label, fit in registered["fits"].items()
    ]
    if registered["failures"]:
        words = escape("; ".join(registered["failures"]))
        blocks.append(f"[bold red]NOT CONVERGED[/] when it was registered: {words}.")
    if known := registered["losses_known"]:
        blocks.append(
            f"[yellow]{known} of {len(frame)} rows already had a measured loss when the forecast "
            "was registered.[/]"
        )
    if measured is None:
        results = len(found.results)
        blocks.append(f"{results} result{'s' * (results != 1)} in the file; no losses to score.")
        return labelled(document, blocks)
    text = f"{len(done)} of {len(frame)} rows are measured"
    if found.missing:
        text += f"; missing: {_rows(found.missing, len(frame))}"
    blocks.append(f"{text}.")
    if found.extra:
        where = _rows(found.extra, len(measured))
        blocks.append(f"Not forecast: {where} of {escape(measured.name)}.")
    names = _percents(LEVELS[::2])
    used = {name for fit in registered["fits"].values() for name in fit["covariates"]}
    heads = ["row", *(name for name in COVARIATES if name in used)]
    blocks += ["", _bands(done, heads, names, [["error"]]), *_more(done, "--json")]
    blocks += ["", _inside(done, names), "", _score_table(found.scores)]
    if "draws" not in registered:
        blocks.append("[dim]No CRPS: the forecast was registered without draws.[/]")
    return labelled(document, blocks)


# -- parts ----------------------------------------------------------------------------------------


def _bands(
    frame: pd.DataFrame,
    covariates: Sequence[str],
    names: Sequence[str],
    left_out: Sequence[Sequence[str]],
    places: Mapping[str, str] | None = None,
) -> list[Table]:
    """Return a table of medians, bands, errors and `places`, and others without some columns."""
    measured, places = "loss" in frame, places or {}
    narrow = min(float((frame[f"upper_{n}"] - frame[f"lower_{n}"]).min()) for n in names)
    digit = min(max(3, 1 - math.floor(math.log10(narrow))), 6) if narrow > 0 else 4
    heads = [*covariates, *["loss"] * measured, "median", *["error"] * measured]
    for n in names:
        heads += [f"{n} % band", *[""] * measured]
    lines = []
    for _, row in frame.head(MAX_ROWS).iterrows():
        cells = _forecast(row, covariates, "median", digit)
        for n in names:
            cells.append(f"{row[f'lower_{n}']:.{digit}f}–{row[f'upper_{n}']:.{digit}f}")
            if measured:
                cells.append("[green]in[/]" if row[f"inside_{n}"] else "[red]out[/]")
        cells += [row[c] if c == "position" else f"{row[c]:.2f}" for c in places]
        lines.append(cells)
    return tables([*heads, *places.values()], lines, *left_out, left=("", "position"))


def _percents(levels: Sequence[float]) -> list[str]:
    return [f"{100 * level:g}" for level in levels]


def _forecast(row: pd.Series, covariates: Sequence[str], name: str, digit: int) -> list[str]:
    """Return cells of the covariates, the loss if measured, the forecast, and then its error."""
    cells, value = [count(row[c]) for c in covariates], row[name]
    if "loss" not in row:
        return [*cells, f"{value:.{digit}f}"]
    error = f"{100 * (value / row['loss'] - 1):+.1f} %"
    return [*cells, f"{row['loss']:.{digit}f}", f"{value:.{digit}f}", error]


def _inside(frame: pd.DataFrame, names: Sequence[str]) -> str:
    """Say how many measured losses lie inside each band."""
    counts = [f"{int(frame[f'inside_{n}'].sum())} in the {n} % band" for n in names]
    return f"Of {len(frame)} measured losses, {' and '.join(counts)}."


def _laws(scores: pd.DataFrame, columns: Sequence[str], counts: Sequence[str] = ()) -> list[Table]:
    """Return a row of scores for each law, below the name of its domain if there are several."""
    lines, above = [], None
    for law, row in scores.iterrows():
        cells = [*(digits(row[c]) for c in columns), *(str(row[c]) for c in counts)]
        if isinstance(law, tuple):
            domain, name = law
            if domain != above:
                lines.append([f"[bold]{escape(domain)}[/]"])
            above, law = domain, f"  {name}"
        lines.append([escape(str(law)), *cells])
    heads = ["law", *(name.replace("_", "\n") for name in (*columns, *counts))]
    return tables(heads, lines, ["mape\nclip"])  # equals mae_rel where losses exceed CLIP


def _backtested(row: Mapping[Any, Any]) -> list[str]:
    percent = [f"{100 * row[name]:.2g} %" for name in ("error", "bias")]
    inside = [f"{row[f'coverage_{level}']:.2f}" for level in (50, 80, 90)]
    return [f"{row['rows']:.0f}", *percent, *inside, f"{100 * row['width_90']:.2g} %"]


def _not_unique(frame: pd.DataFrame) -> list[Block]:
    """Return a sentence on the range of a point fit's forecasts; none if they are unique."""
    if frame["unique"].all():
        return []
    spread = 100 * (frame["highest"] / frame["lowest"] - 1)
    return [
        "[bold red]Not unique[/]: starts that agree forecast losses that differ by "
        f"{spread.mean():.2g} % on average over these rows, by {spread.max():.2g} % at most."
    ]


def _more(frame: pd.DataFrame, how: str) -> list[Block]:
    more = len(frame) - MAX_ROWS
    return [f"[dim]... and {more} more rows: use {how} for all.[/]"] if more > 0 else []


def _score_table(scores: pd.Series) -> Table:
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


def _covariates(fitted: Fitted, rows: bl.LossTable) -> list[str]:
    laws = [m.law for m, *_ in fitted.by_member()] if isinstance(fitted, bl.Pool) else [fitted.law]
    used = [*fitted.columns, *(["unique_tokens"] if any(law.repetition for law in laws) else [])]
    return [c for c in (*COVARIATES, "unique_tokens") if c in used and c in rows.frame]


def _rows(rows: tuple[int, ...], number: int) -> str:
    return row_numbers(pd.Series(np.isin(np.arange(number), rows)))
