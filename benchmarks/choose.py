"""Scale of the curvatures: scores of held-out rows for each, and which two tables choose.

The Chinchilla law with Normal(0, sd) curvatures on the splits of OLMo, Delphi and Gadre. Chosen is
the least mean of log CRPS over OLMo and Delphi, which weigh the same; Gadre has no say.

    python benchmarks/choose.py [--scales .07,.1,.15,.2]
"""

import argparse
import warnings

import numpy as np
import pandas as pd
from tables import splits

import bayeslaw as bl

COLUMNS = ["rmse_log", "coverage_50", "coverage_90", "width_90", "crps", "winkler_90"]
CHOOSING = ["olmo", "delphi"]
SETTINGS = {"chains": 2, "draws": 1000, "tune": 800, "target_accept": 0.95, "retry": False}


def scores(scale: float) -> pd.DataFrame:
    """Mean scores over the rows of each source, and the least coverage of a split."""
    names = bl.load_law("chinchilla").curved().curvatures
    priors = dict.fromkeys(names, f"Normal(mu=0, sigma={scale})")
    rows = []
    for name, train, test, laws in splits():
        if laws == ("chinchilla",):
            fit = bl.fit("chinchilla", train, priors=priors, **SETTINGS)
            found = bl.score(fit, test, allow_unconverged=True)[COLUMNS]
            rows.append({"source": name.split()[0], "rows": len(test)} | dict(found))
    pooled = {}
    for source, part in pd.DataFrame(rows).groupby("source"):
        pooled[source] = {c: np.average(part[c], weights=part["rows"]) for c in COLUMNS}
        pooled[source] |= {"rows": part["rows"].sum(), "least_90": part["coverage_90"].min()}
    return pd.DataFrame(pooled).T


def main() -> None:
    """Print a row per scale and source, then the criterion of each scale."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scales", default=".07,.1,.15,.2")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    criterion = {}
    for scale in map(float, args.scales.split(",")):
        found = scores(scale)
        criterion[scale] = np.log(found.loc[CHOOSING, "crps"]).mean()
        for source, row in found.iterrows():
            cells = (f"{row[c]:.4f}" for c in [*COLUMNS, "least_90"])
            print(" | ".join([f"{scale:g}", str(source), *cells]), flush=True)
    for scale, value in criterion.items():
        print(f"{scale:g}: mean log CRPS over {' and '.join(CHOOSING)} {value:.3f}")
    print(f"chosen: {min(criterion, key=lambda scale: criterion[scale]):g}")


if __name__ == "__main__":
    main()
