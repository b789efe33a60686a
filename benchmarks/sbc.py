"""Simulation-based calibration (SBC) of the posteriors.

Parameters and random effects are drawn from the prior, a table is simulated from each draw, and the
law is fitted to it and forecasts further rows. If the computation is correct, the rank of the true
value among the posterior draws is uniform (Talts et al. 2018), and so is that of a new measured
loss among the draws of its forecast. The ranked quantities are the parameters, the losses of rows
in new groups, and the joint log likelihood, which detects errors that the parameters alone do not
(Modrák et al. 2023).

References
----------
.. [1] Talts, Betancourt, Simpson, Vehtari and Gelman, Validating Bayesian inference algorithms
   with simulation-based calibration. arXiv 1804.06788 (2018).
.. [2] Modrák, Moon, Kim, Bürkner, Huurre, Faltejsková, Gelman and Vehtari, Simulation-based
   calibration checking for Bayesian computation. Bayesian Analysis (2023).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Floats
from bayeslaw.common.progress import each
from bayeslaw.inference.fitting import fit_spec
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import log_likelihood
from bayeslaw.inference.settings import FitKeywords, make_settings, shows_settings
from bayeslaw.inference.specification import specify
from bayeslaw.laws.departure import Departure
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.model import prior
from bayeslaw.model.spec import Spec
from bayeslaw.model.training import make_data
from bayeslaw.tables.table import LossTable, check_role, grid

# Rows to fit, one per combination of the law's covariates; labelled by base and run.
DESIGN: Mapping[str, list[float]] = {
    "params": [1e8, 5e8, 2e9, 8e9],
    "tokens": [1e9, 1e10, 1e11],
    "replay": [0.1, 0.5],
    "ptpp": [15, 60],
}
# Rows to forecast: of another size, base and run, and outside the design in every covariate.
NEW_ROWS: Mapping[str, list[float]] = {
    "params": [3e10],
    "tokens": [1e10, 1e12],
    "replay": [0.3],
    "ptpp": [279],
}
FURTHER = 1.3  # tokens of a later row of a fitted run, as a multiple of those before it
MOST_RHAT = 1.05  # a posterior with a larger R-hat, or none since a chain did not move, is left out


@dataclass(frozen=True)
class Calibration:
    """Ranks of truths among posterior draws.

    Parameters
    ----------
    ranks : DataFrame
        Rank of each true value as a fraction in (0, 1): one row per simulation, one column per
        quantity. The quantities are the sampled coordinates, ``log likelihood``, and among draws
        of their forecasts ``loss 0`` and ``loss 1``, losses of a new run, ``loss 2`` and
        ``loss 3``, later losses of a fitted run, and ``change``, the log of these two's ratio.
    failed : int
        Number of simulations that are left out, since R-hat of their posterior exceeds 1.05.
    divergent : sequence of float
        Share of divergent transitions of each simulation's posterior.
    """

    ranks: pd.DataFrame
    failed: int
    divergent: Sequence[float]

    def envelope(self, level: float = 0.95, seed: int = 0) -> pd.DataFrame:
        """Test of uniformity: the ECDF of the ranks against its simultaneous envelope.

        With probability `level` the ECDF of uniform ranks lies inside; `seed` is of the simulated
        envelope. Of each quantity: `inside`; `excess`, the largest distance outside; `mean` of the
        ranks, 1/2 if the posterior is unbiased; `spread`, the variance of the ranks over that of
        uniform ones, above 1 if posteriors are too narrow and below 1 if they are too wide.
        """
        from arviz_stats.ecdf_utils import ecdf_pit

        rows = {}
        for name, ranks in self.ranks.items():
            rng = np.random.default_rng(seed)
            _, ecdf, low, high = ecdf_pit(ranks.to_numpy(), level, 2000, rng=rng)
            excess = float(np.max(np.maximum(low - ecdf, ecdf - high)))
            # The variance of uniform ranks is 1/12.
            rows[name] = (excess <= 0, max(excess, 0.0), ranks.mean(), 12 * ranks.var())
        columns = ["inside", "excess", "mean", "spread"]
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


@shows_settings()
def calibrate(
    law: str | Path | Law,
    *,
    simulations: int = 100,
    role: str = "target",
    seed: int = 0,
    fault: Mapping[str, float] | None = None,
    **settings: Unpack[FitKeywords],
) -> Calibration:
    """Simulation-based calibration of a law and model, through `fit` and `forecast`.

    Parameters
    ----------
    law
        As for `bayeslaw.fit`.
    simulations : int
        Number of simulated tables.
    role : {"target", "source"}
        Whether the simulated losses are of the domain adapted to, or of the one pre-trained on.
    seed : int
        The same seed gives the same ranks.
    fault : mapping of quantity to float, optional
        Factors by which posterior draws are multiplied: a deliberate error to test that the
        calibration finds it.
    **settings
        Of `bayeslaw.fit`.
    """
    law = load_law(law)
    check_role(role)
    chosen = make_settings(settings, seed)
    design, ahead = (
        _labelled(law, DESIGN, "fitted", role),
        _labelled(law, NEW_ROWS, "new", role),
    )
    # Later rows of the first run: once and twice beyond its last tokens.
    last = design[design["run"] == design["run"].iloc[0]].nlargest(1, "tokens")
    later = [last.assign(tokens=FURTHER**k * last["tokens"]) for k in (1, 2)]
    ahead = pd.concat([ahead, *later], ignore_index=True)
    blank = _table(design, 1.0)
    spec = specify(law, blank, chosen)
    if spec.discrepancy.exact > 0:
        # Ranks are uniform for one model. Rows do not change the weights of a mixture of two.
        spec = replace(spec, discrepancy=replace(spec.discrepancy, exact=0.0))
    truth, losses = _prior(spec, blank, ahead, simulations, seed)
    rng = np.random.default_rng([seed, 1])
    ranks, divergent = [], []
    for i in each(range(simulations), "simulations", chosen.progress):
        fitted, further = np.split(losses[i], [len(design)])
        if not (np.isfinite(losses[i]).all() and (losses[i] > 0).all()):
            continue
        fit = fit_spec(
            spec, _table(design, fitted), replace(chosen, seed=chosen.seed + i)
        )
        if not fit.convergence.rhat <= MOST_RHAT:
            continue
        used = fit.accepted({"unconverged", "beyond-evidence"})
        drawn = _quantities(fit, used.forecast(ahead, seed=seed + i).samples)
        true = _quantities(replace(fit, draws=truth.isel(draw=[i])), further[None])
        # Ranks assume independent draws: take about as many as the effective sample size.
        apart = math.ceil(fit.count / max(fit.convergence.ess_bulk, 1))
        factors = fault or {}
        ranks.append(
            {
                name: _rank(factors.get(name, 1.0) * draws[::apart], true[name], rng)
                for name, draws in drawn.items()
            }
        )
        divergent.append(fit.convergence.divergences / fit.convergence.transitions)
    return Calibration(pd.DataFrame(ranks), simulations - len(ranks), divergent)


def _rank(draws: Floats, truth: Floats, rng: np.random.Generator) -> float:
    return float((np.sum(draws < truth) + rng.random()) / (len(draws) + 1))


def _quantities(fit: Posterior, ahead: Floats) -> dict[str, Floats]:
    """What is ranked, of each draw: `ahead` has the losses of the rows to forecast."""
    quantities = {name: value[:, 0] for name, value in fit.values().items()}
    quantities["log likelihood"] = log_likelihood(fit).sum(axis=1)
    quantities |= {f"loss {k}": losses for k, losses in enumerate(ahead.T)}
    return quantities | {"change": np.log(quantities["loss 3"] / quantities["loss 2"])}


def _labelled(
    law: Law, values: Mapping[str, list[float]], label: str, role: str
) -> pd.DataFrame:
    """A grid of the law's covariates; rows of one size and stage have one base."""
    rows = grid(**{name: values[name] for name in law.columns if name in values})
    base = [name for name in ("params", "ptpp") if name in rows]
    run = [name for name in rows if name != "tokens"]
    rows["base"] = label + rows.groupby(base).ngroup().astype(str)
    rows["run"] = label + rows.groupby(run).ngroup().astype(str)
    rows["role"] = role
    if law.step(Departure):
        tokens, number = rows["params"] * rows["ptpp"], rows.groupby(base).ngroup()
        expected = 1.5 + 90 / rows["params"] ** 0.3 + 300 / tokens**0.33
        # Bases differ by a per cent, in no order.
        rows["base_loss"] = expected * np.exp(0.01 * np.sin(7.0 * number))
        rows["start_loss"] = 4.5 + 0.1 * np.cos(5.0 * number)
        if role == "source":  # both are the loss on the domain pre-trained on
            rows["start_loss"] = rows["base_loss"]
    return rows


def _table(rows: pd.DataFrame, loss: Floats | float) -> LossTable:
    return LossTable(rows.assign(loss=loss, synthetic=True), "synthetic")


def _prior(
    spec: Spec, table: LossTable, ahead: pd.DataFrame, count: int, seed: int
) -> tuple[xr.Dataset, Floats]:
    """Draws from the prior, as one chain of a posterior, and losses of all rows, (count, rows)."""
    rows = pd.concat([table.frame, ahead.assign(loss=1.0)], ignore_index=True)
    whole, data = replace(table, frame=rows), make_data(spec, table)
    # The knots of the fitted rows, and others as far as the rows ahead reach; groups of all rows.
    extended = make_data(replace(spec, law=data.law), whole, at=data.at)
    values, log_loss = prior.draw(extended, count, np.random.default_rng([seed, 2]))
    draws: dict[str, tuple[tuple[str, ...], Floats]] = {}
    coords: dict[str, Any] = {**extended.groups}
    for name, value in values.items():
        if name.endswith("_effect"):
            draws[name] = (("chain", "draw", name.removesuffix("_effect")), value[None])
        elif value.ndim == 3:
            draws[name] = (("chain", "draw", f"{name}_knot"), value[None, :, 0])
        else:
            draws[name] = (("chain", "draw"), value[None, :, 0])
    for fitted, longer in zip(data.law.walks, extended.law.walks, strict=True):
        assert fitted.knots
        assert longer.knots
        among = np.isin(longer.knots.positions, fitted.knots.positions)
        dims, steps = draws[fitted.steps]
        draws[fitted.steps] = (dims, steps[..., among])
        coords[f"{fitted.steps}_knot"] = fitted.knots.positions
    return xr.Dataset(draws, coords), np.exp(log_loss)
