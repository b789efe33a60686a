"""A posterior as a tree: for ArviZ, and as one NetCDF file of all that a fit is."""

import dataclasses
import hashlib
import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import BayeslawError, FileError, LawError, argument
from bayeslaw.common.files import atomic_write
from bayeslaw.design.design import Design
from bayeslaw.inference.convergence import Convergence
from bayeslaw.inference.fitted import EXTENSION, FittedLaw
from bayeslaw.inference.residuals import (
    LAST_ERROR,
    LAST_ROWS,
    log_likelihood,
    residual_draws,
    too_few_sizes,
)
from bayeslaw.laws.departure import Departure
from bayeslaw.laws.steps import ANNEALED, UNIQUE
from bayeslaw.model import effects
from bayeslaw.model import prior as priors
from bayeslaw.model.noise import OBSERVED
from bayeslaw.model.spec import spec_of
from bayeslaw.model.training import make_data
from bayeslaw.tables.comparison import role_by_losses
from bayeslaw.tables.covariates import TABLE
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import BASE_LOSSES, COVARIATES, LABEL_COLUMNS

SCHEMA = 9
"""Version of the file's layout; a file with another one is refused."""
MARK = "bayeslaw posterior"
POOL_MARK = "bayeslaw pool"


def write(tree: xr.DataTree, path: str | Path) -> None:
    """Write a tree with the digest of its content, by which `read` finds damage."""
    if Path(path).suffix != ".nc":  # the command line knows a posterior by it
        raise FileError(
            f"{path}: a posterior is saved as NetCDF; give a name that ends in .nc."
        )
    tree.attrs["sha256"] = _digest(tree)
    # In memory, where HDF5 meets no full disk. In a worker of Dask, xarray would ask the cluster
    # for a lock, which knows no file in memory.
    dask = sys.modules.get("dask.config")
    with dask.set(scheduler="synchronous") if dask else nullcontext():
        # A copy: the buffer it is a view of cannot be freed while an error holds the view.
        content = bytes(tree.to_netcdf(engine="h5netcdf"))
    atomic_write(path, content)


def _digest(tree: xr.DataTree) -> str:
    """SHA-256 of what `load` uses: texts of the groups, and the bits of all values."""
    sha256 = hashlib.sha256()
    for group in tree.subtree:
        # As JSON, in which no two lists of texts look alike.
        texts = [
            group.path,
            *(str(group.attrs.get(name)) for name in ("format", "schema", "meta")),
        ]
        sha256.update(json.dumps(texts).encode())
        for name in sorted(map(str, group.variables)):
            values = group.variables[name]
            sha256.update(json.dumps([name, values.dims, values.shape]).encode())
            if values.dtype.kind in "fiub":
                sha256.update(np.ascontiguousarray(values.values).tobytes())
            else:  # texts are objects when they are read
                sha256.update(json.dumps(values.values.astype(str).tolist()).encode())
    return sha256.hexdigest()


SHARED_STATS = (
    "diverging",
    "depth",
    "maxdepth_reached",
    "n_steps",
    "step_size",
    "exact",
)
"""Sampler statistics in a file without losses. Not the log posterior or the energy: each of their
draws is an equation for the losses, and there are more draws than losses."""


def columns_read(fit: FittedLaw) -> set[str]:
    """Columns that the law, its effects and comparisons of rows may read; not the loss."""
    read = {
        *COVARIATES,
        *fit.law.columns,
        *fit.law.declared,
        *LABEL_COLUMNS,
        "synthetic",
    }
    read |= {UNIQUE, ANNEALED}
    read |= {effects.level(name).column for name in fit.spec.effects}
    if fit.law.step(Departure):
        read |= {*BASE_LOSSES}
    return read - {"loss"}


def without_losses(fit: FittedLaw, columns: set[str]) -> FittedLaw:
    """The fit without its training losses, and without what would give them back.

    Only `columns` stay: another one may be the loss in another unit.
    """
    if too_few_sizes(fit):
        raise BayeslawError(
            f"{fit.law.name} on {fit.table.name}: with so few model sizes, forecasts of others "
            f"depend on the training losses; save them too, or fit with "
            f"{argument('effects', 'none')}."
        )
    frame = fit.table.frame
    bare = frame[[column for column in frame if column in columns]]
    if "role" not in bare and (
        role := role_by_losses(frame)
    ):  # by losses that may not stay
        bare = bare.assign(role=role)
    return dataclasses.replace(
        fit,
        # Nor errors at the ends of runs, from which forecasts of further rows go on: they are the
        # last losses, less those of the law.
        draws=fit.draws.drop_vars([LAST_ERROR, *LAST_ROWS], errors="ignore"),
        stats=fit.stats[[name for name in SHARED_STATS if name in fit.stats]],
        # Baselines are losses too.
        table=dataclasses.replace(fit.table, frame=bare, baselines=bare.iloc[:0]),
        settings={**fit.settings, EXTENSION: fit.extension_seed},
    )


def tree_of(posterior: FittedLaw, columns: set[str] | None = None) -> xr.DataTree:
    """A posterior as `write` stores it; with `columns`, these alone and no training losses."""
    if columns is not None:
        posterior = without_losses(posterior, columns)
    meta = posterior.spec.arguments | {
        "at": dict(posterior.at),
        "convergence": dataclasses.asdict(posterior.convergence),
        "settings": dict(posterior.settings),
        "table": {
            n: getattr(posterior.table, n) for n in ("name", "selection", "sha256")
        },
    }
    frames = {"rows": posterior.table.frame, "baselines": posterior.table.baselines}
    # Columns as JSON, which keeps every bit of a float, and labels such as 007 or "".
    texts = {
        name: json.dumps(frame.to_dict("list"), ensure_ascii=False, default=str)
        for name, frame in frames.items()
    }
    table = xr.Dataset(texts)
    numeric = {
        n: v for n, v in posterior.stats.data_vars.items() if v.dtype.kind in "fiub"
    }
    tree = xr.DataTree.from_dict(
        {
            "posterior": posterior.draws,
            "sample_stats": xr.Dataset(numeric),
            "table": table,
        }
    )
    tree.attrs = {
        "format": MARK,
        "schema": SCHEMA,
        "meta": json.dumps(meta, ensure_ascii=False),
    }
    return tree


def pool_tree(
    members: Mapping[str, FittedLaw], about: Mapping[str, Any], losses: bool = True
) -> xr.DataTree:
    """A pool as `write` stores it: its members as groups."""
    # All members have one table, so each keeps what any of them reads.
    columns = None if losses else set().union(*map(columns_read, members.values()))
    trees = [tree_of(member, columns) for member in members.values()]
    tree = xr.DataTree(children={f"member {i}": each for i, each in enumerate(trees)})
    tree.attrs = {
        "format": POOL_MARK,
        "schema": SCHEMA,
        "meta": json.dumps({**about, "members": list(members)}, ensure_ascii=False),
    }
    return tree


def read(path: str | Path) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Arguments of the posteriors in a file, by label, and what it says of their pool, if any."""
    path = Path(path)
    if not path.is_file():
        what = "a folder, not a saved posterior" if path.is_dir() else "no such file"
        raise FileError(f"{path}: {what}.")
    try:
        with h5py.File(path) as file:
            dict(file.attrs)  # h5netcdf prints an error when it meets damage of these
        with xr.open_datatree(path, engine="h5netcdf") as tree:
            # Read whole while the file is open: damage of an array shows only here.
            tree.load()
            whole = _digest(tree) == tree.attrs.get("sha256")
    except Exception as error:  # damage makes HDF5 and xarray raise nearly every type
        raise FileError(
            f"{path}: not a readable posterior (truncated or another file)."
        ) from error
    form = tree.attrs.get("format")
    if form not in (MARK, POOL_MARK):
        raise FileError(f"{path}: a NetCDF file, but not a bayeslaw posterior.")
    try:
        schema = int(tree.attrs["schema"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path}: the posterior is damaged (no schema).") from error
    if schema != SCHEMA:  # before the digest: another layout is not damage
        newer = schema > SCHEMA
        raise FileError(
            f"{path}: schema {schema} is {'newer' if newer else 'older'} than this version "
            f"reads ({SCHEMA}); {'upgrade bayeslaw' if newer else 'fit again'}."
        )
    if not whole:
        raise FileError(
            f"{path}: damaged or edited: its content is not that of its SHA-256; restore the "
            "file, or fit again."
        )
    try:
        if form == MARK:
            return {"": _arguments(tree)}, {}
        about = json.loads(tree.attrs["meta"])
        fits = map(_arguments, tree.children.values())
        return dict(zip(about.pop("members"), fits, strict=True)), about
    except LawError as error:
        raise FileError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        # Not damage: the content is that of its SHA-256.
        why = f"no {error}" if isinstance(error, KeyError) else error
        raise FileError(
            f"{path}: written by another version of bayeslaw, whose model is another one ({why}); "
            "fit again."
        ) from error


def _arguments(tree: xr.DataTree) -> dict[str, Any]:
    """Arguments of the posterior of `tree_of`."""
    meta = json.loads(tree.attrs["meta"])
    draws, stats, stored = (
        tree[name].to_dataset() for name in ("posterior", "sample_stats", "table")
    )
    spec = spec_of(meta)
    if other := set(spec.law.coordinates) - set(draws.data_vars):
        lacking = ", ".join(sorted(other))
        raise ValueError(f"without {lacking}")
    rows, baselines = (
        pd.DataFrame(json.loads(stored[name].item())) for name in ("rows", "baselines")
    )
    if baselines.empty:  # whose columns have no type
        baselines = rows.iloc[:0]
    about = meta["table"]
    table = LossTable(rows, about["name"], baselines, about.get("selection", ""))
    if table.sha256 != about["sha256"]:
        raise ValueError("its table is not the one that was fitted")
    for walk in Design(spec.law, table, at=meta["at"]).law_with_knots.walks:
        # Knots follow from the rows and the code, which may have changed.
        if walk.knots and len(walk.knots.positions) != draws[walk.steps].shape[-1]:
            raise ValueError(f"other knots of {walk.steps}")
    checks = meta["convergence"]
    return {
        "spec": spec,
        "table": table,
        "at": meta["at"],
        "draws": draws,
        "stats": stats,
        # JSON has no tuples.
        "convergence": Convergence(**checks | {"slow": tuple(checks["slow"])}),
        "settings": meta["settings"],
    }


NATS = "nats per token"


def to_datatree(fit: FittedLaw, *, seed: int = 0, prior: int = 1000) -> xr.DataTree:
    frame = fit.table.frame
    rng = np.random.default_rng(seed)
    shape = fit.draws.sizes["chain"], fit.draws.sizes["draw"]
    rows = {"row": np.arange(len(frame))}

    def drawn(values: Floats, shape: tuple[int, int] = shape) -> xr.Dataset:
        return xr.Dataset(
            {OBSERVED: (("chain", "draw", "row"), values.reshape(*shape, -1))}, rows
        )

    latent = np.log(fit.losses(fit.table))
    improper = [name for name, p in fit.spec.priors.items() if not p.proper]
    groups_of = [effects.level(name).column for name in fit.spec.effects]
    columns = [
        c for c in dict.fromkeys((*COVARIATES, *fit.columns, *groups_of)) if c in frame
    ]
    observed = xr.DataArray(np.log(fit.table.loss), rows, ("row",))
    # Training rows without a label have the effect that was fitted to them, not a new one.
    replicated = latent + residual_draws(fit, frame, rng, training=True)
    groups = {
        "posterior": xr.merge([fit.draws, fit.paper], compat="override"),
        "sample_stats": fit.stats,
        "log_likelihood": drawn(log_likelihood(fit)),
        "posterior_predictive": drawn(replicated),
        "observed_data": xr.Dataset({OBSERVED: observed}),
        "constant_data": xr.Dataset(
            {c: ("row", frame[c].to_numpy()) for c in columns}, rows
        ),
    }
    if not improper:
        before, predictive = priors.draw(
            make_data(fit.spec, fit.table, at=fit.at), prior, rng
        )
        by_draw = {
            n: (("chain", "draw"), before[n].reshape(1, -1))
            for n in [*fit.values(), "E"]
        }
        groups["prior"] = xr.Dataset(by_draw)
        groups["prior_predictive"] = drawn(predictive, (1, prior))
    tree = xr.DataTree.from_dict(
        {name: with_units(group, fit) for name, group in groups.items()}
    )
    tree.attrs = {"law": fit.law.name, "table": fit.table.name}
    if improper:
        tree.attrs["prior"] = f"not drawn: improper for {', '.join(improper)}"
    return tree


def with_units(group: xr.Dataset, fit: FittedLaw) -> xr.Dataset:
    """The variables of a fit with their unit in ``attrs["units"]``."""
    slopes = {term.slope for term in fit.law.terms}
    units = (
        {c: row.unit for c, row in (TABLE | fit.law.declared).items()}
        | dict.fromkeys(slopes, "nats per token and e-fold")
        | {OBSERVED: f"log of {NATS}"}
    )
    units |= dict.fromkeys(("L_ref", "E"), NATS) | dict.fromkeys(
        fit.law.exponents, "dimensionless"
    )
    units |= dict.fromkeys(fit.spec.likelihood.parameters, "dimensionless")
    units |= dict.fromkeys(fit.law.coefficients, f"{NATS}, at covariates of 1")
    group = group.copy()
    for name, values in group.data_vars.items():
        if str(name) in units:
            values.attrs["units"] = units[str(name)]
        elif (
            str(name) == "sigma"
            or str(name).startswith("tau_")
            or "_effect" in str(name)
        ):
            values.attrs["units"] = "log loss, about a relative error"
    return group
