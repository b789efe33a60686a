"""Logs of trackers and trainers as frames: a row for each evaluation, with the label of its run.

Nothing is guessed here but which of the formats of a tool a file has, by its header.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.common.errors import TableError
from bayeslaw.tables.column_names import likely_names
from bayeslaw.tables.files import read_frame
from bayeslaw.tables.validation import label_texts

type Logs = (
    str
    | Path
    | pd.DataFrame
    | Sequence[str | Path]
    | Mapping[str, str | Path | pd.DataFrame]
)
"""Logs: a file or a folder of them, a frame, or those of each run by its name."""
type Runs = str | Path | pd.DataFrame | Mapping[str, Any]
"""What logs do not say of runs: a table, or values by the name of each run."""
LABELS = ("run", "name", "run_name", "run name", "id")
"""Names, in lower case, of a column that labels runs; the first that is there is taken."""
CHART = re.compile(r"^(?P<run>.+) - (?P<metric>.+)$")
"""Column of a chart that Weights & Biases exports: that of one metric of one run."""
OF_SCALARS = ("wall time", "step", "value")
"""Columns, in lower case, of scalars that TensorBoard downloads."""
SCALARS = re.compile(r"^(?:run-)?(?P<run>.+?)-tag-(?P<tag>.+)$")
"""Name of such a file, without its ending."""


def named_files(
    source: Logs, pattern: str, name: Callable[[Path], str]
) -> dict[str, Any]:
    """Frames or paths by the name of their run.

    Parameters
    ----------
    source : Logs
    pattern : str
        Of the files in a folder, in which they may lie at any depth.
    name : callable
        Name of the run of a file.
    """
    if isinstance(source, Mapping):
        return dict(source)
    if isinstance(source, pd.DataFrame):
        return {"": source}
    paths = [source] if isinstance(source, str | Path) else [*source]
    files: dict[str, Any] = {}
    for path in map(Path, paths):
        inside = sorted(path.rglob(pattern)) if path.is_dir() else [path]
        if not inside:
            raise TableError(f"{path}: no file {pattern} in this folder.")
        for file in inside:
            label = name(file)
            if label in files:
                raise TableError(
                    f"{file}: {files[label]} is of the run {label!r}, too; give the files as a "
                    "mapping of the names of runs to paths."
                )
            files[label] = file
    return files


def frame_of(logs: str | Path | pd.DataFrame) -> pd.DataFrame:
    """The frame of a file, or of a user."""
    if isinstance(logs, pd.DataFrame):
        return logs
    return read_frame(logs)


# -- Weights & Biases -----------------------------------------------------------------------------


def wandb_rows(source: Logs) -> pd.DataFrame:
    """Rows of runs: of a table of runs, of a chart, or of histories; `run` labels them."""
    files = named_files(source, "*.parquet", lambda path: path.stem)
    if len(files) > 1 or isinstance(source, Mapping):
        parts = []
        for run, logs in files.items():
            parts.append(frame_of(logs).assign(run=run))
        return pd.concat(parts, ignore_index=True)
    ((run, logs),) = files.items()
    frame = frame_of(logs)
    if _is_chart(frame):
        return _rows_of_chart(frame)
    label = label_of(frame)
    if label is not None:
        return _with_run(frame, label)
    if run:
        return frame.assign(run=run)
    return frame


def _is_chart(frame: pd.DataFrame) -> bool:
    columns = [str(column) for column in frame.columns[1:]]
    return bool(columns) and all(CHART.match(column) for column in columns)


def _rows_of_chart(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of a chart: its first column is the axis, and each other one a metric of a run.

    Beside each metric are its least and largest value at a point, ``__MIN`` and ``__MAX``.
    """
    axis = str(frame.columns[0])
    metrics: dict[str, dict[str, pd.Series]] = {}
    for column in frame.columns[1:]:
        match = CHART.match(str(column))
        assert match is not None
        metric = match["metric"]
        if not metric.endswith(("__MIN", "__MAX")):
            metrics.setdefault(match["run"], {})[metric] = frame[column]
    parts = []
    for run, columns in metrics.items():
        values = pd.DataFrame(columns).dropna(how="all").assign(run=run)
        parts.append(values.join(frame[axis]))
    return pd.concat(parts, ignore_index=True)


def label_of(frame: pd.DataFrame) -> str | None:
    """The column of a frame that labels its runs."""
    columns = {str(column).strip().lower(): str(column) for column in frame}
    for label in LABELS:
        if label in columns:
            return columns[label]
    return None


def _with_run(frame: pd.DataFrame, label: str) -> pd.DataFrame:
    """The frame with its label as `run`; runs of one name are told apart by a column ``ID``."""
    runs = label_texts(frame[label])
    if "ID" in frame and label != "ID":
        ids = label_texts(frame["ID"])
        several = ids.groupby(runs).transform("nunique") > 1
        runs = runs.where(~several, runs + " (" + ids + ")")
    return frame.drop(columns=label).assign(run=runs)


# -- TensorBoard ----------------------------------------------------------------------------------


def tensorboard_rows(source: Logs) -> pd.DataFrame:
    """Rows of scalars: a row for each step of a run, with a column for each of its tags."""
    files = named_files(source, "*.csv", lambda path: path.stem)
    of_run: dict[str, pd.DataFrame] = {}
    for name, logs in files.items():
        frame = frame_of(logs)
        if [str(column).lower() for column in frame] != [*OF_SCALARS]:
            raise TableError(
                f"{name or 'the frame'}: no scalars of TensorBoard, whose columns are Wall time, "
                "Step and Value."
            )
        match = SCALARS.match(name)
        run = match["run"] if match else name
        tag = match["tag"] if match else "loss"
        frame.columns = pd.Index(["time", "step", tag])
        # Of a step that was logged twice, such as after a restart, the last counts.
        column = frame.drop_duplicates("step", keep="last").set_index("step")[[tag]]
        before = of_run.get(run)
        of_run[run] = column if before is None else before.join(column, how="outer")
    parts = [rows.reset_index().assign(run=run) for run, rows in of_run.items()]
    return pd.concat(parts, ignore_index=True)


# -- Trainer --------------------------------------------------------------------------------------


def trainer_rows(source: Logs) -> pd.DataFrame:
    """Rows of the evaluations of the Trainer of Hugging Face, of its ``trainer_state.json``."""
    paths = _last_states(source)
    rows: list[dict[str, Any]] = []
    for run, path in paths.items():
        state = _trainer_state(path)
        most = state.get("max_steps") or 0
        finished = most <= (state.get("global_step") or 0)
        for log in state["log_history"]:
            evaluated = {c: log[c] for c in log if re.fullmatch("eval_(.+_)?loss", c)}
            if not evaluated:
                continue
            row = {"run": run, "step": log.get("step"), **evaluated}
            row["state"] = "finished" if finished else "running"
            if "num_input_tokens_seen" in log:
                row["num_input_tokens_seen"] = log["num_input_tokens_seen"]
            rows.append(row)
    if not rows:
        names = ", ".join(map(str, paths.values()))
        raise TableError(
            f"{names}: no evaluation, as the Trainer logs with eval_strategy; give files that "
            "have an eval_loss."
        )
    return pd.DataFrame(rows)


def _last_states(source: Logs) -> dict[str, Path]:
    """The state of each run; of those in the folders of its checkpoints, the last."""
    if isinstance(source, pd.DataFrame):
        raise TableError(
            "the Trainer's logs are files: give the path of trainer_state.json, or a folder."
        )
    if isinstance(source, Mapping):
        return {run: Path(str(path)) for run, path in source.items()}
    files = named_files(source, "trainer_state.json", str)
    last: dict[str, Path] = {}
    steps: dict[str, float] = {}
    for path in files.values():
        checkpoint = re.fullmatch(r"checkpoint-(\d+)", path.parent.name)
        run = path.parent.parent.name if checkpoint else path.parent.name
        step = float(checkpoint[1]) if checkpoint else np.inf
        if step >= steps.get(run, 0):
            last[run] = path
            steps[run] = step
    return last


def _trainer_state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise TableError(
            f"{path}: no trainer_state.json that can be read: {said}"
        ) from error
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise TableError(f"{path}: no 'log_history', which trainer_state.json has.")
    return state


# -- what logs do not say -------------------------------------------------------------------------


def with_runs(
    rows: pd.DataFrame, runs: Runs, name: str, asked: Collection[str] = ()
) -> pd.DataFrame:
    """The rows with what a table of runs, or values by name, say of the run of each.

    Losses, tokens, FLOPs and steps of a table are those of ends of runs, so rows do not take them,
    unless they are `asked` for by name.

    Raises
    ------
    TableError
        If a run is not there, or is there twice.
    """
    table = _runs_table(runs)
    if "run" not in rows:
        raise TableError(
            f"{name}: no column labels the runs, so 'runs' cannot be joined."
        )
    twice = table["run"].duplicated()
    if twice.any():
        label = table.loc[twice, "run"].iloc[0]
        raise TableError(
            f"{name}: runs: {label!r} is there twice; give each run a name of its own."
        )
    labels = label_texts(rows["run"])
    absent = sorted({*labels.dropna()} - {*table["run"]})
    if absent:
        raise TableError(
            f"{name}: runs: nothing is said of {', '.join(absent[:5])}; known: "
            f"{', '.join(table['run'][:5])}."
        )
    of_ends: set[str] = set()
    if not isinstance(runs, Mapping):
        of_ends = _columns_of_ends(table) - {*asked}
    kept = [c for c in table if c == "run" or (c not in rows and c not in of_ends)]
    joined = rows.assign(run=labels).merge(table[kept], on="run", how="left")
    return joined.set_axis(rows.index, axis=0)


def _runs_table(runs: Runs) -> pd.DataFrame:
    if isinstance(runs, Mapping):
        values = []
        for run, value in runs.items():
            of_run = value if isinstance(value, Mapping) else {"params": value}
            values.append({"run": run, **of_run})
        return pd.DataFrame(values)
    frame = frame_of(runs)
    label = label_of(frame)
    if label is None:
        raise TableError(
            f"runs: no column labels the runs, such as Name; found: {', '.join(map(str, frame))}."
        )
    return _with_run(frame, label)


def _columns_of_ends(table: pd.DataFrame) -> set[str]:
    """Columns of what has been reached at the end of a run, and not of how it was set up."""
    names = {str(column).lower(): str(column) for column in table}
    reached = {*likely_names("tokens", names)}
    for lower, column in names.items():
        if "loss" in lower or "flop" in lower or "step" in lower:
            reached.add(column)
    return reached
