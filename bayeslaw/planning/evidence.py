"""How far a planned run lies from the fitted rows, and whether that is beyond the evidence."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from scipy.interpolate import RegularGridInterpolator

from bayeslaw.checks.extrapolation import judge_extrapolation
from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import Acceptance
from bayeslaw.common.formatting import listed
from bayeslaw.inference.pools import Fit
from bayeslaw.laws.steps import UNIQUE
from bayeslaw.planning.planned_run import PlannedRun
from bayeslaw.tables.hull import EPOCHS, epochs, farthest, locate
from bayeslaw.tables.table import grid
from bayeslaw.tables.validation import COVARIATES
from bayeslaw.tables.verdict import MEASURED_DECADES, Verdict, of_measured, worst

HULL_NODES = 31
"""Budgets, and replay ratios, at which the distance from the fitted rows is computed."""


def verdict_on_run(
    fits: Mapping[str, Fit], row: pd.DataFrame, *, refuse: bool = False
) -> tuple[Verdict, tuple[str, ...]]:
    """How a planned run lies outside the training rows of the fits, as `bayeslaw.check` says it.

    Returns the worst verdict, and everything else that the check says of the distance: each text
    once, with the names of its fits. With `refuse=True` the level can be "refuse": where a fit
    that has rows is not accepted so far out. A run of infinite tokens, which has no budget, is
    not judged.
    """
    if np.isinf(row["tokens"]).any():
        return Verdict(row), ()
    with_rows = {name: fit for name, fit in fits.items() if fit.table is not None}
    verdicts: list[Verdict] = []
    names_by_text: dict[str, list[str]] = {}
    for name, fit in with_rows.items():
        verdict = fit.verdict(row)
        verdicts.append(verdict)
        for text in _words_of_check(fit, verdict):
            names_by_text.setdefault(text, []).append(name)
    accepts: frozenset[Acceptance] = frozenset(["beyond-evidence"])
    if refuse and with_rows:
        accepts = frozenset.intersection(*(fit.accepts for fit in with_rows.values()))
    outside = []
    for text, names in names_by_text.items():
        outside.append(f"{listed(names)}: {text}")
    return worst(verdicts).accepting(accepts), tuple(outside)


def _words_of_check(fit: Fit, verdict: Verdict) -> list[str]:
    """How far the rows of a verdict lie out, and what the check adds, without the verdict."""
    words = []
    for position, distance in farthest(verdict.positions).items():
        words.append(f"{position} by {distance}.")
    # The last words of the finding are the position.
    finding = judge_extrapolation(fit, verdict)
    for text in finding.words[:-1]:
        if text != verdict.words:
            words.append(text)
    return words


@dataclass(frozen=True)
class Farness:
    """How far runs lie from the rows of a fit, over the distance at which bands were measured.

    The values are that ratio less 1, so they are positive beyond the evidence. They are a function
    of log ATPP and replay ratio. The distance from the hull of the rows is convex in both, so that
    between the nodes, where it is interpolated, it is at least the exact one. The distance in
    epochs is not convex, and is computed for each run.

    Parameters
    ----------
    run : PlannedRun
    of_hull : callable
        The same from the distance to the hull alone.
    most_epochs : float
        Most epochs that every fit whose rows repeat data has rows of; infinite if none has any.
    """

    run: PlannedRun
    of_hull: RegularGridInterpolator
    most_epochs: float

    def __call__(self, candidates: tuple[Floats | float, ...]) -> Floats:
        """Of runs with some budgets, log ATPP, and replay ratios."""
        budgets, ratios = np.broadcast_arrays(*map(np.atleast_1d, candidates))
        far = np.asarray(self.of_hull((budgets, ratios)))
        if self.most_epochs < math.inf:
            rows = self.run.rows(budgets.ravel(), ratios.ravel())
            repeated = epochs(rows).to_numpy()
            decades = np.log10(repeated / self.most_epochs).reshape(far.shape)
            far_in_epochs = _excess(decades / MEASURED_DECADES[EPOCHS.name])
            far = np.maximum(far, far_in_epochs)
        return far

    def most_budgets(self, ratios: Floats) -> Floats:
        """Budgets, log ATPP, from which on data repeat too often; infinite if none has too many."""
        decades = MEASURED_DECADES[EPOCHS.name] * (1 - 1e-5)
        most_epochs = self.most_epochs * 10**decades
        unique_tokens = self.run.unique_tokens or math.inf
        fresh = most_epochs * unique_tokens / self.run.params
        with np.errstate(divide="ignore"):  # of pure replay no new data repeat
            return np.asarray(np.log(fresh) - np.log1p(-ratios))

    @cached_property
    def least(self) -> float:
        """Of all runs, at any budget and replay ratio."""
        budgets, ratios = self.of_hull.grid
        # Budgets between the nodes too: few of those near the rows may be within the epochs.
        tenths = np.arange(0, len(budgets) - 1 + 1e-9, 0.1)
        finer_budgets = np.interp(tenths, range(len(budgets)), budgets)
        return float(self((finer_budgets[:, None], ratios)).min())


def _excess(far: Floats) -> Floats:
    # A plan at the very edge is still inside after its tokens are rounded.
    return far - 1 + 1e-6


def farness(fits: Mapping[str, Fit], run: PlannedRun) -> Farness | None:
    """Whether runs lie beyond the evidence of a fit; None if no fit has a table."""
    tables: dict[object, tuple[pd.DataFrame, Sequence[str]]] = {}
    most_epochs = math.inf
    for fit in fits.values():
        if fit.table is None:
            continue
        frame = fit.table.frame
        rows = frame[[name for name in COVARIATES if name in frame]]
        rows = rows.drop_duplicates()
        # Rows of target and source are often the same, and are located once.
        tables[rows.to_numpy().tobytes(), fit.columns] = rows, fit.columns
        if run.unique_tokens is not None and UNIQUE in frame:
            most_epochs = min(most_epochs, float(epochs(frame).max()))
    if not tables:
        return None
    return Farness(run, _far_from_hull([*tables.values()], run), most_epochs)


def _far_from_hull(
    tables: Sequence[tuple[pd.DataFrame, Sequence[str]]], run: PlannedRun
) -> RegularGridInterpolator:
    """Distance from the rows of all tables, (log ATPP, replay ratio), as `Farness` has it.

    Of each table there are the rows, and the covariates in which they are compared.
    """
    fitted_tokens = pd.concat([rows["tokens"] for rows, _ in tables])
    # Beyond it all runs lie beyond the evidence.
    reach = 2 * 10 ** MEASURED_DECADES["tokens"]
    low = fitted_tokens.min() / reach
    high = fitted_tokens.max() * reach
    tokens = np.geomspace(low, high, HULL_NODES)
    ratios = np.linspace(0, 1, HULL_NODES)
    model = {"params": run.params}
    if run.ptpp is not None:
        model["ptpp"] = run.ptpp
    runs = grid(**model, tokens=tokens, replay=ratios)
    distances = []
    for rows, columns in tables:
        positions = locate(rows, runs, columns)
        distances.append(of_measured(positions, columns).max(axis=1))
    excess = _excess(np.max(distances, axis=0)).reshape(HULL_NODES, HULL_NODES)
    return RegularGridInterpolator(
        (np.log(tokens / run.params), ratios),
        excess,
        bounds_error=False,
        fill_value=None,
    )


def common_ranges(fits: Collection[Fit]) -> dict[str, tuple[float, float]]:
    """Ranges of params, ptpp, replay and ATPP that the training rows of every fit cover."""
    ranges: dict[str, tuple[float, float]] = {}
    for fit in fits:
        if fit.table is None:
            continue
        rows = fit.table.frame
        rows = rows.assign(atpp=rows["tokens"] / rows["params"])
        for name in ("params", "ptpp", "replay", "atpp"):
            if name not in rows:
                continue
            least, most = ranges.get(name, (-math.inf, math.inf))
            least = max(float(rows[name].min()), least)
            most = min(float(rows[name].max()), most)
            ranges[name] = (least, most)
    return ranges
