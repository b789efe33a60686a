"""Tables that a hostile reader would try: the same answer, or one clear error."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import bayeslaw as bl
from bayeslaw import BayeslawError, TableError, TableWarning, grid, load_law, simulate
from tests.support import CHINCHILLA

DESIGN = grid(params=[1e8, 3e8, 1e9, 3e9], tokens=np.geomspace(1e9, 1e11, 6))
AHEAD = grid(params=1e10, tokens=[1e11, 4e11])
SHORT = {"discrepancy": "none", "chains": 2}


def made(sigma=0.003, seed=0, design=DESIGN):
    return simulate("chinchilla", CHINCHILLA, design, sigma=sigma, seed=seed)


def bands(table, rows=AHEAD, **settings):
    """Log medians and log widths of forecasts."""
    fit = bl.fit("chinchilla", table, **SHORT | settings)
    found = np.log(fit.forecast(rows, allow_unconverged=True).samples)
    low, middle, high = np.quantile(found, [0.05, 0.5, 0.95], axis=0)
    return middle, high - low


@pytest.fixture(scope="module")
def usual():
    return bands(made())


def close(one, other, within=0.3):
    """Medians agree to a fraction of the bands, and widths to as much."""
    assert (np.abs(one[0] - other[0]) < within * other[1]).all()
    np.testing.assert_allclose(one[1], other[1], rtol=within)


def test_seeds_agree(usual):
    close(bands(made(), seed=11), usual)


def test_the_order_of_rows_does_not_matter(usual):
    shuffled = made().frame.sample(frac=1, random_state=3)
    close(bands(bl.from_frame(shuffled)), usual)
    here, there = (bl.fit_huber("chinchilla", bl.from_frame(f)) for f in (shuffled, made().frame))
    for name, value in there.parameters.items():
        assert here.parameters[name] == pytest.approx(value, rel=1e-6)


def test_losses_in_bits(usual):
    frame = made().frame
    found = bands(bl.from_frame(frame.assign(loss=frame["loss"] / np.log(2))))
    close((found[0] + np.log(np.log(2)), found[1]), usual)


def test_losses_near_zero_and_perplexities():
    """A law times a thousandth is fitted as well, and the table is doubted."""
    frame = made().frame
    with pytest.warns(TableWarning, match="median loss is 0.00285 .* priors of your own"):
        table = bl.from_frame(frame.assign(loss=frame["loss"] / 1000))
    found, usual = (bl.fit_huber("chinchilla", t).parameters for t in (table, made()))
    assert found["alpha"] == pytest.approx(usual["alpha"], rel=1e-4)
    assert found["E"] == pytest.approx(usual["E"] / 1000, rel=1e-4)
    perplexities = bl.from_frame(frame.assign(loss=np.exp(frame["loss"])), loss_unit="perplexity")
    np.testing.assert_allclose(perplexities.loss, made().loss)


def test_a_column_of_constants_and_labels_in_unicode(usual):
    frame = made().frame.assign(lab="Zürich 🚀", run=[f"läuft-{i}" for i in range(24)], note=1.0)
    close(bands(bl.from_frame(frame)), usual)
    grouped = frame.assign(base=np.where(frame["tokens"] > 1e10, "späť", frame["run"]))
    fit = bl.fit("chinchilla", bl.from_frame(grouped), effects="base", **SHORT)
    assert "späť" in fit.draws["base"].values


def test_one_run():
    """Rows of one run: its effect cannot be told from the law, so there is none."""
    design = grid(params=[1e8, 1e9], tokens=np.geomspace(1e9, 1e11, 6)).assign(run="only")
    fit = bl.fit("chinchilla", made(design=design), **SHORT)
    assert fit.spec.effects == ()
    assert np.isfinite(fit.latent(AHEAD)).all()


def test_fewer_rows_than_parameters():
    table = made(design=grid(params=[1e8, 1e9], tokens=[1e9]).assign(tokens=[1e9, 2e9]))
    fit = bl.fit("chinchilla", table, **SHORT)
    middle, width = np.log(np.median(fit.latent(AHEAD), 0)), np.log(fit.latent(AHEAD)).std(0)
    assert np.isfinite(middle).all()
    assert (width > 0.05).all()  # the priors', since two rows say little
    assert bl.check(fit, AHEAD).level != "ok"


def test_noise_of_zero():
    """Exact losses: the parameters are found; a posterior is so too, or says that it failed."""
    table = made(sigma=0.0)
    point = bl.fit_huber("chinchilla", table)
    for name, value in CHINCHILLA.items():
        assert point.parameters[name] == pytest.approx(value, rel=1e-6)
    fit = bl.fit("chinchilla", table, **SHORT, draws=500, retry=False)
    true = simulate("chinchilla", CHINCHILLA, AHEAD).loss
    assert np.abs(np.log(np.median(fit.latent(AHEAD), 0) / true)).max() < 0.01


def test_bases_that_are_there_twice(usual):
    frame = made().frame
    bases = grid(params=[1e8, 3e8, 1e9, 3e9], tokens=0.0).assign(loss=4.0)
    doubled = bl.from_frame(pd.concat([frame, bases, bases.assign(loss=4.1)]))
    assert len(doubled.baselines) == 8
    with pytest.raises(TableError, match="copies of earlier rows"):
        bl.from_frame(pd.concat([frame, bases, bases]))
    close(bands(doubled), usual)


def test_ten_thousand_rows():
    design = grid(params=np.geomspace(1e8, 1e10, 50), tokens=np.geomspace(1e9, 1e12, 200))
    table = made(design=design, seed=3)
    point = bl.fit_huber("chinchilla", table)
    assert point.parameters["alpha"] == pytest.approx(CHINCHILLA["alpha"], rel=0.01)
    fit = bl.fit("chinchilla", table, **SHORT, draws=250, retry=False)
    low, high = fit.paper["beta"].quantile([0.001, 0.999])
    assert low < CHINCHILLA["beta"] < high < 1.02 * low


def test_a_nonsense_law_or_table_is_one_line():
    cases = (
        lambda: bl.fit("chinchila", made()),
        lambda: bl.fit("form3", made()),
        lambda: bl.fit("chinchilla", made(), effects="rnu"),
        lambda: bl.fit("chinchilla", made(), likelihood="gauss"),
        lambda: bl.from_frame(made().frame.assign(loss=-1.0)),
        lambda: bl.fit("chinchilla", made(), priors={"alhpa": "Normal(mu=0, sigma=1)"}),
        lambda: made().query("params > 1e99"),
        lambda: replace(load_law("chinchilla")).covariates(grid(params=1e9)),
    )
    for case in cases:
        with pytest.raises(BayeslawError) as caught:
            case()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400
