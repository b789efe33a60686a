"""What a table must hold: columns, numbers, ranges."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bayeslaw import TableError, TableWarning, from_frame, load, load_law, read_table
from tests.inside import check_units, label_texts
from tests.support import GOOD, ROOT

COLUMNS = ("params", "tokens", "replay", "ptpp", "unique_tokens", "loss")


def spoilt(column, row, value):
    frame = GOOD.assign(unique_tokens=1e9).astype(object)
    frame.loc[row, column] = value
    return frame


def test_aliases_in_columns_and_queries():
    table = from_frame(GOOD.set_axis(["N", "D", "r", "PTPP", "loss"], axis=1))
    assert list(table.frame.columns) == [c for c in COLUMNS if c != "unique_tokens"]
    assert len(table.query("PTPP <= 31 and N > 5e8 and D < 1e10 and r < .5")) == 1
    assert len(table.query("ptpp <= 31 and params > 5e8")) == 1
    np.testing.assert_array_equal(from_frame(GOOD.astype(str)).loss, GOOD["loss"])
    with pytest.raises(TableError, match="'params' is there twice"):
        from_frame(GOOD.assign(N=GOOD["params"]))


@pytest.mark.parametrize(("column", "factor"), [("params", 1e6), ("tokens", 1e9)])
def test_counts_in_millions_or_billions_are_refused(column, factor):
    expected = f"counts are expected, not millions or billions: .*'{column} . 1e9'"
    with pytest.raises(TableError, match=expected):
        from_frame(GOOD.assign(**{column: GOOD[column] / factor}))


@pytest.mark.parametrize("column", ["params", "tokens"])
def test_counts_beyond_any_run_are_refused(column):
    says = rf"'{column}' is 1e\+\d+, more than any run has; check its unit"
    with pytest.raises(TableError, match=says):
        from_frame(GOOD.assign(**{column: GOOD[column] * 1e30}))


def test_known_columns_in_any_case():
    names = {"params": "Params", "tokens": " tokens ", "loss": "LOSS", "ptpp": " PTPP"}
    table = from_frame(GOOD.rename(columns=names).assign(Run="a", Loss_2=1))
    assert [*table.frame] == [*GOOD, "run", "Loss_2"]
    both = from_frame(GOOD.assign(Params="a label"))
    assert [*both.frame] == [*GOOD, "Params"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"tokens": 20}, "5e+07 times below the fitted rows; .*: tokens = 2e+10?"),
        ({"params": 8.1}, "params = 8.1 is .*: params = 8.1e+09?"),
        ({"params": 5000}, "not millions or billions: params = 5e+09?"),
        ({"tokens": 2e19}, "2e+09 times above the fitted rows; .*: tokens = 2e+10?"),
        ({"ptpp": 279e9}, "tokens per parameter are expected: ptpp = 279?"),
        ({"flops": 21}, "FLOPs are expected"),
    ],
)
def test_values_in_another_unit_than_the_fitted_rows_are_refused(asked, says):
    fitted = GOOD.assign(flops=6 * GOOD["params"] * GOOD["tokens"])
    with pytest.raises(TableError, match=says.replace("+", r"\+").replace("?", r"\?")):
        check_units(pd.DataFrame([asked]), "grid", fitted)


def test_toy_models_below_ten_thousand_tokens_are_forecast_as_they_are_planned():
    check_units(pd.DataFrame({"tokens": [8000.0]}), "grid", pd.DataFrame({"tokens": [2e4, 1e6]}))


def test_values_far_above_the_fitted_rows_are_suspect_and_within_three_decades_pass():
    with pytest.warns(TableWarning, match="grid: params = 1e\\+13 is 1e\\+04 times above"):
        check_units(pd.DataFrame({"params": [1e9, 1e13]}), "grid", GOOD)
    rows = pd.DataFrame({"params": [2e5, 9e11], "tokens": [0, 9e12], "ptpp": [0.1, 2e5]})
    check_units(rows, "grid", GOOD)


def test_extreme_magnitudes_survive():
    extreme = GOOD.assign(loss=[1e-300, 1e300, 1.0, 5e-324], params=[1e15, 1e4, 1, 1e-300])
    table = from_frame(extreme, loss_unit="nats")
    assert np.isfinite(np.log(table.loss)).all()
    x = load_law("form3").covariates(table.frame)
    assert all(np.isfinite(values).all() for values in x.values())


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.nan, "is missing .NaN.; fill it or drop the row"),
        (None, "is missing .NaN.; fill it or drop the row"),
        (np.inf, "is infinite"),
        (-np.inf, "is infinite"),
        ("two", "is not a number"),
        ("1,000", "is not a number; write 3.05 or 1000 without a comma"),
        ("1e9999", "is infinite"),
    ],
)
def test_values_that_are_no_numbers(column, value, says):
    with pytest.raises(TableError, match=rf"^table: column '{column}' {says} \(row 2(: \S+)?\)\.$"):
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


def test_many_bad_rows_are_counted_and_missing_columns_named():
    frame = pd.concat([GOOD] * 5, ignore_index=True).assign(loss=-1.0)
    with pytest.raises(TableError, match="rows 0, 1, 2, 3, 4 and 15 more"):
        from_frame(frame)
    for column, says in (
        ("params", "'params' .or N."),
        ("tokens", "'tokens' .or D."),
        ("loss", "'loss'"),
    ):
        with pytest.raises(TableError, match=f"column {says} is missing; found: "):
            from_frame(GOOD.drop(columns=column))


LATER = pd.Timedelta(hours=1) * np.arange(4)
LABELS = {
    "floats, one missing": pd.Series([3.0, np.nan, 12.0]),
    "nullable": pd.Series([3, None, 12], dtype="Int64"),
    "objects": pd.Series([3, None, 12], dtype=object),
    "text": pd.Series(["3", None, "12"]),
    "nullable text": pd.Series(["3", None, "12"], dtype="string"),
    "categories": pd.Series([3, None, 12]).astype("category"),
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_labels_of_every_type_are_one_text(labels):
    frame = GOOD.iloc[:3].assign(run=labels)
    table = from_frame(frame)
    for column in (frame["run"], table.frame["run"]):
        assert label_texts(column).tolist() == ["3", None, "12"]


def test_a_table_has_the_types_of_its_csv_file(tmp_path):
    frame = GOOD.assign(
        run=pd.array([1, None, 2, 2], dtype="Int64"),
        seed=pd.array([1, 2, 3, 4], dtype="Int64"),
        warm=pd.array([True, None, False, True], dtype="boolean"),
        started=pd.to_datetime(
            ["2026-01-02", None, "2026-01-03", "2026-01-04T12"], format="ISO8601"
        ),
        stage=pd.Categorical(["a", "b", None, "a"]),
        note=pd.array(["x", None, "y", "z"], dtype="string"),
    )
    frame.to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    table.frame.to_csv(tmp_path / "t.csv", index=False)
    assert read_table(tmp_path / "t.csv").sha256 == table.sha256 == from_frame(table.frame).sha256
    assert label_texts(table.frame["started"]).tolist()[:2] == ["2026-01-02", None]


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (np.array([0.1, 0.2, 0.3, 0.4], "float32"), None),
        (np.array([0.1, 0.2, 0.3, 0.4], "float16"), None),
        (np.array([0.1, 0.2, 0.3, 0.4], np.longdouble), None),
        ([[1, 2], [3], [], [4]], ["[1, 2]", "[3]", "[]", "[4]"]),
        ([{"a": 1}, {}, None, {}], ["{'a': 1}", "{}", None, "{}"]),
        ([10**30, 3, 2, 1], [str(10**30), "3", "2", "1"]),
        ([2**60 + 1, 3, 2, 1], None),
        ([1, "a", None, 2.5], ["1", "a", None, "2.5"]),
    ],
)
def test_columns_of_every_type_come_back_from_a_saved_fit(values, texts, tmp_path):
    fit = load(ROOT / "tests" / "data" / "delphi_chinchilla.nc")
    dtype = values.dtype if isinstance(values, np.ndarray) else object
    notes = pd.Series([values[i % 4] for i in range(len(fit.table))], dtype=dtype)
    table = from_frame(fit.table.frame.assign(note=notes))
    if texts:
        assert table.frame["note"].tolist()[:4] == texts
    replace(fit, table=table).save(tmp_path / "fit.nc")
    assert load(tmp_path / "fit.nc").table.sha256 == table.sha256
    table.frame.to_csv(tmp_path / "t.csv", index=False)
    assert read_table(tmp_path / "t.csv").sha256 == table.sha256


def test_text_that_no_file_can_hold_is_refused():
    note = pd.Series(["\ud800x", "y", "z", None], dtype=object)
    with pytest.raises(TableError, match=r"'note' is not valid Unicode .row 0"):
        from_frame(GOOD.assign(note=note))


def test_sizes_are_whole_where_only_rounding_says_otherwise():
    billions = np.array([1.07, 2.01, 0.0000123, 4.1])
    table = from_frame(GOOD.assign(params=billions * 1e9))
    assert table.frame["params"].tolist() == [1070000000, 2010000000, 12300, 4100000000]
    assert from_frame(GOOD.assign(params=1e9 + 0.25)).frame["params"].tolist() == [1e9 + 0.25] * 4
