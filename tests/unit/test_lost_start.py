"""A connection that is lost while a job is handed in. Its launcher is this machine, asked again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from clusterctl.actions import run
from clusterctl.actions.common import Connected, open_store
from clusterctl.core.job import Job, JobState
from clusterctl.core.model import NodeResult
from clusterctl.errors import LaunchError, NodeUnreachable
from clusterctl.jobs import control
from clusterctl.jobs.submit import STAGED
from clusterctl.options.verbs import Run
from clusterctl.transport.pool import Pool
from clusterctl.transport.protocol import Transport
from tests.unit import batch_here, staged
from tests.unit.calling import Call

LOST = "the connection was lost"


class Losing(Pool):
    """Connections of which each is lost with the hand-in: `before` or `after` that has run; `away`:
    from then on nothing answers, although it has run. `killed`: not the connection, but what was to
    run, and it has not."""

    def __init__(self, *nodes: Any, how: str, **settings: Any) -> None:
        super().__init__(*nodes, **settings)
        self.how, self.lost = how, False

    def find_transport(self, name: str) -> Transport:
        return cast(Transport, _Transport(self, super().find_transport(name)))


class _Transport:
    def __init__(self, pool: Losing, real: Transport) -> None:
        self.pool, self.real = pool, real

    def run(self, command: str, **options: Any) -> NodeResult:
        pool, starts = self.pool, " hand_in " in command
        if not starts and not (pool.lost and pool.how == "away"):
            return self.real.run(command, **options)
        if pool.how == "killed":
            noise = b"a start file: module: command not found\n"
            return NodeResult(node="login", exit_code=137, stdout=STAGED.encode(), stderr=noise)
        if starts and pool.how != "before":
            assert self.real.run(command, **options).ok
        pool.lost = True
        return NodeResult(node="login", error=LOST, cut=True)


@pytest.fixture(params=["slurm", "sge"])
def queue(
    request: pytest.FixtureRequest, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> batch_here.Queue:
    made = batch_here.install(request.param, tmp_path / "queue", monkeypatch)
    said = call("attach", "lab", f"--{request.param}", "--workdir", str(tmp_path / "work"))
    assert said.code == 0, said
    return made


def submit(how: str, report: Callable[[str], None] = lambda text: None) -> Job:
    store = open_store()
    where = store.read_cluster("lab")
    given = Run({"command": ("train.py",), "ranks": 1})
    resolved = run.resolve_run(given)
    what, secrets = run.make_spec(given, resolved.program)
    ready = run.prepare(where, what, resolved, secrets, number=store.reserve_job_id())
    with Losing(where.nodes, identity=None, known_hosts=Path("known_hosts"), how=how) as pool:
        at = Connected(store, where, pool, report)
        return run.submit(at, ready, find_start=partial(control.find_start, away=1, settle=0))


def find_environment(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "work").glob("*/jobs/1/env"))


def test_a_job_that_the_queue_has_goes_on(queue: batch_here.Queue, tmp_path: Path) -> None:
    said: list[str] = []
    found = submit("after", said.append)
    assert (found.state, found.native_id) == (JobState.QUEUED, "41")
    assert open_store().read_job(1) == found
    assert find_environment(tmp_path)
    assert any("asking login whether the job is there" in line for line in said), said


def test_a_job_that_was_not_handed_in_has_failed(queue: batch_here.Queue) -> None:
    with pytest.raises(NodeUnreachable, match=LOST):
        submit("before")
    found = open_store().read_job(1)
    assert found.state is JobState.FAILED
    told = run.explain_failure(found)
    assert told
    assert told.exit_code == NodeUnreachable.exit_code, "logs -f ends as run did"
    assert not any("parsable" in line or "terse" in line for line in queue.calls())


def test_a_start_that_was_killed_says_so_and_what_to_type(queue: batch_here.Queue) -> None:
    said: list[str] = []
    with pytest.raises(LaunchError, match="on login: it was killed by SIGKILL") as told:
        submit("killed", said.append)
    assert told.value.hint == "`clusterctl rerun 1` starts it again"
    assert any("asking login whether the job is there" in line for line in said), said
    assert open_store().read_job(1).state is JobState.FAILED


def test_empty_logs_of_a_launcher_are_not_shown(tmp_path: Path, tree: Path) -> None:
    lab = staged.lab(tmp_path / "lab")
    job = lab.job(tree)
    logs = [lab.work("launcher").parent / name for name in ("mpirun.err", "supervise.log")]
    with lab.pool() as pool:
        for log in logs:
            log.touch()
        assert control.read_messages(job, lab.where, pool) == ""
        logs[0].write_text("no such host\n")
        assert control.read_messages(job, lab.where, pool) == "no such host"


def test_a_job_that_may_be_in_the_queue_is_not_called_failed(
    queue: batch_here.Queue, call: Call, tmp_path: Path
) -> None:
    with pytest.raises(NodeUnreachable, match="login has not said since") as caught:
        submit("away")
    assert caught.value.exit_code == 4
    assert open_store().read_job(1).state is JobState.QUEUED
    assert find_environment(tmp_path)
    [native] = (tmp_path / "work").glob("*/jobs/1/native")
    known = native.rename(native.with_name("later"))  # the queue takes its time
    again = call("rerun", "1", "--detach")
    assert (again.code, "job 1 may be in the queue" in again.err) == (7, True), again
    known.rename(native)
    again = call("rerun", "1", "--detach")
    assert (again.code, "the queue has got job 1, as 41 (queued)" in again.err) == (7, True), again
    [row] = call("jobs", "--json").document["jobs"]
    assert row["native_id"] == "41"


def test_the_launcher_says_whether_a_supervisor_was_started(tmp_path: Path, tree: Path) -> None:
    lab = staged.lab(tmp_path / "lab")
    sent = replace(lab.job(tree), state=JobState.QUEUED, started=None, finished=None)
    with lab.pool() as pool:
        find = partial(control.find_start, sent, lab.where, pool, away=1, settle=0)
        absent = find()
        assert absent is not None
        assert control.was_never_staged(absent)
        with lab.running(sent):
            found = find()
        assert found is not None
        assert found.state is JobState.RUNNING
