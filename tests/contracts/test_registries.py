"""What holds for every registry, and for everything in one."""

import inspect
import re

import pytest

from autosplit.baselines import BASELINES
from autosplit.launchers import LAUNCHERS, Launch
from autosplit.profilers import PROFILERS, measured, representatives
from autosplit.readers import READERS
from autosplit.registry import Registry
from autosplit.schedules import SCHEDULES
from autosplit.solvers import SOLVERS
from autosplit.targets import TARGETS
from autosplit.tracers import TRACERS

# Profilers need torch, so they file themselves when they are first used.
FILED = (measured, representatives)

REGISTRIES: tuple[Registry, ...] = (
    BASELINES,
    LAUNCHERS,
    PROFILERS,
    READERS,
    SCHEDULES,
    SOLVERS,
    TARGETS,
    TRACERS,
)
ENTRIES = [
    pytest.param(registry, name, id=f"{registry.kind}-{name}")
    for registry in REGISTRIES
    for name in registry
]


def test_every_axis_has_something():
    assert [registry.kind for registry in REGISTRIES if not registry.names()] == []


def test_registries_have_kinds_of_their_own():
    kinds = [registry.kind for registry in REGISTRIES]
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize(("registry", "name"), ENTRIES)
def test_names_are_easy_to_type_and_entries_say_what_they_are(registry, name):
    assert re.fullmatch(r"[a-z0-9]+([-_][a-z0-9]+)*", name)
    entry = registry[name]
    described = entry if inspect.isroutine(entry) or inspect.isclass(entry) else type(entry)
    assert inspect.getdoc(described)


@pytest.mark.parametrize("name", LAUNCHERS.names())
@pytest.mark.parametrize("ranks", [1, 2, 7])
def test_every_launcher_writes_something_to_start(name, ranks):
    artifacts = LAUNCHERS[name].emit(Launch(ranks=ranks))
    assert any(artifact.executable for artifact in artifacts)
    assert artifacts == LAUNCHERS[name].emit(Launch(ranks=ranks))
    assert any(str(ranks) in artifact.text for artifact in artifacts)


@pytest.mark.parametrize("name", READERS.names())
@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "hello", "{" * 50, "\x00"])
def test_no_reader_claims_what_is_not_its_own(name, text):
    assert READERS[name].recognises(text) is False
