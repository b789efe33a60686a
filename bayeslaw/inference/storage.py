"""A posterior as one NetCDF file: draws, data, law, priors, seed, versions."""

import dataclasses
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from bayeslaw.common.content import content, restore, store
from bayeslaw.common.errors import FileError, LawError
from bayeslaw.common.files import atomic_write
from bayeslaw.inference.convergence import Convergence
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import parse_law, restored_law, stored_law
from bayeslaw.laws.priors import Prior
from bayeslaw.model import random_effects
from bayeslaw.model.discrepancies import DISCREPANCIES
from bayeslaw.model.likelihoods import LIKELIHOODS
from bayeslaw.model.spec import Spec, make_likelihood
from bayeslaw.tables.table import LossTable

SCHEMA = 5
"""Version of the file's layout; a file with a larger one is refused."""
OLDEST = 4
"""Oldest layout that is read."""
MARK = "bayeslaw posterior"


def save(posterior: Posterior, path: str | Path) -> None:
    """Write a posterior to `path`; an interrupted save leaves an earlier file untouched.

    Raises
    ------
    FileError
        If the file cannot be written.
    LawError
        If a term, the likelihood or the discrepancy is of a class that is not registered, or a
        file cannot hold one of its fields.
    """
    meta = stored_spec(posterior.spec) | {
        "text": _text_columns(posterior.table.frame),
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
        if int(attrs["schema"]) < OLDEST:
            raise FileError(
                f"{path}: schema {attrs['schema']} is older than this version reads ({OLDEST}); "
                "fit again."
            )
        return _posterior(parts, json.loads(attrs["meta"]), int(attrs["schema"]))
    except LawError as error:
        raise FileError(
            f"{path}: {error} If the class is defined elsewhere, import its module before loading."
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path}: the posterior is damaged ({error}).") from error


def _posterior(parts: dict[str, xr.Dataset], meta: Mapping[str, Any], schema: int) -> Posterior:
    spec = _spec_4(meta) if schema == OLDEST else restored_spec(meta)
    if other := set(spec.law.coordinates) - set(parts["posterior"].data_vars):
        lacking = ", ".join(sorted(other))
        raise ValueError(f"saved with another discrepancy, without {lacking}; fit again")
    text = meta.get("text", [])
    rows, baselines = (_frame(parts["table"][n].item(), text) for n in ("rows", "baselines"))
    return Posterior(
        spec=spec,
        table=LossTable(rows, baselines, meta["table"]["name"]),
        at=meta["at"],
        draws=parts["posterior"],
        stats=parts["sample_stats"],
        convergence=Convergence(**meta["convergence"]),
        settings=meta["settings"],
    )


def stored_spec(spec: Spec) -> dict[str, Any]:
    """The specification as plain data for a file; see `restored_spec`.

    Raises
    ------
    LawError
        If a term, the likelihood or the discrepancy is of a class that is not registered, or a
        file cannot hold one of its fields.
    """
    return {
        "law": stored_law(spec.law),
        "priors": {name: [prior.name, prior.arguments] for name, prior in spec.priors.items()},
        "likelihood": store(LIKELIHOODS, spec.likelihood),
        "discrepancy": store(DISCREPANCIES, spec.discrepancy),
        "noise": spec.noise,
        "effects": spec.effects,
        "new_sizes": spec.new_sizes,
        "levels": {name: content(random_effects.level(name)) for name in spec.effects},
    }


def restored_spec(meta: Mapping[str, Any]) -> Spec:
    """The specification of `stored_spec`.

    Raises
    ------
    LawError
        If a class or a level of random effects is not registered as it was.
    """
    for name, stored in meta["levels"].items():
        if content(random_effects.level(name)) != stored:
            raise LawError(
                f"the fit has effects of {name!r} as {stored}, which is registered otherwise."
            )
    discrepancy = restore(DISCREPANCIES, meta["discrepancy"])
    return Spec(
        law=discrepancy.apply(restored_law(meta["law"])),
        priors={name: _prior(*stored) for name, stored in meta["priors"].items()},
        likelihood=restore(LIKELIHOODS, meta["likelihood"]),
        discrepancy=discrepancy,
        noise=meta["noise"],
        effects=tuple(meta["effects"]),
        new_sizes=meta.get("new_sizes", True),
    )


def _spec_4(meta: Mapping[str, Any]) -> Spec:
    """Specification from schema 4: the law as TOML text, the other parts by name."""
    stored = dict(meta["law"])
    plain: Law = parse_law(stored.pop("text"), stored.pop("name"))
    discrepancy = DISCREPANCIES[meta["discrepancy"]]()
    kinds = {name: Prior.parse(text).name for name, text in meta["priors"].items()}
    return Spec(
        law=discrepancy.apply(dataclasses.replace(plain, **stored)),
        priors={name: _prior(kinds[name], each) for name, each in meta["arguments"].items()},
        likelihood=make_likelihood(meta["likelihood"], meta["delta"]),
        discrepancy=discrepancy,
        noise=meta["noise"],
        effects=tuple(meta["effects"]),
    )


def _prior(name: str, arguments: list[tuple[str, float]]) -> Prior:
    return Prior(name, [(key, float(value)) for key, value in arguments])


def _csv(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False, lineterminator="\n")


def _text_columns(frame: pd.DataFrame) -> list[str]:
    """Columns of text; without their type, a CSV reader would turn a label such as 007 into 7."""
    return [str(c) for c in frame if pd.api.types.is_string_dtype(frame[c])]


def _frame(csv: str, text: list[str]) -> pd.DataFrame:
    frame = pd.read_csv(io.StringIO(csv), keep_default_na=False, na_values=[""], nrows=0)
    types = {c: "str" for c in text if c in frame}
    return pd.read_csv(io.StringIO(csv), keep_default_na=False, na_values=[""], dtype=types)
