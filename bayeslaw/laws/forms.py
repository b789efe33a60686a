"""Other forms of a law: for rows that agree in a column, with steps, of a role, with knots."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Literal

import numpy as np

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import LawError, TableError
from bayeslaw.common.files import digest
from bayeslaw.laws.deviations import Walk
from bayeslaw.laws.law import Law, logs_of
from bayeslaw.laws.priors import floor_with
from bayeslaw.laws.step import Columns, Step
from bayeslaw.laws.symbols import ORIGIN, Values, column_of
from bayeslaw.laws.terms import Term


def for_rows(law: Law, columns: Columns, name: str = "table") -> Law:
    """The law for rows in which some of its columns do not vary: these are `held`.

    Parameters that change nothing in such rows are left out: what they add is part of the floor or
    of a coefficient. A term is dropped, too, if other terms already lead all its covariates and its
    own exponent has no effect. A prior of E becomes that of E and these terms.

    Parameters
    ----------
    law : Law
    columns : mapping of str to array
        Columns of the rows, each of shape (rows,).
    name : str
        Name of the rows in messages.

    Raises
    ------
    TableError
        If no term of the law varies.
    """
    same = []
    for column in law.columns:
        if column in columns and (columns[column] == columns[column][0]).all():
            same.append(column)
    if not same:
        return law
    held = {**law.held, **{column: float(columns[column][0]) for column in same}}
    varying = [
        term
        for term in law.terms
        if not {column_of(c) for c in term.covariates} <= held.keys()
    ]
    acting = _Acting(law, varying, columns)
    leads = {column_of(term.covariates[0]) for term in varying} - held.keys()
    kept = []
    for term in varying:
        led = {column_of(c) for c in term.covariates} - held.keys() <= leads
        if acting(term, term.local) or not led:
            kept.append(term)
    if not kept:
        rows = len(columns[same[0]])
        raise TableError(
            f"{name}: the {rows} rows are the same in {', '.join(same)}, so no term of "
            f"the law {law.name} varies; add rows that differ, or choose another law."
        )
    # An exponent is kept if it acts in any of the terms that have it.
    names = set()
    for term in kept:
        for exponent in term.exponents:
            if exponent == term.leading or acting(term, exponent):
                names.add(exponent)
    terms = [acting.without(term, {*term.exponents} - names) for term in kept]
    return with_terms(replace(law, held=held), terms, held)


class _Acting:
    """Which parameters of some terms change these from row to row, tried at random values."""

    def __init__(self, law: Law, terms: Sequence[Term], columns: Columns) -> None:
        rng = np.random.default_rng(0)
        self.x = logs_of(law, columns)
        self.first_row = {covariate: values[:1] for covariate, values in self.x.items()}
        names = []
        for term in terms:
            names += [term.local, *term.exponents]
        self.values = {name: rng.uniform(0.1, 0.9, (8, 1)) for name in names}

    def __call__(self, term: Term, name: str) -> bool:
        moved = {**self.values, name: 1.1 * self.values[name]}
        before = self.logs(term, self.values, self.first_row)
        after = self.logs(term, moved, self.first_row)
        return not np.allclose(before, after, rtol=0, atol=1e-9)

    def logs(self, term: Term, values: Values, start: Values) -> Floats:
        with np.errstate(all="ignore"):
            p = term.from_local(values, self.first_row, np)
            return np.asarray(term.log_ratio(p, self.x, start, np))

    def without(self, term: Term, names: Collection[str]) -> Term:
        """The term without some exponents, unless its formula has no value at zero of these."""
        with suppress(ArithmeticError, LawError):
            fewer = term.without(names)
            if np.isfinite(self.logs(fewer, self.values, ORIGIN)).all():
                return fewer
        return term


def with_terms(law: Law, terms: Sequence[Term], same: Collection[str]) -> Law:
    """The law with some of its terms, for rows in which the columns `same` are constant."""
    names = [term.coefficient for term in terms]
    steps = [step.varying(same, names) for step in law.steps]
    fewer = replace(law, terms=tuple(terms), steps=tuple(s for s in steps if s))
    table = dict(fewer.by_symbol)
    priors = law.priors
    gone = [term for term in law.terms if term.coefficient not in table]
    if gone and "E" in priors:
        sizes = [(priors[term.slope], priors[term.local]) for term in gone]
        name, prior = floor_with(priors["E"], sizes)
        table["E"] = replace(table["E"], prior=prior, prior_name=name)
    lost = [name for name in law.by_symbol if name not in table]
    return replace(fewer, by_symbol=table, left_out=(*law.left_out, *lost))


def taking(law: Law, *kinds: type[Step]) -> Law:
    """The law with steps of some kinds, which columns of a table call for."""
    new = [kind.of_columns(law.columns) for kind in kinds if law.step(kind) is None]
    return law.with_steps(*new) if new else law


def of_role(law: Law, role: Literal["target", "source"]) -> Law:
    """The law of losses of the domain adapted to, or of the one pre-trained on."""
    steps = tuple(step.of_role(role) for step in law.steps)
    return replace(law, role=role, steps=steps)


def reads_share(law: Law) -> bool:
    """Whether the loss depends on the share of the domain's own text, beside a discrepancy."""
    along = [term.covariates for term in law.terms]
    for step in law.steps:
        along += step.covariates_of.values()
    return any({"own", "mixed"} & {*covariates} for covariates in along)


def with_knots(law: Law, x: Values, at: Values) -> Law:
    """The law with knots of its random walks that cover rows of some covariates."""
    if not law.walks:
        return law
    x = law.of_deviations(x)
    reaching = []
    for deviation in law.deviations:
        if isinstance(deviation, Walk):
            deviation = replace(deviation, knots=deviation.reach(x, at))
        reaching.append(deviation)
    return replace(law, deviations=tuple(reaching))


def identity(law: Law) -> str:
    """Hash of what the loss and its priors depend on, which name and title are not part of."""
    parts = asdict(replace(law, steps=()))
    hashed = {
        name: parts[name] for name in ("terms", "deviations", "token_unit", "role")
    }
    for term, keys in zip(law.terms, hashed["terms"], strict=True):
        own = [(row.name, row.logged) for row in keys.pop("own") and term.own]
        if own:
            keys["own"] = own
    hashed["priors"] = {name: asdict(prior) for name, prior in law.priors.items()}
    hashed["bounds"] = {name: row.bounds for name, row in law.by_symbol.items()}
    hashed["steps"] = [repr(step) for step in law.steps]
    if law.held:
        hashed["held"] = dict(law.held)
    return digest(hashed)
