"""Calibration in synthetic data: ranks of true values, and coverage where the law is wrong."""

from argparse import Namespace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

import bayeslaw as bl
from bayeslaw.laws.lawfiles import models_dir
from benchmarks.methods import scored
from benchmarks.runner import SMOKE, Jobs, Tables, experiment

LAWS = sorted(path.stem for path in models_dir().glob("*.toml"))
PLAIN = {"discrepancy": "none", "effects": "none"}
SETTINGS: list[dict[str, Any]] = [
    *({"law": law} for law in LAWS),
    *({"law": law, **PLAIN} for law in LAWS),
    {"law": "chinchilla", "discrepancy": "curvature"},
    {"law": "form1", "discrepancy": "adaptation"},
    {"law": "chinchilla", **PLAIN, "effects": ("base",)},
    {"law": "chinchilla", **PLAIN, "errors": "run"},
    *({"law": "chinchilla", **PLAIN, "likelihood": each} for each in ("skewed", "normal", "huber")),
]
"""Settings of `bayeslaw.calibrate`; the first are the default model of each law."""


def ranks(setting: dict[str, Any], simulations: int, seeds: int, sampler: dict) -> dict[str, Any]:
    """Quantities whose ranks stay in their simultaneous 95 % envelope; 1 in 20 leaves it by chance.

    `spread` is the variance of new losses' ranks over that of uniform ones: above 1, bands are too
    narrow. Ranks of several seeds are pooled.
    """
    parts = [
        bl.calibrate(**setting, simulations=simulations, seed=seed, **sampler)
        for seed in range(seeds)
    ]
    every = pd.concat([part.ranks for part in parts], ignore_index=True)
    found = bl.Calibration(every, sum(part.failed for part in parts))
    table = found.envelope()
    return {
        "simulations": len(found.ranks),
        "left out": found.failed,
        "quantities": len(table),
        "inside": int(table["inside"].sum()),
        "largest excess": table["excess"].max(),
        "spread": table["spread"].filter(like="loss ").mean(),
        "outside": " ".join(table.index[~table["inside"]]),
    }


@experiment(simulations=100, seeds=1, draws=0)
def calibration(options: Namespace) -> Jobs:
    """Simulation-based calibration of every law, and of options with the law of Chinchilla."""
    sampler = {"draws": options.draws, "retry": False} if options.draws else {}
    settings = SETTINGS
    if options.smoke:
        settings, sampler = [{"law": "chinchilla", **PLAIN}], SMOKE | {"draws": 300, "tune": 300}
    for setting in settings:
        words = [f"{k}={'+'.join(v) if isinstance(v, tuple) else v}" for k, v in setting.items()]
        name = " ".join(words).removeprefix("law=")
        many = 3 if options.smoke else options.simulations
        yield {"setting": name}, partial(ranks, setting, many, options.seeds, sampler)


FITS = {
    "plain": {"discrepancy": "none", "effects": "none"},
    "curvature": {"discrepancy": "curvature", "effects": "none"},
    "run effects": {"discrepancy": "none"},
    "default": {},
}
TRUTHS = {
    "the law": ("plain", "default"),
    "F falls with N": ("plain", "default"),
    "D breaks": ("plain", "default"),
    "runs share": ("plain", "run effects", "curvature", "default"),
}
"""True laws, and the fits of each."""


def other_world(kind: str, seed: int) -> bl.LossTable:
    """Losses of Form 1, or of a law that differs from it, on sizes x stages x ratios x budgets."""
    rng = np.random.default_rng([seed, *map(ord, kind)])
    sizes, stages = [2.4e8, 5.2e8, 1.4e9, 8.1e9], [15, 31, 80, 279]
    design = bl.grid(params=sizes, ptpp=stages, replay=[0.1, 0.25, 0.5], atpp=[0.5, 1, 3, 8, 20])
    n, p, r = design["params"], design["ptpp"], design["replay"]
    d = design["atpp"] * n
    alpha, beta, eta = rng.lognormal(np.log([0.3, 0.25, 0.35]), 0.15)
    size = 0.3 * (n / 1e9) ** -alpha
    stage = 0.25 * (p / 31) ** -eta * ((n / 1e9) ** -0.15 if kind == "F falls with N" else 1)
    data = 0.25 * (d / 3e9) ** -beta * (r / 0.25) ** 0.3
    if kind == "D breaks":
        data *= (1 + (d / 3e9) ** 2) ** (-beta / 4)
    design["run"] = [f"{a:.2g}-{b:g}-{c:g}" for a, b, c in zip(n, p, r, strict=True)]
    log = np.log(1.4 + size + stage + data + 0.01 * r**-0.3)
    log += 0.004 * rng.standard_normal(len(design))
    if kind == "runs share":
        index = design.groupby("run").ngroup()
        log += (0.008 * rng.standard_normal(index.max() + 1))[index]
    frame = design.assign(tokens=d, loss=np.exp(log), synthetic=True).drop(columns="atpp")
    return bl.from_frame(frame, f"synthetic {kind} {seed}")


def by_truth(rows: pd.DataFrame) -> Tables:
    """Means over worlds."""
    scores = ["coverage_50", "coverage_90", "width_90", "rmse_log", "winkler_90"]
    return {"means": rows.groupby(["truth", "fit"], sort=False)[scores].mean()}


@experiment(by_truth, worlds=10)
def misspecified(options: Namespace) -> Jobs:
    """Coverage at PTPP 279 of Form 1, fitted up to 80, where it is not the true law."""
    settings = {"chains": 2, "draws": 600, "tune": 800, "retry": False} | options.settings
    for truth, fits in TRUTHS.items():
        for seed in range(options.worlds):
            for name in fits:

                def job(truth: str = truth, seed: int = seed, name: str = name) -> dict[str, Any]:
                    train, test = other_world(truth, seed).split("ptpp <= 80", "ptpp == 279")
                    how = FITS[name] | settings
                    return scored(bl.fit("form1", train, seed=seed, **how), test)

                yield {"truth": truth, "seed": seed, "fit": name}, job
