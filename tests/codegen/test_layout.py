"""Lines come out as the formatter would have them."""

from __future__ import annotations

import random
import subprocess

import pytest

from autosplit.codegen.expressions import (
    Attribute,
    Binary,
    Comprehension,
    Display,
    Expr,
    Invoke,
    Number,
    Range,
    Subscript,
    Text,
    Unary,
    call,
    dotted,
)
from autosplit.codegen.layout import WIDTH, signature, statement
from autosplit.codegen.spelling import quote, show
from tests.commands import RUFF

NAMES = ("x", "hidden_states", "attention_mask", "self.attn", "q", "position_bias", "mask")
FUNCTIONS = ("F.scaled_dot_product_attention", "torch.cat", "self.c_attn")
METHODS = ("view", "transpose", "contiguous", "reshape")


def formatted(text: str) -> str:
    """Return what ``ruff format`` makes of a file."""
    command = [*RUFF, "format", "--isolated", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def expression(numbers: random.Random, depth: int) -> Expr:
    """Return a random expression of the kinds that models are made of."""
    kind = numbers.random()
    if depth == 0 or kind < 0.15:
        return dotted(numbers.choice(NAMES)) if numbers.random() < 0.7 else Number(48)
    if kind < 0.6:
        base = expression(numbers, depth - 1)
        method = Attribute(base, numbers.choice(METHODS))
        plain = dotted(numbers.choice(FUNCTIONS))
        function = plain if isinstance(base, Number) or numbers.random() < 0.5 else method
        args = tuple(expression(numbers, depth - 1) for _ in range(numbers.choice((0, 1, 2, 3))))
        named = ("attn_mask", "dim")[: numbers.choice((0, 0, 1, 2))]
        return Invoke(function, args, tuple((n, expression(numbers, depth - 1)) for n in named))
    if kind < 0.8:
        op = numbers.choice(("+", "*", "-", "@", "/", "&"))
        return Binary(op, expression(numbers, depth - 1), expression(numbers, depth - 1))
    if kind < 0.9:
        items = tuple(expression(numbers, 0) for _ in range(numbers.choice((1, 2))))
        return Subscript(dotted(numbers.choice(NAMES)), items)
    items = tuple(expression(numbers, depth - 1) for _ in range(numbers.choice((1, 2, 3))))
    return Display(numbers.choice(("list", "tuple")), items)


@pytest.mark.parametrize("seed", range(2))
def test_statements_are_stable_under_the_formatter(seed: int) -> None:
    numbers = random.Random(seed)
    lines = ["def f():"]
    for _ in range(200):
        prefix = numbers.choice(("x = ", "return ", "hidden_states = ", "a, b = "))
        lines += statement("    ", prefix, expression(numbers, numbers.choice((2, 3))))
    assert formatted("\n".join(lines) + "\n").splitlines() == lines


def test_long_lists_and_comprehensions_are_stable() -> None:
    block = call("Block", Number(64), Number(256), Text('"gelu"'))
    every = Comprehension("list", block, "_", call("range", Number(12)))
    some = Display(
        "list",
        (
            block,
            Unary(
                "*",
                Invoke(Text(""), (Comprehension("bare", block, "_", call("range", Number(11))),)),
            ),
        ),
    )
    keyed = Comprehension(
        "dict",
        call("nn.Sequential", block, block, block),
        "i",
        call("range", Number(4), Number(8)),
        call("str", Text("i")),
    )
    lines = ["def f():"]
    lines += statement("    ", "self.transformer.layers = ", call("nn.ModuleList", every))
    lines += statement("    ", "self.transformer.layers = ", call("nn.ModuleList", some))
    lines += statement("    ", "self.transformer.layers = ", call("nn.ModuleDict", keyed))
    assert formatted("\n".join(lines) + "\n").splitlines() == lines


def test_long_signatures_are_stable() -> None:
    lines = [*signature("", "f", [f"argument_number_{i}" for i in range(7)]), "    return 1"]
    lines += ["", "", *signature("", "g", ["x" * 40, "y" * 40]), "    return 1"]
    assert formatted("\n".join(lines) + "\n").splitlines() == lines
    assert max(map(len, lines)) <= WIDTH


def test_precedence_is_written_only_where_needed() -> None:
    a, b, c = Text("a"), Text("b"), Text("c")
    assert show(Binary("*", Binary("+", a, b), c)) == "(a + b) * c"
    assert show(Binary("-", a, Binary("-", b, c))) == "a - (b - c)"
    assert show(Binary("**", Unary("-", a), Number(-2))) == "(-a) ** -2"
    assert show(Unary("-", Binary("**", a, Number(2)))) == "-(a**2)"
    assert show(Attribute(Binary("+", a, b), "T")) == "(a + b).T"
    assert show(Binary("<", Binary("<", a, b), c)) == "(a < b) < c"
    assert show(Subscript(a, (Range(None, Binary("+", b, Number(1)), None),))) == "a[: b + 1]"


@pytest.mark.parametrize(
    "text", ['"', "\\", "\n", "'''\"\"\"", "a\x00b", "é\u2028", "\\N{BULLET}", '"); import os #']
)
def test_quoted_text_evaluates_to_itself(text: str) -> None:
    assert eval(quote(text)) == text
