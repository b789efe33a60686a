"""The README is short, and the page from a CSV file to a decision is as its commands run."""

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PATH = ROOT / "docs" / "from-csv-to-decision.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
NUMBER = re.compile(r"(-?\d*\.?\d+(?:e[-+]?\d+)?)")
STATUS = {"error": 2, "REFUSE": 1}
"""Exit codes by the first word of what a command prints."""


def words(page: Path) -> int:
    """Words without code blocks, tables, pictures and the targets of links."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    prose = [line for line in text.splitlines() if not line.startswith(("    ", "|", "!["))]
    return len(re.sub(r"\]\([^)]*\)", "]", "\n".join(prose)).split())


def test_they_are_short():
    assert words(README) <= 900
    assert words(PATH) <= 1500


def close(printed: str, shown: str) -> bool:
    """Whether numbers agree up to what the draws of another processor may change."""
    least = 0.02 if "." in shown else 1
    return abs(float(printed) - float(shown)) <= max(0.1 * abs(float(shown)), least)


def prints(output: str, line: str) -> bool:
    """Whether the output has a line, with close numbers. The effective sample size may be any."""
    parts = NUMBER.split(" ".join(line.split()))
    text, numbers = parts[::2], parts[1::2]
    between = [re.escape(part).replace("\\ ", r"\s+") for part in text]
    pairs = [
        zip(found.groups(), numbers, text, strict=False)
        for found in re.finditer(NUMBER.pattern.join(between), output)
    ]
    return any(all(close(a, b) or t.endswith("ESS ") for a, b, t in each) for each in pairs)


def test_a_line_is_found_up_to_small_differences():
    line = "converged: R-hat 1.004, ESS 460, no divergences"
    assert prints("x\nconverged: R-hat 1.006, ESS 900, no\n  divergences\n", line)
    assert not prints("converged: R-hat 1.204, ESS 900, no divergences", line)
    assert not prints("did not converge: R-hat 1.004", line)
    assert prints("plan  11.3  36.1 %  1.67M  1.45e+12", "plan 11.1  36.4 %   1.64M  1.45e+12")
    assert not prints("plan  15.3  36.1 %  1.67M  1.45e+12", "plan 11.1  36.4 %   1.64M  1.45e+12")


@pytest.mark.slow
def test_every_command_prints_what_the_page_shows(tmp_path):
    (tmp_path / "data").symlink_to(ROOT / "data")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "COLUMNS": "88", "TERM": "dumb"}
    blocks = [*BLOCK.findall(PATH.read_text()), ("", "")]
    assert sum(kind == "bash" for kind, _ in blocks) == 10
    for (kind, text), (after, shown) in pairwise(blocks):
        if kind == "text":
            continue
        lines = shown.splitlines() if after == "text" else []
        command = [sys.executable, "-c", text] if kind == "python" else ["bash", "-ec", text]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        status = STATUS.get(re.match(r"\w*", lines[0])[0], 0) if lines else 0
        output = done.stdout + done.stderr
        assert done.returncode == status, output
        assert not [line for line in lines if not prints(output, line)], output
