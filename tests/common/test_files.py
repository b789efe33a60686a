import json
import os

import joblib
import pytest

from bayeslaw import FileError
from tests.inside import results, write_json


def test_text_with_brackets_and_line_breaks_comes_back(tmp_path):
    strange = ["[", "a]\n  b", 'x {"y": [\n 1 ]}', "  two  ", "中"]
    document = {"text": strange, "more": {"name": "a]b\n {", "list": [1, 2]}}
    write_json(document, tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == document


def test_innermost_brackets_are_one_line(tmp_path):
    write_json({"rows": [{"a": 1, "b": 2}, {"a": 3}], "x": [1.5, 2]}, tmp_path / "x.json")
    lines = (tmp_path / "x.json").read_text().splitlines()
    assert [line.strip() for line in lines[2:4]] == ['{ "a": 1, "b": 2 },', '{ "a": 3 }']
    assert lines[5] == ' "x": [ 1.5, 2 ]'


def test_a_file_that_cannot_be_written_is_one_error(tmp_path):
    with pytest.raises(FileError, match="cannot write"):
        write_json({}, tmp_path / "absent" / "x.json")


def test_results_come_in_order_and_progress_is_told(capsys):
    calls = [(pow, (2, n)) for n in range(4)]
    assert list(results(calls, 1, "powers", True)) == [1, 2, 4, 8]
    assert list(results(calls, 1, "silent", False)) == [1, 2, 4, 8]
    out, err = capsys.readouterr()
    assert (out, err) == ("", "powers\n")
    with joblib.parallel_config(backend="threading"):
        assert list(results([(os.getpid, ())] * 2, 2, "here", False)) == [os.getpid()] * 2
        assert sorted(results(calls, 2, "powers", False, ordered=False)) == [1, 2, 4, 8]
