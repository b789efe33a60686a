"""Readers of exports as they are: domains in columns, and logs of trackers and trainers."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd

from bayeslaw.common.errors import TableError, argument, unknown
from bayeslaw.tables.bases import starting
from bayeslaw.tables.guessed_columns import names_in
from bayeslaw.tables.guessing import Losses, guess_table
from bayeslaw.tables.logs import (
    Logs,
    Runs,
    tensorboard_rows,
    trainer_rows,
    wandb_rows,
    with_runs,
)
from bayeslaw.tables.table import LossTable, Role, subset
from bayeslaw.tables.validation import label_texts


def read_domains(
    losses: Losses,
    source: str | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    where: str | None = None,
    loss_unit: str | None = None,
    bytes_per_token: float | None = None,
) -> dict[str, LossTable]:
    """Loss tables of several domains, of an export with a column of losses for each.

    Such as ``loss_math`` and ``loss_web``, or ``val/loss/math`` and ``val/loss/web``: a domain is
    what the names of these columns do not share. An export with a column `domain` is read, too.

    Parameters
    ----------
    losses : DataFrame or path
        A row for each measurement. Names and units of other columns are guessed as by `forecast`,
        and a warning says what was guessed: so is `ptpp`, which is computed from a column of
        pre-training tokens.
    source : str, optional
        The domain that the bases were pre-trained on. Its table has the `role` ``"source"``, and
        all others have ``"target"``. If rows have a `base`, and bases have rows with tokens = 0,
        each row has the losses of its base on both domains, which `transfer` needs.
    columns, where, loss_unit, bytes_per_token
        As for `read_table`.

    Returns
    -------
    dict of str to LossTable
        A table for each domain.

    Raises
    ------
    TableError
        If there are not several domains, or `source` is none of them.

    Examples
    --------
    >>> import warnings
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"params": [1e8, 1e9], "tokens": 2e9, "replay": 0.1})
    >>> frame = frame.assign(loss_math=[1.4, 1.1], loss_web=[3.1, 2.7])
    >>> with warnings.catch_warnings(action="ignore"):
    ...     tables = bl.read_domains(frame, source="web")
    >>> {domain: table.role for domain, table in tables.items()}
    {'math': 'target', 'web': 'source'}
    """
    guessed = guess_table(
        losses,
        columns=columns,
        where=where,
        loss_unit=loss_unit,
        bytes_per_token=bytes_per_token,
    )
    table = guessed.table
    words = list(guessed.words)
    domains: list[str] = []
    if "domain" in table.frame:
        domains = [*label_texts(table.frame["domain"]).dropna().unique()]
    if len(domains) < 2:
        raise TableError(
            f"{table.name}: losses of several domains are expected, in columns such as loss_math "
            "and loss_web, or with a column 'domain'."
        )
    if source is not None and source not in domains:
        raise TableError(f"{table.name}: source: {unknown('domain', source, domains)}")
    if "ptpp" not in table.frame:
        per_base = argument("columns", {"ptpp": "15e12 / params"})
        words.append(
            "There is no 'ptpp', pre-training tokens / params; laws of several bases need it, such "
            f"as {per_base}."
        )
    replace(guessed, words=tuple(words)).warn()
    labels = label_texts(table.frame["domain"])
    tables: dict[str, LossTable] = {}
    for domain in domains:
        of_domain = subset(table, (labels == domain).to_numpy())
        of_domain = replace(of_domain, name=f"{table.name} ({domain})")
        if source is not None:
            role: Role = "source" if domain == source else "target"
            of_domain = _of_role(of_domain, role)
        tables[domain] = of_domain
    if source is None or "base" not in table.frame or table.baselines.empty:
        return tables
    pretrained = tables[source]
    return {domain: starting(own, pretrained) for domain, own in tables.items()}


def _of_role(table: LossTable, role: Role) -> LossTable:
    return replace(
        table,
        frame=table.frame.assign(role=role),
        baselines=table.baselines.assign(role=role),
    )


def read_wandb(
    source: Logs,
    runs: Runs | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    where: str | None = None,
    role: Role | None = None,
    loss_unit: str | None = None,
    bytes_per_token: float | None = None,
) -> LossTable:
    """Loss table of an export of Weights & Biases; its client is not needed.

    Rows of runs that were broken off (crashed, failed, killed) and rows without a finite loss are
    left out. Validation losses are taken before training losses. Counts in columns such as
    ``n_params_M`` become single ones. `run` is the run's name, and `annealed` is 1 in the last row
    of each finished run alone. A warning says all of it.

    Parameters
    ----------
    source : path, DataFrame, or mapping of str to path or DataFrame
        The table of runs as CSV (``Name``, ``State``, configurations and summaries); a chart as CSV
        (``Step``, ``run - val/loss``, ...); or histories, as CSV, as Parquet, or as the frames of
        ``run.history()``: that of one run, a folder of ``*.parquet`` (named by run), or a mapping
        of names of runs to histories.
    runs : path, DataFrame or mapping, optional
        What charts and histories do not say of runs: the table of runs, or values by the name of
        each, such as ``{"small": {"params": 1e8}}`` or ``{"small": 1e8}``. Losses, tokens, FLOPs
        and steps of the table are those of the runs' ends, and not joined unless `columns` has
        them.
    columns : mapping of str to str, optional
        As for `read_table`. Tokens are not guessed from steps: give them, such as
        ``{"tokens": "_step * 524288"}``.
    where, role, loss_unit, bytes_per_token
        As for `read_table`.

    Raises
    ------
    TableError
        If a column cannot be guessed; the message says what to write.

    Examples
    --------
    >>> table = bl.read_wandb("wandb_export.csv")  # doctest: +SKIP
    >>> histories = {run.name: run.history() for run in api.runs("me/scaling")}  # doctest: +SKIP
    >>> configs = {run.name: run.config for run in api.runs("me/scaling")}  # doctest: +SKIP
    >>> tokens = {"tokens": "_step * batch_tokens"}  # doctest: +SKIP
    >>> table = bl.read_wandb(histories, configs, columns=tokens)  # doctest: +SKIP
    """
    return _read(
        wandb_rows(source),
        _name_of(source, "wandb"),
        runs,
        columns=columns,
        where=where,
        role=role,
        loss_unit=loss_unit,
        bytes_per_token=bytes_per_token,
    )


def read_tensorboard(
    source: Logs,
    runs: Runs | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    where: str | None = None,
    role: Role | None = None,
    loss_unit: str | None = None,
    bytes_per_token: float | None = None,
) -> LossTable:
    """Loss table of scalars that TensorBoard downloads as CSV.

    Parameters
    ----------
    source : path, sequence of paths, or mapping of str to path or DataFrame
        Files with the columns ``Wall time``, ``Step`` and ``Value``, or a folder of them. The name
        of a file, ``run-RUN-tag-TAG.csv``, says the run and the tag; one of another name, or of a
        mapping, is the loss of the run of that name.
    runs : mapping, path or DataFrame
        Sizes of the runs, such as ``{"small": 1e8}``, and what else scalars do not say of them; as
        for `read_wandb`.
    columns : mapping of str to str
        Needed for tokens, such as ``{"tokens": "step * 524288"}``; as for `read_table`.
    where, role, loss_unit, bytes_per_token
        As for `read_table`.

    Raises
    ------
    TableError
        If a file has other columns, or a column cannot be guessed.

    Examples
    --------
    >>> tokens = {"tokens": "step * 524288"}
    >>> bl.read_tensorboard("scalars", {"small": 1e8}, columns=tokens)  # doctest: +SKIP
    """
    return _read(
        tensorboard_rows(source),
        _name_of(source, "tensorboard"),
        runs,
        columns=columns,
        where=where,
        role=role,
        loss_unit=loss_unit,
        bytes_per_token=bytes_per_token,
    )


def read_trainer(
    source: Logs,
    runs: Runs | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    where: str | None = None,
    role: Role | None = None,
    loss_unit: str | None = None,
    bytes_per_token: float | None = None,
) -> LossTable:
    """Loss table of evaluations that the Trainer of Hugging Face has logged.

    Parameters
    ----------
    source : path, sequence of paths, or mapping of str to path
        Files ``trainer_state.json``, or a folder in which they lie, at any depth. A run has the
        name of its folder; of its checkpoints (``checkpoint-1000``) the last is read. It has
        finished if its ``global_step`` is its ``max_steps``.
    runs : mapping, path or DataFrame
        Sizes of the runs, such as ``{"small": 1e8}``, and what else logs do not say of them; as for
        `read_wandb`.
    columns : mapping of str to str, optional
        Needed for tokens, such as ``{"tokens": "step * 524288"}``, unless the Trainer logged
        ``num_input_tokens_seen``; as for `read_table`.
    where, role, loss_unit, bytes_per_token
        As for `read_table`.

    Raises
    ------
    TableError
        If a file has no evaluation, or a column cannot be guessed.

    Examples
    --------
    >>> tokens = {"tokens": "step * 524288"}
    >>> bl.read_trainer("runs", {"small": 1e8}, columns=tokens)  # doctest: +SKIP
    """
    return _read(
        trainer_rows(source),
        _name_of(source, "trainer"),
        runs,
        columns=columns,
        where=where,
        role=role,
        loss_unit=loss_unit,
        bytes_per_token=bytes_per_token,
    )


def _name_of(source: Logs, otherwise: str) -> str:
    """Name of the table: the path, or the tool."""
    return str(source) if isinstance(source, str | Path) else otherwise


def _read(
    rows: pd.DataFrame,
    name: str,
    runs: Runs | None,
    *,
    columns: Mapping[str, str] | None,
    where: str | None,
    role: Role | None,
    loss_unit: str | None,
    bytes_per_token: float | None,
) -> LossTable:
    if runs is not None:
        rows = with_runs(rows, runs, name, names_in(columns or {}))
    guessed = guess_table(
        rows,
        columns=columns,
        where=where,
        role=role,
        loss_unit=loss_unit,
        bytes_per_token=bytes_per_token,
        name=name,
    )
    guessed.warn(stacklevel=3)
    return guessed.table
