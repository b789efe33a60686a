"""Data, designs, true parameters and marks that several test files use."""

import json
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import bayeslaw as bl
from bayeslaw.cli import app
from bayeslaw.engine.whitening import NUGGET
from bayeslaw.laws.lawfiles import parse_law
from bayeslaw.model import effects
from bayeslaw.model.spec import make_spec

ROOT = Path(__file__).parents[1]
DATA = ROOT / "data"
SAVED = ROOT / "tests" / "data"
LAWS = ("form1", "form2", "form3", "dcpt", "chinchilla", "form1n", "mixture", "skaling")
CHINCHILLA = {"E": 1.7, "A": 400.0, "alpha": 0.34, "B": 410.0, "beta": 0.28}
TRUTH = {
    "E": 1.5,
    "A": 170.0,
    "alpha": 0.3,
    "B": 53.0,
    "beta": 0.25,
    "nu": 0.4,
    "s0": 0.003,
    "C": 0.05,
    "gamma": 0.3,
    "F": 0.16,
    "eta": 0.33,
    "phi": 0.02,
    "kappa": 0.7,
    "lambda_": 0.3,
    "zeta": -0.3,
}
DESIGN = bl.grid(
    params=[241e6, 517e6, 1.4e9, 8.1e9],
    ptpp=[15, 31, 80, 279],
    replay=[0.1, 0.25, 0.5],
    tokens=[2e8, 1e9, 5e9, 2.5e10, 1e11],
)
# Four rows of a valid table with every column.
GOOD = pd.DataFrame(
    {
        "params": [1e8, 1e8, 1e9, 1e9],
        "tokens": [1e9, 1e10, 1e9, 1e10],
        "replay": [0.1, 0.5, 0.1, 0.5],
        "ptpp": [15, 31, 31, 279],
        "loss": [3.0, 2.8, 2.6, 2.5],
    }
)
# Standard deviations of the random effects in `grouped`.
EFFECTS = {"base": 0.008, "run": 0.004}

# Numba runs the random draws of the Huber density as plain Python and says so.
object_mode = pytest.mark.filterwarnings(
    "ignore:Numba will use object mode:UserWarning"
)
on_bound = pytest.mark.filterwarnings("ignore::bayeslaw.common.errors.FitWarning")


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def truth_of(parameters):
    return {name: TRUTH[name] for name in parameters}


def grouped(seed: int, scales: dict[str, float] = EFFECTS) -> bl.LossTable:
    """Checkpoints of three runs from each of two bases of four sizes, with their effects."""
    rng = np.random.default_rng(seed)
    design = bl.grid(
        params=[1e8, 3e8, 1e9, 3e9], base=[0, 1], run=[0, 1, 2], tokens=[1e9, 4e9, 2e10]
    )
    frame = bl.simulate("chinchilla", CHINCHILLA, design, sigma=0.001, seed=seed).frame
    frame["base"] = [
        f"{n:.0e}/{b:.0f}" for n, b in zip(frame.params, frame.base, strict=True)
    ]
    frame["run"] = frame["base"] + "/" + frame["run"].astype(int).astype(str)
    for level, scale in scales.items():
        groups, index = np.unique(frame[level], return_inverse=True)
        frame["loss"] *= np.exp(scale * rng.standard_normal(len(groups)))[index]
    return bl.from_frame(frame, "grouped")


def with_effects(
    fitted: bl.Posterior, level: str, labels: Any, tau: float, **spec
) -> bl.Posterior:
    """The fit as one with random effects of a level on rows of these labels, drawn from N(0, tau).

    Draws of the other parameters stay as they are, so nothing is sampled. Labels of sizes are N.
    """
    columns = {} if level == "size" else {level: labels}
    table = bl.from_frame(fitted.table.frame.assign(**columns), fitted.table.name)
    names = np.unique(effects.labels(table.frame, level))
    shape = fitted.draws.sizes["chain"], fitted.draws.sizes["draw"], len(names)
    effect = tau * np.random.default_rng(0).standard_normal(shape)
    draws = fitted.draws.assign(
        {
            f"tau_{level}": 0 * fitted.draws["sigma"] + tau,
            f"{level}_effect": (("chain", "draw", level), effect),
        }
    ).assign_coords({level: names})
    changed = make_spec(
        fitted.law.without_discrepancy, discrepancy="none", effects=(level,), **spec
    )
    gone = set(fitted.spec.likelihood.parameters) - set(changed.likelihood.parameters)
    return replace(fitted, spec=changed, table=table, draws=draws.drop_vars(gone))


def covariance_of(frame, sigma, ell):
    """Covariance of the errors, by the recursion that defines them, one row at a time."""
    rows = frame.assign(place=range(len(frame))).sort_values(["run", "tokens"])
    total, before = np.zeros((len(frame), len(frame))), None
    for i, row in zip(rows["place"], rows.to_dict("records"), strict=True):
        rho = 0.0
        if before is not None and before["run"] == row["run"]:
            rho = np.exp(-np.log(row["tokens"] / before["tokens"]) / ell)
            total[i] = total[:, i] = rho * total[before["place"]]
        own = rho**2 * (total[before["place"], before["place"]] if rho else 0.0)
        total[i, i] = own + sigma**2 * (1 - rho**2 + NUGGET)
        before = row
    return total


@cache
def saved(name: str) -> Any:
    """A posterior of tests/data, made by `python -m tests.make_data`."""
    return bl.load(SAVED / f"{name}.nc")


@cache
def small() -> bl.LossTable:
    """Twenty noisy rows of a Chinchilla law."""
    design = bl.grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[1e9, 3e9, 1e10, 3e10, 1e11])
    return bl.simulate("chinchilla", CHINCHILLA, design, sigma=0.003, seed=1)


@cache
def paper_rows() -> bl.LossTable:
    """The synthetic world's 168 French rows at the paper's two training stages."""
    return bl.paper_world().table("french", seed=0).query("ptpp <= 31")


@cache
def delphi() -> bl.LossTable:
    return bl.read_table(DATA / "delphi" / "isotoken.csv")


def from_bases(replay, atpp, seed=0, **bases):
    """Runs from bases of some sizes and stages, whose losses vary by a per cent."""
    made, rng = bl.grid(**bases), np.random.default_rng(seed)
    n, d = made["params"], made["params"] * made["ptpp"]
    expected = 1.5 + 90 / n**0.3 + 300 / d**0.33
    made["base_loss"] = expected * np.exp(0.01 * rng.standard_normal(len(made)))
    made["start_loss"] = 5 + 0.1 * rng.standard_normal(len(made))
    made["base"] = np.arange(len(made))
    rows = made.merge(bl.grid(replay=replay, atpp=atpp), how="cross")
    return rows.assign(tokens=rows["atpp"] * rows["params"])


@cache
def stages() -> pd.DataFrame:
    """Runs of eight bases, with numeric labels, at two ratios and three budgets."""
    bases = {"params": [1e8, 3e8, 1e9, 3e9], "ptpp": [15, 60]}
    rows = from_bases([0.1, 0.5], [0.5, 2, 8], **bases).drop(columns="atpp")
    rows["run"], rows["role"] = (
        10 * rows["base"] + (rows["replay"] > 0.3).astype(int),
        "source",
    )
    table = bl.simulate("transfer", TRANSFER | {"c": 0.0}, rows, sigma=0.003)
    return table.frame.drop(columns="synthetic")


def miss(one, other, table):
    """Largest difference of two fits in log loss over a table."""
    return np.abs(np.log(one.predict(table) / other.predict(table))).max()


def made(name, sigma=0.0, seed=0):
    """A table of a law with its parameters in `TRUTH`."""
    law = bl.load_law(name)
    return bl.simulate(law, truth_of(law.parameters), DESIGN, sigma=sigma, seed=seed)


TRANSFER = {
    "E": 1.1, "A": 60.0, "alpha": 0.3, "F": 900.0, "eta": 0.35, "phi": 0.05, "rho": 0.8,
    "beta": 0.35, "v": 1.1, "z": 12.0, "z_N": 0.1, "z_P": 0.05, "gamma": 0.03, "k": 0.7,
}  # fmt: skip
"""Parameters of the law `transfer`, of bases as in `transfer_design`."""


def transfer_design(seed=0):
    """Runs of five sizes and five budgets from bases with labels."""
    bases = {"params": [1e8, 2e8, 4e8, 8e8, 1.6e9], "ptpp": [15, 31, 62, 124, 279]}
    rows = from_bases([0.1, 0.25, 0.5], [0.5, 1, 2, 4, 8, 16], seed, **bases)
    rows["base"] = [f"base {i}" for i in rows["base"]]
    return rows.assign(
        run=rows["base"] + " " + rows["replay"].astype(str), role="target"
    )


@cache
def exact_transfer(role="target"):
    """Runs from 25 bases, which follow the law `transfer` exactly."""
    design, truth = transfer_design().assign(role=role), TRANSFER
    if role == "source":
        design, truth = (
            design.assign(start_loss=design["base_loss"]),
            TRANSFER | {"c": 0.2},
        )
    return bl.simulate("transfer", truth, design)


def run(*words, code=0):
    """Run a command line, in one string or in words; its result."""
    words = shlex.split(words[0]) if len(words) == 1 else [*map(str, words)]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "80"})
    assert result.exit_code == code, result.output
    return result


def refused(error, says, call, *given, **named):
    """Assert that a call raises an error of one line that says so."""
    with pytest.raises(error, match=says) as raised:
        call(*given, **named)
    text = str(raised.value)
    del (
        raised
    )  # its traceback holds this frame: a circle that keeps open what the call opened
    assert "\n" not in text


def fails(*words):
    """Run a command line with a mistake in it; the one line on stderr."""
    result = run(*words, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


FORGETTING = {
    "E": 0.6,
    "A": 14.0,
    "alpha": 0.25,
    "F": 57.0,
    "eta": 0.4,
    "phi": 0.31,
    "rho": 1.4,
}
FORGETTING |= {"G": 0.42, "xi": 3.0, "omega": 3.2}
STATED = {
    "liew_kato": (
        {"E": 1.6, "A": 60.0, "alpha1": 0.02, "alpha2": 0.42, "alpha3": 0.011},
        bl.grid(params=[1e8, 4e8, 1.6e9], ptpp=[10, 40, 160], tokens=np.geomspace(1e8, 3e10, 6)),
    ),
    "forgetting": (  # sizes of tinycpt
        FORGETTING,
        bl.grid(params=[2e4, 4e4, 8e4, 1.5e5], ptpp=[15, 31, 62, 124, 279], replay=[0.1, 0.25, 0.5],
             atpp=[0.5, 1, 2, 4, 8, 20]).eval("tokens = atpp * params").drop(columns="atpp"),
    ),
    "transfer": (TRANSFER, transfer_design()),
}  # fmt: skip
"""Parameters of the other laws, and rows for them."""


@cache
def goldens():
    """Densities and point fits of commit e6d23c6, and what tables they are of."""
    return json.loads((SAVED / "goldens.json").read_text(encoding="utf-8"))


@cache
def golden_table(name):
    """Rows of data/, or of the synthetic world."""
    kind, *rest = goldens()["tables"][name]
    if kind == "data":
        return bl.read_table(DATA / rest[0], where=rest[1])
    return bl.paper_world().table(rest[0], seed=rest[1]).query(rest[2])


EXPERTS = """title = "Size, tokens, experts and dropout"
reference = "none"
term = [{coefficient = "A", slope = "slope_N", log = "-alpha*log(N)"},
 {coefficient = "B", slope = "slope_D", log = "-beta*log(D) + rise*dropout"},
 {coefficient = "G", slope = "slope_X", log = "-xi*log(experts)"}]
covariates.experts = {label = "experts per layer", unit = "experts"}
covariates.dropout = {log = false}
bounds = {rise = [-inf, inf]}
[priors]
floor = "Beta(alpha=2, beta=2)"
slope_N = "LogNormal(median=0.12, sigma=0.8)"
alpha = "LogNormal(median=0.28, sigma=0.45)"
slope_D = "LogNormal(median=0.08, sigma=0.9)"
beta = "LogNormal(median=0.3, sigma=0.5)"
rise = "Normal(mu=0, sigma=2)"
slope_X = "LogNormal(median=0.06, sigma=0.8)"
xi = "LogNormal(median=0.33, sigma=0.4)"
"""
"""A law's file that declares two covariates."""
EXPERTS_TRUTH = {
    "E": 1.8,
    "A": 400.0,
    "alpha": 0.34,
    "B": 900.0,
    "beta": 0.36,
    "rise": 1.0,
}
EXPERTS_TRUTH |= {"G": 0.3, "xi": 0.4}


@cache
def routed() -> bl.LossTable:
    """Losses of that law, with experts of 1 to 64 and dropout of 0 to .4."""
    design = bl.grid(
        params=[1e8, 3e8, 1e9, 3e9], tokens=[1e9, 1e10, 1e11], experts=[1, 8, 64]
    )
    design = design.assign(dropout=[0.2 * (i % 3) for i in np.arange(36) // 2])
    return bl.simulate(
        parse_law(EXPERTS, "experts"), EXPERTS_TRUTH, design, sigma=0.003, seed=1
    )
