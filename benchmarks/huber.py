"""The Huber fit against thousands of random starts of SciPy's L-BFGS-B.

For every shipped table and law: the best objective of `fit_huber`, the best of `--starts` random
starts of L-BFGS-B on the same objective with exact gradients, and the time L-BFGS-B with finite
differences (SciPy's default, scaled coordinates, tight tolerances) needs to find that optimum with
99 % certainty, from its success rate over `--finite` starts. One process, one thread.

    python benchmarks/huber.py [--starts 4000] [--finite 200] [--only TEXT]
"""

import argparse
import math
import time
import warnings
from itertools import chain

import numpy as np
from scipy.optimize import minimize
from tables import splits, synthetic

import bayeslaw as bl
from bayeslaw.huber import AGREE, Problem

TIGHT = {"maxiter": 3000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-12}


def random_points(problem: Problem, count: int, seed: int) -> np.ndarray:
    """Random starts: exponents over the screening box, sizes uniform up to the mean loss."""
    points = problem.screen(count, seed)
    rng = np.random.default_rng(seed)
    points[:, : problem.linear] = rng.uniform(0, np.exp(problem.log_loss.mean()), (count, 1)) * (
        rng.dirichlet(np.ones(problem.linear), count)
    )
    return points[rng.permutation(count)]


def descend(problem: Problem, start: np.ndarray, *, exact: bool) -> float:
    """Objective where L-BFGS-B ends from one start, with or without exact gradients."""

    def value(point: np.ndarray) -> float:
        return float(problem.objective(problem.residuals(point[None]))[0])

    def gradient(point: np.ndarray) -> np.ndarray:
        r = problem.residuals(point[None])[0]
        return np.clip(r, -problem.delta, problem.delta) @ problem.jacobian(point[None])[0]

    scale = value(start)
    result = minimize(
        lambda point: value(point) / scale,
        start,
        jac=(lambda point: gradient(point) / scale) if exact else None,
        method="L-BFGS-B",
        bounds=list(zip(problem.low, problem.high, strict=True)),
        options=TIGHT,
    )
    return float(result.fun * scale)


def main() -> None:
    """Print one line per table and law."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=4000)
    parser.add_argument("--finite", type=int, default=200)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print("table | law | rows | seconds | agreeing | objective | best of starts / ours - 1", end="")
    print(" | success, finite differences | its seconds to 99 % | ratio")
    for name, table, _, laws in chain(splits(), synthetic()):
        for law in laws:
            if args.only not in f"{name} {law}":
                continue
            start = time.perf_counter()
            fit = bl.fit_huber(law, table)
            seconds = time.perf_counter() - start
            problem = Problem(bl.load_law(law), table, fit.delta)
            ours = fit.objective * len(table)
            points = random_points(problem, args.starts, seed=1)
            best = min(descend(problem, point, exact=True) for point in points)
            start = time.perf_counter()
            ends = [descend(problem, p, exact=False) for p in points[: args.finite]]
            each = (time.perf_counter() - start) / args.finite
            success = np.mean(np.array(ends) <= min(best, ours) * (1 + 100 * AGREE))
            # With no success in n starts the rate is at most about 3/n (95 %).
            rate = min(max(success, 3 / args.finite), 1 - 1e-9)
            needed = each * max(1, math.log(0.01) / math.log(1 - rate))
            bound = "" if success else "> "
            print(
                f"{name} | {law} | {len(table)} | {seconds:.2f} | {fit.agreeing:.2f} | "
                f"{fit.objective:.4e} | {best / ours - 1:+.1e} | {success:.3f} | "
                f"{bound}{needed:.1f} | {bound}{needed / seconds:.0f}x",
                flush=True,
            )


if __name__ == "__main__":
    main()
