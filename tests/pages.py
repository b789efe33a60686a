"""Pages: their commands, what a reader on GitHub would see wrong, and outputs that agree.

``python -m tests.pages docs/from-csv-to-decision.md`` runs a page's blocks in order and writes what
each prints into the block of kind ``text`` below it.
"""

import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.support import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("howto/*.md")])
PAGES += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
MADE = [DOCS / name for name in ("_build", "data", "notebooks", "reference")]
"""Folders that Sphinx fills; they are not in the repository."""

# -- commands -------------------------------------------------------------------------------------

COMMAND = re.compile(
    r"(?:\w+=\S+ |uv run (?:--with \S+ )?)*(python -m benchmarks .*|bayeslaw [a-z].*)"
)


def commands(text: str) -> Iterator[str]:
    """Commands of a page, without variables of the environment: in blocks and within sentences."""
    joined = re.sub(r" *\\\n\s*", " ", text)
    sentences, fenced = [], False
    for line in joined.splitlines():
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        if fenced or line.startswith("    "):
            yield from _matches(line.split(" #")[0])
        elif not fence:
            sentences.append(line)
    for code in code_of("\n".join(sentences)):
        yield from _matches(code)


def code_of(text: str) -> list[str]:
    """Code within sentences, on one line each."""
    found = re.findall(r"(?<!`)`([^`]+)`(?!`)", text)
    return [" ".join(code.split()) for code in found if "\n\n" not in code]


def _matches(line: str) -> list[str]:
    found = (
        COMMAND.fullmatch(part.strip(" $;")) for part in re.split(r"&&|; do| \| ", line)
    )
    return [match[1] for match in found if match]


# -- outputs --------------------------------------------------------------------------------------

BLOCK = re.compile(
    r"^```(python|bash)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S
)
NUMBER = re.compile(r"(?<![\w.])(-?\d*\.?\d+(?:e[-+]?\d+)?)")
ANY = re.compile(r"(?:ESS (?:at least )?|E-BFMI |p = |hash )$")
"""Text before a number that depends on the draws more than on the posterior."""
WAITING = re.compile(
    r"^[\w, ]+: [\d,]+ draws(?: of each|: .*; again).*\n"
    r"|^(?:fits and forecasts|comparing laws)\b.*\n",
    re.M,
)
"""Lines of a log, in whose place a terminal has a bar."""
VARYING = re.compile(r"[─━┄-]{3,}|\b[0-9a-f]{12,64}\b|\d{4}-\d\d-\d\dT\S+")
"""Rules, which are as wide as the numbers, hashes and times."""


UNSURE = {
    r"no divergences|[\d,]+ of [\d,]+ transitions diverged": "divergences",
    # Why a short refit has not converged, if it has not.
    r" \((?:R-hat|bulk ESS|tail ESS|[\d,]+ divergence)[^()]*\)": "",
    # Stated from a threshold on; whether a loss is inside is a threshold on the band's ends, which
    # are compared.
    r" \(Monte Carlo error [\d.e+]+\)": "",
    r"(?<=\d) (?:in|out)(?= |$)": "",
}
"""Phrases that a count or a threshold of the draws makes, and what is compared in their place."""


def agree(printed: str, shown: str) -> bool:
    """Whether two outputs have the same words, and numbers that are close.

    Words that the draws of another processor may change are not compared; see `UNSURE`.
    """
    one, other = (NUMBER.split(_sure(text)) for text in (printed, shown))
    if one[::2] != other[::2]:
        return False
    numbers = zip(one[1::2], other[1::2], one[::2], strict=False)
    return all(ANY.search(text) or _close(a, b) for a, b, text in numbers)


def _sure(text: str) -> str:
    """A text on one line, without what varies."""
    words = " ".join(VARYING.sub("", text).split())
    for pattern, instead in UNSURE.items():
        words = re.sub(pattern, instead, words)
    return words


def _close(printed: str, shown: str) -> bool:
    """Whether numbers agree up to what the draws of another processor may change."""
    digits = len(re.sub(r"e.*|\D", "", shown).lstrip("0"))
    least = 0.0 if digits >= 4 else 3
    if digits < 4 and "." in shown:
        # One of the last decimal place, too: errors such as 0.6 % are rounded that far.
        places = len(shown.partition("e")[0].partition(".")[2])
        least = max(0.03, 1.01 * 10.0**-places)
    share = 0.03 if digits >= 4 else 0.15
    return abs(float(printed) - float(shown)) <= max(share * abs(float(shown)), least)


def transcript(page: Path, folder: Path) -> Iterator[tuple[re.Match[str], str, int]]:
    """Each block of a page, what it prints as blocks run in order in a folder, its exit code."""
    (folder / "data").symlink_to(ROOT / "data")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "COLUMNS": "88", "TERM": "dumb"}
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        kind, text, _ = block.groups()
        command = (
            [sys.executable, "-c", text] if kind == "python" else ["bash", "-ec", text]
        )
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True
        )
        yield block, done.stdout + WAITING.sub("", done.stderr), done.returncode


# -- GitHub ---------------------------------------------------------------------------------------

GITHUB = MarkdownIt("commonmark").enable(["table", "strikethrough"])
MATH = re.compile(r"\$\$.+?\$\$|(?<![\w$])\$(?=\S)[^$]+?(?<=\S)\$(?![\w$])", re.S)
MYST = re.compile(r"^:{3,}.*|\{[\w:.-]+\}X|^\(\S+\)=$|^:\s.*|^\{[#.].*|^\+\+\+$", re.M)
"""Directives, roles, labels, definitions, attributes and breaks; X stands for code."""
AS_TEXT = re.compile(
    r"^(?:\w+=\S+ )*(?:python|uv run|bayeslaw \w+) [\w./]+\.(?:py|csv|nc)\b.*", re.M
)
"""A command, which becomes text where it is indented below a list."""


def faults(text: str, path: Path) -> Iterator[str]:
    """Everything on a page that GitHub would show raw, empty or dead."""
    tokens = [
        t
        for t in GITHUB.parse(text)
        if t.type != "html_block" or "<!--" not in t.content
    ]
    for token, after in itertools.zip_longest(tokens, tokens[3:]):
        if token.type == "fence" and token.info[:1] == "{":
            yield f"directive {token.info}"
        if token.type == "heading_open" and (
            after is None or (after.type == "heading_open" and after.tag <= token.tag)
        ):
            yield f"empty section {_seen(tokens[tokens.index(token) + 1])}"
        if token.type == "inline":
            yield from _raw(token)
        for child in token.children or ():
            target = child.attrs.get("href") or child.attrs.get("src")
            if target and (fault := _dead(str(target), path, text)):
                yield fault


def anchors(text: str) -> set[str]:
    """Anchors that GitHub gives to the headings of a page."""
    found, seen = set(re.findall(r'<a (?:id|name)="([^"]+)"', text)), Counter[str]()
    for token, content in itertools.pairwise(GITHUB.parse(text)):
        if token.type == "heading_open":
            slug = re.sub(r"[^\w\- ]", "", _seen(content).strip().lower()).replace(
                " ", "-"
            )
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return found


def _seen(token: Token, code: str = "") -> str:
    """Text that a reader sees, with `code` in place of code if it is given."""
    parts = []
    for child in token.children or ():
        if child.type in ("softbreak", "hardbreak"):
            parts.append("\n")
        elif child.type == "code_inline" and code:
            parts.append(code)
        elif child.type in ("text", "text_special", "code_inline"):
            parts.append(child.content)
    return "".join(parts)


def _raw(token: Token) -> Iterator[str]:
    """Markup that GitHub does not know, and formulas that it would change."""
    shown = " ".join(_seen(token).split())
    for formula in MATH.findall(re.sub(r"`+[^`]*`+", "X", token.content)):
        if " ".join(formula.split()) not in shown:
            yield f"Markdown changes the formula {formula}"
    rest = MATH.sub("", _seen(token, "X"))
    yield from (f"markup of MyST: {match[0]}" for match in MYST.finditer(rest))
    yield from (
        f"command as text: {match[0]}" for match in AS_TEXT.finditer(_seen(token, "X"))
    )
    if "$$" in rest:
        yield f"half a formula: {rest}"


def _dead(target: str, page: Path, text: str) -> str:
    """Why a link or picture of a page leads nowhere, if it does."""
    if re.match(r"\w+:", target):
        return ""
    name, _, anchor = unquote(target).partition("#")
    path = Path(os.path.normpath(page.parent / name)) if name else page
    if not path.exists() or any(path.is_relative_to(folder) for folder in MADE):
        return f"no file {target}"
    if anchor and path.suffix == ".md":
        linked = text if path == page else path.read_text(encoding="utf-8")
        return "" if anchor in anchors(linked) else f"no heading {target}"
    return ""


def main() -> None:
    """Write the outputs of today into the pages that are named."""
    for name in sys.argv[1:]:
        page, text = Path(name), Path(name).read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            for block, printed, _ in transcript(page, Path(folder)):
                kind, command, shown = block.groups()
                if shown is not None:
                    bare = "\n".join(
                        line.rstrip() for line in printed.rstrip().splitlines()
                    )
                    written = f"```{kind}\n{command}```\n\n```text\n{bare}\n```\n"
                    text = text.replace(block[0], written)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
