"""Fits that commands ask for, made from a table or loaded; their rows, headings and files."""

import io
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import bayeslaw as bl
from bayeslaw.cli.options import (
    Fitting,
    Reading,
    Rows,
    Selection,
    names_of,
    refuse,
)
from bayeslaw.common.errors import BayeslawError, FitWarning, TableError
from bayeslaw.common.files import atomic_write, is_hdf5
from bayeslaw.common.shown import Detail, Note, Shown
from bayeslaw.inference.settings import FitSettings

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from bayeslaw.inference.asked_rows import Need

type Fitted = bl.Posterior | bl.Pool | bl.PointFit


def is_posterior(path: Path) -> bool:
    """Whether a file is a saved posterior, by its ending or its first bytes."""
    return path.suffix == ".nc" or is_hdf5(path)


def fit_or_load(
    source: Path, choice: Selection, sampling: FitSettings, need: "Need" = "any"
) -> "tuple[Fitted, bl.LossTable]":
    """Return a fit, made or loaded, and the rows to forecast, checked before the fit."""
    from bayeslaw.inference.asked_rows import checked, laws_of

    if is_posterior(source):
        posterior = load(source, choice, sampling=sampling)
        return posterior, rows_of(posterior, choice, need)
    table = choice.table(source, choice.source_table)
    law = required(choice.law, table)
    rows = choice.asked()
    if rows is None:
        table, rows = table.split(choice.train, choice.test)
    else:
        table = table.training(choice.train)
    rows = checked(rows, laws_of(law, table), table, need)
    return fit_table(law, table, sampling), rows


def load(
    source: Path, choice: Rows, *used: str, sampling: FitSettings | None = None
) -> "bl.Posterior | bl.Pool":
    """Load a posterior; refuse options of a fit, and those of reading rows that are not `used`."""
    of_fit = [] if sampling is None else names_of(type(sampling), "seed")
    refuse(f"on a saved posterior ({source})", "law", "train", "source_table", *of_fit)
    if choice.rows is None:
        refuse("without --rows", *names_of(Reading, *used))
    return bl.load(source)


def rows_of(
    posterior: "bl.Posterior | bl.Pool", choice: Rows, need: "Need"
) -> "bl.LossTable":
    """The rows that a saved posterior is to forecast."""
    from bayeslaw.inference.asked_rows import checked

    rows = choice.asked()
    if rows is None:
        raise TableError("say which rows to forecast, with --rows or --grid.")
    return checked(rows, posterior.laws, posterior.table, need)


def required(law: str | None, table: "bl.LossTable") -> str:
    """Return the value of --law, or raise `BayeslawError` if none was given.

    `TableError` if the table cannot be fitted by it, before the sampler is imported.
    """
    from bayeslaw.inference.pools import member_laws
    from bayeslaw.laws.lawfiles import able_laws, load_law
    from bayeslaw.model.training import for_columns

    if law is None:
        raise BayeslawError(
            f"say which law to fit: --law NAME. {able_laws({*table.frame})}"
        )
    if member_laws(law) is None:
        for_columns(load_law(law), table)
    return law


def fit_table(law: str, table: "bl.LossTable", sampling: FitSettings) -> Fitted:
    """Fit a law as asked."""
    from bayeslaw.inference.pools import member_laws

    method = sampling.method if isinstance(sampling, Fitting) else "nuts"
    settings = sampling.arguments()
    members = member_laws(law)
    if members and method != "nuts":
        names = ", ".join(map(str, members))
        kind = "mode" if method == "map" else "Huber fit"
        raise BayeslawError(f"--law {law}: pools have no {kind}; fit one of {names}.")
    by_method: dict[str, Callable[..., Fitted]] = {
        "huber": bl.fit_huber,
        "map": bl.fit_map,
    }
    fit = by_method.get(method, bl.fit_pool if members else bl.fit)
    with warnings.catch_warnings():
        if method != "nuts":
            # The heading of a point fit says it.
            warnings.simplefilter("ignore", FitWarning)
        return fit(law, table, **settings)


# -- results --------------------------------------------------------------------------------------


def save_frame(path: Path | None, frame: "pd.DataFrame") -> None:
    from bayeslaw.tables.files import write_frame

    if path is not None:
        write_frame(frame, path)


def save_figure(path: Path | None, draw: "Callable[[], Figure]") -> None:
    if path is not None:
        drawn = io.BytesIO()
        draw().savefig(drawn, format=path.suffix[1:], dpi=200)
        atomic_write(path, drawn.getvalue())


def brief(fitted: Fitted) -> Shown:
    """Return the heading of a fit as a line and its warnings, and the rest as details."""
    head = fitted.heading()
    if isinstance(fitted, bl.PointFit):
        state = f"{round(fitted.agreeing * fitted.polished)} of {fitted.polished} starts agree"
    else:
        state = str(fitted.convergence) if fitted.convergence.enough else ""
    line = f"{head.document['law']}, fitted to {fitted.table}"
    blocks = [
        block if isinstance(block, Note) and block.level != "ok" else Detail(block)
        for block in (head.title, *head.blocks)
    ]
    return replace(head, title="; ".join(filter(None, [line, state])), blocks=blocks)


def beside(
    fitted: Fitted,
    shown: Shown,
    choice: Selection | None = None,
    rows: "bl.LossTable | None" = None,
) -> Shown:
    """Return a result below the heading of its fit; `choice` selected the `rows`."""
    from bayeslaw.tables.table import is_synthetic

    head = brief(fitted)
    # The heading says that a fit has not converged, so the result below it need not.
    said = fitted.heading().blocks
    below = replace(
        shown, blocks=[block for block in shown.blocks if block not in said]
    )
    synthetic = any(
        of.document.get("synthetic") for of in (head, shown)
    ) or is_synthetic(rows)
    whole = (head + below).adding(synthetic=synthetic)
    if choice is None:
        return whole
    return whole.adding(train=choice.train or head.document["train"], test=choice.test)
