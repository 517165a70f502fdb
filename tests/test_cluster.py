"""Clusters from TOML: what is read, and what is refused by name."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosplit import cluster
from autosplit.errors import DataError
from autosplit.types import Cluster, Device, LinkSpeed, PairLink

TWO = "[[device]]\ncount = 2\n"
LINK = '[[link]]\nbetween = ["device-0", "device-1"]\n'
FULL = """
[[device]]
kind = "a100"
count = 2
memory = "80GiB"
speed = 2
node = "box0"

[[device]]
kind = "t4"
name = "old"
memory = "16GB"
node = "box1"

[links]
default = { bandwidth = "1GB/s", latency = "50us" }
node = { bandwidth = "100GB/s" }

[[link]]
between = ["a100-1", "old"]
bandwidth = "10Gbit/s"
latency = "10us"
"""


def test_devices_and_links():
    found = cluster.parse(FULL)
    assert [device.name for device in found.devices] == ["a100-0", "a100-1", "old"]
    first, second, old = found.devices
    assert (first.memory_bytes, first.speed, first.node) == (80 * 2**30, 2.0, "box0")
    assert (old.memory_bytes, old.speed, old.kind) == (16 * 10**9, 1.0, "t4")
    assert found.link(first, second) == LinkSpeed(1e11)
    assert found.link(first, old) == LinkSpeed(1e9, 5e-5)
    assert found.link(old, second) == LinkSpeed(1.25e9, 1e-5)


def test_links_between_nodes():
    found = cluster.parse(
        '[[device]]\ncount = 2\nnode = "a"\n[[device]]\ncount = 2\nnode = "b"\n'
        '[links]\nnode = { bandwidth = "5GB/s" }\n'
        '[[link]]\nbetween = ["a", "b"]\nbandwidth = "1GB/s"\n'
    )
    a0, a1, b0, _ = found.devices
    assert found.link(a0, a1).bytes_per_s == 5e9
    assert found.link(a1, b0).bytes_per_s == 1e9


def test_without_links_they_are_left_to_the_request():
    found = cluster.parse("[[device]]\ncount = 3\n")
    assert [device.name for device in found.devices] == ["device-0", "device-1", "device-2"]
    assert (found.links, found.within_node, found.default) == ((), None, None)


def test_entries_of_one_kind_are_numbered_on():
    found = cluster.parse('[[device]]\nkind = "x"\ncount = 2\n[[device]]\nkind = "x"\n')
    assert [device.name for device in found.devices] == ["x-0", "x-1", "x"]


def test_a_device_may_have_the_name_of_its_node():
    boxes = [f'[[device]]\nname = "{name}"\nnode = "{name}"\n' for name in "ab"]
    found = cluster.parse("".join(boxes) + '[[link]]\nbetween = ["a", "b"]\nbandwidth = "free"\n')
    assert found.link(*found.devices) == LinkSpeed()


def test_the_link_inside_a_node():
    text = "[[device]]\ncount = 2\n[[link]]\nbetween = ['node', 'node']\nbandwidth = '2GB/s'\n"
    found = cluster.parse(text)
    assert found.link(*found.devices).bytes_per_s == 2e9


def test_the_example_of_the_help_can_be_read():
    found = cluster.parse(cluster.EXAMPLE)
    assert [device.node for device in found.devices] == ["box0"] * 4 + ["box1"] * 4
    assert found.link(found.devices[0], found.devices[7]) == LinkSpeed(1e9)


def test_the_example_of_the_readme_is_that_of_the_help():
    readme = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
    _, _, rest = readme.partition("```toml\n[[device]]")
    assert cluster.parse("[[device]]" + rest.partition("```")[0]) == cluster.parse(cluster.EXAMPLE)


# ---------------------------------------------------------------- writing

words = st.text('abxy-0 "\\\n\x7fé', min_size=1, max_size=4)
speeds = st.builds(
    LinkSpeed,
    st.none() | st.floats(1e-3, 1e13),
    st.just(0.0) | st.floats(1e-12, 1e3),
)


@st.composite
def clusters(draw):
    names = draw(st.lists(words, min_size=2, max_size=6, unique=True))
    kinds, nodes = st.sampled_from(["a", "x", *names]), st.sampled_from(["N", "M"])
    memory, speed = st.sampled_from([None, 1, 10**9 + 1, 2**36]), st.sampled_from([1.0, 1 / 3])
    devices = tuple(
        Device(name, draw(kinds), draw(nodes), draw(memory), draw(speed)) for name in names
    )
    pairs = draw(st.lists(st.sampled_from([*itertools.combinations(names, 2)]), unique=True))
    links = tuple(PairLink(pair, draw(speeds)) for pair in pairs)
    return Cluster(devices, links, draw(st.none() | speeds), draw(speeds))


@given(clusters())
def test_what_is_written_reads_as_the_same(written):
    assert cluster.parse(cluster.to_toml(written)) == written


def test_devices_are_written_as_a_person_would():
    text = cluster.to_toml(cluster.parse(cluster.EXAMPLE))
    assert text.count("[[device]]") == 2
    assert 'memory = "80GiB"' in text
    assert 'default = { bandwidth = "10GB/s", latency = "5us" }' in text
    assert "name" not in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no devices"),
        ("device = [", "not a TOML file"),
        ("device = 3", "device cannot be 3"),
        ("[[device]]\ncount = 0", "device 1: count is 0"),
        ("[[device]]\nspeed = -1", "device 1: .*speed is -1"),
        ("[[device]]\nspeed = nan", "device 1: .*speed is nan"),
        ('[[device]]\nmemory = "lots"', "device 1: memory: 'lots' is not a size"),
        ("[[device]]\nmemroy = 1", "device 1: unknown key 'memroy'"),
        ('[[device]]\nmemory = "-1GiB"', "device 1: memory: '-1GiB' is not a size"),
        ("[[device]]\nmemory = 0", "memory must be above zero"),
        ("[[device]]\nmemory = 1024", "device 1: memory: '1024' has no unit"),
        ("[[device]]\nspeed = 0", "speed must be positive"),
        ("[[device]]\ncount = 1000000000", "device 1: more than 10000 devices"),
        ('[[device]]\nkind = ""', "device 1: .*empty name"),
        ('[[device]]\nnode = ""', "device 1: .*empty name"),
        ('[[device]]\nname = "x"\n[[device]]\nname = "x"', "device 2: the name 'x' is taken"),
        ('[[device]]\nname = "x"\n[[device]]\nnode = "x"', "'x' is a device and also a node"),
        ("[[device]]\n[links]\nfast = 1", "links: unknown key 'fast'"),
        (
            "[[device]]\n[links]\ndefault = { bandwidth = '1GB/s', speed = 1 }",
            "links.default: unknown key 'speed'",
        ),
        ('[[device]]\n[[link]]\nbetween = ["device", "d9"]', "'d9' is neither a device nor"),
        ('[[device]]\n[[link]]\nbetween = ["device"]', "between names 1 ends"),
        ('[[device]]\n[[link]]\nbetween = ["device", 3]', "3 is neither a device nor"),
        ('[[device]]\n[[link]]\nbetween = ["device", "device"]', "'device' is linked to itself"),
        ('[[device]]\n[[link]]\nbetween = ["node", "node"]', "'node' is linked to itself"),
        (TWO + LINK, "link 1: no bandwidth"),
        (TWO + LINK + "bandwidth = -1", "link 1: bandwidth: '-1' is not a rate"),
        (TWO + LINK + "bandwidth = nan", "link 1: bandwidth: 'nan' is not a rate"),
        (TWO + LINK + "bandwidth = 1e9", "has no unit"),
        (TWO + LINK + 'bandwidth = "0GB/s"', "is not a rate"),
        (TWO + LINK + 'bandwidth = "-1GB/s"', "is not a rate"),
        (TWO + LINK + 'bandwidth = "nanGB/s"', "is not a rate"),
        (TWO + LINK + 'bandwidth = "1GB/s"\nlatency = 5', "link 1: latency: '5' has no unit"),
        (TWO + LINK + 'bandwidth = "1GB/s"\nlatency = "-5us"', "latency: '-5us' is not a time"),
        (TWO + 2 * (LINK + 'bandwidth = "1GB/s"\n'), "link 2: the link .* stands twice"),
        ('[[device]]\n[links]\ndefault = { bandwidth = "0GB/s" }', "default: bandwidth"),
        ("[[device]]\n[links]\ndefault = { bandwidth = true }", "bandwidth cannot be True"),
        (
            "[[device]]\ncount = 3\n" + LINK + 'bandwidth = "free"',
            "link between device-0 and device-2",
        ),
    ],
)
def test_what_is_wrong_is_named(text, words):
    with pytest.raises(DataError, match=words):
        cluster.parse(text)


def test_a_file_is_named_in_its_errors(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text("[[device]]\ncount = 0\n")
    with pytest.raises(DataError, match=r"cluster\.toml: device 1"):
        cluster.read(path)
    path.write_text(FULL)
    assert len(cluster.read(path).devices) == 3
    with pytest.raises(DataError, match="does not exist"):
        cluster.read(tmp_path / "none.toml")
