"""A posterior as one NetCDF file: draws, data, law, priors, seed, versions."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.errors import FileError, LawError
from bayeslaw.common.files import atomic_write
from bayeslaw.inference.convergence import Convergence
from bayeslaw.inference.fitted import FittedLaw
from bayeslaw.model.spec import spec_of
from bayeslaw.tables.table import LossTable

SCHEMA = 9
"""Version of the file's layout; a file with another one is refused."""
MARK, POOL_MARK = "bayeslaw posterior", "bayeslaw pool"


def write(tree: xr.DataTree, path: str | Path) -> None:
    """Write a tree with the digest of its content, by which `read` finds damage."""
    tree.attrs["sha256"] = _digest(tree)
    with atomic_write(path) as beside:
        tree.to_netcdf(beside, engine="h5netcdf")


def _digest(tree: xr.DataTree) -> str:
    """SHA-256 of what `load` uses: texts of the groups, and the bits of all values."""
    sha256 = hashlib.sha256()
    for group in tree.subtree:
        texts = [group.path, *(str(group.attrs.get(name)) for name in ("format", "schema", "meta"))]
        sha256.update(json.dumps(texts).encode())
        for name in sorted(map(str, group.variables)):
            values = group.variables[name]
            sha256.update(json.dumps([name, values.dims, values.shape]).encode())
            if values.dtype.kind in "fiub":
                sha256.update(np.ascontiguousarray(values.values).tobytes())
            else:  # texts are objects when they are read
                sha256.update(json.dumps(values.values.astype(str).tolist()).encode())
    return sha256.hexdigest()


def tree_of(posterior: FittedLaw) -> xr.DataTree:
    """A posterior as it is written."""
    meta = posterior.spec.arguments | {
        "at": dict(posterior.at),
        "convergence": dataclasses.asdict(posterior.convergence),
        "settings": dict(posterior.settings),
        "table": {
            "name": posterior.table.name,
            "selection": posterior.table.selection,
            "sha256": posterior.table.sha256,
        },
    }
    frames = {"rows": posterior.table.frame, "baselines": posterior.table.baselines}
    # Columns as JSON, which keeps every bit of a float, and labels such as 007 or "".
    texts = {
        name: json.dumps(frame.to_dict("list"), ensure_ascii=False, default=str)
        for name, frame in frames.items()
    }
    table = xr.Dataset(texts)
    numeric = {n: v for n, v in posterior.stats.data_vars.items() if v.dtype.kind in "fiub"}
    tree = xr.DataTree.from_dict(
        {"posterior": posterior.draws, "sample_stats": xr.Dataset(numeric), "table": table}
    )
    tree.attrs = {"format": MARK, "schema": SCHEMA, "meta": json.dumps(meta, ensure_ascii=False)}
    return tree


def pool_tree(members: Mapping[str, FittedLaw], about: Mapping[str, Any]) -> xr.DataTree:
    """A pool as it is written: its members as groups."""
    tree = xr.DataTree(children={f"member {i}": tree_of(m) for i, m in enumerate(members.values())})
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
        with xr.open_datatree(path, engine="h5netcdf") as tree:
            tree.load()
            whole = _digest(tree) == tree.attrs.get("sha256")
    except Exception as error:  # damage makes HDF5 and xarray raise nearly every type
        raise FileError(f"{path}: not a readable posterior (truncated or another file).") from error
    form = tree.attrs.get("format")
    if form not in (MARK, POOL_MARK):
        raise FileError(f"{path}: a NetCDF file, but not a bayeslaw posterior.")
    try:
        if (schema := int(tree.attrs["schema"])) != SCHEMA:
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
        if form == MARK:
            return {"": _arguments(tree)}, {}
        about = json.loads(tree.attrs["meta"])
        fits = map(_arguments, tree.children.values())
        return dict(zip(about.pop("members"), fits, strict=True)), about
    except LawError as error:
        raise FileError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path}: the posterior is damaged ({error}).") from error


def _arguments(tree: xr.DataTree) -> dict[str, Any]:
    """Arguments of the posterior of `tree_of`."""
    meta = json.loads(tree.attrs["meta"])
    draws, stats, stored = (
        tree[name].to_dataset() for name in ("posterior", "sample_stats", "table")
    )
    spec = spec_of(meta)
    if other := set(spec.law.coordinates) - set(draws.data_vars):
        lacking = ", ".join(sorted(other))
        raise ValueError(f"saved with another discrepancy, without {lacking}; fit again")
    rows, baselines = (
        pd.DataFrame(json.loads(stored[name].item())) for name in ("rows", "baselines")
    )
    if baselines.empty:  # whose columns have no type
        baselines = rows.iloc[:0]
    about = meta["table"]
    table = LossTable(rows, baselines, about["name"], about.get("selection", ""))
    if table.sha256 != about["sha256"]:
        raise ValueError("its table is not the one that was fitted")
    for walk in spec.law.over(spec.law.covariates(table), meta["at"]).walks:
        if walk.knots and len(walk.knots.positions) != draws[walk.steps].shape[-1]:
            raise ValueError(f"saved with other knots of {walk.steps}; fit again")
    checks = meta["convergence"]
    return {
        "spec": spec,
        "table": table,
        "at": meta["at"],
        "draws": draws,
        "stats": stats,
        "convergence": Convergence(**checks | {"slow": tuple(checks["slow"])}),
        "settings": meta["settings"],
    }
