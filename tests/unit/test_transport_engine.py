"""Which engine carries MPI's messages, by what the nodes can do and what is sent."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.core.model import Accelerator
from clusterctl.launch import network
from tests.unit.making import node
from tests.unit.tables import rows

CUDA = {"accelerator": Accelerator.NVIDIA, "gpus": ["A10G"], "fabrics": ("efa",)}


@rows("backend, facts, engine", "transport_engine.efa_does_not_carry_gpu_gradients")
def test_efa_does_not_carry_gpu_gradients(backend: str, facts: dict[str, Any], engine: str) -> None:
    facts = {**facts, "accelerator": Accelerator(facts.get("accelerator", "none"))}
    nodes = [node(f"worker-{number}", f"10.0.0.{number}", **facts) for number in (1, 2)]
    chosen = network.choose_transport(backend, nodes)
    assert chosen.engine == engine
    pml = next(words[2] for words, _ in chosen.flags if words[:2] == ("--mca", "pml"))
    assert pml == {"TCP": "ob1", "EFA": "cm"}.get(engine, "ucx")
    assert ("FI_PROVIDER" in {name for name, _, _ in chosen.env}) is (engine == "EFA")


@pytest.mark.parametrize("engine", ["ob1", "ucx"])
def test_devices_are_named_where_open_mpi_uses_ucx(engine: str) -> None:
    facts = {"mpi_components": ("pml:ob1", f"pml:{engine}"), "ucx": ("rc_mlx5/mlx5_0:1",)}
    nodes = [node(f"worker-{number}", f"10.0.0.{number}", **facts) for number in (1, 2)]
    chosen = network.choose_transport("auto", nodes)
    expected = {"worker-1": ("mlx5_0:1",), "worker-2": ("mlx5_0:1",)} if engine == "ucx" else {}
    assert chosen.ucx_devices == expected


@pytest.mark.parametrize("plug_in", ["", "libnccl-net.so"])
def test_nccl_takes_efa_where_every_node_has_its_plug_in(plug_in: str) -> None:
    """Whatever Open MPI was built with."""
    facts = {**CUDA, "mpi_components": ("pml:ob1",)}
    nodes = [
        node("worker-1", "10.0.0.1", **facts, nccl_net="libnccl-net.so"),
        node("worker-2", "10.0.0.2", **facts, nccl_net=plug_in),
    ]
    chosen = network.choose_transport("nccl", nodes)
    assert chosen.engine == "TCP"
    assert ("FI_PROVIDER" in {name for name, _, _ in chosen.env}) is bool(plug_in)
