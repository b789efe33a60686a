"""The table of a law's parameters, made from its terms, steps and deviations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bayeslaw.laws.deviations import Deviation
from bayeslaw.laws.priors import FLOOR, HALF, LINE, NOISE, UNIT, Prior
from bayeslaw.laws.step import Step
from bayeslaw.laws.terms import Term


@dataclass(frozen=True)
class Parameter:
    """A row of a law's table of parameters.

    The range of a parameter is `bounds`; in `published` it is as printed, where that differs. The
    prior of E is of the floor in nats, or of its share of the loss at the reference point: `FLOOR`.
    """

    name: str  # paper symbol
    local: str  # its name in reference coordinates, of which the prior is
    along: tuple[str, ...] = ()  # covariates it acts along
    prior: Prior | None = None
    prior_name: str = ""  # what the prior is of, if not of `local`
    bounds: tuple[float, float] = HALF
    of_local: tuple[float, float] | None = None  # range of `local`, if that is another
    published: tuple[float, float] | None = None
    typical: float = 1.0  # typical size


def table_of(
    terms: Sequence[Term],
    steps: Sequence[Step],
    deviations: Sequence[Deviation],
    given: Mapping[str, Parameter],
) -> dict[str, Parameter]:
    """Rows by paper symbol, in the order of the formula; those `given` say prior and bounds."""
    table: dict[str, Parameter] = {}
    for row in _rows(terms, steps, deviations):
        # Several terms or deviations may have a parameter in common.
        before = table.get(row.name)
        if before is None:
            before = replace(given.get(row.name, row), along=())
        along = tuple(dict.fromkeys((*before.along, *row.along)))
        table[row.name] = replace(before, local=row.local, along=along)
    return table


def _rows(
    terms: Sequence[Term], steps: Sequence[Step], deviations: Sequence[Deviation]
) -> Iterator[Parameter]:
    yield Parameter("E", "L_ref")
    for term in terms:
        along = term.covariates[:1]
        yield Parameter(term.coefficient, term.slope, along, of_local=HALF)
        for name, along in term.covariates_of.items():
            yield Parameter(name, term.local if name == term.leading else name, along)
    for step in steps:
        for name, local in zip(step.parameters, step.local, strict=True):
            prior = step.priors.get(local)
            yield Parameter(
                name,
                local,
                step.covariates_of[name],
                prior,
                bounds=prior.support if prior else HALF,
                of_local=LINE if local != name else None,
                typical=step.typical.get(name, 1.0),
            )
    for deviation in deviations:
        for name in deviation.parameters:
            yield Parameter(name, name, deviation.covariates_of[name])


def prior_bounds(table: Mapping[str, Parameter]) -> dict[str, tuple[float, float]]:
    """Range of each quantity of a law that has a prior, and of the noise."""
    bounds = {row.local: row.of_local or row.bounds for row in table.values()}
    floor = {"E": bounds.pop("L_ref"), FLOOR: UNIT}
    return floor | bounds | dict.fromkeys(NOISE, HALF)
