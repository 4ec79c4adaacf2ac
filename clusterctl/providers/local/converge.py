"""Makes the nodes be exactly those that are wanted: keeps what is healthy, replaces the rest.

What there is, is read from the processes themselves and from the kernel, never from a record: so it
does not matter where an earlier attempt was interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from clusterctl.errors import ProviderError
from clusterctl.providers.local import cleanup, node_processes, processes, sshd
from clusterctl.providers.local.layout import SWITCH, Place, Site
from clusterctl.providers.local.node_processes import NodeProcess
from clusterctl.providers.local.processes import Process
from clusterctl.providers.shared.sshd_probe import Endpoint, probe

_ATTEMPTS = 3
"""A loopback port that was free a moment ago may be taken when sshd wants it."""


class Network(Protocol):
    """What differs between namespaces and loopback."""

    def adopt(self, found: Sequence[Process]) -> bool:
        """Takes over what nodes share from an earlier start; False: it is missing or half-made."""

    def renew(self) -> None:
        """Gets ready to make it; all processes of an earlier start are gone."""

    def prune(self, kept: Sequence[Process]) -> None:
        """Disconnects all nodes but those of the processes that are kept."""

    def listen(self, place: Place) -> tuple[Endpoint, ...]:
        """Where a node's sshd listens; the first is where others reach it."""

    def build_commands(self, places: Sequence[Place]) -> dict[str, list[str]]:
        """What to start for these nodes; each command waits for a line on its standard input."""

    def write_files(self, places: Sequence[Place]) -> None:
        """Writes the files of all wanted nodes that depend on who is there."""

    def connect(self, started: Mapping[str, NodeProcess]) -> None:
        """Connects what has been started, before it gets its line."""


@dataclass(frozen=True, slots=True)
class Outcome:
    endpoints: dict[str, Endpoint]
    host_keys: dict[str, str]
    started: tuple[str, ...]
    removed: tuple[str, ...]


def converge(site: Site, network: Network, names: Sequence[str], server: sshd.Server) -> Outcome:
    """Raises ProviderError, naming the node, where one cannot be started."""
    site.nodes.mkdir(mode=0o700, exist_ok=True)
    sshd.make_scratch(site)
    places = {name: site.locate(name) for name in names}
    kept = _keep_healthy(site, network, places)
    surplus = cleanup.find_surplus(site, names)
    for place in surplus:
        cleanup.remove_node(place)
    started = tuple(name for name in names if name not in kept)
    host_keys: dict[str, str] = {}
    missing = {name: places[name] for name in started}
    for attempt in range(1, _ATTEMPTS + 1):
        troubles = _start(site, network, places, missing, server, host_keys)
        if not troubles:
            break
        _end(site, set(troubles))
        if attempt == _ATTEMPTS:
            name, trouble = next((name, troubles[name]) for name in names if name in troubles)
            raise ProviderError(
                f"{name} could not be started: {trouble}", hint=f"see {places[name].log}"
            )
        missing = {name: places[name] for name in troubles}
    endpoints = {name: network.listen(place)[0] for name, place in places.items()}
    return Outcome(endpoints, host_keys, started, tuple(place.name for place in surplus))


def _end(site: Site, nodes: set[str]) -> None:
    processes.end(site, lambda process: process.node in nodes, seconds=2)


def _keep_healthy(site: Site, network: Network, places: Mapping[str, Place]) -> set[str]:
    """The nodes that stay; every other process of the cluster is ended."""
    found = processes.scan(site)
    kept: set[str] = set()
    whole = network.adopt(found)
    if whole:
        present = {process.node for process in found}
        candidates = {
            name: network.listen(place)[0]
            for name, place in places.items()
            if name in present
            and place.host_key.exists()
            and sshd.has_scratch(place)
            and sshd.read_endpoint(place) == network.listen(place)[0]
        }
        answers = probe(candidates, seconds=1)
        kept = {name for name, trouble in answers.items() if not trouble}
    stay = {*kept, SWITCH, ""} if whole else set()
    if left := processes.end(site, lambda process: process.node not in stay, seconds=2):
        raise ProviderError(
            f"process {left[0].pid} ({left[0].command}) of an earlier start cannot be ended",
            hint="check what it is waiting for, and try again",
        )
    if whole:
        network.prune([process for process in found if process.node in kept])
    else:
        network.renew()
    return kept


def _start(
    site: Site,
    network: Network,
    places: Mapping[str, Place],
    missing: Mapping[str, Place],
    server: sshd.Server,
    host_keys: dict[str, str],
) -> dict[str, str]:
    """Starts the missing nodes and completes the files of all; returns what went wrong, by node."""
    for place in missing.values():
        place.folder.mkdir(mode=0o700, exist_ok=True)
        place.pid_file.unlink(missing_ok=True)
    everyone = list(places.values())
    authorized = "".join(
        (site.folder / "ssh" / key).read_text().strip() + "\n" for key in ("user.pub", "mesh.pub")
    )
    commands = network.build_commands(list(missing.values()))
    with node_processes.start_waiting(site, commands) as started:
        for name, place in places.items():
            host_keys[name] = sshd.write_files(place, authorized)
        network.write_files(everyone)
        for place in missing.values():
            # A node that starts anew numbers its processes anew, and mpirun's daemons refuse to
            # start where a namesake of an earlier life has left its folder.
            sshd.clear(place.scratch)
            text = sshd.render_config(
                place, site.make_tag(place.name), network.listen(place), server
            )
            sshd.rewrite(place.config, text)
        network.connect(started)
    troubles = node_processes.wait_until_listening(missing, started)
    reached = probe(
        {name: network.listen(missing[name])[0] for name in missing if name not in troubles},
        seconds=5,
    )
    return troubles | {name: trouble for name, trouble in reached.items() if trouble}
