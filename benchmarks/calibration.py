"""Simulation-based calibration of every law, likelihood and discrepancy.

Parameters and random effects are drawn from the prior, a table of 48 rows or fewer is simulated
from each and fitted by `bayeslaw.fit`, and the true values are ranked among its draws, as are two
losses of a new size, base and run among the draws of `bayeslaw.forecast`. A quantity is inside if
the ECDF of its ranks stays within its simultaneous 95 % envelope; 1 in 20 leaves it by chance.
"spread" is the variance of the new losses' ranks over that of uniform ones: above 1, bands are too
narrow.

    python benchmarks/calibration.py [--simulations 100] [--out calibration.csv]

Settings already in --out are not run again. With several --seeds, --simulations are run for each
seed, in --jobs processes, and the ranks are pooled; with --cache, seeds that ended are kept there.
"""

import argparse
import re
import time
import warnings
from pathlib import Path

import pandas as pd
from joblib import Memory, Parallel, delayed
from tables import SMOKE, arguments

from bayeslaw import Calibration, calibrate
from bayeslaw.laws.lawfiles import models_dir

LAWS = sorted(path.stem for path in models_dir().glob("*.toml"))
PLAIN = {"discrepancy": "none", "effects": "none"}
SETTINGS = [
    *({"law": law} for law in LAWS),
    *({"law": law, **PLAIN} for law in LAWS),
    {"law": "chinchilla", "discrepancy": "curvature"},
    {"law": "form1", "discrepancy": "adaptation"},
    {"law": "chinchilla", **PLAIN, "effects": ("base",)},
    {"law": "chinchilla", **PLAIN, "errors": "run"},
    {"law": "chinchilla", **PLAIN, "likelihood": "skewed"},
    *({"law": law, "likelihood": likelihood} for likelihood in ("normal", "huber") for law in LAWS),
    *(
        {"law": law, "likelihood": likelihood, **PLAIN}
        for likelihood in ("normal", "huber")
        for law in LAWS
    ),
]
"""Settings of `bayeslaw.calibrate`; the first are the default model of each law."""


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--simulations", type=int, default=100)
    found.add_argument("--seeds", type=int, nargs="+", default=[0])
    found.add_argument("--jobs", type=int, default=1)
    found.add_argument("--draws", type=int, help="of each chain; by default until the gate")
    found.add_argument("--only", default="", help="regular expression for the name of a setting")
    found.add_argument("--cache", type=Path, help="folder of the ranks of each seed")
    found.add_argument("--out", default="calibration.csv", type=Path)
    return found


def main() -> None:
    """Print a row per setting."""
    args = parser().parse_args()
    settings = SETTINGS
    sampler = {"draws": args.draws, "retry": False} if args.draws else {}
    if args.smoke:
        args.simulations, settings = 3, [{"law": "chinchilla", **PLAIN}]
        sampler = {**SMOKE, "draws": 300, "tune": 300}  # simulations of a large R-hat are left out
    warnings.simplefilter("ignore")
    for setting in settings:
        parts_of = {k: "+".join(v) if isinstance(v, tuple) else v for k, v in setting.items()}
        name = " ".join([parts_of.pop("law"), *(f"{k}={v}" for k, v in parts_of.items())])
        done = pd.read_csv(args.out) if args.out.is_file() else pd.DataFrame({"setting": []})
        if not re.search(args.only, name) or (done["setting"] == name).any():
            continue
        start = time.perf_counter()
        run = delayed(Memory(args.cache, verbose=0).cache(calibrate))
        size = {"simulations": args.simulations, "cores": 1 if args.jobs > 1 else None}
        parts = Parallel(args.jobs)(
            run(**setting, **size, **sampler, seed=seed) for seed in args.seeds
        )
        found = pooled(parts)
        table = found.envelope()
        row = {
            "setting": name,
            "simulations": len(found.ranks),
            "left out": found.failed,
            "quantities": len(table),
            "inside": int(table["inside"].sum()),
            "largest excess": round(table["excess"].max(), 3),
            "spread": round(table["spread"].filter(like="loss ").mean(), 2),
            "outside": " ".join(table.index[~table["inside"]]),
            "seconds": round(time.perf_counter() - start),
        }
        pd.concat([done, pd.DataFrame([row])]).to_csv(args.out, index=False)
        print(" | ".join(map(str, row.values())), flush=True)


def pooled(parts: list[Calibration]) -> Calibration:
    """Pool the simulations of several seeds."""
    ranks = pd.concat([part.ranks for part in parts], ignore_index=True)
    return Calibration(ranks, sum(part.failed for part in parts))


if __name__ == "__main__":
    main()
