"""Expressions of a table's columns: queries that select rows, and columns that are computed."""

import ast
import re
from typing import Any

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from bayeslaw.common.arrays import Bools
from bayeslaw.common.errors import TableError, unknown
from bayeslaw.tables.validation import ALIASES, named

EXPRESSION_NAMES: dict[str, tuple[str, ...]] = {
    **{alias: (column,) for alias, column in ALIASES.items()},
    **dict.fromkeys(("C", "flops"), ("params", "tokens")),
}
"""Names in expressions beside those of columns, and the columns that they need."""
QUOTES = re.compile(r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|`([^`]*)`""")
"""Text, which stays, or the name of a column in backticks."""
FUNCTIONS = ("log", "log10", "exp", "sqrt", "abs")
SYNTAX = (
    *(ast.Expression, ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple, ast.Call),
    *(
        ast.Compare,
        ast.cmpop,
        ast.BoolOp,
        ast.boolop,
        ast.UnaryOp,
        ast.unaryop,
        ast.BinOp,
    ),
    *(
        ast.Add,
        ast.Sub,
        ast.Mult,
        ast.Div,
        ast.FloorDiv,
        ast.Mod,
        ast.Pow,
        ast.BitAnd,
        ast.BitOr,
    ),
)
"""What an expression may have: an attribute or another call could write files."""
EXAMPLE = "write comparisons, such as ptpp <= 31 and domain == 'french'."


def parsed(text: str) -> tuple[str, dict[str, str]]:
    """An expression with words in place of columns in backticks, and the column of each word.

    `SyntaxError` if it has more than `SYNTAX` and `FUNCTIONS`.
    """
    columns: dict[str, str] = {}

    def word(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        name = f"_in_backticks_{len(columns)}"
        columns[name] = match[2]
        return name

    text = QUOTES.sub(word, text).strip()
    tree = ast.parse(text, mode="eval")
    nodes = [*ast.walk(tree)]
    for node in nodes:
        other_call = (
            isinstance(node, ast.Call) and ast.unparse(node.func) not in FUNCTIONS
        )
        if other_call or not isinstance(node, SYNTAX):
            raise SyntaxError(f"{type(node).__name__} in {text!r}")
        # Text times a number, or a format of text, can be as long as a memory holds.
        logic = isinstance(node, ast.BinOp) and isinstance(
            node.op, ast.BitAnd | ast.BitOr
        )
        if isinstance(node, ast.BinOp) and not logic and _has_text(node):
            raise SyntaxError(f"arithmetic of text in {text!r}")
        if isinstance(node, ast.Name):
            columns.setdefault(node.id, node.id)
    if not any(isinstance(node, ast.Pow) for node in nodes):
        return text, columns
    # A power of integers can have more digits than a memory holds; of floats it is refused.
    for node in nodes:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            node.value = float(node.value)
    return ast.unparse(tree), columns


def _has_text(node: ast.AST) -> bool:
    """Whether the value of a part of an expression may be text that is written in it."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    if isinstance(node, ast.Compare):  # its value is true or false
        return False
    return any(map(_has_text, ast.iter_child_nodes(node)))


def evaluated(frame: pd.DataFrame, text: str) -> Any:
    """Value of an expression of a frame's columns, under their names or those used here.

    Errors are of many types, of the parser and of operations.
    """
    text, columns = parsed(text)
    here = {name: column for column, name in named(frame).items()}
    values = {}
    for word, column in columns.items():
        if column in frame:
            values[word] = frame[column]
        elif {*(needs := EXPRESSION_NAMES.get(column, (column,)))} <= {*here}:
            first, *tokens = (frame[here[name]] for name in needs)
            values[word] = 6 * first * tokens[0] if tokens else first
        elif word != column:
            raise NameError(f"name {column!r} is not defined")
    # Empty scopes, so that a query cannot reach this module's imports.
    return frame.eval(text, resolvers=[values], local_dict={}, global_dict={})


def chosen(frame: pd.DataFrame, query: str, name: str) -> Bools:
    """Which rows of a frame a query selects, shape (rows,)."""
    try:
        rows = evaluated(frame, query)
    except (
        Exception
    ) as error:  # pandas raises many types, of its parser and of the operations
        absent = re.fullmatch("name '(.*)' is not defined", str(error))
        if absent:
            also = [
                name
                for name, of in EXPRESSION_NAMES.items()
                if {*of} <= {*frame.columns}
            ]
            reason = unknown("column", absent[1], [*map(str, frame.columns), *also])
        elif isinstance(error, TypeError):
            reason = _unlike(frame, query) or f"{str(error).splitlines()[0]}."
        else:  # what pandas says of its parser is of no use
            reason = EXAMPLE
        raise TableError(
            f"{name}: cannot evaluate the query {query!r}: {reason}"
        ) from error
    if not isinstance(rows, pd.Series) or not is_bool_dtype(rows):
        raise TableError(f"{name}: the query {query!r} does not choose rows: {EXAMPLE}")
    return rows.to_numpy(bool, na_value=False)


def _unlike(frame: pd.DataFrame, query: str) -> str:
    """Which comparison of a query is of text with a number, and what to write; or nothing."""
    text, columns = parsed(query)
    of_words = {name: column for column, name in named(frame).items()}
    for node in ast.walk(ast.parse(text, mode="eval")):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        words = [columns[side.id] for side in sides if isinstance(side, ast.Name)]
        values = [side.value for side in sides if isinstance(side, ast.Constant)]
        for word in words:
            column = word if word in frame else of_words.get(ALIASES.get(word, word))
            if column not in frame:
                continue
            numeric = is_numeric_dtype(frame[column])
            for value in values:
                if numeric and isinstance(value, str):
                    how = f"and {value!r} is text: write it without quotes"
                    return f"column {word!r} holds numbers, {how}."
                if not numeric and isinstance(value, int | float):
                    how = f"and {value:g} is a number: write '{value:g}'"
                    return f"column {word!r} holds text, {how}."
    return ""
