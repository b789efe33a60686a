"""What the command line says of anchors and studies: text for a terminal and one JSON document."""

import math
from typing import Any

import pandas as pd
from rich.markup import escape

from bayeslaw.anchoring.anchors import Anchors
from bayeslaw.cli.tell import SYNTHETIC, about, heading, synthetic
from bayeslaw.cli.terminal import Told, count, figure, ruled
from bayeslaw.posterior import Posterior
from bayeslaw.tables import COVARIATES

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


def anchors(found: Anchors, fitted: Posterior) -> Told:
    """Runs in the order to buy them, with what is predicted after each."""
    now = float(found.picks["sd_before"].iloc[0])
    document = about(fitted, None) | {
        "gain": found.gain,
        "cost": found.cost,
        "method": found.method,
        "budget": found.budget,
        "flops": found.flops,
        "targets": len(found.targets),
        "sd_now": now,
        "atpp_now": found.atpp,
        "unconverged": list(found.unconverged),
        "picks": found.picks.to_dict("records"),
        "rows": found.frame.to_dict("records"),
    }
    shown = [c for c in ("run", *COVARIATES) if c in found.picks]
    scale = 10.0 ** math.floor(math.log10(found.flops / len(found.picks)))
    heads = ["FLOPs", "total", "sd", "largest", "less", f"per {scale:.0e}".replace("+", "")]
    planned = "atpp" in found.picks
    unit = "FLOPs" if found.cost in COSTS else found.cost
    heads[0] = unit
    table = ruled("", *shown, *heads, *["ATPP"] * planned)
    cells = ["now", *[""] * len(shown), "", "", _share(now), _share(float(found.sd[0].max()))]
    table.add_row(*cells, "", "", *[figure(found.atpp)] * planned)
    for i, row in found.picks.iterrows():
        fewer = row["sd_before"] - row["sd"]
        cells = [str(int(str(i)) + 1)]
        cells += [str(row[c]) if c == "run" else count(row[c]) for c in shown]
        cells += [f"{row['flops']:.2g}", f"{row['flops_total']:.2g}"]
        cells += [_share(row["sd"]), _share(row["sd_max"]), _share(fewer)]
        cells += [_share(fewer / row["flops"] * scale)]
        table.add_row(*cells, *([figure(row["atpp"])] if planned else []))
    sizes = found.picks["params"].nunique()
    within = f" of {found.budget:.3g}" if math.isfinite(found.budget) else ""
    lines = [
        f"[bold]{len(found.picks)} runs of {sizes} sizes, {found.flops:.3g}{within} {unit}[/] "
        f"({COSTS.get(found.cost, 'cost as the column says')})",
        f"{WORDS[found.gain]}; {found.method}",
    ]
    notes = [
        "",
        f"sd, largest: predicted posterior sd of log loss at {len(found.targets)} targets, in "
        "percent of the loss, root mean square and largest; less: what the pick takes off; "
        f"{heads[-1]}: that for {scale:.0e} {unit}.".replace("e+", "e"),
    ]
    if planned:
        notes.append("ATPP: budget the plan would need, if the measurements fall as expected.")
    if sizes == 1 and len(found.picks) > 1:
        notes.append(
            "[yellow]All of one size[/]: a law that is wrong about N will not be found out."
        )
    extra = len(found.frame) - len(found.picks)
    if extra:
        notes.append(f"{extra} further rows are checkpoints of these runs, free (--out, --json).")
    label = [SYNTHETIC] if synthetic(fitted.table) else []
    return Told(document, [*label, *heading(fitted, None), "", *lines, "", [table], *notes])


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
            cells += [figure(row[c]) for c in ("rmse_log", "width_90", "crps", "winkler_90")]
            cells += [_percent(row["coverage_90"]), _percent(row["better"]), figure(row["ratio"])]
            if planned:
                cells += [figure(row["atpp"]), _percent(row["held"])]
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
