"""Limits of a plan: on the loss of the target, and on the rise of the source's loss."""

from dataclasses import dataclass

import numpy as np

from bayeslaw.common.arrays import Floats
from bayeslaw.planning.domains import Domain

NAMES = "target", "forgetting"
"""What the limits of a plan are on, in their order."""


@dataclass(frozen=True)
class Limit:
    """An upper limit on the loss of a target, or on the rise of a source's loss over its baseline.

    A limit on the loss has no `baseline`, which is a number or of shape (pairs,). A rise is in nats
    per token or, if `relative`, a fraction of the baseline.
    """

    domain: Domain
    most: float
    baseline: float | Floats | None = None
    relative: bool = False

    @property
    def start(self) -> float | Floats:
        """The loss from which a rise is counted; 0 for a limit on the loss itself."""
        return 0.0 if self.baseline is None else self.baseline

    def text(self, value: float) -> str:
        """A value of what is limited; a loss goes without its unit."""
        if self.baseline is None:
            return f"{value:g}"
        if self.relative:
            return f"{100 * value:.3g} %"
        return f"{value:.3g} nats"

    def threshold(self, *, measured: bool) -> Floats:
        """The limit as one on the latent loss, nats per token, shape (pairs,)."""
        most = self.start + self.most
        if self.relative:
            most = (1 + self.most) * self.start
        # Noise moves the limit, once, in place of the losses at every node of a lattice.
        return np.asarray(most * np.exp(-measured * self.domain.deviation))

    def values(self, latent: Floats, *, measured: bool) -> Floats:
        """What is limited, in the unit of `most`, given latent losses of shape (..., pairs)."""
        loss = latent * np.exp(measured * self.domain.deviation)
        if self.relative:
            return np.asarray(loss / self.start - 1)
        return np.asarray(loss - self.start)
