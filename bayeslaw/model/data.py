"""A table as the arrays that the PyMC model of a specification is given."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bayeslaw.common.arrays import Strings
from bayeslaw.model import random_effects
from bayeslaw.model.errors import order
from bayeslaw.model.spec import Spec
from bayeslaw.tables.table import LossTable

type Arrays = Mapping[str, npt.NDArray[Any]]
"""Arrays that a model is given, by name."""


@dataclass(frozen=True)
class Data:
    """A table as a model's data.

    Parameters
    ----------
    arrays : mapping of str to array
        ``x`` has shape (covariates, rows) and ``at`` (covariates,), in the order of
        `Law.covariate_names`. ``observed`` are log losses. The rest are groups of rows, the row
        before each row in its run, and the knots of random walks.
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
    for level in spec.effects:
        of_rows = random_effects.labels(table.frame, level)
        names = groups.setdefault(level, np.unique(of_rows))
        arrays |= {f"{level}_index": np.searchsorted(names, of_rows)}
        arrays |= {f"{level}_affected": random_effects.level(level).affected(names)}
    if spec.errors == "run":
        rows_before = order(table.frame)
        arrays |= {"before": rows_before.before, "gap": rows_before.gap}
    for walk in law.over(x, at).walks:
        assert walk.knots
        arrays[f"{walk.steps}_knots"] = walk.knots.positions
    return Data(arrays, at, groups)


def joint_arrays(data: Mapping[str, Data]) -> Arrays:
    """Arrays of several domains, by the domain and their name; see `JointSpec`."""
    return {
        f"{domain}::{name}": array
        for domain, each in data.items()
        for name, array in each.arrays.items()
    }
