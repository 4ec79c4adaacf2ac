"""Ctrl-C on a run: whatever the user does next, the launcher has been told to end the job."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from clusterctl.actions.common import Connected, open_store
from clusterctl.actions.run import Prepared, follow_to_end, stop_on_interrupt, submit
from clusterctl.batch import verdict
from clusterctl.cli.console import Console
from clusterctl.cli.output import document, report_result
from clusterctl.core.job import Job, JobState, format_duration
from clusterctl.core.model import NodeResult
from clusterctl.errors import NodeUnreachable, ProviderError
from clusterctl.jobs import control
from clusterctl.jobs.follow import StartSignals
from clusterctl.launch import launcher
from clusterctl.project.tree import Tree
from clusterctl.state.files import explain_write_errors
from clusterctl.transport.pool import Pool
from tests.unit.making import cluster, job, request


class Impatient:
    """Connections to a cluster whose user presses Ctrl-C whenever a command is sent, or sends
    another signal. What a node was told in full is in `told`."""

    def __init__(self, error: str = "", number: int = signal.SIGINT) -> None:
        self.told: list[str] = []
        self.error = error
        self.number = number

    def connect(self, names: Sequence[str], **options: Any) -> tuple[NodeResult, ...]:
        return tuple(NodeResult(node=name, exit_code=0) for name in names)

    def find_transport(self, name: str) -> Impatient:
        return self

    def call_each(
        self, call: Callable[[str], NodeResult], names: Sequence[str]
    ) -> list[NodeResult]:
        return [call(name) for name in names]

    def open(self, command: str, **options: Any) -> Impatient:
        return self

    def send(self, data: bytes, timeout: float) -> None:
        raise KeyboardInterrupt

    def close(self) -> None:
        pass

    def run(self, command: str | dict[str, str], *names: object, **options: Any) -> Any:
        if isinstance(command, dict):
            return [self.run(text) for text in command.values()]
        signal.raise_signal(self.number)
        self.told.append(command)
        code = None if self.error else 0
        return NodeResult(node="launcher", exit_code=code, error=self.error)


def stop(impatient: Impatient) -> list[str]:
    said: list[str] = []
    running = replace(job(), state=JobState.RUNNING, started=1.0)
    store = open_store()
    store.save_job(running)
    at = Connected(store, cluster(), cast(Pool, impatient), said.append)
    with stop_on_interrupt(at, running.id):
        follow_to_end(at, running, lambda pieces: None)
    return said


def test_a_second_ctrl_c_leaves_no_job_running() -> None:
    pool = Impatient()
    with pytest.raises(KeyboardInterrupt):
        stop(pool)
    [told] = pool.told
    assert "agent.sh cancel" in told


@pytest.fixture
def left() -> Iterator[list[int]]:
    """The signals after which `run` would have left its job alone."""
    seen: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [
        signal.signal(number, lambda number, frame: seen.append(number)) for number in numbers
    ]
    yield seen
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_a_signal_while_a_job_is_handed_in_waits_until_it_runs(left: list[int]) -> None:
    with StartSignals() as signals:
        signals.start_waiting()
        signal.raise_signal(signal.SIGHUP)
        assert left == []
    assert left == [signal.SIGHUP]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_job_that_was_interrupted_while_it_was_staged_is_cancelled(
    number: int, left: list[int]
) -> None:
    """It runs nowhere, so that nobody can follow it."""
    pool, said, store = Impatient(number=number), list[str](), open_store()
    staged = job()
    store.home.make(store.home.stages)
    (store.home.stages / staged.stage).write_bytes(b"")
    prepared = Prepared(
        job=staged,
        cluster=cluster(),
        plan=launcher.plan_launch(staged.spec.launcher, request()),
        tree=Tree(store.home.stages, (), 0, False),
        secrets={},
    )
    with pytest.raises(KeyboardInterrupt) as ended:  # while files are sent, then at every command
        submit(Connected(store, cluster(), cast(Pool, pool), said.append), prepared)
    assert getattr(ended.value, "exit_code", 128 + signal.SIGINT) == 128 + number
    assert left == []
    assert store.read_job(staged.id).state is JobState.CANCELLED
    assert said == [f"job {staged.id} is cancelled: it had not started"]
    assert all("rm -f " in command for command in pool.told)
    assert len(pool.told) == len(cluster().nodes)


def test_a_launcher_that_cannot_be_told_is_said() -> None:
    with pytest.raises(NodeUnreachable, match="could not be cancelled: launcher: gone") as caught:
        stop(Impatient("gone"))
    assert "may still be running" in str(caught.value.hint)


def test_the_time_of_a_job_that_has_ended_does_not_grow() -> None:
    lost = replace(job(), state=JobState.LOST, started=1.0)
    assert (format_duration(lost), document(lost)["seconds"]) == ("-", None)
    assert format_duration(replace(lost, finished=3.0)) == "2.0 s"
    assert format_duration(replace(lost, finished=0.5)) == "0.0 s"


def test_a_job_whose_record_cannot_be_written_is_not_said_to_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The last record that could be written is not how the job is."""
    running = job(cluster(), state=JobState.RUNNING)
    with (
        pytest.raises(ProviderError),
        report_result(Console(), lambda: running),
        explain_write_errors(Path("/state/jobs/7/job.json")),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert capsys.readouterr().err == (
        "no longer following job 7; `clusterctl jobs` shows whether it still runs\n"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [(JobState.LOST, JobState.LOST), (JobState.RUNNING, JobState.CANCELLED)],
)
def test_a_job_that_was_lost_before_does_not_count_as_cancelled(
    before: JobState, after: JobState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the other nobody can tell the end, but that it was asked for."""
    monkeypatch.setattr(
        control, "refresh", lambda asked, *rest: replace(asked, state=JobState.LOST)
    )
    monkeypatch.setattr(control, "kill_processes", lambda *rest: {"worker-1": 0})
    ended = control.wait_for_end(job(state=before), cluster(), cast(Pool, Impatient()))
    assert (ended.state, ended.survivors) == (after, {"worker-1": 0})


class Replaced:
    """A cluster's queue after its launcher was replaced: it knows nothing of the job."""

    ask_limit, places_ranks = 5.0, True

    def status_commands(self, jobs: Sequence[Job], *_: object) -> dict[str, Sequence[Job]]:
        return {"status": jobs}

    def describe_silence(self, text: str) -> str:
        return ""

    def parse_status(self, asked: Job, text: str) -> Job:
        return replace(asked, state=JobState.LOST, started=1.0, reason=verdict.NO_FOLDER)


def test_what_a_replaced_launcher_left_on_other_nodes_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control, "load_system", lambda name: Replaced())
    monkeypatch.setattr(control, "kill_processes", lambda *rest: {"worker-1": 0})

    class Answers(Impatient):
        def run(self, command: str | dict[str, str], *names: object, **options: Any) -> Any:
            return NodeResult(node="launcher", exit_code=0, stdout=b"nothing")

    found = control.refresh(job(state=JobState.RUNNING), cluster(), cast(Pool, Answers()))
    assert (found.state, found.survivors) == (JobState.LOST, {"worker-1": 0})
