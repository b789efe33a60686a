"""What a user accepts of a fit: that it did not converge, or rows far beyond its own."""

from dataclasses import dataclass, field, replace
from typing import Self

from bayeslaw.common.errors import on_command_line

OPTIONS = {"unconverged": "pass --allow-unconverged", "beyond_evidence": "add --beyond-evidence"}
"""How users of the command line accept it."""


def accept(what: str) -> str:
    """How a reader accepts ``unconverged`` or ``beyond_evidence``, in a message."""
    return OPTIONS[what] if on_command_line() else f"use fit.accepted({what}=True)"


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """A fit with what is accepted of it; a saved fit is loaded without."""

    accepts_unconverged: bool = field(default=False, repr=False)
    accepts_beyond: bool = field(default=False, repr=False)

    def accepted(self, *, unconverged: bool = False, beyond_evidence: bool = False) -> Self:
        """The same fit, to be used in spite of what is accepted; see `NotConverged`.

        Parameters
        ----------
        unconverged : bool
            Accept that the fit failed its convergence check. All results still say so.
        beyond_evidence : bool
            Accept rows twice as far from the training rows as bands were ever compared with
            losses: forecasts and derived numbers do not warn of them, and `bayeslaw.check` and
            `bayeslaw.plan` do not refuse them.

        Returns
        -------
        Posterior, Pool or PointFit
            What was accepted before stays accepted.
        """
        return replace(
            self,
            accepts_unconverged=unconverged or self.accepts_unconverged,
            accepts_beyond=beyond_evidence or self.accepts_beyond,
        )
