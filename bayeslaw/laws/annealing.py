"""Checkpoints whose learning rate has not been annealed: an offset of the whole log loss."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.laws.modifiers import Polynomial
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.terms import COLUMN, Array, Values

ANNEALED = "annealed"
"""Column of a table: whether the learning rate had fallen to its end when the loss was measured."""
OFFSET, LOCAL = "unannealed", "unannealed_ref"
"""The offset where all covariates are 1, and at the reference point."""
LETTERS = {"tokens": "D", "params": "N", "ptpp": "P", "share": "r"}
"""Covariates that the offset is linear in, and the ends of its parameters' names."""
PRIORS = {
    LOCAL: Prior("Normal", mu=0, sigma=0.05),
    **{f"{OFFSET}_{c}": Prior("Normal", mu=0, sigma=0.02) for c in "DNP"},
    f"{OFFSET}_r": Prior("Normal", mu=0, sigma=0.05),
}
"""Priors, on log loss; of slopes per e-fold, of that in r over all of its range."""
TYPICAL = 0.02
"""Size of an offset."""


def offset(covariates: Sequence[str]) -> Polynomial:
    """Addition to log loss of checkpoints that are not annealed, linear in a law's covariates."""
    columns = {COLUMN[c] for c in covariates}
    along = {f"{OFFSET}_{letter}": c for c, letter in LETTERS.items() if COLUMN[c] in columns}
    found = {name: (OFFSET, covariate) for name, covariate in along.items()}
    return Polynomial({OFFSET: (OFFSET,), **found})


def unannealed(frame: pd.DataFrame) -> Floats:
    """1 for rows that are not annealed and else 0; without the column all are annealed."""
    if ANNEALED not in frame:
        return np.zeros(len(frame))
    return 1.0 - frame[ANNEALED].to_numpy(float)


def moved(p: Values, by: Values, sign: int) -> Array:
    """The offset where the covariates are `by` larger (sign 1) or smaller (sign -1)."""
    slopes = {c: f"{OFFSET}_{letter}" for c, letter in LETTERS.items()}
    return p[OFFSET] + sign * sum(p[name] * by[c] for c, name in slopes.items() if name in p)
