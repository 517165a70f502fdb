"""Clusters from TOML: what is read, and what is refused by name."""

import pytest

from autosplit import cluster
from autosplit.errors import DataError
from autosplit.types import LinkSpeed

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
latency = 1e-5
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
        ('[[device]]\nname = "x"\n[[device]]\nkind = "x"\nname = "x"', None),
        ("[[device]]\n[links]\nfast = 1", "links: unknown key 'fast'"),
        ("[[device]]\n[links]\ndefault = { speed = 1 }", "links.default: unknown key 'speed'"),
        ('[[device]]\n[[link]]\nbetween = ["device", "d9"]', "'d9' is neither a device nor"),
        ('[[device]]\n[[link]]\nbetween = ["device"]', "between names 1 ends"),
        ('[[device]]\n[links]\ndefault = { bandwidth = "0GB/s" }', "default: bandwidth"),
        ("[[device]]\n[links]\ndefault = { bandwidth = true }", "bandwidth cannot be True"),
        (
            '[[device]]\ncount = 3\n[[link]]\nbetween = ["device-0", "device-1"]',
            "link between device-0 and device-2",
        ),
    ],
)
def test_what_is_wrong_is_named(text, words):
    if words is None:
        names = [device.name for device in cluster.parse(text).devices]
        assert len(set(names)) == len(names)
        return
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
