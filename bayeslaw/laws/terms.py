"""Terms of a scaling law: a coefficient times the exponential of a formula, as people write it.

The formula, such as ``nu*log(r) - beta*log(D)``, is the log of the term over its coefficient. It is
read through `ast` into nodes: numbers, names, and tuples of an operation and its arguments. Nodes
are evaluated over an array namespace (NumPy, ``pytensor.tensor``, or the functions of
`bayeslaw.model.tape`) and differentiated by rules, so prediction, the PyTensor model, the sampler,
point fits and LaTeX all come from the one formula.

Covariates are logarithms: ``params``, ``tokens`` (in the law's token unit), ``ptpp``, ``replay``
(r clipped to [1e-9, 1 - 1e-9]), ``barrier`` (r + epsilon) and ``mixed`` (r + .01, whose log stays
bounded at r = 0), ``fresh`` (1 - r), ``start`` (the base's loss on the domain) and ``deviation``
(the base's loss on the domain of pre-training, over that expected of its size and budget),
``unique`` (tokens until new data repeat). ``share`` is r itself, ``unannealed`` 1 for checkpoints
that are not annealed and else 0.
"""

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from bayeslaw.common.arrays import Namespace, Tensor
from bayeslaw.common.errors import LawError, unknown

type Array = Tensor
"""NumPy array, PyTensor variable, or number."""
type Values = Mapping[str, Array]
type Node = float | str | tuple[Any, ...]

SYMBOLS = {
    "params": "N",
    "tokens": "D",
    "replay": "r",
    "barrier": r"(r+\varepsilon)",
    "share": "r",
    "mixed": "r",
    "ptpp": "P",
    "fresh": "(1-r)",
    "start": r"L_{\mathrm{start}}",
    "deviation": r"(b/\hat b)",
    "unique": "U",
    "unannealed": "h",
}
COLUMN = {
    **{name: name for name in ("params", "tokens", "replay", "ptpp")},
    **dict.fromkeys(("barrier", "share", "mixed", "fresh"), "replay"),
    "start": "start_loss",
    "deviation": "base_loss",
    "unique": "unique_tokens",
    "unannealed": "annealed",
}
"""Column of a loss table behind each covariate."""
ORIGIN: Mapping[str, float] = dict.fromkeys(SYMBOLS, 0.0)
"""The point at which amounts are the paper's coefficients; most terms have this value there."""

LETTERS = {"N": "params", "D": "tokens", "P": "ptpp", "r": "replay"}
"""Covariates of a formula by their symbols."""
BARRIER = "log(r + epsilon)"
"""Name of ``log(r + 1e-5)``. It is a covariate, so that it is not computed again for every draw."""
LOGS = {f"log({letter})": covariate for letter, covariate in LETTERS.items()} | {BARRIER: "barrier"}
"""Names of the covariates' logs among the nodes."""
FUNCTIONS = {
    "exp": 1, "log": 1, "log1p": 1, "expm1": 1, "sqrt": 1, "tanh": 1, "sigmoid": 1,
    "max": 2, "min": 2,
}  # fmt: skip
"""Functions of a formula, with the number of their arguments."""
_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
_GREEK = (
    "alpha", "beta", "gamma", "eta", "nu", "lambda", "zeta", "phi",
    "kappa", "mu", "omega", "rho", "xi",
)  # fmt: skip


def tex(symbol: str) -> str:
    """LaTeX of a parameter's symbol."""
    bare = symbol.removesuffix("_")
    return f"\\{bare}" if bare in _GREEK else bare


@dataclass(frozen=True)
class Term:
    r"""A coefficient times ``exp(log)``.

    Parameters
    ----------
    coefficient : str
        The paper's symbol of the coefficient.
    slope : str
        Name of the local slope: nats per e-fold of the leading covariate at the reference point.
    log : str
        Formula of the log of the term over its coefficient: numbers, the covariates N, D, P and r,
        parameters, + - * / **, and `FUNCTIONS`.
    along : str, optional
        Symbol of the leading covariate; by default the first in the formula.
    exponent : str, optional
        The leading exponent, a parameter of the formula; by default the first.
    stated : bool
        Whether the prior is of the exponent at the reference point, ``<exponent>_ref``, and not of
        the parameter.

    Raises
    ------
    LawError
        If the formula cannot be read.

    Examples
    --------
    >>> term = Term("B", "slope_D", "nu*log(r) - beta*log(D)", along="D", exponent="beta")
    >>> term.latex()
    '\\frac{B r^{\\nu}}{D^{\\beta}}'
    >>> x = {"tokens": math.log(4.0), "replay": 0.0}
    >>> round(math.exp(term.log_ratio({"beta": 0.5, "nu": 0.1}, x, ORIGIN, np)), 12)
    0.5
    """

    coefficient: str
    slope: str
    log: str
    along: str = ""
    exponent: str = ""
    stated: bool = False

    def __post_init__(self) -> None:
        used = {LOGS[name] for name in _names(_parsed(self.log)) if name in LOGS}
        for symbol, valid, what in (
            (self.along, [name for name, c in _SYMBOLS.items() if c in used], "along"),
            (self.exponent, _parameters(self.log), "exponent"),
        ):
            if not valid:
                needs = "covariate (N, D, P or r)" if what == "along" else "parameter"
                raise LawError(f"log = {self.log!r}: has no {needs}; a term has one.")
            if symbol and symbol not in valid:
                raise LawError(unknown(f"{what} of log = {self.log!r}:", symbol, valid))
        if self.exponents[0] not in _names(self._slope):
            raise LawError(
                f"log = {self.log!r}: its slope along {SYMBOLS[self.covariates[0]]} does not "
                f"depend on {self.leading}; name the leading covariate and exponent with 'along' "
                "and 'exponent'."
            )

    @cached_property
    def epsilon(self) -> float | None:
        """The number in ``log(r + epsilon)``, if the formula has one."""
        walked = ast.walk(ast.parse(self.log.strip(), mode="eval"))
        return next((e for node in walked if (e := _epsilon(node)) is not None), None)

    @cached_property
    def covariates(self) -> tuple[str, ...]:
        """Covariates that the term depends on, the leading one first."""
        names = [LOGS[name] for name in _names(_parsed(self.log)) if name in LOGS]
        return tuple(dict.fromkeys([_SYMBOLS[self.along], *names] if self.along else names))

    @cached_property
    def exponents(self) -> tuple[str, ...]:
        """Symbols of every parameter but the coefficient, the leading exponent first."""
        names = _parameters(self.log)
        return tuple(dict.fromkeys([self.exponent, *names] if self.exponent else names))

    @property
    def leading(self) -> str:
        """The paper's symbol of the leading exponent."""
        return self.exponents[0]

    @property
    def local(self) -> str:
        """Name of the leading exponent in reference coordinates."""
        return f"{self.leading}_ref" if self.stated else self.leading

    @cached_property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each exponent acts along: those that it is multiplied by."""
        along: dict[str, tuple[str, ...]] = {}
        for name, names in _partners(ast.parse(self.log.strip(), mode="eval").body):
            along[name] = tuple(dict.fromkeys(along.get(name, ()) + names))
        along[self.leading] = self.covariates[:1]
        return {name: along[name] or self.covariates for name in self.exponents}

    @cached_property
    def _slope(self) -> Node:
        """Minus the derivative of the log along the leading covariate."""
        return _negative(_derivative(_parsed(self.log), _name(self.covariates[0])))

    @cached_property
    def _affine(self) -> tuple[Node, Node]:
        """Offset and factor of the local exponent as a linear function of the leading one.

        A guard, ``max(x, 1e-6)``, counts as x: the local exponent of a prior has none.
        """
        slope = _unguarded(self._slope)
        return _replaced(slope, self.leading, 0.0), _derivative(slope, self.leading)

    def power_of(self, covariate: str) -> bool:
        """Whether it is a power of a covariate, with an exponent that is the same in all rows."""
        slope = _derivative(_parsed(self.log), _name(covariate))
        return slope != 0 and not {*LOGS} & {*_names(slope)}

    def rising_exponent(self, covariate: str) -> str:
        """The parameter that is the exponent of a covariate, or ''."""
        slope = _derivative(_parsed(self.log), _name(covariate))
        return slope if isinstance(slope, str) and slope not in LOGS else ""

    @property
    def gate(self) -> tuple[str, str] | None:
        """Depth and rate of ``1 - depth*sigmoid(rate*log(P))`` in the formula, if it is there."""
        return _gate(_parsed(self.log))

    def log_ratio(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        """Log of the term at `x` over its value at `at`; at `ORIGIN`, over its coefficient.

        Parameters
        ----------
        p : mapping
            Parameters by name: numbers, arrays of draws, PyTensor variables, nodes of a tape;
            complex numbers too, for derivatives.
        x, at : mapping
            Covariates of the rows, and of the reference point.
        xp : namespace
            NumPy, ``pytensor.tensor``, or the functions of a tape.
        """
        log = _parsed(self.log)
        here = _evaluate(log, p, x, xp)
        return here if at is ORIGIN else here - _evaluate(log, p, at, xp)

    def slopes(self, p: Values, x: Values, at: Values) -> dict[str, Array]:
        """Derivative of `log_ratio` by each exponent."""
        log = _parsed(self.log)
        there: dict[int, Array] = {}
        here: dict[int, Array] = {}
        by = {name: _derivative(log, name) for name in self.exponents}
        values = {n: _evaluate(node, p, x, np, there) for n, node in by.items()}
        if at is ORIGIN:
            return values
        return {n: values[n] - _evaluate(node, p, at, np, here) for n, node in by.items()}

    def local_exponent(self, p: Values, at: Values, xp: Namespace) -> Array:
        """Minus the derivative of the log along the leading covariate, at `at`."""
        return _evaluate(self._slope, p, at, xp)

    def to_local(self, p: Values, at: Values, xp: Namespace) -> dict[str, Array]:
        """Exponents in reference coordinates from the paper's."""
        q = {name: p[name] for name in self.exponents}
        if self.stated:
            offset, factor = (_evaluate(node, p, at, xp) for node in self._affine)
            q = {self.local: offset + factor * q.pop(self.leading)} | q
        return q

    def from_local(self, q: Values, at: Values, xp: Namespace) -> dict[str, Array]:
        """The paper's exponents from those in reference coordinates."""
        p = {name: q[name] for name in self.exponents if name != self.leading}
        if not self.stated:
            return {self.leading: q[self.leading]} | p
        offset, factor = (_evaluate(node, p, at, xp) for node in self._affine)
        return {self.leading: (q[self.local] - offset) / factor} | p

    def latex(self) -> str:
        """The term as LaTeX."""
        over, under, above = [], [], []
        for sign, node in _summands(ast.parse(self.log.strip(), mode="eval").body):
            power = _power(node)
            if power is None:
                above.append(f"{'-' * (sign < 0)}{_tex(node)}")
            elif sign < 0:
                under.append(power)
            else:
                over.append(power)
        times = " ".join([tex(self.coefficient), *over, *(f"e^{{{each}}}" for each in above)])
        if above:  # an exponential comes first, as people write it
            times = " ".join([tex(self.coefficient), *(f"e^{{{each}}}" for each in above), *over])
        return rf"\frac{{{times}}}{{{' '.join(under)}}}" if under else times


_SYMBOLS = LETTERS | {"r + epsilon": "barrier"}


def _name(covariate: str) -> str:
    return next(name for name, c in LOGS.items() if c == covariate)


# -- reading --------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _parsed(text: str) -> Node:
    """The nodes of a formula."""
    try:
        return _read(ast.parse(text.strip(), mode="eval").body, text)
    except (SyntaxError, ValueError) as error:
        raise LawError(f"cannot read log = {text!r}: {error}.") from error


def _read(node: ast.expr, text: str) -> Node:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return float(value)
        case ast.Name(id=name):
            return ("exp", f"log({name})") if name in LETTERS else name
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _negative(_read(operand, text))
        case ast.Call(func=ast.Name(id="log"), args=[argument]) if _epsilon(argument) is not None:
            return BARRIER
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATIONS[_OPERATORS[type(op)]](_read(left, text), _read(right, text))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            if name not in FUNCTIONS:
                raise LawError(f"log = {text!r}: {unknown('function', name, FUNCTIONS)}")
            if len(arguments) != FUNCTIONS[name]:
                count = FUNCTIONS[name]
                raise LawError(
                    f"log = {text!r}: {name} takes {count} argument{'s' * (count > 1)}, not "
                    f"{len(arguments)}."
                )
            return _call(name, *(_read(argument, text) for argument in arguments))
    raise LawError(
        f"log = {text!r}: cannot read {ast.unparse(node)!r}; a formula has numbers, names, "
        f"+ - * / **, and {', '.join(FUNCTIONS)}."
    )


def _epsilon(node: ast.AST) -> float | None:
    """The number e of r + e."""
    match node:
        case ast.BinOp(ast.Name("r"), ast.Add(), ast.Constant(value=float() | int() as epsilon)):
            return float(epsilon)
    return None


def _names(node: Node) -> list[str]:
    """Names in a formula, each once, in their order."""
    if isinstance(node, str):
        return [node]
    if not isinstance(node, tuple):
        return []
    return list(dict.fromkeys(name for argument in node[1:] for name in _names(argument)))


def _parameters(text: str) -> list[str]:
    _parsed(text)
    walked = ast.walk(ast.parse(text.strip(), mode="eval"))
    known = {*LETTERS, *FUNCTIONS}
    names = [n for n in walked if isinstance(n, ast.Name) and n.id not in known]
    return list(dict.fromkeys(n.id for n in sorted(names, key=lambda n: (n.lineno, n.col_offset))))


def _partners(node: ast.expr) -> list[tuple[str, tuple[str, ...]]]:
    """Each name of a formula, with the covariates of the product that it stands in."""
    if isinstance(node, ast.Call) or (
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)
    ):
        return [pair for child in ast.iter_child_nodes(node) for pair in _partners(child)]  # type: ignore[arg-type]
    inside = ast.unparse(node)
    found: list[tuple[str, tuple[str, ...]]] = []
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    along = tuple(c for letter, c in LETTERS.items() if letter in names)

    def factors(part: ast.expr) -> None:
        match part:
            case ast.Name(id=name):
                found.append((name, along))
            case ast.BinOp(left=left, op=ast.Mult() | ast.Div() | ast.Pow(), right=right):
                factors(left)
                factors(right)
            case ast.UnaryOp(operand=operand):
                factors(operand)
            case _ if ast.unparse(part) != inside:
                found.extend(_partners(part))

    factors(node)
    return found


# -- nodes ----------------------------------------------------------------------------------------
#
# Each constructor simplifies, so that a derivative is as short as one made by hand, and a power of
# covariates is one exponential: D/(N*P) is exp(log D - (log N + log P)), which cannot overflow.


def _add(a: Node, b: Node) -> Node:
    if a == 0 or b == 0:
        return b if a == 0 else a
    return a + b if isinstance(a, float) and isinstance(b, float) else ("+", a, b)


def _subtract(a: Node, b: Node) -> Node:
    if b == 0:
        return a
    if a == 0:
        return _negative(b)
    if a == 1 and isinstance(b, tuple) and b[0] == "exp":
        return _negative(("expm1", b[1]))  # 1 - exp(-u) keeps its digits where u is small
    return a - b if isinstance(a, float) and isinstance(b, float) else ("-", a, b)


def _negative(a: Node) -> Node:
    match a:
        case float():
            return -a
        case ("neg", b):
            return b  # type: ignore[no-any-return]
        case ("-", b, c):
            return _subtract(c, b)
        case ("*" | "/" as kind, b, c):
            return kind, _negative(b), c
    return ("neg", a)


def _multiply(a: Node, b: Node) -> Node:
    if a == 0 or b == 0:
        return 0.0
    if a == 1 or b == 1:
        return b if a == 1 else a
    match a, b:
        case float(), float():
            return a * b
        case ("exp", u), ("exp", v):
            return ("exp", _add(u, v))
        case ("neg", ("exp", _) as u), ("exp", _):
            return _negative(_multiply(u, b))
        case ("*", u, ("exp", _) as v), ("exp", _):
            return ("*", u, _multiply(v, b))
    return ("*", a, b)


def _divide(a: Node, b: Node) -> Node:
    if a == 0 or b == 1:
        return a
    match a, b:
        case float(), float():
            return a / b
        case ("exp", u), ("exp", v):
            return ("exp", _subtract(u, v))
        case ("neg", ("exp", _) as u), ("exp", _):
            return _negative(_divide(u, b))
        case ("*", u, ("exp", _) as v), ("exp", _):
            return ("*", u, _divide(v, b))
    return ("/", a, b)


def _raise(a: Node, b: Node) -> Node:
    return _multiply(a, a) if b == 2 else ("exp", _multiply(b, _call("log", a)))


def _call(name: str, *arguments: Node) -> Node:
    match name, arguments:
        case "log", (float() as number,):
            return math.log(number)
        case "log", (("exp", u),):
            return u  # type: ignore[no-any-return]
        case "sqrt", (u,):
            return _raise(u, 0.5)
        case "min", (u, v):
            return _negative(("max", _negative(u), _negative(v)))
    return (name, *arguments)


_OPERATIONS: dict[str, Callable[[Node, Node], Node]] = {
    "+": _add, "-": _subtract, "*": _multiply, "/": _divide, "**": _raise,
}  # fmt: skip


@lru_cache(maxsize=1024)
def _derivative(node: Node, by: str) -> Node:
    """Derivative by a name."""
    if not isinstance(node, tuple):
        return float(node == by)
    kind, *arguments = node
    slopes = [_derivative(argument, by) for argument in arguments]
    if not any(slope != 0 for slope in slopes):
        return 0.0
    a, da = arguments[0], slopes[0]
    b, db = (arguments[1], slopes[1]) if len(arguments) > 1 else (0.0, 0.0)
    match kind:
        case "+" | "-":
            return _OPERATIONS[kind](da, db)
        case "*":
            return _add(_multiply(da, b), _multiply(a, db))
        case "/":
            return _divide(_subtract(da, _multiply(node, db)), b)
        case "neg":
            return _negative(da)
        case "max":
            return _add(_multiply(("above", a, b), da), _multiply(("above", b, a), db))
        case "above":
            return 0.0
        case "log":
            return _divide(da, a)
        case "log1p":
            return _divide(da, _add(1.0, a))
        case "exp":
            return _multiply(da, node)
        case "expm1":
            return _multiply(da, ("exp", a))
        case "tanh":
            return _multiply(da, _subtract(1.0, _multiply(node, node)))
    assert kind == "sigmoid"
    return _multiply(_multiply(node, _subtract(1.0, node)), da)


def _replaced(node: Node, name: str, number: float) -> Node:
    """The node with a number in the place of a name."""
    if not isinstance(node, tuple):
        return number if node == name else node
    kind, *arguments = node
    new = [_replaced(argument, name, number) for argument in arguments]
    if kind == "neg":
        return _negative(new[0])
    return _OPERATIONS[kind](*new) if kind in _OPERATIONS else _call(kind, *new)


def _gate(node: Node) -> tuple[str, str] | None:
    match node:
        case ("-", 1.0, ("*", str(depth), ("sigmoid", ("*", str(rate), "log(P)")))):
            return depth, rate
        case (_, *arguments):
            return next(filter(None, map(_gate, arguments)), None)
    return None


def _unguarded(node: Node) -> Node:
    match node:
        case ("max", u, float()):
            return _unguarded(u)
        case (kind, *arguments):
            return (kind, *map(_unguarded, arguments))
    return node


def _evaluate(
    node: Node, p: Values, x: Values, xp: Namespace, known: dict[int, Array] | None = None
) -> Array:
    """Value of a node; `known` are those of nodes that several formulas have in common."""
    if isinstance(node, float):
        return node
    if isinstance(node, str):
        return x[LOGS[node]] if node in LOGS else p[node]
    if known is not None and id(node) in known:
        return known[id(node)]
    a, *others = (_evaluate(argument, p, x, xp, known) for argument in node[1:])
    match node[0]:
        case "+":
            value = a + others[0]
        case "-":
            value = a - others[0]
        case "*":
            value = a * others[0]
        case "/":
            value = a / others[0]
        case "neg":
            value = -a
        case "above":
            value = (a > others[0]) * 1.0
        case "max":
            value = xp.maximum(a, *others)
        case "sigmoid":
            value = 0.5 * (1 + xp.tanh(0.5 * a))
        case kind:
            value = getattr(xp, kind)(a)
    if known is not None:
        known[id(node)] = value
    return value


# -- LaTeX ----------------------------------------------------------------------------------------


def _summands(node: ast.expr, sign: int = 1) -> list[tuple[int, ast.expr]]:
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            other = sign if isinstance(op, ast.Add) else -sign
            return _summands(left, sign) + _summands(right, other)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _summands(operand, -sign)
        case ast.BinOp(left=ast.UnaryOp(op=ast.USub(), operand=operand), op=op, right=right):
            return [(-sign, ast.BinOp(operand, op, right))]
    return [(sign, node)]


def _power(node: ast.expr) -> str | None:
    """LaTeX of ``exp(node)`` as a power of something, where the node is an exponent times a log."""
    match node:
        case ast.Call(func=ast.Name(id="log"), args=[base]):
            return _base(base)
        case ast.BinOp(
            left=exponent, op=ast.Mult(), right=ast.Call(func=ast.Name(id="log"), args=[base])
        ):
            return f"{_base(base)}^{{{_tex(exponent)}}}"
    return None


def _base(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return _tex(node)
    if _epsilon(node) is not None:
        return SYMBOLS["barrier"]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
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
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            text = f"{_tex(left)} {_OPERATORS[type(op)]} {_tex(right, isinstance(op, ast.Sub))}"
            return rf"\left({text}\right)" if inner else text
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return f"{_tex(left, inner=True)} {_tex(right, inner=True)}"
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            below = _tex(right, inner=True)
            product = isinstance(right, ast.BinOp) and isinstance(right.op, ast.Mult)
            return f"{_tex(left, inner=True)}/{f'({below})' if product else below}"
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return f"{_tex(left, inner=True)}^{{{_tex(right)}}}"
        case ast.Call(func=ast.Name(id="exp"), args=[u]):
            return f"e^{{{_tex(u)}}}"
        case ast.Call(func=ast.Name(id="log"), args=[u]):
            return rf"\log {_base(u)}"
        case ast.Call(func=ast.Name(id="max"), args=[u, ast.Constant()]):
            return _tex(u, inner)  # a guard, where the exponent could become negative
        case ast.Call(func=ast.Name(id="sigmoid"), args=[u]):
            power = _power(u)
            return rf"\frac{{{power}}}{{1+{power}}}" if power else rf"\sigma\left({_tex(u)}\right)"
        case ast.Call(func=ast.Name(id=name), args=arguments):
            text = ", ".join(map(_tex, arguments))
            shown = rf"\{name}" if name in ("tanh", "max", "min") else rf"\mathrm{{{name}}}"
            return rf"{shown}\left({text}\right)"
    raise AssertionError(ast.dump(node))
