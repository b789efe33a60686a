"""What the command line says of anchors and studies: text for a terminal and one JSON document."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from rich.markup import escape
from rich.table import Table

from bayeslaw.cli.render import SYNTHETIC, about, heading
from bayeslaw.cli.terminal import Told, ruled
from bayeslaw.common.formatting import count, digits
from bayeslaw.design.anchors import Anchors
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.reading import is_synthetic
from bayeslaw.tables.validation import COVARIATES

WORDS = {
    "variance": "least mean variance of log loss at the targets",
    "entropy": "least mean log variance of log loss at the targets",
    "plan": "least uncertain budget of the plan",
    "doptimal": "most information about the law, whatever the targets",
}
COSTS = {
    "flops": "6 N D, and the pre-training of each new base once",
    "adaptation": "6 N D of adaptation",
}


MOST = 0.9
"""Share of the gain in certainty that counts as most of it."""
WIDE = 20
"""Letters of a set's name that are shown."""


def anchors(found: Anchors, fitted: Posterior, worth: pd.DataFrame | None) -> Told:
    """Runs in the order to buy them, with what is predicted after each, and their worth."""
    document = about(fitted, None) | {
        "gain": found.gain,
        "cost": found.cost,
        "method": found.method,
        "budget": found.budget,
        "flops": found.flops,
        "targets": len(found.targets),
        "sd_now": found.picks["sd_before"].iloc[0],
        "atpp_now": found.atpp,
        "enough": _enough(found),
        "unconverged": list(found.unconverged),
        "picks": found.picks.to_dict("records"),
        "rows": found.frame.to_dict("records"),
    }
    sizes, unit = found.picks["params"].nunique(), _unit(found)
    within = f" of {found.budget:.3g}" if math.isfinite(found.budget) else ""
    label = [SYNTHETIC] if is_synthetic(fitted.table) else []
    parts = [
        *[*label, *heading(fitted, None), ""],
        f"[bold]{len(found.picks)} runs of {sizes} sizes, {found.flops:.3g}{within} {unit}[/] "
        f"({COSTS.get(found.cost, 'cost as the column says')})",
        f"{WORDS[found.gain]}; {found.method}",
        "",
        *_picks(found),
    ]
    if worth is not None:
        document["worth"] = worth.to_dict("records")
        parts += ["", *_worth(worth)]
    return Told(document, parts)


def _unit(found: Anchors) -> str:
    return "FLOPs" if found.cost in COSTS else found.cost


def _enough(found: Anchors) -> int:
    """Picks that bring most of what all take off the sd at the targets."""
    less = found.picks["sd_before"].iloc[0] - found.picks["sd"]
    return int((less >= MOST * less.max()).to_numpy().argmax()) + 1


def _picks(found: Anchors) -> list[Any]:
    """One line per pick, and what a reader must know about the columns."""
    picks, unit = found.picks, _unit(found)
    scale = 10.0 ** math.floor(math.log10(found.flops / len(picks)))
    per = f"per {scale:.0e}".replace("+", "")
    less = picks["sd_before"] - picks["sd"]
    now = picks["sd_before"].iloc[0]
    columns = {"": ["now", *(str(i + 1) for i in range(len(picks)))]}
    for name in ("run", *COVARIATES):
        if name in picks:
            columns[name] = ["", *picks[name].map(str if name == "run" else count)]
    columns |= {
        unit: ["", *picks["flops"].map("{:.2g}".format)],
        "total": ["", *picks["flops_total"].map("{:.2g}".format)],
        "sd": [_share(sd) for sd in (now, *picks["sd"])],
        "largest": [_share(sd) for sd in found.sd.max(1)],
        "less": ["", *map(_share, less)],
        per: ["", *map(_share, less / picks["flops"] * scale)],
    }
    if planned := "atpp" in picks:
        columns["ATPP"] = [digits(atpp) for atpp in (found.atpp, *picks["atpp"])]
    parts = [
        _tables(columns, "total", "largest"),
        "",
        f"sd, largest: predicted posterior sd of log loss at {len(found.targets)} targets, in "
        "percent of the loss, root mean square and largest; less: what the pick takes off; "
        f"{per}: that for {per.removeprefix('per ')} {unit}.",
    ]
    if planned:
        parts.append("ATPP: budget the plan would need, if the measurements fall as expected.")
    if (enough := _enough(found)) < len(picks):
        share = picks["flops_total"].iloc[enough - 1] / found.flops
        parts.append(
            f"The first {enough} bring {_percent(MOST)} of what all {len(picks)} take off the sd, "
            f"for {_percent(share)} of the cost."
        )
    if picks["params"].nunique() == 1 and len(picks) > 1:
        parts.append(
            "[yellow]All of one size[/]: a law that is wrong about N will not be found out."
        )
    if extra := len(found.frame) - len(picks):
        parts.append(f"{extra} further rows are checkpoints of these runs, free (--out, --json).")
    return parts


def _worth(worth: pd.DataFrame) -> list[Any]:
    """FLOPs saved on the target run against FLOPs spent, for each set of runs."""
    names = [escape(n if len(n) <= WIDE else f"{n[: WIDE - 3]}...") for n in worth["set"]]
    counts = worth[["flops", "saved", "net", "saved_mean"]].map("{:.2g}".format)
    columns: dict[str, Iterable[str]] = {
        "runs": names,
        "FLOPs": counts["flops"],
        "ATPP": worth["atpp"].map(digits),
        "90 %": worth["atpp_90"].map(digits),
        "less": worth["less"].map(_percent),
        "none": worth["infeasible"].map(_percent),
        "saved": counts["saved"],
        "net": counts["net"],
        "mean saving": counts["saved_mean"] + worth["saved_error"].map(" ± {:.1g}".format),
    }
    best = worth["net"].argmax()
    says = f"most net for {names[best]}" if worth["net"][best] > 0 else "no set pays"
    return [
        f"[bold]Worth to the plan[/], {digits(worth['atpp_now'].iloc[0])} ATPP now: {says}",
        "",
        _tables(columns, "90 %", "less"),
        "",
        "ATPP, 90 %: budget planned after the runs, median and 90 % quantile over simulated "
        "truths; less, none: share of them in which it falls, and in which no plan is left; "
        "saved: FLOPs on the target run, median; net: less those spent; mean saving: over truths "
        "with a plan, with its Monte Carlo error.",
    ]


def _tables(columns: Mapping[str, Iterable[str]], *spare: str) -> list[Table]:
    """The columns as a table, and a narrower one without the `spare` ones."""
    tables = []
    for left_out in ((), spare):
        shown = {name: cells for name, cells in columns.items() if name not in left_out}
        table = ruled(*shown)
        for cells in zip(*shown.values(), strict=True):
            table.add_row(*cells)
        tables.append(table)
    return tables


def study(results: pd.DataFrame, summary: pd.DataFrame, against: str) -> Told:
    """One table per case: a row per design."""
    document = {
        "against": against,
        "designs": summary.to_dict("records"),
        "cells": len(results),
        "rhat": results["rhat"].median(),
    }
    parts: list[Any] = []
    heads = ["FLOPs", "runs", "RMSE", "90 % width", "CRPS", "Winkler", "holds", "better", "ratio"]
    planned = "atpp" in summary
    for case, rows in summary.groupby("case", sort=False):
        seeds = int(rows["cells"].max())
        table = ruled("design", *heads, *["ATPP", "kept"] * planned)
        for _, row in rows.iterrows():
            cells = [str(row["design"]), f"{row['flops']:.2g}", f"{row['runs']:.3g}"]
            cells += [digits(row[c]) for c in ("rmse_log", "width_90", "crps", "winkler_90")]
            cells += [_percent(row["coverage_90"]), _percent(row["better"]), digits(row["ratio"])]
            if planned:
                cells += [digits(row["atpp"]), _percent(row["held"])]
            table.add_row(*cells)
        parts += [f"[bold]{escape(str(case))}[/], {seeds} seeds a design", [table], ""]
    parts.append(
        f"Medians over seeds, on log loss; holds: mean share of losses in the 90 % band; better, "
        f"ratio: share of seeds with a smaller CRPS than {against}, and median CRPS over its."
    )
    if planned:
        parts.append(
            "ATPP: median budget planned; kept: share of plans that meet both limits in truth."
        )
    bad = float((results["rhat"] > 1.05).mean())
    parts.append(f"R-hat of the short refits: median {document['rhat']:.3f}, {bad:.0%} above 1.05.")
    return Told(document, parts)


def _share(value: float) -> str:
    return f"{100 * value:#.3g} %".replace(". %", " %")


def _percent(value: float) -> str:
    return "" if math.isnan(value) else f"{100 * value:.0f} %"
