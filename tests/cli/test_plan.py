import json

import pytest

from autosplit import workflow
from autosplit.cost import OPTIMIZER_COPIES
from autosplit.errors import ExitCode
from autosplit.schedules import SCHEDULES
from autosplit.solvers import SOLVERS
from autosplit.types import Plan, PlanRequest
from tests import examples


@pytest.fixture
def asked(monkeypatch):
    """Answer every request with the example plan, and keep what was asked."""
    calls = []

    def plan(profile, request, *, batch_size, profiles, cross_check, improve):
        calls.append((str(profile), request, profiles, cross_check))
        return examples.plan()

    monkeypatch.setattr(workflow, "plan", plan)
    return calls


def test_defaults_make_a_training_pipeline(run, asked, profile_file):
    assert run("plan", profile_file, "--stages", "2").exit_code == ExitCode.OK
    expected = PlanRequest(
        stages=2,
        microbatches=8,
        schedule="1f1b",
        optimizer="adam",
        link_bytes_per_s=1e10,
        latency_s=1e-5,
        link_assumed=True,
    )
    assert asked == [("profile.json", expected, {}, False)]


def test_copies_of_a_pipeline_share_the_devices(run, asked, profile_file):
    command = ("plan", profile_file, "--gpus", "8", "--force", "--data-parallel", "2")
    assert run(*command, "--sharding", "fsdp").exit_code == ExitCode.OK
    request = asked[0][1]
    assert (request.stages, request.ranks, request.replicas) == (4, 4, 2)
    assert request.sharding == "fsdp"
    refused = run(*command[:-1], "3")
    assert refused.exit_code == ExitCode.USAGE
    assert "--gpus 8 cannot be shared by --data-parallel 3" in refused.stderr
    refused = run(*command, "--global-batch", "8")
    assert "leave out --data-parallel" in refused.stderr


def test_on_boundaries_means_whole_blocks(run, asked, profile_file):
    assert run("plan", profile_file, "--stages", "2", "--on-boundaries").exit_code == ExitCode.OK
    assert asked[0][1].granularity == "block"


def test_graphs_of_other_tools_have_no_steps(run, asked, tmp_path):
    line = "node{} -- Linear(4, 4) -- forward_compute_time=1.0, backward_compute_time=2.0, "
    line += "activation_size=8.0, parameter_size=64.0"
    graph = "\n".join([line.format(1), line.format(2), "\tnode1 -- node2"])
    (tmp_path / "graph.txt").write_text(graph)
    for option, objective in (((), "bottleneck"), (("--objective", "step"), "step")):
        command = ("plan", "graph.txt", "--stages", "2", *option, "-o", f"{objective}.json")
        assert run(*command).exit_code == ExitCode.OK
        assert asked[-1][1].objective == objective


@pytest.mark.parametrize(
    ("options", "rate", "latency_s", "assumed"),
    [
        (["--bandwidth", "free"], None, 0.0, False),
        (["--bandwidth", "1GB/s"], 1e9, 0.0, False),
        (["--latency", "5us"], 1e10, 5e-6, True),
    ],
)
def test_links_are_assumed_unless_told(run, asked, profile_file, options, rate, latency_s, assumed):
    assert run("plan", profile_file, "--stages", "2", *options).exit_code == ExitCode.OK
    request = asked[0][1]
    assert request.link_bytes_per_s == rate
    assert request.latency_s == latency_s
    assert request.link_assumed is assumed


def test_every_option_reaches_the_planner(run, asked, profile_file):
    result = run(
        *("plan", profile_file, "--gpus", "4", "--microbatches", "16", "--schedule", "gpipe"),
        *("--memory", "16GiB", "--bandwidth", "10GB/s", "--latency", "5us", "--overlap"),
        *("--optimizer", "sgd", "--objective", "bottleneck", "--pin", "head=3", "--pin", "h.0=0"),
        *("--time-limit", "2min", "--gap", "0.01", "--cross-check", "--recompute", "auto"),
        *("--together", "embed, h.0", "--boundaries", "h.0.mlp,h.1,h.2", "--granularity", "block"),
        *("--apart", "embed,head", "--apart", "h.*", "--alone", "head"),
    )
    assert result.exit_code == ExitCode.OK, result.output
    expected = PlanRequest(
        stages=4,
        microbatches=16,
        schedule="gpipe",
        memory_bytes=16 * 2**30,
        link_bytes_per_s=1e10,
        latency_s=5e-6,
        overlap=True,
        optimizer="sgd",
        objective="bottleneck",
        pins=(("head", 3), ("h.0", 0)),
        time_limit_s=120.0,
        gap=0.01,
        ranks=4,
        recompute="auto",
        together=(("embed", "h.0"),),
        boundaries=("h.0.mlp", "h.1", "h.2"),
        granularity="block",
        apart=(("embed", "head"), ("h.*",)),
        alone=(("head",),),
    )
    assert asked == [("profile.json", expected, {}, True)]


def test_profiles_of_other_devices_reach_the_planner(run, asked, profile_file, folder):
    (folder / "cluster.toml").write_text('[[device]]\nkind = "a100"\ncount = 2\n')
    command = ("plan", profile_file, "--cluster", "cluster.toml", "--force", "--profile-for")
    assert run(*command, "a100=a100.json").exit_code == ExitCode.OK
    assert asked[0][2] == {"a100": "a100.json"}
    refused = run(*command, "v100=a100.json")
    assert refused.exit_code == ExitCode.USAGE
    assert "v100, which the cluster does not have" in refused.stderr
    assert "kinds of the cluster: a100" in refused.stderr


def test_the_plan_is_written_shown_and_followed_by_the_next_command(
    run, asked, profile_file, folder
):
    result = run("plan", profile_file, "--stages", "2")
    assert workflow.read(folder / "plan.json") == examples.plan()
    assert "proven optimal" in result.stdout
    assert "▶ 0" in result.stdout
    assert result.stderr == ("Wrote plan.json.\nNext: autosplit export plan.json -o pipeline\n")


def test_json_is_one_document_with_the_promised_keys(run, asked, profile_file, folder):
    result = run("plan", profile_file, "--stages", "2", "--json")
    data = json.loads(result.stdout)
    assert data["schema"] == "autosplit.report.plan"
    promised = {"status", "bottleneck_s", "bound_s", "gap", "solver", "solver_s", "step_s"}
    assert promised <= data.keys()
    for stage in data["stages"]:
        assert {"layers", "device", "forward_s", "backward_s", "memory_bytes"} <= stage.keys()
    assert result.stderr == ""
    assert not (folder / "plan.json").exists()


def test_json_and_output_do_both(run, asked, profile_file, folder):
    run("plan", profile_file, "--stages", "2", "--json", "-o", "mine.json")
    assert isinstance(workflow.read(folder / "mine.json"), Plan)


def test_a_file_that_exists_is_refused_before_work(run, asked, profile_file, folder):
    (folder / "plan.json").write_text("mine")
    result = run("plan", profile_file, "--stages", "2")
    assert result.exit_code == ExitCode.FAILURE
    assert "plan.json exists" in result.stderr
    assert "--force" in result.stderr
    assert asked == []
    assert (folder / "plan.json").read_text() == "mine"
    assert run("plan", profile_file, "--stages", "2", "--force").exit_code == ExitCode.OK


def test_a_plan_without_proof_ends_well_with_its_gap(run, monkeypatch, profile_file):
    found = examples.plan(status="feasible", gap=0.031, bound_s=0.2355)
    monkeypatch.setattr(workflow, "plan", lambda *args, **kwargs: found)
    result = run("plan", profile_file, "--stages", "2")
    assert result.exit_code == ExitCode.OK
    assert "3.1 %" in result.stdout
    assert result.stderr.startswith("warning: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "how many stages?"),
        (["--stages", "0"], "0 is not in the range x>=1"),
        (["--stages", "2", "--memory", "16"], "'16' has no unit; write it like 16GiB"),
        (["--stages", "2", "--bandwidth", "10"], "'10' has no unit; write it like 10GB/s"),
        (["--stages", "2", "--memory", "lots"], "'lots' is not a size; write it like 16GiB"),
        (["--stages", "2", "--bandwidth", "0GB/s"], "nothing could ever be sent"),
        (["--stages", "2", "--latency", "5miles"], "'5miles' is not a time"),
        (["--stages", "2", "--latency", "5"], "'5' has no unit; write it like 5us"),
        (["--stages", "2", "--schedule", "1fb1"], "Did you mean '1f1b'?"),
        (["--stages", "2", "--solver", "none"], "'none' is not one of auto"),
        (["--stages", "2", "--pin", "head"], "'head' is not LAYER=STAGE"),
        (["--stages", "2", "--pin", "head=-1"], "'head=-1' is not LAYER=STAGE"),
        (["--stages", "2", "--gap", "2"], "2.0 is not in the range 0<=x<=1"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(run, asked, profile_file, arguments, words):
    result = run("plan", profile_file, *arguments)
    assert result.exit_code == ExitCode.USAGE
    assert words in result.stderr
    assert asked == []


def test_links_of_a_cluster_are_not_called_free(run, profile_file, folder):
    text = '[[device]]\ncount = 2\n[links]\ndefault = { bandwidth = "10GB/s" }\n'
    (folder / "cluster.toml").write_text(text)
    result = run("plan", profile_file, "--cluster", "cluster.toml")
    assert result.exit_code == ExitCode.OK, result.stderr
    assert "by pair, as the cluster says" in result.stdout


def test_a_cluster_that_is_not_there_is_named_once(run, profile_file):
    result = run("plan", profile_file, "--cluster", "gone.toml")
    assert result.stderr == "error: gone.toml does not exist\n"


def test_every_registered_name_can_be_chosen(run, asked, profile_file):
    for option, names in [
        ("--schedule", SCHEDULES),
        ("--solver", SOLVERS),
        ("--optimizer", OPTIMIZER_COPIES),
    ]:
        for name in names:
            result = run("plan", profile_file, "--stages", "2", option, name, "--json")
            assert result.exit_code == ExitCode.OK, result.output


@pytest.mark.parametrize("option", ["--boundaries", "--together", "--apart", "--alone"])
@pytest.mark.parametrize("names", [" ,", ""])
def test_commas_alone_name_nothing(run, asked, profile_file, option, names):
    result = run("plan", profile_file, "--stages", "2", option, names)
    assert result.exit_code == ExitCode.USAGE
    assert f"{names!r} names nothing" in result.stderr


def test_wishes_are_shown_with_the_plan(run, profile_file):
    wishes = ("--alone", "head", "--apart", "embed,head")
    result = run("plan", profile_file, "--stages", "2", *wishes)
    assert result.exit_code == ExitCode.OK, result.output
    assert "--apart embed,head, --alone head" in result.stdout
    assert "--apart embed,head, --alone head" in run("show", "plan.json").stdout


def test_boundaries_and_clusters_say_how_many_stages(run, asked, profile_file, folder):
    run("plan", profile_file, "--boundaries", "h.0,h.1", "--json")
    (folder / "cluster.toml").write_text('[[device]]\nkind = "a100"\ncount = 3\n')
    run("plan", profile_file, "--cluster", "cluster.toml", "--json")
    assert [call[1].stages for call in asked] == [3, 3]
    assert len(asked[1][1].cluster.devices) == 3


def test_copies_share_the_devices_of_a_cluster(run, asked, profile_file, folder):
    (folder / "cluster.toml").write_text('[[device]]\nkind = "a100"\ncount = 6\n')
    run("plan", profile_file, "--cluster", "cluster.toml", "--data-parallel", "3")
    assert (asked[0][1].stages, asked[0][1].replicas) == (2, 3)


def test_a_cluster_at_fault_is_told_with_its_place(run, asked, profile_file, folder):
    (folder / "cluster.toml").write_text("[[device]]\nspeed = -1\n")
    result = run("plan", profile_file, "--cluster", "cluster.toml")
    assert result.exit_code == ExitCode.FAILURE
    assert "cluster.toml" in result.stderr
    assert asked == []


def test_a_batch_is_searched_for_and_the_best_kept(run, profile_file, folder):
    result = run("plan", profile_file, "--gpus", "2", "--global-batch", "32")
    assert result.exit_code == ExitCode.OK, result.output
    assert "configurations" in result.stdout
    plan = workflow.read(folder / "plan.json")
    assert plan.profile_path == str(folder / "profile.json")
    assert plan.nodes
    asked = ("plan", profile_file, "--gpus", "2", "--global-batch", "32", "--json")
    data = json.loads(run(*asked).stdout)
    speeds = [candidate["samples_per_s"] for candidate in data["candidates"]]
    assert speeds == sorted(speeds, reverse=True)
    assert data["step_s"] == data["candidates"][0]["step_s"] == plan.step_s


def test_what_is_said_with_a_global_batch_is_not_searched(run, profile_file):
    asked = ("plan", profile_file, "--gpus", "2", "--global-batch", "32", "--json")
    said = ("--schedule", "gpipe", "--stages", "2", "--no-replicas")
    data = json.loads(run(*asked, *said).stdout)
    (only,) = data["candidates"]
    assert (only["schedule"], only["stages"], only["replicas"]) == ("gpipe", 2, 1)
    assert (only["devices"], only["outcome"], only["reason"]) == (2, "planned", "")
    assert "not tried: replicas" in data["left_out"]
    assert data["stopped"] is None


def test_a_search_needs_devices(run, profile_file):
    result = run("plan", profile_file, "--global-batch", "32")
    assert result.exit_code == ExitCode.USAGE
    assert "give --gpus" in result.stderr


def test_plans_made_by_hand_are_never_ahead(run, profile_file):
    result = run("plan", profile_file, "--stages", "3", "--compare", "--json")
    data = json.loads(result.stdout)
    names = {each["name"] for each in data["baselines"]}
    assert {"uniform", "parameters", "time"} <= names
    assert all(each["step_s"] >= data["step_s"] * (1 - 1e-9) for each in data["baselines"])
    shown = run("plan", profile_file, "--stages", "3", "--compare").stdout
    assert "Against plans made by hand" in shown
    (own,) = (line for line in shown.splitlines() if line.startswith("this plan"))
    assert own.rstrip().endswith("yes")
    assert "iB" in own


def test_several_profiles_need_a_batch_to_choose_for(run, profile_file):
    result = run("plan", profile_file, profile_file, "--stages", "2")
    assert result.exit_code == ExitCode.USAGE
    assert "one profile makes a plan, not 2" in result.stderr


WORKLOAD = {
    "maxSizePerFPGA": 100.0,
    "maxFPGAs": 2,
    "maxCPUs": 0,
    "nodes": [
        {
            "id": index,
            "supportedOnFpga": 1,
            "cpuLatency": 50.0,
            "fpgaLatency": 2.0 + index,
            "isBackwardNode": 0,
            "size": 10.0,
        }
        for index in range(4)
    ],
    "edges": [{"sourceId": i, "destId": i + 1, "cost": 0.5} for i in range(3)],
}


def test_a_workload_file_brings_its_own_devices(run, folder):
    (folder / "workload.json").write_text(json.dumps(WORKLOAD))
    result = run("plan", "workload.json")
    assert result.exit_code == ExitCode.OK, result.output
    assert "proven optimal" in result.stdout
    assert not (folder / "plan.json").exists()
    data = json.loads(run("plan", "workload.json", "--json").stdout)
    assert data["schema"] == "autosplit.report.workload"
    assert data["status"] == "optimal"
    assert data["bottleneck_s"] == pytest.approx(0.0095)
    assert sorted(name for stage in data["stages"] for name in stage["layers"]) == list("0123")


@pytest.mark.parametrize(
    "wish", [("--pin", "0=1"), ("--apart", "0,1"), ("--alone", "0"), ("--boundaries", "1")]
)
def test_wishes_for_a_workload_file_are_refused(run, folder, wish):
    (folder / "workload.json").write_text(json.dumps(WORKLOAD))
    result = run("plan", "workload.json", *wish)
    assert result.exit_code == ExitCode.USAGE
    assert f"{wish[0]} is for profiles" in result.stderr


def test_plans_made_by_hand_that_grant_no_wish_are_told(run, profile_file):
    asked = ("plan", profile_file, "--stages", "2", "--alone", "head", "--compare", "--json")
    found = json.loads(run(*asked).stdout)
    alone = found["stages"][1]["layers"] == ["head"]
    assert alone
    assert not all(each["fits"] for each in found["baselines"])


def test_a_profile_that_is_missing_or_foreign_is_told(run, folder):
    (folder / "foreign.json").write_text("{}")
    assert "none.json does not exist" in run("plan", "none.json", "--stages", "2").stderr
    foreign = run("plan", "foreign.json", "--stages", "2")
    assert foreign.exit_code == ExitCode.FAILURE
    assert "foreign.json" in foreign.stderr
    assert not (folder / "plan.json").exists()
