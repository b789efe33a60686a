"""What the documentation takes from the code at build time: laws, modules, commands, and MathML."""

import ast
import math
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import latex2mathml.converter
from docutils import nodes
from docutils.parsers.rst import Directive, directives
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "bayeslaw"


# -- modules --------------------------------------------------------------------------------------


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name, imported before importing."""
    files = {name(path): path for path in PACKAGE.rglob("*.py") if path.stem != "__main__"}
    above = {module: imports(path, files) - {module} for module, path in files.items()}
    depth: dict[str, int] = {}
    for module in TopologicalSorter(above).static_order():
        depth[module] = 1 + max((depth[other] for other in above[module]), default=0)
    return {module: files[module] for module in sorted(files, key=lambda m: (depth[m], m))}


def name(path: Path) -> str:
    """Dotted name of a module's file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, files: Any) -> set[str]:
    """Modules of `files` that one imports as it is imported itself."""
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


class Modules(SphinxDirective):
    """List every module with the first line of its docstring, one package after the other."""

    def run(self) -> list[nodes.Node]:
        """Nodes of the lists."""
        order, lines = modules(), []
        packages = [module for module, path in order.items() if path.stem == "__init__"]
        for package in sorted(packages):
            lines += [f"### `{package}`", "", summary(order[package]), ""]
            own = [m for m in order if m.rpartition(".")[0] == package and m not in packages]
            rows = [f"| `{m.rpartition('.')[2]}` | {summary(order[m])} |" for m in own]
            lines += ["| module | holds |", "| --- | --- |", *rows, ""] if rows else []
        return parsed(self, lines)


# -- laws -----------------------------------------------------------------------------------------


class LawOf(SphinxDirective):
    """A law's title, formula and priors from its TOML file."""

    required_arguments = 1
    option_spec = {"curved": directives.flag}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """Nodes of the formula and the table."""
        from bayeslaw.model.discrepancies import curved
        from bayeslaw.laws.lawfiles import load_law
        from bayeslaw.laws.priors import NOISE

        law = load_law(self.arguments[0])
        shown = curved(law) if "curved" in self.options else law
        lines = [f"### `{law.name}`", "", f"{law.title} ({law.reference}).", ""]
        lines = [] if "curved" in self.options else [*lines, "$$", law.latex(), "$$", ""]
        lines += ["| prior of | distribution | range |", "| --- | --- | --- |"]
        for quantity, prior in shown.priors.items():
            if quantity not in NOISE:
                low, high = shown.prior_bounds.get(quantity, prior.support)
                span = "any" if low == -math.inf else f"{low:g} to {high:g}"
                span = "positive" if (low, high) == (0, math.inf) else span
                lines.append(f"| `{quantity}` | {prior} | {span} |")
        return parsed(self, [*lines, ""])


class Noise(SphinxDirective):
    """The priors of the noise, which all laws share."""

    def run(self) -> list[nodes.Node]:
        """Nodes of the table."""
        from bayeslaw.laws.priors import NOISE

        rows = [f"| `{quantity}` | {prior} |" for quantity, prior in NOISE.items()]
        return parsed(self, ["| prior of | distribution |", "| --- | --- |", *rows, ""])


# -- commands -------------------------------------------------------------------------------------


class Run(SphinxDirective):
    """A command and what it prints, run in an empty folder with ``data/`` as the page is built.

    With ``:refused:`` it must fail as a user's mistake does.
    """

    has_content = True
    option_spec = {"refused": directives.flag}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """Nodes of the command and of its output."""
        command = "\n".join(self.content)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = os.environ | {"PATH": path, "COLUMNS": "88", "TERM": "dumb"}
        with TemporaryDirectory() as folder:
            (Path(folder) / "data").symlink_to(ROOT / "data")
            done = subprocess.run(  # noqa: S602  # the documentation's own commands
                command, shell=True, cwd=folder, env=env, capture_output=True, text=True
            )
        refused = "refused" in self.options
        if done.returncode != (2 if refused else 0):
            raise self.error(f"{command}\n{done.stderr}")
        said = done.stderr if refused else done.stdout
        output = nodes.literal_block(said, said, language="text")
        output["classes"] += ["output", *(["words"] if refused else [])]
        return [nodes.literal_block(command, command, language="bash"), output]


class Commands(SphinxDirective):
    """Every command of the command line with its help."""

    def run(self) -> list[nodes.Node]:
        """Sections, one per command."""
        from bayeslaw.cli.app import app

        names = [each.name or each.callback.__name__ for each in app.registered_commands]
        lines = []
        for command in names:
            lines += [f"## {command}", "", "```{run}", f"bayeslaw {command} --help", "```", ""]
        return parsed(self, lines)


# -- figures --------------------------------------------------------------------------------------


class Figure(SphinxDirective):
    """The first figure of an executed notebook, so that no picture is kept twice."""

    required_arguments = 1
    option_spec = {"alt": directives.unchanged_required}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """The image."""
        import nbformat

        path = ROOT / "notebooks" / f"{self.arguments[0]}.ipynb"
        self.env.note_dependency(str(path))
        cells = nbformat.read(path, as_version=4).cells
        images = (o.get("data", {}).get("image/png") for c in cells for o in c.get("outputs", []))
        png = next(filter(None, images), "").replace("\n", "")
        html = f'<img alt="{self.options["alt"]}" src="data:image/png;base64,{png}">'
        return [nodes.raw("", html, format="html")]


# -- parts ----------------------------------------------------------------------------------------


def parsed(directive: Directive, lines: list[str]) -> list[nodes.Node]:
    """Nodes of MyST lines."""
    return directive.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def mathml(display: str) -> Any:
    """Visitor of formulas that writes MathML, which browsers show without a script."""

    def visit(translator: Any, node: Any) -> None:
        html = latex2mathml.converter.convert(node.astext(), display=display)
        box = "div" if display == "block" else "span"
        translator.body.append(f'<{box} class="math">{html}</{box}>')
        raise nodes.SkipNode

    return visit


def at_home(app: Any, page: str, source: list[str]) -> None:
    """Make links that leave the folder, right where the page is read as a file, lead to copies."""
    if "/" not in page:
        source[0] = source[0].replace("](../data/", "](data/")
    if page == "data/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*/README\n```\n"


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    directive = {"law": LawOf, "noise": Noise, "modules": Modules, "run": Run}
    for given, what in (directive | {"commands": Commands, "picture": Figure}).items():
        app.add_directive(given, what)
    app.add_html_math_renderer("mathml", (mathml("inline"), None), (mathml("block"), None))
    app.connect("source-read", at_home)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


__all__ = ["imports", "modules", "setup", "summary"]
