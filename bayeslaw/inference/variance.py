"""Where the variance of a forecast comes from.

The log of a measured loss is a sum of `PARTS`, draw by draw. The share of a part is its covariance
with the sum over the variance of the sum, so shares add up to 1; one is negative if other parts
offset it. The members of a pool enter by the law of total variance: the share of `law` is the
variance between their means.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.formatting import percent
from bayeslaw.common.shown import Block, Format, Note, Table
from bayeslaw.inference.fitted import FittedLaw
from bayeslaw.inference.residuals import error_draws, new_size_effects
from bayeslaw.laws.symbols import Values
from bayeslaw.model import effects
from bayeslaw.model.effects import BASE, SIZE
from bayeslaw.tables.table import Rows

PARTS = ("law", "parameters", "discrepancy", "size", "base", "run", "noise")
"""Sources of variance: which law of a pool is right, its parameters and discrepancy, the effects of
the size, of the base and of the run (and of any other level), and measurement noise."""

NEGATIVE = (
    "A negative share says that this source partly cancels another: where one raises the loss, the "
    "other lowers it."
)


def latent_parts(
    fit: FittedLaw, frame: pd.DataFrame, rng: np.random.Generator | None
) -> dict[str, Floats]:
    """Parts of the latent log loss that vary, each (draws, rows); without `rng`, no new sizes."""
    plain = fit.law.without_discrepancy
    rows = Rows(frame)
    x = fit.covariates(fit.design(rows))
    p = plain.amounts(fit.values(), fit.at)
    shape = (fit.count, len(frame))
    # Losses of bases that are not known are drawn, so that some covariates vary.
    middle = {
        name: np.median(v, axis=0) if np.ndim(v) > 1 else v for name, v in x.items()
    }

    def log_loss(x: Values) -> Floats:
        return np.log(np.broadcast_to(plain.loss(p, x, fit.at), shape))

    with np.errstate(invalid="ignore", divide="ignore"):
        law = log_loss(middle)
        of_bases = log_loss(x)
        drifting = np.log(fit.law_loss(fit.design(rows)))
    sizes = effects.latent_effects(fit.draws, fit.spec.effects, frame)
    return {
        "parameters": law,
        BASE.name: of_bases - law,
        "discrepancy": drifting - of_bases,
        SIZE.name: sizes if rng is None else sizes + new_size_effects(fit, frame, rng),
    }


def parts_of(
    fit: FittedLaw, frame: pd.DataFrame, kind: str, seed: int
) -> dict[str, Floats]:
    """Parts of the log loss of `Posterior.forecast` of some rows, each (draws, rows)."""
    if kind == "latent":
        return latent_parts(fit, frame, None)
    rng = np.random.default_rng(seed)
    noise = error_draws(fit, frame, rng)
    parts = latent_parts(fit, frame, rng) | {"noise": noise}
    for level in fit.spec.effects:
        if level != SIZE.name:
            drawn = effects.draw(fit.draws, (level,), frame, rng)
            parts[level] = parts.get(level, 0.0) + drawn
    return parts


def shares(
    members: Iterable[tuple[float, Mapping[str, Floats]]], index: pd.Index
) -> pd.DataFrame:
    """`sd` of the log loss and the share of each of `PARTS`, a row for each row.

    Each member of a pool is its weight and its parts, (draws, rows). Rows are NaN where a loss is
    not finite, far from the fitted rows.
    """
    weights = []
    totals = []
    covariances = []
    with np.errstate(invalid="ignore", divide="ignore"):
        for weight, parts in members:
            total = np.sum([*parts.values()], axis=0)
            centred = total - total.mean(0)
            by = dict.fromkeys(PARTS, np.zeros(total.shape[1]))
            for name, values in parts.items():
                source = name if name in PARTS else "run"
                by[source] = by[source] + ((values - values.mean(0)) * centred).mean(0)
            weights.append(weight)
            totals.append(total.mean(0))
            covariances.append(by)
        shared = np.array(weights) / np.sum(weights)
        variances = {
            name: sum(w * by[name] for w, by in zip(shared, covariances, strict=True))
            for name in PARTS
        }
        means = np.array(totals)
        variances["law"] = shared @ (means - shared @ means) ** 2
        variance = np.sum([*variances.values()], axis=0)
        frame = pd.DataFrame(
            {name: part / variance for name, part in variances.items()}, index=index
        )
    frame.insert(0, "sd", np.sqrt(variance))
    frame.loc[~np.isfinite(variance)] = np.nan
    return frame


def shares_blocks(
    frame: pd.DataFrame, labels: Mapping[str, Format] | None = None
) -> list[Block]:
    """The table of `shares`, without parts that no row has; `labels` are formats of others.

    A sentence explains negative shares, if there are some.
    """
    sources = [name for name in PARTS if frame[name].abs().gt(0).any()]
    formats: dict[str, Format] = dict.fromkeys(sources, percent)
    formats |= labels or {}
    formats["sd"] = lambda sd: f"{100 * sd:.2g} %"
    columns = [c for c in frame if c in sources or c not in PARTS]
    blocks: list[Block] = [
        Table(frame[columns], "Where its uncertainty comes from", formats)
    ]
    # As they are shown, in whole per cent.
    if (frame[sources].round(2) < 0).any(axis=None):
        blocks.append(Note(NEGATIVE, "quiet"))
    return blocks
