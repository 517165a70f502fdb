"""Weights fit a model by name, strictly, and what does not fit is named."""

from __future__ import annotations

import pytest
import torch

from autosplit.targets.templates.torch.pipeline import PipelineError
from autosplit.targets.templates.torch.pipeline.matching import converted, match
from autosplit.targets.templates.torch.pipeline.tensorfiles import StateDict, TensorInfo

EXPECTED = {
    "embed.weight": TensorInfo((4, 2), torch.float32),
    **{f"h.{k}.bias": TensorInfo((2,), torch.float32) for k in range(5)},
    "norm.count": TensorInfo((), torch.int64),
}
ALIASES = {"head.weight": "embed.weight"}


def state(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    return {n: torch.ones(info.shape, dtype=info.dtype) for n, info in EXPECTED.items()} | changes


def matched(tensors: dict[str, torch.Tensor], **options: bool) -> dict[str, str]:
    return match(EXPECTED, ALIASES, StateDict("FILE", tensors), **options)


def test_names_that_fit_are_found():
    assert matched(state()) == {name: name for name in EXPECTED}


def test_any_name_of_a_tied_tensor_will_do():
    tensors = state()
    tensors["head.weight"] = tensors.pop("embed.weight")
    assert matched(tensors)["embed.weight"] == "head.weight"


def test_tied_tensors_that_differ_are_refused():
    tensors = state(**{"head.weight": torch.full((4, 2), float("nan"))})
    with pytest.raises(PipelineError, match=r"head.weight and embed.weight are one tensor in the"):
        matched(tensors)
    tensors["embed.weight"] = tensors["head.weight"].clone()
    matched(tensors)


def test_missing_and_unknown_tensors_are_counted_and_named():
    tensors = state(extra=torch.ones(1))
    for k in range(5):
        del tensors[f"h.{k}.bias"]
    with pytest.raises(
        PipelineError,
        match=r"FILE lacks 5 of the model's tensors \(h.0.bias, h.1.bias, h.2.bias and 2 more\) "
        r"and has 1 that the model does not \(extra\)$",
    ):
        matched(tensors)


def test_tensors_that_are_not_needed_are_left_out_when_asked():
    tensors = state(extra=torch.ones(1))
    with pytest.raises(PipelineError, match=r"has 1 that the model does not \(extra\)") as caught:
        matched(tensors)
    assert caught.value.hint == "--ignore-extra leaves them out"
    assert matched(tensors, ignore_extra=True) == {name: name for name in EXPECTED}
    del tensors["h.0.bias"]
    with pytest.raises(PipelineError, match=r"lacks 1 of the model's tensors \(h.0.bias\)"):
        matched(tensors, ignore_extra=True)


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod."])
def test_a_prefix_too_much_is_recognised(prefix):
    tensors = {prefix + name: tensor for name, tensor in state().items()}
    with pytest.raises(PipelineError, match=f"hint: without '{prefix}' its names"):
        matched(tensors)


def test_a_prefix_too_few_is_recognised():
    expected = {f"transformer.{name}": info for name, info in EXPECTED.items()}
    with pytest.raises(PipelineError, match=r"hint: with 'transformer\.' its names"):
        match(expected, {}, StateDict("FILE", state()))


def test_wrong_shapes_are_refused():
    with pytest.raises(
        PipelineError, match=r"FILE: h.1.bias is float32 of shape \(3,\), not float32 of shape"
    ):
        matched(state(**{"h.1.bias": torch.ones(3)}), convert=True)


def test_another_dtype_is_refused_unless_it_is_to_be_converted():
    tensors = state(**{"h.1.bias": torch.ones(2, dtype=torch.bfloat16)})
    with pytest.raises(PipelineError, match=r"h.1.bias is bfloat16.*\n.*--weights-dtype model"):
        matched(tensors)
    assert matched(tensors, convert=True)["h.1.bias"] == "h.1.bias"
    with pytest.raises(PipelineError, match=r"norm.count is float32 of shape \(\), not int64"):
        matched(state(**{"norm.count": torch.ones(())}), convert=True)


def test_numbers_too_large_for_a_dtype_are_refused():
    wide = torch.tensor([1.0, float("inf"), 1e6])
    with pytest.raises(PipelineError, match=r"w holds numbers too large for torch\.float16"):
        converted("w", wide, torch.float16)
    assert converted("w", wide[:2], torch.float16).dtype == torch.float16
