"""The table of devices: complete, consistent, and forgiving about spelling."""

from __future__ import annotations

import pytest

from autosplit.errors import UsageError
from autosplit.hardware import devices, find

KEYS = [
    "a100-40gb",
    "a100-80gb",
    "h100-sxm",
    "h100-pcie",
    "h200",
    "l4",
    "l40s",
    "rtx-3090",
    "rtx-4090",
    "t4",
    "v100-16gb",
    "v100-32gb",
    "mi250",
    "mi250x",
    "mi300x",
    "tpu-v5e",
    "cpu",
]


def test_every_device_has_its_figures_and_their_source():
    assert list(devices()) == KEYS
    for device in devices().values():
        assert device.memory_bytes >= 4e9
        assert device.bytes_per_s > device.link_bytes_per_s / 2
        assert all(rate > 0 for rate in device.tflops.values())
        assert len(device.source) > 20


def test_narrower_numbers_are_never_slower():
    for device in devices().values():
        wide, narrow = device.flops_per_s("float32"), device.flops_per_s("float16")
        assert narrow >= wide
        assert device.flops_per_s("bfloat16") > 0
        assert device.flops_per_s("int64") == device.flops_per_s("float32")


def test_what_a_device_has_no_units_for_runs_at_the_rate_of_what_it_has():
    assert find("t4").flops_per_s("bfloat16") == find("t4").flops_per_s("float32")
    assert find("tpu-v5e").flops_per_s("float32") == 197e12


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("A100 80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla T4", "t4"),
        ("h100 pcie", "h100-pcie"),
        ("4090", "rtx-4090"),
        ("h200", "h200"),
    ],
)
def test_a_spelling_without_doubt_is_understood(name, key):
    assert find(name).key == key


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("h100", "did you mean h100-sxm or h100-pcie?"),
        ("a100", "did you mean a100-40gb or a100-80gb?"),
        ("mi30x", "did you mean mi300x"),
        ("toaster", "autosplit device list shows all of them"),
        ("", "autosplit device list shows all of them"),
    ],
)
def test_an_unknown_device_is_refused_with_suggestions(name, hint):
    with pytest.raises(UsageError, match="no device") as caught:
        find(name)
    assert hint in str(caught.value.hint)
