"""Commands in the documentation exist and take their options."""

import re
import shlex

import pytest
import typer

from bayeslaw.cli.app import app
from benchmarks import EXPERIMENTS
from tests.support import ROOT

COMMAND = re.compile(
    r"(?:\w+=\S+ |uv run (?:--with \S+ )?)*(python -m benchmarks .*|bayeslaw [a-z].*)"
)
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
    """Name and text of every page."""
    pages = [
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("docs/howto/*.md"),
        *ROOT.glob("data/**/README.md"),
    ]
    for path in sorted([*pages, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]):
        yield str(path.relative_to(ROOT)), path.read_text()


def options_of(command):
    """Options of a command of the package."""
    flags = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
    return flags | {"--help"}


@pytest.fixture(scope="module")
def parse():
    """Function that parses a command and runs nothing."""
    group = typer.main.get_command(app).commands

    def found(command):
        program, *words = shlex.split(re.sub(r"[\[\]]", " ", command))
        if program == "bayeslaw":
            options = {word for word in words if word.startswith("-")}
            assert options <= options_of(group[words[0]])
        else:
            EXPERIMENTS[words[2]].parser().parse_args(words[3:])

    return found


TEXTS = dict(texts())
FOUND = sorted({(page, command) for page, text in TEXTS.items() for command in commands(text)})


@pytest.mark.parametrize(("page", "command"), FOUND)
def test_the_command_exists_and_takes_these_options(page, command, parse):
    parse(command)


@pytest.mark.parametrize("page", TEXTS)
def test_an_option_that_a_page_names_alone_is_one_of_a_command(page):
    options = set().union(*map(options_of, typer.main.get_command(app).commands.values()))
    for experiment in EXPERIMENTS.values():
        options |= set(experiment.parser()._option_string_actions)
    for path in ROOT.glob("data/**/*.py"):
        options |= set(re.findall(r'"(--[\w-]+)"', path.read_text()))
    for code in code_of(TEXTS[page]):
        if code.startswith("--"):
            named = set(re.findall(r"(?<!\S)--[\w-]+", code))
            assert named <= options | ELSEWHERE, code


def test_commands_are_found_in_blocks_and_in_sentences():
    page = """
    OMP_NUM_THREADS=1 python -m benchmarks truth --only tinycpt \\
        --out rows.csv

    ```sh
    bayeslaw fit t.csv && bayeslaw plan --json
    ```

Here `uv run bayeslaw check
t.csv` and bayeslaw plans; `bayeslaw` alone.
"""
    assert list(commands(page)) == [
        "python -m benchmarks truth --only tinycpt --out rows.csv",
        "bayeslaw fit t.csv",
        "bayeslaw plan --json",
        "bayeslaw check t.csv",
    ]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("python -m benchmarks truth --short", SystemExit),
        ("python -m benchmarks truth --draws few", SystemExit),
        ("python -m benchmarks splits", KeyError),
        ("bayeslaw forecast t.csv --worth 3", AssertionError),
        ("bayeslaw guess t.csv", KeyError),
    ],
)
def test_a_wrong_command_is_noticed(command, error, parse):
    with pytest.raises(error):
        parse(command)
