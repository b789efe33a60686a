import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bayeslaw import (
    BayeslawError,
    LawError,
    LossTable,
    Prior,
    TableError,
    fit_huber,
    grid,
    paper_world,
    simulate,
)
from bayeslaw.laws.priors import NOISE
from bayeslaw.simulation.worlds import World
from tests.support import CHINCHILLA, on_bound

DOMAINS = ("french", "english_arabic")
ORACLE = {"french": 2.03e-3, "english_arabic": 5.77e-3}  # the paper's appendix B


@pytest.fixture(scope="module")
def world() -> World:
    return paper_world()


def rmse_log(law: str, train: LossTable, test: LossTable) -> float:
    predicted = fit_huber(law, train).predict(test)
    return float(np.sqrt(np.mean(np.log(predicted / test.loss) ** 2)))


def test_the_optimum_is_the_papers(world):
    """Brute force over ATPP and replay, from the true losses alone."""
    limits = world.limits
    atpp, replay = np.arange(5, 15, 0.01), np.arange(0.005, 1, 0.005)
    rows = grid(params=limits["params"], ptpp=limits["ptpp"], replay=replay, atpp=atpp)
    rows["tokens"] = rows["atpp"] * rows["params"]
    forgetting = world.loss(world.source, rows) / world.baseline() - 1
    feasible = (forgetting <= limits["max_forgetting"]) & (
        world.loss(world.target, rows) <= limits["max_loss"]
    )
    best = rows[feasible].sort_values("atpp").iloc[0]
    assert best["atpp"] == pytest.approx(8.9, abs=0.05)
    assert best["replay"] == pytest.approx(0.34, abs=0.005)


def test_both_limits_bind_at_the_optimum(world):
    loss, after = world.adapted(0.34, 8.9 * world.limits["params"])
    assert loss == pytest.approx(world.limits["max_loss"], abs=1e-5)
    most = world.limits["max_forgetting"]
    assert after / world.baseline() - 1 == pytest.approx(most, abs=1e-5)


@on_bound  # in-sample errors are the point; an exponent on a bound does not change them
@pytest.mark.parametrize("domain", DOMAINS)
def test_noise_agrees_with_the_papers_oracle(world, domain):
    tables = [world.table(domain, seed=seed).query("ptpp == 279") for seed in range(6)]
    errors = [rmse_log("dcpt", table, table) for table in tables]
    assert np.mean(errors) == pytest.approx(ORACLE[domain], rel=0.1)


@on_bound
def test_french_errors_rank_as_in_the_paper(world):
    """The law without PTPP is worst; Form 3 is best, and anchors improve it."""
    table = world.table("french")
    split = table.split("ptpp <= 31", "ptpp == 279")
    anchored = table.split("ptpp <= 31", "ptpp == 279", world.anchors)
    assert [len(part) for part in (*split, *anchored)] == [168, 84, 188, 64]
    transfer = rmse_log("dcpt", *split)
    assert transfer == pytest.approx(3.47e-2, rel=0.05)
    form1, form2, form3 = (rmse_log(law, *anchored) for law in ("form1", "form2", "form3"))
    assert form1 == pytest.approx(1.02e-2, rel=0.15)
    assert form2 == pytest.approx(9.2e-3, rel=0.25)
    # Without anchors Form 3 is not identified: where the fit ends may depend on the machine.
    assert form3 < rmse_log("form3", *split) < 0.5 * transfer
    assert form3 < 0.5 * form2


@pytest.mark.parametrize("domain", DOMAINS)
def test_noiseless_truth_is_recovered(world, domain):
    table = world.table(domain, noise=False)
    assert table.loss == pytest.approx(world.loss(domain, table.frame), rel=1e-14)
    predicted = fit_huber(world.laws[domain], table).predict(table)
    assert np.abs(np.log(predicted / table.loss)).max() < 1e-6


@pytest.mark.parametrize("domain", DOMAINS)
def test_truth_lies_in_the_central_95_percent_of_the_priors(world, domain):
    law, truth = world.laws[domain], world.truth[domain]
    at = law.reference_point(world.design().query("ptpp <= 31"))
    local = law.to_reference(truth, at) | {"sigma": world.sigma[domain]}
    local["floor"] = truth["E"] / local["L_ref"]
    for name in {"floor", *law.coordinates[1:], "sigma"}:
        low, high = central((NOISE | law.priors)[name])
        assert low < local[name] < high, name


def central(prior: Prior) -> tuple[float, float]:
    a = prior.kwargs
    frozen = {
        "LogNormal": lambda: stats.lognorm(a["sigma"], scale=np.exp(a["mu"])),
        "HalfNormal": lambda: stats.halfnorm(scale=a["sigma"]),
        "Normal": lambda: stats.norm(a["mu"], a["sigma"]),
        "Beta": lambda: stats.beta(a["alpha"], a["beta"]),
    }[prior.name]()
    return frozen.interval(0.95)


def test_same_seed_same_numbers(world):
    first, again, other = (world.table("french", seed=seed) for seed in (3, 3, 4))
    pd.testing.assert_frame_equal(first.frame, again.frame)
    assert first.sha256 == again.sha256 != other.sha256
    assert not np.allclose(first.loss, other.loss, rtol=1e-5)


def test_domains_are_the_same_alone_or_together(world):
    both = world.table(seed=2)
    for domain in DOMAINS:
        alone = world.table(domain, seed=2)
        rows = both.query(f"domain == '{domain}'")
        pd.testing.assert_frame_equal(rows.frame, alone.frame)
    noise = [np.log(world.table(d).loss / world.loss(d, world.design())) for d in DOMAINS]
    assert abs(np.corrcoef(noise)[0, 1]) < 0.2


def test_noise_has_the_given_sd(world):
    noise = np.log(world.table("french", noise=0.01).loss / world.table("french", noise=0).loss)
    assert noise.std() == pytest.approx(0.01, rel=0.15)
    assert abs(noise.mean()) < 0.003


def test_everything_is_labelled_synthetic(world):
    for table in (world.table(), world.table("french"), simulate("chinchilla", CHINCHILLA, rows())):
        assert table.name.startswith("synthetic")
        assert table.frame["synthetic"].eq(True).all()
    assert world.table().baselines["synthetic"].eq(True).all()
    assert world.note.startswith("Synthetic.")


def test_only_the_source_has_baselines(world):
    assert world.table("french").baselines.empty
    baselines = world.table("english_arabic").baselines
    assert len(baselines) == 12  # one per N x PTPP
    row = baselines.query("params == 8.1e9 and ptpp == 279").iloc[0]
    assert row["loss"] == world.baseline() == pytest.approx(2.05, abs=1e-5)
    assert world.baseline(241e6, 15) > world.baseline(241e6, 31) > world.baseline(517e6, 31)


def rows() -> pd.DataFrame:
    return grid(params=[1e8, 1e9], tokens=[1e9, 1e10])


def test_simulate_keeps_columns_and_takes_aliases():
    design = rows().rename(columns={"params": "N", "tokens": "D"}).assign(run=["a", "b", "c", "d"])
    table = simulate("chinchilla", CHINCHILLA, design, name="two sizes")
    assert table.name == "synthetic two sizes"
    assert table.frame["run"].tolist() == ["a", "b", "c", "d"]
    assert table.loss == pytest.approx(1.7 + 400 / design["N"] ** 0.34 + 410 / design["D"] ** 0.28)


def test_a_generator_gives_other_noise_each_time():
    rng = np.random.default_rng(1)
    one, two = (simulate("chinchilla", CHINCHILLA, rows(), sigma=0.1, seed=rng) for _ in range(2))
    assert not np.allclose(one.loss, two.loss)
    again = simulate("chinchilla", CHINCHILLA, rows(), sigma=0.1, seed=1).loss
    assert again == pytest.approx(one.loss, rel=1e-15)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"alfa": 0.3}, "alpha"),
        ({"E": np.nan}, "not positive and finite"),
        ({"E": -1e3}, "not positive and finite"),
        ({"A": 1e308, "alpha": -50.0}, "not positive and finite"),
    ],
)
def test_impossible_truth_is_refused(change, says):
    with pytest.raises(LawError, match=says):
        simulate("chinchilla", CHINCHILLA | change, rows())


def test_what_cannot_be_simulated_is_told(world):
    with pytest.raises(LawError, match="no value for A, beta"):
        simulate("chinchilla", {"E": 1.7, "alpha": 0.34, "B": 410.0}, rows())
    for sigma in (-0.1, np.nan, np.inf):
        with pytest.raises(BayeslawError, match="sigma"):
            simulate("chinchilla", CHINCHILLA, rows(), sigma=sigma)
    with pytest.raises(TableError, match="tokens"):
        simulate("chinchilla", CHINCHILLA, rows().drop(columns="tokens"))
    for ask in (world.table, lambda domain: world.loss(domain, world.design())):
        with pytest.raises(BayeslawError, match=r"did you mean 'french'\? Valid: english_arabic"):
            ask("frensh")
