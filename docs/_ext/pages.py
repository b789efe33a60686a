"""Generated parts of the pages: laws, priors, commands, modules, outputs, public names.

A page has ``[[[cog`` blocks, hidden in HTML comments, that call these functions.
``python docs/_ext/pages.py`` makes their outputs again, ``--check`` only says which are stale.
An output of a command is made again if its command has changed, or with ``--run``.
"""

import argparse
import ast
import inspect
import math
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterable
from graphlib import TopologicalSorter
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "bayeslaw"
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
PAGES += sorted(DOCS.glob("howto/*.md"))
RUN = "RUN_COMMANDS_OF_PAGES"
"""Variable of the environment: run all commands again."""
WIDE = {"COLUMNS": "88", "TERM": "dumb"}
"""Variables of the environment for what commands print."""

API = {
    "Tables": "read_table from_frame read_domains read_wandb read_tensorboard read_trainer"
    " example_table grid locate LossTable",
    "Laws and priors": "load_law Law Prior",
    "Fits": "fit fit_groups fit_pool fit_map pymc_model Posterior Pool load fit_huber PointFit",
    "Forecasts and scores": "forecast TableForecast Forecast score compare register verify"
    " Verification",
    "Checks and cross-validation": "check Check backtest read_backtest Backtest",
    "Derived numbers": "derive.compute_optimal derive.flops_to_reach derive.compute_multiplier"
    " derive.local_exponents derive.floor derive.at_floors derive.accuracy"
    " derive.Derived derive.AtFloors compare_recipes Recipes derive.frontier derive.Frontier",
    "Plans, anchors, studies": "plan Plan Choice plan_example choose_anchors Anchors study"
    " explore Explorer",
    "Reports": "report Report",
    "Figures": "plots.coverage"
    " plots.compute_optimal plots.forecast plots.in_sample plots.overview plots.observed"
    " plots.pit_values plots.backtest plots.plan_frontier plots.plan_landscape plots.frontier"
    " plots.residuals",
    "Synthetic tables": "simulate paper_world",
    "Errors and warnings": "BayeslawError TableError LawError FitError NotConverged FileError"
    " TableWarning FitWarning",
    "Extension points": "model.noise.Likelihood model.discrepancy.Discrepancy"
    " model.discrepancy.Curvature model.discrepancy.WalkingExponents laws.deviations.Deviation"
    " laws.deviations.Linear laws.deviations.Polynomial laws.deviations.Walk",
}
"""Public names by topic, in the order in which a reader meets them."""


# -- modules --------------------------------------------------------------------------------------


def module_files() -> dict[str, Path]:
    """Every module by its dotted name; a module comes after those that it imports."""
    files = {
        dotted(path): path for path in PACKAGE.rglob("*.py") if path.stem != "__main__"
    }
    above = {module: imports(path, files) - {module} for module, path in files.items()}
    depth: dict[str, int] = {}
    for module in TopologicalSorter(above).static_order():
        depth[module] = 1 + max((depth[other] for other in above[module]), default=0)
    return {
        module: files[module] for module in sorted(files, key=lambda m: (depth[m], m))
    }


def dotted(path: Path) -> str:
    """Dotted name of a module's file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, files: Collection[str]) -> set[str]:
    """Modules among `files` that a module imports at its top level."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & set(files)
            found |= inner or {node.module} & set(files)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & set(files)
    return found


def summary(path: Path) -> str:
    """First line of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def package_layers() -> list[list[str]]:
    """Packages by layer, from the top, as import-linter checks them."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    rows = next(each["layers"] for each in contracts if each["type"] == "layers")
    return [row.split(" | ") for row in rows]


def modules(package: str) -> None:
    """Print the modules of a package, each below those that it imports."""
    files, full = module_files(), f"bayeslaw.{package}"
    if full not in files:
        raise ValueError(f"no package {full}")
    own = {
        m.rpartition(".")[2]: path
        for m, path in files.items()
        if m.rpartition(".")[0] == full
    }
    table(
        ("module", "contents"),
        ((f"`{name}`", summary(path)) for name, path in own.items()),
    )


def layers(**contents: str) -> None:
    """Print the packages by layer, from the top, with what each contains."""
    rows = package_layers()
    if {package for row in rows for package in row} != set(contents):
        raise ValueError("the packages described are not those of pyproject.toml")
    table(
        ("layer", "packages"),
        (
            (
                str(len(rows) - i),
                "<br>".join(f"[`{p}`](#{p}): {contents[p]}" for p in row),
            )
            for i, row in enumerate(rows)
        ),
    )


# -- laws -----------------------------------------------------------------------------------------


def law(name: str, discrepancy: bool = False) -> None:
    """Print a law's title, formula and priors; with `discrepancy` all its priors alone."""
    from bayeslaw.laws.lawfiles import load_law
    from bayeslaw.laws.parameters import prior_bounds
    from bayeslaw.laws.priors import NOISE
    from bayeslaw.model.spec import make_discrepancy

    found = load_law(name)
    default = make_discrepancy("auto", found)
    shown = default.apply(found) if discrepancy else found
    if not discrepancy:
        show(f"### `{name}`", "", f"{found.title} ({found.reference}).")
        show(f"Its default discrepancy is `{default.kind}`.")
        for formula in re.sub(r"alpha(\d)", r"\\alpha_\1", found.latex()).split(
            r",\quad "
        ):
            show("", "$$", formula, "$$")
    rows = []
    for quantity, prior in shown.priors.items():
        if quantity not in NOISE:
            low, high = prior_bounds(shown.by_symbol).get(quantity, prior.support)
            span = "any" if low == -math.inf else f"{low:g} to {high:g}"
            span = "positive" if (low, high) == (0, math.inf) else span
            rows.append((f"`{quantity}`", str(prior), span))
    table(("prior of", "distribution", "range"), rows)


def noise() -> None:
    """Print the priors of noise and random effects, and where a discrepancy has others."""
    from bayeslaw.laws.priors import NOISE
    from bayeslaw.model.discrepancy import Adaptation

    own = Adaptation.effect_priors
    rows = (
        (f"`{n}`", str(prior), str(own.get(n, "the same")))
        for n, prior in NOISE.items()
    )
    table(("prior of", "distribution", "beside `adaptation`"), rows)


# -- commands -------------------------------------------------------------------------------------


def commands() -> None:
    """Print a table of all commands, then the help of each."""
    from typer.testing import CliRunner

    from bayeslaw.cli import app
    from bayeslaw.cli.app import ORDER

    def printed(name: str) -> str:
        found = CliRunner().invoke(
            app, [name, "--help"], prog_name="bayeslaw", env=WIDE
        )
        return found.stdout.rstrip()

    helps = {name: printed(name) for name in ORDER}
    rows = (
        (f"[`{n}`](#{n})", sentence(text.split("\n\n")[1])) for n, text in helps.items()
    )
    table(("command", "what it does"), rows)
    for name, text in helps.items():
        show(f"## {name}", "", "```text", text, "```", "")


def run(command: str, refused: bool = False) -> None:
    """Print a command and its output, run in a folder that holds ``data/`` alone.

    With `refused` the command must exit with code 2, as after a mistake in its arguments.
    """
    import cog

    block = f"```bash\n{command.strip()}\n```"
    if block in cog.previous and not os.environ.get(RUN):
        show(cog.previous.rstrip("\n"), "")
    else:
        show(block, "", "```text", output(command, refused), "```", "")


def output(command: str, refused: bool = False) -> str:
    """Output of a command, or its errors."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | WIDE | {"PATH": path}
    with TemporaryDirectory() as folder:
        (Path(folder) / "data").symlink_to(ROOT / "data")
        done = subprocess.run(  # noqa: S602  # the documentation's own commands
            command, shell=True, cwd=folder, env=env, capture_output=True, text=True
        )
    if done.returncode != (2 if refused else 0):
        raise ValueError(f"{command}\n{done.stderr}")
    printed = done.stderr if refused else done.stdout
    return "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())


# -- public names ---------------------------------------------------------------------------------


def api() -> None:
    """Print the public names by topic, each with the first line of its docstring."""
    for topic, names in API.items():
        inner = topic == "Extension points"
        prefix = "bayeslaw" if inner else "bl"
        rows = []
        for name in names.split():
            text = " ".join(
                (inspect.getdoc(public(name)) or "").split("\n\n")[0].split()
            )
            text = re.sub(r" \[\d\]_", "", sentence(text)).replace("``", "`")
            rows.append((f"`{prefix}.{name}`", text))
        show(f"## {topic}")
        table(("name", "what it is"), rows)


def public(name: str) -> object:
    """Object with a dotted name below ``bayeslaw``."""
    import importlib

    path, _, last = name.rpartition(".")
    return getattr(importlib.import_module(f"bayeslaw.{path}".rstrip(".")), last)


# -- files ----------------------------------------------------------------------------------------


def excerpt(path: str, start: str, end: str = "") -> None:
    """Print a class or function of a Python file, or lines from one with `start` to one with `end`.

    The line with `end` is left out.
    """
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    if end:
        first = next(i for i, line in enumerate(lines) if start in line)
        last = next(i for i, line in enumerate(lines[first:], first) if end in line)
    else:
        body = ast.parse("\n".join(lines)).body
        node = next(node for node in body if getattr(node, "name", None) == start)
        decorators = [each.lineno for each in getattr(node, "decorator_list", [])]
        first, last = min(decorators, default=node.lineno) - 1, node.end_lineno
    kind = {".py": "python", ".toml": "toml", ".sh": "bash"}.get(
        Path(path).suffix, "text"
    )
    show(f"```{kind}", "\n".join(lines[first:last]).rstrip(), "```", "")


def picture_numbers(
    picture: str, columns: dict[str, str], heads: dict[str, str], row: str = ""
) -> None:
    """Print numbers that a picture of ``docs/pictures`` keeps, one line for each of its dots.

    `columns` are formats by column, such as ``{"error": ".1f"}``, `heads` the titles of columns.
    With `row` only the dots whose row begins with it are printed, without the column `row`.
    """
    import io

    import pandas as pd
    from PIL import Image

    with Image.open(DOCS / "pictures" / f"{picture}.png") as image:
        numbers = pd.read_csv(io.StringIO(image.text["Numbers"]))
    numbers = numbers[numbers["row"].str.startswith(row)]
    rows = []
    for _, dot in numbers.iterrows():
        cells = []
        for column, form in columns.items():
            cells.append(format(dot[column], form) if form else str(dot[column]))
        rows.append(cells)
    table((heads[column] for column in columns), rows)


# -- output ---------------------------------------------------------------------------------------


def show(*lines: str) -> None:
    """Write lines into the page."""
    import cog

    for line in lines:
        cog.outl(line)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Write a table into the page."""
    written = [
        " | ".join(cell.replace("|", r"\|") for cell in row) for row in (head, *rows)
    ]
    rule = " | ".join("---" for _ in written[0].split(" | "))
    show("", *(f"| {row} |" for row in (written[0], rule, *written[1:])), "")


def sentence(text: str) -> str:
    """First sentence of a text, on one line."""
    return " ".join(
        re.split(r"(?<=[.])\s+(?=[A-Z])|\n\n|:$", text, maxsplit=1)[0].split()
    )


def main() -> None:
    """Make the generated parts of all pages again, or check them."""
    from cogapp import Cog

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument(
        "--run", action="store_true", help="run all commands of pages again"
    )
    parser.add_argument("pages", nargs="*", default=[str(path) for path in PAGES])
    given = parser.parse_args()
    if given.run:
        os.environ[RUN] = "1"
    mode = ["--check", "--diff"] if given.check else ["-r"]
    arguments = [
        "cog",
        *mode,
        "--verbosity=1",
        "-I",
        str(Path(__file__).parent),
        *given.pages,
    ]
    sys.exit(Cog().main(arguments))


if __name__ == "__main__":
    main()
