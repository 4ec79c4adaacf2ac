"""The Docker engine of this machine, through its own command line: JSON in, deadlines on all calls.

Everything of ours carries labels: a cluster is found by them, whatever its record says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from clusterctl import process
from clusterctl.errors import ProviderError
from clusterctl.model import NodeResult

CLUSTER = "clusterctl.cluster"
"""Label: the cluster's id."""
FOLDER = "clusterctl.folder"
"""Label: the cluster's folder. One engine may serve several people."""
NODE = "clusterctl.node"
DIGEST = "clusterctl.digest"

PATIENCE = 60.0
"""Seconds that one call may take. An engine under load needs some for a container."""
GREETING = 10.0
"""Seconds that an engine may take to say its version."""

_INSTALL = (
    "install it: apt-get install docker.io (Debian, Ubuntu), dnf install moby-engine (Fedora)"
)


@dataclass(frozen=True, slots=True)
class Container:
    """One of ours, as the engine describes it."""

    id: str
    name: str
    node: str
    digest: str
    state: str
    """`running`, `exited`, `created`, `paused`, …"""
    exit_code: int
    address: str


def call(*words: str, timeout: float = PATIENCE, stdin: bytes = b"") -> NodeResult:
    """`docker WORDS`."""
    return process.run(["docker", *words], timeout=timeout, stdin=stdin)


_DAEMON = "Error response from daemon: "


def explain_failure(result: NodeResult) -> str:
    """The line of a failed call that says why. Never empty: the client adds blank lines and advice
    around what the daemon said."""
    lines = [line.strip() for line in result.stderr.decode(errors="replace").splitlines()]
    daemon = [line.partition(_DAEMON)[2] for line in lines if _DAEMON in line]
    own = [line for line in lines if line and not line.startswith(("See '", "Run 'docker"))]
    return result.error or (daemon or own or [f"exit code {result.exit_code}"])[-1]


def need(
    *words: str, what: str, timeout: float = PATIENCE, stdin: bytes = b"", hint: str = ""
) -> str:
    """The same, or ProviderError: `what` could not be done, and why."""
    result = call(*words, timeout=timeout, stdin=stdin)
    if not result.ok:
        raise ProviderError(f"{what}: {explain_failure(result)}", hint=hint)
    return result.text


def require() -> str:
    """The engine's version. Raises ProviderError, telling apart the ways of having none."""
    result = call("version", "--format", "{{.Server.Version}}", timeout=GREETING)
    if result.ok:
        return result.text.strip()
    why = explain_failure(result)
    if result.error.endswith("No such file or directory"):
        raise ProviderError("docker is not on PATH", hint=_INSTALL)
    if result.error:
        raise ProviderError(
            f"the Docker engine does not answer within {GREETING:g} s",
            hint="check it: systemctl status docker, journalctl -u docker",
            transient=True,
        )
    if "permission denied" in why:
        raise ProviderError(
            "you are not allowed to use this machine's Docker engine",
            hint="sudo usermod -aG docker $USER, and log in again",
        )
    raise ProviderError(
        f"no Docker engine answers: {why}",
        hint="start it (systemctl start docker), or set DOCKER_HOST",
    )


def has_image(reference: str) -> bool:
    return call("image", "inspect", "--format", "{{.Id}}", reference).ok


def list_containers(cluster: str) -> tuple[Container, ...]:
    """All containers of a cluster, running or not."""
    listed = need(
        *("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={CLUSTER}={cluster}"),
        what="the cluster's containers could not be listed",
    ).split()
    if not listed:
        return ()
    # One that ends in between makes the exit code 1; the others are printed all the same.
    return parse(call("inspect", *listed).text)


def parse(text: str) -> tuple[Container, ...]:
    """What `docker inspect` printed of containers. Raises ProviderError."""
    with _explain_errors("inspect"):
        return tuple(map(_read_container, json.loads(text or "[]")))


@contextmanager
def _explain_errors(command: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ProviderError(
            f"cannot read the output of `docker {command}`: {type(error).__name__}: {error}",
            hint="check the Docker engine and its version: docker version",
        ) from error


def _read_container(row: dict[str, Any]) -> Container:
    labels = row["Config"].get("Labels") or {}
    ends = (row.get("NetworkSettings", {}).get("Networks") or {}).values()
    addresses = [end.get("IPAddress", "") for end in ends]
    return Container(
        id=row["Id"],
        name=row["Name"].removeprefix("/"),
        node=labels.get(NODE, ""),
        digest=labels.get(DIGEST, ""),
        state=row["State"]["Status"],
        exit_code=row["State"].get("ExitCode", 0),
        address=next(filter(None, addresses), ""),
    )


def list_networks(label: str) -> tuple[str, ...]:
    """The names of networks with that label (`name=value`)."""
    words = ("network", "ls", "--filter", f"label={label}", "--format", "{{.Name}}")
    return tuple(need(*words, what="the engine's networks could not be listed").split())


def list_volumes(label: str) -> tuple[str, ...]:
    words = ("volume", "ls", "--filter", f"label={label}", "--format", "{{.Name}}")
    return tuple(need(*words, what="the engine's volumes could not be listed").split())


def list_subnets(names: Iterable[str] = ()) -> tuple[IPv4Network, ...]:
    """The IPv4 subnets of these networks, or of all that the engine knows."""
    wanted = (
        list(names)
        or need(
            *("network", "ls", "--quiet"), what="the engine's networks could not be listed"
        ).split()
    )
    return parse_subnets(call("network", "inspect", *wanted).text) if wanted else ()


def parse_subnets(text: str) -> tuple[IPv4Network, ...]:
    """The IPv4 subnets in what `docker network inspect` printed. Raises ProviderError."""
    with _explain_errors("network inspect"):
        rows = json.loads(text or "[]")
        configs = [config for row in rows for config in (row.get("IPAM", {}).get("Config") or ())]
        found = [config.get("Subnet", "") for config in configs]
        return tuple(IPv4Network(subnet) for subnet in found if "." in subnet)


def list_clusters(folder: Path) -> frozenset[str]:
    """The ids of the clusters that were made for a folder. None where no engine answers: what it
    would hold, nobody can reach now."""
    label = f"label={FOLDER}={folder}"
    form = f'{{{{.Label "{CLUSTER}"}}}}'
    found: set[str] = set()
    for words in (("ps", "--all"), ("network", "ls"), ("volume", "ls")):
        result = call(*words, "--filter", label, "--format", form, timeout=GREETING)
        if not result.ok:
            return frozenset(found)
        found |= set(result.text.split())
    return frozenset(found)


def remove(kind: Sequence[str], names: Sequence[str]) -> None:
    """Removes what is still there of `names`; whether it worked is asked afterwards."""
    for start in range(0, len(names), 50):
        call(*kind, *names[start : start + 50], timeout=PATIENCE * 2)
