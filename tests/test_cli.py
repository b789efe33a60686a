"""Commands: their documents, what they print and write, and mistakes in one line."""

import contextlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest

import bayeslaw as bl
from bayeslaw.cli.app import ORDER
from bayeslaw.cli.fits import next_commands
from bayeslaw.common.files import models_dir
from tests import support
from tests.recorded import differences, recorded
from tests.support import DATA, SAVED, fails, run, saved, slow, small

BRIEF = "--discrepancy none --effects none --chains 2 --draws 60 --tune 150"
LIMITS = (
    "params=8.1e9 ptpp=279 max_loss=1.85 max_forgetting=.04 baseline=2.05 confidence=.8"
)
OPEN = "--accept unconverged"
WORLD = f"{OPEN} --target world_form3.nc --source world_source_form1.nc --params 8.1e9 --ptpp 279"
PLAN = f"plan {WORLD} --max-loss 1.85 --max-forgetting .04 --baseline 2.05,.001 --confidence .8"
COMMANDS = {
    "init": "init first",
    "simulate": "simulate --domain both --no-noise --out both.csv",
    "simulate french": "simulate --seed 1 --out french.csv",
    "simulate english": "simulate --domain english_arabic --seed 1 --out english.csv",
    "fit": f"fit delphi.csv --law chinchilla --train 'scale <= 3e19' {BRIEF} --out short.nc",
    "fit huber": "fit delphi.csv --law chinchilla --method huber --where 'scale <= 3e20'",
    "fit map": "fit delphi.csv --law chinchilla --method map --train 'scale <= 3e20'",
    "backtest": "backtest delphi.csv --law chinchilla --where 'scale <= 3e20' --cuts 1e20"
    f" --rivals curvature {BRIEF} --out backtest.csv --figure backtest.png",
    "forecast": "forecast delphi_chinchilla.nc --rows delphi.csv --test 'scale >= 1e21' --seed 2"
    f" {OPEN} --out bands.csv",
    "forecast grid": "forecast delphi_chinchilla.nc --kind latent --levels .8"
    f" --accept beyond-evidence {OPEN} --grid 'params=1e9,1e12 tokens=1e10,1e11'"
    " --backtest backtest.csv --figure grid.png",
    "forecast huber": "forecast french.csv --law chinchilla --train 'ptpp <= 31' --method huber"
    " --test 'ptpp == 279 and params > 3e9 and replay < .2' --figure huber.png",
    "register": "register delphi_chinchilla.nc planned.json --rows delphi.csv --seed 2"
    f" {OPEN} --where 'scale >= 1e21' --draws 100",
    "verify": "verify planned.json",
    "verify measured": "verify planned.json delphi.csv --where 'scale > 1e21'",
    "score": f"score delphi_chinchilla.nc {OPEN} --rows delphi.csv --test 'scale >= 1e21'",
    "score huber": "score french.csv --law chinchilla --method huber --bounds prior"
    " --train 'ptpp <= 31' --test 'ptpp == 279'",
    "compare": "compare french.csv --train 'ptpp <= 31' --test 'ptpp == 279' --laws form2,dcpt"
    " --source english.csv --anchors 'ptpp == 279 and params < 3e8'",
    "check": "check delphi_chinchilla.nc --rows delphi.csv --test 'scale >= 1e21'"
    " --fail-on caution",
    "check refused": "check world_form3.nc --grid 'params=8.1e9 tokens=1e10 replay=.3 ptpp=279'",
    "derive": f"derive delphi_chinchilla.nc {OPEN} --flops 1e21,1e22 --loss 2.6,.1"
    " --at 'params=1e9 tokens=2e10' --levels .5,.9",
    "derive drift": f"derive delphi_chinchilla.nc {OPEN} --flops 1e21,1e22 --drift --levels .5,.9",
    "derive two": f"derive delphi_chinchilla.nc {OPEN} --loss 2.6 --against delphi_chinchilla.nc",
    "recipes": f"recipes delphi_chinchilla.nc other.nc {OPEN} --flops 1e21,1e23",
    "recipes at": f"recipes delphi_chinchilla.nc other.nc {OPEN} --at 'params=1e9 tokens=1e10'",
    "recipes of two losses": f"recipes world_form3.nc --source world_source_form1.nc {OPEN}"
    " --at 'params=8.1e9 tokens=1e10,1e11 replay=.3,.5 ptpp=279' --limit 2.09",
    "plan": f"{PLAN} --seed 3 --at 30,.6 --max-tokens 5e10",
    "plan infeasible": f"{PLAN} --seed 3".replace("1.85", "1.2"),
    "anchors": f"anchors delphi_chinchilla.nc {OPEN} --candidates 'params=2e8,2e9 tokens=2e9,2e10'"
    " --targets 'params=3e10 tokens=1e11,1e12' --k 2",
    "report": f"report delphi_chinchilla.nc {OPEN} --rows delphi.csv --test 'scale >= 1e21'",
}
"""Command lines, run in a folder with the files of `prepare`."""
NEEDS = {
    "verify": {"planned.json": "register"},
    "verify measured": {"planned.json": "register"},
    "forecast grid": {"backtest.csv": "backtest"},
    "forecast huber": {"french.csv": "simulate french"},
    "score huber": {"french.csv": "simulate french"},
    "compare": {"french.csv": "simulate french", "english.csv": "simulate english"},
}
"""Files that a command reads, and the command that writes each."""
WRITTEN = {"init": {"first"}, "register": {"planned.json"}, "report": {"report.html"}}
"""Files that are not named by an option."""
CODES = {"fit": 1, "check": 1, "check refused": 1}
SAMPLED = ("fit", "backtest", "check", "check refused", "derive")
"""Commands that sample: the numbers depend on the processor."""
SEARCHED = ("plan", "plan infeasible", "derive drift", "derive two", "recipes")
"""Commands whose numbers are searched: equal within their Monte Carlo error."""
LONG = ("fit map", "report", "recipes", "derive two")


def prepare():
    """Write the files that the commands read into this folder."""
    for path in SAVED.glob("*.nc"):
        Path(path.name).symlink_to(path)
    shutil.copy(SAVED / "delphi_chinchilla.nc", "other.nc")
    Path("delphi.csv").symlink_to(DATA / "delphi" / "isotoken.csv")


def written_by(name):
    """Files that the options of a command name."""
    return re.findall(r"--(?:out|figure) (\S+)", COMMANDS[name])


def document(name):
    """The document of a command without what depends on the machine, and the files written."""
    for file in ("planned.json", "report.html", *written_by(name)):
        Path(file).unlink(missing_ok=True)
    for file, command in NEEDS.get(name, {}).items():
        if not Path(file).exists():
            document(command)
    before = {*os.listdir()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        printed = run(f"{COMMANDS[name]} --json", code=CODES.get(name, 0)).stdout
    found = json.loads(printed, parse_constant=pytest.fail)
    assert found.pop("version") == bl.__version__
    dated = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:+.\-Z]*", "DATE", json.dumps(found))
    found = json.loads(re.sub(r"\b[0-9a-f]{64}\b", "HASH", dated))
    return found, {*os.listdir()} - before


def as_recorded(name):
    """Compare the document of a command with the one recorded; the files written."""
    new, files = document(name)
    relative = 0.1 if name in SEARCHED else 1e-6
    found = differences(
        new, recorded("documents")[name], name, relative, name not in SAMPLED
    )
    assert not found, "\n".join(found[:20])
    return files


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    with contextlib.chdir(tmp_path_factory.mktemp("commands")):
        prepare()
        small().frame.to_csv("small.csv", index=False)
        small().frame.assign(replay=[0.1, 0.3] * 10).to_csv("mixed.csv", index=False)
        pairs = {"loss": np.linspace(1.5, 6, 20), "accuracy": np.linspace(0.9, 0.2, 20)}
        pd.DataFrame(pairs).to_csv("pairs.csv", index=False)
        pool = bl.grid(params=[2e8, 2e9], tokens=[2e9, 2e10]).assign(
            run=["a", "a", "b", "b"]
        )
        pool.to_csv("pool.csv", index=False)
        run("simulate --seed 1 --out french.csv")
        run(f"register plain.nc registered.json --grid '{GRID}' --seed 2")
        yield


@pytest.mark.parametrize("name", [slow(n) if n in LONG else n for n in COMMANDS])
def test_the_document_is_the_one_recorded_and_files_are_those_named(name):
    shutil.rmtree("first", ignore_errors=True)
    files = as_recorded(name)
    named = written_by(name)
    assert files <= {*named} | WRITTEN.get(name, set())
    assert all(Path(file).stat().st_size > 100 for file in named)


GRID = "params=1e9,1e10 tokens=1e9,1e10,1e11"
SPLIT = "--law chinchilla --train 'scale <= 3e20' --test 'scale >= 1e21'"
TRAIN = "--law chinchilla --train 'scale <= 3e20'"
HUBER = "--law chinchilla --method huber"
POOL = "--candidates 'params=2e8,2e9 tokens=2e9,2e10'"
FAR = "--targets 'params=3e10 tokens=1e11,1e12'"
LOW = "--max-loss 1.85 --max-forgetting .04"
MISTAKES = {
    "": {
        "forcast delphi.csv": "No such command",
        f"fit plain.nc {HUBER}": "a saved posterior, not a table of losses",
        f"fit small.csv {HUBER} --columns 'loss=loss.tofile(\"x\")'": "nor an expression of",
        "fit mixed.csv --law mixture": "give --role target or --role source, or a column 'role'",
        "forecast mixed.csv --law mixture --train 'tokens < 1e10'": "give --role target or",
        "compare mixed.csv --source small.csv --role target": "no effect beside --source",
        "fit small.csv --law adaptation --method huber": "pools have no Huber fit; fit one of",
        "forecast nowhere.nc --grid params=1e9": "no such file",
        "init delphi.csv/deeper": "cannot write",
        f"score delphi.csv {TRAIN} --grid '{GRID}'": "no column 'loss'",
        "check plain.nc --where 'params > 0'": "--where has no effect without --rows",
        "verify registered.json --where 'N > 0'": "--where has no effect without a table",
        "report plain.nc --grid 'params=8e9 tokens=1e10' --compare form1": "needs a table",
        "score plain.nc --accept beyond-evidence": "has no effect on this command",
        "score unconverged.nc --rows small.csv": "--accept unconverged",
        "derive unconverged.nc": "--accept unconverged",
        "report unconverged.nc --rows small.csv": "--accept unconverged",
        f"anchors unconverged.nc {POOL} {FAR} --k 1": "--accept unconverged",
        f"forecast unconverged.nc --grid '{GRID}' --out no.csv": "--accept unconverged",
        f"register unconverged.nc no.json --grid '{GRID}'": "--accept unconverged",
        f"accuracy unconverged.nc pairs.csv --grid '{GRID}'": "--accept unconverged",
        f"accuracy plain.nc pairs.csv --pairs-where 'loss > 9' --grid '{GRID}'": "no pairs satisfy",
        f"register plain.nc registered.json --grid '{GRID}'": "never replaced",
        f"plan {WORLD.removeprefix(OPEN)} {LOW} --baseline 2": "--accept unconverged",
    },
    "fit delphi.csv": {
        "": "say which law to fit: --law NAME. Laws that need only columns that are there: chinch",
        f"{HUBER} --columns 'loss=loss * 20'": "--loss-unit perplexity, or",
        f"{HUBER} --columns params": "--columns: cannot read 'params'",
        f"{HUBER} --loss-unit bits-per-byte": "--bytes-per-token 4.5",
        f"{HUBER} --draws 100": "--draws has no effect on --method huber",
        f"{HUBER} --out fit.nc": "--out saves a posterior",
        f"{TRAIN} --method map --draws 9": "--draws has no effect on --method map",
        f"{TRAIN} --bounds prior": "--bounds has no effect on --method nuts",
        f"{TRAIN} --out /no/fit.nc": "no folder /no",
        f"{TRAIN} --out /": "it is a folder",
    },
    "forecast delphi.csv": {
        "--law chinchilla": 'such as --train "ptpp <= 31"',
        f"{TRAIN} --test 'scale > 0'": 'satisfy both --train "scale <= 3e20"',
        f"{SPLIT} --levels half": "--levels: cannot read 'half'",
        f"{SPLIT} --method huber --levels 0.5,0.9": "--levels has no effect on --method huber",
        f"{SPLIT} --allow-unconverged": "--allow-unconverged is now --accept unconverged",
        f"{SPLIT} --beyond-evidence": "--beyond-evidence is now --accept beyond-evidence",
        f"{SPLIT} --accept far": "unknown name 'far'. Valid: beyond-evidence, unconverged",
        f"{SPLIT} --method map --why": "--why has no effect on --method map",
        f"{SPLIT} --grid params=1e9": "--grid goes without",
        f"{TRAIN} --grid ''": "--grid is empty",
        f"{TRAIN} --grid 'N=1 params=2'": "'params' is there twice",
        f"{TRAIN} --grid 'N=1e9 D=20'": "tokens = 2e+10?",
        "--law dcpt --train 'scale < 3e20' --grid 'N=1e9 D=1e10 r=.1'": "replay 0.33 alone",
    },
    "forecast plain.nc": {
        "": "--rows or --grid",
        "--method huber": "--method has no effect on a saved posterior",
        f"--grid '{GRID}' --columns loss=bpb": "--columns has no effect without --rows",
        "--grid 'params=1e12 tokens=2e13'": "decades of params (bands were tested to 0.96)",
    },
    "backtest delphi.csv": {
        "--law chinchilla --figure b.doc": "must end in .png or",
        "--law chinchilla --cuts many": "--cuts: cannot read",
        "--law chinchilla --rivals from_base": "from_base",
        "--law chinchilla --rivals none,hoffman": "unknown law 'hoffman'",
    },
    "compare delphi.csv": {
        "--train 'scale < 1e20' --laws ,": "--laws names no law",
        "--train 'scale < 1e20' --draws 9": "--draws has no effect on --method huber",
    },
    "derive plain.nc": {
        "--flops many": "--flops: cannot read 'many'",
        "--loss 1.75": "add --accept beyond-evidence",
        "--against other.nc": "give --loss",
        "--figure d.png": "give --flops",
        "--loss 2.2 --drift": "give --flops",
        "--search 1": "write it as 1,1000",
        "--at replay=.3": "--at needs params and tokens",
        "--flops 1e20 --at replay=.1,.3": "give one value of replay",
        "--at 'params=1e12 tokens=2e10'": "No evidence: rows lie up to 2.5 decades of params",
    },
    "recipes plain.nc": {
        "plain.nc --flops 1e21": "same file name",
        "other.nc --flops 1e21 --limit 2": "--limit, --weight and --figure need --source",
        "--source other.nc --flops 1e21": "--source needs rows",
        "other.nc --source other.nc --at 'params=1e9 tokens=1e10'": "once for each posterior",
        f"walk.nc {OPEN} --at 'params=1e12 tokens=2e10'": "No evidence: rows lie up to 2.5",
    },
    f"anchors plain.nc {POOL}": {
        FAR: "--k",
        "--k 1": "--targets",
        "--targets 'N=30 D=1e11' --k 1": "params = 3e+10?",
    },
    "plan": {
        "--max-loss 1.8": "a plan needs --target, --source, --params",
        "--example paper --params 1e9": "--params has no effect on --example",
        "--example paper --absolute": "--absolute has no effect on --example",
        "--example paper --replay nan": "replay ratios lie in [0, 1]",
        "--example paper --max-forgetting 2": "0.02 allows a rise of 2 %",
    },
    PLAN: {
        "--max-tokens 0": "--max-tokens 0: give a positive number",
        "--replay a": "--replay: cannot read 'a'",
        "--at 30": "--at: cannot read '30'",
        "--baseline 1,2,3": "give a loss, or a loss and its sd",
        "--replay 1": "no plan within the evidence: P(both) of latent losses is at most",
        "--replay 1 --losses predictive": "P(both) of predictive losses is at most",
    },
    "report small.csv": {
        "--law chinchilla --compare form9": "unknown law 'form9'",
        "--plan-source plain.nc": "--plan and --plan-source go together",
        "--plan-source plain.nc --plan 'params=8.1e9 ptpp=279'": "--plan lacks max_loss, max_forg",
        "--plan-source plain.nc --plan ptp=279": "unknown limit 'ptp'; did you mean 'ptpp'?",
        "--plan-source plain.nc --plan params=8.1X": "cannot read 'params=8.1X'; write it as",
        f"--plan-source unconverged.nc --plan '{LIMITS}'": "--accept unconverged",
    },
}
LINES = [
    (f"{start} {end}".strip(), words)
    for start, of in MISTAKES.items()
    for end, words in of.items()
]


@pytest.mark.parametrize(("line", "words"), LINES)
def test_a_mistake_is_one_line_and_code_2_and_writes_nothing(line, words):
    before = {*os.listdir()}
    assert words in fails(line)
    assert {*os.listdir()} == before


TEXTS = {
    "--version": f"bayeslaw {bl.__version__}",
    f"fit small.csv {HUBER}": "Synthetic data|6 of 6 starts agree",
    f"fit delphi.csv {TRAIN} --method huber": "On a bound: E = 0",
    f"forecast delphi.csv {SPLIT} --method huber": "10 rows|point fit, nats per token",
    f"forecast plain.nc --grid '{GRID}' --levels .8": "80 % band|interpolation",
    "forecast plain.nc --grid 'params=1e12 tokens=2e13' --accept beyond-evidence": "No evidence",
    f"forecast unconverged.nc --grid '{GRID}' {OPEN}": "NOT CONVERGED",
    "score plain.nc --rows small.csv": "Synthetic data|winkler_90|coverage_90",
    "verify registered.json": "Synthetic data|unchanged since it was registered",
    "verify registered.json small.csv --where 'params < 2e9'": "No CRPS|Not forecast: rows 0, 1"
    "|missing: rows 3, 4, 5|Of 3 measured losses,",
    "forecast plain.nc --grid 'params=1e9 tokens=2e10' --why": "Where its uncertainty comes from",
    "derive plain.nc --flops 1e21 --at 'params=1e9 tokens=2e10'": "Compute-optimal split"
    "|Local exponents|reducible_N|searched 0.04942 to 6745 tokens per parameter",
    "derive plain.nc --flops 1e22 --search 500,1e4": "100 % on bound|further: --search 50,10000",
    "derive plain.nc --loss 1.75 --accept beyond-evidence": "not determined",
    f"recipes plain.nc other.nc --at 'params=1e9 tokens=2e10' {OPEN}": "has the lowest loss",
    f"anchors plain.nc {POOL} {FAR} --k 3 --seed 4": "drawn at random: no criterion gave better"
    " forecasts of measured losses; seed 4",
    f"anchors plain.nc {POOL} {FAR} --k 2 --where 'params == 2e9'": "All of one size",
    "anchors plain.nc --candidates pool.csv --k 2 "
    + FAR: "2 further rows are checkpoints of",
    "compare french.csv --train 'ptpp <= 31' --test 'ptpp == 279' --laws form2,dcpt": "form2"
    "|Synthetic data|dcpt (transfer)|dcpt (oracle)|rmse|scored",
    "score french.csv --law form2 --method huber --train 'ptpp <= 31' --test 'ptpp == 279'": "% at"
    " most",
    f"{PLAN} --at 30,.6 --max-tokens 5e10 --seed 3 --figure plan.png --force": "Synthetic"
    " data|Plan: feasible|P(forgetting)|P(both) on held-out draws|Monte Carlo error: ATPP ± "
    "|bayeslaw check FIT --grid|fails with probability|yours"
    "|Under a cap of 50B tokens|Smallest budget by confidence|Sensitivity to the limits"
    "|Where its uncertainty comes from",
    f"plan {WORLD} --max-loss 1.85 --max-forgetting .1 --absolute --baseline 2.05 --replay .3"
    " --max-flops 2e21": "Under a cap of|at most 0.1 nats",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("line", TEXTS)
def test_text_says_what_a_reader_must_know_in_eighty_columns(line):
    text = run(line).stdout
    flat = " ".join(text.split())
    assert not [words for words in TEXTS[line].split("|") if words not in flat]
    assert max(map(len, text.splitlines())) <= 80


def test_help_has_an_example_of_each_command():
    laws = ", ".join(sorted(path.stem for path in models_dir().glob("*.toml")))
    assert laws in " ".join(run("fit --help").stdout.split()).replace("- ", "")
    for command in ORDER:
        assert f"\n  {command} " in run().stdout
        text = run(command, "--help").stdout
        assert f"  bayeslaw {command} " in text
        assert "--json" in text
        without_draws = {"verify", "derive", "recipes", "init"}
        assert ("--seed" in text) == (command not in without_draws)


PROCESS = """
import sys, bayeslaw.cli
def loaded(names): print([name for name in names.split() if name in sys.modules])
def main(*args):
    sys.argv = ["bayeslaw", *args]
    try: bayeslaw.cli.main()
    except SystemExit as error: print(error.code)
main("init", "\u03a9")
main("fit", "--help")
loaded("numpy pandas scipy pymc pytensor arviz xarray nutpie")
bayeslaw.load("plain.nc")
main("forecast", "plain.nc", "--grid", "params=1e9 tokens=1e10")
main("derive", "plain.nc", "--flops", "1e20")
loaded("matplotlib bayeslaw.plots numba nutpie pymc arviz arviz_stats scipy.stats")
import bayeslaw.planning.planner
main("plan", "--params", "1e9")
loaded("matplotlib nutpie pymc arviz scipy.stats")
"""


def test_a_process_imports_what_it_needs_and_writes_to_a_terminal_of_few_characters():
    command, env = (
        [sys.executable, "-c", PROCESS],
        os.environ | {"PYTHONIOENCODING": "latin-1"},
    )
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    ends = [
        line for line in done.stdout.splitlines() if line.isdigit() or line[:1] == "["
    ]
    assert ends == ["0", "0", "[]", "0", "0", "[]", "2", "[]"]
    assert "Draws of each chain; by default 600 to 8000" in done.stdout
    assert "Draws of each chain; by default 600 to 8000" in bl.fit.__doc__
    assert "wrote ?/losses.csv" in done.stdout
    assert done.stderr.startswith("error: a plan needs --target, --source, --max-loss")
    assert done.stderr.count("\n") == 1


def result(line):
    """The document that a command prints."""
    return json.loads(run(f"{line} --json").stdout)


# -- verdicts --------------------------------------------------------------------------------------


def test_check_says_first_that_the_bands_failed():
    rows = bl.grid(params=[4e9, 5e9, 6e9], tokens=[1e10, 1e11])
    for name, factor in (("missed", 1.05), ("held", 1)):
        loss = factor * saved("plain").predict(rows)
        rows.assign(loss=loss).to_csv(f"{name}.csv", index=False)
    text = run("check plain.nc --rows missed.csv", code=1).stdout
    assert "REFUSE: the bands failed here: the 90 % band holds 0 of 6 losses" in text
    run("check plain.nc --rows held.csv")


@pytest.mark.parametrize(
    ("replay", "code", "words"),
    [
        (".2,.3,.4", 0, "Plan: feasible: "),
        (".8", 1, "Plan: feasible, beyond the evidence: "),
        (".8 --accept beyond-evidence", 0, "Plan: feasible, beyond the evidence: "),
    ],
)
def test_the_exit_code_and_the_first_line_of_a_plan_have_the_verdict(
    replay, code, words
):
    printed = run(f"{PLAN} --replay {replay}", code=code)
    lines = [
        line for line in printed.stdout.splitlines() if not line.startswith("Synthetic")
    ]
    assert lines[0].startswith(words)
    assert printed.stdout.count("No evidence") == ("beyond" in words)
    assert printed.stderr == ""


def test_commands_that_come_next_run_as_they_are():
    check, forecast = next_commands(saved("plain"), Path("plain.nc"))
    assert check.startswith("next: bayeslaw check plain.nc --grid ")
    run(forecast.removeprefix("then: bayeslaw "))
    # The other covariates of twice the largest model are its own: not the PTPP of a small one.
    fit = saved("world_form3")
    frame = fit.table.frame.query("params < 1e9 or ptpp == 15")
    accepted = replace(fit, table=bl.from_frame(frame)).accepted("unconverged")
    passed = replace(accepted, convergence=saved("plain").convergence)
    largest = frame[frame["params"] == frame["params"].max()]
    line = next_commands(passed, Path("fit.nc"))[0]
    assert f"params={2 * largest['params'].iloc[0]:.3g}" in line
    assert "ptpp=15" in line


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_report_of_a_table_compares_laws_and_plans():
    split = "--train 'scale <= 3e19' --test 'scale >= 1e21' --compare chinchilla"
    line = f"report delphi.csv --law chinchilla {split} --compare-method nuts {BRIEF} {OPEN} --out"
    assert "laws" in result(f"{line} laws.html")["sections"]
    assert "--train &#39;scale &lt;= 3e19&#39;" in Path("laws.html").read_text("utf-8")
    grid = "--grid 'params=8.1e9 ptpp=279 replay=.3 tokens=1e10'"
    line = (
        f"report world_form3.nc {grid} {OPEN} --plan-source world_source_form1.nc --out"
    )
    found = result(f"{line} plan.html --plan '{LIMITS} losses=predictive'")
    assert (found["plan"]["confidence"], found["plan"]["losses"]) == (0.8, "predictive")
    assert any(
        "source posterior that has not converged" in text for text in found["warnings"]
    )
    assert f"<td>{found['plan']['atpp']:#.3g}</td>" in Path("plan.html").read_text(
        "utf-8"
    )


# -- files -----------------------------------------------------------------------------------------


def test_init_writes_an_analysis_and_overwrites_nothing():
    losses, script, notebook = result("init new/first")["files"]
    assert len(bl.read_table(losses)) == len(bl.example_table())
    read = nbformat.read(notebook, as_version=4)
    nbformat.validate(read)
    code = [cell["source"] for cell in read["cells"] if cell["cell_type"] == "code"]
    compile("\n".join(code), "analysis", "exec")
    texts = [
        "\n".join(cell["source"] for cell in read["cells"]),
        Path(script).read_text(),
    ]
    of_notebook, of_script = (
        re.sub("(?m)^(# ?)+(%%.*)?", "", text).split() for text in texts
    )
    assert of_notebook == of_script
    Path(script).write_text("mine")
    assert "losses.csv exists" in fails("init new/first")
    assert Path(script).read_text() == "mine"


@pytest.mark.slow
def test_the_script_of_init_runs(tmp_path):
    run("init", tmp_path)
    command = [sys.executable, "analysis.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "28 runs to fit, 8 to forecast" in done.stdout
    assert (tmp_path / "forecast.png").stat().st_size > 10_000


def test_a_fit_that_cannot_be_saved_is_printed(tmp_path, monkeypatch):
    fitted, out = saved("delphi_chinchilla"), tmp_path / "fit.nc"
    monkeypatch.setattr("bayeslaw.cli.sources.fit_table", lambda *_: fitted)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        printed = run(f"fit delphi.csv {TRAIN} --out {out}", code=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "R-hat" in printed.stdout
    assert printed.stderr == f"error: {out}: cannot write: File too large.\n"
    assert not list(tmp_path.iterdir())


def test_bands_replace_an_old_file_and_carry_a_failed_check():
    for name in ("bands.parquet", "bands.csv"):
        Path(name).write_text("old")
        printed = run(
            f"forecast unconverged.nc --grid '{GRID}' --out {name} {OPEN} --force"
        )
        assert printed.stderr == f"wrote {name}\n"
    frame = pd.read_csv("bands.csv")
    pd.testing.assert_frame_equal(frame, pd.read_parquet("bands.parquet"))
    assert "R-hat" in frame["unconverged"][0]


def test_no_file_is_replaced_without_force_and_an_input_never():
    whole = small().frame.to_csv(index=False)
    Path("precious.csv").write_text(whole)
    Path("soft.csv").symlink_to("precious.csv")
    os.link("precious.csv", "hard.csv")
    Path("drawn.png").write_text("old")
    Path("report.html").write_text("old")
    rows = "forecast plain.nc --rows precious.csv"
    fit = f"precious.csv {TRAIN} --grid '{GRID}'"
    reads = {
        **{
            f"{rows} --out {name}": "reads"
            for name in ("soft.csv", "hard.csv", "./precious.csv")
        },
        f"{rows} --out {Path('precious.csv').absolute()} --force": "reads",
        f"forecast {fit} --out precious.csv": "--out would replace precious.csv",
        f"anchors plain.nc --candidates precious.csv {FAR} --k 1 --out precious.csv": "reads",
        "derive plain.nc --flops 1e21 --out precious.csv": "precious.csv exists",
        f"{rows} --figure drawn.png": "replace it with --force",
        "simulate --out precious.csv": "precious.csv exists",
        "backtest precious.csv --law chinchilla --out hard.csv --force": "replace precious.csv",
        "report plain.nc --rows precious.csv": "report.html exists",
    }
    for line, words in reads.items():
        assert words in fails(line)
    assert Path("precious.csv").read_text() == whole
    for name in ("hard.csv", "soft.csv", "precious.csv", "drawn.png", "report.html"):
        Path(name).unlink()


def test_a_damaged_posterior_is_known_by_its_first_bytes():
    whole = Path("plain.nc").read_bytes()
    for name in ("cut.nc", "cut"):
        Path(name).write_bytes(whole[: len(whole) // 2])
        assert f"{name}: not a readable posterior" in fails(
            f"forecast {name} --grid '{GRID}'"
        )


def test_columns_that_are_missing_are_written_as_options():
    Path("export.csv").write_text(
        "N,D_tokens,val_loss_bits\n1e8,1e9,4\n1e9,2e9,3.5\n1e9,4e9,3.2\n"
    )
    columns = "tokens=D_tokens; loss=val_loss_bits"
    assert f'Perhaps --columns "{columns}".' in fails(f"fit export.csv {HUBER}")
    line = f"fit export.csv --method huber --columns '{columns}' --law"
    assert "give --loss-unit bits, or --loss-unit nats" in fails(f"{line} chinchilla")
    message = fails(f"{line} dcpt --loss-unit bits")
    assert "column 'replay' (or r; for B, C of dcpt) is missing" in message
    assert "are there: chinchilla, skaling." in message


def test_a_warning_is_one_line_on_stderr_and_in_the_document():
    line = "forecast plain.nc --grid 'params=1e13 tokens=1e10' --accept beyond-evidence"
    [text] = [text for text in result(line)["warnings"] if "counts" in text]
    assert "params = 1e+13 is 3.3e+03 times above the fitted rows" in text
    assert run(line).stderr.count(text) == 1
    Path("rows.csv").write_text("params,tokens,loss\n1e9,1e9,3\n1e9,0,4\n")
    printed = run("forecast plain.nc --rows rows.csv --json")
    assert len(json.loads(printed.stdout)["rows"]) == 1
    assert "rows with tokens = 0 are baselines" in printed.stderr


# -- rows ------------------------------------------------------------------------------------------


def test_rows_without_losses_are_renamed_and_queried():
    Path("rows.csv").write_text("N,D\n1e9,1e9\n1e9,2e9\n2e9,2e9\n")
    rows = result("forecast plain.nc --rows rows.csv --test 'D == 2e9'")["rows"]
    assert [row["params"] for row in rows] == [1e9, 2e9]
    Path("rows.csv").write_text("size,D,start_loss\n1,1e9,3\n1,2e9,3\n2,2e9,3\n")
    line = "forecast plain.nc --rows rows.csv --test 'D == 2e9' --columns 'params=size * 1e9'"
    renamed = result(f"{line} --loss-unit bits")["rows"]
    assert [row["median"] for row in renamed] == [row["median"] for row in rows]
    assert renamed[0]["start_loss"] == pytest.approx(3 * np.log(2))


def test_columns_of_a_table_are_those_of_the_rows_too():
    frame = small().frame.rename(columns={"params": "size", "loss": "eval loss"})
    frame.to_csv("theirs.csv", index=False)
    frame.rename(columns={"size": "N"}).drop(columns="eval loss").to_csv(
        "ours.csv", index=False
    )
    line = f"forecast theirs.csv {HUBER} --columns 'params=size; loss=eval loss' --rows"
    same, own = (
        result(f"{line} {rows}")["rows"] for rows in ("theirs.csv", "ours.csv")
    )
    assert [row["loss"] for row in same] == frame["eval loss"].tolist()
    assert [row["prediction"] for row in own] == [row["prediction"] for row in same]


def test_labels_of_a_grid_are_text():
    fitted = support.with_effects(
        saved("plain"), "run", ["001", "002", "003", "004"] * 5, 0.05
    )
    fitted.save("labelled.nc")
    found = result("forecast labelled.nc --grid 'params=1e9 tokens=1e10 run=003,009'")[
        "rows"
    ]
    wanted = fitted.forecast(bl.grid(params=1e9, tokens=1e10, run=["003", "009"]))
    assert [row["median"] for row in found] == wanted.median.tolist()


def test_accuracy_of_pairs_has_the_unit_of_the_losses():
    loss, found = np.linspace(1.5, 6, 20), []
    pairs = pd.DataFrame(
        {"loss": loss, "accuracy": 1 / (1 + np.exp(loss - 3)), "task": "one"}
    )
    pairs = pd.concat([pairs, pairs.assign(task="two")])
    rows = pd.DataFrame({"params": [1e9], "tokens": [1e10], "loss": [2.7]})
    for unit, factor in (("nats", 1.0), ("bits", 1 / np.log(2))):
        for name, table in (("pairs", pairs), ("rows", rows)):
            table.assign(loss=factor * table["loss"]).to_csv(f"{name}.csv", index=False)
        for which in ("--rows rows.csv", "--grid 'params=1e9 tokens=1e10'"):
            line = f"accuracy plain.nc pairs.csv {which} --loss-unit {unit}"
            line += " --out accuracy.csv --force"
            numbers = result(f"{line} --pairs-where 'task == \"two\"'")["numbers"]
            found.append(numbers[0]["median"])
            assert len(numbers) == 1
    assert found == pytest.approx([found[0]] * 4)
    assert pd.read_csv("accuracy.csv")["median"].tolist() == pytest.approx(found[:1])


def test_a_registered_forecast_is_the_one_shown_and_an_edited_row_is_named():
    shown = result(f"register plain.nc again.json --grid '{GRID}' --seed 2 --draws 100")
    stored = json.loads(Path("again.json").read_text())
    assert shown["sha256"] == stored["sha256"]
    assert (stored["forecast"]["seed"], len(stored["forecast"]["draws"][0])) == (2, 100)
    for new, kept in zip(shown["rows"], stored["forecast"]["rows"], strict=True):
        assert {n: kept[n] for n in new.keys() & kept.keys()}.items() <= new.items()
        assert {"median", "lower_50", "upper_90"} <= new.keys() & kept.keys()
    bits = " --columns 'loss=loss / log(2)' --loss-unit bits"
    scores = [
        result(f"verify again.json small.csv{unit}")["scores"] for unit in ("", bits)
    ]
    assert scores[1] == pytest.approx(scores[0])
    assert "2 results in the file" in run("verify again.json").stdout
    stored["forecast"]["rows"][1]["upper_90"] *= 1.1
    Path("again.json").write_text(json.dumps(stored))
    assert "edited after it was registered: row 1. " in fails(
        "verify again.json small.csv"
    )


# -- a run that goes on ----------------------------------------------------------------------------

RUNNING = f"running finished.csv run.csv {HUBER} --accept beyond-evidence"


def going_on():
    """Ends and checkpoints of finished runs, and the checkpoints of one of 3e9 parameters."""
    rows = bl.grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[1e9, 3e9, 1e10, 3e10])
    seeds = {"sigma": 0.003, "seed": 1}
    frame = bl.simulate("chinchilla", support.CHINCHILLA, rows, **seeds).frame
    frame = pd.concat(
        [frame.assign(annealed=0, loss=1.03 * frame["loss"]), frame.assign(annealed=1)]
    )
    frame = frame.assign(run=frame["params"].map("{:.0e}".format)).drop(
        columns="synthetic"
    )
    large = frame["params"] == 3e9
    return frame[~large], frame[
        large & (frame["annealed"] == 0) & (frame["tokens"] < 3e10)
    ]


def write(**frames):
    for name, frame in frames.items():
        frame.to_csv(f"{name}.csv", index=False)


def test_a_run_that_goes_on_is_fitted_with_the_table():
    """Its end has the size and the label of the run, and is annealed."""
    finished, run = going_on()
    end = pd.DataFrame({"params": [3e9], "tokens": 1e11, "run": "3e+09", "annealed": 1})
    write(finished=finished, run=run, all=pd.concat([finished, run]), end=end)
    whole = result(f"forecast all.csv {HUBER} --accept beyond-evidence --rows end.csv")[
        "rows"
    ]
    assert result(f"{RUNNING} --grid tokens=1e11")["rows"] == whole
    # The run is of the table's role, unless it says another one.
    write(finished=finished.assign(role="target"))
    assert result(f"{RUNNING} --grid tokens=1e11")["rows"][0]["prediction"] == (
        pytest.approx(whole[0]["prediction"])
    )
    write(run=run.assign(role="source"))
    says = "run.csv: rows of role source, but the law was fitted to target"
    assert says in fails(f"{RUNNING} --grid tokens=1e11")
    write(finished=finished, run=run)
    alone = f"forecast finished.csv {HUBER} --accept beyond-evidence"
    alone += " --grid 'params=3e9 tokens=1e11'"
    assert result(alone)["rows"][0]["prediction"] != whole[0]["prediction"]
    for line, words in (
        (RUNNING, "Missing option '--grid'"),
        (f"{RUNNING} --grid tokens=1e10", "tokens beyond 1e+10"),
        (f"{RUNNING} --grid 'params=1e9 tokens=1e11'", "'params' is 3000000000"),
        (
            f"{RUNNING.replace('run.csv', 'finished.csv')} --grid tokens=1e11",
            "differ in 'run'",
        ),
        (
            f"{RUNNING.replace('finished', 'all')} --grid tokens=1e11",
            "leave them out with --train",
        ),
    ):
        assert words in fails(line)
    write(run=run.drop(columns="annealed"))
    assert result(f"{RUNNING} --grid tokens=1e11")["rows"] == whole
    # In the finished table one label is no number, so that 7 is text there.
    labels = np.where(finished["params"] == 1e8, "7", "x")
    write(finished=finished.assign(run=labels), run=run.assign(run=7))
    assert "has rows of 7, the run of" in fails(f"{RUNNING} --grid tokens=1e11")


@support.on_bound
def test_what_is_constant_in_a_run_is_so_at_its_end():
    finished, run = going_on()
    values = {
        "replay": 0.25,
        "ptpp": 20.0,
        "unique_tokens": 1e13,
        "rate": 0.002,
        "base": "b",
    }
    write(finished=finished.assign(**values | {"base": "a"}), run=run.assign(**values))
    (end,) = result(f"{RUNNING} --grid tokens=1e11")["rows"]
    assert (
        end.items() >= {**values, "annealed": 1, "params": 3e9, "tokens": 1e11}.items()
    )
