"""What the command line says of a plan: text for a terminal and one JSON document."""

import math
from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from bayeslaw.cli.render import SYNTHETIC
from bayeslaw.cli.terminal import Told, ruled
from bayeslaw.common.formatting import count, digits
from bayeslaw.planning.choices import Choice
from bayeslaw.planning.result import Plan

HEADS = ("ATPP", "replay", "tokens", "FLOPs")
CHANCES = ("P(target)", "P(forgetting)", "P(both)")


def plan(found: Plan, cap: Mapping[str, float] | None, synthetic: bool) -> Told:
    """A plan with all that a reader must know before a run is paid for."""
    frontier = found.frontier().to_dict("records")
    sensitivity = found.sensitivity().to_dict("records")
    document = found.to_dict() | {
        "synthetic": synthetic,
        "frontier": frontier,
        "sensitivity": sensitivity,
    }
    parts: list[Any] = [SYNTHETIC] if synthetic else []
    parts += [*_asked(found), "", *_answer(found), "", [_choices(found)]]
    parts += ["", *_doubts(found)]
    if cap is not None:
        likeliest = found.within(**cap)
        cheapest = found.least_loss(**cap)
        document |= {
            "cap": dict(cap),
            "within": vars(likeliest) | {"p_failure": likeliest.p_failure},
            "least_loss": vars(cheapest) | {"p_failure": cheapest.p_failure},
        }
        parts += ["", *_capped(found, cap, likeliest, cheapest)]
    parts += ["", "[bold]Smallest budget by confidence[/]", [_frontier(frontier)]]
    parts += ["", "[bold]If a limit moves[/]", [_sensitivity(sensitivity)]]
    return Told(document, parts)


# -- parts ----------------------------------------------------------------------------------------


def _asked(found: Plan) -> list[str]:
    limits = found.limits
    losses = [limits["max_loss"]] if isinstance(limits["max_loss"], float) else limits["max_loss"]
    base = limits["baseline"]
    level = f"{base:.4g}, the " if isinstance(base, float) else "the "
    beyond = _worst(found, limits["max_cvar"]) if math.isfinite(limits["max_cvar"]) else ""
    lines = [
        f"[bold]N {count(limits['params'])}, PTPP {limits['ptpp']:g}[/]: "
        f"target loss at most {' and '.join(f'{loss:g}' for loss in losses)} nats per token,",
        f"forgetting at most {_rise(found, limits['max_forgetting'])} over "
        f"{escape(level + found.baseline)},",
        f"{'both' if len(losses) == 1 else 'all'} with probability {100 * found.confidence:g} %"
        f"{beyond and f'; forgetting at most {beyond} on average'}.",
        f"{found.draws} draws, {found.pairing}; {found.noise} losses.",
    ]
    return [*lines, escape(found.note)] if found.note else lines


def _answer(found: Plan) -> list[str]:
    if found.status == "feasible":
        return [
            f"[bold green]Plan[/]: {digits(found.atpp)} ATPP at {100 * found.replay:.1f} % replay, "
            f"{count(found.tokens)} tokens, {found.flops:.3g} FLOPs."
        ]
    best = found.best.p_both if found.best else 0.0
    return [
        f"[bold red]Infeasible[/]: no budget meets the limits with probability "
        f"{100 * found.confidence:g} %; at most {100 * best:.1f} %.",
        f"What binds: {found.binds}.",
    ]


def _choices(found: Plan) -> Table:
    rows = {"plan": found, "likeliest": found.best, "deterministic": found.deterministic}
    if found.status == "infeasible":
        del rows["plan"]
    table = ruled("", *HEADS, *CHANCES)
    for name, choice in rows.items():
        if choice is not None:
            table.add_row(name, *_cells(vars(choice)), *_chances(choice))
    return table


def _doubts(found: Plan) -> list[str]:
    lines, certain = [], found.deterministic
    if found.error and found.status == "feasible":
        low, high = found.error["atpp_90"]
        lines.append(
            f"Monte Carlo error: ATPP ± {digits(found.error['atpp'])} (90 %: {digits(low)} to "
            f"{digits(high)}), replay ± {100 * found.error['replay']:.2g} points. "
            f"On held-out draws P(both) is {found.held_out:.3f}."
        )
    chosen = found if found.status == "feasible" else found.best
    if chosen is not None and chosen.losses:
        losses = " and ".join(f"{loss:.4g}" for loss in chosen.losses)
        lines.append(
            f"Expected target loss {losses}; expected forgetting "
            f"{_rise(found, chosen.forgetting)}, {_worst(found, chosen.cvar)}."
        )
    if math.isfinite(certain.atpp):
        lines.append(
            f"The deterministic plan ({found.point}) fails with probability "
            f"[bold]{certain.p_failure:.2f}[/]."
        )
    else:
        lines.append(f"The point fits ({found.point}) have no plan: infeasible.")
    lines += [f"[bold yellow]Outside the data[/]: {escape(text)}." for text in found.outside]
    lines += [f"[bold red]NOT CONVERGED[/]: {escape(text)}." for text in found.unconverged]
    return lines


def _capped(found: Plan, cap: Mapping[str, float], *choices: Choice) -> list[Any]:
    words = " and ".join(
        f"{count(value) if name == 'tokens' else f'{value:.3g}'} {name.replace('flops', 'FLOPs')}"
        for name, value in cap.items()
        if math.isfinite(value)
    )
    table = ruled("", *HEADS, *CHANCES)
    for name, choice in zip(("likeliest", "least loss"), choices, strict=True):
        table.add_row(name, *_cells(vars(choice)), *_chances(choice))
    kept = f"the least expected target loss that keeps forgetting at {100 * found.confidence:g} %"
    return [f"[bold]Under a cap of {words}[/]: largest P(both), and {kept}", [table]]


def _frontier(rows: list[Any]) -> Table:
    table = ruled("confidence", *HEADS)
    for row in rows:
        table.add_row(f"{100 * row['confidence']:g} %", *_cells(row))
    return table


def _sensitivity(rows: list[Any]) -> Table:
    table = ruled("", "ATPP", "replay", "P(both) of this plan")
    for row in rows:
        moved = f"{row['quantity']} {100 * row['moved']:+.3g} %"
        table.add_row(moved, *_cells(row)[:2], _share(row["held"]))
    return table


def _cells(choice: Mapping[str, Any]) -> list[str]:
    if not math.isfinite(choice["atpp"]):
        return ["infeasible", "", "", ""]
    ratio = f"{100 * choice['replay']:.1f} %"
    return [digits(choice["atpp"]), ratio, count(choice["tokens"]), f"{choice['flops']:.3g}"]


def _chances(choice: Choice) -> list[str]:
    return [_share(p) for p in (choice.p_target, choice.p_forgetting, choice.p_both)]


def _share(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def _worst(found: Plan, cvar: float) -> str:
    """The mean rise where forgetting is worst, from its mean excess over the limit."""
    rise = _rise(found, found.limits["max_forgetting"] + cvar)
    return f"{rise} in the worst {100 - 100 * found.confidence:g} % of draws"


def _rise(found: Plan, value: float) -> str:
    return f"{100 * value:.3g} %" if found.limits["relative"] else f"{value:.3g} nats"
