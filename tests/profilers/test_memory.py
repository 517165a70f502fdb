"""Memory meters count storages once and see them go."""

from __future__ import annotations

import torch

from autosplit.profilers.allocator import keep_freed_memory
from autosplit.profilers.memory import CudaMemory, LiveStorages, storage_key
from tests.profilers.recorded_cuda import RecordedCuda

KIB = 1024


def test_live_storages_rise_and_fall() -> None:
    with LiveStorages() as meter:
        first = torch.zeros(256)
        second = first + 1
        assert meter.current_bytes == 2 * KIB
        del first
        assert meter.current_bytes == KIB
        assert meter.peak_bytes == 2 * KIB
        meter.reset_peak()
        assert meter.peak_bytes == KIB
        del second
    assert meter.current_bytes == 0


def test_views_and_known_tensors_do_not_count() -> None:
    known = torch.zeros(256)
    with LiveStorages([known]) as meter:
        view = known.view(16, 16).t()
        known.add_(1)
        assert meter.current_bytes == 0
        made = torch.ones(256)
        parts = made.split(64)
        assert meter.current_bytes == KIB
    assert storage_key(view) == storage_key(known)
    assert {storage_key(part) for part in parts} == {storage_key(made)}


def test_backward_is_seen() -> None:
    x = torch.zeros(256, requires_grad=True)
    with LiveStorages([x]) as meter:
        (gradient,) = torch.autograd.grad((x * 2).sum(), x)
        assert meter.current_bytes >= gradient.untyped_storage().nbytes()


def test_gpu_memory_is_read_from_the_allocator() -> None:
    cuda = RecordedCuda()
    cuda.allocated, cuda.peak = 100, 900
    with CudaMemory(torch.device("cuda", 0), cuda) as meter:
        assert cuda.log == ["synchronize", "reset_peak"]
        cuda.allocated, cuda.peak = 300, 500
        assert (meter.current_bytes, meter.peak_bytes) == (300, 500)
        meter.reset_peak()
        assert meter.peak_bytes == 300


def test_memory_is_kept_and_given_back_again() -> None:
    with keep_freed_memory() as told:
        assert told in (True, False)
        torch.zeros(4 * KIB * KIB).add_(1)
    torch.zeros(4 * KIB * KIB).add_(1)
