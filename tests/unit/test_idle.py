"""Machines that nobody uses: when they may end, what is saved before, and what a person is told."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.actions.common import Connected
from clusterctl.actions.jobs import Fetched, fetch_from, save_logs
from clusterctl.actions.outputs import find_unfetched
from clusterctl.agent import messages
from clusterctl.agent.idle import SETTINGS, IdleSettings, IdleWatch
from clusterctl.batch import direct
from clusterctl.core.clock import Deadline
from clusterctl.core.model import (
    GATEWAY,
    CloudSpec,
    Cluster,
    Node,
    Phase,
    Reporter,
    Role,
    Thing,
)
from clusterctl.core.text import format_time
from clusterctl.errors import ProviderError
from clusterctl.jobs.records import is_complete, read_stored
from clusterctl.machines import bootstrap
from clusterctl.machines.local.provider import LocalProvider
from tests.unit.calling import Call
from tests.unit.making import charge, node
from tests.unit.provided import NothingLeft, provide
from tests.unit.scripts import write_program
from tests.unit.staged import Staged, lab
from tests.unit.tables import rows

LIMIT = 3600


class Machine:
    """A node with a process table of its own, whose sessions to workers are answered by a script
    (`answers`), and whose shutdown leaves a mark."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.proc = folder, folder / "root", folder / "proc"
        self.behind, self.limit = 0.0, LIMIT
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.restart()
        (self.root / "jobs").mkdir(parents=True)
        (self.root / "idle").mkdir()
        self.proc.mkdir()
        self.says("exit 255")

    def restart(self) -> None:
        """The agent, as after a kill."""
        self.watch = IdleWatch(str(self.root), str(self.proc), lambda: time.time() - self.behind)

    def says(self, script: str) -> None:
        """What an SSH session to a worker does: $1 is its name, $2 the command line."""
        write_program(self.root / "bin" / "clusterctl-ssh", script)

    def process(
        self,
        pid: int,
        name: str,
        uid: int = 1000,
        session: int = 0,
        state: str = "S",
        cmd: str = "",
    ) -> None:
        place = self.proc / str(pid)
        place.mkdir()
        (place / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (place / "stat").write_text(f"{pid} ({name}) {state} 1 {pid} {session or pid} 0 -1\n")
        (place / "cmdline").write_bytes((cmd or name).encode() + b"\0")

    def end(self, pid: int) -> None:
        for path in (self.proc / str(pid)).iterdir():
            path.unlink()
        (self.proc / str(pid)).rmdir()

    def turn(self, up: float, workers: tuple[Node, ...] = (), containers: int = 0) -> int:
        """Looks once, so many seconds after boot; returns for how long nobody has used it."""
        (self.proc / "uptime").write_text(f"{up} 1.0\n")
        roots = {worker.name: worker.root for worker in workers}
        end, shared = f"touch {self.folder}/ended", str(self.shared)
        self.watch.look(IdleSettings(self.limit, containers, end, roots, shared))
        now, last = (self.root / "idle" / "seen").read_text().split()
        return int(now) - int(last)

    def idle(self, worker_1: str = "9000", worker_2: str = "") -> None:
        """For so many seconds by the workers' own measure; "": one does not answer."""
        for name, seconds in (("worker-1", worker_1), ("worker-2", worker_2)):
            (self.folder / name).write_text(seconds)

    def find_idle(self, *later: float) -> None:
        """Looks a first time, and as many seconds after the limit."""
        self.turn(100, WORKERS)
        for seconds in (0, *later):
            self.turn(100 + LIMIT + seconds, WORKERS)

    def run_job(self, save: str = "") -> Path:
        """A job that has run, with a script that saves its files, if it has one."""
        job = self.root / "jobs" / "7"
        job.mkdir()
        (job / "plan.json").touch()
        (job / "state").write_text("running 1700000000 1\nended 1700000000\n")
        if save:
            (job / "agent.sh").write_text(f"shift\n{save}")
        return job

    @property
    def report(self) -> bootstrap.AgentReport:
        path = self.root / "idle" / "report"
        return bootstrap.parse_idle_agent(path.read_text() if path.exists() else "")

    @property
    def ended(self) -> bool:
        return (self.folder / "ended").exists()

    @property
    def told(self) -> list[str]:
        path = self.folder / "told"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def launcher(tmp_path: Path) -> Machine:
    """`worker-1` and `worker-2` have been idle for as long as the files of that name say."""
    made = Machine(tmp_path)
    made.says(
        f"""[ -s {tmp_path}/$1 ] || exit 255
case $2 in
*uptime*) echo "10000 $((10000 - $(cat {tmp_path}/$1)))"; echo "10003.5 1.0" ;;
*/idle/end*) echo $1 >>{tmp_path}/told ;;
esac"""
    )
    return made


WORKERS = (node("worker-1"), node("worker-2"))


@pytest.mark.parametrize("role", [Role.LAUNCHER, Role.WORKER])
def test_a_node_is_told_what_its_agent_reads(role: Role) -> None:
    made = node("one", role=role, root="/its root")
    values = bootstrap.build_values(made, (made, *WORKERS), 3600.0, 1, "/shared")
    settings = messages.read(IdleSettings, json.loads(str(values["settings"])))
    others = {worker.name: worker.root for worker in WORKERS} if role is Role.LAUNCHER else {}
    shared = "/shared" if role is Role.LAUNCHER else ""
    assert settings == IdleSettings(3600.0, 1, bootstrap.END, others, shared)
    assert values["file"] == f"/its root/idle/{SETTINGS}"


@rows("process, used", "idle.what_uses_a_node")
def test_what_uses_a_node(machine: Machine, process: dict[str, str], used: bool) -> None:
    """Any program of a person: of a job, in a session, or left running. A connection alone, which
    clusterctl keeps open, is none, and neither is what the system runs."""
    assert machine.turn(100) == 0
    machine.process(77, **process)  # type: ignore[arg-type]
    assert machine.turn(400) == (0 if used else 300)


def test_our_own_questions_and_container_are_no_use(machine: Machine) -> None:
    machine.turn(100)
    machine.process(70, "sh", cmd="bash -c : clusterctl-idle; sh agent.sh send; exit")
    machine.process(71, "tar", session=70)
    question = bootstrap.render_question(node("launcher"))
    machine.process(73, "sh", cmd=f"bash -c {question}")
    machine.process(74, "cat", session=73)
    machine.process(80, "containerd-shim", uid=0)
    assert machine.turn(400, containers=1) == 300
    machine.process(81, "containerd-shim", uid=0)
    assert machine.turn(500, containers=1) == 0
    machine.process(72, "grep", session=60, cmd="grep clusterctl-idle notes")
    assert machine.turn(600, containers=2) == 0


def test_a_job_that_came_and_went_between_two_looks_is_a_use(machine: Machine) -> None:
    machine.turn(100)
    (machine.root / "jobs" / "7").mkdir()
    assert machine.turn(400) == 0
    assert machine.turn(500) == 100


def test_a_worker_ends_when_it_is_asked_to_and_unused_by_its_own_measure(machine: Machine) -> None:
    ended, asked = machine.folder / "ended", machine.root / "idle" / "end"
    machine.turn(100)
    machine.turn(100 + LIMIT)
    assert not ended.exists(), "nobody has asked"
    machine.process(77, "bash")
    machine.turn(101 + LIMIT)
    machine.end(77)
    asked.touch()
    machine.turn(100 + 2 * LIMIT)
    assert not ended.exists()
    assert not asked.exists(), "an old question must not end it later"
    asked.touch()
    machine.turn(101 + 2 * LIMIT)
    assert ended.exists()


@rows("idle_for, told", "idle.the_launcher_ends_workers_when_nothing_is_used")
def test_the_launcher_ends_workers_when_nothing_is_used(
    launcher: Machine, idle_for: tuple[str, str], told: list[str]
) -> None:
    launcher.idle(*idle_for)
    launcher.turn(100, WORKERS)
    launcher.turn(99 + LIMIT, WORKERS)
    assert launcher.told == []
    launcher.turn(100 + LIMIT, WORKERS)
    assert launcher.told == told
    launcher.process(77, "sh")
    (launcher.folder / "told").unlink(missing_ok=True)
    launcher.turn(200 + LIMIT, WORKERS)
    assert launcher.told == [], "somebody uses the launcher"


@pytest.mark.parametrize("seen", [5000, 20000])
def test_a_worker_without_its_agent_keeps_all_running(launcher: Machine, seen: int) -> None:
    """Nobody has measured whether it is used: not since it fell silent, or not since this boot."""
    launcher.says(
        f"case $2 in *uptime*) echo {seen} 100; echo 10003.5 1.0 ;; *) touch $0.told ;; esac"
    )
    launcher.find_idle()
    assert not Path(f"{launcher.root}/bin/clusterctl-ssh.told").exists()


def test_a_pause_is_no_idle_time(machine: Machine) -> None:
    """What was measured before a machine was stopped is not counted after it is started."""
    machine.turn(100)
    machine.turn(90 + LIMIT)
    (machine.root / "idle" / "end").touch()
    machine.restart()
    assert [machine.turn(up + LIMIT) for up in (90, 99)] == [0, 9]
    assert not machine.ended


def test_only_a_worker_that_has_gone_silent_has_ended(launcher: Machine) -> None:
    launcher.idle("9000", "9000")
    launcher.find_idle()
    assert launcher.report.ended == {}
    launcher.idle("", "5")  # somebody came to the second at the last moment
    launcher.turn(200 + LIMIT, WORKERS)
    assert list(launcher.report.ended) == ["worker-1"]
    launcher.turn(300 + LIMIT, WORKERS)
    assert list(launcher.report.ended) == ["worker-1"]
    launcher.idle("7", "5")  # it was away for a moment
    launcher.turn(400 + LIMIT, WORKERS)
    assert launcher.report.ended == {}


def test_a_clock_that_is_set_back_keeps_no_worker(launcher: Machine) -> None:
    """One that was in use when it was to end is asked again as soon as it is unused."""
    launcher.idle()
    launcher.find_idle()
    launcher.behind = 3600
    launcher.turn(140 + LIMIT, WORKERS)
    assert launcher.told == ["worker-1", "worker-1"]


def test_a_worker_that_takes_its_time_to_end_is_left_alone(launcher: Machine) -> None:
    """It still answers at the next look: another copy would break off when it goes."""
    launcher.idle()
    launcher.run_job(f'echo "$@" >>{launcher.folder}/copied\n')
    launcher.find_idle(40)
    assert launcher.told == ["worker-1"]
    assert (launcher.folder / "copied").read_text() == "worker-1\n"
    assert launcher.report.ended == {}
    launcher.idle("")
    launcher.turn(180 + LIMIT, WORKERS)
    assert list(launcher.report.ended) == ["worker-1"]


def test_a_worker_that_was_made_anew_was_not_told_to_end(launcher: Machine) -> None:
    """After a pause, say: `stop` came before the launcher saw that the old one had ended."""
    launcher.limit = 60
    launcher.idle()
    launcher.find_idle()
    launcher.restart()
    launcher.behind = -100  # so much later
    launcher.idle("80")
    launcher.turn(1, WORKERS)
    launcher.turn(61, WORKERS)
    assert launcher.told == ["worker-1", "worker-1"]


def test_a_worker_is_kept_whose_files_cannot_be_copied(launcher: Machine) -> None:
    """Without an answer it keeps all of them; else those that it names."""
    launcher.idle("9000", "9000")
    job = launcher.run_job()
    launcher.find_idle()
    assert (launcher.told, sorted(launcher.report.kept)) == ([], ["worker-1", "worker-2"])
    (job / "agent.sh").write_text("echo worker-2\n")
    launcher.turn(800 + LIMIT, WORKERS)
    assert (launcher.told, list(launcher.report.kept)) == (["worker-1"], ["worker-2"])


def test_a_job_that_comes_while_files_are_copied_keeps_them(launcher: Machine) -> None:
    launcher.idle()
    launcher.run_job(f"mkdir {launcher.root}/jobs/8\n")
    launcher.find_idle()
    assert launcher.told == []


def end_workers(launcher: Machine) -> None:
    """Both end, and the launcher sees that."""
    launcher.idle("9000", "9000")
    launcher.find_idle()
    assert launcher.told == ["worker-1", "worker-2"]
    launcher.restart()  # which forgets nothing
    launcher.turn(1, WORKERS)
    launcher.idle("")
    launcher.turn(1 + LIMIT, WORKERS)


@rows("fetched, output, holds", "idle.what_keeps_the_launcher")
def test_the_launcher_ends_when_nothing_is_there_that_was_not_fetched(
    launcher: Machine, fetched: str, output: str, holds: list[str]
) -> None:
    job = launcher.run_job("exit 0")
    (launcher.root / "jobs" / "8").mkdir()  # one that never started
    (job / "fetched").write_text(fetched)
    (job / "mirror" / "worker-1").mkdir(parents=True)
    (job / "mirror" / ".worker-1.json").touch()
    if output:
        (launcher.folder / output).touch()
    end_workers(launcher)
    assert (list(launcher.report.holds), launcher.ended) == (holds, not holds)
    (job / "fetched").write_text("all 1\n")
    for left in launcher.shared.iterdir():
        left.unlink()
    launcher.process(77, "sh")  # of whoever fetches
    launcher.turn(300 + LIMIT, WORKERS)
    launcher.end(77)
    launcher.turn(290 + 2 * LIMIT, WORKERS)
    assert launcher.ended == (not holds), "it was used a moment ago"
    launcher.turn(300 + 2 * LIMIT, WORKERS)
    assert launcher.ended


def test_the_launcher_ends_as_soon_as_the_last_file_is_fetched(launcher: Machine) -> None:
    """A fetch may come and go between two looks, and be no use that keeps it."""
    job = launcher.run_job("exit 0")
    end_workers(launcher)
    launcher.turn(20 + LIMIT, WORKERS)
    assert (list(launcher.report.holds), launcher.ended) == (["7"], False)
    (job / "fetched").write_text("all 1\n")
    launcher.turn(30 + LIMIT, WORKERS)
    assert (list(launcher.report.holds), launcher.ended) == ([], True)


def test_a_worker_that_is_lost_keeps_the_launcher(launcher: Machine) -> None:
    """It may be there, with files, and is reached through the launcher alone."""
    launcher.idle("", "")
    launcher.find_idle(700)
    assert not launcher.ended


# --------------------------------------------------------------------------- what is saved before


@pytest.fixture
def site(tmp_path: Path) -> Staged:
    """Nodes that are folders of this machine; a session to a worker is a shell of it."""
    made = lab(tmp_path / "nodes")
    cloud = CloudSpec(idle=float(LIMIT))
    made = replace(made, where=replace(made.where, spec=replace(made.where.spec, cloud=cloud)))
    made.store.save(made.where)
    session(made, 'shift\nexec /bin/sh -c "$*"')
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").write_text("staged\n")
    made.job(tree)
    (made.work("worker-1") / "small.txt").write_text("a line\n")
    (made.work("worker-2") / "deep").mkdir()
    with (made.work("worker-2") / "deep" / "large 1.bin").open("wb") as large:
        large.truncate(direct.SMALL + 5)  # its supervisor would not have copied it
    for number in (1, 2):
        out = made.work(f"worker-{number}").parent / "out"
        (out / f"rank-{number - 1}.out").write_text(f"from worker-{number}\n")
    return made


def save(site: Staged, *names: str) -> list[str]:
    script = site.work("launcher").parent / "agent.sh"
    words = ["/bin/sh", script, "save", *names]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.split()


def session(site: Staged, script: str) -> None:
    """What a session to a worker does from now on."""
    write_program(Path(site.where.launcher.root) / "bin" / "clusterctl-ssh", script)


def fetch(site: Staged, target: Path) -> Fetched:
    """As `fetch` does where both workers are gone."""
    for name in ("worker-1", "worker-2"):
        shutil.rmtree(site.where.node(name).root, ignore_errors=True)
    gone = dict.fromkeys(("worker-1", "worker-2"), "no route to host")
    with site.pool() as pool:
        job = site.store.read_job(7)
        return fetch_from(Connected(site.store, site.where, pool, print, gone), job, target)


def test_a_whole_copy_outlives_one_that_breaks_off(site: Staged, tmp_path: Path) -> None:
    """The node ended meanwhile, as it had been told."""
    assert save(site, "worker-1", "worker-2") == []
    session(site, 'shift\ncase $* in *send_output*) exit 255 ;; esac\nexec /bin/sh -c "$*"')
    assert save(site, "worker-1") == ["worker-1"]
    fetched = fetch(site, tmp_path / "got")
    assert (fetched.missing, fetched.failed) == ({}, ())


def test_outputs_with_copies_on_the_launcher_count_once(site: Staged) -> None:
    save(site, "worker-1", "worker-2")
    whole = ([(7, 7 + direct.SMALL + 5)], {})
    with site.pool() as pool:
        at = Connected(site.store, site.where, pool, print)
        for away in ({}, {"worker-1": "no route to host", "worker-2": "no route to host"}):
            job = site.store.read_job(7)
            assert find_unfetched(replace(at, away=away), [job], Deadline(20)) == whole


def test_all_outputs_and_logs_are_on_the_launcher(site: Staged, tmp_path: Path) -> None:
    assert save(site, "worker-1", "worker-2") == []
    assert save(site, "worker-1", "worker-2") == [], "a second time changes nothing"
    state = site.work("launcher").parent / "state"
    state.write_text("running 1700000000 1\nended 1700000000\n")
    fetched = fetch(site, tmp_path / "got")
    assert (fetched.missing, fetched.failed) == ({}, ())
    assert site.store.read_job(7).fetched
    assert (state.parent / "fetched").read_text() == "all 1\n", "the launcher may end"
    got = {output.place: output.size for output in fetched.brought.outputs}
    assert got == {"worker-1/small.txt": 7, "worker-2/deep/large 1.bin": direct.SMALL + 5}
    away = dict.fromkeys(("worker-1", "worker-2"), "")
    with site.pool() as pool:
        at = Connected(site.store, site.where, pool, print, away)
        save_logs(at, [site.store.read_job(7)], 20.0)
    logs = site.store.locate_job_folder(7)
    assert is_complete(logs)
    said = {p.node: p.data for pieces in read_stored(logs) for p in pieces}
    assert said == {f"worker-{n}": f"from worker-{n}\n".encode() for n in (1, 2)}


def test_what_changes_afterwards_is_copied_again(site: Staged, tmp_path: Path) -> None:
    save(site, "worker-1", "worker-2")
    (site.work("worker-1") / "small.txt").write_text("another line\n")
    assert save(site, "worker-1", "worker-2") == []
    fetch(site, tmp_path / "got")
    assert (tmp_path / "got" / "worker-1" / "small.txt").read_text() == "another line\n"


@pytest.mark.parametrize("what", ["agent.sh", ".staged", "out"])
def test_a_node_whose_files_cannot_be_told_is_named(site: Staged, what: str) -> None:
    path = site.work("worker-1").parent / what
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert save(site, "worker-1", "worker-2") == ["worker-1"]


def test_nodes_that_do_not_answer_are_named_and_new_ones_have_nothing(site: Staged) -> None:
    shutil.rmtree(site.work("worker-1").parent)
    assert save(site, "worker-1", "worker-2", "worker-9") == []
    session(site, "exit 255")
    assert save(site, "worker-1", "worker-2") == ["worker-1", "worker-2"]


def test_a_disk_without_room_keeps_the_nodes(site: Staged, tmp_path: Path) -> None:
    for name in ("launcher", "worker-1", "worker-2"):
        shutil.rmtree(site.work(name).parent)
    site.job(tmp_path / "tree")
    plan = site.work("launcher").parent / "plan.json"
    plan.write_text(re.sub('"reserve": .*[0-9]', f'"reserve": {1 << 60}', plan.read_text()))
    for name in ("worker-1", "worker-2"):
        (site.work(name) / "made.txt").write_text("later\n")
    assert save(site, "worker-1", "worker-2") == ["worker-1", "worker-2"]


# --------------------------------------------------------------------------- what a person is told


@dataclass
class Cloud(NothingLeft, LocalProvider):
    """One that bills `living`, and tells when others ended for as long as it remembers."""

    living: tuple[str, ...] = ("launcher",)
    ended: dict[str, float] = field(default_factory=dict)
    away: bool = False
    asked: int = 0
    gateway: bool = False
    stopped: float | None = None

    def list_things(self, cluster: Cluster, folder: Path) -> list[Thing]:
        self.asked += 1
        if self.away:
            raise ProviderError("AWS did not answer")
        gone = [Thing(id=n, node=n, state="ended", until=end) for n, end in self.ended.items()]
        state = "off" if self.stopped else "on"
        there = [Thing(id=n, node=n, state=state, until=self.stopped) for n in self.living]
        network = [Thing(id="nat", node="launcher", part=GATEWAY, state="on")]
        return [*there, *gone, *network[: self.gateway]]

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        return dict.fromkeys((node.name for node in cluster.nodes), "it shut itself down")

    def find_deadline_trouble(self, cluster: Cluster, folder: Path) -> str:
        return ""

    def destroy(self, cluster: Cluster, folder: Path, report: Reporter) -> None: ...

    def check_pausing(self, cluster: Cluster, folder: Path) -> None:
        """Its machines can be stopped."""

    def stop(self, cluster: Cluster, folder: Path, report: Reporter) -> None:
        self.stopped = time.time()


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    made = Cloud()
    provide(monkeypatch, "local", made)
    return made


HOUR = 3600.0


@pytest.fixture
def old(tmp_path: Path, cloud: Cloud) -> Staged:
    """A cluster of three machines, a dollar an hour each, that was made ten hours ago. By the
    launcher's report both workers ended after four."""
    made = lab(tmp_path / "nodes")
    now = time.time()
    charges = tuple(charge(node.name, since=now - 10 * HOUR) for node in made.where.nodes)
    spec = replace(made.where.spec, cloud=CloudSpec(idle=HOUR))
    where = replace(made.where, spec=spec, charges=charges, created=now - 10 * HOUR)
    made.store.save(replace(where, deadline=now + HOUR))
    folder = Path(where.launcher.root) / "idle"
    folder.mkdir()
    lines = (f"ended {name} {int(now - 6 * HOUR)}\n" for name in ("worker-1", "worker-2"))
    (folder / "report").write_text("".join(lines))
    return replace(made, where=made.store.read_cluster("lab"))


def test_status_and_list_say_what_is_left_and_why(call: Call, old: Staged, cloud: Cloud) -> None:
    """Also when AWS has forgotten them, an hour after their end."""
    status = call("status", "--json").document
    assert status["dollars"] == pytest.approx(10 + 4 + 4, abs=0.1)
    assert status["dollars_per_hour"] == 1.0
    [line] = status["warnings"]
    when = format_time(float(int(time.time() - 6 * HOUR)))[:13]
    assert re.match(rf"worker-\[1-2\] ended after 1 h idle at {when}", line), line
    assert "the launcher has copies of all logs and outputs" in line
    assert "what still runs costs $1.0000/h; `clusterctl up lab` starts them again" in line
    assert line in call("list").err
    assert old.store.read_cluster("lab") == old.where, "who only looks changes no record"


def test_the_reason_is_known_before_the_launcher_looks_again(call: Call, old: Staged) -> None:
    """It has requested them to end, and does not know yet that they have."""
    folder = Path(old.where.launcher.root) / "idle"
    (folder / "report").rename(folder / "told")
    (folder / "told").write_text((folder / "told").read_text().replace("ended ", ""))
    status = call("status", "--json").document
    assert status["dollars"] == pytest.approx(10 + 4 + 4, abs=0.1)
    assert status["warnings"][0].startswith("worker-[1-2] ended after 1 h idle at")


def test_the_times_of_aws_win(call: Call, old: Staged, cloud: Cloud) -> None:
    end = time.time() - 5 * HOUR
    cloud.ended = {"worker-1": end, "worker-2": end}
    assert round(call("status", "--json").document["dollars"], 1) == 10 + 5 + 5
    cost = call("cost", "--json").document
    assert round(cost["dollars"], 1) == 10 + 5 + 5


def test_a_worker_that_is_gone_for_another_reason(call: Call, old: Staged, cloud: Cloud) -> None:
    cloud.living, cloud.ended = ("launcher", "worker-2"), {"worker-1": time.time()}
    (Path(old.where.launcher.root) / "idle" / "report").write_text("kept worker-2 1700000000\n")
    [first, second] = call("status", "--json").document["warnings"]
    assert first.startswith("worker-1 is no longer running (reason unknown)")
    assert second.startswith("worker-2 kept running after 1 h idle: not all files could be copied")


def test_what_keeps_the_launcher_is_said(call: Call, old: Staged) -> None:
    report = Path(old.where.launcher.root) / "idle" / "report"
    report.write_text(report.read_text() + "holds 7 1700000000\nholds shared 1700000000\n")
    [line] = call("status", "--json").document["warnings"]
    end = format_time(old.where.deadline or 0.0)
    assert f"runs until {end} because of unfetched files (job 7, shared folder)" in line
    assert "`clusterctl fetch 7`; what still runs costs $1.0000/h" in line


def test_a_cluster_without_machines_is_no_riddle(call: Call, old: Staged, cloud: Cloud) -> None:
    """Each command says so at once, with what goes on costing money; `down` asks no node."""
    gateway = replace(old.where.charges[0], part=GATEWAY, item="NAT", hourly=0.045)
    old.store.save(replace(old.where, charges=(*old.where.charges, gateway)))
    ends = {name: time.time() - HOUR for name in ("launcher", "worker-1", "worker-2")}
    cloud.living, cloud.ended, cloud.gateway = (), ends, True
    status = call("status", "--json").document
    assert status["dollars_per_hour"] == 0.045
    [line] = status["warnings"]
    assert "all machines of cluster lab have ended, as unused ones do after 1 h" in line
    assert "its NAT gateway costs $0.0450/h; `clusterctl up lab` starts them again" in line
    assert call("extend", "--ttl", "9h", "--yes").code == 2
    close_all(old)
    for words in (("cp", "worker-1:made.txt", "here.txt"), ("run", "hello.c")):
        said = call(*words)
        assert (said.code, "all machines of cluster lab have ended" in said.err) == (7, True)
    gone = call("down", "--yes")
    assert gone.code == 0, gone.err
    assert "cannot be saved" not in gone.err


def test_where_aws_does_not_answer_that_is_said(call: Call, old: Staged, cloud: Cloud) -> None:
    cloud.away = True
    status = call("status", "--json").document
    assert "of cluster lab are running (AWS did" in status["warnings"][0]
    assert round(status["dollars"]) == 30


@pytest.mark.parametrize(
    "changes",
    [
        {"created": time.time()},
        {"spec": {"idle": 0.0}},
        {"spec": {"idle": None}},
        {"spec": {"idle": 11 * HOUR}},
        {"phase": Phase.STOPPED},
    ],
)
def test_aws_is_asked_only_where_workers_may_have_ended(
    call: Call, old: Staged, cloud: Cloud, changes: dict[str, Any]
) -> None:
    if cloud_changes := changes.pop("spec", None):
        changes = {"spec": replace(old.where.spec, cloud=CloudSpec(**cloud_changes))}
    old.store.save(replace(old.where, **changes))
    assert round(call("status", "--json").document["dollars"]) == 30
    assert cloud.asked == 0


def test_a_job_of_late_means_that_nothing_is_idle(
    call: Call, old: Staged, cloud: Cloud, tmp_path: Path
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "train.py").touch()
    job = old.job(tmp_path / "tree")
    old.store.save_job(replace(job, created=2.0, finished=time.time() - HOUR / 2))
    assert call("status", "--json").code == 0
    assert cloud.asked == 0


def close_all(old: Staged, first: int = 1) -> None:
    """Workers no longer answer; with 0, neither does the launcher."""
    closed: dict[str, Any] = {"address": "127.0.0.1", "ssh_port": 1, "job_port": 1}
    others = (replace(node, **closed) for node in old.where.nodes[first:])
    nodes = (*old.where.nodes[:first], *others)
    old.store.save(replace(old.store.read_cluster("lab"), nodes=nodes))
    ssh = old.store.locate_folder("lab") / "ssh"
    ssh.mkdir(exist_ok=True)
    (ssh / "user").touch()


def test_who_connects_is_told_how_to_get_workers_back(call: Call, old: Staged) -> None:
    close_all(old)
    said = call("cp", "worker-1:made.txt", "here.txt")
    assert said.code == 7, "as with a stopped cluster"
    assert "worker-[1-2] ended after 1 h idle at" in said.err
    assert "`clusterctl up lab` starts them again" in said.err


def test_a_stop_after_the_workers_have_ended_stops_what_is_left(call: Call, old: Staged) -> None:
    """Disks and instances of workers cost nothing from their end, not from that of the launcher."""
    where = old.store.read_cluster("lab")
    disks = tuple(replace(item, part="disk", hourly=0.25) for item in where.charges)
    old.store.save(replace(where, charges=(*where.charges, *disks)))
    stopped = call("stop", "--yes", "--json")
    assert stopped.code == 0, stopped.err
    assert stopped.document["dollars_per_hour"] == 0.25, "the disk of the launcher"
    status = call("status", "--json").document
    # A disk costs more per hour in a short month.
    assert status["dollars"] == pytest.approx((10 + 4 + 4) * 1.25, rel=0.02)
    gone = call("down", "--yes", "--json")
    assert gone.code == 0, gone.err
    assert gone.document["dollars"] == pytest.approx((10 + 4 + 4) * 1.25, rel=0.02)


@pytest.mark.parametrize("stopped", [True, False])
def test_copies_on_a_launcher_that_cannot_be_asked_count(
    call: Call, old: Staged, tmp_path: Path, stopped: bool
) -> None:
    """It may have the only ones of workers that have ended: as little as theirs may they go."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "train.py").touch()
    job = old.job(tmp_path / "tree")
    old.store.save_job(replace(job, created=2.0))
    if stopped:
        assert call("stop", "--yes").code == 0
        [line] = call("status", "--json").document["warnings"]
        assert "cannot check the outputs of job 7: its machines are stopped" in line
        assert "`clusterctl start lab`" in line
    else:
        close_all(old, first=0)
    said = call("down", "--yes")
    assert said.code == 2, said
    assert "cannot check the outputs of job 7; keeping cluster lab" in said.err
    assert old.store.list_names()
    assert call("down", "--yes", "--discard").code == 0


def test_who_extends_pays_for_what_is_left(call: Call, old: Staged) -> None:
    """Not for workers that have ended, and a budget does not count them."""
    spec = replace(old.where.spec, cloud=CloudSpec(idle=HOUR, budget=21.0))
    old.store.save(replace(old.where, spec=spec))
    said = call("extend", "--ttl", "2h", "--yes", "--json")
    assert said.code == 0, said.err
    assert round(said.document["dollars"]) == 10 + 4 + 4 + 2
    assert call("down", "--yes").code == 0, "or the process that ends it at its deadline stays"
