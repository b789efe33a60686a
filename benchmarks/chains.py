"""Means and 5 and 95 % quantiles by the shipped sampler against those of long chains.

Each case is fitted twice: by `bayeslaw.fit` as shipped, which stops at the convergence check, and
with --draws draws of each of four chains after 2,000 tuning steps at acceptance .99. Compared are
all coordinates, random effects, and log losses of the test rows. A difference is divided by its
Monte Carlo error, that of both runs together; of exact samplers 5 in 100 exceed 1.96.

    python benchmarks/chains.py [--draws 10000] [--only TEXT] [--out chains.csv]

Cases already in --out are not run again. Columns: quantities compared, the share beyond 1.96 and
the largest difference in Monte Carlo errors, and the largest in posterior standard deviations.
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from arviz_stats.base import array_stats
from tables import SMOKE, arguments, splits

import bayeslaw as bl

CASES = [
    ("delphi", "chinchilla", {"discrepancy": "none"}),
    ("delphi", "chinchilla", {"discrepancy": "curvature"}),
    ("delphi", "chinchilla", {}),
    ("gadre rpj", "chinchilla", {}),
    ("olmo c4_en", "chinchilla", {}),
    ("olmo pile", "skaling", {"discrepancy": "none"}),
    ("tinycpt french stage from two", "form1", {"discrepancy": "none", "errors": "independent"}),
    ("tinycpt french stage from two", "form3", {}),
    ("tinycpt french corner", "transfer", {}),
    ("tinycode python size", "dcpt", {}),
]
"""Split, law, and settings of `bayeslaw.fit`; without settings its default."""
PROBABILITIES = (0.05, 0.95)


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--draws", type=int, default=10_000, help="of each long chain")
    found.add_argument("--only", default="", help="part of the name of a case")
    found.add_argument("--out", default="chains.csv", type=Path)
    return found


def main() -> None:
    """Print a row per case."""
    args = parser().parse_args()
    warnings.simplefilter("ignore", bl.FitWarning)
    tables = {name: (train, test) for name, _, train, test, _ in splits()}
    for split, law, settings in CASES[: 1 if args.smoke else None]:
        given = " ".join(f"{name}={value}" for name, value in settings.items()) or "default"
        name = f"{split}, {law}, {given}"
        done = pd.read_csv(args.out) if args.out.is_file() else pd.DataFrame({"case": []})
        if args.only not in name or (done["case"] == name).any():
            continue
        train, test = tables[split]
        short = SMOKE if args.smoke else {}
        long = {"draws": args.draws, "tune": 2000, "target_accept": 0.99, "retry": False}
        found = {}
        for kind, sampler in (("shipped", short), ("long", short or long)):
            start = time.perf_counter()
            fit = bl.fit(law, train, seed=len(found), **settings, **sampler)
            found[kind] = summary(quantities(fit, test))
            found[f"{kind} gate"] = "; ".join(fit.convergence.failures) or "passed"
            found[f"{kind} seconds"] = time.perf_counter() - start
        shipped, reference = found.pop("shipped"), found.pop("long")
        apart = np.abs(shipped[0] - reference[0])
        errors = apart / np.hypot(shipped[1], reference[1])
        row = {
            "case": name,
            "quantities": errors.size,
            "beyond 1.96": float(np.mean(errors > 1.96)),
            "largest, errors": errors.max(),
            "largest, sd": float(np.max(apart / reference[2])),
            **found,
        }
        pd.concat([done, pd.DataFrame([row])]).to_csv(args.out, index=False, float_format="%.3g")
        print(pd.Series(row).to_string(), end="\n\n", flush=True)


def quantities(fit: bl.Posterior, test: bl.LossTable) -> np.ndarray:
    """Draws of all coordinates and of log losses, shape (chains, draws, quantities)."""
    shape = fit.draws.sizes["chain"], fit.draws.sizes["draw"], -1
    drawn = [fit.draws[name].to_numpy().reshape(shape) for name in fit.draws.data_vars]
    return np.concatenate([*drawn, np.log(fit.latent(test)).reshape(shape)], axis=-1)


def summary(drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and quantiles, their Monte Carlo errors, (3, quantities), and standard deviations."""
    axes = {"chain_axis": 0, "draw_axis": 1}
    levels = [np.quantile(drawn, p, axis=(0, 1)) for p in PROBABILITIES]
    errors = [array_stats.mcse(drawn, **axes, method="mean")]
    errors += [array_stats.mcse(drawn, **axes, method="quantile", prob=p) for p in PROBABILITIES]
    return np.stack([drawn.mean(axis=(0, 1)), *levels]), np.stack(errors), drawn.std(axis=(0, 1))


if __name__ == "__main__":
    main()
