"""The measurement script end to end, on a made-up text and models of 3000 parameters."""

import json
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest

from tests.support import DATA

HERE = DATA / "tinycpt"
sys.path.insert(0, str(HERE))

import corpus  # noqa: E402

if there := find_spec("torch"):
    import lab
    import tables
    import torch
    import train

    torch.set_num_threads(1)  # two are several times slower on models this small
    TINY, CODE = lab.RECIPES["tiny"], lab.RECIPES["tiny-python"]

trains = pytest.mark.skipif(not there, reason="trains models, which needs torch")
KEY = ["run", "atpp", "annealed"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Made-up languages of short words."""
    folder = tmp_path_factory.mktemp("text")
    for seed, domain in enumerate([*TINY.domains, CODE.target]):
        rng = np.random.default_rng(seed)
        words = ["".join(rng.choice(list("abcdefgh"), 4)) for _ in range(50)]
        for part, count in (("train", 4000), ("heldout", 500)):
            (folder / f"{domain}.{part}.bin").write_text(
                " ".join(rng.choice(words, count))
            )
    return folder


@pytest.fixture(scope="module")
def measured(text, tmp_path_factory):
    """Work folder of a measurement that nothing disturbed, made by the command line."""
    work = tmp_path_factory.mktemp("work")
    command(text, work, "measure", "--jobs", "2")
    return work


def command(text, work, *arguments):
    """Run the script and return what it prints."""
    options = ["--work", work, "--corpus", text, "--recipe", "tiny", *arguments]
    call = [sys.executable, HERE / "tinycpt.py", *options]
    return subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True).stdout


@trains
def test_every_point_is_measured_once_and_one_run_agrees(text, measured, tmp_path):
    before, rows = (
        (measured / "rows.csv").read_bytes(),
        pd.read_csv(measured / "rows.csv"),
    )
    bases = len(TINY.stages) * 2
    assert len(rows) == bases + bases * len(TINY.replays) * len(TINY.atpps) * 2
    assert not rows.duplicated(KEY).any()
    assert rows.english.between(0, np.log(256)).all()
    first, last = (rows[(rows.ptpp == p) & (rows.tokens == 0)].english for p in (1, 2))
    assert (last.to_numpy() < first.to_numpy()).all()
    command(text, measured, "measure")  # finished work is skipped
    assert (measured / "rows.csv").read_bytes() == before
    point = ["--size", "tiny", "--ptpp", "2", "--atpp", "1", "--replay", "0.25"]
    losses = json.loads(command(text, measured, "train", *point))
    same = rows.query("run == 'tiny-p2-s0-r0.25' and annealed and atpp == 1")
    assert losses["french"] == pytest.approx(same.french.item(), abs=1e-5)
    here = lab.Lab(TINY, measured, text)
    units = [lab.Unit("tiny", 0, 2, 0.25, order) for order in (0, 1, 2)]
    # Orders of the text.
    assert len({here.one(unit, 1)["french"] for unit in units}) == 3
    tables.assemble(measured / "rows.csv", tmp_path, TINY.domains)
    table = tables.read(tmp_path, TINY.domains)
    assert list(table.columns) == tables.COLUMNS
    assert tables.missing(measured / "rows.csv", TINY).empty
    assert set(tables.shapes(table).reset_index().ptpp) == set(TINY.stages)


@trains
def test_a_kill_in_the_middle_of_a_line_loses_and_repeats_nothing(
    text, measured, tmp_path
):
    here = lab.Lab(TINY, tmp_path, text)
    here.ledger.mend()
    for unit in TINY.units():
        here.do(unit)
    whole = here.ledger.path.read_bytes().splitlines(keepends=True)
    here.ledger.path.write_bytes(b"".join(whole[:10]) + whole[10][:20])  # amid a run
    here.ledger.mend()
    for unit in TINY.units():
        here.do(unit)
    again, once = (
        pd.read_csv(w / "rows.csv").sort_values(KEY) for w in (tmp_path, measured)
    )
    pd.testing.assert_frame_equal(
        again.reset_index(drop=True), once.reset_index(drop=True)
    )


@trains
def test_every_prefix_of_a_stream_holds_the_replay_share():
    text = [np.full(1000, domain, np.uint8) for domain in (0, 1)]
    for replay in (0.1, 0.25, 0.5, 1.0):
        stream = train.Stream(text, replay, (0,), context=9, batch=4)
        source = np.concatenate(
            [(stream[step][:, 0] == 0).numpy() for step in range(50)]
        )
        share = np.cumsum(source) - replay * np.arange(1, 201)
        assert (np.abs(share) < 1).all()
    french, code = lab.RECIPES["tinycpt"], lab.RECIPES["tinycode"]
    assert (french.target, code.target, french.sizes) == (
        "french",
        "python",
        code.sizes,
    )
    assert [code.params(name) for name in code.sizes] == [21624, 42804, 81796, 147816]


def test_text_from_html_roff_and_python(tmp_path):
    page = "<head><title>no</title></head><p>Caf&eacute;<b> noir</b></p><script>no</script>"
    assert corpus.from_html(page).split() == ["Café", "noir"]
    page = '.\\" no\n.TH no\n.SH NOM\n.BR open (2)\n\\fIfichier\\fP \\- «\\ ici\\ »'
    assert corpus.from_roff(page).splitlines() == [
        "NOM",
        "open(2)",
        "fichier - « ici »",
    ]
    for name in (
        "a/code.py",
        "a/tests/code.py",
        "a/test_code.py",
        "a/encodings/code.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("def f(a):\n    return a  +  1  \n" * 10)
    (page,) = corpus.modules(tmp_path)
    parts = corpus.split(iter([page]), code=True)
    assert b"def f(a):\n    return a  +  1\ndef" in parts["train"] + parts["heldout"]


def test_long_lines_of_the_held_out_text_are_not_in_the_training_text():
    lines = [
        f"line {i}: long enough to be looked for in the other part" for i in range(900)
    ]
    shared = "this notice stands in every document of the collection"
    texts = ("\n".join([shared, *lines[i : i + 9]]) for i in range(0, 891, 6))
    parts = {name: set(data.split(b"\n")) for name, data in corpus.split(texts).items()}
    assert len(parts["heldout"]) > 1
    assert not {line for line in parts["train"] & parts["heldout"] if len(line) >= 40}
