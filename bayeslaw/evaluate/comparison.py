"""Several laws on one split: the paper's table."""

import warnings
from collections.abc import Sequence
from typing import Any

import pandas as pd

from bayeslaw.common.defaults import DELTA
from bayeslaw.common.errors import FitError, FitWarning
from bayeslaw.evaluate.scores import score
from bayeslaw.huber.point_fit import PointFit, fit_huber
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.tables.table import LossTable

PAPER = ("form1", "form2", "form3", "dcpt")
ORACLE = "dcpt"
"""The law without PTPP that the paper also fits at the evaluation stage."""


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
    **settings: Any,
) -> pd.DataFrame:
    """Fit several laws on one split and score them on its test rows.

    Parameters
    ----------
    table : LossTable
    train, test, anchors : str, optional
        Pandas queries; see `LossTable.split`. Anchors are added to the training rows.
    laws : sequence of laws
        ``dcpt`` among them is the PTPP-agnostic transfer baseline.
    method : {"huber", "nuts"}
        Deterministic fits, or posteriors, whose bands are scored too.
    oracle : bool
        Whether to add ``dcpt`` fitted on the test rows themselves, if it is among the laws: the
        paper's upper bound.
    delta, seed
        As for `fit_huber`.
    settings
        Passed to `bayeslaw.fit` if `method` is ``"nuts"``.

    Returns
    -------
    DataFrame
        One row per law, the columns of `bayeslaw.score`, and `note`: bounds hit, agreement of the
        starts, or failures of the convergence gate.

    Raises
    ------
    TableError
        If a query, or a covariate that a law needs, is at fault.
    """
    fitted, held = table.split(train, test, anchors)
    jobs = [(load_law(law), fitted, _label(load_law(law))) for law in laws]
    if oracle and any(law.name == ORACLE for law, _, _ in jobs):
        jobs.append((load_law(ORACLE), held, f"{ORACLE} (oracle)"))
    rows, labels = [], []
    for law, rows_used, label in jobs:
        fit = _fit(law, rows_used, method, delta, seed, settings)
        scores = score(fit, held, seed=seed, allow_unconverged=allow_unconverged)
        rows.append(scores.to_dict() | {"rows": len(rows_used), "note": note(fit)})
        labels.append(label)
    return pd.DataFrame(rows, index=pd.Index(labels, name="law"))


def note(fit: PointFit | Posterior) -> str:
    """What a reader must know about a fit, in a few words; empty if nothing."""
    if isinstance(fit, Posterior):
        return "; ".join(fit.convergence.failures)
    words = [f"{name} = {value:g}" for name, value in fit.at_bounds.items()]
    if fit.agreeing < 0.1:
        words.append(f"{100 * fit.agreeing:.0f} % of starts agree")
    return "; ".join(words)


def _fit(
    law: Law, table: LossTable, method: str, delta: float, seed: int, settings: dict[str, Any]
) -> PointFit | Posterior:
    if method == "huber":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # the note says it
            return fit_huber(law, table, delta=delta, seed=seed)
    if method != "nuts":
        raise FitError(f"method is 'huber' or 'nuts', not {method!r}.")
    from bayeslaw.inference.fitting import fit

    posterior: Posterior = fit(law, table, method="nuts", seed=seed, **settings)
    return posterior


def _label(law: Law) -> str:
    return f"{law.name} (transfer)" if law.name == ORACLE else law.name
