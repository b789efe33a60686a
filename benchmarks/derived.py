"""Derived numbers of the public Chinchilla points, beside those of Besiroglu et al. (2024).

They fit ``E + A / N^alpha + B / D^beta`` to 240 points read from a figure of Hoffmann et al. (2022)
by minimising the Huber loss. Here the same law is fitted to the same points without a discrepancy,
as a posterior, and with the default one. The published estimates, with their intervals, are E 1.817
(1.769 to 1.871), alpha .348 (.317 to .373) and beta .367 (.331 to .415); the exponent of N
against C of these estimates is beta / (alpha + beta) = .513. The points have no stated licence and
are not shipped; without them nothing is run:

    python benchmarks/derived.py chinchilla.csv

Columns of the table: `params`, `tokens`, `loss`. With ``--smoke`` a shipped table takes its place.

References
----------
T. Besiroglu et al. (2024). Chinchilla scaling: a replication attempt. arXiv:2404.10102.
"""

import argparse
from pathlib import Path

import pandas as pd
from tables import SMOKE, arguments

import bayeslaw as bl

BUDGETS = (1e21, 5.76e23)
"""FLOPs: within the points, and those of Chinchilla itself."""
PUBLISHED = {
    "E": (1.817, 1.769, 1.871),
    "alpha": (0.348, 0.317, 0.373),
    "beta": (0.367, 0.331, 0.415),
}
"""Estimate and interval."""


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("table", type=Path, nargs="?", default=Path("chinchilla.csv"))
    return found


def main() -> None:
    """Print the parameters and the derived numbers of both fits."""
    args = parser().parse_args()
    if not args.smoke and not args.table.is_file():
        print(f"{args.table} is not there; nothing to compare.")
        return
    table = bl.example_table() if args.smoke else bl.read_table(args.table)
    for discrepancy in ("none", "auto"):
        settings = SMOKE if args.smoke else {}
        fit = bl.fit("chinchilla", table, seed=0, discrepancy=discrepancy, **settings)
        print(f"discrepancy {discrepancy}: {fit.spec.discrepancy.kind}")
        rows = []
        for name, published in PUBLISHED.items():
            draws = fit.paper[name]
            quantiles = [float(draws.quantile(q)) for q in (0.5, 0.05, 0.95)]
            rows.append([name, *quantiles, *published])
        heads = ["parameter", "median", "q05", "q95", "published", "lower", "upper"]
        print(pd.DataFrame(rows, columns=heads).round(3).to_string(index=False))
        found = bl.derive.compute_optimal(fit, BUDGETS, allow_unconverged=args.smoke)
        columns = ["quantity", "flops", "median", "lower_80", "upper_80", "lower_90", "upper_90"]
        frame = found.to_frame()[[*columns, "at_bound"]]
        print(frame.to_string(index=False, float_format="{:.4g}".format), end="\n\n")


if __name__ == "__main__":
    main()
