"""Simulation-based calibration (SBC) of the posteriors.

Parameters are drawn from the prior, a table is simulated from each draw, and the law is fitted to
it. If the computation is correct, the rank of the true value among the posterior draws is uniform
(Talts et al. 2018). The ranked quantities are the parameters, forecasts and the joint log
likelihood, which detects errors that the parameters alone do not (Modrák et al. 2023).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.defaults import DELTA, TARGET_ACCEPT
from bayeslaw.inference.convergence import diagnose
from bayeslaw.inference.sampling import sample
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.laws.priors import Prior
from bayeslaw.model.building import Data, build, data
from bayeslaw.model.likelihoods import noise_scale
from bayeslaw.model.spec import Spec, make_spec
from bayeslaw.simulation.worlds import simulate
from bayeslaw.tables.table import grid

DESIGN: Mapping[str, list[float]] = {
    "params": [1e8, 1e9, 8e9],
    "tokens": [1e9, 1e10, 1e11],
    "replay": [0.1, 0.5],
    "ptpp": [15, 60],
}
FORECAST: Mapping[str, float | list[float]] = {
    "params": 3e10,
    "tokens": [1e10, 1e12],
    "replay": 0.3,
    "ptpp": 279,
}
"""Rows whose forecasts are ranked: outside the design in every covariate."""
ENVELOPE = 0.95


@dataclass(frozen=True)
class Calibration:
    """Ranks of truths among posterior draws.

    Parameters
    ----------
    ranks : DataFrame
        Rank of each true value as a fraction in (0, 1): one row per simulation, one column per
        quantity. The quantities are the sampled coordinates, ``forecast 0``, ``forecast 1`` and
        ``log likelihood``.
    failed : int
        Number of simulations that are left out, since R-hat of their posterior exceeds 1.05.

    References
    ----------
    .. [1] Talts, Betancourt, Simpson, Vehtari and Gelman, Validating Bayesian inference algorithms
       with simulation-based calibration. arXiv 1804.06788 (2018).
    .. [2] Modrák, Moon, Kim, Bürkner, Huurre, Faltejsková, Gelman and Vehtari, Simulation-based
       calibration checking for Bayesian computation. Bayesian Analysis (2023).
    """

    ranks: pd.DataFrame
    failed: int

    def envelope(self, level: float = ENVELOPE, seed: int = 0) -> pd.DataFrame:
        """Test of uniformity: the ECDF of the ranks against its simultaneous envelope.

        Parameters
        ----------
        level : float
            Probability that the ECDF of uniform ranks lies inside the envelope.
        seed : int
            Seed of the simulated envelope.

        Returns
        -------
        DataFrame
            Per quantity: `inside`, whether the ECDF lies inside the envelope; `excess`, its largest
            distance outside; `mean` of the ranks, 1/2 if the posterior is unbiased; `spread`, the
            variance of the ranks over 1/12, above 1 if posteriors are too narrow and below 1 if
            they are too wide.
        """
        from arviz_stats.ecdf_utils import ecdf_pit

        rows = {}
        for name, ranks in self.ranks.items():
            rng = np.random.default_rng(seed)
            _, ecdf, low, high = ecdf_pit(ranks.to_numpy(), level, 2000, rng=rng)
            excess = float(np.max(np.maximum(low - ecdf, ecdf - high)))
            rows[str(name)] = {
                "inside": excess <= 0,
                "excess": max(excess, 0.0),
                "mean": float(ranks.mean()),
                "spread": float(12 * ranks.var()),
            }
        return pd.DataFrame(rows).T.astype({"inside": bool})


def calibrate(
    law: str | Law,
    *,
    likelihood: str = "studentt",
    discrepancy: str = "none",
    noise: str = "constant",
    effects: tuple[str, ...] = (),
    priors: str | Path | Mapping[str, str | Prior] = "default",
    simulations: int = 100,
    chains: int = 2,
    draws: int = 500,
    tune: int = 500,
    target_accept: float = TARGET_ACCEPT,
    delta: float = DELTA,
    seed: int = 0,
    cores: int = 1,
    fault: Mapping[str, float] | None = None,
) -> Calibration:
    """Simulation-based calibration of a law and model.

    Draws parameters from the prior, simulates a table from each draw, fits the model to it and
    ranks the true values among the posterior draws. The model is compiled once; each refit
    replaces its losses.

    Parameters
    ----------
    law, likelihood, discrepancy, noise, effects, priors, delta
        The model; see `bayeslaw.fit`.
    simulations : int
        Number of simulated tables.
    chains, draws, tune, target_accept, cores
        Sampler settings of each refit.
    seed : int
        The same seed gives the same ranks.
    fault : mapping of quantity to float, optional
        Factors by which posterior draws are multiplied: a deliberate error to test that the
        calibration finds it.

    Returns
    -------
    Calibration
    """
    law = load_law(law)
    spec = make_spec(
        law,
        priors=priors,
        likelihood=likelihood,
        discrepancy=discrepancy,
        noise=noise,
        effects=effects,
        delta=delta,
    )
    design = grid(**{name: DESIGN[name] for name in law.columns})
    if effects:
        design["base"] = design.groupby([c for c in ("params", "ptpp") if c in design]).ngroup()
        design["run"] = design.groupby([c for c in design if c != "tokens"]).ngroup()
    truth = dict.fromkeys(law.parameters, 0.5) | {"E": 1.0}
    values = data(spec, simulate(law, truth, design))
    prior = _prior(spec, values, simulations, seed)
    ahead = spec.law.covariates(grid(**{n: FORECAST[n] for n in law.columns}))
    at = dict(zip(spec.law.covariate_names, values["at"], strict=True))
    rng = np.random.default_rng([seed, 1])
    rows, failed = [], 0
    for i in range(simulations):
        observed = prior["log_loss"][i]
        if not np.isfinite(observed).all():
            failed += 1
            continue
        refit, stats = sample(
            spec,
            values | {"observed": observed},
            seed=seed + i,
            chains=chains,
            draws=draws,
            tune=tune,
            target_accept=target_accept,
            cores=cores,
            progress=False,
        )
        gate = diagnose(refit, stats)
        if not gate.rhat <= 1.05:
            failed += 1
            continue
        # Ranks assume independent draws: thin them to about the effective sample size.
        thin = max(1, int(np.ceil(chains * draws / max(gate.ess_bulk, 1))))
        posterior = {
            str(n): v.values.reshape(chains * draws, -1)[::thin] for n, v in refit.data_vars.items()
        }
        true = {n: np.reshape(v[i], (1, -1)) for n, v in prior.items() if n != "log_loss"}
        simulation = _Simulation(values, observed, ahead, at)
        rows.append(_ranks(spec, posterior, true, simulation, rng, fault or {}))
    return Calibration(pd.DataFrame(rows), failed)


@dataclass(frozen=True)
class _Simulation:
    """One simulated table, and the rows to forecast.

    Parameters
    ----------
    values : mapping
        Result of `bayeslaw.model.building.data`: covariates and groups.
    observed : array, shape (rows,)
        Log losses.
    ahead : mapping
        Covariates of the rows to forecast.
    at : mapping
        Reference point.
    """

    values: Data
    observed: Floats
    ahead: Mapping[str, Floats]
    at: Mapping[str, float]


def _prior(spec: Spec, values: Data, count: int, seed: int) -> dict[str, Floats]:
    """Prior predictive draws of parameters and log losses, each of shape (count, ...)."""
    import pymc as pm

    model = build(spec, values)
    names = [variable.name for variable in model.free_RVs]
    drawn = pm.draw([*model.free_RVs, model["log_loss"]], draws=count, random_seed=seed)
    return dict(zip([*names, "log_loss"], map(np.asarray, drawn), strict=True))


def _ranks(
    spec: Spec,
    posterior: Mapping[str, Floats],
    truth: Mapping[str, Floats],
    simulation: _Simulation,
    rng: np.random.Generator,
    fault: Mapping[str, float],
) -> dict[str, float]:
    """Rank of each true quantity among its posterior draws, as a fraction."""
    ranks = {}
    drawn, true = (_quantities(spec, q, simulation) for q in (posterior, truth))
    for name, draws in drawn.items():
        draws = draws * fault.get(name, 1.0)
        below = np.sum(draws < true[name])
        ranks[name] = float((below + rng.random()) / (len(draws) + 1))
    return ranks


def _quantities(spec: Spec, q: Mapping[str, Floats], simulation: _Simulation) -> dict[str, Floats]:
    """Quantities that are ranked, each of shape (draws,)."""
    law, values, at = spec.law, simulation.values, simulation.at
    p = law.sizes({n: q[n] for n in law.coordinates}, at)
    x = dict(zip(law.covariate_names, values["x"], strict=True))
    mu = np.log(law.loss(p, x, at))
    sigma = noise_scale(spec.noise, q, x.get("params"), at.get("params"), np)
    for level in spec.effects:
        mu = mu + (q[f"tau_{level}"] * q[f"{level}_z"])[:, values[f"{level}_index"]]
    likelihood = spec.likelihood.log_density(simulation.observed - mu, sigma, q).sum(1)
    forecasts = np.log(law.loss(p, simulation.ahead, at)).T
    named = {n: v[:, 0] for n, v in q.items() if v.shape[1] == 1}
    return (
        named
        | {f"forecast {j}": f for j, f in enumerate(forecasts)}
        | {"log likelihood": likelihood}
    )
