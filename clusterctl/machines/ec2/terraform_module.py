"""Terraform with our module `infra/ec2`, in the folder of a cluster: how it is started, what it has
made there, and what it does, in lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from clusterctl.core import assets
from clusterctl.core.model import Reporter
from clusterctl.core.progress import BOOTING, NodePhases
from clusterctl.machines.ec2.api import Api
from clusterctl.state.home import Home, write_atomic
from clusterctl.state.locks import find_held
from clusterctl.terraform import binary as terraform_binary
from clusterctl.terraform import folder as terraform_folder

# -------------------------------------------------------------------------------------------------
# What is kept between two attempts to make a cluster: a file in its folder.


class ProviderState(msgspec.Struct, kw_only=True):
    """`zone` and `spot` are those of the last attempt, `ssh_cidr` is from where SSH is open;
    `unfinished`: an attempt has begun, and nobody has seen its end; `guarded`: AWS itself ends the
    machines after their deadline."""

    id: str
    region: str
    zone: str = ""
    ssh_cidr: str = ""
    spot: bool = False
    on_demand: tuple[str, ...] = ()
    """The workers that are none where the others are spot instances."""
    unfinished: bool = False
    guarded: bool = False


def load_state(folder: Path) -> ProviderState | None:
    """None where nothing was tried yet."""
    try:
        return msgspec.json.decode(_locate_file(folder).read_bytes(), type=ProviderState)
    except (OSError, msgspec.DecodeError):
        return None


def save(folder: Path, state: ProviderState) -> None:
    path = _locate_file(folder)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, msgspec.json.encode(state))


def _locate_file(folder: Path) -> Path:
    return folder / "ec2" / "memory.json"


# -------------------------------------------------------------------------------------------------


def find_module() -> Path:
    return assets.find_folder("infra") / "ec2"


def _find_plugins(home: Path) -> Path:
    return home / "terraform-plugins"


def prefetch(home: Home, binary: terraform_binary.Binary) -> terraform_binary.InitCache:
    """Lets Terraform fetch its provider while AWS is asked whether there is anything to make."""
    cache = terraform_binary.InitCache(find_module(), binary, home.make(_find_plugins(home.path)))
    cache.begin()
    return cache


def open_terraform(
    api: Api, folder: Path, name: str, report: Reporter
) -> terraform_folder.Terraform:
    """In the cluster's own folder, with the lock of the cluster, which it inherits."""
    home = folder.parent.parent
    try:
        lock = find_held(home, name)
    except KeyError:
        lock = None
    return terraform_folder.Terraform(
        folder / "terraform",
        terraform_binary.find_terraform(),
        cluster=name,
        cache=_find_plugins(home),
        lock=lock.fileno() if lock else None,
        on_start=lock.lend if lock else lambda pid, command: None,
        report=report,
        lent=api.lend_credentials,
    )


class Identity(msgspec.Struct):
    """Which cluster it is, and where."""

    id: str = msgspec.field(name="cluster_id")
    region: str = ""


def identify(folder: Path) -> Identity | None:
    """From what is kept here, else from Terraform's variables; None where neither can be read."""
    if state := load_state(folder):
        return Identity(state.id, state.region)
    try:
        variables = (folder / "terraform" / terraform_folder.VARIABLES).read_bytes()
        return msgspec.json.decode(variables, type=Identity)
    except (OSError, msgspec.DecodeError):
        return None


def find_node(address: str) -> str:
    """Whose machine that is, by Terraform's address of it; "" for what is no machine."""
    return address.split('"')[1] if address.startswith("aws_instance.") else ""


MANY = 16
"""Machines beyond which they are counted, in lines for so many at a time."""


def make_reporter(
    report: Reporter, machines: int, nodes: NodePhases | None = None
) -> Callable[[terraform_binary.Event], None]:
    """Says what happens to each machine, and that the rest is made, in one line each; of many
    `machines`, how many run or are gone. `nodes` is told which machines run."""
    count = Counter[str]()

    def show(event: terraform_binary.Event) -> None:
        if not isinstance(event, terraform_binary.ResourceChange):
            return
        machine, what = find_node(event.address), (event.action, event.state)
        if nodes and machine and what == ("create", "complete"):
            nodes.enter([machine], BOOTING)
        if machine and machines > MANY:
            words = {"create": "are running", "delete": "are gone"}.get(event.action)
            count[event.action] += event.state == "complete"
            done = count[event.action]
            if words and event.state == "complete" and (done % MANY == 0 or done == machines):
                report(f"{done} of {machines} machines {words}")
            return
        words = {
            ("create", "start"): "starts" if machine else "",
            ("create", "complete"): f"{event.id} is running" if machine else "made",
            ("delete", "start"): "ends" if machine else "",
            ("delete", "complete"): "gone",
            ("update", "complete"): "changed",
        }.get(what, "")
        if event.state == "errored":
            words = "failed"
        if words:
            after = f" after {event.seconds:g} s" if event.state == "complete" else ""
            report(f"{machine or event.address}: {words}{after}")

    return show
