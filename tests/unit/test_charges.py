"""What machines have cost that ended, or were never made, without anybody having been told."""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.actions import costs, status
from clusterctl.actions import status as actions_status
from clusterctl.actions.common import open_store
from clusterctl.actions.down import finish_down
from clusterctl.actions.outputs import describe_loss
from clusterctl.core.job import JobState
from clusterctl.core.model import GATEWAY, Charge, Cluster, Phase, Thing
from clusterctl.errors import LeftoverError, ProviderError
from clusterctl.insight import cost as insight_cost
from clusterctl.machines.protocol import Cloud
from clusterctl.state.store import Store
from tests.unit import making
from tests.unit.calling import Call
from tests.unit.making import cluster, job, spec
from tests.unit.provided import NothingLeft, provide
from tests.unit.tables import rows

NOW = 1.7e9
HOUR = 3600.0


def clock() -> float:
    """It stands still: minutes may pass before a test has its turn."""
    return NOW


charge = partial(making.charge, since=NOW - 72 * HOUR)
"""A dollar an hour, for three days."""


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


UNSEEN = "nobody saw whether launcher,worker-[1-2] was created (cluster lab): the costs are at most"
NAT = (charge("launcher"), charge("launcher", part=GATEWAY, hourly=0.05))


@pytest.mark.parametrize(
    ("provider", "changes", "money", "warning"),
    [
        (Ends(), {}, (3 * 8, 0.0), f"{UNSEEN} $24.10"),
        (Ends("worker-1", "worker-2"), {}, (2 * 72 + 8, 2.0), "$2.0000/h (worker-[1-2]): {down}"),
        (
            Ends(gateway=True),
            {"charges": NAT},
            (8 + 4, 0.05),
            "$0.0500/h (its NAT gateway): {down}",
        ),
        (Ends(away=True), {}, (3 * 72, 3.0), "(asking for instances: AWS did not answer)"),
    ],
    ids=["ended", "outlives", "gateway", "unknown"],
)
def test_who_bills_machines_is_asked_after_the_deadline(
    provider: Ends,
    changes: dict[str, object],
    money: tuple[float, float],
    warning: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record would say that they cost nothing more. What ended costs two minutes more at the
    latest, for nobody saw that it had."""
    *shows, said = shown(monkeypatch, provider, **changes)
    assert tuple(shows) == money
    assert warning.format(down="`clusterctl down lab` removes it") in said


def test_list_warns_of_machines_that_outlive_the_deadline(
    monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    provide(monkeypatch, "ec2", Ends("worker-1"))
    for name in ("lab", "hall"):
        open_store().save(forgotten(spec=cluster(name=name).spec))
    said = call("list")
    assert "1.00" in said.out
    assert re.findall(r"cluster (\w+) has passed, but", said.err) == ["hall", "lab"]


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


# -------------------------------------------------------------------------------------------------
# `cost` and the dollars of jobs: from records, those of clusters that are gone included.


HOUR, DAY = 3600.0, 86400.0
NOON = time.mktime((2023, 11, 20, 12, 0, 0, 0, 0, -1))


def machine(since: float, until: float | None = None, hourly: float | None = 2.0) -> Charge:
    return making.charge(hourly=hourly, item="big", since=since, until=until)


def made(name: str, *charges: Charge) -> Cluster:
    return cluster(name=name, provider="ec2", charges=charges, id=f"ana-{name}-1")


@pytest.fixture
def store() -> Store:
    """A cluster that was gone yesterday, and one that runs since ten o'clock."""
    kept = open_store()
    old = made("old", machine(NOON - DAY - HOUR, NOON - DAY + HOUR))
    kept.save(old)
    kept.retire(old)
    kept.save(made("lab", machine(NOON - 2 * HOUR)))
    return kept


def test_money_is_split_by_day_and_cluster(store: Store) -> None:
    found = costs.sum_spending(store, 30 * DAY, None, lambda: NOON)
    assert {(item.cluster, item.running): item.dollars for item in found.clusters} == {
        ("old", False): 4.0,
        ("lab", True): 4.0,
    }
    spent = [(item.day, item.dollars) for item in found.days if item.dollars]
    assert spent == [
        (date.fromtimestamp(NOON).isoformat(), 4.0),
        (date.fromtimestamp(NOON - DAY).isoformat(), 4.0),
    ]
    assert (found.dollars, found.exact) == (8.0, True)


@pytest.mark.parametrize(("folder", "named"), [("clusters/lab", "lab"), ("past/ana-old-1", "old")])
@pytest.mark.parametrize("damage", [b"", b"{}", b'{"record_version": 99}'])
def test_a_cluster_whose_record_cannot_be_read_is_not_said_to_be_free(
    store: Store, folder: str, named: str, damage: bytes
) -> None:
    path = store.home.path / folder / "cluster.json"
    path.write_bytes(damage)
    found = costs.sum_spending(store, 30 * DAY, None, lambda: NOON)
    assert (found.dollars, found.exact) == (4.0, False)
    [line] = found.warnings
    assert line.startswith("not counted: ")
    assert str(path) in line
    assert not costs.sum_spending(store, 30 * DAY, named, lambda: NOON).exact


def test_a_cluster_whose_record_is_gone_is_not_said_to_be_free(store: Store) -> None:
    (store.locate_folder("lab") / "tofu").mkdir()
    (store.locate_folder("lab") / "cluster.json").unlink()
    found = costs.sum_spending(store, 30 * DAY, None, lambda: NOON)
    assert not found.exact
    assert found.warnings == (
        "not counted: the record of cluster 'lab' is gone; `clusterctl down lab` removes what is"
        " left of the cluster",
    )
    assert costs.sum_spending(store, 30 * DAY, "old", lambda: NOON).exact


def test_only_what_was_spent_since_then_counts(store: Store) -> None:
    assert costs.sum_spending(store, HOUR, None, lambda: NOON).dollars == 2.0
    assert costs.sum_spending(store, DAY, None, lambda: NOON).dollars == 4.0 + 2.0
    assert costs.sum_spending(store, 30 * DAY, "old", lambda: NOON).dollars == 4.0


def test_an_end_that_may_be_yet_to_come_is_one(store: Store) -> None:
    """Nobody saw it: the latest possible one is a minute after the look."""
    store.save(made("gone", replace(machine(NOON - HOUR, NOON + 60), unseen=True)))
    found = costs.sum_spending(store, 30 * DAY, "gone", lambda: NOON)
    assert [item.running for item in found.clusters] == [False]


def test_a_night_that_a_cluster_runs_through_belongs_to_two_days(store: Store) -> None:
    midnight = NOON - 12 * HOUR
    store.save(made("night", machine(midnight - HOUR, midnight + 3 * HOUR)))
    found = costs.sum_spending(store, 30 * DAY, "night", lambda: NOON)
    assert [item.dollars for item in found.days if item.dollars] == [6.0, 2.0]


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def put(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield put
    monkeypatch.undo()
    time.tzset()


@rows("name, day, hours", "spending.days_are_as_long_as_here")
def test_days_are_as_long_as_here(
    name: str, day: str, hours: float, zone: Callable[[str], None]
) -> None:
    zone(name)
    noon = time.mktime((*date.fromisoformat(day).timetuple()[:3], 12, 0, 0, 0, 0, -1))
    kept = open_store()
    kept.save(made("days", machine(noon - 3 * DAY, noon + 3 * DAY, 1.0)))
    found = costs.sum_spending(kept, 30 * DAY, "days", lambda: noon + 4 * DAY)
    spent = {item.day: item.dollars for item in found.days if item.dollars}
    assert len(spent) == 7
    assert spent[day] == pytest.approx(hours)
    assert sum(spent.values()) == pytest.approx(found.dollars) == pytest.approx(6 * 24)


@pytest.mark.parametrize("until", [None, NOON - HOUR / 4], ids=["runs", "ended"])
def test_cost_status_and_the_receipt_count_the_same(until: float | None, store: Store) -> None:
    """Also a minute, and an hour of a NAT gateway, that has only begun."""
    began = NOON - HOUR / 2
    parts = (
        replace(machine(began, until), part="gateway"),
        replace(machine(began, until), part="disk"),
        machine(began, until),
        machine(NOON - 20, None if until is None else NOON - 10),
    )
    store.save(made("gate", *parts))
    spent = costs.sum_spending(store, 30 * DAY, "gate", lambda: NOON)
    shown = status.read_status(store, store.read_cluster("gate"), clock=lambda: NOON).dollars
    receipt = sum(line.dollars or 0.0 for line in insight_cost.make_receipt(parts, NOON))
    assert spent.dollars == pytest.approx(shown)
    assert spent.dollars == pytest.approx(receipt)
    assert sum(item.dollars for item in spent.days) == pytest.approx(receipt)
    assert spent.days[0].dollars == pytest.approx(receipt), "what is billed in advance is of today"


def test_what_goes_on_is_shown_as_so_far(store: Store, call: Call) -> None:
    assert " so far since " in call("cost", "--since", "9999d").err
    assert " so far" not in call("cost", "-c", "old", "--since", "9999d").err


def test_a_mistyped_name_does_not_look_free(call: Call) -> None:
    said = call("cost", "-c", "odl")
    assert (said.code, said.out) == (7, "")
    assert "no cluster named 'odl'" in said.err


def test_an_unknown_price_makes_every_sum_a_lower_bound(store: Store, call: Call) -> None:
    store.save(made("dark", machine(NOON - HOUR, hourly=None), machine(NOON - HOUR)))
    found = costs.sum_spending(store, DAY, "dark", lambda: NOON)
    assert (found.dollars, found.exact, found.days[0].exact) == (2.0, False, False)
    assert "at least $" in call("cost", "--since", "9999d").err


def test_a_job_costs_what_its_cluster_did_meanwhile(store: Store, call: Call) -> None:
    """Also after `down`; one that has not begun, or whose cluster was free, costs nothing."""
    for number, changes in enumerate(
        (
            {"cluster_id": "ana-old-1", "started": NOON - DAY, "finished": NOON - DAY + HOUR / 2},
            {"cluster_id": "ana-lab-1", "started": NOON - HOUR, "finished": NOON},
            {"cluster_id": "ana-lab-1", "started": None, "state": JobState.LOST},
            {"cluster_id": "free-1", "started": NOON - HOUR, "finished": NOON},
        ),
        1,
    ):
        known = {"state": JobState.SUCCEEDED, **changes}
        store.save_job(job(cluster(), spec(), id=number, **known))
    assert costs.sum_by_job(store, store.list_jobs(), lambda: NOON) == {1: 1.0, 2: 2.0}
    listed = call("jobs", "--json").document["jobs"]
    assert [item["dollars"] for item in listed] == [1.0, 2.0, None, None]
    assert "2.0000" in call("jobs").out
    spent = costs.sum_spending(store, 30 * DAY, None, lambda: NOON)
    assert [(item.job, item.dollars) for item in spent.jobs] == [(1, 1.0), (2, 2.0)]


class Gone(NothingLeft):
    """A cloud in which nothing of a cluster runs any more."""

    away = False

    def list_things(self, cluster: Cluster, folder: Path) -> tuple[Thing, ...]:
        if self.away:
            raise ProviderError("AWS did not answer")
        return ()


def test_a_cluster_that_has_ended_itself_costs_no_more(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """Its deadline was an hour after its start, and nobody has called `down` since."""
    cloud = Gone()
    provide(monkeypatch, "ec2", cloud)
    late = made("late", machine(NOON - 5 * HOUR))
    store.save(replace(late, deadline=NOON - 4 * HOUR))
    running = job(cluster(), spec(), id=1, started=NOON - 4.5 * HOUR, state=JobState.RUNNING)
    store.save_job(replace(running, cluster_id=late.id))
    spent = costs.sum_spending(store, DAY, "late", lambda: NOON)
    assert (spent.dollars, spent.clusters[0].running) == (pytest.approx(2.0, abs=0.1), False)
    assert "nobody saw " in spent.warnings[0], "a machine ends two minutes later at the latest"
    assert costs.sum_by_job(store, store.list_jobs(), lambda: NOON) == {1: 1.0}
    cloud.away = True
    [line] = costs.sum_spending(store, DAY, "late", lambda: NOON).warnings
    assert "are running (AWS did not answer)" in line
    assert line in call("cost", "--since", "9999d").err


def test_what_nobody_saw_is_said_also_of_a_cluster_that_is_gone(store: Store) -> None:
    ran = replace(machine(NOON - 5 * HOUR, NOON - 4 * HOUR), thing="i-1", unseen=True)
    store.save(made("late", ran))
    store.retire(made("late", ran))
    [line] = costs.sum_spending(store, DAY, "late", lambda: NOON).warnings
    assert line.startswith(
        "nobody saw when worker-1 ended (cluster late): the costs are at most $2"
    )
    assert not costs.sum_spending(store, HOUR, "late", lambda: NOON).warnings, "it is long over"


def test_a_clock_that_is_behind_is_said(store: Store) -> None:
    store.save(replace(made("new", machine(NOON)), created=NOON))
    assert costs.sum_spending(store, DAY, None, lambda: NOON).warnings == ()
    [line] = costs.sum_spending(store, DAY, None, lambda: NOON - 2 * HOUR).warnings
    assert line.startswith("this machine's clock is at least 2 h behind")


def test_programs_read_it_as_json_and_csv(store: Store, call: Call) -> None:
    said = call("cost", "--since", "9999d", "--json").document
    assert {row["id"] for row in said["clusters"]} == {"ana-old-1", "ana-lab-1"}
    assert said["exact"] is True
    rows = list(csv.DictReader(io.StringIO(call("cost", "--by", "cluster", "--csv").out)))
    assert {row["cluster"] for row in rows} >= {"lab"}
    assert float(rows[-1]["dollars"]) > 0


def test_nothing_spent_is_said(call: Call) -> None:
    assert "$0.00 since" in call("cost").err
