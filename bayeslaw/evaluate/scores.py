"""Scores of predictions on measured losses, and comparison of several laws by them.

The scores are the paper's point metrics, and those of bands. All but `mae_rel` and `mape_clip` are
computed on log loss. A difference of .01 in log loss is a relative error of about 1 %.
"""

import warnings
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import pandas as pd
from scipy.special import huber

from bayeslaw.common.arrays import Floats
from bayeslaw.common.defaults import DELTA
from bayeslaw.common.errors import (
    Acceptance,
    FitError,
    FitWarning,
    TableError,
    TableWarning,
)
from bayeslaw.common.formatting import digits
from bayeslaw.common.progress import each
from bayeslaw.common.shown import Block, Format, Note, Shown, Table
from bayeslaw.design.design import law_for, with_held
from bayeslaw.huber.objective import Bounds
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.bands import BAND_LEVELS, ends
from bayeslaw.inference.fitting import fit
from bayeslaw.inference.forecast import Forecast
from bayeslaw.inference.points import fit_huber
from bayeslaw.inference.pools import Pool, with_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.settings import FitKeywords, check_names, shows_settings
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.tables.comparison import (
    check_rows,
    check_same_rows,
    fitted_rows,
    fitted_words,
)
from bayeslaw.tables.guessing import Losses, table_of
from bayeslaw.tables.table import LossTable, require_table, subset
from bayeslaw.tables.validation import label_texts

POINT_SCORES = ("huber_log", "rmse_log", "mae_rel", "mape_clip", "intercept", "slope")
BAND_SCORES = (
    "coverage_50",
    "coverage_80",
    "coverage_90",
    "width_90",
    "crps",
    "winkler_90",
)
LESS_READ = ("huber_log", "mape_clip", "intercept", "slope")
"""Scores of the paper that tables leave out; a document has them."""
LEAST_DENOMINATOR = 1e-8
"""Lower bound of the denominator of `mape_clip`; for larger losses it equals `mae_rel`."""
STARTS_DIFFER = 1e-3
"""A note names forecasts of starts that agree if their log losses differ by more than this."""
PAPER = ("form1", "form2", "form3", "dcpt")
ORACLE = "dcpt"
"""The law without PTPP: the paper fits it without anchors, and to all rows of the test query."""


def score(
    prediction: PointFit | Posterior | Pool | Forecast,
    table: LossTable,
    *,
    seed: int = 0,
) -> pd.Series:
    """Score a fit or a forecast on measured losses.

    Parameters
    ----------
    prediction : PointFit, Posterior or Forecast
        A forecast must be for the rows of `table`, in their order. A point fit has no bands, so
        their scores are NaN.
    table : LossTable
        Measured losses. Rows that were fitted, which are equal to a training row in every column,
        are not scored, and a `TableWarning` says how many; if all were, it says that.
    seed : int
        Seed of the predictive noise if `prediction` is a posterior.

    Returns
    -------
    Series
        `huber_log`, `rmse_log`, `mae_rel`, `mape_clip`, `intercept`, `slope`: the metrics of
        the paper's Appendix A, of the point prediction. `coverage_50`, `coverage_80`,
        `coverage_90`: fraction of rows inside the band. `width_90`, `crps`, `winkler_90`: means
        over rows of the width, the continuous ranked probability score and the Winkler score.

    Raises
    ------
    TableError
        If rows of the table are of a domain or a kind that the fit does not know, or are
        not the rows of the forecast in their order.

    Examples
    --------
    >>> import bayeslaw as bl
    >>> truth = {"E": 1.7, "A": 400, "alpha": 0.34, "B": 410, "beta": 0.28}
    >>> design = bl.grid(params=[1e8, 3e8, 1e9], tokens=[1e9, 3e9, 1e10, 3e10, 1e11])
    >>> train, test = bl.simulate("chinchilla", truth, design).split("tokens < 5e10")
    >>> scores = bl.score(bl.fit_huber("chinchilla", train), test)
    >>> bool(scores["rmse_log"] < 1e-4), bool(scores.isna()["crps"])
    (True, True)
    """
    scores, words = scored(prediction, table, seed=seed)
    if words:
        warnings.warn(f"{table.name}: {words}", TableWarning, stacklevel=2)
    return scores


def scored(
    prediction: PointFit | Posterior | Pool | Forecast,
    table: LossTable,
    *,
    seed: int = 0,
) -> tuple[pd.Series, str]:
    """`score`, and in words which rows were fitted, so that they are not scored."""
    require_table(table)
    fitted = np.zeros(len(table), bool)
    samples: Floats | None
    if isinstance(prediction, PointFit):
        if prediction.table is not None:
            check_rows(table.frame, table.name, prediction.table.frame)
            fitted = fitted_rows(table.frame, prediction.table.frame)
        point = prediction.predict(table)
        samples = None
    else:
        if not isinstance(prediction, Forecast):
            posterior = with_draws(prediction, "score").accepted("beyond-evidence")
            prediction = posterior.forecast(table, seed=seed)
        columns = (*prediction.columns, *prediction.labels)
        check_same_rows(
            prediction.stated, table.frame, ("the forecast", table.name), columns
        )
        point = prediction.median
        samples = np.log(prediction.samples)
        for fit_of_forecast in prediction.fits.values():
            fitted = fitted_rows(table.frame, fit_of_forecast.table.frame)
    # Without any other row, the scores are those of the fit.
    loss = table.loss
    if fitted.any() and not fitted.all():
        point = point[~fitted]
        loss = loss[~fitted]
        samples = None if samples is None else samples[:, ~fitted]
    scores = point_scores(point, loss)
    if samples is not None:
        scores |= band_scores(samples, np.log(loss))
    series = pd.Series(scores, index=[*POINT_SCORES, *BAND_SCORES], dtype=float)
    return series, fitted_words(fitted)


def point_scores(predicted: Floats, loss: Floats) -> dict[str, float]:
    """Metrics of point predictions in nats per token, as in the paper's Appendix A."""
    x = np.log(predicted)
    y = np.log(loss)
    residuals = x - y
    error = np.abs(predicted - loss)
    spread = x - x.mean()
    square = float(spread @ spread)
    # Equal predictions have no slope; their mean may differ from them by rounding.
    slope = float(spread @ y / square) if np.ptp(x) > 0 else np.nan
    denominator = np.maximum(loss, LEAST_DENOMINATOR)
    return {
        "huber_log": float(huber(DELTA, residuals).mean()),
        "rmse_log": float(np.sqrt(np.mean(residuals**2))),
        "mae_rel": float(np.mean(error / loss)),
        "mape_clip": float(np.mean(error / denominator)),
        "intercept": float(y.mean() - slope * x.mean()),
        "slope": slope,
    }


def band_scores(samples: Floats, truth: Floats) -> dict[str, float]:
    """Coverage, width, CRPS and Winkler score of draws of log loss, (draws, rows): means."""
    bands = {level: np.quantile(samples, ends(level), axis=0) for level in BAND_LEVELS}
    scores = interval_scores(bands, truth)
    scores["crps"] = float(crps(samples, truth).mean())
    return scores


def interval_scores(bands: Mapping[float, Floats], truth: Floats) -> dict[str, float]:
    """Coverage of bands (lower, upper) of log loss by level, width and Winkler score at 0.9."""
    scores: dict[str, float] = {}
    for level, (lower, upper) in bands.items():
        inside = (lower <= truth) & (truth <= upper)
        scores[f"coverage_{100 * level:g}"] = float(inside.mean())
    lower, upper = bands[0.9]
    alpha = 0.1
    width = upper - lower
    distance = np.maximum(lower - truth, 0) + np.maximum(truth - upper, 0)
    scores["width_90"] = float(width.mean())
    scores["winkler_90"] = float(np.mean(width + 2 / alpha * distance))
    return scores


def crps(samples: Floats, truth: Floats) -> Floats:
    """Continuous ranked probability score (CRPS) of draws (draws, rows), for each row.

    ``E|X - y| - E|X - X'| / 2`` for draws X and X' and the truth y. The second mean, over all pairs
    of draws, is computed from the sorted draws.

    Gneiting and Raftery, Strictly proper scoring rules, prediction, and estimation. Journal of the
    American Statistical Association 102 (2007), equation 21.
    """
    n = len(samples)
    # Over all pairs, a sorted draw is added as often as it is the larger, less the smaller one.
    rank = (2 * np.arange(1, n + 1) - n - 1)[:, None]
    spread = (rank * np.sort(samples, axis=0)).sum(0) / n**2
    return np.asarray(np.abs(samples - truth).mean(0) - spread)


@shows_settings()
def compare(
    table: Losses,
    *,
    source: Losses | None = None,
    train: str | None = None,
    test: str | None = None,
    anchors: str | None = None,
    laws: Sequence[str | Law] = PAPER,
    method: str = "huber",
    bounds: Bounds = "paper",
    seed: int = 0,
    accepts: Collection[Acceptance] = (),
    **settings: Unpack[FitKeywords],
) -> pd.DataFrame:
    """Fit several laws on one split and score them on its test rows.

    Each domain of the tables is fitted and scored by itself.

    Parameters
    ----------
    table : LossTable, DataFrame or path
        Of the target domain, or of several domains. What a frame or a file does not say is guessed
        as by `forecast`, and a warning says so.
    source : LossTable, DataFrame or path, optional
        Of the source domain.
    train, test, anchors : str, optional
        Pandas queries; see `LossTable.split`. Anchors are added to the training rows and not
        scored.
    laws : sequence of laws
        ``dcpt`` has no PTPP: it is the paper's transfer baseline, fitted without anchors, and
        once more, as an upper bound on accuracy, to all rows of the `test` query on which it is
        scored.
    method : {"huber", "nuts"}
        Deterministic fits, or posteriors, whose bands are scored as well.
    bounds : {"paper", "prior"}
        Of the parameters of Huber fits; see `fit_huber`.
    seed : int
    accepts : set of {"unconverged"}
        Accept posteriors that failed the convergence checks; see `Posterior.accepted`.
    **settings
        Arguments of `bayeslaw.fit`; of these, ``"huber"`` has `delta` alone.

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
    >>> found = bl.compare(bl.example_table(), train="scale <= 3e20", laws=["chinchilla"])
    >>> found.loc["chinchilla", ["rows", "scored"]].tolist()
    [28, 8]
    """
    if method not in ("huber", "nuts"):
        raise FitError(f"method is 'huber' or 'nuts', not {method!r}.")
    check_names(settings)
    unused = sorted({*settings} - {"delta"})
    if method == "huber" and unused:
        raise FitError(
            f"method='huber' does not use {unused[0]}; drop it or use method='nuts'."
        )
    delta = settings.get("delta", DELTA)
    table = table_of(table)
    parts = _domains(table, "target")
    if source is not None:
        source = table_of(source)
        parts += _domains(source, "source")
    names = [name for name, _ in parts]
    if len(set(names)) < len(names):
        raise TableError(
            f"{table.name} and the source have a domain in common: {names[-1]}."
        )
    loaded = [load_law(law) for law in laws]
    # Queries are evaluated for all domains before the first fit.
    jobs_of_domains = {}
    for domain, losses in parts:
        split = losses.split(train, test, anchors)
        jobs_of_domains[domain] = _jobs(loaded, split, losses.split(train, test))
    rows = []
    for domain, jobs in jobs_of_domains.items():
        for job in jobs:
            # What a law lacks is an error before the first fit.
            law = law_for(job.law, job.train.frame, job.train.name)
            with_held(law, job.test.frame, job.test.name)
        for job in each(jobs, "comparing laws", settings.get("progress")):
            if method == "nuts":
                posterior = fit(job.law, job.train, seed=seed, **settings)
                # The oracle is fitted to the rows on which it is scored, and its label says so.
                scores, _ = scored(posterior.accepted(accepts), job.test, seed=seed)
                words = "; ".join(posterior.convergence.failures)
            else:
                with warnings.catch_warnings():
                    # The column `note` has what it warns of.
                    warnings.simplefilter("ignore", FitWarning)
                    point = fit_huber(
                        job.law, job.train, delta=delta, bounds=bounds, seed=seed
                    )
                scores, _ = scored(point, job.test)
                words = note(point, job.test)
            row = scores.to_dict()
            row |= {"domain": domain, "law": job.label}
            row |= {"rows": len(job.train), "scored": len(job.test), "note": words}
            rows.append(row)
    compared = pd.DataFrame(rows)
    if len(parts) > 1:
        return compared.set_index(["domain", "law"])
    return compared.drop(columns="domain").set_index("law")


@dataclass(frozen=True)
class _Job:
    """A law to fit to some rows and to score on others, and its name in the comparison."""

    law: Law
    train: LossTable
    test: LossTable
    label: str


type _Split = tuple[LossTable, LossTable]
"""Training rows and test rows."""


def _jobs(laws: Sequence[Law], split: _Split, no_anchors: _Split) -> list[_Job]:
    """What is fitted and scored in one domain, given its split with and without anchors."""
    train, test = split
    train_without, test_with_anchors = no_anchors
    jobs = []
    for law in laws:
        if law.name == ORACLE:
            jobs.append(_Job(law, train_without, test, f"{ORACLE} (transfer)"))
        else:
            jobs.append(_Job(law, train, test, law.name))
    if any(law.name == ORACLE for law in laws):
        label = f"{ORACLE} (oracle)"
        oracle = _Job(load_law(ORACLE), test_with_anchors, test_with_anchors, label)
        jobs.append(oracle)
    return jobs


def shown_scores(scores: pd.Series, words: str = "") -> Shown:
    """Show the scores of `score` but `LESS_READ`; the document has all.

    The `words` say which rows were not scored, as those of `scored`.
    """
    errors = [name for name in POINT_SCORES if name not in LESS_READ]
    bands = scores[list(BAND_SCORES)].notna().any()
    names = [*errors, *BAND_SCORES[4:]] if bands else errors
    frame = pd.DataFrame({"score": names, "value": scores[names].to_numpy(float)})
    if bands:
        first = [*BAND_SCORES[:4]]
        frame["of bands"] = first
        frame[" "] = scores[first].to_numpy(float)
    formats: dict[str, Format] = dict.fromkeys(("value", " "), digits)
    table = Table(frame, "", formats, left=("score", "of bands"))
    blocks: list[Block] = [table]
    if words:
        blocks = [Note(words, "caution"), table]
    return Shown("Scores", blocks, {"scores": scores.to_dict()})


def shown_comparison(scores: pd.DataFrame) -> Shown:
    """Show the scores of `compare`, one row per law, or per domain and law."""
    errors = [name for name in POINT_SCORES if name not in LESS_READ]
    blocks: list[Block] = [
        *_comparison_table(scores, errors, ("rows", "scored")),
        *_comparison_table(scores, BAND_SCORES, ()),
    ]
    for law, row in scores.iterrows():
        if row["note"]:
            text = f"Note: {row_name(law)}: {row['note']}"
            blocks.append(Note(text, "caution"))
    document = {"laws": scores.reset_index().to_dict("records")}
    return Shown("Laws compared", blocks, document)


def _comparison_table(
    scores: pd.DataFrame, columns: Sequence[str], counts: Sequence[str]
) -> list[Block]:
    """A table of some scores, and of counts of rows beside them; none if all are missing."""
    if not scores[list(columns)].notna().any(axis=None):
        return []
    heads: dict[str, str] = {}
    for name in (*columns, *counts):
        heads[name] = name.replace("_", "\n")
    formats: dict[str, Format] = {heads[name]: digits for name in columns}
    shown = scores[list(heads)].rename(columns=heads)
    return [Table(shown.rename_axis(index={"domain": ""}), "", formats)]


def row_name(row: Hashable) -> str:
    """Name of a row of a comparison: its law, or its domain and law."""
    return ", ".join(row) if isinstance(row, tuple) else str(row)


def note(fit: PointFit, rows: LossTable) -> str:
    """Warnings about a fit and its forecast of some rows in a few words; empty if none."""
    words = [f"{name} = {value:g}" for name, value in fit.at_bounds.items()]
    if fit.agreeing < 0.1:
        words.append(f"{100 * fit.agreeing:.0f} % of starts agree")
    lowest, highest = fit.span(rows)
    spread = float((highest / lowest - 1).max())
    if spread > STARTS_DIFFER:
        words.append(f"agreeing starts forecast up to {100 * spread:.2g} % apart")
    return "; ".join(words)


def _domains(table: LossTable, otherwise: str) -> list[tuple[str, LossTable]]:
    """The rows of each domain, by name; `otherwise` names rows without one."""
    if "domain" not in table.frame:
        return [(otherwise, table)]
    domains = label_texts(table.frame["domain"]).fillna(otherwise)
    parts = []
    for name in domains.unique():
        of_domain = (domains == name).to_numpy()
        parts.append((name, subset(table, of_domain)))
    return parts
