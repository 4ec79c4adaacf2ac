"""The store through which ranks exchange texts before any backend is open: how they meet there,
and how they leave it."""

from __future__ import annotations

import json
import os
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from trainlib import mpi, rendezvous
from trainlib.errors import PeerLost, StartError
from trainlib.ranks import Ranks

# PrefixStore and rendezvous are public by torch's documentation, but not marked as exported, and
# type checkers see them or not depending on what else they have read.
_dist: Any = dist

#: Seconds in which all ranks have to arrive: machines may load torch from a slow disk.
JOIN_S = 120

#: Seconds in which all ranks have to answer each other before training: files may be slow.
_ANSWER_S = 600


class RankStore:
    """A key-value store that all ranks reach, served by rank 0 (or by torchrun's agent).

    Raises:
        StartError: The ranks do not find each other.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._rounds = 0
        self._store = _connect(ranks)

    def exchange(self, text: str) -> list[str]:
        """One text per rank, in the order of the ranks. Raises PeerLost."""
        self._rounds += 1
        key = f"trainlib/{self._rounds}"
        try:
            self._store.set(f"{key}/{self._ranks.rank}", text)
            if self._ranks.rank == 0:
                parts = [
                    self._store.get(f"{key}/{rank}").decode() for rank in range(self._ranks.world)
                ]
                self._store.set(f"{key}/all", json.dumps(parts))
                return parts
            answer: list[str] = json.loads(self._store.get(f"{key}/all"))
            return answer
        except RuntimeError as error:  # what all errors of torch's stores derive from
            raise PeerLost(
                f"rank {self._ranks.rank} timed out waiting for the other ranks",
                "look for the first error of another rank",
            ) from error

    def leave_last(self) -> None:
        """Rank 0 holds the store: one that leaves while others still read takes their connection
        away, and torch fills the output with frames instead of the one line that matters."""
        self._rounds += 1
        keys = [f"trainlib/{self._rounds}/{rank}" for rank in range(self._ranks.world)]
        try:
            self._store.set(keys[self._ranks.rank], "read")
            if self._ranks.rank == 0:
                self._store.wait(keys, timedelta(seconds=5))
        except RuntimeError as error:
            raise PeerLost(
                "a rank left early", "look for the first error of another rank"
            ) from error

    def make_part(self, name: str) -> Any:
        """A store of torch's own within this one, for a process group."""
        return _dist.PrefixStore(name, self._store)


def _connect(ranks: Ranks) -> Any:
    """Torch's store, reached at MASTER_ADDR and MASTER_PORT, which are set if they were not."""
    address, port = rendezvous.find_master(ranks, agree_port=lambda: _agree_port(ranks))
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address, str(port)
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        interface = rendezvous.find_interface(address)
        # A name that means loopback on its own host would mislead the ranks of other hosts.
        if interface and (ranks.one_host or not interface.startswith("lo")):
            os.environ["GLOO_SOCKET_IFNAME"] = interface
    try:
        handler = _dist.rendezvous(
            "env://", ranks.rank, ranks.world, timeout=timedelta(seconds=JOIN_S)
        )
        store = next(handler)[0]
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StartError(
            f"rank {ranks.rank} on {socket.gethostname()} cannot connect to the others at "
            f"{address}:{port} ({reason})",
            "check that MASTER_ADDR is rank 0's host and that MASTER_PORT is free and reachable",
        ) from error
    store.set_timeout(timedelta(seconds=_ANSWER_S))
    return store


def _agree_port(ranks: Ranks) -> int | None:
    """A free port picked by rank 0, told through MPI; None where MPI does not work."""
    if mpi.find_launch_problem(ranks) or mpi.find_import_problem():
        return None
    try:
        world = mpi.start(ranks).COMM_WORLD
    except StartError:
        return None
    port: int = world.bcast(rendezvous.find_free_port() if ranks.rank == 0 else 0, root=0)
    return port
