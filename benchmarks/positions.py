"""Positions of the test rows of every split, and what the convex hull adds to `check`'s part.

No posterior is sampled:

    python benchmarks/positions.py
"""

import argparse
import warnings
from itertools import chain, islice

import pandas as pd
from tables import arguments, splits, synthetic

import bayeslaw as bl
from bayeslaw.checks.extrapolation import distances, extrapolation_part, hull_distances
from bayeslaw.checks.part import NEAR, Target
from bayeslaw.inference.posterior import Posterior


class Located:
    """The parts of a fit that its positions depend on: no sampling is needed."""

    def __init__(self, law: str, table: bl.LossTable) -> None:
        self.law, self.table = bl.load_law(law), table


def measured(law: str, train: bl.LossTable, test: bl.LossTable) -> dict[str, object]:
    """Number of rows by position, corners, and the largest distances."""
    fit: Posterior = Located(law, train)  # type: ignore[assignment]
    found = bl.locate(train, test, fit.law.columns)
    own = distances(fit, test.frame)[list(fit.law.columns)]
    hull = hull_distances(fit, test.frame)
    corner = (own < NEAR).all(axis=1).to_numpy() & (hull >= NEAR)
    counts = found["position"].value_counts()
    return {
        "law": law,
        "rows": len(test),
        **{p: int(counts.get(p, 0)) for p in ("interpolation", "extrapolation", "projection")},
        "ranges": own.max(axis=None),
        "hull": hull.max(),
        "corners": int(corner.sum()),
        "corner hull": hull[corner].max(initial=0),
        "as written": extrapolation_part(fit, Target(test.frame, {}, hull)).level,
        "efolds": found["efolds"].max(),
        "decades": found["decades"].max(),
    }


def parser() -> argparse.ArgumentParser:
    """Options."""
    return arguments(__doc__)


def main() -> None:
    """Print a row per split and law."""
    smoke = parser().parse_args().smoke
    warnings.simplefilter("ignore")
    rows = [
        {"split": name, **measured(law, train, test)}
        for name, _, train, test, laws in islice(chain(splits(), synthetic()), 1 if smoke else None)
        for law in laws
        if law not in ("form2", "form3")  # the covariates of form1
    ]
    print(pd.DataFrame(rows).round(2).to_string(index=False))


if __name__ == "__main__":
    main()
