"""The finding about left-out runs or rows, by leave-one-out cross-validation.

It scores laws within the range of the table. In an extrapolation, laws with similar scores can
differ by far more than their bands, and the law with the best score can have the largest error.
"""

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.checks.findings import RARE, Finding
from bayeslaw.common.arrays import Bools, Floats, Ints, Strings
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import (
    averaging,
    residual,
    residual_draws,
    unit_likelihood,
)
from bayeslaw.model import effects
from bayeslaw.model.noise import OBSERVED

if TYPE_CHECKING:
    from arviz_stats.utils import ELPDData


def judge_left_out(fit: Posterior, seed: int) -> Finding:
    """PIT values and Pareto k of runs, or rows, left out by importance sampling."""
    from arviz_stats.base import array_stats

    psis, pit = left_out(fit, seed)
    columns = {"elpd": psis.elpd_i, "pit": pit, "pareto_k": psis.pareto_k}
    frame = pd.DataFrame(columns)
    frame.index = pit.to_series().index
    reliable = (frame["pareto_k"] <= psis.good_k).to_numpy()
    unreliable = int((~reliable).sum())
    tested = frame["pit"].to_numpy()[reliable]
    p = np.nan
    if len(tested) > 1:
        p = float(array_stats.uniformity_test(tested)[0])
    uneven = p < RARE
    unit = str(frame.index.name)
    compatible = "not compatible" if uneven else "compatible"
    words = [
        f"The PIT values of {len(frame)} {unit}s, each predicted from the others, are "
        f"{compatible} with calibrated bands (p = {p:.2g})."
    ]
    if unreliable:
        words.append(
            f"For {unreliable} of them the estimate is unreliable (Pareto k above "
            f"{psis.good_k:.2g}): this test is without them."
        )
    facts = {
        "unit": unit,
        "p": p,
        "elpd": float(psis.elpd),
        "unreliable": unreliable,
    }
    level = "caution" if uneven else "ok"
    return Finding("left out", level, tuple(words), frame, facts)


def left_out(fit: Posterior, seed: int) -> tuple["ELPDData", xr.DataArray]:
    """Leave out each run, or each row if runs do not repeat: ArviZ's result, and PIT values.

    The estimate is by Pareto-smoothed importance sampling (PSIS-LOO). ArviZ's own `loo` of
    ``fit.to_datatree()`` leaves out rows given their random effects. Here, random effects whose
    group is the left-out unit are integrated out, and that of a base has its posterior from the
    other runs of the base. The PIT is the predictive probability that the unit's mean log loss is
    below the measured one; its noise is drawn with this seed.
    """
    import arviz_stats as azs

    unit, labels, index = _units(fit)
    density, integrated = unit_likelihood(fit, index)
    if unit == "run":
        integrated["run"] = np.ones(len(fit.table), bool)
    frame = _with_new_groups(fit, integrated)
    rng = np.random.default_rng(seed)
    drawn = residual_draws(fit, frame, rng, training=True)
    # The measured mean of a unit is subtracted from the predicted one, draw by draw.
    measured = residual(fit, fit.table)
    excess = (drawn - measured) @ averaging(index).T
    chains = fit.draws.sizes["chain"]
    coordinates = {unit: labels}

    def by_draw(values: Floats) -> xr.Dataset:
        """Values (draws, units) as a variable of the observed loss."""
        dims = ("chain", "draw", unit)
        by_chain = values.reshape((chains, -1, len(labels)))
        return xr.Dataset({OBSERVED: (dims, by_chain)}, coordinates)

    zeros = np.zeros(len(labels))
    tree = xr.DataTree.from_dict(
        {
            "posterior": fit.draws,
            "log_likelihood": by_draw(density),
            "posterior_predictive": by_draw(excess),
            "observed_data": xr.Dataset({OBSERVED: (unit, zeros)}, coordinates),
        }
    )
    with warnings.catch_warnings():
        # ArviZ warns of Pareto k, which the finding tells.
        warnings.simplefilter("ignore", UserWarning)
        psis = azs.loo(tree, pointwise=True)
    pit = azs.loo_pit(
        tree,
        log_weights=psis.log_weights.to_dataset(name=OBSERVED),
        pareto_k=psis.pareto_k.to_dataset(name=OBSERVED),
    )
    return psis, pit[OBSERVED]


def _with_new_groups(fit: Posterior, left_out: dict[str, Bools]) -> pd.DataFrame:
    """The training rows, in which groups of each level are new ones where they are left out."""
    frame = fit.table.frame.copy()
    for level, rows in left_out.items():
        labels = effects.labels(frame, level)
        fitted = labels
        if level in fit.spec.effects:
            fitted = fit.draws[level].values
        new = effects.renamed(labels, fitted.astype(str))
        column = effects.level(level).column
        frame[column] = np.where(rows, new, labels)
    return frame


def _units(fit: Posterior) -> tuple[str, Strings, Ints]:
    """What is left out, "run" or "row", with its labels, and the unit of each row."""
    frame = fit.table.frame
    if "run" in frame and frame["run"].dropna().duplicated().any():
        runs = effects.labels(frame, "run")
        return "run", *np.unique(runs, return_inverse=True)
    rows = np.arange(len(frame))
    return "row", rows.astype(str), rows
