"""Render what is computed from fits: numbers, recipes, the next runs, and studies of designs."""

import math
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
from rich.markup import escape
from rich.table import Table

import bayeslaw as bl
from bayeslaw.cli.render import describe, heading
from bayeslaw.cli.terminal import Block, Document, Rendered, labelled, tables
from bayeslaw.common.formatting import count, digits
from bayeslaw.derive import Derived, FloorSensitivity
from bayeslaw.derive.recipes import REGRET, cells
from bayeslaw.tables.table import is_synthetic
from bayeslaw.tables.validation import COVARIATES

TITLES = {
    "floor": "Floor",
    "compute_optimal": "Compute-optimal split of a budget, C = 6 N D",
    "flops_to_reach": "FLOPs to reach a loss, split compute-optimally",
    "compute_multiplier": "Compute multiplier over the other recipe",
    "crossover": "Tokens at which continual pre-training beats training from scratch",
    "local_exponents": "Local exponents",
}
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
SHARE = 0.05
"""Least fraction of infinite, undefined or bounded draws that is shown."""
WIDTH = 20
"""Characters of a set's name that are shown."""


def derived(
    fitted: bl.Posterior, found: Mapping[str, Derived], levels: Sequence[float]
) -> Rendered:
    """Render each result as a table of medians and intervals, with its notes."""
    frames = {name: each.to_frame(levels) for name, each in found.items()}
    document = describe(fitted, None) | {
        "levels": list(levels),
        "derived": {
            name: {"numbers": frames[name].to_dict("records"), "notes": list(each.notes)}
            for name, each in found.items()
        },
    }
    blocks: list[Block] = list(heading(fitted, None))
    for name, each in found.items():
        blocks += ["", f"[bold]{TITLES[name]}[/]", _intervals(each, levels)]
        blocks += [f"[dim]{escape(note)}[/]" for note in each.notes]
    return labelled(document, blocks)


def floor(fitted: bl.Posterior, found: FloorSensitivity) -> Rendered:
    """Render how much of each number the floor explains, with its profile in the document."""
    document = describe(fitted, None) | {
        "numbers": found.summary.to_dict("records"),
        "profile": found.profile.to_dict("records"),
        "notes": list(found.notes),
    }
    heads = ["median", "explained", "flat_median", "shift"]
    asked = [c for c in found.summary.columns if c not in ("quantity", "verdict", *heads)]
    rows = [
        [
            str(row["quantity"]),
            *(f"{row[column]:.4g}" for column in asked),
            _number(row["median"]),
            f"{100 * row['explained']:.0f} %",
            _number(row["flat_median"]),
            f"{row['shift']:.2f}",
            str(row["verdict"]),
        ]
        for _, row in found.summary.iterrows()
    ]
    table = tables(("", *asked, "median", "by E", "flat prior", "shift", "follows"), rows)
    blocks: list[Block] = [*heading(fitted, None), "", "[bold]Dependence on the floor E[/]", table]
    blocks += [f"[dim]{escape(note)}[/]" for note in found.notes]
    return labelled(document, blocks)


def recipes(fits: Mapping[str, bl.Posterior], found: bl.Recipes, level: float) -> Rendered:
    """Render the recipes at each target, and what only budgets have."""
    frame, share = found.to_frame(level), f"{100 * level:g} %"
    also = {"multipliers": found.multipliers, "crossings": found.crossings}
    document: Document = {
        "synthetic": any(is_synthetic(fit.table) for fit in fits.values()),
        "sentence": found.sentence(),
        "level": level,
        "recipes": frame.to_dict("records"),
        "notes": list(found.notes),
    }
    document |= {
        name: None if each is None else each.to_frame([level]).to_dict("records")
        for name, each in also.items()
    }
    asked = list(found.targets.columns)
    rows = [
        [
            *own,
            f"{row['behind']:+.4f}",
            f"{row['behind_lower']:+.4f} – {row['behind_upper']:+.4f}",
        ]
        for own, (_, row) in zip(cells(found, level, " – "), frame.iterrows(), strict=True)
    ]
    table = tables((*asked, "recipe", "loss", share, "P(best)", "regret", "behind", share), rows)
    blocks: list[Block] = [escape(found.sentence()), "", table]
    titles = (
        "Compute multiplier, at the first recipe's median loss",
        "FLOPs where the order changes",
    )
    for each, title in zip(also.values(), titles, strict=True):
        if each is not None:
            blocks += ["", f"[bold]{title}[/]", _intervals(each, [level])]
    notes = (
        f"{REGRET}; behind: loss less the lowest of the others",
        *found.notes,
    )
    blocks += ["", *(f"[dim]{escape(note)}[/]" for note in notes)]
    return labelled(document, blocks)


def anchors(
    found: bl.Anchors, fitted: bl.Posterior | bl.Pool, evsi: pd.DataFrame | None
) -> Rendered:
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
    blocks: list[Block] = [
        *heading(fitted, None),
        "",
        f"[bold]{len(found.picks)} runs of {sizes} sizes, {found.flops:.3g}{within} {unit}[/] "
        f"({COSTS.get(found.cost, 'cost by that column')})",
        f"{CRITERIA[found.gain]}; {found.method}",
        "",
        *_picks(found),
    ]
    if evsi is not None:
        document["evsi"] = evsi.to_dict("records")
        blocks += ["", *_evsi(evsi)]
    return labelled(document, blocks)


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
    planned = "atpp" in summary
    heads = ["design", "FLOPs", "runs", "RMSE", "width", "CRPS", "Winkler", "coverage"]
    heads += ["better", "ratio", *["ATPP", "met"] * planned]
    for case, rows in summary.groupby("case", sort=False):
        seeds = int(rows["cells"].max())
        lines = []
        for _, row in rows.iterrows():
            cells = [str(row["design"]), f"{row['flops']:.2g}", f"{row['runs']:.3g}"]
            cells += [digits(row[c]) for c in ("rmse_log", "width_90", "crps", "winkler_90")]
            cells += [_percent(row["coverage_90"]), _percent(row["better"]), digits(row["ratio"])]
            cells += [digits(row["atpp"]), _percent(row["held"])] if planned else []
            lines.append(cells)
        blocks += [
            f"[bold]{escape(str(case))}[/], {seeds} seed{'s' * (seeds != 1)} per design",
            tables(heads, lines),
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


# -- parts ----------------------------------------------------------------------------------------


def _intervals(each: Derived, levels: Sequence[float]) -> list[Table]:
    """Return a table of medians and intervals, and one with the widest intervals alone.

    Shares of draws that the 90 % interval leaves out are not shown; `Derived.to_frame` has them.
    """
    names = [f"{100 * level:g}" for level in levels]
    words = {"infinite": "infinite", "undefined": "undefined", "at_bound": "on bound"}

    def shares(row: pd.Series) -> str:
        shown = {word: row[column] for column, word in words.items() if row[column] >= SHARE}
        return ", ".join(f"{100 * share:.3g} % {word}" for word, share in shown.items())

    rows = [
        [
            str(row["quantity"]),
            *(f"{row[column]:.4g}" for column in each.cases.columns),
            _number(row["median"]) if row["determined"] else "not determined",
            *(f"{_number(row[f'lower_{n}'])} – {_number(row[f'upper_{n}'])}" for n in names),
            shares(row),
        ]
        for _, row in each.to_frame(levels).iterrows()
    ]
    heads = [f"{n} % interval" for n in names]
    return tables(("", *each.cases.columns, "median", *heads, ""), rows, heads[:-1])


def _number(value: float) -> str:
    return f"{value:.4g}" if not 1e-3 < value < 1e4 else digits(value, 4)


def _unit(found: bl.Anchors) -> str:
    return "FLOPs" if found.cost in COSTS else found.cost


def _picks_for_most(found: bl.Anchors) -> int:
    """Return the number of picks with `MOST` of the reduction of the sd at the targets by all."""
    drop = found.picks["sd_before"].iloc[0] - found.picks["sd"]
    return int((drop >= MOST * drop.max()).to_numpy().argmax()) + 1


def _picks(found: bl.Anchors) -> list[Block]:
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
        tables(list(columns), list(zip(*columns.values(), strict=True)), ["total", "max sd"]),
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
        "mean saved": counts["saved_mean"] + evsi["saved_error"].map(" ± {:.1g}".format),
    }
    best = evsi["net"].argmax()
    verdict = f"largest net saving: {names[best]}" if evsi["net"][best] > 0 else "no set pays off"
    return [
        f"[bold]Expected value of sample information[/], plan now "
        f"{digits(evsi['atpp_now'].iloc[0])} ATPP; {verdict}",
        "",
        tables(list(columns), list(zip(*columns.values(), strict=True)), ["90 %", "lower"]),
        "",
        "ATPP, 90 %: budget planned after the runs, median and 90 % quantile over simulations; "
        "lower, no plan: fraction of simulations in which the budget falls, and in which no plan "
        "is left; saved: FLOPs saved on the target run, median; net: saved less the cost of the "
        "runs; mean saved: over simulations with a plan, with its Monte Carlo error.",
    ]


def _sd(value: float) -> str:
    return f"{100 * value:#.3g} %".replace(". %", " %")


def _percent(value: float) -> str:
    return "" if math.isnan(value) else f"{100 * value:.0f} %"
