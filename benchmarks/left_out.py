"""Forecast a size from the three below it: bands with and without random effects of size.

For every four consecutive sizes of the OLMo ladder, Gadre's corpora and Delphi's training rows, the
Chinchilla law is fitted to the three smaller ones and forecasts all rows of the fourth. Three sizes
do not identify size effects, so they are "propagated": the forecast draws them from their prior
(`bayeslaw.inference.residuals`). "none" is without them.

    python benchmarks/left_out.py [--only TEXT]
    python benchmarks/left_out.py --discrepancy curvature
"""

import argparse
import dataclasses
import warnings
from collections.abc import Iterator

import numpy as np
import pandas as pd
from tables import DATA, SMOKE, arguments

import bayeslaw as bl
from bayeslaw import Prior

NONE = Prior.parse("LogNormal(median=1e-12, sigma=0.25)")
COLUMNS = ["rmse_log", "coverage_50", "coverage_90", "width_90", "crps", "winkler_90"]


def ladders() -> Iterator[tuple[str, bl.LossTable]]:
    """Source and table of every ladder."""
    olmo = DATA / "olmo/ladder.csv"
    for domain in sorted(pd.read_csv(olmo)["domain"].unique()):
        yield f"olmo {domain}", bl.read_table(olmo, where=f"domain == '{domain}'")
    for corpus in ("c4_original", "rpj", "rw_original"):
        where = f"domain == 'c4_val' and train_set == '{corpus}'"
        yield f"gadre {corpus}", bl.read_table(DATA / "gadre/overtraining.csv", where=where)
    yield "delphi", bl.read_table(DATA / "delphi/isotoken.csv", where="scale <= 3e20")


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--only", default="", help="part of the name of a table")
    found.add_argument("--discrepancy", default="walk")
    return found


def main() -> None:
    """Print a row per left-out size, then scores pooled over each source."""
    args = parser().parse_args()
    settings = SMOKE if args.smoke else {}
    if args.smoke:
        args.only, args.discrepancy = "gadre rpj", "curvature"
    warnings.simplefilter("ignore")
    found = []
    for name, table in ladders():
        sizes = np.unique(table.frame["params"])
        for k in range(3, len(sizes)):
            if args.only not in name:
                continue
            three = table.frame["params"].isin(sizes[k - 3 : k])
            train, test = (
                bl.from_frame(table.frame[rows], name)
                for rows in (three, table.frame["params"] == sizes[k])
            )
            fit = bl.fit("chinchilla", train, discrepancy=args.discrepancy, **settings)
            bare = fit.spec.priors | {"tau_size": NONE}
            for way, spec in (
                ("none", dataclasses.replace(fit.spec, priors=bare)),
                ("propagated", fit.spec),
            ):
                scores = bl.score(dataclasses.replace(fit, spec=spec), test, allow_unconverged=True)
                row = {"source": name.split()[0], "table": name, "size": sizes[k], "way": way}
                gate = "passed" if fit.convergence.ok else "failed"
                row |= {"gate": gate, "rows": len(test)}
                found.append(row | scores[COLUMNS].to_dict())
                cells = (f"{v:.4f}" if isinstance(v, float) else v for v in found[-1].values())
                print(" | ".join(map(str, cells)), flush=True)
    every = pd.DataFrame(found)
    for key, part in every.groupby(["source", "way"]):
        means = [float(np.average(part[c], weights=part["rows"])) for c in COLUMNS]
        passed = f"{(part['gate'] == 'passed').sum()} of {len(part)} fits passed the gate"
        print(" | ".join([*key, str(part["rows"].sum()), *(f"{v:.4f}" for v in means), passed]))


if __name__ == "__main__":
    main()
