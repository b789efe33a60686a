"""A table of losses: queries, splits, grids."""

import numpy as np
import pandas as pd
import pytest

from bayeslaw import TableError, from_frame, grid, paper_world
from tests.support import GOOD


def test_grid():
    cells = grid(params=[1e8, 1e9], tokens=(1e9,), replay=np.array([0.1, 0.2, 0.5]), ptpp=279)
    assert cells.shape == (6, 4)
    assert cells.dtypes.eq(float).all()
    assert cells["ptpp"].eq(279).all()
    assert not cells.duplicated().any()

    assert grid(ptpp=np.int64(279), params=np.float32(1e8), tokens=[1e9]).shape == (1, 3)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "ptpp <=",
        "nonsense > 3",
        "loss",
        "loss.max()",
        "True",
        "x = loss",
        "ptpp > 'a'",
        "ptpp\n> 3; loss",
        "import os",
        "__import__('os').getcwd() == ''",
        "index in @np.flatnonzero(loss)",
        "loss > @nowhere",
        "@Path('x').touch() == 0",
        "@pd.io.common.os.system('touch x') == 0",
        "params.values.tofile('x') or True",
        "(params > 1) & `params`.values.tofile('x')",
        "params[0] > 1",
        "[p for p in params]",
        "log(params, out=loss) > 1",
        "sin(params) > 1",
        "loss > (lambda: 1)",
        "'quoted`' + params.values.tofile('x') + '`'",
    ],
)
def test_queries_that_cannot_be_evaluated(query, tmp_path, monkeypatch):
    """Also those that would reach the file system."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TableError, match="table: ") as error:
        from_frame(GOOD).query(query)
    assert "\n" not in str(error.value).replace(query, "")
    assert not list(tmp_path.iterdir())


def test_queries_are_corrected_in_plain_words():
    table = from_frame(GOOD)
    with pytest.raises(TableError, match="unknown column 'parms'; did you mean 'params'"):
        table.query("parms > 1")
    with pytest.raises(TableError, match=r"no row satisfies 'ptpp > 1000' .4 rows."):
        table.query("ptpp > 1000")
    for query in ("ptpp <= 31 and", "ptpp = 31", "if ptpp", "(ptpp > 3", "loss"):
        with pytest.raises(TableError, match=": write comparisons, such as ptpp <= 31 and domain"):
            table.query(query)


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("C < 7e18", 3),
        ("flops / 6 >= 1e19", 1),
        ("log(C) > 45 or `in nats` < 1", 1),
        ("`in nats` == 2 and note in ['a`b', \"it's\"]", 1),
        ("not (r > .1) & (1e8 <= N <= 1e9)", 2),
        ("quoted0 == 1 and `in nats` == 1", 1),
    ],
)
def test_what_a_query_may_have(query, count):
    others = {"in nats": [1, 2, 3, 4], "note": ["a`b", "it's", "b", "c"], "quoted0": 1}
    assert len(from_frame(GOOD.assign(**others)).query(query)) == count


def test_a_column_of_the_table_comes_before_an_alias():
    table = from_frame(GOOD.assign(C=[1, 2, 3, 4], flops=5))
    assert len(table.query("C > 3 and flops == 5")) == 1


def test_split_parts():
    table = from_frame(GOOD)
    for parts in (
        table.split(train="ptpp <= 31"),
        table.split(test="ptpp > 31"),
        table.split("ptpp <= 31", "ptpp > 31"),
    ):
        assert [len(part) for part in parts] == [3, 1]
    train, test = table.split("ptpp == 15", "ptpp > 15")
    assert [len(train), len(test)] == [1, 3]
    assert list(train.frame.index) == [0]
    assert str(train) == "1 row of table (ptpp == 15)"
    assert str(test.query("tokens > 0")) == "3 rows of table (ptpp > 15; tokens > 0)"
    assert table.split(test="ptpp > 31")[0].selection == "not (ptpp > 31)"


def test_anchors_move_from_test_to_train():
    table = from_frame(GOOD)
    train, test = table.split("ptpp == 15", "ptpp >= 31", anchors="ptpp == 31 and N < 5e8")
    assert sorted(train.frame["ptpp"]) == [15, 31]
    assert sorted(test.frame["ptpp"]) == [31, 279]
    # An anchor that is already a training row stays there, once.
    train, test = table.split("ptpp <= 31", anchors="ptpp == 31")
    assert [len(train), len(test)] == [3, 1]


@pytest.mark.parametrize(
    ("queries", "says"),
    [
        ({}, "needs a train or a test query"),
        ({"anchors": "ptpp == 31"}, "needs a train or a test query"),
        ({"train": "ptpp <= 31", "test": "ptpp >= 31"}, "rows 1, 2 satisfy both"),
        ({"train": "ptpp > 1000"}, "the train set is empty"),
        ({"train": "ptpp > 0"}, "the test set is empty"),
        ({"train": "ptpp <= 31", "anchors": "ptpp > 31"}, "the test set is empty"),
        ({"train": "ptpp <= 31", "test": "wrong > 3"}, "cannot evaluate the query"),
    ],
)
def test_bad_splits(queries, says):
    with pytest.raises(TableError, match=says):
        from_frame(GOOD).split(**queries)


def test_training_rows_keep_every_base():
    table = paper_world().table("english_arabic")
    train = table.training("ptpp <= 31")
    assert train.frame.equals(table.query("ptpp <= 31").frame)
    assert len(train.baselines) == len(table.baselines) > len(table.query("ptpp <= 31").baselines)
    assert table.training(None).frame.equals(table.frame)


def test_baselines_are_those_of_the_domains_of_the_rows():
    rows = pd.concat([GOOD, GOOD.assign(tokens=0.0)]).assign(base=["a", "b", "c", "d"] * 2)
    table = from_frame(
        pd.concat([rows.assign(domain="french"), rows.assign(domain="greek", loss=3.5)])
    )
    french = table.query("domain == 'french'")
    assert french.baselines["domain"].tolist() == ["french"] * 4
    assert len(table.query("domain == 'french' and ptpp == 31").baselines) == 2
    assert table.training("domain == 'greek'").baselines["loss"].tolist() == [3.5] * 4
    for part, domain in zip(table.split("domain == 'greek'"), ("greek", "french"), strict=True):
        assert part.baselines["domain"].tolist() == [domain] * 4
    unnamed = from_frame(pd.concat([rows.query("tokens > 0").assign(domain="french"), rows[4:]]))
    assert len(unnamed.query("domain == 'french'").baselines) == 4
