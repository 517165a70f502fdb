"""Real tensors and modules in place of those of a model on meta: right in size, not in value."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from autosplit.program import Program, TensorSpec
from autosplit.tracers.base import Trace

_PATTERN = 2**16
_SPREAD = 0.02
_SCRATCH_BYTES = 64 * 2**20


class StandIns:
    """Makes tensors and modules for some layers of a model on meta.

    Floating-point numbers are small and random, integers zero and truth values true: times that
    depend on values (a mixture of experts) are those of such inputs.

    Parameters
    ----------
    trace
        Trace of a model on meta.
    device
        Where the tensors live.
    """

    def __init__(self, trace: Trace, device: torch.device) -> None:
        self._trace = trace
        self._program: Program = trace.program
        self._device = device
        generator = torch.Generator().manual_seed(0)
        self._pattern = torch.randn(_PATTERN, generator=generator) * _SPREAD

    def modules(self, names: Iterable[str]) -> dict[str, nn.Module]:
        """Return the leaf modules that the named nodes call, by first name."""
        found: dict[str, nn.Module] = {}
        for name in names:
            node = self._program.node[name]
            if node.op == "module":
                fqn = self._program.module[node.target].fqn
                if fqn not in found:
                    found[fqn] = self._module(fqn)
        return found

    def state(self, names: Iterable[str], modules: dict[str, nn.Module]) -> dict[str, Tensor]:
        """Return the state that the named nodes use, by first name; modules keep their own."""
        own = {
            self._program.state[f"{fqn}.{key}"].fqn: tensor
            for fqn, module in modules.items()
            for key, tensor in (*module.named_parameters(), *module.named_buffers())
        }
        found: dict[str, Tensor] = {}
        for name in self._program.states_in(names):
            spec = self._program.state[name]
            if name in own:
                found[name] = own[name]
                continue
            constant = self._trace.constants.get(name)
            if constant is not None and constant.device.type != "meta":
                found[name] = constant.to(self._device)
                continue
            tensor = self.tensor(TensorSpec(spec.shape, spec.dtype))
            found[name] = (
                nn.Parameter(tensor, requires_grad=spec.requires_grad)
                if spec.kind == "parameter"
                else tensor
            )
        return found

    def tensor(self, spec: TensorSpec) -> Tensor:
        """Return a tensor with shape, strides and dtype of a value, at the example sizes."""
        shape = [self._program.evaluate(dim) for dim in spec.shape]
        strides = [self._program.evaluate(dim) for dim in spec.stride]
        dtype = getattr(torch, spec.dtype)
        if len(strides) != len(shape) or 0 in shape:
            flat = torch.empty(math.prod(shape), dtype=dtype, device=self._device)
            return self._fill(flat).view(shape)
        size = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        flat = torch.empty(size, dtype=dtype, device=self._device)
        return self._fill(flat).as_strided(shape, strides)

    def _module(self, fqn: str) -> nn.Module:
        module = copy.deepcopy(self._trace.model.get_submodule(fqn)).to_empty(device=self._device)
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                if tensor.is_contiguous():
                    self._fill(tensor.view(-1))
        return module

    def _fill(self, flat: Tensor) -> Tensor:
        """Fill a flat tensor by copying one pattern over and over, which is quick."""
        if flat.dtype == torch.bool:
            return flat.fill_(True)
        if not flat.dtype.is_floating_point:
            return flat.zero_()
        pattern = self._pattern.to(flat.device, flat.dtype)
        whole = len(flat) // _PATTERN * _PATTERN
        flat[:whole].view(-1, _PATTERN).copy_(pattern.expand(whole // _PATTERN, _PATTERN))
        flat[whole:].copy_(pattern[: len(flat) - whole])
        return flat


class Scratch:
    """Adds gradients into one buffer that all parameters share.

    Takes as long as adding them into gradients of their own, without the memory for these: the
    buffer is larger than what a cache near the core holds.
    """

    def __init__(self, device: torch.device, nbytes: int = _SCRATCH_BYTES) -> None:
        self.buffer = torch.zeros(nbytes, dtype=torch.uint8, device=device)

    def __call__(self, parameter: Tensor, gradient: Tensor) -> None:
        """Add a gradient, some rows at a time, in whatever strides it has."""
        buffer = self.buffer.view(gradient.dtype)
        rows = gradient if gradient.dim() else gradient.view(1)
        step = max(1, len(buffer) * len(rows) // max(1, gradient.numel()))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            buffer[: part.numel()].view(part.shape).add_(part)
