"""Every experiment runs with ``--smoke``: one job of a few draws."""

import math
import os
import re
import warnings
from unittest.mock import patch

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import bayeslaw as bl
from benchmarks import EXPERIMENTS, held_out, measured, methods
from benchmarks.runner import Experiment
from benchmarks.splits import DATA, adapted, ratios
from tests.support import ROOT, slow


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_experiment_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = ["--folder", str(tmp_path)] if name in ("pictures", "figures") else []
    with patch.dict(os.environ), warnings.catch_warnings():
        warnings.simplefilter("default")
        EXPERIMENTS[name].run(["--smoke", *folder])
    plt.close("all")
    assert "CPU s" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    [
        slow(n) if n in ("accuracy", "running") else n
        for n in EXPERIMENTS
        if (ROOT / f"benchmarks/{n}.csv").is_file()
    ],
)
def test_its_tables_are_made_from_the_rows_that_are_kept(name, capsys):
    EXPERIMENTS[name].run(["--show"])
    assert "|" in capsys.readouterr().out


def test_an_interrupted_run_goes_on(tmp_path, capsys):
    done = []

    def jobs(options):
        """Two jobs, of which the second fails at first."""
        for x in (1, 2):
            yield (
                {"x": x, "name": f"job {x}"},
                lambda x=x: done.append(x) or {"y": 10 / (x - fails)},
            )

    found, out = (
        Experiment("none", jobs, lambda rows: {"all": rows}),
        tmp_path / "rows.csv",
    )
    fails = 2
    with pytest.raises(ZeroDivisionError):
        found.run(["--out", str(out)])
    fails = 0
    found.run(["--out", str(out)])
    found.run(["--out", str(out), "--only", "job 2"])
    assert done == [1, 2, 2]
    assert pd.read_csv(out)["y"].tolist() == [-10, 5]
    assert "job 2, 0 CPU s" in capsys.readouterr().out


def test_designs_at_the_last_stage_fit_what_they_name():
    path = DATA / "tinycpt/french.csv"
    table = bl.read_table(path, where="annealed and replay < 1 and seed == 0")
    counts = {}
    for design in measured.DESIGNS:
        train, test = measured.designed(table, design)
        last = train.frame["ptpp"] == measured.STAGE
        counts[design] = int(last.sum()), len(test)
        assert (test.frame["ptpp"] == measured.STAGE).all()
        assert test.frame["params"].nunique() == 2
        assert not test.frame.merge(train.frame, on=["run", "tokens"]).shape[0]
    assert counts == {
        "two budgets": (0, 48), "1 anchor": (1, 48), "2 anchors": (2, 48), "4 anchors": (4, 48),
        "8 anchors": (8, 48), "two sizes": (48, 48), "pilot 0.5": (54, 42), "pilot 1": (60, 36),
        "pilot 2": (66, 30), "four budgets": (0, 48),
    }  # fmt: skip


def test_a_plan_on_measured_runs_is_the_cheapest_that_is_probable_enough():
    rows = pd.DataFrame({"params": 1e5, "atpp": [1.0, 2.0, 4.0, 8.0, 16.0]})
    loss = np.array([1.9, 1.8, 1.7, 1.6, 1.5])
    # Draws are one run too low, so each plan is a run too short.
    sure = measured.Losses(loss, np.tile(loss - 0.1, (10, 1)))
    found = measured.plans(rows, {"target": sure}, 0.9)
    assert found["cases"] == found["made"] == 4
    assert found["kept"] == 0
    assert found["budget"] == pytest.approx(0.5)
    exact = measured.Losses(loss, np.tile(loss, (10, 1)))
    found = measured.plans(rows, {"target": exact, "source": exact}, 0.9)
    assert found["cases"] == found["made"] == found["kept"] == 16
    assert found["budget"] == pytest.approx(1)
    unsure = measured.Losses(
        loss, np.vstack([np.tile(loss, (8, 1)), np.full((2, 5), 9.0)])
    )
    assert measured.plans(rows, {"target": unsure}, 0.9)["made"] == 0
    assert measured.plans(rows, {"target": unsure}, 0.8)["made"] == 4


def test_splits_of_real_models_have_the_rows_that_their_readmes_state():
    found = {}
    for name, _, train, test, _ in [*adapted(), *ratios(None)]:
        first = name.split()[0]
        folder = "delphi" if first in ("clean", "contaminated") else first
        found.setdefault(folder, set()).add((len(train), len(test)))
        shared = {"params", "tokens", "replay", "domain", "run"} & {*train.frame}
        both = train.frame[[*shared]].merge(test.frame[[*shared]])
        assert both.empty, name
    assert found.keys() == {"delphi", "rectified", "multipowerlaw", "starcoder"}
    for folder, rows in found.items():
        text = (DATA / folder / "README.md").read_text()
        stated = {
            (int(a), int(b))
            for a, b in re.findall(r"\| (\d+), (\d+)[^|]*\|$", text, re.M)
        }
        assert stated
        assert stated <= rows, folder


def test_the_example_table_is_the_decontaminated_part_of_the_benchmark():
    where = "domain == 'math_clean_seen_1e22' and ladder == 'isotoken'"
    clean = bl.read_table(DATA / "delphi/clean.csv", where=where)
    pd.testing.assert_frame_equal(bl.example_table().frame, clean.frame)


def test_scores_are_means_over_the_rows_that_have_them():
    """By hand: a split without a CRPS counts for the bands alone."""
    rows = pd.DataFrame(
        {
            "table": ["a one", "a two", "b", "a one", "a two", "b"],
            "source": ["a", "a", "b"] * 2,
            "law": "chinchilla",
            "way": ["walk"] * 3 + ["curvature"] * 3,
            "test": [10, 30, 20] * 2,
            "rmse_log": [0.3, 0.1, 0.2] * 2,
            "bias_log": [-0.1, 0.1, 0.0] * 2,
            "coverage_50": [0.5, 1.0, 0.0] * 2,
            "coverage_90": [1.0, 1.0, 0.5] * 2,
            **dict.fromkeys(("width_90", "winkler_90"), 1.0),
            "crps": [0.1, 0.2, 0.3, 0.2, math.nan, 0.3],
        }
    )
    tables = held_out.pooled(rows)
    found = tables["over rows"].loc["chinchilla"]
    assert found["in_50"].tolist() == [35, 35]
    assert found["crps"].to_dict() == pytest.approx(
        {"walk": 13 / 60, "curvature": 8 / 30}
    )
    assert found["no_crps"].to_dict() == {"walk": 0, "curvature": 1}
    assert found["bias_log"].tolist() == pytest.approx([2 / 60] * 2)
    assert found["rms_error"].tolist() == pytest.approx(
        [np.sqrt((0.9 + 0.3 + 0.8) / 60)] * 2
    )
    halves = tables["coverage of 50 % bands, by split"].loc["chinchilla", "walk"]
    assert halves[["least", "median", "most", "none", "all"]].tolist() == [
        0,
        0.5,
        1,
        1,
        1,
    ]
    # Of the split that has no CRPS there is no ratio; a source counts once in the mean of sources.
    compared = held_out.against(rows).loc["chinchilla", "curvature"].to_dict()
    wanted = {
        "wins": 1,
        "losses": 0,
        "splits": 0.5**0.5,
        "sources": 0.5**0.5,
        "a": 0.5,
        "b": 1,
    }
    assert compared == pytest.approx(wanted)


SIZES, TOKENS = np.meshgrid([1e8, 3e8, 1e9, 3e9], [2e9, 6e9, 2e10, 6e10])
SIZES, TOKENS = SIZES.ravel(), TOKENS.ravel()
LOSSES = {
    methods.additive_law: lambda n, d: 1.7 + 400 / n**0.34 + 500 / d**0.29,
    methods.coupled_law: lambda n, d: 1.5 + (900 / n**0.4 + 1500 / d**0.37) ** 0.7,
    methods.product_law: lambda n, d: 1.6 + 250 / (n**0.11 * d**0.14),
}
"""The three laws by hand, each with parameters that their fit has to find."""


@pytest.mark.parametrize("law", LOSSES, ids=lambda law: law.__name__)
def test_a_power_law_of_the_bootstrap_is_recovered_from_exact_losses(law):
    """Within its rows and, from the parameters that were found, three times beyond them."""
    middle = np.log([SIZES, TOKENS]).mean(axis=1)
    log_loss = np.log(LOSSES[law](SIZES, TOKENS))
    starts = methods.starting_values(log_loss)
    points = np.log(np.column_stack([SIZES, TOKENS])) - middle
    found = methods.fit_power_law(law, points, log_loss, starts, starts[0])
    np.testing.assert_allclose(law(found, points), log_loss, atol=2e-4)
    beyond = np.array([[1e10, 2e11], [1e10, 2e9], [1e8, 2e11]])
    wanted = np.log(LOSSES[law](*beyond.T))
    np.testing.assert_allclose(law(found, np.log(beyond) - middle), wanted, atol=4e-3)


def test_bands_of_the_bootstrap_are_of_new_measured_losses(monkeypatch):
    """At 48 fitted rows of the true law alone they are the noise and little more."""
    monkeypatch.setattr(methods, "POWER_LAWS", (methods.additive_law,))
    rng, sigma = np.random.default_rng(3), 0.01
    frame = pd.DataFrame({"params": np.tile(SIZES, 3), "tokens": np.tile(TOKENS, 3)})
    losses = LOSSES[methods.additive_law](frame["params"], frame["tokens"])
    train, test = (
        bl.from_frame(
            frame.assign(loss=losses * np.exp(sigma * rng.standard_normal(48))), "world"
        )
        for _ in range(2)
    )
    draws = methods.three_laws(train, test, 100)
    assert draws.shape == (100, 48)
    # The variance of Student-t noise is dof / (dof - 2) times its squared scale.
    noise = sigma * np.sqrt(methods.NOISE_DOF / (methods.NOISE_DOF - 2))
    assert np.log(draws).std(axis=0).mean() == pytest.approx(1.05 * noise, rel=0.1)
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    assert 0.85 <= ((low <= test.loss) & (test.loss <= high)).mean() < 1
    np.testing.assert_array_equal(draws, methods.three_laws(train, test, 100))
    kept = methods.measured("chinchilla", "three laws", train, test, None, 100)
    assert kept["test"].tolist() == [48]
    assert kept["crps"].tolist() == [pytest.approx(methods.scores(draws, test)["crps"])]


def test_the_numbers_of_the_readme_are_of_the_rows_that_are_kept():
    rows = pd.read_csv(ROOT / "benchmarks/truth.csv").query("law == 'chinchilla'")
    tables = held_out.pooled(rows)
    scores = tables["over rows"].loc["chinchilla"]
    default, rival = scores.loc["walk"], scores.loc["three laws"]
    against = tables["CRPS of the default over that of another way, by split"]
    of_rival = against.loc["chinchilla"].loc["three laws"]
    least = rows.loc[rows["way"] == "walk", "coverage_90"].min()

    def percent(way, level):
        return f"{100 * way[f'in_{level}'] / way['test']:.0f} %"

    splits = of_rival["wins"] + of_rival["losses"]
    wider = rival["width_90"] / default["width_90"]
    readme = " ".join((ROOT / "README.md").read_text().split())
    for words in (
        f"Of {default['test']:.0f} held-out losses from six public sources",
        f"{percent(default, 90)} were inside its 90 % bands",
        f"{percent(default, 50)} inside its 50 % bands",
        f"worst of 35 splits, {100 * least:.0f} % were inside",
        f"Its 90 % bands contained {percent(rival, 90)}",
        f"better on {of_rival['wins']:.0f} of {splits:.0f} splits",
    ):
        assert words in readme, words
    assert 1.8 < wider < 2.5  # "twice as wide"


def test_the_table_of_what_is_bought_is_what_its_rows_give():
    rows = pd.read_csv(ROOT / "benchmarks/measured_plans.csv").query("way == 'default'")
    page = (ROOT / "docs/howto/runs.md").read_text()
    _, *tables = page.split("| bought at PTPP 279 |")
    forecasts, plans_made = (
        table.split("\n\n")[0].splitlines()[2:] for table in tables
    )
    lines = [
        forecast + plan.partition("|")[2].partition("|")[2]
        for forecast, plan in zip(forecasts, plans_made, strict=True)
    ]
    for line, design in zip(lines, measured.DESIGNS, strict=True):
        own = rows[rows["design"] == design]
        found = own[own["kind"] == "forecast"]
        plans = own[(own["kind"] == "latent") & (own["level"] == 0.9)]
        made = plans["made"].sum()
        budget = math.exp((np.log(plans["budget"]) * plans["made"]).sum() / made)
        wanted = [
            f"{100 * found['width_90'].mean():.1f}",
            f"{found['crps'].mean():.4f}",
            f"{found['coverage_90'].mean():.2f}",
            f"{found['coverage_90'].min():.2f}",
            f"{found['coverage_50'].mean():.2f}",
            f"{100 * found['bias_log'].mean():.1f}",
            *(
                f"{number:.0f}"
                for number in (made, plans["cases"].sum(), plans["kept"].sum())
            ),
            f"{budget:.2f}",
        ]
        cells = line.partition("|")[2].partition("|")[2]
        stated = re.findall(r"-?\d+\.?\d*", cells)
        assert list(map(float, stated)) == list(map(float, wanted)), design


def test_tables_of_pages_are_what_their_rows_give():
    """What bought runs were worth with four budgets."""
    designs = pd.read_csv(ROOT / "benchmarks/designs.csv")
    case = ["sale", "table", "domain", "design"]
    logs = (
        np.log(designs["crps"])
        .groupby([designs[name] for name in case])
        .mean()
        .unstack()
    )
    ratios = np.exp(logs.sub(logs["random"], axis=0).mean()).round(2)
    page = (ROOT / "docs/howto/runs.md").read_text()
    page = page.split("With four budgets fitted")[1]
    stated = re.findall(
        r"\d\.\d+", page.partition("times (")[0].partition("([rows]")[0]
    )
    chosen = ratios[["doptimal", "variance", "active-sl"]]
    assert list(map(float, stated)) == [ratios["none"], chosen.min(), chosen.max()]
