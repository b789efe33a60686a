"""One posterior of several domains measured on the same runs."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np
import xarray as xr

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import FitError
from bayeslaw.huber.point_fit import for_table
from bayeslaw.inference.fitting import sample_to_gate, with_knots, with_noise_groups
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.settings import PosteriorSettings, filled, run_settings
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.model import errors as run_errors
from bayeslaw.model import random_effects
from bayeslaw.model.building import data
from bayeslaw.model.joint_spec import JointSpec, cholesky_rows
from bayeslaw.model.likelihoods import Likelihood
from bayeslaw.model.random_effects import choose, labelled, labels
from bayeslaw.model.spec import make_discrepancy, make_spec
from bayeslaw.tables.table import LossTable


def fit_joint(
    laws: Mapping[str, str | Path | Law],
    tables: Mapping[str, LossTable],
    *,
    likelihood: str | Likelihood = "studentt",
    seed: int = 0,
    **settings: Unpack[PosteriorSettings],
) -> dict[str, Posterior]:
    """Fit one law per domain to losses measured on the same runs.

    The random effects of a base or a run are correlated across domains, with an LKJ prior [1]_.
    Draws of the same index are joint draws, and `bayeslaw.plan` pairs them by index. Without common
    groups the posterior is the product of the posteriors of the domains.

    Parameters
    ----------
    laws, tables : mapping of domain to law, and to its training rows
        Runs and bases with the same label are the same in all domains. A row without a label is a
        group of its own.
    likelihood, seed, **settings
        As for `bayeslaw.fit`.

    Returns
    -------
    dict of domain to Posterior
        Their settings hold ``joint``, equal for posteriors of one fit; ``correlation``, the median
        correlation of the effects between domains by level; and ``place``, the domain's row in it.

    Raises
    ------
    FitError
        If there are fewer than two domains, laws and tables name different ones, or a setting is
        unknown.

    References
    ----------
    .. [1] Lewandowski, Kurowicka and Joe, Generating random correlation matrices based on vines and
       extended onion method. Journal of Multivariate Analysis 100 (2009).
    """
    if len(laws) < 2 or laws.keys() != tables.keys():
        raise FitError(
            f"laws name {', '.join(laws)}, tables {', '.join(tables)}: give the same two or more."
        )
    chosen = filled(settings)
    loaded = {name: for_table(load_law(law), tables[name]) for name, law in laws.items()}
    discrepancies = {
        name: make_discrepancy(chosen["discrepancy"], law.plain) for name, law in loaded.items()
    }
    found = [
        choose(chosen["effects"], t.frame, t.name, discrepancy=discrepancies[name].size_effects)
        for name, t in tables.items()
    ]
    levels = [level for level in found[0] if all(level in others for others in found)]
    specs = {
        name: make_spec(
            law,
            likelihood=likelihood,
            discrepancy=discrepancies[name],
            noise=chosen["noise"],
            effects=levels,
            new_sizes=chosen["effects"] == "auto",
            errors=run_errors.choose(
                chosen["errors"], tables[name].frame, tables[name].name, law.columns
            ),
        )
        for name, law in loaded.items()
    }
    spec = JointSpec(specs)
    grouped = {
        domain: replace(t, frame=labelled(t.frame, levels, domain)) for domain, t in tables.items()
    }
    names = {
        level: np.unique(np.concatenate([labels(t.frame, level) for t in grouped.values()]))
        for level in levels
    }
    values = {
        f"{domain}::{name}": value
        for domain, table in grouped.items()
        for name, value in data(specs[domain], table, names).items()
    }
    found_draws, run = sample_to_gate(
        spec,
        values,
        run_settings(chosen, seed),
        cores=chosen["cores"],
        progress=chosen["progress"],
        retry=chosen["retry"],
    )
    sampled = found_draws.draws
    fitted = [f"{name}{specs[name].identity}{table.sha256}" for name, table in tables.items()]
    run |= {"joint": hashlib.sha256("".join([str(run), *fitted]).encode()).hexdigest()[:16]}
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
        mine = with_knots(specs[domain], table, mine)
        mine = with_noise_groups(specs[domain], table, mine)
        for level, factor in factors.items():
            z = np.einsum("cdgk,cdk->cdg", sampled[f"{level}_z"].values, factor[..., k, :])
            effect = xr.DataArray(z, {level: names[level]}, ("chain", "draw", level))
            kind = random_effects.level(level)
            affected = xr.DataArray(kind.affected(names[level]), dims=level)
            mine[f"{level}_effect"] = kind.effect(mine[f"tau_{level}"], effect) * affected
        posteriors[domain] = Posterior(
            spec=specs[domain],
            table=table,
            at=specs[domain].law.reference_point(table),
            draws=mine,
            stats=found_draws.stats,
            convergence=found_draws.convergence,
            settings=run | {"correlation": correlation, "place": k},
        )
    return posteriors


def _factors(draws: xr.Dataset, level: str, count: int) -> Floats:
    """Cholesky factor of the correlation matrix, shape (chains, draws, domains, domains)."""
    partial = np.moveaxis(2 * draws[f"{level}_partial"].values - 1, -1, 0)
    factor = np.zeros((*partial.shape[1:], count, count))
    for i, row in enumerate(cholesky_rows(list(partial), count, np)):
        for j, value in enumerate(row):
            factor[..., i, j] = value
    return factor
