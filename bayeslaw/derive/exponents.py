"""Local exponents of a law, its floor E, and how numbers depend on E and on its prior.

The posterior with E fixed at a value is the posterior conditional on that value. Slices of the
draws by E therefore give the profile without refits, over the range of E that has draws.
"""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import BayeslawError
from bayeslaw.derive.result import Derived, checked, derived, interval, quantile
from bayeslaw.inference.pools import draw_count
from bayeslaw.inference.posterior import Forecast, Posterior
from bayeslaw.laws.priors import floor_words
from bayeslaw.laws.terms import COLUMN, SYMBOLS, Term, Values
from bayeslaw.model.coordinates import log_prior_of_floor
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import COVARIATES, canonical, check_units

DIFFERENCE = 1e-4
"""Step of the central differences, in log N or log D."""
EXPLAINED = 0.5
"""Fraction of a number's variance from which the verdict is that the floor determines it."""
SHIFT = 0.15
"""Change of probability from which the prior of E determines a median; .4 sd of a normal."""
LEVEL = 0.8
"""Level of the intervals of a profile."""


def local_exponents(
    posterior: Posterior,
    rows: LossTable | pd.DataFrame,
    *,
    allow_unconverged: bool = False,
) -> Derived:
    """Local exponents of the terms, of the reducible loss and of the loss, at given rows.

    They are central differences over 2e-4 e-folds. At a knot of a walking exponent, where the
    exponent changes by a step, this is the mean of both sides.

    Parameters
    ----------
    posterior : Posterior
    rows : LossTable or DataFrame
        Rows with the law's covariates, such as ``bl.grid(params=1e9, tokens=2e10)``.
    allow_unconverged : bool
        Whether to use a posterior that failed the convergence checks.

    Returns
    -------
    Derived
        Without a unit, and positive where the loss falls: for each term that leads with N or D,
        under its exponent's name, such as `alpha`, minus d log(term) / d log x, the term with its
        deviations; `reducible_N` and `reducible_D`, minus d log(loss - floor) / d log x; `loss_N`
        and `loss_D`, minus d log(loss) / d log x. The reducible ones are NaN where the loss is
        below the floor.

    Raises
    ------
    NotConverged
        If the posterior failed the convergence checks and `allow_unconverged` is false.
    TableError
        If a covariate is missing or invalid.

    Examples
    --------
    >>> rows = bl.grid(params=1e9, tokens=2e10)
    >>> bl.derive.local_exponents(fit, rows).to_frame()  # doctest: +SKIP
    """
    failures = checked([posterior], allow_unconverged)
    posterior.require_converged(allow_unconverged, parameters=True)
    frame = rows.frame if isinstance(rows, LossTable) else canonical(rows, "rows", ())
    check_units(frame, "rows", posterior.table.frame)
    law, q = posterior.extended(frame)
    x, at = law.covariates(frame), posterior.at
    p = law.amounts(q, at)

    def log_term(term: Term, x: Values) -> Floats:
        own = [d for d in law.deviations if d.of == term.coefficient]
        deviations = (d.value(p, law.of_deviations(x), at, np) for d in own)
        return np.asarray(term.log_ratio(p, x, at, np) + sum(deviations))

    def logs(x: Values) -> dict[str, Floats]:
        loss = law.loss(p, x, at)
        with np.errstate(invalid="ignore", divide="ignore"):
            found = {"reducible": np.log(loss - law.floor(p, x, at)), "loss": np.log(loss)}
        return found | {term.leading: log_term(term, x) for term in law.terms}

    exponents: dict[str, tuple[Floats, str]] = {}
    totals: dict[str, tuple[Floats, str]] = {}
    for along in [c for c in ("params", "tokens") if c in law.covariate_names]:
        low, high = (logs({**x, along: x[along] + step}) for step in (-DIFFERENCE, DIFFERENCE))
        slopes = {name: (low[name] - high[name]) / (2 * DIFFERENCE) for name in low}
        for term in law.terms:
            name = term.leading
            if term.covariates[0] == along:
                exponents[name] = np.broadcast_to(slopes[name], slopes["loss"].shape), "1"
        for name in ("reducible", "loss"):
            totals[f"{name}_{SYMBOLS[along]}"] = slopes[name], "1"
    cases = frame[[c for c in dict.fromkeys(COLUMN.values()) if c in law.columns]]
    return derived({**exponents, **totals}, cases.reset_index(drop=True), failures=failures)


def floor(posterior: Posterior, *, allow_unconverged: bool = False) -> Derived:
    """Floor E of the law: the loss that remains where all terms vanish.

    Parameters
    ----------
    posterior : Posterior
    allow_unconverged : bool
        Whether to use a posterior that failed the convergence checks.

    Returns
    -------
    Derived
        `E`, nats per token.

    Raises
    ------
    NotConverged
        If the posterior failed the convergence checks and `allow_unconverged` is false.

    Examples
    --------
    >>> bl.derive.floor(fit).to_frame()  # doctest: +SKIP
    """
    failures = checked([posterior], allow_unconverged)
    values = posterior.paper["E"].values.reshape(-1, 1)
    return derived({"E": (values, "nats per token")}, pd.DataFrame(index=[0]), failures=failures)


@dataclass(frozen=True)
class FloorSensitivity:
    """Dependence of numbers on the floor.

    Parameters
    ----------
    profile : DataFrame
        One row per number, case and slice of the draws by E: `E`, its median in the slice,
        `E_lower` and `E_upper`, its range there, and `median`, `lower_80` and `upper_80` of the
        number with E in that range.
    summary : DataFrame
        One row per number and case: `median`, `explained`, `flat_median`, `shift` and `verdict`.
        `explained` is the fraction of the variance of the number's ranks that is between slices;
        `flat_median` the median if E had a flat prior, by reweighting the draws; `shift` how far
        that is from the median, as a probability of the number, at most .5.
    notes : tuple of str
        The range of E, and how many draws the weights are worth.
    failures : tuple of str
        Convergence checks that failed, if these were allowed.
    """

    profile: pd.DataFrame = field(repr=False)
    summary: pd.DataFrame
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()


def floor_sensitivity(
    posterior: Posterior,
    numbers: Derived | Forecast,
    *,
    slices: int = 9,
    allow_unconverged: bool = False,
) -> FloorSensitivity:
    """Numbers conditional on the floor E, and whether E or its prior determines them.

    Parameters
    ----------
    posterior : Posterior
    numbers : Derived or Forecast
        Of this posterior alone, such as `compute_optimal` or ``fit.forecast(rows, kind="latent")``.
    slices : int
        Number of slices of the draws by E, each of as many draws; at least 2.
    allow_unconverged : bool
        Whether to use a posterior that failed the convergence checks.

    Returns
    -------
    FloorSensitivity
        The verdict is "floor" where E explains at least half of the variance, "floor's prior"
        where besides a flat prior of E would move the median by .15 in probability or more, and
        "other parameters" elsewhere.

    Raises
    ------
    NotConverged
        If the posterior failed the convergence checks and `allow_unconverged` is false.
    BayeslawError
        If the numbers have other draws than the posterior, or there are too few for the slices.

    Examples
    --------
    >>> best = bl.derive.compute_optimal(fit, 1e24)  # doctest: +SKIP
    >>> bl.derive.floor_sensitivity(fit, best).summary  # doctest: +SKIP
    """
    failures = checked([posterior], allow_unconverged)
    columns, cases = _columns(numbers)
    count = draw_count(posterior)
    if any(len(values) != count for values in columns.values()):
        raise BayeslawError(
            f"the numbers do not have the {count} draws of the posterior; derive them from it."
        )
    if not 2 <= slices <= count // 20:
        raise BayeslawError(
            f"slices {slices} is not between 2 and {count // 20}; each needs 20 draws."
        )
    floors = posterior.paper["E"].values.ravel()
    parts = np.array_split(np.argsort(floors), slices)
    weights = _flat_weights(posterior)
    profile, summary = [], []
    for name, values in columns.items():
        for case, asked in enumerate(cases.to_dict("records")):
            column, label = values[:, case], {"quantity": name, **asked}
            for part in parts:
                lower, upper = interval(column[part], LEVEL)
                profile.append(
                    label
                    | {
                        "E": float(np.median(floors[part])),
                        "E_lower": float(floors[part[0]]),
                        "E_upper": float(floors[part[-1]]),
                        "median": quantile(column[part], 0.5),
                        "lower_80": lower,
                        "upper_80": upper,
                    }
                )
            summary.append(label | _summary(column, parts, weights))
    low, high = np.quantile(floors, (0.05, 0.95))
    notes = (
        f"E: {np.median(floors):.4g}, 90 % interval {low:.4g} to {high:.4g}; prior "
        f"{floor_words(posterior.spec.priors)}",
        f"weights for a flat prior of E are worth {1 / np.sum(weights**2):.0f} of {count} draws",
    )
    return FloorSensitivity(pd.DataFrame(profile), pd.DataFrame(summary), notes, failures)


def _columns(numbers: Derived | Forecast) -> tuple[dict[str, Floats], pd.DataFrame]:
    """Return draws of each number, shape (draws, cases), and the cases."""
    if isinstance(numbers, Forecast):
        rows = numbers.frame[[c for c in COVARIATES if c in numbers.frame]]
        return {"loss": numbers.samples}, rows
    return {str(name): each.values for name, each in numbers.draws.data_vars.items()}, numbers.cases


def _summary(values: Floats, parts: list[Floats], weights: Floats) -> dict[str, float | str]:
    defined = ~np.isnan(values)
    if not defined.any():
        none = dict.fromkeys(("median", "explained", "flat_median", "shift"), np.nan)
        return none | {"verdict": "undefined"}
    ranks = np.full(len(values), np.nan)
    ranks[defined] = rankdata(values[defined])
    groups = [part[defined[part]] for part in parts]
    between = sum(len(g) * (ranks[g].mean() - np.nanmean(ranks)) ** 2 for g in groups if len(g))
    total = float(np.nansum((ranks - np.nanmean(ranks)) ** 2))
    explained = float(between / total) if total else 0.0
    order = np.argsort(values)[: defined.sum()]  # NaN is sorted last
    heavier = np.cumsum(weights[order])
    flat = float(values[order][np.searchsorted(heavier, 0.5 * heavier[-1])])
    own = values[defined]
    shift = abs(float(np.mean(own < flat) + 0.5 * np.mean(own == flat)) - 0.5)
    verdict = "other parameters"
    if explained >= EXPLAINED:
        verdict = "floor's prior" if shift >= SHIFT else "floor"
    return {
        "median": quantile(values, 0.5),
        "explained": explained,
        "flat_median": flat,
        "shift": shift,
        "verdict": verdict,
    }


def _flat_weights(posterior: Posterior) -> Floats:
    """Weights that turn the prior of E into a flat one, with sum 1."""
    loss = posterior.draws["L_ref"].values.ravel()
    floors = posterior.paper["E"].values.ravel()
    log_prior = np.asarray(log_prior_of_floor(posterior.spec.priors, floors, loss) + 0 * loss)
    weights = np.exp(log_prior.min() - log_prior)
    return np.asarray(weights / weights.sum())
