"""Undertuned rows lie above the law by a one-sided error."""

import numpy as np
import pytest

import bayeslaw as bl
from bayeslaw import grid, simulate
from bayeslaw.evaluate.crossval import leave_out
from bayeslaw.model import random_effects
from tests.support import CHINCHILLA

DESIGN = grid(params=[1e8, 3e8, 1e9, 3e9], tokens=np.geomspace(1e9, 1e11, 8))


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(1)
    frame = simulate("chinchilla", CHINCHILLA, DESIGN, sigma=0.002, seed=0).frame
    flag = (frame["params"] > 5e8).to_numpy() & (rng.random(len(frame)) < 0.6)
    above = np.where(flag, 0.03 * np.exp(0.5 * rng.standard_normal(len(frame))), 0.0)
    frame = frame.assign(undertuned=flag, loss=frame["loss"] * np.exp(above))
    settings = {"discrepancy": "none", "chains": 2}
    table = bl.from_frame(frame, "undertuned")
    alike = bl.from_frame(frame.drop(columns="undertuned"), "alike")
    return table, bl.fit("chinchilla", table, **settings), bl.fit("chinchilla", alike, **settings)


def test_the_law_goes_through_the_others(fitted):
    table, fit, alike = fitted
    assert fit.spec.effects == ("undertuned",)
    rows = grid(params=[3e9, 1e10], tokens=3e11)
    true = simulate("chinchilla", CHINCHILLA, rows).loss
    own, ignored = (np.log(np.median(f.latent(rows), 0) / true) for f in (fit, alike))
    assert np.abs(own).max() < 0.01
    assert np.abs(ignored).max() > 1.3 * np.abs(own).max()
    effects = fit.draws["undertuned_effect"]
    flagged = effects.sel(undertuned=effects["undertuned"] != random_effects.OTHERS)
    assert (flagged > 0).all()
    assert (effects.sel(undertuned=random_effects.OTHERS) == 0).all()
    assert flagged.sizes["undertuned"] == table.frame["undertuned"].sum()


def test_forecasts_and_checks(fitted, tmp_path):
    _, fit, _ = fitted
    rows = grid(params=3e9, tokens=2e11)
    tuned, flagged = (fit.forecast(rows.assign(undertuned=flag), seed=1).samples for flag in (0, 1))
    np.testing.assert_array_equal(fit.forecast(rows, seed=1).samples, tuned)
    assert np.median(np.log(flagged / tuned)) > 0.01
    fit.save(tmp_path / "fit.nc")
    again = bl.load(tmp_path / "fit.nc")
    np.testing.assert_array_equal(again.forecast(rows, seed=1).samples, tuned)
    assert np.isfinite(leave_out(fit, 0).frame["pit"]).all()
    assert bl.check(fit)["cells"].level == "ok"
    assert np.isfinite(fit.to_datatree(prior=20)["prior_predictive"]["log_loss"].values).all()


def test_without_flagged_rows_there_is_no_such_effect(fitted):
    table, _, _ = fitted
    for frame in (table.frame.assign(undertuned=0), table.frame.drop(columns="undertuned")):
        chosen = random_effects.choose("auto", frame, "table")
        assert "undertuned" not in chosen
