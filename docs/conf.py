"""Sphinx: ``sphinx-build -W -b html docs docs/_build/html``. Needs no network.

The pages are plain Markdown that also renders on GitHub. What only Sphinx needs is made here: the
table of contents, copies of what lies outside ``docs/``, and the reference of the public names.
"""

import inspect
import os
import re
import shutil
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import latex2mathml.converter
from docutils import nodes

import bayeslaw

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS / "_ext"))
import pages  # noqa: E402

project = "bayeslaw"
author = "bayeslaw contributors"
copyright = f"2026, {author}"
release = version = bayeslaw.__version__

extensions = ["myst_nb", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
exclude_patterns = ["_build"]
# Headings get GitHub's anchors, so that pages can link to each other's sections.
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
# Notebooks keep the outputs they were executed with; tests/test_notebooks.py runs them.
nb_execution_mode = "off"
html_math_renderer = "mathml"

default_role = "py:obj"
autodoc_typehints = "none"  # the docstrings give types
autodoc_member_order = "bysource"
autosummary_generate = False
numpydoc_show_class_members = False

html_theme = "furo"
html_title = f"bayeslaw {release}"
# Formulas are MathML; the font that a browser needs to set them well comes with ziamath.
FONT = files("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf"
html_static_path = ["_static", str(FONT)]
html_css_files = ["site.css"]
html_copy_source = False

# -- contents -------------------------------------------------------------------------------------

NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
STUDIES = ("floor_or_shape", "paper_tables")
"""Notebooks that explain a result; the others show how to do a task."""


def listed_notebooks(studies: bool) -> str:
    """Pages of the notebooks that explain a result, or of the others."""
    return " ".join(
        f"notebooks/{name}" for name in NOTEBOOKS if (name in STUDIES) == studies
    )


CONTENTS = {
    "Start": f"from-csv-to-decision believe limits faq {listed_notebooks(studies=False)}",
    "How-to": "howto/exports howto/table howto/runs howto/law howto/ladder howto/forecast"
    " howto/accuracy planning"
    " howto/derive howto/recipes howto/register report",
    "Explanation": "results adaptation maths priors huber"
    f" {listed_notebooks(studies=True)}",
    "Reference": "commands api glossary data/README",
    "Development": "howto/extend architecture development-notes reference/contributing"
    " reference/changelog",
}
"""Pages in the sidebar; a page that is named nowhere joins the how-tos."""
TOPICS = {topic: re.sub(r"\W+", "-", topic.lower()) for topic in pages.API}
"""File of each topic of the reference."""


def toctree(names: str, caption: str = "") -> str:
    """Make a hidden table of contents."""
    option = f":caption: {caption}\n" if caption else ""
    return f"\n```{{toctree}}\n:hidden:\n{option}\n{'\n'.join(names.split())}\n```\n"


def listed() -> set[str]:
    """Pages in the sidebar."""
    return {name for names in CONTENTS.values() for name in names.split()}


missing = {
    str(path.relative_to(DOCS))[:-3] for path in pages.PAGES if DOCS in path.parents
}
CONTENTS["How-to"] += "".join(
    f" {name}" for name in sorted(missing - listed() - {"index"})
)
APPENDED = {
    "index": "".join(toctree(names, caption) for caption, names in CONTENTS.items()),
    "api": toctree(" ".join(f"reference/{name}" for name in TOPICS.values())),
    "data/README": toctree(
        " ".join(
            f"{path.parent.name}/README"
            for path in sorted(ROOT.glob("data/*/README.md"))
        )
    ),
}
"""What Sphinx reads at the end of a page."""

# -- copies, and links to them --------------------------------------------------------------------

COPIES = {
    "CHANGELOG.md": "reference/changelog.md",
    "CONTRIBUTING.md": "reference/contributing.md",
}

for folder in ("notebooks", "data"):
    skip = shutil.ignore_patterns(
        "*.csv", "*.nc", "*.parquet", "*.py", "__pycache__", ".*"
    )
    # A page that is gone must not stay in the copy.
    shutil.rmtree(DOCS / folder, ignore_errors=True)
    shutil.copytree(ROOT / folder, DOCS / folder, ignore=skip, dirs_exist_ok=True)
(DOCS / "reference").mkdir(exist_ok=True)
for name, copy in COPIES.items():
    shutil.copy(ROOT / name, DOCS / copy)


def source_of(page: str) -> str:
    """Path of a page in the repository, of which Sphinx may read a copy."""
    originals = {copy.removesuffix(".md"): name for name, copy in COPIES.items()}
    copied = page.startswith(("data/", "notebooks/"))
    return originals.get(page, page if copied else f"docs/{page}")


def read_by_sphinx(path: str) -> str:
    """Path below ``docs/`` of a file of the repository, of its copy if there is one."""
    if path.startswith(("data/", "notebooks/")) and path.endswith((".md", ".ipynb")):
        return path
    return COPIES.get(path) or os.path.relpath(path, "docs")


def on_source_read(app: Any, page: str, source: list[str]) -> None:
    """Point links to copies, and append the contents."""
    folder, here = os.path.dirname(source_of(page)), os.path.dirname(page)

    def moved(link: re.Match[str]) -> str:
        path = os.path.normpath(os.path.join(folder, link[1]))
        if not (ROOT / path).is_file():
            return link[0]
        return f"]({os.path.relpath(read_by_sphinx(path), here or '.')}{link[2] or ''})"

    source[0] = re.sub(
        r"\]\(([\w./-]+)(#[^)]*)?\)", moved, source[0].replace("\r\n", "\n")
    )
    if page == "api":
        linked = r"| {py:obj}`\1.\2 <bayeslaw.\2>`"
        source[0] = re.sub(
            r"^\| `(bl|bayeslaw)\.([\w.]+)`", linked, source[0], flags=re.M
        )
    source[0] += APPENDED.get(page, "")


# -- reference ------------------------------------------------------------------------------------

OPTIONS = {"Check": "special-members: __getitem__", "Explorer": "inherited-members:"}
OPTIONS["Report"] = "inherited-members:"
"""Options of classes beside ``members``."""


def reference(name: str) -> str:
    """Directive that shows the docstring of a public name."""
    if not inspect.isclass(pages.public(name)):
        return f".. autofunction:: bayeslaw.{name}\n"
    lines = [f".. autoclass:: bayeslaw.{name}", "   :members:"]
    return "\n".join([*lines, *(f"   :{o}" for o in [OPTIONS.get(name)] if o)]) + "\n"


for topic, names in pages.API.items():
    parts = [f"{topic}\n{'=' * len(topic)}\n", *map(reference, names.split())]
    (DOCS / "reference" / f"{TOPICS[topic]}.rst").write_text(
        "\n".join(parts), encoding="utf-8"
    )

# -- formulas -------------------------------------------------------------------------------------


def mathml(display: str) -> Any:
    """Visitor of formulas that writes MathML, which browsers show without a script."""

    def visit(translator: Any, node: Any) -> None:
        formula = latex2mathml.converter.convert(node.astext(), display=display)
        tag = "div" if display == "block" else "span"
        translator.body.append(f'<{tag} class="math">{formula}</{tag}>')
        raise nodes.SkipNode

    return visit


def setup(app: Any) -> None:
    """Register with Sphinx."""
    app.add_html_math_renderer(
        "mathml", (mathml("inline"), None), (mathml("block"), None)
    )
    app.connect("source-read", on_source_read)
