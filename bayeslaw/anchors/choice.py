"""Runs to buy next, in random order: their costs, and what is predicted after each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from bayeslaw.anchors.costs import COSTS, costs
from bayeslaw.anchors.prediction import candidate_rows, joint_gaussian
from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.formatting import count
from bayeslaw.common.shown import Block, Note, Showing, Shown, Table
from bayeslaw.inference.pools import Pool, with_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.compute import flops_of
from bayeslaw.tables.table import Rows
from bayeslaw.tables.units import check_units
from bayeslaw.tables.validation import COVARIATES

MOST_RUNS = 20
"""Most runs under a budget if `k` is not given."""


@dataclass(frozen=True)
class Anchors(Showing):
    """Runs to buy, in order, with the predicted effect of each.

    Parameters
    ----------
    picks : DataFrame
        One row per run: the covariates of its longest row, `run` if the candidates have it, `rows`,
        the number of rows measured; `flops`, its further cost, and `flops_total`; `sd`, the
        predicted posterior standard deviation of log loss after it, root mean square over targets.
    frame : DataFrame
        Rows to measure, those of one run together; the column `pick` counts the runs from 1.
    sd : array, shape (picks + 1, targets)
        Predicted posterior standard deviation of log loss before any run and after each.
    cost : str
    budget : float
        Infinite if none was given.
    seed : int
    """

    picks: pd.DataFrame
    frame: pd.DataFrame = field(repr=False)
    sd: Floats = field(repr=False)
    cost: str
    budget: float
    seed: int

    @property
    def flops(self) -> float:
        """Cost of all runs."""
        return float(self.picks["flops"].sum())

    @property
    def sd_now(self) -> float:
        """Standard deviation before any run, as `sd` of `picks`."""
        variances = self.sd[0] ** 2
        return float(np.sqrt(variances.mean()))

    def shown(self) -> Shown:
        """The runs in the order to buy them, with what is predicted after each."""
        picks = self.picks
        targets = self.sd.shape[1]
        noun = "target" if targets == 1 else "targets"
        unit = "FLOPs" if self.cost in COSTS else self.cost
        legend = (
            "sd: predicted posterior standard deviation of log loss in percent, root mean square "
            f"over {targets} {noun}."
        )
        blocks: list[Block] = [
            "drawn at random: no criterion gave better forecasts of measured losses; "
            f"seed {self.seed}",
            self._runs(unit),
            Note(legend, "quiet"),
        ]
        sized = "params" if "params" in picks else "flops"
        sizes = picks[sized].nunique()
        if sizes == 1 and len(picks) > 1:
            words = (
                "All of one size: these runs cannot show that the law is wrong about N."
            )
            blocks.append(Note(words, "caution"))
        checkpoints = len(self.frame) - len(picks)
        if checkpoints:
            blocks.append(
                f"{checkpoints} further rows are checkpoints of these runs, free (--out, --json)."
            )
        document = {
            "cost": self.cost,
            "budget": self.budget,
            "flops": self.flops,
            "targets": targets,
            "sd_now": self.sd_now,
            "picks": picks.to_dict("records"),
            "rows": self.frame.to_dict("records"),
        }
        within = f" of {self.budget:.3g}" if math.isfinite(self.budget) else ""
        cost = COSTS.get(self.cost, "cost by that column")
        title = f"{len(picks)} runs of {sizes} sizes: {self.flops:.3g}{within} {unit} ({cost})"
        return Shown(title, blocks, document)

    def _runs(self, unit: str) -> Table:
        """The runs in order, below the standard deviation before any."""
        picks = self.picks
        covariates = picks.columns[: picks.columns.get_loc("rows")]
        columns: dict[str, list[float | str]] = {}
        for name in covariates:
            written = picks[name].map(str if name == "run" else count)
            columns[name] = ["", *written]
        columns[unit] = ["", *picks["flops"].map("{:.2g}".format)]
        columns["total"] = ["", *picks["flops_total"].map("{:.2g}".format)]
        columns["sd"] = [self.sd_now, *picks["sd"]]
        numbers = range(1, len(picks) + 1)
        frame = pd.DataFrame(columns, pd.Index(["now", *numbers], dtype=object))
        return Table(frame, formats={"sd": percent_sd}, optional=("total",))


def percent_sd(value: float) -> str:
    """A standard deviation of log loss in percent, with three significant digits."""
    return f"{100 * value:#.3g} %".replace(". %", " %")


def choose_anchors(
    posterior: Posterior | Pool,
    candidates: Rows | pd.DataFrame,
    targets: Rows | pd.DataFrame,
    *,
    k: int | None = None,
    budget: float | None = None,
    cost: str = "flops",
    seed: int = 0,
) -> Anchors:
    """Draw the runs to buy next at random, and predict what they will tell.

    Parameters
    ----------
    posterior : Posterior or Pool
    candidates : LossTable or DataFrame
        Rows that could be measured. Rows with the same `run` are checkpoints of one run, which
        costs what its longest row costs, and have a common random effect. Rows with the same
        `base`, or without that column the same N and PTPP, have a common random effect of base.
    targets : LossTable or DataFrame
        Rows whose losses are to be forecast.
    k : int, optional
        Number of runs; with a `budget` the most, by default 20.
    budget : float, optional
        Most FLOPs for all runs together.
    cost : "flops", "adaptation", or a column of the candidates
        ``"flops"`` is 6 N D for each run and, for laws with `ptpp`, the pre-training of each base
        (6 N times N PTPP tokens), unless it is in the posterior's table, if only by a row with
        ``tokens = 0``. ``"adaptation"`` is 6 N D alone. A column has the costs in any unit.
    seed : int

    Returns
    -------
    Anchors

    Notes
    -----
    Predictions are those of a Gaussian with the posterior's covariances: approximate, since laws
    are not linear in their parameters. Candidates that were fitted are left out with a warning.

    Examples
    --------
    >>> fit = bl.fit("chinchilla", bl.example_table(), discrepancy="none", effects="none")
    >>> candidates = bl.grid(params=[5e8, 2e9], tokens=[1e10, 1e11])
    >>> found = bl.choose_anchors(fit, candidates, bl.grid(params=1e10, tokens=1e12), k=2)
    >>> found.picks["flops_total"].tolist() == found.picks["flops"].cumsum().tolist()
    True
    """
    if k is None and budget is None:
        raise BayeslawError(
            "say how many runs to choose (k=) or what they may cost (budget=)."
        )
    if k is not None and k < 1:
        raise BayeslawError("k and budget must be positive.")
    if budget is not None and not budget > 0:
        raise BayeslawError("k and budget must be positive.")
    with_draws(posterior, "choose_anchors").require_converged()
    frame = candidate_rows(posterior, candidates)
    price = costs(frame, posterior.columns, cost=cost, fitted=posterior.table)
    at_targets = posterior.rows(targets, "targets").frame
    check_units(at_targets, "targets", posterior.table.frame)
    most = budget or math.inf
    runs = price.buy(price.shuffled(seed), k or MOST_RUNS, most)
    if not runs:
        least = price.alone.min()
        raise BayeslawError(
            f"nothing to buy for {budget:.3g} FLOPs: the least costs {least:.3g}."
        )
    joint = joint_gaussian(posterior, frame, at_targets)
    variances = []
    spent = []
    for number in range(len(runs) + 1):
        bought = runs[:number]
        variances.append(joint.variances(np.isin(price.code, bought)))
        spent.append(price.total(bought))
    sd = np.sqrt(variances)
    rows = []
    for number, run in enumerate(runs, 1):
        rows.append(frame[price.code == run].assign(pick=number))
    picks = _longest_rows(rows, posterior.columns)
    picks["rows"] = [len(of_run) for of_run in rows]
    picks["flops"] = np.diff(spent)
    picks["flops_total"] = spent[1:]
    after_each = sd[1:] ** 2
    picks["sd"] = np.sqrt(after_each.mean(1))
    measured = pd.concat(rows, ignore_index=True)
    return Anchors(picks, measured, sd, cost, most, seed)


def _longest_rows(rows: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """The longest row of each run, with its label and covariates."""
    names = dict.fromkeys(("run", *COVARIATES, *columns))
    present = [name for name in names if name in rows[0]]
    longest = [of_run.loc[[flops_of(of_run).idxmax()], present] for of_run in rows]
    return pd.concat(longest, ignore_index=True)
