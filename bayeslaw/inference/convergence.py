"""Convergence of draws: rank-normalised R-hat, effective sample sizes, divergences, E-BFMI."""

import math
from dataclasses import dataclass

import numpy as np
import xarray as xr

MAX_RHAT, MIN_ESS, MIN_BFMI = 1.01, 400, 0.3
MAX_DIVERGENT = 0.001
"""Largest share of divergent transitions: posteriors with fewer were found calibrated (SBC)."""
RESOLUTION = 2.0**-30
"""Draws that differ by less than this times the largest are ties; see `resolved`."""


@dataclass(frozen=True)
class Convergence:
    """Convergence diagnostics of log losses at fitted rows and of scales."""

    rhat: float  # the largest, rank-normalised
    ess_bulk: float
    ess_tail: float
    divergences: int  # after tuning
    bfmi: float  # smallest energy Bayesian fraction of missing information over chains
    slow: tuple[str, ...] = ()  # other parameters that fail the limits
    transitions: int = 0  # after tuning, of all chains

    def __str__(self) -> str:
        if not self.ok:
            return (
                f"NOT CONVERGED: {'; '.join(self.failures)}. Do not trust these numbers: fit again "
                "with more tuning and draws."
            )
        ess = min(self.ess_bulk, self.ess_tail)
        measures = f"R-hat {self.rhat:.3f} and ESS {ess:.0f} of losses and scales"
        line = f"converged: {measures}, {self.diverged}"
        slow = ", ".join(self.slow)
        return f"{line}. Not converged by themselves, so not to be read: {slow}" if slow else line

    @property
    def diverging(self) -> bool:
        """Whether more transitions diverged than may."""
        return self.divergences > MAX_DIVERGENT * self.transitions

    @property
    def diverged(self) -> str:
        """How many transitions diverged, in words."""
        if not self.divergences:
            return "no divergences"
        return f"{self.divergences} of {self.transitions:,} transitions diverged"

    @property
    def failures(self) -> tuple[str, ...]:
        """What fails the convergence check, in words; empty if the posterior can be used."""
        # NaN is within no limit, so a chain that does not move fails.
        passed = {
            f"R-hat {-_down(-self.rhat, 3):.3f} > {MAX_RHAT}": self.rhat <= MAX_RHAT,
            f"bulk ESS {_down(self.ess_bulk, 0):.0f} < {MIN_ESS}": self.ess_bulk >= MIN_ESS,
            f"tail ESS {_down(self.ess_tail, 0):.0f} < {MIN_ESS}": self.ess_tail >= MIN_ESS,
            f"{self.divergences} divergences": not self.diverging,
            f"E-BFMI {_down(self.bfmi, 2):.2f} < {MIN_BFMI}": self.bfmi >= MIN_BFMI,
        }
        return tuple(words for words, ok in passed.items() if not ok)

    @property
    def ok(self) -> bool:
        return not self.failures


def _down(value: float, decimals: int) -> float:
    """Round down: a number below its limit is not shown as the limit, such as ESS 399.6 as 400."""
    # The small number keeps products such as 100 * 0.29, which is 28.999999999999996.
    return float(np.floor(value * 10**decimals + 1e-9) / 10**decimals)


def diagnose(
    used: xr.Dataset, stats: xr.Dataset, parameters: xr.Dataset | None = None
) -> Convergence:
    """Convergence of draws with dims (chain, draw)."""
    divergences, transitions = int(stats["diverging"].sum()), stats["diverging"].size
    stuck = any(bool((v.max("draw") == v.min("draw")).any()) for v in used.data_vars.values())
    if stuck or used.sizes["chain"] < 2 or used.sizes["draw"] < 4:
        return Convergence(math.nan, 0.0, 0.0, divergences, math.nan, (), transitions)
    measures = np.array(list(_measures(used).values()))
    energy = stats["energy"].values
    bfmi = (np.diff(energy, axis=1) ** 2).mean(1) / energy.var(1)
    slow = failing(parameters) if parameters else ()
    bulk, tail = measures[:, 1:].min(0).tolist()
    rhat = float(measures[:, 0].max())
    return Convergence(rhat, bulk, tail, divergences, float(bfmi.min()), slow, transitions)


def failing(draws: xr.Dataset) -> tuple[str, ...]:
    """Variables that fail the limits by themselves."""
    if draws.sizes["chain"] < 2 or draws.sizes["draw"] < 4:
        return ()
    return tuple(
        name
        for name, (worst, *ess) in _measures(draws).items()
        if not (worst <= MAX_RHAT and min(ess) >= MIN_ESS)
    )


def resolved(draws: xr.DataArray) -> xr.DataArray:
    """Draws as multiples of a power of two, `RESOLUTION` times the largest or less.

    R-hat ranks distances from the median. Of an even number of draws the two middle ones are as far
    from it as each other, a tie that the last bit of a logarithm would break, and by which R-hat
    differs between processors in the fifth decimal. Of multiples of a power of two, medians and
    distances are exact.
    """
    _, exponent = np.frexp(np.abs(draws.values).max())
    unit = np.ldexp(RESOLUTION, exponent - 1)
    return draws.copy(data=np.round(draws.values / unit) * unit)


def _measures(draws: xr.Dataset) -> dict[str, tuple[float, float, float]]:
    """Of each variable the largest R-hat, and the smallest bulk and tail effective sample size."""
    # Imported here, so that the command line starts fast.
    import arviz_stats as azs

    draws = draws.map(resolved)
    rhat, bulk, tail = azs.rhat(draws), *(azs.ess(draws, method=m) for m in ("bulk", "tail"))
    return {
        str(name): (
            float(rhat[name].values.max()),
            float(bulk[name].values.min()),
            float(tail[name].values.min()),
        )
        for name in draws.data_vars
    }
