import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosplit import units
from autosplit.errors import DataError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16GiB", 16 * 2**30),
        ("800 MB", 800_000_000),
        ("4096B", 4096),
        ("1.5kib", 1536),
        ("2e3 kB", 2_000_000),
        ("0", 0),
    ],
)
def test_bytes_are_read(text, expected):
    assert units.parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "16 apples", "nan", "1e999GiB", "16GiB/s"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(DataError, match="is not a size"):
        units.parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10GB/s", 1e10), ("100Gbit/s", 12.5e9), ("1e9B/s", 1e9), ("1GiB", 2**30)],
)
def test_rates_are_read(text, expected):
    assert units.parse_rate(text) == expected


@pytest.mark.parametrize("text", ["16", "1e9", "4096.5"])
def test_a_size_or_rate_without_a_unit_is_refused(text):
    for parse in (units.parse_bytes, units.parse_rate):
        with pytest.raises(DataError, match="has no unit") as refused:
            parse(text)
        assert "GB" in (refused.value.hint or "") or "GiB" in (refused.value.hint or "")


@pytest.mark.parametrize("text", ["0GB/s", "0", "fast", "-1GB/s", "10GB/h", "10Gbps"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(DataError, match="is not a rate"):
        units.parse_rate(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5us", 5e-6), ("5µs", 5e-6), ("1.5 ms", 1.5e-3), ("2min", 120), ("60", 60)],
)
def test_times_are_read(text, expected):
    assert units.parse_seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1023, "1.00 KiB"),
        (16 * 2**30, "16.0 GiB"),
        (18.2 * 2**30, "18.2 GiB"),
        (123 * 2**20, "123 MiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_bytes_are_shown(count, expected):
    assert units.format_bytes(count) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s"),
        (5e-9, "5.00 ns"),
        (0.00123, "1.23 ms"),
        (0.9999, "1.00 s"),
        (42, "42.0 s"),
        (600, "10 min"),
    ],
)
def test_seconds_are_shown(seconds, expected):
    assert units.format_seconds(seconds) == expected


def test_rates_and_shares_are_shown():
    assert units.format_rate(1e10) == "10.0 GB/s"
    assert units.format_rate(5e6) == "5.00 MB/s"
    assert units.format_share(0.612) == "61 %"
    assert units.format_share(0.004) == "0.4 %"
    assert units.format_share(0) == "0 %"
    assert units.format_share(1e-6) == "<0.1 %"
    assert units.format_share(0.0006) == "0.1 %"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(119, "119 s"), (200, "3 min"), (7200, "2 h"), (400_000, "5 days"), (1e300, "1.2e+295 days")],
)
def test_long_times_have_large_units(seconds, expected):
    assert units.format_seconds(seconds) == expected


@given(st.integers(min_value=0, max_value=2**50))
def test_a_shown_size_reads_back_to_three_digits(count):
    assert units.parse_bytes(units.format_bytes(count)) == pytest.approx(count, rel=0.006, abs=0.5)


def test_one_thing_is_not_called_several():
    assert [units.counted(count, "stage") for count in (0, 1, 2)] == [
        "0 stages",
        "1 stage",
        "2 stages",
    ]
    assert units.counted(1, "micro-batch") == "1 micro-batch"
    assert units.counted(4, "micro-batch") == "4 micro-batches"
    assert units.counted(2, "copy") == "2 copies"
