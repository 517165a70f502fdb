"""Estimates from samples."""

from __future__ import annotations

import numpy as np
import pytest

from autosplit.profilers.statistics import classes_of, drift, error_bound, pooled, timings


def test_layers_that_are_alike_share_their_samples() -> None:
    samples = np.array([[1.0, 5.0, 3.0], [2.0, 7.0, 4.0]])
    classes = classes_of(["a", "b", "a"])
    assert classes == [[0, 2], [1]]
    first, second, third = timings(samples, classes)
    assert first == third
    assert first.median_s == pytest.approx(2.5)
    assert first.samples == 4
    assert second.median_s == pytest.approx(6.0)
    assert second.spread_s == pytest.approx(1.0)


def test_the_bound_shrinks_with_repetitions_and_vanishes_without_noise() -> None:
    noise = np.random.default_rng(1).lognormal(0.0, 0.3, (40, 5))
    few, many = (
        error_bound(noise[:5], [[i] for i in range(5)]),
        error_bound(noise, [[0, 1, 2, 3, 4]]),
    )
    assert 0 < many < few < 1
    assert error_bound(np.ones((10, 3)), [[0], [1, 2]]) == 0.0
    assert error_bound(np.zeros((10, 3)), [[0], [1, 2]]) == 0.0


def test_the_bound_covers_the_error_it_promises() -> None:
    generator = np.random.default_rng(2)
    truth = float(np.median(generator.lognormal(0.0, 0.2, 200_000)))
    covered = 0
    for _ in range(60):
        samples = generator.lognormal(0.0, 0.2, (20, 1))
        covered += abs(float(np.median(samples)) / truth - 1) <= error_bound(samples, [[0]])
    assert covered >= 42


def test_drift_compares_the_last_third_with_the_first() -> None:
    assert drift(np.array([1.0, 1.0, 5.0, 5.0, 1.2, 1.2])) == pytest.approx(0.2)
    assert drift(np.array([1.0])) == 0.0


def test_a_repetition_gives_as_many_samples_as_most_layers_have_fellows() -> None:
    samples = np.array([[1.0, 1.0, 1.0, 0.2, 0.05]] * 2)
    assert pooled(samples, [[0, 1, 2], [3, 4]]) == 3
    assert pooled(samples, [[0, 1], [2], [3, 4]]) == 1
    assert pooled(samples, [[0, 1], [2, 3], [4]]) == 2
    assert pooled(np.zeros((2, 2)), [[0, 1]]) == 2
