r"""Terms of a scaling law: a coefficient times the exponential of a formula, as people write it.

The formula, such as ``nu*log(r) - beta*log(D)``, is the log of the term over its coefficient. It is
read through `ast` onto a tape (`bayeslaw.laws.tape`), evaluated there over an array namespace
(NumPy, ``pytensor.tensor``, or the functions of the sampler's tape) and differentiated, so
prediction, the PyTensor model, the sampler, point fits and LaTeX all come from the one formula.

Covariates are logarithms: ``params``, ``tokens`` (in the law's token unit), ``ptpp``, ``replay``
(r clipped to [1e-9, 1 - 1e-9]), ``barrier`` (r + epsilon), ``fresh`` (1 - r), ``own`` (s, the share
of the domain's own text: 1 - r for the target of adaptation, r for its source), ``mixed`` (s + .01,
whose log stays bounded) and ``rest`` (1 - s + .01), which in a law that does not read s have r for
s, ``start`` (the base's loss on the domain) and ``deviation`` (the base's loss on the domain of
pre-training, over that expected of its size and budget), ``unique`` (tokens until new data repeat).
``share`` is r itself, ``unannealed`` 1 for checkpoints that are not annealed and else 0.
A covariate that a law declares has the name of its column: its log, or itself if it is not logged.
"""

import ast
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from bayeslaw.common.arrays import Array, Floats, Namespace, Untyped
from bayeslaw.common.errors import LawError, unknown
from bayeslaw.laws.tape import CONSTANT, EXP, MULTIPLY, Node, Tape, evaluate
from bayeslaw.laws.tape import FUNCTIONS as F
from bayeslaw.tables.covariates import TABLE, Covariate

type Named[A] = Mapping[str, A]
type Values = Named[Array]

SYMBOLS = {
    **{c: row.symbol for c, row in TABLE.items()}, "barrier": r"(r+\varepsilon)", "share": "r",
    "mixed": "r", "fresh": "(1-r)", "own": "s", "rest": "(1-s)",
    "start": r"L_{\mathrm{start}}",
    "deviation": r"(b/\hat b)", "unique": "U", "unannealed": "h",
}  # fmt: skip
COLUMN = {
    **{name: name for name in TABLE},
    **dict.fromkeys(("barrier", "share", "mixed", "fresh", "own", "rest"), "replay"),
    "start": "start_loss",
    "deviation": "base_loss",
    "unique": "unique_tokens",
    "unannealed": "annealed",
}
"""Column of a loss table behind each covariate but those that a law declares; see `column_of`."""
ORIGIN: Mapping[str, float] = defaultdict(float, dict.fromkeys(SYMBOLS, 0.0))
"""The point at which amounts are the paper's coefficients; most terms have this value there."""

LETTERS = {TABLE[c].symbol: c for c in sorted(TABLE, key=lambda c: not TABLE[c].logged)}
LETTERS["s"] = "own"
"""Covariates of a formula by their symbols, amounts before ratios."""
X = "x "
"""Before the names of covariates among a tape's inputs: no parameter can have such a name."""
FORMULA_FUNCTIONS = {
    "exp": 1, "log": 1, "log1p": 1, "expm1": 1, "sqrt": 1, "tanh": 1, "sigmoid": 1,
    "max": 2, "min": 2,
}  # fmt: skip
"""Functions of a formula, with the number of their arguments."""
_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
_GREEK = (
    "alpha", "beta", "gamma", "eta", "nu", "lambda", "zeta", "phi",
    "kappa", "mu", "omega", "rho", "xi", "chi", "delta", "theta", "tau", "sigma", "psi",
)  # fmt: skip


def column_of(covariate: str) -> str:
    """Column of a loss table behind a covariate; one that a law declares has its own name."""
    return COLUMN.get(covariate, covariate)


def symbol_of(covariate: str) -> str:
    """Symbol of a covariate in names of parameters and in LaTeX."""
    return SYMBOLS.get(covariate, covariate)


def tex(symbol: str) -> str:
    bare = symbol.removesuffix("_").rstrip("0123456789")
    number = symbol.removesuffix("_").removeprefix(bare)
    word = rf"\mathrm{{{bare.replace('_', r'\_')}}}" if len(bare) > 1 else bare
    return (f"\\{bare}" if bare in _GREEK else word) + (f"_{number}" if number else "")


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
    along: str = (
        ""  # symbol of the leading covariate; by default the first in the formula
    )
    exponent: str = ""  # the leading exponent; by default the first parameter
    # Depth and rate, if the local exponent is ``exponent (1 - depth sigmoid(rate log P))``.
    gate: str = ""
    stated: bool = (
        False  # whether the prior is of the exponent there, ``<exponent>_ref``
    )
    own: tuple[
        Covariate, ...
    ] = ()  # covariates that the law declares and the formula has

    def __post_init__(self) -> None:
        letters = [*_letters(self.own)]
        names = _names_of(self.log, self.own)
        object.__setattr__(
            self, "own", tuple(row for row in self.own if row.name in names)
        )
        used = [letter for letter in letters if letter in names]
        *first, last = letters
        for what, given, valid in (
            (f"covariate ({', '.join(first)} or {last})", self.along, used),
            ("parameter", self.exponent, _parameters(self.log, self.own)),
        ):
            if not valid:
                raise LawError(f"log = {self.log!r}: has no {what}; a term has one.")
            if given and given not in valid:
                raise LawError(
                    f"log = {self.log!r}: {unknown(what.split()[0], given, valid)}"
                )
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

    def _has_gate(self, depth: str, rate: str) -> bool:
        p = dict.fromkeys(self.exponents, 0.5) | {
            self.leading: 1.0,
            depth: 0.3,
            rate: 0.7,
        }
        at = dict.fromkeys(COLUMN, 0.4) | {"ptpp": 1.5}
        factor = 1 - 0.3 / (1 + math.exp(-0.7 * 1.5))
        own = {depth, rate} <= {*self.exponents}
        return own and math.isclose(
            self.local_exponent(p, at, np), factor, rel_tol=1e-9
        )

    @cached_property
    def covariates(self) -> tuple[str, ...]:
        """Covariates that the term depends on, the leading one first."""
        names = _covariates(self._parsed.tape.inputs)
        symbols = {c: SYMBOLS[c].strip("(")[0] if c in SYMBOLS else c for c in names}
        first = [c for c in names if self.along and symbols[c] == self.along]
        return tuple(dict.fromkeys([*first[:1], *names]))

    @cached_property
    def exponents(self) -> tuple[str, ...]:
        """Symbols of every parameter but the coefficient, the leading exponent first."""
        first = [self.exponent] if self.exponent else []
        return tuple(dict.fromkeys([*first, *_parameters(self.log, self.own)]))

    @property
    def leading(self) -> str:
        return self.exponents[0]

    @property
    def local(self) -> str:
        """Name of the leading exponent in reference coordinates."""
        return f"{self.leading}_ref" if self.stated else self.leading

    @cached_property
    def epsilon(self) -> float | None:
        """The number in ``log(r + epsilon)``, if the formula has one."""
        return next(
            (e for n in ast.walk(_tree(self.log)) if (e := _epsilon(n)) is not None),
            None,
        )

    @cached_property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each exponent acts along: those that it is multiplied by."""
        along: dict[str, tuple[str, ...]] = {}
        tree = _tree(self.log)
        for name, covariates in _partners(tree, self.own, _within(tree, self.own)):
            along[name] = tuple(dict.fromkeys(along.get(name, ()) + covariates))
        along[self.leading] = self.covariates[:1]
        return {name: along[name] or self.covariates for name in self.exponents}

    @cached_property
    def gated(self) -> tuple[str, str] | None:
        """Depth and rate of the gate."""
        depth, _, rate = self.gate.partition(" ")
        return (depth, rate) if self.gate else None

    @property
    def _parsed(self) -> Node:
        return _parsed(self.log, own=self.own)

    def _by(self, name: str) -> Node:
        """Derivative of the log by a parameter, or along ``X + covariate``."""
        return _derivative(self._parsed, name)

    def _values(
        self, nodes: Sequence[Node], p: Values, x: Values, xp: Namespace
    ) -> list[Untyped]:
        def value_of(name: str) -> Array:
            return x[name.removeprefix(X)] if name.startswith(X) else p[name]

        return evaluate(nodes, value_of, xp)

    @cached_property
    def _slope(self) -> Node:
        """Minus the derivative of the log along the leading covariate."""
        return _derivative(-self._parsed, X + self.covariates[0])

    @cached_property
    def _affine(self) -> tuple[Node, Node]:
        """The local exponent as a function of the leading one, which is linear, and its slope.

        Guards are left out: the prior of a local exponent has none.
        """
        log = -_parsed(self.log, guarded=False, own=self.own)
        slope = _derivative(log, X + self.covariates[0])
        return slope, _derivative(slope, self.leading)

    @property
    def linear(self) -> bool:
        """Whether the local exponent is linear in the leading one."""
        return self.leading not in self._affine[1].names

    @cached_property
    def proportional(self) -> bool:
        """Whether the local exponent is proportional to the exponent that has a prior."""
        if self.stated or not self.linear:
            return self.stated
        tape = Tape()
        offset = self._affine[:1]
        (zero,) = evaluate(
            offset, lambda n: 0.0 if n == self.leading else tape.input(n), F
        )
        return bool(getattr(zero, "number", zero) == 0)

    def power_of(self, covariate: str) -> bool:
        """Whether it is a power of a covariate, with an exponent that is the same in all rows."""
        slope = self._by(X + covariate)
        return slope.number != 0 and not _covariates(slope.names)

    def power_along(self, covariate: str) -> tuple[str, float]:
        """The parameter that is, up to its sign, the exponent of a factor, and the sign.

        The factor is a power of a covariate which the local exponent does not depend on.
        """
        slope = self._by(X + covariate)
        for name in self.exponents:
            sign = _derivative(slope, name).number
            if sign in (-1, 1) and name not in self._slope.names:
                return name, float(sign)
        return "", 0.0

    def slope_along[A: Array](
        self, covariate: str, p: Named[A], at: Values, xp: Namespace
    ) -> A:
        """Derivative of the log along a covariate, at `at`."""
        slope: A = self._values([self._by(X + covariate)], p, at, xp)[0]
        return slope

    def log_ratio(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Log of the term at `x` over its value at `at`; at `ORIGIN`, over its coefficient.

        Parameters are numbers, arrays of draws, PyTensor variables, nodes of a tape; complex
        numbers too, for derivatives. `xp` has the functions of these.
        """
        log: Array = self._changes([self._parsed], p, x, at, xp)[0]
        return log

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Floats]:
        """Derivative of `log_ratio` by each exponent."""
        by = self._changes([self._by(name) for name in self.exponents], p, x, at, np)
        return dict(zip(self.exponents, by, strict=True))

    def _changes(
        self, nodes: Sequence[Node], p: Values, x: Values, at: Values, xp: Namespace
    ) -> list[Untyped]:
        """Values at `x` less those at `at`, which at `ORIGIN` are 0."""
        here = self._values(nodes, p, x, xp)
        if at is ORIGIN:
            return here
        there = self._values(nodes, p, at, xp)
        return [value - before for value, before in zip(here, there, strict=True)]

    def local_exponent[A: Array](self, p: Named[A], at: Values, xp: Namespace) -> A:
        """Minus the derivative of the log along the leading covariate, at `at`."""
        exponent: A = self._values([self._slope], p, at, xp)[0]
        return exponent

    def to_local[A: Array](
        self, p: Named[A], at: Values, xp: Namespace
    ) -> dict[str, A]:
        """Exponents in reference coordinates from the paper's."""
        q = {name: p[name] for name in self.exponents}
        if self.stated:
            offset, factor = self._values(
                self._affine, {**p, self.leading: 0.0}, at, xp
            )
            q = {self.local: offset + factor * q.pop(self.leading)} | q
        return q

    def from_local[A: Array](
        self, q: Named[A], at: Values, xp: Namespace
    ) -> dict[str, A]:
        """The paper's exponents from those in reference coordinates."""
        p = {name: q[name] for name in self.exponents[1:]}
        leading = q[self.local]
        if self.stated:
            offset, factor = self._values(
                self._affine, {**p, self.leading: 0.0}, at, xp
            )
            leading = (leading - offset) / factor
        return {self.leading: leading} | p

    def without(self, names: Collection[str]) -> "Term":
        """The term with some parameters, other than the leading exponent, at zero.

        >>> Term("F", "slope_F", "-eta*log(P) - phi*log(N)").without(["phi"]).log
        '-eta * log(P)'
        """
        if not names:
            return self
        gate = "" if {*names} & {*(self.gated or ())} else self.gate
        return replace(
            self, log=ast.unparse(_Zeros(names).visit(_tree(self.log))), gate=gate
        )

    def latex(self) -> str:
        over: list[str] = []
        under: list[str] = []
        above: list[str] = []
        for sign, node in _summands(_tree(self.log)):
            power = _power(node)
            if power is None:
                above.append(f"e^{{{'-' * (sign < 0)}{_tex(node)}}}")
            else:
                (over if sign > 0 else under).append(power)
        times = " ".join([tex(self.coefficient), *above, *over])
        return rf"\frac{{{times}}}{{{' '.join(under)}}}" if under else times


# -- reading --------------------------------------------------------------------------------------


def _tree(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode="eval").body


@lru_cache(maxsize=256)
def _parsed(text: str, guarded: bool = True, own: tuple[Covariate, ...] = ()) -> Node:
    """The formula on a tape of its own; without guards, x is read for ``max(x, 1e-6)``."""
    try:
        with np.errstate(all="ignore"):
            log: Node = _read(_tree(text), Tape(), guarded, own)
    except SyntaxError as error:
        raise LawError(f"cannot read log = {text!r}: {error.msg}.") from error
    except ValueError as error:
        raise LawError(f"log = {text!r}: {error}") from error
    except ArithmeticError as error:
        raise LawError(f"log = {text!r}: a number in it is not finite.") from error
    except (RecursionError, MemoryError) as error:
        raise LawError(
            f"log = {text[:40]!r}...: too many operations; write fewer."
        ) from error
    if not all(
        math.isfinite(node.detail) for node in log.tape.nodes if node.kind == CONSTANT
    ):
        raise LawError(f"log = {text!r}: a number in it is not finite.")
    if guarded and not _finite_somewhere(log):
        raise LawError(
            f"log = {text!r}: it is finite for no N, D, r, P and parameters, such as after a "
            "division by something that is always 0; mend the formula."
        )
    return log


def _finite_somewhere(log: Node) -> bool:
    """Whether a formula is finite at any of many values of its inputs."""
    rng, points = np.random.default_rng(0), 200
    values = {name: np.exp(rng.uniform(-20, 3, points)) for name in log.tape.inputs}
    for covariate in _covariates(values):
        if covariate in COLUMN:  # a ratio is below 1, other counts are not
            low, high = (-10, 0) if COLUMN[covariate] == "replay" else (0, 30)
            values[X + covariate] = rng.uniform(low, high, points)
    with np.errstate(all="ignore"):
        (logs,) = evaluate([log], values.__getitem__, np)
    return bool(np.isfinite(logs).any())


def _covariates(names: Iterable[str]) -> list[str]:
    """The covariates among the names of a tape's inputs."""
    return [name.removeprefix(X) for name in names if name.startswith(X)]


def _letters(own: tuple[Covariate, ...]) -> dict[str, str]:
    """Covariates of a formula by their symbols, those that a law declares by their names."""
    return LETTERS | {row.name: row.name for row in own}


def _read(
    node: ast.expr, tape: Tape, guarded: bool, own: tuple[Covariate, ...]
) -> Node:
    """A node of the tape."""
    letters, plain = _letters(own), [row.name for row in own if not row.logged]

    def named(name: str) -> Node:
        return tape.inputs.get(name) or tape.input(name)

    def read(operand: ast.expr) -> Node:
        return _read(operand, tape, guarded, own)

    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(
            value, bool
        ):
            return tape.constant(value)
        case ast.Name(id=name):
            log = named(X + letters[name] if name in letters else name)
            return (
                _function("exp", log) if name in letters and name not in plain else log
            )
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -read(operand)
        case ast.Call(func=ast.Name(id="log"), args=[argument]) if (
            _epsilon(argument) is not None
        ):
            # A covariate of its own, so that it is not computed again for every draw.
            return named(X + "barrier")
        case ast.Call(func=ast.Name(id="max"), args=[u, ast.Constant()]) if not guarded:
            return read(u)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _operator(_OPERATORS[type(op)], read(left), read(right))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            if name not in FORMULA_FUNCTIONS:
                raise ValueError(unknown("function", name, FORMULA_FUNCTIONS))
            if len(arguments) != (count := FORMULA_FUNCTIONS[name]):
                many = f"{count} argument{'s' * (count > 1)}"
                raise ValueError(f"{name} takes {many}, not {len(arguments)}.")
            return _function(name, *map(read, arguments))
    raise ValueError(
        f"cannot read {ast.unparse(node)!r}; a formula has numbers, names, + - * / **, and "
        f"{', '.join(FORMULA_FUNCTIONS)}."
    )


def _function(name: str, *of: Node) -> Node:
    if name == "log" and of[0].kind == EXP:
        return of[0].first
    if name == "sqrt":
        return _operator("**", of[0], of[0].tape.constant(0.5))
    value: Node = getattr(F, {"max": "maximum", "min": "minimum"}.get(name, name))(*of)
    return value


def _operator(operator: str, a: Node, b: Node) -> Node:
    """An operator of nodes.

    A power of covariates is one exponential: D/(N*P) is exp(log D - (log N + log P)), which cannot
    overflow.
    """
    match operator:
        case "+":
            return a + b
        case "-" if a.number == 1 and b.kind == EXP:
            return -_function(
                "expm1", b.first
            )  # 1 - exp(-u) keeps its digits where u is small
        case "-":
            return a - b
        case "**" if b.number == 2:
            return _operator("*", a, a)
        case "**":
            return _function("exp", b * _function("log", a))
    if b.kind == EXP and a.kind == EXP:
        return _function(
            "exp", a.first + b.first if operator == "*" else a.first - b.first
        )
    if b.kind == EXP and a.kind == MULTIPLY and EXP in (a.first.kind, a.second.kind):
        factor, power = (
            (a.first, a.second) if a.second.kind == EXP else (a.second, a.first)
        )
        return factor * _operator(operator, power, b)
    if operator == "/" and b.number == 0:
        raise ZeroDivisionError
    return a * b if operator == "*" else a / b


@lru_cache(maxsize=1024)
def _derivative(node: Node, name: str) -> Node:
    inputs = node.tape.inputs
    return node.tape.gradient(node, [inputs[name]])[0] if name in inputs else node * 0.0


def _epsilon(node: ast.AST) -> float | None:
    """The number e of r + e."""
    match node:
        case ast.BinOp(
            ast.Name("r"), ast.Add(), ast.Constant(value=float() | int() as epsilon)
        ):
            return float(epsilon)
    return None


def _names_of(text: str, own: tuple[Covariate, ...]) -> list[str]:
    """Names in a formula, in the order in which they are written."""
    _parsed(text, own=own)
    return list(dict.fromkeys(name for name, _ in _partners(_tree(text), own, ())))


def _parameters(text: str, own: tuple[Covariate, ...]) -> list[str]:
    taken = {*_letters(own), *FORMULA_FUNCTIONS}
    return [name for name in _names_of(text, own) if name not in taken]


def _partners(
    node: ast.expr, own: tuple[Covariate, ...], product: tuple[str, ...]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each name of a formula, with the covariates of the product or function that it stands in.

    `product` are the covariates of the product that the node is, or is a factor of.
    """
    match node:
        case ast.Name(id=name):
            yield name, product
        case ast.UnaryOp(operand=operand):
            yield from _partners(operand, own, product)
        case ast.BinOp(left=left, right=right):
            for side in (left, right):
                yield from _partners(
                    side, own, _within(side, own) if _sum(node) else product
                )
        case ast.Call(args=arguments):
            inside = _within(node, own)
            for argument in arguments:
                for name, along in _partners(argument, own, _within(argument, own)):
                    yield name, along or inside


def _within(node: ast.expr, own: tuple[Covariate, ...]) -> tuple[str, ...]:
    """Covariates whose symbols an expression has."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return tuple(c for letter, c in _letters(own).items() if letter in names)


def _sum(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)


class _Zeros(ast.NodeTransformer):
    """Puts zero for some names of a formula, and drops what vanishes."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(0) if node.id in self.names else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand: ast.expr = self.visit(node.operand)
        return operand if _is(operand, 0) else ast.UnaryOp(node.op, operand)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left: ast.expr = self.visit(node.left)
        right: ast.expr = self.visit(node.right)
        match node.op:
            case ast.Mult() if _is(left, 0) or _is(right, 1):
                return left
            case ast.Mult() if _is(right, 0) or _is(left, 1):
                return right
            case ast.Add() if _is(left, 0):
                return right
            case ast.Sub() if _is(left, 0):
                return ast.UnaryOp(ast.USub(), right)
            case ast.Add() | ast.Sub() if _is(right, 0):
                return left
        return ast.BinOp(left, node.op, right)


def _is(node: ast.expr, number: float) -> bool:
    return isinstance(node, ast.Constant) and node.value == number


# -- LaTeX ----------------------------------------------------------------------------------------


def _summands(node: ast.expr, sign: int = 1) -> list[tuple[int, ast.expr]]:
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            of_right = sign if isinstance(op, ast.Add) else -sign
            return _summands(left, sign) + _summands(right, of_right)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _summands(operand, -sign)
        case ast.BinOp(
            left=ast.UnaryOp(op=ast.USub(), operand=operand), op=op, right=right
        ):
            return [(-sign, ast.BinOp(operand, op, right))]
    return [(sign, node)]


def _power(node: ast.expr) -> str | None:
    """LaTeX of ``exp(node)`` as a power of something, where the node is an exponent times a log."""
    match node:
        case ast.Call(func=ast.Name(id="log"), args=[base]):
            return _base(base)
        case ast.BinOp(
            exponent, ast.Mult(), ast.Call(func=ast.Name(id="log"), args=[base])
        ):
            return f"{_base(base)}^{{{_tex(exponent)}}}"
    return None


def _base(node: ast.expr) -> str:
    if _epsilon(node) is not None:
        return SYMBOLS["barrier"]
    match node:
        case ast.Name() | ast.Constant():
            return _tex(node)
        case ast.BinOp(op=ast.Mult()):
            return f"({_tex(node)})"
    return rf"\left({_tex(node)}\right)"


def _tex(node: ast.expr, inner: bool = False) -> str:
    """LaTeX of an expression; `inner` puts a sum into parentheses."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return f"{value:g}"
        case ast.Name(id=name):
            return tex(name)
        case ast.UnaryOp(operand=operand):
            return f"-{_tex(operand, inner=True)}"
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            text = f"{_tex(left)} {_OPERATORS[type(op)]} {_tex(right, isinstance(op, ast.Sub))}"
            return rf"\left({text}\right)" if inner else text
        case ast.BinOp(left, ast.Mult(), right):
            return f"{_tex(left, inner=True)} {_tex(right, inner=True)}"
        case ast.BinOp(left, ast.Div(), right):
            return f"{_tex(left, inner=True)}/{_base(right)}"
        case ast.BinOp(left, _, right):
            return f"{_tex(left, inner=True)}^{{{_tex(right)}}}"
        case ast.Call(func=ast.Name(id="exp"), args=[u]):
            return f"e^{{{_tex(u)}}}"
        case ast.Call(func=ast.Name(id="log"), args=[u]):
            return rf"\log {_base(u)}"
        case ast.Call(func=ast.Name(id="max"), args=[u, ast.Constant()]):
            return _tex(u, inner)  # a guard, where the exponent could become negative
        case ast.Call(func=ast.Name(id="sigmoid"), args=[u]) if power := _power(u):
            return rf"\frac{{{power}}}{{1+{power}}}"
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return rf"\mathrm{{{name}}}\left({', '.join(map(_tex, arguments))}\right)"
    raise AssertionError(ast.dump(node))
