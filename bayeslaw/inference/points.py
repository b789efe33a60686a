"""The paper's deterministic fit: the parameters with the least Huber loss of the log residuals."""

import math
import warnings

import numpy as np

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.defaults import DELTA
from bayeslaw.common.errors import FitError, FitWarning, unknown
from bayeslaw.common.progress import step
from bayeslaw.design.design import Design
from bayeslaw.huber.descent import polish_best, solutions
from bayeslaw.huber.doubts import doubt, too_few
from bayeslaw.huber.objective import Bounds, Objective
from bayeslaw.huber.point_fit import SAME_FORECAST, PointFit
from bayeslaw.huber.starts import screened_starts
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.model.training import for_table
from bayeslaw.tables.covariates import FLOPS
from bayeslaw.tables.table import LossTable

STARTS_PER_EXPONENT = 64
POLISHED_PER_EXPONENT = 3
"""Defaults of the starts that are screened and polished, for each exponent of the law."""
FEWEST_POLISHED = 6
"""Least number of starts polished first; otherwise a third. The rest only if these differ."""
FACTOR_BEYOND = 10
"""Factor beyond the training rows at which forecasts of starts that agree are compared."""


@step("Huber fit")
def fit_huber(
    law: str | Law,
    table: LossTable,
    *,
    delta: float = DELTA,
    bounds: Bounds = "paper",
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
    bounds : {"paper", "prior"}
        Bounds of the parameters. ``"paper"``: as published. ``"prior"``: the narrower bounds within
        which the priors of `bayeslaw.fit` lie. They differ in Forms 2 and 3, which the paper prints
        with lambda > 0; the priors have lambda in (0, 1). Exponents are never searched beyond 20.
    starts : int, optional
        Points over the exponents to screen (a scrambled Sobol sequence); 64 an exponent.
    polish : int, optional
        How many of the best to polish to convergence; 3 an exponent. A third of them (6 at least)
        is polished first; if all of these agree, also in their forecasts, the rest is not. Where a
        law has more than three exponents, they are chosen after a few steps from several times as
        many.
    seed : int
        Of the Sobol sequence.

    Returns
    -------
    PointFit

    Raises
    ------
    TableError
        If the table lacks a column the law needs, or that column does not vary; if losses of at
        most 1 do not fall along any, as accuracies.
    FitError
        If `delta` is not positive, `bounds` is unknown, there are fewer rows than parameters or
        no starts, or none gives a finite objective.

    Warns
    -----
    FitWarning
        If the optimum lies on a bound.
    TableWarning
        If rows lie far from the fit, or the columns seem to be in other units or swapped.

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
    law = for_table(load_law(law), table)
    if not delta > 0:
        raise FitError(f"delta must be positive, not {delta!r}.")
    if bounds not in ("paper", "prior"):
        raise FitError(unknown("bounds", bounds, ("paper", "prior")))
    Design(law, table).require_variation()
    if len(table) < len(law.parameters):
        least = f"{len(law.parameters)}, one for each parameter"
        raise FitError(too_few(law, table, least))
    exponents = len(law.exponents)
    objective = Objective(law, table, delta, bounds)
    starts = STARTS_PER_EXPONENT * exponents if starts is None else starts
    polish = min(
        POLISHED_PER_EXPONENT * exponents if polish is None else polish, starts
    )
    if polish < 1:
        raise FitError("starts and polish must be 1 or more.")
    points = screened_starts(objective, starts, seed)[: polish * max(1, exponents - 2)]
    few = min(polish, max(FEWEST_POLISHED, polish // 3))
    first, rest = np.split(points, [few * len(points) // polish])
    found = points, values, ends = polish_best(objective, first, few)
    best = int(np.argmin(values))
    agreed = objective.agree(values).all()
    if len(rest) and not (agreed and _unique(objective, points[best], ends)):
        more = polish_best(objective, rest, polish - few)
        points, values, ends = map(np.concatenate, zip(found, more, strict=True))
        # Starts of the rest that only agree are other solutions, not better ones.
        if not (agreed and objective.agree(values)[best]):
            best = int(np.argmin(values))
    if not np.isfinite(values[best]):
        raise FitError(f"{table.name}: no start of {law.name} gave a finite objective.")
    doubt(objective, points[best], table)
    agreeing = objective.agree(values)
    same = solutions(objective, points[best], ends[agreeing])
    return fit_at(objective, same, starts, agreeing, "the optimum lies on a bound ({})")


def fit_at(
    objective: Objective,
    points: Floats,
    starts: int,
    agreeing: Bools,
    says: str,
    rtol: float = 1e-9,
) -> PointFit:
    """The fit at the first of some points of one value; a warning `says` if it is on a bound."""
    law = objective.law
    table = objective.table
    at_bounds = objective.on_bound(points[0], rtol)
    if at_bounds:
        names = ", ".join(f"{name} = {value:g}" for name, value in at_bounds.items())
        words = f"{law.name} on {table.name}: {says.format(names)}."
        warnings.warn(words, FitWarning, stacklevel=4)
    solutions = [objective.paper(point) for point in points]
    return PointFit(
        law=law,
        parameters=solutions[0],
        at=objective.at,
        objective=float(objective.value(objective.residuals(points[:1]))[0])
        / len(table),
        delta=objective.delta,
        starts=starts,
        polished=len(agreeing),
        agreeing=float(agreeing.mean()),
        at_bounds=at_bounds,
        table=table,
        bounds=objective.bounds,
        solutions=solutions,
    )


def _unique(objective: Objective, best: Floats, ends: Floats) -> bool:
    """Whether starts that agree also forecast the same, `FACTOR_BEYOND` times farther."""
    points = solutions(objective, best, ends)
    x = objective.x
    named = {name: points[:, i, None] for i, name in enumerate(objective.names)}
    amounts = ("params", "tokens", "ptpp", FLOPS)
    columns = [c for c in amounts if c in objective.law.columns]
    far = [{**x, c: x[c] + math.log(FACTOR_BEYOND)} for c in columns]
    logs = [np.log(objective.law.loss(named, rows, objective.at)) for rows in far]
    return float(np.ptp(logs, axis=1).max()) < SAME_FORECAST
