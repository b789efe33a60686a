"""Time of a gradient and of a fit against rows, groups and terms, on synthetic tables.

    OMP_NUM_THREADS=1 python benchmarks/growth.py [--fits] growth.png

Losses are simulated from the law. Gradients are those of the default model of Form 1, apart from
the last part, which takes laws of two to four terms. `--fits` also fits the tables of the first
part, each once. Rows go to standard output as CSV, with the slope between neighbours in log-log.
"""

import argparse
import time
from collections.abc import Iterator

import matplotlib as mpl
import numpy as np
import pandas as pd
from speed import gradient
from tables import SMOKE, arguments

import bayeslaw as bl

mpl.use("agg")
ROWS = (50, 100, 200, 500, 1000, 2000, 5000, 10_000)
GROUPS = (10, 30, 100, 300, 1000)
LAWS = {"chinchilla": 2, "dcpt": 3, "form1": 4}
TRUTH = {
    "E": 1.2, "A": 180.0, "alpha": 0.3, "B": 60.0, "beta": 0.27, "nu": 0.15, "C": 0.02,
    "gamma": 0.3, "F": 0.8, "eta": 0.35,
}  # fmt: skip


def table(rows: int, groups: int, law: str = "form1") -> bl.LossTable:
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
        name for term in bl.load_law(law).terms for name in (term.coefficient, *term.exponents)
    }
    truth = {name: value for name, value in TRUTH.items() if name == "E" or name in names}
    return bl.simulate(law, truth, design, sigma=0.003, seed=0)


def measured(fits: bool, smoke: bool) -> Iterator[dict[str, object]]:
    """A row of results per table."""
    for rows in ROWS[:2] if smoke else ROWS:
        found = table(rows, 10)
        row = {"against": "rows", "size": rows, "gradient_us": gradient("form1", found)}
        if fits:
            start = time.perf_counter()
            fit = bl.fit("form1", found, seed=0, **(SMOKE if smoke else {}))
            row |= {
                "seconds": time.perf_counter() - start,
                "ok": fit.convergence.ok,
                "steps": float(fit.stats["n_steps"].mean()),
                "draws": fit.draws.sizes["chain"] * fit.draws.sizes["draw"],
            }
        yield row
    for groups in GROUPS[:2] if smoke else GROUPS:
        found = gradient("form1", table(400 if smoke else 4000, groups))
        yield {"against": "groups", "size": groups, "gradient_us": found}
    for law, terms in list(LAWS.items())[-1:] if smoke else LAWS.items():
        yield {"against": "terms", "size": terms, "gradient_us": gradient(law, table(576, 10, law))}


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("picture", nargs="?", default="growth.png")
    found.add_argument("--fits", action="store_true")
    return found


def main() -> None:
    """Measure, print and draw."""
    import matplotlib.pyplot as plt

    args = parser().parse_args()
    bl.fit("form1", table(50, 10), seed=0, draws=10, tune=10, chains=2, retry=False)  # compile
    found = pd.DataFrame(measured(args.fits or args.smoke, args.smoke))
    columns = [name for name in ("gradient_us", "seconds") if name in found]
    for column in columns:
        steps = found.groupby("against")[["size", column]].transform(lambda v: np.log(v).diff())
        found[f"slope_{column}"] = steps[column] / steps["size"]
    print(found.to_csv(index=False, float_format="%.4g"))
    kinds = ("rows", "groups", "terms")
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), layout="constrained", sharey=True)
    for axis, kind in zip(axes, kinds, strict=True):
        part = found[found.against == kind]
        axis.plot(part["size"], part["gradient_us"], "o-", color="C0")
        axis.set(xlabel=kind, yscale="log", xscale="linear" if kind == "terms" else "log")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("gradient, µs")
    axes[1].set_title("4,000 rows", fontsize="medium")
    axes[2].set_title("576 rows", fontsize="medium")
    axes[2].set_xticks(sorted(LAWS.values()))
    figure.savefig(args.picture, dpi=110)


if __name__ == "__main__":
    main()
