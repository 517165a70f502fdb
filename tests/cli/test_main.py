import errno
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from autosplit import __version__, workflow
from autosplit.errors import (
    AutosplitError,
    DataError,
    ExitCode,
    InfeasibleError,
    TraceError,
    UsageError,
    VerificationError,
)


def failing(error):
    def raise_it(*args, **kwargs):
        raise error

    return raise_it


def test_help_names_every_command_in_the_order_of_use(run):
    result = run("--help")
    assert result.exit_code == ExitCode.OK
    listed = result.stdout.split("Commands:")[1].split("\n")
    commands = [line.split()[0] for line in listed if line.strip()]
    steps = ["profile", "plan", "export", "verify"]
    assert commands == [*steps, "show", "checkpoint", "device", "cluster"]


@pytest.mark.parametrize(
    "command", ["profile", "plan", "export", "verify", "show", "checkpoint", "device"]
)
def test_every_command_has_help_and_the_common_options(run, command):
    result = run(command, "-h")
    assert result.exit_code == ExitCode.OK
    for option in ("--verbose", "--quiet", "--color", "--traceback", "--help"):
        assert option in result.stdout


@pytest.mark.parametrize("arguments", [[], ["-v"], ["--no-color"]])
def test_nothing_asked_shows_the_help(run, arguments):
    result = run(*arguments)
    assert result.exit_code == ExitCode.OK
    assert result.stdout == run("--help").stdout
    assert result.stderr == ""


def test_the_version_is_told(run):
    assert run("--version").stdout == f"autosplit, version {__version__}\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AutosplitError("no"), 1),
        (DataError("no"), 1),
        (UsageError("no"), 2),
        (TraceError("no"), 3),
        (InfeasibleError("no"), 4),
        (VerificationError("no"), 5),
        (RuntimeError("no"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_failure_has_its_exit_code(run, monkeypatch, error, code):
    monkeypatch.setattr(workflow, "read", failing(error))
    assert run("show", "plan.json").exit_code == code


def test_an_error_says_what_why_and_what_to_try_on_standard_error(run, monkeypatch):
    error = InfeasibleError(
        "no 4-stage plan fits 16.0 GiB per device",
        cause="lm_head alone needs 18.2 GiB at micro-batch 8",
        hint="raise --microbatches (now 4) or give larger devices",
    )
    monkeypatch.setattr(workflow, "read", failing(error))
    result = run("show", "plan.json")
    assert result.stdout == ""
    assert result.stderr == (
        "error: no 4-stage plan fits 16.0 GiB per device\n"
        "  cause: lm_head alone needs 18.2 GiB at micro-batch 8\n"
        "  hint:  raise --microbatches (now 4) or give larger devices\n"
    )


def test_names_from_a_model_are_no_markup(run, monkeypatch):
    monkeypatch.setattr(workflow, "read", failing(DataError("layer [bold]h[0][/] is odd")))
    assert run("show", "x").stderr == "error: layer [bold]h[0][/] is odd\n"


def test_a_fault_of_ours_shows_no_stack_but_how_to_get_one(run, monkeypatch):
    monkeypatch.setattr(workflow, "read", None)
    result = run("show", "plan.json")
    assert "Traceback" not in result.output
    assert "unexpected TypeError: 'NoneType' object is not callable" in result.stderr
    assert "a fault in autosplit" in result.stderr
    assert "--traceback" in result.stderr


def test_a_fault_of_the_user_names_the_line_and_is_not_called_ours(run, monkeypatch):
    monkeypatch.setattr(workflow, "read", lambda _: json.loads("{"))
    result = run("show", "plan.json")
    assert result.exit_code == ExitCode.FAILURE
    assert re.match(rf"error: {re.escape(__file__)}:\d+ fails\n  cause: JSONDec", result.stderr)
    assert "--traceback" in result.stderr
    assert "autosplit" not in result.stderr.replace(__file__, "")


def test_a_full_disk_under_the_output_is_no_fault_of_ours(run, monkeypatch):
    monkeypatch.setattr(workflow, "read", failing(OSError(errno.ENOSPC, "No space left")))
    assert run("show", "x").stderr == "error: cannot write the output\n  cause: No space left\n"


@pytest.mark.parametrize("error", [DataError("no"), ZeroDivisionError("no")])
@pytest.mark.parametrize("arguments", [["--traceback", "show", "x"], ["show", "x", "--traceback"]])
def test_traceback_lets_the_error_through(run, monkeypatch, error, arguments):
    monkeypatch.setattr(workflow, "read", failing(error))
    assert run(*arguments).exception is error


def test_an_unknown_command_is_guessed(run):
    result = run("pln")
    assert result.exit_code == ExitCode.USAGE
    assert result.stderr == "error: no command 'pln'\n  hint:  did you mean 'plan'?\n"


def test_an_unknown_option_is_guessed(run):
    result = run("plan", "profile.json", "--stage", "2")
    assert result.exit_code == ExitCode.USAGE
    assert "Did you mean" in result.stderr
    assert "'--stages'" in result.stderr
    assert "hint:  autosplit plan --help" in result.stderr


def test_a_missing_argument_is_a_usage_error(run):
    result = run("plan", "--stages", "2")
    assert result.exit_code == ExitCode.USAGE
    assert "Missing argument 'PROFILE..." in result.stderr


def test_quiet_leaves_the_data_only(run, plan_file):
    assert run("show", plan_file).stderr == "Next: autosplit export plan.json -o pipeline\n"
    assert run("show", plan_file, "-q").stderr == ""
    assert run("-q", "show", plan_file).stderr == ""


@pytest.mark.parametrize(
    ("arguments", "environment", "colored"),
    [
        ([], {}, False),
        (["--color"], {}, True),
        (["--no-color"], {"FORCE_COLOR": "1"}, False),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (["--color"], {"NO_COLOR": "1"}, True),
    ],
)
def test_colour_follows_option_environment_and_terminal(
    run, plan_file, monkeypatch, arguments, environment, colored
):
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ("\x1b[" in run("show", plan_file, *arguments).stdout) is colored


# ---------------------------------------------------------------- as a process of its own

COMMAND = [sys.executable, "-m", "autosplit"]


@pytest.mark.timeout(60)
def test_a_reader_that_goes_away_is_no_error(folder, plan_file):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        result = subprocess.run(
            [*COMMAND, "show", plan_file], stdout=pipe, stderr=subprocess.PIPE, text=True
        )
    assert "Traceback" not in result.stderr
    assert "Broken" not in result.stderr
    assert str(errno.EPIPE) not in result.stderr


@pytest.mark.timeout(60)
@pytest.mark.parametrize("setting", [{"PYTHONIOENCODING": "ascii"}, {"COLUMNS": "0"}])
def test_a_terminal_that_shows_little_is_shown_what_it_can(folder, plan_file, setting):
    result = subprocess.run(
        [*COMMAND, "show", plan_file],
        env={**os.environ, **setting},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "micro-batches" in result.stdout


@pytest.mark.timeout(60)
def test_control_c_ends_with_130(folder):
    script = (
        "import os, signal, sys\n"
        "from autosplit import workflow\n"
        "workflow.read = lambda path: os.kill(os.getpid(), signal.SIGINT)\n"
        "from autosplit.cli.main import main\n"
        "sys.argv = ['autosplit', 'show', 'x']\n"
        "main()\n"
    )
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == ExitCode.INTERRUPTED
    assert result.stderr.strip() == "interrupted"
    assert result.stdout == ""


@pytest.mark.timeout(60)
def test_the_module_is_the_command(folder):
    result = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"autosplit, version {__version__}\n"
