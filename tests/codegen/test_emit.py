"""What is rewritten is said, can be switched off, and never ends in a crash."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from autosplit import stages
from autosplit.codegen import CodegenError, CodegenOptions, generate
from autosplit.tracers import trace
from tests.codegen.chain import Chain, compare, cut, from_module, make

WIDTH = 8


class Masked(nn.Module):
    """Builds a causal mask from indices, and does a few things for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device) + 0
        mask = positions[None, None, :] <= positions[None, :, None]
        mask = mask.expand(x.shape[0], -1, -1)
        for layer in self.layers:
            scores = (x @ x.transpose(1, 2)).masked_fill(~mask, float("-inf"))
            x = layer(scores.softmax(-1).to(x.dtype) @ x.contiguous()) * 1.0
        return x


def masked(options: CodegenOptions | None = None):
    torch.manual_seed(0)
    loaded = from_module(
        Masked(), (torch.randn(4, 5, WIDTH),), symbols={(0, 0): "batch", (0, 1): "seq"}
    )
    return make(loaded, 1, options=options)


def test_masks_and_idle_operations_are_rewritten_and_listed() -> None:
    chain = masked()
    (source,) = chain.sources
    assert {note.kind for note in source.rewrites} == {"causal mask", "fold", "loop", "no-op"}
    assert all(note.where and note.why for note in source.rewrites)
    assert ".tril()" in source.text
    assert "arange" not in source.text
    assert "* 1.0" not in source.text
    assert compare(chain, train=True, batch_size=3).output == 0


def test_rewrites_can_be_switched_off() -> None:
    chain = masked(CodegenOptions(simplify=False, masks=False, fold=False, loops=False))
    (source,) = chain.sources
    assert source.rewrites == ()
    assert "arange" in source.text
    assert "* 1.0" in source.text
    assert compare(chain, train=True, batch_size=3).output == 0


@pytest.mark.parametrize(
    "off",
    [
        "classes",
        "fold",
        "source_names",
        "helpers",
        "chain",
        "loops",
        "simplify",
        "masks",
        "attributes",
        "variants",
    ],
)
def test_every_switch_keeps_the_result(off: str) -> None:
    chain = masked(replace(CodegenOptions(), **{off: False}))
    assert not [note for note in chain.sources[0].rewrites if note.kind == "flat"]
    assert compare(chain, train=True, batch_size=3).output == 0


class Branchy(nn.Module):
    """Does another operation in training."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.training:
            y = y + x
        return y


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_a_branch_on_the_mode_is_said(train: bool) -> None:
    model = Branchy().train(train)
    chain = make(from_module(model, (torch.randn(4, WIDTH),)), 1)
    (source,) = chain.sources
    mode = "train" if train else "eval"
    assert f"Right in {mode} mode only" in source.text
    assert [note.kind for note in source.rewrites] == ["one mode"]
    assert chain.routing.mode == mode
    assert compare(chain, train=train, batch_size=3).output == 0


class Sized(nn.Module):
    """Sizes with a name each, and two names for one size."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.head_width, self.also_heads, self.factor = 2, 4, 2, 0.25
        self.groups = 4 * WIDTH // WIDTH
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x).view(-1, self.heads, 4) * self.factor
        return x.reshape(-1, WIDTH) * 3.0


def sized(options: CodegenOptions | None = None, **fields: int) -> Chain:
    torch.manual_seed(0)
    block = Sized()
    vars(block).update(fields)
    loaded = from_module(nn.Sequential(block), (torch.randn(4, WIDTH),))
    return make(loaded, 1, options=options)


def test_numbers_get_the_one_name_they_have() -> None:
    chain = sized(groups=5)
    (source,) = chain.sources
    assert "self.factor = 0.25\n        self.head_width = 4\n" in source.text
    assert ".view(-1, 2, self.head_width) * self.factor" in source.text
    assert "also_heads" not in source.text
    assert "groups" not in source.text
    assert {note.kind for note in source.rewrites} == {"fold", "named number"}
    assert compare(chain, train=True, batch_size=3).output == 0


def test_numbers_with_two_names_stay_numbers() -> None:
    (source,) = sized(groups=4).sources
    assert ".view(-1, 2, 4) * self.factor" in source.text
    (source,) = sized(CodegenOptions(attributes=False)).sources
    assert "* 0.25" in source.text


def test_a_failing_pass_falls_back_to_plainer_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise CodegenError("broken")

    monkeypatch.setattr("autosplit.codegen.emit.fold_loops", broken)
    chain = masked()
    kinds = [note.kind for note in chain.sources[0].rewrites]
    assert kinds[-1] == "without loops"
    assert "for layer in" not in chain.sources[0].text
    monkeypatch.setattr("autosplit.codegen.emit.simplify", broken)
    chain = masked()
    assert [note.kind for note in chain.sources[0].rewrites] == ["flat"]
    assert compare(chain, train=True).output == 0


def test_an_operation_without_a_public_name_is_refused() -> None:
    loaded = from_module(nn.Sequential(nn.Linear(2, 2)), (torch.randn(3, 2),))
    program = trace(loaded).program
    specs, _ = stages.split(program, cut(program, 1), 1)
    nodes = tuple(
        replace(node, op="function", target="model.<locals>.step") if node.op == "module" else node
        for node in program.nodes
    )
    with pytest.raises(CodegenError, match="no public name"):
        generate(replace(program, nodes=nodes), specs)
