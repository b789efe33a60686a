"""Render anchors and studies: text for a terminal and a JSON document."""

import math
from collections.abc import Iterable, Mapping

import pandas as pd
from rich.markup import escape
from rich.table import Table

from bayeslaw.cli.render import SYNTHETIC, describe, heading
from bayeslaw.cli.terminal import Block, Document, Rendered, ruled
from bayeslaw.common.formatting import count, digits
from bayeslaw.design.anchors import Anchors
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.reading import is_synthetic
from bayeslaw.tables.validation import COVARIATES

CRITERIA = {
    "variance": "minimises the mean variance of log loss at the targets",
    "entropy": "minimises the mean log variance of log loss at the targets",
    "plan": "minimises the variance of the budget of the plan",
    "doptimal": "maximises the information about the law (Bayesian D-optimality)",
}
COSTS = {
    "flops": "6 N D, and the pre-training of each new base once",
    "adaptation": "6 N D of adaptation",
}
MOST = 0.9
"""Fraction of the total reduction of the sd up to which picks are counted."""
WIDTH = 20
"""Characters of a set's name that are shown."""


def anchors(found: Anchors, fitted: Posterior | Pool, evsi: pd.DataFrame | None) -> Rendered:
    """Render runs in the order to buy them, with what is predicted after each, and their EVSI."""
    document: Document = describe(fitted, None) | {
        "gain": found.gain,
        "cost": found.cost,
        "method": found.method,
        "budget": found.budget,
        "flops": found.flops,
        "targets": len(found.targets),
        "sd_now": found.picks["sd_before"].iloc[0],
        "atpp_now": found.atpp,
        "picks_for_90_percent": _picks_for_most(found),
        "unconverged": list(found.unconverged),
        "picks": found.picks.to_dict("records"),
        "rows": found.frame.to_dict("records"),
    }
    sizes, unit = found.picks["params"].nunique(), _unit(found)
    within = f" of {found.budget:.3g}" if math.isfinite(found.budget) else ""
    label = [SYNTHETIC] if is_synthetic(fitted.table) else []
    blocks: list[Block] = [
        *[*label, *heading(fitted, None), ""],
        f"[bold]{len(found.picks)} runs of {sizes} sizes, {found.flops:.3g}{within} {unit}[/] "
        f"({COSTS.get(found.cost, 'cost by that column')})",
        f"{CRITERIA[found.gain]}; {found.method}",
        "",
        *_picks(found),
    ]
    if evsi is not None:
        document["evsi"] = evsi.to_dict("records")
        blocks += ["", *_evsi(evsi)]
    return Rendered(document, blocks)


def _unit(found: Anchors) -> str:
    return "FLOPs" if found.cost in COSTS else found.cost


def _picks_for_most(found: Anchors) -> int:
    """Return the number of picks with `MOST` of the reduction of the sd at the targets by all."""
    drop = found.picks["sd_before"].iloc[0] - found.picks["sd"]
    return int((drop >= MOST * drop.max()).to_numpy().argmax()) + 1


def _picks(found: Anchors) -> list[Block]:
    """Render one line per pick, a legend of the columns, and remarks."""
    picks, unit, number = found.picks, _unit(found), len(found.targets)
    scale = 10.0 ** math.floor(math.log10(found.flops / len(picks)))
    per = f"per {scale:.0e}".replace("+", "")
    drop = picks["sd_before"] - picks["sd"]
    now = picks["sd_before"].iloc[0]
    columns = {"": ["now", *(str(i + 1) for i in range(len(picks)))]}
    for name in ("run", *COVARIATES):
        if name in picks:
            columns[name] = ["", *picks[name].map(str if name == "run" else count)]
    columns |= {
        unit: ["", *picks["flops"].map("{:.2g}".format)],
        "total": ["", *picks["flops_total"].map("{:.2g}".format)],
        "sd": [_sd(sd) for sd in (now, *picks["sd"])],
        "max sd": [_sd(sd) for sd in found.sd.max(1)],
        "drop": ["", *map(_sd, drop)],
        per: ["", *map(_sd, drop / picks["flops"] * scale)],
    }
    if planned := "atpp" in picks:
        columns["ATPP"] = [digits(atpp) for atpp in (found.atpp, *picks["atpp"])]
        columns["P(plan)"] = ["", *picks["p_plan"].map("{:.2f}".format)]
    blocks: list[Block] = [
        _tables(columns, "total", "max sd"),
        "",
        "sd, max sd: predicted posterior standard deviation of log loss in percent, root mean "
        f"square and largest over {number} target{'s' * (number != 1)}; drop: reduction of sd by "
        f"the run; {per}: drop for {per.removeprefix('per ')} {unit}.",
    ]
    if planned:
        blocks.append(
            "P(plan): predicted probability that a plan at the stated confidence exists once the "
            "runs are measured; ATPP: the median of its budget over what they may show."
        )
    if (first := _picks_for_most(found)) < len(picks):
        fraction = picks["flops_total"].iloc[first - 1] / found.flops
        blocks.append(
            f"The first {first} give {_percent(MOST)} of the reduction of sd by all {len(picks)}, "
            f"for {_percent(fraction)} of the cost."
        )
    if picks["params"].nunique() == 1 and len(picks) > 1:
        blocks.append(
            "[yellow]All of one size[/]: these runs cannot show that the law is wrong about N."
        )
    if extra := len(found.frame) - len(picks):
        blocks.append(f"{extra} further rows are checkpoints of these runs, free (--out, --json).")
    return blocks


def _evsi(evsi: pd.DataFrame) -> list[Block]:
    """Render FLOPs saved on the target run against FLOPs spent, for each set of runs."""
    names = [escape(n if len(n) <= WIDTH else f"{n[: WIDTH - 3]}...") for n in evsi["set"]]
    counts = evsi[["flops", "saved", "net", "saved_mean"]].map("{:.2g}".format)
    columns: dict[str, Iterable[str]] = {
        "runs": names,
        "FLOPs": counts["flops"],
        "ATPP": evsi["atpp"].map(digits),
        "90 %": evsi["atpp_90"].map(digits),
        "lower": evsi["less"].map(_percent),
        "no\nplan": evsi["infeasible"].map(_percent),
        "saved": counts["saved"],
        "net": counts["net"],
        "EVSI": counts["saved_mean"] + evsi["saved_error"].map(" ± {:.1g}".format),
    }
    best = evsi["net"].argmax()
    verdict = f"largest net saving: {names[best]}" if evsi["net"][best] > 0 else "no set pays off"
    return [
        f"[bold]Expected value of sample information[/], plan now "
        f"{digits(evsi['atpp_now'].iloc[0])} ATPP; {verdict}",
        "",
        _tables(columns, "90 %", "lower"),
        "",
        "ATPP, 90 %: budget planned after the runs, median and 90 % quantile over simulations; "
        "lower, no plan: fraction of simulations in which the budget falls, and in which no plan "
        "is left; saved: FLOPs saved on the target run, median; net: saved less the cost of the "
        "runs; EVSI: mean FLOPs saved over simulations with a plan, with its Monte Carlo error.",
    ]


def _tables(columns: Mapping[str, Iterable[str]], *spare: str) -> list[Table]:
    """Return the columns as a table, and as a narrower one without the `spare` columns."""
    tables = []
    for left_out in ((), spare):
        shown = {name: cells for name, cells in columns.items() if name not in left_out}
        table = ruled(*shown)
        for cells in zip(*shown.values(), strict=True):
            table.add_row(*cells)
        tables.append(table)
    return tables


def study(results: pd.DataFrame, summary: pd.DataFrame, against: str) -> Rendered:
    """Render one table per case, a row per design."""
    rhat = float(results["rhat"].median())
    document: Document = {
        "against": against,
        "designs": summary.to_dict("records"),
        "cells": len(results),
        "rhat": rhat,
    }
    blocks: list[Block] = []
    heads = ["FLOPs", "runs", "RMSE", "width", "CRPS", "Winkler", "coverage", "better", "ratio"]
    planned = "atpp" in summary
    for case, rows in summary.groupby("case", sort=False):
        seeds = int(rows["cells"].max())
        table = ruled("design", *heads, *["ATPP", "met"] * planned)
        for _, row in rows.iterrows():
            cells = [str(row["design"]), f"{row['flops']:.2g}", f"{row['runs']:.3g}"]
            cells += [digits(row[c]) for c in ("rmse_log", "width_90", "crps", "winkler_90")]
            cells += [_percent(row["coverage_90"]), _percent(row["better"]), digits(row["ratio"])]
            if planned:
                cells += [digits(row["atpp"]), _percent(row["held"])]
            table.add_row(*cells)
        blocks += [
            f"[bold]{escape(str(case))}[/], {seeds} seed{'s' * (seeds != 1)} per design",
            [table],
            "",
        ]
    blocks.append(
        "Medians over seeds, on log loss; width, Winkler: of the 90 % band; coverage: of the 90 % "
        f"band, mean; better, ratio: fraction of seeds with a smaller CRPS than {against}, and "
        "median ratio of the two."
    )
    if planned:
        blocks.append(
            "ATPP: median budget planned; met: fraction of plans that meet both limits under the "
            "true laws."
        )
    bad = float((results["rhat"] > 1.05).mean())
    blocks.append(f"R-hat of the short refits: median {rhat:.3f}, {bad:.0%} above 1.05.")
    return Rendered(document, blocks)


def _sd(value: float) -> str:
    return f"{100 * value:#.3g} %".replace(". %", " %")


def _percent(value: float) -> str:
    return "" if math.isnan(value) else f"{100 * value:.0f} %"
