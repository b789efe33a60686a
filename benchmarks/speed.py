"""Seconds, gradients and effective sample size of default fits, beside stock nutpie.

    OMP_NUM_THREADS=1 python benchmarks/speed.py [--only TEXT] [--seeds 3] [--peer]

Each case is a law on the training rows of a split, or on 500 simulated rows. `default` is
`bayeslaw.fit`, `refit` the short fit of simulations and studies, and `peer`, with `--peer`, the
stated PyMC model of the default fit (`bayeslaw.model.building.build`), compiled and sampled by
nutpie with its own defaults and as many draws. `compile` are the seconds to a model that can be
sampled; a fit of the package has loaded its compiled function before. `us` are microseconds of a
gradient, `steps` gradients a draw, and `ess` the least effective sample size, bulk and tail, of log
losses at the fitted rows and of the scales of noise and deviations. Rows are printed as CSV.
"""

import time
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import nutpie
import pandas as pd
from tables import SMOKE, arguments, splits

import bayeslaw as bl
from bayeslaw.inference.fitted import diagnose
from bayeslaw.inference.fitting import labelled_draws, refit, specify
from bayeslaw.inference.sampling import Settings
from bayeslaw.model.building import build
from bayeslaw.model.density import make_density
from bayeslaw.model.spec import make_data

SIMULATED = "simulated"
CASES = [
    ("delphi", "chinchilla"),
    ("olmo c4_en", "chinchilla"),
    ("gadre rpj", "chinchilla"),
    (SIMULATED, "chinchilla"),
    ("tinycpt french stage from four", "form1n"),
    ("tinycpt french stage from four", "transfer"),
]
"""Split, and law."""


def simulated(rows: int = 500) -> bl.LossTable:
    """Losses of runs of six sizes at random numbers of tokens."""
    rng = np.random.default_rng(0)
    params = rng.choice(np.geomspace(1e8, 3e9, 6).round(), rows)
    tokens = np.exp(rng.uniform(np.log(1e9), np.log(3e10), rows)).round()
    truth = {"E": 1.7, "A": 400, "alpha": 0.34, "B": 410, "beta": 0.28}
    design = pd.DataFrame({"params": params, "tokens": tokens})
    return bl.simulate("chinchilla", truth, design, sigma=0.003)


def gradient(law: str, table: bl.LossTable) -> float:
    """Least of ten mean times of a gradient of the default model, in microseconds."""
    spec = specify(law, table, Settings())
    density = make_density({"": make_data(spec, table)})
    point = np.concatenate([density.start, np.zeros(density.size - len(density.start))])
    means = []
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(300):
            density(point)
        means.append((time.perf_counter() - start) / 300)
    return 1e6 * min(means)


def peer(fit: bl.Posterior, seed: int) -> tuple[bl.Posterior, float]:
    """Stock nutpie's draws of the stated model of a fit; seconds of compiling."""
    data = make_data(fit.spec, fit.table)
    start = time.perf_counter()
    model = nutpie.compile_pymc_model(build({"": data}))
    seconds = time.perf_counter() - start
    chains, draws = (fit.draws.sizes[dim] for dim in ("chain", "draw"))
    tree = nutpie.sample(model, chains=chains, draws=draws, seed=seed, progress_bar=False)
    found = labelled_draws(data, tree["posterior"].to_dataset())
    return replace(fit, draws=found, stats=tree["sample_stats"].to_dataset()), seconds


def effective(fit: bl.Posterior) -> float:
    """Least effective sample size of log losses at the fitted rows and of scales."""
    shape = fit.draws.sizes["chain"], fit.draws.sizes["draw"], -1
    names = [n for n in fit.draws if n in ("sigma", "walk_scale") or str(n).startswith("tau_")]
    log_loss = np.log(fit.latent(fit.table)).reshape(shape)
    used = fit.draws[names].assign(log_loss=(("chain", "draw", "row"), log_loss))
    found = diagnose(used, fit.stats)
    return min(found.ess_bulk, found.ess_tail)


def measured(
    law: str, table: bl.LossTable, seed: int, *, smoke: bool, beside: bool
) -> Iterator[dict[str, object]]:
    """A row of results for each way to fit."""
    settings = SMOKE if smoke else {}
    for way in ("default", "refit", *["peer"] * beside):
        wall, cpu, compiling = time.perf_counter(), time.process_time(), 0.0
        if way == "default":
            default = fit = bl.fit(law, table, seed=seed, **settings)
        elif way == "refit":
            fit = refit(law, table, seed)
        else:
            fit, compiling = peer(default, seed)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        yield {
            "way": way,
            "seed": seed,
            "seconds": wall - compiling,
            "cpu": cpu,
            "compile": compiling,
            "steps": float(fit.stats["n_steps"].mean()),
            "draws": fit.draws.sizes["chain"] * fit.draws.sizes["draw"],
            "ess": effective(fit),
            "divergences": int(fit.stats["diverging"].sum()),
        }


def parser() -> ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--only", default="", help="part of the name of a case and law")
    found.add_argument("--seeds", type=int, default=3)
    found.add_argument("--peer", action="store_true", help="stock nutpie too; compiling is slow")
    return found


def main() -> None:
    """Print a row per case, seed and way."""
    args = parser().parse_args()
    known = {SIMULATED: simulated()} | {name: train for name, _, train, _, _ in splits()}
    first = True
    for name, law in CASES[: 1 if args.smoke else None]:
        table = known[name]
        if args.only not in f"{name} {law}":
            continue
        bl.fit(law, table, **SMOKE)  # loads the compiled function, and imports
        us = gradient(law, table)
        for seed in range(1 if args.smoke else args.seeds):
            for row in measured(law, table, seed, smoke=args.smoke, beside=args.peer):
                case = {"case": name, "law": law, "rows": len(table), "us": us}
                line = pd.DataFrame([case | row])
                print(line.to_csv(index=False, header=first, float_format="%.4g"), end="")
                first = False


if __name__ == "__main__":
    main()
