"""Rank discovery and the rendezvous: tables of environments."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.tables import read_rows, rows
from trainlib import mpi, rendezvous
from trainlib.errors import StartError
from trainlib.ranks import Ranks, discover, expand_counts, guess_rank

TORCHRUN = read_rows("ranks", "torchrun")
MPIRUN = read_rows("ranks", "mpirun")
SRUN = read_rows("ranks", "srun")
AGENT_UNDER_MPIRUN = {**MPIRUN, "OMPI_COMM_WORLD_RANK": "0"}
STEP_ONE = {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "5"}
ALLOCATION = {**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
LAUNCHERS = {"torchrun": TORCHRUN, "mpirun": MPIRUN, "srun": SRUN}
LAUNCHERS |= {"an agent under mpirun": AGENT_UNDER_MPIRUN, "an allocation": ALLOCATION}


@rows("base, more, expected", "ranks.discovery")
def test_discovery(base: list[str], more: dict[str, str], expected: list[Any]) -> None:
    env = dict(item for name in base for item in LAUNCHERS[name].items())
    assert discover(env | more) == Ranks(*expected)


@rows("env, says", "ranks.discovery_refuses")
def test_discovery_refuses(env: dict[str, str], says: str) -> None:
    with pytest.raises(StartError, match=says) as caught:
        discover(env)
    assert caught.value.code == 6
    assert caught.value.todo
    assert "\n" not in caught.value.line


@rows("env, local_world", "ranks.ranks_of_a_slurm_node")
def test_ranks_of_a_slurm_node(env: dict[str, str], local_world: int) -> None:
    assert discover({**STEP_ONE, **env}) == Ranks(1, 5, 0, local_world, "srun")


def test_a_batch_script_of_one_task_is_the_job() -> None:
    script = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert discover({**script, "SLURM_NTASKS": "1"}) == Ranks(0, 1, 0, 1, "srun")
    with pytest.raises(StartError, match="has 2 tasks") as caught:
        discover({**script, "SLURM_NTASKS": "2"})
    assert "with srun or mpirun" in caught.value.line


def test_slurm_counts() -> None:
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    with pytest.raises(StartError, match="'two'") as caught:
        expand_counts("two")
    assert "srun" in caught.value.line


def test_rank_hint_follows_the_innermost_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert guess_rank({**AGENT_UNDER_MPIRUN, **TORCHRUN}) == 3
    assert guess_rank({**ALLOCATION, **MPIRUN}) == 2
    assert guess_rank({}) == 0
    assert guess_rank({"SLURM_PROCID": "5"}) == 5
    # torchrun's alone, or some other program's.
    assert guess_rank({"RANK": "7", "SLURM_PROCID": "5"}) == 5
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "4")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert guess_rank() == 4


LOCAL = Ranks(1, 2, 1, 2, "mpirun")
SPREAD = Ranks(1, 2, 0, 1, "mpirun")
STEP = Ranks(1, 2, 0, 1, "srun")


def test_rendezvous_given_by_the_environment() -> None:
    env = {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "1234"}
    assert rendezvous.find_master(SPREAD, env) == ("10.0.0.7", 1234)
    assert rendezvous.find_master(SPREAD, {"MASTER_ADDR": "n1"}) == ("n1", rendezvous.DEFAULT_PORT)
    with pytest.raises(StartError, match="70000"):
        rendezvous.find_master(SPREAD, {**env, "MASTER_PORT": "70000"})


def test_rendezvous_on_one_host() -> None:
    assert rendezvous.find_master(LOCAL, {}, agree_port=lambda: 4711) == ("127.0.0.1", 4711)
    env = {"PMIX_NAMESPACE": "prterun-host-1@1"}
    address, port = rendezvous.find_master(LOCAL, env, agree_port=lambda: None)
    assert address == "127.0.0.1"
    assert port == rendezvous.find_master(LOCAL, env)[1], "all ranks have to compute the same port"
    assert port != rendezvous.find_master(LOCAL, {"PMIX_NAMESPACE": "prterun-host-2@1"})[1]
    assert 20000 <= port < 32000


def test_rendezvous_on_several_hosts_has_to_be_told_to_mpirun() -> None:
    with pytest.raises(StartError, match="mpirun -x MASTER_ADDR="):
        rendezvous.find_master(SPREAD, {}, agree_port=lambda: 4711)


def test_rendezvous_under_srun_is_the_first_host_of_the_step() -> None:
    env = {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "1",
        "SLURM_STEP_NODELIST": "gpu[07-09,11],login",
        "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
    }
    address, port = rendezvous.find_master(STEP, env)
    assert address == "gpu07"
    assert port != rendezvous.find_master(STEP, {**env, "SLURM_STEP_ID": "2"})[1]


@rows("nodelist, first", "ranks.first_host")
def test_first_host(nodelist: str, first: str) -> None:
    assert rendezvous.name_first_host(nodelist) == first


def test_mpi_is_not_tried_without_a_launcher_of_mpi() -> None:
    assert "torchrun" in mpi.find_launch_problem(Ranks(0, 2, 0, 2, "torchrun"), MPIRUN)
    assert "pmix" in mpi.find_launch_problem(STEP, SRUN)
    assert mpi.find_launch_problem(STEP, {**SRUN, "PMIX_RANK": "1"}) == ""
    assert mpi.find_launch_problem(SPREAD, MPIRUN) == ""
    assert mpi.find_launch_problem(Ranks(0, 1, 0, 1, "none"), {}) != ""


def test_device_pointers_can_be_forced_and_are_off_without_a_library_that_says_so() -> None:
    assert mpi.takes_device_pointers("nvidia", {mpi.DEVICE_BUFFERS: "1"})
    assert not mpi.takes_device_pointers("nvidia", {mpi.DEVICE_BUFFERS: "0"})
