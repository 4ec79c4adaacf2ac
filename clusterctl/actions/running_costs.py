"""What a cluster costs by what is seen of it, and what is said of that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from clusterctl.core.errors import ClusterctlError, ProviderError
from clusterctl.core.model import NETWORK_PARTS, Charge, Cluster, Phase, Reporter, shorten
from clusterctl.core.text import count, format_time
from clusterctl.insight import cost


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


def list_machines(charges: Iterable[Charge]) -> tuple[str, ...]:
    """The nodes whose machines cost money, or their disks."""
    there = (i.node for i in charges if i.until is None and i.part not in NETWORK_PARTS)
    return tuple(sorted(set(there)))


def describe_doubts(cluster: Cluster, now: float) -> tuple[str, ...]:
    """What nobody saw of what is counted, and so is the most that it can be."""
    charges = cluster.charges
    unseen = [item for item in charges if item.unseen]
    ended = sorted({item.node for item in unseen if item.thing})
    planned = sorted({item.node for item in unseen if not item.thing})
    if not unseen:
        return ()
    what = [f"when {shorten(ended)} ended"] if ended else []
    what += [f"whether {shorten(planned)} was created"] if planned else []
    most = "assume the latest possible time"
    if cost.is_exact(charges):
        most = f"are at most ${cost.sum_dollars(charges, now):.2f}"
    return (f"nobody saw {' and '.join(what)} (cluster {cluster.name}): the costs {most}",)


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
