"""Two domains measured on the same runs, in one posterior."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bayeslaw import FitError, LossTable, fit_joint, from_frame, grid, load, plan
from bayeslaw.inference import fitting
from bayeslaw.inference.residuals import log_likelihood
from tests.support import grouped

LAWS = {"french": "chinchilla", "english": "chinchilla"}
TAU = (0.006, 0.012)


def pair(rho: float) -> dict[str, LossTable]:
    """Two domains whose runs share effects of correlation `rho`."""
    tables = [grouped(seed, {}).frame.drop(columns="base") for seed in (0, 1)]
    groups, index = np.unique(tables[0]["run"], return_inverse=True)
    rng = np.random.default_rng(5)
    shared = rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], len(groups)) * TAU
    for k, frame in enumerate(tables):
        frame["loss"] *= np.exp(shared[index, k])
    return {n: from_frame(frame, n) for n, frame in zip(LAWS, tables, strict=True)}


def with_gaps(tables: dict[str, LossTable]) -> dict[str, LossTable]:
    """The tables with two more rows, which have no label."""
    more = {n: t.frame.iloc[[0, 30]].assign(run=None) for n, t in tables.items()}
    for frame, tau in zip(more.values(), TAU, strict=True):
        frame["loss"] *= np.exp([tau, -tau])
    every = {n: pd.concat([t.frame, more[n]], ignore_index=True) for n, t in tables.items()}
    return {n: from_frame(frame, n) for n, frame in every.items()}


@pytest.fixture(scope="module")
def fitted():
    settings = {"discrepancy": "none", "draws": 400, "chains": 2, "retry": False}
    return fit_joint(LAWS, with_gaps(pair(0.9)), seed=1, **settings)


def test_scales_and_correlation_are_recovered(fitted):
    for posterior, tau in zip(fitted.values(), TAU, strict=True):
        low, high = np.quantile(posterior.draws["tau_run"], [0.005, 0.995])
        assert low < tau < high
    (matrix,) = fitted["french"].settings["correlation"].values()
    assert 0.5 < matrix[0][1] < 1


def test_draws_of_the_two_go_together(fitted):
    one, two = (fitted[n].draws["run_effect"] for n in LAWS)
    centred = [(e - e.mean(("chain", "draw"))).values.ravel() for e in (one, two)]
    assert fitted["french"].settings["joint"] == fitted["english"].settings["joint"]
    assert abs(np.corrcoef(centred)[0, 1]) > 0.02


def test_a_plan_pairs_their_draws(fitted):
    rows = grid(params=1e9, tokens=1e10)
    at = {n: np.median(fitted[n].latent(rows)) for n in LAWS}
    limits = {"max_loss": at["french"], "max_forgetting": 0.05, "baseline": at["english"] / 1.05}
    asked = limits | {"params": 1e9, "ptpp": 20, "replay_grid": [1.0], "allow_unconverged": True}
    asked |= {"noise": "latent", "beyond_evidence": True}

    def planned(by, confidence):
        return plan(target=by["french"], source=by["english"], **asked, confidence=confidence)

    apart = {n: replace(posterior, settings={}) for n, posterior in fitted.items()}
    together, alone = planned(fitted, 0.6), planned(apart, 0.6)
    assert together.pairing == "jointly: draw by draw of one fit"
    assert alone.pairing.startswith("independently: 2 fits")
    for found, turn in ((together, 0), (alone, together.draws // 2)):
        rows = grid(params=1e9, tokens=found.tokens)
        target, source = (fitted[n].latent(rows)[:, 0] for n in LAWS)
        meets = (target <= limits["max_loss"]) & (np.roll(source, turn) <= at["english"])
        assert 0 < found.p_both < 1
        assert found.p_both == meets.mean()
    levels = (0.3, 0.4, 0.5, 0.6)
    budgets = [[planned(by, level).tokens for level in levels] for by in (fitted, apart)]
    assert budgets[0] != budgets[1]  # one of them alone may agree: the draws are finite


def test_each_domain_forecasts_and_saves_on_its_own(fitted, tmp_path):
    for name, posterior in fitted.items():
        predicted = posterior.forecast(posterior.table, allow_unconverged=True)
        assert np.abs(np.log(predicted.median / posterior.table.loss))[:-2].max() < 0.01
        posterior.save(tmp_path / f"{name}.nc")
        again = load(tmp_path / f"{name}.nc")
        assert again.settings["joint"] == posterior.settings["joint"]
        np.testing.assert_array_equal(again.latent(again.table), posterior.latent(again.table))


def test_rows_without_a_label_are_groups_of_their_domain_alone(monkeypatch):
    tables, given = with_gaps(pair(0.5)), {}

    def stop(domains, settings):
        given.update(domains)
        raise InterruptedError

    monkeypatch.setattr(fitting, "sample", stop)
    with pytest.raises(InterruptedError):
        fit_joint(LAWS, tables, discrepancy="none")
    one, two = (given[f"{name}::"].index["run"] for name in LAWS)
    assert not set(one[-2:]) & set(two)
    assert set(one[:-2]) == set(two[:-2])


def test_rows_without_a_label_have_the_effects_fitted_for_them(fitted):
    for posterior in fitted.values():
        density = log_likelihood(posterior).mean(0)
        assert density[-2:].mean() == pytest.approx(density[:-2].mean(), abs=1)


def test_domains_must_match():
    with pytest.raises(FitError, match="laws name french, tables french, english"):
        fit_joint({"french": "chinchilla"}, pair(0.5))
