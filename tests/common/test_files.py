import json
import os
import resource
from concurrent.futures import ThreadPoolExecutor

import joblib
import pytest

from bayeslaw import FileError, load
from tests.inside import results, write_json
from tests.support import ROOT


@pytest.fixture(scope="module")
def fitted():
    return load(ROOT / "tests" / "data" / "delphi_chinchilla.nc")


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


def test_a_file_stays_the_link_or_the_pipe_that_it_was_with_its_mode(tmp_path):
    kept, link, pipe = (tmp_path / name for name in ("kept.json", "link.json", "pipe.json"))
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


def test_long_names(tmp_path, fitted):
    name = "x" * 250 + ".nc"
    fitted.save(tmp_path / name)
    assert load(tmp_path / name).count == fitted.count
    with pytest.raises(FileError, match=r"xx\.nc: cannot write: File name too long"):
        fitted.save(tmp_path / ("x" + name + "xx.nc"))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_threads_that_write_one_file_do_not_meet(tmp_path, fitted):
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(fitted.save, [tmp_path / "one.nc"] * 6))
    assert load(tmp_path / "one.nc").count == fitted.count
    assert [path.name for path in tmp_path.iterdir()] == ["one.nc"]


def test_a_full_disk_is_one_error_and_the_old_file_is_whole(tmp_path, fitted, capfd):
    path = tmp_path / "fit.nc"
    fitted.save(path)
    old, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(FileError, match=r"fit\.nc: cannot write: File too large"):
            fitted.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == old
    assert [path.name for path in tmp_path.iterdir()] == ["fit.nc"]
    assert capfd.readouterr().err == ""


def test_results_come_in_order_and_progress_is_told(capsys):
    calls = [(pow, (2, n)) for n in range(4)]
    assert list(results(calls, 1, "powers", True)) == [1, 2, 4, 8]
    assert list(results(calls, 1, "silent", False)) == [1, 2, 4, 8]
    out, err = capsys.readouterr()
    assert (out, err) == ("", "powers\n")
    with joblib.parallel_config(backend="threading"):
        assert list(results([(os.getpid, ())] * 2, 2, "here", False)) == [os.getpid()] * 2
        assert sorted(results(calls, 2, "powers", False, ordered=False)) == [1, 2, 4, 8]
