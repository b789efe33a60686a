"""Backtests: forecasts of what came later, made at earlier cuts of a table.

At each cut, only rows up to it are fitted, and the rows beyond it are forecast and compared with
their measured losses. The distance of a row is how far it lies beyond the cut, in decades.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack, cast

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import BayeslawError, TableError, unknown
from bayeslaw.common.files import results
from bayeslaw.common.shown import Block, Format, Note, Showing, Shown, Table
from bayeslaw.design.design import law_for, with_held
from bayeslaw.evaluate.scores import crps
from bayeslaw.inference.bands import BAND_LEVELS
from bayeslaw.inference.fitting import fit, fit_pool
from bayeslaw.inference.pools import member_laws
from bayeslaw.inference.settings import FitKeywords, make_settings, shows_settings
from bayeslaw.inference.specification import specify
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.tables.compute import flops_of
from bayeslaw.tables.files import read_frame, write_frame
from bayeslaw.tables.table import LossTable, require_table, subset
from bayeslaw.tables.validation import COVARIATES

SPLIT_COLUMNS = ("flops", "params", "tokens", "ptpp")
"""Quantities that a table may be cut along."""
MAX_CUTS = 5
MIN_CUT_ROWS = 8
"""Most cuts, and fewest rows to fit at one."""
SUMMARIES = {
    "rows": ("loss", "size"),
    "error": ("error", lambda error: error.abs().median()),
    "bias": ("error", "mean"),
    **{
        f"coverage_{100 * level:g}": (f"inside_{100 * level:g}", "mean")
        for level in BAND_LEVELS
    },
    "width_90": ("width_90", "mean"),
    "crps": ("crps", "mean"),
}
"""Scores of a group of rows: the column, and how it is summarised."""
BINS = (0.0, 0.25, 0.5, 1.0, 2.0, np.inf)
"""Edges of the distances of `Backtest.by_distance`, in decades."""
HEADS = {
    "ahead": "decades ahead",
    "rows": "rows",
    "error": "error",
    "bias": "bias",
    "coverage_50": "in 50 %",
    "coverage_80": "in 80 %",
    "coverage_90": "in 90 %",
    "width_90": "width",
}
"""Heads of the scores in the tables that a backtest shows."""
LEGEND = (
    "error: median absolute error; bias: mean error, positive where the forecast is too high; "
    "width: of the 90 % band; all of log loss."
)


def amount(rows: pd.DataFrame, along: str) -> pd.Series:
    return flops_of(rows) if along == "flops" else rows[along]


@dataclass(frozen=True)
class Backtest(Showing):
    """Forecasts at several cuts, and what was measured.

    Parameters
    ----------
    rows : DataFrame
        One row per cut, model and forecast loss: `cut`, `model`, `decades` beyond the cut, the
        covariates, `loss`, `median`, `error` (log of median over loss), `inside_50`, `inside_80`,
        `inside_90`, `lower_90` and `upper_90` in nats, `width_90` and `crps` of log loss, and
        `gate`, "passed" or what failed in the convergence check of the fit.
    along : str
        Quantity that the table was cut along.
    models : tuple of str
        The model that was tested, and its rivals.
    name : str
        Name of the table.

    Examples
    --------
    >>> import bayeslaw as bl
    >>> truth = {"E": 1.7, "A": 400, "alpha": 0.34, "B": 410, "beta": 0.28}
    >>> design = bl.grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[3e9, 1e10, 3e10])
    >>> table = bl.simulate("chinchilla", truth, design, sigma=0.01)
    >>> found = backtest(table, "chinchilla", along="params", draws=200, discrepancy="none")
    >>> found.rows["cut"].unique().tolist()
    [1000000000.0]
    """

    rows: pd.DataFrame = field(repr=False)
    along: str
    models: tuple[str, ...]
    name: str

    def summary(self) -> pd.DataFrame:
        """Scores by model: rows, median absolute error, coverage, mean width and CRPS."""
        groups = self.rows.groupby("model", sort=False)
        return groups.agg(**SUMMARIES).loc[[*self.models]]

    def by_distance(self) -> pd.DataFrame:
        """The same by model and decades beyond the cut: `least` and `most`, as in `BINS`."""
        edges = np.asarray(BINS)
        lower = np.searchsorted(edges, self.rows["decades"]) - 1
        lower = np.clip(lower, 0, len(edges) - 2)
        rows = self.rows.assign(least=edges[lower], most=edges[lower + 1])
        groups = rows.groupby(["model", "least", "most"])
        return groups.agg(**SUMMARIES).loc[[*self.models]]

    def sentence(self) -> str:
        """What the backtest says of the model tested, in one sentence."""
        rows = self.rows[self.rows["model"] == self.models[0]]
        held = int(rows["inside_90"].sum())
        count = len(rows)
        error = 100 * float(rows["error"].abs().median())
        far = float(rows["decades"].median())
        cuts = rows["cut"].nunique()
        noun = "cuts" if cuts > 1 else "cut"
        return (
            f"{far:.2g} decades of {self.along} ahead (at most {rows['decades'].max():.2g}), "
            f"on rows of {self.name} that came after {cuts} {noun}, the 90 % band held {held} of "
            f"{count} and the median error was {error:.2g} %."
        )

    def looking(self, train: LossTable, rows: pd.DataFrame) -> str:
        """The sentence, and how far ahead a forecast looks compared with the backtest.

        Parameters
        ----------
        train : LossTable
            Rows that the forecast was fitted to.
        rows : DataFrame
            Rows that were forecast.
        """
        last = float(amount(train.frame, self.along).max())
        ahead = math.log10(float(amount(rows, self.along).max()) / last)
        tested = float(self.rows["decades"].max())
        if ahead <= 0:
            words = f"This forecast is not ahead of its training rows in {self.along}."
        elif ahead <= tested:
            first = self.rows[self.rows["model"] == self.models[0]]
            least = min(ahead, first["decades"].quantile(0.9))
            as_far = first[first["decades"] >= least]
            held = int(as_far["inside_90"].sum())
            words = (
                f"This forecast looks {ahead:.2g} ahead; of {len(as_far)} rows as far or farther "
                f"the band held {held}."
            )
        else:
            words = (
                f"This forecast looks {ahead:.2g} ahead, {ahead - tested:.2g} farther than any "
                "cut of the table could show."
            )
        return f"Backtest: {self.sentence()} {words}"

    def shown(self) -> Shown:
        """One sentence, and scores by model and by distance."""
        whole = self.summary().rename_axis("model").reset_index()
        by_distance = self.by_distance().reset_index()
        least = by_distance["least"].map("{:g}".format)
        most = by_distance["most"].map("{:g}".format)
        ahead = np.where(most == "inf", "over " + least, least + " to " + most)
        blocks: list[Block] = [
            self.sentence(),
            _scores_table(whole),
            _scores_table(by_distance.assign(ahead=ahead)),
            Note(LEGEND, "quiet"),
        ]
        failed = self.rows[self.rows["gate"] != "passed"]
        for (model, cut), rows in failed.groupby(["model", "cut"], sort=False):
            words = f"NOT CONVERGED: {model} at {cut:.4g}: {rows['gate'].iloc[0]}."
            blocks.append(Note(words, "refuse"))
        document = {
            "table": self.name,
            "along": self.along,
            "sentence": self.sentence(),
            "models": whole.to_dict("records"),
            "by_distance": by_distance.to_dict("records"),
            "rows": self.rows.to_dict("records"),
        }
        return Shown(f"Backtest along {self.along}", blocks, document, ("backtest",))

    def write(self, path: str | Path) -> None:
        """Write the rows as CSV or Parquet, for `read_backtest`."""
        about = {"along": self.along, "table": self.name}
        write_frame(self.rows.assign(**about), path)


def _scores_table(scores: pd.DataFrame) -> Table:
    """Scores by model, or by model and distance, as they are shown."""
    shown = scores.set_index("model").rename_axis(None).rename(columns=HEADS)
    columns = [head for head in HEADS.values() if head in shown]
    formats: dict[str, Format] = {}
    for column in columns:
        if column.startswith("in "):
            formats[column] = ".2f"
        elif column in ("error", "bias", "width"):
            formats[column] = _percent
        elif column == "rows":
            formats[column] = ".0f"
    return Table(shown[columns], "", formats, optional=("bias",))


def _percent(value: float) -> str:
    return f"{100 * value:.2g} %"


def read_backtest(path: str | Path) -> Backtest:
    """Read a backtest that `Backtest.write` or ``bayeslaw backtest --out`` wrote.

    Raises
    ------
    TableError
        If the file cannot be read, or is not a backtest.
    """
    rows = read_frame(path).reset_index(drop=True)
    for column in ("along", "decades", "inside_90", "model", "table"):
        if column not in rows:
            raise TableError(
                f"{path}: not a backtest: no column {column!r}; write one with "
                "`bayeslaw backtest --out`."
            )
    along = str(rows["along"].iloc[0])
    name = str(rows["table"].iloc[0])
    models = tuple(map(str, rows["model"].unique()))
    return Backtest(rows.drop(columns=["along", "table"]), along, models, name)


@shows_settings()
def backtest(
    table: LossTable,
    law: str | Law,
    *,
    along: str = "flops",
    cuts: Sequence[float] | None = None,
    rivals: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    jobs: int = 1,
    **settings: Unpack[FitKeywords],
) -> Backtest:
    """Forecast, at earlier cuts of a table, the rows that came later.

    The losses of bases at ``tokens = 0`` are known at every cut.

    Parameters
    ----------
    table : LossTable
    law : str or Law
        A law, or the name of a pool.
    along : {"flops", "params", "tokens", "ptpp"}
        Quantity that the table is cut along; FLOPs are 6 N D.
    cuts : sequence of float, optional
        Rows up to each are fitted, those beyond are forecast; by default at most five of the
        quantity's values, with at least 8 rows at two or more sizes before each and one after it.
    rivals : mapping of name to settings of `bayeslaw.fit`, optional
        Other models, such as ``{"plain": {"discrepancy": "none"}}``; with a key ``law``, of
        another law.
    seed : int
        Of the fits and the forecasts.
    jobs : int
        Number of processes.
    **settings
        Of `bayeslaw.fit`, for the law and its rivals.

    Returns
    -------
    Backtest
        Fits that did not converge are scored, and marked in `gate`.

    Raises
    ------
    TableError
        If the quantity is missing, or no cut leaves enough rows; `BayeslawError` if `along` is
        unknown.
    """
    require_table(table)
    progress = settings.pop("progress", None)  # of the backtest, not of each fit
    if along not in SPLIT_COLUMNS:
        raise BayeslawError(unknown("quantity", along, SPLIT_COLUMNS))
    if along != "flops" and along not in table.frame:
        raise TableError(f"{table.name}: no column {along!r} to cut along.")
    value = amount(table.frame, along)
    name = law if isinstance(law, str) else law.name
    models: dict[str, dict[str, Any]] = {name: {}}
    for label, rival in (rivals or {}).items():
        models[label] = dict(rival)
    laws: list[Law] = []
    for of_model in models.values():
        name_or_law = of_model.get("law", law)
        for member in member_laws(name_or_law) or [name_or_law]:
            laws.append(load_law(member))
    for of_model in models.values():
        _check_settings(settings | of_model, law, table, seed)
    if cuts is None:
        cuts = choose_cuts(table, value, laws)
    cuts = [float(cut) for cut in cuts]
    for cut in cuts:
        if not value.min() <= cut < value.max():
            raise TableError(
                f"{table.name}: the cut {cut:g} leaves no row to fit or to forecast."
            )
        check_cut(table, value <= cut, laws)
    calls = []
    for cut in cuts:
        for label, of_model in models.items():
            merged = settings | of_model
            arguments = (table, value.to_numpy(), cut, label, law, merged, seed)
            calls.append((_at_cut, arguments))
    frames = results(calls, jobs, "fits and forecasts", progress)
    rows = pd.concat(frames, ignore_index=True)
    return Backtest(rows, along, tuple(models), table.name)


def _check_settings(
    settings: Mapping[str, Any], law: str | Law, table: LossTable, seed: int
) -> None:
    """Raise what a fit of a model would raise of its settings, before any model is fitted."""
    arguments = dict(settings)
    name_or_law = arguments.pop("law", law)
    checked = make_settings(cast(FitKeywords, arguments), seed)
    with warnings.catch_warnings():
        # The fits give the same warnings.
        warnings.simplefilter("ignore")
        for member in member_laws(name_or_law) or [name_or_law]:
            specify(member, table, checked)


def check_cut(table: LossTable, before: pd.Series, laws: Sequence[Law]) -> None:
    """Raise `TableError` if a law fitted to the rows before a cut holds what varies later."""
    for law in laws:
        fitted = law_for(law, table.frame[before], table.name)
        with_held(fitted, table.frame[~before], table.name)


def choose_cuts(
    table: LossTable, value: pd.Series, laws: Sequence[Law] = ()
) -> list[float]:
    """At most `MAX_CUTS` values of a quantity with enough rows before and after them.

    The rows before one vary in all that the laws need.
    """
    levels = np.unique(value)[:-1]
    rows_before: dict[float, int] = {}
    sizes_before: dict[float, int] = {}
    # Of a ladder in FLOPs, each budget is a size.
    sizes_or_budgets = table.frame.get("params", value)
    for cut in levels:
        sizes = sizes_or_budgets[value <= cut]
        rows_before[cut] = len(sizes)
        sizes_before[cut] = sizes.nunique()
    # One size cannot tell N from D; a table that never has two is cut all the same.
    fewest_sizes = min(2, max(sizes_before.values(), default=0))
    enough = []
    for cut in levels:
        if rows_before[cut] >= MIN_CUT_ROWS and sizes_before[cut] >= fewest_sizes:
            enough.append(cut)
    if not enough:
        raise TableError(
            f"{table.name}: no cut has {MIN_CUT_ROWS} rows before it and one after; "
            "give cuts= (--cuts)."
        )
    fitting = []
    for cut in enough:
        with suppress(TableError):
            check_cut(table, value <= cut, laws)
            fitting.append(cut)
    # If the laws can be fitted at none, `backtest` raises the error of the first.
    enough = fitting or enough
    count = min(MAX_CUTS, len(enough))
    spread = np.linspace(0, len(enough) - 1, count).round().astype(int)
    return [float(enough[i]) for i in spread]


def _at_cut(
    table: LossTable,
    value: Floats,
    cut: float,
    label: str,
    law: str | Law,
    settings: Mapping[str, Any],
    seed: int,
) -> pd.DataFrame:
    """Rows of a `Backtest`: those after a cut, forecast by a model fitted to those before it."""
    arguments = dict(settings)
    name_or_law = arguments.pop("law", law)
    fitted = value <= cut
    later = value > cut
    train = subset(table, fitted)
    test = subset(table, later)
    fitting = fit if member_laws(name_or_law) is None else fit_pool
    posterior = fitting(name_or_law, train, seed=seed, **arguments)
    posterior = posterior.accepted({"unconverged", "beyond-evidence"})
    fc = posterior.forecast(test, seed=seed)
    bands: pd.DataFrame = fc.to_frame(BAND_LEVELS)
    covariates = dict.fromkeys((*COVARIATES, *posterior.columns))
    columns = [name for name in covariates if name in table.frame]
    columns += ["loss", "median"]
    columns += [f"inside_{100 * level:g}" for level in BAND_LEVELS]
    columns += ["lower_90", "upper_90"]
    return bands[columns].assign(
        cut=cut,
        model=label,
        decades=np.log10(value[later] / cut),
        error=np.log(bands["median"] / bands["loss"]),
        crps=crps(np.log(fc.samples), np.log(test.loss)),
        gate="; ".join(posterior.convergence.failures) or "passed",
        width_90=np.log(bands["upper_90"] / bands["lower_90"]),
    )
