"""Anchor designs at equal FLOPs: the studies behind docs/anchors.md.

Which designs forecast better from the same FLOPs, on simulated worlds (`world`, `varied`; `plan`
plans as well) and on measured pools (`tinycpt`, `delphi`, `olmo`). Each may be stopped and run
again: it goes on where it was.

    python benchmarks/study.py world [--seeds 40] [--jobs 2] [--out DIR]
"""

import argparse
import time
from pathlib import Path

import pandas as pd
from tables import DATA

import bayeslaw as bl
from bayeslaw.studying.cases import Case, pool_cases, world_cases
from bayeslaw.studying.studies import study, summary

DESIGNS = ("none", "random", "cheapest", "grid", "doptimal", "variance", "entropy")
SHORT = {"draws": 400, "tune": 400}
CURVED = SHORT | {"discrepancy": "curvature", "target_accept": 0.97}


def tinycpt(seeds: range) -> list[Case]:
    """French: pool is the last stage of smaller sizes, targets that of the largest.

    Form 3 as written: with curvature and effects a refit takes minutes.
    """
    table = bl.read_table(DATA / "tinycpt/french.csv", where="annealed and replay < 1")
    largest = table.frame["params"].max()
    return [
        case
        for train in (31, 124)
        for case in pool_cases(
            table,
            "form3",
            train=f"ptpp <= {train}",
            pool=f"ptpp == 279 and params < {largest}",
            targets=f"ptpp == 279 and params == {largest}",
            seeds=seeds,
            name=f"tinycpt, PTPP to {train}",
        )
    ]


def delphi(seeds: range) -> list[Case]:
    """Fitted to the four smallest bases; pool is the middle ones, targets the two largest."""
    table = bl.read_table(DATA / "delphi/isotoken.csv")
    queries = {"train": "scale < 3e19", "pool": "3e19 <= scale < 1e21", "targets": "scale >= 1e21"}
    return pool_cases(table, "chinchilla", **queries, seeds=seeds, name="delphi")


def olmo(seeds: range) -> list[Case]:
    """Fitted to the shortest runs; pool is longer ones of smaller sizes, targets the largest N."""
    cases = []
    frame = pd.read_csv(DATA / "olmo/ladder.csv")
    largest = frame["params"].max()
    for domain in sorted(frame["domain"].unique())[:3]:
        table = bl.read_table(DATA / "olmo/ladder.csv", where=f"domain == '{domain}'")
        cases += pool_cases(
            table,
            "chinchilla",
            train=f"ptpp < 25 and params < {largest}",
            pool=f"ptpp >= 25 and params < {largest}",
            targets=f"params == {largest}",
            seeds=seeds,
            name=f"olmo {domain}",
        )
    return cases


def main() -> None:
    """Run one study and print its summary as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=["world", "varied", "plan", "tinycpt", "delphi", "olmo"])
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--designs", default=",".join(DESIGNS))
    parser.add_argument("--out", type=Path, default=Path())
    args = parser.parse_args()
    seeds, settings = range(args.seeds), dict(SHORT)
    designs = tuple(args.designs.split(","))
    if args.which in ("world", "plan"):
        cases = world_cases(seeds)
    elif args.which == "varied":
        cases = world_cases(seeds, vary=0.2)
    else:
        cases = {"tinycpt": tinycpt, "delphi": delphi, "olmo": olmo}[args.which](seeds)
        settings = dict(SHORT if args.which == "tinycpt" else CURVED)
    if args.which == "plan":
        settings["planning"] = True
    start = time.perf_counter()
    out = args.out / f"{args.which}.parquet"
    results = study(cases, designs, out=out, jobs=args.jobs, progress=True, **settings)
    seconds = time.perf_counter() - start
    table = summary(results)
    print(" | ".join(table.columns))
    for row in table.itertuples(index=False):
        print(" | ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row))
    bought = results[results["design"] != "none"]
    print(
        f"{seconds:.0f} s for what was missing; {len(results)} cells; a cell with a refit "
        f"{bought['seconds'].median():.1f} s (median); R-hat {results['rhat'].median():.3f} "
        f"(median), above 1.05 in {(results['rhat'] > 1.05).mean():.1%}"
    )


if __name__ == "__main__":
    main()
