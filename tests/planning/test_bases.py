"""The base that a plan starts from, and measured and latent losses."""

from dataclasses import replace

import numpy as np
import pytest

from bayeslaw import BayeslawError, PointFit, Pool, grid, plan
from bayeslaw.laws.terms import ORIGIN
from bayeslaw.planning.planned_run import PlannedRun, deviations
from bayeslaw.simulation.worlds import true_fits
from tests.planning.posteriors import BASE, WORLD, adapted, posterior
from tests.support import TRANSFER

LIMITS = WORLD.limits | {"baseline": BASE, "beyond_evidence": True}
TAU = 0.02
NEW = PlannedRun(8.1e9, 279, "new")


def labelled(domain, tau=TAU, **settings):
    """A posterior with an effect of each base, .01 at the one named "big" and zero elsewhere."""
    fit = posterior(domain)
    size = {"chain": 4, "draw": 100}
    big = fit.table.frame.eval("params == 8.1e9 and ptpp == 31")
    name = np.where(big, "31", fit.table.frame["params"].astype(str))
    frame = fit.table.frame.assign(base=name)
    frame.loc[frame.index[-1], ["params", "ptpp", "base"]] = 8.1e9, 279, "big"
    names = np.unique(frame["base"])
    rng = np.random.default_rng(3)
    effect = 0.001 * rng.standard_normal((4, 100, len(names))) + 0.01 * (names == "big")
    draws = fit.draws.assign_coords(base=names).assign(
        tau_base=(tuple(size), np.full((4, 100), tau)),
        base_effect=((*size, "base"), effect),
    )
    return replace(
        fit,
        spec=replace(fit.spec, effects=("base",)),
        table=replace(fit.table, frame=frame),
        draws=draws,
        settings=settings,
    )


@pytest.fixture(scope="module")
def bases():
    return {"target": labelled("french"), "source": labelled("english_arabic")}


def test_a_fitted_base_has_its_posterior_and_a_new_one_is_drawn(bases):
    known, new = (
        deviations([bases["target"]], PlannedRun(8.1e9, 279, base))[0].base
        for base in ("big", "new")
    )
    assert np.median(known) == pytest.approx(0.01, abs=3e-4)
    assert known.std() == pytest.approx(0.001, rel=0.2)
    assert np.median(new) == pytest.approx(0, abs=3e-3)
    assert new.std() == pytest.approx(TAU, rel=0.15)


def test_the_base_is_the_only_one_of_its_model_and_stage(bases):
    found = plan(**bases, **LIMITS)
    assert found.base == "base big, with rows of its own"
    assert plan(**bases, **LIMITS, base="new").base.startswith("a new base")
    assert plan(**bases, **LIMITS | {"ptpp": 200}).base.startswith("a new base")
    with pytest.raises(BayeslawError, match=r"base 'bigg'; did you mean 'big'"):
        plan(**bases, **LIMITS, base="bigg")
    with pytest.raises(BayeslawError, match=r"'31' has params = 8.1e\+09, ptpp = 31"):
        plan(**bases, **LIMITS, base="31")
    target, source = true_fits(WORLD)
    with pytest.raises(BayeslawError, match="no column base"):
        plan(target=target, source=source, **LIMITS, base="big")


def test_a_base_may_be_labelled_new(bases):
    """The name is then that base's, and its effect the fitted one."""
    fits = {}
    for name, fit in bases.items():
        frame = fit.table.frame.assign(base=fit.table.frame["base"].replace("big", "new"))
        draws = fit.draws.assign_coords(base=[*fit.draws["base"].values[:-1], "new"])
        fits[name] = replace(fit, table=replace(fit.table, frame=frame), draws=draws)
    big = plan(**bases, **LIMITS)
    for asked in ({}, {"base": "new"}):
        found = plan(**fits, **LIMITS, **asked)
        assert found.base == "base new, with rows of its own"
        assert found.atpp == big.atpp
    with pytest.raises(BayeslawError, match="a base is labelled 'new'"):
        plan(**fits, **LIMITS | {"ptpp": 200})


def test_the_effect_of_the_base_cancels_against_a_computed_baseline():
    """The un-adapted model has it as well; against a measured baseline it does not cancel."""
    limits = {**WORLD.limits, "max_forgetting": 0.1, "base": "new", "confidence": 0.6}
    target = labelled("french", 1e-6)
    shares = {}
    for tau in (1e-6, 0.05):
        source = labelled("english_arabic", tau)
        found = plan(target=target, source=source, **limits, baseline="asymptote")
        shares[tau, "asymptote"] = (found.problem.excesses([np.log(12.0)], [0.4])[-1] <= 0).mean()
        found = plan(target=target, source=source, **limits, baseline=BASE)
        shares[tau, "number"] = (found.problem.excesses([np.log(9.0)], [0.4])[-1] <= 0).mean()
    assert shares[1e-6, "asymptote"] == shares[0.05, "asymptote"]
    assert shares[1e-6, "number"] != shares[0.05, "number"]


def test_both_kinds_of_losses_are_judged(bases):
    found = plan(**bases, **LIMITS)
    latent = plan(**bases, **LIMITS, noise="latent")
    assert (found.noise, latent.noise) == ("predictive", "latent")
    assert found.measured.p_both == found.p_both < found.latent.p_both
    assert latent.latent.p_both == latent.p_both > latent.measured.p_both
    assert latent.atpp < found.atpp
    for each in (found, latent):
        assert each.latent.tokens == each.measured.tokens == each.tokens
    assert found.to_dict()["latent"]["p_both"] == found.latent.p_both


def test_a_baseline_with_an_error(bases):
    found = plan(**bases, **LIMITS | {"baseline": (BASE, 0.01)})
    assert found.problem.source.baseline.mean() == pytest.approx(BASE, abs=2e-3)
    assert found.problem.source.baseline.std() == pytest.approx(0.01, rel=0.15)
    assert found.deterministic_problem.source.baseline == pytest.approx(BASE, abs=2e-3)
    assert "with sd 0.01" in found.baseline
    certain = plan(**bases, **LIMITS | {"baseline": (BASE, 0.0)})
    assert certain.atpp == plan(**bases, **LIMITS).atpp < found.atpp
    with pytest.raises(BayeslawError, match="standard deviation"):
        plan(**bases, **LIMITS | {"baseline": (BASE, -1)})


def test_new_groups_of_joint_fits_are_correlated():
    joint = {"joint": "ab12", "correlation": {"base": [[1, 0.9], [0.9, 1]]}}
    fits = [
        labelled(domain, **joint, place=k) for k, domain in enumerate(("french", "english_arabic"))
    ]
    one, two = (each.base for each in deviations(fits, NEW))
    assert np.corrcoef(one, two)[0, 1] == pytest.approx(0.9, abs=0.05)
    apart = [labelled("french"), labelled("english_arabic")]
    one, two = (each.base for each in deviations(apart, NEW))
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.15


@pytest.fixture(scope="module")
def alike():
    """Bases that differ little, so that a plan for a new one is feasible."""
    return {"target": labelled("french", 0.004), "source": labelled("english_arabic", 0.004)}


def test_shares_of_the_variance(alike):
    found = plan(**alike, **LIMITS, base="new")
    shares = found.spread.drop(columns="sd")
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    noise = found.problem.targets[0].noise.total
    latent = np.log(found.problem.targets[0].curve.loss([found.budget], [found.replay])[0, 0])
    total = found.spread.loc["target", "sd"]
    assert total == pytest.approx((latent + noise).std(), rel=0.1)
    assert shares.loc["target", "base"] == pytest.approx(0.004**2 / total**2, rel=0.3)
    assert shares.loc["target", "law"] == pytest.approx(0, abs=1e-12)


def test_the_share_of_the_law_is_the_variance_between_the_members_of_a_pool():
    low = posterior("french")
    high = replace(low, draws=low.draws.assign(L_ref=1.02 * low.draws["L_ref"]))
    pool = Pool({"low": low, "high": high}, {"low": 3.0, "high": 1.0})
    source = posterior("english_arabic")
    limits = LIMITS | {"max_loss": 1.9, "max_forgetting": 0.1}
    found = plan(target=pool, source=source, **limits, replay_grid=[0.4])
    row = grid(params=8.1e9, ptpp=279, replay=found.replay, tokens=found.tokens)
    logs = [np.log(member.latent(row)[:, 0]) for member in (low, high)]
    between = 0.25 * 0.75 * (logs[1].mean() - logs[0].mean()) ** 2
    within = (
        0.75 * logs[0].var() + 0.25 * logs[1].var() + found.problem.targets[0].noise.total.var()
    )
    target = found.spread.loc["target"]
    assert target["sd"] ** 2 == pytest.approx(between + within, rel=0.1)
    assert target["law"] == pytest.approx(between / (between + within), rel=0.1)
    assert target["law"] > 0.5


def test_new_sizes_of_joint_fits_have_correlated_effects():
    """At a size without rows, beside fits whose fitted sizes have no effect."""
    limits, joint = LIMITS | {"params": 4e9, "max_loss": 1.95, "max_forgetting": 0.1}, []
    for place, domain in enumerate(("french", "english_arabic")):
        fit = posterior(domain)
        sizes = np.unique(fit.table.frame["params"].astype(float).astype(str))
        draws = fit.draws.assign_coords(size=sizes).assign(
            tau_size=(("chain", "draw"), np.full((4, 100), TAU)),
            size_effect=(("chain", "draw", "size"), np.zeros((4, 100, len(sizes)))),
        )
        about = {"joint": "ab12", "place": place, "correlation": {"size": [[1, 0.9], [0.9, 1]]}}
        spec = replace(fit.spec, effects=("size",))
        joint.append(replace(fit, spec=spec, draws=draws, settings=about))
    asked = {"confidence": 0.6, "noise": "latent", "replay_grid": [0.4]}
    found = plan(target=joint[0], source=joint[1], **limits, **asked)
    curves = [limit.curve for limit in found.problem.limits]
    row = grid(params=4e9, ptpp=279, replay=0.4, tokens=4e10)
    effects = [
        np.log(curve.loss([np.log(10.0)], [0.4])[0, 0] / fit.latent(row)[:, 0])
        for curve, fit in zip(curves, joint, strict=True)
    ]
    assert np.std(effects, axis=1) == pytest.approx([TAU, TAU], rel=0.15)
    assert np.corrcoef(effects)[0, 1] == pytest.approx(0.9, abs=0.05)
    assert found.spread.loc["target", "size"] > 0.5


MODEL = {"params": 4e8, "ptpp": 62.0}
STARTS = {
    "a known base": (MODEL, None, False),
    "a new model and stage": ({"params": 3e9, "ptpp": 100.0}, None, False),
    "a new base": (MODEL, "new", False),
    "a new base, pool": (MODEL, "new", True),
}


@pytest.mark.parametrize(("model", "base", "pooled"), STARTS.values(), ids=STARTS)
def test_plans_of_a_law_that_starts_from_the_base(adaptation, model, base, pooled):
    """At one ratio, against the losses of the posteriors on a fine grid of budgets."""
    target, source = adaptation
    if pooled:
        other = adapted(target.law, target.table, 2)
        target = Pool({"transfer": target, "other": other})
    label = base or ("base 12" if model == MODEL else "new")
    atpp = np.geomspace(0.05, 50, 400)
    rows = grid(**model, replay=0.3, tokens=model["params"] * atpp)
    rows = rows.sort_values("tokens").assign(base=label)
    losses = [fit.latent(rows) for fit in (target, source)]
    wanted, level = (
        float(np.median(loss[:, i])) for loss, i in zip(losses, (250, 200), strict=True)
    )
    found = plan(
        target=target, source=source, **model, base=base, max_loss=wanted, max_forgetting=0.01,
        baseline=level, confidence=0.7, noise="latent", replay_grid=[0.3],
    )  # fmt: skip
    paired = [loss[limit.index] for loss, limit in zip(losses, found.problem.limits, strict=True)]
    held = ((paired[0] <= wanted) & (paired[1] <= 1.01 * level)).mean(0)
    smallest = int(np.argmax(held >= 0.7))
    assert held[smallest] >= 0.7
    assert atpp[smallest - 1] < found.atpp <= atpp[smallest] * (1 + 1e-9)
    assert 0 < found.deterministic.atpp < found.atpp


def test_a_new_base_starts_from_losses_that_are_drawn(adaptation):
    """The baseline of a source's draw is the loss that its curve starts from."""
    target, source = adaptation
    asked = {"max_loss": 2.4, "max_forgetting": 0.2, "noise": "latent", "replay_grid": [0.3]}
    found = plan(target=target, source=source, **MODEL, base="new", **asked, confidence=0.5)
    limit = found.problem.source
    np.testing.assert_allclose(limit.curve.loss_at_zero(), limit.baseline, rtol=1e-9)
    assert np.std(np.log(limit.baseline)) > 0.005


def test_target_and_source_swapped_are_refused(adaptation):
    """The source table of the source domain is itself."""
    target, source = adaptation
    frame = source.table.frame
    itself = replace(source.table, frame=frame.assign(start_loss=frame["base_loss"]))
    source = replace(source, table=itself)
    asked = MODEL | {"max_loss": 2.4, "max_forgetting": 0.2, "replay_grid": [0.3]}
    assert plan(target=target, source=source, **asked, baseline=2.3).limits["max_loss"] == 2.4
    with pytest.raises(BayeslawError, match="target and source are swapped"):
        plan(target=source, source=target, **asked)


def test_point_fits_of_a_law_that_starts_from_the_base(adaptation):
    """Target, source and deterministic plan; the curve is the fit's prediction."""
    target, source = adaptation
    points = [
        PointFit(fit.law, TRANSFER, ORIGIN, 0.0, 0.02, 0, 0, 1.0, table=fit.table)
        for fit in adaptation
    ]
    row = grid(**MODEL, replay=0.3, tokens=5 * MODEL["params"])
    for base in ("base 12", "new"):
        asked = {"max_loss": 2.4, "max_forgetting": 0.1, "baseline": 2.3, "replay_grid": [0.3]}
        asked |= MODEL | {"base": base, "noise": "latent", "confidence": 0.6}
        first = plan(target=points[0], source=source, **asked)
        curve = first.problem.targets[0].curve
        wanted = points[0].predict(row.assign(base=base))
        np.testing.assert_allclose(curve.loss([np.log(5.0)], [0.3])[0, 0, 0], wanted, rtol=1e-12)
    both = plan(target=target, source=source, point=points, **asked)
    assert both.deterministic.atpp == plan(target=points[0], source=points[1], **asked).atpp
    with pytest.raises(BayeslawError, match="0 rows with tokens = 0"):
        plan(target=target, source=points[1], **asked | {"baseline": None})
