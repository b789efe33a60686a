"""Coefficients of a fit written to a JSON file: for readers, other programs, and forecasts."""

import dataclasses
import math
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.files import write_json
from bayeslaw.evaluate.datatree import with_units
from bayeslaw.evaluate.new_sizes import too_few_sizes
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.storage import stored_spec
from bayeslaw.tables.reading import is_synthetic

FORMAT = "bayeslaw coefficients"
SCHEMA = 1
"""Version of the file's layout; a file with a larger one is refused."""
QUANTILES = {"median": 0.5, "q05": 0.05, "q25": 0.25, "q75": 0.75, "q95": 0.95}
INFINITE = {"Infinity": math.inf, "-Infinity": -math.inf}
"""Bounds that JSON has no numbers for, by the texts that stand for them."""


def write_coefficients(
    fit: Posterior, path: str | Path, *, draws: int = 0, allow_unconverged: bool = False
) -> None:
    """Write the coefficients of a fit to a JSON file, without the training losses.

    The file states for each parameter, by its symbol in the paper, a point, the median, the 50 and
    90 % intervals and the unit, with the law, the reference point, the hash of the training table,
    the sampler and the versions. `read_coefficients` forecasts from it: a point from the medians of
    the reference coordinates, and bands from draws.

    Parameters
    ----------
    fit : Posterior
    path : str or Path
    draws : int
        Number of joint draws of parameters and random effects to include, evenly spaced among those
        of the fit. With all of them, the forecasts equal those of the fit.
    allow_unconverged : bool
        Whether to write a posterior that failed the convergence checks. The file says so.

    Raises
    ------
    NotConverged
        If the posterior failed the convergence checks and `allow_unconverged` is false.
    BayeslawError
        If `draws` is negative, or draws alone cannot give the fit's forecasts: with a discrepancy
        and two or three model sizes these depend on the training losses.
    LawError
        If a term, the likelihood or the discrepancy is of a class that is not registered.
    FileError
        If the file cannot be written.

    Examples
    --------
    See `read_coefficients`.
    """
    fit.require_converged(allow_unconverged)
    if draws < 0:
        raise BayeslawError(f"draws={draws}: give the number of draws to include, 0 or more.")
    if draws and too_few_sizes(fit):
        raise BayeslawError(
            f"{fit.law.name} on {fit.table.name}: with so few model sizes, forecasts of others "
            "depend on the training losses, which draws do not contain; export without draws, "
            "save the fit itself, or fit with effects='none'."
        )
    flat = _flat(fit.draws)
    spaced = np.linspace(0, flat.sizes["draw"] - 1, min(draws, flat.sizes["draw"])).astype(int)
    law, table, run = fit.law, fit.table, dict(fit.settings)
    medians = flat.median("draw").expand_dims(draw=1, axis=1)
    point = law.to_paper({n: medians[n].item() for n in law.coordinates}, fit.at)
    paper = _summary(fit.paper, fit)
    knots = {walk.steps: walk.knots for walk in fit.law_with_knots.walks if walk.knots}
    scalars = fit.draws.drop_dims(set(fit.draws.dims) - {"chain", "draw"})
    others = [str(name) for name in scalars.data_vars if name not in law.parameters]
    document = {
        "format": FORMAT,
        "schema": SCHEMA,
        "bayeslaw": version("bayeslaw"),
        "law": {
            "name": law.name,
            "title": law.title,
            "reference": law.reference,
            "formula": law.plain.latex(),
            "token_unit": law.token_unit,
            "discrepancy": fit.spec.discrepancy.words,
        },
        "parameters": {n: {"point": float(point[n]), **paper[n]} for n in law.parameters},
        "reference_point": law.point(fit.at),
        "reference": _summary(scalars[others], fit),
        "training": {
            "name": table.name,
            "rows": len(table),
            "sha256": table.sha256,
            "synthetic": is_synthetic(table),
        },
        "settings": run,
        "convergence": dataclasses.asdict(fit.convergence),
        "rebuild": {
            "identity": fit.spec.identity,
            "specification": stored_spec(fit.spec),
            "at": dict(fit.at),
            "knots": {name: dataclasses.asdict(each) for name, each in knots.items()},
            "extension_seed": fit.extension_seed,
            "medians": medians.to_dict(),
            "draws": flat.isel(draw=spaced).to_dict() if draws else None,
        },
    }
    write_json(_as_text(document), path)


def as_numbers(value: Any) -> Any:
    """Inverse of `_as_text`: plain data in which the texts of `INFINITE` are numbers again."""
    if isinstance(value, dict):
        return {name: as_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [as_numbers(each) for each in value]
    return INFINITE.get(value, value) if isinstance(value, str) else value


def _flat(draws: xr.Dataset) -> xr.Dataset:
    """The draws of all chains, one after the other, as a single chain."""
    flat = draws.stack(sample=("chain", "draw"), create_index=False)
    flat = flat.drop_vars(["chain", "draw"], errors="ignore").rename(sample="draw")
    return flat.expand_dims("chain").transpose("chain", "draw", ...)


def _summary(draws: xr.Dataset, fit: Posterior) -> dict[str, dict[str, float | str]]:
    """Quantiles and unit of each variable."""
    return {
        str(name): {key: float(values.quantile(q)) for key, q in QUANTILES.items()}
        | {"unit": str(values.attrs.get("units", "dimensionless"))}
        for name, values in with_units(draws, fit).data_vars.items()
    }


def _as_text(value: Any) -> Any:
    """Plain data with texts in place of numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(name): _as_text(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_text(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
