"""Checkpoints that are not annealed: the offset, its derivatives, recovery, and plans."""

import numpy as np
import pytest

import bayeslaw as bl
from bayeslaw import TableError, grid, load_law, simulate
from tests.support import CHINCHILLA, DESIGN, LAWS, truth_of

HOT = {"unannealed": 0.02, "unannealed_D": 0.006, "unannealed_N": -0.004}
ALONG = {"D": "tokens", "N": "params"}
MORE = HOT | {"unannealed_P": -0.003, "unannealed_r": -0.02}


@pytest.mark.parametrize("name", LAWS)
def test_offset_and_derivatives(name):
    plain = load_law(name)
    law = plain.annealing()
    assert law.annealing() is law
    assert law.without_discrepancy.parameters == law.parameters
    frame = DESIGN.sample(40, random_state=3)
    frame["annealed"] = np.arange(40) % 2
    x, at = law.covariates(frame), law.reference_point(frame)
    p = truth_of(plain.parameters) | {n: MORE[n] for n in law.offset.parameters}
    q = law.to_reference(p, at)
    sizes = law.amounts(q, at)
    factor = p["unannealed"] + p["unannealed_D"] * x["tokens"]
    factor += p.get("unannealed_N", 0) * x.get("params", 0)
    factor += p.get("unannealed_P", 0) * x.get("ptpp", 0)
    factor += p.get("unannealed_r", 0) * x.get("share", 0)
    for back, value in law.to_paper(q, at).items():
        assert value == pytest.approx(p[back], rel=1e-9, abs=1e-9)
    expected = plain.loss(p, plain.covariates(frame)) * np.exp(factor * (1 - frame["annealed"]))
    np.testing.assert_allclose(law.loss(sizes, x, at), expected, rtol=1e-10)
    np.testing.assert_allclose(law.loss(p, x), expected, rtol=1e-10)
    fresh = law.covariates(frame.drop(columns="annealed"))
    np.testing.assert_allclose(
        law.loss(sizes, fresh, at), plain.loss(p, plain.covariates(frame)), rtol=1e-10
    )
    by = law.gradient(sizes, x, at)
    for each in law.offset.parameters:
        up, down = (law.loss(sizes | {each: sizes[each] + s}, x, at) for s in (1e-6, -1e-6))
        np.testing.assert_allclose(by[each], (up - down) / 2e-6, 1e-5, 1e-9)


@pytest.fixture(scope="module")
def table():
    design = grid(params=[1e8, 4e8, 1.6e9], annealed=[0, 1], tokens=np.geomspace(1e9, 1e11, 8))
    law = load_law("chinchilla").annealing()
    at = law.reference_point(design)
    middle = HOT["unannealed"] - sum(HOT[f"unannealed_{c}"] * at[x] for c, x in ALONG.items())
    truth = CHINCHILLA | HOT | {"unannealed": middle}
    return simulate("chinchilla", truth, design, sigma=0.002, seed=1)


def test_fits_recover_it(table, tmp_path):
    point = bl.fit_huber("chinchilla", table)
    fit = bl.fit("chinchilla", table, discrepancy="none", chains=2)
    for name, value in HOT.items():
        own = fit.draws["unannealed_ref" if name == "unannealed" else name]
        low, high = own.quantile([0.01, 0.99])
        assert low < value < high
    rows = grid(params=4e8, tokens=1e10)
    both = [point.predict(rows.assign(annealed=flag)) for flag in (1, 0)]
    assert np.log(both[1] / both[0]) == pytest.approx(0.02, abs=0.004)
    cold, hot = (fit.latent(rows.assign(annealed=flag)) for flag in (1, 0))
    np.testing.assert_array_equal(fit.latent(rows), cold)
    assert np.median(np.log(hot / cold)) == pytest.approx(0.02, abs=0.004)
    fit.save(tmp_path / "fit.nc")
    np.testing.assert_array_equal(bl.load(tmp_path / "fit.nc").latent(rows), cold)


def test_only_tables_with_both_have_an_offset(table):
    settings = {"method": "map"}
    both = bl.fit("chinchilla", table, **settings)
    one = bl.fit("chinchilla", table.query("annealed == 1"), **settings)
    assert both.law.offset
    assert one.law.offset is None
    with pytest.raises(TableError, match="'annealed' is neither 0 or 1"):
        bl.from_frame(table.frame.assign(annealed=0.5))
