"""Numbers that people write as a formula."""

from __future__ import annotations

import math

from autosplit.codegen.expressions import (
    Attribute,
    Binary,
    Expr,
    Number,
    Text,
    call,
    dotted,
)

_LARGEST_COUNT = 4096
_LARGEST_LOGARITHM = math.log(2**20)
_SMALLEST = {
    -3.4028234663852886e38: "torch.float32",
    -65504.0: "torch.float16",
    -3.3895313892515355e38: "torch.bfloat16",
    -1.7976931348623157e308: "torch.float64",
}
LIMITS = {-value for value in _SMALLEST}
"""The largest numbers of the floating-point dtypes."""


def spell(number: Number) -> Expr:
    """Return a formula that evaluates to exactly ``number``, or the number itself."""
    value = number.value
    if isinstance(value, int):
        return number
    if value in _SMALLEST:
        return Attribute(call("torch.finfo", dotted(_SMALLEST[value])), "min")
    if value == math.sqrt(2 / math.pi):
        return call("math.sqrt", Binary("/", Text("2"), Text("math.pi")))
    if value <= 0 or len(repr(value)) < 8:
        return number
    count = round(math.exp(value)) if value < _LARGEST_LOGARITHM else 0
    if count > 1 and math.log(count) == value:
        return call("math.log", Text(str(count)))
    if value > 1:
        return number
    count = round(value**-2)
    if 1 < count <= _LARGEST_COUNT and count**-0.5 == value:
        return Binary("**", Text(str(count)), Text("-0.5"))
    if 1 < count <= _LARGEST_COUNT and 1 / math.sqrt(count) == value:
        return Binary("/", Text("1"), call("math.sqrt", Text(str(count))))
    return number
