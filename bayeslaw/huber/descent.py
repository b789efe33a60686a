"""Local descent of the Huber objective from many points at once.

Each iteration takes a Levenberg-Marquardt step [1]_ [2]_ of all parameters within their bounds,
then solves for the linear parameters again with the exponents fixed, as in variable projection
[3]_. Near the optimum, steps may use second derivatives of the objective instead of the
Gauss-Newton matrix, which converges slowly where residuals are large.

References
----------
.. [1] K. Levenberg (1944), A method for the solution of certain non-linear problems in least
   squares, Quarterly of Applied Mathematics 2, 164-168.
.. [2] D. W. Marquardt (1963), An algorithm for least-squares estimation of nonlinear parameters,
   Journal of the Society for Industrial and Applied Mathematics 11, 431-441.
.. [3] G. H. Golub and V. Pereyra (1973), The differentiation of pseudo-inverses and nonlinear least
   squares problems whose variables separate, SIAM Journal on Numerical Analysis 10, 413-432.
"""

import math

import numpy as np

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.huber.bounds import bounded_steps
from bayeslaw.huber.objective import Objective

DIFFERENCE = 1e-6
"""Step of the finite differences of the gradient that give second derivatives."""


def polish(
    problem: Objective,
    points: Floats,
    *,
    second_derivatives: bool = False,
    max_steps: int = 150,
    patience: int = 12,
    tol: float = 1e-13,
) -> tuple[Floats, Floats, Bools]:
    """Descend from all points at once.

    A descent has converged when `patience` steps in a row, or one step with little damping, gain
    less than `tol` of the objective.

    Parameters
    ----------
    problem : Objective
    points : array, shape (points, parameters)
    second_derivatives : bool
        Use the Hessian of the objective instead of the Gauss-Newton matrix.
    max_steps, patience : int
    tol : float
        Relative gain.

    Returns
    -------
    points : array, shape (points, parameters)
    objective : array, shape (points,)
    moving : array of bool, shape (points,)
        Which have not converged.
    """
    points = np.clip(points, problem.low, problem.high)
    residuals = problem.residuals(points)
    objective = problem.objective(residuals)
    damping = np.full(len(points), 1e-2)
    idle = np.where(np.isfinite(objective), 0, patience)
    for _ in range(max_steps):
        active = np.flatnonzero(idle < patience)
        if not len(active):
            break
        trial, trial_residuals = _step(
            problem, points[active], residuals[active], damping[active], second_derivatives
        )
        reached = problem.objective(trial_residuals)
        gain = objective[active] - reached
        better = gain > 0
        accepted = active[better]
        # A step with little damping that changes nothing is at the optimum already.
        converged = (np.abs(gain) <= tol * objective[active]) & (damping[active] <= 1e-2)
        idle[active] += np.where(converged, patience, 1)
        idle[accepted[gain[better] > tol * objective[accepted]]] = 0
        points[accepted], residuals[accepted] = trial[better], trial_residuals[better]
        objective[accepted] = reached[better]
        damping[active] *= np.where(better, 0.25, 6.0)
        np.clip(damping, 1e-14, 1e10, out=damping)
    return points, objective, idle < patience


def refit_linear(problem: Objective, points: Floats) -> tuple[Floats, Floats]:
    """Solve for the linear parameters again, exponents fixed; one reweighted Gauss-Newton step.

    Along the narrow curved valleys of these laws the optimal sizes are exponential functions of the
    exponents, so a straight step leaves the valley. This step leads back into it. Without it a
    descent takes up to ten times as many steps.

    Returns
    -------
    points : array, shape (points, parameters)
    residuals : array, shape (points, rows)
    """
    linear = problem.linear
    design, unit = problem.design(points), np.eye(linear)
    given = problem.given(points)
    loss = points[:, None, :linear] @ design + given
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        residuals = np.log(loss) - problem.log_loss
        weights = problem.weights(residuals)
        jacobian = design / loss
        matrix = (jacobian * weights) @ jacobian.mT
        gradient = (jacobian @ (weights * residuals).mT)[..., 0]
    finite = np.isfinite(matrix).all((1, 2)) & np.isfinite(gradient).all(1)
    finite &= matrix.any((1, 2))  # where nothing has departed from the start, sizes do not matter
    gradient[~finite], matrix[~finite] = 0, unit
    scale = np.diagonal(matrix, axis1=-2, axis2=-1)
    scale = np.maximum(scale, 1e-12 * scale.max(-1, keepdims=True))
    matrix = matrix + unit * (1e-10 * scale)[:, None]
    low, high = problem.low[:linear], problem.high[:linear]
    sizes = points[:, :linear]
    sizes = sizes + bounded_steps(matrix, gradient, low - sizes, high - sizes)
    sizes = np.clip(sizes, low, high)
    refitted = np.concatenate([sizes, points[:, linear:]], axis=1)
    if problem.law.coupled:  # the loss is not linear in the sizes: the step may lead too far
        there = problem.residuals(refitted)
        here = residuals[:, 0]
        better = (problem.objective(there) < problem.objective(here))[:, None]
        return np.where(better, refitted, points), np.where(better, there, here)
    with np.errstate(divide="ignore", invalid="ignore"):
        residuals = np.log((sizes[:, None] @ design + given)[:, 0]) - problem.log_loss
    return refitted, residuals


def _step(
    problem: Objective, points: Floats, residuals: Floats, damping: Floats, second_derivatives: bool
) -> tuple[Floats, Floats]:
    """Points and residuals after a step; `damping` scales the diagonal of ``J' W J``."""
    gradient, jacobian, weights = problem.gradient(points, residuals)
    scale = (jacobian**2 @ weights[..., None])[..., 0]
    scale = np.maximum(scale, 1e-12 * scale.max(-1, keepdims=True))
    if second_derivatives:
        at_low, at_high = points == problem.low, points == problem.high
        fixed = at_low & (gradient > 0) | at_high & (gradient < 0)
        matrix = _hessian(problem, points, scale, fixed)
    else:
        # Beyond the threshold the Huber loss is linear in the residual and has no curvature.
        matrix = (jacobian * (weights == 1)[:, None]) @ jacobian.mT
    matrix += np.eye(points.shape[1]) * ((damping[:, None] + 1e-15) * scale)[:, None]
    moved = points + bounded_steps(matrix, gradient, problem.low - points, problem.high - points)
    return refit_linear(problem, np.clip(moved, problem.low, problem.high))


def _hessian(problem: Objective, points: Floats, scale: Floats, fixed: Bools) -> Floats:
    """Second derivatives of the objective with their eigenvalues made positive.

    Differences and eigenvalues are taken in units of ``1 / sqrt(scale)``, because parameters differ
    in scale by many orders of magnitude: the size of a term with an exponent of 20 may be 1e-9.
    Rows and columns of parameters that are `fixed` at a bound are set to zero first: curvature
    along them may be negative, and must not change the curvature along the others.
    """
    unit = np.sqrt(scale)
    step = DIFFERENCE * np.minimum(1, math.sqrt(len(problem.log_loss)) / unit)
    step = np.where(points + step > problem.high, -step, step)
    ends = points[:, None] + step[..., None] * np.eye(len(problem.names))
    ends = np.concatenate([points, ends.reshape(-1, len(problem.names))])
    gradients = problem.gradient(ends, problem.residuals(ends))[0]
    here, there = gradients[: len(points), None], gradients[len(points) :]
    matrix = (there.reshape(*step.shape, -1) - here) / step[..., None]
    unit = unit[:, None] * unit[..., None]
    matrix = np.nan_to_num(0.5 * (matrix + matrix.mT) / unit)
    matrix *= ~(fixed[:, None] | fixed[..., None])
    eigenvalues, vectors = np.linalg.eigh(matrix)
    return unit * ((vectors * np.abs(eigenvalues)[:, None]) @ vectors.mT)
