"""Random draws of every law as curves in D, and their losses by brute force."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest

from bayeslaw.laws.lawfiles import load_law
from bayeslaw.laws.modifiers import ModifiedTerm, Polynomial
from bayeslaw.laws.powers import Power
from bayeslaw.model.curvature import Curvature
from bayeslaw.planning.feasible_budgets import Bound
from bayeslaw.planning.loss_curves import LossCurve

LOG_ATPP = np.linspace(-14, 18, 257)
AT = {
    "params": np.log(1e9),
    "tokens": np.log(5e9),
    "ptpp": np.log(60),
    "replay": np.log(0.25),
    "barrier": np.log(0.25 + 1e-5),
    "share": 0.25,
    "mixed": np.log(0.35),
}


@dataclass(frozen=True)
class Skewed(Power):
    """A power of D whose exponent depends on r: its polynomials at r and at 1 differ in slope."""

    def shape(self, p, x, at, xp):
        drift = 0.1 * x["replay"] * (x["tokens"] - at["tokens"])
        return super().shape(p, x, at, xp) + 0.2 * p["beta"] * drift


DATA = Power("B", "slope_D", {"tokens": "beta"}, {"replay": "nu"})
TWICE = (DATA, Power("G", "slope_G", {"tokens": "phi"}))
CROSSED = ModifiedTerm(
    Power("G", "slope_G", {"barrier": "gamma"}), Polynomial({"cross_GD": ("tokens", "barrier")})
)
RISING = (DATA, Power("G", "slope_G", {"params": "alpha"}, {"tokens": "phi"}))


def laws():
    for name in ("form1", "form2", "form3", "dcpt", "chinchilla"):
        yield load_law(name)
        yield Curvature().apply(load_law(name))


every_law = pytest.mark.parametrize(
    "law", list(laws()), ids=lambda law: f"{law.name}-{len(law.parameters)}"
)


def with_terms(*terms):
    law = load_law("form1")
    rest = tuple(t for t in law.terms if t.coefficient != "B")
    return replace(law, terms=(*rest, *terms))


def random_curve(rng, law, draws):
    """Draws with curvatures of either sign and exact zeros, at a random model and stage."""
    p = {"E": rng.uniform(0.4, 2.0, draws)}
    for name in law.coefficients:
        p[name] = rng.lognormal(np.log(0.2), 0.9, draws) * (rng.random(draws) > 0.02)
    for name in law.exponents:
        size = rng.lognormal(np.log(0.3), 0.6, draws) * (rng.random(draws) > 0.02)
        if name == "lambda_":
            size = rng.random(draws)
        elif name == "zeta":
            size = rng.normal(0, 0.7, draws)
        elif name.startswith(("curve", "cross")):
            size = rng.normal(0, 0.15, draws) * (rng.random(draws) > 0.1)
        elif name.startswith("drift_"):
            size = rng.normal(0, 0.02, draws)
        elif name.startswith("tilt"):
            size = rng.normal(0, 0.7, draws)
        p[name] = size
    params, ptpp = np.exp(rng.uniform(np.log(1e8), np.log(2e10))), rng.uniform(5, 300)
    law, p = law.at_model(p, {"params": np.log(params), "ptpp": np.log(ptpp)}, AT)
    return LossCurve(law, p, AT, params, ptpp)


def feasible(curve, replay, limit):
    return Bound(curve, limit).budgets(replay)


def brute(curve, replay, budgets):
    """Loss of shape (budgets, draws) from the law; concave terms stay at their maximum below it."""
    law = curve.law
    tokens = curve.params * np.exp(budgets)
    rows = pd.DataFrame(
        {"params": curve.params, "ptpp": curve.ptpp, "replay": replay, "tokens": tokens}
    )
    p = {name: value[:, None] for name, value in curve.p.items()}
    x = law.covariates(rows)
    total = p["E"]
    for term in law.terms:
        shape = np.broadcast_to(term.shape(p, x, curve.at, np), (curve.draws, len(budgets)))
        if "tokens" in term.covariates:
            c2, c1, c0 = np.polyfit(budgets, shape.T, 2)[:, :, None]
            with np.errstate(divide="ignore", invalid="ignore"):
                left = (c2 < -1e-9) & (budgets < -0.5 * c1 / c2)
                shape = np.where(left, c0 - 0.25 * c1**2 / c2, shape)
        with np.errstate(over="ignore"):
            total = total + p[term.coefficient] * np.exp(shape)
    return total.T


def mismatches(curve, replay, limit):
    """Budgets of the grid where a set and the sign of the brute-force loss disagree."""
    sets = feasible(curve, [replay], limit)
    excess = brute(curve, replay, LOG_ATPP) - limit
    inside = np.stack([sets.contains(u)[0] for u in LOG_ATPP])
    clear = np.abs(excess) > 1e-9
    return ((inside != (excess <= 0)) & clear).sum(), sets


def random_limit(rng, curve, replay):
    """A limit near the losses, so that every answer occurs: none, all, and some budgets."""
    loss = curve.loss([replay], rng.uniform(-3, 5))[0]
    loss = np.where(np.isfinite(loss), loss, 2.0)  # the maximum may overflow
    return loss * np.exp(rng.normal(0, 0.2, curve.draws))
