"""The finding about directions: combinations of coordinates that the data do not determine."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.checks.findings import Finding
from bayeslaw.checks.information import (
    basis,
    directions,
    explained,
    singular_values,
    swing,
)
from bayeslaw.checks.prior_draws import prior_of
from bayeslaw.common.arrays import Floats
from bayeslaw.common.formatting import listed
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.law import Law
from bayeslaw.tables.covariates import FLOPS, TABLE

# Singular values below which the data are less informative about a direction than the prior, and
# below which they have less than a hundredth of its information (the square).
WEAK = 1.0
NONE = 0.1
# Fraction of a forecast's variance from undetermined coordinates above which it is refused, and
# from which it is reported: the band is then 5 % wider.
MOST_PRIOR = 0.5
SOME_PRIOR = 0.1


def judge_directions(fit: Posterior, rows: pd.DataFrame | None) -> Finding:
    """Directions that the data determine less than the prior, and the forecast along them."""
    prior = prior_of(fit)
    groups = {} if rows is None else _log_losses(fit, rows)
    names, matrix = directions(fit, prior)
    undetermined = basis(names, matrix, 0.0, NONE)
    weak = basis(names, matrix, NONE, WEAK)
    values = singular_values(matrix)
    count = len(names)
    rank = int((values >= NONE).sum())
    determined = f"{rank} combinations of them." if rank < count else "all of them."
    words = [
        f"The law has {count} coordinates; these {len(fit.table)} rows determine {determined}"
    ]
    records: list[dict[str, Any]] = []
    for direction in undetermined:
        record = _record("undetermined", direction, fit, prior, groups)
        records.append(record)
        words.append(_undetermined(fit, direction, record))
    for direction in weak:
        records.append(_record("weak", direction, fit, prior, groups))
    if weak:
        pairs = [" with ".join(list(direction)[:2]) for direction in weak]
        words.append(
            f"The rows are less informative than the prior about {listed(pairs)}."
        )
    level = "caution" if undetermined else "ok"
    facts: dict[str, object] = {
        "singular_values": values.tolist(),
        "rank": rank,
        "coordinates": list(names),
    }
    if groups and records:
        level, text, shares = _effect_on_forecast(fit, records, groups)
        words.append(text)
        facts |= shares
    return Finding("directions", level, tuple(words), pd.DataFrame(records), facts)


def _log_losses(fit: Posterior, rows: pd.DataFrame) -> dict[str, Floats]:
    """Mean latent log loss, (draws,), of the rows of each PTPP, else size, else budget."""
    by = _grouping(fit.law)
    text = (TABLE | fit.law.declared)[by].text
    latent = np.log(fit.latent(rows))
    groups: dict[str, Floats] = {}
    for value, members in rows.groupby(by).indices.items():
        name = f"{text} {value:.3g}"
        groups[name] = latent[:, members].mean(1)
    return groups


def _grouping(law: Law) -> str:
    """The covariate by which rows are told apart: PTPP, else size, else FLOPs."""
    for column in ("ptpp", "params", FLOPS):
        if column in law.columns:
            return column
    return law.columns[0]


def _record(
    kind: str,
    direction: Mapping[str, float],
    fit: Posterior,
    prior: Mapping[str, Floats],
    groups: Mapping[str, Floats],
) -> dict[str, Any]:
    """A row of the finding's frame: a direction, and how the forecast moves along its leader."""
    leader, *followers = direction
    record: dict[str, Any] = {
        "kind": kind,
        "leader": leader,
        "with": ", ".join(followers),
    }
    if not groups:
        return record
    log_loss = np.stack(list(groups.values()), 1)
    values, losses = swing(fit, leader, prior[leader], log_loss)
    # The group of rows that moves most, from its least to its greatest loss.
    ranges = np.ptp(np.log(losses), axis=0)
    most = int(ranges.argmax())
    along = losses[:, most]
    ends = sorted((along.argmin(), along.argmax()))
    record["rows"] = list(groups)[most]
    record["values"] = [float(values[i]) for i in ends]
    record["losses"] = [float(along[i]) for i in ends]
    return record


def _undetermined(
    fit: Posterior, direction: Mapping[str, float], record: Mapping[str, Any]
) -> str:
    """A direction that the data do not determine, in words."""
    leader, *followers = direction
    varied = []
    for column in fit.law.covariates_of.get(leader, ()):
        count = fit.table.frame[column].nunique()
        varied.append(f"{fit.about[column].text} takes {count} values")
    text = f"{leader} is not determined by these data"
    if varied:
        text = f"{' and '.join(varied)}; {text}"
    if followers:
        text += f" separately from {listed(followers)}"
    if "losses" not in record:
        return f"{text}: its posterior is close to its prior."
    first_loss, last_loss = record["losses"]
    first_value, last_value = record["values"]
    return (
        f"{text}: the forecast at {record['rows']} moves from {first_loss:.4g} nats "
        f"({leader} {first_value:.2g}) to {last_loss:.4g} ({leader} {last_value:.2g}) across its "
        "prior."
    )


def _effect_on_forecast(
    fit: Posterior, records: Sequence[Mapping[str, Any]], groups: Mapping[str, Floats]
) -> tuple[str, str, dict[str, float]]:
    """Severity, words and fractions of the forecast's variance from undetermined coordinates."""
    log_loss = np.stack(list(groups.values()), 1)
    curvatures = {*fit.law.discrepancy_parameters}
    names = [record["leader"] for record in records]
    of_law = [name for name in names if name not in curvatures]
    fractions = explained(fit, names, log_loss)
    explained_sd = log_loss.std(0) * np.sqrt(fractions)
    most = int(explained_sd.argmax())
    sd = float(log_loss[:, most].std())
    share = float(fractions[most])
    share_own = float(explained(fit, of_law, log_loss)[most])
    shares = {"share": share, "share_own": share_own, "sd": sd}
    noise = float(np.median(fit.scale(fit.table.frame)))
    # What is small beside the noise, or beside the band, does not matter to a forecast.
    if sd * math.sqrt(share) < noise / 2 or share < SOME_PRIOR:
        text = f"The forecasts of these rows depend little on {listed(names)}."
        return "ok", text, shares
    only_weak = all(record["kind"] == "weak" for record in records)
    how = "determine weakly" if only_weak else "do not determine"
    text = (
        f"{100 * share:.0f} % of the variance of the forecast at {list(groups)[most]} comes "
        f"from {listed(names)}, which the data {how}"
    )
    # A discrepancy is there to widen bands; a law's own parameter that does so is not known.
    if share_own > MOST_PRIOR and not only_weak:
        text += ": the forecast is mostly prior. Add rows at more stages or sizes."
        return "refuse", text, shares
    level = "ok" if only_weak else "caution"
    if curvatures.intersection(names) and share > MOST_PRIOR:
        text += ": the prior of the curvature sets the width of the band."
        return level, text, shares
    return level, f"{text}.", shares
