import inspect

import autosplit
from autosplit import workflow
from autosplit.cli.main import COMMANDS


def test_everything_public_is_there():
    for name in autosplit.__all__:
        assert hasattr(autosplit, name)


def test_every_command_that_makes_something_has_its_function():
    for name in set(COMMANDS) - {"show", "checkpoint", "device", "cluster"}:
        function = getattr(autosplit, name)
        assert inspect.isfunction(function), f"autosplit.{name} is {function}"
        assert function is getattr(workflow, name)


def test_the_functions_say_what_they_take():
    for name in ("profile", "plan", "export", "verify", "read", "save"):
        function = getattr(autosplit, name)
        assert function.__doc__
        signature = inspect.signature(function)
        assert all(
            parameter.annotation is not inspect.Parameter.empty
            for parameter in signature.parameters.values()
        )
