"""What `up` makes of a wish, and what it writes down when it breaks off, without machines."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.actions import up, up_plan
from clusterctl.actions.common import open_store
from clusterctl.cli.clusters import find_script
from clusterctl.core.model import (
    GATEWAY,
    Charge,
    CloudSpec,
    Cluster,
    ClusterSpec,
    NodeGroup,
    Phase,
    Runtime,
    Thing,
)
from clusterctl.core.text import format_time
from clusterctl.errors import NodeUnreachable, ProviderError, UsageError
from clusterctl.machines.protocol import (
    Cloud,
    Created,
    Features,
    NoCapacity,
    Provider,
    ProviderPlan,
    Resource,
)
from tests.unit.making import cluster, node
from tests.unit.provided import NothingLeft, provide
from tests.unit.tables import rows

NOW = 1.7e9
HOUR = 3600.0


class Bills(Cloud):
    """A provider that bills these machines: their names with their ids."""

    def __init__(self, **machines: str) -> None:
        self.machines = {name.replace("_", "-"): id for name, id in machines.items()}

    def list_things(self, cluster: Cluster, folder: Path) -> list[Thing]:
        since = NOW - HOUR
        return [Thing(id=id, node=name, since=since) for name, id in self.machines.items()]


def charge(name: str, **changes: object) -> Charge:
    made = Charge(node=name, part="instance", item="x", hourly=1.0, source="", since=NOW - HOUR)
    return replace(made, **changes)


def lab(**changes: object) -> Cluster:
    """A ready cluster on EC2: a launcher and a worker, an hour old, with seven to go."""
    made = cluster(
        node("launcher", "10.0.0.10", machine="i-1"),
        node("worker-1", "10.0.0.11", machine="i-2"),
        charges=(charge("launcher"), charge("worker-1")),
        deadline=NOW + 7 * HOUR,
    )
    return replace(made, **changes)


class Regions(NothingLeft):
    """A provider that has no capacity in some regions, and whose machines break in the others."""

    features = Features(runtime=Runtime.HOST, worker_family="cpu")

    def __init__(self, *full: str) -> None:
        self.full = full
        self.done: list[str] = []
        self.spent = 0.0

    def plan(
        self, spec: ClusterSpec, current: Cluster | None, report: object, **more: object
    ) -> ProviderPlan:
        here = spec.cloud.region
        return ProviderPlan(
            mode="ec2",
            mode_reason=here,
            one_host=False,
            lines=(f"a machine in {here}",),
            spec=spec,
            nodes=("launcher",),
            charges=(charge("launcher", since=time.time(), hourly=60 * self.spent),),
            question=f"start 1 machine for up to ${len(here)}?",
        )

    def create(self, cluster: Cluster, folder: Path, report: object) -> Created:
        here = cluster.spec.cloud.region
        self.done.append(f"create in {here}")
        if here in self.full:
            raise NoCapacity(f"no zone of {here} has capacity")
        raise ProviderError("the cable is cut")

    def destroy(self, cluster: Cluster, folder: Path, report: object) -> None:
        self.done.append(f"destroy in {cluster.spec.cloud.region}")

    def list_things(self, cluster: Cluster, folder: Path) -> tuple[Thing, ...]:
        return (Thing(id="i-1", node="launcher"),) if self.spent else ()


def wanted(*regions: str, **cloud: Any) -> ClusterSpec:
    return ClusterSpec(
        name="lab",
        provider="ec2",
        groups=(NodeGroup(count=1, family="cpu"),),
        cloud=CloudSpec(regions=regions, **cloud),
    )


def fail(spec: ClusterSpec, why: str = "the cable is cut", **more: Any) -> list[str]:
    """An `up` that is agreed to and breaks off; what it says."""
    told: list[str] = []
    given = {"consent": lambda question: True, **more}
    with pytest.raises((ProviderError, UsageError), match=why):
        up.bring_up(open_store(), spec, told.append, **given)
    return told


def test_a_region_without_capacity_is_left_empty_before_the_next_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One question names both prices, and nothing is asked again."""
    there, asked = Regions("a"), list[str]()
    provide(monkeypatch, "ec2", there)

    def consent(question: str) -> bool:
        asked.append(question)
        return True

    told = fail(wanted("a", "bb"), consent=consent)
    assert there.done == ["create in a", "destroy in a", "create in bb"]
    assert asked == [
        "start 1 machine for up to $1 in a, or else start 1 machine for up to $2 in bb?"
    ]
    assert "if a has no capacity, the whole cluster moves to bb:" in told
    assert "no zone of a has capacity: the whole cluster moves from a to bb" in told
    assert open_store().read_cluster("lab").spec.cloud.region == "bb"

    there.done.clear()
    there.full = ("a", "bb")
    fail(wanted(), "no zone of bb has capacity")
    assert there.done == ["create in bb"], "it goes on where it was, and not back"


def test_no_capacity_anywhere_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines of the last zone, which nobody would use, do not wait for their deadline."""
    there = Regions("a", "bb")
    there.spent = 0.01
    provide(monkeypatch, "ec2", there)
    told = fail(wanted("a", "bb"), "no zone of bb has capacity")
    assert there.done == [f"{does} in {region}" for region in ("a", "bb") for does in DOES]
    assert "no capacity for the whole cluster: removing what was created" in told
    assert told[-1] == "what was created and removed cost $0.0200", "a minute in each region"
    assert not [line for line in told if "still running" in line]
    assert open_store().list_names() == ()


DOES = ("create", "destroy")


def test_what_is_left_of_an_up_without_machines_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network costs nothing, but an account has room for five. Where the cluster moves to the
    next region, it is removed anyway."""

    class Made(Regions):
        def list_left(self, cluster: Cluster, folder: Path) -> tuple[Resource, ...]:
            here = cluster.spec.cloud.region
            kinds = ("VPC", "subnet", "security group", "security group")
            return tuple(Resource(kind, f"{here}-{n}") for n, kind in enumerate(kinds))

    there = Made("a")
    provide(monkeypatch, "ec2", there)
    told = fail(wanted("a", "bb"))
    assert [line for line in told if "left over" in line] == [
        "no machines are running; left over: 1 VPC, 1 subnet, 2 security groups: `clusterctl up"
        " lab` continues, `clusterctl down lab` removes it"
    ]

    there.spent = 1.0  # a machine runs, and that is said
    told = fail(wanted())
    assert not [line for line in told if "left over" in line]
    assert any(line.startswith("still running: launcher,") for line in told)


def test_a_stopped_up_names_what_runs_and_what_that_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(Regions):
        def create(self, cluster: Cluster, folder: Path, report: object) -> Created:
            raise KeyboardInterrupt

    there, told = Stopped(), list[str]()
    there.spent = 1.0
    provide(monkeypatch, "ec2", there)
    with pytest.raises(KeyboardInterrupt):
        up.bring_up(open_store(), wanted(), told.append, lambda question: True)
    assert told[-1] == (
        "still running: launcher, $60.00/h: `clusterctl up lab` continues, `clusterctl down lab`"
        " removes it"
    )


def test_an_id_tells_whose_a_cluster_is_and_is_a_name_for_everything() -> None:
    """Security groups cannot be called `sg-…`, and nothing can have more than 50 characters."""
    ids = {
        (owner, name): up_plan.make_id(owner, name)
        for owner in ("user/ana", "user/sg", "assumed-role/Dev/SG-Developers@example.org", "")
        for name in ("lab", "sg-1", "n" * 30)
    }
    assert ids["user/ana", "lab"].startswith("ana-lab-")
    assert ids["user/sg", "lab"].startswith("c-sg-lab-")
    assert ids["", "sg-1"].startswith("c-sg-1-")
    assert not [id for id in ids.values() if id.startswith("sg-") or len(id) > 50]
    assert len(set(ids.values())) == len(ids)


def test_an_answer_that_comes_late_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop slept with the question open: the plan's deadline and prices are those of the
    evening before."""
    shows, answers = [NOW], [8 * HOUR, 60.0]

    class Evening(Regions):
        def plan(self, *given: Any, **more: Any) -> ProviderPlan:
            return replace(super().plan(*given, **more), deadline=shows[0] + 8 * HOUR)

    def consent(question: str) -> bool:
        shows[0] += answers.pop(0)
        return True

    provide(monkeypatch, "ec2", Evening())
    told = fail(wanted("a"), consent=consent, wall=lambda: shows[0])
    assert "the answer took 8 h: making the plan again" in told
    assert (told.count("a machine in a"), answers) == (2, [])
    assert open_store().read_cluster("lab").deadline == NOW + 16 * HOUR


def test_a_region_that_was_left_has_had_its_part_of_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine ran there before others were refused. A bare `up` goes on with the same options;
    the next region is told of it, and so is the next `up --budget`."""
    given: list[tuple[str, float, float]] = []

    class Asked(Regions):
        def plan(self, spec: ClusterSpec, *rest: Any, **more: Any) -> ProviderPlan:
            given.append((spec.cloud.region, spec.cloud.budget, round(spec.cloud.spent)))
            return super().plan(spec, *rest, **more)

    there = Asked("a")
    provide(monkeypatch, "ec2", there)
    store = open_store()
    spec = wanted("a", "bb", budget=10.0)
    before = replace(lab(spec=replace(spec, cloud=replace(spec.cloud, region="a"))), nodes=())
    before = replace(before, phase=Phase.CREATING, charges=())
    store.save(before)
    there.spent = 4.0
    fail(wanted())
    assert there.done == ["create in a", "destroy in a", "create in bb"]
    moved = store.read_cluster("lab").spec
    assert moved.cloud.budget == 10.0
    assert moved.cloud.spent == pytest.approx(4.0, abs=0.1)
    assert (moved.provider, moved.groups) == ("ec2", spec.groups)
    fail(wanted("a", "bb", budget=12.0))
    assert given[-2:] == [("bb", 10.0, 4), ("bb", 12.0, 4)]

    there.done.clear()
    there.spent = 10.0
    store.save(before)
    fail(wanted(), r"--budget \$10.00 is spent")
    assert there.done == ["create in a", "destroy in a"]


class Moved(Regions):
    """Its nodes take another deadline, or do not."""

    refuses = False

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def extend(self, cluster: Cluster, folder: Path, deadline: float) -> None:
        if self.refuses:
            raise NodeUnreachable("worker-1 does not answer")
        self.ends.append(deadline)


@pytest.mark.parametrize("refuses", [False, True], ids=["taken", "refused"])
def test_what_machines_in_other_zones_have_cost_makes_a_budget_end_sooner(
    refuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes for $2 an hour, and $16 for eight hours: before, two have run for half an hour
    where there was no room for others."""
    there, told, store = Moved(), list[str](), open_store()
    there.refuses = refuses
    provide(monkeypatch, "ec2", there)
    rows = tuple(
        charge(name, since=since, until=until)
        for name in ("launcher", "worker-1")
        for since, until in ((NOW - 1800, NOW), (NOW, None))
    )
    spec = wanted(budget=16.1)
    made = lab(spec=spec, charges=rows, deadline=NOW + 8 * HOUR)
    kept = up_plan.keep_budget(store, made, told.append, lambda: NOW)
    [line] = told
    assert "machines in other zones have spent a part of --budget 16.1" in line
    if refuses:
        assert (kept, "(worker-1 does not answer)" in line) == (made, True)
        return
    assert there.ends == [kept.deadline] == [store.read_cluster("lab").deadline]
    assert kept.deadline == pytest.approx(NOW + 7.5 * HOUR, abs=180)
    assert sum(item.compute_dollars(kept.deadline + 120) for item in kept.charges) <= 16.105
    assert up_plan.keep_budget(store, kept, told.append, lambda: NOW) == kept, "once"
    enough = replace(made, spec=replace(spec, cloud=replace(spec.cloud, budget=18.0)))
    assert up_plan.keep_budget(store, enough, told.append, lambda: NOW) == enough


def test_a_cluster_with_nodes_stays_in_its_region(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Regions("a", "bb")
    provide(monkeypatch, "ec2", there)
    store = open_store()
    old = lab(spec=wanted("a", "bb", region="a"))
    store.save(old)
    fail(wanted(), "no zone of a")
    assert there.done == ["create in a"]
    assert store.read_cluster("lab").nodes == old.nodes


def broken_off(old: Cluster, bills: Bills, **planned: object) -> tuple[Cluster, str]:
    """The record after an `up` that broke off, and what was said."""
    store, told = open_store(), list[str]()
    tried = replace(old, phase=Phase.CREATING, **planned)
    store.save(tried)
    with pytest.MonkeyPatch.context() as patch:
        provide(patch, "ec2", bills)
        up.record_failed_create(store, tried, old, told.append, clock=lambda: NOW)
    return store.read_cluster(old.name), "\n".join(told)


def test_a_cluster_that_has_lost_and_gained_nothing_is_ready() -> None:
    old = lab()
    found, told = broken_off(
        old,
        Bills(launcher="i-1", worker_1="i-2"),
        charges=(*old.charges, charge("worker-2", since=NOW)),
    )
    assert found == old
    assert told == "cluster lab is unchanged and ready"


@pytest.mark.parametrize("before", [Phase.STOPPED, Phase.CREATING])
def test_a_start_that_fails_leaves_a_stopped_cluster(before: Phase) -> None:
    """Also after one that was cut off: what counts is how the machines are."""

    class Off(Bills):
        def list_things(self, cluster: Cluster, folder: Path) -> list[Thing]:
            things = super().list_things(cluster, folder)
            return [replace(one, state="off", until=NOW - 60) for one in things]

    rows = [
        replace(charge(name, thing=id), part=part, until=end)
        for name, id in (("launcher", "i-1"), ("worker-1", "i-2"))
        for part, end in (("instance", NOW - 60), ("disk", None))
    ]
    old = lab(phase=before, charges=tuple(rows))
    planned = (*rows, charge("launcher", since=NOW), charge("worker-1", since=NOW))
    found, told = broken_off(old, Off(launcher="i-1", worker_1="i-2"), charges=planned)
    assert found.phase is Phase.STOPPED
    assert [row.node for row in found.charges if row.until is None] == ["launcher", "worker-1"]
    until = f"until {format_time(NOW + 7 * HOUR)}"
    assert told == (
        f"cluster lab is stopped; its disks cost $2.0000/h {until}; `clusterctl start lab` tries"
        " again"
    )


G4DN, LARGE = NodeGroup(count=8, family="g4dn"), NodeGroup(count=3, instance_type="c6i.large")


@rows("wished, expected", "up.a_group_without_a_number_has_as_many_as_there_are")
def test_a_group_without_a_number_has_as_many_as_there_are(
    wished: list[dict[str, Any]], expected: list[int]
) -> None:
    old = lab()
    old = replace(old, spec=replace(old.spec, groups=(G4DN, LARGE)))
    spec = replace(old.spec, groups=tuple(NodeGroup(**group) for group in wished))
    assert [group.count for group in up_plan.complete(spec, old).groups] == expected
    fresh = [group["count"] or 2 for group in wished]
    assert [group.count for group in up_plan.complete(spec, None).groups] == fresh


class Numbers(Provider):
    """A provider that numbers its workers from 1, and whose nodes cost nothing."""

    features = Features(runtime=Runtime.HOST)

    def plan(
        self, spec: ClusterSpec, current: Cluster | None, report: object, **more: object
    ) -> ProviderPlan:
        return ProviderPlan(mode="", mode_reason="", one_host=True, lines=("a plan",))


@rows("workers, line", "up.the_plan_for_a_cluster_that_is_there_says_what_is_new")
def test_the_plan_for_a_cluster_that_is_there_says_what_is_new(
    workers: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    provide(monkeypatch, "local", Numbers())
    spec = ClusterSpec(name="lab", provider="local", groups=(NodeGroup(count=2),))
    wish = replace(spec, groups=(NodeGroup(count=workers),))
    store = open_store()
    assert up_plan.plan(store, wish, print).lines == ("a plan",)
    names = ("launcher", "worker-1", "worker-2")
    store.save(replace(cluster(*map(node, names)), spec=spec, phase=Phase.READY))
    assert up_plan.plan(store, wish, print).lines == ("a plan", line)


class Gateways(Bills):
    def list_things(self, cluster: Cluster, folder: Path) -> list[Thing]:
        gateway = Thing(id="nat-1", node="launcher", part=GATEWAY)
        return [*super().list_things(cluster, folder), gateway]


def test_a_nat_gateway_without_machines_is_named_and_paid() -> None:
    """It was made before the machines, and ends only by `down`."""
    names, since = ("launcher", "worker-1"), NOW - 60
    gateway = charge("launcher", part=GATEWAY, hourly=0.05, since=since)
    planned = (*(charge(name, since=since) for name in names), gateway)
    began = replace(lab(), phase=Phase.CREATING, nodes=(), charges=())
    found, told = broken_off(began, Gateways(), charges=planned)
    assert found.charges == (replace(gateway, thing="nat-1"),)
    until = f"until {format_time(NOW + 7 * HOUR)}"
    assert told.startswith(f"still running: a NAT gateway, $0.05/h {until}: `clusterctl up lab`")
    assert "`clusterctl down lab` removes it" in told
    _, told = broken_off(began, Gateways(launcher="i-1"), charges=planned)
    assert "launcher and a NAT gateway, $1.05/h" in told


def test_machines_that_cannot_be_asked_about_are_not_passed_over() -> None:
    """Credentials that end in the middle: what was made by then goes on costing money."""

    class Away(Bills):
        def list_things(self, cluster: Cluster, folder: Path) -> list[Thing]:
            raise ProviderError("describe instances: your AWS credentials have expired")

    new = lab(charges=(charge("launcher", hourly=None), charge("worker-1")))
    found, told = broken_off(new, Away())
    assert found.phase is Phase.CREATING
    assert "your AWS credentials have expired): up to 2 machines, at least $1.00/h until" in told
    assert "`clusterctl down lab` removes it" in told


@rows("files, suggested", "up.the_program_of_a_folder")
def test_the_program_of_a_folder(files: dict[str, str], suggested: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert find_script(str(tmp_path)) == suggested
    assert find_script(str(tmp_path / "gone")) == ""
