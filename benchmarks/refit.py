"""Time to refit a compiled law to new data, compared with compiling again.

For each law, as written, medians of `--repeats`: a fit with nothing compiled, a refit to new data,
and the step of the refit that replaces compiling (replacing the data). Once at the default
settings, where sampling takes most of the time, and once at those of a simulation study
(`bayeslaw.inference.refits.SHORT`), where compiling would.

    python benchmarks/refit.py [--repeats 3] [--laws chinchilla,form3]
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import bayeslaw as bl
from bayeslaw.inference import programs, sampling
from bayeslaw.inference.densities import Density
from bayeslaw.inference.refits import SHORT
from bayeslaw.model.building import data
from bayeslaw.model.spec import make_spec


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
    os.environ["BAYESLAW_CACHE"] = "off"  # or a fit would find its program on disk
    for name in args.laws.split(","):
        law, world = bl.load_law(name), bl.paper_world()
        tables = [world.table("french", seed=s).query("ptpp <= 31") for s in range(args.repeats)]
        spec = make_spec(law)
        plain = partial(bl.fit, law, discrepancy="none")
        plain(tables[0], draws=200, tune=200)  # the first fit imports PyMC and nutpie
        quiet = {"progress": False}
        cold, warm, swap, short = [], [], [], []
        for table in tables:
            programs._programs.clear()
            cold.append(clock(partial(plain, table)))
            warm.append(clock(partial(plain, table)))
            values = data(spec, table)
            short.append(clock(partial(sampling.sample, spec, values, seed=0, **quiet, **SHORT)))
            swap.append(clock(partial(Density, programs.program(spec, values), values)))
        c, w, s, q = (float(np.median(times)) for times in (cold, warm, swap, short))
        print(
            f"{name}: compile and fit {c:.2f} s, refit {w:.2f} s ({c / w:.1f}x), of which data in "
            f"{s * 1e3:.1f} ms against {c - w:.2f} s of compiling ({(c - w) / s:.0f}x); "
            f"study refit {q:.2f} s against {c - w + q:.2f} s ({(c - w + q) / q:.0f}x)",
            flush=True,
        )


if __name__ == "__main__":
    main()
