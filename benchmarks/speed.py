"""Times of gradients and fits, beside stock nutpie, and against the size of tables."""

import resource
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd

import bayeslaw as bl
from bayeslaw.inference.convergence import diagnose
from bayeslaw.inference.fitting import labelled_draws, refit
from bayeslaw.inference.settings import FitSettings
from bayeslaw.inference.specification import specify
from bayeslaw.model.building import build
from bayeslaw.model.density import make_density
from bayeslaw.model.training import make_data
from benchmarks.runner import SMOKE, Jobs, experiment
from benchmarks.splits import DATA, shipped

CASES = [
    ("delphi", "chinchilla"),
    ("olmo c4_en", "chinchilla"),
    ("gadre rpj", "chinchilla"),
    ("simulated", "chinchilla"),
    ("tinycpt french stage from four", "form1n"),
    ("tinycpt french stage from four", "transfer"),
]
"""Split, and law."""


def gradient(law: str, table: bl.LossTable) -> float:
    """Least of ten mean times of a gradient of the default model, in microseconds."""
    spec = specify(law, table, FitSettings())
    density = make_density(make_data(spec, table))
    point = np.concatenate([density.start, np.zeros(density.size - len(density.start))])
    density(point)  # compiles
    means = []
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(300):
            density(point)
        means.append((time.perf_counter() - start) / 300)
    return 1e6 * min(means)


def stock(fit: bl.Posterior, seed: int) -> tuple[bl.Posterior, float]:
    """Stock nutpie's draws of the stated model of a fit; seconds of compiling."""
    import nutpie

    data, start = make_data(fit.spec, fit.table), time.perf_counter()
    model = nutpie.compile_pymc_model(build(data))
    seconds = time.perf_counter() - start
    chains, draws = (fit.draws.sizes[dim] for dim in ("chain", "draw"))
    tree = nutpie.sample(
        model, chains=chains, draws=draws, seed=seed, progress_bar=False
    )
    found = labelled_draws(data, tree["posterior"].to_dataset())
    return replace(fit, draws=found, stats=tree["sample_stats"].to_dataset()), seconds


def effective(fit: bl.Posterior) -> float:
    """Least effective sample size of log losses at the fitted rows and of scales."""
    shape = fit.draws.sizes["chain"], fit.draws.sizes["draw"], -1
    names = [
        n
        for n in fit.draws
        if n in ("sigma", "walk_scale") or str(n).startswith("tau_")
    ]
    log_loss = np.log(fit.latent(fit.table)).reshape(shape)
    used = fit.draws[names].assign(log_loss=(("chain", "draw", "row"), log_loss))
    found = diagnose(used, fit.stats)
    return min(found.ess_bulk, found.ess_tail)


def timed(
    law: str, table: bl.LossTable, seed: int, way: str, settings: dict
) -> dict[str, object]:
    """Seconds and gradients of one fit."""
    us = gradient(law, table)
    default = (
        bl.fit(law, table, **SMOKE)
        if way != "stock"
        else bl.fit(law, table, seed=seed, **settings)
    )
    wall, cpu, compiling = time.perf_counter(), time.process_time(), 0.0
    if way == "default":
        fit = bl.fit(law, table, seed=seed, **settings)
    elif way == "refit":
        fit = refit(law, table, seed)
    else:
        fit, compiling = stock(default, seed)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    draws = fit.draws.sizes["chain"] * fit.draws.sizes["draw"]
    steps, divergences = (
        float(fit.stats["n_steps"].mean()),
        int(fit.stats["diverging"].sum()),
    )
    found = {"rows": len(table), "us": us, "seconds": wall - compiling, "cpu": cpu}
    found |= {"compile": compiling, "steps": steps, "draws": draws}
    return found | {"ess": effective(fit), "divergences": divergences}


@experiment(keep=False, seeds=3, ways="default,refit")
def speed(options: Namespace) -> Jobs:
    """Seconds, gradients and effective sample size of fits; ``--ways stock``: of stock nutpie."""
    rng = np.random.default_rng(0)
    params = rng.choice(np.geomspace(1e8, 3e9, 6).round(), 500)
    tokens = np.exp(rng.uniform(np.log(1e9), np.log(3e10), 500)).round()
    truth = {"E": 1.7, "A": 400, "alpha": 0.34, "B": 410, "beta": 0.28}
    design = pd.DataFrame({"params": params, "tokens": tokens})
    tables = {"simulated": bl.simulate("chinchilla", truth, design, sigma=0.003)}
    tables |= {name: train for name, _, train, _, _ in shipped()}
    for name, law in CASES:
        for seed in range(options.seeds):
            for way in options.ways.split(","):
                key = {"case": name, "law": law, "way": way, "seed": seed}
                yield (
                    key,
                    partial(timed, law, tables[name], seed, way, options.settings),
                )


COMMANDS = {
    "imports": "",
    "forecast of ten rows": "forecast fit.nc --grid",
    "check": "check fit.nc --rows ROWS --test",
    "derive": "derive fit.nc --flops 1e20,1e22",
    "report": "report fit.nc --force --out report.html --rows ROWS --test",
    "plan": "plan --example paper",
    "plan of two fits": "plan --target french.nc --source english.nc --params 147816 --ptpp 279 "
    "--max-loss 1.6 --max-forgetting .15 --max-tokens 1.2e6",
}
"""Commands; ROWS is a table, and a last --grid or --test gets its value below."""
IMPORTS = "import pandas, numba, scipy.stats, xarray, h5netcdf"
"""What every command on a saved fit needs."""


def command(words: list[str], folder: str) -> float:
    """CPU seconds of a command of the package in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    python = ["-c", IMPORTS] if not words else ["-m", "bayeslaw", *words]
    found = subprocess.run(
        [sys.executable, *python], cwd=folder, capture_output=True, text=True
    )
    if found.returncode == 2:  # 1 is a verdict
        raise RuntimeError(found.stderr)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


@experiment(keep=False, files=None)
def saved(options: Namespace) -> Jobs:
    """CPU seconds of commands on saved fits; ``--files``: a folder of fits made before."""
    folder = options.files or Path(tempfile.mkdtemp())
    rows = str(DATA / "delphi/isotoken.csv")
    grid = "params=5e9 tokens=" + ",".join(f"{k}e10" for k in range(1, 11))
    fits = {"fit": [rows, "--law", "chinchilla", "--train", "scale <= 3e20"]}
    chosen = (
        "annealed and seed == 0 and atpp in [0, 1, 4, 16] and (replay < 1 or atpp == 0)"
    )
    source = str(DATA / "tinycpt/english.csv")
    for name in ("french", "english"):
        words = ["--law", "transfer", "--source-table", source, "--where", chosen]
        fits[name] = [
            str(DATA / f"tinycpt/{name}.csv"),
            *words,
            "--train",
            "ptpp < 279",
        ]
    ends = {"--grid": [grid], "--test": ["scale >= 1e21"]}
    for name, text in COMMANDS.items():
        words = [rows if word == "ROWS" else word for word in text.split()]
        words += ends.get(words[-1], []) if words else []

        def job(words: list[str] = words) -> dict[str, float]:
            for fit, of_fit in fits.items():
                if f"{fit}.nc" in words and not (folder / f"{fit}.nc").is_file():
                    command(["fit", *of_fit, "--out", f"{fit}.nc"], str(folder))
            command(words, str(folder))  # compiles
            return {"cpu": command(words, str(folder))}

        yield {"command": name}, job


TRUTH = {
    "E": 1.2, "A": 180.0, "alpha": 0.3, "B": 60.0, "beta": 0.27, "nu": 0.15, "C": 0.02,
    "gamma": 0.3, "F": 0.8, "eta": 0.35,
}  # fmt: skip


@cache
def random_runs(rows: int, groups: int, law: str) -> bl.LossTable:
    """Losses of `rows` random runs of `groups` bases."""
    rng = np.random.default_rng(rows)
    design = pd.DataFrame(
        {
            "params": rng.choice(np.geomspace(1e8, 3e9, 6).round(), rows),
            "tokens": np.exp(rng.uniform(np.log(1e9), np.log(3e10), rows)).round(),
            "replay": rng.choice([0.05, 0.1, 0.25, 0.5], rows),
            "ptpp": rng.choice([15, 31, 62, 124, 279], rows),
            "base": np.arange(rows) % groups,
        }
    )
    names = {
        "E",
        *(n for t in bl.load_law(law).terms for n in (t.coefficient, *t.exponents)),
    }
    truth = {name: value for name, value in TRUTH.items() if name in names}
    return bl.simulate(law, truth, design, sigma=0.003, seed=0)


@experiment(keep=False)
def growth(options: Namespace) -> Jobs:
    """Microseconds of a gradient of default models against rows, groups and terms."""
    sizes = [
        (rows, 10, "form1") for rows in (50, 100, 200, 500, 1000, 2000, 5000, 10_000)
    ]
    sizes += [(4000, groups, "form1") for groups in (10, 30, 100, 300, 1000)]
    sizes += [(576, 10, law) for law in ("chinchilla", "dcpt", "form1", "form1n")]
    for rows, groups, law in sizes:

        def job(
            rows: int = rows, groups: int = groups, law: str = law
        ) -> dict[str, float]:
            name = "form1" if law == "form1n" else law
            return {"us": gradient(law, random_runs(rows, groups, name))}

        yield {"rows": rows, "groups": groups, "law": law}, job
