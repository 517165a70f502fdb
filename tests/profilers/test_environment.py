"""The state in which a model is measured, on a GPU that is only written down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autosplit.errors import UsageError
from autosplit.profilers.environment import choose_device, prepared


class Devices:
    """Current device, random states and moves, as ``torch.cuda`` and a model keep them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.current = 0
        self.moves: list[str] = []
        self.seeds = {index: torch.tensor(index) for index in range(count)}
        self.model = nn.Linear(2, 2)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device", self.device)
        monkeypatch.setattr(torch.cuda, "get_rng_state", self.get_rng_state)
        monkeypatch.setattr(torch.cuda, "set_rng_state", self.set_rng_state)
        monkeypatch.setattr(self.model, "to", lambda device: self.moves.append(str(device)))

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index
        try:
            yield
        finally:
            self.current = before

    def get_rng_state(self, device: torch.device) -> Tensor:
        return self.seeds[device.index].clone()

    def set_rng_state(self, state: Tensor, device: torch.device) -> None:
        self.seeds[device.index] = state

    @property
    def trace(self) -> Any:
        return SimpleNamespace(model=self.model, program=SimpleNamespace(nodes=()))


@pytest.mark.parametrize("fails", [False, True])
def test_device_model_and_random_state_are_as_before(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    devices = Devices(monkeypatch, 2)
    random, gradient = torch.get_rng_state(), torch.ones(2, 2)
    devices.model.weight.grad = gradient
    chosen = choose_device("cuda:1")
    with suppress(KeyError), prepared(devices.trace, chosen, threads=1, inference=True):
        assert devices.current == 1
        assert devices.moves == ["cuda:1"]
        assert devices.model.weight.grad is None
        assert not devices.model.training
        devices.seeds[1] = torch.tensor(99)
        torch.rand(3)
        if fails:
            raise KeyError
    assert devices.current == 0
    assert devices.moves == ["cuda:1", "cpu"]
    assert devices.seeds == {0: torch.tensor(0), 1: torch.tensor(1)}
    assert torch.equal(torch.get_rng_state(), random)
    assert devices.model.weight.grad is gradient
    assert devices.model.training


def test_a_device_is_one_of_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    Devices(monkeypatch, 2)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda", 0)
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(UsageError, match="no device 'cuda:2'") as caught:
        choose_device("cuda:2")
    assert caught.value.cause == "torch sees 2 GPUs: cuda:0 to cuda:1"
    Devices(monkeypatch, 0)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(UsageError, match="no device 'cuda'") as caught:
        choose_device("cuda")
    assert caught.value.cause == "torch sees no GPU"
    assert "--device cpu" in (caught.value.hint or "")
