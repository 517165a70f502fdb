import pytest

from autosplit import errors
from autosplit.errors import AutosplitError, ExitCode


def test_exit_codes_are_the_documented_ones():
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0,
        "FAILURE": 1,
        "USAGE": 2,
        "TRACE": 3,
        "INFEASIBLE": 4,
        "VERIFICATION": 5,
        "INTERRUPTED": 130,
    }


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.AutosplitError, ExitCode.FAILURE),
        (errors.DataError, ExitCode.FAILURE),
        (errors.UsageError, ExitCode.USAGE),
        (errors.TraceError, ExitCode.TRACE),
        (errors.InfeasibleError, ExitCode.INFEASIBLE),
        (errors.VerificationError, ExitCode.VERIFICATION),
    ],
)
def test_each_error_knows_its_exit_code(kind, code):
    assert kind("no").exit_code is code


def test_an_error_reads_as_what_why_and_what_to_try():
    error = AutosplitError("no plan fits", cause="head needs 18 GiB", hint="use more devices")
    assert str(error) == "no plan fits\n  cause: head needs 18 GiB\n  hint:  use more devices"


def test_an_error_may_leave_out_cause_and_hint():
    assert str(AutosplitError("no plan fits")) == "no plan fits"


def test_an_exit_code_can_be_given():
    assert AutosplitError("no", exit_code=ExitCode.TRACE).exit_code is ExitCode.TRACE
