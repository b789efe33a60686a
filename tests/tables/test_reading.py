import gzip
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayeslaw import TableError, TableWarning, from_frame, load_law, read_table
from tests.support import GOOD

counts = st.floats(1e4, 1e15)
rows = st.fixed_dictionaries(
    {
        "params": st.integers(10**4, 10**15).map(float),
        "tokens": counts,
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
@pytest.mark.filterwarnings("ignore:.*median loss")
def test_files_preserve_every_bit(tmp_path_factory, records, ending):
    frame = pd.DataFrame(records)
    path = tmp_path_factory.mktemp("päth ∂") / f"tàble.{ending}"
    frame.to_parquet(path) if ending == "parquet" else frame.to_csv(path, index=False)
    table = read_table(path, loss_unit="nats")
    pd.testing.assert_frame_equal(
        table.frame, frame, check_dtype=False, check_exact=True, check_column_type=False
    )
    assert table.name == str(path)
    assert table.sha256 == from_frame(frame, loss_unit="nats").sha256


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
        TableError, match=r"rows 4, 5, 6, 7 are copies of earlier rows in every column; .*run"
    ):
        from_frame(twice)
    assert len(from_frame(twice.assign(run=np.repeat(["a", "b"], 4)))) == 8


def test_two_hundred_thousand_rows(tmp_path):
    n, rng = 200_000, np.random.default_rng(0)
    frame = pd.DataFrame({"N": 1e8, "D": rng.uniform(1e9, 1e11, n), "loss": rng.uniform(2, 4, n)})
    frame.to_csv(tmp_path / "big.csv", index=False)
    start = time.process_time()
    table = read_table(tmp_path / "big.csv", where="D > 5e10")
    assert time.process_time() - start < 5
    assert 1e5 < len(table) < 1.2e5


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
    (tmp_path / "header.csv").write_text("params,tokens,loss\n")
    missing = {"header.csv": "no rows", ".": "a folder", "absent.csv": "no such file"}
    for name, says in missing.items():
        with pytest.raises(TableError, match=says):
            read_table(tmp_path / name)


CSV = (
    GOOD.drop(columns=["replay", "ptpp"])
    .assign(note=["a;b", "c\td", "e", None])
    .to_csv(index=False)
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", CSV.replace(",", ";").replace("a;b", '"a;b"').encode()),
        ("a.tsv", CSV.replace("c\td", '"c\td"').replace(",", "\t").encode()),
        ("a.csv.gz", gzip.compress(CSV.encode(), mtime=0)),
        ("a.csv", CSV.encode("utf-16")),
        ("a.csv", ("\n" + CSV.replace("\n", "\r\n")).encode("utf-8-sig")),
    ],
)
def test_tables_as_other_programs_write_them(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    table = read_table(tmp_path / name, where="params > 1e8 or note == 'c\td' or note == 'a;b'")
    assert table.loss.tolist() == GOOD["loss"].tolist()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('[{"params": 1e8, "tokens": 1e9, "loss": 3.0}]', "JSON, not CSV or Parquet"),
        ("params,tokens,loss\n1e8,1e9,3.0\n1e8,1e9,3,05\n", "line 3 has 4 fields, the header 3;"),
        ("params;tokens;loss\n1e8;1e9;3,05\n", r"'loss' is not a number; write 3.05 .*line 2: 3,"),
        ("Model Size,Training FLOP,loss\n1e8,1e18,3.0\n",
         "Perhaps .*'params': '`Model Size`', 'tokens': '`Training FLOP` / 6 / `Model Size`'}"),
        ("n_params,compute,batch_size,final_loss\n1e8,1e18,1,3.0\n",
         "{'params': 'n_params', 'loss': 'final_loss', 'tokens': 'compute / 6 / n_params'}"),
        ("params,C_flop,loss\n1e8,1e18,3.0\n", "{'tokens': 'C_flop / 6 / params'}"),
    ],
)  # fmt: skip
def test_what_a_wrong_table_is(tmp_path, content, says):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(TableError, match=says) as error:
        read_table(tmp_path / "t.csv")
    assert "\n" not in str(error.value)


WITH_GAPS = """params,tokens,loss,ptpp,domain
1e8,1e9,3.0,20,a
1e8,2e9,2.9,,b
1e8,3e9,twice,20,b
"""


@pytest.mark.parametrize("where", ["domain == 'a'", "C < 1e18", "tokens < 2e9 and loss > 1"])
def test_rows_that_a_filter_drops_need_no_numbers(tmp_path, where):
    path = tmp_path / "t.csv"
    path.write_text(WITH_GAPS.replace("twice", "2.8") if "loss" in where else WITH_GAPS)
    assert len(read_table(path, where=where)) == 1


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (None, r"'loss' is not a number .line 4: twice"),
        ("domain == 'b'", r"'loss' is not a number .line 4: twice"),
        ("tokens < 3e9", r"'ptpp' is missing .*line 3"),
        ("ptpp < 25 and tokens < 3e9", r"'ptpp' is missing .*line 3"),
        ("domain == 'c'", r"'loss' is not a number .line 4: twice"),
        ("domian == 'a'", r"'loss' is not a number .line 4: twice"),
    ],
)
def test_rows_that_a_filter_keeps_or_cannot_judge_need_them(tmp_path, where, says):
    (tmp_path / "t.csv").write_text(WITH_GAPS)
    with pytest.raises(TableError, match=says):
        read_table(tmp_path / "t.csv", where=where)


def test_a_filter_keeps_the_bases_of_its_rows_and_knows_the_unit(tmp_path):
    rows = pd.concat([GOOD, GOOD.assign(tokens=0)]).assign(base=["a", "b", "c", "d"] * 2)
    rows.astype({"loss": object}).assign(loss=[4.0, 3, 2, 1, 6, "x", "y", "z"]).to_csv(
        tmp_path / "t.csv", index=False
    )
    table = read_table(tmp_path / "t.csv", where="base == 'a' and tokens > 0")
    assert [len(table), len(table.baselines)] == [1, 1]
    GOOD.to_csv(tmp_path / "t.csv", index=False)
    bits = read_table(tmp_path / "t.csv", where="loss < 2", loss_unit="bits")
    assert bits.loss.tolist() == (GOOD["loss"] * np.log(2)).tolist()[1:]


def test_columns_are_renamed_or_computed(tmp_path):
    path = tmp_path / "export.csv"
    frame = pd.DataFrame(
        {"Model Size": ["190M", "1.3B"], "billions": [2.0, 20.0], "eval/loss": [3.1, 2.6]}
    )
    frame.assign(name=["a", "b"]).to_csv(path, index=False)
    columns = {"params": "Model Size", "tokens": "billions * 1e9", "loss": "`eval/loss`"}
    with pytest.warns(TableWarning, match=r"'params' has suffixes; 190M is read as 1.9e\+08"):
        table = read_table(path, columns=columns)
    assert table.frame[["params", "tokens", "loss"]].to_numpy().tolist() == [
        [1.9e8, 2e9, 3.1],
        [1.3e9, 2e10, 2.6],
    ]
    assert "Model Size" not in table.frame
    with pytest.raises(TableError, match=r"'loss' is neither .*'eval_loss'"):
        read_table(path, columns=columns | {"loss": "eval_loss"})
    with pytest.raises(TableError, match=r"neither.*'1 \+'"):
        read_table(path, columns={"params": "Model Size", "tokens": "1 +"})


def test_labels_of_bases_match_though_one_is_missing(tmp_path):
    bases = GOOD.assign(tokens=0, base=[0, 1, 2, 3])
    pd.concat([GOOD.assign(base=[0, 1, 2, 3]), bases]).to_csv(tmp_path / "main.csv", index=False)
    source = pd.concat([bases.assign(loss=[2.1, 2.2, 2.3, 2.4]), GOOD.iloc[:1]])
    source.to_csv(tmp_path / "source.csv", index=False)  # the base column is of floats
    table = read_table(tmp_path / "main.csv", source=tmp_path / "source.csv")
    assert table.frame["base_loss"].tolist() == [2.1, 2.2, 2.3, 2.4]
    assert table.frame["start_loss"].tolist() == GOOD["loss"].tolist()


def test_losses_in_another_unit_become_nats(tmp_path):
    frame = GOOD.assign(start_loss=4.0)
    per_bit, per_byte = np.log(2), 4.5 * np.log(2)
    units = {
        "nats": frame,
        "bits": frame.assign(loss=frame["loss"] / per_bit, start_loss=4 / per_bit),
        "perplexity": frame.assign(loss=np.exp(frame["loss"]), start_loss=np.exp(4.0)),
        "bits-per-byte": frame.assign(loss=frame["loss"] / per_byte, start_loss=4 / per_byte),
    }
    for unit, rows in units.items():
        bytes_per_token = 4.5 if unit == "bits-per-byte" else None
        table = from_frame(rows, loss_unit=unit, bytes_per_token=bytes_per_token)
        np.testing.assert_allclose(
            table.frame[["loss", "start_loss"]], frame[["loss", "start_loss"]]
        )
    for wrong, says in (
        ({"loss_unit": "bits-per-byte"}, r"bytes_per_token=.*, the mean bytes"),
        ({"loss_unit": "bits", "bytes_per_token": 4.5}, "go together"),
        ({"loss_unit": "bit"}, "did you mean 'bits'"),
    ):
        with pytest.raises(TableError, match=says):
            from_frame(frame, **wrong)


def test_losses_that_are_no_nats_are_refused(tmp_path):
    perplexities = GOOD.assign(loss=np.exp(GOOD["loss"]))
    with pytest.raises(TableError, match=r"above 12.5.*rows 0, 1, 2: 20.1.*loss_unit='perplexity'"):
        from_frame(perplexities.iloc[:3].assign(tokens=GOOD["tokens"]))
    assert from_frame(perplexities, loss_unit="nats").loss[0] == np.exp(3.0)
    for column, unit in (
        ("val_loss_bits", "bits"),
        ("eval/bpb", "bits-per-byte"),
        ("ppl", "perplexity"),
    ):
        path = tmp_path / "t.csv"
        GOOD.rename(columns={"loss": column}).to_csv(path, index=False)
        with pytest.raises(TableError, match=f"by its name; give loss_unit='{unit}', or"):
            read_table(path, columns={"loss": column})
        assert len(read_table(path, columns={"loss": column}, loss_unit="nats")) == 4
        assert len(read_table(path, columns={"loss": f"`{column}` * 0.69"})) == 4  # as it says


def test_rows_of_a_file_are_named_by_its_lines(tmp_path):
    lines = [
        "params,tokens,loss,note",
        '1e8,1e9,3.0,"two',
        'lines"',
        "",
        "1e8,2e9,,x",
        "1e8,3e9,2.8,y",
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    with pytest.raises(TableError, match=r"'loss' is missing .*drop the row \(line 5\)"):
        read_table(tmp_path / "t.csv")
    labelled = GOOD.set_axis(["a", "b", "c", "d"]).assign(loss=[3.0, -1, 2, -1])
    with pytest.raises(TableError, match=r"\(rows b, d: -1.0, -1.0\)"):
        from_frame(labelled)
    lines[4:] = ["1e8,3e9,2.8,y", "1e8,3e9,2.8,y"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    with pytest.raises(TableError, match="line 6 is a copy of earlier rows"):
        read_table(tmp_path / "t.csv")


def test_missing_columns_are_all_named_with_what_they_may_be(tmp_path):
    path = tmp_path / "t.csv"
    theirs = {"params": "N", "tokens": "D_tokens", "loss": "eval/loss"}
    GOOD.rename(columns=theirs).to_csv(path, index=False)
    says = r"columns 'tokens' \(or D\), 'loss' are missing; found: N, D_tokens, replay, ptpp, eval"
    with pytest.raises(TableError, match=says) as error:
        read_table(path)
    columns = {"tokens": "D_tokens", "loss": "`eval/loss`"}
    assert str(error.value).endswith(f" Perhaps columns={columns}.")
    assert read_table(path, columns=columns).loss.tolist() == GOOD["loss"].tolist()


def test_an_alias_can_be_replaced_by_an_expression(tmp_path):
    path = tmp_path / "t.csv"
    GOOD.rename(columns={"params": "N"}).assign(N=GOOD["params"] / 1e9).to_csv(path, index=False)
    with pytest.raises(TableError, match=r"columns={'params': 'params \* 1e9'}"):
        read_table(path)
    for formula in ("params * 1e9", "N * 1e9"):
        assert read_table(path, columns={"params": formula}).frame["params"].max() == 1e9


def test_labels_with_leading_zeros_stay_as_they_are(tmp_path):
    """001 is not 1, in a file, in one of text labels too, in a saved one and in expressions."""
    path = tmp_path / "t.csv"
    frame = GOOD.assign(run=["001", "002", "010", ""], seed=[1, 2, 3, 4], step=["0010"] * 4)
    frame.to_csv(path, index=False)
    table = read_table(path)
    assert table.frame["run"].tolist() == ["001", "002", "010", None]
    assert table.query("seed == 2 and run == '002'").loss.tolist() == [2.8]
    table.frame.to_csv(tmp_path / "again.csv", index=False)
    assert read_table(tmp_path / "again.csv").sha256 == table.sha256
    computed = read_table(path, columns={"tokens": "step * 1e9"})
    assert computed.frame["tokens"].tolist() == [1e10] * 4
    frame.assign(run=[1, 2, 3, 4], params="0100000000").to_csv(path, index=False)
    table = read_table(path, where="run > 1")
    assert table.frame["run"].tolist() == [2, 3, 4]
    assert table.frame["params"].tolist() == [1e8] * 3


@pytest.mark.parametrize("column", ["replay", "unique_tokens", "annealed"])
def test_a_base_needs_nothing_of_its_run(tmp_path, column):
    """Where tokens = 0 there is no replay, nothing new that could repeat, and nothing to anneal."""
    frame = pd.concat([GOOD, GOOD[:1].assign(tokens=0, loss=3.5)], ignore_index=True)
    frame = frame.assign(unique_tokens=1e9, annealed=1).astype({column: object})
    frame.loc[4, column] = np.nan
    frame.to_csv(tmp_path / "t.csv", index=False)
    table = read_table(tmp_path / "t.csv")
    assert table.frame[column].notna().all()
    assert table.baselines[column].isna().all()
    with pytest.raises(TableError, match=f"'{column}' is"):
        from_frame(frame.assign(tokens=1e9))
