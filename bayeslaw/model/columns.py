"""A law as weighted sums of known columns, for the Op `bayeslaw.model.kernels.LogLoss`.

The log of a term, and the addition to the log of the whole loss, are weighted sums of columns
where they are linear in their parameters (`Summand.linear`). Others enter the Op row by row, which
is slower.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bayeslaw.common.arrays import Floats, Ints, Tensor
from bayeslaw.common.errors import LawError
from bayeslaw.laws.knots import GivenKnots
from bayeslaw.laws.law import Law
from bayeslaw.laws.modifiers import Modifier
from bayeslaw.laws.parts import KAPPA
from bayeslaw.laws.terms import Array, Summand, Term, Values

type Part = Term | Modifier | None
"""Summand of the log of a term, or of the log of the whole loss."""


def columns_of(law: Law, x: Values, at: Values) -> dict[str, Floats | Ints]:
    """Data of the law's columns, by name.

    ``columns`` has shape (columns, rows). ``starts`` has shape (terms + 2,): the first column of
    each term and of the whole loss's modifier, and their number. ``<coefficient>:<name>`` are the
    values of `Summand.given`, and ``<steps>_knots`` the knots of a random walk.
    Where tokens may repeat, ``<steps>_lines`` are its `Knots.lines`.

    Raises
    ------
    LawError
        If the columns of a kind do not add up to its formula.
    """
    law = law.over(x, at)
    blocks: list[Floats] = [np.empty((0, len(x["tokens"])))]
    starts: list[int] = [0]
    others: dict[str, Floats] = {}
    for part in _parts(law):
        for summand in part.summands if part and _linear(law, part) else ():
            blocks.append(summand.columns(x, at))
            _check(law, summand, blocks[-1], x, at)
            others |= {f"{_name(part)}:{n}": value for n, value in summand.given(x).items()}
        starts.append(sum(map(len, blocks)))
    knots = {f"{walk.steps}_knots": walk.knots.positions for walk in law.walks if walk.knots}
    for walk in law.walks if law.repetition else ():
        knots |= {f"{walk.steps}_lines": walk.knots.lines} if walk.knots else {}
    for name, modifier in _outside(law).items():
        if _linear(law, modifier):
            others[name] = np.vstack([summand.columns(x, at) for summand in modifier.summands])
    return {"columns": np.vstack(blocks), "starts": np.array(starts, np.int64), **others, **knots}


def log_loss(
    law: Law, p: Values, x: Values, at: Values, data: Mapping[str, Tensor], effects: Tensor
) -> Tensor:
    """Log loss of each row by one Op, shape (rows,).

    Parameters
    ----------
    p, x, at : mapping
        As for `Law.loss`.
    data : mapping of str to PyTensor variable
        Of `columns_of`, and ``groups``, shape (levels, rows): places in `effects`.
    effects : PyTensor variable, shape (groups,)
        Random effects of all levels.
    """
    import pytensor.tensor as pt

    from bayeslaw.model.elementary import FUNCTIONS
    from bayeslaw.model.kernels import LogLoss

    if law.repetition:
        x = law.effective(p, x, FUNCTIONS)
        lines = {walk.steps: data[f"{walk.steps}_lines"] for walk in law.walks}
        law = law.with_knots({name: GivenKnots(given=each) for name, each in lines.items()})
    if law.departure:
        none = {"groups": pt.zeros((0, data["columns"].shape[1]), dtype="int64")}
        # The modifiers enter after the departure, below.
        inner = replace(law, departure=None, modifier=None, offset=None)
        core = FUNCTIONS.exp(log_loss(inner, p, x, at, {**data, **none}, pt.zeros(0)))
        added = {
            name: pt.concatenate(_weights(modifier, p, data, at)) @ data[name]
            if name in data
            else modifier.shape(p, x, at, FUNCTIONS)
            for name, modifier in _outside(law).items()
        }
        factor, start = law.departure.outer(p, x, at, FUNCTIONS, added.get("departing"))
        groups = data["groups"]
        of_rows = effects[groups.ravel()].reshape(groups.shape).sum(axis=0)
        return FUNCTIONS.log(core * factor + start) + added.get("whole", 0.0) + of_rows
    weights: list[Tensor] = [pt.zeros(0)]
    offsets: dict[int, Tensor] = {}
    for k, part in enumerate(_parts(law)):
        if not part:
            continue
        # The Op sums coupled terms to the power 1 / kappa.
        root = p[KAPPA] if _name(part) in law.coupled else 1.0
        if _linear(law, part):
            weights += [weight / root for weight in _weights(part, p, data, at)]
        else:
            offsets[k] = part.shape(p, x, at, FUNCTIONS) / root
    none = pt.zeros(data["columns"].shape[1])
    kappa = p[KAPPA] if law.coupled else pt.constant(1.0, dtype="float64")
    sizes = {name: p[name] for name in law.coefficients}
    sizes |= {name: sizes[name] ** (1 / kappa) for name in law.coupled}
    return LogLoss()(
        p["E"],
        pt.stack([sizes[term.coefficient] for term in _terms(law)]),
        pt.concatenate(weights),
        pt.stack([offsets.get(k, none) for k in range(len(law.terms) + 1)])
        if offsets
        else pt.zeros((0, 0)),
        effects,
        kappa,
        *(data[name] for name in ("columns", "starts", "groups")),
        pt.constant(len(law.coupled), dtype="int64"),
    )[0]


def _linear(law: Law, part: Term | Modifier) -> bool:
    """Whether the part is a sum of known columns: what repeated tokens are worth is not known."""
    return part.linear and not (law.repetition and "tokens" in part.covariates)


def _parts(law: Law) -> tuple[Part, ...]:
    """The terms, then the modifier of the whole loss, unless it modifies what a departure joins."""
    return *_terms(law), None if law.departure else law.whole


def _outside(law: Law) -> dict[str, Modifier]:
    """Modifiers that enter after the Op: of a law with a departure, that and the whole loss's."""
    if not law.departure:
        return {}
    modifiers = {"departing": law.departure.modifier, "whole": law.whole}
    return {name: modifier for name, modifier in modifiers.items() if modifier}


def _terms(law: Law) -> list[Term]:
    """The terms, the coupled ones first."""
    return sorted(law.terms, key=lambda term: term.coefficient not in law.coupled)


def _name(part: Part) -> str:
    """A term's coefficient, or ''."""
    return part.coefficient if isinstance(part, Term) else ""


def _weights(
    part: Term | Modifier, p: Values, data: Mapping[str, Tensor], at: Values
) -> list[Tensor]:
    """Weights of the columns of a term or modifier, as vectors."""
    import pytensor.tensor as pt

    prefix = f"{_name(part)}:"
    of_part = {n.removeprefix(prefix): v for n, v in data.items() if n.startswith(prefix)}
    every = [w for each in part.summands for w in each.weights(p, of_part, at, pt)]
    return [pt.atleast_1d(weight) for weight in every]


def _check(law: Law, part: Summand, columns: Floats, x: Values, at: Values) -> None:
    """Raise unless the columns give the formula, at one point."""
    names = part.parameters
    p: dict[str, Array] = {name: 0.3 + 0.1 * np.sin(i) for i, name in enumerate(names)}
    for walk in law.walks:
        count = len(walk.reach(x, at).positions)
        p[walk.steps] = 0.3 + 0.1 * np.sin(np.arange(count))
    weights, formula = part.weights(p, part.given(x), at, np), part.shape(p, x, at, np)
    total = np.concatenate([np.atleast_1d(weight) for weight in weights]) @ columns
    if not np.allclose(total, formula, rtol=1e-9, atol=1e-9):
        raise LawError(
            f"law {law.name}: the columns of {type(part).__name__} with {', '.join(names)} do not "
            "add up to its formula; mend its `columns` and `weights`, or set `linear` to False."
        )
