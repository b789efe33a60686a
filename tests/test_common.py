"""Files, numbers and text, what results show, and progress."""

import ast
import json
import math
import os
import re
import tomllib
from concurrent.futures import ThreadPoolExecutor

import joblib
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayeslaw import FileError, load
from bayeslaw.common import files
from bayeslaw.common.errors import argument, command_line, unknown
from bayeslaw.common.files import results, write_json
from bayeslaw.common.formatting import certain, count, digits, jsonable, percent
from bayeslaw.common.shown import Note, Shown, Table
from tests.support import ROOT, refused, saved


def test_json_is_written_with_innermost_brackets_on_one_line(tmp_path):
    strange = ["[", "a]\n  b", 'x {"y": [\n 1 ]}', "  two  ", "中"]
    document = {"text": strange, "more": {"name": "a]b\n {", "list": [1, 2]}}
    write_json(document, tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == document
    write_json(
        {"rows": [{"a": 1, "b": 2}, {"a": 3}], "x": [1.5, 2]}, tmp_path / "x.json"
    )
    lines = (tmp_path / "x.json").read_text().splitlines()
    assert [line.strip() for line in lines[2:4]] == [
        '{ "a": 1, "b": 2 },',
        '{ "a": 3 }',
    ]
    assert lines[5] == ' "x": [ 1.5, 2 ]'
    refused(FileError, "cannot write", write_json, {}, tmp_path / "absent" / "x.json")


def test_a_file_stays_the_link_or_the_pipe_that_it_was_with_its_mode(tmp_path):
    kept, link, pipe = (
        tmp_path / name for name in ("kept.json", "link.json", "pipe.json")
    )
    kept.write_text("old")
    kept.chmod(0o600)
    link.symlink_to(kept)
    write_json({"a": 1}, link)
    assert link.is_symlink()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert json.loads(kept.read_text()) == {"a": 1}
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_json({"a": 1}, pipe)
    assert json.loads(os.read(reader, 100)) == {"a": 1}
    os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize("links", [True, False])
def test_a_new_file_replaces_none(tmp_path, monkeypatch, links):
    if not links:  # as on some shared and removable file systems
        monkeypatch.setattr(
            os, "link", lambda *_: exec("raise PermissionError(1, 'no links')")
        )
    write_json({"a": 1}, path := tmp_path / "x.json", new=True)
    refused(
        FileError, "cannot write: File exists", write_json, {"a": 2}, path, new=True
    )
    assert json.loads(path.read_text()) == {"a": 1}
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_that_stays_held_is_an_error_that_names_its_mark(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST_HOLD", 0.05)

    def hold():
        with files.held(tmp_path / "x.json"):
            pass

    with files.held(tmp_path / "x.json"):
        (mark,) = tmp_path.iterdir()
        refused(FileError, f"another process is writing it.*delete {mark}", hold)
    hold()
    assert not [*tmp_path.iterdir()]
    with (
        pytest.raises(FileError, match="cannot write"),
        files.held(tmp_path / "absent" / "x.json"),
    ):
        pass


def test_long_names_and_threads(tmp_path, capfd):
    fitted, name = saved("unconverged"), "x" * 250 + ".nc"
    with ThreadPoolExecutor(6) as pool:  # they write one file, and do not meet
        list(pool.map(fitted.save, [tmp_path / name] * 6))
    assert load(tmp_path / name).count == fitted.count
    with pytest.raises(FileError, match=r"xx\.nc: cannot write: File name too long"):
        fitted.save(tmp_path / ("x" + name + "xx.nc"))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert capfd.readouterr().err == ""


def test_results_come_in_order_and_progress_is_told(capsys):
    calls = [(pow, (2, n)) for n in range(4)]
    assert list(results(calls, 1, "powers", True)) == [1, 2, 4, 8]
    assert list(results(calls, 1, "silent", False)) == [1, 2, 4, 8]
    assert capsys.readouterr() == ("", "powers\n")
    with joblib.parallel_config(backend="threading"):
        assert (
            list(results([(os.getpid, ())] * 2, 2, "here", False)) == [os.getpid()] * 2
        )
        assert sorted(results(calls, 2, "powers", False, ordered=False)) == [1, 2, 4, 8]


NUMBERS = {
    241e6: "241M", 8.1e9: "8.1B", 21624: "21.6k", 0.33: "0.33", 279: "279", 1e12: "1T",
    999.9e6: "1B", 2048: "2048", 13.6: "13.6", 999.6: "1000", 999.4: "999",
}  # fmt: skip


def test_numbers_and_names_as_people_write_them():
    assert {value: count(value) for value in NUMBERS} == NUMBERS
    shown = [certain(16.003, 0.26), certain(0.4177, 0.012), certain(1.296e11, 2.1e9)]
    assert shown == [16, 0.4, 1.3e11]  # to their Monte Carlo error
    assert [certain(4.7, 30), certain(17.0, 30)] == [5, 20]  # one digit is kept
    assert [certain(v, sd) for v, sd in ((0.65, 0), (0, 1), (np.inf, 1))] == [
        0.65,
        0,
        np.inf,
    ]
    assert [digits(0.12), digits(2), digits(math.nan)] == ["0.120", "2.00", ""]
    assert [percent(0.123), percent(math.nan)] == ["12 %", ""]
    document = {"atpp": math.inf, "losses": (1.8, 2.0)}
    assert jsonable(document) == {"atpp": None, "losses": [1.8, 2.0]}
    columns = {"loss": "final_loss", "tokens": "billions * 1e9"}
    assert (
        argument("columns", {"loss": "final_loss"}) == "columns={'loss': 'final_loss'}"
    )
    with command_line():
        text = argument("columns", columns)
    assert text == '--columns "loss=final_loss; tokens=billions * 1e9"'
    says = "unknown law 'from1'; did you mean 'form1'? Valid: dcpt, form1."
    assert unknown("law", "from1", ["form1", "dcpt"]) == says


@given(st.floats(min_value=1e3, max_value=9e14))
def test_a_written_number_is_near(value):
    text = count(value)
    scale = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.get(text[-1], 1.0)
    assert float(text.rstrip("kMBT")) * scale == pytest.approx(value, rel=6e-3)


FRAME = pd.DataFrame(
    {"loss": [2.5, np.nan], "band": ["2.4–2.6 in", "1.0–1.1 out"], "far": [0, 1]}
)


def test_text_and_html_say_the_same():
    table = Table(FRAME, "Losses: in nats", {"loss": ".2f"}, optional=["far", "band"])
    note = Note("NOT CONVERGED: R-hat 1.2 <b>", "refuse")
    shown = Shown(
        "Forecast", ["A sentence.", "", note, ["an item"], table], {"a": 1}, ["pit"]
    )
    text, html = shown.text(), shown.html()
    assert text.startswith(f"Forecast\nA sentence.\n\n{note.text}\n  an item\n\n")
    assert text.endswith("\n2.50   2.4–2.6 in    0\n      1.0–1.1 out    1")
    for words in (
        "A sentence.",
        "R-hat 1.2 &lt;b&gt;",
        "<li>an item",
        "2.50",
        "bl.plots.pit",
    ):
        assert words in html
    assert "\033[1;31mNOT CONVERGED\033[0m: R-hat" in shown.text(color=True)
    assert "far" not in shown.text(20)
    assert "band" not in shown.text(12)
    assert "loss" in shown.text(2)
    whole = Shown("Fit", ["one"], {"law": "x"}) + Shown(
        "Forecast", ["two"], {"rows": []}
    )
    assert whole.text() == "Fit\none\n\nForecast\ntwo"
    assert whole.adding(out=None).document == {"law": "x", "rows": [], "out": None}


def test_sections_and_rows_beyond_the_first():
    index = pd.MultiIndex.from_product(
        [["french", "english"], range(40)], names=["domain", "law"]
    )
    table = Table(pd.DataFrame({"x": np.arange(80.0)}, index))
    shown = Shown(blocks=[table])
    lines = shown.text().splitlines()
    assert lines[2:4] == ["french", "  0   0.000"]
    assert lines[-1] == "... and 20 more rows"
    assert "20 more rows" in shown.html()
    assert table.cells(most=None)[2] == ""


# -- the house ------------------------------------------------------------------------------------

FITS = ("laws", "model", "huber", "inference")
"""Packages that evaluate a law's formula."""
OF_PARAMETERS = {
    "checks/information.py": "derivatives by parameters",
    "derive/exponents.py": "exponents of single terms",
    "simulation/worlds.py": "true laws, without a fit",
}


def test_losses_of_a_fit_are_asked_of_it():
    """Plans, optima and figures read `fit.losses(rows)`; no one else evaluates a law."""
    package = ROOT / "bayeslaw"
    callers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "loss"
        and len(node.args) > 1
    }
    assert {path for path in callers if path.split("/")[0] not in FITS} == {
        *OF_PARAMETERS
    }


def test_planted_faults_are_about_code_and_tests_that_are_there():
    """So that none is lost when code is moved; that each is found is a test before a release."""
    planted = tomllib.loads((ROOT / "tests/faults.toml").read_text())
    for name, fault in planted.items():
        source = (ROOT / "bayeslaw" / fault["file"]).read_text()
        assert source.count(fault["text"]) == 1, name
        for test in fault["tests"].split():
            path, *names = test.split("::")
            written = (ROOT / path).read_text()
            for function in names:
                function = function.partition("[")[0]
                assert re.search(rf"(def|class) {function}\b", written), test
