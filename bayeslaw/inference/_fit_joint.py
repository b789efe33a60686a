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
from bayeslaw.inference.fitting import labelled_draws, record, specify
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.sampling import sample
from bayeslaw.inference.settings import PosteriorSettings, make_settings
from bayeslaw.laws.law import Law
from bayeslaw.model.building import cholesky_rows
from bayeslaw.model.effects import labelled, labels, unlabelled
from bayeslaw.model.noise import Likelihood
from bayeslaw.model.spec import make_data
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
    chosen = make_settings(settings, likelihood=likelihood, seed=seed)
    single = [specify(law, tables[name], chosen) for name, law in laws.items()]
    levels = [level for level in single[0].effects if all(level in s.effects for s in single)]
    common = replace(chosen, effects=levels)
    specs = {
        name: replace(specify(law, tables[name], common), new_sizes=chosen.effects == "auto")
        for name, law in laws.items()
    }
    grouped = {
        name: replace(t, frame=labelled(t.frame, levels, name)) for name, t in tables.items()
    }
    groups = {
        level: np.unique(np.concatenate([labels(t.frame, level) for t in grouped.values()]))
        for level in levels
    }
    data = {name: make_data(specs[name], grouped[name], groups=groups) for name in tables}
    sampled = sample({f"{name}::": each for name, each in data.items()}, chosen)
    run = record(sampled)
    fitted = [f"{name}{specs[name].identity}{table.sha256}" for name, table in tables.items()]
    run |= {"joint": hashlib.sha256("".join([str(run), *fitted]).encode()).hexdigest()[:16]}
    factors = {level: _factors(sampled.draws, level, len(tables)) for level in levels}
    run["correlation"] = {
        level: np.median(factor @ factor.swapaxes(-1, -2), axis=(0, 1)).round(3).tolist()
        for level, factor in factors.items()
    }
    posteriors = {}
    for k, (name, table) in enumerate(tables.items()):
        prefix = f"{name}::"
        sampled_draws = {str(n): v for n, v in sampled.draws.data_vars.items()}
        draws = xr.Dataset(
            {n.removeprefix(prefix): v for n, v in sampled_draws.items() if n.startswith(prefix)}
        )
        for level, factor in factors.items():
            z = np.einsum("cdgk,cdk->cdg", sampled_draws[f"{level}_z"].values, factor[..., k, :])
            draws[f"{level}_z"] = ("chain", "draw", f"{level}_z_dim"), z
        draws = labelled_draws(data[name], draws)
        for level in levels:  # rows without a label are groups of the domain's own table again
            names, suffix = draws[level].values.astype(str), f" of {name}"
            of_rows = unlabelled(names) & np.char.endswith(names, suffix)
            names[of_rows] = [row.removesuffix(suffix) for row in names[of_rows]]
            draws = draws.assign_coords({level: names})
        posteriors[name] = Posterior(
            spec=specs[name],
            table=table,
            at=data[name].at,
            draws=draws,
            stats=sampled.stats,
            convergence=sampled.convergence,
            settings=run | {"place": k},
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
