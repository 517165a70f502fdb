import io

import pytest
from rich.console import Console

from autosplit.cli.console import Terminal
from autosplit.errors import DataError


@pytest.fixture
def terminal():
    """A terminal whose streams are kept; standard error is a terminal."""
    found = Terminal()
    found.out = Console(file=io.StringIO(), width=80)
    found.err = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    return found


def said(terminal):
    return terminal.err.file.getvalue()


def test_a_step_draws_a_bar_on_a_terminal(terminal):
    with terminal.step("profile") as report:
        report(2, 10, "precision 5 %")
        report(10, 10, "done")
    assert "profile" in said(terminal)
    assert "precision 5 %" in said(terminal)
    assert terminal.out.file.getvalue() == ""


@pytest.mark.parametrize("verbosity", [-1, 0])
def test_a_step_is_silent_off_a_terminal_or_when_quiet(terminal, verbosity):
    terminal.verbosity = verbosity
    terminal.err = Console(file=io.StringIO(), width=80, force_terminal=verbosity < 0)
    with terminal.step("profile") as report:
        report(1, 2, "half")
    assert said(terminal) == ""


def test_details_are_for_those_who_ask(terminal):
    terminal.detail("one")
    terminal.verbosity = 1
    terminal.detail("two")
    assert said(terminal) == "two\n"


def test_an_error_is_shown_however_quiet(terminal):
    terminal.verbosity = -3
    terminal.fail(DataError("no", cause="first\nsecond"))
    assert said(terminal) == "error: no\n  cause: first\n         second\n"


def test_the_next_command_can_be_typed_as_it_stands(terminal):
    terminal.next_step("plan", "my profile.json", "--stages", "2")
    assert said(terminal) == "Next: autosplit plan 'my profile.json' --stages 2\n"


def test_data_is_written_as_it_is(terminal):
    terminal.write('{"a": "[bold]"}\n')
    assert terminal.out.file.getvalue() == '{"a": "[bold]"}\n'
