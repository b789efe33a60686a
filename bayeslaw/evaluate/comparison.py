"""Comparison of several laws on one split, as in the paper's tables of scores."""

import warnings
from collections.abc import Hashable, Iterator, Sequence
from typing import Unpack

import pandas as pd

from bayeslaw.common.defaults import DELTA
from bayeslaw.common.errors import FitError, FitWarning, TableError, unknown
from bayeslaw.evaluate.scores import score
from bayeslaw.huber.point_fit import Bounds, PointFit, fit_huber
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.settings import FilledSettings, PosteriorSettings
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.tables.table import LossTable

SPREAD = 1e-3
"""A note names forecasts of starts that agree if their log losses differ by more than this."""
PAPER = ("form1", "form2", "form3", "dcpt")
ORACLE = "dcpt"
"""The law without PTPP: the paper fits it without anchors, and to all rows of the test query."""


def compare(
    table: LossTable,
    *,
    source: LossTable | None = None,
    train: str | None = None,
    test: str | None = None,
    anchors: str | None = None,
    laws: Sequence[str | Law] = PAPER,
    method: str = "huber",
    oracle: bool = True,
    delta: float = DELTA,
    bounds: Bounds = "paper",
    seed: int = 0,
    allow_unconverged: bool = False,
    **settings: Unpack[PosteriorSettings],
) -> pd.DataFrame:
    """Fit several laws on one split and score them on its test rows.

    Each domain of the tables is fitted and scored by itself.

    Parameters
    ----------
    table : LossTable
        Of the target domain, or of several domains.
    source : LossTable, optional
        Of the source domain.
    train, test, anchors : str, optional
        Pandas queries; see `LossTable.split`. Anchors are added to the training rows and not
        scored.
    laws : sequence of laws
        ``dcpt`` has no PTPP: it is the paper's transfer baseline, fitted without anchors.
    method : {"huber", "nuts"}
        Deterministic fits, or posteriors, whose bands are scored as well.
    oracle : bool
        Whether to add ``dcpt`` fitted to, and scored on, all rows of the `test` query, anchors
        among them, if it is among the laws. The paper uses it as an upper bound on accuracy.
    delta : float
        Threshold of the Huber loss, in log loss.
    bounds : {"paper", "prior"}
        Of the parameters of Huber fits; see `fit_huber`.
    seed : int
    allow_unconverged : bool
        Whether to score posteriors that failed the convergence checks.
    **settings
        Arguments of `bayeslaw.fit` if `method` is ``"nuts"``.

    Returns
    -------
    DataFrame
        One row per law, or per domain and law if there are several domains: the columns of
        `bayeslaw.score`; `rows` and `scored`, the numbers of fitted and of scored rows; and
        `note`: parameters on a bound, agreement of the optimiser's starts, the spread of their
        forecasts, or failed convergence checks.

    Raises
    ------
    TableError
        If a query is invalid, a covariate that a law needs is missing, or `table` and `source`
        have a domain in common.
    FitError
        If the method or a setting is unknown, or a setting has no effect on the method.

    Examples
    --------
    >>> from bayeslaw.tables.reading import example_table
    >>> found = compare(example_table(), train="scale <= 3e20", laws=["chinchilla"])
    >>> found.loc["chinchilla", ["rows", "scored"]].tolist()
    [35, 10]
    """
    parts = [*_domains(table, "target"), *(_domains(source, "source") if source else ())]
    names = [name for name, _ in parts]
    if len(set(names)) < len(names):
        raise TableError(f"{table.name} and the source have a domain in common: {names[-1]}.")
    chosen = [load_law(law) for law in laws]
    known, rows = [law.name for law in chosen], []
    for domain, each in parts:
        fitted, held_out = each.split(train, test, anchors)
        no_anchors, evaluated = each.split(train, test)
        jobs = [
            (law, no_anchors if law.name == ORACLE else fitted, held_out, _label(law))
            for law in chosen
        ]
        if oracle and ORACLE in known:
            jobs.append((load_law(ORACLE), evaluated, evaluated, f"{ORACLE} (oracle)"))
        for law, used, rest, label in jobs:
            fit = _fit(law, used, method, delta, bounds, seed, settings)
            scores = score(fit, rest, seed=seed, allow_unconverged=allow_unconverged)
            row = scores.to_dict() | {"domain": domain, "law": label, "rows": len(used)}
            rows.append(row | {"scored": len(rest), "note": note(fit, rest)})
    found = pd.DataFrame(rows)
    if len(parts) > 1:
        return found.set_index(["domain", "law"])
    return found.drop(columns="domain").set_index("law")


def row_name(row: Hashable) -> str:
    """Name of a row of a comparison: its law, or its domain and law."""
    return ", ".join(row) if isinstance(row, tuple) else str(row)


def note(fit: PointFit | Posterior, rows: LossTable) -> str:
    """Warnings about a fit and its forecast of some rows in a few words; empty if none."""
    if isinstance(fit, Posterior | Pool):
        return "; ".join(fit.convergence.failures)
    words = [f"{name} = {value:g}" for name, value in fit.at_bounds.items()]
    if fit.agreeing < 0.1:
        words.append(f"{100 * fit.agreeing:.0f} % of starts agree")
    lowest, highest = fit.span(rows)
    spread = float((highest / lowest - 1).max())
    if spread > SPREAD:
        words.append(f"agreeing starts forecast up to {100 * spread:.2g} % apart")
    return "; ".join(words)


def _domains(table: LossTable, otherwise: str) -> Iterator[tuple[str, LossTable]]:
    """The rows of each domain, by name; `otherwise` names a table without a column `domain`."""
    if "domain" not in table.frame:
        yield otherwise, table
        return
    for domain in table.frame["domain"].unique():
        rows, bases = (
            part[part["domain"] == domain].reset_index(drop=True) if "domain" in part else part
            for part in (table.frame, table.baselines)
        )
        yield str(domain), LossTable(rows, bases, table.name)


def _fit(
    law: Law,
    table: LossTable,
    method: str,
    delta: float,
    bounds: Bounds,
    seed: int,
    settings: PosteriorSettings,
) -> PointFit | Posterior:
    if method == "huber":
        known = ("likelihood", "priors", *FilledSettings.__annotations__)
        for name in settings:
            if name not in known:
                raise FitError(unknown("setting", name, known))
            raise FitError(f"method='huber' does not use {name}; drop it or use method='nuts'.")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # reported in the column `note`
            return fit_huber(law, table, delta=delta, bounds=bounds, seed=seed)
    if method != "nuts":
        raise FitError(f"method is 'huber' or 'nuts', not {method!r}.")
    from bayeslaw.inference.fitting import fit

    return fit(law, table, method="nuts", delta=delta, seed=seed, **settings)


def _label(law: Law) -> str:
    return f"{law.name} (transfer)" if law.name == ORACLE else law.name
