"""What machines have cost that ended, or were never made, without anybody having been told."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.actions import status as actions_status
from clusterctl.actions.common import open_store
from clusterctl.actions.down import finish_down
from clusterctl.actions.outputs import describe_loss
from clusterctl.core.model import GATEWAY, Charge, Cluster, Phase, Thing
from clusterctl.errors import LeftoverError, ProviderError
from clusterctl.machines.protocol import Cloud
from tests.unit.calling import Call
from tests.unit.making import cluster
from tests.unit.provided import provide

NOW = 1.7e9
HOUR = 3600.0


def clock() -> float:
    """It stands still: minutes may pass before a test has its turn."""
    return NOW


def charge(name: str, **changes: object) -> Charge:
    """A dollar an hour, for three days."""
    made = Charge(
        node=name, part="instance", item="x", hourly=1.0, source="", since=NOW - 72 * HOUR
    )
    return replace(made, **changes)


def forgotten(**changes: object) -> Cluster:
    """A cluster that was made three days ago, for eight hours."""
    made = cluster(
        charges=tuple(map(charge, ("launcher", "worker-1", "worker-2"))), deadline=NOW - 64 * HOUR
    )
    return replace(made, **changes)


class Ends(Cloud):
    """A provider that bills these nodes, and takes everything down."""

    def __init__(self, *living: str, away: bool = False, gateway: bool = False) -> None:
        self.living, self.away = living, away
        self.gateways = (Thing(id="nat-1", node="launcher", part=GATEWAY, lasts=True),) * gateway

    def list_things(self, cluster: Cluster, folder: Path) -> list[Thing]:
        if self.away:
            raise ProviderError("asking for instances: AWS did not answer")
        since = NOW - 72 * HOUR
        return [*(Thing(id=f"i-{n}", node=n, since=since) for n in self.living), *self.gateways]

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        return {node.name: "terminated" for node in cluster.nodes}

    def destroy(self, cluster: Cluster, *more: object) -> None:
        self.living = ()


def shown(
    monkeypatch: pytest.MonkeyPatch, provider: Ends, **changes: object
) -> tuple[float, float, str]:
    """What `status` says: money so far and per hour, and its warnings."""
    provide(monkeypatch, "ec2", provider)
    found = actions_status.read_status(open_store(), forgotten(**changes), clock=clock)
    return round(found.dollars), found.dollars_per_hour, "".join(found.warnings)


def test_status_asks_nobody_before_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, Ends(away=True), deadline=NOW + HOUR) == (3 * 72, 3.0, "")


@pytest.mark.parametrize(
    "changes", [{"phase": Phase.CREATING}, {"phase": Phase.DELETING}, {"stopping": True}], ids=str
)
def test_what_an_interrupted_command_has_left_is_asked_for(
    changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record has what was planned: the cloud knows what there is, or that is said."""
    dollars, rate, said = shown(
        monkeypatch, Ends("launcher", "worker-1"), deadline=NOW + HOUR, **changes
    )
    assert rate == 2.0
    assert ("`clusterctl stop lab` completes it" in said) == ("stopping" in changes)
    dollars, rate, said = shown(monkeypatch, Ends(away=True), deadline=NOW + HOUR, **changes)
    assert (dollars, rate) == (3 * 72, 3.0)
    assert "it is unknown which machines of cluster lab are running (" in said
    assert "AWS did not answer" in said


def test_status_says_whether_its_figures_are_those_of_the_record(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spot instance may be gone since."""
    end = time.time() + HOUR
    made = forgotten(deadline=end)
    for provider, words, by_record in (
        (Ends("launcher", "worker-1"), (), True),
        (Ends("launcher", "worker-1"), ("--live",), False),
        (Ends(away=True), (), True),
    ):
        provide(monkeypatch, "ec2", provider)
        open_store().save(made)
        assert ("/h, from the record)" in call("status", *words).out) is by_record
        source = call("status", "--json", *words).document["money_from"]
        assert source == ("record" if by_record else "provider")


def test_machines_that_ended_at_the_deadline_cost_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """But two minutes at the latest, for nobody saw that they had."""
    dollars, rate, said = shown(monkeypatch, Ends())
    assert (dollars, rate) == (3 * 8, 0.0)
    assert said == (
        "nobody saw whether launcher,worker-[1-2] was created (cluster lab): the costs are at most"
        " $24.10"
    )


def test_machines_that_outlive_the_deadline_are_named_and_paid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who bills them is asked: the record would say that they cost nothing."""
    dollars, rate, said = shown(monkeypatch, Ends("worker-1", "worker-2"))
    assert (dollars, rate) == (2 * 72 + 8, 2.0)
    assert "still costs $2.0000/h (worker-[1-2]): `clusterctl down lab` removes it" in said


def test_a_bill_that_cannot_be_asked_for_is_not_shown_as_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dollars, rate, said = shown(monkeypatch, Ends(away=True))
    assert (dollars, rate) == (3 * 72, 3.0)
    assert "are running (asking for instances: AWS did not answer)" in said


def test_list_warns_of_machines_that_outlive_the_deadline(
    monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    provide(monkeypatch, "ec2", Ends("worker-1"))
    for name in ("lab", "hall"):
        open_store().save(forgotten(spec=cluster(name=name).spec))
    said = call("list")
    assert "1.00" in said.out
    assert re.findall(r"cluster (\w+) has passed, but", said.err) == ["hall", "lab"]


def test_a_nat_gateway_that_outlives_the_machines_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    both = (charge("launcher"), charge("launcher", part=GATEWAY, hourly=0.05))
    dollars, rate, said = shown(monkeypatch, Ends(gateway=True), charges=both)
    assert (dollars, rate) == (8 + 4, 0.05), "72 hours of it"
    assert "still costs $0.0500/h (its NAT gateway): `clusterctl down lab` removes it" in said


def test_many_jobs_with_outputs_take_few_lines() -> None:
    assert describe_loss([], {}) == []
    few = describe_loss([(3, 2_000_000), (1, 10)], {})
    assert few == [
        "job 1 has unfetched outputs: 10 B",
        "job 3 has unfetched outputs: 2.0 MB",
    ]
    many = describe_loss([(number, number * 1000) for number in range(1, 21)], {})
    assert [line.split()[1] for line in many[:-1]] == ["16", "17", "18", "19", "20"]
    assert many[-1] == "15 more jobs with smaller ones: 120.0 kB together"


@pytest.mark.parametrize(
    "why",
    [ProviderError("your AWS credentials have expired"), LeftoverError("1 VPC still exists")],
    ids=["refused", "left over"],
)
def test_a_removal_that_breaks_off_says_what_it_goes_on_costing(
    why: ProviderError, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Ends):
        def destroy(self, cluster: Cluster, *more: object) -> None:
            raise why

    provide(monkeypatch, "ec2", Refusing("launcher", "worker-1", "worker-2"))
    told: list[str] = []
    open_store().save(forgotten())
    with pytest.raises(type(why)):
        finish_down(open_store(), forgotten(), told.append, clock=clock)
    [line] = told
    assert "up to 3 machines may keep costing $3.00/h" in line
    assert line.endswith("`clusterctl down lab` continues")
    assert len(open_store().read_cluster("lab").charges) == 3, "the receipt is written before"


def test_an_unknown_price_makes_every_figure_a_lower_bound(
    monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """In what `status` and `list` show, and in the last line of `down`."""
    dark = tuple(charge(name, hourly=None) for name in ("launcher", "worker-1"))
    cloud = Ends("launcher", "worker-1")
    provide(monkeypatch, "ec2", cloud)
    open_store().save(forgotten(charges=(*dark, charge("worker-2")), deadline=None))
    status = call("status")
    said = r"at least \$\d+\.\d\d so far \(at least \$1\.00/h, from the record\)"
    assert re.search(said, status.out), status.out
    assert call("status", "--json").document["unknown_prices"] == ["x"]
    assert ">= 1.00" in call("list").out
    cloud.living = ()
    assert re.search(r"was removed: .*, at least \$\d", call("down", "--yes", "--force").err)
