"""Fits that commands ask for, made from a table or loaded, and the rows that they forecast."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import bayeslaw as bl
from bayeslaw.cli.options import Fitting, Rows, Sampling, Selection, Training, refuse
from bayeslaw.common.errors import BayeslawError, FitWarning, TableError
from bayeslaw.common.files import is_hdf5

type Fitted = bl.Posterior | bl.Pool | bl.PointFit


def is_posterior(path: Path) -> bool:
    """Whether a file is a saved posterior, by its ending or its first bytes."""
    return path.suffix == ".nc" or is_hdf5(path)


def fit_or_load(
    source: Path,
    choice: Selection,
    sampling: Sampling,
    *,
    measured: bool = False,
    near: bool = False,
) -> "tuple[Fitted, bl.LossTable]":
    """Return a fit, made or loaded, and the rows to forecast, checked before the fit.

    They are `measured` if they must have losses, and `near` if rows too far from the fitted ones
    are refused.
    """
    if is_posterior(source):
        posterior = load(source, choice, sampling)
        return posterior, rows_of(posterior, choice, measured=measured, near=near)
    table = choice.table(source, choice.source_table)
    law, rows = required(choice.law, table), choice.asked()
    if rows is None:
        table, rows = table.split(choice.train, choice.test)
    else:
        table = table.training(choice.train)
    rows = checked(rows, laws_of(law, table), table, measured=measured, near=near)
    return fit_table(law, table, sampling), rows


def load(source: Path, choice: Rows, sampling: Sampling | None = None) -> "bl.Posterior | bl.Pool":
    """Load a posterior; refuse options of a fit, and of reading rows if there are none."""
    where = f"on a saved posterior ({source})"
    if isinstance(choice, Training):
        refuse(where, law=choice.law, train=choice.train, source_table=choice.source_table)
    if sampling is not None:
        refuse(where, **sampling.changed("seed"))
    if choice.rows is None:
        refuse("without --rows", **choice.settings() | {"columns": choice.columns})
    return bl.load(source)


def rows_of(
    posterior: "bl.Posterior | bl.Pool", choice: Rows, *, measured: bool = False, near: bool = False
) -> "bl.LossTable":
    """The rows that a saved posterior is to forecast."""
    rows = choice.asked()
    if rows is None:
        raise TableError("say which rows to forecast, with --rows or --grid.")
    return checked(rows, posterior.laws, posterior.table, measured=measured, near=near)


def checked(
    rows: "bl.LossTable",
    laws: "Sequence[bl.Law]",
    fitted: "bl.LossTable",
    *,
    measured: bool = False,
    near: bool = False,
) -> "bl.LossTable":
    """The rows, with what the laws hold; `TableError` if they cannot forecast or score them."""
    from bayeslaw.tables.hull import evidence
    from bayeslaw.tables.validation import check_rows

    for law in laws:
        law.covariates(rows)
        check_rows(rows.frame, rows.name, fitted.frame)
        if measured and "loss" not in rows.frame:
            raise TableError(f"{rows.name}: no column 'loss'; scores need measured losses.")
        if near:
            places = bl.locate(fitted, rows, law.about)
            level, says = evidence(places, law.about, refuse=True)
            if level == "refuse":
                raise TableError(f"{rows.name}: {says}")
        rows = replace(rows, frame=law.at_held(rows.frame, rows.name))
    return rows


def required(law: str | None, table: "bl.LossTable") -> str:
    """Return the value of --law, or raise `BayeslawError` if none was given.

    `TableError` if the table cannot be fitted by it, before the sampler is imported.
    """
    from bayeslaw.inference.pools import member_laws
    from bayeslaw.laws.lawfiles import able_laws, for_columns, load_law

    if law is None:
        raise BayeslawError(f"say which law to fit: --law NAME. {able_laws(table.frame)}")
    if member_laws(law) is None:
        for_columns(load_law(law), table)
    return law


def laws_of(law: str, table: "bl.LossTable") -> "list[bl.Law]":
    """The law of that name as it is fitted to a table, or all laws of a pool."""
    from bayeslaw.huber.bases import for_table
    from bayeslaw.inference.pools import member_laws

    return [for_table(bl.load_law(str(name)), table) for name in member_laws(law) or [law]]


def fit_table(law: str, table: "bl.LossTable", sampling: Sampling) -> Fitted:
    """Fit a law as asked."""
    from bayeslaw.inference.pools import member_laws

    method = sampling.method if isinstance(sampling, Fitting) else "nuts"
    settings = sampling.settings()
    members = member_laws(law)
    if members and method != "nuts":
        names, kind = ", ".join(map(str, members)), "mode" if method == "map" else "Huber fit"
        raise BayeslawError(f"--law {law}: pools have no {kind}; fit one of {names}.")
    by_method: dict[str, Callable[..., Fitted]] = {"huber": bl.fit_huber, "map": bl.fit_map}
    fit = by_method.get(method, bl.fit_pool if members else bl.fit)
    with warnings.catch_warnings():
        if method != "nuts":
            warnings.simplefilter("ignore", FitWarning)  # the heading of a point fit says it
        return fit(law, table, **settings)
