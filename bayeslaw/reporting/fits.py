"""Sections on a fit: data, checks, parameters, comparison of laws, plan."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bayeslaw import plots
from bayeslaw.checks.checkup import Check
from bayeslaw.common.formatting import count, digits
from bayeslaw.evaluate.scores import BANDS, POINT, row_name
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import random_effects
from bayeslaw.reporting import provenance
from bayeslaw.reporting.pages import Part, Section, Table, formula, picture

if TYPE_CHECKING:
    from bayeslaw.derive.recipes import Recipes
    from bayeslaw.planning.choices import Choice
    from bayeslaw.planning.result import Plan

BUDGET = ("atpp", "replay", "tokens", "flops")
HEADS = ("", "ATPP", "replay", "tokens", "FLOPs", "P(target)", "P(forgetting)", "P(both)")


def data(fit: Posterior, rows: pd.DataFrame, train: str | None, test: str | None) -> Section:
    """Describe the training rows, and how far the forecast extrapolates."""
    frame = fit.table.frame
    kinds = {"run": "training run", "base": "pre-trained base", "domain": "domain"}
    found = {name: frame[c].nunique() for c, name in kinds.items() if c in frame}
    counts = [f"{n} {name}" + "s" * (n > 1) for name, n in found.items()]
    text = f"The law is fitted to {len(frame)} losses ({train or 'query unknown'})"
    text += f", from {', '.join(counts)}. " if counts else ". "
    text += f"The forecast is of {len(rows)} rows ({test or 'query unknown'}). "
    text += f"The training runs cost {provenance.cost(frame)}. "
    text += " ".join(_effects(fit, rows, level) for level in fit.spec.effects)
    head = ["", "training rows", "rows to forecast", "beyond the range"]
    table = Table(
        "Range, and number of distinct values in brackets",
        head,
        provenance.ranges(fit.law, frame, rows),
    )
    return Section("data", "Data", [text, table])


def _effects(fit: Posterior, rows: pd.DataFrame, level: str) -> str:
    """Describe which runs, bases or sizes of the rows to forecast are among the training rows."""
    column = random_effects.level(level).column
    labels = set(rows[column]) if column in rows else set()
    if not labels:
        return f"The rows to forecast name no {level}; each has the random effect of a new one."
    known = len(labels & set(fit.table.frame[column]))
    some = {0: "None", len(labels): "All"}.get(known, str(known))
    new = (
        ""
        if known == len(labels)
        else f"; the effect of a new {level} is drawn from its distribution"
    )
    return f"{some} of the {len(labels)} {level}s to forecast are in the training rows{new}."


def checks(check: Check) -> Section:
    """Describe the findings of the checks."""
    found = [[f"{part.name}: {part.level}", " ".join(part.words)] for part in check.parts]
    table = Table("Findings of each check", ["check", "finding"], found, words=True)
    return Section("checks", "Checks", [check.verdict, table])


def parameters(fit: Posterior, seed: int) -> Section:
    """Describe the law, its parameters in both coordinates, their priors and the sampling."""
    law, summary = fit.law, fit.summary()
    local = [n for n in law.coordinates if n not in law.parameters]
    noise = [n for n in summary.index if n not in (*law.parameters, *law.coordinates)]
    rows: list[list[str]] = []
    for title, names in {
        "paper coordinates": law.parameters,
        f"at the reference point ({provenance.reference(fit)}), slopes in nats per e-fold": local,
        "noise and random effects" if fit.spec.effects else "noise on log loss": noise,
    }.items():
        rows.append([title])
        for name in names:
            row = summary.loc[name]
            prior = fit.spec.priors.get("dof" if name == "dof_above_floor" else name, "")
            numbers = [digits(row[c], 4) for c in ("mean", "sd", "q05", "q95")]
            ess = min(row["ess_bulk"], row["ess_tail"])
            rows.append([name, *numbers, f"{row['rhat']:.3f}", f"{ess:.0f}", str(prior)])
    head = ["", "mean", "sd", "5 %", "95 %", "R-hat", "ESS", "prior"]
    parts: list[Part] = [
        "The law, without its discrepancy." if law.discrepancy_parameters
        else "The law.",
        formula(law.latex()),
        Table("Posterior of every parameter", head, rows),
    ]  # fmt: skip
    contracted = [n for n in fit.spec.sampled if n in summary.index and n in fit.spec.priors]
    if any(fit.spec.priors[n].name not in ("Flat", "HalfFlat") for n in contracted):
        parts.append(
            picture(
                plots.prior_posterior(fit, seed=seed),
                f"Prior and posterior density of {len(contracted)} parameters; the table above has "
                "the posterior's numbers and the priors.",
                "Where the two densities agree, the data say little, and the forecast depends on "
                "the prior.",
            )
        )
    diagnostics = fit.convergence
    parts.append(
        picture(
            plots.ranks(fit),
            f"Rank plots of the chains; largest R-hat {diagnostics.rhat:.3f}, smallest bulk ESS "
            f"{diagnostics.ess_bulk:.0f}.",
            "Chains that sampled the same distribution stay near zero; p is from a test of that.",
        )
    )
    return Section("parameters", "Parameters", parts)


def laws(scores: pd.DataFrame | None) -> Section | None:
    """Show the scores of several laws, from `bayeslaw.compare`."""
    if scores is None:
        return None
    columns = [c for c in (*POINT, *BANDS) if scores[c].notna().any()]
    named = [(row_name(law), row) for law, row in scores.iterrows()]
    rows = [
        [law, *(digits(row[c]) for c in columns), *(str(row[c]) for c in ("rows", "scored"))]
        for law, row in named
    ]
    notes = [f"{law}: {row['note']}" for law, row in named if row["note"]]
    best = row_name(scores["rmse_log"].idxmin())
    alt = f"Scores of {len(scores)} laws on the held-out rows; smallest RMSE of log loss: {best}, "
    alt += f"{scores['rmse_log'].min():.4f}."
    return Section(
        "laws",
        "Laws compared",
        [
            "Each law is fitted to the same rows and scored on the same held-out rows; an oracle "
            "is fitted to the held-out rows themselves. The last columns are the numbers of rows "
            "fitted and scored.",
            Table("Scores of each law", ["law", *columns, "rows", "scored"], rows),
            picture(
                plots.compare(scores), alt, "The dashed line is the score of a perfect forecast."
            ),
            *([notes] if notes else []),
        ],
    )


def recipes(found: "Recipes | None") -> Section | None:
    """Show which recipe has the lowest loss at each target."""
    if found is None:
        return None
    heads = [*found.targets.columns, "recipe", "loss", "90 %", "P(best)", "regret"]
    rows = [
        [
            *(f"{row[name]:.4g}" for name in found.targets.columns),
            str(row["recipe"]),
            f"{row['loss']:.4f}",
            f"{row['lower']:.4f} to {row['upper']:.4f}",
            f"{row['p_best']:.3f}",
            f"{row['regret']:.2g}",
        ]
        for _, row in found.to_frame().iterrows()
    ]
    caption = "Latent losses; regret: expected nats above the best if chosen now"
    parts: list[Part] = [found.sentence(), Table(caption, heads, rows), list(found.notes)]
    return Section("recipes", "Recipes", parts)


def plan(found: "Plan | None") -> Section | None:
    """Show a plan, the plan of the point fits, their probabilities, and budgets by confidence."""
    if found is None:
        return None
    from bayeslaw.plots.plans import plan_frontier, plan_landscape

    rows = [_choice("plan", found)] if found.status == "feasible" else []
    rows += [_choice("likeliest", found.best)] if found.best is not None else []
    rows += [_choice("deterministic", found.deterministic)]
    caption = f"Budgets and probabilities to meet the limits; deterministic: {found.point}"
    steps = [
        [f"{100 * row['confidence']:g} %", *_cells(row[list(BUDGET)])]
        for _, row in found.frontier().iterrows()
    ]
    notes = [f"Outside the data: {text}." for text in found.outside]
    notes += [f"Not converged: {text}." for text in found.unconverged]
    notes += [found.note] if found.note else []
    summary = answer(found)
    parts: list[Part] = [
        _question(found),
        summary,
        *([notes] if notes else []),
        Table(caption, HEADS, rows),
        picture(
            plan_landscape(found),
            summary,
            "Forgetting and target loss over budget and replay. Contours are P(both), the "
            "probability that all limits are met.",
        ),
        Table("Smallest budget by confidence", ["confidence", *HEADS[1:5]], steps),
        picture(
            plan_frontier(found), summary, "Smallest budget and its replay ratio by confidence."
        ),
    ]
    return Section("plan", "Plan", parts)


def answer(found: "Plan") -> str:
    """Summarise a plan in one sentence."""
    if found.status == "infeasible":
        best = found.best.p_both if found.best else 0.0
        return (
            f"Infeasible: no budget meets the limits with probability {100 * found.confidence:g} "
            f"%, at most {100 * best:.3g} %; binding limit: {found.binds}."
        )
    atpp, replay, tokens, flops = _cells([getattr(found, name) for name in BUDGET])
    repeated = "" if found.epochs is None else f", {found.epochs:.3g} epochs of the new data"
    return (
        f"Plan: {atpp} adaptation tokens per parameter at {replay} replay ({tokens} tokens, "
        f"{flops} FLOPs{repeated}) meet the limits with probability {100 * found.p_both:.3g} %."
    )


def _question(found: "Plan") -> str:
    limits, bases = found.limits, found.limits["baseline"]
    losses = np.atleast_1d(limits["max_loss"])
    scale, unit = (100, "%") if limits["relative"] else (1, "nats per token")
    rises = np.atleast_1d(limits["max_forgetting"])
    most = f"{' and '.join(f'{scale * rise:.3g}' for rise in rises)} {unit}"
    bases = bases if isinstance(bases, list) else [bases]
    level = "".join(f"{np.ravel(b)[0]:.4g}, " for b in bases if not isinstance(b, str))
    unique = limits["unique_tokens"]
    scarce = "" if unique is None else f" There are {count(unique)} distinct new tokens."
    return (
        f"For N {count(limits['params'])} at PTPP {limits['ptpp']:g}: the smallest budget that "
        f"keeps the target loss within {' and '.join(f'{loss:g}' for loss in losses)} nats per "
        f"token and forgetting within {most} over {level}the {found.baseline}, with probability "
        f"{100 * found.confidence:g} %. From {found.draws} draws, {found.pairing}; {found.noise} "
        f"losses.{scarce}"
    )


def _choice(name: str, choice: "Choice") -> list[str]:
    budget = _cells([getattr(choice, column) for column in BUDGET])
    probabilities = (choice.p_target, choice.p_forgetting, choice.p_both)
    return [name, *budget, *(digits(p) for p in probabilities)]


def _cells(budget: "Sequence[float] | pd.Series[float]") -> list[str]:
    atpp, replay, tokens, flops = budget
    if not math.isfinite(atpp):
        return ["infeasible", "", "", ""]
    return [digits(atpp), f"{100 * replay:.3g} %", count(tokens), f"{flops:.3g}"]
