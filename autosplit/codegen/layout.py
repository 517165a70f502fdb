"""Statements as lines of at most 88 columns, broken the way black and ``ruff format`` do.

The rules in short: a call, subscript or display that is too long opens its last bracket that
lets the text before it fit; operators and chains of methods go into parentheses, one operand
or method a line; what does not fit on one indented line stands one item a line with a comma.
"""

from __future__ import annotations

from itertools import pairwise

from autosplit.codegen.expressions import (
    PRECEDENCE,
    Attribute,
    Binary,
    Comprehension,
    Conditional,
    DictDisplay,
    Display,
    Expr,
    Invoke,
    Subscript,
    Unary,
    operands,
    precedence,
    show,
    show_base,
    show_element,
    show_for,
    show_items,
    show_pair,
)

WIDTH = 88
INDENT = "    "
_BRACKETS = {"list": ("[", "]"), "dict": ("{", "}"), "tuple": ("(", ")"), "bare": ("(", ")")}


def statement(indent: str, prefix: str, expr: Expr, suffix: str = "") -> list[str]:
    """Return the lines of ``prefix`` ``expr`` ``suffix`` at ``indent``.

    Parameters
    ----------
    indent
        Spaces at the start of the line.
    prefix
        What stands before the expression: ``"x = "``, ``"return "``, ``"for i in "``.
    suffix
        What stands after it: ``":"`` or nothing.
    """
    lead = indent + prefix
    if fits(lead + show(expr) + suffix):
        return [lead + show(expr) + suffix]
    if _wants_parentheses(expr, lead):
        return _parenthesised(expr, lead, suffix, indent)
    return _place(expr, lead, suffix, indent, inside=False)


def signature(indent: str, name: str, parameters: list[str]) -> list[str]:
    """Return the lines of ``def name(parameters):``."""
    one = f"{indent}def {name}({', '.join(parameters)}):"
    if fits(one):
        return [one]
    inner = indent + INDENT
    body = inner + ", ".join(parameters)
    lines = [body] if fits(body) else [f"{inner}{item}," for item in parameters]
    return [f"{indent}def {name}(", *lines, f"{indent}):"]


def fits(line: str) -> bool:
    """Say whether a line is short enough."""
    return len(line) <= WIDTH


# ---------------------------------------------------------------- parentheses of a statement


def _wants_parentheses(expr: Expr, lead: str) -> bool:
    match expr:
        case Display(kind="bare"):
            return True
        case Display() | DictDisplay() | Comprehension():
            return False
        case Binary():
            return not _may_break_at_end(expr, lead)
        case Conditional() | Unary():
            return True
        case Invoke() | Subscript() | Attribute():
            if is_fluent(expr):
                return True
            return not fits(lead + _before_first_bracket(expr))
        case _:
            return False


def _may_break_at_end(expr: Binary, lead: str) -> bool:
    """Say whether ``a + f(...)`` may open the bracket of its last operand instead."""
    terms = _terms(expr)
    if len(terms) != 2 or any(isinstance(term, Binary) for _, term in terms):
        return False
    (_, first), (op, last) = terms
    if not isinstance(last, Invoke | Subscript | Display) or is_fluent(last):
        return False
    return fits(f"{lead}{show(first, operands(expr)[0])} {op} {_before_first_bracket(last)}")


def _parenthesised(expr: Expr, lead: str, suffix: str, indent: str) -> list[str]:
    inner = indent + INDENT
    if isinstance(expr, Display):
        lines = [line for item in expr.items for line in _place(item, inner, ",", inner)]
    else:
        lines = _place(expr, inner, "", inner)
    return [lead + "(", *lines, f"{indent}){suffix}"]


def _before_first_bracket(expr: Expr) -> str:
    head, trailers = _chain(expr)
    text = show_base(head) if trailers else show(head)
    for trailer in trailers:
        if isinstance(trailer, str):
            text += trailer
        else:
            return text + trailer.opening
    return text


# ---------------------------------------------------------------- placing an expression


def _place(
    expr: Expr, lead: str, tail: str, indent: str, *, inside: bool = True, minimum: int = 0
) -> list[str]:
    """Return lines that start with ``lead``, end with ``tail`` and hold ``expr`` in between.

    ``inside`` says that brackets are open around it, so that a line may end anywhere.
    """
    one = lead + show(expr, minimum) + tail
    if fits(one):
        return [one]
    if precedence(expr) < minimum:
        inner = indent + INDENT
        return [lead + "(", *_place(expr, inner, "", inner), f"{indent}){tail}"]
    match expr:
        case Binary(op, left, right) if not inside:
            low, high = operands(expr)
            start = f"{lead}{show(left, low)} {op} "
            return _place(right, start, tail, indent, inside=False, minimum=high)
        case Binary():
            return _place_terms(expr, lead, tail, indent)
        case Unary(op, operand) if op in ("*", "**", "-", "~"):
            return _place(operand, lead + op, tail, indent, inside=inside, minimum=12)
        case Conditional(then, test, other) if inside:
            return [
                *_place(then, lead, "", indent),
                *_place(test, f"{indent}if ", "", indent),
                *_place(other, f"{indent}else ", tail, indent),
            ]
        case Display(kind="bare"):
            return [one]
        case Display(kind, items):
            opening, closing = _BRACKETS[kind]
            return _exploded(list(items), lead + opening, closing + tail, indent)
        case DictDisplay(pairs):
            return _pairs(list(pairs), lead, tail, indent)
        case Comprehension():
            return _comprehension(expr, lead, tail, indent)
        case Invoke() | Subscript() | Attribute():
            if inside and is_fluent(expr):
                return _fluent(expr, lead, tail, indent)
            return _brackets(expr, lead, tail, indent)
    return [one]


def _place_terms(expr: Binary, lead: str, tail: str, indent: str) -> list[str]:
    low, high = operands(expr)
    terms = _terms(expr)
    lines: list[str] = []
    for index, (op, term) in enumerate(terms):
        start = lead if index == 0 else f"{indent}{op} "
        end = tail if index == len(terms) - 1 else ""
        lines += _place(term, start, end, indent, minimum=low if index == 0 else high)
    return lines


def _terms(expr: Binary) -> list[tuple[str, Expr]]:
    """Return operands of one precedence: ``a + b - c`` gives ("", a), ("+", b), ("-", c)."""
    own = PRECEDENCE[expr.op]
    terms: list[tuple[str, Expr]] = []
    left: Expr = expr
    while isinstance(left, Binary) and PRECEDENCE[left.op] == own and left.op != "**":
        terms.append((left.op, left.right))
        left = left.left
    if not terms:
        return [("", expr.left), (expr.op, expr.right)]
    return [("", left), *reversed(terms)]


def _exploded(items: list[Expr], opening: str, closing: str, indent: str) -> list[str]:
    inner = indent + INDENT
    lines = [line for item in items for line in _place(item, inner, ",", inner, minimum=1)]
    return [opening, *lines, indent + closing]


def _pairs(pairs: list[tuple[Expr | None, Expr]], lead: str, tail: str, indent: str) -> list[str]:
    inner = indent + INDENT
    lines: list[str] = []
    for pair in pairs:
        key, value = pair
        if fits(inner + show_pair(pair) + ","):
            lines.append(inner + show_pair(pair) + ",")
        else:
            start = f"{inner}**" if key is None else f"{inner}{show(key, 1)}: "
            lines += _place(value, start, ",", inner, minimum=1)
    return [lead + "{", *lines, f"{indent}}}{tail}"]


def _comprehension(expr: Comprehension, lead: str, tail: str, indent: str) -> list[str]:
    opening, closing = _BRACKETS[expr.kind]
    inner = indent + INDENT
    return [lead + opening, *_clauses(expr, inner), f"{indent}{closing}{tail}"]


def _clauses(expr: Comprehension, inner: str) -> list[str]:
    one = f"{inner}{show_element(expr)} {show_for(expr)}"
    if fits(one):
        return [one]
    start = inner if expr.key is None else f"{inner}{show(expr.key, 1)}: "
    element = _place(expr.element, start, "", inner, minimum=1)
    return [*element, *_place(expr.iterable, f"{inner}for {expr.target} in ", "", inner)]


# ---------------------------------------------------------------- calls, subscripts, methods


class _Bracket:
    """The arguments of a call or the items of a subscript."""

    def __init__(self, owner: Invoke | Subscript) -> None:
        self.call = isinstance(owner, Invoke)
        self.opening, self.closing = ("(", ")") if self.call else ("[", "]")
        self.pairs: list[tuple[str, Expr]] = (
            [*(("", arg) for arg in owner.args), *((f"{k}=", v) for k, v in owner.kwargs)]
            if isinstance(owner, Invoke)
            else [("", item) for item in owner.items]
        )
        self.text = show_items(tuple(expr for _, expr in self.pairs))
        if self.call:
            self.text = ", ".join(key + show(expr, 1) for key, expr in self.pairs)

    def lines(self, indent: str) -> list[str]:
        """Return the contents on lines of their own at ``indent``."""
        if len(self.pairs) == 1:
            only = self.pairs[0][1]
            if isinstance(only, Comprehension) and only.kind == "bare":
                return _clauses(only, indent)
        if fits(indent + self.text) and (self.call or len(self.pairs) == 1):
            return [indent + self.text]
        end = "," if len(self.pairs) > 1 else ""
        return [
            line
            for key, expr in self.pairs
            for line in _place(expr, indent + key, end, indent, minimum=1)
        ]


def _chain(expr: Expr) -> tuple[Expr, list[str | _Bracket]]:
    """Return the head of a chain and what follows it: ``.name`` texts and brackets."""
    trailers: list[str | _Bracket] = []
    while True:
        match expr:
            case Attribute(base, name):
                trailers.append(f".{name}")
                expr = base
            case Invoke(function):
                trailers.append(_Bracket(expr))
                expr = function
            case Subscript(base):
                trailers.append(_Bracket(expr))
                expr = base
            case _:
                return expr, trailers[::-1]


def is_fluent(expr: Expr) -> bool:
    """Say whether a chain has two or more attributes that follow a bracket."""
    head, trailers = _chain(expr)
    count = int(isinstance(head, Binary | Unary) and bool(trailers))
    for before, after in pairwise(trailers):
        count += isinstance(before, _Bracket) and isinstance(after, str)
    return count >= 2


def _brackets(expr: Expr, lead: str, tail: str, indent: str) -> list[str]:
    head, trailers = _chain(expr)
    lines = _place(head, lead, "", indent, minimum=20)
    return lines[:-1] + _follow(lines[-1], trailers, tail, indent)


def _follow(line: str, trailers: list[str | _Bracket], tail: str, indent: str) -> list[str]:
    """Append trailers to ``line``, opening a bracket where the text up to the next is too long."""
    lines: list[str] = []
    for index, trailer in enumerate(trailers):
        if isinstance(trailer, str):
            line += trailer
            continue
        whole = trailer.opening + trailer.text + trailer.closing
        if not trailer.pairs or fits(line + whole + _up_to_bracket(trailers[index + 1 :], tail)):
            line += whole
            continue
        lines += [line + trailer.opening, *trailer.lines(indent + INDENT)]
        line = indent + trailer.closing
    return [*lines, line + tail]


def _up_to_bracket(trailers: list[str | _Bracket], tail: str) -> str:
    text = ""
    for trailer in trailers:
        if isinstance(trailer, str):
            text += trailer
        elif trailer.pairs:
            return text + trailer.opening
        else:
            text += trailer.opening + trailer.closing
    return text + tail


def _fluent(expr: Expr, lead: str, tail: str, indent: str) -> list[str]:
    head, trailers = _chain(expr)
    lines = _place(head, lead, "", indent, minimum=20)
    groups: list[list[str | _Bracket]] = [[]]
    for index, trailer in enumerate(trailers):
        starts = (
            isinstance(trailer, str) and index > 0 and isinstance(trailers[index - 1], _Bracket)
        )
        if starts or (isinstance(trailer, str) and index == 0 and isinstance(head, Binary | Unary)):
            groups.append([])
        groups[-1].append(trailer)
    for index, group in enumerate(groups):
        end = tail if index == len(groups) - 1 else ""
        start = lines.pop() if index == 0 else indent
        lines += _follow(start, group, end, indent)
    return lines
