"""How many ranks there are, and on which nodes: `run` beside the words of other launchers."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import UsageError
from clusterctl.launch.hostfile import drop_unknown_hosts, place
from clusterctl.project.words import fill, translate
from tests.unit.calling import Call
from tests.unit.making import cluster, node, spec
from tests.unit.tables import read_rows

FOUR = cluster(
    node("launcher", "10.0.0.10"),
    *(node(f"worker-{n}", f"10.0.0.1{n}", hostname=f"ip-1{n}.internal") for n in range(1, 5)),
    provider="local",
)


def count_ranks(
    line: str, own: dict[str, Any] | None = None, settings: tuple[str, ...] = ()
) -> str:
    """`1 2` for one rank on worker-1 and two on worker-2; `worker-3:1` for others, in order. There
    is no Slurm."""
    asked = translate(line.split()).limit_to("mpirun", ("mpirun", "torchrun"))
    found, _ = fill(asked, spec(**own or {}), settings, FOUR)
    placed = [(item.node, item.count) for item in place(FOUR, found)]
    if [name for name, _ in placed] == [f"worker-{n}" for n in range(1, len(placed) + 1)]:
        return " ".join(str(number) for _, number in placed)
    return " ".join(f"{name}:{number}" for name, number in placed)


PER_NODE = (
    "torchrun --nproc_per_node 2 t.py",
    "deepspeed --num_gpus 2 t.py",
    "mpirun -npernode 2 ./a",
    "srun --ntasks-per-node=2 ./a",
)
NODES = (
    "torchrun --nnodes 2 t.py",
    "accelerate launch --num_machines 2 t.py",
    "deepspeed --num_nodes 2 t.py",
    "srun -N2 ./a",
)
RANKS = ("accelerate launch --num_processes 4 t.py", "mpirun -np 4 ./a", "srun -n4 ./a")


@pytest.mark.parametrize("line", PER_NODE)
def test_ranks_on_each_node(line: str) -> None:
    assert count_ranks(line) == "2 2 2 2"
    assert count_ranks(line, {"nodes": 2}) == "2 2"
    assert count_ranks(line, {"ranks": 4}) == "2 2"
    assert count_ranks(line, {"ranks_per_node": 2, "nodes": 1}) == "2"
    assert count_ranks(line, {"ranks_per_node": 4}, ("ranks_per_node",)) == "2 2 2 2"
    assert count_ranks(line, {"ranks": 3, "nodes": 1}, ("ranks", "nodes")) == "2"
    assert count_ranks(line, {"hosts": ("worker-3",)}) == "worker-3:2"
    for own, word in (({"ranks_per_node": 3}, "--ranks-per-node 3"), ({"ranks": 3}, "--ranks 3")):
        with pytest.raises(UsageError, match=word):
            count_ranks(line, {"nodes": 2, **own})


@pytest.mark.parametrize("line", NODES)
def test_nodes(line: str) -> None:
    assert count_ranks(line) == "1 1"
    assert count_ranks(line, {"ranks": 6}) == "3 3"
    assert count_ranks(line, {"ranks_per_node": 3}) == "3 3"
    assert count_ranks(line, {"nodes": 3}, ("nodes",)) == "1 1"
    assert count_ranks(line, {"hosts": ("worker-3",)}, ("nodes",)) == "1 1"
    assert count_ranks(line, {"hosts": ("worker-3", "worker-2")}) == "worker-3:1 worker-2:1"
    for own in ({"nodes": 3}, {"hosts": ("worker-1",)}):
        with pytest.raises(UsageError, match=r"--nodes [13] and .* 2|-N2 contradict") as caught:
            count_ranks(line, own)
        assert line.split()[0] in caught.value.message
    with pytest.raises(UsageError, match="some nodes would have no rank"):
        count_ranks(line, {"ranks": 1})


@pytest.mark.parametrize("line", RANKS)
def test_ranks(line: str) -> None:
    assert count_ranks(line) == "1 1 1 1"
    assert count_ranks(line, {"nodes": 2}) == "2 2"
    assert count_ranks(line, {"ranks_per_node": 2}) == "2 2"
    assert count_ranks(line, {"ranks": 2}, ("ranks",)) == "1 1 1 1"
    assert count_ranks(line, {"ranks_per_node": 3}, ("ranks_per_node",)) == "1 1 1 1"
    assert count_ranks(line, {"nodes": 2}, ("nodes",)) == "2 2"
    with pytest.raises(UsageError, match=r"--ranks 2 and .*4 contradict each other"):
        count_ranks(line, {"ranks": 2})
    with pytest.raises(UsageError, match="4 is not --ranks-per-node 3 times --nodes 2"):
        count_ranks(line, {"ranks_per_node": 3, "nodes": 2})


@pytest.mark.parametrize("case", read_rows("launcher-lines", "placed"), ids=itemgetter("words"))
def test_nodes_that_the_words_choose(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("# mine\nworker-3 slots=2 max_slots=4\n\n10.0.0.11 slots=1\n")
    Path("lines").write_text("worker-2:2\nworker-4:1\n")
    if case["counts"]:
        assert count_ranks(case["words"], case["own"]) == case["counts"]
        return
    with pytest.raises(UsageError) as caught:
        count_ranks(case["words"], case["own"])
    assert caught.value.hint


def test_nodes_by_name(call: Call, lab: None) -> None:
    words = ("run", "--json", "--dry-run", "--nodes", "worker-2", "--ranks", "3", "train.py")
    assert call(*words).document["placement"] == {"worker-2": [0, 1, 2]}
    said = call("run", "--dry-run", "--nodes", "worker-2,nope", "train.py")
    assert said.code == 2
    assert "cluster 'lab' has no worker nope" in said.err
    assert "worker-1, worker-2" in said.err
    assert call("run", "--dry-run", "--nodes", "worker 1", "train.py").code == 2


def test_a_foreign_line(call: Call, lab: None) -> None:
    line = "mpirun -np 2 -H {} -x MASTER_ADDR=10.0.0.1 -x MASTER_PORT=1234 -x A=1 python train.py"
    said = call("run", "--dry-run", *line.format("10.9.9.1,10.9.9.2").split())
    assert said.code == 2
    assert "no worker 10.9.9.1" in said.err
    words = ("run", "--dry-run", *line.format("worker-1,worker-2").split())
    plan = call(*words[:1], "--json", *words[1:]).document
    assert (plan["env"]["A"], "MASTER_PORT" in plan["env"]) == ("1", False)
    assert plan["env"]["MASTER_ADDR"] != "10.0.0.1"
    note = "ignored: -x MASTER_ADDR=10.0.0.1, -x MASTER_PORT=1234\n"
    assert f"with --nodes worker-1,worker-2 --ranks 2 --env A=1; {note}" in call(*words).out


def test_networks_of_other_machines(call: Call, lab: None) -> None:
    line = "mpirun -x NCCL_SOCKET_IFNAME=ens9 -x GLOO_SOCKET_IFNAME=eth0 python train.py"
    said = call("run", "--dry-run", *line.split())
    assert "with --env GLOO_SOCKET_IFNAME=eth0; ignored: NCCL_SOCKET_IFNAME=ens9\n" in said.out


def test_a_launcher_as_a_module(call: Call, lab: None) -> None:
    words = ("run", "--json", "--dry-run", "-m", "torch.distributed.run", "--nproc_per_node", "2")
    plan = call(*words, "train.py", "-m").document
    assert plan["placement"] == {"worker-1": [0, 1], "worker-2": [2, 3]}
    assert plan["programs"]["worker-1"] == ["/opt/py/bin/python", "train.py", "-m"]


def test_settings_are_weaker_than_the_words(
    call: Call, lab: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("run", "--json", "--dry-run", "mpirun", "-np", "4", "-x", "A=1", "python", "train.py")
    monkeypatch.setenv("CLUSTERCTL_RUN_RANKS_PER_NODE", "3")
    monkeypatch.setenv("CLUSTERCTL_RUN_NODES", "worker-2")
    monkeypatch.setenv("CLUSTERCTL_RUN_ENV", "A=2 B=2")
    plan = call(*words).document
    assert plan["placement"] == {"worker-2": [0, 1, 2, 3]}
    assert (plan["env"]["A"], plan["env"]["B"]) == ("1", "2")
    said = call(*words[:3], "--env", "A=3", *words[3:])
    assert (said.code, "--env A=3 and mpirun with A=1 contradict" in said.err) == (2, True)
    said = call(*words[:3], "--once", *words[3:])
    assert (said.code, "--once cannot be combined with mpirun -np 4" in said.err) == (2, True)


def test_options_for_mpirun(call: Call, lab: None) -> None:
    words = ("run", "--json", "--dry-run", "mpirun", "-mca", "pml", "ucx", "python", "train.py")
    argv = " ".join(call(*words).document["argv"])
    assert "--mca pml_ucx_tls any --mca pml_ucx_devices any" in argv
    assert "--mca pml ob1" not in argv
    words = ("run", "--dry-run", "mpirun", "-np", "2", "--mca", "btl_tcp_if_include", "ib9")
    said = call(*words, "python", "train.py")
    assert (said.code, "has no network ib9" in said.err) == (2, True)
    words = ("run", "--json", "--dry-run", "mpirun", "--map-by", "node:pe=1", "python", "train.py")
    argv = call(*words).document["argv"]
    assert "slot:pe=1" in argv
    assert "none" not in argv
    said = call(*words[:4], "--bind-to", "none", *words[4:])
    assert (said.code, "contradict" in said.err) == (2, True)
    argv = call(*words[:5], "core:oversubscribe", *words[6:]).document["argv"]
    assert "core:NOOVERSUBSCRIBE" in argv


def test_parameters_of_mpirun_that_contradict_options_of_run() -> None:
    line, own = "mpirun --mca pml cm --mca btl self ./a", {"mpirun_args": ("--mca pml ob1",)}
    with pytest.raises(UsageError, match="--mpirun-arg '--mca pml ob1' and mpirun --mca pml cm"):
        count_ranks(line, own)
    found, _ = fill(translate(line.split()), spec(**own), ("mpirun_args",), FOUR)
    assert found.mpirun_args == ("--mca pml cm", "--mca btl self")


def test_nodes_that_another_cluster_does_not_have() -> None:
    known = spec(hosts=("worker-1", "worker-4"), ranks=4)
    assert drop_unknown_hosts(known, FOUR) == (known, "")
    found, note = drop_unknown_hosts(spec(hosts=("worker-9", "worker-1", "worker-1")), FOUR)
    assert (found.hosts, found.nodes) == ((), 2)
    assert "--nodes 2 instead of worker-9,worker-1" in note


def test_two_values_of_one_parameter_of_mpirun(call: Call, lab: None) -> None:
    for one, other in (("--mca pml ob1", "--mca pml cm"), ("--bind-to core", "--bind-to none")):
        said = call("run", "--dry-run", "--mpirun-arg", one, "--mpirun-arg", other, "train.py")
        assert (said.code, f"{one} and {other} contradict" in said.err) == (2, True)
