"""Predictions of each run, or row, from the others, by importance sampling (PSIS)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from bayeslaw.evaluate.densities import Floats, log_likelihood, residual, run_likelihood
from bayeslaw.evaluate.new_sizes import residual_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import random_effects as effects


@dataclass(frozen=True)
class LeftOut:
    """Each unit of the training table against its prediction from the others, by PSIS.

    Parameters
    ----------
    unit : {"run", "row"}
        What is left out: whole runs where `run` repeats.
    labels : array, shape (units,)
    elpd : array, shape (units,)
        Log predictive density of a unit's log losses, nats.
    pit : array, shape (units,)
        Probability that the unit's mean log loss would be below the measured one.
    pareto_k : array, shape (units,)
    good_k : float
        Largest Pareto k for which this many draws suffice.
    """

    unit: str
    labels: npt.NDArray[np.str_]
    elpd: Floats
    pit: Floats
    pareto_k: Floats
    good_k: float

    @property
    def unreliable(self) -> int:
        """Units whose Pareto k is too large: for them only a refit without them would do."""
        return int((~(self.pareto_k <= self.good_k)).sum())

    def uniformity(self) -> float:
        """P-value of the hypothesis that the PIT values of the reliable units are uniform."""
        from arviz_stats.base import array_stats

        pit = self.pit[self.pareto_k <= self.good_k]
        return float(array_stats.uniformity_test(pit)[0]) if len(pit) > 1 else np.nan

    def to_frame(self) -> pd.DataFrame:
        """One row per unit."""
        columns = {"elpd": self.elpd, "pit": self.pit, "pareto_k": self.pareto_k}
        return pd.DataFrame(columns, index=pd.Index(self.labels, name=self.unit))


def leave_out(fit: Posterior, seed: int = 0) -> LeftOut:
    """Leave out each run, or each row where runs do not repeat, by importance sampling.

    A run's own effect is integrated out before its density is taken; the effect of its base stays
    as fitted if the base has other runs.
    """
    from arviz_stats.base import array_stats

    frame = fit.table.frame
    unit = "run" if "run" in frame and frame["run"].duplicated().any() else "row"
    if unit == "run":
        density, labels = run_likelihood(fit)
        index = np.unique(effects.labels(frame, "run"), return_inverse=True)[1]
        frame = frame.assign(run="new " + frame["run"].astype(str))
    else:
        density, index = log_likelihood(fit), np.arange(len(frame))
        labels = index.astype(str)
    weights, k = array_stats.psislw(density, r_eff=_efficiency(fit), axis=0)
    weight = np.exp(np.asarray(weights).reshape(-1, len(density)).T)
    weight /= weight.sum(0)
    drawn = residual_draws(fit, frame, np.random.default_rng(seed))
    below = residual(fit, fit.table) - drawn
    share = (index == np.arange(len(labels))[:, None]).astype(float)
    share /= share.sum(1, keepdims=True)
    draws = len(density)
    return LeftOut(
        unit=unit,
        labels=labels,
        elpd=np.log((weight * np.exp(density - density.max(0))).sum(0)) + density.max(0),
        pit=(weight * (below @ share.T > 0)).sum(0),
        pareto_k=np.asarray(k).reshape(-1),
        good_k=min(1 - 1 / np.log10(draws), 0.7),
    )


def _efficiency(fit: Posterior) -> float:
    """Effective over actual draws, for the mean, averaged over what was sampled."""
    import arviz_stats as azs

    ess = azs.ess(fit.draws, method="mean")
    sizes = np.concatenate([np.ravel(ess[name].values) for name in ess.data_vars])
    return float(sizes.mean() / (fit.draws.sizes["chain"] * fit.draws.sizes["draw"]))
