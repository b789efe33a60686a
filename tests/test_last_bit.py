"""Draws moved by one last bit, as another processor rounds: what is recorded still holds."""

import contextlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests import recorded, test_cli, test_figures
from tests.support import saved, slow

DRAWN = ("forecast", "register", "verify", "score", "derive", "plan", "anchors")
LONG = (
    "forecast grid",
    "plan infeasible",
    "derive two",
    "recipes",
    "recipes at",
    "report",
)
"""Commands of saved fits, which sample nothing."""


@cache
def moved(name):
    """A posterior of tests/data with each draw at one of the two floats next to it."""
    fit, rng = saved(name), np.random.default_rng(0)
    return replace(
        fit,
        draws=fit.draws.map(
            lambda v: v.copy(
                data=np.nextafter(v, rng.choice([-np.inf, np.inf], v.shape))
            )
        ),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with contextlib.chdir(tmp_path_factory.mktemp("moved")):
        test_cli.prepare()
        for name in ("delphi_chinchilla", "world_form3", "world_source_form1"):
            Path(f"{name}.nc").unlink()
            moved(name).save(f"{name}.nc")
        moved("delphi_chinchilla").save("other.nc")
        yield


@pytest.mark.parametrize("name", [*DRAWN, *map(slow, LONG)])
def test_documents_of_saved_fits(name, folder):
    test_cli.as_recorded(name)


@pytest.mark.filterwarnings("ignore")  # recorded fits are short
@pytest.mark.parametrize("name", recorded.recorded("figures"))
def test_data_of_figures(name, monkeypatch):
    for module in (recorded, test_figures):
        monkeypatch.setattr(module, "saved", moved)
    test_figures.as_recorded(name, test_figures.figures.__wrapped__()[name]())
