"""The command `study`."""

import pytest

from bayeslaw.tables.reading import read_frame
from tests.cli.commands import document, fails, run


def test_study_of_a_measured_pool(measured, tmp_path):
    out = tmp_path / "study.parquet"
    args = ("study", measured, "--law", "chinchilla", "--train", "tokens < 2e10", "--out", out)
    args += ("--pool", "tokens > 2e10 and params < 2e9", "--seeds", "1", "--backend", "sequential")
    args += ("--targets", "tokens > 2e10 and params > 2e9", "--draws", "100", "--tune", "100")
    content = document(*args)
    assert content["cells"] == 6
    assert [row["design"] for row in content["designs"]] == [
        "none", "random", "cheapest", "grid", "doptimal", "variance",
    ]  # fmt: skip
    assert len(read_frame(out)) == 6
    text = run(*args).stdout
    assert all(row["design"] in text for row in content["designs"])
    assert "better" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--designs", "best"), "unknown design 'best'"),
        (("--designs", "plan"), "--planning"),
        (("--law", "form3"), "--law, --columns and --where need a TABLE"),
        (("--scheduler", "tcp://x:1"), "--backend dask"),
        (("--train", "nothing == 1"), "cannot evaluate"),
    ],
)
def test_study_mistakes_are_reported_in_one_line(args, message, tmp_path):
    assert message in fails("study", "--out", tmp_path / "x.parquet", *args)


def test_study_of_a_pool_needs_its_queries(measured, tmp_path):
    assert "--pool and --targets" in fails(
        "study", measured, "--train", "tokens > 0", "--out", tmp_path / "x.parquet"
    )
