import pytest

from autosplit.errors import UsageError
from autosplit.registry import Registry


@pytest.fixture
def solvers():
    registry: Registry[type] = Registry("solver")
    registry.register("ilp")(int)
    registry.register("dp")(float)
    return registry


def test_a_registered_name_is_found(solvers):
    assert solvers["ilp"] is int
    assert "ilp" in solvers


def test_names_are_sorted(solvers):
    assert solvers.names() == ("dp", "ilp")
    assert list(solvers) == ["dp", "ilp"]


def test_registering_returns_its_target_unchanged(solvers):
    assert solvers.register("cp")(str) is str


def test_a_name_registered_twice_is_a_bug(solvers):
    with pytest.raises(ValueError, match="solver 'dp' is registered twice"):
        solvers.register("dp")(int)
    assert solvers["dp"] is float


def test_an_unknown_name_is_refused_with_the_known_ones(solvers):
    with pytest.raises(UsageError, match="unknown solver 'sat'") as caught:
        solvers["sat"]
    assert caught.value.hint == "choose one of: dp, ilp"
    assert "sat" not in solvers
