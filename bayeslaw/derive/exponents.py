"""Local exponents of a law at given rows, and its floor."""

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.derive.result import Derived, derived
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.terms import COLUMN, SYMBOLS, Values
from bayeslaw.planning.fits import convergence_failures
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import canonical

STEP = 1e-4
"""Step of the central differences, in log N or log D."""


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
        under its exponent's name, such as `alpha`, minus d log(term) / d log x; `reducible_N` and
        `reducible_D`, minus d log(loss - floor) / d log x; `loss_N` and `loss_D`, minus
        d log(loss) / d log x. The reducible ones are NaN where the loss is below the floor.

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
    failures = convergence_failures([posterior], allow_unconverged)
    frame = rows.frame if isinstance(rows, LossTable) else canonical(rows, "rows", ())
    law, q = posterior.extended(frame)
    x, at = law.covariates(frame), posterior.at
    p = law.sizes(q, at)

    def logs(x: Values) -> dict[str, Floats]:
        loss = law.loss(p, x, at)
        with np.errstate(invalid="ignore", divide="ignore"):
            found = {"reducible": np.log(loss - law.floor(p, x, at)), "loss": np.log(loss)}
        return found | {t.plain.leading: np.asarray(t.shape(p, x, at, np)) for t in law.terms}

    exponents: dict[str, tuple[Floats, str]] = {}
    totals: dict[str, tuple[Floats, str]] = {}
    for along in [c for c in ("params", "tokens") if c in law.covariate_names]:
        low, high = (logs({**x, along: x[along] + step}) for step in (-STEP, STEP))
        slopes = {name: (low[name] - high[name]) / (2 * STEP) for name in low}
        for term in law.terms:
            name = term.plain.leading
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
    failures = convergence_failures([posterior], allow_unconverged)
    values = posterior.paper["E"].values.reshape(-1, 1)
    return derived({"E": (values, "nats per token")}, pd.DataFrame(index=[0]), failures=failures)
