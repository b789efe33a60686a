"""Sphinx directives that read laws, modules, commands and figures from the repository."""

import ast
import html
import math
import os
import subprocess
import sys
import tomllib
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
    """Every module by its dotted name; a module comes after those that it imports."""
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
    """Modules of `files` that a module imports at its top level."""
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


def layers() -> list[list[str]]:
    """Packages by layer, from the one that imports nothing up, as import-linter holds them."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    rows = next(each["layers"] for each in contracts if each["type"] == "layers")
    return [row.split(" | ") for row in reversed(rows)]


class Modules(SphinxDirective):
    """List the modules of a package with the first lines of their docstrings.

    A module stands below those of the package that it imports.
    """

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Nodes of the table."""
        package = f"bayeslaw.{self.arguments[0]}"
        order = modules()
        if package not in order:
            raise self.error(f"no package {package}")
        own = [m for m in order if m.rpartition(".")[0] == package]
        rows = [f"| `{m.rpartition('.')[2]}` | {summary(order[m])} |" for m in own]
        return parsed(self, ["| module | contents |", "| --- | --- |", *rows, ""])


class Layers(SphinxDirective):
    """Draw the packages as layers: each imports from those below it only.

    The content describes the packages, one a line, as ``name: what it does``.
    """

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Nodes of the figure."""
        described = dict(line.split(": ", 1) for line in self.content if line)
        rows = layers()
        if {name for row in rows for name in row} != set(described):
            raise self.error("the packages described are not those of pyproject.toml")
        boxes = "".join(
            f'<div class="layer">{"".join(box(name, described[name]) for name in row)}</div>'
            for row in reversed(rows)
        )
        return [nodes.raw("", f'<div class="layers">{boxes}</div>', format="html")]


def box(name: str, text: str) -> str:
    """HTML of one package of the figure."""
    return f'<a href="#{name}"><code>{name}</code><span>{html.escape(text)}</span></a>'


# -- laws -----------------------------------------------------------------------------------------


class LawOf(SphinxDirective):
    """A law's title, formula and priors from its TOML file."""

    required_arguments = 1
    option_spec = {"discrepancy": directives.flag}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """Nodes of the formula and the table."""
        from bayeslaw.laws.lawfiles import load_law
        from bayeslaw.laws.priors import NOISE
        from bayeslaw.model.spec import make_discrepancy

        law = load_law(self.arguments[0])
        full = "discrepancy" in self.options
        default = make_discrepancy("auto", law)
        shown = default.apply(law) if full else law
        lines = [f"### `{law.name}`", "", f"{law.title} ({law.reference})."]
        lines += [f"Its default discrepancy is `{default.kind}`.", ""]
        lines = (
            []
            if full
            else [*lines, "$$", law.latex().replace(r",\quad ", "\n$$\n\n$$\n"), "$$", ""]
        )
        lines += ["| prior of | distribution | range |", "| --- | --- | --- |"]
        for quantity, prior in shown.priors.items():
            if quantity not in NOISE:
                low, high = shown.prior_bounds.get(quantity, prior.support)
                span = "any" if low == -math.inf else f"{low:g} to {high:g}"
                span = "positive" if (low, high) == (0, math.inf) else span
                lines.append(f"| `{quantity}` | {prior} | {span} |")
        return parsed(self, [*lines, ""])


class Noise(SphinxDirective):
    """The priors of noise and random effects, and where a discrepancy has others."""

    def run(self) -> list[nodes.Node]:
        """Nodes of the table."""
        from bayeslaw.laws.priors import NOISE
        from bayeslaw.model.discrepancy import Adaptation

        own = Adaptation.effect_priors
        rows = [f"| `{n}` | {prior} | {own.get(n, 'the same')} |" for n, prior in NOISE.items()]
        head = ["| prior of | distribution | beside `adaptation` |", "| --- | --- | --- |"]
        return parsed(self, [*head, *rows, ""])


# -- commands -------------------------------------------------------------------------------------


class Run(SphinxDirective):
    """A command and its output, run in a folder that holds ``data/`` alone when the page is built.

    With ``:refused:`` the command must exit with code 2, as after a mistake in its arguments.
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
        printed = done.stderr if refused else done.stdout
        output = nodes.literal_block(printed, printed, language="text")
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
    """The first figure of an executed notebook, so that the picture has one copy."""

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
        image = f'<img alt="{self.options["alt"]}" src="data:image/png;base64,{png}">'
        return [nodes.raw("", image, format="html")]


# -- parts ----------------------------------------------------------------------------------------


def parsed(directive: Directive, lines: list[str]) -> list[nodes.Node]:
    """Nodes of MyST lines."""
    return directive.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def mathml(display: str) -> Any:
    """Visitor of formulas that writes MathML, which browsers show without a script."""

    def visit(translator: Any, node: Any) -> None:
        formula = latex2mathml.converter.convert(node.astext(), display=display)
        tag = "div" if display == "block" else "span"
        translator.body.append(f'<{tag} class="math">{formula}</{tag}>')
        raise nodes.SkipNode

    return visit


def link_to_copies(app: Any, page: str, source: list[str]) -> None:
    """Point links to ``../data/``, which work in the repository, to the copy in ``docs/data``."""
    if "/" not in page:
        source[0] = source[0].replace("](../data/", "](data/")
    if page == "data/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*/README\n```\n"


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    directives = {"law": LawOf, "noise": Noise, "modules": Modules, "layers": Layers, "run": Run}
    for name, directive in (directives | {"commands": Commands, "picture": Figure}).items():
        app.add_directive(name, directive)
    app.add_html_math_renderer("mathml", (mathml("inline"), None), (mathml("block"), None))
    app.connect("source-read", link_to_copies)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


__all__ = ["imports", "layers", "modules", "setup", "summary"]
