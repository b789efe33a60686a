"""Distance of the curvatures from their priors on every split, and the verdict of `check` on it.

Default fits with short chains (two of 400 draws after 500). Distances of curvatures, tilts and
drifts are in prior sds. Coverage is that of the held-out rows.

    python benchmarks/curvature.py [--laws chinchilla form1] [--only olmo]
"""

import argparse
import warnings

from forgetting import farthest
from tables import SMOKE, arguments, splits

import bayeslaw as bl

SHORT = {"chains": 2, "draws": 400, "tune": 500, "target_accept": 0.9, "retry": False}


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--laws", nargs="+", default=["chinchilla", "form1"])
    found.add_argument("--only", default="")
    return found


def main() -> None:
    """Print a Markdown row per split and law."""
    args = parser().parse_args()
    if args.smoke:
        args.only = "delphi"
    warnings.simplefilter("ignore")
    print("| split | law | R-hat | 90 % holds | largest curvature, check |")
    print("| --- | --- | --- | --- | --- |")
    for name, _, train, test, laws in splits():
        if args.only not in name:
            continue
        for law in (law for law in laws if law in args.laws):
            fit = bl.fit(law, train, **(SMOKE if args.smoke else SHORT))
            holds = bl.score(fit, test, allow_unconverged=True)["coverage_90"]
            row = f"{name} | {law} | {fit.convergence.rhat:.2f} | {100 * holds:.0f} %"
            print(f"| {row} | {farthest(fit, test)} |", flush=True)


if __name__ == "__main__":
    main()
