"""The command that writes a report: ``report``."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from bayeslaw.cli.app import command, show
from bayeslaw.cli.options import (
    Json,
    Quoted,
    Sampling,
    Seed,
    Selection,
    Source,
    Unconverged,
    columns_of,
    law_names,
    option,
)
from bayeslaw.cli.steps import PLAN, check_writable, compared, fit_or_load, is_posterior, limits_of
from bayeslaw.common.errors import BayeslawError


@command(
    """bayeslaw report data/delphi/isotoken.csv --law chinchilla \\
    --train "scale <= 3e20" --test "scale >= 1e21" --out report.html""",
    "bayeslaw report fit.nc --rows measured.csv",
    """bayeslaw report french.nc --grid "params=8.1e9 tokens=1e10,1e11 replay=.3 ptpp=279" \\
    --plan-source english.nc \\
    --plan "params=8.1e9 ptpp=279 max_loss=1.8 max_forgetting=.02 baseline=2.05\"""",
)
def report(
    *,
    ctx: typer.Context,
    source: Source,
    choice: Selection,
    compare: Annotated[
        str | None,
        option("Laws to compare on the same rows, such as form1,form2,dcpt.", metavar="LAWS"),
    ] = None,
    compare_method: Annotated[
        Literal["huber", "nuts"],
        typer.Option(help="huber: point fits; nuts: posteriors, minutes each."),
    ] = "huber",
    plan: Annotated[
        str | None,
        option(f'Limits of a plan, the last two optional: "{PLAN}".', metavar="LIMITS"),
    ] = None,
    plan_source: Annotated[
        Path | None, option("For --plan: posterior of the source domain.")
    ] = None,
    backtest: Quoted = None,
    question: Annotated[str | None, option("Question that the report answers.")] = None,
    out: Annotated[Path, typer.Option(help="Page to write (HTML).")] = Path("report.html"),
    allow_unconverged: Unconverged = False,
    seed: Seed = 0,
    json: Json = False,
    sampling: Sampling,
) -> None:
    """Write a report of a fit and its forecast, one HTML page that needs no network.

    From a table: fits the law to the --train rows and forecasts the --test rows. From a posterior:
    forecasts --rows or --grid. Where rows have a measured loss, the forecast is checked against it.
    With --plan the fit is that of the target domain, and the page has a section on the plan.
    """
    from bayeslaw.cli import render_report
    from bayeslaw.evaluate.backtesting import read_backtest
    from bayeslaw.inference.storage import load
    from bayeslaw.planning.planner import plan as make_plan
    from bayeslaw.reporting import report as make
    from bayeslaw.tables.reading import read_table

    check_writable(out)
    laws = None if compare is None else law_names(compare, "--compare")
    if laws and (is_posterior(source) or choice.rows is not None or choice.grid is not None):
        raise BayeslawError("--compare needs a table with --train and --test rows.")
    if (plan is None) != (plan_source is None):
        raise BayeslawError("--plan and --plan-source go together.")
    limits = None if plan is None else limits_of(plan)
    other = None if plan_source is None else load(plan_source)
    if other is not None:
        other.require_converged(allow_unconverged)
    fitted, rows = fit_or_load(source, choice, "nuts", sampling, seed)
    planned = comparison = None
    if limits is not None and other is not None:
        planned = make_plan(
            target=fitted, source=other, seed=seed, allow_unconverged=allow_unconverged, **limits
        )
    if laws is not None:
        table = read_table(
            source,
            columns=columns_of(choice.columns),
            where=choice.where,
            source=choice.source_table,
        )
        comparison = compared(
            table,
            laws,
            compare_method,
            sampling,
            train=choice.train,
            test=choice.test,
            seed=seed,
            allow_unconverged=allow_unconverged,
        )
    page = make(
        fitted,
        rows,
        train=choice.train,
        test=choice.test,
        question=question,
        comparison=comparison,
        plan=planned,
        backtest=None if backtest is None else read_backtest(backtest),
        command=_command(ctx),
        seed=seed,
        allow_unconverged=allow_unconverged,
    )
    page.write(out)
    rendered = render_report.report(page, fitted, choice.train, planned)
    show(json, "report", rendered, {"out": str(out)})


def _command(ctx: typer.Context) -> str:
    """Return the command line, rebuilt from the parsed options."""
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
