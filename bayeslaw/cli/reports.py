"""Command ``report``."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bayeslaw.cli.app import command, show
from bayeslaw.cli.options import Choice, Json, Sampling, Seed, Source, Unconverged
from bayeslaw.cli.steps import check_writable, fit_or_load, is_posterior, terminal
from bayeslaw.errors import BayeslawError


@command(
    """bayeslaw report data/delphi/isotoken.csv --law chinchilla \\
    --train "scale <= 3e20" --test "scale >= 1e21" --out report.html""",
    "bayeslaw report fit.nc --rows measured.csv",
)
def report(
    *,
    ctx: typer.Context,
    source: Source,
    choice: Choice,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="LAWS",
            help="Laws to compare on the same rows, such as form1,form2,dcpt.",
            show_default=False,
        ),
    ] = None,
    compare_method: Annotated[
        Literal["huber", "nuts"],
        typer.Option(help="huber: point fits; nuts: posteriors, minutes each."),
    ] = "huber",
    question: Annotated[
        str | None, typer.Option(help="What the report is to answer.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="Page to write (HTML).")] = Path("report.html"),
    allow_unconverged: Unconverged = False,
    seed: Seed = 0,
    json: Json = False,
    sampling: Sampling,
) -> None:
    """Write a report of a fit and its forecast, one HTML page that needs no network.

    From a table: fits the law to the --train rows and forecasts the --test rows. From a posterior:
    forecasts --rows or --grid. Where rows have a measured loss, the forecast is checked against it.
    """
    from bayeslaw.cli import tell_report
    from bayeslaw.reporting import report as make

    check_writable(out)
    laws = [name.strip() for name in (compare or "").split(",") if name.strip()]
    if laws and (is_posterior(source) or choice.rows is not None or choice.grid is not None):
        raise BayeslawError("--compare needs a table with --train and --test rows.")
    fitted, rows = fit_or_load(source, choice, "nuts", sampling, seed)
    comparison = None
    if laws:
        from bayeslaw.comparison import compare as compared
        from bayeslaw.tables import read_table

        settings: dict[str, Any] = {"delta": sampling.delta}
        if compare_method == "nuts":
            settings = asdict(sampling) | {"progress": terminal()}
        comparison = compared(
            read_table(source, where=choice.where),
            train=choice.train,
            test=choice.test,
            laws=laws,
            method=compare_method,
            seed=seed,
            allow_unconverged=allow_unconverged,
            **settings,
        )
    page = make(
        fitted,
        rows,
        train=choice.train,
        test=choice.test,
        question=question,
        comparison=comparison,
        command=_command(ctx),
        seed=seed,
        allow_unconverged=allow_unconverged,
    )
    page.write(out)
    show(json, "report", tell_report.report(page, fitted, choice.train), {"out": str(out)})


def _command(ctx: typer.Context) -> str:
    """The command as it was given, put together from the parsed options."""
    words = ["bayeslaw", str(ctx.info_name)]
    for parameter in ctx.command.params:
        name = str(parameter.name)
        source = ctx.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        value, option = ctx.params[name], parameter.param_type_name == "option"
        words += [parameter.opts[0]] if option else []
        words += [] if value is True else [str(value)]
    return shlex.join(words)
