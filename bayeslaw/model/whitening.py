"""Weights and effects of groups, whitened: the algebra forward; the tape derives its adjoint.

Deviations and effects are linear in standard normal weights. Given the law's parameters and the
scales a of the weights, these are nearly normal with precision ``1 + a F w F' a``: F are the
columns, (weights, rows), and w is the information of a row. The sampler sees eps in

    b = precision^-1 a F w r + W' eps,    W precision W' = 1,    log Jacobian = log det W,

with r the measured log loss less that of the law. Random effects of one level come first: each row
is in one group, so given the weights their precision is diagonal. The density is exact whatever
matrix is used; the nearer it is, the more independent is eps of the rest.

Where errors are correlated, F and the correlation are taken at one point, so that products of F
with itself are constants (`Kept`): such tables have many rows.
"""

from typing import NamedTuple

import numpy as np

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.laws.tape import FUNCTIONS as F
from bayeslaw.laws.tape import Node, diagonal, whiten
from bayeslaw.model.noise import innovation_scale

MOST_PRECISE = 1e16
"""Precision in which that of a standard normal is lost: the density is zero beyond it."""


class Groups(NamedTuple):
    """Effects of the groups of one level, and products of their columns.

    A group's column is 1 in its rows and 0 elsewhere. Products are with the other columns, with
    itself, and with r.
    """

    tau: Node
    eps: Node  # (1, groups)
    cross: Node  # (weights, groups)
    norms: Node  # (1, groups)
    with_r: Node  # (1, groups)


def whitened(
    gram: Node, with_r: Node, a: Node, w: Node, eps: Node, groups: Groups | None
) -> tuple[Node, Node | None, Node]:
    """Weights, effects of groups, and the log of their prior density times the Jacobian.

    `gram` and `with_r` are products of the columns without their scales.
    """
    one = a.tape.constant(np.eye(a.shape[1]))
    precision = one + gram * (w * a.T * a)
    lead = w * a * with_r
    # 0, or minus infinity.
    log = F.log(w < MOST_PRECISE) + F.sum(F.log(diagonal(precision) < MOST_PRECISE))
    if groups:
        sd = 1.0 / F.sqrt(
            1.0 + w * groups.tau * groups.tau * groups.norms
        )  # given the weights
        scale = w * groups.tau * sd
        common = groups.cross * (a.T * scale)
        seen = groups.with_r * scale
        precision = precision - common @ common.T
        lead = lead - seen @ common.T
    m = whiten(precision)
    b = (lead @ m.T + eps) @ m
    log = log + F.sum(F.log(diagonal(m)) - 0.5 * b * b)
    if not groups:
        return b, None, log
    effects = sd * (seen - b @ common + groups.eps)
    return b, effects, log + F.sum(F.log(sd) - 0.5 * effects * effects)


class Kept[T](NamedTuple):
    """Columns at a point, with correlated errors taken out, and products of them.

    S is the correlation of errors.
    """

    columns: T  # ``F S^-1``, (weights, rows)
    gram: T  # ``F S^-1 F'``
    mean: T  # what makes of a share its mean over a column, relative to the point
    level: T  # of the column of each row's group, the value in this row, (1, rows)
    norms: T  # products of groups' columns with themselves, (1, groups)
    cross: T  # and with the other columns, (weights, groups)


class Design(NamedTuple):
    """Columns of weights, and the rows' groups, where errors are correlated along runs."""

    columns: Floats  # (weights, rows)
    of_block: Ints  # the block of each weight
    before: Ints  # the row before each row in its run
    group: Ints  # of each row, at the level whose effects are whitened apart
    groups: int

    def kept(self, shares: Floats, rho: Floats) -> Kept[Floats]:
        """What is kept at a point of the blocks' shares, (blocks, rows), and correlations."""
        shares = shares[self.of_block]
        every = np.vstack([self.columns * shares, np.ones(self.columns.shape[1])])
        squares = (every[:-1] ** 2).sum(1, keepdims=True)
        mean = every[:-1] * self.columns / np.maximum(squares, 1e-300)
        scale = innovation_scale(1.0, rho)
        seen = (every - rho * every[:, self.before]) / scale
        fixed = seen / scale
        np.subtract.at(fixed.T, self.before, (seen / scale * rho).T.copy())
        products = np.zeros((self.groups, len(every)))
        if self.groups:
            np.add.at(products, self.group, (seen * seen[-1]).T)
        norms = products[:, -1:].T
        cross = products[:, :-1].T
        return Kept(fixed[:-1], seen[:-1] @ seen[:-1].T, mean, fixed[-1:], norms, cross)
