import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosplit.errors import DataError
from autosplit.sizes import evaluate, symbols_in

VALUES = {"batch": 4, "seq": 7}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("3", 3),
        ("batch", 4),
        ("2*batch + seq - 1", 14),
        ("seq // 2", 3),
        ("seq / 2", 3.5),
        ("seq % batch", 3),
        ("-seq", -7),
        ("batch**2", 16),
        ("batch**-0.5", 0.5),
        ("max(batch, seq, 5)", 7),
        ("math.sqrt(batch)", 2.0),
        ("int(seq / 2)", 3),
        ("batch < seq", True),
        ("not batch == seq", True),
    ],
)
def test_arithmetic_is_evaluated(expression, expected):
    assert evaluate(expression, VALUES) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "batch.real",
        "[batch]",
        "lambda: 1",
        "batch if seq else 1",
        "'batch'",
        "unknown + 1",
        "max(batch, key=int)",
        "math.__doc__",
        "1 +",
        "1 // (batch - 4)",
        "math.sqrt(-1)",
        "max()",
        "",
    ],
)
def test_anything_else_is_refused(expression):
    with pytest.raises(DataError):
        evaluate(expression, VALUES)


def test_symbols_are_found_without_the_functions():
    assert symbols_in("max(batch, math.ceil(seq / 2)) + 1") == {"batch", "seq"}


@given(st.integers(-1000, 1000), st.integers(1, 1000))
def test_whole_arithmetic_is_pythons(left, right):
    values = {"a": left, "b": right}
    assert evaluate("a // b * b + a % b", values) == left
    assert math.isclose(evaluate("a / b", values), left / right)
