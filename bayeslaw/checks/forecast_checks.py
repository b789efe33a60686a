"""Parts of a check that ask what the data can say about the rows to forecast."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from bayeslaw.checks import extrapolation, identifiability, sensitivity
from bayeslaw.checks.part import NAMES, RARE, Part, Target, listed, worst
from bayeslaw.evaluate.densities import Floats, prior_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.law import Law
from bayeslaw.model.random_effects import SIZE

MOST_PRIOR = 0.5
"""Share of a forecast's variance beyond which it says its priors more than the data: refuse."""
SOME_PRIOR = 0.1
"""Share from which on the words mention it: the band is 5 % wider for it."""
SENSITIVE = 0.05
"""Power-scaling sensitivity that counts: about .3 sd in the mean, by its authors' reading."""
NEAR = 0.1
"""Training ranges beyond the rows seen that count as among them: a bend at most doubles there."""
FAR = 1.0
"""There a bend hidden among the rows seen is 17 times as large."""
TOO_FAR = 3.0
"""There it is 97 times as large: a bend of .1 % is one of 10 %."""
BEND = 3
"""Distinct values of a covariate below which no bend can be seen at all: FAR is then too far."""


def directions(fit: Posterior, to: Target | None) -> Part:
    """Singular values of the Jacobian, the directions left free, and what they do to a forecast."""
    prior = prior_draws(fit)
    found = identifiability.directions(fit, prior)
    none, weak = found.undetermined(), found.weak()
    count, rank = len(found.names), found.rank
    words = [
        f"The law has {count} coordinates; these {len(fit.table)} rows determine "
        + (f"{rank} combinations of them." if rank < count else "all of them.")
    ]
    level = "caution" if none else "ok"
    records: list[dict[str, Any]] = []
    for kind, each in [("undetermined", d) for d in none] + [("weak", d) for d in weak]:
        leader = next(iter(each))
        record = {"kind": kind, "leader": leader, "with": ", ".join(list(each)[1:])}
        if to is not None:
            record |= _moves(fit, leader, prior[leader], to)
        records.append(record)
        if kind == "undetermined":
            words.append(_undetermined(fit, each, record))
    if weak:
        names = listed([" with ".join(list(each)[:2]) for each in weak])
        words.append(f"Of {names} the rows tell less than the prior does.")
    facts = {
        "singular_values": found.values.tolist(),
        "rank": rank,
        "coordinates": list(found.names),
    }
    if to is not None and records:
        level, text, shares = _matter(fit, records, to)
        words.append(text)
        facts |= shares
    return Part("directions", level, tuple(words), pd.DataFrame(records), facts)


def _moves(fit: Posterior, leader: str, prior: Floats, to: Target) -> dict[str, Any]:
    """The group of rows whose forecast moves most along a coordinate, and from where to where."""
    values, loss = identifiability.swing(fit, leader, prior, to.log_loss)
    most = int(np.ptp(np.log(loss), axis=0).argmax())
    ends = sorted((loss[:, most].argmin(), loss[:, most].argmax()))
    return {
        "rows": list(to.groups)[most],
        "values": [float(values[i]) for i in ends],
        "losses": [float(loss[i, most]) for i in ends],
    }


def _undetermined(fit: Posterior, direction: Mapping[str, float], record: Mapping[str, Any]) -> str:
    leader, *others = direction
    seen, where = fit.table.frame, fit.law.covariates_of.get(leader, ())
    values = [f"{NAMES[c]} takes {seen[c].nunique()} values" for c in where]
    lead = f"{' and '.join(values)}; " if values else ""
    along = f" (nor, along with it, {listed(others)})" if others else ""
    text = f"{lead}{leader} is not determined by these data{along}"
    if "losses" not in record:
        return text + ": it is left to its prior."
    (x, y), (low, high) = record["losses"], record["values"]
    return (
        f"{text}: the forecast at {record['rows']} moves from {x:.4g} nats ({leader} {low:.2g}) to "
        f"{y:.4g} ({leader} {high:.2g}) across its prior."
    )


def _matter(
    fit: Posterior, records: Sequence[Mapping[str, Any]], to: Target
) -> tuple[str, str, dict[str, float]]:
    """Level, words and shares of the forecast's variance that undetermined coordinates have."""
    bends = set(fit.law.discrepancy_parameters)
    names = [str(record["leader"]) for record in records]
    own = [name for name in names if name not in bends]
    every, plain = (identifiability.explained(fit, each, to.log_loss) for each in (names, own))
    most = int((to.log_loss.std(0) * np.sqrt(every)).argmax())
    sd, share = float(to.log_loss[:, most].std()), float(every[most])
    shares = {"share": share, "share_own": float(plain[most]), "sd": sd}
    noise = float(np.median(fit.scale(fit.table.frame)))
    if sd * math.sqrt(share) < noise / 2 or share < SOME_PRIOR:
        what = f"{listed(names)} {'are' if len(names) > 1 else 'is'}"
        return "ok", f"For these rows it hardly matters what {what}.", shares
    some = all(record["kind"] == "weak" for record in records)
    text = (
        f"{100 * share:.0f} % of the variance of the forecast at {list(to.groups)[most]} comes "
        f"from {listed(names)}, {'mostly left to the prior' if some else 'not determined'}"
    )
    if shares["share_own"] > MOST_PRIOR and not some:
        return "refuse", f"{text}: it states priors. Add rows at more stages or sizes.", shares
    if set(names) & bends and share > MOST_PRIOR:
        return "caution", f"{text}: the band is as wide as the bends that the prior allows.", shares
    return "caution", f"{text}.", shares


def prior_sensitivity(fit: Posterior, to: Target) -> Part:
    """Power-scaling sensitivity of the forecast."""
    columns = dict(zip(to.groups, to.log_loss.T, strict=True))
    frame = sensitivity.power_scaling(fit, columns)
    driven = frame[(frame["prior"] >= SENSITIVE) & (frame["likelihood"] < SENSITIVE)]
    both = frame[(frame["prior"] >= SENSITIVE) & (frame["likelihood"] >= SENSITIVE)]
    words = []
    for part, text in (
        (driven, "follows its priors and hardly the data"),
        (both, "moves with the priors as well as with the data"),
    ):
        if len(part):
            words.append(
                f"The forecast at {listed([str(name) for name in part.index])} {text} (sensitivity "
                f"to the prior up to {part['prior'].max():.2f}, to the likelihood "
                f"{part['likelihood'].max():.2f}; {SENSITIVE:g} counts)."
            )
    if not words:
        words = [f"No forecast is sensitive to the priors (at most {frame['prior'].max():.2f})."]
    level = "caution" if len(driven) + len(both) else "ok"
    return Part("sensitivity", level, tuple(words), frame)


def distance(fit: Posterior, to: Target) -> Part:
    """How far the rows lie beyond the training rows, against what these support."""
    frame = extrapolation.distances(fit, to.frame)
    values, words, level = extrapolation.levels(fit), [], "ok"
    for name in frame:
        far, seen = float(frame[name].max()), values[str(name)]
        if far < NEAR:
            continue
        label = NAMES[str(name)]
        if name not in fit.law.columns:
            if math.isinf(far):
                words.append(f"{label} is new in these rows, and the law has no term in it.")
                level = worst(level, "caution")
            continue
        text = f"{label} lies up to {far:.2g} training ranges beyond the rows seen"
        if name == "params" and seen < SIZE.fewest:
            limit, mine = NEAR, "refuse"
            reason = f", and {seen} sizes cannot show how far one lies off the curve of the others"
        elif seen < BEND:
            limit, reason = FAR, f", and {seen} values cannot show whether the law bends there"
            mine = "refuse" if far > FAR else "caution"
        else:
            limit, larger = TOO_FAR, extrapolation.amplified(far)
            reason = f"; a bend too small to see among these is {larger:.0f} times as large there"
            mine = "refuse" if far > TOO_FAR else "caution" if far > FAR else "ok"
        end = f": too far to forecast (limit {limit:g})." if mine == "refuse" else "."
        words.append(text + reason + end)
        level = worst(level, mine)
    if words and not fit.law.discrepancy_parameters:
        level = worst(level, "caution")
        words.append(
            "The law is taken as exact (no discrepancy): beyond the rows seen its bands do not "
            "know that real losses bend."
        )
    words = words or ["All rows lie within, or next to, the range of the training rows."]
    return Part("extrapolation", level, tuple(words), frame, {"levels": values})


def bends(fit: Posterior, to: Target | None) -> Part | None:
    """Whether the rows bend the law further than its discrepancy expects, and a forecast with it.

    In prior sds, posterior median against prior median; by chance one bend is that far off once in
    a hundred fits whose law is right.
    """
    if not fit.law.discrepancy_parameters:
        return None
    prior, drawn = prior_draws(fit), fit.values()
    off = {
        name: float(np.median(drawn[name]) - np.median(prior[name]))
        / identifiability.spread(prior[name])
        for name in fit.law.discrepancy_parameters
    }
    frame = pd.DataFrame({"off": off}).rename_axis("name")
    far = frame["off"].abs().sort_values(ascending=False)
    strained = far[far > stats.norm.isf(RARE / (2 * len(far)))]
    if strained.empty:
        words = f"No bend is far from where its prior expects it (at most {far.iloc[0]:.1f} prior "
        return Part("bends", "ok", (f"{words}sds, {far.index[0]}).",), frame)
    each = [f"{name} by {value:.1f}" for name, value in strained.items()]
    words = (
        f"The rows bend the law further than its discrepancy expects, in prior sds: {listed(each)}."
    )
    beyond: list[str] = []
    if to is not None:
        away = extrapolation.distances(fit, to.frame).max()
        along = fit.law.covariates_of
        followed = {c for name in strained.index for c in along[str(name)]}
        beyond = [NAMES[str(c)] for c in away.index[away >= NEAR] if c in followed]
    if beyond:
        them = "it" if len(each) == 1 else "them"
        text = f"A forecast beyond the {listed(beyond)} seen follows {them}: choose another law."
        return Part("bends", "refuse", (words, text), frame)
    return Part("bends", "caution", (words,), frame)


def bounds(fit: Posterior, to: Target | None) -> Part | None:
    """Bounds that hold for every eta, and whether the losses seen keep to them."""
    if "ptpp" not in fit.law.columns:
        return None
    words: list[str] = []
    facts: dict[str, Any] = {}
    frame = (
        pd.DataFrame(columns=["rows"]) if to is None else extrapolation.stage_bounds(fit, to.frame)
    )
    if to is not None and len(frame):
        text, facts = _outlook(fit, to, frame)
        words.append(text)
    shape = extrapolation.stage_shape(fit)
    limit = stats.norm.isf(RARE)
    for stage, row in shape.iterrows():
        for side, bound in (("below", "lower"), ("above", "upper")):
            if row[f"z_{side}"] > limit:
                words.append(
                    f"The {row['cells']:.0f} cells measured at PTPP {stage:g} lie {row[side]:.3g} "
                    f"nats {side} the {bound} of these bounds from the two stages before "
                    f"({row[f'z_{side}']:.1f} sd): no F/P^eta can do that."
                )
    broken = len(words) > bool(facts)
    if len(shape) and not broken:
        words.append("The stages seen keep to these bounds.")
    if not words:
        return None
    level = "caution" if broken or facts.get("outside") else "ok"
    facts |= {"shape": shape.reset_index().to_dict("records")}
    return Part("bounds", level, tuple(words), frame.drop(columns="rows"), facts)


def _outlook(fit: Posterior, to: Target, frame: pd.DataFrame) -> tuple[str, dict[str, Any]]:
    """Bounds and forecast of the mean loss at the latest stage, in words and numbers."""
    stage, last = frame.index[-1], frame.iloc[-1]
    loss = float(np.median(fit.latent(to.frame.iloc[last["rows"]]), 0).mean())
    low, high = last["lower"] - 2 * last["lower_sd"], last["upper"] + 2 * last["upper_sd"]
    outside = not low <= loss <= high
    text = (
        f"Whatever eta is, the mean loss at PTPP {stage:g} lies between {last['lower']:.4g} "
        f"(sd {last['lower_sd']:.2g}) and {last['upper']:.4g} (sd {last['upper_sd']:.2g}) nats if "
        "loss falls with log PTPP ever more slowly, as F/P^eta does: from the losses measured at "
        f"the last two stages. The forecast's median is {loss:.4g}{', outside' * outside}."
    )
    if not _convex(fit.law):
        text += " A gate or a bent term may leave these bounds."
    return text, {"stage": float(stage), "median": loss, "outside": outside}


def _convex(law: Law) -> bool:
    """Whether every term that depends on PTPP is convex in its log, as the bounds assume."""
    gated = any("ptpp" in term.covariates and not term.plain.convex_in_ptpp for term in law.terms)
    return not (gated or law.discrepancy_parameters)
