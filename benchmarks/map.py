"""The MAP of the PyMC model under the Huber likelihood and flat priors, compared with `fit_huber`.

The Huber fits are within the bounds of the priors, as the MAP is.

Prints the largest difference of predicted log losses over the training rows. Where a fit ends on a
bound the optimum is not interior, and the two need not agree.

    python benchmarks/map.py [--only TEXT]
"""

import argparse
import warnings
from itertools import chain, islice

import numpy as np
from tables import POOL, arguments, splits, synthetic

import bayeslaw as bl


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--only", default="")
    return found


def main() -> None:
    """Print one line per table and law."""
    args = parser().parse_args()
    warnings.simplefilter("ignore")
    print("table | law | largest difference | MAP objective / Huber's - 1 | bounds")
    every = islice(chain(splits(), synthetic()), 1 if args.smoke else None)
    for name, _, table, _, laws in every:
        for law in [law for law in laws if law != POOL]:
            if args.only not in f"{name} {law}":
                continue
            point = bl.fit_huber(law, table, bounds="prior")
            mode = bl.fit(law, table, method="map", likelihood="huber", priors="flat")
            gap = np.abs(np.log(mode.predict(table) / point.predict(table))).max()
            bounds = ", ".join(sorted({*point.at_bounds, *mode.at_bounds})) or "interior"
            excess = mode.objective / point.objective - 1
            print(f"{name} | {law} | {gap:.1e} | {excess:+.1e} | {bounds}", flush=True)


if __name__ == "__main__":
    main()
