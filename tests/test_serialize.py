import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import typing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosplit import serialize
from autosplit.errors import AutosplitError, DataError
from autosplit.types import (
    DeviceInfo,
    LayerProfile,
    ModelRef,
    Plan,
    Profile,
    StateProfile,
    StorageProfile,
    Timing,
    ValueProfile,
    WholeModel,
)
from tests import examples

# Change a number together with the version in serialize.SCHEMAS: a new major version where old
# files cannot be read, a new minor one where a field with a default was added.
FIELDS = {
    Profile: ((1, 3), "6c4151958821"),
    Plan: ((1, 3), "2e9d1ef6dae1"),
}


def definition(kind, seen=()):
    """Describe the fields of a type and of every type below it."""
    if dataclasses.is_dataclass(kind):
        if kind in seen:
            return kind.__name__
        hints = typing.get_type_hints(kind)
        fields = [
            f"{field.name}: {definition(hints[field.name], (*seen, kind))}"
            for field in dataclasses.fields(kind)
        ]
        return f"{kind.__name__}({', '.join(fields)})"
    if typing.get_origin(kind) is typing.Literal:
        return str(kind)
    parts = typing.get_args(kind)
    if parts:
        return f"[{' '.join(definition(part, seen) for part in parts)}]"
    return getattr(kind, "__name__", str(kind))


@pytest.mark.parametrize("kind", [Profile, Plan])
def test_a_changed_field_needs_a_new_version(kind):
    found = hashlib.sha256(definition(kind).encode()).hexdigest()[:12]
    assert (serialize.SCHEMAS[kind][1], found) == FIELDS[kind]


# ---------------------------------------------------------------- round trips

names = st.text("abcdefgh.#0123456789é", min_size=1, max_size=8)
seconds = st.floats(0, 1e6, allow_nan=False)
sizes = st.integers(0, 2**60)
timings = st.builds(Timing, seconds, seconds, st.integers(1, 1000))


@st.composite
def profiles(draw):
    layer_names = draw(st.lists(names, min_size=1, max_size=5, unique=True))
    some = st.lists(st.sampled_from(layer_names), unique=True, max_size=3).map(tuple)
    layers = tuple(
        LayerProfile(
            name=name,
            module=draw(names),
            block=draw(st.none() | names),
            structure=draw(names),
            nodes=tuple(draw(st.lists(names, max_size=3))),
            forward=draw(timings),
            backward=draw(timings),
            saved=tuple(draw(st.lists(st.integers(0, 9), max_size=3))),
            workspace_bytes=draw(sizes),
            flops=draw(st.none() | sizes),
        )
        for name in layer_names
    )
    values = tuple(
        ValueProfile(
            name=name,
            producer=draw(st.none() | st.sampled_from(layer_names)),
            consumers=draw(some),
            nbytes=draw(sizes),
            shape=tuple(draw(st.lists(st.integers(0, 99) | st.just("2*batch"), max_size=3))),
            dtype="float32",
            needs_grad=draw(st.booleans()),
            output=draw(st.booleans()),
            storage=draw(st.none() | st.integers(0, 9)),
        )
        for name in draw(st.lists(names, max_size=4, unique=True))
    )
    states = tuple(
        StateProfile(name, "parameter", draw(sizes), draw(st.booleans()), draw(some))
        for name in draw(st.lists(names, max_size=4, unique=True))
    )
    return Profile(
        model=ModelRef(draw(names), draw(st.none() | st.integers(1, 99)), ("ids=2x3:int64",)),
        fingerprint=draw(names),
        device=DeviceInfo("cpu", draw(names), 1, "2.13", "thread"),
        layers=layers,
        values=values,
        states=states,
        storages=tuple(StorageProfile(index, draw(sizes)) for index in range(3)),
        order_edges=((layer_names[0], layer_names[-1]),),
        whole=draw(st.none() | st.builds(WholeModel, seconds, seconds, seconds, seconds)),
        training=draw(st.booleans()),
        notes=tuple(draw(st.lists(st.text(max_size=20), max_size=2))),
    )


@settings(max_examples=60, deadline=None)
@given(profiles())
def test_a_profile_survives_the_way_to_text_and_back(profile):
    text = serialize.dumps(profile)
    assert serialize.loads(Profile, text) == profile
    assert serialize.dumps(serialize.loads(Profile, text)) == text


def test_a_plan_survives_the_way_to_a_file_and_back(tmp_path):
    path = tmp_path / "plan.json"
    serialize.dump(examples.plan(), path)
    assert serialize.load(Plan, path) == examples.plan()


def test_a_digest_depends_on_content_alone():
    first = examples.profile()
    assert serialize.digest(first) == serialize.digest(examples.profile())
    assert serialize.digest(first) != serialize.digest(examples.profile(training=False))


# ---------------------------------------------------------------- what is refused


@pytest.fixture
def data():
    return json.loads(serialize.dumps(examples.profile()))


def refusal(data):
    text = data if isinstance(data, str) else json.dumps(data)
    with pytest.raises(DataError) as caught:
        serialize.loads(Profile, text, "profile.json")
    return caught.value


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_text_that_is_cut_off_is_refused(draw):
    text = serialize.dumps(examples.profile()).rstrip()
    cut = draw.draw(st.integers(0, len(text) - 1))
    assert "profile.json" in refusal(text[:cut]).message


@pytest.mark.parametrize("text", ["[]", "3", '"profile"', "null", "{}", '{"schema": "other"}'])
def test_a_foreign_text_is_refused(text):
    assert refusal(text).message == "profile.json is not an autosplit.profile file"


def test_a_plan_is_no_profile():
    error = refusal(serialize.dumps(examples.plan()))
    assert error.cause == "its schema is 'autosplit.plan'"


@pytest.mark.parametrize("version", [[2, 0], [0, 9], [1, None], [True, 0], [], None, "1.0"])
def test_another_major_version_is_refused_by_name(data, version):
    data["version"] = version
    error = refusal(data)
    assert error.message == f"profile.json has version {version} of autosplit.profile"
    assert error.cause == "this autosplit reads version 1.x"


def test_a_file_without_a_version_is_refused(data):
    del data["version"]
    assert "has version None" in refusal(data).message


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_whole_number_beyond_floats_is_refused(data, digits):
    text = json.dumps(data).replace('"median_s": 0.001', f'"median_s": {"9" * digits}')
    assert refusal(text).message.endswith("... is not a number that can be planned with")


def test_a_name_that_no_disk_takes_is_refused_before_work():
    with pytest.raises(AutosplitError, match=r"cannot write a{300}") as caught:
        serialize.refuse_existing("a" * 300, force=False)
    assert caught.value.cause == "File name too long"


def test_a_later_minor_version_is_read(data):
    data["version"] = [1, 7]
    assert serialize.loads(Profile, json.dumps(data)) == examples.profile()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_is_refused(number):
    text = serialize.dumps(examples.profile()).replace('"median_s": 0.001', f'"median_s": {number}')
    assert (
        refusal(text).message == f"profile.json: {number} is not a number that can be planned with"
    )


def test_a_number_too_large_for_a_float_is_refused():
    text = serialize.dumps(examples.profile()).replace('"median_s": 0.001', '"median_s": 1e999')
    assert "layers[1].forward: Timing: median_s is inf" in refusal(text).message


def test_a_negative_number_is_refused_with_its_place(data):
    data["layers"][3]["forward"]["median_s"] = -1.0
    error = refusal(data)
    assert error.message == "profile.json: layers[3].forward: Timing: median_s is -1.0"
    assert error.cause == "median_s must be a finite number of at least 0"


def test_a_missing_field_is_refused_with_its_place(data):
    del data["layers"][2]["nodes"]
    assert refusal(data).message == "profile.json: layers[2].nodes is missing"


def test_an_unknown_field_is_refused(data):
    data["layers"][0]["colour"] = "red"
    assert (
        refusal(data).message == "profile.json: layers[0]: unknown field 'colour' in LayerProfile"
    )


@pytest.mark.parametrize(
    ("value", "found"), [("fast", '"fast"'), (None, "null"), (True, "true"), ([1], "[1]")]
)
def test_a_value_of_another_type_is_refused(data, value, found):
    data["layers"][1]["backward"]["median_s"] = value
    message = refusal(data).message
    assert message == f"profile.json: layers[1].backward.median_s: expected a number, found {found}"


def test_a_key_that_stands_twice_is_refused():
    text = serialize.dumps(examples.profile()).replace(
        '"training": true', '"training": true, "training": false'
    )
    assert refusal(text).message == "profile.json: key 'training' appears twice in one object"


def test_a_layer_that_does_not_exist_is_refused(data):
    data["values"][0]["consumers"] = ["nowhere"]
    assert "'nowhere' does not exist" in refusal(data).message


def test_a_text_nested_too_deeply_is_refused():
    assert "nested too deeply" in refusal("[" * 200_000).message


# ---------------------------------------------------------------- files


def test_a_missing_file_a_folder_and_a_binary_are_refused(tmp_path):
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x80\x81")
    for path, words in [
        (tmp_path / "none.json", "does not exist"),
        (tmp_path, "is a folder"),
        (binary, "is not a text file"),
    ]:
        with pytest.raises(DataError, match=words):
            serialize.load(Profile, path)


def test_a_file_is_not_replaced_unless_forced(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text("mine")
    with pytest.raises(AutosplitError, match="exists") as caught:
        serialize.dump(examples.profile(), path)
    assert caught.value.hint == "pass --force to replace it"
    assert path.read_text() == "mine"
    serialize.dump(examples.profile(), path, force=True)
    assert serialize.load(Profile, path) == examples.profile()


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside(tmp_path, monkeypatch):
    path = tmp_path / "profile.json"
    path.write_text("mine")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AutosplitError, match="cannot write") as caught:
        serialize.dump(examples.profile(), path, force=True)
    assert caught.value.cause == "No space left on device"
    assert [item.name for item in tmp_path.iterdir()] == ["profile.json"]
    assert path.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AutosplitError, match="cannot write"):
        serialize.write_text(tmp_path / "file" / "inside.json", "text")


WRITER = """
import sys
from autosplit.serialize import write_text
print("ready", flush=True)
while True:
    write_text(sys.argv[1], sys.argv[2] * 500_000, force=True)
"""


@pytest.mark.timeout(60)
def test_a_writer_killed_at_any_moment_leaves_a_whole_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    for letter, wait_s in [("a", 0.0), ("b", 0.01), ("c", 0.03)]:
        command = [sys.executable, "-c", WRITER, str(path), letter]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(wait_s)
            writer.send_signal(signal.SIGKILL)
        text = path.read_text()
        assert text == "old" or (len(text) == 500_000 and len(set(text)) == 1)


def test_a_written_file_has_the_rights_that_the_user_asked_for(tmp_path):
    before = os.umask(0o027)
    try:
        serialize.write_text(tmp_path / "file", "text")
    finally:
        os.umask(before)
    assert Path(tmp_path / "file").stat().st_mode & 0o777 == 0o640
