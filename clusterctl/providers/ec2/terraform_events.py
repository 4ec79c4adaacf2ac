"""What Terraform does, and how an instance is, in lines for people."""

from __future__ import annotations

from collections.abc import Callable

from clusterctl import terraform
from clusterctl.model import Reporter, clock
from clusterctl.node_phases import BOOTING, NodePhases
from clusterctl.providers.ec2.answers import Instance


def node(address: str) -> str:
    """Whose machine that is, by Terraform's address of it; "" for what is no machine."""
    return address.split('"')[1] if address.startswith("aws_instance.") else ""


def reporter(
    report: Reporter, nodes: NodePhases | None = None
) -> Callable[[terraform.Event], None]:
    """Says what happens to each machine, and that the rest is made, in one line each. `nodes` is
    told which machines run."""

    def show(event: terraform.Event) -> None:
        if isinstance(event, terraform.ResourceChange):
            machine = node(event.address)
            what = machine or event.address
            words = {
                ("create", "start"): "starts" if machine else "",
                ("create", "complete"): f"{event.id} is running" if machine else "made",
                ("delete", "start"): "ends" if machine else "",
                ("delete", "complete"): "gone",
                ("update", "complete"): "changed",
            }.get((event.action, event.state), "")
            if event.state == "errored":
                words = "failed"
            if nodes and machine and (event.action, event.state) == ("create", "complete"):
                nodes.enter([machine], BOOTING)
            if words:
                after = f" after {event.seconds:g} s" if event.state == "complete" else ""
                report(f"{what}: {words}{after}")

    return show


_WHY = {
    "Client.InstanceInitiatedShutdown": "it shut itself down",
    "Client.UserInitiatedShutdown": "by a call of the EC2 API",
    "Server.SpotInstanceTermination": "EC2 reclaimed the spot instance",
    "Service initiated": "by EC2",
}


def describe(item: Instance) -> str:
    """`terminated 2026-11-22 21:30: EC2 reclaimed the spot instance`."""
    if item.state in ("pending", "running"):
        return item.state
    when = f" {clock(item.ended)}" if item.ended else ""
    why = _WHY.get(item.why, item.why)
    return f"{item.state}{when}" + (f": {why}" if why else "")
