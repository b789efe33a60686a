"""The documentation against the code, and as GitHub shows it."""

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
from tests.github import faults
from tests.inside import FUNCTIONS, LETTERS
from tests.transcripts import agree

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PUBLIC = sorted(set(bl.__all__) - {"derive", "plots"})
PAGES = [*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("howto/*.md"))]
PAGES += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
READMES = sorted((ROOT / "data").glob("**/README.md"))
RUN = re.compile(r"^run\((.*?)^\]\]\] -->\n```bash\n(.*?)\n```\n\n```text\n(.*?)\n```", re.M | re.S)
"""A call of ``run`` on a page, its command, and the output shown."""


@pytest.fixture(scope="module")
def generator():
    """The module that makes parts of pages."""
    sys.path.insert(0, str(DOCS / "_ext"))
    yield importlib.import_module("pages")
    sys.path.pop(0)


@pytest.mark.parametrize("page", [*PAGES, *READMES], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_page_is_whole_on_github(page):
    assert not list(faults(page.read_text(), page))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```{law} form1\n```", "directive {law} form1"),
        (":::{note}\nThis.\n:::", "markup of MyST: :::{note}"),
        ("See {doc}`other`.", "markup of MyST: {doc}X"),
        ("Term\n: What it is.", "markup of MyST: : What it is."),
        ("# A\n\n## B\n\n<!-- nothing -->\n\n## C\n\nText.", "empty section B"),
        ("A [link](none.md).", "no file none.md"),
        ("A [link](notebooks/plan.ipynb).", "no file notebooks/plan.ipynb"),
        ("A [link](bands.md#none).", "no heading bands.md#none"),
        ("![A picture](pictures/none.png)", "no file pictures/none.png"),
        (r"So $a\,b$ is.", r"Markdown changes the formula $a\,b$"),
        ("So $T_{a}_{b}_$ is $_x_$.", "Markdown changes the formula $_x_$"),
        ("$$\na\n+ b\n$$", "half a formula: $$\na"),
        ("- A list.\n\n    python x.py --show", "command as text: python x.py --show"),
    ],
)
def test_a_fault_of_a_page_is_found(text, fault):
    assert fault in [*faults(text, DOCS / "index.md")]


def test_what_github_shows_is_no_fault():
    text = (
        "# A `b_c`, d\n\n## A\n\nSee [it](#a-b_c-d), [that](#a), $x_i$ {s} and `{law}`: $\\beta$.\n"
    )
    assert not list(faults(text, DOCS / "index.md"))


def test_generated_parts_are_what_the_code_says(generator, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pages.py", "--check"])
    with pytest.raises(SystemExit) as done:
        generator.main()
    assert not done.value.code, capsys.readouterr().out


def test_a_stale_part_is_found(generator, monkeypatch, capsys, tmp_path):
    page = tmp_path / "page.md"
    block = '<!-- [[[cog\nfrom pages import law; law("{}")\n]]] -->\n<!-- [[[end]]] -->\n'
    page.write_text(block.format("form1"))
    monkeypatch.setattr(sys, "argv", ["pages.py", "--check", str(page)])
    with pytest.raises(SystemExit) as done:
        generator.main()
    assert done.value.code
    assert r"\frac{A}{N^{\alpha}}" in capsys.readouterr().out


@pytest.mark.release
@pytest.mark.parametrize("page", [page for page in PAGES if RUN.search(page.read_text())], ids=str)
def test_commands_print_what_the_page_shows(page, generator):
    """Their outputs are not made again by the check of generated parts."""
    for call, command, shown in RUN.findall(page.read_text()):
        assert agree(generator.output(command, "refused=True" in call), shown), command


def test_the_architecture_page_names_every_module_and_only_modules(generator):
    tree = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "bayeslaw").rglob("*.py")
    } - {"bayeslaw.__main__"}
    listed = generator.module_files()
    assert set(listed) == tree
    for name, path in listed.items():
        if path.name != "__init__.py":
            assert generator.summary(path), f"{name} has no docstring"
    page = (DOCS / "architecture.md").read_text()
    for package in (package for layer in generator.package_layers() for package in layer):
        assert f'modules("{package}")' in page


def test_what_the_architecture_page_names_exists(generator):
    packages = "|".join(package for layer in generator.package_layers() for package in layer)
    page = re.sub(r"\]\]\] -->.*?\[\[\[end", "", (DOCS / "architecture.md").read_text(), flags=re.S)
    for name in re.findall(rf"`((?:{packages})\.[\w.]+)`", page):
        part, _, last = name.rpartition(".")
        try:
            importlib.import_module(f"bayeslaw.{name}")
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(f"bayeslaw.{part}"), last), name


def test_every_public_name_is_on_the_page_of_the_api(generator):
    listed = [name for names in generator.API.values() for name in names.split()]
    assert sorted(name for name in listed if "." not in name) == PUBLIC
    for part in (bl.plots, bl.derive):
        inner = part.__name__.removeprefix("bayeslaw.") + "."
        named = [name.removeprefix(inner) for name in listed if name.startswith(inner)]
        assert sorted(named) == sorted(part.__all__)
    page = (DOCS / "api.md").read_text()
    for name in listed:
        assert re.search(rf"^\| `(?:bl|bayeslaw)\.{name}` \| \w", page, re.M), name


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
def test_the_maths_page_shows_every_law_and_its_formula_becomes_mathml(path):
    converter = pytest.importorskip("latex2mathml.converter")
    assert f'law("{path.stem}")' in (DOCS / "maths.md").read_text()
    written = converter.convert(bl.load_law(path.stem).latex())
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
        f"| s | {walk.spread:g} along a term's own covariate and {walk.crossed:g} along the other",
        lognormal(WALK_SCALE, "LogNormal with median {median:g} and sigma {sigma:g}"),
        f"| H | {walk.spacing:g} e-folds",
        lognormal(COUPLING_PRIOR, "`kappa`: LogNormal with median {median:g} and sigma {sigma:g}"),
        f"Priors are {normal(curve.own)}.",
        f"with $c$ {normal(curve.tilt)} (`tilt_*`)",
        f"each $d_{{ij}}$ {normal(curve.drift)} (`drift_*`)",
        f"a cross term $c n d$, $c$ {normal(CURVATURE.kwargs['sigma'])} (`cross_BN`)",
    ):
        assert words in page
    assert own.scale == own.square


def test_the_citation_names_the_version():
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {bl.__version__}\n" in text
    assert "PTPP-Aware Adaptation Scaling Laws" in text
