"""GPU families as a person writes them, other numbers of workers, and two clusters side by side."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.ec2 import receipts
from tests.ec2.conftest import World

pytestmark = [
    pytest.mark.usefixtures("many_cpus"),
    pytest.mark.terraform,
    pytest.mark.netns,
    pytest.mark.sshd,
    pytest.mark.timeout(400),
]

HOST = ("--runtime", "host", "--yes")


def machines_of(world: World) -> dict[str, str]:
    """Of the cluster `mixed`: node → instance."""
    return {node["name"]: node["machine"] for node in world.record("mixed")["nodes"]}


def test_two_clusters_side_by_side(world: World) -> None:
    """Two clusters at once, one of them mixed; each has its own network, keys and record."""
    world.on_the_first_day()
    world.ec2.grant(64)
    first = world.start("up", "large", "--gpu", "g5:1", "--private", *HOST)
    second = world.start("up", "mixed", "--gpu", "g4dn:2", "--cpu", "t3.xlarge:1", *HOST)
    for process in (first, second):
        _, err = process.communicate(timeout=170)
        assert process.returncode == 0, err
        assert "GPU found" in err
    world.keep_provider()
    api = world.ec2.client("ec2")
    groups = api.describe_placement_groups()["PlacementGroups"]
    assert [group["Strategy"] for group in groups] == ["cluster", "cluster"]
    types = {node["name"]: node["instance_type"] for node in world.record("mixed")["nodes"]}
    kinds = ["t3.micro", "g4dn.xlarge", "g4dn.xlarge", "t3.xlarge"]
    assert types == dict(zip(("launcher", "worker-1", "worker-2", "worker-3"), kinds, strict=True))
    all_three = machines_of(world)
    world.ok("up", "mixed", "--gpu", "g4dn:1", "--cpu", "t3.xlarge:1", *HOST)
    two = machines_of(world)
    assert len(two) == 3
    assert two.items() < all_three.items(), "who runs stays"
    [gone] = all_three.keys() - two.keys()
    assert types[gone] == "g4dn.xlarge"
    ended = [charge for charge in world.record("mixed")["charges"] if charge["until"] is not None]
    assert {charge["node"] for charge in ended} == {gone}
    world.ok("up", "mixed", "--gpu", "g4dn:2", "--cpu", "t3.xlarge:1", *HOST)
    again = machines_of(world)
    assert {name: again[name] for name in two} == two
    [new] = again.keys() - two.keys()
    assert again[new] not in all_three.values()
    assert len(world.ok("list", "--json").document()["clusters"]) == 2
    ids = {node["machine"]: node["name"] for node in world.record("large")["nodes"]}
    machines = {ids[id]: one for id, one in world.ec2.machines.items() if id in ids}
    assert [name for name, one in machines.items() if one.public] == ["launcher"]
    parts = {charge["part"] for charge in world.record("large")["charges"]}
    assert {"gateway", "gateway address"} < parts
    refused = world.run("run", "-c", "large", "multinode_ddp_mpi_gpu.py", "2", "1")
    assert refused.code == 6
    for name in ("large", "mixed"):
        world.ok("down", name, "--yes", "--force")


def end_unused(world: World) -> None:
    """A short job, whose files are fetched; then nobody does anything for a minute, and no machine
    is left. What was fetched is here, and nothing waits for machines that are gone."""
    program = world.program("program.sh", "#!/bin/sh\necho seen; hostname >made.txt\n")
    folder = Path(program).parent
    job = str(world.ok("run", "--detach", "--json", program).document()["id"])
    names = sorted(node["name"] for node in world.record()["nodes"] if node["role"] == "worker")

    def seen() -> bool:
        return world.ok("logs", job).out.count("seen") == len(names)

    world.wait(seen, 60, "the end of the job")
    world.ok("fetch", job, "--to", str(folder / "got"))
    made = sorted(str(path.parent.name) for path in folder.glob("got/*/made.txt"))
    assert made == names
    world.wait(lambda: not world.ec2.machines, 150, "machines that end unused")
    status = world.ok("status", "--json").document()
    assert status["dollars_per_hour"] == 0
    why = "all machines of cluster default have ended, as unused ones do after 1 min (launcher: "
    assert why in status["warnings"][0]
    assert "it shut itself down" in status["warnings"][0]
    refused = world.run("run", program, timeout=60)
    assert (refused.code, "clusterctl up default" in refused.err) == (7, True), refused.err
    assert seen()


@pytest.mark.timeout(700)
def test_spot_workers_save_on_notice_and_all_end_at_the_deadline(world: World) -> None:
    """The client is long gone when the deadline comes, and the agent of a worker, too. Before that,
    machines that nobody uses end, and come again."""
    world.late = receipts.SHUTDOWN
    world.ok("up", "--cpu", "t3.xlarge", "--spot", "--ttl", "1h", "--idle", "1m", *HOST)
    end_unused(world)
    world.ok("up", "--idle", "off", *HOST)
    api = world.ec2.client("ec2")
    answer = api.describe_instances()
    kinds = {
        tag["Value"]: item.get("InstanceLifecycle", "")
        for reservation in answer["Reservations"]
        for item in reservation["Instances"]
        for tag in item["Tags"]
        if tag["Key"] == "clusterctl:node"
    }
    assert kinds == {"launcher": "", "worker-1": "spot", "worker-2": "spot"}
    job = world.ok("run", "--detach", "--json", "multinode_ddp_mpi.py", "100000", "100000")
    number = str(job.document()["id"])
    world.wait(lambda: "Epoch" in world.ok("logs", number).out, 60, "the first epoch")
    world.ec2.fault("spot_notice", node="worker-2")
    world.wait(
        lambda: world.ok("jobs", "--json").document()["jobs"][-1]["state"] != "running",
        60,
        "the programs save their work when EC2 wants its machine back",
    )
    assert "saved in" in world.ok("logs", number).out
    world.ec2.machine("worker-1").run("systemctl", "stop", "clusterctl-deadline")
    world.ok("extend", "--ttl", "8s", "--yes")
    world.wait(lambda: len(world.ec2.machines) == 1, 60, "machines that end themselves")
    deadline = world.record()["deadline"]
    assert time.time() >= deadline
    end = deadline + 60
    [schedules] = world.ec2.schedules.values()
    assert {round(when - end) for when in schedules.values()} <= {0, 1}
    world.ec2.turn_the_scheduler_ahead(75)
    world.wait(lambda: not world.ec2.machines, 60, "what AWS itself ends")
    status = world.ok("status", "--live", "--json").document()
    ends = {node["name"]: node["live"] for node in status["nodes"]}
    assert re.fullmatch(r"terminated: it shut itself down", ends["launcher"])
    assert re.fullmatch(r"terminated 20\d\d-.+: by a call of the EC2 API", ends["worker-1"])
    assert status["dollars_per_hour"] == 0
    world.ok("down", "--yes", "--force")
