"""Steps of several commands: select rows, make or load a fit, check that files can be written."""

import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, overload

from bayeslaw.cli.options import Bounds, Sampling, Selection, columns_of, covariates
from bayeslaw.common.errors import BayeslawError, FileError, TableError, TableWarning, unknown

if TYPE_CHECKING:
    import pandas as pd

    from bayeslaw.huber.point_fit import PointFit
    from bayeslaw.inference.pools import Pool
    from bayeslaw.inference.posterior import Posterior
    from bayeslaw.laws.law import Law
    from bayeslaw.tables.table import LossTable

HDF5 = b"\x89HDF\r\n\x1a\n"
"""First bytes of a NetCDF 4 file."""
NEEDED = ("params", "ptpp", "max_loss", "max_forgetting")
"""Limits that a plan needs."""
OPTIONAL = ("unique_tokens", "confidence")
"""Numbers that it may have besides."""
CONFIDENCE = 0.9
"""Probability with which a plan meets its limits, unless one is given."""
PLAN = "params=8.1e9 ptpp=279 max_loss=1.8 max_forgetting=.02 baseline=2.05 confidence=.9"
"""Limits of a plan, as a user writes them."""
WORDS = ("baseline", "base")
"""Limits that may be words: "asymptote", "law" or "matched", and the label of a base."""


type Method = Literal["nuts", "map", "huber"]


class PlanOptions(TypedDict):
    """Limits of a plan, as arguments of `bayeslaw.plan`."""

    params: float
    ptpp: float
    max_loss: float
    max_forgetting: float
    baseline: float | str | None
    base: str | None
    unique_tokens: float | None
    confidence: float


@overload
def fit_or_load(
    source: Path, choice: Selection, method: Literal["nuts"], sampling: Sampling, seed: int
) -> "tuple[Posterior | Pool, LossTable]": ...
@overload
def fit_or_load(
    source: Path,
    choice: Selection,
    method: Method,
    sampling: Sampling,
    seed: int,
    bounds: Bounds = ...,
) -> "tuple[Posterior | Pool | PointFit, LossTable]": ...
def fit_or_load(
    source: Path,
    choice: Selection,
    method: Method,
    sampling: Sampling,
    seed: int,
    bounds: Bounds = "paper",
) -> "tuple[Posterior | Pool | PointFit, LossTable]":
    """Return a fit, made or loaded, and the rows to forecast; these are checked before the fit."""
    from bayeslaw.huber.point_fit import for_table
    from bayeslaw.inference.pools import member_laws
    from bayeslaw.inference.storage import load
    from bayeslaw.laws.lawfiles import load_law
    from bayeslaw.tables.reading import read_table

    if is_posterior(source):
        for option in ("law", "train", "source_table"):
            if getattr(choice, option) is not None:
                option = option.replace("_", "-")
                raise BayeslawError(f"--{option} has no effect on a saved posterior ({source}).")
        if method != "nuts":
            raise BayeslawError(f"--method has no effect on a saved posterior ({source}).")
        sampling.refuse(f"a saved posterior ({source})")
        refuse_bounds(bounds, f"a saved posterior ({source})")
        posterior = load(source)
        rows = _rows(choice)
        if rows is None:
            raise TableError("say which rows to forecast, with --rows or --grid.")
        for member, *_ in posterior.parts():
            member.law.covariates(rows.frame, rows.name)
        return posterior, _labelled(rows, posterior.table)
    name = required(choice.law)
    laws = [load_law(str(law)) for law in member_laws(name) or [name]]
    table = read_table(
        source, columns=columns_of(choice.columns), where=choice.where, source=choice.source_table
    )
    rows = _rows(choice)
    if rows is None:
        table, rows = table.split(choice.train, choice.test)
    else:
        table = table.training(choice.train)
    for law in laws:
        for_table(law, table).covariates(rows.frame, rows.name)
    asked = laws[0] if len(laws) == 1 else name
    return fit_table(asked, table, method, sampling, seed, bounds), _labelled(rows, table)


@overload
def fit_table(
    law: "str | Law", table: "LossTable", method: Literal["nuts"], sampling: Sampling, seed: int
) -> "Posterior | Pool": ...
@overload
def fit_table(
    law: "str | Law",
    table: "LossTable",
    method: Method,
    sampling: Sampling,
    seed: int,
    bounds: Bounds = ...,
) -> "Posterior | Pool | PointFit": ...
def fit_table(
    law: "str | Law",
    table: "LossTable",
    method: Method,
    sampling: Sampling,
    seed: int,
    bounds: Bounds = "paper",
) -> "Posterior | Pool | PointFit":
    """Fit a law by the named method."""
    if method == "huber":
        from bayeslaw.huber.point_fit import fit_huber

        sampling.refuse("a Huber fit", keep=("delta",))
        return fit_huber(law, table, delta=sampling.delta, bounds=bounds, seed=seed)
    refuse_bounds(bounds, f"--method {method}")
    from bayeslaw.inference.fitting import fit

    if method == "map":
        sampling.refuse("a posterior mode", keep=("likelihood", "priors", "delta"))
        return fit(
            law,
            table,
            method="map",
            likelihood=sampling.likelihood,
            priors=sampling.priors,
            delta=sampling.delta,
            seed=seed,
        )
    posterior: Posterior | Pool = fit(
        law, table, method="nuts", seed=seed, progress=terminal(), **asdict(sampling)
    )
    return posterior


def limits_of(text: str) -> PlanOptions:
    """Parse limits of a plan that are written like `PLAN`."""
    numbers: dict[str, float] = {}
    words: dict[str, str] = {}
    for part in text.split():
        name, _, value = part.partition("=")
        if name not in (valid := (*NEEDED, *WORDS, *OPTIONAL)):
            raise BayeslawError(f"--plan: {unknown('limit', name, valid)}")
        if name == "base" and value:
            words[name] = value
            continue
        try:
            numbers[name] = float(value)
        except ValueError:
            if name != "baseline" or not value:
                raise BayeslawError(
                    f"--plan: cannot read {part!r}; write it as {PLAN!r}."
                ) from None
            words[name] = value
    if lacking := [name for name in NEEDED if name not in numbers]:
        raise BayeslawError(f"--plan lacks {', '.join(lacking)}; write it as {PLAN!r}.")
    return {
        "params": numbers["params"],
        "ptpp": numbers["ptpp"],
        "max_loss": numbers["max_loss"],
        "max_forgetting": numbers["max_forgetting"],
        "baseline": numbers.get("baseline", words.get("baseline")),
        "base": words.get("base"),
        "unique_tokens": numbers.get("unique_tokens"),
        "confidence": numbers.get("confidence", CONFIDENCE),
    }


def compared(
    table: "LossTable",
    laws: Sequence[str],
    method: Literal["huber", "nuts"],
    sampling: Sampling,
    *,
    source: "LossTable | None" = None,
    bounds: Bounds = "paper",
    train: str | None,
    test: str | None,
    anchors: str | None = None,
    seed: int,
    allow_unconverged: bool,
) -> "pd.DataFrame":
    """Return scores of several laws on one split."""
    from bayeslaw.evaluate.scores import compare

    settings = asdict(sampling) | {"progress": terminal()}
    if method == "huber":
        settings = {"delta": sampling.delta}
    else:
        refuse_bounds(bounds, f"--method {method}")
    return compare(
        table,
        source=source,
        bounds=bounds,
        laws=laws,
        method=method,
        train=train,
        test=test,
        anchors=anchors,
        seed=seed,
        allow_unconverged=allow_unconverged,
        **settings,
    )


def refuse_bounds(bounds: Bounds, where: str) -> None:
    """Raise `BayeslawError` if bounds of a Huber fit were given that have no effect on `where`."""
    if bounds != "paper":
        raise BayeslawError(f"--bounds has no effect on {where}.")


def _rows(choice: Selection) -> "LossTable | None":
    """Return the rows of --rows or --grid, with or without losses."""
    from bayeslaw.tables.reading import from_frame, read_frame
    from bayeslaw.tables.table import LossTable, grid
    from bayeslaw.tables.validation import canonical

    if choice.grid is not None:
        if choice.rows is not None or choice.test is not None:
            raise TableError("--grid goes without --rows and --test.")
        frame = canonical(grid(**covariates(choice.grid)), "--grid", ())
        return LossTable(frame, frame.iloc[:0], "--grid")
    if choice.rows is None:
        return None
    frame, name = canonical(read_frame(choice.rows), str(choice.rows), ()), str(choice.rows)
    if "loss" in frame:
        rows = from_frame(frame, name)
        if bases := len(rows.baselines):
            _warn(f"{name}: {bases} rows with tokens = 0 are baselines, not forecast.")
    else:
        rows = LossTable(frame, frame.iloc[:0], name)
    return rows.query(choice.where).query(choice.test)


def _labelled(rows: "LossTable", table: "LossTable") -> "LossTable":
    """Mark rows as synthetic if the training table is; warn of domains without training rows."""
    from bayeslaw.tables.reading import is_synthetic
    from bayeslaw.tables.table import LossTable

    if "domain" in rows.frame and "domain" in table.frame:
        new = sorted(set(map(str, rows.frame["domain"])) - set(map(str, table.frame["domain"])))
        if new:
            _warn(f"{rows.name}: not fitted on domain {', '.join(new)}.")
    if is_synthetic(table) and "synthetic" not in rows.frame:
        return LossTable(rows.frame.assign(synthetic=True), rows.baselines, rows.name)
    return rows


def is_posterior(path: Path) -> bool:
    """Whether a file is a saved posterior, by its ending or its first bytes."""
    if path.suffix == ".nc" or not path.is_file():
        return path.suffix == ".nc"
    with path.open("rb") as file:
        return file.read(len(HDF5)) == HDF5


def check_writable(path: Path | None) -> None:
    """Raise `FileError` before the work if `path` could not be written after it."""
    if path is None:
        return
    if path.is_dir():
        raise FileError(f"{path}: cannot write: it is a folder.")
    if not path.parent.is_dir():
        raise FileError(f"{path}: cannot write: no folder {path.parent}.")
    if not os.access(path.parent, os.W_OK):
        raise FileError(f"{path}: cannot write: no permission in {path.parent}.")


def terminal() -> bool:
    """Whether stderr is a terminal: then a fit shows its progress."""
    return sys.stderr.isatty()


def _warn(text: str) -> None:
    warnings.warn(text, TableWarning, stacklevel=2)


def required(law: str | None) -> str:
    """Return the value of --law, or raise `BayeslawError` if it was not given."""
    if law is None:
        raise BayeslawError("say which law to fit, such as --law form3.")
    return law
