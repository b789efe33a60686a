"""Scores of stacked laws on held-out rows, beside those of each law.

OLMo ladder: the Chinchilla law as written and with curvature. tinycpt: Forms 1 to 3 and dcpt as
written, fitted to four stages. Weights by leave-one-out (runs where they repeat) on the training
rows. A posterior that fails its gate is used nevertheless.

    python benchmarks/stacking.py [--only TEXT] [--draws 2000] [--out stacking.csv]
"""

import argparse
import warnings
from collections.abc import Iterator
from itertools import islice

import pandas as pd
from tables import CPT, arguments, splits

import bayeslaw as bl
from bayeslaw import stack

COLUMNS = ["rmse_log", "coverage_50", "coverage_90", "width_90", "crps", "winkler_90"]


def jobs() -> Iterator[tuple[str, bl.LossTable, bl.LossTable, list[tuple[str, str]]]]:
    """Name, training rows, test rows, and laws with their discrepancies."""
    for name, _, train, test, _laws in splits():
        if name.startswith("olmo"):
            yield name, train, test, [("chinchilla", "none"), ("chinchilla", "curvature")]
        elif name.startswith("tinycpt") and name.endswith("stage from four"):
            yield name, train, test, [(law, "none") for law in CPT]


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--only", default="")
    found.add_argument("--draws", type=int, default=2000)
    found.add_argument("--out", default="")
    return found


def main() -> None:
    """Print the scores of every law and mixture, per split and pooled."""
    args = parser().parse_args()
    if args.smoke:
        args.draws = 250
    warnings.simplefilter("ignore", bl.FitWarning)
    rows = []
    for name, train, test, laws in islice(jobs(), 1 if args.smoke else None):
        if args.only not in name:
            continue
        fits = [bl.fit(law, train, discrepancy=each, draws=args.draws) for law, each in laws]
        stacked = stack(fits)
        print(f"\n{name}\n{stacked}", flush=True)
        equal = dict.fromkeys(stacked.fits, 1 / len(fits))
        forecasts = {
            label: fit.forecast(test, allow_unconverged=True) for label, fit in stacked.fits.items()
        }
        best = stacked.to_frame().index[0]
        forecasts |= {
            "best by LOO": forecasts[best],
            "stacked": stacked.forecast(test, allow_unconverged=True),
            "equal weights": stacked.forecast(test, weights=equal, allow_unconverged=True),
        }
        for label, forecast in forecasts.items():
            scores = bl.score(forecast, test)[COLUMNS]
            rows.append({"table": name, "law": label, "test": len(test)} | scores.to_dict())
            print(f"{label:24}", *(f"{c} {scores[c]:.4f}" for c in COLUMNS), flush=True)
    frame = pd.DataFrame(rows)
    for (family, law), part in frame.groupby([frame["table"].str.split().str[0], "law"]):
        weight = part["test"] / part["test"].sum()
        means = (f"{c} {(part[c] * weight).sum():.4f}" for c in COLUMNS)
        print(f"{family} {law}: {part['test'].sum()} test rows; {', '.join(means)}")
    if args.out:
        frame.to_csv(args.out, index=False)


if __name__ == "__main__":
    main()
