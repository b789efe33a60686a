"""LaTeX of terms: powers over and under a fraction line, and exponentials."""

import ast

from bayeslaw.laws.formula import OPERATORS, epsilon_of
from bayeslaw.laws.symbols import SYMBOLS
from bayeslaw.tables.covariates import FLOPS

_GREEK = (
    "alpha", "beta", "gamma", "eta", "nu", "lambda", "zeta", "phi",
    "kappa", "mu", "omega", "rho", "xi", "chi", "delta", "theta", "tau", "sigma", "psi",
)  # fmt: skip


def tex(symbol: str) -> str:
    """LaTeX of a symbol, such as ``alpha``, ``A2`` or ``lambda_``."""
    if symbol == FLOPS:
        return "C"
    letters_and_number = symbol.removesuffix("_")
    letters = letters_and_number.rstrip("0123456789")
    number = letters_and_number.removeprefix(letters)
    if letters in _GREEK:
        text = f"\\{letters}"
    elif len(letters) > 1:
        text = rf"\mathrm{{{letters.replace('_', r'\_')}}}"
    else:
        text = letters
    return f"{text}_{number}" if number else text


def latex_of(coefficient: str, log: ast.expr) -> str:
    """LaTeX of a coefficient times ``exp(log)``."""
    over: list[str] = []
    under: list[str] = []
    exponentials: list[str] = []
    for sign, node in _summands(log):
        power = _power(node)
        if power is None:
            minus = "-" if sign < 0 else ""
            exponentials.append(f"e^{{{minus}{_tex(node)}}}")
        elif sign > 0:
            over.append(power)
        else:
            under.append(power)
    times = " ".join([tex(coefficient), *exponentials, *over])
    if not under:
        return times
    return rf"\frac{{{times}}}{{{' '.join(under)}}}"


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
    if epsilon_of(node) is not None:
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
            text = f"{_tex(left)} {OPERATORS[type(op)]} {_tex(right, isinstance(op, ast.Sub))}"
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
