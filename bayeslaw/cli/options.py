"""Options that several commands have in common, and parsers of their values."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

import typer
from typer.models import OptionInfo

from bayeslaw.common.defaults import AUTO, CHAINS, DELTA, TARGET_ACCEPT, TUNE
from bayeslaw.common.errors import BayeslawError, TableError
from bayeslaw.common.files import models_dir

Table = Annotated[Path, typer.Argument(help="Loss table, CSV or Parquet.", show_default=False)]
Source = Annotated[
    Path,
    typer.Argument(
        metavar="TABLE_OR_POSTERIOR",
        help="Loss table to fit first, or a posterior saved by `bayeslaw fit --out`.",
        show_default=False,
    ),
]
Saved = Annotated[
    Path, typer.Argument(help="Posterior saved by `bayeslaw fit --out`.", show_default=False)
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Unconverged = Annotated[
    bool, typer.Option("--allow-unconverged", help="Use a posterior that has not converged.")
]


def option(text: str, *, metavar: str | None = None, min: float | None = None) -> OptionInfo:
    """Option without a default to show."""
    info: OptionInfo = typer.Option(help=text, show_default=False, metavar=metavar, min=min)
    return info


def query(text: str) -> OptionInfo:
    """Option that takes a pandas query."""
    return option(text, metavar="QUERY")


LAWS = ", ".join(sorted(path.stem for path in models_dir().glob("*.toml")))
LawOption = Annotated[
    str | None, option(f"Law: {LAWS}, the path of a TOML file, or adaptation, a pool of laws.")
]
SourceTable = Annotated[
    Path | None,
    option("Loss table of the domain of pre-training, for laws that start from the base's loss."),
]
Where = Annotated[str | None, query("Rows of the table to use; all others are ignored.")]
Columns = Annotated[
    str | None,
    option(
        'Where the file has other names: "params=size; tokens=billions * 1e9; loss=`eval/loss`".',
        metavar="SPEC",
    ),
]
Quoted = Annotated[
    Path | None,
    option("Backtest to quote, written by `bayeslaw backtest --out`.", metavar="FILE"),
]
Train = Annotated[str | None, query('Rows to fit, such as "ptpp <= 31".')]
Test = Annotated[str | None, query('Rows to forecast and score, such as "ptpp == 279".')]

Bounds = Annotated[
    Literal["paper", "prior"],
    typer.Option(help="Bounds of a Huber fit: as published, or those of the priors."),
]

type Command = Callable[..., None]


@dataclass(frozen=True)
class Sampling:
    """The likelihood, the priors, the discrepancy, the random effects and the sampler."""

    likelihood: Annotated[
        str, typer.Option(help="Likelihood of log loss: studentt, normal or huber.", metavar="KIND")
    ] = "studentt"
    priors: Annotated[
        str, typer.Option(help="Priors: default, flat, or the path of a TOML file.")
    ] = "default"
    delta: Annotated[float, typer.Option(help="Threshold of the Huber loss, in log loss.")] = DELTA
    discrepancy: Annotated[
        str,
        typer.Option(
            help="Discrepancy of the law: auto, walk, adaptation, curvature or none.",
            metavar="KIND",
        ),
    ] = AUTO
    noise: Annotated[
        str,
        typer.Option(
            help="Noise scale: constant, loglinear in N, or a level such as size or base, each "
            "of whose groups has its own.",
            metavar="KIND|LEVEL",
        ),
    ] = "constant"
    effects: Annotated[
        str,
        typer.Option(
            help="Random effects: auto, none, or columns such as size,base,run.", metavar="LEVELS"
        ),
    ] = "auto"
    errors: Annotated[
        Literal["auto", "run", "independent"],
        typer.Option(help="Errors of log loss: correlated within a run, or independent."),
    ] = "auto"
    chains: Annotated[int, typer.Option(help="Chains.", min=1)] = CHAINS
    draws: Annotated[
        int | None, typer.Option(help="Draws of each chain; by default as many as needed.", min=1)
    ] = None
    tune: Annotated[int, typer.Option(help="Tuning steps of each chain.", min=1)] = TUNE
    target_accept: Annotated[float, typer.Option(help="Target acceptance, between 0 and 1.")] = (
        TARGET_ACCEPT
    )
    sampler: Annotated[Literal["nutpie", "pymc"], typer.Option(help="NUTS implementation.")] = (
        "nutpie"
    )

    def __post_init__(self) -> None:
        if not 0 < self.target_accept < 1:
            raise BayeslawError(f"--target-accept {self.target_accept:g} is not between 0 and 1.")

    def refuse(self, where: str, *, keep: Sequence[str] = ()) -> None:
        """Raise `BayeslawError` if an option was given that has no effect on `where`."""
        for f in fields(self):
            if f.name not in keep and getattr(self, f.name) != f.default:
                raise BayeslawError(f"--{f.name.replace('_', '-')} has no effect on {where}.")


@dataclass(frozen=True)
class Selection:
    """The law to fit, the rows to fit it to, and the rows to forecast."""

    law: LawOption = None
    columns: Columns = None
    source_table: SourceTable = None
    where: Where = None
    train: Train = None
    test: Test = None
    rows: Annotated[
        Path | None, option("Table of rows to forecast, with losses or without; --test selects.")
    ] = None
    grid: Annotated[
        str | None,
        option(
            'Grid of rows to forecast: "params=8.1e9 tokens=1e9,1e10 replay=.1,.3 ptpp=279".',
            metavar="SPEC",
        ),
    ] = None


def spread(command: Command) -> Command:
    """Replace each parameter of `command` that is a dataclass of options by those options."""
    hints = get_type_hints(command, include_extras=True)
    groups = {
        name: hint for name, hint in hints.items() if inspect.isclass(hint) and is_dataclass(hint)
    }
    parameters: list[inspect.Parameter] = []
    for p in inspect.signature(command).parameters.values():
        if group := groups.get(p.name):
            kinds = get_type_hints(group, include_extras=True)
            options = [(f.name, f.default, kinds[f.name]) for f in fields(group)]
        else:
            options = [(p.name, p.default, hints[p.name])]
        parameters += [
            inspect.Parameter(name, p.KEYWORD_ONLY, default=default, annotation=kind)
            for name, default, kind in options
        ]

    @wraps(command)
    def run(**values: object) -> None:
        for name, group in groups.items():
            values[name] = group(**{f.name: values.pop(f.name) for f in fields(group)})
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def covariates(text: str, option: str = "--grid") -> dict[str, list[float]]:
    """Parse covariates such as ``"params=8.1e9 tokens=1e9,1e10"``."""
    values: dict[str, list[float]] = {}
    for part in text.split():
        name, _, numbers = part.partition("=")
        try:
            parsed = [float(number) for number in numbers.split(",")]
        except ValueError:
            raise TableError(
                f"{option}: cannot read {part!r}; write it as 'params=8.1e9 tokens=1e9,1e10'."
            ) from None
        if name in values:
            raise TableError(f"{option}: {name!r} is there twice.")
        values[name] = parsed
    if not values:
        raise TableError(f"{option} is empty; write it as 'params=8.1e9 tokens=1e9,1e10'.")
    return values


def columns_of(text: str | None) -> dict[str, str]:
    """Parse columns such as ``"params=size; loss=final_loss"``."""
    found = {}
    for part in (text or "").split(";"):
        name, equals, given = (word.strip() for word in part.partition("="))
        if part.strip() and not (name and equals and given):
            raise TableError(
                f"--columns: cannot read {part.strip()!r}; write it as 'params=size; "
                "loss=final_loss'."
            )
        if name:
            found[name] = given
    return found


def numbers(
    text: str, option: str, how: str = "write numbers with commas, such as 1,2", size: int = 0
) -> list[float]:
    """Parse numbers such as ``"1e21,1e24"``: `size` of them, or any number if that is 0."""
    try:
        found = [float(number) for number in text.split(",")]
    except ValueError:
        found = []
    if not found or size not in (0, len(found)):
        raise BayeslawError(f"{option}: cannot read {text!r}; {how}.")
    return found


def names(text: str) -> list[str]:
    """Parse names such as ``"form1,form3"``."""
    return [name.strip() for name in text.split(",") if name.strip()]


def law_names(text: str, option: str) -> list[str]:
    """Parse names of laws, at least one."""
    if found := names(text):
        return found
    raise BayeslawError(f"{option} names no law.")


def band_levels(text: str) -> list[float]:
    """Parse levels of bands such as ``"0.5,0.9"``; sorted."""
    levels = numbers(text, "--levels", "write it as 0.5,0.9")
    for level in levels:
        if not 0 < level < 1:
            raise BayeslawError(f"--levels: {level:g} is not between 0 and 1; 0.9 is a 90 % band.")
    return sorted(set(levels))
