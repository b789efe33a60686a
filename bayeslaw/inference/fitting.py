"""Fit a law to a table: NUTS posterior, or MAP."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import xarray as xr

from bayeslaw.common.defaults import CHAINS, DELTA, DISCREPANCY, DRAWS, TARGET_ACCEPT, TUNE
from bayeslaw.common.errors import LawError, unknown
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.convergence import Convergence, diagnose
from bayeslaw.inference.modes import fit_map
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.sampling import AnySpec, sample
from bayeslaw.laws.law import Law
from bayeslaw.laws.priors import Prior
from bayeslaw.model.building import data
from bayeslaw.model.random_effects import choose, labels
from bayeslaw.model.spec import Spec, make_spec
from bayeslaw.tables.table import LossTable

PACKAGES = ("bayeslaw", "pymc", "pytensor", "nutpie", "numpy", "xarray")


@overload
def fit(
    law: str | Law, table: LossTable, *, method: Literal["nuts"] = ..., **settings: Any
) -> Posterior: ...
@overload
def fit(
    law: str | Law, table: LossTable, *, method: Literal["map"], **settings: Any
) -> PointFit: ...
def fit(  # type: ignore[misc]  # the overloads' settings are the arguments below
    law: str | Law,
    table: LossTable,
    *,
    method: str = "nuts",
    likelihood: str = "studentt",
    priors: str | Path | Mapping[str, str | Prior] = "default",
    delta: float = DELTA,
    discrepancy: str = DISCREPANCY,
    noise: str = "constant",
    effects: str | Sequence[str] = "auto",
    seed: int = 0,
    chains: int = CHAINS,
    draws: int = DRAWS,
    tune: int = TUNE,
    target_accept: float = TARGET_ACCEPT,
    sampler: str = "nutpie",
    cores: int | None = None,
    progress: bool = False,
    retry: bool = True,
) -> Posterior | PointFit:
    """Fit a law to a table of losses.

    Parameters
    ----------
    law : str, path or Law
        ``"form1"``, ``"form2"``, ``"form3"``, ``"dcpt"``, ``"chinchilla"``, or a TOML file.
    table : LossTable
        Training rows.
    method : {"nuts", "map"}
        Posterior draws, or the mode over the law's parameters.
    likelihood : {"studentt", "normal", "huber"}
        Noise on log loss. With ``method="map", likelihood="huber", priors="flat"`` the mode is the
        paper's Huber fit.
    priors : "default", "flat", mapping of name to prior, or path of a TOML file
        Names are those of the reference coordinates, and ``E``, ``sigma``, ``dof``.
    delta : float
        Threshold of the ``huber`` likelihood, in log loss.
    discrepancy : {"curvature", "none"}
        Whether every term of the law may bend; see `bayeslaw.model.discrepancies.curved`. The mode is
        always of the law as written.
    noise : {"constant", "loglinear"}
        Whether the scale of the noise on log loss may vary as a power of N.
    effects : "auto", "none", or levels of ``("size", "base", "run")``
        What rows share beside the law: ``"auto"`` gives an effect to the rows of each `run` and to
        the runs from each `base`, where the table has these columns and they repeat, and with a
        discrepancy to the models of each of four sizes or more. The mode has none.
    seed : int
        Same seed, same numbers.
    chains, draws, tune, target_accept, sampler, cores, progress
        For the sampler: ``"nutpie"`` or ``"pymc"``; `draws` and `tune` are per chain.
    retry : bool
        Whether to sample once more, with twice the draws and tuning and a target acceptance of
        .99, if the convergence gate fails.

    Returns
    -------
    Posterior or PointFit

    Raises
    ------
    TableError
        If the table lacks what the law needs.
    LawError
        If the law, a prior, the likelihood, the method or the sampler is unknown.
    """
    if method not in ("nuts", "map"):
        raise LawError(unknown("method", method, ("nuts", "map")))
    spec = make_spec(
        law,
        priors=priors,
        likelihood=likelihood,
        delta=delta,
        discrepancy=discrepancy if method == "nuts" else "none",
        noise=noise if method == "nuts" else "constant",
        effects=choose(effects, table.frame, table.name, discrepancy) if method == "nuts" else (),
    )
    if method == "map":
        return fit_map(spec, table, seed=seed)
    run: dict[str, Any] = {
        "seed": seed,
        "chains": chains,
        "draws": draws,
        "tune": tune,
        "target_accept": target_accept,
        "sampler": sampler,
    }
    return fit_spec(spec, table, run, cores=cores, progress=progress, retry=retry)


def fit_spec(
    spec: Spec,
    table: LossTable,
    run: Mapping[str, Any],
    *,
    cores: int | None = None,
    progress: bool = False,
    retry: bool = True,
) -> Posterior:
    """Posterior of a spec; `run` holds the seed and the sampler's settings."""
    sampled, stats, convergence, settings = sample_twice(
        spec, data(spec, table), run, cores=cores, progress=progress, retry=retry
    )
    return Posterior(
        spec=spec,
        table=table,
        at=spec.law.reference_point(table),
        draws=with_effects(spec, table, sampled),
        stats=stats,
        convergence=convergence,
        settings=settings,
    )


def sample_twice(
    spec: AnySpec,
    values: Mapping[str, Any],
    run: Mapping[str, Any],
    *,
    cores: int | None,
    progress: bool,
    retry: bool,
) -> tuple[xr.Dataset, xr.Dataset, Convergence, dict[str, Any]]:
    """Draws, statistics, convergence and settings; sampled again, harder, if the gate fails."""
    for attempt in range(2 if retry else 1):
        if attempt:
            accept = max(run["target_accept"], 0.99)
            run = {**run, "draws": 2 * run["draws"], "tune": 2 * run["tune"]}
            run["target_accept"] = accept
        sampled, stats = sample(spec, values, **run, cores=cores, progress=progress)
        convergence = diagnose(sampled, stats)
        if convergence.ok:
            break
    versions = {"versions": {name: version(name) for name in PACKAGES}}
    return sampled, stats, convergence, {**run, **versions}


def with_effects(spec: Spec, table: LossTable, draws: xr.Dataset) -> xr.Dataset:
    """The draws with each group's effect on log loss in place of its standardised one."""
    for level in spec.effects:
        z = draws[f"{level}_z"]
        dim = str(z.dims[-1])
        effect = (draws[f"tau_{level}"] * z).rename({dim: level})
        names = np.unique(labels(table.frame, level))
        draws = draws.drop_dims(dim).assign({f"{level}_effect": effect})
        draws = draws.assign_coords({level: names})
    return draws
