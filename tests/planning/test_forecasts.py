"""At any row the planned losses, and their probabilities, are those of the forecast."""

import numpy as np
import pytest

from bayeslaw import Pool, from_frame, grid, load_law, plan, simulate
from bayeslaw.huber.point_fit import for_table
from tests.laws import test_forgetting, test_laws
from tests.planning.posteriors import drawn
from tests.support import DESIGN, TRANSFER, truth_of

RISING = {"rising": 1.0}
CONCAVE = {"curve_B": -0.25}
# Law, discrepancy, distinct tokens, and what moves a source so that its loss rises with tokens.
CASES = {
    "chinchilla": ("chinchilla", "none", None, {}),
    "chinchilla, walk": ("chinchilla", "walk", None, RISING),
    "chinchilla, trend": ("chinchilla", "trend", None, RISING),
    "chinchilla, curvature": ("chinchilla", "curvature", None, CONCAVE),
    "chinchilla, walk, repeated": ("chinchilla", "walk", 3e10, RISING),
    "skaling": ("skaling", "auto", None, RISING),
    "liew_kato": ("liew_kato", "auto", None, RISING),
    "dcpt": ("dcpt", "auto", None, RISING),
    "form1": ("form1", "auto", None, RISING),
    "form1, none": ("form1", "none", None, {}),
    "form1, curvature": ("form1", "curvature", None, CONCAVE),
    "form1, repeated": ("form1", "auto", 3e10, RISING),
    "form2": ("form2", "auto", None, RISING),
    "form3": ("form3", "auto", None, RISING),
    "form3, curvature, repeated": ("form3", "curvature", 1e9, CONCAVE),
    "form1n": ("form1n", "auto", None, RISING),
    "form3n": ("form3n", "auto", None, RISING),
    "forgetting": ("forgetting", "none", None, {}),
    "transfer": ("transfer", "auto", None, RISING),
    "pool": ("pool", "auto", None, RISING),
}
TRUTHS = {"liew_kato": test_laws.KATO, "forgetting": test_forgetting.TRUTH, "transfer": TRANSFER}
DESIGNS = {"liew_kato": test_laws.GRID}


def made(name, discrepancy, unique, table, seed, **moved):
    """A posterior, or a pool of them, without a fit."""
    if name == "pool":
        laws = ("form1n", "transfer")
        fits = [made(law, discrepancy, unique, table, seed, **moved) for law in laws]
        return Pool(dict(zip(laws, fits, strict=True)))
    law = for_table(load_law(name), table)
    truth = TRUTHS.get(name) or truth_of(load_law(name).parameters)
    truth |= {"R_D": 8.0} if unique else {}
    return drawn(law, table, truth, discrepancy, seed, **moved)


@pytest.mark.parametrize(("name", "discrepancy", "unique", "moved"), CASES.values(), ids=CASES)
def test_losses_and_probabilities(name, discrepancy, unique, moved, transfer_table):
    """Below, inside and above the fitted rows; latent losses are equal, draw by draw."""
    table = transfer_table
    if name not in ("transfer", "pool"):
        truth = TRUTHS.get(name) or truth_of(load_law(name).parameters)
        table = simulate(name, truth, DESIGNS.get(name, DESIGN), sigma=0.002, seed=1)
    if unique:
        distinct = np.resize([3e9, 1e12], len(table))
        table = from_frame(table.frame.assign(unique_tokens=distinct))
    target = made(name, discrepancy, unique, table, 1)
    source = made(name, discrepancy, unique, table, 2, **moved)
    rows = table.frame
    ratios = np.array([0.02, 0.3, 0.9] if "replay" in target.columns else [1.0])
    run = {"params": rows["params"].max(), "ptpp": rows["ptpp"].max()}
    low, high = rows["tokens"].min() / run["params"], (rows["tokens"] / rows["params"]).max()
    atpp = np.array([low / 30, low / 3, *np.geomspace(low, high, 3), 3 * high, 3e3])
    at = grid(**run, tokens=atpp * run["params"], replay=ratios)
    if unique:
        at["unique_tokens"] = unique
    shape = len(atpp), len(ratios)
    losses = [fit.latent(at).reshape(-1, *shape) for fit in (target, source)]
    levels = [float(np.quantile(loss[:, 3], 0.6)) for loss in losses]
    found = plan(
        target=target, source=source, **run, max_loss=levels[0], max_forgetting=0.0,
        baseline=levels[1], unique_tokens=unique, replay_grid=ratios, confidence=0.1,
    )  # fmt: skip
    for loss, limit in zip(losses, found.problem.limits, strict=True):
        wanted = np.moveaxis(loss[limit.index], 0, -1)
        np.testing.assert_allclose(limit.curve.loss(np.log(atpp), ratios), wanted, rtol=1e-9)
    held = [
        np.mean(
            [
                fit.forecast(at, seed=seed, beyond_evidence=True).samples <= level
                for seed in range(8)
            ],
            (0, 1),
        )
        for fit, level in zip((target, source), levels, strict=True)
    ]
    for place, (one, other) in enumerate(zip(*held, strict=True)):
        i, j = np.unravel_index(place, shape)
        choice = found.at(atpp=atpp[i], replay=ratios[j])
        assert choice.p_target == pytest.approx(one, abs=0.09)
        assert choice.p_forgetting == pytest.approx(other, abs=0.09)
        assert choice.p_both == pytest.approx(one * other, abs=0.13)
