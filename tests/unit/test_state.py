"""Records on disk: whole or old after a crash, locked while they change, never mixed up."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.actions.common import open_store
from clusterctl.core.job import Hang, HungRanks, JobState, RankFailure
from clusterctl.core.model import Accelerator, Phase
from clusterctl.errors import NewerRecordError, RecordError, UsageError
from clusterctl.state.files import replace_file, write_atomic
from clusterctl.state.home import Home, find_home
from clusterctl.state.locks import ClusterLock
from clusterctl.state.store import VERSION, Store
from tests.unit.calling import Call
from tests.unit.making import cluster, job, node, spec
from tests.unit.tables import rows

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Home(tmp_path / "state"))


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python programs that import ours; what still runs in the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def one(code: str, *arguments: object) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", code, *map(str, arguments)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.communicate()


# ---------------------------------------------------------------------------------------- home


@rows("chosen, xdg, expected", "state.home")
def test_home(
    chosen: str, xdg: str, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_HOME", chosen.format(tmp=tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", xdg.format(tmp=tmp_path))
    wanted = expected.format(tmp=tmp_path, home=os.environ["HOME"], cwd=tmp_path)
    assert find_home().path == Path(wanted)
    assert not find_home().path.exists()  # asking makes nothing


def test_the_home_is_private(store: Store) -> None:
    store.save(cluster())
    for path in (store.home.path, store.locate_folder("lab")):
        assert path.stat().st_mode & 0o777 == 0o700
    assert (store.locate_folder("lab") / "cluster.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("made", [False, True], ids=["new", "made-beforehand"])
def test_nobody_else_may_write_into_the_home_whatever_the_umask(made: bool, tmp_path: Path) -> None:
    """Who could, would put a cluster of his own in the place of ours."""
    old = os.umask(0)
    try:
        place = Home(tmp_path / "state" / "clusterctl")
        if made:
            place.path.mkdir(parents=True)
            (place.path / "jobs").mkdir()  # by an earlier version
        store = Store(place)
        store.save(cluster())
        store.save_job(job())
        folders = [path for path in place.path.rglob("*") if path.is_dir()]
    finally:
        os.umask(old)
    assert place.path.stat().st_mode & 0o022 == 0
    assert {path.name for path in folders} >= {"clusters", "lab", "jobs"}
    assert {path.name: path.stat().st_mode & 0o077 for path in folders} == dict.fromkeys(
        (path.name for path in folders), 0
    )


def test_a_home_with_the_sticky_bit_stays_open(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    Store(Home(tmp_path)).save(cluster())
    assert tmp_path.stat().st_mode & 0o7777 == 0o1777


@pytest.mark.parametrize("linked", [False, True], ids=["folder", "link"])
@pytest.mark.parametrize("part", ["", "clusters", "jobs"])
def test_the_home_of_another_user_is_refused(
    part: str, linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records would tell us which programs to start."""
    state, theirs = tmp_path / "state", tmp_path / "theirs"
    theirs.mkdir()
    if part:
        state.mkdir()
    if linked:
        (state / part).symlink_to(theirs)
    else:
        theirs.rename(state / part)
    if os.geteuid() == 0:
        os.chown(state / part, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UsageError, match="belongs to user") as told:
        Home(state)
    assert "CLUSTERCTL_HOME" in told.value.hint


@pytest.mark.parametrize("place", ["file", "file/below", "link", "link/below", "loop"])
def test_a_home_that_is_no_folder_does_not_look_empty(
    place: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path / place))
    for words in (("jobs",), ("status",), ("logs", "1"), ("run", "train.py"), ("up",)):
        said = call(*words)
        assert (said.code, said.out) == (2, "")
        assert f"cannot read the state home {tmp_path / place}: " in said.err


# ------------------------------------------------------------------------------------- records


def test_records_come_back_as_they_were(store: Store) -> None:
    where = cluster(
        node("launcher", "10.0.0.10"),
        node("worker-1", gpus=["Tesla T4"], accelerator=Accelerator.NVIDIA),
        node("worker-2", "10.0.0.12", mpi="", python=None),
        phase=Phase.CREATING,
        deadline=12.5,
    )
    store.save(where)
    assert store.read_cluster("lab") == where
    assert store.list_clusters() == (where,)
    ran = job(
        where,
        spec(env={"A": "ü\n'"}, secret_names=("TOKEN",)),
        state=JobState.FAILED,
        failure=RankFailure(rank=1, node="worker-1", exit_code=3),
        survivors={"worker-1": -1},
        program_exit_code=3,
    )
    store.save_job(ran)
    assert store.read_job(7) == ran


def test_who_stood_still_writes_nothing_older_over_a_jobs_record(store: Store) -> None:
    """`logs -f` was stopped (Ctrl-Z), and goes on after the job was fetched and its cluster taken
    down elsewhere."""
    made = cluster()
    store.save(made)
    running = job(made, state=JobState.RUNNING, started=1.0)
    store.save_job(running)
    ended = replace(running, state=JobState.CANCELLED, finished=2.0, fetched=True)
    store.save_job(ended)
    store.save(replace(made, phase=Phase.DELETING))
    store.save_job(running)
    assert store.read_job(running.id) == ended
    store.retire(made)
    store.save_job(running)
    assert store.read_job(running.id) == ended
    store.save_job(replace(ended, state=JobState.SUCCEEDED, fetched=False))  # the launcher knows
    assert store.read_job(running.id) == replace(ended, state=JobState.SUCCEEDED)


def test_a_clusterctl_that_was_stopped_in_a_record_hangs_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterctl.state.store.STORE_PATIENCE", 0.1)
    assert store.reserve_job_id() == 1
    ran = job(id=1)
    store.save_job(ran)
    folders = (store.home.jobs / ".counting", store.locate_job_folder(1))
    files = [os.open(path, os.O_RDONLY) for path in folders]
    try:
        for file in files:
            fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(
            RecordError, match="another clusterctl has held the lock of the job numbers"
        ):
            store.reserve_job_id()
        store.save_job(replace(ran, fetched=True))
        assert store.read_job(1).fetched
    finally:
        for file in files:
            os.close(file)
    assert store.reserve_job_id() == 2


def test_jobs_are_in_order(store: Store) -> None:
    for number in (10, 9, 2, 100):
        store.save_job(job(id=number))
    assert [item.id for item in store.list_jobs()] == [2, 9, 10, 100]


def test_unknown(store: Store) -> None:
    with pytest.raises(RecordError, match="'nope'") as caught:
        store.read_cluster("nope")
    assert "clusterctl up" in caught.value.hint
    store.save(cluster())
    with pytest.raises(RecordError) as caught:
        store.read_cluster("nope")
    assert "lab" in caught.value.hint
    with pytest.raises(RecordError, match="99") as caught:
        store.read_job(99)
    assert caught.value.exit_code == 7
    assert store.list_jobs() == ()


@rows("data", "state.a_damaged_record_is_one_clear_error")
def test_a_damaged_record_is_one_clear_error(data: str, store: Store) -> None:
    store.save(cluster())
    store.save_job(job())
    store.save(cluster(name="other"))
    store.save_job(replace(job(), id=8))
    for path, read in (
        (store.locate_folder("lab") / "cluster.json", lambda: store.read_cluster("lab")),
        (store.locate_job_folder(7) / "job.json", lambda: store.read_job(7)),
    ):
        path.write_bytes(data.encode("latin-1"))
        with pytest.raises(RecordError) as caught:
            read()
        assert str(path) in caught.value.message
        assert "\n" not in caught.value.message
        assert caught.value.hint
        assert caught.value.exit_code == 7
        assert sum(str(path) in line for line in store.list_damage()) == 1
    assert [item.name for item in store.list_clusters()] == ["other"]
    assert store.list_names() == ("lab", "other")
    assert [item.id for item in store.list_jobs()] == [8]


def test_a_record_with_fields_to_come_is_read(store: Store) -> None:
    store.save(cluster())
    path = store.locate_folder("lab") / "cluster.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "later": [1]}))
    assert store.read_cluster("lab") == cluster()


def test_a_record_of_the_first_version_is_brought_forward(store: Store) -> None:
    """It named no version."""
    store.save(cluster())
    path = store.locate_folder("lab") / "cluster.json"
    first = json.loads(path.read_text())
    del first["record_version"]
    path.write_text(json.dumps(first))
    assert store.read_cluster("lab") == cluster()
    store.save(cluster())
    assert json.loads(path.read_text())["record_version"] > 1


def test_a_record_of_a_later_version_is_refused_and_stays_as_it_is(store: Store) -> None:
    store.save(cluster())
    store.save_job(job())
    for path, use in (
        (store.locate_folder("lab") / "cluster.json", lambda: store.read_cluster("lab")),
        (store.locate_folder("lab") / "cluster.json", lambda: store.save(cluster())),
        (store.locate_job_folder(7) / "job.json", lambda: store.read_job(7)),
        (store.locate_job_folder(7) / "job.json", lambda: store.save_job(job())),
    ):
        later = {**json.loads(path.read_text()), "record_version": 99, "phase": "?", "state": "?"}
        path.write_text(json.dumps(later))
        with pytest.raises(NewerRecordError) as caught:
            use()
        assert caught.value.exit_code == 7
        assert str(path) in caught.value.message
        assert "version 99" in caught.value.message
        assert "\n" not in caught.value.message
        assert "upgrade clusterctl" in caught.value.hint
        assert json.loads(path.read_text()) == later
    assert store.list_clusters() == store.list_jobs() == ()
    assert sum("version 99" in line for line in store.list_damage()) == 2


@pytest.mark.parametrize("value", ['"2"', "0", "-1", "true", "null", "2.5", "[]"])
def test_a_version_that_is_none_is_damage(value: str, store: Store) -> None:
    store.save(cluster())
    path = store.locate_folder("lab") / "cluster.json"
    text = path.read_text()
    path.write_text(text.replace(f'"record_version": {VERSION}', f'"record_version": {value}'))
    assert path.read_text() != text
    with pytest.raises(RecordError, match="record_version"):
        store.read_cluster("lab")
    store.save(cluster())  # damage may be repaired
    assert store.read_cluster("lab") == cluster()


def test_retire(store: Store) -> None:
    store.save(cluster())
    folder = store.locate_folder("lab")
    (folder / "ssh").mkdir()
    (folder / "ssh" / "user").write_text("key")
    (folder / "link").symlink_to(folder / "ssh")
    store.add_event("lab", "created", nodes=3)
    store.retire(cluster())
    assert not folder.exists()
    past = store.home.past / "lab-1a2b"
    assert sorted(path.name for path in past.iterdir()) == ["cluster.json", "events.jsonl"]
    assert json.loads((past / "events.jsonl").read_text())["event"] == "created"
    assert store.list_clusters() == ()


def test_events(store: Store) -> None:
    store.add_event("lab", "too early")
    assert not store.locate_folder("lab").exists()
    store.save(cluster())
    store.add_event("lab", "one", text="a\nb")
    store.add_event("lab", "two")
    lines = (store.locate_folder("lab") / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["one", "two"]
    assert json.loads(lines[0])["text"] == "a\nb"


# ------------------------------------------------------------------------------------- numbers


def test_numbers_are_never_given_twice(
    store: Store, start: Callable[..., subprocess.Popen[str]]
) -> None:
    code = (
        "import sys; from pathlib import Path; from clusterctl.state.home import Home\n"
        "from clusterctl.state.store import Store\n"
        "store = Store(Home(Path(sys.argv[1])))\n"
        "print(*(store.reserve_job_id() for _ in range(25)))\n"
    )
    processes = [start(code, store.home.path) for _ in range(4)]
    numbers = [int(word) for one in processes for word in one.communicate(timeout=60)[0].split()]
    assert sorted(numbers) == list(range(1, 101))
    assert store.reserve_job_id() == 101


# --------------------------------------------------------------------------------------- locks

HOLD = """
import sys, time
from pathlib import Path
from clusterctl.state.locks import ClusterLock; from clusterctl.state.home import Home
with ClusterLock(Home(Path(sys.argv[1])), sys.argv[2], "up"):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_lock_names_its_holder(store: Store, start: Callable[..., subprocess.Popen[str]]) -> None:
    holder = start(HOLD, store.home.path, "lab")
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(RecordError) as caught, ClusterLock(store.home, "lab", "down"):
        pass
    assert caught.value.exit_code == 7
    assert caught.value.transient
    assert str(holder.pid) in caught.value.message
    assert "clusterctl up" in caught.value.message
    with ClusterLock(store.home, "other", "down"):
        pass
    holder.communicate("\n", timeout=20)
    with ClusterLock(store.home, "lab", "down"):
        pass


def test_the_lock_of_a_killed_holder_is_free(
    store: Store, start: Callable[..., subprocess.Popen[str]]
) -> None:
    holder = start(HOLD, store.home.path, "lab")
    assert holder.stdout is not None
    holder.stdout.readline()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with ClusterLock(store.home, "lab", "up") as lock:
        assert str(os.getpid()) in lock.path.read_text()
    assert lock.path.read_text() == ""


def test_an_orphan_keeps_the_lock(
    store: Store, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """As Terraform does, that outlives a clusterctl which was killed before it had noted it: the
    next one waits."""
    code = HOLD.replace(
        'print("held"',
        "import subprocess; orphan = subprocess.Popen(['sleep', '60'], pass_fds=[lock.fileno()])\n"
        "    print(orphan.pid",
    ).replace('"up"):', '"up") as lock:')
    holder = start(code, store.home.path, "lab")
    assert holder.stdout is not None
    orphan = int(holder.stdout.readline())
    holder.kill()
    holder.wait()
    said: list[str] = []

    def end_orphan(text: str) -> None:
        said.append(text)
        os.kill(orphan, signal.SIGKILL)

    with ClusterLock(store.home, "lab", "up", end_orphan):
        pass
    [waits] = said
    assert f"waiting for a process, left behind by `clusterctl up`, pid {holder.pid}" in waits


def damage_record(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@rows("changes, what", "state.a_record_that_no_verb_can_work_with_is_damaged")
def test_a_record_that_no_verb_can_work_with_is_damaged(
    changes: dict[str, Any], what: str, call: Call
) -> None:
    store = open_store()
    store.save(cluster())
    path = store.locate_folder("lab") / "cluster.json"
    if role := changes.get("nodes"):
        raw = json.loads(path.read_text())
        changes = {"nodes": [node for node in raw["nodes"] if node["role"] == role]}
    damage_record(path, **changes)
    said = call("ssh", "--", "true")
    assert said.code == 7, said
    assert f"{path} cannot be read: {what}" in said.err
    assert "`clusterctl down lab`" in said.err


def test_a_job_without_ranks_is_damaged(store: Store) -> None:
    store.save_job(job(state=JobState.FAILED))
    damage_record(store.locate_job_folder(7) / "job.json", placement=[])
    with pytest.raises(RecordError, match="cannot be read: "):
        store.read_job(7)


def test_a_cluster_that_has_no_nodes_yet_has_no_shell(call: Call) -> None:
    open_store().save(cluster(phase=Phase.CREATING, nodes=()))
    for words in (["ssh"], ["ssh", "--json", "--", "true"], ["forward", "6006"]):
        said = call(*words)
        assert said.code == 7, said
        assert "is creating and has no launcher" in said.err
        assert "`clusterctl up lab` continues" in said.err


def test_an_unknown_provider_is_named_with_its_file_and_forced_away(call: Call) -> None:
    store = open_store()
    store.save(cluster(provider="local"))
    path = store.locate_folder("lab") / "cluster.json"
    raw = json.loads(path.read_text())
    damage_record(path, spec={**raw["spec"], "provider": "nowhere"})
    said = call("status", "--live")
    assert (said.code, "unknown provider, 'nowhere'" in said.err) == (7, True), said
    said = call("down", "--yes", "--discard")
    assert said.code == 7, said
    assert "'nowhere'" in said.err
    assert str(path) in said.err
    assert store.list_names() == ("lab",)
    said = call("down", "--force")
    assert said.code == 0, said
    assert store.list_names() == ()


def test_a_job_of_the_second_version_is_brought_forward(store: Store) -> None:
    """It knew nothing of attempts that hung: a clusterctl of that time would drop them."""
    hung = job(hangs=(Hang(attempt=1, seconds=60, places=(HungRanks(ranks=(0,), note="x"),)),))
    store.save_job(hung)
    path = store.locate_job_folder(7) / "job.json"
    record = json.loads(path.read_text())
    assert store.read_job(7) == hung
    assert record["record_version"] > 2
    del record["hangs"]
    path.write_text(json.dumps({**record, "record_version": 2}))
    assert store.read_job(7) == job()
    store.save_job(store.read_job(7))
    assert json.loads(path.read_text())["record_version"] > 2


# -------------------------------------------------------------------------------------------------
# What is on the disk while a record is written and after a crash; a full disk, and homes that
# cannot be written to.


def test_a_record_is_on_the_disk_before_it_takes_the_place_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the power fails, a name that is renamed first may be all that there is of it."""
    path = tmp_path / "record"
    write_atomic(path, b"old")
    flushed: list[tuple[Path | bytes, bytes]] = []

    def fsync(fd: int) -> None:
        what = Path(os.readlink(f"/proc/self/fd/{fd}"))
        flushed.append((what if what.is_dir() else what.read_bytes(), path.read_bytes()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomic(path, b"new")
    assert flushed == [(b"new", b"old"), (tmp_path, b"new")]  # the new name is the folder's
    assert path.read_bytes() == b"new"


def test_the_folders_of_the_first_record_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(os.readlink(f"/proc/self/fd/{fd}")))
    home = Home(tmp_path / "home")
    folder = home.make(home.clusters / "lab")
    assert flushed == [str(tmp_path), str(home.path), str(home.clusters)]
    assert folder.is_dir()


def test_a_file_system_that_cannot_flush_a_folder_holds_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomic(tmp_path / "record", b"new")
    assert (tmp_path / "record").read_bytes() == b"new"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=["disk", "quota"])
def test_a_full_disk_is_no_mistake_in_the_command_line(
    number: int, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    said = call("up")
    assert said.code == 3
    assert os.strerror(number) in said.err
    assert "free some space there" in said.err


def test_a_full_disk_without_a_state_home_is_one_clear_error(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log cannot be written either, which must not hide why."""

    def mkdir(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "mkdir", mkdir)
    said = call("up")
    assert said.code == 3
    assert "the state home" in said.err
    assert "free some space there" in said.err
    assert "log:" not in said.err


def test_a_writer_that_is_killed_leaves_a_whole_record(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from clusterctl.state.files import write_atomic\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1; write_atomic(Path(sys.argv[1]), b'%d' % (n % 10) * 200_000)\n"
        "    if n == 1: print('on', flush=True)\n"
    )
    path = tmp_path / "record"
    for _ in range(3):
        process = start(code, path)
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        process.wait()
        data = path.read_bytes()
        assert data == data[:1] * 200_000


LIMITED = """
import resource, sys
from clusterctl.errors import ClusterctlError
from clusterctl.state.home import Home
from clusterctl.state.locks import ClusterLock
from clusterctl.state.store import Store
from clusterctl.core.model import Phase
from msgspec.structs import replace
from pathlib import Path
store = Store(Home(Path(sys.argv[1])))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # as a full disk: nothing can be written
try:
    exec(sys.argv[2])
except ClusterctlError as error:
    print(error.exit_code, "|", error.message, "|", error.hint)
"""


@rows("action", "state_writes.a_full_disk_is_one_clear_error_and_loses_nothing")
def test_a_full_disk_is_one_clear_error_and_loses_nothing(
    action: str, store: Store, start: Callable[..., subprocess.Popen[str]]
) -> None:
    store.save(cluster())
    store.save_job(job())
    assert store.reserve_job_id() == 8
    process = start(LIMITED, store.home.path, action)
    out, err = process.communicate(timeout=30)
    assert store.read_cluster("lab") == cluster()
    assert store.read_job(7) == job()
    assert (store.home.jobs / "last-id").read_text() == "8"
    assert not list(store.home.path.rglob("*.new"))
    assert "Traceback" not in err, err
    # An event that is not noted, or a lock without its holder's name, is no reason to stop.
    small = action.startswith(("store.add_event", "ClusterLock"))
    assert out.startswith("2 |") or (small and out == "")


def test_a_cluster_retires_on_a_full_disk_too(
    store: Store, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """What was to be kept for the past is lost, and it is said; the folder goes all the same."""
    store.save(cluster())
    action = "store.retire(store.read_cluster('lab'))"
    out, err = start(LIMITED, store.home.path, action).communicate(timeout=30)
    assert out.startswith("2 |")
    assert "Traceback" not in err
    assert not store.locate_folder("lab").exists()


def test_a_home_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "state"
    with pytest.raises(UsageError) as caught:
        Home(place)
    assert str(place) in caught.value.message
    assert "CLUSTERCTL_HOME" in caught.value.hint


@pytest.mark.netns  # the right to mount
@rows("action", "state_writes.a_home_that_became_read_only")
def test_a_home_that_became_read_only(
    action: str, store: Store, need: Callable[[str], str]
) -> None:
    store.save(cluster())
    store.save_job(job())
    store.reserve_job_id()
    with ClusterLock(store.home, "lab", "up"):
        pass
    code = LIMITED.replace("resource.setrlimit(", "(lambda *_: 0)(")
    done = subprocess.run(
        [
            *(need("unshare"), "--mount", "/bin/sh", "-c"),
            'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"',
            *("sh", str(store.home.path), sys.executable, "-c", code),
            *(str(store.home.path), action),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout.startswith("2 |")
    assert "set CLUSTERCTL_HOME to a writable folder" in done.stdout


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path: Path) -> None:
    old = tmp_path / "page.html"
    old.write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2, limits[1]))
    try:
        with pytest.raises(OSError, match="large"):
            replace_file(old, b"new page")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]
    replace_file(old, b"new page")
    assert old.read_bytes() == b"new page"
