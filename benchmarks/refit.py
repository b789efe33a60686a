"""Time to refit a compiled law to new data, compared with compiling again.

For each law, as written, medians of `--repeats`: a fit with nothing compiled, a refit to new data,
and the step of the refit that replaces compiling (replacing the data). Once at the default
settings, where sampling takes most of the time, and once with those of a simulation study
(`bayeslaw.inference.fitting.refit`), where compiling would. Prints how many of the default refits
passed the gate.

    python benchmarks/refit.py [--repeats 3] [--laws chinchilla,form3]
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tables import SMOKE, arguments

import bayeslaw as bl
from bayeslaw.inference import programs
from bayeslaw.inference.fitting import refit
from bayeslaw.inference.programs import Density
from bayeslaw.model.data import make_data
from bayeslaw.model.spec import make_spec


def clock(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds a call takes, and what it returns."""
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--repeats", type=int, default=3)
    found.add_argument("--laws", default="chinchilla,form3")
    return found


def main() -> None:
    """Print one line per law."""
    args = parser().parse_args()
    settings = {}
    if args.smoke:
        args.repeats, args.laws, settings = 1, "chinchilla", SMOKE
    os.environ["BAYESLAW_CACHE"] = "off"  # or a fit would find its program on disk
    for name in args.laws.split(","):
        law, world = bl.load_law(name), bl.paper_world()
        tables = [world.table("french", seed=s).query("ptpp <= 31") for s in range(args.repeats)]
        spec = make_spec(law)
        plain = partial(bl.fit, law, discrepancy="none", effects="none")
        plain(tables[0], **SMOKE)  # imports PyMC and nutpie
        cold, warm, swap, short, passed = [], [], [], [], 0
        for table in tables:
            programs._programs.clear()
            cold.append(clock(partial(plain, table, **settings))[0])
            seconds, fit = clock(partial(plain, table, **settings))
            warm.append(seconds)
            passed += fit.convergence.ok
            short.append(clock(partial(refit, law, table, 0))[0])
            values = make_data(spec, table).arrays
            swap.append(clock(partial(Density, programs.program(spec, values), values))[0])
        c, w, s, q = (float(np.median(times)) for times in (cold, warm, swap, short))
        print(
            f"{name}: compile and fit {c:.2f} s, refit {w:.2f} s ({c / w:.1f}x), of which data in "
            f"{s * 1e3:.1f} ms against {c - w:.2f} s of compiling ({(c - w) / s:.0f}x); "
            f"study refit {q:.2f} s against {c - w + q:.2f} s ({(c - w + q) / q:.0f}x); "
            f"{passed} of {args.repeats} default refits passed the gate",
            flush=True,
        )


if __name__ == "__main__":
    main()
