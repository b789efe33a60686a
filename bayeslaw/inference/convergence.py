"""The convergence check: R-hat, effective sample sizes, divergences and E-BFMI of sampled draws."""

import math
from dataclasses import dataclass

import numpy as np
import xarray as xr

MAX_RHAT, MIN_ESS, MIN_BFMI = 1.01, 400, 0.3


@dataclass(frozen=True)
class Convergence:
    """Convergence diagnostics of sampled draws.

    Parameters
    ----------
    rhat : float
        Largest rank-normalised R-hat of log losses at fitted rows and of scales.
    ess_bulk, ess_tail : float
        Smallest effective sample sizes.
    divergences : int
        Divergent transitions after tuning.
    bfmi : float
        Smallest energy Bayesian fraction of missing information over chains.
    slow : tuple of str
        Other parameters that fail the limits of R-hat and effective sample size.
    """

    rhat: float
    ess_bulk: float
    ess_tail: float
    divergences: int
    bfmi: float
    slow: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Whether the check passed, with its numbers, or what failed."""
        if self.ok:
            ess = min(self.ess_bulk, self.ess_tail)
            line = f"converged: R-hat {self.rhat:.3f}, ESS {ess:.0f}, no divergences"
            slow = ", ".join(self.slow)
            return (
                f"{line}. Not converged by themselves, so not to be read: {slow}" if slow else line
            )
        return (
            f"NOT CONVERGED: {'; '.join(self.failures)}. Do not trust these numbers: fit again "
            "with more tuning and draws."
        )

    @property
    def failures(self) -> tuple[str, ...]:
        """What fails the convergence check, in words; empty if the posterior can be used."""
        tests = {
            f"R-hat {self.rhat:.3f} > {MAX_RHAT}": not self.rhat <= MAX_RHAT,
            f"bulk ESS {self.ess_bulk:.0f} < {MIN_ESS}": not self.ess_bulk >= MIN_ESS,
            f"tail ESS {self.ess_tail:.0f} < {MIN_ESS}": not self.ess_tail >= MIN_ESS,
            f"{self.divergences} divergences": self.divergences > 0,
            f"E-BFMI {self.bfmi:.2f} < {MIN_BFMI}": not self.bfmi >= MIN_BFMI,
        }
        return tuple(words for words, failed in tests.items() if failed)

    @property
    def ok(self) -> bool:
        """Whether the posterior passes the convergence check."""
        return not self.failures


def diagnose(
    used: xr.Dataset, stats: xr.Dataset, parameters: xr.Dataset | None = None
) -> Convergence:
    """Convergence of draws with dims (chain, draw).

    Parameters
    ----------
    used : Dataset
        What must have converged.
    stats : Dataset
        Statistics of the sampler.
    parameters : Dataset, optional
        Other parameters, of which those that have not converged are named.
    """
    divergences = int(stats["diverging"].sum())
    stuck = any(bool((v.max("draw") == v.min("draw")).any()) for v in used.data_vars.values())
    if stuck or used.sizes["chain"] < 2 or used.sizes["draw"] < 4:
        return Convergence(math.nan, 0.0, 0.0, divergences, math.nan)
    rhat, bulk, tail = _measures(used)
    energy = stats["energy"].values
    bfmi = (np.diff(energy, axis=1) ** 2).mean(1) / energy.var(1)
    slow = []
    for name, draws in parameters.data_vars.items() if parameters else ():
        own = _measures(draws.to_dataset(name=name))
        if not (own[0] <= MAX_RHAT and min(own[1:]) >= MIN_ESS):
            slow.append(str(name))
    return Convergence(rhat, bulk, tail, divergences, float(bfmi.min()), tuple(slow))


def _measures(draws: xr.Dataset) -> tuple[float, float, float]:
    """Largest R-hat, and smallest bulk and tail effective sample sizes."""
    import arviz_stats as azs

    def numbers(values: xr.Dataset) -> list[float]:
        return [float(v) for name in values.data_vars for v in np.ravel(values[name].values)]

    bulk, tail = (azs.ess(draws, method=method) for method in ("bulk", "tail"))
    return max(numbers(azs.rhat(draws))), min(numbers(bulk)), min(numbers(tail))
