"""Gradients of weights put off until no other rank waits: what zero-bubble schedules split.

torch splits the backward of a stage by cutting its autograd graph in two. That loses gradients
where no input of the stage needs one, counts them twice where parameters meet, and fails where
a module is used twice. Here the graph stays whole. Only the products of weights with what they
were multiplied by leave it: each depends on nothing but two tensors that backward has at hand,
and nothing depends on it but the ``grad`` of its weight. All other gradients, such as those of
norms, embeddings and biases, are computed with the gradients of inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

Call: TypeAlias = Callable[[], None]


class LaterWeightGradients(TorchFunctionMode):
    """Inside this mode, backward keeps gradients of weights for later.

    ``take`` hands them over; it is what torch calls a ``dw_builder``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[Call] = []

    def add(self, weight: Tensor, gradient: Callable[[], Tensor]) -> None:
        """Put off a gradient of ``weight``."""
        self._waiting.append(partial(_accumulate, weight, gradient))

    def take(self) -> Call:
        """Return a function that computes what has been put off since the last call."""
        waiting, self._waiting = self._waiting, []
        return partial(_run_all, waiting)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one call of the stage's forward, with its weight gradient put off if it can be."""
        kwargs = kwargs or {}
        product = _PRODUCTS.get(func) if torch.is_grad_enabled() else None
        found = None if product is None else product(self, *args, **kwargs)
        return func(*args, **kwargs) if found is None else found


@torch.no_grad()
def _accumulate(weight: Tensor, gradient: Callable[[], Tensor]) -> None:
    found = gradient().to(weight.dtype)
    if weight.grad is None:
        weight.grad = found
    else:
        weight.grad += found


def _run_all(calls: list[Call]) -> None:
    for call in calls:
        call()


# ---------------------------------------------------------------- products with a matrix


class _MatrixProduct(torch.autograd.Function):
    """``x @ weight + bias`` for ``x`` of shape (rows, in) and ``weight`` of shape (in, out)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        later: LaterWeightGradients,
        transposed: bool,
    ) -> Tensor:
        used = weight.to(x.dtype)
        ctx.save_for_backward(x, used)
        ctx.set_materialize_grads(False)
        ctx.weight, ctx.bias, ctx.later, ctx.transposed = weight, bias, later, transposed
        matrix = used.t() if transposed else used
        return x.mm(matrix) if bias is None else torch.addmm(bias.to(x.dtype), x, matrix)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        if grad is None:
            return None, None, None, None, None
        x, used = ctx.saved_tensors
        if ctx.needs_input_grad[1]:
            factors = (grad.t(), x) if ctx.transposed else (x.t(), grad)
            ctx.later.add(ctx.weight, partial(torch.mm, *factors))
        grad_x = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = grad.mm(used if ctx.transposed else used.t())
        if ctx.needs_input_grad[2]:
            grad_bias = grad.sum_to_size(ctx.bias.shape).to(ctx.bias.dtype)
        return grad_x, None, grad_bias, None, None


def _multiply(
    later: LaterWeightGradients, x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool
) -> Tensor | None:
    """Return the product, or None where it has no weight of its own to put off."""
    given = _as_computed(x, weight)
    if given is None or weight.dim() != 2 or x.dim() < 2:
        return None
    width, out = (weight.shape[1], weight.shape[0]) if transposed else weight.shape
    rows = given.reshape(-1, width)
    product: Tensor = _MatrixProduct.apply(rows, weight, bias, later, transposed)  # type: ignore[no-untyped-call]
    return product if x.dim() == 2 else product.view(*x.shape[:-1], out)


def _linear(
    later: LaterWeightGradients,
    input: Tensor,  # noqa: A002 (torch's name)
    weight: Tensor,
    bias: Tensor | None = None,
) -> Tensor | None:
    return _multiply(later, input, weight, bias, transposed=True)


def _matmul(
    later: LaterWeightGradients,
    input: Any,  # noqa: A002 (torch's name)
    other: Any = None,
    **more: Any,
) -> Tensor | None:
    tensors = isinstance(input, Tensor) and isinstance(other, Tensor)
    return _multiply(later, input, other, None, transposed=False) if tensors and not more else None


def _addmm(
    later: LaterWeightGradients,
    input: Tensor,  # noqa: A002 (torch's name)
    mat1: Tensor,
    mat2: Tensor,
    **more: Any,
) -> Tensor | None:
    simple = not more and input.dim() == 1 and input.is_floating_point()
    return _multiply(later, mat1, mat2, input, transposed=False) if simple else None


# ---------------------------------------------------------------- convolutions


class _Convolution(torch.autograd.Function):
    """A convolution; ``more`` are stride, padding and dilation, and the number of groups."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        later: LaterWeightGradients,
        more: tuple[list[int], list[int], list[int], int],
    ) -> Tensor:
        used = weight.to(x.dtype)
        ctx.save_for_backward(x, used)
        ctx.set_materialize_grads(False)
        ctx.weight, ctx.bias, ctx.later, ctx.more = weight, bias, later, more
        stride, padding, dilation, groups = more
        added = None if bias is None else bias.to(x.dtype)
        nothing = [0] * len(stride)
        return torch.convolution(x, used, added, stride, padding, dilation, False, nothing, groups)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        if grad is None:
            return None, None, None, None, None
        x, used = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        gradients = partial(_convolution_gradients, grad, x, used, ctx.more)
        if needs_weight:
            ctx.later.add(ctx.weight, lambda: gradients((False, True, False))[1])
        grad_x, _, grad_bias = gradients((needs_x, False, needs_bias))
        if needs_bias:
            grad_bias = grad_bias.to(ctx.bias.dtype)
        return grad_x, None, grad_bias, None, None


def _convolution_gradients(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    more: tuple[list[int], list[int], list[int], int],
    wanted: tuple[bool, bool, bool],
) -> Any:
    """Return the gradients of input, weight and bias that are wanted."""
    if not any(wanted):
        return None, None, None
    stride, padding, dilation, groups = more
    return torch.ops.aten.convolution_backward(
        grad,
        x,
        weight,
        [weight.shape[0]],
        stride,
        padding,
        dilation,
        False,
        [0] * len(stride),
        groups,
        list(wanted),
    )


def _convolve(
    later: LaterWeightGradients,
    input: Tensor,  # noqa: A002 (torch's name)
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    given = _as_computed(input, weight)
    places = weight.dim() - 2
    if given is None or input.dim() != weight.dim() or isinstance(padding, str):
        return None
    more = (_each(stride, places), _each(padding, places), _each(dilation, places), groups)
    found: Tensor = _Convolution.apply(given, weight, bias, later, more)  # type: ignore[no-untyped-call]
    return found


def _each(value: Any, places: int) -> list[int]:
    """Return one number for each dimension, as convolutions take them."""
    values = [value] if isinstance(value, int) else list(value)
    return values * places if len(values) == 1 else values


# ---------------------------------------------------------------- what may be put off


def _as_computed(x: Tensor, weight: Tensor) -> Tensor | None:
    """Return ``x`` in the dtype of the product; None where the weight must not be put off.

    Only a trained parameter itself may: what is computed from parameters needs its gradient
    to go on.
    """
    if type(weight) is not nn.Parameter or not weight.requires_grad or type(x) is not Tensor:
        return None
    device = x.device.type
    if torch.is_autocast_enabled(device):
        eligible = {torch.float32, torch.float16, torch.bfloat16}
        if {x.dtype, weight.dtype} <= eligible:
            return x.to(torch.get_autocast_dtype(device))
    return x if x.dtype == weight.dtype else None


_PRODUCTS: dict[Callable[..., Any], Callable[..., Tensor | None]] = {
    F.linear: _linear,
    torch.matmul: _matmul,
    torch.mm: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.mm: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.addmm: _addmm,
    torch.Tensor.addmm: _addmm,
    F.conv1d: _convolve,
    F.conv2d: _convolve,
    F.conv3d: _convolve,
}
