"""The formulas of `bayeslaw.model.kernels` in NumPy."""

from itertools import pairwise

import numpy as np
from scipy.special import digamma, gammaln

from bayeslaw.common.arrays import Floats, Ints


def log_loss(
    floor: Floats,
    sizes: Floats,
    weights: Floats,
    offsets: Floats,
    effects: Floats,
    kappa: Floats,
    columns: Floats,
    starts: Ints,
    groups: Ints,
    coupled: Ints,
) -> tuple[Floats, ...]:
    """Outputs of `LogLoss`."""
    u = _exponents(weights, offsets, columns, starts)
    ratios, by_kappa = np.exp(u[:-1]), np.empty(0)
    loss = floor + sizes[coupled:] @ ratios[coupled:]
    if coupled:
        total = sizes[:coupled] @ ratios[:coupled]
        joined = total**kappa
        loss = loss + joined
        ratios[:coupled] *= kappa * joined / total
        by_kappa = joined * np.log(total) / loss
    mu = np.log(loss) + u[-1] + effects[groups].sum(axis=0)
    return mu, ratios / loss, 1 / loss, by_kappa


def log_loss_gradient(
    by: Floats,
    sizes: Floats,
    offsets: Floats,
    effects: Floats,
    columns: Floats,
    starts: Ints,
    groups: Ints,
    ratios: Floats,
    inverse: Floats,
    by_kappa: Floats,
) -> tuple[Floats, ...]:
    """Outputs of `LogLossGradient`."""
    exponents = np.vstack([sizes[:, None] * ratios, np.ones_like(inverse)]) * by
    spans = zip(exponents, starts[:-1], starts[1:], strict=True)
    weights = [columns[a:b] @ row for row, a, b in spans]
    by_groups = np.zeros_like(effects)
    for level in groups:
        np.add.at(by_groups, level, by)
    by_offsets = exponents if len(offsets) else offsets
    return (
        np.asarray(by @ inverse),
        ratios @ by,
        np.concatenate(weights),
        by_offsets,
        by_groups,
        np.asarray(by @ by_kappa if len(by_kappa) else 0.0),
    )


def student_t_log_density(
    residual: Floats, scale: Floats, dof: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Outputs of `StudentTLogDensity`."""
    rows, square = len(residual), residual**2
    total = dof * scale**2 + square
    one = gammaln((dof + 1) / 2) - gammaln(dof / 2) - 0.5 * np.log(dof * np.pi) - np.log(scale)
    logs, share = np.sum(np.log1p(square / (dof * scale**2))), np.sum(square / total)
    by_one = 0.5 * (digamma((dof + 1) / 2) - digamma(dof / 2) - 1 / dof)
    return (
        np.asarray(rows * one - (dof + 1) / 2 * logs),
        -(dof + 1) * residual / total,
        np.asarray(((dof + 1) * share - rows) / scale),
        np.asarray(rows * by_one - 0.5 * logs + (dof + 1) / (2 * dof) * share),
    )


def _exponents(weights: Floats, offsets: Floats, columns: Floats, starts: Ints) -> Floats:
    u = np.stack([weights[a:b] @ columns[a:b] for a, b in pairwise(starts)])
    return u + offsets if len(offsets) else u
