"""The documentation against the code: modules, public names, code blocks, laws."""

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest

import bayeslaw as bl

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PUBLIC = sorted(set(bl.__all__) - {"derive", "plots"})
PAGES = [*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("howto/*.md"))]
PAGES += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
API = "\n".join(path.read_text() for path in (DOCS / "api").glob("*.rst"))


@pytest.fixture(scope="module")
def from_code():
    pytest.importorskip("sphinx")
    pytest.importorskip("latex2mathml")
    sys.path.insert(0, str(DOCS / "_ext"))
    yield importlib.import_module("from_code")
    sys.path.pop(0)


def test_the_architecture_page_names_every_module_and_only_modules(from_code):
    tree = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "bayeslaw").rglob("*.py")
    } - {"bayeslaw.__main__"}
    listed = from_code.modules()
    assert set(listed) == tree
    for name, path in listed.items():
        assert from_code.summary(path), f"{name} has no docstring"
    page = (DOCS / "architecture.md").read_text()
    for package in (package for layer in from_code.layers() for package in layer):
        assert f"{{modules}} {package}\n" in page


def test_every_public_name_is_in_the_api_reference():
    named = re.findall(r"^\.\. auto(?:function|class):: bayeslaw\.(\w+)$", API, re.M)
    assert sorted(named) == PUBLIC
    figures = re.findall(r"^\.\. auto(?:function|class):: bayeslaw\.plots\.(\w+)$", API, re.M)
    assert sorted(figures) == sorted(bl.plots.__all__)
    numbers = re.findall(r"^\.\. auto(?:function|class):: bayeslaw\.derive\.(\w+)$", API, re.M)
    assert sorted(numbers) == sorted(bl.derive.__all__)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_docstring(name):
    assert (getattr(bl, name).__doc__ or "").strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_on_the_page_is_python_and_its_names_exist(page):
    text = page.read_text()
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        ast.parse(block)
    for name in re.findall(r"(?<![\w.])bl\.(\w+)", text):
        assert name in bl.__all__, f"bl.{name}"


@pytest.mark.parametrize("path", sorted((ROOT / "models").glob("*.toml")), ids=lambda p: p.stem)
def test_the_maths_page_shows_every_law_and_its_formula_becomes_mathml(path, from_code):
    assert f"{{law}} {path.stem}\n" in (DOCS / "maths.md").read_text()
    written = from_code.latex2mathml.converter.convert(bl.load_law(path.stem).latex())
    assert "<mfrac>" in written
    assert "\\" not in written


def test_the_citation_names_the_version():
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {bl.__version__}\n" in text
    assert "PTPP-Aware Adaptation Scaling Laws" in text
