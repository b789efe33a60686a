"""A noise scale for each group: recovery, new groups, storage, errors."""

import numpy as np
import pytest

import bayeslaw as bl
from bayeslaw.common.errors import LawError
from bayeslaw.evaluate.residuals import residual_draws
from bayeslaw.model.noise import make_noise, row_scale
from bayeslaw.simulation.worlds import simulate
from bayeslaw.tables.table import grid
from tests.support import CHINCHILLA

SCALES = {1e8: 0.002, 3e8: 0.02, 1e9: 0.002, 3e9: 0.006}


@pytest.fixture(scope="module")
def fitted():
    design = grid(params=list(SCALES), tokens=np.geomspace(1e9, 3e11, 16))
    frame = simulate("chinchilla", CHINCHILLA, design).frame
    noise = np.random.default_rng(2).standard_normal(len(frame))
    frame["loss"] *= np.exp(frame["params"].map(SCALES) * noise)
    table = bl.from_frame(frame, "grouped")
    settings = {"discrepancy": "none", "chains": 2}
    return table, bl.fit("chinchilla", table, noise="size", **settings)


def test_each_group_has_its_scale(fitted):
    table, fit = fitted
    low, high = np.quantile(fit.scale(table.frame), [0.02, 0.98], axis=0)
    true = table.frame["params"].map(SCALES).to_numpy()
    assert (low < true).all()
    assert (true < high).all()
    assert fit.convergence.ok
    new = fit.scale(grid(params=2e9, tokens=1e10))[:, 0]
    assert np.log(new).std() > 1.5 * np.log(fit.scale(table.frame)).std(0).max()
    drawn = residual_draws(fit, grid(params=[1e8, 3e8], tokens=1e10), np.random.default_rng(0))
    assert np.std(drawn[:, 1]) > 4 * np.std(drawn[:, 0])


def test_a_file_and_the_model_keep_it(fitted, tmp_path):
    table, fit = fitted
    fit.save(tmp_path / "fit.nc")
    again = bl.load(tmp_path / "fit.nc")
    rows = grid(params=[1e8, 5e8], tokens=1e10)
    np.testing.assert_array_equal(again.scale(rows), fit.scale(rows))
    np.testing.assert_array_equal(fit.scale(rows)[:, 1:], fit.scale(rows.tail(1)))
    tree = fit.to_datatree(prior=20)
    assert np.isfinite(tree["log_likelihood"]["log_loss"].values).all()
    assert bl.score(fit.forecast(table), table).coverage_90 > 0.8


@pytest.mark.parametrize(
    ("kind", "expected"), [("constant", [1, 1]), ("loglinear", [1, 0.5]), ("size", [np.e, 1])]
)
def test_scales_of_rows(kind, expected):
    q = {"sigma": np.ones((1, 1)), "noise_slope": np.array([[-0.5]]), "tau_noise": np.ones((1, 1))}
    groups = {"100000000.0": np.ones(1), "400000000.0": np.zeros(1)}
    frame = grid(params=[1e8, 4e8])
    found = row_scale(make_noise(kind), q, frame, np.log(1e8), groups, 0)
    np.testing.assert_allclose(found, [expected])


def test_a_name_that_is_no_column():
    table = simulate("chinchilla", CHINCHILLA, grid(params=[1e8, 1e9], tokens=[1e9, 1e10]))
    with pytest.raises(LawError, match="did you mean 'size'"):
        bl.fit("chinchilla", table, noise="sise")


def test_domains_each_have_their_scales():
    design = grid(params=[1e8, 3e8, 1e9], tokens=[1e9, 3e9, 1e10, 9e10])
    table = simulate("chinchilla", CHINCHILLA, design, sigma=0.005)
    tables = {
        name: bl.from_frame(table.frame.assign(loss=table.loss * factor), name)
        for name, factor in (("one", 1.0), ("two", 1.1))
    }
    settings = {"discrepancy": "none", "draws": 20, "tune": 20, "chains": 2, "retry": False}
    found = bl.fit_joint(dict.fromkeys(tables, "chinchilla"), tables, noise="size", **settings)
    assert found["two"].scale(table.frame).shape == (40, 12)
