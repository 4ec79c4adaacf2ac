"""Measures the links between the nodes of a cluster, for `verify`, as far as there is time."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from clusterctl.actions.probes import LEAST, NO_TIME, Probes
from clusterctl.insight import verify
from clusterctl.insight.figures import LeftOut, Link
from clusterctl.model import Cluster
from clusterctl.timeouts import Deadline

FLOWS = (1, 4)
SHORTEST = 0.01
"""Seconds of each flow where there are many links."""
PATIENCE = 5.0
"""Seconds for a connection."""

Pair = tuple[str, str]


def measure(
    cluster: Cluster, probes: Probes, seconds: float, deadline: Deadline
) -> tuple[tuple[Link, ...], tuple[LeftOut, ...]]:
    """All pairs, in rounds in which no node has two partners; nodes of one machine pair by pair.
    Only the first of them where there is no time for all."""
    turns: Sequence[Sequence[Pair]] = verify.pair_up(probes.names)
    if probes.shared:
        turns = [[pair] for turn in turns for pair in turn]
    found: list[Link] = []
    left_out: list[str] = []
    for number, turn in enumerate(turns):
        # Either side may be silent by now.
        pairs = [pair for pair in turn if not set(pair) & set(probes.failed)]
        if deadline.passed:
            left_out += [f"{a} – {b}" for a, b in turn]
            continue
        # Four times as long as one flow, and the connections.
        brief = max(SHORTEST, min(seconds, deadline.left / (len(turns) - number) / 5))
        patience = min(PATIENCE, max(LEAST, deadline.left / 2))
        found += _measure_turn(cluster, probes, pairs, brief, patience)
    more = (LeftOut("link", tuple(left_out), NO_TIME),) if left_out else ()
    return tuple(found), more


def _measure_turn(
    cluster: Cluster, probes: Probes, turn: Sequence[Pair], seconds: float, patience: float
) -> list[Link]:
    token = secrets.token_hex(8)
    address = {name: cluster.node(name).private_address for pair in turn for name in pair}
    given: dict[str, Any] = {
        **{"token": token, "flows": FLOWS, "seconds": seconds, "patience": patience}
    }
    for first, _ in turn:
        probes.send(first, "serve", address=address[first], **given)
    ports = {first: probes.read_answer(first) for first, _ in turn}
    called = [(first, second) for first, second in turn if "port" in ports[first]]
    for first, second in called:
        where = {"address": address[first], "port": ports[first]["port"]}
        probes.send(second, "call", **where, **given)
    answers = {pair: (probes.read_answer(pair[1]), probes.read_answer(pair[0])) for pair in called}
    found = []
    for pair in turn:
        call, served = answers.get(pair, (ports[pair[0]], {}))
        error = call.get("error") or served.get("error")
        if error:
            found.append(Link(*pair, error=f"no connection: {error}"))
        else:
            flow, rate = served["rates"]
            found.append(Link(*pair, call["latency"], flow, max(flow, rate), call["back"]))
    return found
