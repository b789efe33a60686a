import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayeslaw.common.errors import TableError, TableWarning
from bayeslaw.huber.point_fit import fit_huber
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.tables.reading import from_frame, read_table
from bayeslaw.tables.table import grid
from bayeslaw.tables.validation import ALIASES, COLUMNS

GOOD = pd.DataFrame(
    {
        "params": [1e8, 1e8, 1e9, 1e9],
        "tokens": [1e9, 1e10, 1e9, 1e10],
        "replay": [0.1, 0.5, 0.1, 0.5],
        "ptpp": [15, 31, 31, 279],
        "loss": [3.0, 2.8, 2.6, 2.5],
    }
)


def spoilt(column, row, value):
    frame = GOOD.astype(object)
    frame.loc[row, column] = value
    return frame


# -- good tables ------------------------------------------------------------------------------

counts = st.floats(1e4, 1e300)
rows = st.fixed_dictionaries(
    {
        "params": counts,
        "tokens": st.floats(1e-3, 1e300),
        "replay": st.floats(0, 1),
        "ptpp": st.floats(1e-300, 1e300),
        "loss": st.floats(1e-300, 1e300),
        "domain": st.sampled_from(["français", "中文", 'naïve, quoted "x"', "a\nb", "Ω"]),
        "note é": st.integers(-(2**53), 2**53),
    }
)
tables = st.lists(rows, min_size=1, max_size=8, unique_by=lambda row: row["loss"])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(tables, st.sampled_from(["csv", "parquet"]))
def test_files_preserve_every_bit(tmp_path_factory, records, ending):
    frame = pd.DataFrame(records)
    path = tmp_path_factory.mktemp("päth ∂") / f"tàble.{ending}"
    frame.to_parquet(path) if ending == "parquet" else frame.to_csv(path, index=False)
    table = read_table(path)
    pd.testing.assert_frame_equal(
        table.frame, frame, check_dtype=False, check_exact=True, check_column_type=False
    )
    assert table.name == str(path)
    assert table.sha256 == from_frame(frame).sha256


def test_aliases_in_columns_and_queries():
    short = {column: alias for alias, column in ALIASES.items()}
    table = from_frame(GOOD.rename(columns=short))
    assert list(table.frame.columns) == list(COLUMNS)
    assert len(table.query("PTPP <= 31 and N > 5e8 and D < 1e10 and r < .5")) == 1
    assert len(table.query("ptpp <= 31 and params > 5e8")) == 1
    with pytest.raises(TableError, match="'params' is there twice"):
        from_frame(GOOD.assign(N=GOOD["params"]))


def test_numbers_as_text_are_read():
    table = from_frame(GOOD.astype(str))
    np.testing.assert_array_equal(table.loss, GOOD["loss"])


def test_rows_without_tokens_are_baselines():
    frame = pd.concat([GOOD, GOOD.assign(tokens=0.0, loss=3.5 + GOOD["loss"])])
    table = from_frame(frame)
    assert len(table) == 4
    assert len(table.baselines) == 4
    assert (table.baselines["tokens"] == 0).all()
    np.testing.assert_array_equal(table.loss, GOOD["loss"])
    assert len(table.query("ptpp == 31").baselines) == 2
    train, test = table.split(train="ptpp <= 31")
    assert len(train.baselines) == len(test.baselines) == 4
    with pytest.raises(TableError, match="every row has tokens = 0"):
        from_frame(GOOD.assign(tokens=0))
    with pytest.raises(TableError, match="no value at tokens = 0"):
        load_law("dcpt").covariates(frame)


def test_repeated_runs_need_a_run_column():
    twice = pd.concat([GOOD, GOOD])
    with pytest.raises(
        TableError, match=r"rows 0, 1, 2, 3, 4 and 3 more are exact duplicates.*run"
    ):
        from_frame(twice)
    assert len(from_frame(twice.assign(run=np.repeat(["a", "b"], 4)))) == 8


def test_counts_in_millions_are_suspect():
    with pytest.warns(TableWarning, match="1000 parameters; counts are expected, not millions"):
        from_frame(GOOD.assign(params=GOOD["params"] / 1e6))


def test_grid():
    cells = grid(params=[1e8, 1e9], tokens=(1e9,), replay=np.array([0.1, 0.2, 0.5]), ptpp=279)
    assert cells.shape == (6, 4)
    assert cells.dtypes.eq(float).all()
    assert cells["ptpp"].eq(279).all()
    assert not cells.duplicated().any()


def test_grid_takes_numpy_scalars():
    assert grid(ptpp=np.int64(279), params=np.float32(1e8), tokens=[1e9]).shape == (1, 3)


def test_two_hundred_thousand_rows(tmp_path):
    n, rng = 200_000, np.random.default_rng(0)
    frame = pd.DataFrame({"N": 1e8, "D": rng.uniform(1e9, 1e11, n), "loss": rng.uniform(2, 4, n)})
    frame.to_csv(tmp_path / "big.csv", index=False)
    start = time.process_time()
    table = read_table(tmp_path / "big.csv", where="D > 5e10")
    assert time.process_time() - start < 5
    assert 1e5 < len(table) < 1.2e5


def test_extreme_magnitudes_survive():
    extreme = GOOD.assign(loss=[1e-300, 1e300, 1.0, 5e-324], params=[1e300, 1e4, 1, 1e-300])
    table = from_frame(extreme)
    assert np.isfinite(np.log(table.loss)).all()
    x = load_law("form3").covariates(table.frame)
    assert all(np.isfinite(values).all() for values in x.values())


def test_single_row_reads_but_cannot_be_fitted():
    table = from_frame(GOOD.iloc[:1])
    assert len(table) == 1
    with pytest.raises(TableError, match=r"'params' is 1e[+]08 in all 1 rows"):
        fit_huber("form3", table)


@pytest.mark.parametrize("column", ["params", "tokens", "replay", "ptpp"])
def test_a_law_needs_its_covariates_to_vary(column):
    table = from_frame(GOOD.assign(**{column: GOOD[column].iloc[0]}))
    with pytest.raises(TableError, match=f"column '{column}' is .* in all 4 rows.*form3"):
        fit_huber("form3", table)


# -- bad tables -------------------------------------------------------------------------------


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.nan, "is missing .NaN.; fill it or drop the row"),
        (None, "is missing .NaN.; fill it or drop the row"),
        (np.inf, "is infinite"),
        (-np.inf, "is infinite"),
        ("two", "is not a number"),
        ("1,000", "is not a number"),
        ("1e9999", "is infinite"),
    ],
)
def test_values_that_are_no_numbers(column, value, says):
    with pytest.raises(TableError, match=f"^table: column '{column}' {says} .row 2..$"):
        from_frame(spoilt(column, 2, value))


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("loss", 0, "is not positive; losses are nats per token"),
        ("loss", -1, "is not positive; losses are nats per token"),
        ("params", 0, "is not positive; give the number of parameters"),
        ("params", -1e9, "is not positive; give the number of parameters"),
        ("ptpp", 0, "is not positive; give pre-training tokens per parameter"),
        ("tokens", -1, "is negative; give D in tokens, 0 = baseline"),
        ("replay", -1e-9, "lies outside .0, 1.; give a fraction, not a percentage"),
        ("replay", 25, "lies outside .0, 1.; give a fraction, not a percentage"),
    ],
)
def test_values_out_of_range(column, value, says):
    with pytest.raises(TableError, match=f"^table: column '{column}' {says}.*row 1"):
        from_frame(spoilt(column, 1, value))


def test_many_bad_rows_are_counted():
    frame = pd.concat([GOOD] * 5, ignore_index=True).assign(loss=-1.0)
    with pytest.raises(TableError, match="rows 0, 1, 2, 3, 4 and 15 more"):
        from_frame(frame)


@pytest.mark.parametrize(("column", "alias"), [("params", "N"), ("tokens", "D"), ("loss", None)])
def test_missing_columns_are_named(column, alias):
    says = f"column '{column}'" + (f" .or {alias}." if alias else "") + " is missing; found: "
    with pytest.raises(TableError, match=says):
        from_frame(GOOD.drop(columns=column))


def test_a_law_names_the_column_it_lacks():
    with pytest.raises(TableError, match=r"'ptpp' .or PTPP. is missing"):
        load_law("form1").covariates(GOOD.drop(columns="ptpp"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.csv", b""),
        ("latin.csv", "params,tokens,loss,domain\n1e8,1e9,3.0,fran\xe7ais\n".encode("latin-1")),
        ("ragged.csv", b"params,tokens,loss\n1,2,3\n1,2,3,4,5\n"),
        ("text.parquet", b"params,tokens,loss\n"),
        ("empty.parquet", b""),
        ("binary.csv", bytes(range(256)) * 4),
    ],
)
def test_unreadable_files(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TableError, match=name) as error:
        read_table(tmp_path / name)
    assert "\n" not in str(error.value)


def test_files_without_rows(tmp_path):
    (tmp_path / "header.csv").write_text("params,tokens,loss\n")
    with pytest.raises(TableError, match="no rows"):
        read_table(tmp_path / "header.csv")
    for path, says in ((tmp_path, "a folder"), (tmp_path / "absent.csv", "no such file")):
        with pytest.raises(TableError, match=says):
            read_table(path)


# -- queries ----------------------------------------------------------------------------------


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
    ],
)
def test_queries_that_cannot_be_evaluated(query):
    with pytest.raises(TableError, match="table: ") as error:
        from_frame(GOOD).query(query)
    assert "\n" not in str(error.value).replace(query, "")


@pytest.mark.parametrize(
    "query", ["@Path('x').touch() == 0", "@pd.io.common.os.system('touch x') == 0"]
)
def test_queries_do_not_reach_the_file_system(tmp_path, monkeypatch, query):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TableError, match="cannot evaluate"):
        from_frame(GOOD).query(query)
    assert not list(tmp_path.iterdir())


def test_a_query_without_rows():
    with pytest.raises(TableError, match=r"no row satisfies 'ptpp > 1000' .4 rows."):
        from_frame(GOOD).query("ptpp > 1000")


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
