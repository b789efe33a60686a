"""What columns of other people's tables are, by their names: sizes, tokens, losses, units."""

import re
from collections.abc import Mapping

import pandas as pd
from pandas.api.types import is_numeric_dtype

THEIRS = {
    "params": r"param|model.?size|^size(?![a-z])",
    "tokens": "token",
    "ptpp": "tokens?_per_param",
    "loss": "loss",
    "pretraining": "pre.?train.*token",
}
"""Patterns of names that others have for columns."""
NOT_THEIRS = {
    "params": "norm|grad|per",
    "tokens": "per|/s|sec|vocab|pre.?train|unique",
    "pretraining": "per|/s|sec",
    "replay": "loss|token|seed",
    "loss": "std|sem|err|lo[0-9]|hi[0-9]|lower|upper|scale|aux|router|balanc|__min|__max",
}
"""Patterns of names that only look like these, such as tokens per second."""
VALIDATION, TRAINING, STEPS = (
    re.compile(rf"(?:^|[^a-z])(?:{words})(?:[^a-z]|$)", re.IGNORECASE)
    for words in (
        "val|valid|validation|eval|test|dev|held.?out",
        "train|training",
        "steps?",
    )
)
"""Words in names of columns: of validation losses, of training losses, and of steps."""
IN_OTHER_UNIT = re.compile("bpb|bits|ppl|perplexity")
"""Name, in lower case, of a column of losses in other units."""
SUFFIXES = {"K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
UNIT_IN_NAME = re.compile(
    r"(?:^|[^A-Za-z])(?:(?P<letter>[kmbt])|(?P<short>mn|mil|bn|tn)|(?P<word>milli|billi|trilli)ons?)"
    r"[^A-Za-z]*$",
    re.IGNORECASE,
)
"""Unit of counts at the end of a name, such as n_params_M, tokens_bn or size (billions)."""
UNIT_AT_NAME = re.compile(r"[a-z](?P<letter>[KMBT])$")
"""The same as a capital letter right after the name, such as paramsM."""
MOST_TOKENS = 5e13
"""Tokens beyond those of any run: more means that a column is in single counts already."""


def likely_names(column: str, unused: Mapping[str, str]) -> list[str]:
    """Columns of a file that may be a column here, by their names.

    `unused` are its columns by their names in lower case. Of losses, those of validation come
    alone, and those of training only if there are no others.
    """
    other = NOT_THEIRS.get(column, "$^")
    pattern = THEIRS.get(column, column)
    near = []
    for lower, theirs in unused.items():
        if re.search(pattern, lower) and not re.search(other, lower):
            near.append(theirs)
    if column == "loss" and not near:
        near = [
            theirs for lower, theirs in unused.items() if IN_OTHER_UNIT.search(lower)
        ]
    if column == "loss" and near:
        best = min(map(_kind_of_loss, near))
        near = [theirs for theirs in near if _kind_of_loss(theirs) == best]
    return near


def scaled(column: str, values: pd.Series) -> str:
    """Expression of single counts, from a column whose name may end with another unit."""
    factor = factor_of_name(column, values)
    if factor == 1:
        return quoted(column)
    return f"{quoted(column)} * {exponent(factor)}"


def _kind_of_loss(name: str) -> int:
    """0 for a column of validation losses by its name, 2 for one of training losses, else 1."""
    if VALIDATION.search(name):
        return 0
    return 2 if TRAINING.search(name) else 1


def factor_of_name(name: str, values: pd.Series | None = None) -> float:
    """Factor that makes counts of a column whose name ends with their unit; 1 if none does.

    Values that would be more than any count are in single counts, whatever the name says.
    """
    unit = UNIT_IN_NAME.search(name) or UNIT_AT_NAME.search(name)
    if not unit:
        return 1.0
    word = next(text for text in unit.groups() if text)
    factor = SUFFIXES[word[0].upper()]
    if (
        values is not None
        and pd.to_numeric(values, errors="coerce").max() * factor > MOST_TOKENS
    ):
        return 1.0
    return factor if values is None or is_numeric_dtype(values) else 1.0


def exponent(factor: float) -> str:
    """A power of ten as people write it, such as 1e9."""
    return f"{factor:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def quoted(column: str) -> str:
    """A column in an expression: in backticks if it is no word."""
    return column if column.isidentifier() else f"`{column}`"
