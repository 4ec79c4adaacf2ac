"""Text that runs elsewhere, run here: the rank wrapper, the sweeper, the follower and the rest."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from clusterctl import assets, launch
from clusterctl.actions.run import Prepared, emit
from clusterctl.jobs.stage import Tree
from clusterctl.jobs.start import node_files
from clusterctl.model import LaunchPlan, ProgramKind
from tests.unit.making import cluster, job, node, program, request, spec

HOSTNAME = os.uname().nodename
WEIRD = ["plain", "two words", "it's", 'a "b" $HOME `id` \\', "-dash", "line\nbreak", "ü; exit 3"]
OMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "1",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "1",
    # torchrun was itself started by mpirun, as one process per node
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}
SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "1",
}


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


class Rank:
    """A job's folder with its rank wrapper, on a node that is this machine."""

    def __init__(self, folder: Path, script: str, env: dict[str, str], **values: Any) -> None:
        self.folder = folder
        (folder / "work" / "sub dir").mkdir(parents=True)
        (folder / "env").write_text(assets.render("job/env.j2", variables=sorted(env.items())))
        text = assets.render(
            "job/rank.sh.j2",
            grace=1,
            **{
                "id": 7,
                "node": "worker-1",
                "folder": folder,
                "hostname": HOSTNAME,
                "working": "sub dir",
                "program": ("/bin/sh", "-c", script, "name", *values.pop("args", ())),
                "agent": "",
                "line_buffered": False,
                **values,
            },
        )
        (folder / "rank.sh").write_text(text)

    def start(self, launcher: dict[str, str], **more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sh", self.folder / "rank.sh"],
            cwd="/",
            env={"PATH": os.environ["PATH"], "HOME": "/", **launcher, **more},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, launcher: dict[str, str], **more: str) -> tuple[int, str]:
        process = self.start(launcher, **more)
        out, err = process.communicate(timeout=30)
        assert out == b""
        return process.returncode, err.decode()

    def said(self, number: int, stream: str) -> str:
        return (self.folder / "out" / f"rank-{number}.{stream}").read_text()


@pytest.mark.parametrize("launcher", [OMPI, TORCHRUN, SLURM], ids=["ompi", "torchrun", "slurm"])
@pytest.mark.parametrize("name", WEIRD, ids=ascii)
def test_a_rank_finds_itself(launcher: dict[str, str], name: str, tmp_path: Path) -> None:
    script = 'printf "%s\\n" "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE" "$PWD" "$MINE" "$@"'
    rank = Rank(tmp_path / name / "7", script, {"MINE": name}, args=(name, "", "b c"))
    assert rank.run(launcher) == (0, "")
    folder = (tmp_path / name / "7" / "work" / "sub dir").resolve()
    assert rank.said(1, "out") == f"1 0 2 1\n{folder}\n{name}\n{name}\n\nb c\n"
    assert rank.said(1, "err") == ""
    code, when, attempt = rank.said(1, "exit").split()
    assert (code, attempt) == ("0", "1")
    assert float(when) > 1e9


def test_what_the_user_sets_wins_but_not_who_we_are(tmp_path: Path) -> None:
    env = {"OMP_NUM_THREADS": "3", "RANK": "9", "WORLD_SIZE": "99", "LOCAL_RANK": "9"}
    rank = Rank(tmp_path / "7", 'echo "$OMP_NUM_THREADS $RANK $WORLD_SIZE $LOCAL_RANK"', env)
    assert rank.run(OMPI, OMP_NUM_THREADS="1")[0] == 0
    assert rank.said(1, "out") == "3 1 2 0\n"


@pytest.mark.parametrize("code", [1, 3, 126, 255])
def test_exit_code(code: int, tmp_path: Path) -> None:
    rank = Rank(tmp_path / "7", f"echo bad >&2; exit {code}", {})
    assert rank.run(OMPI, CLUSTERCTL_ATTEMPT="2")[0] == code
    assert rank.said(1, "exit").split()[::2] == [str(code), "2"]
    assert rank.said(1, "err") == "bad\n"
    assert not list((tmp_path / "7" / "out").glob("*.new"))


def test_killed_by_a_signal(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "7", "kill -SEGV $$", {})
    assert rank.run(OMPI)[0] == 128 + signal.SIGSEGV
    assert rank.said(1, "exit").split()[0] == str(128 + signal.SIGSEGV)


def test_no_such_program(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "7", "", {}, program=("/nowhere/python", "x.py"))
    assert rank.run(OMPI)[0] == 127
    assert "/nowhere/python" in rank.said(1, "err")
    assert rank.said(1, "exit").split()[0] == "127"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_are_forwarded(number: signal.Signals, tmp_path: Path) -> None:
    """The program gets SIGTERM, may take its time, and its own exit code counts."""
    trap = "trap 'echo saving; sleep 0.2; echo saved; exit 42' TERM"
    script = f"{trap}; echo up; while :; do sleep 0.05; done"
    rank = Rank(tmp_path / "7", script, {})
    process = rank.start(OMPI)
    out = rank.folder / "out" / "rank-1.out"
    until(lambda: out.exists() and out.read_text() == "up\n")
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == 42
    assert out.read_text() == "up\nsaving\nsaved\n"
    assert rank.said(1, "exit").split()[0] == "42"


def test_output_is_there_while_the_program_runs(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "7", "echo now; read -r x; sleep 60", {})
    process = rank.start(OMPI)
    out = rank.folder / "out" / "rank-1.out"
    until(lambda: out.exists() and out.read_text() == "now\n")
    pid = int(rank.said(1, "pid"))
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    process.terminate()
    process.communicate(timeout=20)


def test_a_second_attempt_adds_to_the_output(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "7", 'echo "$CLUSTERCTL_ATTEMPT"; exit 1', {})
    for attempt in ("1", "2"):
        assert rank.run(OMPI, CLUSTERCTL_ATTEMPT=attempt)[0] == 1
    assert rank.said(1, "out") == "1\n2\n"
    assert rank.said(1, "exit").split()[2] == "2"


def test_an_old_exit_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "7", "sleep 60", {})
    (rank.folder / "out").mkdir()
    (rank.folder / "out" / "rank-1.exit").write_text("0 1 1\n")
    process = rank.start(OMPI)
    until((rank.folder / "out" / "rank-1.pid").exists)
    assert not (rank.folder / "out" / "rank-1.exit").exists()
    process.terminate()
    process.communicate(timeout=20)


def test_the_wrong_machine_is_refused(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "7", "echo no", {}, hostname="another")
    code, err = rank.run(OMPI)
    assert code == 6
    assert all(word in err for word in ("rank 1", "worker-1", HOSTNAME))
    assert not (tmp_path / "7" / "out").exists()


def test_nobody_gave_a_rank(tmp_path: Path) -> None:
    code, err = Rank(tmp_path / "7", "echo no", {}).run({})
    assert code == 6
    assert "no launcher" in err


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "7", "echo no", {}, working="nowhere")
    code, err = rank.run(OMPI)
    assert code == 6
    assert "nowhere" in err


def test_the_agent_starts_the_ranks(tmp_path: Path) -> None:
    """Under torchrun the wrapper runs twice: as one process per node, then as each rank."""
    torchrun = tmp_path / "torch run"
    torchrun.write_text(
        '#!/bin/sh\necho "agent $MINE $*"\nTORCHELASTIC_RUN_ID=x RANK=5 LOCAL_RANK=1 WORLD_SIZE=8'
        "\nLOCAL_WORLD_SIZE=2\nexport TORCHELASTIC_RUN_ID RANK LOCAL_RANK WORLD_SIZE"
        ' LOCAL_WORLD_SIZE\nwhile [ "$1" != /bin/sh ]; do shift; done\nexec "$@"\n'
    )
    torchrun.chmod(0o755)
    agent = f"'{torchrun}' --node-rank \"$OMPI_COMM_WORLD_RANK\" --no-python"
    rank = Rank(tmp_path / "7", 'echo "rank $RANK of $WORLD_SIZE"', {"MINE": "x"}, agent=agent)
    assert rank.run(OMPI)[0] == 0
    assert rank.said(5, "out") == "rank 5 of 8\n"
    said = (rank.folder / "out" / "agent-1.out").read_text()
    assert said == f"agent x --node-rank 1 --no-python /bin/sh {rank.folder}/rank.sh\n"


def test_a_c_program_shows_its_lines_at_once(need: Callable[[str], str], tmp_path: Path) -> None:
    need("stdbuf")
    script = "{ echo now; sleep 60; } | exec tr a-z A-Z"  # tr buffers by the block
    rank = Rank(tmp_path / "7", script, {}, line_buffered=True)
    process = rank.start({**OMPI, "CLUSTERCTL_JOB": "templates;"})
    out = rank.folder / "out" / "rank-1.out"
    until(lambda: out.exists() and out.read_text() == "NOW\n")
    sweep(tmp_path, "templates;", "end", "0")
    process.communicate(timeout=20)


# ------------------------------------------------------------------------------------ sweep.sh


@pytest.fixture
def tagged() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts processes that carry a job's tag."""
    started: list[subprocess.Popen[bytes]] = []

    def start(tag: str, script: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"{script}\necho; while :; do sleep 0.05; done"],
            env={**os.environ, "CLUSTERCTL_JOB": tag},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        process.stdout.readline()  # it has come as far as its loop
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def sweep(folder: Path, tag: str, *arguments: str) -> list[str]:
    text = assets.render("job/sweep.sh.j2", id=7, node="worker-1", tag=tag, folder=folder)
    done = subprocess.run(
        ["/bin/sh", "-s", *arguments], input=text, capture_output=True, text=True, timeout=30
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_sweep_finds_the_jobs_own_processes(
    tagged: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    tag = f"lab-{os.getpid()}/1;"
    assert sweep(tmp_path, tag, "look") == ["survivors 0"]
    mine = tagged(tag, "")
    other = tagged(tag.replace("/1;", "/11;"), "")
    count = int(sweep(tmp_path, tag, "look")[0].split()[1])
    assert count in (1, 2)  # the shell, and the sleep it may be in
    assert sweep(tmp_path, tag, "end", "2") == ["survivors 0"]
    assert mine.wait(timeout=10) == -signal.SIGTERM
    assert other.poll() is None


@pytest.mark.parametrize(
    "obstacle", ["trap '' TERM", "kill -STOP $$ &"], ids=["ignores SIGTERM", "stopped"]
)
def test_sweep_ends_what_resists(
    obstacle: str, tagged: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    tag = f"lab-{os.getpid()}/2;"
    process = tagged(tag, obstacle)
    assert sweep(tmp_path, tag, "end", "0")[0] == "survivors 0"
    assert process.wait(timeout=10) < 0


@pytest.mark.parametrize("verb", ["look", "end", "again"])
def test_sweep_tells_what_ranks_left(verb: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "env").touch()
    for name, text in (
        ("rank-0.pid", "12\n"),
        ("rank-11.pid", "13\n"),
        ("rank-11.exit", "3 1700000000.5 2\n"),
        ("rank-2.exit.new", "9 9 9\n"),
        ("rank-0.out", "survivors 7\n"),
    ):
        (tmp_path / "out" / name).write_text(text)
    lines = sweep(tmp_path, "lab-none/3;", *([verb] if verb == "look" else [verb, "0"]))
    assert lines == ["survivors 0", "started 0", "started 11", "exit 11 3 1700000000.5 2"]
    assert (tmp_path / "env").exists() == (verb != "end")  # the secrets go last


# ----------------------------------------------------------------------------------- follow.sh


class Follow:
    """The other end of a follower."""

    def __init__(self, folder: Path, chunk: int) -> None:
        text = assets.render("job/follow.sh.j2", folder=folder, chunk=chunk)
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def ask(self, known: dict[str, int] | None = None) -> dict[str, tuple[int, bytes]]:
        """What is new, by name: its offset and its bytes."""
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        text = "".join(f" {name}={at}" for name, at in (known or {}).items())
        process.stdin.write(f"{text} \n".encode())
        process.stdin.flush()
        found = {}
        while (header := process.stdout.readline()) != b"E\n":
            kind, name, offset, length = header.decode().split()
            assert kind == "F"
            found[name] = (int(offset), process.stdout.read(int(length)))
        return found


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., Follow]]:
    made: list[Follow] = []

    def start(chunk: int = 1 << 20) -> Follow:
        made.append(Follow(tmp_path, chunk))
        return made[-1]

    (tmp_path / "out").mkdir()
    yield start
    for one in made:
        assert one.process.communicate(timeout=10) == (b"", b"")
        assert one.process.returncode == 0  # it ends with its stdin


def test_follow_nothing_yet(follow: Callable[..., Follow]) -> None:
    assert follow().ask() == {}


def test_follow_a_growing_file(follow: Callable[..., Follow], tmp_path: Path) -> None:
    one, out = follow(), tmp_path / "out" / "rank-1.out"
    (tmp_path / "state").write_text("running 1 1\n")
    out.write_bytes(b"a\n")
    assert one.ask() == {"state": (0, b"running 1 1\n"), "out/rank-1.out": (0, b"a\n")}
    at = {"state": 12, "out/rank-1.out": 2}
    assert one.ask(at) == {}
    with out.open("ab") as file:
        file.write(b"b\xff\0\n E\nF x 0 9\n")
    assert one.ask(at) == {"out/rank-1.out": (2, b"b\xff\0\n E\nF x 0 9\n")}


def test_follow_knows_names_apart(follow: Callable[..., Follow], tmp_path: Path) -> None:
    one = follow()
    for name in ("rank-1.out", "rank-11.out", "rank-1.err", "agent-1.out"):
        (tmp_path / "out" / name).write_text("0123456789")
    (tmp_path / "out" / "rank-1.pid").write_text("77")
    found = one.ask({"out/rank-11.out": 9, "out/rank-1.out": 4})
    assert found == {
        "out/rank-1.out": (4, b"456789"),
        "out/rank-11.out": (9, b"9"),
        "out/rank-1.err": (0, b"0123456789"),
        "out/agent-1.out": (0, b"0123456789"),
    }


def test_follow_in_chunks(follow: Callable[..., Follow], tmp_path: Path) -> None:
    one, data = follow(chunk=1000), os.urandom(2500)
    (tmp_path / "out" / "rank-1.out").write_bytes(data)
    got = b""
    while found := one.ask({"out/rank-1.out": len(got)}):
        offset, chunk = found["out/rank-1.out"]
        assert (offset, len(chunk) <= 1000) == (len(got), True)
        got += chunk
    assert got == data


def test_follow_a_file_that_shrank(follow: Callable[..., Follow], tmp_path: Path) -> None:
    (tmp_path / "out" / "rank-1.out").write_bytes(b"short")
    assert follow().ask({"out/rank-1.out": 500}) == {}


def test_follow_without_a_folder(tmp_path: Path) -> None:
    text = assets.render("job/follow.sh.j2", folder=tmp_path / "gone", chunk=1)
    done = subprocess.run(["/bin/sh", "-c", text], stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == 1


# ------------------------------------------------------------------------------------- the rest


def test_free_port() -> None:
    text = assets.render("bootstrap/free-port.sh.j2")
    ports = set()
    for _ in range(3):
        done = subprocess.run(["/bin/sh"], input=text, capture_output=True, text=True, check=True)
        port = int(done.stdout)
        ports.add(port)
        with socket.socket() as sock:
            sock.bind(("", port))
    assert all(20000 <= port < 30000 for port in ports)


def test_free_port_avoids_what_is_used(tmp_path: Path) -> None:
    """All but one port of its range are taken, in a /proc/net/tcp of ours."""
    table = tmp_path / "tcp"
    rows = (f"  1: 00000000:{port:04X} 00000000:0000 0A" for port in range(20000, 30000))
    table.write_text("\n".join(row for row in rows if ":6590 " not in row))
    text = assets.render("bootstrap/free-port.sh.j2").replace("/proc/net/tcp6", "")
    done = subprocess.run(
        ["/bin/sh"], input=text.replace("/proc/net/tcp", str(table)), capture_output=True, text=True
    )
    assert int(done.stdout) == 0x6590


@pytest.mark.parametrize(
    "value", [*WEIRD, "", "a\n\nb\n", "\\n", "%s", "$(id)", "*", "~", "\t"], ids=ascii
)
def test_environment_file(value: str) -> None:
    text = assets.render("job/env.j2", variables=[("MINE", value), ("NEXT", "1")])
    script = f'{text}printf "%s|%s" "$MINE" "$NEXT"'
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True)
    assert done.stdout.decode() == f"{value}|1"


def files(root: str, **changes: Any) -> dict[str, str]:
    """Every sh script of a job under that root, by name."""
    nodes = [
        node(name, f"10.0.0.{10 + n}", root=f"{root}/{name}")
        for n, name in enumerate(["launcher", "worker-1", "worker-2"])
    ]
    where = cluster(*nodes)
    what = spec(program=program(*WEIRD), **changes)
    plan = launch.load(what.launcher).plan(request(where, what))
    made = node_files(job(where, what), where, plan, {"TOKEN": "it's\n$secret"})
    return {
        f"{name}/{path}": text
        for name, group in made.items()
        for path, (text, _) in group.items()
        if path.endswith(".sh") or path == "env"
    }


@pytest.mark.parametrize("root", WEIRD, ids=ascii)
@pytest.mark.parametrize(
    "changes",
    [{}, {"launcher": "torchrun"}, {"retries": 2, "timeout": 1.5}, {"now": True}],
    ids=["plain", "torchrun", "retries", "now"],
)
def test_scripts_are_sound(root: str, changes: dict[str, Any]) -> None:
    scripts = files(f"/tmp/{root}", **changes)
    assert {name.partition("/")[2] for name in scripts} == {
        *("env", "rank.sh", "sweep.sh", "launch.sh", "supervise.sh"),
    }
    for name, text in scripts.items():
        done = subprocess.run(["/bin/sh", "-n"], input=text, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), name
        assert "it's\n$secret" not in text or name.endswith("env")


def test_scripts_please_shellcheck(need: Callable[[str], str]) -> None:
    if not shutil.which("shellcheck"):
        return  # nobody has to have it
    for name, text in files("/tmp/root", retries=1, timeout=5).items():
        done = subprocess.run(
            ["shellcheck", "-s", "sh", "-S", "warning", "-e", "SC1097", "-"],
            input=text,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{name}: {done.stdout}"


def test_an_undefined_name_is_an_error() -> None:
    with pytest.raises(Exception, match="undefined"):
        assets.render("job/follow.sh.j2", folder="/")


# ----------------------------------------------------------------------------------- emit.sh


def emitted(root: Path, *args: str, secrets: dict[str, str] | None = None) -> str:
    where = cluster(
        node("launcher", "10.0.0.10", root=str(root), mpi_prefix=str(root)),
        node("worker-1", root=str(root), mpi_prefix=str(root)),
    )
    what = spec(
        program=program(*args, kind=ProgramKind.BINARY, target="./program"),
        ranks=2,
        env={"MINE": "it's\n$HOME"},
    )
    plan: LaunchPlan = launch.load("mpirun").plan(request(where, what))
    return emit(
        Prepared(
            job=job(where, what),
            cluster=where,
            plan=plan,
            tree=Tree(root, (), 0, False),
            secrets=secrets or {},
        )
    )


@pytest.mark.parametrize(
    "args",
    [*([word] for word in WEIRD if "\n" not in word), ["\ntouch PWNED\n#"]],
    ids=lambda args: ascii(args[0]),
)
def test_an_emitted_script_runs_without_us(args: list[str], tmp_path: Path) -> None:
    """With an mpirun that starts two ranks here. Arguments reach the program as they are, and
    nothing else: an argument with a newline must not become a line of the script."""
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    mpirun = root / "bin" / "mpirun"
    mpirun.write_text(
        '#!/bin/sh\nwhile [ "$1" != /bin/sh ]; do shift; done\n'
        "for r in 0 1; do OMPI_COMM_WORLD_RANK=$r OMPI_COMM_WORLD_LOCAL_RANK=$r"
        ' OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 "$@" || exit; done\n'
    )
    mpirun.chmod(0o755)
    (root / "bin" / "free-port").write_text("echo 29000\n")
    folder = tmp_path / "my program"
    folder.mkdir()
    show = '#!/bin/sh\nprintf "%s\\n" "$RANK/$WORLD_SIZE" "$MINE" "$TOKEN" "$@"\n'
    (folder / "program").write_text(show)
    (folder / "program").chmod(0o755)
    text = emitted(root, *args, secrets={"TOKEN": "hunter2"})
    assert "hunter2" not in text
    script = tmp_path / "script.sh"
    script.write_text(text)

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", script, folder],
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"], "HOME": "/root", **environment},
            cwd=tmp_path,
        )

    done = run(TOKEN="hunter2")
    assert not (tmp_path / "PWNED").exists()
    assert done.returncode == 0, done.stderr
    tail = f"it's\n$HOME\nhunter2\n{args[0]}\n"
    assert done.stdout == f"0/2\n{tail}1/2\n{tail}"
    done = run()
    assert done.returncode != 0
    assert "TOKEN" in done.stderr


@pytest.mark.parametrize("tag", ["", "lab-1/7;"])
def test_ssh_between_nodes_brings_its_own_path(tag: str, tmp_path: Path) -> None:
    """Open MPI 4's daemons start ssh by name, also in a script of `--emit sh`, which has no tag."""
    root = tmp_path / "root"
    (root / "ssh").mkdir(parents=True)
    (tmp_path / "ssh").write_text('#!/bin/sh\nprintf "%s" "$4"\n')
    (tmp_path / "ssh").chmod(0o755)
    where = node("worker-1", root="/far/root", mpi_prefix="/far/mpi")
    script = assets.render("bootstrap/agent.sh.j2", root=str(root), nodes=[where])
    done = subprocess.run(
        ["/bin/sh", "-c", script, "agent", "worker-1", "command", "word"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "CLUSTERCTL_JOB": tag},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "PATH=/far/root/bin:/far/mpi/bin:$PATH" in done.stdout.replace("'", "")
    assert done.stdout.endswith("command word")
    assert ("CLUSTERCTL_JOB" in done.stdout) == bool(tag)
