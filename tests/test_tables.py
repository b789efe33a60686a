"""Tables of losses: files, values, queries, splits, and the hull of training rows."""

import gzip
import json
import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bayeslaw as bl
from bayeslaw import TableError, TableWarning, from_frame, grid, locate, read_table
from bayeslaw.tables.hull import displacement, in_words
from bayeslaw.tables.units import check_units
from bayeslaw.tables.verdict import judge, worst
from tests.support import DATA, GOOD, ROOT, refused, saved

# -- files ----------------------------------------------------------------------------------------

RECORD = {
    "params": st.integers(10**4, 10**15).map(float),
    "tokens": st.floats(1e4, 1e15),
    "replay": st.floats(0, 1),
    "ptpp": st.floats(1e-300, 1e300),
    "loss": st.floats(1e-300, 1e300),
    "domain": st.sampled_from(["français", "中文", 'naïve, quoted "x"', "a\nb", "Ω"]),
    "note é": st.integers(-(2**53), 2**53),
}
RECORDS = st.lists(
    st.fixed_dictionaries(RECORD), min_size=1, max_size=8, unique_by=lambda r: r["loss"]
)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(RECORDS, st.sampled_from(["csv", "parquet"]))
@pytest.mark.filterwarnings("ignore:.*median loss")
def test_files_preserve_every_bit(tmp_path_factory, records, ending):
    frame = pd.DataFrame(records)
    path = tmp_path_factory.mktemp("päth ∂") / f"tàble.{ending}"
    frame.to_parquet(path) if ending == "parquet" else frame.to_csv(path, index=False)
    table = read_table(path, loss_unit="nats")
    same = {"check_dtype": False, "check_exact": True, "check_column_type": False}
    pd.testing.assert_frame_equal(table.frame, frame, **same)
    assert table.name == str(path)
    assert table.sha256 == from_frame(frame, loss_unit="nats").sha256


PLAIN = GOOD.drop(columns=["replay", "ptpp"]).assign(note=["a;b", "c\td", "e", None])
CSV = PLAIN.to_csv(index=False)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", CSV.replace(",", ";").replace("a;b", '"a;b"').encode()),
        ("a.tsv", CSV.replace("c\td", '"c\td"').replace(",", "\t").encode()),
        ("a.csv.gz", gzip.compress(CSV.encode(), mtime=0)),
        ("a.csv", CSV.encode("utf-16")),
        ("a.csv", ("\n" + CSV.replace("\n", "\r\n")).encode("utf-8-sig")),
        ("a.jsonl", "\n\n".join(map(json.dumps, PLAIN.to_dict("records"))).encode()),
        ("a.xlsx", None),
    ],
)
def test_tables_as_other_programs_write_them(tmp_path, name, content):
    if content:
        (tmp_path / name).write_bytes(content)
    else:
        PLAIN.to_excel(tmp_path / name, index=False)
    table = read_table(
        tmp_path / name, where="params > 1e8 or note == 'c\td' or note == 'a;b'"
    )
    assert table.loss.tolist() == GOOD["loss"].tolist()


def test_excel_without_its_package(tmp_path, monkeypatch):
    path = tmp_path / "losses.xlsx"
    pd.DataFrame(GOOD).to_excel(path, index=False)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    refused(
        TableError, r"losses.xlsx: Excel needs openpyxl: pip inst", read_table, path
    )


TRAINER = {"log_history": [
    {"step": 100, "loss": 3.9}, {"step": 100, "eval_loss": 3.8}, {"step": 200, "eval_loss": 3.5},
    {"step": 200, "train_runtime": 9.0},
]}  # fmt: skip


def test_logs_of_a_trainer_become_a_table(tmp_path, monkeypatch):
    """By the code of the page, which names the file that is made here."""
    page = (ROOT / "docs" / "howto" / "exports.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    (code,) = [block for block in blocks if "read_trainer" in block]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "125M").mkdir(parents=True)
    (tmp_path / "runs" / "125M" / "trainer_state.json").write_text(json.dumps(TRAINER))
    scope: dict[str, Any] = {"bl": bl}
    with pytest.warns(TableWarning, match="loss = eval_loss"):
        exec(code, scope)
    assert scope["table"].frame["tokens"].tolist() == [100 * 524_288, 200 * 524_288]
    assert scope["table"].loss.tolist() == [3.8, 3.5]


TWO_LINES = 'params,tokens,loss,note\n1e8,1e9,3.0,"two\nlines"\n\n'
GAPS = "params,tokens,loss,ptpp,domain\n1e8,1e9,3.0,20,a\n1e8,2e9,2.9,,b\n1e8,3e9,twice,20,b\n"


UNREADABLE = {
    "empty.csv": b"", "text.parquet": b"params,tokens,loss\n", "empty.parquet": b"",
    "ragged.csv": b"params,tokens,loss\n1,2,3\n1,2,3,4,5\n", "binary.csv": bytes(range(256)) * 4,
    "broken.xlsx": b"params,tokens,loss\n", "list.jsonl": b"[1, 2]\n",
    "cut.jsonl": b'{"params": 1e8',
}  # fmt: skip
LATIN = "params,tokens,loss,domain\n1e8,1e9,3.0,fran\xe7ais\n".encode("latin-1")
WANDB = "n_params_M,tokens_B,train/loss,val/loss,tokens_per_sec\n124,2.6,3.9,3.5,1e5\n"
HINTS = {
    WANDB: r"columns={'params': 'n_params_M \* 1e6', 'tokens': 'tokens_B \* 1e9', "
           r"'loss': '`val/loss`'}\.$",
    # The name says millions, the values do not.
    WANDB.replace("124,", "124000000,"): r"{'params': 'n_params_M', 'tokens': 'tokens_B \* 1e9'",
    "size (B),tokens_bn,eval_loss\n1.3,26,2.9\n":
        r"{'params': '`size \(B\)` \* 1e9', 'tokens': 'tokens_bn \* 1e9', 'loss': 'eval_loss'}",
    "modelSizeM,_step,train/loss\n124,1e4,3\n":
        r"Perhaps columns={'params': 'modelSizeM \* 1e6', 'loss': '`train/loss`'}\. These are "
        r"training losses by their name.* Tokens are steps \(_step\) times the tokens of a step",
    "params,tokens,loss math,loss web\n1e8,1e9,2,3\n":
        "{'loss': '`loss math`'}. Each of `loss math`, `loss web` may be the losses of a domain",
    "compute,final_loss\n1e18,3\n": r"Perhaps columns={'loss': 'final_loss'}\. A ladder has FLOPs",
}  # fmt: skip
TWICE = r"'loss' is not a number .line 4: twice"


@pytest.mark.parametrize(
    ("content", "says", "where"),
    [
        *[(content, name, None) for name, content in UNREADABLE.items()],
        (LATIN, r"t.csv: not text in UTF-8 \(byte 0xe7 at 42\); save it as UTF-8", None),
        *[(empty, "t.csv: the file is empty: it has no header", None) for empty in ("", "\n\n")],
        ("params,tokens,loss\n", "no rows", None),
        ('[{"params": 1e8, "tokens": 1e9, "loss": 3.0}]', "JSON, not CSV; write one object", None),
        ("params,tokens,loss\n1,1e9,3.0\n1,1e9,3,05\n", "line 3 has 4 fields, the header 3;", None),
        ("params;tokens;loss\n1e8;1e9;3,05\n", "'loss' is not .*; write 3.05 .*line 2: 3,", None),
        ("Model Size,Training FLOP,loss\n1e8,1e18,3.0\n",
         "'params': '`Model Size`', 'tokens': '`Training FLOP` / 6 / `Model Size`'}", None),
        ("n_params,compute,batch_size,final_loss\n1e8,1e18,1,3.0\n",
         "{'params': 'n_params', 'loss': 'final_loss', 'tokens': 'compute / 6 / n_params'}", None),
        ("params,C_flop,loss\n1e8,1e18,3.0\n", "{'tokens': 'C_flop / 6 / params'}", None),
        ("N,tokens,loss\n.1,1e9,3\n1,1e9,3\n", r"columns={'params': 'params \* 1e9'}", None),
        ("params,D_tokens,eval/loss\n1e8,1e9,3\n",
         r"columns 'tokens' \(or D\), 'loss' are missing; found: params, D_tokens, eval/loss.*"
         r" Perhaps columns={'tokens': 'D_tokens', 'loss': '`eval/loss`'}\.$", None),
        *[(content, says, None) for content, says in HINTS.items()],
        # Rows are named by their lines.
        (TWO_LINES + "1e8,2e9,,x\n1e8,3e9,2.8,y\n", r"'loss' is missing .* \(line 5\)", None),
        # Rows that a filter keeps, or cannot judge, need numbers.
        *[(GAPS, TWICE, w) for w in (None, "domain == 'b'", "domain == 'c'", "domian == 'a'")],
        *[(GAPS, r"'ptpp' is missing .*line 3", where)
          for where in ("tokens < 3e9", "ptpp < 25 and tokens < 3e9")],
    ],
)  # fmt: skip
def test_files_that_are_no_tables(tmp_path, content, says, where):
    path = tmp_path / (says if says in UNREADABLE else "t.csv")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(TableError, says, read_table, path, where=where)
    for other, why in (
        (tmp_path, "a folder"),
        (tmp_path / "absent.csv", "no such file"),
    ):
        refused(TableError, why, read_table, other)


def test_a_filter_by_loss_drops_rows_without_one(tmp_path):
    """Such as steps between two evaluations; text and other missing numbers are refused still."""
    path = tmp_path / "t.csv"
    path.write_text(
        GAPS.replace("1e8,2e9,2.9,,b", "1e8,2e9,,20,b").replace("twice", "2.8")
    )
    for where in ("loss > 0", "loss == loss", "loss < 9 and tokens > 0"):
        assert read_table(path, where=where).loss.tolist() == [3.0, 2.8]
    nan = tmp_path / "nan.csv"  # as exports of logs write it
    nan.write_text(path.read_text().replace("2e9,,", "2e9,NaN,"))
    assert read_table(nan, where="loss > 0").loss.tolist() == [3.0, 2.8]
    refused(TableError, r"'loss' is missing \(NaN\); .* \(line 3", read_table, nan)
    bits = read_table(path, where="loss > 2", loss_unit="bits")
    assert bits.loss.tolist() == [3.0 * np.log(2)]
    with pytest.raises(
        TableError, match=r"drop the row, such as with where='loss > 0' \(line 3\)"
    ):
        read_table(path)
    path.write_text(GAPS)
    refused(TableError, TWICE, read_table, path, where="loss > 0")


def test_counts_in_another_unit_are_corrected_by_the_columns_of_the_file(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(WANDB)
    named = {"params": "n_params_M", "tokens": "tokens_B", "loss": "val/loss"}
    counts = named | {"params": "n_params_M * 1e6", "tokens": "tokens_B * 1e9"}
    meant = re.escape(f"columns={counts | {'loss': '`val/loss`'}}")
    refused(TableError, meant, read_table, path, columns=named)
    assert read_table(path, columns=counts).frame["tokens"].tolist() == [2.6e9]


def test_steps_and_training_losses_are_doubted_by_their_names(tmp_path):
    path = tmp_path / "t.csv"
    GOOD.assign(_step=2e4, **{"train/loss": 3.0, "val/loss": 2.9}).to_csv(
        path, index=False
    )
    with pytest.warns(
        TableWarning, match=r"'_step', which are steps by .*'_step \* 524288'"
    ):
        read_table(path, columns={"tokens": "_step"})
    with pytest.warns(
        TableWarning, match="has training losses by its name; 'val/loss' is there"
    ):
        read_table(path, columns={"loss": "train/loss"})
    read_table(path, columns={"tokens": "_step * 5e5", "loss": "val/loss"})


@pytest.mark.parametrize(
    "where", ["domain == 'a'", "C < 1e18", "tokens < 2e9 and loss > 1"]
)
def test_rows_that_a_filter_drops_need_no_numbers(tmp_path, where):
    (tmp_path / "t.csv").write_text(
        GAPS.replace("twice", "2.8") if "loss" in where else GAPS
    )
    assert len(read_table(tmp_path / "t.csv", where=where)) == 1


def test_a_filter_keeps_the_bases_of_its_rows_and_knows_the_unit(tmp_path):
    path = tmp_path / "t.csv"
    rows = pd.concat([GOOD, GOOD.assign(tokens=0)]).assign(
        base=["a", "b", "c", "d"] * 2
    )
    losses = [4.0, 3, 2, 1, 6, "x", "y", "z"]
    rows.astype({"loss": object}).assign(loss=losses).to_csv(path, index=False)
    table = read_table(path, where="base == 'a' and tokens > 0")
    assert [len(table), len(table.baselines)] == [1, 1]
    GOOD.to_csv(path, index=False)
    bits = read_table(path, where="loss < 2", loss_unit="bits")
    assert bits.loss.tolist() == (GOOD["loss"] * np.log(2)).tolist()[1:]


def test_columns_are_renamed_or_computed(tmp_path):
    path = tmp_path / "export.csv"
    given = {
        "Model Size": ["190M", "1.3B"],
        "billions": [2.0, 20.0],
        "eval/loss": [3.1, 2.6],
    }
    pd.DataFrame(given).assign(name=["a", "b"]).to_csv(path, index=False)
    columns = {
        "params": "Model Size",
        "tokens": "billions * 1e9",
        "loss": "`eval/loss`",
    }
    with pytest.warns(
        TableWarning, match=r"'params' has suffixes; 190M is read as 1.9e\+08"
    ):
        table = read_table(path, columns=columns)
    read = table.frame[["params", "tokens", "loss"]].to_numpy().tolist()
    assert read == [[1.9e8, 2e9, 3.1], [1.3e9, 2e10, 2.6]]
    assert "Model Size" not in table.frame
    with pytest.raises(TableError, match=r"'loss' is neither .*'eval_loss'"):
        read_table(path, columns=columns | {"loss": "eval_loss"})
    with pytest.raises(TableError, match=r"neither.*'1 \+'"):
        read_table(path, columns={"params": "Model Size", "tokens": "1 +"})
    # Also where an alias has the column's name.
    GOOD.rename(columns={"params": "N"}).assign(N=GOOD["params"] / 1e9).to_csv(
        path, index=False
    )
    for formula in ("params * 1e9", "N * 1e9"):
        assert (
            read_table(path, columns={"params": formula}).frame["params"].max() == 1e9
        )


def test_labels_of_bases_match_though_one_is_missing(tmp_path):
    bases = GOOD.assign(tokens=0, base=[0, 1, 2, 3])
    pd.concat([GOOD.assign(base=[0, 1, 2, 3]), bases]).to_csv(
        tmp_path / "main.csv", index=False
    )
    source = pd.concat([bases.assign(loss=[2.1, 2.2, 2.3, 2.4]), GOOD.iloc[:1]])
    source.to_csv(tmp_path / "source.csv", index=False)  # the base column is of floats
    table = read_table(tmp_path / "main.csv", source=tmp_path / "source.csv")
    assert table.frame["base_loss"].tolist() == [2.1, 2.2, 2.3, 2.4]
    assert table.frame["start_loss"].tolist() == GOOD["loss"].tolist()


def test_one_file_has_the_losses_of_bases_on_both_domains(tmp_path):
    bases = GOOD.assign(tokens=0, base=[0, 1, 2, 3])
    one = tmp_path / "one.csv"
    target, source = pd.concat([GOOD.assign(base=[0, 1, 2, 3]), bases]), bases.copy()
    source["loss"] = [2.1, 2.2, 2.3, 2.4]
    rows = [target.assign(role="target"), source.assign(role="source")]
    rows.append(
        GOOD.assign(base=[0, 1, 2, 3], role="source", loss=[2.0, 2.1, 2.2, 2.3])
    )
    pd.concat(rows).to_csv(one, index=False)
    table = read_table(one, where="role == 'target'", source=one)
    assert len(table) == 4
    assert table.frame["base_loss"].tolist() == [2.1, 2.2, 2.3, 2.4]
    assert table.frame["start_loss"].tolist() == GOOD["loss"].tolist()
    own = read_table(one, where="role == 'source'", source=one)
    assert own.frame["start_loss"].tolist() == own.frame["base_loss"].tolist()
    assert own.role == "source"
    # Of two domains without roles none is known to be the one that was pre-trained on.
    pd.concat([target.assign(domain="fr"), source.assign(domain="en")]).to_csv(
        one, index=False
    )
    says = r"several losses at tokens = 0; keep one\. If they are of two domains, add a column 'ro"
    refused(TableError, says, read_table, one, where="domain == 'fr'", source=one)


def test_the_losses_of_bases_and_the_role_agree_wherever_they_are_read():
    equal = GOOD.assign(base="a", start_loss=2.5, base_loss=2.5)
    says = "the column 'role' says target, but the bases have equal losses"
    refused(TableError, says, from_frame, equal, role="target")
    refused(TableError, says, from_frame, equal.assign(role="target"))
    assert from_frame(equal, role="source").role == "source"
    assert from_frame(equal.assign(base_loss=2.4), role="target").role == "target"
    # Both roles in one table.
    both = pd.concat(
        [equal.assign(role="source"), equal.assign(role="target", base_loss=2.4)]
    )
    assert len(from_frame(both)) == 8


def test_losses_in_another_unit_become_nats(tmp_path):
    frame, per_bit = GOOD.assign(start_loss=4.0), np.log(2)
    per_byte, losses = 4.5 * per_bit, frame[["loss", "start_loss"]]
    units = {
        "nats": losses,
        "bits": losses / per_bit,
        "perplexity": np.exp(losses),
        "bits-per-byte": losses / per_byte,
    }
    for unit, rows in units.items():
        how = {"bytes_per_token": 4.5} if unit == "bits-per-byte" else {}
        table = from_frame(frame.assign(**rows), loss_unit=unit, **how)
        np.testing.assert_allclose(table.frame[["loss", "start_loss"]], losses)
    assert from_frame(GOOD.assign(loss=1e3), loss_unit="nats").loss[0] == 1e3
    path, names = (
        tmp_path / "t.csv",
        {"val_loss_bits": "bits", "eval/bpb": "bits-per-byte"},
    )
    for column, unit in (names | {"ppl": "perplexity"}).items():
        GOOD.rename(columns={"loss": column}).to_csv(path, index=False)
        with pytest.raises(
            TableError, match=f"by its name; give loss_unit='{unit}', or"
        ):
            read_table(path, columns={"loss": column})
        assert len(read_table(path, columns={"loss": column}, loss_unit="nats")) == 4
        # As it says.
        assert len(read_table(path, columns={"loss": f"`{column}` * 0.69"})) == 4


def test_labels_with_leading_zeros_stay_as_they_are(tmp_path):
    """001 is not 1, in a file, in one of text labels too, in a saved one and in expressions."""
    path = tmp_path / "t.csv"
    frame = GOOD.assign(
        run=["001", "002", "010", ""], seed=[1, 2, 3, 4], step=["0010"] * 4
    )
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


# -- values ---------------------------------------------------------------------------------------

VALUES = {
    np.nan: "is missing .NaN.; fill it or drop the row",
    None: "is missing .NaN.; fill it or drop the row",
    np.inf: "is infinite",
    -np.inf: "is infinite",
    "two": "is not a number",
    "1,000": "is not a number; write 3.05 or 1000 without a comma",
    "1e9999": "is infinite",
}
RANGES = [
    ("loss", (0, -1), "is not positive; losses are nats per token.*"),
    ("params", (0, -1e9), "is not positive; give the number of parameters"),
    ("ptpp", (0,), "is not positive; give pre-training tokens per parameter"),
    ("tokens", (-1,), "is negative; give D in tokens, 0 = baseline"),
    ("replay", (-1e-9, 25), "lies outside .0, 1.; give a fraction, not a percentage"),
]


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        *[
            (c, value, says)
            for c in (*GOOD, "unique_tokens")
            for value, says in VALUES.items()
        ],
        *[(column, value, says) for column, values, says in RANGES for value in values],
    ],
)
def test_values_that_a_column_cannot_have(column, value, says):
    frame = GOOD.assign(unique_tokens=1e9).astype(object)
    frame.loc[2, column] = value
    if column == "loss" and pd.isna(value):
        says += ", such as with where='loss > 0'"
    with pytest.raises(
        TableError, match=rf"^table: column '{column}' {says} \(row 2(: \S+)?\)\.$"
    ):
        from_frame(frame)


BASES = GOOD.assign(tokens=0.0, loss=3.5 + GOOD["loss"])
LABELLED = GOOD.set_axis(["a", "b", "c", "d"]).assign(loss=[3.0, -1, 2, -1])
SURROGATE = pd.Series(["\ud800x", "y", "z", None], dtype=object)


def test_copies_of_rows_are_left_out_with_a_warning(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(TWO_LINES + "1e8,3e9,2.8,y\n" * 2)
    with pytest.warns(
        TableWarning, match="line 6 is a copy of earlier rows .*left out.*`run`"
    ):
        assert read_table(path).frame["tokens"].is_unique
    for copies in (pd.concat([GOOD, GOOD]), pd.concat([GOOD, BASES, BASES])):
        with pytest.warns(
            TableWarning, match="are copies of earlier rows in every column"
        ):
            table = from_frame(copies)
        assert table.frame.equals(from_frame(GOOD).frame)
    repeated = pd.concat([GOOD.assign(run="a"), GOOD.assign(run="b")])
    assert len(from_frame(repeated)) == 2 * len(GOOD)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (None, "^table: a pandas data frame is expected, not None"),
        ({"params": [1e8]}, r"is expected, not a dict: give pd.DataFrame\(rows\)\.$"),
        (from_frame(GOOD), "is expected, not a LossTable"),
        (GOOD.assign(params=1e38), r"'params' is 1e\+38, more than any run has; check its u"),
        (GOOD.assign(tokens=1e39), r"'tokens' is 1e\+39, more than any run has; check its u"),
        (GOOD.assign(N=GOOD["params"]), "'params' is there twice"),
        (GOOD.assign(tokens=0), "every row has tokens = 0"),
        (GOOD.assign(note=SURROGATE), r"'note' is not valid Unicode .row 0"),
        (GOOD.drop(columns="params"), "column 'params' .or N. is missing; found: "),
        (GOOD.drop(columns="tokens"), "column 'tokens' .or D. is missing; found: "),
        (GOOD.drop(columns="loss"), "column 'loss' is missing; found: "),
        (pd.concat([GOOD] * 5, ignore_index=True).assign(loss=-1.0), "rows 0, 1, 2, 3, 4 and 15"),
        (LABELLED, r"\(rows b, d: -1.0, -1.0\)"),
        (GOOD.assign(loss=np.exp(GOOD["loss"])).iloc[:3],
         r"above 12.5.*rows 0, 1, 2: 20.1.*loss_unit='perplexity'"),
    ],
)  # fmt: skip
def test_frames_that_are_no_tables(frame, says):
    refused(TableError, says, from_frame, frame)
    for how, why in (
        ({"loss_unit": "bits-per-byte"}, r"bytes_per_token=.*, the mean bytes"),
        ({"loss_unit": "bits", "bytes_per_token": 4.5}, "go together"),
        ({"loss_unit": "bit"}, "did you mean 'bits'"),
    ):
        refused(TableError, why, from_frame, GOOD, **how)


@pytest.mark.parametrize(
    ("params", "tokens", "loss", "means"),
    [
        (
            [70, 1600, 9700],
            [500, 3000, 8000],
            [1.3, 1.0, 0.8],
            {"params": 1e6, "tokens": 1e6},
        ),
        (
            [0.07, 1.6, 9.7],
            [0.5, 3, 8],
            [1.3, 1.0, 0.8],
            {"params": 1e9, "tokens": 1e9},
        ),
        ([1, 8, 70], [20, 160, 1400], [2.6, 2.2, 1.9], {"params": 1e9, "tokens": 1e9}),
        ([1, 8, 70], [20, 160, 1400], [9.5, 6.0, 3.7], {"params": 1e6, "tokens": 1e6}),
        (
            [44, 400, 16000],
            [900, 8000, 300000],
            [3.9, 2.9, 2.0],
            {"params": 1e6, "tokens": 1e6},
        ),
        ([1e8, 1e9, 1e10], [2, 20, 200], [3.3, 2.6, 2.1], {"tokens": 1e9}),
        ([100, 1000, 10000], [2e9, 2e10, 2e11], [3.3, 2.6, 2.1], {"params": 1e6}),
    ],
)
def test_counts_in_another_unit_are_refused_with_the_likely_one(
    params, tokens, loss, means
):
    frame = pd.DataFrame(
        {"params": params, "tokens": tokens, "loss": loss}, dtype=float
    )
    columns = {
        column: f"{column} * {unit:.0e}".replace("e+0", "e")
        for column, unit in means.items()
    }
    refused(TableError, re.escape(f"columns={columns}"), from_frame, frame)


def test_the_role_of_a_table_is_given_once():
    assert from_frame(GOOD, role="source").role == "source"
    assert (
        from_frame(GOOD.assign(role=["target", None] * 2), role="target").role
        == "target"
    )
    refused(
        TableError, r"unknown role 'own'.*source, target", from_frame, GOOD, role="own"
    )
    with pytest.raises(
        TableError, match=r"'target', but .* says 'source' \(rows? 1, 3\)"
    ):
        from_frame(GOOD.assign(role=["target", "source"] * 2), role="target")


def test_names_of_columns_in_any_case_and_their_aliases():
    table = from_frame(GOOD.set_axis(["N", "D", "r", "PTPP", "loss"], axis=1))
    assert [*table.frame] == [*GOOD]
    assert len(table.query("PTPP <= 31 and N > 5e8 and D < 1e10 and r < .5")) == 1
    assert len(table.query("ptpp <= 31 and params > 5e8")) == 1
    np.testing.assert_array_equal(from_frame(GOOD.astype(str)).loss, GOOD["loss"])
    names = {"params": "Params", "tokens": " tokens ", "loss": "LOSS", "ptpp": " PTPP"}
    table = from_frame(GOOD.rename(columns=names).assign(Run="a", Loss_2=1))
    assert [*table.frame] == [*GOOD, "run", "Loss_2"]
    assert [*from_frame(GOOD.assign(Params="a label")).frame] == [*GOOD, "Params"]


def test_tiny_losses_are_warned_of_and_nearly_whole_counts_rounded():
    with pytest.warns(
        TableWarning, match="median loss is 0.0027 .* priors of your own"
    ):
        from_frame(GOOD.assign(loss=GOOD["loss"] / 1000))
    rounded = from_frame(
        GOOD.assign(params=np.array([1.07, 2.01, 0.0000123, 4.1]) * 1e9)
    )
    assert rounded.frame["params"].tolist() == [
        1070000000,
        2010000000,
        12300,
        4100000000,
    ]
    assert (
        from_frame(GOOD.assign(params=1e9 + 0.25)).frame["params"].tolist()
        == [1e9 + 0.25] * 4
    )


def test_values_in_another_unit_than_the_fitted_rows_are_refused():
    """Far above them they are suspect; within three decades they pass."""
    fitted = GOOD.assign(flops=6 * GOOD["params"] * GOOD["tokens"])
    for column, value, says in (
        ("tokens", 20, "5e+07 times below the fitted rows; .*: tokens = 2e+10?"),
        ("params", 5000, "not millions or billions: params = 5e+09?"),
        ("tokens", 2e19, "2e+09 times above the fitted rows; .*: tokens = 2e+10?"),
        ("ptpp", 279e9, "tokens per parameter are expected: ptpp = 279?"),
        ("flops", 21, "FLOPs are expected"),
    ):
        with pytest.raises(
            TableError, match=says.replace("+", r"\+").replace("?", r"\?")
        ):
            check_units(pd.DataFrame({column: [value]}), "grid", fitted)
    with pytest.warns(
        TableWarning, match="grid: params = 1e\\+13 is 1e\\+04 times above"
    ):
        check_units(pd.DataFrame({"params": [1e9, 1e13]}), "grid", GOOD)
    rows = pd.DataFrame(
        {"params": [2e5, 9e11], "tokens": [0, 9e12], "ptpp": [0.1, 2e5]}
    )
    check_units(rows, "grid", GOOD)
    # Forecast below 10,000 tokens as it is planned.
    toy = pd.DataFrame({"tokens": [2e4, 1e6]})
    check_units(pd.DataFrame({"tokens": [8000.0]}), "grid", toy)


def test_a_table_has_the_types_of_its_csv_file(tmp_path):
    days = ["2026-01-02", None, "2026-01-03", "2026-01-04T12"]
    frame = GOOD.assign(
        run=pd.array([1, None, 2, 2], dtype="Int64"),
        seed=pd.array([1, 2, 3, 4], dtype="Int64"),
        warm=pd.array([True, None, False, True], dtype="boolean"),
        started=pd.to_datetime(days, format="ISO8601"),
        stage=pd.Categorical(["a", "b", None, "a"]),
        note=pd.array(["x", None, "y", "z"], dtype="string"),
    )
    frame.to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    table.frame.to_csv(tmp_path / "t.csv", index=False)
    assert (
        read_table(tmp_path / "t.csv").sha256
        == table.sha256
        == from_frame(table.frame).sha256
    )


def test_columns_of_every_type_come_back_from_a_saved_fit(tmp_path):
    """Objects as their text; labels and floats to the last bit."""
    fit = saved("unconverged")
    texts = {
        "lists": ([[1, 2], [3], [], [4]], ["[1, 2]", "[3]", "[]", "[4]"]),
        "dicts": ([{"a": 1}, {}, None, {}], ["{'a': 1}", "{}", None, "{}"]),
        "long": ([10**30, 3, 2, 1], [str(10**30), "3", "2", "1"]),
        "mixed": ([1, "a", None, 2.5], ["1", "a", None, "2.5"]),
        "domain": (["007", None, "1e3", '中, "x"'], ["007", None, "1e3", '中, "x"']),
        "note": (
            ["", "NA", "nan", "a"],
            ["", "NA", "nan", "a"],
        ),  # which a CSV file cannot hold
    }
    columns = {
        name: pd.Series(given * 5, dtype=object) for name, (given, _) in texts.items()
    }
    columns["large"] = pd.Series([2**60 + 1, 3, 2, 1] * 5, dtype=object)
    columns["weight"] = np.array(
        [1e-300, 0.1 + 0.2, np.nextafter(1.0, 2.0), 5e-324] * 5
    )
    for dtype in ("float16", "float32", np.longdouble):
        columns[str(dtype)] = np.array([0.1, 0.2, 0.3, 0.4] * 5, dtype)
    table = from_frame(fit.table.frame.assign(**columns), "naïve Ω")
    for name, (_, read) in texts.items():
        assert table.frame[name].tolist() == read * 5
    replace(fit, table=table).save(tmp_path / "fit.nc")
    back = bl.load(tmp_path / "fit.nc").table
    assert (back.sha256, back.name) == (table.sha256, "naïve Ω")
    assert back.frame["weight"].tolist() == columns["weight"].tolist()
    table = from_frame(table.frame.drop(columns="note"))
    table.frame.to_csv(tmp_path / "t.csv", index=False)
    assert read_table(tmp_path / "t.csv").sha256 == table.sha256


def test_rows_without_tokens_are_baselines():
    frame = pd.concat([GOOD, BASES])
    table = from_frame(frame)
    assert [len(table), len(table.baselines)] == [4, 4]
    assert (table.baselines["tokens"] == 0).all()
    np.testing.assert_array_equal(table.loss, GOOD["loss"])
    assert len(table.query("ptpp == 31").baselines) == 2
    train, test = table.split(train="ptpp <= 31")
    assert len(train.baselines) == len(test.baselines) == 4
    twice = from_frame(pd.concat([frame, BASES.assign(loss=3.7)]))  # measured again
    assert len(twice.baselines) == 8


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
    refused(TableError, f"'{column}' is", from_frame, frame.assign(tokens=1e9))


# -- queries and splits ---------------------------------------------------------------------------


WRITE = ": write comparisons, such as ptpp <= 31 and domain"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("parms > 1", "unknown column 'parms'; did you mean 'params'"),
        ("ptpp > 1000", r"no row satisfies 'ptpp > 1000' .4 rows."),
        ("ptpp > '31'", "column 'ptpp' holds numbers, and '31' is text: write it without quotes"),
        ("D <= '1e10'", "column 'D' holds numbers, and '1e10' is text: write it without"),
        *[(q, WRITE) for q in ("ptpp <= 31 and", "ptpp = 31", "if ptpp", "(ptpp > 3", "loss",
            # text as long as a memory holds
            "loss == 'a' * 200000000", "loss == ('a' or 'b') * 200000000",
            "loss == '%0200000000d' % 5", "loss in ['a' * 200000000]")],
        # Also those that would reach the file system.
        *[(q, "table: ") for q in (
            "", "nonsense > 3", "loss.max()", "True", "x = loss", "ptpp > 'a'",
            "ptpp\n> 3; loss", "import os", "__import__('os').getcwd() == ''",
            "index in @np.flatnonzero(loss)", "loss > @nowhere", "@Path('x').touch() == 0",
            "@pd.io.common.os.system('touch x') == 0", "params.values.tofile('x') or True",
            "(params > 1) & `params`.values.tofile('x')", "params[0] > 1", "[p for p in params]",
            "log(params, out=loss) > 1", "sin(params) > 1", "loss > (lambda: 1)",
            "'quoted`' + params.values.tofile('x') + '`'",
            "params > 9**9**9", "9 ** 999999999 > tokens",  # more digits than a memory holds
        )],
    ],
)  # fmt: skip
def test_queries_that_cannot_be_evaluated(query, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TableError, match=says) as error:
        from_frame(GOOD).query(query)
    assert "\n" not in str(error.value).replace(query, "")
    assert not list(tmp_path.iterdir())


def test_a_query_of_labels_against_a_number():
    table = from_frame(GOOD.assign(domain=["a", "b", "c", "3"]))
    refused(
        TableError,
        "'domain' holds text, and 3 is a number: write '3'",
        table.query,
        "domain > 3",
    )


def test_what_a_query_may_have():
    others = {"in nats": [1, 2, 3, 4], "note": ["a`b", "it's", "b", "c"], "quoted0": 1}
    table = from_frame(GOOD.assign(**others))
    for query, count in {
        "C < 7e18": 3,
        "flops / 6 >= 1e19": 1,
        "log(C) > 45 or `in nats` < 1": 1,
        "`in nats` == 2 and note in ['a`b', \"it's\"]": 1,
        "not (r > .1) & (1e8 <= N <= 1e9)": 2,
        "not (r > .1) & (10**8 <= N <= 10**9)": 2,
        "quoted0 == 1 and `in nats` == 1": 1,
    }.items():
        assert len(table.query(query)) == count
    # A column comes before an alias.
    own = from_frame(GOOD.assign(C=[1, 2, 3, 4], flops=5))
    assert len(own.query("C > 3 and flops == 5")) == 1


def test_split_parts_and_anchors():
    table = from_frame(GOOD)
    for parts in (
        table.split(train="ptpp <= 31"),
        table.split(test="ptpp > 31"),
        table.split(
            "ptpp <= 31", anchors="ptpp == 31"
        ),  # a training row already, which stays once
    ):
        assert [len(part) for part in parts] == [3, 1]
    train, test = table.split("ptpp == 15", "ptpp > 15")
    assert str(train) == "1 row of table (ptpp == 15)"
    assert str(test.query("tokens > 0")) == "3 rows of table (ptpp > 15; tokens > 0)"
    train, test = table.split(
        "ptpp == 15", "ptpp >= 31", anchors="ptpp == 31 and N < 5e8"
    )
    assert [sorted(part.frame["ptpp"]) for part in (train, test)] == [
        [15, 31],
        [31, 279],
    ]


def test_bad_splits():
    for says, *queries in (
        ("needs a train or a test query", None),
        ("needs a train or a test query", None, None, "ptpp == 31"),
        ("rows 1, 2 satisfy both", "ptpp <= 31", "ptpp >= 31"),
        ("the train set is empty", "ptpp > 1000"),
        ("the test set is empty", "ptpp > 0"),
        ("the test set is empty", "ptpp <= 31", None, "ptpp > 31"),
        ("cannot evaluate the query", "ptpp <= 31", "wrong > 3"),
    ):
        refused(TableError, says, from_frame(GOOD).split, *queries)


@pytest.mark.parametrize("column", ["domain", "role"])
def test_baselines_are_those_of_the_domains_and_roles_of_the_rows(column):
    rows = pd.concat([GOOD, GOOD.assign(tokens=0.0)]).assign(
        base=["a", "b", "c", "d"] * 2
    )
    one, two = "target", "source"
    parts = rows.assign(**{column: one}), rows.assign(**{column: two}, loss=3.5)
    table = from_frame(pd.concat(parts))
    assert table.query(f"{column} == '{one}'").baselines[column].tolist() == [one] * 4
    assert len(table.query(f"{column} == '{one}' and ptpp == 31").baselines) == 2
    assert (
        table.training(f"{column} == '{two}'").baselines["loss"].tolist() == [3.5] * 4
    )
    for part, label in zip(
        table.split(f"{column} == '{two}'"), (two, one), strict=True
    ):
        assert part.baselines[column].tolist() == [label] * 4
    unnamed = table.baselines.assign(**{column: None})
    table = replace(table, baselines=unnamed)
    assert len(table.training(f"{column} == '{two}'").baselines) == 8


# -- the hull of training rows --------------------------------------------------------------------

CORNERS = {"params": [1e8, 1e9], "tokens": [1e9, 1e11]}


@settings(deadline=None, max_examples=100)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 4),
    st.integers(1, 30),
    st.booleans(),
    st.booleans(),
)
def test_nearest_points_are_those_of_the_projection(
    seed, dims, count, rounded, collinear
):
    """A point y of a convex set is nearest to x if and only if (x - y)(p - y) <= 0 for all p."""
    rng = np.random.default_rng(seed)
    points = rng.normal(0, 3, (count, dims))
    points = np.round(points) if rounded else points
    if collinear:
        points = points[:, :1] * np.ones(dims) + np.arange(dims)
    rows = rng.normal(0, 8, (6, dims))
    for x, gap in zip(rows, displacement(points, rows), strict=True):
        assert ((points - (x - gap)) @ gap).max() <= 1e-9 * (1 + gap @ gap)
    weights = rng.dirichlet(np.ones(count), 5)
    assert np.abs(displacement(points, weights @ points)).max() < 1e-7


def test_the_distance_between_two_rows_is_no_larger_than_at_them():
    """Along one covariate; many training rows lie in one plane."""
    train = read_table(DATA / "tinycpt" / "french.csv", where="annealed and 0 < tokens")
    rows = grid(
        params=21624, tokens=np.geomspace(10752, 432640, 25), replay=0.1, ptpp=279
    )
    far = locate(train.query("ptpp <= 124 and replay < 1"), rows)["decades"]
    assert far.to_numpy() == pytest.approx(np.log10(279 / 124), abs=1e-6)


SIZES = np.geomspace(1e8, 1e10, 5)
LINE = pd.DataFrame({"params": SIZES, "tokens": 20 * SIZES})
IN, OUT, PROJECTED = "interpolation", "extrapolation", "projection"


@pytest.mark.parametrize(
    ("train", "rows", "columns", "positions", "decades"),
    [
        (grid(**CORNERS), {"params": [1e8, 3e8, 1e10, 1e7], "tokens": [1e9, 1e10, 1e11, 1e10]},
         None, [IN, IN, OUT, OUT], [0, 0, 1, 1]),
        # An empty corner, though each range contains it: 2 log10 N + log10 D = 27 is the border.
        (grid(**CORNERS).iloc[:3], {"params": [1e9], "tokens": [1e11]}, None,
         [OUT], [2 / np.sqrt(5)]),
        # Compute-optimal rows are a line.
        (LINE, {"params": [2e8, 1e9], "tokens": [4e9, 20e9 * np.e**2]}, None,
         [IN, OUT], [0, np.sqrt(2) / np.log(10)]),
        # Covariates outside the hull count by their range.
        (grid(**CORNERS, ptpp=[15, 31]), grid(params=[1e9, 1e10], tokens=1e10, ptpp=[20, 279]),
         ["params", "tokens"], [IN, OUT, OUT, OUT], [0, np.log10(9), 1, 1]),
        # Batches and rounding do not count.
        (grid(**CORNERS, ptpp=[31, 31.00001]), grid(params=1.004e9, tokens=1e10, ptpp=[30.95, 40]),
         None, [IN, PROJECTED], [0, np.log10(40 / 31)]),
        (grid(tokens=[1e9, 1e10]), grid(tokens=[1e9, 1e11]), None, [IN, OUT], [0, 1]),
    ],
)  # fmt: skip
def test_positions_and_distances(train, rows, columns, positions, decades):
    found = locate(train, pd.DataFrame(rows), columns)
    assert found["position"].tolist() == positions
    assert found["decades"].tolist() == pytest.approx(decades, abs=1e-4)
    if len(positions) == 4 and columns is None:
        assert found["beyond_params"].tolist() == pytest.approx([0, 0, 1, 1])
        assert (found["beyond_tokens"] == 0).all()
    assert (locate(from_frame(GOOD), from_frame(GOOD))["position"] == IN).all()


def test_a_covariate_that_was_never_varied_makes_a_projection():
    train = grid(**CORNERS, ptpp=31, replay=0.2)
    rows = grid(params=1e9, tokens=1e10, ptpp=[31, 279], replay=[0.2, 0.5])
    found = locate(train, rows, ["params", "tokens"])
    assert found["position"].tolist() == [IN, *[PROJECTED] * 3]
    assert found["unvaried"].tolist() == ["", "replay", "ptpp", "replay, ptpp"]
    stage = np.log10(9)
    assert found["decades"].tolist() == pytest.approx(
        [0, 0.3, stage, np.hypot(0.3, stage)]
    )
    assert in_words(found) == (
        "1 interpolation; 3 projections (up to 1 decades: replay 0.3, ptpp 0.95; the training rows "
        "have one value of replay, ptpp)"
    )
    found = locate(grid(tokens=[1e9, 1e10]), grid(tokens=[1e9, 1e11]))  # without N
    assert in_words(found) == "1 interpolation; 1 extrapolation (1 decades: tokens 1)"


def test_rows_that_cannot_be_located():
    for rows, columns, says in (
        (
            grid(params=1e9, tokens=1e9),
            ("params", "token"),
            "unknown covariate 'token'; did you",
        ),
        (grid(params=1e9), ("params", "tokens"), "column 'tokens' is missing"),
        (grid(params=1e9, tokens=0), None, "tokens > 0"),
        (grid(params=-1, tokens=1e9), None, "'params' is not positive"),
        (grid(replay=0.5), None, "no covariate"),
    ):
        refused(TableError, says, locate, grid(**CORNERS), rows, columns)


def test_the_worst_verdict_is_refused_unless_it_is_accepted():
    """N is fitted up to 1e9, and bands were tested to .96 decades beyond."""
    train = bl.grid(params=[1e8, 1e9], tokens=[1e9, 1e10])
    near, far, too_far = (
        judge(
            train, bl.grid(params=1e9 * 10**decades, tokens=1e10), ["params", "tokens"]
        )
        for decades in (0.5, 1.2, 2.5)
    )
    levels = [verdict.level for verdict in (near, far, too_far)]
    assert levels == ["ok", "no evidence", "refuse"]
    assert near.words == ""
    assert worst([near, far, too_far, far]) is too_far
    assert worst([]).level == "ok"
    far.require("plan")
    refused(
        TableError,
        "^plan: No evidence: .* or use fit.accepted",
        too_far.require,
        "plan",
    )
    accepted = too_far.accepting({"beyond-evidence"})
    assert accepted.level == "no evidence"
    assert accepted.words == too_far.evidence
    accepted.require("plan")
    assert too_far.accepting({"unconverged"}) is too_far
