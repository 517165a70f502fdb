from autosplit.errors import ExitCode


def test_the_commands_are_told(run):
    shown = run("checkpoint", "--help")
    assert shown.exit_code == ExitCode.OK
    assert all(name in shown.stdout for name in ("merge", "split", "recut"))


def test_a_folder_that_is_no_export_is_refused(run, folder):
    for arguments in (
        ("merge", "nothing", "-o", "m.safetensors"),
        ("merge", "nothing", "-o", "m", "--hf"),
        ("split", "m.safetensors", "--export", "nothing", "-o", "w"),
        ("recut", "old", "nothing", "-o", "w"),
    ):
        refused = run("checkpoint", *arguments)
        assert refused.exit_code == ExitCode.FAILURE, arguments
        assert refused.stderr.startswith("error: "), refused.stderr
        assert "nothing" in refused.stderr
    assert list(folder.iterdir()) == []


def test_a_size_that_is_none_is_refused(run):
    refused = run("checkpoint", "merge", "x", "-o", "m", "--hf", "--max-shard-size", "many")
    assert refused.exit_code == ExitCode.USAGE


def test_weights_that_are_not_there_are_refused_before_the_model_is_built(run, plan_file, folder):
    refused = run("export", plan_file, "-o", "out", "--weights", "gone.pt")
    assert refused.exit_code == ExitCode.FAILURE
    assert "gone.pt does not exist" in refused.stderr
    assert not (folder / "out").exists()
