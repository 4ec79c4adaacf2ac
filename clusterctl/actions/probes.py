"""Processes on the workers that measure what they are told, for `verify`."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from clusterctl import assets
from clusterctl.errors import describe_reason
from clusterctl.model import Cluster, Node, NodeResult
from clusterctl.timeouts import Deadline
from clusterctl.transport import Channel
from clusterctl.transport.pool import Pool

MARK = b"@@probe "
PROGRAM = ("insight/probe_links.py", "insight/probe.py")
CONNECT, ANSWER = 6.0, 20.0
"""Seconds for connections, and for one answer of a probe."""
LEAST = 0.5
"""Seconds that even a late answer is waited for."""
SLACK = 1.0
"""Seconds that a probe has to tell that its helper did not answer in time."""

NO_TIME = "no time left"

Answer = dict[str, Any]


def list_machines(cluster: Cluster) -> set[str]:
    """The machines that the workers are, by their boot ids."""
    if cluster.shares_machine:
        return {cluster.name}
    return {node.facts.boot_id or node.name for node in cluster.workers}


class Probes:
    """A process on each worker (templates/insight/probe.py), which ends with its connection. Those
    that fail are in `failed`, and are asked no more."""

    def __init__(self, cluster: Cluster, pool: Pool, deadline: Deadline) -> None:
        self._cluster, self._pool, self.deadline = cluster, pool, deadline
        self._channels: dict[str, Channel] = {}
        self._buffers: dict[str, bytearray] = {}
        self.failed: dict[str, str] = {}
        self.one_host = cluster.one_host
        machines = list_machines(cluster)
        self.shared = len(machines) < len(cluster.workers)
        """Some of the nodes are one machine, and would disturb each other."""

    def __enter__(self) -> Probes:
        folder = assets.find_folder("templates")
        code = base64.b64encode(b"".join((folder / part).read_bytes() for part in PROGRAM))

        def start(name: str) -> NodeResult:
            transport = self._pool.find_transport(name)
            transport.connect(CONNECT)
            command = _render_command(self._cluster.node(name))
            channel = transport.open(command, timeout=self.limit_seconds(ANSWER))
            self._channels[name], self._buffers[name] = channel, bytearray()
            channel.send(code + b"\n", self.limit_seconds(ANSWER))
            return NodeResult(node=name, exit_code=0)

        for node in self._cluster.workers:
            if not node.python:
                self.failed[node.name] = "no Python is installed"
        names = [node.name for node in self._cluster.workers if node.python]
        # What a dead node takes must not be missing for the others.
        with self.deadline.pause():
            results = self._pool.call_each(start, names)
        self.failed.update({result.node: result.error for result in results if result.error})
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels.values():
            channel.close()

    @property
    def names(self) -> list[str]:
        return [n.name for n in self._cluster.workers if n.name not in self.failed]

    def limit_seconds(self, most: float) -> float:
        """For one answer; never so few that a node has no chance."""
        return max(LEAST, min(most, self.deadline.left))

    def send(self, name: str, action: str, **values: Any) -> None:
        if name in self.failed:
            return
        try:
            line = json.dumps({"do": action, **values}).encode() + b"\n"
            self._channels[name].send(line, self.limit_seconds(ANSWER))
        except OSError as error:
            self.failed[name] = describe_reason(error) or "the connection is lost"

    def read_answer(self, name: str, most: float = ANSWER) -> Answer:
        """Its next answer; {"error": why} where there is none."""
        deadline = Deadline(most)
        while name not in self.failed:
            buffer = self._buffers[name]
            line, newline, rest = bytes(buffer).partition(b"\n")
            if newline:
                buffer[:] = rest
                if MARK in line:
                    found: Answer = json.loads(line.partition(MARK)[2])
                    return found
                continue  # what a login shell says
            try:
                data = self._channels[name].receive(max(0.1, deadline.left))
            except TimeoutError:
                self.failed[name] = f"no answer in {deadline.seconds:.2g} s"
            except OSError as error:
                self.failed[name] = describe_reason(error) or "the connection is lost"
            else:
                if not data:
                    self.failed[name] = "its Python process ended"
                buffer += data
        return {"error": self.failed[name]}

    def ask(
        self, asked: Mapping[str, Mapping[str, Any]], action: str, most: float = ANSWER
    ) -> dict[str, Answer]:
        """One question to several nodes at once, each with values of its own. With a `limit` among
        these, a process of its own answers it within so many seconds."""
        for name, values in asked.items():
            self.send(name, action, **values)
        until = Deadline(self.limit_seconds(most))
        found = {}
        for name, values in asked.items():
            wait = values["limit"] + SLACK if "limit" in values else until.left
            found[name] = self.read_answer(name, wait)
        return found

    def plan_turns(self, names: Sequence[str]) -> list[list[str]]:
        """Who is measured at once: all, or one after the other where they share a machine."""
        return [[name] for name in names] if self.shared else [list(names)]


def _render_command(node: Node) -> str:
    """The Python in which ranks run: in the node's container where it has one."""
    program = (
        "import sys; sys.path = [p for p in sys.path if p];"
        " import base64; exec(base64.b64decode(sys.stdin.readline()))"
    )
    command = f"exec {shlex.quote(node.python)} -u -c {shlex.quote(program)}"
    if node.job_port == node.ssh_port:
        return command
    agent = shlex.quote(f"{node.root}/bin/clusterctl-ssh")
    return f"exec {agent} {shlex.quote(node.name)} {shlex.quote(command)}"
