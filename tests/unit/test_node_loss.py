"""What `run` does about nodes that are lost: nodes are folders here, and mpirun is a stand-in."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.actions import node_loss
from clusterctl.actions.run import prepare, resolve_run
from clusterctl.actions.run import run as run_once
from clusterctl.core.job import Job, JobState
from clusterctl.core.model import Charge
from clusterctl.errors import LaunchError, NodeUnreachable, UsageError
from clusterctl.options.verbs import Run
from tests.unit.calling import Call
from tests.unit.making import job, spec
from tests.unit.staged import Staged, lab
from tests.unit.tables import rows

CUT = """
tries=100
while [ -e {dead}.open ] && [ ! -e {dead}.cut ] && [ $tries != 0 ]; do
    tries=$((tries - 1))
    sleep 0.05
done
"""
"""Waits until the connection to worker-2, if there is one, is cut: mpirun ends at that, too."""
MPIRUN = f"""#!/bin/sh
while [ "$1" != /bin/sh ]; do [ "$1" != -x ] || export "$2"; shift; done
ranks=$(awk -F = '{{{{ n += $2 }}}} END {{{{ print n }}}}' hostfile)
export OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_SIZE=$ranks \\
    OMPI_COMM_WORLD_LOCAL_SIZE=1
for OMPI_COMM_WORLD_RANK in $(seq 0 $((ranks - 1))); do "$@" & done
wait
[ "$ranks" != 1 ] && [ -e {{dead}} ] || exit 0
{CUT}
exit 1
"""
WATCHED = """
touch {dead}.open
exec 3<&0
/bin/sh -c "$2" <&3 3<&- &
while kill -0 $! 2>/dev/null; do
    if lost; then
        kill $!
        touch {dead}.cut
        exit 255
    fi
    sleep 0.05
done
wait $!
"""
"""A connection to worker-2 until that is lost."""
AGENT = f"""#!/bin/sh
lost() {{{{ [ -e {{dead}} ]; }}}}
[ "$1" = worker-2 ] || exec /bin/sh -c "$2"
! lost || {{{{ sleep 2.1; exit 255; }}}}
{WATCHED}"""
"""A host that refuses at once is asked again for some seconds: this one is gone for good."""
AWAY_ONCE = f"""#!/bin/sh
lost() {{{{ [ -e {{dead}}.over ] && ! grep -qs '^away ' {{state}}; }}}}
[ "$1" = worker-2 ] || exec /bin/sh -c "$2"
if lost; then exit 255; fi
{WATCHED}"""
PROGRAM = """#!/bin/sh
cat snapshot
echo "$WORLD_SIZE ranks, $SECRET" >snapshot
[ $WORLD_SIZE = 1 ] || touch {dead}
"""
CUT_OFF = f"""#!/bin/sh
while [ "$1" != /bin/sh ]; do shift; done
export OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_SIZE=2
export OMPI_COMM_WORLD_LOCAL_SIZE=1
pids=''
for OMPI_COMM_WORLD_RANK in 0 1; do "$@" & pids="$pids $!"; done
if [ ! -e {{dead}}.over ]; then
    until [ -e {{dead}}.0 ] && [ -e {{dead}}.1 ]; do sleep 0.1; done
    touch {{dead}}.over
    kill $pids
    wait
{CUT}
    exit 255
fi
wait
"""
SAVES = """#!/bin/sh
[ ! -e snapshot ] || exec cat snapshot
trap 'echo saved >snapshot; exit 0' TERM
touch {dead}.$RANK
while :; do sleep 0.1; done
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Staged]:
    """A job of two ranks loses worker-2 there."""
    made, mpi, dead = lab(tmp_path / "nodes"), tmp_path / "mpi", tmp_path / "dead"
    nodes = []
    for node in made.where.nodes:
        assert node.facts.mpi
        found = replace(node.facts.mpi, prefix=str(mpi))
        facts = replace(node.facts, hostname=os.uname().nodename, mpi=found)
        nodes.append(replace(node, facts=facts, mpi_prefix=str(mpi)))
    made = replace(made, where=replace(made.where, nodes=tuple(nodes)))
    made.store.save(made.where)
    programs = {
        mpi / "bin" / "mpirun": MPIRUN,
        Path(made.where.launcher.root) / "bin" / "clusterctl-ssh": AGENT,
        tmp_path / "tree" / "program": PROGRAM,
    }
    for path, text in programs.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(dead=dead))
        path.chmod(0o755)
    yield made
    for file in Path(made.where.launcher.root).glob("jobs/*/supervisor.pid"):
        with suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGKILL)


def run(
    site: Staged, tmp_path: Path, policy: str, **changes: Any
) -> tuple[Job | NodeUnreachable | LaunchError, list[str], str]:
    """How it ended, what was said, and what the ranks printed."""
    program = resolve_run(Run({"command": (str(tmp_path / "tree" / "program"),)}))
    what = spec(program=program.program, on_node_loss=policy, secret_names=("SECRET",), **changes)
    secrets = {"SECRET": "hunter2"}
    number = site.store.reserve_job_id()
    prepared = prepare(site.where, what, program, secrets, number=number)
    said: list[str] = []
    printed: list[bytes] = []
    try:
        seen: Any = {
            "on_output": lambda pieces: printed.extend(piece.data for piece in pieces),
            "report": said.append,
        }
        ended: Job | NodeUnreachable | LaunchError = node_loss.run_again(
            site.store,
            number,
            lambda note: run_once(site.store, prepared, on_start=note, **seen),
            secrets,
            on_start=lambda job: said.append(f"job {job.id} of {job.ranks}"),
            **seen,
        )
    except (NodeUnreachable, LaunchError) as error:
        ended = error
    return ended, said, b"".join(printed).decode()


def run_away(site: Staged, tmp_path: Path, policy: str) -> None:
    """The same, with a clusterctl that reads the end of the job and does nothing about it."""
    program = resolve_run(Run({"command": (str(tmp_path / "tree" / "program"),)}))
    what = spec(program=program.program, on_node_loss=policy)
    number = site.store.reserve_job_id()
    prepared = prepare(site.where, what, program, {}, number=number)
    ignored: Any = {name: lambda given: None for name in ("on_start", "on_output", "report")}
    with suppress(NodeUnreachable):
        run_once(site.store, prepared, **ignored)


def numbers(site: Staged) -> list[int]:
    return [job.id for job in site.store.list_jobs()]


def test_a_job_shrinks_to_the_nodes_that_are_left(site: Staged, tmp_path: Path) -> None:
    """With its secrets, and with what it had saved."""
    ended, said, printed = run(site, tmp_path, "shrink")
    assert isinstance(ended, Job), ended
    assert (ended.id, ended.state, ended.rerun_of) == (2, JobState.SUCCEEDED, 1), said
    assert "lost worker-2: continuing job 1 with 1 rank on the others" in said
    assert "the program gets the same arguments, and its files: it has to look for them" in said
    assert [line for line in said if line.startswith("job")] == ["job 1 of 2", "job 2 of 1"]
    assert "2 ranks, hunter2\n" in printed
    assert site.store.read_job(1).state is JobState.FAILED


@pytest.mark.parametrize("policy", ["shrink", "fail"])
def test_a_node_that_is_lost_before_a_rank_starts_is_lost(
    site: Staged, tmp_path: Path, policy: str
) -> None:
    mpirun = tmp_path / "mpi" / "bin" / "mpirun"
    mpirun.write_text(
        mpirun.read_text().replace("export OMPI", "[ $ranks = 1 ] || exit 1\nexport OMPI")
    )
    (tmp_path / "dead").touch()
    ended, said, _ = run(site, tmp_path, policy)
    if policy == "fail":
        assert isinstance(ended, NodeUnreachable), said
        assert "could not be started: lost worker-2" in ended.message
    else:
        assert isinstance(ended, Job), ended
        assert (ended.id, ended.state) == (2, JobState.SUCCEEDED), said


def test_a_program_gets_its_own_option_for_the_snapshot(site: Staged, tmp_path: Path) -> None:
    program = '#!/bin/sh\necho "given $*"\necho it >x.pt\n[ $WORLD_SIZE = 1 ] || touch {dead}\n'
    (tmp_path / "tree" / "program").write_text(program.format(dead=tmp_path / "dead"))
    ended, said, printed = run(site, tmp_path, "shrink", resume_args="--resume {snapshot}")
    assert isinstance(ended, Job), ended
    assert (ended.id, ended.state) == (2, JobState.SUCCEEDED), said
    assert "the program gets --resume {snapshot}, if there is a snapshot" in said
    assert f"given --resume {site.work(number=2) / 'x.pt'}\n" in printed
    assert printed.count("given \n") == 2


def test_of_a_sweep_only_the_points_that_were_lost_run_again(site: Staged, tmp_path: Path) -> None:
    (tmp_path / "tree" / "program").write_text(
        "#!/bin/sh\n"
        f"case $PWD in */worker-2/*) sleep 1; touch {tmp_path}/dead; sleep 3; exit 1 ;; esac\n"
        "echo $CLUSTERCTL_POINT\n"
    )
    ended, said, printed = run(site, tmp_path, "shrink", array="0-1", ranks=0)
    assert isinstance(ended, Job), said
    assert ended.state is JobState.SUCCEEDED, said
    assert sorted(printed.split()) == ["0", "1"]
    assert len(ended.spec.points) == 1


def test_a_job_that_is_run_again_goes_on_too(site: Staged, tmp_path: Path, call: Call) -> None:
    run(site, tmp_path, "shrink")
    (tmp_path / "dead").unlink()
    again = call("rerun", "1", "-e", "SECRET=hunter2")
    assert again.code == 0, again
    assert "lost worker-2: continuing job 3 with 1 rank on the others" in again.err
    assert [job.rerun_of for job in site.store.list_jobs()] == [None, 1, 1, 3]


def test_a_node_that_restarted_counts_as_lost_although_it_answers(
    site: Staged, tmp_path: Path
) -> None:
    (tmp_path / "tree" / "program").write_text(
        "#!/bin/sh\n"
        "[ $WORLD_SIZE = 1 ] && exit\n"
        "case $PWD in */worker-2/*) echo another >../out/boot ;; esac\n"
        "exit 1\n"
    )
    ended, said, _ = run(site, tmp_path, "shrink")
    assert isinstance(ended, Job), said
    assert (ended.id, ended.state, ended.rerun_of) == (2, JobState.SUCCEEDED, 1), said
    assert "worker-2 restarted: continuing job 1 with 1 rank on the others" in said
    assert site.store.read_job(1).reason == "worker-2 restarted while the job ran"


def test_two_that_follow_a_job_do_not_both_continue_it(site: Staged, tmp_path: Path) -> None:
    """Nor does one whose job somebody has run again meanwhile."""
    with site.store.claim_continuing(1) as first:
        assert first
        ended, said, _ = run(site, tmp_path, "shrink")
    assert isinstance(ended, NodeUnreachable), said
    assert ended.hint == "`clusterctl jobs` shows it"
    assert "job 1 is continued, as a new job, by another clusterctl" in said
    assert numbers(site) == [1]
    site.store.save_job(replace(site.store.read_job(1), id=2, rerun_of=1))
    with site.store.claim_continuing(1) as second:
        assert not second


@rows(
    "policy, outage, reason",
    "node_loss.a_job_whose_mpirun_lost_its_ranks_goes_on_after_an_outage_alone",
)
def test_a_job_whose_mpirun_lost_its_ranks_goes_on_after_an_outage_alone(
    policy: str, outage: bool, reason: str, site: Staged, tmp_path: Path
) -> None:
    """Daemons end the ranks, and a node has not answered for a moment when that is seen. No other
    end of mpirun starts a program again: nobody has asked for that."""
    dead, mpirun = tmp_path / "dead", tmp_path / "mpi" / "bin" / "mpirun"
    mpirun.write_text(CUT_OFF.format(dead=dead))
    (tmp_path / "tree" / "program").write_text(SAVES.format(dead=dead))
    if outage:
        agent = Path(site.where.launcher.root) / "bin" / "clusterctl-ssh"
        state = Path(site.where.launcher.root) / "jobs" / "1" / "state"
        agent.write_text(AWAY_ONCE.format(dead=dead, state=state))
    ended, said, printed = run(site, tmp_path, policy)
    if reason:
        assert isinstance(ended, LaunchError), said
        assert reason in ended.message
        assert "`clusterctl rerun 1 --resume` continues" in ended.hint
        assert numbers(site) == [1]
        return
    assert isinstance(ended, Job), ended
    assert (ended.id, ended.ranks, ended.state) == (2, 2, JobState.SUCCEEDED), said
    assert "worker-2 is back: restarting job 1" in said
    assert printed.count("saved") == 2


def test_a_job_that_is_not_to_go_on_says_how_it_could(site: Staged, tmp_path: Path) -> None:
    ended, said, _ = run(site, tmp_path, "fail")
    assert isinstance(ended, NodeUnreachable), said
    assert "lost worker-2" in ended.message
    assert ended.hint == "`clusterctl up lab`, then `clusterctl rerun 1 --resume` continues"
    assert numbers(site) == [1]


def test_machines_that_cost_money_are_not_replaced_unasked(site: Staged, tmp_path: Path) -> None:
    bill = Charge(
        node="worker-1", part="instance", item="c6i.large", hourly=1, source="a test", since=1
    )
    site = replace(site, where=replace(site.where, charges=(bill,)))
    site.store.save(site.where)
    node_loss.check_node_loss("replace", site.where)  # whoever writes it agrees to the costs
    ended, _, _ = run(site, tmp_path, "")
    assert isinstance(ended, NodeUnreachable)
    assert numbers(site) == [1]


def test_machines_that_were_attached_cannot_be_replaced(site: Staged) -> None:
    theirs = replace(site.where, identity="", spec=replace(site.where.spec, provider="hosts"))
    with pytest.raises(UsageError, match="only with machines that clusterctl creates"):
        node_loss.check_node_loss("replace", theirs)
    node_loss.check_node_loss("shrink", theirs)


def test_a_job_whose_client_was_away_goes_on_when_it_is_followed_again(
    site: Staged, tmp_path: Path, call: Call
) -> None:
    run_away(site, tmp_path, "shrink")
    shown = call("logs", "1", "-f")
    assert shown.code == 0, shown
    assert "lost worker-2: continuing job 1 with 1 rank on the others" in shown.err
    assert [job.rerun_of for job in site.store.list_jobs()] == [None, 1]
    call("logs", "1", "-f")
    assert [job.rerun_of for job in site.store.list_jobs()] == [None, 1], "once is enough"


def test_a_detached_job_shrinks_without_a_clusterctl(
    site: Staged, tmp_path: Path, call: Call
) -> None:
    """As the same job, with its secrets and files, and the address of the node that is left."""
    agent = Path(site.where.launcher.root) / "bin" / "clusterctl-ssh"
    agent.write_text(agent.read_text().replace("worker-2", "worker-1"))
    script = tmp_path / "tree" / "program"
    script.write_text(f"{script.read_text()}\necho $RANK at $MASTER_ADDR$CLUSTERCTL_MASTER\n")
    given = ("--detach", "--on-node-loss", "shrink", "--ranks", "2", "-e", "SECRET=hunter2")
    like_it = "--mpirun-arg=--mca my_note 'see /bin/sh -c here'"
    assert call("run", *given, like_it, str(script)).code == 0
    done = call("logs", "1", "--follow")
    assert done.code == 0, done
    job = site.store.read_job(1)
    assert (job.state, job.attempt, job.ranks) == (JobState.SUCCEEDED, 2, 1)
    assert done.out.count("[0] 2 ranks, hunter2\n") == 1
    assert done.out.count(f"[0] 0 at {site.where.node('worker-2').private_address}\n") == 1
    assert numbers(site) == [1]


def test_a_job_that_was_not_followed_is_due_to_continue_as_run_would(site: Staged) -> None:
    def is_due(policy: str, **changes: Any) -> bool:
        what = spec(on_node_loss=policy)
        failed = job(site.where, what, id=7, state=JobState.FAILED, finished=3.0, **changes)
        return node_loss.is_due(site.store, failed)

    assert [is_due(policy) for policy in ("", "replace", "shrink")] == [True, True, True]
    assert not is_due("fail")
    assert not is_due("", purpose="bench")
    assert not is_due("", cluster_id="lab-of-earlier")
    assert is_due("replace", cluster_id="lab-of-earlier")
    theirs = replace(site.where, identity="", spec=replace(site.where.spec, provider="hosts"))
    site.store.save(theirs)
    assert not is_due("")


def test_a_job_that_is_not_to_continue_is_only_followed(
    site: Staged, tmp_path: Path, call: Call
) -> None:
    run_away(site, tmp_path, "fail")
    assert call("logs", "1", "-f").code == 4, "as run would"
    assert call("logs", "1").code == 0
    assert numbers(site) == [1]
