"""Posterior predictive checks of cell means and of noise scales."""

import numpy as np

from bayeslaw.checks import predictive
from bayeslaw.checks.predictive import noise_part
from bayeslaw.inference.fitting import fit
from bayeslaw.simulation.worlds import simulate
from bayeslaw.tables.reading import from_frame
from bayeslaw.tables.table import grid
from tests.checks.conftest import SHORT
from tests.support import CHINCHILLA


def test_cells_find_the_one_that_differs(two_stages, paper_rows):
    frame = paper_rows.frame.copy()
    off = (frame["params"] == 1.4e9) & (frame["ptpp"] == 31) & (frame["replay"] == 0.25)
    frame.loc[off, "loss"] *= 1.02
    wrong = fit("form1", from_frame(frame), seed=0, **SHORT)
    cells = predictive.cells(wrong)
    worst = cells.loc[cells["miss"].abs().idxmax()]
    assert (worst["params"], worst["ptpp"], worst["replay"]) == (1.4e9, 31, 0.25)
    assert 0.01 < worst["miss"] < 0.025
    assert worst["p"] > 0.999
    assert predictive.cells(two_stages)["miss"].abs().max() < 0.004


def test_one_noise_scale_that_is_wrong_is_found():
    design = grid(params=[1e8, 3e8, 1e9, 3e9], tokens=np.geomspace(1e9, 3e11, 12))
    noise = np.random.default_rng(1).standard_normal(48)
    frame = simulate("chinchilla", CHINCHILLA, design).frame
    found = {}
    for name, factor in (("same", 1.0), ("larger", 6.0)):
        sigma = 0.003 * np.where(frame["params"] == 3e8, factor, 1.0)
        table = from_frame(frame.assign(loss=frame["loss"] * np.exp(sigma * noise)))
        found[name] = fit("chinchilla", table, seed=0, discrepancy="none")
    one, other = (predictive.scales(each).loc["size"] for each in found.values())
    assert one["p"] > 0.05
    assert other["p"] < 0.01
    assert other["largest"] == "300000000.0"
    assert other["ratio"] > 3
    part = noise_part(found["larger"], 0)
    assert part.level == "caution"
    assert "noise='size'" in part.words[0]


def test_a_noise_scale_six_times_the_others_is_found_in_three_of_four_tables():
    design = grid(params=[1e8, 3e8, 1e9, 3e9], tokens=np.geomspace(1e9, 3e11, 12))
    frame, levels = simulate("chinchilla", CHINCHILLA, design).frame, []
    for seed in (1, 2, 3, 4):
        noise = np.random.default_rng(seed).standard_normal(48)
        sigma = 0.003 * np.where(frame["params"] == 3e8, 6.0, 1.0)
        table = from_frame(frame.assign(loss=frame["loss"] * np.exp(sigma * noise)))
        levels.append(noise_part(fit("chinchilla", table, discrepancy="none"), 0).level)
    assert levels.count("caution") >= 3
