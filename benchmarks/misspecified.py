"""Coverage of bands when the fitted law is not the true one. Synthetic data throughout.

Truths: Form 1 itself; Form 1 with a stage term that falls with N (``F N^-phi / P^eta``); with a
data term whose exponent grows by half at a tenfold budget; with run effects, which the fit includes
or ignores. Every world has its own exponents and noise .004 on log loss, is measured on 4 sizes x 3
stages x 3 replay ratios x 5 budgets, fitted up to PTPP 80, and forecast at 279.

    python benchmarks/misspecified.py [--worlds 10] [--out misspecified.csv]
"""

import argparse
import warnings

import numpy as np
import pandas as pd
from tables import SMOKE, arguments

import bayeslaw as bl

SIZES, STAGES = [2.4e8, 5.2e8, 1.4e9, 8.1e9], [15, 31, 80, 279]
SETTINGS = {"chains": 2, "draws": 600, "tune": 800, "target_accept": 0.95, "retry": False}
FITS = {
    "plain": {"discrepancy": "none", "effects": "none"},
    "curvature": {"discrepancy": "curvature", "effects": "none"},
    "run effects": {"discrepancy": "none"},
    "default": {},
}
PLAN = {
    "the law": ("plain", "default"),
    "F falls with N": ("plain", "default"),
    "D breaks": ("plain", "default"),
    "runs share": ("plain", "run effects", "curvature", "default"),
}


def world(kind: str, seed: int) -> bl.LossTable:
    """Table of a synthetic world with labels of runs."""
    rng = np.random.default_rng([seed, *map(ord, kind)])
    design = bl.grid(params=SIZES, ptpp=STAGES, replay=[0.1, 0.25, 0.5], atpp=[0.5, 1, 3, 8, 20])
    n, p, r, d = design["params"], design["ptpp"], design["replay"], design["atpp"]
    d = d * n
    alpha, beta, eta = rng.lognormal(np.log([0.3, 0.25, 0.35]), 0.15)
    size = 0.3 * (n / 1e9) ** -alpha
    stage = 0.25 * (p / 31) ** -eta * ((n / 1e9) ** -0.15 if kind == "F falls with N" else 1)
    data = 0.25 * (d / 3e9) ** -beta * (r / 0.25) ** 0.3
    if kind == "D breaks":
        data *= (1 + (d / 3e9) ** 2) ** (-beta / 4)
    loss = 1.4 + size + stage + data + 0.01 * r**-0.3
    design["run"] = [f"{a:.2g}-{b:g}-{c:g}" for a, b, c in zip(n, p, r, strict=True)]
    log = np.log(loss) + 0.004 * rng.standard_normal(len(design))
    if kind == "runs share":
        index = design.groupby("run").ngroup()
        log += (0.008 * rng.standard_normal(index.max() + 1))[index]
    frame = design.assign(tokens=d, loss=np.exp(log), synthetic=True).drop(columns="atpp")
    return bl.from_frame(frame, f"synthetic {kind} {seed}")


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--worlds", type=int, default=10)
    found.add_argument("--out", default="")
    return found


def main() -> None:
    """Print a row per truth and fit, means over worlds."""
    args = parser().parse_args()
    kinds, settings = PLAN, SETTINGS
    if args.smoke:
        args.worlds, kinds, settings = 1, {"the law": ("plain",)}, SMOKE
    warnings.simplefilter("ignore")
    rows = []
    for kind, fits in kinds.items():
        for seed in range(args.worlds):
            train, test = world(kind, seed).split("ptpp <= 80", "ptpp == 279")
            for name in fits:
                fit = bl.fit("form1", train, seed=seed, **FITS[name], **settings)
                scores = bl.score(fit, test, allow_unconverged=True)
                rows.append(
                    {"truth": kind, "fit": name, "rhat": fit.convergence.rhat} | dict(scores)
                )
        frame = pd.DataFrame(rows)
        part = frame[frame["truth"] == kind].groupby("fit", sort=False)
        columns = ["coverage_50", "coverage_90", "width_90", "rmse_log", "winkler_90", "rhat"]
        for name, row in part[columns].mean().iterrows():
            print(" | ".join([kind, str(name), *(f"{v:.4f}" for v in row)]), flush=True)
    if args.out:
        frame.to_csv(args.out, index=False)


if __name__ == "__main__":
    main()
