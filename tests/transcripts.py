"""Commands of a page with what they print, and whether two outputs agree.

``python -m tests.transcripts docs/from-csv-to-decision.md`` runs a page's blocks in order and
writes what each command prints into the block of kind ``text`` below it.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
NUMBER = re.compile(r"(?<![\w.])(-?\d*\.?\d+(?:e[-+]?\d+)?)")
ANY = re.compile(r"(?:ESS (?:at least )?|E-BFMI |p = |hash )$")
"""Text before a number that depends on the draws more than on the posterior."""


WAITING = re.compile(
    r"^[\w, ]+: [\d,]+ draws(?: of each|: .*; again).*\n"
    r"|^(?:fits and forecasts|comparing laws)\b.*\n",
    re.M,
)
"""Lines of a log, in whose place a terminal has a bar."""
HASH, TIME = r"\b[0-9a-f]{12,64}\b", r"\d{4}-\d\d-\d\dT\S+"


def close(printed: str, shown: str) -> bool:
    """Whether numbers agree up to what the draws of another processor may change."""
    digits = len(re.sub(r"e.*|\D", "", shown).lstrip("0"))
    if digits >= 4:
        return abs(float(printed) - float(shown)) <= 0.03 * abs(float(shown))
    least = 0.03 if "." in shown else 3
    return abs(float(printed) - float(shown)) <= max(0.15 * abs(float(shown)), least)


def agree(printed: str, shown: str) -> bool:
    """Whether two outputs have the same words, and numbers that are close."""
    one, other = (NUMBER.split(words(text)) for text in (printed, shown))
    if one[::2] != other[::2]:
        return False
    numbers = zip(one[1::2], other[1::2], one[::2], strict=False)
    return all(ANY.search(text) or close(a, b) for a, b, text in numbers)


def words(text: str) -> str:
    """Text on one line, without hashes and times.

    Lines are wrapped, and rules drawn, by the width of numbers.
    """
    return " ".join(re.sub(rf"[─━┄-]{{3,}}|{HASH}|{TIME}", "", text).split())


def transcript(page: Path, folder: Path) -> Iterator[tuple[re.Match[str], str, int]]:
    """Each block of a page, what it prints as blocks run in order in a folder, its exit code."""
    (folder / "data").symlink_to(ROOT / "data")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "COLUMNS": "88", "TERM": "dumb"}
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        kind, text, _ = block.groups()
        command = [sys.executable, "-c", text] if kind == "python" else ["bash", "-ec", text]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        yield block, done.stdout + WAITING.sub("", done.stderr), done.returncode


def main() -> None:
    """Write the outputs of today into the pages that are named."""
    for name in sys.argv[1:]:
        page, text = Path(name), Path(name).read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            for block, printed, _ in transcript(page, Path(folder)):
                kind, command, shown = block.groups()
                if shown is not None:
                    bare = "\n".join(line.rstrip() for line in printed.rstrip().splitlines())
                    written = f"```{kind}\n{command}```\n\n```text\n{bare}\n```\n"
                    text = text.replace(block[0], written)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
