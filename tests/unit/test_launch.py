"""Hostfile, command line and environment of every topology: cases are files in tests/cases/launch.

A case says `given` (the cluster and the job) and `expected`: how the plan differs from that of
another case, its base, and all of the plan where there is none. Those of transports say too how
their plan with Open MPI 4 differs from the base's with Open MPI 4, unless in the same things.
After a change that is meant, `UPDATE_CASES=1 pytest tests/unit/test_launch.py` writes the files:
read the difference.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.batch.system import load_system
from clusterctl.core.job import JobSpec, ProgramKind
from clusterctl.core.model import Cluster, Python, Role
from clusterctl.errors import ClusterctlError, LaunchError, UsageError
from clusterctl.launch import launcher as launch_launcher
from clusterctl.launch.launcher import LaunchPlan
from tests.unit.launch_cases import (
    CASES,
    base_of,
    build,
    difference,
    flags,
    outcome,
    read,
    text,
)
from tests.unit.making import cluster, node, program, request, spec
from tests.unit.tables import rows


def test_there_are_cases() -> None:
    assert len(CASES) >= 10


NODES = (("launcher", "10.0.0.10"), ("worker-1", "10.0.0.11"), ("worker-2", "10.0.0.12"))


def plan(
    where: Cluster | None = None, what: JobSpec | None = None, launcher: str = "mpirun"
) -> LaunchPlan:
    return launch_launcher.plan_launch(launcher, request(where, what))


def check(path: Path, key: str, found: Any) -> None:
    case = read(path.stem)
    if os.environ.get("UPDATE_CASES"):
        path.write_text(text({**case, key: found}) + "\n")
    else:
        assert found == case[key]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_plan(path: Path) -> None:
    found = outcome(read(path.stem)["given"])
    base = base_of(path.stem)
    check(path, "expected", difference(outcome(read(base)["given"]), found) if base else found)


FOUR = "with Open MPI 4"


@pytest.mark.parametrize(
    "path",
    [path for path in CASES if path.stem.startswith("transport") and "openmpi" not in path.stem],
    ids=lambda path: path.stem,
)
def test_plan_with_the_older_generation(path: Path) -> None:
    """The same engine and variables; other words for the runtime's own."""
    case = read(path.stem)
    assert "all" not in case["given"]
    older = read("ec2-openmpi-4")["given"]
    found = difference(outcome(older), outcome({**case["given"], "all": older["all"]}))
    if FOUR in case or found != case["expected"]:
        check(path, FOUR, found)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_everything_has_its_reason(path: Path) -> None:
    request = build(read(path.stem)["given"])
    plan = launch_launcher.plan_launch(request.spec.launcher, request)
    items = [reason.item for reason in plan.reasons]
    assert all(reason.why for reason in plan.reasons)
    words = [word for item in items for word in item.split(" ")]
    for flag in set(flags(plan.argv)):
        assert words.count(flag) == flags(plan.argv).count(flag), flag
    for name in plan.env.keys() - request.spec.env.keys():
        assert any(item.startswith(f"{name}=") for item in items), name
    for variables in plan.node_env.values():
        assert all(any(name in item for item in items) for name in variables)


def test_ranks_find_their_own_root(tmp_path: Path) -> None:
    """Where roots differ, a line of sh picks the folder by rank; weird roots included."""
    roots = [str(tmp_path / "a b"), str(tmp_path / 'it\'s $HOME; "x"\n')]
    for index, root in enumerate(roots):
        folder = Path(root) / "jobs" / "7"
        folder.mkdir(parents=True)
        (folder / "rank.sh").write_text(f"echo {index}\n")
    where = cluster(
        node("launcher", "10.0.0.10"),
        node("worker-1", "10.0.0.11", root=roots[0]),
        node("worker-2", "10.0.0.12", root=roots[1]),
    )
    planned = plan(where, spec(ranks=5))
    start = planned.argv.index("/bin/sh")
    for rank, index in enumerate([0, 0, 0, 1, 1]):
        environment = {**os.environ, "OMPI_COMM_WORLD_RANK": str(rank)}
        done = subprocess.run(
            planned.argv[start:], env=environment, capture_output=True, check=True
        )
        assert done.stdout.decode().strip() == str(index)


@rows("versions, words", "launch.mpi_that_does_not_fit_is_named")
def test_mpi_that_does_not_fit_is_named(versions: list[str], words: list[str]) -> None:
    nodes = []
    for name, version in zip(NODES, versions, strict=True):
        made = node(*name, mpi=version.removeprefix("mpich "))
        if version.startswith("mpich"):
            assert made.facts.mpi
            mpich = replace(made.facts.mpi, flavour="mpich")
            made = replace(made, facts=replace(made.facts, mpi=mpich))
        nodes.append(made)
    with pytest.raises(LaunchError) as caught:
        plan(cluster(*nodes))
    assert all(word in caught.value.message for word in words), caught.value.message
    assert caught.value.hint


def test_a_patch_release_apart_is_fine() -> None:
    where = cluster(
        node("launcher", "10.0.0.10", mpi="5.0.11", mpi_prefix="/opt/of launcher"),
        node("worker-1", "10.0.0.11", mpi="5.0.8"),
    )
    assert plan(where).argv[0] == "/opt/of launcher/bin/mpirun"


def test_daemons_are_told_every_device_where_one_has_two_addresses() -> None:
    """PRRTE overlooks a subnet there, and devices have other names on other nodes."""
    worker = node("worker-1", "10.0.0.11", interfaces=["ib0 10.0.0.11/24 among"])
    planned = plan(cluster(node("launcher", "10.0.0.10"), worker))
    assert planned.argv[planned.argv.index("prte_if_include") + 1] == "eth0,ib0"


@pytest.mark.parametrize(
    ("mpi", "first"), [("5.0.11", ["env", "MALLOC_MMAP_THRESHOLD_=1"]), ("4.1.4", [])]
)
def test_an_mpirun_beside_ranks_is_their_daemon_too(mpi: str, first: list[str]) -> None:
    """It needs the variable that the daemons of other nodes get."""
    both = node("launcher", "10.0.0.10", mpi=mpi, role=Role.BOTH)
    where = cluster(both, node("worker-1", "10.0.0.11", mpi=mpi))
    planned = plan(where)
    assert list(planned.argv[: len(first) + 1]) == [*first, "/opt/openmpi/bin/mpirun"]


@rows("boots, cores, ranks, threads", "launch.threads_per_rank")
def test_threads_per_rank(boots: list[str], cores: list[int], ranks: int, threads: int) -> None:
    workers = [
        node(f"worker-{i + 1}", f"10.0.0.{11 + i}", boot_id=boot, cores=count, slots=8)
        for i, (boot, count) in enumerate(zip(boots, cores, strict=True))
    ]
    where = cluster(node("launcher", "10.0.0.10"), *workers)
    planned = plan(where, spec(ranks=ranks))
    assert planned.env["OMP_NUM_THREADS"] == str(threads)


def test_threads_per_rank_are_whole_where_cores_differ_in_their_threads() -> None:
    """Three cores with eight hardware threads: a rank is bound to one core."""
    nodes = [node(name, address, cores=8, physical_cores=3) for name, address in NODES]
    planned = plan(cluster(*nodes), spec(ranks_per_node=2))
    assert planned.env["OMP_NUM_THREADS"] == "2"


@rows("where, what, yields, word", "launch.waiting_ranks_yield_where_cores_are_shared")
def test_waiting_ranks_yield_where_cores_are_shared(
    where: dict[str, Any], what: dict[str, Any], yields: str, word: str
) -> None:
    changes = dict(where)
    facts = {"slots": 8, **changes.pop("nodes", {})}
    nodes = [node(name, address, **facts) for name, address in NODES]
    planned = plan(cluster(*nodes, **changes), spec(**what))
    assert planned.env["OMPI_MCA_mpi_yield_when_idle"] == yields
    item = f"OMPI_MCA_mpi_yield_when_idle={yields}"
    assert word in next(reason.why for reason in planned.reasons if reason.item == item)


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_ranks_find_the_shared_folder(launcher: str) -> None:
    name = "CLUSTERCTL_SHARED"
    where = cluster()
    assert name not in plan(where, spec(launcher=launcher), launcher=launcher).env
    where = replace(where, shared="/shared")
    planned = plan(where, spec(launcher=launcher), launcher=launcher)
    assert planned.env[name] == "/shared"
    assert f"{name}=/shared" in [reason.item for reason in planned.reasons]


@rows("changes, argv", "launch.program")
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_program(changes: dict[str, Any], argv: list[str], launcher: str) -> None:
    weird = ("a b", "", "--json", "$HOME", "x\ny", "it's", '"')
    changes = {**changes, "kind": ProgramKind(changes["kind"])}
    planned = plan(
        what=spec(program=program(*weird, **changes), launcher=launcher), launcher=launcher
    )
    assert planned.programs == dict.fromkeys(("worker-1", "worker-2"), (*argv, *weird))


def test_torchrun_without_torch() -> None:
    plain = Python(executable="/usr/bin/python3", version="3.11.2", packages={})
    for python in (None, plain):
        where = cluster(
            node("launcher", "10.0.0.10"), node(), node("worker-2", "10.0.0.12", python=python)
        )
        with pytest.raises(LaunchError, match="worker-2"):
            plan(where, spec(launcher="torchrun"), launcher="torchrun")


def test_torchrun_with_uneven_ranks() -> None:
    with pytest.raises(LaunchError) as caught:
        plan(what=spec(ranks=3, launcher="torchrun"), launcher="torchrun")
    assert "--ranks-per-node" in caught.value.hint


def test_no_such_launcher() -> None:
    with pytest.raises(UsageError, match="mpiexec"):
        load_system("direct").resolve(spec(launcher="mpiexec"), cluster())


def test_a_network_is_needed() -> None:
    where = cluster(
        node("launcher", "10.0.0.10"),
        node("worker-1", "10.0.0.11", interfaces=["eth0 10.9.9.9/24"]),
    )
    with pytest.raises(ClusterctlError, match="no network"):
        plan(where)


def test_nccl_across_vendors_is_refused() -> None:
    what = {**read("transport-mixed-vendors")["given"], "job": {"backend": "nccl"}}
    with pytest.raises(LaunchError, match="AMD and NVIDIA") as caught:
        launch_launcher.plan_launch("mpirun", build(what))
    assert "--backend mpi" in caught.value.hint
