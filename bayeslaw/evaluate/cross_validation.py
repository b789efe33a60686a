"""Cross-validation: log predictive density of left-out rows.

It scores laws within the range of the table. In an extrapolation, laws with similar scores can
differ by far more than their bands, and the law with the best score can have the largest error.
"""

import warnings
from dataclasses import dataclass, field, replace
from typing import TypedDict, Unpack

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import logsumexp

from bayeslaw.common.arrays import Bools, Floats, Ints, Strings
from bayeslaw.common.errors import TableError, unknown
from bayeslaw.common.progress import each
from bayeslaw.common.shown import Note, Showing, Shown
from bayeslaw.inference.fitting import fit_spec
from bayeslaw.inference.pools import of_one_law
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import (
    averaging,
    density,
    group_effects,
    residual,
    residual_draws,
    unit_likelihood,
)
from bayeslaw.inference.sampling import RUN_SETTINGS, Settings, check_names
from bayeslaw.model import effects
from bayeslaw.model.noise import OBSERVED
from bayeslaw.tables.table import LossTable, subset
from bayeslaw.tables.validation import row_numbers

FOLDS = 10


class LeaveOutSettings(TypedDict, total=False):
    chains: int
    draws: int | None
    tune: int
    target_accept: float
    retry: bool


@dataclass(frozen=True)
class Elpd(Showing):
    """Expected log predictive density (elpd) of left-out rows, nats; higher is better.

    Parameters
    ----------
    frame : DataFrame
        One row per unit: `elpd`, and `group`, which names the rows that are left out together.
    by : str
        Unit that is left out: ``"row"``, ``"run"`` or a column.
    notes : tuple of str
        Warnings about the estimate: folds that did not converge, large Pareto k.
    good_k : float
        Largest Pareto k at which `loo` is reliable with this number of draws.
    """

    frame: pd.DataFrame = field(repr=False)
    by: str
    notes: tuple[str, ...] = ()
    good_k: float = np.nan

    @property
    def total(self) -> float:
        """Sum over units, nats."""
        return float(self.frame["elpd"].sum())

    @property
    def se(self) -> float:
        """Standard error of the total, from the variance between groups."""
        sums = self.frame["elpd"].groupby(self.frame["group"].to_numpy()).sum()
        return float(np.sqrt(len(sums)) * sums.std())

    @property
    def reliable(self) -> Bools:
        """Units whose Pareto k is small enough; the others need a refit without the unit."""
        return (self.frame["pareto_k"] <= self.good_k).to_numpy()

    @property
    def unreliable(self) -> int:
        """Number of units whose Pareto k is too large."""
        return int((~self.reliable).sum())

    def uniformity(self) -> float:
        """P-value of the hypothesis that the PIT values of the reliable units are uniform."""
        from arviz_stats.base import array_stats

        pit = self.frame["pit"].to_numpy()[self.reliable]
        return float(array_stats.uniformity_test(pit)[0]) if len(pit) > 1 else np.nan

    def shown(self) -> Shown:
        """The total with its standard error, and the notes."""
        title = (
            f"elpd {self.total:.1f} ± {self.se:.1f} nats: {len(self.frame)} left out by {self.by}"
        )
        return Shown(title, [Note(f"Note: {note}.", "caution") for note in self.notes])


def loo(fit: Posterior, seed: int = 0) -> Elpd:
    """Leave-one-out cross-validation by Pareto-smoothed importance sampling (PSIS-LOO).

    Leaves out each run with all its rows, or each row if runs do not repeat in the table. Random
    effects whose group is the left-out run or row are integrated out; that of a base has its
    posterior from the other runs of the base. The estimate is unreliable where Pareto k is large,
    which `notes` report; use `cross_validate` then.

    Parameters
    ----------
    fit : Posterior
    seed : int
        Of the predictive noise of the PIT values.

    Returns
    -------
    Elpd
        One unit per run or row, with the columns `pit`, the predictive probability that its mean
        log loss is below the measured one, and `pareto_k`.

    References
    ----------
    .. [1] Vehtari, Gelman and Gabry, Practical Bayesian model evaluation using leave-one-out
       cross-validation and WAIC. Statistics and Computing 27 (2017).
    """
    import arviz_stats as azs

    fit = of_one_law(fit, "loo")
    frame = fit.table.frame.copy()
    unit = "run" if "run" in frame and frame["run"].dropna().duplicated().any() else "row"
    labels, index = np.arange(len(frame)).astype(str), np.arange(len(frame))
    if unit == "run":
        labels, index = np.unique(effects.labels(frame, "run"), return_inverse=True)
    density, integrated = unit_likelihood(fit, index)
    if unit == "run":
        integrated["run"] = np.ones(len(frame), bool)
    for level, rows in integrated.items():  # a left-out group is a new one
        of_rows = effects.labels(frame, level)
        fitted = fit.draws[level].values if level in fit.spec.effects else of_rows
        frame[effects.level(level).column] = np.where(
            rows, effects.renamed(of_rows, fitted.astype(str)), of_rows
        )
    drawn = residual_draws(fit, frame, np.random.default_rng(seed), training=True)
    excess = (drawn - residual(fit, fit.table)) @ averaging(index).T
    shape, dims = (fit.draws.sizes["chain"], -1, len(labels)), ("chain", "draw", "unit")
    tree = xr.DataTree.from_dict(
        {
            "posterior": fit.draws,
            "log_likelihood": xr.Dataset({OBSERVED: (dims, density.reshape(shape))}),
            # The measured unit mean is subtracted from the predicted one, draw by draw.
            "posterior_predictive": xr.Dataset({OBSERVED: (dims, excess.reshape(shape))}),
            "observed_data": xr.Dataset({OBSERVED: ("unit", np.zeros(len(labels)))}),
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of Pareto k, which the result reports
        psis = azs.loo(tree, pointwise=True)
    weights, k = (v.to_dataset(name=OBSERVED) for v in (psis.log_weights, psis.pareto_k))
    pit = azs.loo_pit(tree, log_weights=weights, pareto_k=k)[OBSERVED]
    columns = {"elpd": psis.elpd_i.values, "pit": pit.values, "pareto_k": psis.pareto_k.values}
    by_unit = pd.DataFrame(columns | {"group": labels}, index=pd.Index(labels, name=unit))
    estimate = Elpd(by_unit, unit, good_k=psis.good_k)
    if not estimate.unreliable:
        return estimate
    bad = f"Pareto k above {psis.good_k:.2g} for {estimate.unreliable} of {len(by_unit)} {unit}s"
    return replace(estimate, notes=(bad,))


def cross_validate(
    fit: Posterior,
    by: str = "run",
    *,
    folds: int = FOLDS,
    seed: int = 0,
    **settings: Unpack[LeaveOutSettings],
) -> Elpd:
    """K-fold cross-validation: leave out groups of rows and refit the law without them.

    Parameters
    ----------
    fit : Posterior
        The refits have its law, priors, likelihood and sampler settings.
    by : str
        Column whose rows of one value are left out together: ``"run"``, ``"base"``, ``"params"``,
        ``"ptpp"``; or ``"row"``.
    folds : int
        Largest number of refits. If there are more groups, several are left out at a time.
    seed : int
        Seed of the assignment to folds and of the random effects of left-out groups.
    **settings
        Sampler settings that differ from those of `fit`, such as ``draws=500``, and ``retry``.

    Raises
    ------
    TableError
        If the table has no such column, or the law cannot be fitted without one of the groups. To
        leave out a stage, the table needs three of them.
    FitError
        If a setting is unknown.
    """
    fit = of_one_law(fit, "cross_validate")
    table, spec, rng = fit.table, fit.spec, np.random.default_rng(seed)
    names, index = _groups(table, by)
    # Folds of equal numbers of groups, whose rows stay together.
    fold = rng.permutation(np.arange(len(names)) % min(folds, len(names)))[index]
    check_names(settings, LeaveOutSettings.__annotations__)
    of_fit = {name: fit.settings[name] for name in RUN_SETTINGS if name in fit.settings}
    chosen = Settings(**{**of_fit, **settings})
    elpd, notes = np.empty(len(table)), []
    for i in each(range(fold.max() + 1), "folds"):
        out = fold == i
        train, test = subset(table, ~out), subset(table, out)
        what = ", ".join(sorted({str(names[j]) for j in index[out]}))
        try:
            refit = fit_spec(spec, train, chosen)
        except TableError as error:
            raise TableError(f"without {by} {what}: {error}") from None
        density = new_likelihood(refit, test, rng)
        elpd[out] = logsumexp(density, axis=0) - np.log(len(density))
        if not refit.convergence.ok:
            notes.append(f"without {what}: {'; '.join(refit.convergence.failures)}")
    return Elpd(pd.DataFrame({"elpd": elpd, "group": names[index]}), by, tuple(notes))


def new_likelihood(fit: Posterior, table: LossTable, rng: np.random.Generator) -> Floats:
    """Log density of new log losses; new groups draw their effects; shape (draws, rows)."""
    return density(fit, table.frame, residual(fit, table) - group_effects(fit, table.frame, rng))


def _groups(table: LossTable, by: str) -> tuple[Ints | Floats | Strings, Ints]:
    """Labels of the groups by a column, and the group of each row."""
    if by == "row":
        return np.arange(len(table)), np.arange(len(table))
    if by not in table.frame:
        raise TableError(f"{table.name}: {unknown('column', by, [*table.frame, 'row'])}")
    if by in effects.GROUP_LEVELS:
        return np.unique(effects.labels(table.frame, by), return_inverse=True)
    values = table.frame[by]
    if (missing := values.isna()).any():
        raise TableError(
            f"{table.name}: column {by!r} is missing in {row_numbers(missing)}; fill it or "
            "leave out by='row'."
        )
    return np.unique(values.to_numpy(), return_inverse=True)
