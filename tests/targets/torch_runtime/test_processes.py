from __future__ import annotations

import pytest

from autosplit.targets.templates.torch.pipeline import PipelineError, start
from autosplit.targets.templates.torch.pipeline.schedules import (
    SCHEDULES,
    find_schedule,
    schedule_names,
)
from tests.targets.torch_runtime.tables import table


@pytest.fixture
def environment(monkeypatch, free_port):
    def set_world(rank: int, world: int) -> None:
        pairs = {
            "RANK": rank,
            "WORLD_SIZE": world,
            "LOCAL_RANK": rank,
            "LOCAL_WORLD_SIZE": world,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": free_port,
        }
        for name, value in pairs.items():
            monkeypatch.setenv(name, str(value))

    return set_world


def test_a_wrong_number_of_processes_is_refused_before_connecting(tmp_path, environment):
    environment(0, 3)
    with (
        pytest.raises(PipelineError, match="needs 2 processes and 3 were started"),
        start(table(tmp_path), device="cpu"),
    ):
        pass


def test_a_start_without_torchrun_is_explained(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(PipelineError, match=r"RANK is not set: start through \./launch\.sh"):
        start(table(tmp_path)).__enter__()


@pytest.mark.timeout(60)
def test_a_missing_process_is_waited_for_no_longer_than_asked(tmp_path, environment):
    environment(0, 2)
    with (
        pytest.raises(PipelineError, match="rank 0 of 2 could not reach the others within 1 s"),
        start(table(tmp_path), device="cpu", timeout_s=1.0),
    ):
        pass


def test_cuda_is_asked_for_in_vain(tmp_path, environment, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    environment(0, 2)
    with pytest.raises(PipelineError, match="2 processes need a CUDA device each; 1 are here"):
        start(table(tmp_path), device="cuda").__enter__()


def test_one_process_joins_and_leaves(tmp_path, environment):
    environment(0, 1)
    one = table(
        tmp_path,
        run={"ranks": [0, 0], "schedule": "gpipe", "microbatches": 1, "microbatch_size": 1},
    )
    for _ in range(2):
        with start(one, device="cpu", timeout_s=20) as processes:
            assert processes.stages == (0, 1)
            assert processes.device.type == "cpu"


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("zb", (0, 1)), ("zbv", (0, 1, 0, 1)), ("1f1b", (0, 1, 0, 1)), ("interleaved", (0, 1, 1, 0))],
)
def test_schedules_that_do_not_fit_are_refused(name, ranks):
    message = f"schedule '{name}' does not run {len(ranks)} stages on ranks 0, 1.*: choose "
    with pytest.raises(PipelineError, match=message):
        find_schedule(name, ranks)


@pytest.mark.parametrize(
    ("ranks", "names"),
    [
        ((0, 1, 2), "gpipe 1f1b looped-bfs interleaved zero-bubble"),
        ((0, 1, 0, 1), "looped-bfs interleaved zero-bubble"),
        ((0, 1, 2, 2, 1, 0), "zbv dualpipev"),
        ((0, 1, 0), ""),
        ((1, 0), ""),
    ],
)
def test_schedules_of_a_placement(ranks, names):
    assert schedule_names(ranks) == tuple(names.split())
    assert set(names.split()) <= set(SCHEDULES)
