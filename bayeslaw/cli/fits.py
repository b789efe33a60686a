"""Commands of one fit: ``init | simulate | fit | check | export | report``."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import typer

import bayeslaw as bl
from bayeslaw.cli import options as opt
from bayeslaw.cli.app import Result, command
from bayeslaw.cli.options import argument, option, output
from bayeslaw.common.errors import BayeslawError, FileError
from bayeslaw.common.files import atomic_write
from bayeslaw.common.shown import SYNTHETIC, Block, Detail, Note, Shown

WRITTEN = {
    "losses.csv": "data/delphi/isotoken.csv",
    "analysis.py": "templates/analysis.txt",
    "analysis.ipynb": "templates/analysis.ipynb",
}
"""Files that `init` writes, and those of the package that they are copies of."""


@command("bayeslaw init first", "bayeslaw init .")
def init(*, folder: Path = argument("Folder; made if it is not there.")) -> Shown:
    """Write a sample table, a commented script and the same as a notebook.

    The files are losses.csv, analysis.py and analysis.ipynb; both analyses run as they are. None is
    overwritten.
    """
    from bayeslaw.common.files import shipped

    if there := [name for name in WRITTEN if (folder / name).exists()]:
        raise FileError(f"{folder / there[0]} exists; name another folder, or move it.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot write: {error.strerror or error}.") from error
    for name, original in WRITTEN.items():
        atomic_write(folder / name, shipped(original).read_bytes())
    files = [str(folder / name) for name in WRITTEN]
    lines = [f"wrote {', '.join(files)}", f"next: cd {folder} && python analysis.py"]
    return Shown("", lines, {"files": files})


@command("bayeslaw simulate --domain french --seed 1 --out french.csv")
def simulate(
    *,
    out: Path = output("Table to write (CSV or Parquet).", *opt.TABLES, default=...),
    domain: Literal["french", "english_arabic", "both"] = option(
        "Domain of the losses.", default="french"
    ),
    noise: bool = option("Add noise to log loss, or not.", default=True),
    seed: int = opt.SEED,
) -> Shown:
    """Write a synthetic loss table.

    Losses on the paper's grid from known true laws, calibrated to the results in the paper.
    """
    import pandas as pd

    world = bl.paper_world()
    table = world.table(None if domain == "both" else domain, seed=seed, noise=noise)
    opt.save_frame(out, pd.concat([table.frame, table.baselines], ignore_index=True))
    blocks: list[Block] = [
        Note(SYNTHETIC, "synthetic"),
        f"{len(table)} losses and {len(table.baselines)} baselines (tokens = 0), seed {seed}; the "
        "column `synthetic` is True in every row.",
    ]
    domains = {}
    for name in table.frame["domain"].unique():
        law, truth = world.laws[name].name, dict(world.truth[name])
        sigma = world.sigma[name] if noise else 0.0
        domains[name] = {"law": law, "truth": truth, "sigma": sigma}
        values = ", ".join(f"{n} {v:g}" for n, v in truth.items())
        blocks += ["", Note(f"{name}: {law}, noise {sigma:g} on log loss"), [values]]
    document = {
        "out": out,
        "rows": len(table) + len(table.baselines),
        "baselines": len(table.baselines),
        "seed": seed,
        "limits": dict(world.limits),
        "domains": domains,
        "synthetic": True,
    }
    return Shown("", blocks, document)


@command(
    """bayeslaw fit data/delphi/isotoken.csv --law chinchilla \\
    --train "scale <= 3e20" --out fit.nc""",
    'bayeslaw fit losses.csv --law form3 --train "ptpp <= 31" --method huber',
)
def fit(
    *,
    table: Path = opt.LOSS_TABLE,
    law: str | None = opt.LAW,
    source_table: Path | None = opt.SOURCE_TABLE,
    reading: opt.Reading,
    train: str | None = opt.TRAIN,
    method: opt.Method = option("Posterior, its mode, or a Huber fit.", default="nuts"),
    bounds: opt.Bounds = opt.BOUNDS,
    out: Path | None = output("Save the posterior (NetCDF).", ".nc"),
    seed: int = opt.SEED,
    sampling: opt.Sampling,
) -> Result:
    """Fit a law to a table of losses.

    Shows medians and 90 % intervals of the parameters of the formula and of those at the reference
    point, the convergence diagnostics of the sampler, and the commands that come next. Exit code 1
    if the fit has not converged; it is saved all the same.
    """
    if out is not None and method != "nuts":
        raise FileError(f"--out saves a posterior; --method {method} has none (use --json).")
    losses = reading.table(table, source_table)
    rows = losses.training(train)
    fitted = opt.fit_table(opt.required(law, rows), rows, method, sampling, seed, bounds)
    shown, head = fitted.shown(), opt.brief(fitted)
    parameters = shown.blocks[len(head.blocks) :]
    # Of a fit that is saved the parameters are in the file.
    parameters = parameters if out is None else [Detail(block) for block in parameters]  # type: ignore[arg-type]
    shown = replace(shown, blocks=[*head.blocks, *parameters], short=head.short)
    shown = shown.adding(**opt.how(method, sampling), seed=seed, out=out)
    if train:
        shown = shown.adding(train=train)
    if isinstance(fitted, bl.PointFit):
        return Result(shown)
    failed = []
    if out is not None:
        try:
            fitted.save(out)
        except FileError as error:  # such as a full disk, which must not cost the result
            failed, shown, out = [f"error: {error}"], shown.adding(out=None), None
    code = 2 if failed else int(not fitted.convergence.ok)
    return Result(shown, failed or next_commands(fitted, out), code)


def next_commands(fitted: "bl.Posterior | bl.Pool", out: Path | None) -> list[str]:
    """What to do with a fit that converged, as commands that run as they are, in lines."""
    if not fitted.convergence.ok:
        return []
    frame = fitted.table.frame
    ahead = {c: frame[c].max() * (2 if c in ("params", "tokens") else 1) for c in fitted.columns}
    grid = " ".join(f"{column}={value:.3g}" for column, value in ahead.items())
    saved = [] if out else ["save the fit with --out fit.nc to use it:"]
    command = f'{shlex.quote(str(out or "fit.nc"))} --grid "{grid}"'
    return [*saved, f"next: bayeslaw check {command}", f"then: bayeslaw forecast {command}"]


@command(
    """bayeslaw check losses.csv --law form3 \\
    --train "ptpp <= 31" --test "ptpp == 279\"""",
    """bayeslaw check fit.nc \\
    --grid "params=8.1e9 tokens=1e10 replay=.3 ptpp=279" --json""",
)
def check(
    *,
    source: Path = opt.SOURCE,
    choice: opt.Selection,
    fail_on: Literal["caution", "refuse"] = option(
        "Least level that gives exit code 1.", default="refuse"
    ),
    beyond_evidence: bool = opt.BEYOND_EVIDENCE,
    seed: int = opt.SEED,
    sampling: opt.Sampling,
) -> Result:
    """Check a fit before its forecasts are used.

    Checks whether the bands hold on measured rows that were not fitted or, without such rows, on
    the farthest training rows, forecast from the others by a short refit; how far the forecast
    extrapolates; convergence; and which parameters the data do not determine. Exit code 1 if the
    verdict is "refuse" (or "caution", with --fail-on caution), to stop a pipeline.
    """
    from bayeslaw.checks.findings import SEVERITIES

    saved, rows = opt.is_posterior(source), None
    if choice.test or choice.rows or choice.grid or (choice.train and not saved):
        fitted, rows = opt.fit_or_load(source, choice, "nuts", sampling, seed)
    elif saved:
        fitted = opt.load(source, choice, sampling)
    else:
        table = choice.table(source, choice.source_table)
        fitted = opt.fit_table(opt.required(choice.law, table), table, "nuts", sampling, seed)
    assert not isinstance(fitted, bl.PointFit)
    checked = bl.check(fitted.accepted(beyond_evidence=beyond_evidence), rows, seed=seed)
    shown = opt.beside(fitted, checked.shown(), choice, rows)
    return Result(shown, code=int(SEVERITIES.index(checked.level) >= SEVERITIES.index(fail_on)))


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
    source: Path = opt.SOURCE,
    choice: opt.Selection,
    compare: str | None = option(
        "Laws to compare on the same rows, such as form1,form2,dcpt.", metavar="LAWS"
    ),
    compare_method: Literal["huber", "nuts"] = option(
        "huber: point fits; nuts: posteriors, minutes each.", default="huber"
    ),
    plan: str | None = option(
        f'Limits of a plan, the last two optional: "{opt.PLAN}".', metavar="LIMITS"
    ),
    plan_source: Path | None = option("For --plan: posterior of the source domain."),
    backtest: Path | None = opt.QUOTED,
    out: Path = output("Page to write (HTML).", ".html", default=Path("report.html")),
    allow_unconverged: bool = opt.UNCONVERGED,
    seed: int = opt.SEED,
    sampling: opt.Sampling,
) -> Shown:
    """Write a report of a fit and its forecast, one HTML page that needs no network.

    From a table: fits the law to the --train rows and forecasts the --test rows. From a posterior:
    forecasts --rows or --grid. Where rows have a measured loss, the forecast is checked against it.
    With --plan the fit is that of the target domain, and the page has a section on the plan.
    """
    laws = None if compare is None else opt.names(compare, "--compare", "law")
    if laws and (opt.is_posterior(source) or choice.rows is not None or choice.grid is not None):
        raise BayeslawError("--compare needs a table with --train and --test rows.")
    if (plan is None) != (plan_source is None):
        raise BayeslawError("--plan and --plan-source go together.")
    limits = {} if plan is None else opt.limits_of(plan)
    tested = None if backtest is None else bl.read_backtest(backtest)
    for name in laws or ():
        bl.load_law(name)
    other = None if plan_source is None else bl.load(plan_source)
    if other is not None:
        other = other.accepted(unconverged=allow_unconverged, beyond_evidence=True)
        other.require_converged()
    fitted, rows = opt.fit_or_load(source, choice, "nuts", sampling, seed)
    assert not isinstance(fitted, bl.PointFit)
    fitted = fitted.accepted(unconverged=allow_unconverged)
    split: dict[str, Any] = {"train": choice.train, "test": choice.test}
    planned = comparison = None
    if other is not None:
        target = fitted.accepted(beyond_evidence=True)
        planned = bl.plan(target=target, source=other, seed=seed, **limits)
    if laws is not None:
        table = choice.table(source, choice.source_table)
        how: dict[str, Any] = {"seed": seed, "unconverged": allow_unconverged}
        comparison = opt.compared(table, laws, compare_method, sampling, **split, **how)
    page = bl.report(
        fitted,
        rows,
        comparison=comparison,
        plan=planned,
        backtest=tested,
        command=_command(ctx),
        **split,
        seed=seed,
    )
    page.write(out)
    shown = opt.beside(fitted, page.shown(), choice, rows)
    return shown.adding(plan=None if planned is None else planned.to_dict(), out=out)


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
