"""Statements as lines of at most 88 columns, broken the way black and ``ruff format`` do.

The rules in short: a call, subscript or display that is too long opens its last bracket that
lets the text before it fit; operators and chains of methods go into parentheses, one operand
or method a line; what does not fit on one indented line stands one item a line with a comma.
"""

from __future__ import annotations

from itertools import pairwise

from autosplit.codegen.expressions import (
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
)
from autosplit.codegen.spelling import (
    PRECEDENCE,
    operands,
    precedence,
    show,
    show_element,
    show_for,
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
            return not _may_open_a_bracket(expr, lead)
        case Unary(op, operand) if op != "not ":
            return _wants_parentheses(operand, lead + op)
        case Conditional() | Unary():
            return True
        case Invoke() | Subscript() | Attribute():
            if is_fluent(expr):
                return True
            return not fits(lead + _up_to_bracket(_pieces(expr, 0), ""))
        case _:
            return False


def _may_open_a_bracket(expr: Binary, lead: str) -> bool:
    """Say whether an operation may open the brackets of its operands instead.

    It may when it has one operator of the loosest kind, and begins or ends with brackets.
    """
    terms = _terms(expr)
    low, high = operands(expr)
    first, last = terms[0][1], terms[-1][1]
    if len(terms) != 2:
        return False
    if not _begins_with_bracket(first, low) and not _ends_with_bracket(last, high):
        return False
    trailers = _pieces(expr, 0)
    return fits(lead + _up_to_bracket(trailers, ""))


def _begins_with_bracket(expr: Expr, minimum: int) -> bool:
    if precedence(expr) < minimum:
        return True
    if isinstance(expr, Binary):
        return _begins_with_bracket(expr.left, operands(expr)[0])
    head, trailers = _chain(expr)
    if trailers:
        return _begins_with_bracket(head, 20)
    return isinstance(expr, Display) and expr.kind != "bare"


def _ends_with_bracket(expr: Expr, minimum: int) -> bool:
    if precedence(expr) < minimum:
        return True
    if isinstance(expr, Binary):
        return _ends_with_bracket(expr.right, operands(expr)[1])
    if isinstance(expr, Unary):
        return _ends_with_bracket(expr.operand, 14)
    if isinstance(expr, Invoke):
        return bool(expr.args or expr.kwargs)
    return isinstance(expr, Display) and expr.kind != "bare"


def _pieces(expr: Expr, minimum: int) -> list[str | _Bracket]:
    """Return an expression as the texts and brackets it is made of."""
    if precedence(expr) < minimum:
        return [_Bracket("(", ")", [("", expr)])]
    match expr:
        case Binary(op, left, right):
            low, high = operands(expr)
            tight = show(expr) == show(left, low) + op + show(right, high)
            middle = op if tight else f" {op} "
            return [*_pieces(left, low), middle, *_pieces(right, high)]
        case Unary(op, operand):
            return [op, *_pieces(operand, 14 if op in ("-", "~") else 0)]
        case Display(kind, items) if kind != "bare":
            opening, closing = _BRACKETS[kind]
            pairs = [("", item) for item in items]
            return [_Bracket(opening, closing, pairs, together=False)]
        case Invoke() | Subscript() | Attribute():
            head, trailers = _chain(expr)
            return [*_pieces(head, 20), *trailers]
    return [show(expr)]


def _parenthesised(expr: Expr, lead: str, suffix: str, indent: str) -> list[str]:
    inner = indent + INDENT
    if isinstance(expr, Display):
        lines = [line for item in expr.items for line in _place(item, inner, ",", inner)]
    else:
        lines = _place(expr, inner, "", inner)
    return [lead + "(", *lines, f"{indent}){suffix}"]


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
        case Binary() if not inside:
            return _follow(lead, _pieces(expr, 0), tail, indent)
        case Binary():
            return _place_terms(expr, lead, tail, indent)
        case Unary(op, operand) if op in ("*", "**", "-", "~"):
            return _place(operand, lead + op, tail, indent, inside=inside, minimum=14)
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
            return _follow(lead, _pieces(expr, 0), tail, indent)
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
    """A pair of brackets and what is inside: arguments, items, or an operation.

    ``together`` says that the contents may share one line of their own: those of a call or
    subscript may, those of a display may not.
    """

    def __init__(
        self, opening: str, closing: str, pairs: list[tuple[str, Expr]], *, together: bool = True
    ) -> None:
        self.opening, self.closing, self.pairs = opening, closing, pairs
        self.together = together
        least = 0 if len(pairs) == 1 and not pairs[0][0] else 1
        self.text = ", ".join(key + show(expr, least) for key, expr in pairs)

    def lines(self, indent: str) -> list[str]:
        """Return the contents on lines of their own at ``indent``."""
        if len(self.pairs) == 1:
            only = self.pairs[0][1]
            if isinstance(only, Comprehension) and only.kind == "bare":
                return _clauses(only, indent)
        if self.together and fits(indent + self.text):
            return [indent + self.text]
        end = "," if len(self.pairs) > 1 or not self.together else ""
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
            case Invoke(function, args, kwargs):
                pairs = [*(("", arg) for arg in args), *((f"{k}=", v) for k, v in kwargs)]
                trailers.append(_Bracket("(", ")", pairs))
                expr = function
            case Subscript(base, items):
                trailers.append(_Bracket("[", "]", [("", i) for i in items]))
                expr = base
            case _:
                return expr, trailers[::-1]


def is_fluent(expr: Expr) -> bool:
    """Say whether a chain has two or more attributes that follow a bracket."""
    head, trailers = _chain(expr)
    if not trailers:
        return False
    count = (
        int(isinstance(head, Binary | Unary) and isinstance(trailers[0], str)) if trailers else 0
    )
    for before, after in pairwise(trailers):
        count += isinstance(before, _Bracket) and isinstance(after, str)
    return count >= 2


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
