"""Steps of several commands: select rows, make or load a fit, save tables and figures."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import bayeslaw as bl
from bayeslaw.cli.options import Bounds, Method, Sampling, Selection, columns_of, covariates, refuse
from bayeslaw.cli.terminal import progress
from bayeslaw.common.errors import BayeslawError, TableError, TableWarning
from bayeslaw.common.files import is_hdf5

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

type Fitted = bl.Posterior | bl.Pool | bl.PointFit


def fit_or_load(
    source: Path,
    choice: Selection,
    method: Method,
    sampling: Sampling,
    seed: int,
    bounds: Bounds = "paper",
    measured: bool = False,
    near: bool = False,
) -> "tuple[Fitted, bl.LossTable]":
    """Return a fit, made or loaded, and the rows to forecast, checked before the fit.

    They are `measured` if they must have losses, and `near` if rows too far from the fitted ones
    are refused.
    """
    from bayeslaw.huber.point_fit import for_table
    from bayeslaw.inference.pools import member_laws

    if is_posterior(source):
        others = {"method": method != "nuts", "bounds": bounds != "paper"}
        posterior = load(source, choice, sampling, **others)
        rows = _rows(choice, columns_of(choice.columns))
        if rows is None:
            raise TableError("say which rows to forecast, with --rows or --grid.")
        for member, *_ in posterior.by_member():
            _check(rows, member.law, posterior.table, measured, near)
        return posterior, _labelled(rows, posterior.table)
    name = required(choice.law)
    laws = [bl.load_law(str(law)) for law in member_laws(name) or [name]]
    table, rows = table_of(source, choice), _rows(choice, {})
    if rows is None:
        table, rows = table.split(choice.train, choice.test)
    else:
        table = table.training(choice.train)
    for law in laws:
        _check(rows, for_table(law, table), table, measured, near)
    asked = laws[0] if len(laws) == 1 else name
    return fit_table(asked, table, method, sampling, seed, bounds), _labelled(rows, table)


def load(
    source: Path, choice: Selection, sampling: Sampling, **others: bool
) -> "bl.Posterior | bl.Pool":
    """Load a posterior; refuse options of a fit, of which `others` say whether they were given."""
    given = {"law": choice.law, "train": choice.train, "source_table": choice.source_table}
    refuse(f"on a saved posterior ({source})", **given, **others, **sampling.given())
    if choice.rows is None:
        refuse("without --rows", columns=choice.columns, where=choice.where, **unit_of(choice))
    return bl.load(source)


def _check(
    rows: "bl.LossTable", law: "bl.Law", table: "bl.LossTable", measured: bool, near: bool
) -> None:
    """Raise `TableError` if a law fitted to a table cannot forecast or score some rows."""
    from bayeslaw.checks.extrapolation import evidence
    from bayeslaw.tables.validation import check_units

    law.covariates(rows.frame, rows.name)
    check_units(rows.frame, rows.name, table.frame)
    if measured and "loss" not in rows.frame:
        raise TableError(f"{rows.name}: no column 'loss'; scores need measured losses.")
    if near:
        level, words = evidence(bl.locate(table, rows, law.columns), law.columns)
        if level == "refuse":
            raise TableError(f"{rows.name}: {words}")


def fit_table(
    law: "str | bl.Law",
    table: "bl.LossTable",
    method: Method,
    sampling: Sampling,
    seed: int,
    bounds: Bounds = "paper",
) -> Fitted:
    """Fit a law by the named method."""
    settings = asdict(sampling)
    if method == "huber":
        refuse("on a Huber fit", **sampling.given("delta"))
        return bl.fit_huber(law, table, delta=sampling.delta, bounds=bounds, seed=seed)
    refuse(f"on --method {method}", bounds=bounds != "paper")
    if method == "map":
        kept = ("likelihood", "priors", "delta")
        refuse("on a posterior mode", **sampling.given(*kept))
        return bl.fit(law, table, method="map", seed=seed, **{n: settings[n] for n in kept})
    return bl.fit(law, table, method="nuts", seed=seed, progress=progress(), **settings)


def table_of(path: Path, choice: Selection) -> "bl.LossTable":
    """Read the table of losses of a `Selection`."""
    units = choice.loss_unit, choice.bytes_per_token
    return read_losses(path, choice.columns, choice.where, *units, choice.source_table)


def read_losses(
    path: Path,
    columns: str | None,
    where: str | None,
    loss_unit: str | None,
    bytes_per_token: float | None,
    source: Path | None = None,
) -> "bl.LossTable":
    """Read a table of losses; all but the path are values of options."""
    return bl.read_table(
        path,
        columns=columns_of(columns),
        where=where,
        source=source,
        loss_unit=loss_unit,
        bytes_per_token=bytes_per_token,
    )


def unit_of(choice: Selection) -> dict[str, Any]:
    """Return the arguments of `bayeslaw.from_frame` for the unit of the losses."""
    return {"loss_unit": choice.loss_unit, "bytes_per_token": choice.bytes_per_token}


def compared(
    table: "bl.LossTable",
    laws: Sequence[str],
    method: Literal["huber", "nuts"],
    sampling: Sampling,
    bounds: Bounds = "paper",
    **options: Any,
) -> "pd.DataFrame":
    """Return scores of several laws on one split; `options` are those of `bayeslaw.compare`."""
    settings: dict[str, Any] = {"delta": sampling.delta}
    if method == "nuts":
        refuse(f"on --method {method}", bounds=bounds != "paper")
        settings = asdict(sampling) | {"progress": progress()}
    return bl.compare(table, laws=laws, method=method, bounds=bounds, **options, **settings)


def _rows(choice: Selection, columns: Mapping[str, str]) -> "bl.LossTable | None":
    """Return the rows of --rows or --grid, with or without losses; a file may have `columns`."""
    from bayeslaw.tables.table import in_nats, read_frame, renamed
    from bayeslaw.tables.validation import canonical

    if choice.grid is not None:
        if choice.rows is not None or choice.test is not None:
            raise TableError("--grid goes without --rows and --test.")
        return grid_or_file("--grid", grid=choice.grid)
    if choice.rows is None:
        return None
    name = str(choice.rows)
    frame = renamed(read_frame(name), columns, name)
    if "loss" not in frame:
        frame = canonical(frame, name, ())
        frame = in_nats(frame, name, choice.loss_unit, choice.bytes_per_token)
        rows = bl.LossTable(frame, frame.iloc[:0], name)
        return rows.query(choice.where).query(choice.test)
    rows = bl.from_frame(frame, name, **unit_of(choice))
    if bases := len(rows.baselines):
        text = f"{name}: {bases} rows with tokens = 0 are baselines, not forecast."
        warnings.warn(text, TableWarning, stacklevel=2)
    return rows.query(choice.where).query(choice.test)


def grid_or_file(name: str, grid: str | None = None) -> "bl.LossTable":
    """Return rows of the file `name`, or of a grid such as ``"params=1e9 tokens=1e9,1e10"``."""
    from bayeslaw.tables.table import read_frame
    from bayeslaw.tables.validation import canonical

    given = read_frame(name) if grid is None else bl.grid(**covariates(grid, name))
    frame = canonical(given, name, ())
    return bl.LossTable(frame, frame.iloc[:0], name)


def _labelled(rows: "bl.LossTable", table: "bl.LossTable") -> "bl.LossTable":
    """Mark rows as synthetic if the training table is; refuse rows of another domain."""
    from bayeslaw.tables.table import is_synthetic
    from bayeslaw.tables.validation import check_domain

    check_domain(rows.frame, rows.name, table.frame)
    if is_synthetic(table) and "synthetic" not in rows.frame:
        return replace(rows, frame=rows.frame.assign(synthetic=True))
    return rows


def is_posterior(path: Path) -> bool:
    """Whether a file is a saved posterior, by its ending or its first bytes."""
    return path.suffix == ".nc" or is_hdf5(path)


def save_frame(path: Path | None, frame: "pd.DataFrame") -> None:
    """Write a table, if there is a path."""
    from bayeslaw.tables.table import write_frame

    if path is not None:
        write_frame(frame, path)


def save_figure(path: Path | None, draw: "Callable[[], Figure]") -> None:
    """Draw a figure and save it, if there is a path."""
    if path is not None:
        draw().savefig(path, dpi=200)


def required(law: str | None) -> str:
    """Return the value of --law, or raise `BayeslawError` if it was not given."""
    if law is None:
        raise BayeslawError("say which law to fit, such as --law form3.")
    return law
