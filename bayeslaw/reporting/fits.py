"""Sections on a fit: its data, what they cannot determine, its parameters, other laws, a plan."""

from typing import TYPE_CHECKING, Any

import pandas as pd

from bayeslaw import plots
from bayeslaw.checking.checkup import Check
from bayeslaw.posterior import Posterior
from bayeslaw.reporting import provenance
from bayeslaw.reporting.pages import Section, Sheet, digits, formula, picture
from bayeslaw.scores import BANDS, POINT

if TYPE_CHECKING:
    from bayeslaw.planning.choices import Choice
    from bayeslaw.planning.planner import Plan

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
    text += f"The fitted runs cost {provenance.cost(frame)}."
    head = ["", "fitted", "forecast", "beyond"]
    sheet = Sheet(
        "Ranges, and in brackets how many distinct values", head, provenance.ranges(frame, rows)
    )
    return Section("data", "Data", [text, sheet])


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
        "The law; a bend of each term comes on top." if law.name and fit.spec.discrepancy != "none"
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

    sure = f"{100 * found.confidence:g} %"
    said = f"{found.status.capitalize()} with probability {sure}. {found.binds}".strip()
    rows = [_choice("plan", found), _choice(f"point fits ({found.point})", found.deterministic)]
    rows += [_choice("likeliest", found.best)] if found.best is not None else []
    steps = [
        [f"{100 * row['confidence']:g} %", digits(row["atpp"]), digits(row["replay"])]
        for row in found.frontier().to_dict("records")
    ]
    notes = [text for text in (*found.outside, *found.unconverged, found.note) if text]
    seen = f"{said} {digits(found.atpp)} tokens per parameter at replay {digits(found.replay)}."
    parts: list[Any] = [
        said,
        Sheet("Budgets, and the probability that they meet the limits", PLANNED, rows),
        Sheet("Smallest budget by confidence", ["confidence", "ATPP", "replay"], steps),
        picture(plan_landscape(found), seen, "Where both limits are met, over budget and replay."),
        picture(plan_frontier(found), seen, "What more confidence costs."),
    ]
    return Section("plan", "Plan", [*parts, *([notes] if notes else [])])


def _choice(name: str, choice: "Choice") -> list[str]:
    numbers = [choice.atpp, choice.replay, choice.tokens, choice.flops]
    chances = [choice.p_target, choice.p_forgetting, choice.p_both]
    return [name, *(digits(number) for number in (*numbers, *chances))]
