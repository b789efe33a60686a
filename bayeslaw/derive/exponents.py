"""Local exponents of a law at given rows, and its floor E."""

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.derive.derived import Derived, derived
from bayeslaw.derive.verdicts import checked, read_columns, verdict_on, warn_beyond
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.law import Law
from bayeslaw.laws.symbols import Values, symbol_of
from bayeslaw.tables.compute import AMOUNTS
from bayeslaw.tables.covariates import FLOPS
from bayeslaw.tables.table import Rows
from bayeslaw.tables.units import check_units

LOG_STEP = 1e-4
"""Step of the central differences, in log N or log D."""


def local_exponents(posterior: Posterior, rows: Rows | pd.DataFrame) -> Derived:
    """Local exponents of the terms, of the reducible loss and of the loss, at given rows.

    They are central differences over 2e-4 e-folds. At a knot of a walking exponent, where the
    exponent changes by a step, this is the mean of both sides.

    Parameters
    ----------
    posterior : Posterior
    rows : LossTable or DataFrame
        Rows with the law's covariates, such as ``bl.grid(params=1e9, tokens=2e10)``.

    Returns
    -------
    Derived
        Without a unit, and positive where the loss falls: for each term that leads with N or D,
        under its exponent's name, such as `alpha`, minus d log(term) / d log x, the term with its
        deviations; `reducible_N` and `reducible_D`, minus d log(loss - floor) / d log x; `loss_N`
        and `loss_D`, minus d log(loss) / d log x. The reducible ones are NaN where the loss is
        below the floor.

    Examples
    --------
    >>> rows = bl.grid(params=1e9, tokens=2e10)
    >>> bl.derive.local_exponents(fit, rows).to_frame()  # doctest: +SKIP
    """
    frame = _checked_rows(posterior, rows)
    design = posterior.design(Rows(frame))
    law, draws = posterior.extended(design)
    x = posterior.covariates(design)  # losses of new bases are drawn
    amounts = law.amounts(draws, posterior.at)
    exponents: dict[str, tuple[Floats, str]] = {}
    totals: dict[str, tuple[Floats, str]] = {}
    for along in (*AMOUNTS, FLOPS):
        if along not in law.covariate_names:
            continue
        below = {**x, along: x[along] - LOG_STEP}
        above = {**x, along: x[along] + LOG_STEP}
        low = _logs(law, amounts, below, posterior.at)
        high = _logs(law, amounts, above, posterior.at)
        slopes = {}
        for name in low:
            fall = low[name] - high[name]
            slopes[name] = fall / (2 * LOG_STEP)
        for term in law.terms:
            if term.covariates[0] == along:
                shape = slopes["loss"].shape
                slope = np.broadcast_to(slopes[term.leading], shape)
                exponents[term.leading] = slope, "1"
        for name in ("reducible", "loss"):
            totals[f"{name}_{symbol_of(along)}"] = slopes[name], "1"
    verdicts = {"": verdict_on(posterior, frame)}
    warn_beyond(verdicts, [posterior])
    cases = frame[read_columns(law.columns, frame)].reset_index(drop=True)
    return derived({**exponents, **totals}, cases, [posterior], verdicts=verdicts)


def _logs(law: Law, amounts: Values, x: Values, at: Values) -> dict[str, Floats]:
    """Logs of the reducible loss, of the loss, and of each term by its leading exponent."""
    loss = law.loss(amounts, x, at)
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = {
            "reducible": np.log(loss - law.floor(amounts, x, at)),
            "loss": np.log(loss),
        }
    for term in law.terms:
        # Of repeated tokens what they are worth, as in the loss.
        effective = law.effective(amounts, x)
        log_ratio = term.log_ratio(amounts, effective, at, np)
        # To first order the deviations of a term are additions to its log.
        added = []
        for deviation in law.deviations:
            if deviation.of == term.coefficient:
                covariates = law.of_deviations(x)
                added.append(deviation.value(amounts, covariates, at, np))
        logs[term.leading] = np.asarray(log_ratio + sum(added))
    return logs


def _checked_rows(posterior: Posterior, rows: Rows | pd.DataFrame) -> pd.DataFrame:
    checked(posterior)
    # Exponents trade off against each other where losses have long converged.
    posterior.require_converged(parameters=True)
    frame = posterior.rows(rows).frame
    check_units(frame, "rows", posterior.table.frame)
    return frame


def floor(posterior: Posterior) -> Derived:
    """Floor E of the law: the loss that remains where all terms vanish.

    Parameters
    ----------
    posterior : Posterior

    Returns
    -------
    Derived
        `E`, nats per token.

    Examples
    --------
    >>> bl.derive.floor(fit).to_frame()  # doctest: +SKIP
    """
    checked(posterior)
    values = posterior.paper["E"].values.reshape(-1, 1)
    numbers = {"E": (values, "nats per token")}
    cases = pd.DataFrame(index=[0])
    return derived(numbers, cases, [posterior])
