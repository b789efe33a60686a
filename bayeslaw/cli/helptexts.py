"""Help texts of options: what the docstring of the Python function says of its argument.

Docstrings are read from the source, because an import of PyMC takes seconds.
"""

import ast
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


def _docstring(function: str) -> str:
    """Docstring of a public function, such as ``"fit"`` or ``"LossTable.split"``."""
    node: ast.AST = _parsed(PACKAGE / "__init__.pyi")
    for name in function.split("."):
        folder = PACKAGE / name
        if folder.is_dir():  # such as `derive`
            node = _parsed(folder / "__init__.py")
            continue
        *_, node = _named(node, name) or _named(_parsed(_module(node, name)), name)
    assert isinstance(node, ast.FunctionDef)
    return inspect.cleandoc(ast.get_docstring(node) or "") + "\n"


def _named(node: ast.AST, name: str) -> list[ast.AST]:
    """Definitions of a name in a module or class; overloads come before the function itself."""
    return [inner for inner in getattr(node, "body", []) if getattr(inner, "name", None) == name]


def _module(node: ast.AST, name: str) -> Path:
    """File of the module from which `name` is imported."""
    for statement in getattr(node, "body", []):
        if isinstance(statement, ast.ImportFrom) and name in (a.name for a in statement.names):
            parts = str(statement.module).removeprefix("bayeslaw.").split(".")
            return PACKAGE.joinpath(*parts).with_suffix(".py")
    raise LookupError(f"bayeslaw has no {name}")


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
