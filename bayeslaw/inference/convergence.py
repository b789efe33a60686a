"""Convergence of draws: rank-normalised R-hat, effective sample sizes, divergences, E-BFMI.

Log losses are judged by R-hat and effective sample size. Scales of noise, effects and deviations
are judged by what forecasts use them for, the widths of bands: each must be known to a few per cent
of itself. Tails of a scale mix slowly long after bands have settled.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import xarray as xr

from bayeslaw.common.shown import Note

MAX_RHAT = 1.01
MIN_ESS = 400
MIN_BFMI = 0.3
"""Limits of log losses, and of the energy; a fit beyond one of them is sampled again."""
MAX_SCALE_ERROR = 0.08
"""Limit of the Monte Carlo error of a scale, over the scale, of which a band has its width."""
USABLE_RHAT = 1.02
USABLE_ESS = 200
USABLE_SCALE_ERROR = 0.15
"""Limits beyond which forecasts are refused. Between the two a fit says what forecasts may move by.

With 200 independent draws an end of a 90 % band has a standard error of 4.5 % of the band's width,
with 400 one of 3.2 %; docs/faq.md has what was measured.
"""
MEDIAN_ERROR = 0.381
END_ERROR = 0.642
"""Standard errors of the median and of an end of a 90 % band by one draw, over the band's width.

Of normal draws: the root of p (1 - p), over the density at the quantile and 3.29 deviations.
"""
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
    scale_error: float = (
        0.0  # largest Monte Carlo error of the mean of a scale, over the scale
    )

    def __str__(self) -> str:
        if not self.ok:
            return (
                f"NOT CONVERGED: {'; '.join(self.failures)}. Do not trust these numbers: fit again "
                "with more tuning and draws."
            )
        ess = min(self.ess_bulk, self.ess_tail)
        line = f"R-hat {self.rhat:.3f} and ESS {ess:.0f} of losses, {self.diverged}"
        if self.enough:
            line = f"converged: {line}"
        else:
            line = f"usable, from few independent draws: {line}. {self.cost}"
        slow = ", ".join(self.slow)
        return (
            f"{line}. Not converged by themselves, so not to be read: {slow}"
            if slow
            else line
        )

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
        """Why forecasts are refused, in words; empty if the posterior can be used."""
        return self._beyond(USABLE_RHAT, USABLE_ESS, USABLE_SCALE_ERROR)

    @property
    def missed(self) -> tuple[str, ...]:
        """Why more draws are made if there is time, in words; all failures are among them."""
        return self._beyond(MAX_RHAT, MIN_ESS, MAX_SCALE_ERROR)

    def _beyond(
        self, max_rhat: float, min_ess: int, max_error: float
    ) -> tuple[str, ...]:
        """What fails the limits, of which those of log losses and scales are given."""
        error = f"{-_down(-100 * self.scale_error, 1):.1f} % > {100 * max_error:.0f} %"
        # NaN is within no limit, so a chain that does not move fails.
        passed = {
            f"R-hat {_up(self.rhat):.3f} > {max_rhat}": self.rhat <= max_rhat,
            f"bulk ESS {_down(self.ess_bulk, 0):.0f} < {min_ess}": self.ess_bulk
            >= min_ess,
            f"tail ESS {_down(self.ess_tail, 0):.0f} < {min_ess}": self.ess_tail
            >= min_ess,
            f"Monte Carlo error of scales {error}": self.scale_error <= max_error,
            f"{self.divergences} divergences": not self.diverging,
            f"E-BFMI {_down(self.bfmi, 2):.2f} < {MIN_BFMI}": self.bfmi >= MIN_BFMI,
        }
        return tuple(words for words, ok in passed.items() if not ok)

    @property
    def cost(self) -> str:
        """By how much forecasts of another seed would differ, in words."""
        ess = max(min(self.ess_bulk, self.ess_tail), 1.0)
        # Two fits have the errors of both.
        median, end = (
            100 * error * math.sqrt(2 / ess) for error in (MEDIAN_ERROR, END_ERROR)
        )
        return (
            f"With another seed, medians of forecasts would move by about {median:.0f} % of the "
            f"width of their 90 % bands, and ends of the bands by {end:.0f} %"
        )

    @property
    def ok(self) -> bool:
        """Whether forecasts are not refused."""
        return not self.failures

    @property
    def enough(self) -> bool:
        """Whether no more draws are needed."""
        return not self.missed

    def worst(self, other: "Convergence") -> "Convergence":
        """The diagnostics of draws of two posteriors that are used as one: each must pass."""
        return Convergence(
            rhat=_worse(max, self.rhat, other.rhat),
            ess_bulk=_worse(min, self.ess_bulk, other.ess_bulk),
            ess_tail=_worse(min, self.ess_tail, other.ess_tail),
            divergences=self.divergences + other.divergences,
            bfmi=_worse(min, self.bfmi, other.bfmi),
            slow=tuple(dict.fromkeys((*self.slow, *other.slow))),
            transitions=self.transitions + other.transitions,
            scale_error=_worse(max, self.scale_error, other.scale_error),
        )

    @property
    def note(self) -> Note:
        """The state as a note, of the level that it has."""
        if not self.ok:
            return Note(str(self), "refuse")
        return Note(str(self), "ok" if self.enough else "caution")


def _worse(choose: Callable[[float, float], float], one: float, other: float) -> float:
    """The larger or smaller of two numbers, or NaN, which passes no limit, if one is NaN."""
    return math.nan if math.isnan(one) or math.isnan(other) else choose(one, other)


def _down(value: float, decimals: int) -> float:
    """Round down: a number below its limit is not shown as the limit, such as ESS 399.6 as 400."""
    # The small number keeps products such as 100 * 0.29, which is 28.999999999999996.
    return float(np.floor(value * 10**decimals + 1e-9) / 10**decimals)


def _up(rhat: float) -> float:
    """Round an R-hat up to three decimals."""
    return -_down(-rhat, 3)


def diagnose(
    losses: xr.Dataset,
    stats: xr.Dataset,
    parameters: xr.Dataset | None = None,
    scales: xr.Dataset | None = None,
) -> Convergence:
    """Convergence of draws with dims (chain, draw)."""
    divergences = int(stats["diverging"].sum())
    transitions = stats["diverging"].size
    used = losses if scales is None else losses.merge(scales)
    stuck = any(
        bool((v.max("draw") == v.min("draw")).any()) for v in used.data_vars.values()
    )
    if stuck or used.sizes["chain"] < 2 or used.sizes["draw"] < 4:
        return Convergence(math.nan, 0.0, 0.0, divergences, math.nan, (), transitions)
    measures = np.array(list(_measures(losses).values()))
    energy = stats["energy"].values
    bfmi = (np.diff(energy, axis=1) ** 2).mean(1) / energy.var(1)
    slow = failing(parameters) if parameters else ()
    bulk, tail = measures[:, 1:].min(0).tolist()
    rhat = float(measures[:, 0].max())
    error = 0.0 if scales is None else max(scale_errors(scales).values())
    return Convergence(
        rhat, bulk, tail, divergences, float(bfmi.min()), slow, transitions, error
    )


def scale_errors(scales: xr.Dataset) -> dict[str, float]:
    """Of each positive variable the Monte Carlo error of its mean, over the mean."""
    return {
        name: float(scales[name].std() / scales[name].mean()) / math.sqrt(bulk)
        for name, (_, bulk, _) in _measures(scales).items()
    }


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
    rhat, bulk, tail = (
        azs.rhat(draws),
        *(azs.ess(draws, method=m) for m in ("bulk", "tail")),
    )
    return {
        str(name): (
            float(rhat[name].values.max()),
            float(bulk[name].values.min()),
            float(tail[name].values.min()),
        )
        for name in draws.data_vars
    }
