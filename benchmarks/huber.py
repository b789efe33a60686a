"""The Huber fit compared with thousands of random starts, and with SciPy's L-BFGS-B.

For every shipped table and law:

- the best objective of `fit_huber` against the best of `--starts` random starts (random exponents
  and sizes, without screening), each descended 40 steps with exact derivatives, and the best tenth
  until convergence;
- the seconds that L-BFGS-B as usually run for scaling laws (E, log A, alpha, log B, ... on raw N
  and D, finite differences, tight tolerances, Hoffmann et al.'s ranges of starts) needs to find
  that optimum with probability 99 %, from its success rate over `--finite` starts. Success is an
  objective within .1 % of the optimum, a thousand times the tolerance for `fit_huber`.

One process, one thread.

    python benchmarks/huber.py [--starts 4000] [--finite 60] [--only TEXT]
"""

import argparse
import math
import time
import warnings
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
from scipy.optimize import minimize
from tables import splits, synthetic

import bayeslaw as bl
from bayeslaw.huber.objective import Problem

LOOSE = 1e-3
TIGHT = {"maxiter": 3000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-12}


def random_points(problem: Problem, count: int, seed: int) -> np.ndarray:
    """Random starts: exponents over the screening box, sizes that sum to the mean loss."""
    points = problem.screen(count, seed)
    rng = np.random.default_rng(seed)
    points[:, : problem.linear] = rng.dirichlet(np.ones(problem.linear), count)
    return points[rng.permutation(count)]


def descend_all(problem: Problem, points: np.ndarray) -> float:
    """Best objective from many points; a tenth continues after 40 steps, 40 of these to the end."""
    tenth = []
    for part in np.array_split(points, max(1, len(points) // 200)):
        ends, value, _ = problem.polish(part, max_steps=40)
        tenth.append(ends[np.argsort(value)[: max(1, len(part) // 10)]])
    ends, value, _ = problem.polish(np.concatenate(tenth))
    last = problem.polish(ends[np.argsort(value)[:40]], exact=True)[1]
    return float(min(value.min(), last.min()))


def field_fit(problem: Problem, rng: np.random.Generator) -> float:
    """Final objective of L-BFGS-B as usually run, from one random start."""
    law, linear = problem.law, problem.linear

    def value(vector: np.ndarray) -> float:
        p = dict(zip(problem.names, vector, strict=True))
        p |= {name: np.exp(p[name]) for name in law.coefficients}
        with np.errstate(all="ignore"):
            r = np.log(law.loss(p, problem.x)) - problem.log_loss - problem.log_scale
        total = float(problem.objective(r[None])[0])
        return total if np.isfinite(total) else 1e10

    bounds = [law.bounds[name] for name in problem.names]
    bounds[1:linear] = [(-50.0, 50.0)] * (linear - 1)
    start = np.r_[
        rng.uniform(0, 2), rng.uniform(0, 25, linear - 1), rng.uniform(0, 1, len(bounds) - linear)
    ]
    result = minimize(value, start, method="L-BFGS-B", bounds=bounds, options=TIGHT)
    return float(result.fun)


def timed(call: Callable[..., Any], *args: Any) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call(*args)
    return time.perf_counter() - start


def main() -> None:
    """Print one line per table and law."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=4000)
    parser.add_argument("--finite", type=int, default=60)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print("table | law | rows | seconds | agreeing | objective | best of starts / ours - 1", end="")
    print(" | L-BFGS-B success | its seconds to 99 % | ratio")
    for name, table, _, laws in chain(splits(), synthetic()):
        for law in laws:
            if args.only not in f"{name} {law}":
                continue
            fit = bl.fit_huber(law, table)
            seconds = np.median([timed(bl.fit_huber, law, table) for _ in range(5)])
            problem = Problem(bl.load_law(law), table, fit.delta)
            ours = fit.objective * len(table)
            points = random_points(problem, args.starts, seed=1)
            best = descend_all(problem, points)
            rng = np.random.default_rng(2)
            start = time.perf_counter()
            ends = [field_fit(problem, rng) for _ in range(args.finite)]
            each = (time.perf_counter() - start) / args.finite
            success = np.mean(np.array(ends) <= min(best, ours) * (1 + LOOSE))
            # With no success in n starts the rate is at most about 3/n (95 %).
            rate = min(max(success, 3 / args.finite), 1 - 1e-9)
            needed = each * max(1, math.log(0.01) / math.log(1 - rate))
            bound = "" if success else "> "
            print(
                f"{name} | {law} | {len(table)} | {seconds:.3f} | {fit.agreeing:.2f} | "
                f"{fit.objective:.4e} | {best / ours - 1:+.1e} | {success:.3f} | "
                f"{bound}{needed:.1f} | {bound}{needed / seconds:.0f}x",
                flush=True,
            )


if __name__ == "__main__":
    main()
