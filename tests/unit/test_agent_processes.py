"""How the processes of a job are told to end, in the agent's own words, with real processes."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent import processes
from clusterctl.agent.attend import There
from clusterctl.agent.processes import Processes, list_living, list_programs
from clusterctl.agent.ranks import heed
from tests.e2e.cli import wait_for
from tests.unit.tables import rows

TAG = f"CLUSTERCTL_JOB=test-{os.getpid()}/1;"

SAVES = (  # a shell that notes each SIGTERM, and ends a moment later
    'trap "echo TERM >>$0; sleep 0.2; exit 3" TERM; echo ready >>$0; while :; do sleep 0.05; done'
)
IGNORES = 'trap "echo TERM >>$0" TERM; echo ready >>$0; while :; do sleep 0.05; done'


class Ranks:
    """Programs of ranks, as their wrappers would have started them."""

    def __init__(self, job: Path) -> None:
        self.job = job
        self.processes = Processes(str(job), TAG)
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, rank: int, *argv: str) -> subprocess.Popen[bytes]:
        environ = {
            **os.environ,
            "CLUSTERCTL_JOB": TAG.partition("=")[2],
            "CLUSTERCTL_RANK": str(rank),
        }
        process = subprocess.Popen(argv, env=environ, start_new_session=True)
        self.started.append(process)
        (self.job / "out" / f"rank-{rank}.pid").write_text(f"{process.pid}\n")
        return process

    def shell(self, rank: int, script: str) -> subprocess.Popen[bytes]:
        said = self.job / f"said-{rank}"
        process = self.start(rank, "/bin/bash", "-c", script, str(said))
        wait_for(said.exists, 10, lambda: "the shell did not start")
        return process

    def said(self, rank: int) -> list[str]:
        return (self.job / f"said-{rank}").read_text().split()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    (tmp_path / "out").mkdir()
    (tmp_path / ".staged").touch()
    made = Ranks(tmp_path)
    yield made
    while left := list_living(TAG):
        for pid in left:
            processes.send(pid, signal.SIGKILL)
        for process in made.started:
            process.poll()
    for process in made.started:
        process.wait()


def test_each_program_is_told_once(ranks: Ranks) -> None:
    first, second = ranks.shell(0, SAVES), ranks.shell(1, IGNORES)
    ranks.processes.tell()
    ranks.processes.tell()
    assert not ranks.processes.ask(1)
    assert first.wait() == 3
    assert ranks.said(0) == ranks.said(1) == ["ready", "TERM"]
    assert second.poll() is None
    ranks.processes.stop(0.1)
    assert second.wait() == -signal.SIGKILL


CHILD = (
    "import os, signal, subprocess, sys, time\n"
    "def note(*_):\n"
    "    open(sys.argv[1], 'a').write(sys.argv[2] + '\\n')\n"
    "    if sys.argv[2] == 'child': sys.exit()\n"
    "signal.signal(signal.SIGTERM, note)\n"
    "if sys.argv[2] == 'parent':\n"
    "    child = subprocess.Popen([sys.executable, *sys.orig_argv[1:-1], 'child'])\n"
    "open(sys.argv[1], 'a').write('ready\\n')\n"
    "while True: time.sleep(0.05)\n"
)


def test_what_a_program_has_started_is_left_to_it_until_it_has_ended(ranks: Ranks) -> None:
    """torchrun passes SIGTERM on; a training that saves must not lose its DataLoader workers."""
    said = ranks.job / "said-0"
    parent = ranks.start(0, sys.executable, "-c", CHILD, str(said), "parent")
    wait_for(lambda: said.exists() and ranks.said(0).count("ready") == 2, 20, lambda: "no child")
    ranks.processes.tell()
    wait_for(lambda: "parent" in ranks.said(0), 10, lambda: "no SIGTERM")
    time.sleep(0.3)
    assert "child" not in ranks.said(0)
    parent.kill()
    parent.wait()
    assert ranks.processes.ask(10)
    assert ranks.said(0).count("child") == 1


def test_a_shell_is_told_before_what_it_waits_for(ranks: Ranks) -> None:
    ranks.shell(0, "echo ready >>$0; sleep 60; echo went-on >>$0")
    wait_for(lambda: len(list_programs(TAG)) == 2, 10, lambda: "no sleep")
    programs = list_programs(TAG)
    assert [program.due for program in programs] == [True, True]
    assert programs[0].pid == ranks.started[0].pid
    ranks.processes.tell()
    assert ranks.started[0].wait() == -signal.SIGTERM
    assert ranks.said(0) == ["ready"]


def test_the_end_leaves_nothing(ranks: Ranks) -> None:
    """Also what was stopped, ignores SIGTERM or bears no rank's number."""
    stopped = ranks.shell(0, SAVES)
    os.kill(stopped.pid, signal.SIGSTOP)
    ranks.shell(1, IGNORES)
    environ = {**os.environ, "CLUSTERCTL_JOB": TAG.partition("=")[2]}
    daemon = subprocess.Popen(["sleep", "60"], env=environ, start_new_session=True)
    ranks.started.append(daemon)
    wait_for(lambda: len(list_living(TAG)) >= 3, 10, lambda: "not there")
    ranks.processes.end(1)
    assert list_living(TAG) == []
    assert ("survivors", 0) in list(ranks.processes.look())


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_the_end_finds_what_has_cleared_its_environment(ranks: Ranks, stream: str) -> None:
    """By its output. What only reads that, or writes to another job's, belongs to somebody else."""
    path, other = ranks.job / "out" / "rank-0.out", ranks.job / "other" / "out" / "rank-0.out"
    other.parent.mkdir(parents=True)
    where = {"env": {"PATH": os.environ["PATH"]}, "cwd": ranks.job}
    with path.open("w") as out, other.open("w") as others:
        argv = ["setsid", "sleep", "60"]
        ours = subprocess.Popen(argv, **{stream: out}, **where)  # type: ignore[call-overload]
        strangers = [
            subprocess.Popen(["tail", "-f", path], stdout=subprocess.DEVNULL, **where),  # type: ignore[call-overload]
            subprocess.Popen(argv, stdout=others, **where),  # type: ignore[call-overload]
        ]
    try:
        assert ("survivors", 1) in list(ranks.processes.look())
        ranks.processes.end(0)
        assert ours.wait(5) == -signal.SIGTERM
        assert ("survivors", 0) in list(ranks.processes.look())
        assert [stranger.poll() for stranger in strangers] == [None, None]
    finally:
        for process in (ours, *strangers):
            process.kill()
            process.wait()


def test_wrappers_have_the_time_that_their_programs_leave(ranks: Ranks) -> None:
    """Also one that was stopped; and who ignores that is killed."""
    environ = {**os.environ, "CLUSTERCTL_JOB": TAG.partition("=")[2]}
    traps = ("'sleep 1; exit 7'", "'exit 8'", "''")
    wrappers = [
        subprocess.Popen(
            ["/bin/bash", "-c", f"trap {trap} TERM; : >$0; while :; do sleep 0.05; done", name],
            env=environ,
            cwd=ranks.job,
            start_new_session=True,
        )
        for name, trap in zip("abc", traps, strict=True)
    ]
    ranks.started += wrappers
    wait_for(lambda: all((ranks.job / name).exists() for name in "abc"), 20, str)
    os.kill(wrappers[1].pid, signal.SIGSTOP)
    program = ranks.shell(0, SAVES)
    ranks.processes.end(4)
    assert list_living(TAG) == []
    assert program.wait() == 3
    assert [wrapper.wait() for wrapper in wrappers] == [7, 8, -signal.SIGKILL]


def test_it_tells_what_ranks_have_left(ranks: Ranks) -> None:
    out = ranks.job / "out"
    for name, text in {
        "rank-0.pid": "1\n",
        "rank-0.exit": "3 1700000000.25 2\n",
        "rank-0.oom": "2\n",
        "rank-1.alone": "123\n",
        "rank-1.exit": "",
        "rank-1.oom": "",
        "rank-2.alone": "123\n",
        "rank-2.met": "",
        "boot": "another\n",
    }.items():
        (out / name).write_text(text)
    facts = list(ranks.processes.look())
    assert set(facts) == {
        ("survivors", 0),
        ("node", "restarted"),
        ("oom", 0, 2),
        ("alone", 1, "123"),
        ("started", 0),
        ("exit", 0, 3, 1700000000.25, 2),
    }


@pytest.mark.parametrize("noted", ["now", "earlier", "never"])
def test_a_node_that_has_restarted_says_so(tmp_path: Path, noted: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / ".staged").touch()
    if noted != "never":
        boot = Path("/proc/sys/kernel/random/boot_id").read_text() if noted == "now" else "x\n"
        (tmp_path / "out" / "boot").write_text(boot + Path("/proc/1/stat").read_text())
    facts = [("survivors", 0), *[("node", "restarted")] * (noted == "earlier")]
    assert list(Processes(str(tmp_path), TAG).look()) == facts


@pytest.mark.parametrize(("came", "staged"), [(2e9, 1e9), (2e9, 3e9), (1e9, 2e9)])
def test_an_end_of_the_machine_counts_for_the_job_that_it_came_over(
    tmp_path: Path, came: float, staged: float
) -> None:
    job = tmp_path / "jobs" / "1"
    (job / "out").mkdir(parents=True)
    for path, when in ((tmp_path / "ending", came), (job / ".staged", staged)):
        path.write_text("spot\n")
        os.utime(path, (when, when))
    told = ("node", "spot") in list(Processes(str(job), TAG).look())
    assert told is (came > staged)


def test_who_waits_for_word_ends_with_its_rank(tmp_path: Path) -> None:
    """Also where the rank has ended while Python was starting."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    heed(str(tmp_path), "X=1;", "0", 1, 1.0, gone.pid)


@rows("words, given, found", "agent_processes.how_a_program_has_ended")
def test_how_a_program_has_ended(words: list[str], given: dict[str, Any], found: list[Any]) -> None:
    assert list(processes.call(*words, **given or {})) == found


def test_a_program_finds_what_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "stays")
    script = 'echo "$OURS $MORE"; pwd; cat'
    given = {"folder": str(tmp_path), "variables": {"MORE": "comes"}, "stdin": "ü"}
    said = processes.call("/bin/sh", "-c", script, **given)  # type: ignore[arg-type]
    assert said.out == f"stays comes\n{tmp_path}\nü"


@rows("noted, boot", "agent_processes.what_says_that_a_node_was_started")
def test_what_says_that_a_node_was_started(noted: str, boot: str) -> None:
    assert processes.parse_boot(noted.encode()) == boot


def test_a_file_is_there_at_once_or_not_at_all(tmp_path: Path) -> None:
    place = str(tmp_path / "it")
    assert (processes.read(place), processes.read_text(place)) == (b"", "")
    processes.write(place, " ü\udcff\n")
    assert Path(place).read_bytes() == b" \xc3\xbc\xff\n"
    assert processes.read_text(place) == "ü\ufffd"
    processes.write(place, b"\xfe")
    assert Path(place).read_bytes() == b"\xfe"
    (tmp_path / "it.new").mkdir()
    with pytest.raises(IsADirectoryError):
        processes.write(place, "more")
    assert Path(place).read_bytes() == b"\xfe"
    processes.remove(place)
    processes.remove(place)
    assert not Path(place).exists()


def test_a_lock_is_of_one(tmp_path: Path) -> None:
    place = str(tmp_path / "it")
    assert not processes.is_locked(place)
    with open(place, "w") as first, open(place, "w") as second:
        assert not processes.is_locked(place)
        assert processes.lock(first, fcntl.LOCK_SH)
        assert not processes.is_locked(place)
        assert not processes.lock(second)
        assert processes.lock(first)
        assert processes.is_locked(place)
        assert not processes.lock(second, fcntl.LOCK_SH)
    assert not processes.is_locked(place)


def test_a_process_shows_what_it_is(ranks: Ranks) -> None:
    """Also one whose name has blanks and parentheses."""
    program = ranks.job / "a) b (c"
    program.symlink_to("/bin/sleep")
    process = ranks.start(3, str(program), "60")
    wait_for(
        lambda: (found := processes.read_stat(process.pid)) and found.command == "a) b (c", 20, str
    )
    found = processes.read_stat(process.pid)
    assert found
    assert (found.state in "RS", found.parent) == (True, os.getpid())
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert 0 <= uptime - found.started / os.sysconf("SC_CLK_TCK") < 600
    assert found.used < 60
    assert (processes.read_rank(process.pid), processes.read_rank(os.getpid())) == ("3", "")
    assert processes.read_status(process.pid, "Pid") == str(process.pid)
    process.kill()
    process.wait()
    assert processes.read_stat(process.pid) is None
    assert processes.read_status(process.pid, "Pid") == processes.read_rank(process.pid) == ""
    processes.send(process.pid, signal.SIGKILL)


def test_an_ssh_that_cannot_be_started_is_a_node_that_does_not_answer(tmp_path: Path) -> None:
    node = There(["no-such-ssh"], dict(os.environ), str(tmp_path / "log"))
    answer = node.ask(9.0, "survivors")
    assert (answer.code, "no-such-ssh" in answer.why) == (127, True)
    slow = There(["sleep", "99"], dict(os.environ), str(tmp_path / "log"))
    assert slow.ask(0.2, "survivors").code == 124


def test_no_group_is_signalled() -> None:
    code = "import os; from clusterctl.agent import processes; processes.send(0, 9); print(1)"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, start_new_session=True, capture_output=True
    )
    assert done.stdout == b"1\n"


@pytest.mark.parametrize("tag", ["CLUSTERCTL_JOB=x/1", "X=1;", "", "JOB=x/1;"])
def test_what_could_be_part_of_any_environment_is_no_tag(tag: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no tag"):
        Processes(str(tmp_path), tag)


def test_what_belongs_to_others_is_left_to_them(ranks: Ranks) -> None:
    """Nodes of one host see the ranks of each other: who has its file tells a rank."""
    theirs = ranks.shell(0, SAVES)
    (ranks.job / "out" / "rank-0.pid").unlink()
    ranks.processes.tell()
    time.sleep(0.2)
    assert ranks.said(0) == ["ready"]
    assert not (ranks.job / "out" / "rank-0.term").exists()
    theirs.kill()


def test_a_program_has_begun_that_runs_or_has_ended(ranks: Ranks) -> None:
    assert not ranks.processes.has_begun("0")
    (ranks.job / "out" / "rank-0.pid").write_text("1\n")
    assert not ranks.processes.has_begun("0")
    ranks.shell(1, SAVES)
    assert (ranks.processes.has_begun("0"), ranks.processes.has_begun("1")) == (False, True)
    (ranks.job / "out" / "rank-2.exit").touch()
    assert ranks.processes.has_begun("2")


def test_a_rank_that_was_told_to_end_is_killed_after_its_time(ranks: Ranks) -> None:
    told, untold = ranks.shell(0, IGNORES), ranks.shell(1, IGNORES)
    ranks.processes.kill_later("1", 0.05)
    assert untold.poll() is None, "nobody has told it"
    ranks.processes.tell("0")
    (ranks.job / "out" / "rank-0.exit").touch()
    began = time.monotonic()
    ranks.processes.kill_later("0", 5)
    assert time.monotonic() - began < 5, "it has ended before"
    assert told.poll() is None
    (ranks.job / "out" / "rank-0.exit").unlink()
    began = time.monotonic()
    ranks.processes.kill_later("0", 0.25)
    assert time.monotonic() - began >= 0.25
    assert told.wait() == -signal.SIGKILL
    with pytest.raises(subprocess.TimeoutExpired):
        untold.wait(0.2)
    assert ranks.said(1) == ["ready"]


def test_the_rank_of_the_next_attempt_has_its_own_time(ranks: Ranks) -> None:
    """Its wrapper notes another process meanwhile."""
    again = ranks.shell(0, IGNORES)
    ranks.processes.tell()
    pid = ranks.job / "out" / "rank-0.pid"
    threading.Timer(0.1, pid.write_text, ["another\n"]).start()
    ranks.processes.kill_later("0", 0.4)
    assert again.poll() is None


def test_how_long_the_end_is_waited_for(ranks: Ranks) -> None:
    assert ranks.processes.await_end(0)
    rank = ranks.shell(0, SAVES)
    began = time.monotonic()
    assert not ranks.processes.await_end(0.2)
    assert 0.2 <= time.monotonic() - began < 5
    rank.kill()
    assert ranks.processes.await_end(20)


def test_what_is_told_to_stop_is_noted(ranks: Ranks) -> None:
    """So that nothing else begins: see points.py."""
    assert ranks.processes.ask(0)
    assert (ranks.job / "stopping").read_text() == ""


@pytest.mark.parametrize("count", [0, 1, 5])
def test_all_at_once(count: int) -> None:
    """By threads that keep no program from its end."""
    meets, done = threading.Barrier(count or 1), []

    def work(item: int) -> None:
        meets.wait(20)
        done.append((item, threading.current_thread().daemon))

    processes.do_each(work, range(count))
    assert sorted(done) == [(item, True) for item in range(count)]


def test_signals_that_were_held_back_come_by_their_names() -> None:
    told: list[str] = []
    names = {"USR1": signal.SIGUSR1, "USR2": signal.SIGUSR2}
    before = {number: signal.getsignal(number) for number in names.values()}
    signal.pthread_sigmask(signal.SIG_BLOCK, names.values())
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        processes.catch(list(names), told.append)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
        wait_for(lambda: told == [*names], 10, lambda: str(told))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, names.values())


def test_a_wrapper_is_told_once_it_has_its_trap(ranks: Ranks) -> None:
    wrapper = ranks.start(0, "/bin/bash", "-c", "sleep 0.5; trap 'exit 7' TERM; sleep 60 & wait")
    for code in (7, 7):
        began = time.monotonic()
        processes.tell_wrapper(wrapper.pid)
        assert time.monotonic() - began < processes.TRAP, "also one that has ended"
        assert wrapper.wait() == code
