"""Part of a check: directions of the parameter space that the data leave undetermined.

A direction is a linear combination of the law's coordinates: a singular vector of the Jacobian of
the log losses. Its singular value measures the information of the data against that of the prior.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
import pandas as pd

from bayeslaw.checks import identifiability
from bayeslaw.checks.part import NAMES, Part, Target, listed
from bayeslaw.common.arrays import Floats
from bayeslaw.evaluate.densities import prior_draws
from bayeslaw.inference.posterior import Posterior

MOST_PRIOR = 0.5
"""Fraction of a forecast's variance from undetermined coordinates above which it is refused."""
SOME_PRIOR = 0.1
"""Fraction from which it is reported: the band is then 5 % wider."""

Record = TypedDict(
    "Record",
    {
        "kind": str,
        "leader": str,
        "with": str,
        "rows": str,
        "values": list[float],
        "losses": list[float],
    },
    total=False,
)
"""A direction in the table of the part; the last three are about the forecast."""


def directions_part(fit: Posterior, to: Target | None) -> Part:
    """Directions that the data determine weakly or not at all, and their effect on the forecast.

    An *undetermined* direction is one along which the training losses do not change within their
    noise. A *weak* one is determined less by the data than by the prior.
    """
    prior = prior_draws(fit)
    found = identifiability.directions(fit, prior)
    none, weak = found.undetermined(), found.weak()
    count, rank = len(found.names), found.rank
    words = [
        f"The law has {count} coordinates; these {len(fit.table)} rows determine "
        + (f"{rank} combinations of them." if rank < count else "all of them.")
    ]
    level = "caution" if none else "ok"
    records: list[Record] = []
    for kind, each in [("undetermined", d) for d in none] + [("weak", d) for d in weak]:
        leader = next(iter(each))
        record: Record = {"kind": kind, "leader": leader, "with": ", ".join(list(each)[1:])}
        if to is not None:
            record.update(_movement(fit, leader, prior[leader], to))
        records.append(record)
        if kind == "undetermined":
            words.append(_undetermined(fit, each, record))
    if weak:
        names = listed([" with ".join(list(each)[:2]) for each in weak])
        words.append(f"The rows are less informative than the prior about {names}.")
    facts: dict[str, object] = {
        "singular_values": found.values.tolist(),
        "rank": rank,
        "coordinates": list(found.names),
    }
    if to is not None and records:
        level, text, shares = _effect_on_forecast(fit, records, to)
        words.append(text)
        facts |= shares
    return Part("directions", level, tuple(words), pd.DataFrame(records), facts)


def _movement(fit: Posterior, leader: str, prior: Floats, to: Target) -> Record:
    """The group of rows whose forecast moves most along a coordinate, and its range."""
    values, loss = identifiability.swing(fit, leader, prior, to.log_loss)
    most = int(np.ptp(np.log(loss), axis=0).argmax())
    ends = sorted((loss[:, most].argmin(), loss[:, most].argmax()))
    return {
        "rows": list(to.groups)[most],
        "values": [float(values[i]) for i in ends],
        "losses": [float(loss[i, most]) for i in ends],
    }


def _undetermined(fit: Posterior, direction: Mapping[str, float], record: Record) -> str:
    """Finding about an undetermined direction."""
    leader, *others = direction
    seen, where = fit.table.frame, fit.law.covariates_of.get(leader, ())
    values = [f"{NAMES[c]} takes {seen[c].nunique()} values" for c in where]
    lead = f"{' and '.join(values)}; " if values else ""
    along = f" separately from {listed(others)}" if others else ""
    text = f"{lead}{leader} is not determined by these data{along}"
    if "losses" not in record:
        return text + ": its posterior is close to its prior."
    (x, y), (low, high) = record["losses"], record["values"]
    return (
        f"{text}: the forecast at {record['rows']} moves from {x:.4g} nats ({leader} {low:.2g}) to "
        f"{y:.4g} ({leader} {high:.2g}) across its prior."
    )


def _effect_on_forecast(
    fit: Posterior, records: Sequence[Record], to: Target
) -> tuple[str, str, dict[str, float]]:
    """Level, finding and fractions of the forecast's variance from undetermined coordinates."""
    curvatures = set(fit.law.discrepancy_parameters)
    names = [record["leader"] for record in records]
    own = [name for name in names if name not in curvatures]
    every, plain = (identifiability.explained(fit, each, to.log_loss) for each in (names, own))
    most = int((to.log_loss.std(0) * np.sqrt(every)).argmax())
    sd, share = float(to.log_loss[:, most].std()), float(every[most])
    shares = {"share": share, "share_own": float(plain[most]), "sd": sd}
    noise = float(np.median(fit.scale(fit.table.frame)))
    if sd * math.sqrt(share) < noise / 2 or share < SOME_PRIOR:
        return "ok", f"The forecasts of these rows depend little on {listed(names)}.", shares
    some = all(record["kind"] == "weak" for record in records)
    text = (
        f"{100 * share:.0f} % of the variance of the forecast at {list(to.groups)[most]} comes "
        f"from {listed(names)}, which the data {'determine weakly' if some else 'do not determine'}"
    )
    if shares["share_own"] > MOST_PRIOR and not some:
        advice = "the forecast is mostly prior. Add rows at more stages or sizes."
        return "refuse", f"{text}: {advice}", shares
    if set(names) & curvatures and share > MOST_PRIOR:
        return "caution", f"{text}: the prior of the curvature sets the width of the band.", shares
    return "caution", f"{text}.", shares
