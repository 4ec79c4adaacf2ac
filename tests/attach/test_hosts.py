"""Hosts that people have: what is found out about them, what is said when they cannot be used."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attach.lab import Hosts
from tests.conftest import Need, require_namespaces, require_sshd
from tests.e2e.cli import Cli, wait_for

pytestmark = [pytest.mark.netns, pytest.mark.sshd]

NAMES = ("alpha", "beta", "nopython", "bare")
HIDDEN = {
    "nopython": ["/usr/bin/python3"],
    "bare": ["/usr/bin/flock"],
}


@pytest.fixture(scope="session")
def hosts(need: Need, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    require_namespaces()
    require_sshd()
    need("ss")
    lab = Hosts.start(tmp_path_factory.mktemp("hosts"), NAMES, HIDDEN)
    try:
        yield lab
    finally:
        lab.machines.stop()


@pytest.fixture
def cli(hosts: Hosts, tmp_path: Path) -> Iterator[Cli]:
    """clusterctl for a person who knows all these hosts. No cluster outlives the test."""
    hosts.know(*NAMES)
    made = hosts.cli(tmp_path / "project")
    yield made
    made.end()
    hosts.know(*NAMES)
    for cluster in made.json("list")["clusters"]:
        made("detach", "--force", cluster["cluster"], code=None)
    for name in NAMES:
        assert hosts.traces(name) == []


@pytest.mark.mpi
def test_unlike_hosts_become_a_cluster(hosts: Hosts, cli: Cli) -> None:
    """Their interfaces, homes and host names differ; the first one does both."""
    before = {n: (hosts.user_home(n) / ".ssh/authorized_keys").read_text() for n in NAMES}
    file = hosts.file(cli, "{alpha} slots=2 python={python}", "{beta} python={python} slots=2")
    made = cli.json("attach", "lab", "--hosts", file)
    roles = [(node["address"], node["role"]) for node in made["nodes"]]
    assert roles == [
        (hosts["alpha"].address, "launcher+worker"),
        (hosts["beta"].address, "worker"),
    ]
    done = cli("run", "reduce_all.py")
    assert "ok: 2 ranks on 2 hosts" in done.out
    done = cli("run", "--backend", "gloo", "reduce_all.py", "--no-table")
    assert "ok: 2 ranks on 2 hosts" in done.out
    fails = cli.script("fails.py", "import os, sys; sys.exit(3 * int(os.environ['RANK']))")
    done = cli("run", "--json", fails.name, code=3)
    assert done.documents()[-1]["failure"]["node"] == hosts["beta"].address
    assert cli("ssh", hosts["beta"].address, "--json", "--", "hostname", code=None)
    cli("detach", "lab", "--discard")
    for name in ("alpha", "beta"):
        assert hosts.traces(name) == []
        assert (hosts.user_home(name) / ".ssh/authorized_keys").read_text() == before[name]


@pytest.mark.mpi
@pytest.mark.parametrize("shell", [pytest.param("tcsh", marks=pytest.mark.all), "fish"])
def test_any_login_shell_will_do(hosts: Hosts, cli: Cli, need: Need, shell: str) -> None:
    """Also where mpirun starts its daemons, and nodes ask each other."""
    need(shell)
    file = hosts.file(cli, "{alpha} slots=2", "{beta} slots=2")
    cli("attach", "lab", "--hosts", file, "--user", shell)
    cli.script(
        "who", '#!/bin/sh\necho "$RANK ${SHELL##*/} $(uname -n)" | tee "made-$RANK"\n'
    ).chmod(0o755)
    done = cli("run", "who")
    assert done.of(0) + done.of(1) == [f"0 {shell} alpha", f"1 {shell} beta"]
    points = cli("run", "--array", "1-2", "who")
    assert sorted(points.of(1) + points.of(2)) == [f"0 {shell} alpha", f"0 {shell} beta"]


@pytest.mark.mpi
def test_what_start_files_export_is_the_program_s_alone(hosts: Hosts, cli: Cli, need: Need) -> None:
    """Neither tar nor `cd` of ours heeds it, and what a start file says is no fault of a link. What
    it says of a job is about another one."""
    need("zsh")
    homes = [hosts.user_home(name, "zsh") for name in ("alpha", "beta")]
    before = (homes[0] / ".zshenv").read_text()
    for home in homes:
        (home / ".zshenv").write_text(
            "echo a warning >&2\nexport CDPATH=$HOME TAR_OPTIONS='--exclude=*.txt' SLURM_PROCID=7\n"
        )
        for name in ("work", "kept"):
            (home / name).mkdir(exist_ok=True)
            (home / name / "seen.txt").touch()
    try:
        file = hosts.file(cli, "{alpha} slots=1", "{beta} slots=1")
        cli("attach", "lab", "--hosts", file, "--user", "zsh")
        cli.script("data.txt", "7\n")
        who = '#!/bin/sh\ncat data.txt && echo "$TAR_OPTIONS$SLURM_PROCID" | tee made.txt\n'
        cli.script("who", who).chmod(0o755)
        done = cli("run", "who")
        assert done.of(0) == done.of(1) == ["7", "--exclude=*.txt"]
        assert "cannot reach" not in cli("doctor").out
        cli("fetch")
        assert len(list(cli.folder.glob("job-*/*/made.txt"))) == 2
        cli("cp", f"{hosts['alpha'].address}:kept", "copy")
        assert (cli.folder / "copy" / "seen.txt").exists()
    finally:
        for home in homes:
            (home / ".zshenv").write_text(before)


@pytest.mark.parametrize("line", ["exec true", pytest.param("exit 3", marks=pytest.mark.all)])
def test_a_start_file_that_does_not_come_to_commands(
    hosts: Hosts, cli: Cli, need: Need, line: str
) -> None:
    need("zsh")
    start = hosts.user_home("beta", "zsh") / ".zshenv"
    before = start.read_text()
    start.write_text(f"{line}\n")
    try:
        file = hosts.file(cli, "{beta}")
        done = cli("attach", "lab", "--hosts", file, "--user", "zsh", code=5)
    finally:
        start.write_text(before)
    assert "login shell" in done.err
    assert line.split()[0] in done.err


@pytest.mark.mpi
def test_hosts_may_share_a_home(hosts: Hosts, cli: Cli) -> None:
    """As on NFS: the same folder, the same authorized_keys, seen by both and written at once."""
    before = (hosts.user_home("alpha", "student") / ".ssh/authorized_keys").read_text()
    file = hosts.file(cli, "{alpha} slots=2", "{beta} slots=2")
    made = cli.json("attach", "lab", "--hosts", file, "--user", "student")
    assert len({node["root"] for node in made["nodes"]}) == 2
    text = '#!/bin/sh\necho "rank $RANK on $(uname -n)"\necho "$RANK" >"made-$RANK"\n'
    cli.script("who", text).chmod(0o755)
    done = cli("run", "--ranks", "4", "who")
    said = [done.of(rank) for rank in range(4)]
    names = ["alpha", "alpha", "beta", "beta"]
    assert said == [[f"rank {rank} on {name}"] for rank, name in enumerate(names)]
    cli("fetch", max(cli.jobs()), "--to", "brought")
    brought = [path.name for path in (cli.folder / "brought").rglob("made-*")]
    assert sorted(brought) == ["made-0", "made-1", "made-2", "made-3"]
    cli("attach", "lab", "--hosts", file, "--user", "student")
    mine = [line for line in hosts.traces("alpha", "student") if line.startswith("restrict")]
    assert len(mine) == 1
    cli("detach", "lab")
    assert hosts.traces("alpha", "student") == []
    after = (hosts.user_home("alpha", "student") / ".ssh/authorized_keys").read_text()
    assert after.rstrip("\n") == before.rstrip("\n")
    assert [path.name for path in hosts.user_home("alpha", "student").glob(".ssh/*")] == [
        "authorized_keys"
    ]


@pytest.mark.mpi
def test_a_lost_host_is_no_bug_of_ours(hosts: Hosts, cli: Cli) -> None:
    """Nor does it look like an exit code of the program, which had none."""
    cli("attach", "lab", "--hosts", hosts.file(cli, "{alpha}", "{beta}"))
    cli.script("long", "#!/bin/sh\necho started; exec sleep 303\n").chmod(0o755)
    running = cli.start("run", "long")
    running.until("started", times=2)
    hosts["beta"].run("pkill", "-KILL", "-x", "orted|prted")
    done = running.wait()
    assert done.code == 6, done
    assert "lost its daemon" in done.err or "no rank had failed" in done.err
    assert "status --live" in done.err


def test_attaching_again_repairs(hosts: Hosts, cli: Cli) -> None:
    file = hosts.file(cli, "{alpha}", "{beta}")
    first = cli.json("attach", "lab", "--hosts", file)
    (hosts.user_home("beta") / ".ssh/authorized_keys").write_text("")
    again = "attach", "lab", "--hosts", file
    refused = cli(*again, code=4)
    assert hosts["beta"].address in refused.err
    public = (hosts.home / ".ssh" / "id_ed25519.pub").read_text()
    (hosts.user_home("beta") / ".ssh/authorized_keys").write_text(public)
    assert cli.json(*again)["id"] == first["id"]
    assert len(hosts.traces("alpha")) == 2


def test_a_host_that_left_the_file_is_not_forgotten(hosts: Hosts, cli: Cli) -> None:
    cli("attach", "lab", "--hosts", hosts.file(cli, "{alpha}", "{beta}"))
    done = cli("attach", "lab", "--hosts", hosts.file(cli, "{alpha}"), code=7)
    assert hosts["beta"].address in done.err


def test_an_unknown_host_key_is_never_taken(hosts: Hosts, cli: Cli) -> None:
    hosts.know("alpha")
    done = cli("attach", "lab", "--hosts", hosts.file(cli, "{alpha}", "{beta}"), code=4)
    assert hosts["beta"].address in done.err
    assert re.search(r"host key SHA256:\S+ is not known", done.err)
    assert "ssh-keyscan" in done.err
    assert cli.json("list")["clusters"] == []
    assert hosts.traces("alpha") == []


def test_a_host_without_python_is_refused(hosts: Hosts, cli: Cli) -> None:
    file = hosts.file(cli, "{alpha}", "{nopython}")
    done = cli("attach", "lab", "--hosts", file, code=5)
    said = "no working Python 3.6 or newer was found (sudo apt-get install python3"
    assert f"{hosts['nopython'].address}: {said}" in done.err
    assert done.err.count("no working Python") == 1
    conda = hosts.user_home("nopython") / "miniconda3" / "bin"
    conda.mkdir(parents=True)
    (conda / "python3").symlink_to(sys.executable)
    try:
        cli("attach", "lab", "--hosts", hosts.file(cli, "{nopython}"))
        cli.script("who.py", "print('here')\n")
        assert cli("run", "who.py").of(0) == ["here"]
    finally:
        shutil.rmtree(conda.parent)


def test_a_python_of_the_file_is_that_one(hosts: Hosts, cli: Cli) -> None:
    """Not another that happens to be on PATH, or to have more packages."""
    done = cli("attach", "lab", "--hosts", hosts.file(cli, "{alpha} python=/nope"), code=5)
    assert "python=/nope, which is not a Python on that host" in done.err
    assert "--bootstrap" not in done.err  # it would not help
    bare = cli.script("bare-python", f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    done = cli("attach", "lab", "--hosts", hosts.file(cli, f"{{alpha}} python={bare}"))
    assert re.search(
        r"lacks torch, mpi4py, numpy: it cannot run the bundled programs .* python=/", done.err
    )
    assert "clusterctl run -c lab -- hostname\n" in done.err
    # One that does not pass later stays as it was.
    cli("attach", "lab", "--hosts", hosts.file(cli, "{alpha} python=/nope"), code=5)
    cli.script("who.py", "print('here')\n")
    assert cli("run", "--once", "who.py").of(0) == ["here"]


@pytest.mark.mpi
def test_different_mpis_are_said_at_once(hosts: Hosts, cli: Cli) -> None:
    other = cli.folder / "bin"
    other.mkdir()
    for name, text in (
        ("mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 3.1.9'\n"),
        ("python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n'),
    ):
        (other / name).write_text(text)
        (other / name).chmod(0o755)
    file = hosts.file(cli, "{alpha}", f"{{beta}} python={other}/python3")
    done = cli("attach", "lab", "--hosts", file)
    assert "the nodes have different MPI versions" in done.err
    assert "openmpi 3.1.9" in done.err


def test_a_folder_in_which_no_program_can_start_is_refused(hosts: Hosts, cli: Cli) -> None:
    home, folder = hosts["alpha"], "/srv/root-of-alpha/noexec"
    home.run("mkdir", "-p", folder)
    home.run("mount", "-t", "tmpfs", "-o", "noexec,size=8m", "tmpfs", folder)
    try:
        file = hosts.file(cli, "{alpha}", "{beta}")
        done = cli("attach", "lab", "--hosts", file, "--workdir", "noexec", code=5)
    finally:
        home.run("umount", folder)
        home.run("rmdir", folder)
    assert f"{home.address}: clusterctl's folder lies on a file system that is mounted noexec" in (
        done.err
    )
    assert "--workdir" in done.err
    assert cli.json("list")["clusters"] == []


def test_a_host_where_people_cannot_write_to_dev_null_is_refused(hosts: Hosts, cli: Cli) -> None:
    """All its commands are there, yet none could be found."""
    host = hosts["alpha"]
    host.run("mknod", "-m", "644", "/dev/shm/null", "c", "1", "3")
    host.run("mount", "--bind", "/dev/shm/null", "/dev/null")
    try:
        done = cli("attach", "lab", "--hosts", hosts.file(cli, "student@{alpha}"), code=5)
    finally:
        host.run("umount", "/dev/null")
        host.run("rm", "/dev/shm/null")
    assert f"{host.address}: cannot write to /dev/null (Permission denied)" in done.err
    assert "lacks" not in done.err


def test_detach_removes_the_folders_that_attach_made(hosts: Hosts, cli: Cli) -> None:
    """And no other, were it empty; nor one that another cluster uses too."""
    home = hosts.user_home("alpha")
    (home / "there").mkdir()
    file = hosts.file(cli, "{alpha}")
    for name in ("one", "two"):
        cli("attach", name, "--hosts", file, "--workdir", "there/new/deep")
    cli("detach", "one")
    [left] = (home / "there" / "new" / "deep").glob("[a-z]*")
    assert left.name.startswith("two-")
    cli("detach", "two")
    assert list((home / "there").iterdir()) == []
    cli("attach", "lab", "--hosts", file, "--workdir", "there")
    cli("detach", "lab")
    assert list((home / "there").iterdir()) == []


def test_detach_names_who_does_not_answer(hosts: Hosts, cli: Cli) -> None:
    cli("attach", "lab", "--hosts", hosts.file(cli, "{alpha}", "{beta}"))
    record = hosts.home / "state" / "clusters" / "lab" / "cluster.json"
    text = record.read_text()
    record.write_text(text.replace(hosts["beta"].address, "10.0.0.256"))
    done = cli("detach", "lab", code=9)
    assert "clusterctl's folder and key could not be removed: 10.0.0.256" in done.err
    assert hosts.traces("alpha") == []
    record.write_text(text)
    cli("detach", "lab")
    assert hosts.traces("beta") == []


@pytest.mark.mpi
def test_detach_deletes_no_outputs_unasked(hosts: Hosts, cli: Cli) -> None:
    """Without a terminal there is nobody to ask."""
    cli("attach", "lab", "--hosts", hosts.file(cli, "{alpha}", "{beta}"))
    cli.script("long", "#!/bin/sh\necho started; exec sleep 302\n").chmod(0o755)
    cli.script("makes", "#!/bin/sh\necho 1 >made\n").chmod(0o755)
    cli("run", "makes")
    number = cli.detach("long")
    cli.until_state(number, "running")
    said = cli("detach", "lab", "--yes", code=2).err
    assert "unfetched" in said
    assert "--fetch" in said
    assert cli.job(number)["state"] == "running"
    said = cli("detach", "lab", "--fetch").err
    assert f"ending job {number}" in said
    assert list(cli.folder.glob("job-*/*/made"))
    assert cli.job(number)["state"] == "cancelled"
    assert hosts.traces("alpha") == hosts.traces("beta") == []


@pytest.mark.mpi
def test_detach_by_force_leaves_no_job_behind(hosts: Hosts, cli: Cli) -> None:
    cli("attach", "lab", "--hosts", hosts.file(cli, "{alpha}", "{beta}"))
    cli.script("long", "#!/bin/sh\necho started; exec sleep 304\n").chmod(0o755)
    number = cli.detach("long")
    wait_for(lambda: cli("logs", number).out.count("started") == 2, 20, "no ranks")
    assert cli.json("detach", "--force", "lab")["jobs_cancelled"] == [number]
    for name in ("alpha", "beta"):
        going = hosts[name].run("ps", "ax")
        assert not re.search("sleep 304|supervise|mpirun|orted|prted", going), going


def test_bootstrap_installs_what_is_missing(hosts: Hosts, cli: Cli) -> None:
    """The host's apt-get is one of ours: it brings flock back and notes what it was asked."""
    bare = hosts["bare"]
    log = bare.folder / "apt.log"
    fake = bare.folder / "apt-get"
    fake.write_text(
        f'#!/bin/sh\necho "$@" >>{log}\ncase "$*" in *util-linux*) umount /usr/bin/flock; esac\n'
    )
    fake.chmod(0o755)
    bare.run("mount", "--bind", str(fake), "/usr/bin/apt-get")
    file = hosts.file(cli, "{bare}")
    assert "--bootstrap" in cli("attach", "lab", "--hosts", file, code=5).err
    assert not log.exists()
    cli("attach", "lab", "--hosts", file, "--bootstrap")
    [line] = log.read_text().splitlines()
    assert "install" in line
    assert "util-linux" in line


@pytest.mark.mpi
def test_a_jump_host_of_ssh_config_is_honoured(hosts: Hosts, cli: Cli) -> None:
    """From here `inside` has no address but the one that only alpha's way leads to."""
    beta, alpha = hosts["beta"].address, hosts["alpha"].address
    config = hosts.home / ".ssh" / "config"
    config.write_text(
        f"Host inside\n  HostName {beta}\n  ProxyJump gate\n  User root\nHost gate\n"
        f"  HostName {alpha}\n  User root\n"
    )
    try:
        cli("attach", "lab", "--hosts", cli.script("hosts", "inside\n"))
        cli.script("who", '#!/bin/sh\necho "$(uname -n)"\n').chmod(0o755)
        assert cli("run", "who").of(0) == ["beta"]
        log = (hosts["beta"].folder / "sshd.log").read_text()
        assert f"publickey for root from {alpha}" in log
        cli("detach", "lab")
    finally:
        config.unlink()
