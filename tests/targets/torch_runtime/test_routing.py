from __future__ import annotations

import json

import pytest
import torch

from autosplit.targets.templates.torch.pipeline import PipelineError, read_routing
from tests.targets.torch_runtime.tables import TABLE, table


def test_a_table_knows_who_sends_what(tmp_path):
    routing = table(tmp_path)
    assert routing.inputs == ("x", "labels")
    assert routing.outputs == ("y", "x")
    assert (routing.sent(0), routing.received(0)) == (("h",), ())
    assert (routing.sent(1), routing.received(1)) == (("y", "x"), ("h",))
    assert routing.local_inputs(0) == {"x"}
    assert routing.local_inputs(1) == {"labels", "x"}
    assert routing.values["labels"].dtype == torch.int64
    assert routing.run.ranks == (0, 1)


def test_an_input_that_is_sent_is_not_looked_up(tmp_path):
    routing = table(tmp_path, cuts=[["x", "h"]])
    assert routing.local_inputs(1) == {"labels"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot read"),
        ("[]", "is not a routing table"),
        ('{"schema": "other"}', "is not a routing table"),
        (json.dumps({**TABLE, "version": [2, 0]}), r"has version \[2, 0\], not 1\.x"),
        ('{"schema": "autosplit.routing", "version": [1, 0]}', "is not a whole routing table"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, message):
    (tmp_path / "routing.json").write_text(text)
    with pytest.raises(PipelineError, match=message):
        read_routing(tmp_path / "routing.json")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(PipelineError, match="cannot read"):
        read_routing(tmp_path / "none.json")


def test_a_stage_gets_a_copy_of_what_it_writes_to(tmp_path):
    route = table(tmp_path).stages[1]
    h, labels = torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)
    given = route.call(lambda h, labels: h.add_(1).sum(), {"h": h, "labels": labels})
    assert given["y"] == 12
    assert torch.equal(h, torch.ones(2, 3))
