"""The script of a batch job, run here: the queue has given it this machine, and an mpirun of ours
says how its ranks ended."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from ipaddress import IPv4Interface
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.agent import granted, messages
from clusterctl.batch.system import load_system
from clusterctl.core.job import Job, JobState
from clusterctl.launch import launcher
from clusterctl.launch.mpirun import AGENT
from tests.unit.making import cluster, job, node, request, spec
from tests.unit.scripts import write_agent, write_program
from tests.unit.tables import rows
from tests.unit.test_batch import batch_job, site

MPIRUN = """\
#!/bin/sh
[ "$1" != --version ] || { echo 'mpirun (Open MPI) 4.1.4'; exit; }
mkdir -p out
set -- $ENDINGS
for code; do
    case $code in told) code=143 && echo 1 >"out/rank-$((rank)).told" ;; esac
    : >"out/rank-$((rank)).pid"
    printf '%s %s.5 1\\n' "$code" "$((100 + rank))" >"out/rank-$((rank)).exit"
    rank=$((rank + 1))
done
exit "$CODE"
"""


Ended = Callable[..., Job]


@pytest.fixture
def ended(tmp_path: Path) -> Ended:
    """Runs a job whose launcher ends with `code` and its ranks with `endings`; the job then."""

    def run(code: int, *endings: int | str) -> Job:
        login = node("login", "10.0.0.9", root=str(tmp_path), mpi_prefix=str(tmp_path))
        nodes = (replace(site("sge").nodes[0], root=login.root),)
        where = replace(site("sge"), nodes=nodes, id=str(tmp_path))
        made = batch_job("sge", native={"pe": f"mpi {len(endings)}"})
        plan = launcher.plan_launch(
            "batch", replace(request(), spec=made.spec, cluster=where, placement=made.placement)
        )
        plan = replace(plan, path=str(tmp_path / "bin"))
        folder = tmp_path / "jobs" / "7"
        folder.mkdir(parents=True)
        for name, text in load_system("sge").script(made, where, plan).items():
            (folder / name).write_text(text)
        (folder / "tag").write_text(f"CLUSTERCTL_JOB={tmp_path}/7;")
        write_agent(folder)
        write_program(tmp_path / "bin" / "free-port", "echo 29000")
        write_program(tmp_path / "bin" / "mpirun", MPIRUN)
        (tmp_path / "hosts").write_text(f"{os.uname().nodename} {len(endings)} all.q x\n")
        done = subprocess.run(
            ["/bin/sh", folder / "job.sh"],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "PE_HOSTFILE": str(tmp_path / "hosts"),
                "ENDINGS": " ".join(map(str, endings)),
                "CODE": str(code),
            },
            timeout=60,
            check=False,
            capture_output=True,
        )
        assert done.returncode not in (0, 99, 100)
        text = f"@@job 7 99\n{(folder / 'state').read_text()}"
        return load_system("sge").parse_status(replace(job(what=spec()), scheduler="sge"), text)

    return run


@rows("code, endings, failure", "batch_script.the_rank_that_failed_by_itself_is_named")
def test_the_rank_that_failed_by_itself_is_named(
    ended: Ended, code: int, endings: list[int | str], failure: list[int] | None
) -> None:
    found = ended(code, *endings)
    assert found.state is JobState.FAILED
    named = found.failure and [found.failure.rank, found.failure.exit_code]
    assert (named, found.program_exit_code) == (failure, failure[1] if failure else None)
    assert found.failure is None or found.failure.node == os.uname().nodename


TOOLS = {
    "mpirun": '#!/bin/sh\n[ "$1" != --version ] || { echo "mpirun (Open MPI) $MPI"; exit; }\n'
    'printf "%s\\n" "${MALLOC_MMAP_THRESHOLD_-}" "$@" >"$SAID"; cat hostfile >"$SAID.hosts"\n',
    "ip": '#!/bin/sh\necho "2: eth0 inet 10.0.0.11/24 brd 10.0.0.255 scope global eth0"\n'
    'case "$*:$SECOND" in *dev*:yes) echo "2: eth0 inet 10.9.0.1/16 scope global eth0" ;; esac\n',
}


def called(
    tmp_path: Path,
    mpi: str,
    *,
    hosts: Sequence[int] = (2,),
    ranks: int = 0,
    fabric: str = "/nowhere",
    second: str = "",
) -> tuple[str, dict[str, str]]:
    """How a job's script calls that mpirun: what glibc is told, and Open MPI's parameters and
    the variables that ranks get. `hosts`: the slots of each that Grid Engine has given."""
    for name, text in TOOLS.items():
        write_program(tmp_path / "bin" / name, text)
    lines = (f"10.0.0.{11 + at} {slots} all.q x\n" for at, slots in enumerate(hosts))
    (tmp_path / "hosts").write_text("".join(lines))
    made = batch_job("sge", native={"pe": f"mpi {sum(hosts)}"}, ranks=ranks)
    plan = launcher.plan_launch(
        "batch", replace(request(), spec=made.spec, cluster=site("sge"), placement=made.placement)
    )
    folder = tmp_path / "jobs" / "7"
    folder.mkdir(parents=True)
    env = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PE_HOSTFILE": str(tmp_path / "hosts"),
        "SAID": str(tmp_path / "said"),
        "MPI": mpi,
        "SECOND": second,
    }
    files = load_system("sge").script(made, site("sge"), replace(plan, path=""))
    said = json.loads(files["plan.json"])
    said["start"]["fast"] = [fabric]
    whole = messages.read(messages.BatchPlan, said)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        found = granted.find_nodes(str(folder), whole)
        hosts = {holder.name: holder.ranks for holder in found}
        words, environ = granted.choose_starter(str(folder), whole.start, hosts)
    subprocess.run(words, cwd=folder, env=environ, check=True, timeout=30)
    apart, *words = (tmp_path / "said").read_text().splitlines()
    return apart, parameters(words)


@rows("hosts, ranks, placed", "batch_script.fewer_ranks_than_slots_are_spread_as_the_slots_are")
def test_fewer_ranks_than_slots_are_spread_as_the_slots_are(
    hosts: tuple[int, ...], ranks: int, placed: tuple[int, ...], tmp_path: Path
) -> None:
    """Each rank has its share of cores and memory. The script runs on the first host."""
    called(tmp_path, "5.0.11", hosts=hosts, ranks=ranks)
    found = (tmp_path / "said.hosts").read_text().splitlines()
    wanted = [f"10.0.0.{11 + at} slots={count}" for at, count in enumerate(placed) if count]
    assert found == wanted


def split(word: str) -> tuple[str, str, str]:
    return word.partition("=")


def parameters(words: Sequence[str]) -> dict[str, str]:
    found = [at for at, word in enumerate(words) if word in ("--mca", "--prtemca")]
    values = {f"{words[at]} {words[at + 1]}": words[at + 2] for at in found}
    given = [word for flag, word in pairwise(words) if flag == "-x"]
    values.update({name: value for name, _, value in map(split, given) if value[:1] not in "$"})
    # A subnet, however it is written.
    for name in values:
        if re.fullmatch(r"[\d.]+/\d+", values[name]):
            values[name] = str(IPv4Interface(values[name]).network)
    return values


@pytest.mark.parametrize("mpi", ["4.1.4", "5.0.11"])
def test_mpirun_is_told_in_a_batch_job_what_it_is_told_elsewhere(mpi: str, tmp_path: Path) -> None:
    apart, told = called(tmp_path, mpi)
    nodes = [
        node(name, address, mpi=mpi)
        for name, address in (("launcher", "10.0.0.10"), ("worker-1", "10.0.0.11"))
    ]
    elsewhere = launcher.plan_launch("mpirun", request(cluster(*nodes), spec(ranks=2)))
    wanted = {
        name: "clusterctl-agent" if value == AGENT else value
        for name, value in parameters(elsewhere.argv).items()
    }
    assert {name: told.get(name) for name in wanted} == wanted
    assert apart == ("1" if mpi[0] == "5" else "")
    # Its own integration with the batch system is off: builds differ in what they have.
    assert any(name.endswith(" ras") for name in told)


def test_a_fast_network_is_left_to_open_mpi(tmp_path: Path) -> None:
    """Open MPI prefers the engine for it, as the site has built it."""
    _, told = called(tmp_path, "4.1.4", fabric="/de[v]")
    assert "--mca btl_tcp_if_include" in told
    assert not {"--mca pml", "--mca btl"} & set(told)


def test_prrte_is_told_the_device_where_that_has_two_addresses(tmp_path: Path) -> None:
    _, told = called(tmp_path, "5.0.11", second="yes")
    assert told["--prtemca prte_if_include"] == "eth0"
    assert told["--mca btl_tcp_if_include"] == "10.0.0.0/24"
