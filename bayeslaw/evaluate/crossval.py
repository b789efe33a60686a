"""What was left out, scored by what the rest predicts for it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import logsumexp

from bayeslaw.common.errors import TableError, unknown
from bayeslaw.evaluate.densities import density, residual
from bayeslaw.evaluate.left_out import leave_out
from bayeslaw.evaluate.new_sizes import shared
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import random_effects as effects
from bayeslaw.tables.table import LossTable

type Floats = npt.NDArray[np.float64]

FOLDS = 10


@dataclass(frozen=True)
class Elpd:
    """Log predictive density of what was left out, nats; higher is better.

    Parameters
    ----------
    frame : DataFrame
        One row per unit: `elpd`, and `group`, what was left out with it.
    by : str
        What was left out together: ``"row"``, ``"run"`` or a column.
    notes : tuple of str
        What makes the estimate doubtful: folds that did not converge, large Pareto k.
    """

    frame: pd.DataFrame = field(repr=False)
    by: str
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """Sum over units."""
        return float(self.frame["elpd"].sum())

    @property
    def se(self) -> float:
        """Standard error of the total, from its scatter between groups."""
        return standard_error(self.frame["elpd"], self.frame["group"])


def loo(fit: Posterior) -> Elpd:
    """Leave out each run, or each row where runs do not repeat, by importance sampling (PSIS).

    A unit is a run with all its rows, its own effect integrated out. Where Pareto k is large, which
    `notes` say, use `cross_validate`.
    """
    found = leave_out(fit)
    frame = found.to_frame()[["elpd", "pareto_k"]].assign(group=found.labels)
    bad = f"Pareto k above {found.good_k:.2g} for {found.unreliable} of {len(frame)} {found.unit}s"
    return Elpd(frame, found.unit, (bad,) if found.unreliable else ())


def cross_validate(
    fit: Posterior, by: str = "run", *, folds: int = FOLDS, seed: int = 0, **settings: Any
) -> Elpd:
    """Leave out whole groups of rows and fit again without them.

    Parameters
    ----------
    fit : Posterior
        Its table is split; its law, priors, likelihood and sampler settings are used again.
    by : str
        Column whose values are left out together: ``"run"``, ``"base"``, ``"params"``, or
        ``"stage"`` for ``"ptpp"``; or ``"row"``.
    folds : int
        Most refits; with more groups than that, several are left out at a time, chosen by `seed`.
    seed : int
        Of the folds, and of the effects of groups that a refit has not seen.
    settings
        Sampler settings that differ from those of `fit`, such as ``draws=500``, and ``retry``.

    Returns
    -------
    Elpd
        A unit is a row; its group is what was left out with it.

    Raises
    ------
    TableError
        If the table has no such column, or the law cannot be fitted without one of the groups:
        leaving out a stage takes three of them.
    """
    from bayeslaw.inference.fitting import fit_spec

    table, spec, rng = fit.table, fit.spec, np.random.default_rng(seed)
    names, index = _groups(table, by)
    fold = rng.permutation(np.arange(len(names)) % min(folds, len(names)))[index]
    known = ("chains", "draws", "tune", "target_accept", "sampler", "seed")
    retry = settings.pop("retry", True)
    chosen: Any = {n: fit.settings[n] for n in known if n in fit.settings} | settings
    elpd, notes = np.empty(len(table)), []
    for i in range(fold.max() + 1):
        out = fold == i
        kept, left = (
            LossTable(table.frame[rows].reset_index(drop=True), table.baselines, table.name)
            for rows in (~out, out)
        )
        what = ", ".join(sorted({str(names[j]) for j in index[out]}))
        try:
            again = fit_spec(spec, kept, chosen, retry=retry)
        except TableError as error:
            raise TableError(f"without {by} {what}: {error}") from None
        density = new_likelihood(again, left, rng)
        elpd[out] = logsumexp(density, axis=0) - np.log(len(density))
        notes += [f"without {what}: {'; '.join(again.convergence.failures)}"] * (
            not again.convergence.ok
        )
    return Elpd(pd.DataFrame({"elpd": elpd, "group": names[index]}), by, tuple(notes))


def new_likelihood(fit: Posterior, table: LossTable, rng: np.random.Generator) -> Floats:
    """Log density of measured log losses given each draw, shape (draws, rows).

    The effects of sizes, bases and runs that were not fitted are drawn, one per draw and group.
    """
    return density(fit, table.frame, residual(fit, table) - shared(fit, table.frame, rng))


def _groups(table: LossTable, by: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.intp]]:
    """Names of the groups that a column makes, and the group of each row."""
    column = "ptpp" if by == "stage" and "stage" not in table.frame else by
    if by == "row":
        return np.arange(len(table)), np.arange(len(table))
    if column not in table.frame:
        raise TableError(
            f"{table.name}: {unknown('column', column, [*table.frame, 'row', 'stage'])}"
        )
    if column in effects.registered():
        return np.unique(effects.labels(table.frame, column), return_inverse=True)
    return np.unique(table.frame[column].to_numpy(), return_inverse=True)


def standard_error(values: pd.Series, groups: pd.Series) -> float:
    """Standard error of a sum, from its scatter between groups."""
    sums = values.groupby(groups.to_numpy()).sum()
    return float(np.sqrt(len(sums)) * sums.std())
