"""Synthetic tables, the synthetic world of the paper, and simulation-based calibration."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import bayeslaw as bl
from bayeslaw.design.design import Design
from bayeslaw.inference import residuals
from bayeslaw.laws.priors import NOISE
from benchmarks.sbc import calibrate
from tests.support import CHINCHILLA, object_mode, on_bound, refused, truth_of

WORLD = bl.paper_world()
DOMAINS = ("french", "english_arabic")
ORACLE = {"french": 2.03e-3, "english_arabic": 5.77e-3}  # the paper's appendix B
ROWS = bl.grid(params=[1e8, 1e9], tokens=[1e9, 1e10])


def rmse_log(law, train, test):
    predicted = bl.fit_huber(law, train).predict(test)
    return float(np.sqrt(np.mean(np.log(predicted / test.loss) ** 2)))


def test_the_optimum_is_the_papers_and_both_limits_bind_there():
    """Brute force over ATPP and replay, from the true losses alone."""
    limits = WORLD.limits
    atpp, replay = np.arange(8, 10, 0.01), np.arange(0.2, 0.5, 0.005)
    rows = bl.grid(
        params=limits["params"], ptpp=limits["ptpp"], replay=replay, atpp=atpp
    )
    rows["tokens"] = rows["atpp"] * rows["params"]
    forgetting = WORLD.loss(WORLD.source, rows) / WORLD.baseline() - 1
    feasible = (forgetting <= limits["max_forgetting"]) & (
        WORLD.loss(WORLD.target, rows) <= limits["max_loss"]
    )
    best = rows[feasible].sort_values("atpp").iloc[0]
    assert best["atpp"] == pytest.approx(8.9, abs=0.05)
    assert best["replay"] == pytest.approx(0.34, abs=0.005)
    optimum = rows[:1].assign(replay=0.34, tokens=8.9 * limits["params"])
    loss, after = (
        WORLD.loss(domain, optimum)[0] for domain in (WORLD.target, WORLD.source)
    )
    assert loss == pytest.approx(limits["max_loss"], abs=1e-5)
    assert after / WORLD.baseline() - 1 == pytest.approx(
        limits["max_forgetting"], abs=1e-5
    )


@on_bound  # an exponent on a bound does not change in-sample errors
@pytest.mark.parametrize("domain", DOMAINS)
def test_noise_is_of_the_papers_oracle_and_noiseless_truth_is_recovered(domain):
    tables = [WORLD.table(domain, seed=seed).query("ptpp == 279") for seed in range(6)]
    errors = [rmse_log("dcpt", table, table) for table in tables]
    assert np.mean(errors) == pytest.approx(ORACLE[domain], rel=0.1)
    exact = WORLD.table(domain, noise=False)
    assert exact.loss == pytest.approx(WORLD.loss(domain, exact.frame), rel=1e-14)
    assert rmse_log(WORLD.laws[domain], exact, exact) < 1e-6
    assert np.log(
        WORLD.table(domain, noise=0.01).loss / exact.loss
    ).std() == pytest.approx(0.01, rel=0.15)


@on_bound
def test_french_errors_rank_as_in_the_paper():
    """The law without PTPP is worst; Form 3 is best, and anchors improve it."""
    table = WORLD.table("french")
    split = table.split("ptpp <= 31", "ptpp == 279")
    anchored = table.split("ptpp <= 31", "ptpp == 279", WORLD.anchors)
    assert [len(part) for part in (*split, *anchored)] == [168, 84, 188, 64]
    transfer = rmse_log("dcpt", *split)
    assert transfer == pytest.approx(3.47e-2, rel=0.05)
    form1, form2, form3 = (
        rmse_log(law, *anchored) for law in ("form1", "form2", "form3")
    )
    assert form1 == pytest.approx(1.02e-2, rel=0.15)
    assert form2 == pytest.approx(9.2e-3, rel=0.25)
    # Without anchors Form 3 is not identified: where the fit ends may depend on the machine.
    assert form3 < rmse_log("form3", *split) < 0.5 * transfer
    assert form3 < 0.5 * form2


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_truth_lies_in_the_central_95_percent_of_the_priors(domain):
    law, truth = WORLD.laws[domain], WORLD.truth[domain]
    at = Design(law, WORLD.design().query("ptpp <= 31")).at
    local = law.to_reference(truth, at) | {"sigma": WORLD.sigma[domain]}
    local["floor"] = truth["E"] / local["L_ref"]
    frozen = {
        "LogNormal": lambda mu, sigma: stats.lognorm(sigma, scale=np.exp(mu)),
        "HalfNormal": lambda sigma: stats.halfnorm(scale=sigma),
        "Normal": lambda mu, sigma: stats.norm(mu, sigma),
        "Beta": lambda alpha, beta: stats.beta(alpha, beta),
    }
    for name in {"floor", *law.coordinates[1:], "sigma"}:
        prior = (NOISE | law.priors)[name]
        low, high = frozen[prior.name](**prior.kwargs).interval(0.95)
        assert low < local[name] < high, name


def test_tables_of_the_world_depend_on_seed_and_domain_alone_and_are_labelled():
    first, again, other = (WORLD.table("french", seed=seed) for seed in (3, 3, 4))
    pd.testing.assert_frame_equal(first.frame, again.frame)
    assert first.sha256 == again.sha256 != other.sha256
    assert not np.allclose(first.loss, other.loss, rtol=1e-5)
    both = WORLD.table(seed=3)
    for domain in DOMAINS:
        alone = both.query(f"domain == '{domain}'").frame
        pd.testing.assert_frame_equal(alone, WORLD.table(domain, seed=3).frame)
    for table in (both, first, bl.simulate("chinchilla", CHINCHILLA, ROWS)):
        assert table.name.startswith("synthetic")
        assert table.frame["synthetic"].eq(True).all()
    assert first.baselines.empty  # only the source has some, one per N and PTPP
    baselines = WORLD.table("english_arabic").baselines
    assert len(baselines) == 12
    assert baselines["synthetic"].eq(True).all()
    row = baselines.query("params == 8.1e9 and ptpp == 279").iloc[0]
    assert row["loss"] == WORLD.baseline() == pytest.approx(2.05, abs=1e-5)


def test_simulate_keeps_columns_takes_aliases_and_a_generator():
    design = ROWS.rename(columns={"params": "N", "tokens": "D"}).assign(
        run=["a", "b", "c", "d"]
    )
    table = bl.simulate("chinchilla", CHINCHILLA, design, name="two sizes")
    assert table.name == "synthetic two sizes"
    assert table.frame["run"].tolist() == ["a", "b", "c", "d"]
    assert table.loss == pytest.approx(
        1.7 + 400 / design["N"] ** 0.34 + 410 / design["D"] ** 0.28
    )
    rng = np.random.default_rng(1)
    one, two, seeded = (
        bl.simulate("chinchilla", CHINCHILLA, ROWS, sigma=0.1, seed=seed).loss
        for seed in (rng, rng, 1)
    )
    assert not np.allclose(one, two)
    assert seeded == pytest.approx(one, rel=1e-15)


def test_what_cannot_be_simulated_is_told():
    whole = CHINCHILLA
    for truth, rows, sigma, says in (
        (whole | {"alfa": 0.3}, ROWS, 0, "alpha"),
        (whole | {"E": np.nan}, ROWS, 0, "not positive and finite"),
        (whole | {"E": -1e3}, ROWS, 0, "not positive and finite"),
        (whole | {"A": 1e308, "alpha": -50.0}, ROWS, 0, "not positive and finite"),
        ({"E": 1.7, "alpha": 0.34, "B": 410.0}, ROWS, 0, "no value for A, beta"),
        (whole, ROWS, -0.1, "sigma"),
        (whole, ROWS, np.nan, "sigma"),
        (whole, ROWS, np.inf, "sigma"),
        (whole, ROWS[["params"]], 0, "tokens"),
    ):
        refused(
            bl.BayeslawError, says, bl.simulate, "chinchilla", truth, rows, sigma=sigma
        )
    for ask in (WORLD.table, lambda domain: WORLD.loss(domain, WORLD.design())):
        refused(
            bl.BayeslawError,
            r"did you mean 'french'\? Valid: english_arabic",
            ask,
            "frensh",
        )


PLAIN = {"discrepancy": "none", "draws": 250, "tune": 250, "chains": 2, "retry": False}
PLAIN |= {"effects": "none", "errors": "independent"}


@object_mode
def test_the_same_seed_gives_the_same_ranks_and_posteriors_without_r_hat_are_left_out():
    few = PLAIN | {"simulations": 2}
    one, two, other = (
        calibrate("chinchilla", **few, seed=seed).ranks for seed in (0, 0, 1)
    )
    assert one.equals(two)
    assert (one.nunique() == 2).all()  # each simulation has its own
    assert not np.isin(one, other).any()
    for law in ("chinchilla", "mixture"):
        found = calibrate(law, **few | {"chains": 1, "draws": 20})
        assert (found.failed, len(found.ranks)) == (2, 0)


def test_a_simulated_table_has_a_role():
    design = bl.grid(params=1e9, ptpp=31, replay=[0.1, 0.9], tokens=1e10)
    truth = truth_of(bl.load_law("mixture").parameters)
    refused(
        bl.TableError, "give role='target' or", bl.simulate, "mixture", truth, design
    )
    target, source = (
        bl.simulate("mixture", truth, design, role=r) for r in ("target", "source")
    )
    assert (target.role, source.role) == ("target", "source")
    # Their own shares are r and 1 - r.
    np.testing.assert_allclose(target.loss, source.loss[::-1])
    stated = bl.simulate("mixture", truth, design.assign(role="source"))
    pd.testing.assert_frame_equal(stated.frame, source.frame, check_like=True)
    for call in (
        calibrate,
        lambda law, **how: bl.simulate(law, truth, design, **how),
    ):
        with pytest.raises(
            bl.TableError, match="unknown role 'sorce'; did you mean 'source'"
        ):
            call("mixture", role="sorce")


def envelope(law="chinchilla", simulations=40, **settings):
    """Wider than 95 %, for about ten quantities at once: one sound run in 100 fails."""
    found = calibrate(law, simulations=simulations, **PLAIN | settings)
    assert found.failed <= simulations / 10
    return found.envelope(level=0.999)


@pytest.mark.filterwarnings("ignore:.* can take the place of the law's term")
@pytest.mark.slow
@object_mode
@pytest.mark.filterwarnings("ignore:.*NUTS.*")
def test_truths_are_ranked_uniformly_and_planted_faults_are_found(monkeypatch):
    """A fault of the draws, and forecasts that have independent errors or forget the bases."""
    table = envelope(fault={"sigma": 1.5})
    assert not table.loc["sigma", "inside"]
    assert table.drop("sigma")["inside"].all(), table
    runs = {"errors": "run", "likelihood": "normal"}
    table = envelope(**runs)
    assert table["inside"].all(), table

    def independent(fit, frame, rng):
        sigma = fit.scale(frame)
        return fit.spec.likelihood.sample(rng, sigma.shape, sigma, fit.values())

    # The variance of 40 uniform ranks has a relative sd of .14; here it falls to about .4.
    monkeypatch.setattr(residuals, "error_draws", independent)
    assert (
        table.loc["change", "spread"] > 0.6 > envelope(**runs).loc["change", "spread"]
    )
    monkeypatch.undo()

    def forgetful(fit, frame, rng, training=False):
        return np.zeros((fit.count, len(frame)))

    # Of a law that has two bases of each size: one has an effect that its size may explain.
    monkeypatch.setattr(residuals, "group_effects", forgetful)
    priors = {"tau_base": bl.Prior("LogNormal", median=0.1, sigma=0.3)}
    table = envelope("form1", 20, priors=priors, effects=("base",))
    # Of a fitted base.
    assert not table.loc[["loss 2", "loss 3"], "inside"].any(), table
