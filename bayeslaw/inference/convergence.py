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
        Largest rank-normalised R-hat over the sampled coordinates.
    ess_bulk, ess_tail : float
        Smallest effective sample sizes.
    divergences : int
        Divergent transitions after tuning.
    bfmi : float
        Smallest energy Bayesian fraction of missing information over chains.
    """

    rhat: float
    ess_bulk: float
    ess_tail: float
    divergences: int
    bfmi: float

    def __str__(self) -> str:
        """Whether the check passed, with its numbers, or what failed."""
        if self.ok:
            ess = min(self.ess_bulk, self.ess_tail)
            return f"converged: R-hat {self.rhat:.3f}, ESS {ess:.0f}, no divergences"
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


def worst(draws: xr.Dataset, count: int = 6) -> list[str]:
    """Variables that mix worst, by bulk effective sample size."""
    import arviz_stats as azs

    ess = {str(name): float(v.min()) for name, v in azs.ess(draws, method="bulk").items()}
    return sorted(ess, key=ess.__getitem__)[:count]


def diagnose(draws: xr.Dataset, stats: xr.Dataset) -> Convergence:
    """Convergence of draws with dims (chain, draw)."""
    import arviz_stats as azs

    def numbers(values: xr.Dataset) -> list[float]:
        return [float(v) for name in values.data_vars for v in np.ravel(values[name].values)]

    stuck = any(bool((v.max("draw") == v.min("draw")).any()) for v in draws.data_vars.values())
    if stuck or draws.sizes["chain"] < 2 or draws.sizes["draw"] < 4:
        return Convergence(math.nan, 0.0, 0.0, int(stats["diverging"].sum()), math.nan)
    return Convergence(
        rhat=float(np.max(numbers(azs.rhat(draws)))),
        ess_bulk=float(np.min(numbers(azs.ess(draws, method="bulk")))),
        ess_tail=float(np.min(numbers(azs.ess(draws, method="tail")))),
        divergences=int(stats["diverging"].sum()),
        bfmi=float(np.min(numbers(azs.bfmi(stats[["energy"]])))),
    )
