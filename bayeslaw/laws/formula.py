"""Formulas as people write them, such as ``nu*log(r) - beta*log(D)``: the log of a term.

A formula is read once, through `ast`, onto a tape (`bayeslaw.laws.tape`). From there it is
evaluated over an array namespace (NumPy, ``pytensor.tensor``, or the functions of the sampler's
tape) and differentiated, so prediction, the PyTensor model, the sampler, point fits and LaTeX all
come from the one text.
"""

import ast
import math
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, lru_cache

import numpy as np

from bayeslaw.common.arrays import Array, Namespace, Untyped
from bayeslaw.common.errors import LawError, unknown
from bayeslaw.laws.symbols import COLUMN, LETTERS, Values
from bayeslaw.laws.tape import CONSTANT, EXP, MULTIPLY, Node, Tape, evaluate
from bayeslaw.laws.tape import FUNCTIONS as F
from bayeslaw.tables.covariates import Covariate

FORMULA_FUNCTIONS = {
    "exp": 1, "log": 1, "log1p": 1, "expm1": 1, "sqrt": 1, "tanh": 1, "sigmoid": 1,
    "max": 2, "min": 2,
}  # fmt: skip
"""Functions of a formula, with the number of their arguments."""
OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
_X = "x "
"""Before the names of covariates among a tape's inputs: no parameter can have such a name."""


@lru_cache(maxsize=256)
def read(text: str, own: tuple[Covariate, ...] = ()) -> "Formula":
    """The formula of a text, in which the covariates that a law declares have their names."""
    return Formula(text, own)


class Formula:
    """A formula that was read: its names, its tape, and functions of both. See `read`.

    >>> formula = read("nu*log(r) - beta*log(D)")
    >>> formula.parameters, formula.covariates
    (['nu', 'beta'], ['replay', 'tokens'])
    >>> formula.along["beta"], formula.without(["nu"])
    (('tokens',), '-(beta * log(D))')
    """

    def __init__(self, text: str, own: tuple[Covariate, ...]) -> None:
        self.text = text
        # Covariates by their symbols, those that the law declares by their names.
        self.letters = LETTERS | {row.name: row.name for row in own}
        self._not_logged = {row.name for row in own if not row.logged}
        self.log = self._on_a_tape(guarded=True)
        # In the order in which they are read, as the names below.
        inputs = self.log.tape.inputs
        self.covariates = [n.removeprefix(_X) for n in inputs if n.startswith(_X)]
        if not self._finite_somewhere():
            raise LawError(
                f"log = {text!r}: it is finite for no N, D, r, P and parameters, such as after a "
                "division by something that is always 0; mend the formula."
            )
        # Covariates of the products and functions that each name stands in; none if in no such.
        self.along: dict[str, tuple[str, ...]] = {}
        for name, covariates in self._partners(self.tree, self._letters_in(self.tree)):
            before = self.along.get(name, ())
            self.along[name] = tuple(dict.fromkeys(before + covariates))
        self.names = list(self.along)
        taken = {*self.letters, *FORMULA_FUNCTIONS}
        self.parameters = [name for name in self.names if name not in taken]

    @cached_property
    def tree(self) -> ast.expr:
        return ast.parse(self.text.strip(), mode="eval").body

    @cached_property
    def epsilon(self) -> float | None:
        """The number in ``log(r + epsilon)``, if the formula has one."""
        for node in ast.walk(self.tree):
            epsilon = epsilon_of(node)
            if epsilon is not None:
                return epsilon
        return None

    def without(self, names: Collection[str]) -> str:
        """The text with zero for some parameters, and without what vanishes."""
        # The visitor changes the tree that it is given.
        tree = ast.parse(self.text.strip(), mode="eval").body
        return ast.unparse(_Zeros(names).visit(tree))

    # -- values and derivatives ----------------------------------------------------------------

    @cached_property
    def unguarded(self) -> Node:
        """The log without guards: x where the formula has ``max(x, 1e-6)``."""
        return self._on_a_tape(guarded=False)

    def by(self, name: str) -> Node:
        """Derivative of the log by a parameter."""
        return derivative(self.log, name)

    @staticmethod
    def slope(log: Node, covariate: str) -> Node:
        """Derivative along a covariate of the log, or of another function of its inputs."""
        return derivative(log, _X + covariate)

    @staticmethod
    def varies(node: Node) -> bool:
        """Whether a function of the inputs depends on a covariate."""
        return any(name.startswith(_X) for name in node.names)

    @staticmethod
    def values(
        nodes: Sequence[Node], p: Values, x: Values, xp: Namespace
    ) -> list[Untyped]:
        """Values of some functions of parameters `p` and covariates `x`."""

        def value_of(name: str) -> Array:
            if name.startswith(_X):
                return x[name.removeprefix(_X)]
            return p[name]

        return evaluate(nodes, value_of, xp)

    def _finite_somewhere(self) -> bool:
        """Whether the formula is finite at any of many values of its inputs."""
        rng = np.random.default_rng(0)
        points = 200
        inputs = self.log.tape.inputs
        values = {name: np.exp(rng.uniform(-20, 3, points)) for name in inputs}
        for covariate in self.covariates:
            if covariate in COLUMN:  # a ratio is below 1, other counts are not
                low, high = (-10, 0) if COLUMN[covariate] == "replay" else (0, 30)
                values[_X + covariate] = rng.uniform(low, high, points)
        with np.errstate(all="ignore"):
            (logs,) = evaluate([self.log], values.__getitem__, np)
        return bool(np.isfinite(logs).any())

    # -- reading -------------------------------------------------------------------------------

    def _on_a_tape(self, *, guarded: bool) -> Node:
        """The log on a tape of its own."""
        text = self.text
        try:
            with np.errstate(all="ignore"):
                log = self._read(self.tree, Tape(), guarded)
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
        for node in log.tape.nodes:
            if node.kind == CONSTANT and not math.isfinite(node.detail):
                raise LawError(f"log = {text!r}: a number in it is not finite.")
        return log

    def _read(self, node: ast.expr, tape: Tape, guarded: bool) -> Node:
        """A node of the tape."""

        def named(name: str) -> Node:
            return tape.inputs.get(name) or tape.input(name)

        def read(operand: ast.expr) -> Node:
            return self._read(operand, tape, guarded)

        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(
                value, bool
            ):
                return tape.constant(value)
            case ast.Name(id=name) if name in self.letters:
                covariate = named(_X + self.letters[name])
                if name in self._not_logged:
                    return covariate
                return _function("exp", covariate)
            case ast.Name(id=name):
                return named(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -read(operand)
            case ast.Call(func=ast.Name(id="log"), args=[argument]) if (
                epsilon_of(argument) is not None
            ):
                # A covariate of its own, so that it is not computed again for every draw.
                return named(_X + "barrier")
            case ast.Call(func=ast.Name(id="max"), args=[u, ast.Constant()]) if (
                not guarded
            ):
                return read(u)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return _operator(OPERATORS[type(op)], read(left), read(right))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                if name not in FORMULA_FUNCTIONS:
                    raise ValueError(unknown("function", name, FORMULA_FUNCTIONS))
                count = FORMULA_FUNCTIONS[name]
                if len(arguments) != count:
                    many = "1 argument" if count == 1 else f"{count} arguments"
                    raise ValueError(f"{name} takes {many}, not {len(arguments)}.")
                return _function(name, *map(read, arguments))
        raise ValueError(
            f"cannot read {ast.unparse(node)!r}; a formula has numbers, names, + - * / **, and "
            f"{', '.join(FORMULA_FUNCTIONS)}."
        )

    def _letters_in(self, node: ast.expr) -> tuple[str, ...]:
        """Covariates whose symbols an expression has."""
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        return tuple(c for letter, c in self.letters.items() if letter in names)

    def _partners(
        self, node: ast.expr, product: tuple[str, ...]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Each name, with the covariates of the product or function that it stands in.

        `product` are the covariates of the product that the node is, or is a factor of.
        """
        match node:
            case ast.Name(id=name):
                yield name, product
            case ast.UnaryOp(operand=operand):
                yield from self._partners(operand, product)
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
                yield from self._partners(left, self._letters_in(left))
                yield from self._partners(right, self._letters_in(right))
            case ast.BinOp(left=left, right=right):
                yield from self._partners(left, product)
                yield from self._partners(right, product)
            case ast.Call(args=arguments):
                inside = self._letters_in(node)
                for argument in arguments:
                    of_argument = self._letters_in(argument)
                    for name, along in self._partners(argument, of_argument):
                        yield name, along or inside


@lru_cache(maxsize=1024)
def derivative(node: Node, name: str) -> Node:
    """Derivative of a function on a tape by one of the tape's inputs."""
    inputs = node.tape.inputs
    if name not in inputs:
        return node * 0.0
    return node.tape.gradient(node, [inputs[name]])[0]


def epsilon_of(node: ast.AST) -> float | None:
    """The number e of r + e."""
    match node:
        case ast.BinOp(
            ast.Name("r"), ast.Add(), ast.Constant(value=float() | int() as epsilon)
        ):
            return float(epsilon)
    return None


def _function(name: str, *of: Node) -> Node:
    if name == "log" and of[0].kind == EXP:
        return of[0].first
    if name == "sqrt":
        return _operator("**", of[0], of[0].tape.constant(0.5))
    name_on_tape = {"max": "maximum", "min": "minimum"}.get(name, name)
    value: Node = getattr(F, name_on_tape)(*of)
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
            # 1 - exp(-u) keeps its digits where u is small.
            return -_function("expm1", b.first)
        case "-":
            return a - b
        case "**" if b.number == 2:
            return _operator("*", a, a)
        case "**":
            return _function("exp", b * _function("log", a))
    if b.kind == EXP and a.kind == EXP:
        log = a.first + b.first if operator == "*" else a.first - b.first
        return _function("exp", log)
    if b.kind == EXP and a.kind == MULTIPLY and a.second.kind == EXP:
        return a.first * _operator(operator, a.second, b)
    if b.kind == EXP and a.kind == MULTIPLY and a.first.kind == EXP:
        return a.second * _operator(operator, a.first, b)
    if operator == "/" and b.number == 0:
        raise ZeroDivisionError
    return a * b if operator == "*" else a / b


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
