"""Error and coverage of every law on the held-out rows of every shipped table.

Point fits by the paper's Huber objective, and plain posteriors (no discrepancy): nominal 50 and
90 % bands for a new measured loss. Widths, CRPS and Winkler scores are on log loss.

    python benchmarks/splits.py [--only TEXT] [--out splits.csv]
"""

import argparse
import warnings

import pandas as pd
from tables import splits

import bayeslaw as bl

COLUMNS = ["coverage_50", "coverage_90", "width_90", "crps", "winkler_90"]


def main() -> None:
    """Print a Markdown table, one row per table, split and law."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    warnings.simplefilter("ignore", bl.FitWarning)
    rows = []
    for name, train, test, laws in splits():
        for law in laws:
            if args.only not in f"{name} {law}":
                continue
            point = bl.score(bl.fit_huber(law, train), test)
            fit = bl.fit(law, train)
            bands = bl.score(fit, test, allow_unconverged=True)
            rows.append(
                {"table": name, "law": law, "train": len(train), "test": len(test)}
                | {"huber rmse_log": point["rmse_log"], "nuts rmse_log": bands["rmse_log"]}
                | {column: bands[column] for column in COLUMNS}
                | {"gate": "; ".join(fit.convergence.failures) or "passed"}
            )
            if len(rows) == 1:
                print(" | ".join(rows[0]), flush=True)
            cells = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in rows[-1].values())
            print(" | ".join(cells), flush=True)
    frame = pd.DataFrame(rows)
    for family, part in frame.groupby(frame["table"].str.split().str[0]):
        weight = part["test"] / part["test"].sum()
        means = {c: round(float((part[c] * weight).sum()), 4) for c in COLUMNS}
        print(f"{family}: {part['test'].sum()} test rows, pooled {means}")
    if args.out:
        frame.to_csv(args.out, index=False)


if __name__ == "__main__":
    main()
