"""What a reader of a Markdown page on GitHub would see wrong."""

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
MADE = [ROOT / "docs" / name for name in ("_build", "data", "notebooks", "reference")]
"""Folders that Sphinx fills; they are not in the repository."""
GITHUB = MarkdownIt("commonmark").enable(["table", "strikethrough"])
MATH = re.compile(r"\$\$.+?\$\$|(?<![\w$])\$(?=\S)[^$]+?(?<=\S)\$(?![\w$])", re.S)
MYST = re.compile(r"^:{3,}.*|\{[\w:.-]+\}X|^\(\S+\)=$|^:\s.*|^\{[#.].*|^\+\+\+$", re.M)
"""Directives, roles, labels, definitions, attributes and breaks; X stands for code."""
COMMAND = re.compile(
    r"^(?:\w+=\S+ )*(?:python|uv run|bayeslaw \w+) [\w./]+\.(?:py|csv|nc)\b.*", re.M
)
"""A command, which becomes text where it is indented below a list."""


def faults(text: str, path: Path) -> Iterator[str]:
    """Everything on a page that GitHub would show raw, empty or dead."""
    tokens = [each for each in GITHUB.parse(text) if not _comment(each)]
    yield from (f"directive {t.info}" for t in tokens if t.type == "fence" and t.info[:1] == "{")
    for token in tokens:
        if token.type == "inline":
            yield from _raw(token)
    yield from _empty(tokens)
    for token in tokens:
        for child in token.children or ():
            target = child.attrs.get("href") or child.attrs.get("src")
            if target and (fault := _dead(str(target), path, text)):
                yield fault


def anchors(text: str) -> set[str]:
    """Anchors that GitHub gives to the headings of a page."""
    found, seen = set(re.findall(r'<a (?:id|name)="([^"]+)"', text)), Counter[str]()
    for token, content in itertools.pairwise(GITHUB.parse(text)):
        if token.type == "heading_open":
            slug = re.sub(r"[^\w\- ]", "", _seen(content).strip().lower()).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return found


def _comment(token: Token) -> bool:
    return token.type == "html_block" and token.content.lstrip().startswith("<!--")


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
    formulas = MATH.findall(re.sub(r"`+[^`]*`+", "X", token.content))
    for formula in formulas:
        if " ".join(formula.split()) not in shown:
            yield f"Markdown changes the formula {formula}"
    rest = MATH.sub("", _seen(token, "X"))
    yield from (f"markup of MyST: {match[0]}" for match in MYST.finditer(rest))
    yield from (f"command as text: {match[0]}" for match in COMMAND.finditer(_seen(token, "X")))
    if "$$" in rest:
        yield f"half a formula: {rest}"


def _empty(tokens: list[Token]) -> Iterator[str]:
    """Headings without text below them."""
    headings = [i for i, token in enumerate(tokens) if token.type == "heading_open"]
    for i in headings:
        after = tokens[i + 3] if i + 3 < len(tokens) else None
        if after is None or (after.type == "heading_open" and after.tag <= tokens[i].tag):
            yield f"empty section {_seen(tokens[i + 1])}"


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
