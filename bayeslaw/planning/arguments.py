"""Arguments of a plan, checked: its limits, its confidence, the kind of losses, and the fits."""

import math
from collections.abc import Mapping

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import BayeslawError, argument, unknown
from bayeslaw.inference.forecast import KINDS
from bayeslaw.inference.pools import Fit, check_roles
from bayeslaw.laws.law import Law
from bayeslaw.laws.steps import Repetition


def check_limits(
    limits: Mapping[str, float | None],
    atpp: float | None,
    confidence: float,
    *,
    relative: bool,
) -> None:
    """Raise `BayeslawError` unless limits or a budget are given, and all are in range."""
    for name, example in (("max_loss", 1.8), ("max_forgetting", 0.02)):
        if atpp is None and limits[name] is None:
            raise BayeslawError(
                f"a plan needs {name} ({argument(name, example)}), or a fixed budget "
                f"({argument('atpp', 8)})."
            )
    check_positive(atpp=atpp, max_loss=limits["max_loss"])
    rise = limits["max_forgetting"]
    if rise is not None:
        _check_rise(rise, relative=relative)
    check_confidence(confidence)


def _check_rise(rise: float, *, relative: bool) -> None:
    if not -1 < rise < math.inf:
        raise BayeslawError(f"max_forgetting={rise:g}: 0.02 allows a rise of 2 %.")
    if relative and rise > 1:
        raise BayeslawError(
            f"max_forgetting={rise:g}: give a fraction, not a percentage; {rise / 100:g} "
            f"allows a rise of {rise:g} %. Limits in nats need relative=False (--absolute)."
        )


def check_confidence(confidence: float) -> None:
    """Raise `BayeslawError` unless it is a probability between 0 and 1."""
    if not 0 < confidence < 1:
        raise BayeslawError(
            f"confidence={confidence:g} is not between 0 and 1; 0.9 is 90 %."
        )


def check_positive(**numbers: float | None) -> None:
    """Raise `BayeslawError` unless all numbers that are not None are positive and finite."""
    for name, value in numbers.items():
        if value is None or 0 < value < math.inf:
            continue
        of_tokens = " of tokens" if name == "unique_tokens" else ""
        raise BayeslawError(f"{name}={value:g}: give a positive number{of_tokens}.")


def are_measured(losses: str) -> bool:
    """Whether losses of a kind are measured ones; `BayeslawError` for a kind that is not there."""
    if losses not in KINDS:
        raise BayeslawError(unknown("kind of losses", losses, KINDS))
    return losses == "predictive"


def check_fits(target: Fit, source: Fit, ratios: Floats, *, repeated: bool) -> None:
    """Raise `BayeslawError` unless the fits are of two domains, and their laws fit the plan.

    Parameters
    ----------
    target, source : Posterior, Pool or PointFit
    ratios : array
        Replay ratios of the plan; a law without replay allows only its own.
    repeated : bool
        Whether new data repeat in the plan; the target's laws must say what that is worth.
    """
    for law in target.laws:
        if repeated and not law.step(Repetition):
            raise BayeslawError(
                f"unique_tokens: {law.name} was fitted to a table without the column "
                "unique_tokens, so it does not know what repeated tokens are worth; add "
                "the column and fit again."
            )
    if _same_draws(target, source):
        raise BayeslawError(
            "target and source are one posterior; give that of the domain adapted to, and "
            "that of the domain that may be forgotten."
        )
    check_roles(target, source)
    for law in (*target.laws, *source.laws):
        _check_replay(law, ratios)


def _same_draws(one: Fit, other: Fit) -> bool:
    """Whether two fits have equal draws.

    A file that is loaded twice gives two objects with the same draws.
    """
    draws_of_one = [member.draws for member in one.members.values()]
    draws_of_other = [member.draws for member in other.members.values()]
    if not draws_of_one or len(draws_of_one) != len(draws_of_other):
        return False
    pairs = zip(draws_of_one, draws_of_other, strict=True)
    return all(draws.equals(same) for draws, same in pairs)


def _check_replay(law: Law, ratios: Floats) -> None:
    """Raise `BayeslawError` for ratios other than the only one of a law without replay."""
    only = law.held.get("replay", 1.0)
    if "replay" in law.columns or (ratios == only).all():
        return
    if only == 1:
        why = "does not know replay, so no ratio can be planned: fit one that does, such as form1n"
    else:
        why = f"was fitted to replay {only:g} alone"
    raise BayeslawError(
        f"the law {law.name} {why}, or fix replay=[{only:g}] (--replay {only:g})."
    )
