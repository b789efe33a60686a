"""The documentation against the code: modules, public names, code blocks, laws."""

import ast
import importlib
import itertools
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import bayeslaw as bl
from bayeslaw.model.discrepancy import (
    ADAPTATION_WALK,
    COUPLING_PRIOR,
    CURVATURE,
    WALK_SCALE,
    Adaptation,
    Curvature,
    WalkingExponents,
)
from bayeslaw.model.effects import LEVELS
from bayeslaw.model.spec import make_spec
from tests.inside import FUNCTIONS, LETTERS

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
        if path.name != "__init__.py":
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


def test_the_glossary_has_every_parameter_of_a_fit():
    """By its name, or by another of its family, such as ``curve_A`` for ``curve_B``."""
    named = re.findall(r"`([\w*]+)`", (DOCS / "glossary.md").read_text())
    families = {name.split("_")[0] for name in named if "_" in name}
    laws = [path.stem for path in (ROOT / "models").glob("*.toml")]
    for law, discrepancy in itertools.product(laws, ("auto", "curvature", "none")):
        spec = make_spec(law, discrepancy=discrepancy, effects=tuple(LEVELS))
        for name in (*spec.law.parameters, *spec.law.coordinates, *spec.likelihood.parameters):
            of_family = name.split("_")[0] in families or name.endswith("_ref")
            assert name in named or ("_" in name and of_family), name
        assert {f"tau_{level}" for level in spec.effects} < set(named)


def test_the_page_on_laws_names_every_covariate_and_function():
    page = (DOCS / "howto" / "law.md").read_text()
    (sentence,) = re.findall(r"^A formula has the covariates (.*?);", page, re.M | re.S)
    assert dict(re.findall(r"(\w) \(`(\w+)`", sentence)) == LETTERS
    functions = page[page.index("and `exp`") :].split(".", 1)[0]
    assert re.findall(r"`(\w+)`", functions) == [*FUNCTIONS]


def test_the_maths_page_states_the_priors_of_the_code():
    """Numbers in formulas and sentences; tables of priors are printed by the code."""
    page = " ".join((DOCS / "maths.md").read_text().split())
    own, walk, curve = Adaptation(), WalkingExponents(), Curvature()

    def normal(sd: float) -> str:
        return f"Normal(0, {sd:g})"

    def lognormal(
        prior: bl.Prior, form: str = "is LogNormal with median {median:g} and sigma {sigma:g}"
    ) -> str:
        return form.format(median=np.exp(prior.kwargs["mu"]).round(9), sigma=prior.kwargs["sigma"])

    for words in (
        f"Coefficients of products are {normal(own.scale)}, those of $n^2/2$ and $p^2/2$ too, "
        f"that of $\\rho^2/2$ is {normal(own.replay)}",
        f"every {own.spacing:g} e-folds, and an exponent that changes with standard deviation "
        f"{own.walk:g} over an e-fold, times a scale "
        + lognormal(ADAPTATION_WALK, "LogNormal(median {median:g}, sigma {sigma:g})"),
        f"s = {walk.spread:g} along a term's own covariate and {walk.crossed:g} along the other",
        lognormal(WALK_SCALE, "LogNormal with median {median:g} and sigma {sigma:g}"),
        f"H is {walk.spacing:g} e-folds",
        lognormal(
            COUPLING_PRIOR, "(`kappa`) is LogNormal with median {median:g} and sigma {sigma:g}"
        ),
        f"Priors are {normal(curve.own)}: a local exponent",
        f"with $c$ {normal(curve.tilt)}, the parameter",
        f"each $d_{{ij}}$ {normal(curve.drift)};",
        f"a cross term $c\\,n d$, $c$ {normal(CURVATURE.kwargs['sigma'])} (`cross_BN`)",
    ):
        assert words in page
    assert own.scale == own.square


def test_the_citation_names_the_version():
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {bl.__version__}\n" in text
    assert "PTPP-Aware Adaptation Scaling Laws" in text
