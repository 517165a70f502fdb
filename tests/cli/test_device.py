import json
from dataclasses import replace

from autosplit import serialize
from autosplit.errors import ExitCode
from autosplit.types import OperatorWork
from tests import examples


def test_all_devices_are_listed(run):
    shown = run("device", "list")
    assert shown.exit_code == ExitCode.OK
    assert "mi300x" in shown.stdout
    data = json.loads(run("device", "list", "--json").stdout)
    assert data["schema"] == "autosplit.report.devices"
    assert {"a100-40gb", "cpu"} <= {device["key"] for device in data["devices"]}


def test_one_device_is_shown_with_its_source(run):
    shown = run("device", "show", "H200")
    assert "data sheet" in shown.stdout
    assert "4800 GB/s" in shown.stdout
    (device,) = json.loads(run("device", "show", "H200", "--json").stdout)["devices"]
    assert device["flops_per_s"]["bfloat16"] == 989.5e12


def test_an_unknown_device_is_refused(run):
    refused = run("device", "show", "h10")
    assert refused.exit_code == ExitCode.USAGE
    assert "h100-sxm or h100-pcie?" in refused.stderr


def test_factors_are_fitted_into_a_file_once(run, folder):
    profile = examples.profile()
    work = (OperatorWork("product", "float32", 1, 10**9, 10**6, 2, 2 * 10**9, 2 * 10**6),)
    layers = tuple(replace(layer, work=work) for layer in profile.layers)
    serialize.dump(replace(profile, layers=layers), folder / "profile.json")
    shown = run("device", "fit", "profile.json", "-o", "factors.toml")
    assert shown.exit_code == ExitCode.OK, shown.stderr
    assert "product" in shown.stdout
    assert (folder / "factors.toml").read_text().startswith('source = "fitted to small.py:build')
    again = run("device", "fit", "profile.json", "-o", "factors.toml")
    assert again.exit_code == 1
    assert "--force" in again.stderr
    data = run("device", "fit", "profile.json", "--device", "h200", "--force", "--json")
    assert json.loads(data.stdout)["fitted"] == ["product"]


def test_a_profile_without_work_cannot_be_fitted(run, profile_file, folder):
    refused = run("device", "fit", profile_file)
    assert "does not know what its layers compute" in refused.stderr
    assert not (folder / "factors.toml").exists()
