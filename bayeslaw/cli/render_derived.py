"""Render derived numbers: text for a terminal and a JSON document."""

from collections.abc import Mapping, Sequence

import pandas as pd
from rich.markup import escape
from rich.table import Table

from bayeslaw.cli.render import describe, heading, labelled
from bayeslaw.cli.terminal import Block, Rendered, ruled
from bayeslaw.common.formatting import digits
from bayeslaw.derive import Derived, FloorSensitivity
from bayeslaw.derive.recipes import Recipes
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.reading import is_synthetic

TITLES = {
    "floor": "Floor",
    "compute_optimal": "Compute-optimal split of a budget, C = 6 N D",
    "flops_to_reach": "FLOPs to reach a loss, split compute-optimally",
    "compute_multiplier": "Compute multiplier over the other recipe",
    "crossover": "Tokens at which continual pre-training beats training from scratch",
    "local_exponents": "Local exponents",
}


def derived(fitted: Posterior, found: Mapping[str, Derived], levels: Sequence[float]) -> Rendered:
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
        blocks += ["", f"[bold]{TITLES[name]}[/]"]
        blocks.append([_table(each, frames[name], shown) for shown in (levels, levels[-1:])])
        blocks += [f"[dim]{escape(note)}[/]" for note in each.notes]
    return Rendered(document, labelled(document, blocks))


def floor(fitted: Posterior, found: FloorSensitivity) -> Rendered:
    """Render how much of each number the floor explains, with its profile in the document."""
    document = describe(fitted, None) | {
        "numbers": found.summary.to_dict("records"),
        "profile": found.profile.to_dict("records"),
        "notes": list(found.notes),
    }
    heads = ["median", "explained", "flat_median", "shift"]
    asked = [c for c in found.summary.columns if c not in ("quantity", "verdict", *heads)]
    table = ruled("", *asked, "median", "by E", "flat prior", "shift", "follows")
    for _, row in found.summary.iterrows():
        cells = [f"{row[column]:.4g}" for column in asked]
        cells += [_number(row["median"]), f"{100 * row['explained']:.0f} %"]
        cells += [_number(row["flat_median"]), f"{row['shift']:.2f}", str(row["verdict"])]
        table.add_row(str(row["quantity"]), *cells)
    blocks: list[Block] = [
        *heading(fitted, None),
        "",
        "[bold]Dependence on the floor E[/]",
        [table],
    ]
    blocks += [f"[dim]{escape(note)}[/]" for note in found.notes]
    return Rendered(document, labelled(document, blocks))


def recipes(fits: Mapping[str, Posterior], found: Recipes, level: float) -> Rendered:
    """Render the recipes at each target, and what only budgets have."""
    frame, share = found.to_frame(level), f"{100 * level:g} %"
    also = {"multipliers": found.multipliers, "crossings": found.crossings}
    document: dict[str, object] = {
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
    table = ruled(*asked, "recipe", "loss", share, "P(best)", "regret", "behind", share)
    for _, row in frame.iterrows():
        table.add_row(
            *(f"{row[name]:.4g}" for name in asked),
            str(row["recipe"]),
            f"{row['loss']:.4f}",
            f"{row['lower']:.4f} – {row['upper']:.4f}",
            f"{row['p_best']:.3f}",
            f"{row['regret']:.2g}",
            f"{row['behind']:+.4f}",
            f"{row['behind_lower']:+.4f} – {row['behind_upper']:+.4f}",
        )
    blocks: list[Block] = [escape(found.sentence()), "", [table]]
    titles = (
        "Compute multiplier, at the first recipe's median loss",
        "FLOPs where the order changes",
    )
    for each, title in zip(also.values(), titles, strict=True):
        if each is not None:
            blocks += ["", f"[bold]{title}[/]", [_table(each, each.to_frame([level]), [level])]]
    notes = (
        "regret: expected nats above the best if chosen now; behind: loss less the lowest of the "
        "others",
        *found.notes,
    )
    blocks += ["", *(f"[dim]{escape(note)}[/]" for note in notes)]
    return Rendered(document, labelled(document, blocks))


def joined(found: Mapping[str, Derived], levels: Sequence[float]) -> pd.DataFrame:
    """Return all results as one frame; the column `derived` names the result."""
    return pd.concat(
        [each.to_frame(levels).assign(derived=name) for name, each in found.items()],
        ignore_index=True,
    )


def _table(each: Derived, frame: pd.DataFrame, levels: Sequence[float]) -> Table:
    names = [f"{100 * level:g}" for level in levels]
    table = ruled("", *each.cases.columns, "median", *(f"{n} % interval" for n in names), "")
    for _, row in frame.iterrows():
        asked = [f"{row[column]:.4g}" for column in each.cases.columns]
        bands = [f"{_number(row[f'lower_{n}'])} – {_number(row[f'upper_{n}'])}" for n in names]
        shares = [
            f"{100 * row[share]:.3g} % {word}"
            for share, word in (
                ("infinite", "infinite"),
                ("undefined", "undefined"),
                ("at_bound", "on bound"),
            )
            if row[share] > 0
        ]
        table.add_row(
            str(row["quantity"]), *asked, _number(row["median"]), *bands, ", ".join(shares)
        )
    return table


def _number(value: float) -> str:
    return f"{value:.4g}" if not 1e-3 < value < 1e4 else digits(value, 4)
