"""Help texts of options: what the docstring of the Python function says of its argument.

Docstrings are read from the source, because an import of PyMC takes seconds.
"""

import inspect
import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
MARK = "@"
"""Start of a help text that names a function and its argument, to be read by `help_text`."""


def help_text(mark: str, *, values: bool) -> str:
    """First sentence about an argument, as in ``"@fit delta"``, and what it is by default.

    With `values`, those that the docstring lists are in parentheses.
    """
    function, name = mark.removeprefix(MARK).split()
    entry = re.search(
        rf"^(?:[\w*]+, )*{name}\b[\w, ]*(?: : (.*))?\n((?:    .*\n?|\n)+)",
        _docstring(function),
        re.M,
    )
    if entry is None:
        raise LookupError(f"the docstring of bayeslaw.{function} has no argument {name}")
    kind, text = entry[1] or "", " ".join(entry[2].split())
    text = re.sub(r"; [\w.]+ by default(?=[.])", "", text)  # the help says it by itself
    text = re.sub('`+|"(?=\\w)|(?<=\\w)"', "", text)
    sentence, *others = re.split(r"(?<=[.]) (?=[A-Z])", text)
    if values and (listed := re.match(r"\{(.*?)\}", kind)):
        sentence = f"{sentence.removesuffix('.')} ({listed[1].replace('"', '')})."
    return " ".join([sentence, *(text for text in others if text.startswith("By default"))])


@cache
def _docstring(function: str) -> str:
    """Docstring of a public function, such as ``"fit"``, ``"LossTable.split"``, ``"derive.floor"``.

    Overloads, which come before a function, have none.
    """
    names = function.split(".")
    stub = PACKAGE / "__init__.pyi"
    if (PACKAGE / names[0]).is_dir():
        stub = PACKAGE / names.pop(0) / "__init__.py"
    imported = re.search(
        rf"^from (?:bayeslaw)?\.([\w.]+) import (?:\([^)]*|[^\n(]*)\b{names[0]}\b",
        stub.read_text(encoding="utf-8"),
        re.M,
    )
    if imported is None:
        raise LookupError(f"bayeslaw has no {function}")
    text = PACKAGE.joinpath(*imported[1].split(".")).with_suffix(".py").read_text(encoding="utf-8")
    for name in names:
        text = re.split(rf"^ *(?:class|def) {name}\b", text, maxsplit=1, flags=re.M)[1]
    return inspect.cleandoc(text.split('"""')[1]) + "\n"
