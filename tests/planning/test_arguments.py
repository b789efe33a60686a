"""Plans: baselines, caps, several targets and expected loss."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bayeslaw import BayeslawError, NotConverged, from_frame, grid, load_law, locate, plan
from bayeslaw.model.discrepancy import Curvature
from bayeslaw.planning.planned_run import PlannedRun, extrapolations, planned_base
from bayeslaw.planning.planner import baseline_of
from bayeslaw.simulation.worlds import true_fits
from tests.planning.posteriors import (
    BASE,
    GOOD,
    LIMITS,
    WORLD,
    losses,
    over_replay,
    posterior,
)


def test_asymptote_baseline_is_the_floor_of_pure_replay(fits):
    found = plan(**fits, **LIMITS | {"max_forgetting": 0.1}, baseline="asymptote", confidence=0.7)
    rows = grid(params=8.1e9, ptpp=279, replay=1.0, tokens=1e300)
    floor = np.roll(fits["source"].latent(rows)[:, 0], 200)
    target, source = losses(fits, found)
    assert found.p_both == np.mean((target <= 1.8) & (source <= 1.1 * floor))
    assert found.status == "feasible"


def test_absolute_forgetting_is_in_nats(fits):
    one = plan(**fits, **LIMITS, baseline=BASE)
    nats = plan(**fits, **LIMITS | {"max_forgetting": 0.02 * BASE}, baseline=BASE, relative=False)
    assert nats.atpp == pytest.approx(one.atpp, rel=1e-9)


def test_baseline_of_a_law_that_has_a_value_at_zero(fits):
    """The law's loss at D = 0 against one by hand; that of the paper's laws is not finite."""
    p = {"E": 1.5, "A": 100.0, "alpha": 0.3, "F": 0.5, "eta": 0.3, "phi": 0.01, "rho": 1.0}
    p |= {"G": 0.2, "xi": 2.0, "omega": 2.0}
    source = replace(true_fits(WORLD)[1], law=load_law("forgetting"), parameters=p)
    start = 1.5 + 100 / 8.1e9**0.3 + 0.5 / (8.1e9**0.01 * 279**0.3)
    asked = LIMITS | {"target": fits["target"], "source": source, "beyond_evidence": True}
    own, given = (plan(**asked, baseline=b) for b in ("law", start))
    assert own.best is None
    assert own.atpp == pytest.approx(given.atpp, rel=1e-9)
    assert own.forgetting == pytest.approx(given.forgetting, rel=1e-9)
    assert own.baseline.startswith("source law's own loss at D = 0")
    with pytest.raises(BayeslawError, match="one of 'asymptote', 'law'"):
        plan(**LIMITS, target=fits["target"], source=source)
    for law in (WORLD.laws["english_arabic"], Curvature().apply(WORLD.laws["english_arabic"])):
        diverges = posterior("english_arabic", law=law)
        with pytest.raises(BayeslawError, match=r"at D = 0.*one of 'asymptote'"):
            plan(**LIMITS, target=fits["target"], source=diverges, baseline="law")


def test_no_adaptation_where_none_is_needed():
    """Limits that the un-adapted model meets: zero tokens, and no loss at D = 0 is required."""
    p = {"E": 1.5, "A": 0.0, "alpha": 0.3, "F": 0.0, "eta": 0.3, "phi": 0.3, "rho": 1.0}
    p |= {"G": 0.2, "xi": 2.0, "omega": 2.0}
    fit = replace(true_fits(WORLD)[1], law=load_law("forgetting"), parameters=p)
    found = plan(target=fit, source=fit, **LIMITS | {"max_loss": 3.0}, baseline="law")
    assert (found.status, found.tokens, found.p_both) == ("feasible", 0, 1)
    assert found.deterministic.tokens == 0
    assert (found.sensitivity()["held"] == 1).all()


def test_baseline_from_the_table(fits):
    found = plan(**fits, **LIMITS)
    assert found.atpp == pytest.approx(plan(**fits, **LIMITS, baseline=BASE).atpp)
    assert "tokens = 0" in found.baseline
    with pytest.raises(BayeslawError, match=r"0 rows with tokens = 0.*no value at D = 0"):
        plan(**fits, **LIMITS | {"ptpp": 100})
    target, source = true_fits(WORLD)
    with pytest.raises(BayeslawError, match=r"No baseline.*no value at D = 0"):
        plan(target=target, source=source, **LIMITS)
    with pytest.raises(BayeslawError, match="did you mean 'asymptote'"):
        plan(**fits, **LIMITS, baseline="asymptot")


def test_baseline_of_a_numbered_base_on_the_domain_of_the_source(fits):
    table = fits["source"].table
    rows = pd.concat([table.frame, table.baselines], ignore_index=True)
    rows["base"] = rows.groupby(["params", "ptpp"]).ngroup().astype(float)
    rows.loc[0, "base"] = np.nan
    other = rows[rows["tokens"] == 0].assign(domain="greek", loss=9.0)

    def source_with(parts):
        frame = from_frame(pd.concat(parts)).frame
        baselines = from_frame(pd.concat(parts)).baselines
        return replace(fits["source"], table=replace(table, frame=frame, baselines=baselines))

    fit = source_with([rows, other])
    run = PlannedRun(8.1e9, 279, planned_base([fit], PlannedRun(8.1e9, 279))[0])
    assert run.base == "11"
    assert baseline_of(None, fit, run)[0] == pytest.approx(BASE)
    with pytest.raises(BayeslawError, match="0 rows with tokens = 0"):
        baseline_of(None, source_with([rows[rows["tokens"] > 0], other]), run)


def test_cap_gives_the_likeliest_choice(fits):
    found = plan(**fits, **LIMITS, baseline=BASE)
    capped = found.within(tokens=0.8 * found.tokens)
    assert capped.tokens <= 0.8 * found.tokens
    shares = found.surface([0.8 * found.atpp], np.linspace(0.005, 0.995, 331))
    assert capped.p_both >= shares.to_numpy().max()
    assert found.within(flops=0.8 * found.flops) == capped
    assert found.within(tokens=found.tokens).p_both >= 0.9 - 2 / 400  # one or two draws
    with pytest.raises(BayeslawError, match="positive cap"):
        found.within(tokens=0)


def test_expected_losses_are_those_of_the_draws(fits):
    found = plan(**fits, **LIMITS, baseline=BASE)
    target, source = losses(fits, found)
    assert found.losses == pytest.approx([target.mean()])
    assert found.forgetting == pytest.approx(np.mean(source / BASE - 1))


def test_several_targets(fits):
    """Two targets are met jointly; the draws of the three fits are shifted differently."""
    other = posterior("french", seed=7)
    asked = {"target": [fits["target"], other], "source": fits["source"], "max_loss": [1.8, 1.79]}
    found = plan(**LIMITS | asked, baseline=BASE)
    rows = grid(params=8.1e9, ptpp=279, replay=found.replay, tokens=found.tokens)
    one, two, source = (fit.latent(rows)[:, 0] for fit in (*asked["target"], fits["source"]))
    meets = np.stack([one <= 1.8, np.roll(two, 133) <= 1.79, np.roll(source, 266) <= 1.02 * BASE])
    assert found.p_targets == (meets[0].mean(), meets[1].mean())
    assert found.p_target == meets[:2].all(0).mean()
    assert found.p_both == meets.all(0).mean() >= 0.9
    assert found.pairing.startswith("independently: 3 fits")
    for fit, limit in zip(asked["target"], asked["max_loss"], strict=True):
        alone = plan(**LIMITS | asked | {"target": fit, "max_loss": limit}, baseline=BASE)
        assert found.atpp > alone.atpp
    impossible = plan(**LIMITS | asked | {"max_loss": [1.8, 1.3]}, baseline=BASE)
    assert impossible.binds.startswith("target 2; alone, P(target 1) up to 1")
    one = plan(**LIMITS | asked | {"target": [fits["target"]], "max_loss": [1.8]}, baseline=BASE)
    assert one.tokens == plan(**fits, **LIMITS, baseline=BASE).tokens
    with pytest.raises(BayeslawError, match="2 targets and 1 limits"):
        plan(**LIMITS | asked | {"max_loss": 1.8}, baseline=BASE)


def test_least_expected_loss_at_a_budget(fits):
    found = plan(**fits, **LIMITS, baseline=BASE)
    best = found.least_loss(tokens=2e11)
    assert best.tokens == 2e11
    assert best.p_forgetting >= 0.9
    target, source = over_replay(fits, 2e11)
    kept = np.mean(source <= 1.02 * BASE, 0) >= 0.9
    assert kept.any()
    assert target.mean(0)[kept].min() >= best.losses[0] - 1e-9
    assert found.least_loss(tokens=1e10).atpp == np.inf  # forgetting cannot be kept
    with pytest.raises(BayeslawError, match="fixed budget"):
        found.least_loss()


def test_unconverged_posteriors_are_refused_unless_allowed(fits):
    bad = fits | {"target": replace(fits["target"], convergence=replace(GOOD, divergences=3))}
    with pytest.raises(NotConverged):
        plan(**bad, **LIMITS, baseline=BASE)
    failures = plan(**bad, **LIMITS, baseline=BASE, allow_unconverged=True).unconverged
    assert "3 divergences" in failures[0]


def test_what_lies_outside_the_rows_is_said_once_in_the_words_of_the_check(fits):
    """Anchors at PTPP 279 are of the smallest size only, so that a corner is empty."""

    def said(params, ptpp, replay, atpp):
        return extrapolations(
            fits, grid(params=params, ptpp=ptpp, replay=replay, tokens=params * atpp)
        )

    assert said(241e6, 31, 0.3, 5.0) == said(241e6, 279, 0.4, 16.0) == ("ok", "", ())
    level, words, (far, exact) = said(8.1e9, 279, 0.4, 16.0)
    assert (level, words) == ("ok", "")
    row = grid(params=8.1e9, ptpp=279, replay=0.4, tokens=16 * 8.1e9)
    away = locate(fits["target"].table, row)["decades"].item()
    assert away > 0.5
    assert far == (
        f"target and source: extrapolation by {away:.2g} decades, each covariate within its range."
    )
    assert exact.startswith("target and source: The law is taken as exact")
    level, words, texts = said(8.1e9, 279, 0.7, 1e6)
    assert level == "no evidence"
    assert "decades of tokens (bands were tested to 0.83) and 0.2 of replay (bands" in words
    assert not any("No evidence" in text or "millions" in text for text in texts)


def test_pairing_is_reported(fits):
    assert plan(**fits, **LIMITS, baseline=BASE).pairing.startswith("independently")
    joint = {name: replace(fit, settings={"joint": "a"}) for name, fit in fits.items()}
    assert plan(**joint, **LIMITS, baseline=BASE).pairing.startswith("jointly")
    certain = plan(target=fits["target"], source=true_fits(WORLD)[1], **LIMITS, baseline=BASE)
    assert "point fits" in certain.pairing
    assert certain.draws == 400
    few = fits | {"source": posterior("english_arabic", draws=100)}
    assert plan(**few, **LIMITS, baseline=BASE).draws == 100


def test_one_posterior_is_not_both_target_and_source(fits):
    """Nor its copy, as of one file that is given twice; a limit above one is one in nats."""
    for other in (fits["target"], replace(fits["target"], draws=fits["target"].draws.copy())):
        with pytest.raises(BayeslawError, match="target and source are one posterior"):
            plan(target=fits["target"], source=other, **LIMITS, baseline=BASE)
    asked = LIMITS | {"max_forgetting": 1.5, "relative": False}
    assert plan(**fits, **asked, baseline=BASE, replay_grid=[0.3]).status == "feasible"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"confidence": 1.0}, "confidence=1 is not between 0 and 1"),
        ({"confidence": 90}, "confidence=90 is not between 0 and 1"),
        ({"params": 0}, "params=0: give a positive number"),
        ({"max_loss": np.inf}, "max_loss=inf: give a positive number"),
        ({"max_forgetting": -1}, "max_forgetting=-1: 0.02 allows"),
        ({"max_forgetting": 2}, "give a fraction, not a percentage; 0.02 allows a rise of 2 %"),
        ({"max_cvar": 0.0}, "max_cvar= was removed: lower the limit"),
        ({"baseline": "matched"}, "baseline='matched' was removed: give the measured loss"),
        ({"confidense": 0.9}, "unknown argument 'confidense'; did you mean 'confidence'"),
        ({"baseline": -2.0}, "baseline=-2: give a source loss"),
        ({"noise": "none"}, "unknown noise 'none'"),
        ({"replay_grid": [30]}, "replay ratios lie in"),
        ({"replay_grid": []}, "replay ratios lie in"),
    ],
)
def test_bad_arguments_are_refused(fits, wrong, says):
    with pytest.raises(BayeslawError, match=says):
        plan(**fits | LIMITS | {"baseline": BASE} | wrong)
