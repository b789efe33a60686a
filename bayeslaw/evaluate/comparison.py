"""Comparison of several laws on one split, as in the paper's main table."""

import warnings
from collections.abc import Sequence
from typing import Unpack

import pandas as pd

from bayeslaw.common.defaults import DELTA
from bayeslaw.common.errors import FitError, FitWarning
from bayeslaw.evaluate.scores import score
from bayeslaw.huber.point_fit import PointFit, fit_huber
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.settings import PosteriorSettings
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.tables.table import LossTable

PAPER = ("form1", "form2", "form3", "dcpt")
ORACLE = "dcpt"
"""The law without PTPP, which the paper also fits to the test rows."""


def compare(
    table: LossTable,
    *,
    train: str | None = None,
    test: str | None = None,
    anchors: str | None = None,
    laws: Sequence[str | Law] = PAPER,
    method: str = "huber",
    oracle: bool = True,
    delta: float = DELTA,
    seed: int = 0,
    allow_unconverged: bool = False,
    **settings: Unpack[PosteriorSettings],
) -> pd.DataFrame:
    """Fit several laws on one split and score them on its test rows.

    Parameters
    ----------
    table : LossTable
    train, test, anchors : str, optional
        Pandas queries; see `LossTable.split`. Anchors are added to the training rows.
    laws : sequence of laws
        ``dcpt`` has no PTPP: it is the paper's transfer baseline.
    method : {"huber", "nuts"}
        Deterministic fits, or posteriors, whose bands are scored as well.
    oracle : bool
        Whether to add ``dcpt`` fitted to the test rows, if it is among the laws. The paper uses it
        as an upper bound on accuracy.
    delta : float
        Threshold of the Huber loss, in log loss.
    seed : int
    allow_unconverged : bool
        Whether to score posteriors that failed the convergence checks.
    **settings
        Arguments of `bayeslaw.fit` if `method` is ``"nuts"``.

    Returns
    -------
    DataFrame
        One row per law: the columns of `bayeslaw.score`; `rows`, the number of fitted rows; and
        `note`: parameters on a bound, agreement of the optimiser's starts, or failed convergence
        checks.

    Raises
    ------
    TableError
        If a query is invalid, or a covariate that a law needs is missing.
    FitError
        If the method is unknown.

    Examples
    --------
    >>> from bayeslaw.tables.reading import example_table
    >>> found = compare(example_table(), train="scale <= 3e20", laws=["chinchilla"])
    >>> found.loc["chinchilla", "rows"].item()
    35
    """
    fitted, test_rows = table.split(train, test, anchors)
    jobs = [(load_law(law), fitted, _label(load_law(law))) for law in laws]
    if oracle and any(law.name == ORACLE for law, _, _ in jobs):
        jobs.append((load_law(ORACLE), test_rows, f"{ORACLE} (oracle)"))
    rows, labels = [], []
    for law, rows_used, label in jobs:
        fit = _fit(law, rows_used, method, delta, seed, settings)
        scores = score(fit, test_rows, seed=seed, allow_unconverged=allow_unconverged)
        rows.append(scores.to_dict() | {"rows": len(rows_used), "note": note(fit)})
        labels.append(label)
    return pd.DataFrame(rows, index=pd.Index(labels, name="law"))


def note(fit: PointFit | Posterior) -> str:
    """Warnings about a fit in a few words; empty if there are none."""
    if isinstance(fit, Posterior):
        return "; ".join(fit.convergence.failures)
    words = [f"{name} = {value:g}" for name, value in fit.at_bounds.items()]
    if fit.agreeing < 0.1:
        words.append(f"{100 * fit.agreeing:.0f} % of starts agree")
    return "; ".join(words)


def _fit(
    law: Law, table: LossTable, method: str, delta: float, seed: int, settings: PosteriorSettings
) -> PointFit | Posterior:
    if method == "huber":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # reported in the column `note`
            return fit_huber(law, table, delta=delta, seed=seed)
    if method != "nuts":
        raise FitError(f"method is 'huber' or 'nuts', not {method!r}.")
    from bayeslaw.inference.fitting import fit

    return fit(law, table, method="nuts", seed=seed, **settings)


def _label(law: Law) -> str:
    return f"{law.name} (transfer)" if law.name == ORACLE else law.name
