"""The script that makes a node ready: what it leaves there, and what it never shows."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.core import keys
from clusterctl.core.model import Accelerator, Node, NodeResult
from clusterctl.errors import BootstrapError, NodeUnreachable
from clusterctl.machines import bootstrap, facts
from clusterctl.machines.attached import BatchSite, SgeProvider, SlurmProvider, render_shut_out
from clusterctl.transport.pool import Pool
from tests.unit.making import cluster, node
from tests.unit.scripts import write_program
from tests.unit.tables import rows

WEIRD = ["plain", "two words", "it's", 'a "b" $HOME `id` \\', "-dash; exit 3", "line\nbreak", "ü"]
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI"


@pytest.fixture(scope="module")
def key() -> keys.KeyPair:
    return keys.generate()


def mesh(key: keys.KeyPair, *nodes: Node) -> dict[str, str]:
    host_keys = {item.name: f"{HOST_KEY}{item.name}" for item in nodes}
    return bootstrap.list_mesh_files(key, nodes, host_keys)


def run(script: bytes, path: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["/bin/sh", "-s"],
        input=script,
        capture_output=True,
        timeout=60,
        env={**os.environ, "PATH": f"{path}{os.environ['PATH']}", **environment},
    )


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (
            stat.S_IMODE(path.stat().st_mode),
            b"" if path.is_dir() else path.read_bytes(),
        )
        for path in sorted(root.rglob("*"))
    }


@pytest.mark.parametrize("name", WEIRD, ids=ascii)
def test_a_node_gets_what_it_needs_under_any_root(
    name: str, key: keys.KeyPair, tmp_path: Path
) -> None:
    root = tmp_path / name / "lab"
    launcher, worker = node("launcher", "10.0.0.10"), node("worker-1", root=str(root))
    script = bootstrap.render_script(worker, mesh(key, launcher, worker), pythons=[])
    done = run(script)
    assert done.returncode == 0, done.stderr
    left = tree(root)
    assert left["ssh/mesh"] == (0o600, key.private.encode())
    assert left["ssh/mesh.pub"][1].decode() == key.public + "\n"
    known = left["ssh/known_hosts"][1].decode().splitlines()
    assert known == [f"{item} {HOST_KEY}{item}" for item in ("launcher", "worker-1")]
    assert all(mode & 0o077 == 0 for mode, _ in left.values())
    assert not [path for path in left if path.endswith(".new")]
    for path in (root / "bin").iterdir():
        subprocess.run(["/bin/sh", "-n", path], check=True)
    # What another run would do is nothing.
    assert run(script).returncode == 0
    assert tree(root) == left
    # Nothing was written elsewhere.
    assert [path.name for path in (tmp_path / name).iterdir()] == ["lab"]
    found = bootstrap.read_bootstrap(
        worker, NodeResult(node="worker-1", exit_code=0, stdout=done.stdout)
    )
    assert found.facts.hostname == os.uname().nodename


def test_the_private_key_is_never_in_an_argument(key: keys.KeyPair, tmp_path: Path) -> None:
    """Every program that the script can call is replaced by one that notes how it was called."""
    folder, log = tmp_path / "bin", tmp_path / "log"
    for name in ("cat", "mv", "mkdir", "chmod", "rm", "ln", "tee", "install", "env", "dd"):
        said = f'printf "%s\\n" {name} "$@" >>{log}\n/usr/bin/env >>{log}'
        write_program(folder / name, f'{said}\nexec {shutil.which(name)} "$@"')
    worker = node("worker-1", root=str(tmp_path / "root"))
    done = run(bootstrap.render_script(worker, mesh(key, worker), pythons=[]), path=f"{folder}:")
    assert done.returncode == 0
    seen = log.read_text()
    assert "mkdir" in seen
    body = key.private.splitlines()[1:-1]
    for text in (seen, done.stdout.decode(), done.stderr.decode()):
        assert not any(line in text for line in body)
    holders = [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and body[1].encode() in path.read_bytes()
    ]
    assert holders == [tmp_path / "root" / "ssh" / "mesh"]


@pytest.mark.parametrize("here", [False, True], ids=["another machine", "this machine"])
def test_an_ssh_that_refuses_our_order_of_algorithms_keeps_its_own(
    here: bool, key: keys.KeyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSH 8.0 and older, and those in FIPS mode."""
    ssh = write_program(tmp_path / "bin" / "ssh", "! grep -q '\\^' \"$3\"")
    worker = node("worker-1", root=str(tmp_path / "root"))
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    written = []
    for mode in (0o755, 0o644):
        ssh.chmod(mode)
        files = mesh(key, worker)
        files = bootstrap.fit_config(files) if here else files
        pythons = [sys.executable] * here
        script = bootstrap.render_script(worker, files, pythons=pythons, here=here)
        assert run(script).returncode == 0
        written.append((tmp_path / "root/ssh/config").read_text().splitlines())
    [without, whole] = written
    assert without == [line for line in whole if "^" not in line] != whole


def touch(path: Path, name: str = "touch", extra: str = ":") -> bootstrap.Step:
    """A step that makes a file."""
    return bootstrap.Step(name, "a file", f"[ -e '{path}' ]", f"echo applied >>'{path}'; {extra}")


def test_steps_run_once(key: keys.KeyPair, tmp_path: Path) -> None:
    worker = node("worker-1", root=str(tmp_path / "root"))
    step = touch(made := tmp_path / "made")
    script = bootstrap.render_script(worker, mesh(key, worker), pythons=[], steps=[step])
    assert run(script).returncode == run(script).returncode == 0
    assert made.read_text() == "applied\n"


def received_here() -> int:
    """Bytes, as the kernel of this machine counts them."""
    rows = (line.split() for line in Path("/proc/net/dev").read_text().splitlines()[2:])
    inner = ("lo:", "docker", "veth", "br-")
    return sum(int(row[1]) for row in rows if not row[0].startswith(inner))


def test_who_watches_is_told_how_much_a_node_receives(key: keys.KeyPair, tmp_path: Path) -> None:
    """During the steps, and never among the answers to the questions."""
    worker = node("worker-1", root=str(tmp_path / "root"))
    steps = [touch(tmp_path / "made", extra="sleep 1.5")]
    before = received_here()
    script = bootstrap.render_script(
        worker, mesh(key, worker), pythons=[], steps=steps, metered=True
    )
    said = run(script).stdout.decode()
    after = received_here()
    text, marker, answers = said.partition("@@fact")
    told = [line.split() for line in text.splitlines() if line.startswith("@@received")]
    assert len(told) >= 2
    assert all(before <= int(count) <= after for _, count in told)
    assert [line for line in text.splitlines() if line.split() not in told] == [
        "@@step touch a file"
    ]
    assert "@@received" not in answers
    assert facts.parse_facts(marker + answers).hostname


def test_a_meter_ends_with_a_step_that_fails(key: keys.KeyPair, tmp_path: Path) -> None:
    """It would keep the connection open: `run` here waits for whoever holds the output."""
    worker = node("worker-1", root=str(tmp_path / "root"))
    step = touch(tmp_path / "made", "it's broken", "echo why not >&2; exit 9")
    script = bootstrap.render_script(
        worker, mesh(key, worker), pythons=[], steps=[step], metered=True
    )
    done = run(script)
    assert done.returncode == 1
    result = NodeResult(node="worker-1", exit_code=1, stderr=done.stderr)
    assert bootstrap.find_problem(result) == "step it's broken failed: why not"


def test_hosts_with_one_home_let_the_key_in_once(key: keys.KeyPair, tmp_path: Path) -> None:
    """All at once, for two clusters; what else is in the file stays, and how it is protected."""
    file = tmp_path / ".ssh" / "authorized_keys"
    file.parent.mkdir()
    before = b"# mine \xff\nssh-ed25519 AAAA me"  # people's last lines may lack their end
    file.write_bytes(before)
    file.chmod(0o644)
    steps = [bootstrap.let_in(key.public, f"clusterctl:{name}") for name in ("one", "two")]
    scripts = [step.apply for step in steps for _ in range(6)]

    def all_at_once(texts: list[str]) -> None:
        going = [
            subprocess.Popen(["/bin/sh", "-c", text], env={**os.environ, "HOME": str(tmp_path)})
            for text in texts
        ]
        assert [program.wait(60) for program in going] == [0] * len(texts)

    all_at_once(scripts)
    *ours, mine, me = file.read_bytes().split(b"\n")
    assert [mine, me] == before.split(b"\n")
    assert sorted(line.split()[-1] for line in ours) == [b"clusterctl:one", b"clusterctl:two"]
    assert file.stat().st_mode & 0o777 == 0o644
    all_at_once([render_shut_out("clusterctl:one")] * 6)
    assert [line.split()[-1] for line in file.read_bytes().split(b"\n")[:-2]] == [b"clusterctl:two"]
    all_at_once([render_shut_out("clusterctl:two")] * 6)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def answers(*tools: str, more: str = "") -> NodeResult:
    text = "@@fact tools\n" + "".join(f"/usr/bin/{tool}\n" for tool in tools) + more
    return NodeResult(node="worker-1", exit_code=0, stdout=f"{text}@@fact end\n".encode())


@pytest.mark.parametrize("site", [SlurmProvider, SgeProvider])
def test_every_command_that_something_requires_is_looked_for(site: type[BatchSite]) -> None:
    assert set(bootstrap.REQUIRED) == set(facts.TOOLS)
    asked = facts.list_questions((), tools=site.required)["tools"].replace(";", " ").split()
    assert {*bootstrap.REQUIRED, *site.required} <= set(asked)


def test_what_a_node_lacks_is_named_with_its_package() -> None:
    assert bootstrap.find_problem(answers(*bootstrap.REQUIRED)) == ""
    said = bootstrap.find_problem(answers("flock", "setsid", "stat", "awk"))
    assert all(word in said for word in ("ssh", "tar", "openssh-client"))
    assert "flock" not in said


def test_a_node_that_did_not_answer() -> None:
    assert "timed out" in bootstrap.find_problem(NodeResult(node="worker-1", error="timed out"))
    assert "exit code 7" in bootstrap.find_problem(NodeResult(node="worker-1", exit_code=7))


@rows("said, why", "bootstrap.a_reason_is_what_tar_met_and_not_that_it_failed")
def test_a_reason_is_what_tar_met_and_not_that_it_failed(said: str, why: str) -> None:
    result = NodeResult(node="worker-1", exit_code=2, stderr=said.encode())
    assert bootstrap.find_problem(result).startswith(why)


def test_gpus_become_slots() -> None:
    more = "@@fact nvidia\nTesla T4, 550.127.05\nTesla T4, 550.127.05\n"
    found = bootstrap.read_bootstrap(node(slots=8), answers(*bootstrap.REQUIRED, more=more))
    assert (found.slots, found.accelerator) == (2, Accelerator.NVIDIA)
    assert found.mpi_prefix == found.python == ""
    plain = bootstrap.read_bootstrap(node(slots=8), answers(*bootstrap.REQUIRED))
    assert (plain.slots, plain.accelerator) == (8, Accelerator.NONE)


def test_a_launcher_that_does_not_answer_is_no_mesh() -> None:
    down = {"address": "127.0.0.1", "private_address": "127.0.0.1", "ssh_port": 1}
    where = cluster(node("launcher", **down), node("worker-1", **down))
    with Pool(where.nodes, identity=None, known_hosts=Path(os.devnull)) as pool:
        with pytest.raises(NodeUnreachable, match="some nodes cannot reach each other"):
            bootstrap.check_mesh(pool, where, what="nodes", hint="")
        with pytest.raises(BootstrapError, match="cannot use the shared folder /shared"):
            bootstrap.check_shared(pool, replace(where, shared="/shared"))


FAKE_SSH = """\
#!/bin/sh
# ssh -F config HOST COMMAND: the host's own commands run here, unless it is in the file `dead`.
shift 2
host=$1
shift
printf '%s\\n' "$host" >>"$HOSTS"
if grep -qx "$host" "$DEAD" 2>/dev/null; then
    echo "ssh: connect to host $host port 22: Connection refused" >&2
    exit 255
fi
printf "$SAYS"
printf "$COMPLAINS" >&2
exec /bin/sh -c "$*"
"""


@pytest.fixture
def lab(
    key: keys.KeyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[list[str], list[str]]]:
    """Bootstraps a launcher and workers in folders with weird names, and checks their mesh, with an
    ssh that never leaves this machine: (edges that were used, failures)."""

    def check(
        workers: int, dead: list[str], says: str = "", complains: str = ""
    ) -> tuple[list[str], list[str]]:
        names = ["launcher", *(f"worker-{n + 1}" for n in range(workers))]
        nodes = [
            node(name, "", root=str(tmp_path / 'it\'s a "$HOME"' / name), private_address=name)
            for name in names
        ]
        for item in nodes:
            assert run(bootstrap.render_script(item, mesh(key, *nodes), pythons=[])).returncode == 0
        folder = tmp_path / "bin"
        write_program(folder / "ssh", FAKE_SSH)
        (tmp_path / "dead").write_text("".join(f"{name}\n" for name in dead))
        (tmp_path / "hosts").touch()
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        for name, value in {
            "HOSTS": str(tmp_path / "hosts"),
            "DEAD": str(tmp_path / "dead"),
            "SAYS": says,
            "COMPLAINS": complains,
        }.items():
            monkeypatch.setenv(name, value)
        failures: list[str] = []
        with Pool(nodes, identity=None, known_hosts=Path(os.devnull)) as pool:
            try:
                bootstrap.check_mesh(pool, cluster(*nodes), what="nodes", hint="")
            except NodeUnreachable as error:
                failures = error.message.partition("each other: ")[2].split("; ")
        return sorted((tmp_path / "hosts").read_text().split()), sorted(failures)

    return check


@rows("workers, dead, broken", "bootstrap.mesh_is_a_star_and_a_ring")
def test_mesh_is_a_star_and_a_ring(
    workers: int,
    dead: list[str],
    broken: list[str],
    lab: Callable[..., tuple[list[str], list[str]]],
) -> None:
    used, failures = lab(workers, dead)
    assert [line.partition(":")[0] for line in failures] == broken
    assert all("Connection refused" in line for line in failures)
    if not dead:  # to each worker, and around: 2 W log-ins, not W²
        names = [f"worker-{number}" for number in range(1, workers + 1)]
        assert used == sorted([*names, *names[1:], *["launcher"] * bool(names)])


@pytest.mark.parametrize("dead", [[], ["worker-2"]], ids=["well", "broken"])
@rows(
    "says, complains",
    "bootstrap.what_a_shell_or_sshd_prints_is_no_answer_of_the_mesh_says_complains",
)
def test_what_a_shell_or_sshd_prints_is_no_answer_of_the_mesh(
    says: str,
    complains: str,
    dead: list[str],
    lab: Callable[..., tuple[list[str], list[str]]],
) -> None:
    _, failures = lab(2, dead, says, complains)
    refused = "ssh: connect to host worker-2 port 22: Connection refused"
    broken = [f"{name} → worker-2: {refused}" for name in ("launcher", "worker-1")]
    assert failures == (broken if dead else [])


def test_the_tag_travels_with_the_agent(key: keys.KeyPair, tmp_path: Path) -> None:
    """mpirun's daemons on other nodes are found by the tag, although ssh passes no environment."""
    worker = node("worker-1", root=str(tmp_path / "root"))
    assert run(bootstrap.render_script(worker, mesh(key, worker), pythons=[])).returncode == 0
    folder = tmp_path / "bin"
    write_program(folder / "ssh", 'unset CLUSTERCTL_JOB\nshift 3\nexec /bin/sh -c "$*"')
    agent = tmp_path / "root" / "bin" / "clusterctl-ssh"
    for tag in ("lab-1a2b/7;", ""):
        done = subprocess.run(
            [agent, "worker-1", "printenv", "CLUSTERCTL_JOB", ";", "echo", "'a  b'"],
            capture_output=True,
            text=True,
            env={"PATH": f"{folder}:/usr/bin:/bin", "CLUSTERCTL_JOB": tag},
        )
        assert done.stdout == (f"{tag}\n" if tag else "") + "a  b\n"


def test_a_worker_that_does_not_see_the_shared_folder_is_named(tmp_path: Path) -> None:
    """Or sees another one at its path."""
    (folder := tmp_path / "a shared folder").mkdir()
    (tmp_path / "another").mkdir()
    write_program(
        tmp_path / "root" / "bin" / "clusterctl-ssh",
        "echo 'Welcome to a node'\n"
        'case $1 in worker-2) set -- "$1" "$(echo "$2" | sed "s/a shared folder/another/g")" ;;\n'
        "worker-3) echo 'Stale file handle' >&2 && exit 1 ;; esac\n"
        'exec sh -c "$2"',
    )
    names = ("launcher", "worker-1", "worker-2", "worker-3")
    where = cluster(*(node(name, "", root=str(tmp_path / "root")) for name in names))

    def check(shared: Path) -> str:
        nowhere = Path(os.devnull)
        with (
            Pool(where.nodes, identity=None, known_hosts=nowhere) as pool,
            pytest.raises(BootstrapError) as caught,
        ):
            bootstrap.check_shared(pool, replace(where, shared=str(shared)))
        return caught.value.message.partition(f"the shared folder {shared}: ")[2]

    two, three = check(folder).split("; ")
    assert two.startswith("launcher → worker-2: ")
    assert three == "launcher → worker-3: Stale file handle"
    assert list(folder.iterdir()) == [], "nothing of the check stays"
    assert check(tmp_path / "none").startswith("launcher: ")
