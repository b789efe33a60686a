"""The command that checks a fit before its forecasts are used: ``check``."""

from typing import Annotated, Literal

import typer

from bayeslaw.cli.app import command, show
from bayeslaw.cli.options import Json, Sampling, Seed, Selection, Source, columns_of
from bayeslaw.cli.steps import fit_or_load, fit_table, is_posterior, required
from bayeslaw.common.errors import BayeslawError


@command(
    """bayeslaw check losses.csv --law form3 \\
    --train "ptpp <= 31" --test "ptpp == 279\"""",
    """bayeslaw check fit.nc \\
    --grid "params=8.1e9 tokens=1e10 replay=.3 ptpp=279" --json""",
)
def check(
    *,
    source: Source,
    choice: Selection,
    fail_on: Annotated[
        Literal["caution", "refuse"], typer.Option(help="Least level that gives exit code 1.")
    ] = "refuse",
    seed: Seed = 0,
    json: Json = False,
    sampling: Sampling,
) -> None:
    """Check a fit before its forecasts are used.

    Checks convergence, which directions of the parameters the data determine and which only the
    priors, how far the forecast extrapolates, and whether the fit predicts its training rows. Exit
    code 1 if the verdict is "refuse" (or "caution", with --fail-on caution), to stop a pipeline.
    """
    from bayeslaw.checks.checkup import check
    from bayeslaw.checks.part import LEVELS
    from bayeslaw.cli import render_check
    from bayeslaw.inference.storage import load
    from bayeslaw.tables.reading import read_table

    saved = is_posterior(source)
    if choice.test or choice.rows or choice.grid or (choice.train and not saved):
        fitted, rows = fit_or_load(source, choice, "nuts", sampling, seed)
    elif saved:
        if choice.law or choice.train or choice.where:
            raise BayeslawError(
                f"--law, --train and --where do not go with a posterior ({source})."
            )
        sampling.refuse(f"a saved posterior ({source})")
        fitted, rows = load(source), None
    else:
        table = read_table(
            source,
            columns=columns_of(choice.columns),
            where=choice.where,
            source=choice.source_table,
        )
        fitted, rows = fit_table(required(choice.law), table, "nuts", sampling, seed), None
    found = check(fitted, rows, seed=seed)
    show(json, "check", render_check.check(fitted, rows, found, choice.train, choice.test))
    if LEVELS.index(found.level) >= LEVELS.index(fail_on):
        raise typer.Exit(1)
