"""Pools: a mixture of posteriors that everything takes like one."""

import h5py
import numpy as np
import pytest

import bayeslaw as bl
from bayeslaw import Pool
from tests.inside import load_posterior

AHEAD = bl.grid(params=[8.1e9], ptpp=279, replay=[0.1, 0.5], tokens=[1e10, 1e11])
LIMITS = {"params": 8.1e9, "ptpp": 279, "max_loss": 1.9, "max_forgetting": 0.1, "baseline": 2.05}
LIMITS |= {"noise": "latent"}


@pytest.fixture(scope="module")
def pool(two_stages) -> Pool:
    other = bl.fit("form1n", two_stages.table, discrepancy="none", draws=250, chains=2, retry=False)
    return Pool({"form1": two_stages, "form1n": other}, {"form1n": 1.0, "form1": 3.0}, "ours")


@pytest.fixture(scope="module")
def source() -> bl.Posterior:
    table = bl.paper_world().table("english_arabic", seed=0).query("ptpp <= 31")
    return bl.fit("form1", table, discrepancy="none", draws=250, chains=2, retry=False)


def test_draws_are_those_of_members_in_proportion(pool):
    counts = [len(own) for _, own, _ in pool.by_member()]
    assert counts[0] == pytest.approx(3 * counts[1], abs=2)
    assert sum(counts) == pool.count
    latent = pool.latent(AHEAD)
    first, own, place = next(iter(pool.by_member()))
    np.testing.assert_array_equal(latent[place], first.latent(AHEAD)[own])
    some = np.array([pool.count - 1, 0, 5])
    np.testing.assert_array_equal(pool.gathered(lambda fit: fit.latent(AHEAD), some), latent[some])


def test_forecast_is_the_mixture(pool):
    forecast = pool.forecast(AHEAD, allow_unconverged=True)
    assert forecast.weights == pytest.approx({"form1": 0.75, "form1n": 0.25})
    low, high = np.quantile(pool.latent(AHEAD), [0.1, 0.9], axis=0)
    found = pool.forecast(AHEAD, kind="latent", allow_unconverged=True).quantile([0.1, 0.9])
    np.testing.assert_allclose(found, [low, high], rtol=0.02)


def test_a_member_that_fails_is_said(pool):
    assert not pool.convergence.ok
    with pytest.raises(bl.NotConverged, match="form1n"):
        pool.forecast(AHEAD)


def test_a_saved_pool_forecasts_the_same(pool, tmp_path):
    pool.save(tmp_path / "pool.nc")
    again = bl.load(tmp_path / "pool.nc")
    assert isinstance(again, Pool)
    assert (again.name, dict(again.weights)) == ("ours", dict(pool.weights))
    assert {name: fit.law.name for name, fit in again.members.items()} == {
        "form1": "form1",
        "form1n": "form1n",
    }
    before, after = (each.forecast(AHEAD, allow_unconverged=True) for each in (pool, again))
    np.testing.assert_array_equal(before.samples, after.samples)
    with h5py.File(tmp_path / "pool.nc", "a") as file:
        file["member 1/posterior/L_ref"][0, 0] *= 1 + 1e-15
    with pytest.raises(bl.FileError, match=r"damaged or edited.*restore the file, or fit again"):
        bl.load(tmp_path / "pool.nc")


def test_what_needs_one_law_says_so(pool, tmp_path):
    pool.save(tmp_path / "pool.nc")
    with pytest.raises(bl.FileError, match="fit of one of its laws alone: form1, form1n"):
        load_posterior(tmp_path / "pool.nc")


def test_a_plan_is_that_of_the_pooled_draws(pool, source):
    """Against brute force: the losses of all draws about the planned budget."""
    found = bl.plan(target=pool, source=source, replay_grid=[0.3], allow_unconverged=True, **LIMITS)
    assert found.status == "feasible"
    row = bl.grid(params=8.1e9, ptpp=279, replay=0.3, tokens=found.tokens)
    for fit, limit, p in ((pool, 1.9, found.p_target), (source, 2.05 * 1.1, found.p_forgetting)):
        # The longer of two posteriors is thinned to the length of the other.
        assert p == pytest.approx((fit.latent(row) <= limit).mean(), abs=0.03)
    assert found.p_both == pytest.approx(0.9, abs=0.002)
    assert found.at(atpp=found.atpp * 0.99, replay=0.3).p_both < 0.9


def test_anchors_of_a_pool_are_between_those_of_its_members(pool):
    candidates = bl.grid(params=[2.41e8, 1.4e9], tokens=2e10, replay=[0.1, 0.5], ptpp=[80, 279])
    picks = {
        name: bl.choose_anchors(fit, candidates, AHEAD, k=1, allow_unconverged=True)
        for name, fit in {**pool.members, "pool": pool}.items()
    }
    before = {name: float(found.picks["sd_before"].iloc[0]) for name, found in picks.items()}
    assert before["pool"] >= min(before["form1"], before["form1n"])


def test_parts_of_a_check_are_those_of_members(pool):
    found = bl.check(pool, AHEAD)
    assert found["form1n: convergence"].level == "refuse"
    members = {"form1", "form1n"}
    assert {name.split(":")[0] for name in found.frames} == {"held out", "extrapolation", *members}


@pytest.mark.usefixtures("undrawn")
def test_a_report_has_the_parameters_of_every_member(pool):
    page = bl.report(pool, AHEAD, allow_unconverged=True)
    names = list(page.sections)
    assert {"parameters-form1", "parameters-form1n"} <= set(names)
    assert len(names) == len(set(names))


def test_trees_are_by_member(pool):
    tree = pool.to_datatree(prior=50)
    assert set(tree.children) == {"form1", "form1n"}
    shown = str(pool)
    assert shown.startswith("ours: Pool of 25 % form1n and 75 % form1\n")
    assert (shown.count("NOT CONVERGED"), shown.count("Default priors.")) == (1, 2)
    assert set(pool.summary().index.get_level_values(0)) == {"form1", "form1n"}


def test_a_list_of_laws_is_fitted_as_a_pool(small):
    settings = {"discrepancy": "none", "draws": 50, "chains": 2, "retry": False}
    found = bl.fit(["chinchilla", "skaling"], small, **settings)
    assert isinstance(found, Pool)
    assert found.weights == {"chinchilla": 0.5, "skaling": 0.5}
    alone = bl.fit("skaling", small, **settings)
    np.testing.assert_array_equal(found.members["skaling"].draws["alpha"], alone.draws["alpha"])
    with pytest.raises(bl.LawError, match="twice"):
        bl.fit(["chinchilla", "chinchilla"], small, **settings)
    with pytest.raises(bl.FitError, match="a pool has no mode"):
        bl.fit(["chinchilla", "skaling"], small, method="map")


def test_weights_and_tables_are_checked(two_stages, source):
    for weights in ({"a": 1.0}, {"a": -1.0, "b": 2.0}, {"a": 0.0, "b": 0.0}):
        with pytest.raises(bl.LawError, match="weight"):
            Pool({"a": two_stages, "b": two_stages}, weights)
    with pytest.raises(bl.LawError, match="different tables"):
        Pool({"a": two_stages, "b": source})


def test_the_default_pool_asks_for_the_bases():
    with pytest.raises(bl.TableError, match=r"'start_loss' is missing.*source="):
        bl.fit("adaptation", bl.paper_world().table("french", seed=0))
