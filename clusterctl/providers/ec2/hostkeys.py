"""Host keys: known before the first connection, then replaced by keys that never left the node.

The key that a node boots with is made here and delivered in user data, which anybody who may
describe the instance can read. So a new one is made on the node over that first, verified
connection. The order of the steps keeps every node reachable after a kill between any two:

    1. the node makes the new pair and prints its public half; its sshd still shows the old key
    2. known_hosts takes both, in one atomic write
    3. the node's sshd switches
    4. a new connection proves the new key; then known_hosts forgets the old one
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from clusterctl import assets, keys
from clusterctl.errors import ClusterctlError, NodeUnreachable
from clusterctl.model import Node, NodeResult
from clusterctl.state.home import write_atomic
from clusterctl.transport.fold import fold
from clusterctl.transport.known_hosts import host_name
from clusterctl.transport.pool import Pool

STEP_TIMEOUT = 60.0
ATTEMPT = 10.0
PAUSE = 0.3
"""Seconds that one attempt to connect may take, and between two."""

Known = dict[str, tuple[str, ...]]
"""By node: the public keys that it may show, the newest last."""


class HostKeys:
    """The host keys of a cluster's nodes, in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "ec2" / "host-keys.json"
        self.known_hosts = folder / "ssh" / "known_hosts"

    @property
    def known(self) -> Known:
        try:
            return {
                name: tuple(lines) for name, lines in json.loads(self._file.read_text()).items()
            }
        except FileNotFoundError:
            return {}

    @property
    def booting(self) -> frozenset[str]:
        """Nodes that still show, or may show, the key that they were made with."""
        folder = self._folder / "ec2" / "boot-keys"
        return frozenset(path.stem for path in folder.glob("*.pub"))

    def boot(self, names: Sequence[str], living: Collection[str]) -> dict[str, keys.KeyPair]:
        """The pairs that these nodes boot with. What was known of a namesake of a node that is not
        `living` is void: its machine will be a new one."""
        known = self.known
        pairs = {}
        for name in names:
            path = self._boot(name)
            fresh = name not in living
            if fresh and name in known and known[name] != (_public(path),):
                self._drop_boot(name)
            public = keys.ensure(path)
            if fresh:
                known[name] = (public,)
            pairs[name] = keys.KeyPair(path.read_text(), public)
        self._save(known)
        return pairs

    def forget(self, names: Sequence[str]) -> None:
        """Drops nodes that are gone."""
        for name in names:
            self._drop_boot(name)
        self._save({name: known for name, known in self.known.items() if name not in names})

    def write(
        self, nodes: Sequence[Node], known: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """known_hosts for these nodes, where they are now."""
        known = self.known if known is None else known
        lines = [
            f"{host_name(node.address, node.ssh_port)} {key}\n"
            for node in nodes
            for key in known.get(node.name, ())
        ]
        self.known_hosts.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomic(self.known_hosts, "".join(lines).encode())

    def rotate(self, nodes: Sequence[Node]) -> dict[str, str]:
        """Steps 1 to 4 for nodes that boot with keys of ours; returns every node's final key.

        Nodes that have been through are not asked. Raises NodeUnreachable naming those that fail.
        """
        pending = [node for node in nodes if self._boot(node.name).exists()]
        names = [node.name for node in pending]
        if names:
            with self.pool(nodes) as pool:
                printed = _all(pool.run(_sh(), names, stdin=_step("prepare"), timeout=STEP_TIMEOUT))
                new = {result.node: result.text.strip() for result in printed}
                known = self.known
                both = {
                    name: tuple(dict.fromkeys((*known.get(name, ()), key)))
                    for name, key in new.items()
                }
                self._save({**known, **both})
                self.write(nodes)
                _all(pool.run(_sh(), names, stdin=_step("switch"), timeout=STEP_TIMEOUT))
            final = {**self.known, **{name: (key,) for name, key in new.items()}}
            self._prove(nodes, names, final)
            self._save(final)
            self.write(nodes)
            for name in names:
                self._drop_boot(name)
        return {node.name: self.known[node.name][-1] for node in nodes}

    def _prove(
        self, nodes: Sequence[Node], names: Sequence[str], final: Mapping[str, Sequence[str]]
    ) -> None:
        """Connects with the new keys alone, in a file beside the one that counts."""
        beside = HostKeys(self._folder)
        beside.known_hosts = self.known_hosts.with_name("known_hosts.new")
        beside.write(nodes, final)
        with beside.pool(nodes) as pool:
            _all(pool.connect(names, timeout=STEP_TIMEOUT))
        beside.known_hosts.unlink()

    def wait(
        self, nodes: Sequence[Node], *, limit: float, on_up: Callable[[str, float], None]
    ) -> None:
        """Until every node answers over SSH with a key that we know. What may pass by itself is
        tried again for `limit` seconds; a wrong key is not. Raises NodeUnreachable."""
        began = time.monotonic()
        waiting = [node.name for node in nodes]
        with self.pool(nodes) as pool:
            while waiting:
                failed: list[NodeResult] = []

                def attempt(name: str) -> NodeResult:
                    try:
                        pool.transport(name).connect(ATTEMPT)
                    except ClusterctlError as error:
                        if not error.transient:
                            raise
                        return NodeResult(node=name, error=getattr(error, "what", error.message))
                    on_up(name, time.monotonic() - began)
                    return NodeResult(node=name, exit_code=0)

                results = pool.each(attempt, waiting)
                failed = [result for result in results if not result.ok]
                waiting = [result.node for result in failed]
                late = time.monotonic() - began > limit
                final = [result for result in failed if _is_final(result)]
                if failed and (late or final):
                    raise NodeUnreachable(
                        "; ".join(fold(final or failed))
                        + ("" if final else f" (waited {limit:g} s for the machine to boot)"),
                        hint="`clusterctl up` tries again, `clusterctl down` removes the cluster",
                        transient=not final,
                    )
                if waiting:
                    time.sleep(PAUSE)

    def pool(self, nodes: Sequence[Node]) -> Pool:
        return Pool(nodes, identity=self._folder / "ssh" / "user", known_hosts=self.known_hosts)

    def _boot(self, name: str) -> Path:
        return self._folder / "ec2" / "boot-keys" / name

    def _drop_boot(self, name: str) -> None:
        path = self._boot(name)
        path.unlink(missing_ok=True)
        path.with_name(f"{name}.pub").unlink(missing_ok=True)

    def _save(self, known: Mapping[str, Sequence[str]]) -> None:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps({name: list(lines) for name, lines in known.items()})
        write_atomic(self._file, text.encode())


def _public(path: Path) -> str:
    try:
        return path.with_name(path.name + ".pub").read_text().strip()
    except FileNotFoundError:
        return ""


def _sh() -> str:
    return "exec sudo -n /bin/sh -s"


def _step(name: str) -> bytes:
    return assets.render("ec2/hostkey.sh.j2", step=name).encode()


def _is_final(result: NodeResult) -> bool:
    return "host key" in result.error


def _all(results: Sequence[NodeResult]) -> Sequence[NodeResult]:
    failed = [result for result in results if not result.ok]
    if failed:
        raise NodeUnreachable(
            f"the host keys cannot be renewed: {'; '.join(fold(failed))}",
            hint="`clusterctl up` goes on where it stopped",
            transient=True,
        )
    return results
