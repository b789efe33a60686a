"""Validation of loss tables: column names, and covariates as numbers within their range.

Labels of groups (`run`, `base`, `domain`, `role`, and any other column that labels rows) are
compared as the text of `label_texts`. A row without a label is a group of its own.
"""

import re
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from difflib import get_close_matches
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_list_like, is_numeric_dtype

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.errors import TableError, TableWarning, argument
from bayeslaw.tables.covariates import COUNTS, TABLE, Covariate

COVARIATES = tuple(TABLE)
COLUMNS = (*COVARIATES, "unique_tokens", "loss")
POSITIVE = {c: row.positive for c, row in TABLE.items() if row.positive}
POSITIVE["unique_tokens"] = "the distinct tokens of the new data"
BASE_LOSSES = ("start_loss", "base_loss")
"""Losses of a row's base: on the row's domain, and on the domain it was pre-trained on."""
ABSENT: dict[str, Any] = {
    "unique_tokens": lambda frame: frame["tokens"],
    "annealed": 1,
    "rate": np.nan,
    "base": None,
    **dict.fromkeys(BASE_LOSSES, np.nan),
}
"""Columns that a table may lack, and what their absence stands for."""
OF_DOMAIN = ("domain", "role")
"""Columns that say of which domain losses are."""
LABEL_COLUMNS = (*OF_DOMAIN, "base", "run")
IDENTITY = (*COVARIATES, "unique_tokens", "annealed", "rate", *BASE_LOSSES, *LABEL_COLUMNS)
"""Columns by which rows are told apart, with those of a fit's random effects."""
NUMBERS = (*COLUMNS, "annealed", "rate", *BASE_LOSSES)
KNOWN = (*NUMBERS, *LABEL_COLUMNS)
"""Columns with a meaning."""
SAME_VALUE = 1e-6
"""Relative difference below which two numbers of a column are equal."""
UNLEARNED = {
    "unique_tokens": "what repeated tokens are worth",
    "annealed": "how annealed checkpoints differ from others",
    "rate": "what another rate does",
}
"""What a fit does not know without several values of a column, or without the column."""
SUFFIXES = {"K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
SUFFIXED_NUMBER = r"[0-9]*\.?[0-9]+[KkMBT]"
ALIASES = {row.alias: c for c, row in TABLE.items()}
LEAST_COUNT = 1e4
"""Fewest parameters of a language model, and tokens it is trained on; less is in another unit."""
LEAST_PARAMS = 1e3
"""Fewest parameters of the smallest model of a table."""
LARGEST_COUNT = 1e15  # more parameters, or tokens, than any run has
MOST_PARAMS = 5e12
"""Parameters beyond those of any model that was trained."""
MOST_LOSS = 12.5  # nats per token: a uniform guess of one of 262,144 tokens costs 12.48
MOST_LEVEL = 1.6
"""Largest ratio of losses to `published_loss` that is not doubted; that of one domain of the
shipped tables is 1.54 at most (Gadre, Penn treebank), of bits it would be 1.44 times as large."""
FEW_TOKENS, SWAPPED = 0.5, 1.3
"""Tokens per parameter, and ratio of the standard deviations of log losses about `published_loss`
to those with N and D swapped. Adaptation has few tokens, or is fitted better when swapped: of the
shipped tables none has both."""
THEIRS = {"params": "param|model.?size|^size$", "tokens": "token", "loss": "loss"}
"""Patterns of names that others have for columns."""
# Factors above the fitted range from which a value may be, and surely is, in another unit. Below
# it the first is enough: nobody forecasts runs a thousand times smaller than the fitted ones.
OTHER_UNIT, NO_OTHER = 1e3, 1e6
MISSING = "is missing (NaN); fill it or drop the row"
LINE_COLUMN = "line"
"""Name of an index that holds the lines of a file."""
UNITS = {
    **{c: row.expected for c, row in TABLE.items() if row.expected},
    "unique_tokens": COUNTS,
    "flops": "FLOPs are expected, 6 N D, not petaFLOPs",
}


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
    lacking = missing_columns(frame, required, name)
    frame = frame.rename(columns=named(frame))
    if repeated := sorted(set(frame.columns[frame.columns.duplicated()])):
        raise TableError(f"{name}: column {repeated[0]!r} is there twice; keep one.")
    if frame.empty:  # said first: a file without rows lacks columns as well
        header = ", ".join(map(str, frame.columns))
        raise TableError(f"{name}: no rows" + (f" below the header {header!r}." if header else "."))
    if lacking:
        raise TableError(f"{name}: {lacking}")
    # A base has no run, so nothing of its new data, replay or annealing need be known.
    tokens = frame["tokens"] if "tokens" in frame else pd.Series(np.nan, frame.index)
    base = pd.to_numeric(tokens, errors="coerce") == 0
    for column in frame.columns:
        if column in COLUMNS:
            may_lack = base & (column in ("replay", "unique_tokens"))
            frame[column] = _numeric(frame[column], name, may_lack)
        else:
            frame[column] = typed(frame[column], name)
    if "params" in frame:
        # Sizes are groups of random effects, which are compared exactly.
        frame["params"] = whole(frame["params"].to_numpy())
    for column in frame.columns.intersection(list(POSITIVE)):
        check_positive(frame, column, name, f"give {POSITIVE[column]}")
    for column in frame.columns.intersection(["rate"]):
        rate = pd.to_numeric(frame[column], errors="coerce")
        known = rate.between(0, np.inf, "neither") | frame[column].isna()
        what = "is not a positive number; leave it empty where a run is at its best rate"
        _refuse(~known, frame[column], name, what)
        frame[column] = rate.astype(float)
    for column in frame.columns.intersection(["annealed"]):
        known = frame[column].isin([0, 1]) | (frame[column].isna() & base)
        _refuse(~known, frame[column], name, "is neither 0 or 1 nor True or False")
    if "tokens" in frame:
        what = "is negative; give D in tokens, 0 = baseline"
        _refuse(frame["tokens"] < 0, frame["tokens"], name, what)
    if "replay" in frame:
        what = "lies outside [0, 1]; give a fraction, not a percentage"
        known = frame["replay"].between(0, 1) | (frame["replay"].isna() & base)
        _refuse(~known, frame["replay"], name, what)
    return frame if lines else frame.reset_index(drop=True)


def missing_columns(
    frame: pd.DataFrame, required: Iterable[str] | Mapping[str, str], name: str = ""
) -> str:
    """Name the required columns that are missing, and likely names of them; empty if none is.

    `name` is that of the table, or of the option in which the columns are.
    """
    needs = required if isinstance(required, Mapping) else dict.fromkeys(required, "")
    columns, here = [str(column) for column in frame.columns], named(frame)
    lacking = [column for column in needs if column not in here.values()]
    if not lacking:
        return ""
    alias_of = {column: f"or {alias}" for alias, column in ALIASES.items()}
    unused = {str(c).lower(): str(c) for c, name in here.items() if name not in KNOWN}
    names, meant = [], {}
    for column in lacking:
        about = "; ".join(filter(None, [alias_of.get(column), needs[column]]))
        names.append(f"{column!r}" + (f" ({about})" if about else ""))
        near = [c for c in unused if re.search(THEIRS.get(column, column), c)]
        if near := near or get_close_matches(column, unused, n=1):
            meant[column] = quoted(unused.pop(near[0]))
    flops = [quoted(column) for c, column in unused.items() if "flop" in c or "compute" in c]
    if flops and "tokens" in set(lacking) - set(meant):
        meant["tokens"] = f"{flops[0]} / 6 / {meant.get('params', 'params')}"
    several = len(lacking) > 1
    text = f"column{'s' * several} {', '.join(names)} {'are' if several else 'is'} missing"
    text += f"; found: {', '.join(columns)}."
    if not meant:
        return text
    if name.startswith("--"):
        return text + f" Write {', '.join(f'{c} for {likely}' for c, likely in meant.items())}."
    return text + f" Perhaps {argument('columns', meant)}."


def named(frame: pd.DataFrame) -> dict[Hashable, str]:
    """Name here of each column: of an alias, or of a column with a meaning in any case."""
    here = {*frame.columns}
    names: dict[Hashable, str] = {}
    for column in frame.columns:
        text = str(column)
        plain = text.strip().lower()
        known = plain if plain in KNOWN and plain not in here else text
        names[column] = ALIASES.get(text.strip(), known)
    return names


def quoted(column: str) -> str:
    """A column in an expression: in backticks if it is no word."""
    return column if column.isidentifier() else f"`{column}`"


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


def _numeric(column: pd.Series, name: str, may_lack: pd.Series) -> pd.Series:
    values, lacking = typed(column, name), column.isna()
    _refuse(values.isna() & lacking & ~may_lack, column, name, MISSING)
    commas = column[values.isna()].astype(str).str.contains(",").any()
    advice = "; write 3.05 or 1000 without a comma" * bool(commas)
    _refuse(values.isna() & ~lacking, column, name, f"is not a number{advice}")
    _refuse(values.abs() == np.inf, column, name, "is infinite")
    return values


def numeric(frame: pd.DataFrame, declared: Mapping[str, Covariate], name: str) -> pd.DataFrame:
    """The frame with the covariates that a law declares as numbers in their range."""
    for column, row in declared.items():
        if column in frame:
            values = pd.to_numeric(frame[column], errors="coerce").astype(float)
            _refuse(frame[column].isna(), frame[column], name, MISSING)
            _refuse(values.isna(), frame[column], name, "is not a number")
            _refuse(values.abs() == np.inf, frame[column], name, "is infinite")
            if row.logged:
                check_positive(frame.assign(**{column: values}), column, name, row.positive)
            frame = frame.assign(**{column: values})
    return frame


def _as_in_csv(column: pd.Series, name: str) -> pd.Series:
    # A saved table is CSV, so a fit must see the types that its own file will have when loaded.
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iufb":
        return column.astype(float) if column.dtype.kind == "f" else column
    values, missing = column.astype(object), column.isna()
    kind = pd.api.types.infer_dtype(values, skipna=True)
    if kind in ("integer", "floating", "mixed-integer-float", "decimal"):
        whole_numbers = kind == "integer" and not missing.any()
        with suppress(OverflowError):  # of integers beyond 64 bits, which become text
            return values.where(~missing, np.nan).astype(np.int64 if whole_numbers else float)
    if kind == "mixed":  # such as lists, of which CSV has the text
        values = values.map(lambda value: str(value) if is_list_like(value) else value)
    if kind not in ("string", "boolean", "empty"):
        values = label_texts(values)
    if kind != "boolean":
        surrogates = values.str.contains("[\ud800-\udfff]", na=False)
        _refuse(surrogates, values, name, "is not valid Unicode")
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
    return pd.Series(np.array([*texts, None], object)[codes], index=labels.index, dtype=object)


def whole(params: Floats) -> Floats:
    """Sizes without rounding errors, such as that of ``1.07 * 1e9``; they are compared exactly."""
    rounded = np.round(params)
    return np.where(np.abs(params - rounded) <= 1e-12 * params, rounded, params)


def check_positive(frame: pd.DataFrame, column: str, name: str, advice: str) -> None:
    _refuse(frame[column] <= 0, frame[column], name, f"is not positive; {advice}")


def check_units(rows: pd.DataFrame, name: str, fitted: pd.DataFrame | None = None) -> None:
    """Refuse numbers in another unit than those of fitted rows, such as tokens in billions.

    Without fitted rows, `rows` are those of a table of losses.
    """
    if fitted is None:
        for column in rows.columns.intersection([c for c, unit in UNITS.items() if unit == COUNTS]):
            values = rows.loc[rows[column] > 0, column]
            least, most = float(values.min()), float(values.max())
            is_most = f"{name}: the largest of column {column!r} is {most:g}"
            if most < LEAST_COUNT or (column == "params" and least < LEAST_PARAMS):
                is_low = is_most if most < LEAST_COUNT else is_most + f", the least {least:g}"
                how = argument("columns", counts_of(rows) or {column: f"{column} * 1e9"})
                raise TableError(f"{is_low}; {COUNTS}: {how}.")
            if most > LARGEST_COUNT and column in COVARIATES:
                raise TableError(f"{is_most}, more than any run has; check its unit.")
        return
    for text, sure in other_units(rows, fitted):
        if sure:
            raise TableError(f"{name}: {text}")
        warnings.warn(f"{name}: {text}", TableWarning, stacklevel=3)


def published_loss(params: Floats, tokens: Floats) -> Floats:
    """Loss of a model of web text, nats per token: Chinchilla's law with its published numbers.

    J. Hoffmann et al. (2022), Training compute-optimal large language models, equation 10.
    """
    return np.asarray(1.69 + 406.4 / params**0.34 + 410.7 / tokens**0.28)


def counts_of(rows: pd.DataFrame) -> dict[str, str]:
    """Expressions of `params` and `tokens` that are counts, as far as their losses tell.

    The unit is that at which the losses are nearest to `published_loss`, and tokens per parameter
    near 20: both columns are more likely in one unit, and no model has `MOST_PARAMS`.
    """
    columns, rows = ["params", "tokens"], rows[rows["tokens"] > 0]
    units: list[tuple[float, ...]] = [
        (1.0, 1e6, 1e9) if rows[column].max() < 1e6 else (1.0,) for column in columns
    ]
    chosen: tuple[float, ...] = (1.0, 1.0)
    least = np.inf
    for factors in product(*units):
        params, tokens = (rows[c].to_numpy() * f for c, f in zip(columns, factors, strict=True))
        if min(params.max(), tokens.max()) < LEAST_COUNT or params.max() > MOST_PARAMS:
            continue
        level = abs(np.median(np.log(rows["loss"] / published_loss(params, tokens))))
        ratio = abs(np.log10(np.median(tokens / params) / 20))
        score = level + max(ratio - 2, 0) + (factors[0] != factors[1])
        if score < least:
            chosen, least = factors, score
    pairs = zip(columns, chosen, strict=True)
    return {c: f"{c} * {f:.0e}".replace("e+0", "e") for c, f in pairs if f > 1}


def doubtful_scale(rows: pd.DataFrame) -> list[str]:
    """What the level of losses, and how they fall, say against the columns of a table of losses."""
    params, tokens = (rows[column].to_numpy(float) for column in ("params", "tokens"))
    if params.max() > MOST_PARAMS:
        return [f"the largest model has {params.max():.3g} parameters; check the unit of 'params'."]
    off, swapped = (
        np.log(rows["loss"].to_numpy() / published_loss(*pair))
        for pair in ((params, tokens), (tokens, params))
    )
    said = []
    # Losses that are larger still were read with a stated unit.
    if (level := float(np.exp(np.median(off)))) > MOST_LEVEL and rows["loss"].max() <= MOST_LOSS:
        units = " or ".join(argument("loss_unit", unit) for unit in ("bits", "perplexity"))
        said.append(
            f"losses are {level:.2g} times those of Chinchilla's law for web text, in nats per "
            f"token; if they are in another unit, give {units}."
        )
    if np.median(tokens / params) < FEW_TOKENS and off.std() > SWAPPED * swapped.std():
        said.append(
            f"there are {np.median(tokens / params):.2g} tokens per parameter, and losses vary "
            "more as if params were tokens: check that these columns are not swapped."
        )
    return said


def other_units(rows: pd.DataFrame, fitted: pd.DataFrame) -> Iterator[tuple[str, bool]]:
    """Numbers that may be in another unit than those of fitted rows; whether they surely are.

    They surely are `OTHER_UNIT` times below, or `NO_OTHER` times above the fitted rows.
    """
    for column in rows.columns.intersection(list(UNITS)).intersection(fitted.columns):
        values = rows.loc[rows[column] > 0, column]
        least, most = float(values.min()), float(values.max())
        low, high = float(fitted[column].min()), float(fitted[column].max())
        power = 2 if column == "flops" else 1  # a product of two counts
        below = least * OTHER_UNIT**power <= low
        if not (below or most >= high * OTHER_UNIT**power):
            continue
        value = least if below else most
        far = f"{low / value:.2g} times below" if below else f"{value / high:.2g} times above"
        powers = [f**sign for f in (1e9, 1e6, 1e3, 1e12, 1e15, 1e18) for sign in (1, -1)]
        meant = [value * f for f in powers if low / 10 <= value * f <= high * 10]
        ask = f": {column} = {meant[0]:g}?" if meant else "."
        text = f"{column} = {value:g} is {far} the fitted rows; {UNITS[column]}{ask}"
        yield text, below or most >= high * NO_OTHER**power


def check_rows(rows: pd.DataFrame, name: str, fitted: pd.DataFrame) -> None:
    """Refuse rows on which a fit says nothing: in another unit, or unlike all fitted rows."""
    check_units(rows, name, fitted)
    check_like_fitted(rows, name, fitted)


def check_like_fitted(rows: pd.DataFrame, name: str, fitted: pd.DataFrame) -> None:
    """Refuse rows unlike all fitted rows."""
    check_known(rows, name, fitted)
    check_domain(rows, name, fitted)


def check_known(rows: pd.DataFrame, name: str, fitted: pd.DataFrame) -> None:
    """Refuse values of a column that the fit does not know.

    Fitted rows of one rate do not say what another one does, nor annealed rows what others lose.
    Without the column, rows that state what its absence stands for pass, see `ABSENT`.
    """
    rows = rows if "tokens" in rows else rows.assign(tokens=np.finfo(float).max)
    for column in rows.columns.intersection(list(UNLEARNED)):
        known = distinct(fitted, column)
        if len(known) > 1 or (column == "unique_tokens" and column in fitted):
            continue
        one = rows.assign(**{column: known[0] if len(known) else ABSENT[column]})
        other = rows.loc[~agree(rows, one, column, paired=True), column]
        if len(other):
            to = f"{column} {float(known[0]):g} alone" if len(known) else f"rows without {column}"
            raise TableError(
                f"{name}: rows of {column} {float(other.iloc[0]):g}, but the law was fitted to "
                f"{to}, so it does not know {UNLEARNED[column]}; drop the column to take them for "
                "such, or fit a table in which it varies."
            )


def distinct(frame: pd.DataFrame, column: str) -> list[Any]:
    """Values of a column, without missing ones; none if it is absent."""
    return frame[column].dropna().unique().tolist() if column in frame else []


def check_domain(rows: pd.DataFrame, name: str, fitted: pd.DataFrame) -> None:
    """Refuse rows of a domain, or of a role of their domain, that a law was not fitted to."""
    for column in OF_DOMAIN:
        known = labels_of(fitted, column)
        if known and (others := labels_of(rows, column) - known):
            drop = f", or drop the column {column!r} to take them for such" * (column in rows)
            raise TableError(
                f"{name}: rows of {column} {', '.join(sorted(others))}, but the law was fitted to "
                f"{', '.join(sorted(known))}; choose rows of that {column}{drop}."
            )


def labels_of(frame: pd.DataFrame, column: str) -> set[str]:
    """Labels that rows have in a column, without missing ones."""
    labels = _compared(frame, column)
    return set() if labels is None else set(labels.dropna())


def role_by_losses(frame: pd.DataFrame) -> str:
    """Role of the domain of some rows by the losses of their bases; empty if these are not known.

    A base has one loss on both domains if these are one: the domain that it was pre-trained on.
    """
    if not {*BASE_LOSSES} <= {*frame}:
        return ""
    losses = frame[[*BASE_LOSSES]].dropna()
    one = (losses["start_loss"] == losses["base_loss"]).all()
    return ("source" if one else "target") if len(losses) else ""


def agree(
    asked: pd.DataFrame,
    measured: pd.DataFrame,
    column: str,
    tolerance: float = SAME_VALUE,
    *,
    paired: bool = False,
) -> Bools:
    """Whether rows agree in a column, shape (asked, measured), or (rows,) if they are paired.

    What an asked row leaves open, and a column that a table lacks, agree with anything, unless
    absence has a value: no tokens repeat, and rows are annealed. Nor does the loss of a base
    differ from one that is not measured. Labels are compared as text, numbers up to a relative
    `tolerance`.
    """
    shape = (len(asked),) if paired else (len(asked), len(measured))
    one, two = (_compared(frame, column) for frame in (asked, measured))
    if one is None or two is None:
        return np.ones(shape, bool)
    if one.dtype == two.dtype == float:
        a, b = one.to_numpy(), two.to_numpy()
    else:
        codes = pd.factorize(pd.concat([label_texts(one), label_texts(two)]))[0].astype(float)
        a, b = np.split(np.where(codes < 0, np.nan, codes), [len(one)])
        tolerance = 0.0
    a = a if paired else a[:, None]
    same = np.abs(a - b) <= tolerance * np.maximum(np.abs(a), np.abs(b))
    same |= np.isnan(a) | (np.isnan(b) & (column in BASE_LOSSES))
    return np.asarray(np.broadcast_to(same, shape))


def _compared(frame: pd.DataFrame, column: str) -> pd.Series | None:
    """Values of a column as floats or labels, also if absence has a value; None without any."""
    if column == "role" and column not in frame:
        role = role_by_losses(frame)
        return pd.Series(role, frame.index, dtype=object) if role else None
    if column == "unique_tokens" and "tokens" in frame:
        # Beyond the new tokens of a row its distinct ones make no difference.
        new = frame["tokens"] * (1 - frame["replay"] if "replay" in frame else 1.0)
        return new if column not in frame else frame[column].astype(float).clip(upper=new)
    if column not in frame:
        return pd.Series(1.0, frame.index) if column == "annealed" else None
    if column in NUMBERS or (column not in LABEL_COLUMNS and is_numeric_dtype(frame[column])):
        return frame[column].astype(float)
    return label_texts(frame[column])


def same_rows(
    asked: pd.DataFrame,
    measured: pd.DataFrame,
    columns: Iterable[str],
    tolerance: float = SAME_VALUE,
) -> Bools:
    """Which rows are the same: those that `agree` in all columns; shape (asked, measured)."""
    same = np.ones((len(asked), len(measured)), bool)
    for column in dict.fromkeys(columns):
        same &= agree(asked, measured, column, tolerance)
    return same


def check_same_rows(
    asked: pd.DataFrame,
    measured: pd.DataFrame,
    names: tuple[str, str],
    others: Iterable[str] = (),
) -> None:
    """Refuse two frames unless they are the same, row by row; `others` are columns of labels."""
    if len(asked) != len(measured):
        raise TableError(f"{names[0]} has {len(asked)} rows, {names[1]} has {len(measured)}.")
    for column in dict.fromkeys([*IDENTITY, *others]):
        differ = ~agree(asked, measured, column, paired=True)
        if differ.any():
            i = int(differ.argmax())
            a, b = (f[column].iloc[i] if column in f else "absent" for f in (asked, measured))
            raise TableError(
                f"row {i}: {column} is {a} in {names[0]} and {b} in {names[1]}; "
                "give the rows that were forecast, in that order."
            )


def _refuse(bad: pd.Series, column: pd.Series, name: str, what: str) -> None:
    if bad.any():
        values = column[bad].iloc[:5]
        seen = "" if values.isna().all() else f": {', '.join(map(str, values))}"
        raise TableError(f"{name}: column {str(column.name)!r} {what} ({row_numbers(bad)}{seen}).")


def row_numbers(mask: pd.Series) -> str:
    """Rows where `mask` is true, at most five: lines of the file if known, else their labels."""
    names = mask.index if mask.index.is_unique else pd.RangeIndex(len(mask))
    rows = [str(row) for row in names[mask.to_numpy(bool)][:5]]
    more = int(mask.sum()) - len(rows)
    label = "line" if names.name == LINE_COLUMN else "row"
    label += "s" if mask.sum() > 1 else ""
    return f"{label} {', '.join(rows)}" + (f" and {more} more" if more else "")
