"""The Examples sections of docstrings run and print what they say."""

import doctest
import importlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bayeslaw as bl

PACKAGE = Path(bl.__file__).parent
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text("utf-8")]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def test_there_are_examples():
    assert len(FILES) >= 3


@pytest.mark.parametrize("name", [module_name(path) for path in FILES])
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=FLAGS)
    for example in finder.find(module, extraglobs={"bl": bl, "np": np, "pd": pd}):
        said: list[str] = []
        runner.run(example, out=said.append)
        assert not runner.failures, "".join(said)
