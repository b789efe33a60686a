"""Choice of anchors: its speed, the accuracy of its prediction, and the EVSI of anchors for a plan.

`speed`: time to choose 20 of 2,000 candidates for 500 targets from 4,000 draws of Form 3, and to
try every set of 3 of 154. `refits`: predicted over realised posterior sd at the targets after a
refit with the anchors' simulated losses, for a few seeds of the synthetic world. `evsi`: EVSI for
the paper's use case by simulation and refit, as expected FLOPs saved on the target run, beside the
FLOPs spent.

    OMP_NUM_THREADS=1 python benchmarks/anchors.py speed refits evsi
"""

import argparse
import time
from functools import partial

import numpy as np
from tables import arguments

import bayeslaw as bl
from bayeslaw import anchor_value, choose_anchors, world_cases
from bayeslaw.inference.fitting import joined, refit

LONG = {"chains": 2, "draws": 2000, "tune": 500}
SHORT = {"chains": 2, "draws": 20, "tune": 20}


def speed(settings: dict[str, int] = LONG, repeats: int = 5, every: int = 1) -> None:
    """Print processor and wall-clock seconds, the best of `repeats`; of every so many rows."""
    (case,) = world_cases([0])
    fit = refit(case.law, case.train, 0, **settings)
    candidates = bl.grid(
        params=np.geomspace(1e8, 2e9, 8),
        tokens=np.geomspace(1e8, 1e11, 10),
        replay=[0.1, 0.2, 0.3, 0.4, 0.5],
        ptpp=[80, 120, 160, 200, 279],
    )
    targets = bl.grid(
        params=np.geomspace(2e9, 2e10, 5),
        tokens=np.geomspace(1e9, 1e11, 10),
        replay=np.linspace(0.05, 0.5, 10),
        ptpp=279,
    )
    candidates, targets = candidates[::every], targets[::every]
    asked = [
        (candidates, {"gain": gain, **limit})
        for gain in ("variance", "entropy", "doptimal")
        for limit in ({"k": 20}, {"budget": 1e21})
    ]
    for rows, how in [*asked, (candidates[::13], {"k": 3})]:
        wall, work = [], []
        for _ in range(repeats):
            start = time.perf_counter(), time.process_time()
            found = choose_anchors(fit, rows, targets, allow_unconverged=True, **how)
            wall.append(time.perf_counter() - start[0])
            work.append(time.process_time() - start[1])
        print(
            f"{len(found.picks)} of {len(rows)} for {len(targets)} targets, {how}, "
            f"{found.method}: {min(work):.2f} s of processor, {min(wall):.2f} s of wall clock"
        )


def refits(settings: dict[str, int] = LONG, seeds: int = 4) -> None:
    """Print predicted over realised posterior sd, by seed and number of anchors."""
    for k in (4, 8):
        ratios = []
        for case in world_cases(range(seeds)):
            fit = refit(case.law, case.train, case.seed, **settings)
            pool = case.pool.frame.assign(row=range(len(case.pool)))
            rows, aims = pool.drop(columns="loss"), case.targets.frame
            found = choose_anchors(fit, rows, aims, k=k, gain="variance", allow_unconverged=True)
            rows = case.pool.frame.loc[found.frame["row"]].reset_index(drop=True)
            bought = bl.LossTable(rows, rows.iloc[:0])
            new = refit(case.law, joined(case.train, bought), case.seed, **settings)
            realised = np.log(new.latent(case.targets)).std(0, ddof=1)
            ratios.append(float(np.median(found.sd[-1] / realised)))
        each = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        print(f"{k} anchors: predicted over realised sd {np.median(ratios):.3f} ({each})")


def evsi(settings: dict[str, int] = LONG, simulations: int = 8, jobs: int = 2) -> None:
    """Print the EVSI of three sets of anchors for the paper's use case, planned at 90 %."""
    (case,) = world_cases([0])
    world, pool = bl.paper_world(), case.pool.frame.drop(columns="loss")
    before = world.table(world.source).training("ptpp <= 31")
    target = refit(case.law, case.train, 0, **settings)
    source = refit(world.laws[world.source], before, 0, **settings)
    grid = pool.query(case.grid)
    budget = float((6 * grid["params"] * grid["tokens"]).sum())
    asked = {"budget": budget, "cost": "adaptation", "gain": "variance", "allow_unconverged": True}
    sets = {
        "the paper's 20": grid,
        "variance, same FLOPs": choose_anchors(target, pool, case.targets.frame, **asked).frame,
        "variance, a tenth": choose_anchors(
            target, pool, case.targets.frame, **asked | {"budget": budget / 10}
        ).frame,
    }
    found = anchor_value(
        sets,
        target=target,
        source=source,
        simulations=simulations,
        cost="adaptation",
        jobs=jobs,
        allow_unconverged=True,
        **world.limits,
        baseline=world.baseline(),
        confidence=0.9,
    )
    print(found.to_string(index=False, float_format="%.4g"))


PARTS = {"speed": speed, "refits": refits, "evsi": evsi}
SMOKE = {
    "speed": partial(speed, SHORT, repeats=1, every=20),
    "refits": partial(refits, SHORT, seeds=1),
    "evsi": partial(evsi, SHORT, simulations=1, jobs=1),
}


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("which", nargs="*", choices=list(PARTS), help="all by default")
    return found


def main() -> None:
    """Run the parts named on the command line."""
    args = parser().parse_args()
    for name in args.which or PARTS:
        start = time.perf_counter()
        (SMOKE if args.smoke else PARTS)[name]()
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
