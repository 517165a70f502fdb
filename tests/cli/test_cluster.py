import json

import pytest

from autosplit import cluster
from autosplit.errors import ExitCode
from autosplit.profilers.probe import Measured
from autosplit.types import LinkSpeed


@pytest.fixture
def example(folder):
    (folder / "c.toml").write_text(cluster.EXAMPLE)
    return "c.toml"


def test_devices_and_links_are_shown(run, example):
    shown = run("cluster", "show", example)
    assert shown.exit_code == ExitCode.OK, shown.stderr
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["0", "a100-0", "a100", "box0", "80.0", "GiB", "2×"] in lines
    assert ["a", "1.00", "GB/s", "0", "s", "16"] in lines
    assert ["b", "200", "GB/s", "0", "s", "12"] in lines
    assert ["0", "·", *"bbb", *"aaaa"] in lines


def test_links_are_shown_as_json(run, example):
    data = json.loads(run("cluster", "show", example, "--json").stdout)
    assert data["schema"] == "autosplit.report.cluster"
    assert len(data["devices"]) == 8
    assert len(data["links"]) == 28
    assert data["links"][0] == {
        "between": ["a100-0", "a100-1"],
        "bytes_per_s": 2e11,
        "latency_s": 0.0,
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[device]]\ncount = 3\n", "left to --bandwidth"),
        ("[[device]]\n[links]\ndefault = { bandwidth = 'free' }\n", "device"),
        ("[[device]]\ncount = 2\n[links]\ndefault = { bandwidth = 'free' }\n", "free"),
        ("[[device]]\ncount = 40\n[links]\ndefault = { bandwidth = '1GB/s' }\n", "780"),
    ],
)
def test_other_clusters_are_shown(run, folder, text, words):
    (folder / "c.toml").write_text(text)
    shown = run("cluster", "show", "c.toml")
    assert shown.exit_code == ExitCode.OK, shown.stderr
    assert words in shown.stdout


def test_a_faulty_file_is_refused(run, folder):
    (folder / "c.toml").write_text("[[device]]\nspeed = 0\n")
    refused = run("cluster", "show", "c.toml")
    assert refused.exit_code == ExitCode.FAILURE
    assert "c.toml: device 1" in refused.stderr


def test_without_torchrun_the_command_is_told(run, folder, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    refused = run("cluster", "probe")
    assert refused.exit_code == ExitCode.USAGE
    assert "torchrun --nproc-per-node 4 --no-python autosplit cluster probe" in refused.stderr
    assert not list(folder.iterdir())


@pytest.fixture
def alone(monkeypatch):
    """This process as the only rank of a launcher."""
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    for name, value in {**ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)


def test_one_rank_measures_itself(run, folder, alone):
    done = run("cluster", "probe", "--json", "--device", "cpu")
    assert done.exit_code == ExitCode.OK, done.stderr
    data = json.loads(done.stdout)
    assert (len(data["devices"]), data["links"]) == (1, [])
    assert not cluster.read("cluster.toml").has_links


def test_a_file_is_not_replaced_unasked(run, example, alone):
    refused = run("cluster", "probe", "-o", example)
    assert refused.exit_code == ExitCode.FAILURE
    assert "c.toml exists" in refused.stderr
    assert cluster.read(example) == cluster.parse(cluster.EXAMPLE)


def test_ways_of_unlike_speed_are_told(example):
    found = cluster.read(example)
    even, slow = LinkSpeed(1e9), LinkSpeed(1e8)
    ways = {(0, 1): (even, even), (0, 2): (even, slow), (1, 2): (even, even)}
    assert Measured(found, ways).remarks() == [
        "a100-0 sends 1.00 GB/s to a100-2, which sends 100 MB/s back",
    ]


def test_busy_machines_are_told(example):
    measured = Measured(cluster.read(example), {(0, 1): (LinkSpeed(2e9), LinkSpeed(1e9))})
    (remark,) = measured.remarks()
    assert "differ by 100 % here" in remark
