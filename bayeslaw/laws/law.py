"""Laws: floor, terms and steps.

A law is written in two coordinate systems that convert exactly both ways.

- *Paper coordinates*: ``E, A, alpha, B, ...`` as published.
- *Reference coordinates*, in which priors are stated and the sampler works: ``L_ref``, the loss at
  a reference point (the training data's geometric mean), and for each term its local slope there,
  in nats per e-fold, with its exponent.

Between them are the *amounts*: the floor and each term at the reference point, in nats, with the
paper's exponents. The formula takes these, or the paper's coefficients.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from bayeslaw.common.arrays import Array, Floats, Namespace, Untyped
from bayeslaw.laws.deviations import WHOLE, Deviation, Scaled, Walk
from bayeslaw.laws.parameters import Parameter, table_of
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.shares import covariates_of_replay
from bayeslaw.laws.step import Columns, Step, total
from bayeslaw.laws.steps import STEPS
from bayeslaw.laws.symbols import COLUMN, ORIGIN, Named, Values, column_of
from bayeslaw.laws.terms import Term
from bayeslaw.tables.covariates import TABLE, Covariate

IMAGINARY_STEP = 1e-30
"""Imaginary step of complex-step derivatives: too small to change the real part."""


@dataclass(frozen=True)
class Law:
    """A scaling law: ``L = E + sum of terms``, in nats per token.

    Its steps act on this loss, or on what it is made of.

    Parameters
    ----------
    name, title, reference : str
        Short name, what it is, and where it was published.
    terms : tuple of Term
    by_symbol : mapping of str to Parameter
        Rows by paper symbol. A law has a row for each parameter of its terms, steps and deviations,
        in the order of the formula, and no others: those given here say prior, bounds and size.
    noise : mapping of str to Prior
        Priors of noise and random effects (``sigma``, ``dof``, ``tau_run``, ...).
    token_unit : float
        Tokens per unit of D. It matters where an exponent of D varies from row to row.
    role : {"", "target", "source"}
        Whether the losses are of the domain adapted to or of the one pre-trained on, which says
        what the share s of the domain's own text is: 1 - r or r. Empty if the law does not read it.
    steps : tuple of Step
        What acts on the loss beside floor and terms, in the order of `STEPS`.
    deviations : tuple of Deviation
        Of the log loss, by a discrepancy.
    held : mapping of str to float
        Columns that were the same in all fitted rows, and their values: the law is for these alone.
    left_out : tuple of str
        Paper symbols of the parameters that the law has where `held` columns vary.
    """

    name: str
    title: str
    reference: str
    terms: tuple[Term, ...]
    by_symbol: Mapping[str, Parameter] = field(default_factory=dict)
    noise: Mapping[str, Prior] = field(default_factory=dict)
    token_unit: float = 1.0
    role: Literal["", "target", "source"] = ""
    steps: tuple[Step, ...] = ()
    deviations: tuple[Deviation, ...] = ()
    held: Mapping[str, float] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        by_symbol = table_of(self.terms, self.steps, self.deviations, self.by_symbol)
        object.__setattr__(self, "by_symbol", by_symbol)

    # -- the table of parameters --------------------------------------------------------------

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Paper symbols in the order of the formula."""
        return tuple(self.by_symbol)

    @cached_property
    def coordinates(self) -> tuple[str, ...]:
        """Names of the reference coordinates, in the same order."""
        return tuple(row.local for row in self.by_symbol.values())

    @cached_property
    def coefficients(self) -> tuple[str, ...]:
        """Paper symbols of the terms' coefficients."""
        return tuple(term.coefficient for term in self.terms)

    @cached_property
    def exponents(self) -> tuple[str, ...]:
        """Paper symbols of every parameter that enters non-linearly."""
        return tuple(
            name for name in self.by_symbol if name not in ("E", *self.coefficients)
        )

    @cached_property
    def discrepancy_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that the discrepancy adds to the law."""
        stated = self.without_discrepancy.by_symbol
        return tuple(name for name in self.by_symbol if name not in stated)

    @cached_property
    def priors(self) -> dict[str, Prior]:
        """Priors by what they are of: floor, reference coordinates, noise."""
        priors = {}
        for row in self.by_symbol.values():
            if row.prior:
                priors[row.prior_name or row.local] = row.prior
        return priors | {**self.noise}

    # -- covariates of a table ----------------------------------------------------------------

    @cached_property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Columns of a table along which each reference coordinate acts."""
        covariates_of = {}
        for row in self.by_symbol.values():
            columns = dict.fromkeys(map(column_of, row.along))
            along = tuple(column for column in columns if column in self.columns)
            if along:
                covariates_of[row.local] = along
        return covariates_of

    @cached_property
    def covariate_names(self) -> tuple[str, ...]:
        """Covariates that the formula uses."""
        used: set[str] = set()
        for term in self.terms:
            used.update(term.covariates)
        for row in self.by_symbol.values():
            used.update(row.along)
        return tuple(c for c in (*COLUMN, *self.declared) if c in used)

    @cached_property
    def declared(self) -> dict[str, Covariate]:
        """Covariates that the law's file declares, beside those that all tables know."""
        return {row.name: row for term in self.terms for row in term.own}

    @cached_property
    def about(self) -> dict[str, Covariate]:
        """Covariates of a table that this law needs, by their columns; see `columns`."""
        used = {column_of(c) for c in self.covariate_names} - self.held.keys()
        return {c: row for c, row in (TABLE | self.declared).items() if c in used}

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of a table that this law needs."""
        return tuple(self.about)

    def step[S: Step](self, kind: type[S]) -> S | None:
        """Its step of a kind, if it has one."""
        for step in self.steps:
            if isinstance(step, kind):
                return step
        return None

    # -- other forms of the law ---------------------------------------------------------------

    @cached_property
    def walks(self) -> tuple[Walk, ...]:
        """Random walks among the deviations; one whose steps are not given is zero."""
        return tuple(walk for walk in self.deviations if isinstance(walk, Walk))

    @cached_property
    def scaled(self) -> tuple[Scaled, ...]:
        """Deviations whose steps are a vector parameter of the law, random walks among them."""
        return tuple(each for each in self.deviations if isinstance(each, Scaled))

    @property
    def without_discrepancy(self) -> "Law":
        """The law as it is stated in its file, with what the columns of a table call for."""
        steps = tuple(step for step in self.steps if not step.added)
        return replace(self, deviations=(), steps=steps)

    def deviating(
        self, deviations: Sequence[Deviation], priors: Mapping[str, Prior]
    ) -> "Law":
        """The law with deviations of its log loss along what varies, and priors of parameters.

        The bounds of a parameter are the support of its prior.
        """
        rows = dict(self.by_symbol)
        for name, prior in priors.items():
            rows[name] = Parameter(name, name, prior=prior, bounds=prior.support)
        varying = filter(None, [d.without(self.held) for d in deviations])
        return replace(self, deviations=tuple(varying), by_symbol=rows)

    def with_steps(self, *steps: Step) -> "Law":
        """The law with steps, in place of those of the same kinds."""
        kinds = {type(step): step for step in (*self.steps, *steps)}
        ordered = sorted(kinds.values(), key=lambda step: STEPS.index(type(step)))
        return replace(self, steps=tuple(ordered))

    # -- covariates ---------------------------------------------------------------------------

    def covariates(self, columns: Columns) -> dict[str, Floats]:
        """Logarithms of the covariates of rows, each of shape (rows,).

        The replay ratio is there itself as well, and a covariate that is not logged only so.

        Parameters
        ----------
        columns : mapping of str to array
            The columns of a table that the law reads, each of shape (rows,): counts of parameters
            and tokens. `bayeslaw.design.design.Design` takes them from a table.
        """
        x = logs_of(self, columns)
        for step in self.steps:
            x |= step.covariates(columns, self.token_unit)
        return x

    def effective[A: Array](
        self, p: Values, x: Named[A], xp: Namespace = np
    ) -> Named[A]:
        """The covariates as floor and terms count them, such as repeated tokens by their worth."""
        for step in self.steps:
            x = step.effective(p, x, xp, self.token_unit)
        return x

    def of_deviations[A: Array](self, x: Named[A], xp: Namespace = np) -> dict[str, A]:
        """The covariates of deviations, whose columns no parameter changes.

        They are those at the typical parameters of steps.
        """
        typical = {name: row.typical for name, row in self.by_symbol.items()}
        return {**self.effective(typical, x, xp)}

    # -- the formula --------------------------------------------------------------------------

    def loss(self, p: Values, x: Values, at: Values = ORIGIN) -> Floats:
        """Loss in nats per token.

        Parameters
        ----------
        p : mapping
            Floor, exponents, and under each coefficient's name the amount of its term at `at`, in
            nats. With the default `at`, it is the published coefficient. Arrays of draws carry a
            trailing axis of length 1.
        x : mapping
            Logarithms of the covariates, from `covariates`.
        at : mapping
            Point where the amounts are stated.

        Returns
        -------
        array, shape (..., rows)
        """
        loss: Untyped = self.evaluate(p, x, at, np)
        return loss  # type: ignore[no-any-return]

    def evaluate(
        self,
        p: Values,
        x: Values,
        at: Values,
        xp: Namespace,
        ratios: Values | None = None,
    ) -> Array:
        """`loss` over any array namespace.

        `xp` is NumPy, ``pytensor.tensor``, or the functions of a tape; `ratios` are the terms over
        their amounts, if they are known.
        """
        loss, shares = self.stated(p, x, at, xp, ratios)
        if not self.deviations:
            return loss
        x = self.of_deviations(x, xp)
        log = sum(shares[d.of] * d.value(p, x, at, xp) for d in self.deviations)
        deviating: Array = loss * xp.exp(log)
        return deviating

    def stated(
        self,
        p: Values,
        x: Values,
        at: Values,
        xp: Namespace,
        ratios: Values | None = None,
    ) -> tuple[Array, dict[str, Array]]:
        """The loss without deviations, and the share of it of each part that deviates.

        Arguments are those of `loss`; `ratios` are the terms over their amounts. A share is the
        derivative of the log of the loss by that of the part; that of the whole loss is 1.
        """
        x = self.effective(p, x, xp)
        ratios = ratios or _ratios(self, p, x, at, xp)
        terms = {name: p[name] * ratio for name, ratio in ratios.items()}
        parts: Values = {"E": p["E"], **terms}
        by: Values = {d.of: terms[d.of] for d in self.deviations if d.of in terms}
        for step in self.steps:
            parts, by = step.act((parts, by), p, x, at, xp)
        loss = total(parts)
        shares: dict[str, Array] = {}
        for deviation in self.deviations:
            part = deviation.of
            shares[part] = 1.0 if part == WHOLE else by[part] / loss
        return loss, shares

    def floor(self, p: Values, x: Values, at: Values = ORIGIN) -> Floats:
        """Limit of `loss` as all terms vanish and adaptation never ends."""
        x = self.effective(p, x)
        floor: Array = p["E"]
        for step in self.steps:
            floor = floor * step.factor(p, x, at, np)
        return np.asarray(floor)

    def gradient(
        self,
        p: Values,
        x: Values,
        at: Values = ORIGIN,
        names: Collection[str] | None = None,
    ) -> dict[str, Floats]:
        """Derivative of `loss` by each parameter, or by those of some names.

        By complex steps, and by each exponent of a term through the term's amount: the loss depends
        on both through their product alone.
        """
        ratios = _ratios(self, p, x, at, np)
        seen = self.effective(p, x)
        by: dict[str, Untyped]
        names = self.parameters if names is None else names
        moving = {name for s in self.steps if s.of_covariates for name in s.parameters}

        def by_step(name: str) -> Floats:
            moved = {**p, name: p[name] + 1j * IMAGINARY_STEP}
            of_terms = _ratios(self, moved, x, at, np) if name in moving else ratios
            loss: Untyped = self.evaluate(moved, x, at, np, of_terms)
            return np.asarray(loss.imag / IMAGINARY_STEP)

        if not (self.steps or self.deviations):  # the loss is the floor plus the terms
            by = {"E": 1.0, **ratios}
        else:
            of_terms = {name for term in self.terms for name in term.exponents}
            nonlinear = [n for n in self.exponents if n in names and n not in of_terms]
            by = {name: by_step(name) for name in ("E", *self.coefficients, *nonlinear)}
        if not {*names} & {*self.exponents}:
            return by
        for term in self.terms:
            nats = p[term.coefficient] * by[term.coefficient]
            for name, slope in term.slopes(p, seen, at).items():
                by[name] = by.get(name, 0.0) + nats * slope
        return by

    # -- coordinates --------------------------------------------------------------------------

    def amounts[A: Array](
        self, q: Named[A], at: Values, xp: Namespace = np
    ) -> dict[str, A]:
        """Floor and terms at the reference point `at` in nats, and the paper's exponents."""
        p: dict[str, A] = {
            each.steps: q[each.steps] for each in self.scaled if each.steps in q
        }
        for term in self.terms:
            p |= term.from_local(q, at, xp)
            p[term.coefficient] = q[term.slope] / term.local_exponent(p, at, xp)
        for name, row in self.by_symbol.items():
            # Coefficients of deviations may be missing: the sampler has them as weights.
            if name not in p and row.local in q:
                p[name] = q[row.local]
        p["E"] = q["L_ref"] - sum(p[c] for c in self.coefficients)
        for step in self.steps:
            p |= step.amounts(p, at)
        return p

    def rescale[A: Array](
        self, p: Named[A], at: Values, xp: Namespace = np
    ) -> dict[str, A]:
        """Paper coordinates from amounts at `at`."""
        p = dict(p)
        for term in self.terms:
            ratio = xp.exp(-term.log_ratio(p, at, ORIGIN, xp))
            p[term.coefficient] = p[term.coefficient] * ratio
        for step in self.steps:
            p |= step.rescale(p, at)
        return {name: p[name] for name in self.parameters}

    def to_paper[A: Array](
        self, q: Named[A], at: Values, xp: Namespace = np
    ) -> dict[str, A]:
        """Paper coordinates from reference coordinates at `at`."""
        return self.rescale(self.amounts(q, at, xp), at, xp)

    def to_reference[A: Array](
        self, p: Named[A], at: Values, xp: Namespace = np
    ) -> dict[str, A]:
        """Reference coordinates at `at` from paper coordinates."""
        p = dict(p)
        for term in self.terms:
            ratio = xp.exp(term.log_ratio(p, at, ORIGIN, xp))
            p[term.coefficient] = p[term.coefficient] * ratio
        for step in self.steps:
            p |= step.to_reference(p, at)
        q: dict[str, A] = {row.local: p[name] for name, row in self.by_symbol.items()}
        q["L_ref"] = p["E"] + sum(p[name] for name in self.coefficients)
        for term in self.terms:
            q[term.slope] = p[term.coefficient] * term.local_exponent(p, at, xp)
            q |= term.to_local(p, at, xp)
        return {name: q[name] for name in self.coordinates}

    def latex(self) -> str:
        """The law as LaTeX."""
        parts = {"E": "E"} | {term.coefficient: term.latex() for term in self.terms}
        for step in self.steps:
            parts = step.latex(parts)
        return r"\hat L = " + " + ".join(parts.values())


def _ratios(
    law: Law, p: Values, x: Values, at: Values, xp: Namespace
) -> dict[str, Array]:
    """Each term over its amount at `at`, by its coefficient."""
    x = law.effective(p, x, xp)
    return {t.coefficient: xp.exp(t.log_ratio(p, x, at, xp)) for t in law.terms}


def logs_of(law: Law, columns: Columns) -> dict[str, Floats]:
    """The covariates that are functions of single columns, without those of the law's steps."""
    x = {}
    if "tokens" in columns:  # which a ladder in FLOPs lacks
        x["tokens"] = np.log(columns["tokens"] / law.token_unit)
    for name, row in (TABLE | law.declared).items():
        if name == "tokens" or not (name in law.columns or name in law.held):
            continue
        if name == "replay":
            x |= shares(law, columns[name])
        else:
            x[name] = np.log(columns[name]) if row.logged else columns[name]
    return x


def shares(law: Law, replay: Floats) -> dict[str, Floats]:
    """The covariates of replay ratios, each of their shape."""
    for term in law.terms:
        if term.epsilon is not None:
            return covariates_of_replay(replay, law.role, term.epsilon)
    return covariates_of_replay(replay, law.role)
