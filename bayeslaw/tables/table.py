"""Loss tables: measured losses, read from files and frames, selected by queries.

One row is one measured loss in nats per token. Model sizes and amounts of data are counts of
parameters and tokens, not millions.
"""

import ast
import codecs
import csv
import gzip
import hashlib
import io
import json
import math
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.errors import TableError, TableWarning, argument, unknown
from bayeslaw.common.files import atomic_write, is_hdf5, shipped
from bayeslaw.tables.covariates import Covariate
from bayeslaw.tables.validation import (
    ALIASES,
    BASE_LOSSES,
    COLUMNS,
    LINE_COLUMN,
    MOST_LOSS,
    canonical,
    check_positive,
    check_units,
    label_texts,
    missing_columns,
    named,
    numeric,
    role_by_losses,
    row_numbers,
    same_rows,
    typed,
)

LEAST_LOSS = 0.02
"""Median loss of a table, nats per token, that is not doubted."""
type Role = Literal["target", "source"]
"""Whether losses are of the domain adapted to, or of the one pre-trained on."""
ROLES: tuple[Role, ...] = ("target", "source")
"""Values of the column `role`."""
LOSS_UNITS = ("nats", "bits", "perplexity", "bits-per-byte")
UNIT_WORDS = {"bpb": "bits-per-byte", "byte": "bits-per-byte", "bits": "bits"}
UNIT_WORDS |= dict.fromkeys(("ppl", "perplexity"), "perplexity")
"""Words in the name of a column, and the unit of its losses; the first that is there counts."""


@dataclass(frozen=True)
class Rows:
    """Rows whose columns are valid; all that laws and fits take, so that none is checked twice.

    `rows_of` makes them of a user's frame, once, where it enters; the package itself, of frames
    that it builds from valid rows. A frame whose values are changed afterwards needs new rows.

    Parameters
    ----------
    frame : DataFrame
        Columns have the names of `bayeslaw.from_frame`, without aliases; counts are floats, labels
        text.
    name : str
        Name of the rows in messages and titles, such as the path of their file.
    """

    frame: pd.DataFrame
    name: str = "rows"

    def __len__(self) -> int:
        return len(self.frame)


@dataclass(frozen=True)
class LossTable(Rows):
    """Measured losses, validated.

    Parameters
    ----------
    frame : DataFrame
        Rows with ``tokens > 0``: `params`, `tokens`, `loss`, and where the experiment has them
        `replay`, `ptpp`, `run`, `base`, `domain`, `role`, `unique_tokens`, `annealed`, `rate`;
        other columns are preserved.
    name : str
        Name of the table in messages and titles, such as the path of its file.
    baselines : DataFrame
        Rows with ``tokens == 0``: losses of the pre-trained models before adaptation. The planner
        uses them. They are not fitted, since the laws have no value at D = 0.
    selection : str
        Queries that selected the rows, such as ``"ptpp <= 31"``; empty for all rows of the file.
    """

    name: str = "table"
    baselines: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    selection: str = ""

    def __post_init__(self) -> None:
        if self.baselines.empty:  # queries name columns of both
            object.__setattr__(self, "baselines", self.frame.iloc[:0])

    def __str__(self) -> str:
        """Number of rows, name, and the queries that selected the rows."""
        rows = f"{len(self)} row" + "s" * (len(self) != 1)
        return f"{rows} of {self.name}" + (f" ({self.selection})" if self.selection else "")

    @property
    def loss(self) -> Floats:
        """Losses in nats per token, shape (rows,)."""
        return self.measured["loss"].to_numpy(float)

    @property
    def measured(self) -> pd.DataFrame:
        """The rows, which must have losses: a fit may be saved without."""
        if "loss" not in self.frame:
            raise TableError(f"{self.name}: the fit was saved without its losses; this needs them.")
        return self.frame

    @property
    def role(self) -> Role:
        """Whether the losses are of the domain adapted to, or of the one pre-trained on.

        It says what the share of the domain's own text is: 1 - replay, or replay. The column `role`
        says it, or the losses of the bases, which are the same on both domains if these are one.

        Raises
        ------
        TableError
            If neither says it.
        """
        roles = self.frame["role"].unique().tolist() if "role" in self.frame else []
        if not roles and (by_losses := role_by_losses(self.frame)):
            roles = [by_losses]
        if len(roles) == 1 and roles[0] in ROLES:
            return roles[0]  # type: ignore[no-any-return]
        said = f" The column 'role' has {', '.join(map(repr, roles))}." if roles else ""
        raise TableError(
            f"{self.name}: are the losses of the domain adapted to, or of the one pre-trained on? "
            f"The law reads the share of their own text: give {argument('role', 'target')} or "
            f"{argument('role', 'source')}, or a column 'role' with one of them.{said}"
        )

    @property
    def sha256(self) -> str:
        """SHA-256 of the rows with ``tokens > 0``, which identifies the data in a report."""
        return hashlib.sha256(csv_text(self.frame).encode()).hexdigest()

    def query(self, query: str | None) -> "LossTable":
        """Select rows by a pandas query.

        Parameters
        ----------
        query : str or None
            Such as ``"ptpp <= 31"``: columns, numbers, text, comparisons, and, or, not, in, and
            arithmetic. The aliases N, D, r and PTPP can be used, and C = 6 N D, the FLOPs. ``None``
            selects all rows. The baseline of a selected row's `base` on its domain is kept, too.

        Raises
        ------
        TableError
            If the query cannot be evaluated or selects no row with ``tokens > 0``.
        """
        if query is None:
            return self
        selected = queried(self.frame, query, self.name)
        if selected.empty:
            raise TableError(f"{self.name}: no row satisfies {query!r} ({len(self)} rows).")
        # A query such as "tokens > 1e9" or "replay < 1" excludes the bases of the rows it selects.
        kept = self.baselines.index.isin(queried(self.baselines, query, self.name).index)
        if "base" in self.baselines:
            chosen = label_texts(selected["base"]).dropna()
            kept |= label_texts(self.baselines["base"]).isin(chosen).to_numpy()
        baselines = of_domains(self.baselines[kept], selected).reset_index(drop=True)
        frame = selected.reset_index(drop=True)
        return LossTable(frame, self.name, baselines, _both(self.selection, query))

    def training(self, query: str | None) -> "LossTable":
        """Rows to fit that satisfy a pandas query, with all baselines on the domains of these rows.

        The losses of a base are known before it is adapted, so forecasts may use them. Queries and
        errors are those of `query`.
        """
        selected = self.query(query)
        return replace(selected, baselines=of_domains(self.baselines, selected.frame))

    def split(
        self, train: str | None = None, test: str | None = None, anchors: str | None = None
    ) -> tuple["LossTable", "LossTable"]:
        """Split into training and test rows by pandas queries.

        Parameters
        ----------
        train, test : str, optional
            Queries such as ``"ptpp <= 31"``. Without `test`, all rows outside the training set
            are test rows; without `train`, all rows outside the test set are training rows.
        anchors : str, optional
            Query for rows that are added to the training set and removed from the test set.

        Returns
        -------
        train, test : LossTable

        Raises
        ------
        TableError
            If both queries are missing, a part is empty, or a row is in both parts.
        """
        if train is None and test is None:
            example = argument("train", "ptpp <= 31")
            raise TableError(f"split needs a train or a test query, such as {example}.")
        queries = {"train": train, "test": test, "anchors": anchors}
        inside = {}
        for part, query in queries.items():
            chosen = self.frame[:0] if query is None else queried(self.frame, query, self.name)
            inside[part] = self.frame.index.isin(chosen.index)
        training = inside["train"] if train is not None else ~inside["test"]
        testing = inside["test"] if test is not None else ~inside["train"]
        if (both := training & testing).any():
            raise TableError(
                f"{self.name}: {row_numbers(pd.Series(both))} satisfy both "
                f"{argument('train', train)} and {argument('test', test)}."
            )
        train_text, test_text = train or f"not ({test})", test or f"not ({train})"
        if anchors is not None:
            train_text = _both(train_text, f"and anchors {anchors}")
        parts = []
        for part, rows, text in (
            ("train", training | inside["anchors"], train_text),
            ("test", testing & ~inside["anchors"], test_text),
        ):
            if not rows.any():
                given = (argument(name, query) for name, query in queries.items() if query)
                raise TableError(f"{self.name}: the {part} set is empty ({', '.join(given)}).")
            parts.append(replace(subset(self, rows), selection=_both(self.selection, text)))
        return parts[0], parts[1]


def check_role(role: str) -> None:
    """Raise `TableError` unless this is a role that a table can have."""
    if role not in ROLES:
        raise TableError(unknown("role", role, ROLES))


def require_table(table: object) -> None:
    """Refuse what no fit takes, such as a data frame that nobody validated."""
    if not isinstance(table, LossTable):
        kind, path = type(table).__name__, isinstance(table, str | Path)
        how = "bl.read_table(path)" if path else "bl.from_frame(frame)"
        raise TableError(f"the losses are a {kind}, not a LossTable; make one by {how}.")


def rows_of(
    rows: Rows | pd.DataFrame,
    name: str = "rows",
    columns: Iterable[str] | Mapping[str, str] = (),
    declared: Mapping[str, Covariate] | None = None,
) -> Rows:
    """Rows of a user's frame, validated; rows that are valid stay as they are.

    Parameters
    ----------
    rows : Rows or DataFrame
    name : str
        Of a frame in messages; other rows have a name.
    columns : iterable of str, or mapping of str to str
        Columns that must be there; the values of a mapping say in the error what needs each.
    declared : mapping of str to Covariate, optional
        Covariates that a law declares, whose ranges no table knows.

    Raises
    ------
    TableError
        If a column is missing or invalid.
    """
    if not isinstance(rows, Rows):
        rows = Rows(canonical(rows, name, columns), name)
    elif lacking := missing_columns(rows.frame, columns, rows.name):
        raise TableError(f"{rows.name}: {lacking}")
    if declared:
        return replace(rows, frame=numeric(rows.frame, declared, rows.name))
    return rows


def subset(table: LossTable, rows: Bools) -> LossTable:
    """The rows of a table where `rows` is true, with all baselines on the domains of these rows."""
    frame = table.frame[rows].reset_index(drop=True)
    return replace(table, frame=frame, baselines=of_domains(table.baselines, frame))


def of_domains(baselines: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """The baselines on a domain of some rows, or on no named one."""
    if "domain" not in baselines or "domain" not in frame:
        return baselines
    domain = label_texts(baselines["domain"])
    others = domain.notna() & ~domain.isin(label_texts(frame["domain"]).dropna())
    return baselines[~others].reset_index(drop=True) if others.any() else baselines


def _both(first: str, second: str) -> str:
    return "; ".join(query for query in (first, second) if query)


def grid(**covariates: float | str | Iterable[float | str]) -> pd.DataFrame:
    """Every combination of the given covariate values.

    Parameters
    ----------
    **covariates : float or iterable of float, or text
        Values of each column, such as `params`, `tokens`, `replay` and `ptpp`; the last varies
        fastest. Labels, such as that of a `run`, are text.

    Examples
    --------
    >>> len(grid(params=[241e6, 8.1e9], tokens=[1e9, 1e10], replay=[0.1, 0.5], ptpp=279))
    8
    """
    values = {
        name: [value] if isinstance(value, str) or not isinstance(value, Iterable) else [*value]
        for name, value in covariates.items()
    }
    frame = pd.DataFrame(product(*values.values()), columns=pd.Index(values))
    return frame.astype(dict.fromkeys(frame.select_dtypes(["number", "bool"]), float))


ROW = "row of the file"
"""Name of a column that no file has."""
EXPRESSION_NAMES: dict[str, tuple[str, ...]] = {
    alias: (column,) for alias, column in ALIASES.items()
}
EXPRESSION_NAMES |= dict.fromkeys(("C", "flops"), ("params", "tokens"))
"""Names in expressions beside those of columns, and the columns that they need."""
QUOTES = re.compile(r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|`([^`]*)`""")
"""Text, which stays, or the name of a column in backticks."""
EXPRESSION_FUNCTIONS = ("log", "log10", "exp", "sqrt", "abs")
SYNTAX = (
    *(ast.Expression, ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple, ast.Call),
    *(ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop, ast.UnaryOp, ast.unaryop, ast.BinOp),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitAnd, ast.BitOr),
)
"""What an expression may have: an attribute or another call could write files."""


def words(text: str) -> tuple[str, dict[str, str]]:
    """An expression with words in place of columns in backticks, and the column of each word.

    `SyntaxError` if it has more than columns, numbers, text, comparisons, and, or, not, in,
    arithmetic and `EXPRESSION_FUNCTIONS`.
    """
    columns: dict[str, str] = {}
    free = "quoted"  # starts no name in the text
    while free in text:
        free += "_"

    def word(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        name = f"{free}{len(columns)}"
        columns[name] = match[2]
        return name

    text = QUOTES.sub(word, text).strip()
    tree = ast.parse(text, mode="eval")
    powers = [node for node in ast.walk(tree) if isinstance(node, ast.Pow)]
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if not isinstance(node, SYNTAX) or (
            called and not (isinstance(called, ast.Name) and called.id in EXPRESSION_FUNCTIONS)
        ):
            raise SyntaxError(f"{type(node).__name__} in {text!r}")
        if isinstance(node, ast.Name):
            columns.setdefault(node.id, node.id)
        # A power of integers can have more digits than a memory holds; of floats it is refused.
        if powers and isinstance(node, ast.Constant) and type(node.value) is int:
            node.value = float(node.value)
    return ast.unparse(tree) if powers else text, columns


def evaluated(frame: pd.DataFrame, text: str) -> Any:
    """Value of an expression of a frame's columns, under their names or those used here.

    Errors are of many types, of the parser and of operations.
    """
    text, columns = words(text)
    here = {name: column for column, name in named(frame).items()}
    values = {}
    for word, column in columns.items():
        if column in frame:
            values[word] = frame[column]
        elif column in here:
            values[word] = frame[here[column]]
        elif column in EXPRESSION_NAMES and {*EXPRESSION_NAMES[column]} <= {*here}:
            first, *others = (frame[here[of]] for of in EXPRESSION_NAMES[column])
            values[word] = 6 * first * others[0] if others else first
        elif word != column:
            raise NameError(f"name {column!r} is not defined")
    # Empty scopes, so that a query cannot reach this module's imports.
    return frame.eval(text, resolvers=[values], local_dict={}, global_dict={})


def queried(frame: pd.DataFrame, query: str, name: str) -> pd.DataFrame:
    """Rows of a frame that a pandas query selects."""
    try:
        chosen = evaluated(frame, query)
    except Exception as error:  # pandas raises many types, of its parser and of the operations
        absent = re.fullmatch("name '(.*)' is not defined", str(error))
        if absent:
            also = [name for name, of in EXPRESSION_NAMES.items() if {*of} <= {*frame.columns}]
            reason = unknown("column", absent[1], [*map(str, frame.columns), *also])
        elif isinstance(error, TypeError):
            reason = f"{str(error).splitlines()[0]}."
        else:  # what pandas says of its parser is of no use
            reason = "write comparisons, such as ptpp <= 31 and domain == 'french'."
        raise TableError(f"{name}: cannot evaluate the query {query!r}: {reason}") from error
    if not isinstance(chosen, pd.Series) or not is_bool_dtype(chosen):
        raise TableError(
            f"{name}: the query {query!r} does not choose rows: write comparisons, such as "
            "ptpp <= 31 and domain == 'french'."
        )
    return frame[chosen]


def read_table(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    where: str | None = None,
    source: str | Path | None = None,
    role: Role | None = None,
    loss_unit: str | None = None,
    bytes_per_token: float | None = None,
) -> LossTable:
    """Read a loss table from CSV, Parquet, JSONL or Excel.

    Parameters
    ----------
    path : str or Path
        ``*.parquet`` is read as Parquet, ``*.jsonl`` as one JSON object a line, ``*.xlsx`` as the
        first sheet of a workbook (which needs openpyxl), anything else as CSV in UTF-8 or UTF-16,
        compressed by gzip or not; its separator is a comma, a semicolon or a tab.
    columns : mapping of str to str, optional
        For a file with other names: for each column here, the file's column, or an expression of
        its columns as `pandas.DataFrame.eval` takes it, such as ``{"params": "size", "tokens":
        "billions * 1e9", "loss": "`eval/loss`"}``.
    where : str, optional
        Pandas query that selects the rows to keep, such as ``"ptpp <= 31"``; the others need no
        valid numbers.
    source : str or Path, optional
        Table of the domain that the bases were pre-trained on. Its rows with tokens = 0, and those
        of the table itself, give each row `base_loss` and `start_loss`, the losses of its `base` on
        the two domains. A base is one model: its label, `params` and `ptpp` agree. Laws that start
        from the base need these losses; see `bayeslaw.fit`.
    role : {"target", "source"}, optional
        As for `from_frame`; not of the table `source`.
    loss_unit, bytes_per_token
        As for `from_frame`, also for the table `source`.

    Raises
    ------
    TableError
        If the file cannot be read or a column fails validation; the message names the column,
        the lines of a CSV file (the header is line 1) or the rows of another, and the correction.
        If the name of the column of losses has another unit and `loss_unit` does not say which.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "losses.csv"
    ...     example_table().frame.to_csv(path, index=False)
    ...     len(read_table(path, where="scale <= 3e20"))
    35
    """
    named = (columns or {}).get("loss", "")
    tables: list[LossTable] = []
    for file in [path] if source is None else [path, source]:
        frame = read_frame(file)
        words = re.split("[^a-z]+", named.lower()) if loss_unit is None and named in frame else []
        for word in (word for word in UNIT_WORDS if word in words):
            raise TableError(
                f"{file}: the column {named!r} is of {word} by its name; give "
                f"{argument('loss_unit', UNIT_WORDS[word])}, or {argument('loss_unit', 'nats')} if "
                "it is not."
            )
        frame = renamed(frame, columns or {}, str(file))
        if not tables:
            frame = asked(frame, where, loss_unit)
        tables.append(
            from_frame(
                frame,
                str(file),
                role=None if tables else role,
                loss_unit=loss_unit,
                bytes_per_token=bytes_per_token,
            )
        )
    return (tables[0] if source is None else starting(*tables)).query(where)


def renamed(frame: pd.DataFrame, columns: Mapping[str, str], name: str = "table") -> pd.DataFrame:
    """The frame with columns under the names used here; `columns` are those of `read_table`."""
    made: dict[str, Any] = {}
    for column, text in columns.items():
        try:
            made[column] = frame[text] if text in frame else _evaluated(frame, text)
        except Exception as error:  # pandas raises many types, of its parser and of operations
            raise TableError(
                f"{name}: columns: {column!r} is neither a column nor an expression of columns: "
                f"{text!r}; found: {', '.join(map(str, frame.columns))}. Write a name that is no "
                "word in backticks."
            ) from error
    used = [c for c in frame if c in columns.values()]
    used += [c for c, name in named(frame).items() if name in made and c != name]
    return frame.drop(columns=used).assign(**made)


def _evaluated(frame: pd.DataFrame, text: str) -> Any:
    try:
        return evaluated(frame, text)
    except TypeError:  # of numbers with leading zeros, which are text
        digits = [c for c in frame if frame[c].astype("string").str.fullmatch(r"\d+").all()]
        return evaluated(frame.astype(dict.fromkeys(digits, float)), text)


def asked(frame: pd.DataFrame, query: str | None, loss_unit: str | None) -> pd.DataFrame:
    """The rows of a frame that a query may select, with their bases; only these must be valid.

    A row stays if the query is about a number that it does not have.
    """
    if query is None:
        return frame
    rows = frame.rename(columns=named(frame)).reset_index(drop=True)
    if rows.columns.has_duplicates or "tokens" not in rows:
        return frame
    try:
        for column in rows:
            rows[column] = typed(rows[column])
        base = rows["tokens"] == 0
        rows[ROW] = np.arange(len(rows))
        found = LossTable(rows[~base], baselines=rows[base]).query(query)
    except TableError:  # of the whole table, when it is validated
        return frame
    about = {c for word in words(query)[1].values() for c in EXPRESSION_NAMES.get(word, (word,))}
    if loss_unit not in (None, "nats") and about & {"loss", *BASE_LOSSES}:
        return frame
    kept = rows[ROW].isin([*found.frame[ROW], *found.baselines[ROW]])
    kept |= rows[[c for c in COLUMNS if c in about]].isna().any(axis=1)
    return frame[kept.to_numpy()]


def starting(table: LossTable, source: LossTable) -> LossTable:
    """The table with the losses of each row's base as `start_loss` and `base_loss`.

    The table has a column `base`, and rows of tokens = 0: the bases' own losses on its domain.
    `source` is the same on the domain that the bases were pre-trained on.
    """
    losses = {}
    for part, column in zip((source, table), reversed(BASE_LOSSES), strict=True):
        if "base" not in table.frame or "base" not in part.baselines:
            raise TableError(
                f"{part.name}: give its rows a column 'base', and add rows with tokens = 0: the "
                "losses of the bases before adaptation."
            )
        _check_same_bases(table, part)
        by_base = part.baselines["loss"].groupby(label_texts(part.baselines["base"]))
        if (counts := by_base.nunique()).max() > 1:
            raise TableError(
                f"{part.name}: base {counts.idxmax()!r} has several losses at tokens = 0; keep one."
            )
        losses[column] = by_base.first()
        labels = label_texts(table.frame["base"])
        if (without := ~labels.isin(losses[column].index)).any():
            names = ", ".join(map(str, labels[without].unique()[:5]))
            raise TableError(
                f"{part.name}: no row with tokens = 0 for the base {names}; add its loss before "
                "adaptation."
            )
    frame, baselines = (
        rows.assign(**{name: label_texts(rows["base"]).map(own) for name, own in losses.items()})
        for rows in (table.frame, table.baselines)
    )
    stated = set(frame["role"].dropna()) if "role" in frame else set()
    if stated - {role := role_by_losses(frame)}:
        equal = "equal losses" if role == "source" else "other losses"
        raise TableError(
            f"{table.name}: the column 'role' says {', '.join(sorted(map(str, stated)))}, but its "
            f"bases have {equal} in {source.name}, so it is a {role}; mend the column, or drop it."
        )
    return replace(table, frame=frame, baselines=baselines)


def _check_same_bases(table: LossTable, part: LossTable) -> None:
    """Raise `TableError` if a base of a table has another N or PTPP in the baselines of a part."""
    for rows in (table.frame, table.baselines):
        for column in ("params", "ptpp"):
            if not {column, "base"} <= {*rows} & {*part.baselines}:
                continue
            of_base = same_rows(rows, part.baselines, ["base"])
            others = of_base & ~same_rows(rows, part.baselines, ["base", column])
            others &= rows["base"].notna().to_numpy()[:, None]
            if others.any():
                i, k = np.argwhere(others)[0]
                one, other = rows.iloc[i], part.baselines.iloc[k]
                raise TableError(
                    f"{part.name}: base {label_texts(rows['base']).iloc[i]} has {column} "
                    f"{other[column]:g} at tokens = 0, and {one[column]:g} in {table.name}; give "
                    "each base a label of its own in both tables."
                )


def read_frame(path: str | Path) -> pd.DataFrame:
    """Read a file as `read_table`, without validation; the index of CSV and JSONL are its lines."""
    path = Path(path)
    if not path.is_file():
        what = "a folder, not a table" if path.is_dir() else "no such file"
        raise TableError(f"{path}: {what}.")
    if is_hdf5(path):
        raise TableError(f"{path}: a saved posterior, not a table of losses.")
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        if path.suffix == ".xlsx":
            return pd.read_excel(path, engine="openpyxl")
        text = _text(path)
        if path.suffix == ".jsonl":
            return _of_json_lines(text)
        separator = max(",;\t", key=text.lstrip().partition("\n")[0].count)
        lines, padded = _lines(text, separator)
        # "NA", "None" and "nan" are labels of runs, not missing values.
        how: dict[str, Any] = {"sep": separator, "keep_default_na": False, "na_values": [""]}
        frame: pd.DataFrame = pd.read_csv(io.StringIO(text), **how)
        # Whole numbers with leading zeros are labels: 001 is not 1.
        if texts := [c for c in padded.intersection(frame) if is_numeric_dtype(frame[c])]:
            frame = pd.read_csv(io.StringIO(text), **how, dtype=dict.fromkeys(texts, str))
    except ImportError as error:
        if path.suffix != ".xlsx":
            raise
        raise TableError(f"{path}: Excel needs openpyxl: pip install openpyxl") from error
    except Exception as error:  # pandas, csv, gzip and openpyxl raise many types
        said = (str(error).strip() or repr(error)).splitlines()[0]
        raise TableError(f"{path}: not a readable table: {said}") from error
    # pandas and csv disagree about the records of some broken files; then rows count from 0.
    index = pd.Index(lines[1:], name=LINE_COLUMN, dtype=int)
    return frame.set_axis(index, axis=0) if len(index) == len(frame) else frame


def _of_json_lines(text: str) -> pd.DataFrame:
    """The objects of a text, one a line; `ValueError` if a line is none."""
    rows: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f'line {number} is not an object such as {{"params": 1e9}}.')
            rows[number] = row
    return pd.DataFrame([*rows.values()], pd.Index(rows, name=LINE_COLUMN, dtype=int))


def _text(path: Path) -> str:
    """Text of a file in UTF-8 or UTF-16, compressed by gzip or not; `ValueError` if it is none."""
    content = path.read_bytes()
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    wide = content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return content.decode("utf-16" if wide else "utf-8-sig")


def _lines(text: str, separator: str) -> tuple[list[int], set[str]]:
    """The line on which each record of a CSV text starts, and columns with leading zeros.

    `ValueError` if a record is too long.
    """
    if text.lstrip()[:1] in ("{", "["):
        raise ValueError("JSON, not CSV; write one object a line into a .jsonl file.")
    records, lines, line = csv.reader(io.StringIO(text, newline=""), delimiter=separator), [], 1
    header: list[str] = []
    padded: set[str] = set()
    for record in records:
        header = header or record
        if len(record) > len(header):
            raise ValueError(
                f"line {line} has {len(record)} fields, the header {len(header)}; write numbers "
                "without commas, and text with commas in quotes."
            )
        cells = zip(header, record, strict=False)
        padded |= {name for name, cell in cells if cell[:1] == "0" and cell[1:].isdigit()}
        lines += [line] if record else []  # a blank line is no record
        line = records.line_num + 1
    return lines, padded


def csv_text(frame: pd.DataFrame) -> str:
    """A frame as CSV: so a table and its own file have one hash on every system."""
    return frame.to_csv(index=False, lineterminator="\n")


def write_frame(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a frame as Parquet if the path ends in ``.parquet``, otherwise as CSV."""
    parquet = Path(path).suffix == ".parquet"
    content = frame.to_parquet(index=False) if parquet else csv_text(frame)
    atomic_write(path, content, TableError)


def read_rows(
    path: str | Path,
    *,
    columns: Mapping[str, str],
    where: str | None,
    role: Role | None,
    loss_unit: str | None,
    bytes_per_token: float | None,
) -> LossTable:
    """Rows to forecast, read as by `read_table`, with losses or without.

    A column that the file has under its name here is not renamed: `columns` may be those of the
    table that is fitted.
    """
    name, frame = str(path), read_frame(path)
    here = {*named(frame).values()}
    here |= {"loss"} if columns.get("loss") not in frame else set()
    columns = {column: text for column, text in columns.items() if column not in here}
    frame = asked(renamed(frame, columns, name), where, loss_unit)
    if "loss" in frame:
        unit: dict[str, Any] = {"loss_unit": loss_unit, "bytes_per_token": bytes_per_token}
        rows = from_frame(frame, name, role=role, **unit)
        if bases := len(rows.baselines):
            text = f"{name}: {bases} rows with tokens = 0 are baselines, not forecast."
            warnings.warn(text, TableWarning, stacklevel=2)
    else:
        frame = of_role(rows_of(frame, name).frame, name, role)
        rows = LossTable(in_nats(frame, name, loss_unit, bytes_per_token), name)
    return rows.query(where)


def is_synthetic(table: Rows | pd.DataFrame | None) -> bool:
    """Whether a table holds simulated losses: a column `synthetic` with a True value."""
    frame = table.frame if isinstance(table, Rows) else pd.DataFrame() if table is None else table
    return "synthetic" in frame and bool(frame["synthetic"].eq(True).any())


def example_table() -> LossTable:
    """Table of 45 measured losses that comes with the package.

    Continual pre-training on math, from the Delphi models of the Marin project (Apache-2.0). A
    typical use is to fit the rows with ``scale <= 3e20`` and to forecast those with
    ``scale >= 1e21``.

    Examples
    --------
    >>> table = example_table()
    >>> train, test = table.split("scale <= 3e20", "scale >= 1e21")
    >>> len(table), len(train), len(test)
    (45, 35, 10)
    """
    return read_table(shipped("data/delphi/isotoken.csv"))


def from_frame(
    frame: pd.DataFrame,
    name: str = "table",
    *,
    role: Role | None = None,
    loss_unit: str | None = None,
    bytes_per_token: float | None = None,
) -> LossTable:
    """Loss table from a data frame.

    Parameters
    ----------
    frame : DataFrame
        Columns `params`, `tokens` and `loss`, optionally `replay`, `ptpp`, `run`, `base`,
        `domain`; `unique_tokens`, the distinct tokens of the new data; `annealed`, 0 or 1;
        and `rate`, the learning rate. `N`, `D`, `r` and `PTPP` are accepted as aliases. Other
        columns are preserved.
    name : str
        In messages and titles.
    role : {"target", "source"}, optional
        Whether the losses are of the domain adapted to, or of the one pre-trained on. It is the
        column `role` of all rows. Laws that read the share of the domain's own text, such as
        `mixture`, need it.
    loss_unit : {"nats", "bits", "perplexity", "bits-per-byte"}, optional
        Unit of the losses, which become nats per token. Bits are per token, and perplexity is the
        exponential of the loss in nats. `start_loss` and `base_loss` are converted, too. Without
        it, losses are taken for nats, and those above 12.5 are refused.
    bytes_per_token : float, optional
        Mean number of bytes of a token of the validation set, which losses in bits per byte need.

    Raises
    ------
    TableError
        If a column fails validation; the message names the column, the rows by their labels, and
        the correction. If the losses are above those that a model can have.

    Examples
    --------
    >>> import pandas as pd
    >>> table = from_frame(pd.DataFrame({"N": [1e8, 1e9], "D": [1e9, 1e9], "loss": [3.4, 3.0]}))
    >>> table.frame["params"].tolist()
    [100000000.0, 1000000000.0]
    """
    frame = canonical(frame, name, ("params", "tokens", "loss"), lines=True)
    frame = of_role(frame, name, role)
    frame = in_nats(frame, name, loss_unit, bytes_per_token)
    check_positive(frame, "loss", name, "losses are nats per token; drop failed runs")
    # Equal losses to every digit: a row written twice, which would count as two measurements.
    if (copies := frame.duplicated()).any():
        warnings.warn(
            f"{name}: {row_numbers(copies)} {'is a copy' if copies.sum() == 1 else 'are copies'} "
            "of earlier rows in every column, and left out; if they are repeated runs, add a "
            "column `run`.",
            TableWarning,
            stacklevel=3,
        )
        frame = frame[~copies]
    baseline = frame["tokens"] == 0
    if baseline.all():
        raise TableError(f"{name}: every row has tokens = 0; nothing to fit.")
    check_units(frame, name)
    measured, bases = frame[~baseline], frame[baseline]
    if (middle := float(measured["loss"].median())) <= LEAST_LOSS:
        warnings.warn(
            f"{name}: the median loss is {middle:.3g} nats per token; the default priors expect "
            f"larger ones; give priors of your own, {argument('priors', 'FILE.toml')}.",
            TableWarning,
            stacklevel=3,
        )
    if loss_unit is None and (above := measured["loss"] > MOST_LOSS).any():
        units = [argument("loss_unit", unit) for unit in ("perplexity", "nats")]
        raise TableError(
            f"{name}: losses are above {MOST_LOSS} nats per token, more than a uniform guess costs "
            f"({row_numbers(above)}: {measured['loss'].max():.3g}); drop failed runs, or state the "
            f"unit: {units[0]}, or {units[1]} if it is right."
        )
    return LossTable(measured.reset_index(drop=True), name, bases.reset_index(drop=True))


def of_role(frame: pd.DataFrame, name: str, role: Role | None) -> pd.DataFrame:
    """The frame with a column `role`, if one is given; the frame may have it already."""
    if role is None:
        return frame
    if role not in ROLES:
        raise TableError(f"{name}: {unknown('role', role, ROLES)}")
    if "role" in frame and (other := frame["role"].notna() & (frame["role"] != role)).any():
        raise TableError(
            f"{name}: {argument('role', role)}, but the column 'role' says "
            f"{frame.loc[other, 'role'].iloc[0]!r} ({row_numbers(other)}); give rows of one role."
        )
    return frame.assign(role=role)


def in_nats(
    frame: pd.DataFrame, name: str, unit: str | None, bytes_per_token: float | None
) -> pd.DataFrame:
    """The frame with its losses, those of bases included, in nats per token."""
    if unit not in (None, *LOSS_UNITS):
        raise TableError(f"{name}: {unknown('loss unit', unit, LOSS_UNITS)}")
    if (unit == "bits-per-byte") != (bytes_per_token is not None):
        raise TableError(
            f"{name}: {argument('loss_unit', 'bits-per-byte')} and "
            f"{argument('bytes_per_token', 4.5)}, the mean bytes of a token of the validation set, "
            "go together."
        )
    if bytes_per_token is not None and not 0 < bytes_per_token < math.inf:
        raise TableError(f"{name}: bytes_per_token={bytes_per_token:g}: give a positive number.")
    if unit in (None, "nats"):
        return frame
    columns = [c for c in ("loss", *BASE_LOSSES) if c in frame]
    losses = frame[columns].astype(float)
    if unit == "perplexity":
        for column in columns:
            check_positive(losses, column, name, "perplexities are at least 1; drop failed runs")
        return frame.assign(**losses.apply(np.log))
    return frame.assign(**losses * (math.log(2) * (bytes_per_token or 1)))
