"""Size expressions: small Python arithmetic over symbol names, evaluated without ``eval``."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from autosplit.errors import DataError

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "max": max,
    "min": min,
    "abs": abs,
    "int": int,
    "float": float,
    "ceil": math.ceil,
    "floor": math.floor,
    "sqrt": math.sqrt,
}


def symbols_in(expression: str) -> frozenset[str]:
    """Return the symbol names an expression reads."""
    names = {node.id for node in ast.walk(_parse(expression)) if isinstance(node, ast.Name)}
    return frozenset(names - _FUNCTIONS.keys() - {"math"})


def evaluate(expression: str, values: Mapping[str, int]) -> int | float | bool:
    """Return the value of ``expression`` for the given symbol values.

    Raises
    ------
    DataError
        If the expression is not plain arithmetic, reads an unknown symbol or has no value.
    """
    try:
        result: int | float | bool = _value(_parse(expression), values, expression)
    except (ArithmeticError, ValueError, TypeError) as error:
        raise DataError(f"{expression!r} has no value", cause=str(error)) from None
    return result


def _parse(expression: str) -> ast.expr:
    try:
        return ast.parse(expression, mode="eval").body
    except SyntaxError as error:
        raise DataError(f"{expression!r} is not a size expression", cause=str(error)) from None


def _value(node: ast.expr, values: Mapping[str, int], text: str) -> Any:
    match node:
        case ast.Constant(value=int() | float() | bool()):
            return node.value
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.BinOp() if type(node.op) in _BINARY:
            left, right = (_value(side, values, text) for side in (node.left, node.right))
            return _BINARY[type(node.op)](left, right)
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand, values, text)
        case ast.UnaryOp(op=ast.Not()):
            return not _value(node.operand, values, text)
        case ast.Compare(ops=[op]) if type(op) in _COMPARE:
            left = _value(node.left, values, text)
            return _COMPARE[type(op)](left, _value(node.comparators[0], values, text))
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(arg, values, text) for arg in node.args))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr=name), keywords=[]) if (
            name in _FUNCTIONS
        ):
            return _FUNCTIONS[name](*(_value(arg, values, text) for arg in node.args))
    raise DataError(f"{text!r} is not a size expression over {sorted(values)}")
