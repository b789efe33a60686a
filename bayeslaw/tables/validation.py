"""Validation of loss tables: column names, and covariates as numbers within their range.

Labels of groups (`run`, `base`, `domain`, `role`, and any other column that labels rows) are
compared as the text of `label_texts`. A row without a label is a group of its own.
"""

import re
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from difflib import get_close_matches

import numpy as np
import pandas as pd
from pandas.api.types import is_list_like

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import TableError, TableWarning, argument
from bayeslaw.tables.column_names import (
    NOT_THEIRS,
    STEPS,
    SUFFIXES,
    TRAINING,
    likely_names,
    quoted,
    scaled,
)
from bayeslaw.tables.compute import AMOUNTS, are_bases
from bayeslaw.tables.covariates import FLOPS, TABLE, Covariate

COVARIATES = tuple(TABLE)
COLUMNS = (*COVARIATES, "unique_tokens", "loss")
BASE_LOSSES = ("start_loss", "base_loss")
"""Losses of a row's base: on the row's domain, and on the domain it was pre-trained on."""
OF_DOMAIN = ("domain", "role")
"""Columns that say of which domain losses are."""
LABEL_COLUMNS = (*OF_DOMAIN, "base", "run")
NUMBERS = (*COLUMNS, "annealed", *BASE_LOSSES)
KNOWN = (*NUMBERS, *LABEL_COLUMNS)
"""Columns with a meaning."""
ALIASES = {row.alias: c for c, row in TABLE.items()}
SUFFIXED_NUMBER = r"[0-9]*\.?[0-9]+[KkMBT]"
MISSING = "is missing (NaN); fill it or drop the row"
MEANING = {"ptpp": "pre-training tokens / params"}
"""What a column is, where its name does not say it."""
LINE_COLUMN = "line"
"""Name of an index that holds the lines of a file."""
_POSITIVE = {c: row.positive for c, row in TABLE.items() if row.positive}
_POSITIVE["unique_tokens"] = "the distinct tokens of the new data"
RANGES: dict[str, tuple[Callable[[pd.Series], pd.Series], str]] = {
    **{
        c: (lambda x: x > 0, f"is not positive; give {what}")
        for c, what in _POSITIVE.items()
    },
    "annealed": (lambda x: x.isin([0, 1]), "is neither 0 or 1 nor True or False"),
    "tokens": (lambda x: x >= 0, "is negative; give D in tokens, 0 = baseline"),
    "replay": (
        lambda x: x.between(0, 1),
        "lies outside [0, 1]; give a fraction, not a percentage",
    ),
}
"""Which values of a column are valid, and what is said of the others."""
OF_ADAPTATION = ("replay", "unique_tokens", "annealed")
"""Columns that a base, which has no run, need not have: nothing of its data is new."""


def canonical(
    frame: pd.DataFrame,
    name: str,
    required: Iterable[str] | Mapping[str, str],
    *,
    lines: bool = False,
) -> pd.DataFrame:
    """Copy of a frame with canonical column names, validated covariates, and types as from CSV.

    The values of `required`, if it is a mapping, say in the error what needs each column. With
    `lines` the copy keeps the index of the frame, by which messages name rows.
    """
    given: object = frame  # whatever a user gave
    if not isinstance(given, pd.DataFrame):
        kind = "None" if given is None else f"a {type(given).__name__}"
        how = ": give pd.DataFrame(rows)" if isinstance(given, dict | list) else ""
        raise TableError(f"{name}: a pandas data frame is expected, not {kind}{how}.")
    lacking = missing_columns(frame, required, name)
    frame = frame.rename(columns=named(frame))
    if repeated := sorted(set(frame.columns[frame.columns.duplicated()])):
        raise TableError(f"{name}: column {repeated[0]!r} is there twice; keep one.")
    if frame.empty:  # said first: a file without rows lacks columns as well
        header = ", ".join(map(str, frame.columns))
        raise TableError(
            f"{name}: no rows" + (f" below the header {header!r}." if header else ".")
        )
    if lacking:
        raise TableError(f"{name}: {lacking}")
    base = are_bases(frame)
    for column in frame.columns:
        if column in COLUMNS:
            frame[column] = _numbers(
                frame[column], name, base & (column in OF_ADAPTATION)
            )
        else:
            frame[column] = typed(frame[column], name)
    for column in [c for c in RANGES if c in frame]:
        valid, what = RANGES[column]
        absent = frame[column].isna() & base & (column in OF_ADAPTATION)
        refuse(~valid(frame[column]) & ~absent, frame[column], name, what)
    if "params" in frame:
        # Sizes are groups of random effects, which are compared exactly.
        frame["params"] = whole(frame["params"].to_numpy())
    return frame if lines else frame.reset_index(drop=True)


def missing_columns(
    frame: pd.DataFrame, required: Iterable[str] | Mapping[str, str], name: str = ""
) -> str:
    """Name the required columns that are missing, and likely names of them; empty if none is.

    `name` is that of the table, or of the option in which the columns are.
    """
    needs = required if isinstance(required, Mapping) else dict.fromkeys(required, "")
    columns = [str(column) for column in frame.columns]
    here = named(frame)
    lacking = [column for column in needs if column not in here.values()]
    if not lacking:
        return ""
    alias_of = {column: f"or {alias}" for alias, column in ALIASES.items()}
    names = []
    for column in lacking:
        about = [alias_of.get(column), MEANING.get(column), needs[column]]
        words = "; ".join(filter(None, about))
        names.append(f"{column!r}" + (f" ({words})" if words else ""))
    several = len(lacking) > 1
    text = (
        f"column{'s' * several} {', '.join(names)} {'are' if several else 'is'} missing"
    )
    text += f"; found: {', '.join(columns)}."
    meant, remarks = likely_columns(frame, lacking, here)
    if name.startswith("--"):
        options = ", ".join(
            f"{column} for {likely}" for column, likely in meant.items()
        )
        return text + (f" Write {options}." if meant else "")
    if meant:
        text += f" Perhaps {argument('columns', meant)}."
    return " ".join([text, *remarks])


def likely_columns(
    frame: pd.DataFrame, lacking: Sequence[str], here: Mapping[Hashable, str]
) -> tuple[dict[str, str], list[str]]:
    """Likely expressions of columns that a frame lacks, and what to know of them.

    `here` is `named` of the frame. No expression has a column that is not there.
    """
    unused = {str(c).lower(): str(c) for c, name in here.items() if name not in KNOWN}
    columns = [str(column) for column in frame.columns]
    meant: dict[str, str] = {}
    remarks = []
    for column in lacking:
        near = likely_names(column, unused)
        if column == "loss" and near:
            if len(near) > 1:
                losses = ", ".join(quoted(c) for c in near)
                remarks.append(
                    f"Each of {losses} may be the losses of a domain: bl.read_domains makes a "
                    "table of each, or choose one."
                )
            elif TRAINING.search(near[0]):
                remarks.append(
                    "These are training losses by their name; laws are of validation."
                )
        if not near:
            other = NOT_THEIRS.get(column, "$^")
            possible = [c for c in unused if not re.search(other, c)]
            near = [unused[c] for c in get_close_matches(column, possible, n=1)]
        if near:
            theirs = near[0]
            del unused[theirs.lower()]
            values = frame.iloc[:, columns.index(theirs)]
            counted = column in ("params", "tokens")
            meant[column] = scaled(theirs, values) if counted else quoted(theirs)
    rest = {*lacking} - {*meant}
    params = meant.get("params") or ("params" if "params" in here.values() else "")
    product = f"({params})" if "*" in params else params
    flops = [
        quoted(c)
        for lower, c in unused.items()
        if "flop" in lower or "compute" in lower
    ]
    if flops and "tokens" in rest and params:
        meant["tokens"] = f"{flops[0]} / 6 / {product}"
    elif flops and {*AMOUNTS} <= rest and FLOPS not in here.values():
        alone = argument("columns", {FLOPS: flops[0]})
        remarks.append(f"A ladder has FLOPs alone: {alone}, and the law 'ladder'.")
    steps = [quoted(c) for c in unused.values() if STEPS.search(c)]
    if steps and "tokens" in rest - {*meant}:
        per_step = argument("columns", {"tokens": f"{steps[0]} * 524288"})
        remarks.append(
            f"Tokens are steps ({steps[0]}) times the tokens of a step, such as {per_step}."
        )
    if "ptpp" in rest and params:
        before = likely_names("pretraining", unused)
        if before:
            values = frame.iloc[:, columns.index(before[0])]
            meant["ptpp"] = f"{scaled(before[0], values)} / {product}"
        else:
            per_base = argument("columns", {"ptpp": f"15e12 / {product}"})
            remarks.append(f"From bases of 15e12 pre-training tokens it is {per_base}.")
    return meant, remarks


def named(frame: pd.DataFrame) -> dict[Hashable, str]:
    """Name here of each column: of an alias, or of a column with a meaning in any case."""
    here = {*frame.columns}
    names: dict[Hashable, str] = {}
    for column in frame.columns:
        text = str(column)
        plain = text.strip().lower()
        name = plain if plain in KNOWN and plain not in here else text
        names[column] = ALIASES.get(text.strip(), name)
    return names


def count(text: str) -> float:
    """A number as people write it, such as 1e9 or 1.3B; `ValueError` if it is none."""
    if re.fullmatch(SUFFIXED_NUMBER, text.strip()):
        return float(text.strip()[:-1]) * SUFFIXES[text.strip()[-1]]
    return float(text)


def typed(column: pd.Series, name: str = "") -> pd.Series:
    """A column in the type that it is used in; NaN where a number is none.

    Warns of suffixes in the table of this `name`.
    """
    if column.name not in COLUMNS:
        return _as_in_csv(column, name)
    values = pd.to_numeric(column, errors="coerce").astype(float)
    if np.isfinite(values).all():
        return values
    text = column.where(values.isna()).astype("string").str.strip()
    short = text.str.fullmatch(SUFFIXED_NUMBER).fillna(False).to_numpy(bool)
    values[short] = text[short].map(count)
    if short.any() and name:
        warnings.warn(
            f"{name}: column {str(column.name)!r} has suffixes; {text[short].iloc[0]} is read as "
            f"{values[short].iloc[0]:g}.",
            TableWarning,
            stacklevel=5,
        )
    return values


def _numbers(column: pd.Series, name: str, may_lack: pd.Series) -> pd.Series:
    values = typed(column, name)
    lacking = without_number(column)
    missing = MISSING
    if column.name == "loss":
        missing += f", such as with {argument('where', 'loss > 0')}"
    refuse(values.isna() & lacking & ~may_lack, column, name, missing)
    commas = column[values.isna()].astype(str).str.contains(",").any()
    advice = "; write 3.05 or 1000 without a comma" * bool(commas)
    refuse(values.isna() & ~lacking, column, name, f"is not a number{advice}")
    refuse(values.abs() == np.inf, column, name, "is infinite")
    return values


def without_number(column: pd.Series) -> pd.Series:
    """Where a column of numbers has none: an empty field, or the text that programs write for it.

    Such as NaN in exports of logs. In columns of labels these are labels.
    """
    texts = column.astype("string").str.strip().str.lower()
    return column.isna() | texts.isin(["nan", "na", "n/a", "none", "null", ""]).fillna(
        False
    )


def numeric(
    frame: pd.DataFrame, declared: Mapping[str, Covariate], name: str
) -> pd.DataFrame:
    """The frame with the covariates that a law declares as numbers in their range."""
    for column in [c for c in declared if c in frame]:
        values = pd.to_numeric(frame[column], errors="coerce").astype(float)
        refuse(frame[column].isna(), frame[column], name, MISSING)
        refuse(values.isna(), frame[column], name, "is not a number")
        refuse(values.abs() == np.inf, frame[column], name, "is infinite")
        frame = frame.assign(**{column: values})
        if declared[column].logged:
            check_positive(frame, column, name, declared[column].positive)
    return frame


def _as_in_csv(column: pd.Series, name: str) -> pd.Series:
    # A saved table is CSV, so a fit must see the types that its own file will have when loaded.
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iufb":
        return column.astype(float) if column.dtype.kind == "f" else column
    values = column.astype(object)
    missing = column.isna()
    kind = pd.api.types.infer_dtype(values, skipna=True)
    if kind in ("integer", "floating", "mixed-integer-float", "decimal"):
        whole_numbers = kind == "integer" and not missing.any()
        with suppress(OverflowError):  # of integers beyond 64 bits, which become text
            return values.where(~missing, np.nan).astype(
                np.int64 if whole_numbers else float
            )
    if kind == "mixed":  # such as lists, of which CSV has the text
        values = values.map(lambda value: str(value) if is_list_like(value) else value)
    if kind not in ("string", "boolean", "empty"):
        values = label_texts(values)
    if kind != "boolean":
        surrogates = values.str.contains("[\ud800-\udfff]", na=False)
        refuse(surrogates, values, name, "is not valid Unicode")
    return values.where(~missing, None)


def label_texts(labels: pd.Series) -> pd.Series:
    """Labels as text, the form in which all labels are compared; None for a missing one.

    Whole numbers have no decimals, since one missing label turns a column of integers into floats.
    """
    codes, names = pd.factorize(labels)
    texts: list[str | None] = []
    for label in names:
        if isinstance(label, float | np.floating) and float(label).is_integer():
            texts.append(str(int(label)))
        elif isinstance(label, datetime):
            texts.append(label.isoformat().removesuffix("T00:00:00"))
        else:
            texts.append(str(label))
    # The code of a missing label is -1: the last text.
    return pd.Series(
        np.array([*texts, None], object)[codes], index=labels.index, dtype=object
    )


def whole(params: Floats) -> Floats:
    """Sizes without rounding errors, such as that of ``1.07 * 1e9``; they are compared exactly."""
    rounded = np.round(params)
    return np.where(np.abs(params - rounded) <= 1e-12 * params, rounded, params)


def check_positive(frame: pd.DataFrame, column: str, name: str, advice: str) -> None:
    refuse(frame[column] <= 0, frame[column], name, f"is not positive; {advice}")


def refuse(bad: pd.Series, column: pd.Series, name: str, what: str) -> None:
    if bad.any():
        values = column[bad].iloc[:5]
        seen = "" if values.isna().all() else f": {', '.join(map(str, values))}"
        raise TableError(
            f"{name}: column {str(column.name)!r} {what} ({row_numbers(bad)}{seen})."
        )


def row_numbers(mask: pd.Series) -> str:
    """Rows where `mask` is true, at most five: lines of the file if known, else their labels."""
    names = mask.index if mask.index.is_unique else pd.RangeIndex(len(mask))
    rows = [str(row) for row in names[mask.to_numpy(bool)][:5]]
    more = int(mask.sum()) - len(rows)
    label = "line" if names.name == LINE_COLUMN else "row"
    label += "s" if mask.sum() > 1 else ""
    return f"{label} {', '.join(rows)}" + (f" and {more} more" if more else "")
