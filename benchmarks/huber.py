r"""The Huber fit against general optimisers: objectives reached, starts that agree, CPU seconds.

Training rows of shipped tables and splits are fitted with every law that suits them, within the
bounds of the paper; Forms 2 and 3 also with ``bounds="prior"``, which the column `law` says. A row
of the output is one optimiser on one table and law. Optimisers:

- ``fit_huber``: the package's own fit;
- ``trf``, ``dogbox``: the two bounded methods of `scipy.optimize.least_squares` with
  ``loss="huber"``, the exact Jacobian, and the same coordinates, bounds and screened starts; as
  many starts as `fit_huber` polishes when they disagree;
- ``trf ranked``, ``dogbox ranked``: the same from all the starts among which `fit_huber` chooses
  after a few steps, ``exponents - 2`` times as many;
- ``no refit``, ``no extrapolation``, ``no second derivatives``: `fit_huber` without that part;
- ``random``: random exponents and sizes that are not screened (``--random``, 4000), each descended
  40 steps by the package's own descent, the best tenth until they converge;
- ``L-BFGS-B``: as it is commonly used for scaling laws, with finite differences in E, log A, alpha,
  log B, ... and from random starts (``--finite``, 60) in the ranges of Hoffmann et al. (2022).

Columns:

- ``starts``: descents that ran until they converged;
- ``seconds``: CPU time of the whole fit, screening included where there is any;
- ``objective``: mean Huber loss; ``excess``: over the least of all optimisers, relatively;
- ``agreeing``: share of the starts within 1e-5 of the best of this optimiser;
- ``found``: share of the starts within 1e-3 of the least objective of all optimisers;
- ``seconds_99``: CPU seconds until one start has found it with 99 % certainty; with no success in
  n starts the rate is taken as 3/n, the upper 95 % bound, so this is a lower bound;
- ``capped``: share of the starts stopped by SciPy's default limit of evaluations;
- ``bounds``: parameters that the best start left on a bound.

The comparison with SciPy, that with more starts, and that of the parts of `fit_huber`:

    OMP_NUM_THREADS=1 python benchmarks/huber.py --out benchmarks/huber.csv
    for case in "english stage from two form2 prior" "english stage from two form3 prior" \
            "english_arabic form2 prior"; do
        OMP_NUM_THREADS=1 python benchmarks/huber.py --only "$case" \
            --out benchmarks/huber_ranked.csv --optimizers fit_huber "trf ranked" "dogbox ranked"
    done
    OMP_NUM_THREADS=1 python benchmarks/huber.py --out benchmarks/huber_parts.csv \
        --optimizers fit_huber "no refit" "no extrapolation" "no second derivatives"

One process, one thread. Rows already in ``--out`` are not run again.
"""

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
from scipy.optimize import least_squares, minimize
from tables import POOL, arguments, splits, synthetic

import bayeslaw as bl
from bayeslaw.common.defaults import DELTA
from bayeslaw.huber import descent
from bayeslaw.huber.descent import Objective, screened_starts

FOUND = 1e-3
SPLITS = "stage from two", "stage from four", "size"
"""Splits of tinycpt that are fitted."""
REPEATS = 3
"""Runs of `fit_huber`, of which the median time is reported."""
SMOKED = "fit_huber", "trf", "dogbox ranked", "no refit", "random", "L-BFGS-B"
"""Optimisers under ``--smoke``."""
PRECISE = {"ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-15}
LIMITS = {"maxiter": 3000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-12}


@dataclass(frozen=True)
class Ends:
    """Where the starts of one optimiser ended: sums of Huber losses, and the time taken."""

    objectives: np.ndarray
    seconds: float
    bounds: tuple[str, ...] = ()
    capped: float = 0.0


# -- optimisers --------------------------------------------------------------------------------


def package_fit(law: bl.Law, table: bl.LossTable, delta: float) -> Ends:
    """Ends of `fit_huber`: starts that do not agree are only known to end higher."""
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        fit = bl.fit_huber(law, table, delta=delta)
        seconds.append(time.process_time() - start)
    ends = np.full(fit.polished, np.inf)
    ends[: round(fit.agreeing * fit.polished)] = fit.objective * len(table)
    return Ends(ends, float(np.median(seconds)), tuple(fit.at_bounds))


def without(part: str, law: bl.Law, table: bl.LossTable, delta: float) -> Ends:
    """Ends of `fit_huber` with one of its parts left out."""

    def residuals_only(objective: Objective, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return points, objective.residuals(points)

    polish = descent.polish

    def gauss_newton(*args, second_derivatives: bool = False, **settings):
        return polish(*args, **settings)

    parts = {
        "no second derivatives": ("polish", gauss_newton),
        "no refit": ("refit_linear", residuals_only),
        "no extrapolation": ("extrapolated", lambda *given: given[2:]),
    }
    with patch.object(descent, *parts[part]):
        return package_fit(law, table, delta)


def scipy_least_squares(objective: Objective, method: str, ranked: bool, seed: int = 0) -> Ends:
    """Ends of SciPy's least squares with the Huber loss, from the best screened starts."""

    def residuals(vector: np.ndarray) -> np.ndarray:
        return objective.residuals(vector[None])[0]

    def jacobian(vector: np.ndarray) -> np.ndarray:
        return objective.jacobian(vector[None], objective.residuals(vector[None]))[0].T

    bounds, exponents = (objective.low, objective.high), len(objective.law.exponents)
    points, objectives, capped = [], [], []
    start = time.process_time()
    count = 3 * exponents * (max(1, exponents - 2) if ranked else 1)
    for point in screened_starts(objective, 64 * exponents, seed)[:count]:
        point = np.clip(point, *bounds)
        try:
            with np.errstate(all="ignore"):
                result = least_squares(
                    residuals,
                    point,
                    jacobian,
                    bounds,
                    method=method,
                    loss="huber",
                    f_scale=objective.delta,
                    x_scale="jac",
                    **PRECISE,
                )
        except (ValueError, np.linalg.LinAlgError):  # of a start or Jacobian that is not finite
            points.append(point)
            objectives.append(np.inf)
            continue
        points.append(result.x)
        objectives.append(float(objective.value(residuals(result.x)[None])[0]))
        capped.append(result.status == 0)
    seconds = time.process_time() - start
    best = points[int(np.argmin(objectives))]
    return Ends(
        np.array(objectives), seconds, tuple(objective.on_bound(best)), sum(capped) / len(points)
    )


def random_starts(objective: Objective, count: int, seed: int = 1) -> Ends:
    """Ends of the package's descent from many random points that are not screened."""
    points = screened_starts(objective, count, seed)
    rng = np.random.default_rng(seed)
    points[:, : objective.linear] = rng.dirichlet(np.ones(objective.linear), count)
    points = points[rng.permutation(count)]
    start, best = time.process_time(), []
    for part in np.array_split(points, max(1, count // 200)):
        ends, value, _ = descent.polish(objective, part, max_steps=40)
        best.append(ends[np.argsort(value)[: max(1, len(part) // 10)]])
    ends, value, _ = descent.polish(objective, np.concatenate(best))
    order = np.argsort(value)
    ends, last, _ = descent.polish(objective, ends[order[:40]])
    value[order[:40]] = np.minimum(value[order[:40]], last)
    bounds = tuple(objective.on_bound(ends[int(last.argmin())]))
    return Ends(value, time.process_time() - start, bounds)


def lbfgsb(objective: Objective, count: int, seed: int = 2) -> Ends:
    """Ends of L-BFGS-B with finite differences from random starts."""
    law, linear, rng = objective.law, objective.linear, np.random.default_rng(seed)
    bounds = [law.bounds[name] for name in objective.names]
    bounds[1:linear] = [(-50.0, 50.0)] * (linear - 1)

    def value(vector: np.ndarray) -> float:
        p = dict(zip(objective.names, vector, strict=True))
        p |= {name: np.exp(p[name]) for name in law.coefficients}
        with np.errstate(all="ignore"):
            r = np.log(law.loss(p, objective.x)) - objective.observed - objective.log_scale
        total = float(objective.value(r[None])[0])
        return total if np.isfinite(total) else 1e10

    begin, ends = time.process_time(), []
    for _ in range(count):
        ranges = [(0, 2), *[(0, 25)] * (linear - 1), *[(0, 1)] * (len(bounds) - linear)]
        start = np.array([rng.uniform(*each) for each in ranges])
        ends.append(minimize(value, start, method="L-BFGS-B", bounds=bounds, options=LIMITS).fun)
    return Ends(np.array(ends), time.process_time() - begin)


# -- rows --------------------------------------------------------------------------------------


def cases() -> Iterator[tuple[str, bl.Law, bl.LossTable]]:
    """Table, law with the bounds that are searched, and training rows of every case."""
    for name, _, table, _, laws in chain(splits(), synthetic()):
        if name.startswith("tinycpt") and not name.endswith(SPLITS):
            continue
        # Source losses rise under adaptation: the law of forgetting is for the English tables.
        source = name.startswith(("tinycpt english", "synthetic english"))
        alone = [law for law in laws if law != POOL]
        for law in map(bl.load_law, (*alone, "forgetting") if source else alone):
            if law.departure:  # it needs the bases of the table
                continue
            yield name, law.published, table
            if law.paper_bounds:
                yield name, replace(law, name=f"{law.name} prior", paper_bounds={}), table


def optimizers(
    law: bl.Law, table: bl.LossTable, delta: float, *, random: int, finite: int
) -> dict[str, Callable[[], Ends]]:
    """Optimisers by name."""
    objective = Objective(law, table, delta)
    parts = "no refit", "no extrapolation", "no second derivatives"
    return (
        {"fit_huber": lambda: package_fit(law, table, delta)}
        | {
            f"{method}{' ranked' * ranked}": partial(scipy_least_squares, objective, method, ranked)
            for method in ("trf", "dogbox")
            for ranked in (False, True)
        }
        | {part: partial(without, part, law, table, delta) for part in parts}
        | {"random": lambda: random_starts(objective, random)}
        | {"L-BFGS-B": lambda: lbfgsb(objective, finite)}
    )


def row(optimizer: str, ends: Ends, least: float, rows: int) -> dict[str, object]:
    """The results of one optimiser as a row of the output."""
    objectives, starts = ends.objectives, len(ends.objectives)
    found = float(np.mean(objectives <= (1 + FOUND) * least))
    rate = min(max(found, 3 / starts), 1 - 1e-9)
    return {
        "optimizer": optimizer,
        "starts": starts,
        "seconds": f"{ends.seconds:.4f}",
        "objective": f"{objectives.min() / rows:.10e}",
        "excess": f"{objectives.min() / least - 1:.1e}",
        "agreeing": round(float(np.mean(objectives <= (1 + 1e-5) * objectives.min())), 3),
        "found": round(found, 3),
        "seconds_99": f"{ends.seconds / starts * max(1, math.log(0.01) / math.log(1 - rate)):.4f}",
        "capped": round(ends.capped, 3),
        "bounds": " ".join(ends.bounds),
    }


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--optimizers", nargs="+", default=["fit_huber", "trf", "dogbox"])
    found.add_argument("--delta", type=float, default=DELTA, help="threshold of the Huber loss")
    found.add_argument("--random", type=int, default=4000, help="random starts")
    found.add_argument("--finite", type=int, default=60, help="starts of L-BFGS-B")
    found.add_argument("--only", default="", help="part of 'table law'")
    found.add_argument("--out", type=Path, default=Path("huber.csv"))
    return found


def main() -> None:
    """Run what is not in the output yet, print each row, and a summary at the end."""
    args = parser().parse_args()
    if args.smoke:
        args.optimizers = [*SMOKED]
        args.random, args.finite = 20, 2
    warnings.simplefilter("ignore")
    done = pd.read_csv(args.out) if args.out.is_file() else pd.DataFrame()
    for name, law, table in islice(cases(), 1 if args.smoke else None):
        key = {"delta": args.delta, "table": name, "law": law.name}
        seen = len(done) and (done[list(key)] == key).all(axis=1).any()
        if args.only not in f"{name} {law.name}" or seen:
            continue
        bl.fit_huber(law, table, delta=args.delta)  # the first run also imports
        known = optimizers(law, table, args.delta, random=args.random, finite=args.finite)
        ends = {each: known[each]() for each in args.optimizers}
        least = min(each.objectives.min() for each in ends.values())
        new = [
            {**key, "rows": len(table), **row(each, ends[each], least, len(table))} for each in ends
        ]
        print(pd.DataFrame(new).to_string(header=not len(done), index=False), flush=True)
        pd.DataFrame(new).to_csv(args.out, mode="a", header=not args.out.is_file(), index=False)
        done = pd.read_csv(args.out)
    print(summary(done).to_string())


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Objectives reached and ratios of times to `fit_huber`, by source, law and optimiser."""
    key = ["delta", "table", "law"]
    own = rows[rows["optimizer"] == "fit_huber"].set_index(key)["seconds"].rename("own")
    rows = rows.join(own, on=key)
    source = rows["table"].str.partition(" ")[0].replace(["delphi", "olmo", "gadre"], "public")
    rows = rows.assign(ratio=rows["seconds"] / rows["own"], reached=rows["excess"] <= 1e-9)
    grouped = rows.groupby([source, rows["law"], rows["optimizer"]], sort=False)
    return grouped.agg(
        cases=("law", "size"),
        reached=("reached", "sum"),
        largest_excess=("excess", "max"),
        agreeing=("agreeing", "median"),
        capped=("capped", "median"),
        seconds=("seconds", "median"),
        ratio=("ratio", "median"),
        largest_ratio=("ratio", "max"),
    )


if __name__ == "__main__":
    main()
