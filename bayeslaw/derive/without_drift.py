"""The law without drift that is nearest to each draw of a fit with a discrepancy.

Exponents that drift serve forecasts: they bend to the rows, and beyond these they differ from draw
to draw. A rule for compute-optimal sizes is stated with constant exponents. Of each draw it is
that of the law nearest to the draw's losses at the fitted rows: a projection of the posterior [1]_,
not another fit.

References
----------
.. [1] S. Woody, C. M. Carvalho and J. S. Murray (2021). Model interpretation through
   lower-dimensional posterior summarization. Journal of Computational and Graphical Statistics,
   30(1), 144-161.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.table import Rows

MOST_DRAWS = 1000
"""Most draws that are projected, evenly spread."""
STEPS, SETTLED = 60, 1e-6
"""Most Levenberg-Marquardt steps, and the relative change of the sum of squares that ends them."""
DAMPING = 1e-3
LEAST = 1e-3
"""Least floor and terms at the start, nats: the logs of a draw that has none would not move."""
MOST_STEP = 1.0


def without_drift(fit: Posterior, draws: Ints) -> Callable[[Rows], Floats]:
    """Losses on rows, (draws, rows), of the constant-exponent law nearest to each of some draws.

    Least squares of the log loss over the fitted rows, started from the draw's own parameters, move
    the floor, the coefficients and the exponents of the terms within their bounds. What else the
    law has, such as kappa, which couples terms, is the draw's: few rows do not determine it.
    """
    law, frame = replace(fit.law, deviations=()), fit.table.frame
    rows = Rows(frame)
    x, goal = fit.covariates(rows), np.log(fit.law_loss(rows)[draws])
    p = {name: v[draws] for name, v in law.amounts(fit.values(), fit.at).items()}
    terms = [n for term in law.terms for n in (term.coefficient, *term.exponents)]
    names = ["E", *dict.fromkeys(terms)]
    bounds = np.array([law.by_symbol[name].bounds for name in names])
    logged = bounds[:, 0] >= 0  # their logs move
    p |= {n: np.maximum(p[n], LEAST) for n in ("E", *law.coefficients)}
    with np.errstate(divide="ignore"):
        ends = np.where(logged[:, None], np.log(np.maximum(bounds, 0.0)), bounds)
    point = np.hstack([p[name] for name in names])
    point = np.clip(np.where(logged, np.log(np.maximum(point, 1e-12)), point), *ends.T)

    def parameters(point: Floats, rows: Ints) -> dict[str, Floats]:
        values = np.where(logged, np.exp(point), point)
        moved = {name: values[:, [k]] for k, name in enumerate(names)}
        return {name: v[rows] for name, v in p.items()} | moved

    def logs(point: Floats, rows: Ints) -> tuple[Floats, Floats]:
        """Log losses, (draws, rows), and their derivatives, (draws, rows, names)."""
        q = parameters(point, rows)
        loss, by = law.loss(q, x, fit.at), law.gradient(q, x, fit.at, names)
        slopes = [by[n] * (q[n] if log else 1.0) for n, log in zip(names, logged, strict=True)]
        return np.log(loss), np.stack([np.broadcast_to(s / loss, loss.shape) for s in slopes], -1)

    active = np.arange(len(draws))
    fitted, slopes = logs(point, active)
    squares, damping = ((goal - fitted) ** 2).sum(1), np.full(len(draws), DAMPING)
    for _ in range(STEPS):
        own = slopes[active]
        gradient = np.einsum("drk,dr->dk", own, (goal - fitted)[active])
        products = np.einsum("drk,drl->dkl", own, own)
        scale = np.einsum("dkk->dk", products) + 1e-12
        damped = products + damping[active, None, None] * (scale[:, None] * np.eye(len(names)))
        step = np.linalg.solve(damped, gradient[..., None])[..., 0]
        moved = np.clip(point[active] + np.clip(step, -MOST_STEP, MOST_STEP), *ends.T)
        trial, turned = logs(moved, active)
        after = ((goal[active] - trial) ** 2).sum(1)
        better = after < squares[active]
        done = better & (squares[active] - after <= SETTLED * after)
        kept = active[better]
        point[kept], fitted[kept], slopes[kept] = moved[better], trial[better], turned[better]
        squares[kept] = after[better]
        damping[active] *= np.where(better, 0.2, 5.0)
        active = active[~done & (damping[active] < 1e6)]
        if not len(active):
            break
    nearest = parameters(point, np.arange(len(draws)))
    return lambda rows: law.loss(nearest, law.covariates(rows), fit.at)
