"""The command line as a whole: help, version, mistakes, interruptions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bayeslaw import __version__
from bayeslaw.common.files import models_dir
from tests.cli.commands import (
    COMMANDS,
    DELPHI,
    GRID,
    OLMO,
    SPLIT,
    WITHOUT_DRAWS,
    fails,
    process,
    run,
)
from tests.support import ROOT


def test_help_imports_nothing_heavy():
    heavy = ("numpy", "pandas", "scipy", "pymc", "pytensor", "arviz", "xarray", "nutpie")
    code = f"import sys, bayeslaw.cli; print([m for m in {heavy} if m in sys.modules])"
    assert process("-c", code).stdout == "[]\n"


def test_a_plan_of_saved_fits_imports_nothing_that_draws_or_samples():
    heavy = ("matplotlib", "nutpie", "pymc", "arviz", "scipy.stats")
    code = "import sys, bayeslaw.planning.planner\nfrom bayeslaw.cli import app\n"
    code += "try: app(['plan', '--params', '1e9'])\n"
    code += f"except SystemExit: print([m for m in {heavy} if m in sys.modules])"
    done = process("-c", code)
    assert done.stdout == "[]\n"
    assert "a plan needs --target" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command):
    text = run(command, "--help").stdout
    assert f"  bayeslaw {command} " in text
    assert "--json" in text
    assert ("--seed" in text) == (command not in WITHOUT_DRAWS)


@pytest.mark.parametrize("command", ["fit", "forecast", "compare"])
def test_help_names_every_law_that_ships(command):
    text = " ".join(run(command, "--help").stdout.split())
    names = sorted(path.stem for path in models_dir().glob("*.toml"))
    assert ", ".join(names) in text.replace("- ", "")


def test_bare_command_shows_help_with_every_command():
    assert all(f"\n  {command} " in run().stdout for command in COMMANDS)


def test_version():
    assert run("--version").stdout == f"bayeslaw {__version__}\n"


GOLDEN = str(ROOT / "tests" / "data" / "delphi_chinchilla.nc")
EMPTY = str(ROOT / "tests" / "__init__.py")
HUBER = ("--law", "chinchilla", "--method", "huber")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("fit", DELPHI, "--law", "chinchila"), "did you mean 'chinchilla'?"),
        (("fit", DELPHI), "--law"),
        (("fit",), "Missing argument"),
        (("fit", "nowhere.csv", *HUBER), "no such file"),
        (("fit", str(Path(DELPHI).parent), *HUBER), "a folder"),
        (
            ("fit", DELPHI, *HUBER, "--train", "skale < 1"),
            "unknown column 'skale'; did you mean 'scale'?",
        ),
        (("fit", DELPHI, *HUBER, "--train", "scale <"), "write comparisons, such as"),
        (("fit", DELPHI, *HUBER, "--columns", "loss=loss * 20"), "--loss-unit perplexity, or"),
        (
            ("fit", DELPHI, *HUBER, "--columns", "params=params / 1e9"),
            '--columns "params=params * ',
        ),
        (("fit", DELPHI, *HUBER, "--loss-unit", "bits-per-byte"), "--bytes-per-token 4.5"),
        (("fit", DELPHI, *HUBER, "--loss-unit", "bit"), "--loss-unit"),
        (("fit", DELPHI, *HUBER, "--train", "scale"), "does not choose rows: write comparisons"),
        (("fit", DELPHI, *HUBER, "--train", "import os"), "write comparisons, such as"),
        (("fit", DELPHI, *HUBER, "--where", "N.values.tofile('x') or True"), "write comparisons"),
        (("fit", DELPHI, *HUBER, "--columns", "loss=loss.tofile('x')"), "nor an expression of"),
        (("fit", DELPHI, *HUBER, "--where", "scale < 0"), "no row satisfies"),
        (("fit", GOLDEN, *HUBER), "a saved posterior, not a table of losses"),
        (("fit", DELPHI, "--law", "chinchilla", "--priors", EMPTY), "has no priors"),
        (("fit", DELPHI, "--law", "chinchilla", "--seed", "5000000000"), "--seed"),
        (("derive", str(ROOT), "--flops", "1e21"), "a folder, not a saved posterior"),
        (("derive", DELPHI, "--flops", "1e21"), "not a readable posterior"),
        (("verify", DELPHI), "not a registered forecast"),
        (("verify", GOLDEN), "not a registered forecast"),
        (("study", "--seeds", "1", "--out", "s.csv", "--budget", "0"), "budget=0"),
        (("study", "--seeds", "1", "--out", "s.csv", "--cost", "hours"), "unknown cost"),
        (("fit", DELPHI, *HUBER, "--seed", "-1"), "--seed"),
        (("fit", DELPHI, *HUBER, "--seed", "one"), "--seed"),
        (("fit", DELPHI, *HUBER, "--draws", "100"), "--draws has no effect on a Huber fit"),
        (("fit", DELPHI, *HUBER, "--delta", "0"), "delta must be positive"),
        (("fit", DELPHI, *HUBER, "--out", "fit.nc"), "--out saves a posterior"),
        (("fit", DELPHI, "--law", "chinchilla", "--out", "/no/fit.nc"), "no folder /no"),
        (("fit", DELPHI, "--law", "chinchilla", "--out", "/"), "it is a folder"),
        (("fit", DELPHI, "--law", "chinchilla", "--out", "fit.csv"), "must end in .nc"),
        (("backtest", DELPHI, "--law", "chinchilla", "--figure", "b.doc"), "must end in .png or"),
        (("backtest", DELPHI, "--law", "chinchilla", "--cuts", "1"), "the cut 1 leaves no row"),
        (("backtest", DELPHI, "--law", "chinchilla", "--rivals", "x"), "unknown law 'x'"),
        (("report", DELPHI, *SPLIT, "--out", "page.pdf"), "must end in .html"),
        (("report", DELPHI, *SPLIT, "--compare", "form9"), "unknown law 'form9'"),
        (("report", DELPHI, *SPLIT, "--backtest", DELPHI), "not a backtest"),
        (("forecast", DELPHI, *SPLIT, "--backtest", DELPHI), "not a backtest"),
        (("forecast", DELPHI, *SPLIT, "--register", "f.json", "--register-draws", "9"), "draws=9"),
        (("score", DELPHI, *SPLIT[:4], "--grid", GRID), "no column 'loss'"),
        (("fit", DELPHI, "--law", "chinchilla", "--method", "mcmc"), "--method"),
        (("fit", DELPHI, "--law", "chinchilla", "--sampler", "pymc"), "--sampler was removed"),
        (("fit", DELPHI, "--law", "chinchilla", "--noise", "run"), "--noise was removed"),
        (("fit", DELPHI, "--law", "chinchilla", "--chains", "0"), "--chains"),
        (("fit", DELPHI, "--law", "chinchilla", "--target-accept", "1"), "--target-accept"),
        (("fit", DELPHI, "--law", "chinchilla", "--priors", "no.toml"), "no.toml: no such file"),
        (("fit", DELPHI, "--law", "my_law.toml"), "my_law.toml: no such file"),
        (
            ("forecast", DELPHI, "--law", "dcpt", *SPLIT[2:4], "--grid", "N=1e9 D=1e10 r=.1"),
            "replay 0.1, but dcpt was fitted to rows of replay 0.33 alone",
        ),
        (("fit", OLMO, "--law", "chinchilla"), "several domains"),
        (("forecast", DELPHI, "--law", "chinchilla"), 'such as --train "ptpp <= 31"'),
        (("forecast", DELPHI, *SPLIT[:5], "scale > 0"), 'satisfy both --train "scale <= 3e20"'),
        (("forecast", DELPHI, *SPLIT, "--levels", "0.5,1.5"), "1.5 is not between 0 and 1"),
        (("forecast", DELPHI, *SPLIT, "--levels", "half"), "--levels: cannot read 'half'"),
        (("forecast", DELPHI, *SPLIT, "--kind", "both"), "--kind"),
        (("forecast", DELPHI, *SPLIT[:4], "--grid", "params=1e9 tokens=0"), "tokens = 0"),
        (("forecast", DELPHI, *SPLIT[:4], "--grid", "params=1e9"), "'tokens' (or D; for"),
        (("forecast", DELPHI, *SPLIT[:4], "--grid", "params=big"), "cannot read 'params=big'"),
        (("forecast", DELPHI, *SPLIT[:4], "--grid", ""), "--grid is empty"),
        (("forecast", DELPHI, *SPLIT[:4], "--grid", "N=1 N=2"), "'N' is there twice"),
        (("forecast", DELPHI, *SPLIT[:4], "--grid", "size=1e9 D=1e9"), "Write params for size."),
        (("forecast", DELPHI, *SPLIT[:4], "--grid", "N=1e9 D=20"), "tokens = 2e+10?"),
        (("check", DELPHI, *SPLIT[:4], "--grid", "N=1e9 D=20"), "tokens = 2e+10?"),
        (("forecast", DELPHI, *SPLIT, "--grid", GRID), "--grid goes without"),
        (("forecast", DELPHI, *SPLIT[:4], "--rows", "nowhere.csv"), "no such file"),
        (("forecast", "nowhere.nc", "--grid", GRID), "no such file"),
        (("compare", DELPHI, "--train", "scale < 1e20", "--laws", "form9"), "unknown law 'form9'"),
        (("compare", DELPHI, "--train", "scale < 1e20", "--laws", ","), "--laws names no law"),
        (("compare", DELPHI), "split needs"),
        (("simulate",), "--out"),
        (("simulate", "--domain", "german", "--out", "x.csv"), "--domain"),
        (("simulate", "--out", "/no/x.csv"), "no folder /no"),
        (("forcast", DELPHI), "No such command"),
        (("fit", DELPHI, "--laww", "form3"), "--laww"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(args, words):
    assert words in fails(*args)


def test_columns_that_are_missing_are_written_as_options(tmp_path):
    path = tmp_path / "export.csv"
    path.write_text("N,D_tokens,val_loss_bits\n1e8,1e9,4\n1e9,2e9,3.5\n1e9,4e9,3.2\n")
    columns = "tokens=D_tokens; loss=val_loss_bits"
    assert f'Perhaps --columns "{columns}".' in fails("fit", path, *HUBER)
    args = ("fit", path, "--columns", columns, "--method", "huber", "--law")
    assert "give --loss-unit bits, or --loss-unit nats" in fails(*args, "chinchilla")
    text = fails(*args, "dcpt", "--loss-unit", "bits")
    assert "column 'replay' (or r; for B, C of dcpt) is missing" in text
    assert "are there: chinchilla, skaling." in text


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--law", "form3"), "--law has no effect on a saved posterior"),
        (("--train", "ptpp < 3"), "--train has no effect"),
        (("--draws", "9"), "--draws has no effect"),
        (("--grid", GRID, "--loss-unit", "bits"), "--loss-unit has no effect without --rows"),
        (("--columns", "loss=bpb"), "--columns has no effect without --rows"),
        ((), "--rows or --grid"),
    ],
)
def test_options_of_a_fit_are_refused_for_a_saved_posterior(saved, option, words):
    assert words in fails("forecast", saved, *option)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00params", b"params,tokens\n1,2\n", b"params,tokens,loss\n", b"\0"]
)
def test_bad_tables(tmp_path, content):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    assert str(path) in fails("fit", str(path), *HUBER)
    assert str(path) in fails("compare", str(path), "--train", "params > 0")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00params", b"\0"])
def test_bad_rows(saved, tmp_path, content):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    assert str(path) in fails("forecast", saved, "--rows", str(path))


def test_damaged_posteriors(saved, tmp_path):
    whole = Path(saved).read_bytes()
    path = tmp_path / "cut.nc"
    for content in (b"", b"text", whole[:1000], whole[: len(whole) // 2]):
        path.write_bytes(content)
        assert str(path) in fails("forecast", str(path), "--grid", GRID)
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])  # known by its first bytes
    assert "posterior" in fails("forecast", str(tmp_path / "cut"), "--grid", GRID)


def test_a_mistake_as_a_process():
    done = process("-m", "bayeslaw", "fit", "nowhere.csv", "--law", "form3", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: nowhere.csv: no such file.\n"


def test_interrupted(monkeypatch):
    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("bayeslaw.read_table", interrupt)
    result = run("fit", DELPHI, *HUBER, code=130)
    assert (result.stdout, result.stderr) == ("", "interrupted\n")


def test_a_terminal_without_the_characters_is_no_error(saved):
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    args = [sys.executable, "-m", "bayeslaw", "forecast", saved, "--grid", GRID]
    done = subprocess.run(args, capture_output=True, timeout=300, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"90 % band" in done.stdout
