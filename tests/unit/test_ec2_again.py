"""What a repeated `up` plans to pay, by an AWS that is not there."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.core.model import Charge, CloudSpec, Cluster, ClusterSpec, NodeGroup, Phase
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines import ledger
from clusterctl.machines.ec2 import create, prices, refusals, spec
from clusterctl.machines.ec2.api import Instance, name_owner
from clusterctl.machines.ec2.provider import Ec2Provider
from clusterctl.machines.ec2.spec import ProviderState, make_reporter
from clusterctl.machines.protocol import ProviderPlan
from clusterctl.terraform.binary import Diagnostic, ResourceChange, TerraformError
from clusterctl.terraform.folder import Terraform
from tests.unit.fake_ec2 import Allowing, instance
from tests.unit.making import cluster, node
from tests.unit.tables import rows

HOUR, DAY = 3600.0, 86400.0
NOW = 1.7e9


class Market(Allowing):
    """A type costs a dollar an hour, ten times as much on demand. `living` are its machines."""

    living: tuple[str, ...] = ()
    zone, spot, launched = "us-east-1a", True, NOW - 60
    stopped: tuple[str, ...] = ()
    on_demand: tuple[str, ...] = ()
    ending: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
        if action in self.refused:
            said = f"User x is not authorized to perform: {service}"
            raise refusals.make_refusal(action, "AccessDenied", said, self.region)
        return {}

    def find_account(self) -> str:
        return "123456789012"

    def list_all(
        self, action: str, key: str, service: str = "ec2", /, **arguments: Any
    ) -> list[Any]:
        return list(self.call(action, service, **arguments).get(key, ()))

    def list_instances(self, *filters: Any, **more: Any) -> list[Instance]:
        return [
            instance(
                name,
                type="t3.micro" if name == "launcher" else "c7i.xlarge",
                state=self._state(name),
                zone=self.zone,
                launched=self.launched,
                spot=self.spot and name not in ("launcher", *self.on_demand),
                ended=NOW - 20 if name in self.stopped else None,
            )
            for name in (self.living if filters else ())
        ]

    def _state(self, name: str) -> str:
        if name in self.ending:
            return "shutting-down"
        return "stopped" if name in self.stopped else "running"

    found_zones: tuple[str, ...] = ("us-east-1a",)

    def list_zones(self, types: Iterable[str]) -> tuple[str, ...]:
        return self.found_zones

    def find_price(self, item: str) -> float | None:
        """The table has one for disks and addresses."""
        return {prices.DISK: None, prices.ADDRESS: None, prices.TRAFFIC: 0.09}.get(item, 10.0)

    def find_spot_price(self, instance_type: str, *zones: str) -> float:
        return 3.0 if "us-east-1b" in zones else 1.0


@pytest.fixture
def market() -> type[Market]:
    class Fresh(Market):
        pass

    return Fresh


@pytest.fixture
def provider(market: type[Market], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ec2Provider:
    """The time is NOW. Terraform is a script that says its version, and does nothing."""
    script = tmp_path / "bin" / "terraform"
    script.parent.mkdir()
    script.write_text("""#!/bin/sh\necho '{"terraform_version": "1.11.4"}'\n""")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return Ec2Provider(market, clock=lambda: NOW, my_address=lambda: "203.0.113.9")


def wish(**cloud: Any) -> ClusterSpec:
    cloud = {"region": "us-east-1", "spot": True, **cloud}
    groups = (NodeGroup(count=1, family="cpu"),)
    return ClusterSpec(name="lab", provider="ec2", groups=groups, cloud=CloudSpec(**cloud))


def attempted(plan: ProviderPlan, *nodes: str, ago: float) -> Cluster:
    """The record of an `up` that had this plan so many seconds ago, and made these nodes."""
    assert plan.spec
    assert plan.deadline
    return Cluster(
        id="lab-1",
        spec=plan.spec,
        phase=Phase.CREATING,
        created=NOW - ago,
        nodes=tuple(map(node, nodes)),
        deadline=plan.deadline - ago,
        charges=tuple(replace(item, since=item.since - ago) for item in plan.charges),
    )


def test_machines_of_an_up_that_broke_off_cost_what_they_are(
    provider: Ec2Provider, market: type[Market]
) -> None:
    cluster = attempted(provider.plan(wish(spot_fallback=True)), "launcher", ago=HOUR)
    market.living = ("launcher", "worker-1")
    assert rates(cluster.charges) == {"launcher": 10.0, "worker-1": 1.0}

    def charged(made: Cluster) -> dict[str, float | None]:
        return rates(settle(provider, made))

    assert charged(cluster) == {"launcher": 10.0, "worker-1": 1.0}
    market.zone = "us-east-1b"
    assert charged(cluster) == {"launcher": 10.0, "worker-1": 3.0}
    market.spot = False
    assert charged(cluster) == {"launcher": 10.0, "worker-1": 10.0}


def settle(provider: Ec2Provider, made: Cluster) -> tuple[Charge, ...]:
    """Its charges, by what EC2 shows."""
    things = provider.list_things(replace(made, account="123456789012"), Path("nowhere"))
    return ledger.settle(made, ledger.add(None, made, things, NOW))


def rates(charges: Iterable[Charge]) -> dict[str, float | None]:
    """Dollars per hour of each machine, without its disk and address."""
    return {item.node: item.hourly for item in charges if item.part == "instance"}


def test_nodes_get_no_later_deadline_than_aws_keeps(
    provider: Ec2Provider, market: type[Market], tmp_path: Path
) -> None:
    """Whoever lacks rights or credentials by now is told so, and no node is asked."""
    cluster = attempted(provider.plan(wish()), "launcher", ago=HOUR)
    spec.save_state(tmp_path, ProviderState(id="lab-1", region="us-east-1", guarded=True))
    market.refused = ("list_schedules", "get_role_policy", "create_schedule_group")
    with pytest.raises(ProviderError, match="not allowed to do that"):
        provider.extend(cluster, tmp_path, NOW + DAY)


@rows("living, said", "ec2_again.a_cluster_that_others_have_removed_is_not_extended")
def test_a_cluster_that_others_have_removed_is_not_extended(
    living: tuple[str, ...], said: str, market: type[Market], tmp_path: Path
) -> None:
    """On another machine, by `gc --yes`: its group of schedules went with it."""

    class Gone(market):  # type: ignore[valid-type, misc]
        def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
            if action == "list_schedules":
                code = "ResourceNotFoundException"
                raise refusals.make_refusal("list schedules", code, "no such group", "us-east-1")
            return {}

    Gone.living = living
    spec.save_state(tmp_path, ProviderState(id="lab-1", region="us-east-1", guarded=True))
    with pytest.raises(ProviderError, match=said) as caught:
        Ec2Provider(Gone).extend(cluster(account="123456789012"), tmp_path, NOW + DAY)
    assert "clusterctl up lab" in caught.value.hint


def test_schedules_of_aws_are_moved_where_nothing_here_tells_of_them(
    market: type[Market], provider: Ec2Provider, tmp_path: Path
) -> None:
    """The file was cut off: AWS would end machines to which `extend` has promised more time."""
    cluster = replace(
        attempted(provider.plan(wish()), "launcher", ago=HOUR), account="123456789012"
    )
    calls: list[str] = []

    class Guarding(Market):
        def list_all(self, action: str, key: str, service: str = "ec2", /, **how: Any) -> list[Any]:
            calls.append(action)
            found = {"list_schedule_groups": [{"Name": "clusterctl-lab-1"}]}
            return found.get(action, [])

        def list_instances(self, *filters: Any, **more: Any) -> list[Instance]:
            raise ProviderError("that is far enough")

    spec.save_state(tmp_path, ProviderState(id="lab-1", region="us-east-1", guarded=True))
    path = tmp_path / "ec2" / "memory.json"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ProviderError, match="that is far enough"):
        Ec2Provider(Guarding).extend(cluster, tmp_path, NOW + DAY)
    assert calls == ["list_schedule_groups"]


def test_spot_workers_cannot_be_stopped(
    provider: Ec2Provider, market: type[Market], tmp_path: Path
) -> None:
    cluster = attempted(provider.plan(wish()), "launcher", ago=HOUR)
    spec.save_state(tmp_path, ProviderState(id="lab-1", region="us-east-1", spot=True))
    with pytest.raises(UsageError, match="EC2 does not stop"):
        provider.check_pausing(cluster, tmp_path)
    spec.save_state(tmp_path, ProviderState(id="lab-1", region="us-east-1"))
    provider.check_pausing(cluster, tmp_path)  # they fell back to on-demand


def test_stopped_machines_past_their_deadline_can_only_go(
    provider: Ec2Provider, market: type[Market]
) -> None:
    """They would end themselves as soon as they boot."""
    current = attempted(provider.plan(wish()), "launcher", "worker-1", ago=3 * DAY)
    market.living = market.stopped = ("launcher", "worker-1")
    with pytest.raises(
        UsageError, match="the stopped machines of cluster lab should have ended at"
    ) as no:
        provider.plan(wish(), current)
    assert no.value.hint == "`clusterctl down lab` removes them"


def test_machines_that_end_are_told_from_those_that_stay(
    provider: Ec2Provider, market: type[Market], tmp_path: Path
) -> None:
    """One whose end is announced runs for two minutes; one that is stopped is kept."""
    workers = [f"worker-{number}" for number in range(1, 6)]
    current = attempted(provider.plan(wish()), "launcher", *workers, ago=60)
    market.living = ("launcher", *workers[:4])
    market.ending, market.stopped = ("worker-2",), ("worker-3",)
    found = provider.list_ending(current, tmp_path, ("worker-1", "worker-3", "worker-5"))
    assert found == {"worker-1", "worker-2"}


@rows("cloud, kind", "ec2_again.the_plan_says_who_replaces_what_ec2_takes_away")
def test_the_plan_says_who_replaces_what_ec2_takes_away(
    cloud: dict[str, bool], kind: str, provider: Ec2Provider
) -> None:
    """It takes credentials, which the launcher has not."""
    said = [line for line in provider.plan(wish(**cloud)).lines if "may reclaim" in line]
    assert len(said) == bool(kind)
    assert all(
        f"{kind} replaces each" in line and "next `logs -f` or `up`" in line for line in said
    )


def test_a_burstable_type_says_what_it_means(provider: Ec2Provider) -> None:
    """It is taken only by its name."""
    burstable = replace(wish(), groups=(NodeGroup(count=1, instance_type="t3.xlarge"),))
    said = "\n".join(provider.plan(burstable).lines)
    assert "t3.xlarge is burstable" in said
    assert "40 % of its speed; c7i.xlarge always runs at full speed" in said
    assert "burstable" not in "\n".join(provider.plan(wish()).lines), "the launcher is idle"


def test_stopped_machines_are_in_the_plan_and_in_the_question(
    provider: Ec2Provider, market: type[Market]
) -> None:
    current = attempted(provider.plan(wish()), "launcher", "worker-1", ago=60)
    market.living = ("launcher", "worker-1")
    assert provider.plan(wish(), current).question == ""
    market.stopped = ("worker-1",)
    plan = provider.plan(wish(), current)
    assert "worker-1 was stopped and is started again" in plan.lines
    assert plan.question.startswith("start 1 machine for up to")
    # A `stop` that was killed has not noted it.
    mine = [item for item in plan.charges if item.node == "worker-1"]
    times = sorted((item.part, item.since - NOW, item.until and item.until - NOW) for item in mine)
    assert times == [
        ("address", -60, -20),
        ("address", 0, None),
        ("disk", -60, None),
        ("instance", -60, -20),
        ("instance", 0, None),
    ]


THROTTLED = Diagnostic(summary="api error RequestLimitExceeded: Request limit exceeded.")
GONE = Diagnostic(
    summary="api error VpcLimitExceeded: The maximum number of VPCs has been reached."
)


class Halting:
    """A Terraform that makes `steps` more things each time, and then fails with `said`."""

    def __init__(self, *steps: int, said: Diagnostic = THROTTLED) -> None:
        self.steps = list(steps)
        self.said = said
        self.made: dict[str, str] = {}
        self.may_go: list[list[str]] = []

    def list_resources(self) -> dict[str, str]:
        return dict(self.made)

    def apply(self, variables: object, on_event: object, **more: Any) -> dict[str, Any]:
        self.may_go.append(list(more["may_go"]))
        if not self.steps:
            return {"nodes": []}
        self.made |= {f"aws_instance.this[{len(self.made) + n}]": "" for n in range(self.steps[0])}
        del self.steps[0]
        raise TerraformError("apply failed", diagnostics=(self.said,))


def apply(runner: Halting) -> list[str]:
    told: list[str] = []
    variables = {"user_data": {}}
    create.apply(
        cast(Terraform, runner),
        variables,
        Market("x"),
        "lab-1",
        told.append,
        may_go=runner.list_resources,
    )
    return told


def test_terraform_is_asked_again_while_it_gets_on() -> None:
    """Many launches at once are throttled: each attempt gets some of them."""
    told = apply(Halting(5, 4, 2))
    assert len(told) == 3
    assert told[0].startswith("AWS is throttling your account (api error RequestLimitExceeded")
    with pytest.raises(TerraformError):
        apply(Halting(5, 0, 2))
    with pytest.raises(TerraformError):
        apply(Halting(5, said=GONE))


def test_many_machines_are_counted_and_few_are_named() -> None:
    def report(machines: int) -> list[str]:
        told: list[str] = []
        show = make_reporter(told.append, machines)
        for number in range(machines):
            for state in ("start", "complete"):
                address = f'aws_instance.this["worker-{number}"]'
                show(ResourceChange(address=address, action="create", state=state, id="i-1"))
        return told

    assert report(1) == ["worker-0: starts", "worker-0: i-1 is running after 0 s"]
    assert report(65) == [f"{n} of 65 machines are running" for n in (16, 32, 48, 64, 65)]


def test_a_budget_lasts_wherever_the_cluster_ends_up(
    market: type[Market], provider: Ec2Provider
) -> None:
    """The second zone costs three times as much: the machines' deadline is set before they move."""
    cheap = provider.plan(wish(budget=100.0))
    market.found_zones = ("us-east-1a", "us-east-1b")
    safe = provider.plan(wish(budget=100.0))
    assert safe.charges == cheap.charges, "what it costs where it is tried first"
    assert safe.deadline
    assert cheap.deadline
    dear = sum(item.hourly or 0.0 for item in safe.charges) + 2.0
    assert safe.deadline - NOW == pytest.approx(100.0 / dear * HOUR - 120, rel=1e-4)
    assert safe.deadline < cheap.deadline
    with pytest.raises(UsageError, match=r"up to .* more than --max-hourly 12"):
        provider.plan(wish(max_hourly=12.0))
    market.found_zones = ("us-east-1a",)
    assert provider.plan(wish(max_hourly=12.0))
    with pytest.raises(UsageError, match="more than --max-hourly 12"):
        provider.plan(wish(max_hourly=12.0, spot_fallback=True))


@rows("arn, owner", "ec2_again.an_owner_is_who_sts_says")
def test_an_owner_is_who_sts_says(arn: str, owner: str) -> None:
    assert name_owner(arn) == owner


def test_the_deadline_tag_is_moved_on_all_there_is(market: type[Market], tmp_path: Path) -> None:
    calls: list[Any] = []

    class Tagged(Market):
        def list_all(self, action: str, key: str, **arguments: Any) -> list[Any]:
            assert action == "describe_tags"
            return [{"ResourceId": f"i-{number}"} for number in range(1201)]

        def call(self, action: str, **arguments: Any) -> Any:
            calls.append((action, arguments))

    provider = Ec2Provider(Tagged)
    provider.label_deadline(cluster(provider="ec2"), tmp_path, NOW)
    assert [len(arguments["Resources"]) for _, arguments in calls] == [500, 500, 201]
    assert calls[0][1]["Tags"] == [{"Key": "clusterctl:deadline", "Value": "2023-11-14T22:13:20Z"}]


def test_what_has_just_gone_keeps_no_other_from_its_tag(
    market: type[Market], tmp_path: Path
) -> None:
    """AWS still shows the tags of a worker that has ended unused, and knows its disk no more."""
    labelled: list[str] = []

    class Tagged(Market):
        def list_all(self, action: str, key: str, **arguments: Any) -> list[Any]:
            return [{"ResourceId": name} for name in ("i-1", "vol-gone", "vpc-1")]

        def call(self, action: str, **arguments: Any) -> Any:
            if "vol-gone" in arguments["Resources"]:
                said = "The volume 'vol-gone' does not exist"
                raise refusals.make_refusal(action, "InvalidVolume.NotFound", said, self.region)
            labelled.extend(arguments["Resources"])

    Ec2Provider(Tagged).label_deadline(cluster(provider="ec2"), tmp_path, NOW)
    assert labelled == ["i-1", "vpc-1"]
