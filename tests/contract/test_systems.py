"""What every way of running jobs promises, as far as no machine is needed for it."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from clusterctl.actions.run import plan_job
from clusterctl.batch import system as batch_system
from clusterctl.batch.scheduler import SCHEDULERS
from clusterctl.batch.system import JobSystem
from clusterctl.core.clock import NEVER
from clusterctl.core.job import JobState
from clusterctl.core.model import Cluster, Role
from clusterctl.errors import UsageError
from clusterctl.transport.pool import Pool
from tests.unit.making import cluster, node, spec


class Unreachable:
    """Connections to nodes of which none may be asked."""


def site(name: str) -> Cluster:
    if name == "direct":
        return cluster()
    return cluster(node("login", role=Role.LOGIN), provider=name)


@pytest.fixture(params=SCHEDULERS)
def name(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def system(name: str) -> JobSystem:
    return batch_system.load_job_system(site(name))


def test_it_declares_all_facts(system: JobSystem) -> None:
    assert {item for item in JobSystem.__annotations__ if not hasattr(system, item)} == set()
    assert system.errors in system.logs
    assert system.backoff >= 1
    assert 0 < system.poll < system.limit_end(spec()) < system.start_limit


def test_a_job_has_its_sizes_its_launcher_and_a_home(name: str, system: JobSystem) -> None:
    made, plan = plan_job(site(name), spec(launcher="auto"), number=7)
    assert made.scheduler == name
    assert made.ranks > 0
    assert made.spec.launcher == system.scheduler.launchers[0]
    where = system.locate(made)
    assert set(where) == set(plan.programs)
    assert all(site(name).has(node) for node in where)


@pytest.mark.parametrize("launcher", ["srun", "torchrun", "mpiexec"])
def test_a_launcher_that_it_does_not_have_is_refused(
    name: str, system: JobSystem, launcher: str
) -> None:
    if launcher in system.scheduler.launchers:
        return
    with pytest.raises(UsageError) as caught:
        system.resolve(spec(launcher=launcher))
    assert launcher in caught.value.message
    assert all(word in str(caught.value.hint) for word in system.scheduler.launchers)


def test_a_preview_is_a_document(name: str, system: JobSystem) -> None:
    shown = system.preview(*plan_job(site(name), spec(launcher="auto"), number=7))
    assert shown.sections
    assert all(title and text for title, text in shown.sections)
    assert "files" in shown.document


def test_a_terminal_is_given_or_refused(name: str, system: JobSystem) -> None:
    if name == "direct":
        with pytest.raises(UsageError) as caught:
            system.make_interactive_argv(spec(), ["true"])
        assert "clusterctl ssh" in str(caught.value.hint)
    else:
        assert system.make_interactive_argv(spec(), ["true"])[-1] == "true"


def test_nobody_is_asked_when_there_is_no_time(name: str, system: JobSystem) -> None:
    made, _ = plan_job(site(name), spec(launcher="auto"), number=7)
    pool = cast(Pool, Unreachable())
    late = NEVER.limit(0)
    assert system.refresh([made], pool, pytest.fail, late) == (made,)
    assert system.refresh([], pool, pytest.fail, NEVER) == ()


def test_it_says_that_a_job_waits(name: str, system: JobSystem) -> None:
    made, _ = plan_job(site(name), spec(launcher="auto"), number=7)
    text = system.describe_wait(replace(made, state=JobState.QUEUED, native_id="99"))
    assert text.startswith("job 7 ")


def test_a_batch_system_needs_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULERS, "oar", "tests.contract.example_scheduler:Oar")
    where = site("oar")
    made, plan = plan_job(where, spec(launcher="auto"), number=7)
    assert (made.scheduler, made.ranks, made.spec.launcher) == ("oar", 2, "mpirun")
    system = batch_system.load_job_system(where)
    script = dict(system.preview(made, plan).sections)["job.sh"]
    assert "#OAR -l nodes=1/core=2" in script
    text = system.scheduler.emit(made, where, plan, beside="")
    assert system.scheduler.emits == "oarsub"
    assert "oarsub" in text
    assert system.make_interactive_argv(spec(), []) == ("oarsub", "-I")
    survey = "@@job 7 99\nqueued 1\nqueue Waiting|no free node\n"
    assert system.scheduler.parse_status(made, survey).reason == "no free node"
