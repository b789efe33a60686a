"""Waiting: what a long call says that it does, and what is left when it is interrupted."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

import bayeslaw as bl
from tests.cli.commands import DELPHI, run

SHORT = {"discrepancy": "none", "chains": 2, "draws": 40, "tune": 60}
SHORT_OPTIONS = [f"--{name}={value}" for name, value in SHORT.items()]
FIT = ("fit", DELPHI, "--law", "chinchilla", "--train", "scale <= 3e20", *SHORT_OPTIONS)
LOOP = """
import bayeslaw as bl
for _ in range(2):
    try:
        bl.backtest(bl.example_table(), "chinchilla", draws=200_000, chains=2, progress=True)
    finally:
        print("left", flush=True)
"""
WARNING = """
import warnings
from bayeslaw.cli.app import _one_line_warnings
from bayeslaw.common.progress import showing, step
with _one_line_warnings(), showing(True), step("waiting"):
    warnings.warn("odd")
"""


def interrupted(line: str, *args: str) -> tuple[int, str, str]:
    """Exit code, output and last line on stderr of a process that gets Ctrl-C after some line."""
    # A shell in the background, such as that of some test runs, lets its processes ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [sys.executable, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        said: list[str] = []
        for text in process.stderr:
            said.append(text)
            if re.search(line, "".join(said), re.S):
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    return process.returncode, out, (err.splitlines() or said)[-1]


def test_a_command_that_is_interrupted_in_its_second_round_leaves_nothing(tmp_path):
    table, out = tmp_path / "table.csv", tmp_path / "fit.nc"
    bl.example_table().frame.to_csv(table, index=False)
    asked = ("--law", "chinchilla", "--chains", "1", "--out", str(out))
    second = "again with 8,000.*8,000 draws of each"
    code, shown, last = interrupted(second, "-m", "bayeslaw", "fit", str(table), *asked)
    assert (code, shown, last) == (130, "", "interrupted")
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_an_interrupted_loop_in_python_ends():
    code, out, last = interrupted("200,000 draws of each", "-c", LOOP)
    assert (code, out, last) == (-signal.SIGINT, "left\n", "KeyboardInterrupt")


def test_a_log_has_a_line_for_each_round_and_the_document_is_alone_on_stdout(tmp_path):
    result = run(*FIT, "--json", "--out", tmp_path / "fit.nc", code=1)
    assert json.loads(result.stdout)["converged"] is False
    lines = result.stderr.splitlines()
    assert lines[0] == lines[2] == "chinchilla: 40 draws of each of 2 chains"
    assert re.fullmatch(
        r"chinchilla: 40 draws: (R-hat [\d.]+ > 1.01; )?bulk ESS \d+ < 400; tail ESS \d+ < 400 "
        r"\(.*log_loss.*\); again with 40 draws, target acceptance 0.99",
        lines[1],
    )


def test_python_says_nothing_where_nobody_looks(small, capfd):
    bl.fit("chinchilla", small, **SHORT)
    bl.fit("chinchilla", small, progress=False, **SHORT)
    assert capfd.readouterr() == ("", "")
    bl.fit("chinchilla", small, progress=True, **SHORT)
    assert "again with 40 draws" in capfd.readouterr().err


def on_a_terminal(*args: str) -> tuple[int, list[str]]:
    """Exit code of a process on a terminal of 80 columns, and the lines that it shows."""
    pty = pytest.importorskip("pty")
    pid, terminal = pty.fork()
    if not pid:
        os.environ |= {"COLUMNS": "80", "TERM": "xterm"}
        os.execv(sys.executable, [sys.executable, *args])
    shown = b""
    try:
        while part := os.read(terminal, 4096):
            shown += part
    except OSError:  # the end, on Linux
        pass
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.decode()))


def test_a_terminal_has_one_bar():
    code, lines = on_a_terminal("-m", "bayeslaw", *FIT)
    bars = [line for line in lines if "━" in line]
    assert code == 1
    assert max(map(len, lines)) <= 80
    assert any("40 draws of each of 2 chains" in line and "%" in line for line in bars)
    assert "again with 40 draws" in " ".join(" ".join(lines).split())
    assert any("NOT CONVERGED" in line for line in lines)


def test_a_warning_has_a_line_above_the_bar():
    code, lines = on_a_terminal("-c", WARNING)
    assert code == 0
    assert "warning: odd" in lines
