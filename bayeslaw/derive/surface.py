"""Latent loss of each draw of a posterior at any model size and number of tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import LawError
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.law import Law
from bayeslaw.planning.feasible_budgets import LARGE
from bayeslaw.tables.table import grid

type Range = tuple[float, float]


@dataclass(frozen=True)
class Surface:
    """Loss as a function of log N and log D, for many draws.

    Parameters
    ----------
    law : Law
        With its discrepancy, extended to the range where the surface is used.
    p : mapping of str to array, shape (draws, 1) or (draws, 1, knots)
        Arguments of `Law.loss`, stated at the point `at`.
    at : mapping of str to float
    fixed : mapping of str to float
        Logarithms of the other covariates.
    """

    law: Law
    p: Mapping[str, Floats]
    at: Mapping[str, float]
    fixed: Mapping[str, float]

    @property
    def draws(self) -> int:
        """Number of draws."""
        return len(self.p["E"])

    def take(self, draws: Ints | slice) -> "Surface":
        """The surface of some of the draws."""
        return replace(self, p={name: value[draws] for name, value in self.p.items()})

    def knots(self, along: str, over: str = "") -> Floats:
        """Log N ("params"), log D ("tokens") or log(D/N) where exponents change, shape (knots,).

        The last is that of ``along="tokens", over="params"``.
        """
        places = [
            walk.knots.positions + self.at[along] - (self.at[over] if over else 0.0)
            for walk in self.law.walks
            if (walk.along, walk.over) == (along, over) and walk.knots is not None
        ]
        unit = np.log(self.law.token_unit) if along == "tokens" else 0.0
        return np.asarray(np.unique(np.concatenate([*places, []])) + unit)

    def loss(self, log_params: Floats, log_tokens: Floats) -> Floats:
        """Loss in nats per token, shape (draws, points).

        Parameters
        ----------
        log_params, log_tokens : array, shape (points,) or (draws, points)
        """
        n, d = np.broadcast_arrays(log_params, log_tokens)
        x = {name: np.full(n.shape, value) for name, value in self.fixed.items()}
        x |= {"params": n, "tokens": d - np.log(self.law.token_unit)}
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            loss = self.law.loss(self.p, x, self.at)
        shape = (self.draws, n.shape[-1])
        return np.asarray(np.fmin(np.broadcast_to(loss, shape), LARGE))


def surface_of(
    posterior: Posterior,
    params: Range,
    tokens: Range,
    *,
    replay: float | None = None,
    ptpp: float | None = None,
) -> Surface:
    """Return the surface of a posterior, with its discrepancy extended to a range.

    Parameters
    ----------
    posterior : Posterior
    params, tokens : tuple of float
        Least and greatest N and D.
    replay, ptpp : float, optional
        Replay ratio, and pre-training tokens per parameter; needed if the law depends on them.

    Raises
    ------
    LawError
        If a value is lacking, the law does not depend on it, or it starts from a base's loss.
    """
    if posterior.law.departure:
        raise LawError(
            f"law {posterior.law.name} starts from the loss of a base, of one N and P; derive "
            "from the fit of a law without one, such as form1n."
        )
    others = {"replay": replay, "ptpp": ptpp}
    given = {name: value for name, value in others.items() if value is not None}
    columns = posterior.law.columns
    for name in others:
        if name in columns and name not in given:
            raise LawError(f"law {posterior.law.name} depends on {name}; give it, as {name}=...")
        if name in given and name not in columns:
            raise LawError(f"law {posterior.law.name} does not depend on {name}; leave it out.")
    frame = grid(params=params, tokens=tokens, **given)
    law, q = posterior.extended(frame)
    x = law.covariates(frame)
    fixed = {name: float(x[name][0]) for name in x if name not in ("params", "tokens")}
    return Surface(law, law.sizes(q, posterior.at), posterior.at, fixed)
