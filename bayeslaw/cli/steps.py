"""Steps that commands share: rows are chosen, fits made or loaded, files checked and written."""

import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayeslaw.cli.options import Choice, Sampling, covariates
from bayeslaw.common.errors import BayeslawError, FileError, TableError, TableWarning, unknown

if TYPE_CHECKING:
    import pandas as pd

    from bayeslaw.huber.point_fit import PointFit
    from bayeslaw.inference.posterior import Posterior
    from bayeslaw.tables.table import LossTable

HDF5 = b"\x89HDF\r\n\x1a\n"
"""First bytes of a NetCDF 4 file."""
NEEDED = ("params", "ptpp", "max_loss", "max_forgetting")
"""What the limits of a plan name; `baseline` and `confidence` may be there too."""
PLAN = "params=8.1e9 ptpp=279 max_loss=1.8 max_forgetting=.02 baseline=2.05 confidence=.9"


def fit_or_load(
    source: Path, choice: Choice, method: str, sampling: Sampling, seed: int
) -> tuple[Any, "LossTable"]:
    """A fit, loaded or made, and the rows to forecast; the rows are checked before the fit."""
    from bayeslaw.inference.storage import load
    from bayeslaw.laws.lawfiles import load_law
    from bayeslaw.tables.reading import read_table

    if is_posterior(source):
        for option in ("law", "train"):
            if getattr(choice, option) is not None:
                raise BayeslawError(f"--{option} has no effect on a saved posterior ({source}).")
        sampling.refuse(f"a saved posterior ({source})")
        posterior = load(source)
        rows = _rows(choice)
        if rows is None:
            raise TableError("say which rows to forecast, with --rows or --grid.")
        posterior.law.covariates(rows.frame, rows.name)
        return posterior, _like(rows, posterior.table)
    law = load_law(required(choice.law))
    table = read_table(source, where=choice.where)
    rows = _rows(choice)
    if rows is None:
        table, rows = table.split(choice.train, choice.test)
    else:
        table = table.query(choice.train)
    law.covariates(rows.frame, rows.name)
    return fit_table(law, table, method, sampling, seed), _like(rows, table)


def fit_table(
    law: Any, table: "LossTable", method: str, sampling: Sampling, seed: int
) -> "Posterior | PointFit":
    """Fit a law by the named method."""
    if method == "huber":
        from bayeslaw.huber.point_fit import fit_huber

        sampling.refuse("a Huber fit", keep=("delta",))
        return fit_huber(law, table, delta=sampling.delta, seed=seed)
    from bayeslaw.inference.fitting import fit

    run: Any = fit  # its overloads want the method as a literal
    fitted: Posterior | PointFit = run(
        law, table, method=method, seed=seed, progress=terminal(), **asdict(sampling)
    )
    return fitted


def limits_of(text: str) -> dict[str, Any]:
    """Limits of a plan that are written like `PLAN`, as arguments of `bayeslaw.plan`."""
    limits: dict[str, Any] = {}
    for part in text.split():
        name, _, value = part.partition("=")
        if name not in (valid := (*NEEDED, "baseline", "confidence")):
            raise BayeslawError(f"--plan: {unknown('limit', name, valid)}")
        try:
            limits[name] = float(value)
        except ValueError:
            if name != "baseline" or not value:
                raise BayeslawError(
                    f"--plan: cannot read {part!r}; write it as {PLAN!r}."
                ) from None
            limits[name] = value  # "asymptote" or "matched"
    if lacking := [name for name in NEEDED if name not in limits]:
        raise BayeslawError(f"--plan lacks {', '.join(lacking)}; write it as {PLAN!r}.")
    return limits


def compared(
    table: "LossTable",
    laws: Sequence[str],
    method: str,
    sampling: Sampling,
    **run: Any,
) -> "pd.DataFrame":
    """Scores of several laws on one split; `run` has the queries and the seed."""
    from bayeslaw.evaluate.comparison import compare

    settings: dict[str, Any] = {"delta": sampling.delta}
    if method == "nuts":
        settings = asdict(sampling) | {"progress": terminal()}
    return compare(table, laws=laws, method=method, **run, **settings)


def _rows(choice: Choice) -> "LossTable | None":
    """The rows of --rows or --grid, with or without losses."""
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


def _like(rows: "LossTable", table: "LossTable") -> "LossTable":
    """Rows marked synthetic if the training table is; domains not trained on are pointed out."""
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
    """Refuse before the work what could not be written after it."""
    if path is None:
        return
    if path.is_dir():
        raise FileError(f"{path}: cannot write: it is a folder.")
    if not path.parent.is_dir():
        raise FileError(f"{path}: cannot write: no folder {path.parent}.")
    if not os.access(path.parent, os.W_OK):
        raise FileError(f"{path}: cannot write: no permission in {path.parent}.")


def terminal() -> bool:
    """Whether somebody watches stderr: then a fit shows its progress."""
    return sys.stderr.isatty()


def _warn(text: str) -> None:
    warnings.warn(text, TableWarning, stacklevel=2)


def required(law: str | None) -> str:
    """Return the law, which must have been given."""
    if law is None:
        raise BayeslawError("say which law to fit, such as --law form3.")
    return law
