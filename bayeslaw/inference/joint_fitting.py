"""Several domains measured on the same runs, in one posterior."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from bayeslaw.common.defaults import DISCREPANCY, SAMPLING
from bayeslaw.common.errors import FitError
from bayeslaw.inference.fitting import sample_twice
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.law import Law
from bayeslaw.model.building import data
from bayeslaw.model.joint_spec import JointSpec, _factor
from bayeslaw.model.random_effects import LEVELS, choose, labels
from bayeslaw.model.spec import make_spec
from bayeslaw.tables.table import LossTable


def fit_joint(
    laws: Mapping[str, str | Law],
    tables: Mapping[str, LossTable],
    *,
    likelihood: str = "studentt",
    discrepancy: str = DISCREPANCY,
    noise: str = "constant",
    effects: str = "auto",
    seed: int = 0,
    cores: int | None = None,
    progress: bool = False,
    retry: bool = True,
    **sampling: Any,
) -> dict[str, Posterior]:
    """Fit one law per domain to losses measured on the same runs.

    What a base or a run shares is correlated across domains (LKJ prior), so draws of the same index
    belong together; `bayeslaw.plan` pairs them so. Without such groups the posterior is the product
    of the domains' own.

    Parameters
    ----------
    laws, tables : mapping of domain to law, and to its training rows
        Runs and bases of the same label are the same.
    likelihood, discrepancy, noise, effects, seed, cores, progress, retry, **sampling
        As for `bayeslaw.fit`; `sampling` holds chains, draws, tune, target_accept, sampler.

    Returns
    -------
    dict of domain to Posterior
        Their settings hold ``joint``, equal for posteriors of one fit, and ``correlation``, the
        median correlation of the effects between domains by level.

    Raises
    ------
    FitError
        If there are fewer than two domains, or laws and tables name different ones.
    """
    if len(laws) < 2 or laws.keys() != tables.keys():
        raise FitError(
            f"laws name {', '.join(laws)}, tables {', '.join(tables)}: give the same two or more."
        )
    found = [set(choose(effects, t.frame, t.name, discrepancy)) for t in tables.values()]
    levels = [level for level in LEVELS if level in set.intersection(*found)]
    settings: dict[str, Any] = {"likelihood": likelihood, "noise": noise, "effects": levels}
    specs = {n: make_spec(law, discrepancy=discrepancy, **settings) for n, law in laws.items()}
    spec = JointSpec(specs)
    names = {
        level: np.unique(np.concatenate([labels(t.frame, level) for t in tables.values()]))
        for level in levels
    }
    values = {
        f"{domain}::{name}": value
        for domain, table in tables.items()
        for name, value in data(specs[domain], table, names).items()
    }
    run = {**SAMPLING, **sampling, "seed": seed}
    sampled, stats, convergence, run = sample_twice(
        spec, values, run, cores=cores, progress=progress, retry=retry
    )
    text = "".join([str(run), *(f"{n}{laws[n]}{t.sha256}" for n, t in tables.items())])
    run |= {"joint": hashlib.sha256(text.encode()).hexdigest()[:16]}
    factors = {level: _factors(sampled, level, len(tables)) for level in levels}
    correlation = {
        level: np.median(factor @ factor.swapaxes(-1, -2), axis=(0, 1)).round(3).tolist()
        for level, factor in factors.items()
    }
    posteriors = {}
    for k, (domain, table) in enumerate(tables.items()):
        prefix = f"{domain}::"
        own = {str(n): v for n, v in sampled.data_vars.items() if str(n).startswith(prefix)}
        mine = xr.Dataset({n.removeprefix(prefix): v for n, v in own.items()})
        for level, factor in factors.items():
            z = np.einsum("cdgk,cdk->cdg", sampled[f"{level}_z"].values, factor[..., k, :])
            effect = xr.DataArray(z, {level: names[level]}, ("chain", "draw", level))
            mine[f"{level}_effect"] = mine[f"tau_{level}"] * effect
        posteriors[domain] = Posterior(
            spec=specs[domain],
            table=table,
            at=specs[domain].law.reference_point(table),
            draws=mine,
            stats=stats,
            convergence=convergence,
            settings=run | {"correlation": correlation},
        )
    return posteriors


def _factors(draws: xr.Dataset, level: str, count: int) -> Any:
    """The factor of each draw, shape (chains, draws, domains, domains)."""
    partial = np.moveaxis(2 * draws[f"{level}_partial"].values - 1, -1, 0)
    factor = np.zeros((*partial.shape[1:], count, count))
    for i, row in enumerate(_factor(list(partial), count, np)):
        for j, value in enumerate(row):
            factor[..., i, j] = value
    return factor
