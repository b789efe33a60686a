"""Time of one gradient of the log posterior, with and without `bayeslaw.model.rewrites`.

Both are compiled in this process as for sampling and timed alternately; the result is the least of
thirty means.

    python benchmarks/gradient.py [--only TEXT]
"""

import argparse
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytensor
from pymc.pytensorf import compile as compile_pymc
from pytensor.graph import rewrite_graph
from tables import splits, synthetic

import bayeslaw as bl
from bayeslaw.inference.sampling import exact
from bayeslaw.model import random_effects as effects
from bayeslaw.model import rewrites
from bayeslaw.model.building import build, data
from bayeslaw.model.spec import Spec, make_spec

ROUNDS, CALLS = 30, 100


def gradient(spec: Spec, table: bl.LossTable) -> Callable[[], Any]:
    """A compiled call of the log posterior and its gradient near the starting point."""
    model = build(spec, data(spec, table), for_sampling=True)
    log_density = rewrite_graph(model.logp(), include=["canonicalize", "stabilize"])
    variables = [model.rvs_to_values[rv] for rv in model.free_RVs]
    slopes = pytensor.grad(log_density, variables)
    with model, exact():
        compiled = compile_pymc(variables, [log_density, *slopes], mode="NUMBA")
    point, rng = model.initial_point(), np.random.default_rng(0)
    for variable, store in zip(variables, compiled.input_storage, strict=False):  # then the data
        value = np.asarray(point[variable.name], float)
        store.storage[0] = np.array(value + 0.01 * rng.standard_normal(value.shape))
    compiled.vm()
    return compiled.vm  # type: ignore[no-any-return]


def main() -> None:
    """Print a row per model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    chosen = {"olmo pile": "chinchilla", "tinycpt english ptpp <= 124": "form1"}
    tables = {name: (train, chosen[name]) for name, train, *_ in splits() if name in chosen}
    tables["synthetic french"] = next(synthetic())[1], "form3"
    print("table | law | rows | microseconds opaque | not opaque | ratio")
    for name, (table, law) in tables.items():
        if args.only not in name:
            continue
        for how in ("none", "curvature"):
            levels = effects.choose("auto", table.frame, name, discrepancy=how != "none")
            spec = make_spec(law, discrepancy=how, effects=levels)
            calls = {"opaque": gradient(spec, table)}
            with patch.object(rewrites, "opaque", lambda x: x):
                calls["not"] = gradient(spec, table)
            least = dict.fromkeys(calls, np.inf)
            for _ in range(ROUNDS):
                for way, call in calls.items():
                    start = time.perf_counter()
                    for _ in range(CALLS):
                        call()
                    least[way] = min(least[way], (time.perf_counter() - start) / CALLS)
            one, two = (least[way] * 1e6 for way in calls)
            print(f"{name} | {law} {how} | {len(table)} | {one:.0f} | {two:.0f} | {two / one:.2f}x")


if __name__ == "__main__":
    main()
