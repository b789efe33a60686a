"""Does 90 % mean 90 %? Plans in synthetic worlds, and how often new runs violate their limits.

The worlds are of eight families (`adaptation_worlds.py`): laws as written, and seven ways in which
the world may differ from them. In each, 24 runs of PTPP 15 and 31 are measured on two domains, with
the bases' own losses, and a run of the 8.1B base of PTPP 279 is planned. Limits are set from losses
that were measured. A plan is judged by the measured losses of a new run of that base: `risk` is the
share of 20,000 simulated runs that violate a limit, `violated` says it of one of them.

The methods are

- ``plain``: Form 3 and Form 1 as written, independent errors;
- ``curvature``: the same with curvature, the default of an earlier version;
- ``default``: ``bl.fit("adaptation", table)``.

Each is fitted without and with a purchase at the planned stage: 20 anchors of small sizes and a
short pilot of the planned base. Two chains, target acceptance .98, no second attempt; plans are
made from fits that fail their convergence check too, and the column `gate` says so.

    OMP_NUM_THREADS=1 python benchmarks/violations.py [--worlds 20] [--jobs 1]
    python benchmarks/violations.py --methods plain default --bought anchors
    python benchmarks/violations.py --show

Rows are kept in violations.csv beside this file, in the order of worlds: number 0 of every family
first. An interrupted run continues when it is started again. A world costs about 7 CPU minutes
with all methods, 2.5 with the second command.
"""

import argparse
import math
import time
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from adaptation_worlds import FAMILIES, TRAIN, N, P, Truth, flops, purchase, world
from joblib import Parallel, delayed
from scipy.stats import binomtest
from tables import SMOKE, arguments

import bayeslaw as bl

FORMS = ("form3", "form1")
METHODS: dict[str, tuple[tuple[str, str], dict[str, Any]]] = {
    "plain": (FORMS, {"discrepancy": "none", "errors": "independent"}),
    "curvature": (FORMS, {"discrepancy": "curvature", "errors": "independent"}),
    "default": (("adaptation", "adaptation"), {}),
}
"""Laws of target and source, and settings of the fits."""
FIT = {"chains": 2, "target_accept": 0.98, "cores": 1, "retry": False}
PURCHASES: dict[str, Callable[[Sequence[bl.LossTable]], pd.DataFrame] | None] = {
    "none": None,
    "anchors": lambda tables: purchase(),
}
"""Rows to buy, from the measured tables of target and source."""
CONFIDENCES = (0.8, 0.9)
RATIOS = np.linspace(0.02, 0.98, 25)
"""Replay ratios that are searched."""
KEYS = ["family", "number", "bought", "method"]


def planned(fits: Sequence[Any], limits: dict[str, float]) -> tuple[pd.DataFrame, float]:
    """Plans at each confidence, and without one at the last, the largest P(both) of any budget."""
    found = bl.plan(
        target=fits[0],
        source=fits[1],
        params=N,
        ptpp=P,
        max_loss=limits["max_loss"],
        max_forgetting=limits["max_forgetting"],
        baseline=limits["baseline"],
        base=f"{N:.3g}-{P:g}",
        confidence=CONFIDENCES[-1],
        replay_grid=RATIOS,
        allow_unconverged=True,
    )
    return found.frontier(CONFIDENCES), found.best.p_both if found.best else math.nan


@lru_cache(1)
def measured(family: str, number: int) -> tuple[Truth, dict[str, float], dict[float, float]]:
    """A world, its limits from measured losses, and the budgets of plans that know the world."""
    truth = world(family, number)
    tables = truth.tables([TRAIN], seeds(family, number))
    limits = truth.limits(TRAIN, np.stack([table.loss for table in tables]))
    return truth, limits, {each: truth.oracle(limits, each) for each in CONFIDENCES}


def seeds(family: str, number: int) -> list[int]:
    """Seed of the errors of measured runs."""
    return [13, FAMILIES.index(family), number]


def measure(
    family: str, number: int, bought: str, method: str, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """Rows of one method in one world."""
    warnings.simplefilter("ignore")
    truth, limits, oracles = measured(family, number)
    rows, spent, buy = [TRAIN], 0.0, PURCHASES[bought]
    tables = truth.tables(rows, seeds(family, number))
    if buy:
        rows.append(buy(tables))
        spent, tables = flops(rows[1]), truth.tables(rows, seeds(family, number))
    start, (laws, own) = time.process_time(), METHODS[method]
    fits = [
        bl.fit(law, table, seed=2 * number + i, **own, **settings)
        for i, (law, table) in enumerate(zip(laws, tables, strict=True))
    ]
    fitted = time.process_time()
    failed = [
        f"{member.law.name} {domain}: {', '.join(member.convergence.failures)}"
        for domain, fit in zip(("target", "source"), fits, strict=True)
        for member in (fit.members.values() if isinstance(fit, bl.Pool) else (fit,))
        if member.convergence.failures
    ]
    about = {
        **dict(zip(KEYS, (family, number, bought, method), strict=True)),
        "gate": "; ".join(failed) or "passed",
        "rhat": max(fit.convergence.rhat for fit in fits),
    }
    plans, best = planned(fits, limits)
    found = []
    for each in plans.to_dict("records"):
        row = about | {"confidence": each["confidence"], "oracle": oracles[each["confidence"]]}
        row |= {"atpp": each["atpp"], "replay": each["replay"], "stated": each["p_both"]}
        if math.isfinite(each["atpp"]):
            row |= truth.outcome(limits, each["atpp"], each["replay"])
            row |= {"spent": spent / each["flops"]}
        found.append(row | {"best": best})
    seconds = {"fit_s": fitted - start, "plan_s": time.process_time() - fitted}
    world_is = " ".join(f"{k}={v:.4g}" for k, v in truth.about.items() if k != "number")
    return [row | seconds | limits | {"world": world_is} for row in found]


def wanted(
    worlds: int, purchases: Sequence[str], methods: Sequence[str], done: pd.DataFrame
) -> list[tuple[str, int, str, str]]:
    """Families, numbers, purchases and methods not done yet, number 0 of all families first."""
    had = set(done[KEYS].itertuples(index=False, name=None)) if len(done) else set()
    every = (
        (family, number, bought, method)
        for number in range(worlds)
        for family in FAMILIES
        for bought in purchases
        for method in methods
    )
    return [each for each in every if each not in had]


def table(rows: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """Plans of one confidence by family, purchase and method, and over all families."""
    rows, found = rows[np.isclose(rows["confidence"], confidence)], []
    for family in (*FAMILIES, "all"):
        own = rows if family == "all" else rows[rows["family"] == family]
        for bought in PURCHASES:
            for method in METHODS:
                part = own[(own["bought"] == bought) & (own["method"] == method)]
                if len(part):
                    about = {"family": family, "bought": bought, "method": method}
                    found.append(about | summary(part))
    return pd.DataFrame(found)


def summary(rows: pd.DataFrame) -> dict[str, str]:
    """Feasible plans, violations of them, and ATPP over the oracle's, as text."""
    made = rows[np.isfinite(rows["atpp"])]
    found = {"worlds": f"{len(rows)}", "plans": f"{len(made) / len(rows):.0%}"}
    if len(made):
        count = int(made["violated"].sum())
        low, high = binomtest(count, len(made)).proportion_ci(method="wilson")
        found["violated"] = f"{count / len(made):.0%} ({low:.0%} to {high:.0%})"
        found["risk"] = f"{made['risk'].mean():.0%}"
        found["stated"] = f"{1 - made['stated'].mean():.0%}"
    both = made[np.isfinite(made["oracle"])]
    if len(both):
        low, middle, high = (both["atpp"] / both["oracle"]).quantile([0.1, 0.5, 0.9])
        found["ATPP over oracle"] = f"{middle:.2f} ({low:.2f} to {high:.2f})"
    return found | {"failed fits": f"{(rows['gate'] != 'passed').mean():.0%}"}


def show(rows: pd.DataFrame) -> None:
    """Print a table per confidence, and the seconds of each method."""
    for confidence in CONFIDENCES:
        print(f"\nplanned at {confidence:.0%}\n")
        print(table(rows, confidence).fillna("").to_markdown(index=False, stralign="right"))
        own = rows[np.isclose(rows["confidence"], confidence) & (rows["bought"] == "anchors")]
        pool = own[(own["method"] == "default") & np.isfinite(own["atpp"])]
        same = own.merge(pool[KEYS[:2]])
        print(f"\nafter the purchase, the {len(pool)} worlds in which the default has a plan\n")
        found = [{"method": method, **summary(part)} for method, part in same.groupby("method")]
        print(pd.DataFrame(found).to_markdown(index=False, stralign="right"))
    once = rows.drop_duplicates(KEYS)
    seconds = once.groupby(["bought", "method"])[["fit_s", "plan_s"]].mean().round(1)
    print(f"\nCPU seconds\n\n{seconds.reset_index().to_markdown(index=False)}")


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--worlds", type=int, default=20, help="of each family")
    found.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    found.add_argument("--bought", nargs="+", choices=PURCHASES, default=list(PURCHASES))
    found.add_argument("--jobs", type=int, default=1, help="processes")
    found.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".csv"))
    found.add_argument("--show", action="store_true", help="print the tables of --out")
    return found


def main() -> None:
    """Run what is missing, then print the tables."""
    args = parser().parse_args()
    if args.smoke:
        show(pd.DataFrame(measure("base", 0, "anchors", "default", FIT | SMOKE)))
        return
    rows = pd.read_csv(args.out) if args.out.is_file() else pd.DataFrame()
    if not args.show:
        todo = wanted(args.worlds, args.bought, args.methods, rows)
        calls = (delayed(measure)(*each, FIT) for each in todo)
        for new in Parallel(n_jobs=args.jobs, return_as="generator")(calls):
            rows = pd.concat([rows, pd.DataFrame(new)], ignore_index=True)
            rows.to_csv(args.out, index=False, float_format="%.6g")
            cells = (str(new[-1][key]) for key in (*KEYS, "gate", "atpp", "fit_s"))
            print(" | ".join(cells), flush=True)
    show(rows)


if __name__ == "__main__":
    main()
