"""Which recipe is best, by hand on known draws, and along budgets against closed forms."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import bayeslaw as bl
from bayeslaw import BayeslawError, LawError
from bayeslaw.inference.pools import pair_draws
from tests.support import CHINCHILLA

ROWS = bl.grid(params=[1e9, 1e10], tokens=3e10)
FLOPS = [1e20, 1e24]


def best_loss(p, flops) -> float:
    """Loss of the compute-optimal split, by SciPy."""

    def loss(log_n):
        n = np.exp(log_n)
        return p["E"] + p["A"] / n ** p["alpha"] + p["B"] / (flops / 6 / n) ** p["beta"]

    return minimize_scalar(loss, bounds=np.log([1e6, 1e14]), method="bounded").fun


def test_probabilities_and_regret_by_hand(known):
    floors = np.array([1.69, 1.71, 1.72, 1.73])
    sure, unsure = known(**CHINCHILLA | {"E": np.full(4, 1.7)}), known(**CHINCHILLA | {"E": floors})
    frame = bl.compare_recipes({"sure": sure, "unsure": unsure}, ROWS).to_frame()
    assert list(frame["params"]) == [1e9, 1e9, 1e10, 1e10]
    rows = frame.set_index("recipe").groupby("recipe").first()
    assert rows["p_best"].to_dict() == {"sure": 0.75, "unsure": 0.25}
    assert rows.loc["sure", "regret"] == pytest.approx(0.01 / 4)
    assert rows.loc["unsure", "regret"] == pytest.approx((0.01 + 0.02 + 0.03) / 4)
    assert rows.loc["unsure", "behind"] == pytest.approx(0.015)
    assert frame["loss"].between(frame["lower"], frame["upper"]).all()
    # The fit with the fewest draws sets their number.
    fewer = {"few": known(**CHINCHILLA), "many": unsure}
    assert bl.compare_recipes(fewer, ROWS).losses.sizes == {"recipe": 2, "draw": 1, "target": 2}
    found = bl.compare_recipes(fewer, flops=FLOPS)
    for draws in (found.losses, found.multipliers.draws, found.crossings.draws):
        assert draws.sizes["draw"] == 1


def test_of_three_the_best(known):
    fits = {str(e): known(**CHINCHILLA | {"E": np.full(3, e)}) for e in (1.8, 1.7, 1.75)}
    found = bl.compare_recipes(fits, ROWS)
    frame = found.to_frame().iloc[:3]
    assert list(frame["p_best"]) == [0, 1, 0]
    assert frame["behind"].to_numpy() == pytest.approx([0.1, -0.05, 0.05])
    assert found.sentence().startswith("At params 1e+10, tokens 3e+10, 1.7 has the lowest loss")


def test_targets_have_no_random_effects_and_may_be_named_by_symbols(walking):
    assert walking.spec.effects == ("size",)
    rows = bl.grid(params=[1e9, 1e9 * (1 + 1e-9)], tokens=3e10)
    fits = {"a": walking, "b": walking}
    found = bl.compare_recipes(fits, rows, allow_unconverged=True)
    fitted, new = found.losses.values[0].T
    assert fitted == pytest.approx(new, rel=1e-8)
    symbols = rows.rename(columns={"params": "N", "tokens": "D"})
    same = bl.compare_recipes(fits, symbols, allow_unconverged=True)
    assert same.to_frame().equals(found.to_frame())
    assert same.sentence().startswith("At params 1e+09, tokens 3e+10, ")


def test_budgets_multipliers_and_crossing(known):
    one, other = CHINCHILLA, CHINCHILLA | {"E": 1.85, "A": 200.0, "B": 200.0}
    found = bl.compare_recipes({"one": known(**one), "other": known(**other)}, flops=FLOPS)
    expected = [[best_loss(p, c) for c in FLOPS] for p in (one, other)]
    assert found.losses.values[:, 0] == pytest.approx(np.array(expected), rel=1e-9)
    assert list(found.to_frame()["p_best"]) == [0, 1, 1, 0]
    # Both have the same exponents: the reducible losses are proportional to C^-a.
    a = one["alpha"] * one["beta"] / (one["alpha"] + one["beta"])
    k = [(best_loss(p, 1e21) - p["E"]) * 1e21**a for p in (one, other)]
    at = ((k[0] - k[1]) / (other["E"] - one["E"])) ** (1 / a)
    assert found.crossings.draws["one and other"].item() == pytest.approx(at, rel=0.02)
    # FLOPs of the other at the losses of the first.
    need = (k[1] / (np.array(expected[0]) - other["E"])) ** (1 / a)
    ratio = found.multipliers.draws["other over one"].values[0]
    assert ratio == pytest.approx(np.array(FLOPS) / need, rel=1e-5)


def test_multiplier_of_each_draw_has_the_losses_equal(known):
    """L_A(C) = L_B(C / m), also where floors and exponents differ from draw to draw."""
    rng = np.random.default_rng(0)
    spread = {
        name: value * np.exp(0.05 * rng.standard_normal((2, 40)))
        for name, value in CHINCHILLA.items()
    }
    one, other = (known(**{name: v[i] for name, v in spread.items()}) for i in range(2))
    fits, asked = {"one": one, "other": other}, [1e20, 1e22]
    found = bl.compare_recipes(fits, flops=asked)
    saved = found.multipliers.draws["other over one"].values
    index, _ = pair_draws(list(fits.values()))
    reached = np.isfinite(1 / saved)
    assert reached.mean() > 0.8
    for draw, target in np.argwhere(reached)[::7]:
        p = {name: v[1, index[1][draw]] for name, v in spread.items()}
        loss = best_loss(p, asked[target] / saved[draw, target])
        assert loss == pytest.approx(found.losses.values[0, draw, target], rel=1e-6)


@pytest.mark.slow
def test_interval_holds_a_planted_multiplier():
    """The second recipe reaches at every N and D the loss of the first at 2 N and 2 D: C / 4."""
    factor, exponent = 4.0, {"A": "alpha", "B": "beta"}
    better = CHINCHILLA | {
        name: CHINCHILLA[name] * factor ** (-CHINCHILLA[of] / 2) for name, of in exponent.items()
    }
    rows = bl.grid(params=[5e7, 1.5e8, 5e8, 1.5e9], tokens=[1e9, 3e9, 1e10, 3e10, 1e11])
    tables = (
        bl.simulate("chinchilla", p, rows, sigma=0.003, seed=i)
        for i, p in enumerate((CHINCHILLA, better))
    )
    fits = {
        name: bl.fit("chinchilla", table, discrepancy="none", seed=0)
        for name, table in zip(("one", "other"), tables, strict=True)
    }
    frame = bl.compare_recipes(fits, flops=[1e19, 1e20, 1e21]).multipliers.to_frame()
    assert ((frame["lower_90"] < factor) & (factor < frame["upper_90"])).all()
    assert (frame["upper_90"] < 2 * frame["lower_90"]).all()


def test_draws_of_a_joint_fit_are_compared_one_by_one(known):
    floors = [1.7, 1.8, 1.6, 1.75], [1.74, 1.7, 1.65, 1.6]
    one, two = (
        replace(known(**CHINCHILLA | {"E": np.array(e)}), settings={"joint": "same"})
        for e in floors
    )
    found = bl.compare_recipes({"one": one, "two": two}, ROWS)
    assert found.losses.values[1] - found.losses.values[0] == pytest.approx(
        np.subtract(*floors[::-1])[:, None] + np.zeros((4, 2))
    )
    assert "jointly" in found.notes[0]


def test_separate_fits_of_other_domains_are_warned_of(known):
    fits = {
        name: replace(fit, table=bl.from_frame(fit.table.frame.assign(domain=name)))
        for name, fit in {"c4": known(**CHINCHILLA), "web": known(**CHINCHILLA)}.items()
    }
    with pytest.warns(bl.TableWarning, match=r"other domains \(c4; web\)"):
        bl.compare_recipes(fits, ROWS)
    with pytest.warns(bl.TableWarning, match="other domains"):
        bl.derive.compute_multiplier(*fits.values(), 2.3)
    joint = {name: replace(fit, settings={"joint": "same"}) for name, fit in fits.items()}
    bl.compare_recipes(joint, ROWS)


def test_equal_recipes_share_and_never_cross(known):
    fits = {name: known(**CHINCHILLA) for name in "ab"}
    found = bl.compare_recipes(fits, flops=1e22)
    assert list(found.to_frame()["p_best"]) == [0.5, 0.5]
    assert found.crossings.draws["a and b"].item() == np.inf


def test_laws_of_adaptation_are_compared_at_rows(two_stages):
    rows = bl.grid(params=1e9, tokens=1e10, replay=0.2, ptpp=31)
    found = bl.compare_recipes({"a": two_stages, "b": two_stages}, rows)
    assert list(found.targets.columns) == ["params", "tokens", "replay", "ptpp"]
    with pytest.raises(LawError, match="depends on params, tokens, replay, ptpp; give rows"):
        bl.compare_recipes({"a": two_stages, "b": two_stages}, flops=1e20)


def test_mistakes(known):
    fit = known(**CHINCHILLA)
    with pytest.raises(BayeslawError, match="two recipes or more"):
        bl.compare_recipes({"a": fit}, flops=1e20)
    with pytest.raises(BayeslawError, match="say where to compare"):
        bl.compare_recipes({"a": fit, "b": fit})
    with pytest.raises(BayeslawError, match="positive budgets"):
        bl.compare_recipes({"a": fit, "b": fit}, flops=-1)
    with pytest.raises(BayeslawError, match="not between 0 and 1"):
        bl.compare_recipes({"a": fit, "b": fit}, ROWS).to_frame(90)
