"""Host keys: known before the first connection, then replaced by keys that never left the node.

The key that a node boots with is made here and delivered in user data, which anybody who may
describe the instance can read. So a new one is made on the node over that first, verified
connection. The order of the steps keeps every node reachable after a kill between any two:

    1. the node makes the new pair and prints its public half; its sshd still shows the old key
    2. known_hosts takes both, in one atomic write
    3. the node's sshd switches
    4. a new connection proves the new key; then known_hosts forgets the old one

What follows (bootstrap, mesh, the first job) goes over that new connection.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field

from clusterctl.core import assets, keys
from clusterctl.core.clock import now
from clusterctl.core.keys import name_host
from clusterctl.core.model import Node, NodeResult, Reporter, fold
from clusterctl.core.progress import CONNECTED, CONNECTING, NodePhases
from clusterctl.errors import ClusterctlError, NodeUnreachable
from clusterctl.machines.ec2.tunnels import DENIED
from clusterctl.state.files import write_atomic
from clusterctl.transport.pool import Pool
from clusterctl.transport.ssh import SshTransport

STEP_TIMEOUT = 60.0
ATTEMPT = 10.0
"""Seconds that one attempt to connect may take."""

TOLD_AFTER = 30.0
"""Seconds after which it is said which nodes do not answer, and why: most machines boot faster."""

REFUSED = 120.0
"""Seconds after which an sshd that refuses the user is believed: before that, cloud-init may not
have let the user in yet."""

PAUSES = (0.02, 0.5)
"""Seconds between two attempts, at first and later: an sshd that reloads is back in no time."""

_AS_ROOT = "exec sudo -n /bin/sh -s"

_CLOSED = (
    "; check that your own network allows outgoing SSH (port 22): where it does not, make the"
    ' cluster with --instance-connect (docs/ec2.md, "Where SSH is closed")'
)


class _Keys(Struct):
    """By node: the public keys that it may show, the newest last; and the pair that it was made
    with, as long as it still shows that, or may show it."""

    known: dict[str, tuple[str, ...]] = field(default_factory=dict)
    boot: dict[str, keys.KeyPair] = field(default_factory=dict)


class HostKeys:
    """The host keys of a cluster's nodes, in its folder, which has its name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "ec2" / "host-keys.json"
        self.known_hosts = folder / "ssh" / "known_hosts"

    def _read(self) -> _Keys:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=_Keys)
        except (FileNotFoundError, msgspec.DecodeError):
            return _Keys()  # of a file that is damaged we know as little

    def _save(self, kept: _Keys) -> None:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(self._file, msgspec.json.encode(kept))

    @property
    def known(self) -> dict[str, tuple[str, ...]]:
        return self._read().known

    @property
    def booting(self) -> frozenset[str]:
        """Nodes that still show, or may show, the key that they were made with."""
        return frozenset(self._read().boot)

    def make_boot_keys(
        self, names: Sequence[str], living: Collection[str]
    ) -> dict[str, keys.KeyPair]:
        """The pairs that these nodes boot with. What was known of a namesake of a node that is not
        `living` is void: its machine will be a new one."""
        kept = self._read()
        for name in names:
            pair, fresh = kept.boot.get(name), name not in living
            if pair is None or (fresh and kept.known.get(name, (pair.public,)) != (pair.public,)):
                pair = kept.boot[name] = keys.generate()
            if fresh:
                kept.known[name] = (pair.public,)
        self._save(kept)
        return {name: kept.boot[name] for name in names}

    def forget(self, names: Sequence[str]) -> None:
        """Drops nodes that are gone."""
        kept = self._read()
        for name in names:
            kept.known.pop(name, None)
            kept.boot.pop(name, None)
        self._save(kept)

    def write(self, nodes: Sequence[Node]) -> None:
        """known_hosts for these nodes, where they are now."""
        known = self.known
        lines = [
            f"{name_host(node.address, node.ssh_port)} {key}\n"
            for node in nodes
            for key in known.get(node.name, ())
        ]
        self.known_hosts.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomic(self.known_hosts, "".join(lines).encode())

    def settle(
        self,
        nodes: Sequence[Node],
        *,
        limit: float,
        report: Reporter,
        phases: NodePhases | None = None,
    ) -> tuple[dict[str, str], Pool]:
        """Waits up to `limit` seconds until all nodes answer, takes those that boot with keys of
        ours through steps 1 to 4, and returns every node's final key with connections that were
        verified by it: the caller closes them. Raises NodeUnreachable naming the nodes that fail.
        `phases` is told which nodes answer.
        """
        self.write(nodes)
        pool = self.open_pool(nodes)
        try:
            self._wait(pool, [node.name for node in nodes], limit, report, phases or NodePhases())
            self._rotate(pool, nodes)
        except BaseException:
            pool.close()
            raise
        known = self.known
        return {node.name: known[node.name][-1] for node in nodes}, pool

    def _rotate(self, pool: Pool, nodes: Sequence[Node]) -> None:
        """Nodes that have been through are not asked, and keep their connections."""
        kept = self._read()
        names = [node.name for node in nodes if node.name in kept.boot]
        if not names:
            return
        printed = self._require_all(
            pool.run(_AS_ROOT, names, stdin=_render_step("prepare"), timeout=STEP_TIMEOUT)
        )
        new = {result.node: result.text.strip() for result in printed}
        for name, key in new.items():
            kept.known[name] = tuple(dict.fromkeys((*kept.known.get(name, ()), key)))
        self._save(kept)
        self.write(nodes)
        self._require_all(
            pool.run(_AS_ROOT, names, stdin=_render_step("switch"), timeout=STEP_TIMEOUT)
        )
        self._prove(pool, new)
        for name, key in new.items():
            kept.known[name] = (key,)
            del kept.boot[name]
        self._save(kept)
        self.write(nodes)

    def _prove(self, pool: Pool, new: Mapping[str, str]) -> None:
        """Connects anew; nodes have to show the new key. The launcher's connection, which carries
        the others, is the first of them and the last to go."""
        for name in reversed(list(new)):
            pool.find_transport(name).close()
        self._require_all(self._connect(pool, list(new), STEP_TIMEOUT, lambda text: None))

        def check_key(name: str) -> NodeResult:
            transport = pool.find_transport(name)
            assert isinstance(transport, SshTransport)
            if transport.read_host_key() == new[name]:
                return NodeResult(node=name, exit_code=0)
            return NodeResult(node=name, error="sshd still uses the key that it was created with")

        self._require_all(pool.call_each(check_key, list(new)))

    def _wait(
        self, pool: Pool, names: Sequence[str], limit: float, report: Reporter, phases: NodePhases
    ) -> None:
        phases.enter(names, CONNECTING)
        failed = self._connect(pool, names, limit, report, phases)
        final = [result for result in failed if _is_final(result)]
        if failed:
            name = self._folder.name
            silent = any("no answer" in result.error for result in failed)
            refused = any(map(_is_refused, failed))
            error = NodeUnreachable(
                "; ".join(fold(final or failed))
                + ("" if final or refused else f" (waited {limit:g} s for the machine to boot)"),
                hint=f"`clusterctl up {name}` tries again, `clusterctl down {name}` removes the"
                " cluster"
                + _CLOSED * silent
                + "; an --ami that is not Ubuntu has no user `ubuntu`" * refused,
                transient=not final,
            )
            error.cluster = name
            error.nodes = tuple(result.node for result in final or failed)
            raise error

    def _connect(
        self,
        pool: Pool,
        names: Sequence[str],
        limit: float,
        report: Reporter,
        phases: NodePhases | None = None,
    ) -> list[NodeResult]:
        """What may pass by itself (a machine that boots, an sshd that starts anew) is tried again
        for `limit` seconds; a wrong key is not. Returns the nodes that cannot be connected to."""
        began = now()

        def connect_one(name: str) -> NodeResult:
            try:
                pool.find_transport(name).connect(ATTEMPT)
            except ClusterctlError as error:
                if not error.transient:
                    raise
                return NodeResult(node=name, error=getattr(error, "what", error.message))
            report(f"{name}: SSH answers after {now() - began:.1f} s")
            if phases:
                phases.enter([name], CONNECTED)
            return NodeResult(node=name, exit_code=0)

        pause, told, began_refusing = PAUSES[0], "", 0.0
        while True:
            failed = [result for result in pool.call_each(connect_one, names) if not result.ok]
            passed = now() - began
            began_refusing = (began_refusing or passed) if any(map(_is_refused, failed)) else 0.0
            refused = bool(began_refusing) and passed - began_refusing > REFUSED
            if not failed or any(map(_is_final, failed)) or refused or passed > limit:
                return failed
            said = "; ".join(fold(failed))
            if passed >= TOLD_AFTER and said != told:
                report(f"no SSH answer yet, waiting up to {limit:g} s: {said}")
                told = said
            names = [result.node for result in failed]
            time.sleep(pause)
            pause = min(2 * pause, PAUSES[1])

    def _require_all(self, results: Sequence[NodeResult]) -> Sequence[NodeResult]:
        failed = [result for result in results if not result.ok]
        if failed:
            raise NodeUnreachable(
                f"the host keys cannot be renewed: {'; '.join(fold(failed))}",
                hint=f"`clusterctl up {self._folder.name}` continues where it stopped",
                transient=True,
            )
        return results

    def open_pool(self, nodes: Sequence[Node]) -> Pool:
        return Pool(
            nodes,
            identity=self._folder / "ssh" / "user",
            known_hosts=self.known_hosts,
        )


def _render_step(name: str) -> bytes:
    return assets.render("ec2/hostkey.sh.j2", step=name).encode()


def _is_refused(result: NodeResult) -> bool:
    return "sshd refused user" in result.error


def _is_final(result: NodeResult) -> bool:
    return "host key" in result.error or DENIED in result.error
