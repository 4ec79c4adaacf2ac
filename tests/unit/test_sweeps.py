"""Sweeps: which points a job has, what each is told, and how their ends become the job's."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.agent.points import Sweep
from clusterctl.agent.supervise import State
from clusterctl.batch import verdict
from clusterctl.batch.system import load_system
from clusterctl.core.job import Job, JobState
from clusterctl.core.model import Accelerator, Cluster, Role
from clusterctl.core.sweep import MOST_POINTS, list_points, parse_concurrency
from clusterctl.errors import UsageError
from clusterctl.jobs import submit
from clusterctl.launch.launcher import Request
from tests.unit.making import cluster, job, node, spec
from tests.unit.scripts import start_locally
from tests.unit.tables import rows


def test_every_combination_is_a_point_and_the_last_value_changes_first() -> None:
    found = list_points(("lr=0.1,0.01", "seed=0..2"), "")
    assert [point.number for point in found] == list(range(6))
    assert found[1].args == ("--lr", "0.1", "--seed", "1")
    assert found[3].args == ("--lr", "0.01", "--seed", "0")
    assert dict(found[3].env) == {"CLUSTERCTL_SWEEP_LR": "0.01", "CLUSTERCTL_SWEEP_SEED": "0"}


def test_values_are_taken_as_they_are() -> None:
    (first, second, *rest) = list_points(("--model.name=a b,$x,", "n=3..1"), "")
    assert first.args == ("--model.name", "a b", "--n", "3")
    assert second.args[-1] == "2"
    assert dict(first.env)["CLUSTERCTL_SWEEP_MODEL_NAME"] == "a b"
    assert rest[-1].args == ("--model.name", "", "--n", "1")


@rows("text, numbers, most", "sweeps.arrays_are_written_as_for_sbatch")
def test_arrays_are_written_as_for_sbatch(text: str, numbers: list[int], most: int) -> None:
    found = list_points((), text)
    assert [point.number for point in found] == numbers
    assert [dict(point.env)["CLUSTERCTL_ARRAY_INDEX"] for point in found] == list(map(str, numbers))
    assert (found[0].args, parse_concurrency(text)) == ((), most)


@rows("text, values", "sweeps.a_value_in_quotes_may_hold_commas")
def test_a_value_in_quotes_may_hold_commas(text: str, values: list[str]) -> None:
    name = text.partition("=")[0]
    assert [point.settings[name] for point in list_points((text,), "")] == values


BAD_ARRAYS = (",", "a", "3-1", "1-", "-1", "0-9:0", "0-9%0", "1;2", "1 2")
BAD_SWEEPS = ("lr", "lr=", "=1", "a b=1", "1x=2", "$(x)=1")


@pytest.mark.parametrize(
    ("sweep", "array"), [*(((), text) for text in BAD_ARRAYS), *(((t,), "") for t in BAD_SWEEPS)]
)
def test_what_is_not_understood_is_refused(sweep: tuple[str, ...], array: str) -> None:
    says = "is not NAME=VALUE" if sweep else "is not a list of numbers"
    with pytest.raises(UsageError, match=says):
        list_points(sweep, array)


def test_too_many_points_and_names_given_twice_are_refused() -> None:
    for sweep, array in (
        (("a=0..999", "b=0..99"), ""),
        ((f"a=1..{10**30}",), ""),
        ((), f"0-{MOST_POINTS}"),
    ):
        with pytest.raises(UsageError, match="points are more than a job may have"):
            list_points(sweep, array)
    with pytest.raises(UsageError, match="--sweep a was given twice"):
        list_points(("a=1", "a=2"), "")


@rows("array, total", "sweeps.the_points_of_an_array_are_counted_over_all_parts")
def test_the_points_of_an_array_are_counted_over_all_parts(array: str, total: int) -> None:
    with pytest.raises(UsageError, match=f"^{total} points are more than a job may have"):
        list_points((), array)


def test_an_array_may_name_a_point_twice_and_have_as_many_as_allowed() -> None:
    assert len(list_points((), f"0-{MOST_POINTS - 1},0-99")) == MOST_POINTS
    assert len(list_points((), f"0-{2 * MOST_POINTS - 1}:2")) == MOST_POINTS


def planned(where: Cluster, **changes: object) -> Job:
    """The job as it is before it starts."""
    wanted, placement = load_system(where.system).resolve(spec(**changes), where)
    return replace(job(where, spec()), spec=wanted, placement=placement)


def test_points_take_all_slots_or_as_many_as_were_asked_for() -> None:
    where = cluster(
        node("launcher", "10.0.0.10"),
        node("worker-1", "10.0.0.11", slots=1),
        node("worker-2", "10.0.0.12", slots=4),
    )

    def counts(**changes: object) -> list[tuple[str, int]]:
        return [(place.node, place.count) for place in planned(where, **changes).placement]

    assert counts(array="0-99") == [("worker-1", 1), ("worker-2", 4)]
    assert counts(array="0-99%3") == [("worker-1", 1), ("worker-2", 2)]
    assert counts(array="0-1") == [("worker-1", 1), ("worker-2", 1)]
    assert counts(array="0-99", nodes=1) == [("worker-1", 1)]


def site(system: str) -> Cluster:
    return cluster(node("login", "10.0.0.9", role=Role.LOGIN), provider=system)


@rows("where, changes, option", "sweeps.a_point_is_one_process")
def test_a_point_is_one_process(where: str, changes: dict[str, object], option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} cannot be combined with --sweep or --array"):
        planned(site(where) if where else cluster(), array="0-3", **changes)


@rows("system, changes, lines", "sweeps.a_batch_system_is_given_an_array")
def test_a_batch_system_is_given_an_array(
    system: str, changes: dict[str, object], lines: list[str]
) -> None:
    changes = {"launcher": "auto", **changes}
    files = scripts(site(system), **changes)["login"]
    assert set(lines) <= set(files["job.sh"][0].splitlines())
    assert len(files["todo"][0].split()) == len(planned(site(system), **changes).processes)


BEGAN = "@@job 7 4711\nrunning 1 1\npoint 1 0 c1\npoint 2 1 c2\nexit 3 0 0 1\n"


def surveyed(text: str, system: str = "slurm") -> Job:
    made = planned(site(system), array="0-2", launcher="auto")
    return load_system(system).parse_status(made, text)


def test_an_array_runs_while_the_queue_has_tasks_of_it() -> None:
    now = surveyed(f"{BEGAN}queue PENDING|Resources\n")
    assert (now.state, now.points_ended, now.reason) == (JobState.RUNNING, {"0": 0}, "")
    waits = surveyed("@@job 7 4711\nqueue PENDING|Resources\n")
    assert (waits.state, waits.reason) == (JobState.QUEUED, "Resources")


@rows("gone, state, reason", "sweeps.an_array_has_ended_when_the_queue_has_no_task_of_it")
def test_an_array_has_ended_when_the_queue_has_no_task_of_it(
    gone: str, state: str, reason: str
) -> None:
    """Also where a node died before it could note how a point ended."""
    done = surveyed(f"{BEGAN}exit 4 1 3 1\ngone {gone}\n")
    assert (done.state, done.reason, done.finished) == (JobState(state), reason, 9)
    assert done.unfinished_points == (1, 2)
    assert done.native_id == "4711"
    if done.state is JobState.FAILED:
        assert done.failure is not None
        assert (done.failure.rank, done.failure.node, done.failure.exit_code) == (1, "c2", 3)


def test_a_cancelled_array_is_cancelled_whatever_its_points_say() -> None:
    done = surveyed(f"{BEGAN}stop 8 cancelled\ngone UNKNOWN|||9\n")
    assert (done.state, done.program_exit_code) == (JobState.CANCELLED, None)


def scripts(where: Cluster, **changes: object) -> dict[str, dict[str, tuple[str, int]]]:
    made = planned(where, **changes)
    request = Request(id=made.id, spec=made.spec, cluster=where, placement=made.placement)
    return submit.make_node_files(made, where, load_system(where.system).plan(request), {})


def test_a_point_is_told_its_gpu() -> None:
    gpus = {"gpus": ("Tesla T4",) * 2}
    where = cluster(node("launcher", "10.0.0.10"), node("worker-1", "10.0.0.11", **gpus))
    assert (
        "cctl_gpu_variable=CUDA_VISIBLE_DEVICES"
        in scripts(where, array="0-9")["worker-1"]["rank.sh"][0]
    )
    amd = replace(where.node("worker-1"), accelerator=Accelerator.AMD)
    text = scripts(replace(where, nodes=(where.launcher, amd)), array="0-9")["worker-1"]["rank.sh"][
        0
    ]
    assert "cctl_gpu_variable=HIP_VISIBLE_DEVICES" in text


def test_where_ranks_meet_is_no_matter_of_the_job() -> None:
    """Points on one node would all listen at the same port."""
    files = scripts(cluster(), sweep=("a=1,2",))["worker-1"]
    assert "MASTER_ADDR" not in files["env"][0]
    assert "CLUSTERCTL_POINTS=2" in files["env"][0]


STATE = """\
running 1 1
point 2 0 worker-1
point 2 1 worker-2
exit 3 0 0 1
exit 4 1 3 1
point 4 2 worker-2
"""


def test_the_record_counts_points_while_the_job_runs() -> None:
    now = verdict.judge(planned(cluster(), sweep=("a=1,2,3",)), STATE)
    assert now.state is JobState.RUNNING
    assert now.points_ended == {"0": 0, "1": 3}
    assert now.unfinished_points == (1, 2)


def test_a_sweep_with_a_failed_point_has_failed_and_names_it() -> None:
    end = "exit 5 2 0 1\nlauncher 6 1\nstarted 6 3\nsurvivors 6 worker-1 0\nended 6\n"
    done = verdict.judge(planned(cluster(), sweep=("a=1,2,3",)), STATE + end)
    assert (done.state, done.program_exit_code) == (JobState.FAILED, 3)
    assert done.failure is not None
    assert (done.failure.rank, done.failure.node) == (1, "worker-2")
    assert done.reason == "1 of 3 points did not succeed: 7.1"


def test_a_sweep_whose_points_ended_well_succeeded() -> None:
    wanted = planned(cluster(), sweep=("a=1,2,3",), only=(0, 2))
    state = "running 1 1\nexit 3 0 0 1\nexit 5 2 0 1\nlauncher 6 0\nstarted 6 2\nended 6\n"
    assert verdict.judge(wanted, state).state is JobState.SUCCEEDED
    assert wanted.processes == (0, 2)
    lost = verdict.judge(wanted, state.replace("exit 5 2 0 1\n", ""))
    assert lost.state is JobState.FAILED
    assert lost.unfinished_points == (2,)


def test_a_point_whose_node_was_lost_runs_on_a_slot_that_is_still_busy(tmp_path: Path) -> None:
    """Also after another slot has found nothing left to do."""
    answer = 'while read -r point; do {}; echo "@@point $point 0"; echo "$point" >>ran; done'
    slots = {
        "quick": answer.format("sleep 0.1"),
        "slow": answer.format("sleep 0.6"),
        "lost": "sleep 0.3",
    }
    for name, script in slots.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "slot.sh").write_text(f"cd {tmp_path}/{name}; {script}\n")
    (tmp_path / "todo").write_text("0\n1\n2\n")
    sweep = Sweep(str(tmp_path), start_locally, State(str(tmp_path)).note)
    assert sweep.run([(name, str(tmp_path / name), 0) for name in slots])
    ran = [line for path in tmp_path.glob("*/ran") for line in path.read_text().split()]
    assert sorted(ran) == ["0", "1", "2"]
