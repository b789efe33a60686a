"""Anchor designs at equal FLOPs: the studies behind docs/anchors.md.

Which designs give better forecasts from the same FLOPs, on simulated worlds (`world`, `varied`)
and on measured pools (`tinycpt`, `delphi`, `olmo`). An interrupted study
continues when it is run again.

    python benchmarks/study.py world [--seeds 40] [--jobs 2] [--out DIR]
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import wilcoxon
from tables import DATA, arguments

import bayeslaw as bl
from bayeslaw import Case, pool_cases, study, world_cases
from bayeslaw.design.study import summary
from bayeslaw.simulation.worlds import UseCase, World

DESIGNS = ("none", "random", "cheapest", "grid", "doptimal", "variance", "entropy")
SHORT = {"draws": 400, "tune": 400}
CURVED = SHORT | {"discrepancy": "curvature", "target_accept": 0.97}
SMALLER, LARGEST = "params < params.max()", "params == params.max()"
OLMO = ("c4_en", "dolma_books", "dolma_common-crawl")
"""Domains of the ladder that are studied."""
LADDER = 4e20
"""FLOPs of its designs: the smallest N, which sets the budget elsewhere, costs a fifth."""
VARY = 0.2
"""Standard deviation, in logs, of the slopes and exponents of varied worlds."""
OPTIMUM = {"atpp": 8.9, "replay": 0.34}
"""The paper's plan. The limits of a varied world are the true losses there."""


def tinycpt(seeds: range) -> list[Case]:
    """French: pool is the last stage of smaller sizes, targets that of the largest.

    Form 3 as written: with curvature and effects a refit takes minutes.
    """
    table = bl.read_table(DATA / "tinycpt/french.csv", where="annealed and replay < 1")
    queries = {"pool": f"ptpp == 279 and {SMALLER}", "targets": f"ptpp == 279 and {LARGEST}"}
    cases = []
    for last in (31, 124):
        queries["train"] = f"ptpp <= {last}"
        name = f"tinycpt, PTPP to {last}"
        cases += pool_cases(table, "form3", **queries, seeds=seeds, name=name)
    return cases


def delphi(seeds: range) -> list[Case]:
    """Fitted to the four smallest bases; pool is the middle ones, targets the two largest."""
    table = bl.read_table(DATA / "delphi/isotoken.csv")
    queries = {"train": "scale < 3e19", "pool": "3e19 <= scale < 1e21", "targets": "scale >= 1e21"}
    return pool_cases(table, "chinchilla", **queries, seeds=seeds, name="delphi")


def olmo(seeds: range) -> list[Case]:
    """Fitted to the shortest runs; pool is longer ones of smaller sizes, targets the largest N."""
    queries = {"train": f"ptpp < 25 and {SMALLER}", "pool": f"ptpp >= 25 and {SMALLER}"}
    cases = []
    for domain in OLMO:
        table = bl.read_table(DATA / "olmo/ladder.csv", where=f"domain == '{domain}'")
        cases += pool_cases(
            table, "chinchilla", **queries, targets=LARGEST, seeds=seeds, name=f"olmo {domain}"
        )
    return cases


def varied(world: World, by: float, seed: int) -> World:
    """Variant of a world with other true slopes and exponents, each by a factor of about 1 +- `by`.

    The floors are unchanged. The limits of the use case become the true losses at the paper's plan,
    8.9 ATPP at 34 % replay.
    """
    truth = {}
    for i, (domain, law) in enumerate(world.laws.items()):
        rng = np.random.default_rng([seed, i])
        at = law.reference_point(world.design())
        q = dict(law.to_reference(world.truth[domain], at))
        terms = law.amounts(q, at)
        floor = q["L_ref"] - sum(float(terms[name]) for name in law.coefficients)
        for name in law.coordinates[1:]:
            q[name] = q[name] * np.exp(by * rng.standard_normal())
        terms = law.amounts(q, at)
        q["L_ref"] = floor + sum(float(terms[name]) for name in law.coefficients)
        truth[domain] = {n: float(v) for n, v in law.to_paper(q, at).items()}
    new = replace(world, truth=truth)
    most, after = new.adapted(OPTIMUM["replay"], OPTIMUM["atpp"] * world.limits["params"])
    limits: UseCase = {
        **world.limits,
        "max_loss": most,
        "max_forgetting": after / new.baseline() - 1,
    }
    return replace(new, limits=limits)


def varied_worlds(seeds: range) -> list[Case]:
    """Worlds of other true laws, one for each seed."""
    worlds = {seed: varied(bl.paper_world(), VARY, seed) for seed in seeds}
    return [case for seed, world in worlds.items() for case in world_cases([seed], world=world)]


STUDIES = {
    "world": (world_cases, SHORT),
    "varied": (varied_worlds, SHORT),
    "tinycpt": (tinycpt, SHORT),
    "delphi": (delphi, CURVED),
    "olmo": (olmo, CURVED | {"budget": LADDER}),
}
"""Cases of some seeds, and what is not the default."""


def paired(results: pd.DataFrame) -> pd.DataFrame:
    """Log CRPS over that of the random design: mean, its standard error, and Wilcoxon's p."""
    crps = results.set_index(["case", "seed", "design"])["crps"].unstack("design")
    ratio = np.log(crps).sub(np.log(crps["random"]), axis=0).drop(columns="random")
    rows = []
    for (case, design), values in ratio.stack().groupby(["case", "design"], sort=False):
        p = wilcoxon(values).pvalue if values.any() else 1.0
        rows.append((case, design, values.mean(), values.sem(), p))
    return pd.DataFrame(rows, columns=["case", "design", "mean", "error", "p"])


def show(table: pd.DataFrame) -> None:
    """Print a table, cells between bars."""
    print(" | ".join(table.columns))
    for row in table.itertuples(index=False):
        print(" | ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row))


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("which", choices=list(STUDIES), nargs="?", default="world")
    found.add_argument("--seeds", type=int, default=40)
    found.add_argument("--jobs", type=int, default=2)
    found.add_argument("--designs", default=",".join(DESIGNS))
    found.add_argument("--out", type=Path, default=Path())
    return found


def main() -> None:
    """Run one study and print its summary as a Markdown table."""
    args = parser().parse_args()
    cases, settings = STUDIES[args.which]
    if args.smoke:
        args.seeds, args.jobs, args.designs = 1, 1, "none,random,variance"
        settings = settings | {"draws": 20, "tune": 20}
    designs = args.designs.split(",")
    start = time.perf_counter()
    out = args.out / f"{args.which}.parquet"
    problems = cases(range(args.seeds))
    results = study(problems, designs, out=out, jobs=args.jobs, progress=True, **settings)
    seconds = time.perf_counter() - start
    show(summary(results))
    if "random" in designs:
        show(paired(results))
    bought = results[results["design"] != "none"]
    certain = (bought["sd_predicted"] / bought["sd"]).quantile([0.05, 0.5, 0.95])
    print("predicted over realised sd, 5, 50, 95 %:", *certain.round(3))
    print(
        f"{seconds:.0f} s for what was missing; {len(results)} cells; a cell with a refit "
        f"{bought['seconds'].median():.1f} s (median); R-hat {results['rhat'].median():.3f} "
        f"(median), above 1.05 in {(results['rhat'] > 1.05).mean():.1%}"
    )


if __name__ == "__main__":
    main()
