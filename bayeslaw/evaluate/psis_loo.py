"""Leave-one-out prediction of each run, or row, by Pareto-smoothed importance sampling (PSIS)."""

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Floats, Strings
from bayeslaw.evaluate.densities import log_likelihood, residual, run_likelihood
from bayeslaw.evaluate.new_sizes import residual_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import random_effects as effects

NAME = "log_loss"


@dataclass(frozen=True)
class LeftOut:
    """Each unit of the training table against its prediction from the other units.

    Parameters
    ----------
    unit : {"run", "row"}
        Unit that is left out: whole runs if `run` repeats in the table, otherwise single rows.
    labels : array, shape (units,)
    elpd : array, shape (units,)
        Log predictive density of the unit's log losses, nats.
    pit : array, shape (units,)
        Probability integral transform: predictive probability that the unit's mean log loss is
        below the measured one.
    pareto_k : array, shape (units,)
        Shape of the tail of the importance weights.
    good_k : float
        Largest Pareto k at which the estimate is reliable with this number of draws.
    """

    unit: str
    labels: Strings
    elpd: Floats
    pit: Floats
    pareto_k: Floats
    good_k: float

    @property
    def unreliable(self) -> int:
        """Number of units whose Pareto k is too large; they need a refit without the unit."""
        return int((~(self.pareto_k <= self.good_k)).sum())

    def uniformity(self) -> float:
        """P-value of the hypothesis that the PIT values of the reliable units are uniform."""
        from arviz_stats.base import array_stats

        pit = self.pit[self.pareto_k <= self.good_k]
        return float(array_stats.uniformity_test(pit)[0]) if len(pit) > 1 else np.nan

    def to_frame(self) -> pd.DataFrame:
        """Data frame with one row per unit: `elpd`, `pit`, `pareto_k`."""
        columns = {"elpd": self.elpd, "pit": self.pit, "pareto_k": self.pareto_k}
        return pd.DataFrame(columns, index=pd.Index(self.labels, name=self.unit))


def leave_out(fit: Posterior, seed: int = 0) -> LeftOut:
    """Leave out each run, or each row if runs do not repeat, by importance sampling.

    The random effect of a left-out run is integrated out. The random effect of its base has its
    posterior from the other runs of that base.

    Parameters
    ----------
    fit : Posterior
    seed : int
        Seed of the predictive noise, which the PIT values need.

    Returns
    -------
    LeftOut

    References
    ----------
    .. [1] Vehtari, Gelman and Gabry, Practical Bayesian model evaluation using leave-one-out
       cross-validation and WAIC. Statistics and Computing 27 (2017).
    """
    import arviz_stats as azs

    frame = fit.table.frame
    unit = "run" if "run" in frame and frame["run"].duplicated().any() else "row"
    if unit == "run":
        density, labels = run_likelihood(fit)
        index = np.unique(effects.labels(frame, "run"), return_inverse=True)[1]
        frame = frame.assign(run="new " + frame["run"].astype(str))
    else:
        density, index = log_likelihood(fit), np.arange(len(frame))
        labels = index.astype(str)
    drawn = residual_draws(fit, frame, np.random.default_rng(seed))
    average = (index == np.arange(len(labels))[:, None]).astype(float)
    average /= average.sum(1, keepdims=True)
    excess = (drawn - residual(fit, fit.table)) @ average.T
    tree = xr.DataTree.from_dict(
        {
            "posterior": fit.draws,
            "log_likelihood": _by_unit(fit, density),
            # The measured unit mean is subtracted from the predicted one, draw by draw.
            "posterior_predictive": _by_unit(fit, excess),
            "observed_data": xr.Dataset({NAME: ("unit", np.zeros(len(labels)))}),
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of Pareto k, which the result reports
        found = azs.loo(tree, pointwise=True)
    weights, k = (v.to_dataset(name=NAME) for v in (found.log_weights, found.pareto_k))
    pit = azs.loo_pit(tree, log_weights=weights, pareto_k=k)
    return LeftOut(
        unit=unit,
        labels=labels,
        elpd=found.elpd_i.values,
        pit=pit[NAME].values,
        pareto_k=found.pareto_k.values,
        good_k=found.good_k,
    )


def _by_unit(fit: Posterior, values: Floats) -> xr.Dataset:
    """Values of shape (draws, units) as a data set with dims (chain, draw, unit)."""
    sizes = fit.draws.sizes["chain"], fit.draws.sizes["draw"]
    return xr.Dataset({NAME: (("chain", "draw", "unit"), values.reshape(*sizes, -1))})
