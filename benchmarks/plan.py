"""The planner compared with a grid over budgets, and its memory.

Plans the synthetic world's use case from `--draws` draws of both laws (the true parameters, moved
by noise), and evaluates both laws on a 400 x 199 grid of (ATPP, replay) for the same draws:
P(both) at each cell, smallest budget where it reaches the confidence. Prints CPU seconds (warm,
best of `--repeat`; the grid once), both answers, and the error of each against the planner's on
397 ratios. One thread.

    OMP_NUM_THREADS=1 python benchmarks/plan.py [--draws 4000] [--repeat 5] [--memory 40000]
    OMP_NUM_THREADS=1 python benchmarks/plan.py --curved --confidence .6

With `--curved` both laws have curvature, so that the feasible budgets of a draw may have an upper
end.
"""

import argparse
import math
import resource
import time

import numpy as np
from tables import arguments

from bayeslaw import Posterior, paper_world, plan
from bayeslaw.inference.fitted import Convergence
from bayeslaw.model.spec import make_spec
from bayeslaw.planning.problem import Problem
from bayeslaw.planning.result import cheapest, choice_at
from bayeslaw.simulation.worlds import World

REPLAY = np.linspace(0.005, 0.995, 199)
GOOD = Convergence(rhat=1.0, ess_bulk=1e6, ess_tail=1e6, divergences=0, bfmi=1.0)


def posterior(
    world: World, domain: str, draws: int, spread: float, curved: bool = False
) -> Posterior:
    """Draws around the truth, four chains of them."""
    import xarray as xr

    law, table = world.laws[domain], world.table(domain)
    spec = make_spec(law, discrepancy="curvature" if curved else "none")
    at, rng = spec.law.reference_point(table.frame), np.random.default_rng(len(domain))
    q = law.to_reference(world.truth[domain], at) | {"sigma": 0.004, "dof_above_floor": 5.0}
    values = {
        name: (["chain", "draw"], v * (1 + spread * rng.standard_normal((4, draws // 4))))
        for name, v in q.items()
    }
    for name in (n for n in spec.law.coordinates if n not in law.coordinates):
        values[name] = (["chain", "draw"], 0.02 * rng.standard_normal((4, draws // 4)))
    return Posterior(spec, table, at, xr.Dataset(values), xr.Dataset(), GOOD)


def by_grid(problem: Problem, atpp: np.ndarray, replay: np.ndarray) -> tuple[float, float]:
    """Smallest feasible budget of the grid, and its replay ratio."""
    feasible = problem.held(np.log(atpp), replay) >= problem.rank
    if not feasible.any():
        return math.inf, math.nan
    best = int(feasible.any(1).argmax())
    return float(atpp[best]), float(replay[feasible[best].argmax()])


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--draws", type=int, default=4000)
    found.add_argument("--repeat", type=int, default=5)
    found.add_argument("--confidence", type=float, default=0.9)
    found.add_argument("--curved", action="store_true", help="laws with curvature")
    found.add_argument("--memory", type=int, default=40_000, help="draws of the memory run, or 0")
    return found


def main() -> None:
    """Print the comparison."""
    args = parser().parse_args()
    if args.smoke:
        args.draws, args.repeat, args.memory = 400, 1, 400
    world = paper_world()

    def problem(draws: int) -> dict[str, object]:
        fits = {
            "target": posterior(world, world.target, draws, 0.003, args.curved),
            "source": posterior(world, world.source, draws, 0.003, args.curved),
        }
        more = {"baseline": world.baseline(), "confidence": args.confidence}
        more |= {"beyond_evidence": True}
        return fits | dict(world.limits) | more

    asked = problem(args.draws)
    whole, search = [], []
    for _ in range(args.repeat):
        start = time.process_time()
        found = plan(**asked)
        whole.append(time.process_time() - start)
        start = time.process_time()
        (choice,) = cheapest(found.problem, found.replay_grid)
        search.append(time.process_time() - start)
    atpp = np.geomspace(1, 100, 400)
    start = time.process_time()
    coarse = by_grid(found.problem, atpp, REPLAY)
    grid = time.process_time() - start
    exact = cheapest(found.problem, np.linspace(0.005, 0.995, 397))[0].atpp
    print(
        f"draws {found.draws}, replay ratios {len(found.replay_grid)}, "
        f"confidence {found.confidence:g}"
    )
    print(f"plan(), everything reported   {min(whole):8.3f} s")
    print(f"its search alone              {min(search):8.3f} s")
    print(f"grid of 400 x {len(REPLAY)}             {grid:8.3f} s")
    print(f"ratio, grid to plan()         {grid / min(whole):8.0f} x")
    print(f"ratio, grid to search         {grid / min(search):8.0f} x")
    held = choice_at(found.problem, math.log(coarse[0]), coarse[1]).p_both
    for name, budget, ratio, both in (
        ("plan", choice.atpp, choice.replay, choice.p_both),
        ("grid", *coarse, held),
    ):
        miss = budget / exact - 1
        print(f"{name}: ATPP {budget:.6f}, replay {ratio:.6f}, P(both) {both:.5f}, off {miss:+.1e}")
    if args.memory:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.process_time()
        plan(**problem(args.memory))
        seconds = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"{args.memory} draws: {seconds:.2f} s, peak {peak / 2**20:.2f} GiB", end="")
        print(f" of the process ({before / 2**20:.2f} before)")


if __name__ == "__main__":
    main()
