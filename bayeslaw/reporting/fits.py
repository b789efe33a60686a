"""Sections on a fit: its data, what they cannot determine, its parameters, other laws, a plan."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bayeslaw import plots
from bayeslaw.checks.checkup import Check
from bayeslaw.common.formatting import count, digits
from bayeslaw.evaluate.scores import BANDS, POINT
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import random_effects
from bayeslaw.reporting import provenance
from bayeslaw.reporting.pages import Section, Sheet, formula, picture

if TYPE_CHECKING:
    from bayeslaw.planning.choices import Choice
    from bayeslaw.planning.result import Plan

PLANNED = ("", "ATPP", "replay", "tokens", "FLOPs", "P(target)", "P(forgetting)", "P(both)")


def data(fit: Posterior, rows: pd.DataFrame, train: str | None, test: str | None) -> Section:
    """How many rows, which, and how far the forecast goes beyond them."""
    frame = fit.table.frame
    kinds = {"run": "training run", "base": "pre-trained base", "domain": "domain"}
    found = {name: frame[c].nunique() for c, name in kinds.items() if c in frame}
    counts = [f"{n} {name}" + "s" * (n > 1) for name, n in found.items()]
    text = f"{len(frame)} losses are fitted ({train or 'query unknown'})"
    text += f", from {', '.join(counts)}. " if counts else ". "
    text += f"{len(rows)} rows are forecast ({test or 'query unknown'}). "
    text += f"The fitted runs cost {provenance.cost(frame)}. "
    text += " ".join(_shared(fit, rows, level) for level in fit.spec.effects)
    head = ["", "fitted", "forecast", "beyond"]
    sheet = Sheet(
        "Ranges, and in brackets how many distinct values", head, provenance.ranges(frame, rows)
    )
    return Section("data", "Data", [text, sheet])


def _shared(fit: Posterior, rows: pd.DataFrame, level: str) -> str:
    """Which runs, bases or sizes of the rows to forecast were fitted."""
    column = random_effects.level(level).column
    asked = set(rows[column]) if column in rows else set()
    seen = len(asked & set(fit.table.frame[column]))
    if not asked:
        return f"The rows to forecast name no {level}; each has a new one's effect."
    some = {0: "None", len(asked): "All"}.get(seen, str(seen))
    others = "" if seen == len(asked) else "; an effect not fitted is drawn from their spread"
    return f"{some} of the {len(asked)} {level}s to forecast were fitted{others}."


def limits(check: Check) -> Section:
    """What was checked before the forecast, in words."""
    found = [[f"{part.name}: {part.level}", " ".join(part.words)] for part in check.parts]
    sheet = Sheet("What was checked, and what was found", ["check", "finding"], found, words=True)
    return Section("limits", "What the data cannot determine", [check.verdict, sheet])


def parameters(fit: Posterior, seed: int) -> Section:
    """The law, its parameters in both coordinates, and what the data did to them."""
    law, summary = fit.law, fit.summary()
    local = [n for n in law.coordinates if n not in law.parameters]
    noise = [n for n in summary.index if n not in (*law.parameters, *law.coordinates)]
    rows: list[list[str]] = []
    for title, names in {
        "paper coordinates": law.parameters,
        f"at the reference point ({provenance.reference(fit)}), slopes in nats per e-fold": local,
        "noise on log loss": noise,
    }.items():
        rows.append([title])
        for name in names:
            row = summary.loc[name]
            prior = fit.spec.priors.get("dof" if name == "dof_above_floor" else name, "")
            numbers = [digits(row[c], 4) for c in ("mean", "sd", "q05", "q95")]
            ess = min(row["ess_bulk"], row["ess_tail"])
            rows.append([name, *numbers, f"{row['rhat']:.3f}", f"{ess:.0f}", str(prior)])
    head = ["", "mean", "sd", "5 %", "95 %", "R-hat", "ESS", "prior"]
    parts: list[Any] = [
        "The law; a bend of each term comes on top." if law.discrepancy_parameters
        else "The law.",
        formula(law.latex()),
        Sheet("Posterior of every parameter", head, rows),
    ]  # fmt: skip
    contracted = [n for n in fit.spec.sampled if n in summary.index and n in fit.spec.priors]
    if any(fit.spec.priors[n].name not in ("Flat", "HalfFlat") for n in contracted):
        parts.append(
            picture(
                plots.prior_posterior(fit, seed=seed),
                f"Prior and posterior density of {len(contracted)} parameters; the table above has "
                "the posterior's numbers and the priors.",
                "Where the two curves agree the data said nothing, and the forecast rests on the "
                "prior.",
            )
        )
    gate = fit.convergence
    parts.append(
        picture(
            plots.ranks(fit),
            f"Rank plots of the chains; largest R-hat {gate.rhat:.3f}, smallest bulk ESS "
            f"{gate.ess_bulk:.0f}.",
            "Chains that sampled the same distribution stay near zero.",
        )
    )
    return Section("parameters", "Parameters", parts)


def laws(scores: pd.DataFrame | None) -> Section | None:
    """Several laws on the same rows, from `bayeslaw.compare`."""
    if scores is None:
        return None
    columns = [c for c in (*POINT, *BANDS) if scores[c].notna().any()]
    rows = [[str(law), *(digits(row[c]) for c in columns)] for law, row in scores.iterrows()]
    notes = [f"{law}: {row['note']}" for law, row in scores.iterrows() if row["note"]]
    best = scores["rmse_log"].idxmin()
    said = f"Scores of {len(scores)} laws on the held-out rows; smallest RMSE of log loss: {best}, "
    said += f"{scores['rmse_log'].min():.4f}."
    return Section(
        "laws",
        "Laws compared",
        [
            "Each law is fitted to the same rows and scored on the same held-out rows; an oracle "
            "is fitted to the held-out rows themselves.",
            Sheet("Scores of each law", ["law", *columns], rows),
            picture(plots.compare(scores), said, "Dashed: a perfect forecast."),
            *([notes] if notes else []),
        ],
    )


def plan(found: "Plan | None") -> Section | None:
    """A plan with its probabilities beside that of the point fits, its frontier, its pictures."""
    if found is None:
        return None
    from bayeslaw.plots.plans import plan_frontier, plan_landscape

    rows = [_choice("plan", found)] if found.status == "feasible" else []
    rows += [_choice("likeliest", found.best)] if found.best is not None else []
    rows += [_choice("deterministic", found.deterministic)]
    chances = f"Budgets, and their chances to meet the limits; deterministic: {found.point}"
    steps = [
        [f"{100 * row['confidence']:g} %", *_budget(row)]
        for row in found.frontier().to_dict("records")
    ]
    notes = [f"Outside the data: {text}." for text in found.outside]
    notes += [f"Not converged: {text}." for text in found.unconverged]
    notes += [found.note] if found.note else []
    said = answer(found)
    parts: list[Any] = [
        _asked(found),
        said,
        *([notes] if notes else []),
        Sheet(chances, PLANNED, rows),
        picture(plan_landscape(found), said, "Where both limits are met, over budget and replay."),
        Sheet("Smallest budget by confidence", ["confidence", *PLANNED[1:5]], steps),
        picture(plan_frontier(found), said, "What more confidence costs."),
    ]
    return Section("plan", "Plan", parts)


def answer(found: "Plan") -> str:
    """What a plan says, in one sentence."""
    if found.status == "infeasible":
        best = found.best.p_both if found.best else 0.0
        return (
            f"Infeasible: no budget meets the limits with probability {100 * found.confidence:g} "
            f"%, at most {100 * best:.3g} %; what binds: {found.binds}."
        )
    atpp, replay, tokens, flops = _budget(vars(found))
    return (
        f"Plan: {atpp} adaptation tokens per parameter at {replay} replay ({tokens} tokens, "
        f"{flops} FLOPs) meet the limits with probability {100 * found.p_both:.3g} %."
    )


def _asked(found: "Plan") -> str:
    limits, base = found.limits, found.limits["baseline"]
    losses = np.atleast_1d(limits["max_loss"])
    rise = limits["max_forgetting"]
    most = f"{100 * rise:.3g} %" if limits["relative"] else f"{rise:.3g} nats per token"
    level = "" if isinstance(base, str) else f"{base:.4g}, "
    return (
        f"For N {count(limits['params'])} at PTPP {limits['ptpp']:g}: the smallest budget that "
        f"keeps the target loss within {' and '.join(f'{loss:g}' for loss in losses)} nats per "
        f"token and forgetting within {most} over {level}the {found.baseline}, with probability "
        f"{100 * found.confidence:g} %. From {found.draws} draws, {found.pairing}; {found.noise} "
        "losses."
    )


def _choice(name: str, choice: "Choice") -> list[str]:
    chances = (choice.p_target, choice.p_forgetting, choice.p_both)
    return [name, *_budget(vars(choice)), *(digits(chance) for chance in chances)]


def _budget(choice: Mapping[Any, Any]) -> list[str]:
    if not math.isfinite(choice["atpp"]):
        return ["infeasible", "", "", ""]
    ratio, flops = f"{100 * choice['replay']:.3g} %", f"{choice['flops']:.3g}"
    return [digits(choice["atpp"]), ratio, count(choice["tokens"]), flops]
