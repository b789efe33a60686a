"""Forecast a size from the three below it: bands with and without random effects of size.

For every four consecutive sizes of the OLMo ladder, Gadre's corpora and Delphi's training rows, the
law with curvature is fitted to the three smaller ones and forecasts all rows of the fourth. Three
sizes do not identify size effects, so the forecast draws them from their prior
(`bayeslaw.evaluate.new_sizes`).

    python benchmarks/left_out.py [--only TEXT]
"""

import argparse
import dataclasses
import warnings
from collections.abc import Iterator

import numpy as np
import pandas as pd
from tables import DATA

import bayeslaw as bl
from bayeslaw.laws.priors import Prior

SHORT = {"draws": 1000, "tune": 1000, "target_accept": 0.95, "retry": False}
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


def main() -> None:
    """Print a row per left-out size, then scores pooled over each source."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    args = parser.parse_args()
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
            fit = bl.fit("chinchilla", train, **SHORT)
            bare = fit.spec.priors | {"tau_size": NONE}
            for way, spec in (
                ("alone", dataclasses.replace(fit.spec, priors=bare)),
                ("carried", fit.spec),
            ):
                scores = bl.score(dataclasses.replace(fit, spec=spec), test, allow_unconverged=True)
                row = {"source": name.split()[0], "table": name, "size": sizes[k], "way": way}
                found.append(row | {"rows": len(test)} | scores[COLUMNS].to_dict())
                cells = (f"{v:.4f}" if isinstance(v, float) else v for v in found[-1].values())
                print(" | ".join(map(str, cells)), flush=True)
    every = pd.DataFrame(found)
    for key, part in every.groupby(["source", "way"]):
        means = [float(np.average(part[c], weights=part["rows"])) for c in COLUMNS]
        print(" | ".join([*key, str(part["rows"].sum()), *(f"{v:.4f}" for v in means)]))


if __name__ == "__main__":
    main()
