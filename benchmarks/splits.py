"""Error and coverage of every law on the held-out rows of every shipped table.

Point fits by the paper's Huber objective; posteriors of the law as written ("none") and of the law
whose terms may bend ("curvature", the default). Bands are for a new measured loss; widths, CRPS
and Winkler scores are on log loss. A posterior that fails its gate is scored all the same.

    python benchmarks/splits.py [--only TEXT] [--out splits.csv]
"""

import argparse
import warnings

import pandas as pd
from tables import splits

import bayeslaw as bl

DISCREPANCIES = ("none", "curvature")
COLUMNS = ["coverage_50", "coverage_90", "width_90", "crps", "winkler_90"]
POOLED = ["nuts rmse_log", *COLUMNS]


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
            for discrepancy in DISCREPANCIES:
                fit = bl.fit(law, train, discrepancy=discrepancy)
                bands = bl.score(fit, test, allow_unconverged=True)
                rows.append(
                    {"table": name, "law": law, "discrepancy": discrepancy, "test": len(test)}
                    | {"huber rmse_log": point["rmse_log"], "nuts rmse_log": bands["rmse_log"]}
                    | {column: bands[column] for column in COLUMNS}
                    | {"gate": "; ".join(fit.convergence.failures) or "passed"}
                )
                if len(rows) == 1:
                    print(" | ".join(rows[0]), flush=True)
                cells = (f"{v:.4f}" if isinstance(v, float) else str(v) for v in rows[-1].values())
                print(" | ".join(cells), flush=True)
    frame = pd.DataFrame(rows)
    family = frame["table"].str.split().str[0]
    for key, part in frame.groupby([family, "law", "discrepancy"]):
        weight = part["test"] / part["test"].sum()
        means = (f"{c} {(part[c] * weight).sum():.4f}" for c in ["huber rmse_log", *POOLED])
        print(f"{' '.join(key)}: {part['test'].sum()} test rows; {', '.join(means)}")
    if args.out:
        frame.to_csv(args.out, index=False)


if __name__ == "__main__":
    main()
