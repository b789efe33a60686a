"""Render a plan: text for a terminal and a JSON document."""

import math
from collections.abc import Mapping

import pandas as pd
from rich.markup import escape
from rich.table import Table

import bayeslaw as bl
from bayeslaw.cli.terminal import Block, Document, Rendered, labelled, tables
from bayeslaw.common.formatting import count, digits
from bayeslaw.planning.choices import fields
from bayeslaw.planning.texts import (
    BUDGET,
    CHOICE,
    Cells,
    baseline_losses,
    monte_carlo,
    stated,
)

CELLS = Cells(percent=".1f", probability=".3f")
LOSSES = {"predictive": "measured losses of a new run", "latent": "latent losses, without noise"}


def plan(
    found: bl.Plan,
    cap: Mapping[str, float] | None,
    point: tuple[float, float] | None,
    stop: tuple[float, float] | None,
    synthetic: bool,
    backtest: str | None = None,
) -> Rendered:
    """Render a plan with its probabilities, its errors, and its sensitivity to the limits."""
    frontier, sensitivity = found.frontier(), found.sensitivity()
    document: Document = found.to_dict() | {
        "synthetic": synthetic,
        "frontier": frontier.to_dict("records"),
        "sensitivity": sensitivity.to_dict("records"),
        "backtest": backtest,
    }
    own = None if point is None else found.at(atpp=point[0], replay=point[1])
    blocks: list[Block] = [*_limits(found), "", *_answer(found), "", _choices(_plans(found, own))]
    if own is not None and point is not None:
        around = found.around(atpp=point[0], replay=point[1])
        document["at"] = fields(own) | {"around": around}
        blocks.append(_around(found, around))
    blocks += ["", *_uncertainty(found)]
    if backtest is not None:
        blocks += ["", escape(backtest)]
    if len(found.spread):
        blocks += ["", "[bold]Where its uncertainty comes from[/]", _spread(found.spread)]
    if cap is not None:
        likeliest, cheapest = found.within(**cap), found.least_loss(**cap)
        document |= {
            "cap": dict(cap),
            "within": fields(likeliest),
            "least_loss": fields(cheapest),
        }
        caps = {"tokens": count(cap["tokens"]), "FLOPs": f"{cap['flops']:.3g}"}
        words = " and ".join(
            f"{value} {name}" for name, value in caps.items() if math.isfinite(cap[name.lower()])
        )
        blocks += [
            "",
            f"[bold]Under a cap of {words}[/]: largest P(both), and least expected target loss "
            f"with P(forgetting) at least {100 * found.confidence:g} %",
            _choices({"likeliest": likeliest, "least loss": cheapest}),
        ]
    if stop is not None:
        enough = found.stop(*stop)
        document |= {"stop": dict(zip(("nats", "tokens"), stop, strict=True)) | vars(enough)}
        words = f"{stop[1]:.3g} more tokens lower the expected target loss by less than {stop[0]:g}"
        blocks += ["", f"[bold]From here {words} nats[/]", _choices({"enough": enough})]
    if frontier["atpp"].map(math.isfinite).any():
        blocks += ["", "[bold]Smallest budget by confidence[/]"]
        blocks.append(tables(("confidence", *BUDGET), CELLS.frontier(frontier)))
    rows = [
        [
            f"{row['quantity']} {100 * row['moved']:+.3g} %",
            *CELLS.budget(row)[:2],
            CELLS.chance(row["held"]),
        ]
        for _, row in sensitivity.iterrows()
    ]
    if sensitivity["atpp"].map(math.isfinite).any():
        heads = ("", "ATPP", "replay", "P(both) of this plan")
        blocks += ["", "[bold]Sensitivity to the limits[/]", tables(heads, rows)]
    return labelled(document, blocks)


# -- parts ----------------------------------------------------------------------------------------


def _around(found: bl.Plan, around: Mapping[str, tuple[float, float]]) -> str:
    """How far the user's own choice can be moved."""
    (low, high), (least, most) = around["atpp"], around["replay"]
    budgets = "no ATPP" if math.isnan(low) else f"ATPP {low:.3g} to {high:.3g}"
    ratios = "no ratio" if math.isnan(least) else f"replay {100 * least:.1f} to {100 * most:.1f} %"
    return (
        f"At its replay {budgets}, at its budget {ratios} keeps all limits with "
        f"{100 * found.confidence:g} %."
    )


def _limits(found: bl.Plan) -> list[str]:
    limits, problem = found.limits, found.problem
    levels = baseline_losses(found)
    level = f"{' and '.join(levels)}, the " if levels else "the "
    rises = " and ".join(source.text(source.most) for source in problem.sources)
    all_ = "both" if len(problem.limits) == 2 else "all"
    lines = [
        f"[bold]N {count(limits['params'])}, PTPP {limits['ptpp']:g}[/]: "
        f"target loss at most {stated(problem.targets)},",
        f"forgetting at most {rises} over {escape(level + found.baseline)},",
        f"{all_} with probability {100 * found.confidence:g} %.",
        f"The limits are on {LOSSES[found.noise]}, with {escape(found.base)}.",
        f"{found.draws} draws, {found.pairing}.",
    ]
    return [*lines, escape(found.note)] if found.note else lines


def _answer(found: bl.Plan) -> list[str]:
    if found.status == "feasible":
        lines = [
            f"[bold green]Plan[/]: {digits(found.atpp)} ATPP at {100 * found.replay:.1f} % replay, "
            f"{count(found.tokens)} tokens, {found.flops:.3g} FLOPs."
        ]
        unique = found.limits["unique_tokens"]
        if found.epochs is not None and unique is not None:
            lines.append(f"{digits(found.epochs)} epochs of {count(unique)} new tokens.")
        return lines + monte_carlo(found)
    best = found.best.p_both if found.best else 0.0
    return [
        f"[bold red]Infeasible[/]: no budget meets the limits with probability "
        f"{100 * found.confidence:g} %; at most {100 * best:.1f} %.",
        f"Binding limit: {found.binds}.",
    ]


def _plans(found: bl.Plan, own: bl.Choice | None) -> dict[str, bl.Choice | None]:
    """Return the plan, those that it is compared with, and the user's own choice."""
    first = "plan" if found.status == "feasible" else "likeliest"
    rows = {first: found.chosen}
    if found.noise == "predictive":
        rows[f"{first}, latent losses"] = found.latent
    elif found.measured != found.latent:
        rows[f"{first}, measured losses"] = found.measured
    return rows | {"deterministic": found.deterministic, "yours": own}


def _choices(rows: Mapping[str, bl.Choice | None]) -> list[Table]:
    """Return a table of choices, without those that are None."""
    return tables(CHOICE, CELLS.choices(rows))


def _uncertainty(found: bl.Plan) -> list[str]:
    lines, certain = [], found.deterministic
    chosen = found.chosen
    if chosen is not None and chosen.losses:
        losses = " and ".join(f"{loss:.4g}" for loss in chosen.losses)
        rises = " and ".join(map(found.problem.source.text, chosen.forgettings))
        lines.append(f"Expected target loss {losses}; expected forgetting {rises}.")
        if len(chosen.p_sources) > 1:
            each = ", ".join(f"{p:.3f}" for p in chosen.p_sources)
            lines.append(f"The limits of the sources hold with probability {each}.")
    if math.isfinite(certain.atpp):
        lines.append(
            f"The deterministic plan ({found.point}) fails with probability "
            f"[bold]{certain.p_failure:.2f}[/]."
        )
    else:
        lines.append(f"The deterministic plan ({found.point}) is infeasible.")
    lines += [f"[bold yellow]Outside the data[/]: {escape(text)}." for text in found.outside]
    lines += [f"[bold red]NOT CONVERGED[/]: {escape(text)}." for text in found.unconverged]
    return lines


def _spread(spread: pd.DataFrame) -> list[Table]:
    shares = spread.columns.drop("sd")
    rows = [
        [str(name), f"{100 * row['sd']:.2g} %", *(f"{100 * row[share]:.0f} %" for share in shares)]
        for name, row in spread.iterrows()
    ]
    return tables(("", "sd", *shares), rows)
