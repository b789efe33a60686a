"""Posterior predictive checks of cell means."""

from bayeslaw.checks import predictive
from bayeslaw.inference.fitting import fit
from bayeslaw.tables.reading import from_frame
from tests.checks.conftest import SHORT


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
