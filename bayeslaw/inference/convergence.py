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
        if not self.ok:
            return (
                f"NOT CONVERGED: {'; '.join(self.failures)}. Do not trust these numbers: fit again "
                "with more tuning and draws."
            )
        ess = min(self.ess_bulk, self.ess_tail)
        line = f"converged: R-hat {self.rhat:.3f}, ESS {ess:.0f}, no divergences"
        slow = ", ".join(self.slow)
        return f"{line}. Not converged by themselves, so not to be read: {slow}" if slow else line

    @property
    def failures(self) -> tuple[str, ...]:
        """What fails the convergence check, in words; empty if the posterior can be used."""
        # NaN is within no limit, so a chain that does not move fails.
        passed = {
            f"R-hat {self.rhat:.3f} > {MAX_RHAT}": self.rhat <= MAX_RHAT,
            f"bulk ESS {self.ess_bulk:.0f} < {MIN_ESS}": self.ess_bulk >= MIN_ESS,
            f"tail ESS {self.ess_tail:.0f} < {MIN_ESS}": self.ess_tail >= MIN_ESS,
            f"{self.divergences} divergences": self.divergences == 0,
            f"E-BFMI {self.bfmi:.2f} < {MIN_BFMI}": self.bfmi >= MIN_BFMI,
        }
        return tuple(words for words, ok in passed.items() if not ok)

    @property
    def ok(self) -> bool:
        """Whether the posterior passes the convergence check."""
        return not self.failures


def diagnose(used: xr.Dataset, stats: xr.Dataset, others: xr.Dataset | None = None) -> Convergence:
    """Convergence of draws with dims (chain, draw)."""
    divergences = int(stats["diverging"].sum())
    stuck = any(bool((v.max("draw") == v.min("draw")).any()) for v in used.data_vars.values())
    if stuck or used.sizes["chain"] < 2 or used.sizes["draw"] < 4:
        return Convergence(math.nan, 0.0, 0.0, divergences, math.nan)
    measures = np.array(list(_measures(used).values()))
    energy = stats["energy"].values
    bfmi = (np.diff(energy, axis=1) ** 2).mean(1) / energy.var(1)
    slow = tuple(
        name
        for name, (worst, *ess) in (_measures(others).items() if others else ())
        if not (worst <= MAX_RHAT and min(ess) >= MIN_ESS)
    )
    bulk, tail = measures[:, 1:].min(0).tolist()
    rhat = float(measures[:, 0].max())
    return Convergence(rhat, bulk, tail, divergences, float(bfmi.min()), slow)


def _measures(draws: xr.Dataset) -> dict[str, tuple[float, float, float]]:
    """Of each variable the largest R-hat, and the smallest bulk and tail effective sample size."""
    import arviz_stats as azs

    rhat, bulk, tail = azs.rhat(draws), *(azs.ess(draws, method=m) for m in ("bulk", "tail"))
    return {
        str(name): (
            float(rhat[name].values.max()),
            float(bulk[name].values.min()),
            float(tail[name].values.min()),
        )
        for name in draws.data_vars
    }
