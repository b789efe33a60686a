"""A question of SCALE-CERT: sums of powers as truths.

The truths are E + sum of a D^-b with positive a. Three of them, their nine runs and their noise are
those of its benchmark (github.com/jingxuxie/scaling-law-extrapolation); others are drawn.
"""

from argparse import Namespace

import numpy as np
import pandas as pd

import bayeslaw as bl
from benchmarks.methods import POSTERIORS, by_row
from benchmarks.runner import Jobs, Rows, Tables, experiment

PUBLISHED = {
    "one power": (0.2, [0.55], [0.15]),
    "hidden": (0.2, [0.1, 0.8], [0.0003, 0.15]),
    "three powers": (0.18, [0.12, 0.45, 1.1], [0.00025, 0.02, 0.12]),
}
"""Floor, exponents and coefficients."""
BEYOND = np.array([0.5, 1.0, 2.0, 3.0, 4.0])
"""Decades of tokens beyond the last run."""
WAYS = ("default", "trend", "plain")


def by_truth(rows: pd.DataFrame) -> Tables:
    """Shares of losses in the 90 % band, and median width, by truth and distance."""
    groups = rows.groupby(["truth", "way", "decades"])
    found = {"inside": groups["inside_90"].mean(), "width": groups["width_90"].median()}
    return {name: table.unstack("decades") for name, table in found.items()}


@experiment(by_truth, draws=300, drawn=40, repeats=30)
def powers(options: Namespace) -> Jobs:
    """Coverage by distance where the truth is a sum of several powers of tokens."""
    cases = [(name, seed) for seed in range(options.repeats) for name in PUBLISHED]
    cases += [("drawn", seed) for seed in range(options.drawn)]
    for (truth, seed), way in ((case, way) for case in cases for way in WAYS):

        def job(truth: str = truth, seed: int = seed, way: str = way) -> Rows:
            rng = np.random.default_rng([seed, len(truth)])
            if truth == "drawn":
                floor, exponents = rng.uniform(1, 2), rng.uniform(0.05, 0.6, 3)
                coefficients = rng.uniform(1, 3) * rng.dirichlet(np.ones(3))
                count, decades = rng.integers(6, 13), rng.uniform(1, 2)
                noise = rng.uniform(0.002, 0.005)
            else:
                floor, exponents, coefficients = PUBLISHED[truth]
                count, decades, noise = 9, np.log10(128), 0.001 / floor
            scale = np.r_[np.geomspace(1, 10**decades, count), 10 ** (decades + BEYOND)]
            loss = floor + scale[:, None] ** -np.array(exponents) @ np.array(
                coefficients
            )
            loss *= np.exp(noise * rng.standard_normal(len(scale)))
            frame = pd.DataFrame({"params": 1e8, "tokens": 1e7 * scale, "loss": loss})
            train, test = (
                bl.from_frame(f, truth) for f in (frame[:count], frame[count:])
            )
            settings = POSTERIORS[way] | {"draws": options.draws, "retry": False}
            fit = bl.fit("chinchilla", train, **settings | options.settings)
            rows = by_row(fit.accepted(unconverged=True).forecast(test).samples, test)
            gate = "; ".join(fit.convergence.failures) or "passed"
            return rows.assign(decades=BEYOND, runs=count, gate=gate)

        yield {"truth": truth, "seed": seed, "way": way}, job
