"""JSON documents of all commands, key by key and value by value, as they were recorded.

``python -m tests.cli.test_documents`` records them again, after a change that is meant.
"""

import json
import math
import os
import re
import shlex
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

from tests.cli.commands import DELPHI, run
from tests.support import ROOT, slow

GOLDEN = ROOT / "tests" / "data"
RECORD = GOLDEN / "documents.json"
BRIEF = "--discrepancy none --effects none --chains 2 --draws 60 --tune 150"
LIMITS = "params=8.1e9 ptpp=279 max_loss=1.85 max_forgetting=.04 baseline=2.05 confidence=.8"
OPEN = "--allow-unconverged"
PLAN = (
    f"plan {OPEN} --target world_form3.nc --source world_source_form1.nc --params 8.1e9 --ptpp 279 "
    "--max-loss 1.85 --max-forgetting .04 --baseline 2.05,.001 --confidence .8 --seed 3"
)
COMMANDS = {
    "init": "init first",
    "simulate": "simulate --domain both --no-noise --out both.csv",
    "simulate french": "simulate --seed 1 --out french.csv",
    "simulate english": "simulate --domain english_arabic --seed 1 --out english.csv",
    "fit": f"fit delphi.csv --law chinchilla --train 'scale <= 3e19' {BRIEF} --out short.nc",
    "fit huber": "fit delphi.csv --law chinchilla --method huber --where 'scale <= 3e20'",
    "fit map": "fit delphi.csv --law chinchilla --method map --train 'scale <= 3e20'",
    "backtest": "backtest delphi.csv --law chinchilla --where 'scale <= 3e20' --cuts 1e20"
    f" --rivals curvature {BRIEF} --out backtest.csv",
    "forecast": "forecast delphi_chinchilla.nc --rows delphi.csv --test 'scale >= 1e21' --seed 2"
    f" {OPEN} --register planned.json --register-draws 100 --out bands.csv",
    "forecast grid": "forecast delphi_chinchilla.nc --kind latent --levels .8 --beyond-evidence"
    f" {OPEN} --grid 'params=1e9,1e12 tokens=1e10,1e11' --backtest backtest.csv",
    "forecast huber": "forecast french.csv --law chinchilla --train 'ptpp <= 31' --method huber"
    " --test 'ptpp == 279 and params > 3e9 and replay < .2'",
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
    "derive": f"derive delphi_chinchilla.nc {OPEN} --flops 1e21,1e23 --loss 2.6,.1"
    " --at 'params=1e9 tokens=2e10' --levels .5,.9",
    "derive two": f"derive delphi_chinchilla.nc {OPEN} --loss 2.6 --against delphi_chinchilla.nc",
    "floor": f"floor delphi_chinchilla.nc {OPEN} --flops 1e22 --slices 4",
    "recipes": f"recipes delphi_chinchilla.nc other.nc {OPEN} --flops 1e21,1e23",
    "recipes at": f"recipes delphi_chinchilla.nc other.nc {OPEN} --at 'params=1e9 tokens=1e10'",
    "plan": f"{PLAN} --at 30,.6 --stop .002,1e9 --max-tokens 5e10",
    "plan infeasible": PLAN.replace("1.85", "1.2"),
    "anchors": f"anchors delphi_chinchilla.nc {OPEN} --candidates 'params=2e8,2e9 tokens=2e9,2e10'"
    " --targets 'params=3e10 tokens=1e11,1e12' --k 2 --gain variance",
    "anchors plan": f"anchors world_form3.nc {OPEN} --source world_source_form1.nc --gain plan"
    " --candidates 'params=241e6,1.4e9 tokens=1e9,1e10 replay=.3 ptpp=279' --budget 1e20"
    f" --cost adaptation --plan '{LIMITS}'",
    "study": "study delphi.csv --law chinchilla --train 'scale < 3e19'"
    " --pool '3e19 <= scale < 1e20' --targets 'scale >= 1e21' --designs random,cheapest --seeds 1"
    " --draws 50 --tune 100 --jobs 1 --out study.csv",
    "export": f"export delphi_chinchilla.nc c.json --draws 20 {OPEN}",
    "report": f"report delphi_chinchilla.nc {OPEN} --rows delphi.csv --test 'scale >= 1e21'"
    " --question 'How low?'",
}
"""Command lines in the order in which they are run, in a folder with the files of `prepare`."""
CODES = {"fit": 1, "check": 1, "check refused": 1}
LOOSE = ("fit", "backtest", "study", "check", "check refused")
"""Commands that sample: the numbers depend on the processor."""
GRID = (
    "plan",
    "plan infeasible",
    "anchors plan",
    "derive",
    "derive two",
    "floor",
    "recipes",
)
"""Commands whose numbers are searched: equal within their Monte Carlo error."""

LONG = ("report", "recipes", "derive two")
"""Commands that take long."""


def prepare(folder: Path) -> None:
    """Copy the files that the commands read."""
    for path in GOLDEN.glob("*.nc"):
        shutil.copy(path, folder)
    shutil.copy(GOLDEN / "delphi_chinchilla.nc", folder / "other.nc")
    shutil.copy(DELPHI, folder / "delphi.csv")


def document(name: str) -> dict:
    """The document of a command, without what depends on the machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        printed = run(*shlex.split(COMMANDS[name]), "--json", code=CODES.get(name, 0)).stdout
    found = json.loads(printed)
    found.pop("version")
    dated = json.dumps(found, sort_keys=False)
    dated = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:+.\-Z]*", "DATE", dated)
    return json.loads(re.sub(r"\b[0-9a-f]{64}\b", "HASH", dated))


def record(path: Path) -> None:
    """Write the documents to a file."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        os.chdir(folder)
        found = {name: document(name) for name in COMMANDS}
        os.chdir(before)
    lines = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in found.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def differences(new, old, where: str, relative: float, values: bool = True) -> list[str]:
    """Where a document differs from the one recorded: in keys, kinds, lengths, text or numbers."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = [] if new.keys() == old.keys() else [f"{where}: {list(new)} for {list(old)}"]
        for key in old.keys() & new.keys():
            found += differences(new[key], old[key], f"{where}.{key}", relative, values)
        return found
    if isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            return [f"{where}: {len(new)} for {len(old)}"] if values else []
        pairs = enumerate(zip(new, old, strict=True))
        return [d for i, p in pairs for d in differences(*p, f"{where}[{i}]", relative, values)]
    numbers = [v for v in (new, old) if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) == 2:
        same = math.isclose(new, old, rel_tol=relative, abs_tol=1e-3 * relative)
    elif isinstance(new, str) and isinstance(old, str):
        same = worded(new) == worded(old)
    else:
        same = new == old
    return [f"{where}: {new!r} for {old!r}"] if values and not same else []


def worded(text: str) -> str:
    """Text without its numbers."""
    return re.sub(r"[-+]?\d[\d.e+]*", "0", text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("documents")
    prepare(path)
    before = Path.cwd()
    os.chdir(path)
    yield path
    os.chdir(before)


@pytest.fixture(scope="module")
def recorded():
    return json.loads(RECORD.read_text())


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", [slow(n) if n in LONG else n for n in COMMANDS])
def test_the_document_is_the_one_recorded(name, folder, recorded):
    relative = 0.1 if name in GRID else 1e-6
    found = differences(document(name), recorded[name], name, relative, values=name not in LOOSE)
    assert not found, "\n".join(found[:20])


if __name__ == "__main__":
    record(Path(sys.argv[1]) if len(sys.argv) > 1 else RECORD)
