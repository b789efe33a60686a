"""The command line: ``bayeslaw fit | forecast | score | compare | simulate``.

Results go to stdout, everything else to stderr. A user's mistake is one line on stderr and exit
code 2. Nothing heavy is imported before a command runs, so that ``--help`` answers at once. A new
command is one function under `_command`; what it says is one function in `bayeslaw.tell`.
"""

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from bayeslaw import __version__
from bayeslaw.errors import BayeslawError, FileError, FitWarning, TableError, TableWarning
from bayeslaw.options import (
    Choice,
    Command,
    Json,
    LawOption,
    Sampling,
    Seed,
    Source,
    Table,
    Test,
    Train,
    Unconverged,
    Where,
    band_levels,
    query,
    spread,
)
from bayeslaw.steps import (
    check_writable,
    fit_or_load,
    fit_table,
    is_posterior,
    required,
    terminal,
)

if TYPE_CHECKING:
    from bayeslaw.forecast import Forecast


def main() -> NoReturn:
    """Run the command line; the console script's entry point."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")  # a terminal that cannot show a character is no error
    try:
        sys.exit(app())
    except KeyboardInterrupt:
        _interrupted()


class _Group(TyperGroup):
    """Commands that tell a user's mistake in one line."""

    def main(self, args: Any = None, *, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]
        """Run a command; exit with 0, 2 for a user's mistake, or 130 if interrupted."""
        try:
            with _one_line_warnings():
                code = super().main(args, standalone_mode=False, **extra)
        except typer.TyperException as error:
            _fail(error.format_message())
        except (BayeslawError, OSError, UnicodeDecodeError) as error:
            _fail(str(error))
        if code == 130:
            _interrupted()
        return code if not standalone_mode else sys.exit(code or 0)


app = typer.Typer(
    cls=_Group,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _command(*examples: str) -> Callable[[Command], Command]:
    """Register a command, with `examples` in its help."""

    def register(command: Command) -> Command:
        label = "Example:" if len(examples) == 1 else "Examples:"
        lines = (f"  {line}" for example in examples for line in example.splitlines())
        text = "\n\n".join([inspect.cleandoc(command.__doc__ or ""), f"\b\n{label}"])
        app.command(help="\n".join([text, *lines]))(spread(command))
        return command

    return register


# -- commands -------------------------------------------------------------------------------------


@app.callback(invoke_without_command=True)
def bayeslaw(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Bayesian scaling laws for continual pre-training, with bands that can be believed.

    Tables have one row per measured loss: params, tokens, loss, and where the experiment has them
    replay and ptpp. Rows are chosen by pandas queries.
    """
    if version:
        typer.echo(f"bayeslaw {__version__}")
    elif ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@_command(
    """bayeslaw fit data/delphi/isotoken.csv --law chinchilla \\
    --train "scale <= 3e20" --out fit.nc""",
    'bayeslaw fit losses.csv --law form3 --train "ptpp <= 31" --method huber',
)
def fit(
    *,
    table: Table,
    law: LawOption = None,
    where: Where = None,
    train: Train = None,
    method: Annotated[
        Literal["nuts", "map", "huber"], typer.Option(help="Posterior, its mode, or the Huber fit.")
    ] = "nuts",
    out: Annotated[
        Path | None, typer.Option(help="Save the posterior (NetCDF).", show_default=False)
    ] = None,
    seed: Seed = 0,
    json: Json = False,
    sampling: Sampling,
) -> None:
    """Fit a law to a table of losses.

    Shows the parameters in the paper's coordinates and at the reference point, and whether the
    sampler has converged.
    """
    from bayeslaw import tell
    from bayeslaw.posterior import Posterior
    from bayeslaw.tables import read_table

    if out is not None and method != "nuts":
        raise FileError(f"--out saves a posterior; --method {method} has none (use --json).")
    check_writable(out)
    rows = read_table(table, where=where).query(train)
    fitted = fit_table(required(law), rows, method, sampling, seed)
    if isinstance(fitted, Posterior) and out is not None:
        fitted.save(out)
    how, fields = tell.method(method, sampling.likelihood, sampling.priors)
    more = {"seed": seed, "out": out and str(out)}
    _show(json, "fit", tell.fit(fitted, train, how), fields | more)


@_command(
    """bayeslaw forecast data/delphi/isotoken.csv --law chinchilla \\
    --train "scale <= 3e20" --test "scale >= 1e21\"""",
    """bayeslaw forecast fit.nc \\
    --grid "params=8.1e9 tokens=1e9,1e10 replay=.1,.3 ptpp=279\"""",
)
def forecast(
    *,
    source: Source,
    choice: Choice,
    levels: Annotated[str, typer.Option(help="Levels of the bands.")] = "0.5,0.9",
    kind: Annotated[
        Literal["predictive", "latent"],
        typer.Option(help="With the noise of a new measured loss, or without."),
    ] = "predictive",
    out: Annotated[
        Path | None, typer.Option(help="Write the bands (CSV or Parquet).", show_default=False)
    ] = None,
    allow_unconverged: Unconverged = False,
    seed: Seed = 0,
    json: Json = False,
    sampling: Sampling,
) -> None:
    """Forecast losses with credible bands.

    From a table: fits the law to the --train rows and forecasts the --test rows. From a posterior:
    forecasts --rows or --grid. Measured losses, where there are any, stand beside the bands.
    """
    from bayeslaw import tell

    bands = band_levels(levels)
    check_writable(out)
    fitted, rows = fit_or_load(source, choice, "nuts", sampling, seed)
    predicted: Forecast = fitted.forecast(
        rows, kind=kind, seed=seed, allow_unconverged=allow_unconverged
    )
    if out is not None:
        predicted.write(out, bands)
    told = tell.forecast(fitted, predicted, rows, bands, choice.train, choice.test)
    _show(json, "forecast", told, {"out": out and str(out)})


@_command(
    """bayeslaw score data/delphi/isotoken.csv --law chinchilla --method huber \\
    --train "scale <= 3e20" --test "scale >= 1e21\"""",
    "bayeslaw score fit.nc --rows measured.csv",
)
def score(
    *,
    source: Source,
    choice: Choice,
    method: Annotated[
        Literal["nuts", "map", "huber"], typer.Option(help="How a table is fitted first.")
    ] = "nuts",
    allow_unconverged: Unconverged = False,
    seed: Seed = 0,
    json: Json = False,
    sampling: Sampling,
) -> None:
    """Score a fit on measured losses."""
    from bayeslaw import tell
    from bayeslaw.scores import score

    fitted, rows = fit_or_load(source, choice, method, sampling, seed)
    if "loss" not in rows.frame:
        raise TableError(f"{rows.name}: no column 'loss'; scores need measured losses.")
    scores = score(fitted, rows, seed=seed, allow_unconverged=allow_unconverged)
    how, fields = tell.method(method, sampling.likelihood, sampling.priors)
    told = tell.score(fitted, rows, scores, choice.train, choice.test, how)
    _show(json, "score", told, {} if is_posterior(source) else fields | {"seed": seed})


@_command(
    """bayeslaw compare losses.csv --train "ptpp <= 31" --test "ptpp == 279" \\
    --anchors "ptpp == 279 and params < 3e8\"""",
)
def compare(
    *,
    table: Table,
    where: Where = None,
    train: Train = None,
    test: Test = None,
    anchors: Annotated[str | None, query("Test rows to add to the training rows.")] = None,
    laws: Annotated[str, typer.Option(help="Names or TOML paths.")] = "form1,form2,form3,dcpt",
    method: Annotated[
        Literal["huber", "nuts"], typer.Option(help="Point fits, or posteriors with bands.")
    ] = "huber",
    allow_unconverged: Unconverged = False,
    seed: Seed = 0,
    json: Json = False,
    sampling: Sampling,
) -> None:
    """Compare several laws on one split.

    Each is fitted to the --train rows and scored on the --test rows.
    dcpt, which knows no pre-training budget, is fitted twice: on the training rows (transfer) and
    on the test rows themselves (oracle).
    """
    from bayeslaw import tell
    from bayeslaw.comparison import compare
    from bayeslaw.tables import read_table

    names = [name.strip() for name in laws.split(",") if name.strip()]
    if not names:
        raise BayeslawError("--laws names no law.")
    losses = read_table(table, where=where)
    fitted, held = losses.split(train, test, anchors)
    settings = asdict(sampling) | {"progress": terminal()}
    if method == "huber":
        sampling.refuse("a Huber fit", keep=("delta",))
        settings = {"delta": sampling.delta}
    scores = compare(
        losses,
        train=train,
        test=test,
        anchors=anchors,
        laws=names,
        method=method,
        seed=seed,
        allow_unconverged=allow_unconverged,
        **settings,
    )
    queries = {"train": train, "test": test, "anchors": anchors}
    _show(json, "compare", tell.compare(scores, fitted, held, method, queries, seed))


@_command("bayeslaw simulate --domain french --seed 1 --out french.csv")
def simulate(
    *,
    out: Annotated[Path, typer.Option(help="Table to write (CSV or Parquet).", show_default=False)],
    domain: Annotated[
        Literal["french", "english_arabic", "both"], typer.Option(help="Domain of the losses.")
    ] = "french",
    noise: Annotated[bool, typer.Option(help="With noise on log loss, or without.")] = True,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Write a synthetic loss table.

    Losses on the paper's grid from stated true laws, calibrated to what the paper reports.
    """
    import pandas as pd

    from bayeslaw import tell
    from bayeslaw.simulation import paper_world
    from bayeslaw.tables import write_frame

    check_writable(out)
    world = paper_world()
    table = world.table(None if domain == "both" else domain, seed=seed, noise=noise)
    write_frame(pd.concat([table.frame, table.baselines], ignore_index=True), out)
    _show(json, "simulate", tell.simulate(world, table, noise, seed, out))


# -- streams --------------------------------------------------------------------------------------


def _show(as_json: bool, command: str, told: Any, more: dict[str, Any] | None = None) -> None:
    from bayeslaw.terminal import dumps, show

    document = {"command": command, "version": __version__} | told.document | (more or {})
    if as_json:
        typer.echo(dumps(document))
        return
    show(told)
    if document.get("out"):
        _note(f"wrote {document['out']}")


def _note(text: str, label: str = "", color: str | None = None) -> None:
    """One line on stderr."""
    label = typer.style(f"{label}:", fg=color, bold=True) + " " if label else ""
    typer.echo(label + " ".join(text.split()), err=True)


def _fail(text: str) -> NoReturn:
    _note(text, "error", "red")
    sys.exit(2)


def _interrupted() -> NoReturn:
    typer.echo("interrupted", err=True)
    sys.exit(130)


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        _note(str(message), "warning", "yellow")

    with warnings.catch_warnings():
        for kind in (FitWarning, TableWarning):
            warnings.simplefilter("always", kind)
        warnings.showwarning = show
        yield
