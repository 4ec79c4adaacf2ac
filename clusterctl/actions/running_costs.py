"""Says what goes on costing money after a command that did not finish."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from clusterctl.charge_model import Charge
from clusterctl.errors import ClusterctlError, ProviderError
from clusterctl.formats import count, format_time
from clusterctl.insight import cost
from clusterctl.model import Cluster, Phase, Reporter
from clusterctl.node_results import shorten
from clusterctl.providers.protocol import Ended
from clusterctl.providers.shared.charges import SHOWN


def report_left(cluster: Cluster, report: Reporter, done: str = "removed", verb: str = "") -> None:
    """After a removal or `stop` that broke off: what may run, as far as the record tells."""
    running = {item.node for item in cluster.charges if item.until is None}
    if running:
        end = f", until {format_time(cluster.deadline)}" if cluster.deadline else ""
        report(
            f"not everything was {done}: up to {count(len(running), 'machine')} may keep running"
            f" {describe_rate(cluster.charges)}{end}; `clusterctl {verb or cluster.end}"
            f" {cluster.name}` continues"
        )


def report_unknown(cluster: Cluster, why: ClusterctlError, report: Reporter) -> None:
    """After an `up` that broke off, where the cloud does not say what it has made."""
    running = {item.node for item in cluster.charges if item.until is None}
    end = f", until {format_time(cluster.deadline)}" if cluster.deadline else ""
    report(
        f"what runs now is unknown ({why.message}): up to {count(len(running), 'machine')}"
        f" {describe_rate(cluster.charges)}{end}; `clusterctl up {cluster.name}` continues,"
        f" `clusterctl down {cluster.name}` removes it"
    )


def describe_doubts(
    cluster: Cluster, ends: Mapping[str, Ended], charges: Sequence[Charge], now: float
) -> tuple[str, ...]:
    """What is not certain about `charges`, from the cloud's `ends`. After the deadline, those of an
    `up` that was cut off leave out machines that nobody has seen, and that the cloud would no
    longer show; of machines that an interrupted `stop` may have stopped, it shows only their end.
    """
    doubts = _describe_unknown(ends, charges, now)
    end = cluster.deadline
    if end is None or now <= end or any(item.until is None for item in charges):
        return doubts
    told = {name for name, one in ends.items() if one.ran is not None}
    if cluster.stopping and not told.issuperset(node.name for node in cluster.nodes):
        return (
            *doubts,
            f"`stop` of cluster {cluster.name} was interrupted, and AWS no longer shows what it has"
            " stopped: the costs assume that all machines ran until they ended",
        )
    unfinished = cluster.phase in (Phase.CREATING, Phase.DELETING)
    seen = {item.node for item in charges}
    missing = [i for i in cluster.charges if i.until is None and i.node not in seen]
    if cluster.stopping or not unfinished or now < end + SHOWN or not missing:
        return doubts
    exact, names = cost.is_exact(missing), shorten(sorted({item.node for item in missing}))
    most = f" (up to ${cost.sum_dollars(missing, end):.2f})" if exact else ""
    return (
        *doubts,
        f"`up` of cluster {cluster.name} was interrupted, and AWS shows machines for only about an"
        f" hour after their end: the costs do not include {names}{most}, which may have run",
    )


def _describe_unknown(
    ends: Mapping[str, Ended], charges: Sequence[Charge], now: float
) -> tuple[str, ...]:
    """Machines of which nobody tells when they ended."""
    whose = {name: end.doubt for name, end in ends.items() if end.doubt}
    if not whose:
        return ()
    most = "assume the latest possible time"
    if cost.is_exact(charges):
        most = f"are up to ${cost.sum_dollars(charges, now):.2f}"
    return (
        f"the end of {shorten(sorted(whose))} is unknown: EC2 no longer shows it, and CloudTrail"
        f" has not told it ({next(iter(whose.values()))}); the costs {most}",
    )


def describe_rate(charges: Sequence[Charge]) -> str:
    """`at $1.10/h`, or `for at least $1.10/h` where a price is unknown."""
    least = any(item.hourly is None and item.until is None for item in charges)
    return f"{'for at least' if least else 'at'} ${cost.sum_hourly(charges):.2f}/h"


@contextmanager
def report_failure(cluster: Cluster, report: Reporter, what: str) -> Iterator[None]:
    """Around what changes nothing if the cloud refuses or does not answer: says then what goes on
    costing money. `what`: of `was not changed`, say."""
    try:
        yield
    except ProviderError:
        if cluster.charges:
            report_price(cluster, report, what)
        raise


def report_price(cluster: Cluster, report: Reporter, what: str = "nothing was removed") -> None:
    end = f" until {format_time(cluster.deadline)}" if cluster.deadline else ""
    rate = describe_rate(cluster.charges)
    goes_on = f"machines keep running {rate}"
    if cluster.phase is Phase.STOPPED:
        goes_on = f"{cost.describe_stored(cluster.charges)} keep costing {rate.partition(' ')[2]}"
    report(f"{what}: the {goes_on}{end}")
