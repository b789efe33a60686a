"""Commands in the documentation and in the benchmarks' docstrings exist and take their options."""

import ast
import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest
import typer

from bayeslaw.cli.app import app
from tests.support import BENCHMARKS, ROOT

COMMAND = re.compile(r"(?:\w+=\S+ |nice -n \d+ |uv run )*(python benchmarks/.*|bayeslaw [a-z].*)")
ELSEWHERE = {"--no-sync"}
"""Options of other programs that a page names alone."""


def commands(text):
    """Commands of a page: in blocks, and as code within sentences."""
    joined = re.sub(r" *\\\n\s*", " ", text)
    sentences, fenced = [], False
    for line in joined.splitlines():
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        if fenced or line.startswith("    "):
            yield from matches(line.split(" #")[0])
        elif not fence:
            sentences.append(line)
    for code in code_of("\n".join(sentences)):
        yield from matches(code)


def code_of(text):
    """Code within sentences, on one line each."""
    found = re.findall(r"(?<!`)`([^`]+)`(?!`)", text)
    return [" ".join(code.split()) for code in found if "\n\n" not in code]


def matches(line):
    """The commands of a line, without variables of the environment."""
    found = (COMMAND.fullmatch(part.strip(" $;")) for part in re.split(r"&&|; do| \| ", line))
    return [match[1] for match in found if match]


def texts():
    """Name and text of every page, and docstring of every benchmark."""
    pages = [
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("docs/howto/*.md"),
        *ROOT.glob("data/**/README.md"),
    ]
    for path in sorted([*pages, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]):
        yield str(path.relative_to(ROOT)), path.read_text()
    for path in BENCHMARKS:
        yield f"benchmarks/{path.name}", ast.get_docstring(ast.parse(path.read_text()))


def parser_of(name):
    """Parser of a benchmark."""
    path = ROOT / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", path)
    module = importlib.util.module_from_spec(spec)
    known = set(sys.modules)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
        for other in set(sys.modules) - known:  # names such as "plan" are only for a script
            if path.parent in Path(getattr(sys.modules[other], "__file__", None) or "/").parents:
                del sys.modules[other]
    return module.parser()


def options_of(command):
    """Options of a command of the package."""
    flags = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
    return flags | {"--help"}


@pytest.fixture(scope="module")
def parse():
    """Function that parses a command and runs nothing."""
    parsers, group = {}, typer.main.get_command(app).commands

    def found(command):
        program, name, *words = shlex.split(re.sub(r"[\[\]]", " ", command))
        if program == "bayeslaw":
            assert {word for word in words if word.startswith("-")} <= options_of(group[name])
            return
        if name not in parsers:
            parsers[name] = parser_of(Path(name).stem)
        parsers[name].parse_args(words)

    return found


TEXTS = dict(texts())
FOUND = sorted({(page, command) for page, text in TEXTS.items() for command in commands(text)})


@pytest.mark.parametrize(("page", "command"), FOUND)
def test_the_command_exists_and_takes_these_options(page, command, parse):
    parse(command)


@pytest.mark.parametrize("page", TEXTS)
def test_an_option_that_a_page_names_alone_is_one_of_a_command(page):
    options = set().union(*map(options_of, typer.main.get_command(app).commands.values()))
    for path in (*BENCHMARKS, *ROOT.glob("data/**/*.py")):
        options |= set(re.findall(r'"(--[\w-]+)"', path.read_text()))
    for code in code_of(TEXTS[page]):
        if code.startswith("--"):
            named = set(re.findall(r"(?<!\S)--[\w-]+", code))
            assert named <= options | ELSEWHERE, code


def test_commands_are_found_in_blocks_and_in_sentences():
    page = """
    OMP_NUM_THREADS=1 python benchmarks/truth.py --only tinycpt \\
        --out rows.csv

    ```sh
    bayeslaw fit t.csv && bayeslaw plan --json
    ```

Here `uv run bayeslaw check
t.csv` and bayeslaw plans; `bayeslaw` alone.
"""
    assert list(commands(page)) == [
        "python benchmarks/truth.py --only tinycpt --out rows.csv",
        "bayeslaw fit t.csv",
        "bayeslaw plan --json",
        "bayeslaw check t.csv",
    ]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("python benchmarks/truth.py --short", SystemExit),
        ("python benchmarks/truth.py --draws few", SystemExit),
        ("python benchmarks/splits.py", FileNotFoundError),
        ("bayeslaw forecast t.csv --worth 3", AssertionError),
        ("bayeslaw guess t.csv", KeyError),
    ],
)
def test_a_wrong_command_is_noticed(command, error, parse):
    with pytest.raises(error):
        parse(command)
