"""A table as the arrays that the PyMC model of a specification is given."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bayeslaw.common.arrays import Floats, Ints, Strings
from bayeslaw.model import random_effects
from bayeslaw.model.columns import columns_of
from bayeslaw.model.errors import order
from bayeslaw.model.spec import Spec
from bayeslaw.tables.table import LossTable

type Arrays = Mapping[str, npt.NDArray[np.generic]]
"""Arrays that a model is given, by name."""


@dataclass(frozen=True)
class Data:
    """A table as a model's data.

    Parameters
    ----------
    arrays : mapping of str to array
        ``x`` has shape (covariates, rows) and ``at`` (covariates,), in the order of
        `Law.covariate_names`; as two arrays they compile faster than one by one. ``observed`` are
        log losses. The rest are groups of rows, the row before each row in its run, and the law's
        columns (`bayeslaw.model.columns.columns_of`).
    at : mapping of str to float
        Logarithms of the covariates at the reference point.
    groups : mapping of str to array
        Sorted labels of the groups of each level that has effects.
    """

    arrays: Arrays
    at: Mapping[str, float]
    groups: Mapping[str, Strings]


def make_data(
    spec: Spec,
    table: LossTable,
    *,
    labels: Mapping[str, Strings] | None = None,
    at: Mapping[str, float] | None = None,
) -> Data:
    """The data of a table.

    Parameters
    ----------
    spec : Spec
    table : LossTable
    labels : mapping of level to array, optional
        Sorted groups of each level, if several tables have groups in common.
    at : mapping of str to float, optional
        Reference point, if not that of the table.

    Raises
    ------
    TableError
        If the table lacks a column the law needs, holds several domains, or does not vary.
    """
    law, groups = spec.law, dict(labels or {})
    law.check_fits(table, table.name)
    x = law.covariates(table, table.name)
    at = at or law.reference_point(table)
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "x": np.stack([x[name] for name in law.covariate_names]),
        "at": np.stack([at[name] for name in law.covariate_names]),
        "observed": np.log(table.loss),
    }
    places, first = [], 0
    for level in spec.effects:
        of_rows = random_effects.labels(table.frame, level)
        names = groups.setdefault(level, np.unique(of_rows))
        index = np.searchsorted(names, of_rows)
        affected = random_effects.level(level).affected(names)
        rows = np.bincount(index, minlength=len(names)) * affected
        arrays |= {f"{level}_index": index, f"{level}_groups": centring(rows)}
        if not affected.all():
            arrays[f"{level}_affected"] = affected
        places.append(index + first)
        first += len(names)
    arrays["groups"] = np.array(places, np.int64).reshape(len(places), len(table))
    if spec.errors == "run":
        rows_before = order(table.frame)
        arrays |= {"before": rows_before.before, "gap": rows_before.gap}
    return Data(arrays | columns_of(law, x, at), at, groups)


def joint_arrays(data: Mapping[str, Data]) -> Arrays:
    """Arrays of several domains, by the domain and their name; see `JointSpec`."""
    return {
        f"{domain}::{name}": array
        for domain, each in data.items()
        for name, array in each.arrays.items()
    }


def centring(rows: Ints | Floats) -> Floats:
    """Power of `CENTRING` by rows per group: 0 up to 8, 1 from 128, linear in the log between.

    Many rows determine the effect itself, so its standardised form depends strongly on the standard
    deviation. Few rows leave the standardised form close to its prior, which does not depend on it.
    """
    return np.clip(np.log2(np.maximum(rows, 1) / 8) / 4, 0, 1)
