from __future__ import annotations

import random
from itertools import islice

import numpy
import pytest
import torch

from autosplit.targets.templates.torch.pipeline import PipelineError, draw, split_batch
from autosplit.targets.templates.torch.pipeline.agreement import _checksum
from tests.targets.torch_runtime.tables import table


def noise():
    while True:
        yield torch.rand(3)


def test_data_does_not_depend_on_what_the_model_draws():
    one, other = draw(noise, 7), draw(noise, 7)
    for rank in range(4):
        first = next(one)
        torch.rand(rank)
        assert torch.equal(first, next(other))
    assert not torch.equal(next(draw(noise, 8)), next(draw(noise, 7)))


def test_drawing_data_leaves_the_random_numbers_of_the_model_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    next(draw(noise, 7))
    assert torch.equal(torch.rand(2), expected)


def test_a_source_that_ends_is_started_again():
    assert list(islice(draw(lambda: [1, 2], 0), 5)) == [1, 2, 1, 2, 1]
    assert list(draw(lambda: [1, 2], 0, again=False)) == [1, 2]
    for again in (True, False):
        with pytest.raises(PipelineError, match="yields no batch"):
            next(draw(list, 0, again=again))


def test_numbers_of_python_and_numpy_are_repeatable_and_apart_too():
    def several():
        while True:
            yield random.random(), numpy.random.rand()

    random.seed(5)
    numpy.random.seed(5)
    expected = random.random(), numpy.random.rand()
    one, other = draw(several, 7), draw(several, 7)
    first = list(islice(one, 3))
    random.seed(5)
    numpy.random.seed(5)
    assert list(islice(other, 3)) == first
    assert (random.random(), numpy.random.rand()) == expected
    assert len(set(first)) == 3
    next(draw(several, 2**40))


def test_a_checksum_sees_inputs_targets_and_shapes(tmp_path):
    routing = table(tmp_path)

    def parts(x, labels, *targets):
        return split_batch(routing, ((x,), {"labels": labels, "flag": True}), targets, 2)

    x, labels = torch.rand(4, 3), torch.arange(4)
    sums = [
        _checksum(parts(x, labels, 1.0)),
        _checksum(parts(x, labels, 2.0)),
        _checksum(parts(x + 1e-6, labels, 1.0)),
        _checksum(parts(x, labels.flip(0), 1.0)),
        _checksum(parts(x[:2], labels[:2], 1.0)),
        _checksum(parts(x, labels, torch.ones(4, dtype=torch.bfloat16))),
    ]
    assert len(set(sums)) == len(sums)
    assert _checksum(parts(x.clone(), labels.clone(), 1.0)) == sums[0]
