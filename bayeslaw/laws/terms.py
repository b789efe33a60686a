"""Terms of a scaling law: a coefficient times the exponential of a formula."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bayeslaw.common.arrays import Array, Floats, Namespace, Untyped
from bayeslaw.common.errors import LawError, unknown
from bayeslaw.laws.formula import Formula, derivative, read
from bayeslaw.laws.latex import latex_of
from bayeslaw.laws.symbols import COLUMN, ORIGIN, SYMBOLS, Named, Values, symbol_of
from bayeslaw.laws.tape import FUNCTIONS as F
from bayeslaw.laws.tape import Node, Tape, evaluate
from bayeslaw.tables.covariates import Covariate


@dataclass(frozen=True)
class Term:
    r"""A coefficient times ``exp(log)``.

    >>> term = Term("B", "slope_D", "nu*log(r) - beta*log(D)", along="D", exponent="beta")
    >>> term.latex()
    '\\frac{B r^{\\nu}}{D^{\\beta}}'
    >>> x = {"tokens": np.log(4.0), "replay": 0.0}
    >>> round(float(np.exp(term.log_ratio({"beta": 0.5, "nu": 0.1}, x, ORIGIN, np))), 12)
    0.5
    """

    coefficient: str
    slope: str  # nats per e-fold of the leading covariate at the reference point
    log: str  # of the term over its coefficient: N, D, P, r, parameters, and `FORMULA_FUNCTIONS`
    along: str = ""  # symbol of the leading covariate; by default the formula's first
    exponent: str = ""  # the leading exponent; by default the first parameter
    # Depth and rate, if the local exponent is ``exponent (1 - depth sigmoid(rate log P))``.
    gate: str = ""
    stated: bool = (
        False  # whether the prior is of ``<exponent>_ref``, the local exponent
    )
    own: tuple[Covariate, ...] = ()  # declared by the law, and in the formula

    def __post_init__(self) -> None:
        formula = read(self.log, self.own)
        in_formula = tuple(row for row in self.own if row.name in formula.names)
        object.__setattr__(self, "own", in_formula)
        *first, last = formula.letters
        letters = [letter for letter in formula.letters if letter in formula.names]
        self._check_choice(
            f"covariate ({', '.join(first)} or {last})", self.along, letters
        )
        self._check_choice("parameter", self.exponent, formula.parameters)
        if self.leading not in self._slope.names:
            raise LawError(
                f"log = {self.log!r}: its slope along {symbol_of(self.covariates[0])} does not "
                f"depend on {self.leading}; name the leading covariate and exponent with 'along' "
                "and 'exponent'."
            )
        if self.gated and not self._has_gate(*self.gated):
            raise LawError(
                f"gate = {self.gate!r}: the local exponent of log = {self.log!r} is not "
                f"{self.leading}*(1 - depth*sigmoid(rate*log(P))) with this depth and rate."
            )

    def _check_choice(self, what: str, chosen: str, valid: Sequence[str]) -> None:
        """Raise unless the formula has a name that leads, which may be chosen."""
        if not valid:
            raise LawError(f"log = {self.log!r}: has no {what}; a term has one.")
        if chosen and chosen not in valid:
            kind = what.split()[0]
            raise LawError(f"log = {self.log!r}: {unknown(kind, chosen, valid)}")

    def _has_gate(self, depth: str, rate: str) -> bool:
        """Whether the local exponent is that of a gate, at some numbers."""
        if not {depth, rate} <= {*self.exponents}:
            return False
        p = dict.fromkeys(self.exponents, 0.5)
        p |= {self.leading: 1.0, depth: 0.3, rate: 0.7}
        at = dict.fromkeys(COLUMN, 0.4) | {"ptpp": 1.5}
        factor = 1 - 0.3 / (1 + math.exp(-0.7 * 1.5))
        exponent = self.local_exponent(p, at, np)
        return math.isclose(exponent, factor, rel_tol=1e-9)

    # -- names ---------------------------------------------------------------------------------

    @property
    def formula(self) -> Formula:
        return read(self.log, self.own)

    @cached_property
    def covariates(self) -> tuple[str, ...]:
        """Covariates that the term depends on, the leading one first."""
        names = self.formula.covariates
        symbols = {c: SYMBOLS[c].strip("(")[0] if c in SYMBOLS else c for c in names}
        first = [c for c in names if self.along and symbols[c] == self.along]
        return tuple(dict.fromkeys([*first[:1], *names]))

    @cached_property
    def exponents(self) -> tuple[str, ...]:
        """Symbols of every parameter but the coefficient, the leading exponent first."""
        first = [self.exponent] if self.exponent else []
        return tuple(dict.fromkeys([*first, *self.formula.parameters]))

    @property
    def leading(self) -> str:
        return self.exponents[0]

    @property
    def local(self) -> str:
        """Name of the leading exponent in reference coordinates."""
        return f"{self.leading}_ref" if self.stated else self.leading

    @property
    def epsilon(self) -> float | None:
        """The number in ``log(r + epsilon)``, if the formula has one."""
        return self.formula.epsilon

    @cached_property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each exponent acts along: those that it is multiplied by."""
        along = self.formula.along | {self.leading: self.covariates[:1]}
        return {name: along[name] or self.covariates for name in self.exponents}

    @cached_property
    def gated(self) -> tuple[str, str] | None:
        """Depth and rate of the gate."""
        if not self.gate:
            return None
        depth, _, rate = self.gate.partition(" ")
        return depth, rate

    # -- values and derivatives ----------------------------------------------------------------

    def log_ratio(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Log of the term at `x` over its value at `at`; at `ORIGIN`, over its coefficient.

        Parameters are numbers, arrays of draws, PyTensor variables, nodes of a tape; complex
        numbers too, for derivatives. `xp` has the functions of these.
        """
        log: Array = self._changes([self.formula.log], p, x, at, xp)[0]
        return log

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Floats]:
        """Derivative of `log_ratio` by each exponent."""
        derivatives = [self.formula.by(name) for name in self.exponents]
        by = self._changes(derivatives, p, x, at, np)
        return dict(zip(self.exponents, by, strict=True))

    def _changes(
        self, nodes: Sequence[Node], p: Values, x: Values, at: Values, xp: Namespace
    ) -> list[Untyped]:
        """Values at `x` less those at `at`, which at `ORIGIN` are 0."""
        here = Formula.values(nodes, p, x, xp)
        if at is ORIGIN:
            return here
        there = Formula.values(nodes, p, at, xp)
        return [value - before for value, before in zip(here, there, strict=True)]

    def power_of(self, covariate: str) -> bool:
        """Whether it is a power of a covariate, with an exponent that is the same in all rows."""
        slope = Formula.slope(self.formula.log, covariate)
        return slope.number != 0 and not Formula.varies(slope)

    def power_along(self, covariate: str) -> tuple[str, float]:
        """The parameter that is, up to its sign, the exponent of a factor, and the sign.

        The factor is a power of a covariate which the local exponent does not depend on.
        """
        slope = Formula.slope(self.formula.log, covariate)
        for name in self.exponents:
            sign = derivative(slope, name).number
            if sign in (-1, 1) and name not in self._slope.names:
                return name, float(sign)
        return "", 0.0

    def slope_along[A: Array](
        self, covariate: str, p: Named[A], at: Values, xp: Namespace
    ) -> A:
        """Derivative of the log along a covariate, at `at`."""
        by = Formula.slope(self.formula.log, covariate)
        slope: A = Formula.values([by], p, at, xp)[0]
        return slope

    # -- the local exponent ------------------------------------------------------------------

    @cached_property
    def _slope(self) -> Node:
        """Minus the derivative of the log along the leading covariate."""
        return Formula.slope(-self.formula.log, self.covariates[0])

    @cached_property
    def _affine(self) -> tuple[Node, Node]:
        """The local exponent as a function of the leading one, which is linear, and its slope.

        Guards are left out: the prior of a local exponent has none.
        """
        slope = Formula.slope(-self.formula.unguarded, self.covariates[0])
        return slope, derivative(slope, self.leading)

    @property
    def linear(self) -> bool:
        """Whether the local exponent is linear in the leading one."""
        return self.leading not in self._affine[1].names

    @cached_property
    def proportional(self) -> bool:
        """Whether the local exponent is proportional to the exponent that has a prior."""
        if self.stated:
            return True
        if not self.linear:
            return False
        tape = Tape()

        def value_of(name: str) -> Untyped:
            return 0.0 if name == self.leading else tape.input(name)

        (at_zero,) = evaluate(self._affine[:1], value_of, F)
        number = at_zero.number if isinstance(at_zero, Node) else at_zero
        return bool(number == 0)

    def local_exponent[A: Array](self, p: Named[A], at: Values, xp: Namespace) -> A:
        """Minus the derivative of the log along the leading covariate, at `at`."""
        exponent: A = Formula.values([self._slope], p, at, xp)[0]
        return exponent

    def to_local[A: Array](
        self, p: Named[A], at: Values, xp: Namespace
    ) -> dict[str, A]:
        """Exponents in reference coordinates from the paper's."""
        q = {name: p[name] for name in self.exponents}
        if self.stated:
            offset, factor = self._line(p, at, xp)
            q = {self.local: offset + factor * q.pop(self.leading)} | q
        return q

    def from_local[A: Array](
        self, q: Named[A], at: Values, xp: Namespace
    ) -> dict[str, A]:
        """The paper's exponents from those in reference coordinates."""
        p = {name: q[name] for name in self.exponents[1:]}
        leading = q[self.local]
        if self.stated:
            offset, factor = self._line(p, at, xp)
            leading = (leading - offset) / factor
        return {self.leading: leading} | p

    def _line(self, p: Values, at: Values, xp: Namespace) -> list[Untyped]:
        """Offset and factor of the local exponent as a function of the leading one."""
        return Formula.values(self._affine, {**p, self.leading: 0.0}, at, xp)

    # -- other forms ---------------------------------------------------------------------------

    def without(self, names: Collection[str]) -> "Term":
        """The term with some parameters, other than the leading exponent, at zero.

        >>> Term("F", "slope_F", "-eta*log(P) - phi*log(N)").without(["phi"]).log
        '-eta * log(P)'
        """
        if not names:
            return self
        gate = self.gate
        if self.gated and not {*names}.isdisjoint(self.gated):
            gate = ""
        return replace(self, log=self.formula.without(names), gate=gate)

    def latex(self) -> str:
        return latex_of(self.coefficient, self.formula.tree)
