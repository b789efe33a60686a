"""Simulation-based calibration: posteriors must rank truths drawn from the prior uniformly.

Talts et al. (2018), with quantities beyond the parameters (Modrák et al. 2023): forecasts and the
joint log-likelihood, which catch errors that parameters alone do not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from bayeslaw.common.defaults import DELTA, TARGET_ACCEPT
from bayeslaw.inference.convergence import diagnose
from bayeslaw.inference.sampling import sample
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.model.building import build, data
from bayeslaw.model.likelihoods import noise_scale
from bayeslaw.model.spec import Spec, make_spec
from bayeslaw.simulation.worlds import simulate
from bayeslaw.tables.table import grid

type Floats = npt.NDArray[np.float64]

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
"""Where forecasts are ranked: beyond the design in every covariate."""
ENVELOPE = 0.95


@dataclass(frozen=True)
class Calibration:
    """Ranks of truths among posterior draws.

    Parameters
    ----------
    ranks : DataFrame
        Rank of each truth as a share in (0, 1), one row per simulation, one column per quantity:
        sampled coordinates, ``forecast 0``, ``forecast 1``, ``log likelihood``.
    failed : int
        Simulations whose posterior failed R-hat 1.05 and are left out.
    """

    ranks: pd.DataFrame
    failed: int

    def envelope(self, level: float = ENVELOPE, seed: int = 0) -> pd.DataFrame:
        """Whether the ECDF of each quantity's ranks stays inside its simultaneous envelope.

        Returns
        -------
        DataFrame
            Per quantity: `inside`; `excess`, the furthest the ECDF leaves the envelope; `mean` of
            the ranks, 1/2 if unbiased; `spread`, their variance over 1/12: above 1 where
            posteriors are too narrow, below 1 where too wide.
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
    priors: Any = "default",
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
    """Draw truths from the prior, simulate a table from each, refit, and rank the truths.

    The model is compiled once; every refit only puts new losses in.

    Parameters
    ----------
    law, likelihood, discrepancy, noise, effects, priors, delta
        What is fitted; see `bayeslaw.fit`.
    simulations : int
    chains, draws, tune, target_accept, cores
        Of each refit.
    seed : int
        Same seed, same ranks.
    fault : mapping, optional
        Factors on the posterior draws of some quantities: a planted error that must be found.

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
        # Draws thinned to about their effective number: ranks assume independence.
        thin = max(1, int(np.ceil(chains * draws / max(gate.ess_bulk, 1))))
        posterior = {
            str(n): v.values.reshape(chains * draws, -1)[::thin] for n, v in refit.data_vars.items()
        }
        rows.append(_ranks(spec, posterior, prior, i, (values, observed, ahead, at), rng, fault))
    return Calibration(pd.DataFrame(rows), failed)


def _prior(spec: Spec, values: Mapping[str, Any], count: int, seed: int) -> dict[str, Floats]:
    """Draws of parameters and log losses, each (count, ...), from the model itself."""
    import pymc as pm

    model = build(spec, values)
    names = [variable.name for variable in model.free_RVs]
    drawn = pm.draw([*model.free_RVs, model["log_loss"]], draws=count, random_seed=seed)
    return dict(zip([*names, "log_loss"], map(np.asarray, drawn), strict=True))


def _ranks(
    spec: Spec,
    posterior: Mapping[str, Floats],
    prior: Mapping[str, Floats],
    i: int,
    where: tuple[Any, ...],
    rng: np.random.Generator,
    fault: Mapping[str, float] | None,
) -> dict[str, float]:
    values, observed, ahead, at = where
    truth = {n: np.reshape(v[i], (1, -1)) for n, v in prior.items() if n != "log_loss"}
    ranks = {}
    quantities = [_quantities(spec, q, values, observed, ahead, at) for q in (posterior, truth)]
    for name, draws in quantities[0].items():
        draws = draws * (fault or {}).get(name, 1.0)
        below = np.sum(draws < quantities[1][name])
        ranks[name] = float((below + rng.random()) / (len(draws) + 1))
    return ranks


def _quantities(
    spec: Spec, q: Mapping[str, Floats], values: Any, observed: Floats, ahead: Any, at: Any
) -> dict[str, Floats]:
    """What is ranked, each of shape (draws,)."""
    law = spec.law
    p = law.sizes({n: q[n] for n in law.coordinates}, at)
    x = dict(zip(law.covariate_names, values["x"], strict=True))
    mu = np.log(law.loss(p, x, at))
    sigma = noise_scale(spec.noise, q, x.get("params"), at.get("params"), np)
    for level in spec.effects:
        mu = mu + (q[f"tau_{level}"] * q[f"{level}_z"])[:, values[f"{level}_index"]]
    likelihood = spec.likelihood.log_density(observed - mu, sigma, q).sum(1)
    forecasts = np.log(law.loss(p, ahead, at)).T
    named = {n: v[:, 0] for n, v in q.items() if v.shape[1] == 1}
    return (
        named
        | {f"forecast {j}": f for j, f in enumerate(forecasts)}
        | {"log likelihood": likelihood}
    )
