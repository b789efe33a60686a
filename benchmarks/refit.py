"""Refit with new data against recompiling: compile once per law, then put new data in.

Three times per law, each the median of `--repeats`: a whole fit with nothing compiled, a whole
refit on new data, and the part of the refit that replaces compiling (putting the data in).

    python benchmarks/refit.py [--repeats 3] [--laws chinchilla,form3]
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import bayeslaw as bl
from bayeslaw import sampling
from bayeslaw.model import data, make_spec


def clock(call: Callable[[], Any]) -> float:
    """Seconds a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    """Print one line per law."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--laws", default="chinchilla,form3")
    args = parser.parse_args()
    for name in args.laws.split(","):
        law, world = bl.load_law(name), bl.paper_world()
        tables = [world.table("french", seed=s).query("ptpp <= 31") for s in range(args.repeats)]
        spec = make_spec(law)
        bl.fit(law, tables[0], draws=200, tune=200)  # imports
        cold, warm, swap = [], [], []
        for table in tables:
            sampling._compiled.clear()
            cold.append(clock(partial(bl.fit, law, table)))
            warm.append(clock(partial(bl.fit, law, table)))
            swap.append(clock(partial(sampling.with_data, spec, data(spec, table))))
        c, w, s = (float(np.median(times)) for times in (cold, warm, swap))
        print(
            f"{name}: compile and fit {c:.2f} s, refit {w:.2f} s ({c / w:.1f}x), of which data in "
            f"{s * 1e3:.1f} ms against {c - w:.2f} s of compiling ({(c - w) / s:.0f}x)",
            flush=True,
        )


if __name__ == "__main__":
    main()
