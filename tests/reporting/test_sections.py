"""Sections on the data, the plan and the forecast."""

import pandas as pd
import pytest

from bayeslaw import Report, fit, paper_world, plan
from bayeslaw.reporting import sections
from bayeslaw.reporting.pages import Picture
from bayeslaw.simulation.worlds import true_fits
from tests.reporting.reading import cells


@pytest.fixture(scope="module")
def based(delphi):
    """A short fit with random effects of bases, and rows of two new bases."""
    train, test = delphi.split(train="scale <= 3e20", test="scale >= 1e21")
    return fit("chinchilla", train, seed=0, chains=2, draws=50, tune=50), test


def test_known_and_new_bases_are_counted(based):
    fitted, test = based
    new = sections.data(fitted, test.frame, None, None).parts[0]
    assert (
        "None of the 2 bases to forecast are in the training rows; the effect of a new base" in new
    )
    both = pd.concat([fitted.table.frame, test.frame])
    assert "7 of the 9 bases" in sections.data(fitted, both, None, None).parts[0]
    known = sections.data(fitted, fitted.table.frame, None, None).parts[0]
    assert known.endswith("All of the 7 bases to forecast are in the training rows.")
    for rows in (test.frame.drop(columns="base"), test.frame.assign(base=None)):
        assert "name no base" in sections.data(fitted, rows, None, None).parts[0]


def test_repeated_rows_are_labelled_by_their_run(based):
    fitted, test = based
    fc = fitted.forecast(test, allow_unconverged=True)
    run = {"allow_unconverged": True}
    assert sections.forecast(fitted, fc, **run).parts[1].head[0] == "N"
    both = pd.concat([test.frame, test.frame.assign(run="again")], ignore_index=True)
    table = sections.forecast(fitted, fitted.forecast(both, **run), **run).parts[1]
    assert table.head[0] == "run"
    assert [row[0] for row in table.rows] == list(map(str, both["run"]))


def test_a_plan_with_its_pictures():
    world = paper_world()
    target, source = true_fits(world)
    asked = {name: world.limits[name] for name in ("params", "ptpp", "max_loss", "max_forgetting")}
    found = plan(target=target, source=source, baseline=world.baseline(), **asked)
    shown = sections.plan(found)
    assert "within 1.8 nats per token and forgetting within 2 %" in shown.parts[0]
    row = cells(shown.parts[2])["plan"]
    assert float(row[0]) == pytest.approx(8.9, rel=0.02)
    assert row[1] == "34 %"
    assert shown.parts[1].startswith(f"Plan: {row[0]} adaptation tokens per parameter at 34 %")
    assert [part.alt for part in shown.parts if isinstance(part, Picture)] == 2 * [shown.parts[1]]
    assert "Plan" in Report("a plan", "", [], [shown]).html
    asked |= {"max_loss": 1.4}
    never = sections.plan(plan(target=target, source=source, baseline=world.baseline(), **asked))
    assert never.parts[1].startswith("Infeasible: no budget meets the limits")
    assert "inf " not in Report("no plan", "", [], [never]).html
