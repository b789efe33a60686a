"""A posterior as one NetCDF file: draws, data, law, priors, seed, versions."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from bayeslaw.common.errors import FileError
from bayeslaw.common.files import atomic_write
from bayeslaw.inference.convergence import Convergence
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.lawfiles import parse_law
from bayeslaw.laws.priors import Prior
from bayeslaw.model.discrepancies import with_discrepancy
from bayeslaw.model.spec import Spec
from bayeslaw.tables.table import LossTable

SCHEMA = 4
"""Version of the file's layout; a file with a larger one is refused."""
MARK = "bayeslaw posterior"
UNITS = ("token_unit", "ratio", "epsilon")
"""Settings stored beside the law's text: `dataclasses.replace` may have changed them."""


def save(posterior: Posterior, path: str | Path) -> None:
    """Write a posterior to `path`; an interrupted save leaves an earlier file untouched.

    Raises
    ------
    FileError
        If the file cannot be written.
    """
    spec = posterior.spec
    meta = {
        "law": {name: getattr(spec.law, name) for name in ("name", "text", *UNITS)},
        "priors": {name: str(prior) for name, prior in spec.priors.items()},
        "arguments": {name: prior.arguments for name, prior in spec.priors.items()},
        "likelihood": spec.likelihood,
        "discrepancy": spec.discrepancy,
        "noise": spec.noise,
        "effects": spec.effects,
        "delta": spec.delta,
        "at": dict(posterior.at),
        "convergence": dataclasses.asdict(posterior.convergence),
        "settings": dict(posterior.settings),
        "table": {"name": posterior.table.name, "sha256": posterior.table.sha256},
    }
    frames = {"rows": posterior.table.frame, "baselines": posterior.table.baselines}
    table = xr.Dataset({name: _csv(frame) for name, frame in frames.items()})
    numeric = {n: v for n, v in posterior.stats.data_vars.items() if v.dtype.kind in "fiub"}
    tree = xr.DataTree.from_dict(
        {"posterior": posterior.draws, "sample_stats": xr.Dataset(numeric), "table": table}
    )
    tree.attrs = {"format": MARK, "schema": SCHEMA, "meta": json.dumps(meta, ensure_ascii=False)}
    with atomic_write(path) as beside:
        tree.to_netcdf(beside, engine="h5netcdf")


def load(path: str | Path) -> Posterior:
    """Read a posterior written by `save`; it forecasts bit for bit as the saved one.

    Raises
    ------
    FileError
        If the file is missing, truncated, not a posterior, or written by a newer version.
    """
    path = Path(path)
    if not path.is_file():
        raise FileError(f"{path}: no such file.")
    try:
        with xr.open_datatree(path, engine="h5netcdf") as tree:
            attrs = dict(tree.attrs)
            parts = {name: tree[name].to_dataset().load() for name in tree.children}
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise FileError(f"{path}: not a readable posterior (truncated or foreign).") from error
    if attrs.get("format") != MARK:
        raise FileError(f"{path}: a NetCDF file, but not a bayeslaw posterior.")
    try:
        if int(attrs["schema"]) > SCHEMA:
            raise FileError(
                f"{path}: schema {attrs['schema']} is newer than this version reads ({SCHEMA}); "
                "upgrade bayeslaw."
            )
        if int(attrs["schema"]) < SCHEMA:
            raise FileError(f"{path}: schema {attrs['schema']} is from before 0.1.0; fit again.")
        return _posterior(parts, json.loads(attrs["meta"]))
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path}: the posterior is damaged ({error}).") from error


def _posterior(parts: dict[str, xr.Dataset], meta: dict[str, Any]) -> Posterior:
    law = parse_law(meta["law"]["text"], meta["law"]["name"])
    law = dataclasses.replace(law, **{name: meta["law"][name] for name in UNITS})
    law = with_discrepancy(law, meta["discrepancy"])
    if other := set(law.coordinates) - set(parts["posterior"].data_vars):
        lacking = ", ".join(sorted(other))
        raise ValueError(f"saved with another discrepancy, without {lacking}; fit again")
    arguments = {n: tuple((k, v) for k, v in a) for n, a in meta["arguments"].items()}
    names = {n: Prior.parse(text).name for n, text in meta["priors"].items()}
    priors = {n: Prior(names[n], arguments[n]) for n in names}
    rows, baselines = (_frame(parts["table"][name].item()) for name in ("rows", "baselines"))
    return Posterior(
        spec=Spec(
            law,
            priors,
            meta["likelihood"],
            meta["delta"],
            meta["discrepancy"],
            meta["noise"],
            tuple(meta["effects"]),
        ),
        table=LossTable(rows, baselines, meta["table"]["name"]),
        at=meta["at"],
        draws=parts["posterior"],
        stats=parts["sample_stats"],
        convergence=Convergence(**meta["convergence"]),
        settings=meta["settings"],
    )


def _csv(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False, lineterminator="\n")


def _frame(text: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""])
