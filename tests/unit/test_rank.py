"""The wrapper of a rank, run here as the launchers run it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterctl.core import assets
from clusterctl.jobs.submit import render_environment, write_agent, write_rank
from tests.unit.scripts import (
    HOSTILE,
    PLAIN,
    SEES,
    WEIRD,
    place_agent,
    processes,
    seen_by_program,
    until,
)
from tests.unit.tables import read_rows, rows

HOSTNAME = os.uname().nodename
OMPI = read_rows("rank", "ompi")
TORCHRUN = read_rows("rank", "torchrun")
SLURM = read_rows("rank", "slurm")


class Rank:
    """A job's folder with its rank wrapper, on a node that is this machine."""

    shell: str | Path = "/bin/sh"
    words: tuple[str, ...] = ()
    """What a torchrun agent says to the wrapper that it starts."""

    def __init__(
        self, folder: Path, script: str, env: dict[str, str], kind: str = "rank", **values: Any
    ) -> None:
        self.folder, self.hostname = folder, values.get("host", HOSTNAME)
        (folder / "work" / "sub dir").mkdir(parents=True)
        (folder / "env").write_text(render_environment(env, {}))
        batch = "" if self.hostname else "yes"
        settings = {
            "grace": 1,
            "node": "worker-1",
            "host": HOSTNAME,
            "batch": batch,
            "tells": "" if batch or kind in ("agent", "point") else "yes",
            "linger": batch,
            "working": "sub dir",
            "program": shlex.join(("/bin/sh", "-c", script, "name", *values.pop("args", ()))),
            "starter": "",
            "cgroups": "/nowhere",
            "lines": "",
            "resume": "",
            "signals": "INT,QUIT",
            "gpu": "",
            "gpus": 0,
            "free_port": folder.parent / "bin" / "free-port",
            **values,
        }
        (folder / "rank.sh").write_text(write_rank(kind, str(folder), str(folder), settings))
        device_env = {"GLOO_SOCKET_IFNAME": "$cctl_device"}
        (folder / "surroundings").write_text(
            assets.render("batch/surroundings.sh.j2", system="slurm", device_env=device_env)
        )
        (folder / "tag").write_text(f"CLUSTERCTL_JOB={self.tag}")
        place_agent(folder)
        (folder / "agent.sh").write_text(write_agent(str(folder), str(folder)))

    @property
    def tag(self) -> str:
        return f"{self.folder}/7;"

    def use(self, shell: str | Path) -> None:
        """As /bin/sh."""
        self.shell = shell
        fixed = assets.find_folder("templates") / "job" / "rank.sh"
        (self.folder / "fixed.sh").write_text(fixed.read_text().replace("/bin/sh", str(shell)))
        path = self.folder / "rank.sh"
        settings = path.read_text().rpartition("\n. ")[0]
        path.write_text(f"{settings}\n. {self.folder}/fixed.sh\n")

    def start(self, launcher: dict[str, str], **more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self.shell, self.folder / "rank.sh", *self.words],
            cwd="/",
            env={
                **{"PATH": os.environ["PATH"], "HOME": "/", "CLUSTERCTL_JOB": self.tag},
                **launcher,
                **more,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # Under nohup it is ignored, and no shell can change that for itself.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )

    def run(self, launcher: dict[str, str], **more: str) -> tuple[int, str]:
        """Beside its output, which is in files, it says how it has ended."""
        process = self.start(launcher, **more)
        out, err = process.communicate(timeout=30)
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        said = rf"clusterctl: start \d+ \d+\n(clusterctl: exit \d+ {code} [\d.]+ \d+\n)?"
        assert out == b"" or re.fullmatch(said, out.decode()), out
        return process.returncode, err.decode()

    def begin(self, text: str = "up\n", **more: str) -> subprocess.Popen[bytes]:
        """Starts rank 1, and returns when its program has printed that."""
        launcher = OMPI if self.hostname else SLURM
        process = self.start(launcher, **more)
        out = self.folder / "out" / "rank-1.out"
        until(lambda: out.exists() and out.read_text() == text)
        return process

    def tell(self, *words: str) -> None:
        """As those who end a job do, on the node."""
        env = {name: value for name, value in os.environ.items() if name != "CLUSTERCTL_JOB"}
        script = ("/bin/sh", self.folder / "agent.sh", *words)
        subprocess.run(script, env=env, check=True)

    def said(self, number: int, stream: str) -> str:
        return (self.folder / "out" / f"rank-{number}.{stream}").read_text()


@pytest.mark.parametrize("launcher", [OMPI, TORCHRUN, SLURM], ids=["ompi", "torchrun", "slurm"])
@pytest.mark.parametrize("name", WEIRD, ids=ascii)
def test_a_rank_finds_itself(launcher: dict[str, str], name: str, tmp_path: Path) -> None:
    script = 'printf "%s\\n" "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE" "$PWD" "$MINE" "$@"'
    agent = "no" if launcher is TORCHRUN else ""
    rank = Rank(
        tmp_path / name / "7",
        script,
        {"MINE": name},
        args=(name, "", "b c"),
        kind="agent" if agent else "rank",
    )
    rank.words = ("ranks", os.environ["PATH"]) if agent else ()
    assert rank.run(launcher) == (0, "")
    folder = (tmp_path / name / "7" / "work" / "sub dir").resolve()
    assert rank.said(1, "out") == f"1 0 2 1\n{folder}\n{name}\n{name}\n\nb c\n"
    assert rank.said(1, "err") == ""
    code, when, attempt = rank.said(1, "exit").split()
    assert (code, attempt) == ("0", "1")
    assert float(when) > 1e9


def test_what_the_user_sets_wins_over_what_the_launcher_sets(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "7", 'echo "$OMP_NUM_THREADS"', {"OMP_NUM_THREADS": "3"})
    assert rank.run(OMPI, OMP_NUM_THREADS="1")[0] == 0
    assert rank.said(1, "out") == "3\n"


@pytest.mark.parametrize("hostname", [HOSTNAME, ""], ids=["direct", "batch"])
def test_a_process_by_itself_is_no_rank(hostname: str, tmp_path: Path) -> None:
    """Programs that find a rank train in parallel; an MPI that finds a server joins mpirun's."""
    told = {**SLURM, "SLURM_NODEID": "0", "SLURM_JOB_ID": "4"}
    if hostname:
        server = {"PMIX_RANK": "0", "PMIX_SERVER_URI4": "x", "OMPI_MCA_pml": "ob1"}
        told = {**OMPI, "OMPI_COMM_WORLD_RANK": "0", "PRTE_LAUNCHED": "1", **server}
    env = {"OMPI_MCA_btl": "self"}
    rank = Rank(tmp_path / "7", "", env, program=shlex.join(SEES), host=hostname, kind="once")
    meets = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "1"}
    assert rank.run(told, **meets) == (0, "")
    seen = seen_by_program(rank.folder / "work" / "sub dir")
    ours = {name for name in seen if name.startswith("CLUSTERCTL_")}
    left = seen.keys() & {*told, *meets, "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    assert left == ({"SLURM_JOB_ID", "SLURM_NTASKS_PER_NODE"} if not hostname else set())
    assert ours == {"CLUSTERCTL_JOB", "CLUSTERCTL_RANK", "CLUSTERCTL_ATTEMPT"}
    assert seen["OMPI_MCA_btl"] == "self"
    assert rank.said(0, "exit").split()[0] == "0"


@pytest.fixture
def shells(need: Callable[[str], str], tmp_path: Path) -> list[Path | str]:
    """This machine's sh, and bash as sh, which it is elsewhere."""
    bash = tmp_path / "bash" / "sh"
    bash.parent.mkdir()
    bash.symlink_to(need("bash"))
    return ["/bin/sh", bash]


@pytest.mark.parametrize("launcher", [OMPI, TORCHRUN, SLURM], ids=["ompi", "torchrun", "slurm"])
def test_no_variable_of_the_users_changes_what_the_wrapper_does(
    launcher: dict[str, str], shells: list[Path | str], tmp_path: Path
) -> None:
    """Each of them reaches the program as it is, and the rank keeps its number, output and exit."""
    for shell in shells:
        folder = tmp_path / str(shell).strip("/").replace("/", "-") / "7"
        rank = Rank(
            folder,
            "",
            HOSTILE,
            program=shlex.join(SEES),
            kind="agent" if launcher is TORCHRUN else "rank",
        )
        rank.use(shell)
        # An agent has the user's variables, but for those that would hurt its shell.
        inherited = {} if launcher is OMPI else {name: HOSTILE[name] for name in PLAIN}
        rank.words = ("ranks", os.environ["PATH"]) if launcher is TORCHRUN else ()
        path = HOSTILE["PATH"] if launcher is TORCHRUN else os.environ["PATH"]
        more = {**inherited, "PATH": path, "LC_ALL": "C", "CLUSTERCTL_ATTEMPT": "4"}
        more = {name: value for name, value in more.items() if name not in launcher}
        assert rank.run(launcher, **more) == (0, "")
        seen = seen_by_program(folder / "work" / "sub dir")
        assert {name: seen.get(name) for name in HOSTILE} == HOSTILE
        assert (seen["RANK"], seen["WORLD_SIZE"], seen["LOCAL_RANK"]) == ("1", "2", "0")
        assert rank.said(1, "exit").split()[::2] == ["0", "4"]
        assert rank.said(1, "err") == ""


def test_a_wrapper_in_a_batch_job_leaves_inherited_variables_alone(
    shells: list[Path | str], tmp_path: Path
) -> None:
    """Batch systems hand on the environment of whoever submits, functions of bash among it."""
    functions = {
        f"BASH_FUNC_{name}%%": "() { echo hijacked >&2; exit 9; }"
        for name in ("cd", "kill", "wait", "date", "mv", "mkdir", "env", "[", "printf")
    }
    for shell in shells:
        folder = tmp_path / str(shell).strip("/").replace("/", "-") / "7"
        rank = Rank(folder, "", {}, program=shlex.join(SEES), host="")
        rank.use(shell)
        plain = {name: HOSTILE[name] for name in PLAIN}
        assert rank.run(SLURM, **plain, **functions) == (0, "")
        seen = seen_by_program(folder / "work" / "sub dir")
        assert {name: seen.get(name) for name in plain} == plain
        assert rank.said(1, "exit").split()[0] == "0"


@pytest.mark.parametrize(
    ("script", "code"),
    [
        *((f"echo bad >&2; exit {code}", code) for code in (1, 3, 126, 255)),
        ("echo bad >&2; kill -SEGV $$", 128 + signal.SIGSEGV),
        ("echo bad >&2; exec /nowhere/python", 127),
    ],
)
def test_exit_code(script: str, code: int, tmp_path: Path) -> None:
    rank = Rank(tmp_path / "7", script, {})
    assert rank.run(OMPI, CLUSTERCTL_ATTEMPT="2")[0] == code
    assert rank.said(1, "exit").split()[::2] == [str(code), "2"]
    assert rank.said(1, "err").startswith("bad\n")
    assert not list((tmp_path / "7" / "out").glob("*.new"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_are_forwarded(number: signal.Signals, tmp_path: Path) -> None:
    """The program gets SIGTERM, may take its time, and its own exit code counts."""
    trap = "trap 'echo saving; sleep 0.2; echo saved; exit 42' TERM"
    script = f"{trap}; echo up; while :; do sleep 0.05; done"
    rank = Rank(tmp_path / "7", script, {})
    process = rank.begin()
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == 42
    assert rank.said(1, "out") == "up\nsaving\nsaved\n"
    assert rank.said(1, "exit").split()[0] == "42"


COUNTS = """
import os, signal, sys, time
told = 0
def note(number, frame):
    global told
    told += 1
    os.write(1, b"told\\n")
signal.signal(signal.SIGTERM, note)
os.write(1, b"up\\n")
while not told:
    time.sleep(0.02)
time.sleep(3)
sys.exit(42)
"""


def test_a_rank_gets_sigterm_once_and_has_its_time(tmp_path: Path) -> None:
    """mpirun signals the group of what it has started, again and again, and kills it within
    seconds; the supervisor and the deadline of the node have reasons of their own."""
    rank = Rank(
        tmp_path / "7", "", {}, program=shlex.join((sys.executable, "-c", COUNTS)), grace=30
    )
    process = rank.begin()
    out = rank.folder / "out"
    os.killpg(process.pid, signal.SIGTERM)
    until(lambda: "told" in rank.said(1, "out"))
    rank.tell("ask", "0")
    os.killpg(process.pid, signal.SIGTERM)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=20)
    until((out / "rank-1.exit").exists)
    assert rank.said(1, "exit").split()[0] == "42"
    assert rank.said(1, "out") == "up\ntold\n"


FAMILY = """
import os, signal, subprocess, sys, time
def note(number, frame):
    print(sys.argv[1], "told", flush=True)
    sys.argv[2] != "leaves" or os._exit(0)
    [child.terminate() for child in children if sys.argv[2] == "passes on"]
if sys.argv[2] != "is deaf":
    signal.signal(signal.SIGTERM, note)
children = [
    subprocess.Popen([sys.executable, "-c", sys.argv[3], "child", "notes"])
    for _ in sys.argv[3:]
]
time.sleep(0.2 if children else 0)
children or print("up", flush=True)
[child.wait() for child in children] or time.sleep(2)
"""


@rows("manner, told", "rank.each_program_of_a_rank_gets_sigterm_once_manner_told")
@pytest.mark.parametrize("shell", [True, False])
def test_each_program_of_a_rank_gets_sigterm_once(
    manner: str, told: list[str], shell: bool, tmp_path: Path
) -> None:
    program = (sys.executable, "-c", FAMILY, "parent", manner, FAMILY)
    if shell:
        program = ("/bin/bash", "-c", 'trap : TERM; "$@"; wait', "sh", *program)
    rank = Rank(tmp_path / "7", "", {}, program=shlex.join(program), grace=30)
    process = rank.begin()
    rank.tell("ask", "9")
    process.communicate(timeout=20)
    assert sorted(rank.said(1, "out").splitlines()) == [*told, "up"]


def test_the_time_of_a_rank_does_not_end_its_next_attempt(tmp_path: Path) -> None:
    """Whoever waits for that time may outlive the wrapper, which has been killed."""
    rank = Rank(tmp_path / "7", "echo up; sleep 4", {})
    process = rank.begin()
    processes(rank.folder, rank.tag, "again", "0")
    process.communicate(timeout=20)
    assert rank.run(OMPI)[0] == 0


def test_a_rank_that_does_not_save_in_its_time_is_killed(tmp_path: Path) -> None:
    """Also where nobody is left to do it: the launcher may be gone."""
    rank = Rank(tmp_path / "7", "trap '' TERM; echo up; while :; do sleep 0.1; done", {}, grace=1)
    process = rank.begin()
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGKILL


STRIKES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

pid_t fork(void) {
    pid_t (*make)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");
    struct sigaction now;
    pid_t child = make();
    if (child == 0 && sigaction(SIGTERM, 0, &now) == 0 && now.sa_handler != SIG_DFL
        && unlink(getenv("ONCE")) == 0) {
        kill(getppid(), SIGTERM);
        usleep(300000);
    }
    return child;
}
"""
"""For LD_PRELOAD: the first process that a shell with a trap starts sends it SIGTERM at once."""


def test_no_signal_is_lost_while_the_program_starts(
    need: Callable[[str], str], tmp_path: Path
) -> None:
    """It may reach the wrapper's copy of itself that is about to become the program."""
    (tmp_path / "strikes.c").write_text(STRIKES)
    (tmp_path / "once").touch()
    library = tmp_path / "strikes.so"
    build = [need("gcc"), "-shared", "-fPIC", "-o", library, tmp_path / "strikes.c", "-ldl"]
    subprocess.run(build, check=True, timeout=60)
    rank = Rank(tmp_path / "7", "exec sleep 60", {})
    code, _ = rank.run(OMPI, LD_PRELOAD=str(library), ONCE=str(tmp_path / "once"))
    assert code == 128 + signal.SIGTERM
    assert not (tmp_path / "once").exists()


def test_in_a_batch_job_a_warned_rank_stays_until_all_have_ended(tmp_path: Path) -> None:
    """The first rank to end would take those with it that are still saving."""
    script = "trap 'kill $!; exit 42' TERM; echo up; sleep 60 & wait"
    rank = Rank(tmp_path / "7", script, {}, host="", grace=60)
    process = rank.begin()
    out = rank.folder / "out"
    own = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *own, rank.said(1, "pid")):  # Slurm: to all processes of a step
        os.kill(int(pid), signal.SIGTERM)
    until((out / "rank-1.exit").exists)
    process.terminate()  # batch systems do that
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    (out / "rank-0.exit").write_text("143 1 1\n")
    process.communicate(timeout=20)
    assert process.returncode == 42


@pytest.mark.parametrize("host", [HOSTNAME, ""], ids=["direct", "batch"])
def test_nodes_that_share_a_disk_do_not_take_each_other_for_restarted(
    host: str, tmp_path: Path
) -> None:
    """Whichever of them has noted its start last."""
    rank = Rank(tmp_path / "7", "exit 0", {}, host=host)
    assert rank.run(OMPI)[0] == 0
    assert (rank.folder / "out" / "boot").exists() == bool(host)


def test_output_is_there_while_the_program_runs_and_an_old_exit_is_not(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "7", "echo now; read -r x; sleep 60", {})
    (rank.folder / "out").mkdir()
    (rank.folder / "out" / "rank-1.exit").write_text("0 1 1\n")
    process = rank.begin("now\n")
    assert not (rank.folder / "out" / "rank-1.exit").exists()
    assert os.readlink(f"/proc/{int(rank.said(1, 'pid'))}/fd/0") == "/dev/null"
    process.terminate()
    process.communicate(timeout=20)


def test_a_second_attempt_adds_to_the_output(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "7", 'echo "$CLUSTERCTL_ATTEMPT"; exit 1', {})
    for attempt in ("1", "2"):
        assert rank.run(OMPI, CLUSTERCTL_ATTEMPT=attempt)[0] == 1
    assert rank.said(1, "out") == "1\n2\n"
    assert rank.said(1, "exit").split()[2] == "2"


@pytest.mark.parametrize(
    ("values", "launcher", "words"),
    [
        ({"host": "another"}, OMPI, ["rank 1", "worker-1", HOSTNAME]),
        ({}, {}, ["no launcher"]),
        ({"working": "nowhere"}, OMPI, ["nowhere"]),
    ],
    ids=["the wrong machine", "no rank", "no folder"],
)
def test_a_rank_that_cannot_start_says_why(
    values: dict[str, Any], launcher: dict[str, str], words: list[str], tmp_path: Path
) -> None:
    code, err = Rank(tmp_path / "7", "echo no", {}, **values).run(launcher)
    assert code == 6
    assert all(word in err for word in words)
    assert not (tmp_path / "7" / "out" / "rank-1.out").exists()


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
    rank = Rank(
        tmp_path / "7",
        'echo "rank $RANK of $WORLD_SIZE"',
        {"MINE": "x"},
        kind="agent",
        starter=agent,
    )
    assert rank.run(OMPI)[0] == 0
    assert rank.said(5, "out") == "rank 5 of 8\n"
    said = (rank.folder / "out" / "agent-1.out").read_text()
    words = f"/bin/sh {rank.folder}/rank.sh ranks {os.environ['PATH']}"
    assert said == f"agent x --node-rank 1 --no-python {words}\n"


def test_a_c_program_shows_its_lines_at_once(need: Callable[[str], str], tmp_path: Path) -> None:
    need("stdbuf")
    script = "{ echo now; sleep 60; } | exec tr a-z A-Z"  # tr buffers by the block
    rank = Rank(tmp_path / "7", script, {}, lines="yes")
    process = rank.start({**OMPI, "CLUSTERCTL_JOB": "templates;"})
    out = rank.folder / "out" / "rank-1.out"
    until(lambda: out.exists() and out.read_text() == "NOW\n")
    processes(rank.folder, "templates;", "end", "0")
    process.communicate(timeout=20)


@pytest.mark.parametrize("end", ["kill -9 $$", "exit 1"])
@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_notes_that_the_kernel_killed_for_memory(
    end: str, killed: int, tmp_path: Path
) -> None:
    """Its own process, or one that it has started; a count from before it began is not its own."""
    own = Path("/proc/self/cgroup").read_text().splitlines()
    group = next((line[3:] for line in own if line.startswith("0::")), "")
    events = tmp_path / "two words" / group.lstrip("/") / "memory.events"
    events.parent.mkdir(parents=True)
    events.write_text("oom 7\noom_kill 3\n")
    count = f"echo 'oom_kill {3 + killed}' >'{events}'"
    values = {"cgroups": tmp_path / "two words"}
    rank = Rank(tmp_path / "7", f"{count}; {end}", {}, **values)
    assert rank.run(OMPI)[0] != 0
    (tmp_path / "7" / ".staged").touch()
    said = processes(tmp_path / "7", "none;", "look")
    assert ("oom 1 1" in said) == bool(killed)


def test_what_came_over_a_node_is_told(tmp_path: Path) -> None:
    """A restart since a rank began there, and a notice since the job was staged."""
    folder = tmp_path / "jobs" / "7"
    rank = Rank(folder, "exit 3", {})
    rank.run(OMPI)
    notice = tmp_path / "ending"
    notice.write_text("spot\n")
    os.utime(notice, (1e9, 1e9))
    (folder / ".staged").touch()
    assert not [line for line in processes(folder, "none;", "look") if "node" in line]
    notice.write_text("spot\n")
    os.utime(notice, (2e9, 2e9))
    (folder / "out" / "boot").write_text("another\n")
    said = processes(folder, "none;", "look")
    assert [line for line in said if "node" in line] == ["node restarted", "node spot"]


def test_a_node_that_restarted_before_the_turn_of_the_job_starts_no_program(
    tmp_path: Path,
) -> None:
    """It has removed the variables, and the code of sh for a missing file is not the program's."""
    folder = tmp_path / "jobs" / "7"
    rank = Rank(folder, "exit 3", {})
    (folder / "env").unlink()
    (folder / ".staged").touch()
    (folder / "out").mkdir()
    (folder / "out" / "boot").write_text("another\n")
    with rank.start(OMPI) as process:
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (6, b"")
    assert b"worker-1 restarted" in err
    assert [path.name for path in (folder / "out").iterdir()] == ["boot"]
    assert "node restarted" in processes(folder, "none;", "look")


def test_a_container_that_started_again_restarted(tmp_path: Path) -> None:
    """Its kernel did not, so it has the same boot id; its first process is another one."""
    folder = tmp_path / "jobs" / "7"
    Rank(folder, "exit 3", {}).run(OMPI)
    (folder / ".staged").touch()
    assert "node restarted" not in processes(folder, "none;", "look")
    boot, process = (folder / "out" / "boot").read_text().splitlines()
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    name, fields = process.rpartition(")")[0], process.rpartition(")")[2].split()
    fields[19] += "1"
    (folder / "out" / "boot").write_text(f"{boot}\n{name}) {' '.join(fields)}\n")
    assert "node restarted" in processes(folder, "none;", "look")


def test_a_point_gets_a_gpu_that_no_other_job_has(tmp_path: Path) -> None:
    """Those of ranks are the first ones. Where each is taken, a point has that of its slot."""
    (tmp_path / "free-port").write_text("echo 1\n")
    gpus = {"gpu_variable": "CUDA_VISIBLE_DEVICES", "gpus": 2, "gpu": tmp_path / "gpu"}
    script = 'echo "$CUDA_VISIBLE_DEVICES" >>"$0.gpu"; cat "$0.go"'

    def begin(name: str, *, point: bool) -> subprocess.Popen[bytes]:
        folder = tmp_path / name
        job = Rank(
            folder, script.replace("$0", str(folder)), {}, "point" if point else "rank", **gpus
        )
        os.mkfifo(f"{folder}.go")
        (folder / "point").touch()
        job.words = (name, "0") if point else ()
        process = job.start({} if point else {**OMPI, "CUDA_VISIBLE_DEVICES": "all"})
        until(lambda: Path(f"{folder}.gpu").exists() and Path(f"{folder}.gpu").read_text())
        return process

    def end(name: str, process: subprocess.Popen[bytes]) -> str:
        Path(f"{tmp_path / name}.go").write_text("")
        process.communicate(timeout=30)
        assert process.returncode == 0
        return Path(f"{tmp_path / name}.gpu").read_text().strip()

    one = begin("1", point=True)
    ranks = begin("ranks", point=False)
    two = begin("2", point=True)
    assert end("1", one) == "1"
    three = begin("3", point=True)
    assert [end("2", two), end("3", three), end("ranks", ranks)] == ["0", "1", "all"]
    assert end("4", begin("4", point=True)) == "1"


def test_what_an_earlier_attempt_has_left_of_a_rank_is_not_its_own(tmp_path: Path) -> None:
    """Whoever starts a further attempt may have removed some of it."""
    rank = Rank(tmp_path / "7", "exit 0", {})
    (rank.folder / "out").mkdir()
    for name in ("term", "term-12", "told", "oom"):
        (rank.folder / "out" / f"rank-1.{name}").write_text("1\n")
    assert rank.run(OMPI)[0] == 0
    left = {path.name for path in (rank.folder / "out").iterdir()}
    assert left == {"boot", "rank-1.err", "rank-1.exit", "rank-1.out", "rank-1.pid"}
