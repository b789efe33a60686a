"""Ways to write the correlation of random effects between two domains: ours and PyMC's.

Each way is compiled in a process of its own with empty PyTensor caches, in random order. The time
of compiling is processor time; that of a gradient is the least of thirty means of 100 calls.
``LKJCholeskyCov`` draws standard deviations of its own, which the model would not need.

    python benchmarks/lkj.py [--repeats 2]
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from unittest.mock import patch

import numpy as np
import nutpie
import pymc as pm
import pytensor
from pymc.pytensorf import compile as compile_pymc
from pytensor.graph import rewrite_graph
from tables import DATA, arguments

import bayeslaw as bl
from bayeslaw.common.arrays import Model, Tensor
from bayeslaw.model import building
from bayeslaw.model.data import joint_arrays, make_data
from bayeslaw.model.random_effects import labels
from bayeslaw.model.spec import JointSpec, make_spec

ROUNDS, CALLS = 30, 100
EXACT = {"numba__fastmath": False}
"""Flags with which the package compiles."""
DOMAINS = ("french", "english")
ROWS = "annealed and replay < 1 and ptpp <= 31 and params < 1e5 and seed == 0"


def by_corr(level: str, size: int, count: int) -> list[Tensor]:
    """Effects by PyMC's Cholesky factor of a correlation matrix."""
    factor = pm.LKJCorr(f"{level}_factor", n=count, eta=building.AGREE)
    z = pm.Normal(f"{level}_z", shape=(size, count))
    return [(z * factor[k]).sum(-1) for k in range(count)]


def by_covariance(level: str, size: int, count: int) -> list[Tensor]:
    """Effects by PyMC's Cholesky factor of a covariance matrix."""
    sd = pm.LogNormal.dist(0.0, 0.6, size=count)
    packed = pm.LKJCholeskyCov(
        f"{level}_factor", n=count, eta=building.AGREE, sd_dist=sd, compute_corr=False
    )
    factor = pm.math.expand_packed_triangular(count, packed, lower=True)
    z = pm.Normal(f"{level}_z", shape=(size, count))
    return [(z * factor[k]).sum(-1) for k in range(count)]


WAYS = {
    "ours": building.correlated_effects,
    "LKJCorr": by_corr,
    "LKJCholeskyCov": by_covariance,
}


def joint_model(way: str, law: str = "form1") -> Model:
    """A law without discrepancy in two domains, with effects of runs."""
    tables = {name: bl.read_table(DATA / f"tinycpt/{name}.csv", where=ROWS) for name in DOMAINS}
    spec = make_spec(law, effects=["run"])
    names = {"run": np.unique(np.concatenate([labels(t.frame, "run") for t in tables.values()]))}
    data = {domain: make_data(spec, table, labels=names) for domain, table in tables.items()}
    with patch.object(building, "correlated_effects", WAYS[way]):
        joint = JointSpec(dict.fromkeys(tables, spec))
        return building.build(joint, joint_arrays(data), for_sampling=True)


def compile_seconds(model: Model) -> float:
    """Processor time of compiling for the sampler."""
    start = time.process_time()
    with pytensor.config.change_flags(**EXACT):
        nutpie.compile_pymc_model(model, var_names=[rv.name for rv in model.free_RVs])
    return time.process_time() - start


def gradient_seconds(model: Model) -> float:
    """Time of the log posterior and its gradient near the starting point."""
    log_density = rewrite_graph(model.logp(), include=["canonicalize", "stabilize"])
    variables = [model.rvs_to_values[rv] for rv in model.free_RVs]
    with model, pytensor.config.change_flags(**EXACT):
        outputs = [log_density, *pytensor.grad(log_density, variables)]
        compiled = compile_pymc(variables, outputs, mode="NUMBA")
    point, rng = model.initial_point(), np.random.default_rng(0)
    for variable, store in zip(variables, compiled.input_storage, strict=False):  # then the data
        value = np.asarray(point[variable.name], float)
        store.storage[0] = np.array(value + 0.01 * rng.standard_normal(value.shape))
    least = np.inf
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            compiled.vm()
        least = min(least, (time.perf_counter() - start) / CALLS)
    return least


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--repeats", type=int, default=2)
    found.add_argument("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    return found


def main() -> None:
    """Print a row per process."""
    args = parser().parse_args()
    if args.way:
        model = joint_model(args.way, "chinchilla" if args.smoke else "form1")
        seconds = compile_seconds(model)
        print(f"{args.way} | {seconds:.0f} | {gradient_seconds(model) * 1e6:.1f}")
        return
    print("way | seconds to compile | microseconds of a gradient", flush=True)
    runs = ["ours"] if args.smoke else [way for way in WAYS for _ in range(args.repeats)]
    random.Random(0).shuffle(runs)
    for way in runs:
        with tempfile.TemporaryDirectory() as empty:
            flags = {} if args.smoke else {"PYTENSOR_FLAGS": f"base_compiledir={empty}"}
            command = [sys.executable, __file__, "--way", way, *["--smoke"] * args.smoke]
            subprocess.run(command, env=os.environ | flags, check=True)


if __name__ == "__main__":
    main()
