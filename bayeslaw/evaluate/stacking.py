"""Laws compared and averaged by what they predict for rows left out.

A score on rows left out ranks laws where the table is. Where the forecast lies beyond it, laws that
score alike can differ by far more than their bands, and the best can be the worst: no weight found
here knows that. What a stacked forecast adds is the spread between the laws.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.optimize import LinearConstraint, minimize

from bayeslaw.common.errors import LawError, TableError, unknown
from bayeslaw.evaluate.crossval import Elpd, cross_validate, loo, standard_error
from bayeslaw.evaluate.densities import Floats
from bayeslaw.evaluate.forecast import LEVELS, Forecast
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.table import LossTable

REPLICATES = 100
"""Of the Bayesian bootstrap of the weights."""
CAVEAT = (
    "These scores rank the laws on rows like those they were fitted to. They cannot rank "
    "extrapolation: beyond these rows read the spread between the laws, not the weights."
)


def stack(
    fits: Sequence[Posterior] | Mapping[str, Posterior], by: str = "loo", **settings: Any
) -> "Stack":
    """Weights of several fits to one table that predict what was left out best together.

    Parameters
    ----------
    fits : sequence or mapping of label to Posterior
    by : str
        ``"loo"`` for `loo`, or what `cross_validate` leaves out.
    settings
        For `cross_validate`.

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
    """Fits of several laws, scored on what was left out, and weighted.

    Parameters
    ----------
    fits : mapping of label to Posterior
    scores : mapping of label to Elpd
    """

    fits: Mapping[str, Posterior] = field(repr=False)
    scores: Mapping[str, Elpd]

    @property
    def weights(self) -> dict[str, float]:
        """Stacking weights, of sum 1."""
        return dict(zip(self.fits, map(float, stacking_weights(self._elpd)), strict=True))

    @property
    def _elpd(self) -> Floats:
        return np.stack([score.frame["elpd"].to_numpy() for score in self.scores.values()], 1)

    def to_frame(self, seed: int = 0) -> pd.DataFrame:
        """One row per law, the best first.

        `elpd` and `se`; `difference` to the best and `difference_se`; `weight`, and `weight_sd` by
        a Bayesian bootstrap over the groups left out.
        """
        elpd = self._elpd
        best = int(elpd.sum(0).argmax())
        groups = next(iter(self.scores.values())).frame["group"]
        names, index = np.unique(groups.astype(str), return_inverse=True)
        chances = np.random.default_rng(seed).dirichlet(np.ones(len(names)), REPLICATES)
        drawn = [stacking_weights(elpd, chance[index]) for chance in chances]
        away = pd.DataFrame(elpd - elpd[:, [best]])
        return pd.DataFrame(
            {
                "elpd": [score.total for score in self.scores.values()],
                "se": [score.se for score in self.scores.values()],
                "difference": away.sum().to_numpy(),
                "difference_se": [standard_error(away[i], groups) for i in away],
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
    ) -> "StackedForecast":
        """Mixture of the laws' forecasts; other arguments and errors as for `Posterior.forecast`.

        Each draw is of one law, for all rows; the laws' shares of the draws are their weights.

        Parameters
        ----------
        weights : mapping of label to float, optional
            Instead of the stacking weights, such as equal ones.
        """
        given = self.weights if weights is None else weights
        for name in given:
            if name not in self.fits:
                raise LawError(unknown("law in the stack", name, self.fits))
        least = 0.5 / min(fit.draws.sizes["draw"] for fit in self.fits.values())
        how: dict[str, Any] = {"kind": kind, "seed": seed, "allow_unconverged": allow_unconverged}
        parts = {n: self.fits[n].forecast(table, **how) for n, w in given.items() if w > least}
        share = np.array([given[name] for name in parts])
        share = share / share.sum()
        chains = min(part.draws.sizes["chain"] for part in parts.values())
        count = min(part.draws.sizes["draw"] for part in parts.values())
        edges = np.rint(np.cumsum(share) * count).astype(int)
        taken = []
        for (name, part), size in zip(parts.items(), np.diff(edges, prepend=0), strict=True):
            spaced = np.linspace(0, part.draws.sizes["draw"] - 1, size).astype(int)
            some = part.draws.isel(chain=slice(chains), draw=spaced)
            taken.append(
                some.drop_vars("draw", errors="ignore").assign_coords(law=("draw", [name] * size))
            )
        worst = [part for part in parts.values() if not part.convergence.ok]
        first = (worst or list(parts.values()))[0]
        return StackedForecast(
            draws=xr.concat(taken, "draw", coords="minimal", compat="override", join="override"),
            frame=first.frame,
            law=" + ".join(f"{w:.2f} {n}" for n, w in zip(parts, share, strict=True)),
            kind=kind,
            convergence=first.convergence,
            parts=parts,
            weights=dict(zip(parts, map(float, share), strict=True)),
        )


@dataclass(frozen=True)
class StackedForecast(Forecast):
    """A mixture of forecasts by several laws; a `Forecast` in all that uses one.

    Parameters
    ----------
    draws : DataArray
        As in `Forecast`; the coordinate `law` says which law a draw is of.
    parts : mapping of label to Forecast
        Of the laws that have weight.
    weights : mapping of label to float
    """

    parts: Mapping[str, Forecast] = field(repr=False)
    weights: Mapping[str, float]

    @property
    def between(self) -> Floats:
        """Spread between the laws: weighted sd of their medians per row, nats per token."""
        medians = np.stack([self.parts[name].median for name in self.weights])
        weights = np.array(list(self.weights.values()))[:, None]
        mean = (weights * medians).sum(0)
        return np.asarray(np.sqrt((weights * (medians - mean) ** 2).sum(0)))

    def to_frame(self, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """As of `Forecast`, and `between`, the spread between the laws."""
        return super().to_frame(levels).assign(between=self.between)


def stacking_weights(elpd: Floats, counts: Floats | None = None) -> Floats:
    """Weights of the mixture with the highest log density.

    Parameters
    ----------
    elpd : array, shape (units, laws)
        Log predictive densities.
    counts : array, shape (units,), optional
        How much each unit counts.

    Returns
    -------
    array, shape (laws,)
    """
    density = np.exp(elpd - elpd.max(1, keepdims=True))
    share = np.full(len(elpd), 1 / len(elpd)) if counts is None else counts / counts.sum()
    laws = elpd.shape[1]

    def down(weights: Any) -> Any:
        mixed = np.maximum(density @ weights, 1e-300)
        return -share @ np.log(mixed), -(share / mixed) @ density

    best = minimize(
        down,
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
    plain = [fit.law.name for fit in fits]
    found: dict[str, Posterior] = {}
    for fit in fits:
        name = fit.law.name
        name += f" ({fit.spec.discrepancy.kind})" if plain.count(name) > 1 else ""
        found[name if name not in found else f"{name} #{len(found) + 1}"] = fit
    return found
