"""Full machines: systemd, cloud-init and a Docker engine in each."""

from __future__ import annotations

import base64
import time

import pytest

from clusterctl.machines import bootstrap
from tests.conftest import Need
from tests.sim.engine import Engine
from tests.sim.lab import Lab
from tests.unit.making import node

pytestmark = [
    pytest.mark.all,
    pytest.mark.netns,
    pytest.mark.sshd,
    pytest.mark.timeout(900),
]


def idle(lab: Lab, name: str, *, containers: int) -> int:
    """How many seconds the machine has been unused after two seconds, by the agent that ends unused
    workers. `containers`: how many of ours run there."""
    worker = node(root=f"/home/ubuntu/{containers}")
    script = bootstrap.render_agent(worker, (worker,), 60, containers)
    text = base64.b64encode(script.encode()).decode()
    folder = bootstrap.locate_folder(worker)
    turn = f"sh {worker.root}/agent turn"
    lab.ssh(
        name, f"mkdir -p {folder} {worker.root}/jobs; echo {text} | base64 -d >{worker.root}/agent"
    )
    up, last = lab.ssh(
        name,
        f": clusterctl-idle; rm -f {folder}/turn; {turn}; sleep 2; {turn}; cat {folder}/seen",
    ).split()
    return int(up) - int(last)


def test_full_machines(lab: Lab, engine: Engine, need: Need) -> None:
    """They boot, execute user data, pull from the registry, run containers, and switch off."""
    with lab.ec2.full(engine, need) as internet:
        internet.registry.serve("clusterctl/test:1", engine.base(need))
        started = time.monotonic()
        lab.launch(
            "one",
            {
                "write_files": [{"path": "/etc/deep/file", "content": "text"}],
                "runcmd": ["systemctl is-active docker >/etc/docker-was"],
            },
        )
        lab.launch("two")
        lab.ec2.wait(2, seconds=60)
        one = lab.ec2.machine("one")
        lab.until(lambda: lab.try_ssh("one", "true").returncode, {255}, seconds=30)
        print(f"ssh after {time.monotonic() - started:.1f} s")
        assert lab.ssh("one", "cloud-init status --wait").split()[-1] == "done"
        print(f"cloud-init after {time.monotonic() - started:.1f} s")
        assert lab.ssh("one", "hostname; id -un; sudo -n id -u").split() == [
            one.hostname,
            "ubuntu",
            "0",
        ]
        assert lab.ssh("one", "cat /etc/deep/file /etc/docker-was") == "textactive\n"
        asked = "sudo docker info --format '{{json .Runtimes}}' | grep -c nvidia"
        assert lab.ssh("one", asked) == "1\n"
        lab.until(lambda: lab.try_ssh("two", "true").returncode, {255}, seconds=30)
        assert lab.ssh("two", "hostname", jump="one") == f"{lab.ec2.machine('two').hostname}\n"
        lab.ssh("one", "sudo docker pull -q clusterctl/test:1")
        flags = (
            "--init --network=host --ipc=host --cap-add=SYS_PTRACE "
            "--security-opt=seccomp=unconfined --ulimit=memlock=-1 --cap-add=SYS_RESOURCE"
        )
        said = lab.ssh("one", f"sudo docker run --rm {flags} clusterctl/test:1 cat /etc/hostname")
        assert said == f"{one.hostname}\n"
        lab.ssh("one", f"sudo docker run --detach --name=job {flags} clusterctl/test:1 sleep 100")
        assert lab.ssh("one", "sudo docker exec -i -u 1:1 job id -u") == "1\n"
        print(f"container after {time.monotonic() - started:.1f} s")
        assert idle(lab, "one", containers=0) == 0, "a container of somebody's own"
        assert idle(lab, "one", containers=1) > 0, "the container of ours does nothing"
        lab.ssh("one", "sudo docker exec --detach -u 1000:1000 job sleep 100")
        assert idle(lab, "one", containers=1) == 0, "a program of the user runs in it"
        plan = "sudo shutdown -P +480; sudo cat /run/systemd/shutdown/scheduled"
        assert "MODE=poweroff" in lab.ssh("one", plan)
        lab.try_ssh("one", "sudo poweroff")
        lab.ec2.wait(1, seconds=60)
        print(f"ended after {time.monotonic() - started:.1f} s")
        assert lab.states() == ["stopped", "running"]
