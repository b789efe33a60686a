"""Stacking: laws weighted by their log predictive density of left-out rows.

Cross-validation scores laws within the range of the table. In an extrapolation, laws with similar
scores can differ by far more than their bands, and the law with the best score can have the largest
error. The weights do not account for that. A stacked forecast shows the spread between the laws.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Unpack

import numpy as np
import pandas as pd
from scipy.optimize import LinearConstraint, minimize

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import LawError, TableError, unknown
from bayeslaw.evaluate.crossval import Elpd, LeaveOutSettings, cross_validate, loo, standard_error
from bayeslaw.inference.pools import StackedForecast, mixture
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.table import LossTable

REPLICATES = 100
"""Number of replicates of the Bayesian bootstrap of the weights."""
CAVEAT = (
    "These scores rank the laws within the range of the table. They cannot rank extrapolation: "
    "beyond the table, use the spread between the laws, not the weights."
)


class CrossValidationSettings(LeaveOutSettings, total=False):
    """Arguments of `cross_validate`."""

    folds: int
    seed: int


def stack(
    fits: Sequence[Posterior] | Mapping[str, Posterior],
    by: str = "loo",
    **settings: Unpack[CrossValidationSettings],
) -> "Stack":
    """Stack several fits to one table by their log predictive density of left-out rows.

    Parameters
    ----------
    fits : sequence of Posterior, or mapping of label to Posterior
    by : str
        ``"loo"`` for `loo`, otherwise the argument `by` of `cross_validate`.
    **settings
        Other arguments of `cross_validate`.

    Returns
    -------
    Stack

    Raises
    ------
    TableError
        If the fits are of different tables.

    References
    ----------
    .. [1] Yao, Vehtari, Simpson and Gelman, Using stacking to average Bayesian predictive
       distributions. Bayesian Analysis 13 (2018).
    """
    named = fits if isinstance(fits, Mapping) else _labelled(fits)
    if len({fit.table.sha256 for fit in named.values()}) > 1:
        raise TableError("stack: the fits are of different tables; fit all laws to the same rows.")
    scores = {
        name: loo(fit) if by == "loo" else cross_validate(fit, by, **settings)
        for name, fit in named.items()
    }
    return Stack(dict(named), scores)


@dataclass(frozen=True)
class Stack:
    """Fits of several laws, with their cross-validation scores and stacking weights.

    Parameters
    ----------
    fits : mapping of label to Posterior
    scores : mapping of label to Elpd
    """

    fits: Mapping[str, Posterior] = field(repr=False)
    scores: Mapping[str, Elpd]

    @property
    def weights(self) -> dict[str, float]:
        """Stacking weight of each law; their sum is 1."""
        return dict(zip(self.fits, map(float, stacking_weights(self._elpd)), strict=True))

    @property
    def _elpd(self) -> Floats:
        return np.stack([score.frame["elpd"].to_numpy() for score in self.scores.values()], 1)

    def to_frame(self, seed: int = 0) -> pd.DataFrame:
        """Comparison of the laws.

        Parameters
        ----------
        seed : int
            Seed of the bootstrap.

        Returns
        -------
        DataFrame
            One row per law, the best first: `elpd` and its standard error `se`; `difference` to the
            best law and `difference_se`; `weight`, and `weight_sd` by a Bayesian bootstrap over the
            groups that were left out.
        """
        elpd = self._elpd
        best = int(elpd.sum(0).argmax())
        groups = next(iter(self.scores.values())).frame["group"]
        names, index = np.unique(groups.astype(str), return_inverse=True)
        counts = np.random.default_rng(seed).dirichlet(np.ones(len(names)), REPLICATES)
        drawn = [stacking_weights(elpd, count[index]) for count in counts]
        difference = pd.DataFrame(elpd - elpd[:, [best]])
        return pd.DataFrame(
            {
                "elpd": [score.total for score in self.scores.values()],
                "se": [score.se for score in self.scores.values()],
                "difference": difference.sum().to_numpy(),
                "difference_se": [standard_error(difference[i], groups) for i in difference],
                "weight": list(self.weights.values()),
                "weight_sd": np.std(drawn, axis=0),
            },
            index=pd.Index(self.fits, name="law"),
        ).sort_values("elpd", ascending=False)

    def __str__(self) -> str:
        by = next(iter(self.scores.values())).by
        notes = [f"{name}: {note}" for name, s in self.scores.items() for note in s.notes]
        return "\n".join(
            [f"left out by {by}", self.to_frame().round(3).to_string(), *notes, CAVEAT]
        )

    def forecast(
        self,
        table: LossTable | pd.DataFrame,
        *,
        weights: Mapping[str, float] | None = None,
        kind: str = "predictive",
        seed: int = 0,
        allow_unconverged: bool = False,
    ) -> StackedForecast:
        """Forecast by the mixture of the laws.

        Each draw comes from one law, for all rows. The fraction of draws from a law is its weight.

        Parameters
        ----------
        table : LossTable or DataFrame
            Rows with the covariates of all laws; a loss is not needed.
        weights : mapping of label to float, optional
            Weights in place of the stacking weights, such as equal ones.
        kind : {"predictive", "latent"}
        seed : int
            Seed of the predictive noise.
        allow_unconverged : bool
            Whether to use posteriors that failed the convergence checks.

        Returns
        -------
        StackedForecast

        Raises
        ------
        LawError
            If a label or the kind is unknown, or no law has weight.
        NotConverged
            If a law with weight failed the convergence checks and `allow_unconverged` is false.
        """
        given = self.weights if weights is None else weights
        for name in given:
            if name not in self.fits:
                raise LawError(unknown("law in the stack", name, self.fits))
        return mixture(self.fits, given, table, kind=kind, seed=seed, allow=allow_unconverged)


def stacking_weights(elpd: Floats, counts: Floats | None = None) -> Floats:
    """Weights of the mixture with the highest log predictive density, shape (laws,).

    `elpd` are log predictive densities, shape (units, laws), and `counts` relative weights of the
    units, which are equal by default.

    Examples
    --------
    A law that is better in every unit has all the weight:

    >>> stacking_weights(np.array([[0.0, -1.0], [0.0, -2.0]])).round(6).tolist()
    [1.0, 0.0]
    """
    density = np.exp(elpd - elpd.max(1, keepdims=True))
    share = np.full(len(elpd), 1 / len(elpd)) if counts is None else counts / counts.sum()
    laws = elpd.shape[1]

    def negative_log_score(weights: Floats) -> tuple[float, Floats]:
        mixed = np.maximum(density @ weights, 1e-300)
        return float(-share @ np.log(mixed)), -(share / mixed) @ density

    best = minimize(
        negative_log_score,
        np.full(laws, 1 / laws),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * laws,
        constraints=LinearConstraint(np.ones(laws), 1, 1),
        options={"ftol": 1e-12, "maxiter": 1000},
    )
    weights = np.clip(best.x, 0, 1)
    return np.asarray(weights / weights.sum())


def _labelled(fits: Sequence[Posterior]) -> dict[str, Posterior]:
    """Fits by the name of their law, with the discrepancy or a number if names repeat."""
    plain = [fit.law.name for fit in fits]
    found: dict[str, Posterior] = {}
    for fit in fits:
        name = fit.law.name
        name += f" ({fit.spec.discrepancy.kind})" if plain.count(name) > 1 else ""
        found[name if name not in found else f"{name} #{len(found) + 1}"] = fit
    return found
