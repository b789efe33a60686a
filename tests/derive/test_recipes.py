"""Which recipe is best, by hand on known draws, and along budgets against closed forms."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import bayeslaw as bl
from bayeslaw import BayeslawError, LawError
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
