"""A report page and its inputs."""

from dataclasses import replace

import pandas as pd
import pytest

from bayeslaw import Report, compare, from_frame, grid, report, simulate
from tests.support import CHINCHILLA


@pytest.fixture(scope="session")
def new_rows():
    design = grid(params=[6e9, 1.2e10], tokens=[1e9, 1e10, 1e11])
    return simulate("chinchilla", CHINCHILLA, design, sigma=0.003, seed=2)


@pytest.fixture(scope="session")
def settings(posterior, new_rows):
    both = {"train": "params < 5e9", "test": "params > 5e9"}
    rows = pd.concat([posterior.table.frame, new_rows.frame], ignore_index=True)
    laws = compare(from_frame(rows, "both"), **both, laws=["chinchilla"])
    return {**both, "comparison": laws, "command": "bayeslaw report x.csv"}


@pytest.fixture(scope="session")
def page(posterior, new_rows, settings) -> Report:
    """The queries are those that the tables remember."""
    train = replace(posterior.table, selection=settings["train"])
    rows = replace(new_rows, selection=settings["test"])
    others = {name: settings[name] for name in ("comparison", "command")}
    return report(replace(posterior, table=train), rows, **others)
