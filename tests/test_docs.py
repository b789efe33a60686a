"""The documentation against the code, and as GitHub shows it; examples of docstrings."""

import ast
import doctest
import importlib
import itertools
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import typer

import bayeslaw as bl
from bayeslaw.cli.app import app
from bayeslaw.laws.formula import FORMULA_FUNCTIONS
from bayeslaw.laws.symbols import LETTERS
from bayeslaw.model.discrepancy import (
    ADAPTATION_WALK,
    COUPLING_PRIOR,
    CURVATURE,
    WALK_SCALE,
    Adaptation,
    Curvature,
    FromBase,
    WalkingExponents,
)
from bayeslaw.model.effects import GROUP_LEVELS
from bayeslaw.model.spec import make_spec
from benchmarks import EXPERIMENTS
from tests.pages import DOCS, PAGES, agree, code_of, commands, faults, transcript
from tests.support import ROOT, saved

PUBLIC = sorted(set(bl.__all__) - {"derive", "plots"})
READMES = sorted((ROOT / "data").glob("**/README.md"))
RUN = re.compile(
    r"^run\((.*?)^\]\]\] -->\n```bash\n(.*?)\n```\n\n```text\n(.*?)\n```", re.M | re.S
)
"""A call of ``run`` on a page, its command, and the output shown."""
FIRST = DOCS / "from-csv-to-decision.md"
STATUS = {"error": 2, "REFUSE": 1, "Plan: feasible, beyond": 1}
"""Exit codes by the start of what a command prints."""
LAWS = sorted((ROOT / "models").glob("*.toml"))
EXAMPLES = [
    p
    for p in sorted((ROOT / "bayeslaw").rglob("*.py"))
    if ">>> " in p.read_text("utf-8")
]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(
        ".__init__"
    )


def options_of(command) -> set[str]:
    return {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)} | {
        "--help"
    }


GROUP = typer.main.get_command(app).commands
OPTIONS = set().union(*map(options_of, GROUP.values()), {"--no-sync"})
for experiment in EXPERIMENTS.values():
    OPTIONS |= set(experiment.parser()._option_string_actions)
for script in ROOT.glob("data/**/*.py"):
    OPTIONS |= set(re.findall(r'"(--[\w-]+)"', script.read_text()))


def parse(command: str) -> None:
    """Parse a command, and run nothing."""
    program, *words = shlex.split(re.sub(r"[\[\]]", " ", command))
    if program == "bayeslaw":
        assert {w for w in words if w.startswith("-")} <= options_of(GROUP[words[0]]), (
            command
        )
    else:
        EXPERIMENTS[words[2]].parser().parse_args(words[3:])


@pytest.fixture(scope="module")
def generator():
    """The module that makes parts of pages."""
    sys.path.insert(0, str(DOCS / "_ext"))
    yield importlib.import_module("pages")
    sys.path.pop(0)


# -- every page -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "page", [*PAGES, *READMES], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_page_is_whole_and_its_commands_and_names_exist(page):
    text = page.read_text()
    assert not list(faults(text, page))
    for command in commands(text):
        parse(command)
    for code in code_of(text):
        if code.startswith("--"):
            assert set(re.findall(r"(?<!\S)--[\w-]+", code)) <= OPTIONS, code
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        ast.parse(block)
    for name in re.findall(r"(?<![\w.])bl\.(\w+)", text):
        assert name in bl.__all__, f"bl.{name}"


def test_the_calls_of_arviz_run():
    page = (DOCS / "howto/forecast.md").read_text()
    section = page.partition("\n## ArviZ\n")[2]
    (block,) = re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)
    fit = saved("plain")
    wide = fit.draws.assign(sigma=10 * fit.draws["sigma"])
    names = {"fit": fit, "other": replace(fit, draws=wide)}
    exec(block, names)
    plt.close("all")
    compared = az.compare(
        {name: names[name].to_datatree() for name in ("fit", "other")}
    )
    assert compared.index.tolist() == ["fit", "other"]  # the right scale is first
    assert not hasattr(az, "waic")  # the page says that there is none


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```{law} form1\n```", "directive {law} form1"),
        ("See {doc}`other`.", "markup of MyST: {doc}X"),
        ("# A\n\n## B\n\n<!-- nothing -->\n\n## C\n\nText.", "empty section B"),
        ("A [link](none.md).", "no file none.md"),
        ("A [link](believe.md#none).", "no heading believe.md#none"),
        (r"So $a\,b$ is.", r"Markdown changes the formula $a\,b$"),
        ("$$\na\n+ b\n$$", "half a formula: $$\na"),
        ("- A list.\n\n    python x.py --show", "command as text: python x.py --show"),
        (
            "# A `b_c`, d\n\n## A\n\n[It](#a-b_c-d), [that](#a), $x_i$ {s} and `{law}`.\n",
            None,
        ),
    ],
)
def test_a_fault_of_a_page_is_found(text, fault):
    found = list(faults(text, DOCS / "index.md"))
    assert fault in found if fault else not found


def test_commands_are_found_in_blocks_and_in_sentences_and_wrong_ones_are_noticed():
    page = """
    OMP_NUM_THREADS=1 python -m benchmarks truth --only tinycpt \\
        --out rows.csv

Here `uv run bayeslaw check
t.csv` and bayeslaw plans; `bayeslaw` alone.
"""
    written = "python -m benchmarks truth --only tinycpt --out rows.csv"
    assert list(commands(page)) == [written, "bayeslaw check t.csv"]
    for command, error in (
        ("python -m benchmarks truth --draws few", SystemExit),
        ("python -m benchmarks splits", KeyError),
        ("bayeslaw forecast t.csv --worth 3", AssertionError),
    ):
        with pytest.raises(error):
            parse(command)


def test_outputs_agree_up_to_small_differences():
    line = "plan: R-hat 1.004 and ESS 460 of losses  36.4 %   1.64M  1.45e+12"
    assert agree(
        "plan: R-hat 1.006 and ESS 900 of losses\n  36.1 %  1.67M  1.45e+12\n", line
    )
    assert not agree(line.replace("1.004", "1.204"), line)
    assert not agree(line.replace("36.4", "26.4"), line)
    assert not agree(f"{line} one more word", line)
    # What a count or a threshold of the draws makes is not compared.
    shown = (
        "converged: R-hat 1.008 and ESS 847 of losses, 1 of 4,000 transitions diverged\n"
        "about 16 ATPP at 40 % replay, by a short refit (tail ESS 36 < 400; 17 divergences): the\n"
        "8B 0.895 0.904 +1.0 % 0.894–0.914  in  0.877–0.931  in\n"
    )
    other = (
        "converged: R-hat 1.006 and ESS 902 of losses, no divergences\n"
        "about 16 ATPP (Monte Carlo error 0.5) at 40 % replay, by a short refit: the\n"
        "8B 0.895 0.905 +1.1 % 0.896–0.914 out  0.877–0.932  in\n"
    )
    assert agree(shown, other)
    assert agree(other, shown)
    for changed in (
        other.replace("converged", "NOT CONVERGED"),
        other.replace("0.905", "1.105"),
        other.replace("0.932", "1.132"),
        other.replace("short refit", "refit"),
    ):
        assert not agree(changed, shown)


# -- what pages say of the code -------------------------------------------------------------------


def test_generated_parts_are_what_the_code_says(generator, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pages.py", "--check"])
    with pytest.raises(SystemExit) as done:
        generator.main()
    assert not done.value.code, capsys.readouterr().out


def test_the_architecture_page_names_every_module_and_only_modules(generator):
    for name, path in generator.module_files().items():
        assert path.name == "__init__.py" or generator.summary(path), (
            f"{name} has no docstring"
        )
    page = (DOCS / "architecture.md").read_text()
    packages = [package for layer in generator.package_layers() for package in layer]
    assert all(f'modules("{package}")' in page for package in packages)
    written = re.sub(r"\]\]\] -->.*?\[\[\[end", "", page, flags=re.S)
    for name in re.findall(rf"`((?:{'|'.join(packages)})\.[\w.]+)`", written):
        part, _, last = name.rpartition(".")
        try:
            importlib.import_module(f"bayeslaw.{name}")
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(f"bayeslaw.{part}"), last), name


def test_every_public_name_is_on_the_page_of_the_api_and_has_a_docstring(generator):
    listed = [name for names in generator.API.values() for name in names.split()]
    assert sorted(name for name in listed if "." not in name) == PUBLIC
    for part in (bl.plots, bl.derive):
        inner = part.__name__.removeprefix("bayeslaw.") + "."
        named = [name.removeprefix(inner) for name in listed if name.startswith(inner)]
        assert sorted(named) == sorted(part.__all__)
    page = (DOCS / "api.md").read_text()
    for name in listed:
        assert re.search(rf"^\| `(?:bl|bayeslaw)\.{name}` \| \w", page, re.M), name
    assert all((getattr(bl, name).__doc__ or "").strip() for name in PUBLIC)


@pytest.mark.parametrize("path", LAWS, ids=lambda path: path.stem)
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
    for path, discrepancy in itertools.product(LAWS, ("auto", "curvature", "none")):
        spec = make_spec(
            path.stem, discrepancy=discrepancy, effects=tuple(GROUP_LEVELS)
        )
        for name in (
            *spec.law.parameters,
            *spec.law.coordinates,
            *spec.likelihood.parameters,
        ):
            of_family = name.split("_")[0] in families or name.endswith("_ref")
            assert name in named or ("_" in name and of_family), name
        assert {f"tau_{level}" for level in spec.effects} < set(named)


def test_the_page_on_laws_names_every_covariate_and_function():
    page = (DOCS / "howto" / "law.md").read_text()
    (sentence,) = re.findall(r"^A formula has the covariates (.*?);", page, re.M | re.S)
    assert dict(re.findall(r"(\w) \(`(\w+)`", sentence)) == LETTERS
    functions = page[page.index("and `exp`") :].split(".", 1)[0]
    assert re.findall(r"`(\w+)`", functions) == [*FORMULA_FUNCTIONS]


def test_the_maths_page_states_the_priors_of_the_code():
    """Numbers in formulas and sentences; tables of priors are printed by the code."""
    page = " ".join((DOCS / "maths.md").read_text().split())
    own, walk, curve, based = Adaptation(), WalkingExponents(), Curvature(), FromBase()

    def normal(sd: float) -> str:
        return f"Normal(0, {sd:g})"

    def lognormal(
        prior: bl.Prior,
        form: str = "is LogNormal with median {median:g} and sigma {sigma:g}",
    ) -> str:
        return form.format(
            median=np.exp(prior.kwargs["mu"]).round(9), sigma=prior.kwargs["sigma"]
        )

    for words in (
        f"Coefficients of products are {normal(own.scale)}, those of $n^2/2$ and $p^2/2$ too, "
        f"that of $\\rho^2/2$ is {normal(own.share)}",
        f"every {own.spacing:g} e-folds, and an exponent that changes with standard deviation "
        f"{own.walk:g} over an e-fold, times a scale "
        + lognormal(ADAPTATION_WALK, "LogNormal(median {median:g}, sigma {sigma:g})"),
        f"standard deviation {own.bend:g} and {own.rest:g} over an e-fold, times the same scale",
        f"of $\\rho^2/2$ is {normal(based.share)}, standard deviations of the walks along s are "
        f"{based.bend:g} and {based.rest:g}, and that along D/N is {based.walk:g}",
        f"| s | {walk.spread:g} along a term's own covariate and {walk.crossed:g} along the other",
        lognormal(WALK_SCALE, "LogNormal with median {median:g} and sigma {sigma:g}"),
        f"| H | {walk.spacing:g} e-folds",
        lognormal(
            COUPLING_PRIOR,
            "`kappa`: LogNormal with median {median:g} and sigma {sigma:g}",
        ),
        f"Priors are {normal(curve.own)}.",
        f"with $c$ {normal(curve.tilt)} (`tilt_*`)",
        f"each $d_{{ij}}$ {normal(curve.drift)} (`drift_*`)",
        f"a cross term $c n d$, $c$ {normal(CURVATURE.kwargs['sigma'])} (`cross_BN`)",
    ):
        assert words in page
    assert own.scale == own.square


def test_the_citation_names_the_version_and_the_types_ship():
    assert f"\nversion: {bl.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert (ROOT / "bayeslaw" / "py.typed").is_file()


# -- what runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [module_of(path) for path in EXAMPLES])
def test_examples_of_docstrings_print_what_they_say(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finder = doctest.DocTestFinder()
    runner = doctest.DocTestRunner(
        optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    )
    names = {"bl": bl, "np": np, "pd": pd}
    for example in finder.find(importlib.import_module(name), extraglobs=names):
        said: list[str] = []
        runner.run(example, out=said.append)
        assert not runner.failures, "".join(said)


@pytest.mark.slow
def test_the_first_command_of_the_readme_prints_what_it_shows(generator):
    """Words but for what draws decide, and bands up to their Monte Carlo error."""
    readme = (ROOT / "README.md").read_text()
    (command,) = re.findall(r"uv run --no-dev (bayeslaw forecast .*)", readme)
    shown = readme.split("forecasts the eight of the picture:\n\n")[1]
    shown = re.split(r"\n\n(?=\S)", shown)[0]
    printed = generator.output(command, False).partition("\n\nScores")[0]
    # Errors of the medians, whose last digit is a third of their Monte Carlo error's, follow below.
    texts = [re.sub(r"[+-]\d\.\d %", "", text) for text in (printed, shown)]
    assert agree(*texts), printed

    def bands(text: str) -> np.ndarray:
        """Median and ends of the 50 and 90 % bands of each row."""
        lines = [line for line in text.splitlines() if "–" in line]
        return np.array([re.findall(r"\d\.\d{3}", line)[1:] for line in lines], float)

    found, stated = bands(printed), bands(shown)
    assert stated.shape == (8, 5)
    # A converged fit is worth 400 draws: by those, the median of a normal has an error of .063 sd,
    # its 5 % quantile one of .11 sd. Allowed are four of the difference of two fits; rounding too.
    sd = (stated[:, 2] - stated[:, 1]) / 1.349
    for column, error in enumerate((0.063, 0.068, 0.068, 0.11, 0.11)):
        away = np.abs(found[:, column] - stated[:, column])
        assert (away < 4 * np.sqrt(2) * error * sd + 0.001).all()


@pytest.mark.release
@pytest.mark.parametrize(
    "page", [page for page in PAGES if RUN.search(page.read_text())], ids=str
)
def test_commands_print_what_the_page_shows(page, generator):
    """Their outputs are not made again by the check of generated parts."""
    for call, command, shown in RUN.findall(page.read_text()):
        assert agree(generator.output(command, "refused=True" in call), shown), command


@pytest.mark.release
def test_every_command_of_the_first_page_prints_what_it_shows(tmp_path):
    ran = list(transcript(FIRST, tmp_path))
    assert sum(block[1] == "bash" for block, _, _ in ran) == 10
    for block, printed, status in ran:
        shown = block[3]
        codes = (
            code for start, code in STATUS.items() if (shown or "").startswith(start)
        )
        assert status == (0 if " | " in block[2] else next(codes, 0)), printed
        if shown is not None and block[2].startswith("bayeslaw check"):
            printed, shown = (text.partition("\n")[0] for text in (printed, shown))
        assert shown is None or agree(printed, shown), f"{block[2]}{printed}"
