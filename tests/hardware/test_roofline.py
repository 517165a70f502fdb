"""Times from work: more work takes longer, a faster device less; a fit gives back its factors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosplit.errors import DataError
from autosplit.hardware import Factors, Roofline, assumed, find, fit, read_factors
from autosplit.report.hardware import fit_warning
from autosplit.types import FAMILIES, OperatorWork, Timing
from tests import examples

amounts = st.integers(0, 10**14)
works = st.builds(
    OperatorWork,
    family=st.sampled_from(FAMILIES),
    dtype=st.sampled_from(["float32", "bfloat16", "int64"]),
    operations=st.integers(0, 100),
    flops=amounts,
    moved_bytes=amounts,
    backward_operations=st.integers(0, 100),
    backward_flops=amounts,
    backward_bytes=amounts,
)
H100 = find("h100-sxm")


@given(works, amounts, amounts)
def test_more_work_never_takes_less(work, flops, nbytes):
    model = Roofline(H100, assumed())
    more = replace(work, flops=work.flops + flops, moved_bytes=work.moved_bytes + nbytes)
    assert model.forward_s([more]) >= model.forward_s([work])
    assert model.backward_s([more]) == model.backward_s([work])
    assert model.forward_s([work, more]) >= model.forward_s([more])


@given(works, st.floats(1, 100))
def test_a_faster_device_never_takes_longer(work, times):
    slow = Roofline(H100, assumed())
    faster = (
        replace(H100, bytes_per_s=H100.bytes_per_s * times),
        replace(H100, tflops={name: rate * times for name, rate in H100.tflops.items()}),
    )
    for device in faster:
        assert Roofline(device, assumed()).forward_s([work]) <= slow.forward_s([work])
        assert Roofline(device, assumed()).backward_s([work]) <= slow.backward_s([work])


def test_the_slower_of_computing_and_moving_counts():
    flat = Factors(dict.fromkeys(FAMILIES, 0.5), 1e-6, "a test")
    model = Roofline(H100, flat)
    product = OperatorWork("product", "bfloat16", 3, flops=989_500 * 10**9, moved_bytes=1)
    assert model.forward_s([product]) == pytest.approx(2.0 + 3e-6)
    copy = OperatorWork("copy", "bfloat16", 1, flops=1, moved_bytes=335 * 10**10)
    assert model.forward_s([copy]) == pytest.approx(2.0 + 1e-6)


# ---------------------------------------------------------------- fitting


def synthetic(truth, device=H100, families=FAMILIES):
    """Return a profile whose times follow from its work, with the factors ``truth``."""
    model = Roofline(device, truth)
    layers = []
    for index, layer in enumerate(examples.profile().layers):
        work = tuple(
            OperatorWork(
                family,
                "float32",
                operations=1 + (index + place) % 4,
                flops=10**9 * (1 + (index * 7 + place * 3) % 11),
                moved_bytes=10**7 * (1 + (index * 5 + place * 2) % 13),
                backward_operations=2 + (index * place) % 3,
                backward_flops=10**9 * (2 + (index * 3 + place * 5) % 7),
                backward_bytes=10**7 * (3 + (index * 2 + place * 7) % 17),
            )
            for place, family in enumerate(families)
        )
        layers.append(
            replace(
                layer,
                work=work,
                forward=Timing(model.forward_s(work)),
                backward=Timing(model.backward_s(work)),
            )
        )
    return examples.profile(layers=tuple(layers))


TRUTH = Factors(
    dict(zip(FAMILIES, (0.9, 0.31, 0.42, 0.2, 0.55, 0.66, 1.5), strict=True)), 3e-6, "the truth"
)


def test_a_fit_reproduces_a_profile_that_follows_the_model():
    found = fit(synthetic(TRUTH), H100)
    assert found.fitted == FAMILIES
    assert found.worst_error < 1e-9
    for family in FAMILIES:
        assert found.factors.efficiency[family] == pytest.approx(TRUTH.efficiency[family])
    assert found.factors.start_s == pytest.approx(TRUTH.start_s)


def test_families_that_a_profile_has_not_keep_what_is_assumed():
    found = fit(synthetic(TRUTH, families=("product", "copy")), H100)
    assert found.fitted == ("product", "copy")
    assert found.factors.efficiency["product"] == pytest.approx(0.9)
    assert found.factors.efficiency["attention"] == assumed().efficiency["attention"]


def test_no_factor_falls_below_its_floor():
    profile = synthetic(replace(TRUTH, start_s=0.0))
    layers = tuple(
        replace(layer, forward=Timing(layer.forward.median_s * 1e-6)) for layer in profile.layers
    )
    found = fit(replace(profile, layers=layers), H100)
    assert all(0 < share <= 10.000001 for share in found.factors.efficiency.values())
    assert found.factors.start_s >= 0


def test_what_was_not_measured_cannot_be_fitted():
    modelled = replace(synthetic(TRUTH), device=replace(examples.profile().device, clock="model"))
    with pytest.raises(DataError, match="itself modelled"):
        fit(modelled, H100)
    with pytest.raises(DataError, match="does not know what its layers compute"):
        fit(examples.profile(), H100)


def test_shares_above_the_peak_are_told():
    found = fit(synthetic(TRUTH), H100)
    assert found.above_peak == ("copy",)
    assert "copy run faster than the figures of" in fit_warning(found, H100)
    modest = replace(TRUTH, efficiency={**TRUTH.efficiency, "copy": 0.9})
    assert fit_warning(fit(synthetic(modest), H100), H100) == ""


# ---------------------------------------------------------------- files of factors


def test_factors_know_the_device_they_are_shares_of(tmp_path):
    path = tmp_path / "factors.toml"
    path.write_text(fit(synthetic(TRUTH), H100).factors.to_toml(), "utf-8")
    assert read_factors(path).device == H100.key


def test_factors_come_back_from_their_file(tmp_path):
    path = tmp_path / "factors.toml"
    path.write_text(TRUTH.to_toml())
    assert read_factors(path) == TRUTH


@pytest.mark.parametrize(
    "text",
    [
        "speed = 3",
        "efficiency = 3",
        "[efficiency]\nproducts = 0.3",
        "[efficiency]\nproduct = 'fast'",
        "[efficiency]\nproduct = 0",
        "[efficiency]\nproduct = inf",
        "start_s = true",
        "start_s = -1.0",
        "start_s =",
    ],
)
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "factors.toml"
    path.write_text(text)
    with pytest.raises(DataError, match="is not a"):
        read_factors(path)
