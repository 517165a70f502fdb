"""Which torch functions draw random numbers."""

from __future__ import annotations

from typing import Any

_ALWAYS = {
    "bernoulli",
    "bernoulli_",
    "cauchy_",
    "exponential_",
    "geometric_",
    "gumbel_softmax",
    "log_normal_",
    "multinomial",
    "normal",
    "normal_",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "random_",
    "randperm",
    "uniform_",
}
_RATES = {"scaled_dot_product_attention": ("dropout_p", 4), "rrelu": ("training", 3)}


def draws_random_numbers(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether a call with these arguments draws random numbers."""
    name = getattr(target, "__name__", "")
    if name in _ALWAYS:
        return True
    if "dropout" in name:
        rate = _argument("p", 1, args, kwargs, 0.5)
        return bool(_argument("training", 2, args, kwargs, True)) and bool(rate)
    if name in _RATES:
        return bool(_argument(*_RATES[name], args, kwargs, False))
    if name == "multi_head_attention_forward":
        rate = _argument("dropout_p", 10, args, kwargs, 0.0)
        return bool(rate) and bool(kwargs.get("training", True))
    return False


def _argument(
    name: str, position: int, args: tuple[Any, ...], kwargs: dict[str, Any], default: Any
) -> Any:
    if name in kwargs:
        return kwargs[name]
    return args[position] if position < len(args) else default
