"""Random draws of every law as curves in D, and their losses by brute force."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bayeslaw import load_law
from bayeslaw.laws.terms import Term
from bayeslaw.model.discrepancy import Curvature
from bayeslaw.planning.grid import Curve, LawDraws

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


DATA = Term("B", "slope_D", "-beta*log(D) + nu*log(r)")
TWICE = (DATA, Term("G", "slope_G", "-phi*log(D)"))
RISING = (DATA, Term("G", "slope_G", "-alpha*log(N) + phi*log(D)"))
# A power of D whose exponent depends on r: its logs at r and at 1 differ in slope.
SKEWED = Term("B", "slope_D", "-beta*log(D) + 0.02*beta*log(r)*log(D) + nu*log(r)")


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
    return at_one_stage(law, p, params, ptpp)


def at_one_stage(law, p, params, ptpp, at=AT):
    draws = LawDraws(law, p, at)
    return Curve((draws,), (np.arange(draws.count),), params, ptpp)


def by_law(curve, replay, budgets):
    """Loss of shape (budgets, draws) from the formula of the law; budgets may differ by draw."""
    member = curve.members[0]
    row = {"params": curve.params, "ptpp": curve.ptpp, "replay": replay, "tokens": curve.params}
    x = member.law.covariates(pd.DataFrame([row]))
    x["tokens"] = x["tokens"] + budgets
    p = {name: value[:, None] for name, value in member.p.items()}
    with np.errstate(over="ignore"):
        loss = member.law.loss(p, x, member.at)
    return np.broadcast_to(loss, (curve.draws, np.shape(budgets)[-1])).T


def random_limit(rng, curve, replay):
    """A limit near the losses, so that every answer occurs: none, all, and some budgets."""
    loss = curve.loss([rng.uniform(-3, 5)], [replay])[0, 0]
    loss = np.where(np.isfinite(loss), loss, 2.0)  # the maximum may overflow
    return loss * np.exp(rng.normal(0, 0.2, curve.draws))
