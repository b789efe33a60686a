"""Files of tables, read as they are and written; nothing is validated here."""

import codecs
import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from bayeslaw.common.errors import TableError
from bayeslaw.common.files import atomic_write, is_hdf5
from bayeslaw.tables.table import csv_text
from bayeslaw.tables.validation import LINE_COLUMN


def read_frame(path: str | Path) -> pd.DataFrame:
    """Read a file as `read_table`, without validation; the index of CSV and JSONL are its lines."""
    path = Path(path)
    if not path.is_file():
        what = "a folder, not a table" if path.is_dir() else "no such file"
        raise TableError(f"{path}: {what}.")
    if is_hdf5(path):
        raise TableError(f"{path}: a saved posterior, not a table of losses.")
    try:
        if path.stat().st_size == 0:
            raise pd.errors.EmptyDataError  # noqa: TRY301 -- of any kind of file
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
        how: dict[str, Any] = {
            "sep": separator,
            "keep_default_na": False,
            "na_values": [""],
        }
        frame: pd.DataFrame = pd.read_csv(io.StringIO(text), **how)
        # Whole numbers with leading zeros are labels: 001 is not 1.
        if texts := [
            c for c in padded.intersection(frame) if is_numeric_dtype(frame[c])
        ]:
            frame = pd.read_csv(
                io.StringIO(text), **how, dtype=dict.fromkeys(texts, str)
            )
    except ImportError as error:
        needed = "openpyxl" if path.suffix == ".xlsx" else "pyarrow"
        kind = "Excel" if path.suffix == ".xlsx" else "Parquet"
        raise TableError(
            f"{path}: {kind} needs {needed}: pip install {needed}"
        ) from error
    except UnicodeDecodeError as error:
        byte = f"byte {error.object[error.start]:#x} at {error.start}"
        raise TableError(
            f'{path}: not text in UTF-8 ({byte}); save it as UTF-8, in Excel as "CSV UTF-8".'
        ) from error
    except pd.errors.EmptyDataError as error:
        raise TableError(
            f"{path}: the file is empty: it has no header and no rows."
        ) from error
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
                raise ValueError(
                    f'line {number} is not an object such as {{"params": 1e9}}.'
                )
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
    records = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    lines: list[int] = []
    line = 1
    header: list[str] = []
    padded: set[str] = set()
    for record in records:
        header = header or record
        if len(record) > len(header):
            raise ValueError(
                f"line {line} has {len(record)} fields, the header {len(header)}; write numbers "
                "without commas, and text with commas in quotes."
            )
        for name, cell in zip(header, record, strict=False):
            if cell[:1] == "0" and cell[1:].isdigit():
                padded.add(name)
        if record:  # a blank line is none
            lines.append(line)
        line = records.line_num + 1
    return lines, padded


def write_frame(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a frame as Parquet if the path ends in ``.parquet``, otherwise as CSV."""
    parquet = Path(path).suffix == ".parquet"
    content = frame.to_parquet(index=False) if parquet else csv_text(frame)
    atomic_write(path, content, TableError)
