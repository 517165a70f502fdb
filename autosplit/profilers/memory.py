"""Meters of the memory that tensors take while layers run."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class MemoryMeter(Protocol):
    """Counts bytes while it is entered."""

    def __enter__(self) -> Any: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> Any: ...

    def reset_peak(self) -> None:
        """Let the peak start again from what is alive now."""
        ...

    @property
    def current_bytes(self) -> int:
        """Bytes alive now."""
        ...

    @property
    def peak_bytes(self) -> int:
        """Most bytes alive at once since the peak was reset."""
        ...


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the storages that operations have made and that are still alive.

    Memory that a kernel uses for itself and frees before it returns is not seen.

    Parameters
    ----------
    known
        Tensors that were there before and do not count.
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current_bytes = 0
        self.peak_bytes = 0
        self._nbytes: dict[int, int] = {}
        for tensor in known:
            self._see(tensor, counts=False)

    def reset_peak(self) -> None:
        """Let the peak start again from what is alive now."""
        self.peak_bytes = self.current_bytes

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operation and count what it returns."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf, counts=True)
        return result

    def _see(self, tensor: torch.Tensor, *, counts: bool) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._nbytes:
            return
        nbytes = storage.nbytes() if counts else 0
        self._nbytes[key] = nbytes
        self.current_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.current_bytes -= self._nbytes.pop(key, 0)


class CudaMemory:
    """Bytes that the caching allocator of a device has handed out.

    Parameters
    ----------
    device
        Device that is watched.
    cuda
        ``torch.cuda``, or a stand-in that records what is called.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._device = device
        self._cuda = cuda

    def __enter__(self) -> CudaMemory:
        self._cuda.synchronize(self._device)
        self.reset_peak()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        pass

    def reset_peak(self) -> None:
        """Let the peak start again from what is alive now."""
        self._cuda.reset_peak_memory_stats(self._device)

    @property
    def current_bytes(self) -> int:
        """Bytes alive now."""
        return int(self._cuda.memory_allocated(self._device))

    @property
    def peak_bytes(self) -> int:
        """Most bytes alive at once since the peak was reset."""
        return int(self._cuda.max_memory_allocated(self._device))


def storage_key(tensor: torch.Tensor) -> int:
    """Return a number for the memory of a tensor, its own as long as that is alive."""
    return int(tensor.untyped_storage()._cdata)
