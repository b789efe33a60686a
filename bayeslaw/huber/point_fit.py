"""The paper's deterministic fit: the parameters with the least Huber loss of the log residuals."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.defaults import DELTA
from bayeslaw.common.errors import FitError, FitWarning
from bayeslaw.huber.multistart import agreement, polish_best
from bayeslaw.huber.objective import Problem
from bayeslaw.huber.starts import screened_starts
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.tables.table import LossTable

STARTS, POLISH = 64, 3
"""Defaults of the starts that are screened and polished, for each exponent of the law."""
FEWEST = 6
"""A third of the starts, but at least this many, is polished first; the rest if these disagree."""


@dataclass(frozen=True)
class PointFit:
    """A deterministic fit.

    Parameters
    ----------
    law : Law
    parameters : mapping
        Paper coordinates, with D in the law's token unit.
    at : mapping
        Logarithms of the covariates at the reference point.
    objective : float
        Mean Huber loss of the log residuals on the training table.
    delta : float
        Threshold of the Huber loss, in log loss.
    starts, polished : int
        Starts screened, and of those, polished to an optimum.
    agreeing : float
        Share of the polished starts that ended at this optimum (objectives within 1e-5).
    at_bounds : mapping of str to float
        Parameters that ended on a bound, and the bound; there the optimum is not interior.
    """

    law: Law
    parameters: Mapping[str, float]
    at: Mapping[str, float]
    objective: float
    delta: float
    starts: int
    polished: int
    agreeing: float
    at_bounds: Mapping[str, float] = field(default_factory=dict)
    table: LossTable | None = field(default=None, repr=False)

    @property
    def interior(self) -> bool:
        """Whether no parameter lies on a bound."""
        return not self.at_bounds

    def predict(self, table: LossTable | pd.DataFrame) -> Floats:
        """Predicted loss per row, nats per token."""
        frame = table.frame if isinstance(table, LossTable) else table
        loss: Floats = self.law.loss(self.parameters, self.law.covariates(frame))
        return loss

    def reference(self) -> dict[str, float]:
        """The parameters in reference coordinates."""
        q = self.law.to_reference(self.parameters, self.at)
        return {name: float(value) for name, value in q.items()}


def fit_huber(
    law: str | Law,
    table: LossTable,
    *,
    delta: float = DELTA,
    starts: int | None = None,
    polish: int | None = None,
    seed: int = 0,
) -> PointFit:
    """Fit a law as the paper does: minimise the Huber loss [1]_ of ``log L_hat - log L``.

    Starts are screened over the exponents, and the best are polished together by a projected
    Levenberg-Marquardt method with exact derivatives that solves for the linear parameters
    (floor and coefficients) again after every step, as in variable projection [2]_.

    Parameters
    ----------
    law : str, path or Law
    table : LossTable
    delta : float
        Huber threshold in log loss.
    starts : int, optional
        Points over the exponents to screen (a scrambled Sobol sequence); 64 an exponent.
    polish : int, optional
        How many of the best to polish to convergence; 3 an exponent. A third of them (6 at least)
        is polished first; if all of these agree, the rest is not. Where a law has more than three
        exponents, they are chosen after a few steps from several times as many.
    seed : int
        Of the Sobol sequence.

    Returns
    -------
    PointFit

    Raises
    ------
    TableError
        If the table lacks a column the law needs, or that column does not vary.
    FitError
        If `delta` is not positive, or no start gives a finite objective.

    Warns
    -----
    FitWarning
        If the optimum lies on a bound.

    References
    ----------
    .. [1] P. J. Huber (1964), Robust estimation of a location parameter, Annals of Mathematical
       Statistics 35, 73-101.
    .. [2] G. H. Golub and V. Pereyra (1973), The differentiation of pseudo-inverses and nonlinear
       least squares problems whose variables separate, SIAM Journal on Numerical Analysis 10,
       413-432.

    Examples
    --------
    Losses without noise return the parameters that they were computed from.

    >>> import bayeslaw as bl
    >>> rows = bl.grid(params=[1e8, 3e8, 1e9], tokens=[1e9, 3e9, 1e10, 3e10])
    >>> truth = {"E": 1.7, "A": 400.0, "alpha": 0.34, "B": 410.0, "beta": 0.28}
    >>> point = bl.fit_huber("chinchilla", bl.simulate("chinchilla", truth, rows, sigma=0.0))
    >>> {name: round(value, 3) for name, value in point.parameters.items()}
    {'E': 1.7, 'A': 400.0, 'alpha': 0.34, 'B': 410.0, 'beta': 0.28}
    >>> point.agreeing, point.interior
    (1.0, True)
    """
    law = load_law(law)
    if not delta > 0:
        raise FitError(f"delta must be positive, not {delta!r}.")
    law.check_fits(table, table.name)
    problem, exponents = Problem(law, table, delta), len(law.exponents)
    starts, polish = starts or STARTS * exponents, polish or POLISH * exponents
    points = screened_starts(problem, starts, seed)[: polish * max(1, exponents - 2)]
    few = min(polish, max(FEWEST, polish // 3))
    first, rest = np.split(points, [few * len(points) // polish])
    points, objective = polish_best(problem, first, few)
    if len(rest) and agreement(objective, len(table)) < 1:
        more = polish_best(problem, rest, polish - few)
        points, objective = (
            np.concatenate(pair) for pair in zip((points, objective), more, strict=True)
        )
    best = int(np.argmin(objective))
    if not np.isfinite(objective[best]):
        raise FitError(f"{table.name}: no start of {law.name} gave a finite objective.")
    at_bounds = problem.on_bound(points[best])
    if at_bounds:
        names = ", ".join(f"{name} = {value:g}" for name, value in at_bounds.items())
        warnings.warn(
            f"{law.name} on {table.name}: the optimum lies on a bound ({names}).",
            FitWarning,
            stacklevel=2,
        )
    return PointFit(
        law=law,
        parameters=problem.paper(points[best]),
        at=problem.at,
        objective=float(objective[best]) / len(table),
        delta=delta,
        starts=starts,
        polished=len(points),
        agreeing=agreement(objective, len(table)),
        at_bounds=at_bounds,
        table=table,
    )
