"""Expressions as text on one line, with parentheses where they are needed only."""

from __future__ import annotations

import re

from autosplit.codegen.expressions import (
    Attribute,
    Binary,
    Comprehension,
    Conditional,
    DictDisplay,
    Display,
    Expr,
    Invoke,
    Number,
    Range,
    Subscript,
    Text,
    Unary,
)

PRECEDENCE: dict[str, int] = {
    "<": 5,
    "<=": 5,
    ">": 5,
    ">=": 5,
    "==": 5,
    "!=": 5,
    "|": 6,
    "^": 7,
    "&": 8,
    "<<": 9,
    ">>": 9,
    "+": 10,
    "-": 10,
    "*": 11,
    "/": 11,
    "//": 11,
    "%": 11,
    "@": 11,
    "**": 13,
}
_UNARY, _ATOM = 12, 20


def precedence(expr: Expr) -> int:
    """Return how tightly the outermost operator of ``expr`` binds."""
    match expr:
        case Binary(op=op):
            return PRECEDENCE[op]
        case Unary(op="not "):
            return 4
        case Unary():
            return _UNARY
        case Conditional():
            return 1
        case Display(kind="bare"):
            return 0
        case Text(text) if text.startswith("-"):
            return _UNARY
        case Number(value) if value < 0:
            return _UNARY
        case _:
            return _ATOM


def operands(expr: Binary) -> tuple[int, int]:
    """Return the precedence that the left and the right operand must have at least."""
    own = PRECEDENCE[expr.op]
    if expr.op == "**":
        return own + 1, _UNARY
    if own == PRECEDENCE["<"]:
        return own + 1, own + 1
    return own, own + 1


def show(expr: Expr, minimum: int = 0) -> str:
    """Return ``expr`` on one line, in parentheses if it binds looser than ``minimum``."""
    text = _show(expr)
    return f"({text})" if precedence(expr) < minimum else text


def _show(expr: Expr) -> str:
    match expr:
        case Text(text):
            return text
        case Number(value):
            return re.sub(r"e([-+]?)0+(?=\d)", r"e\1", repr(value))
        case Attribute(base, name):
            return f"{show_base(base)}.{name}"
        case Subscript(base, items):
            return f"{show_base(base)}[{show_items(items)}]"
        case Range():
            return _show_range(expr)
        case Invoke(function, args, kwargs):
            return f"{show_base(function)}({', '.join(arguments(args, kwargs))})"
        case Unary(op, operand):
            return op + show(operand, 14 if op in ("-", "~") else 0)
        case Binary(op, left, right):
            low, high = operands(expr)
            tight = op == "**" and is_simple(left) and is_simple(right)
            middle = op if tight else f" {op} "
            return show(left, low) + middle + show(right, high)
        case Conditional(then, test, other):
            return f"{show(then, 2)} if {show(test, 2)} else {show(other, 1)}"
        case Display(kind, items):
            return _show_display(kind, items)
        case DictDisplay(pairs):
            return "{" + ", ".join(map(show_pair, pairs)) + "}"
        case Comprehension(kind):
            opening, closing = {"list": "[]", "dict": "{}", "bare": ("", "")}[kind]
            return f"{opening}{show_element(expr)} {show_for(expr)}{closing}"
    raise TypeError(f"{expr!r} has no spelling yet")


def show_base(expr: Expr) -> str:
    """Return what stands before a dot or a bracket; a number needs parentheses there."""
    text = show(expr, _ATOM)
    return f"({text})" if text[:1].isdigit() else text


def arguments(args: tuple[Expr, ...], kwargs: tuple[tuple[str, Expr], ...]) -> list[str]:
    """Return each argument of a call on one line."""
    return [show(arg, 1) for arg in args] + [f"{key}={show(arg, 1)}" for key, arg in kwargs]


def show_items(items: tuple[Expr, ...]) -> str:
    """Return the contents of a subscript."""
    return ", ".join(show(item, 1) for item in items)


def show_pair(pair: tuple[Expr | None, Expr]) -> str:
    """Return one entry of a dict."""
    key, value = pair
    return f"**{show(value, 6)}" if key is None else f"{show(key, 1)}: {show(value, 1)}"


def show_element(expr: Comprehension) -> str:
    """Return what a comprehension repeats."""
    return show(expr.element, 1) if expr.key is None else show_pair((expr.key, expr.element))


def show_for(expr: Comprehension) -> str:
    """Return the clause of a comprehension."""
    return f"for {expr.target} in {show(expr.iterable, 2)}"


def _show_range(expr: Range) -> str:
    def bound(part: Expr | None) -> str:
        return "" if part is None else show(part, 1)

    simple = all(part is None or _is_bound(part) for part in (expr.start, expr.stop, expr.step))
    left = bound(expr.start) + (" " if not simple and expr.start is not None else "")
    right = (" " if not simple and expr.stop is not None else "") + bound(expr.stop)
    text = f"{left}:{right}"
    if expr.step is not None:
        text += (":" if simple else " : ") + bound(expr.step)
    return text


def _show_display(kind: str, items: tuple[Expr, ...]) -> str:
    text = ", ".join(show(item, 1) for item in items)
    if kind == "list":
        return f"[{text}]"
    if len(items) == 1:
        text += ","
    return text if kind == "bare" else f"({text})"


def _is_bound(expr: Expr) -> bool:
    """Say whether the formatter writes ``:`` beside ``expr`` without spaces."""
    if isinstance(expr, Unary):
        return _is_bound(expr.operand)
    return is_simple(expr) and "." not in show(expr)


def is_simple(expr: Expr) -> bool:
    """Say whether the formatter writes ``**`` beside ``expr`` without spaces."""
    match expr:
        case Number():
            return True
        case Text(text):
            body = text[1:] if text.startswith("-") else text
            return all(part.isidentifier() for part in body.split(".")) or _is_number(body)
        case Attribute(base, _):
            return is_simple(base)
        case Unary("-", Number()):
            return True
        case _:
            return False


def _is_number(text: str) -> bool:
    return text[:1].isdigit() and all(char.isalnum() or char in ".-+_" for char in text)


def quote(text: str) -> str:
    """Return a string literal; nothing in ``text`` can leave it."""
    mark = "'" if '"' in text and "'" not in text else '"'
    return mark + "".join(_escape(char, mark) for char in text) + mark


def _escape(char: str, mark: str) -> str:
    if char in (mark, "\\"):
        return "\\" + char
    if char.isprintable() and (char.isascii() or char.isalnum()):
        return char
    return char.encode("unicode_escape").decode("ascii")
