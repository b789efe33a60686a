"""Leave-one-out cross-validation: log predictive density, and PIT, of runs or rows left out.

It scores laws within the range of the table. In an extrapolation, laws with similar scores can
differ by far more than their bands, and the law with the best score can have the largest error.
"""

import warnings
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from bayeslaw.common.arrays import Ints, Strings
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


def left_out(fit: Posterior, seed: int) -> tuple["ELPDData", xr.DataArray]:
    """Leave out each run, or each row if runs do not repeat: ArviZ's result, and PIT values.

    The estimate is by Pareto-smoothed importance sampling (PSIS-LOO). Unlike ArviZ's own `loo` of
    ``fit.to_datatree()``, which leaves out rows given their random effects, this integrates out
    random effects whose group is the left-out unit; that of a base has its posterior from the
    other runs of the base. The PIT is the predictive probability that the unit's mean log loss is
    below the measured one; its noise is drawn with this seed.
    """
    import arviz_stats as azs

    name, labels, index = _units(fit)
    frame = fit.table.frame.copy()
    density, integrated = unit_likelihood(fit, index)
    if name == "run":
        integrated["run"] = np.ones(len(frame), bool)
    for level, rows in integrated.items():  # a left-out group is a new one
        of_rows = effects.labels(frame, level)
        fitted = fit.draws[level].values if level in fit.spec.effects else of_rows
        frame[effects.level(level).column] = np.where(
            rows, effects.renamed(of_rows, fitted.astype(str)), of_rows
        )
    drawn = residual_draws(fit, frame, np.random.default_rng(seed), training=True)
    excess = (drawn - residual(fit, fit.table)) @ averaging(index).T
    shape = (fit.draws.sizes["chain"], -1, len(labels))
    dims = ("chain", "draw", name)
    coords = {name: labels}
    tree = xr.DataTree.from_dict(
        {
            "posterior": fit.draws,
            "log_likelihood": xr.Dataset(
                {OBSERVED: (dims, density.reshape(shape))}, coords
            ),
            # The measured unit mean is subtracted from the predicted one, draw by draw.
            "posterior_predictive": xr.Dataset(
                {OBSERVED: (dims, excess.reshape(shape))}, coords
            ),
            "observed_data": xr.Dataset(
                {OBSERVED: (name, np.zeros(len(labels)))}, coords
            ),
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # of Pareto k, which the result states
        psis = azs.loo(tree, pointwise=True)
    weights, k = (
        v.to_dataset(name=OBSERVED) for v in (psis.log_weights, psis.pareto_k)
    )
    return psis, azs.loo_pit(tree, log_weights=weights, pareto_k=k)[OBSERVED]


def _units(fit: Posterior) -> tuple[str, Strings, Ints]:
    """What is left out, "run" or "row", with its labels, and the unit of each row."""
    frame = fit.table.frame
    if "run" in frame and frame["run"].dropna().duplicated().any():
        return "run", *np.unique(effects.labels(frame, "run"), return_inverse=True)
    return "row", np.arange(len(frame)).astype(str), np.arange(len(frame))
