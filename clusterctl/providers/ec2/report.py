"""What Terraform does, in lines for people."""

from __future__ import annotations

from collections.abc import Callable

from clusterctl import terraform


def node(address: str) -> str:
    """Whose machine that is, by Terraform's address of it; "" for what is no machine."""
    return address.split('"')[1] if address.startswith("aws_instance.") else ""


def reporter(tell: Callable[[str], None]) -> Callable[[terraform.Event], None]:
    """Says what happens to each machine, and that the rest is made, in one line each."""

    def report(event: terraform.Event) -> None:
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
            if words:
                after = f" after {event.seconds:g} s" if event.state == "complete" else ""
                tell(f"{what}: {words}{after}")

    return report
