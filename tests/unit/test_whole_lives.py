"""Whole lives of clusters, stopped and started, killed commands included, against a bill that
shares no code with ours: `status`, `cost`, the receipt and the budget have to agree with it."""

from __future__ import annotations

import calendar
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.actions import costs, lifetime, status
from clusterctl.actions.common import open_store
from clusterctl.actions.down import finish_down
from clusterctl.core.model import CloudSpec, Cluster, ClusterSpec, NodeGroup, Phase, Runtime
from clusterctl.errors import UsageError
from clusterctl.machines import providers
from clusterctl.machines.ec2 import spec as ec2_spec
from clusterctl.machines.ec2.spec import ProviderState
from tests.unit.billed_account import (
    ADDRESS,
    HOUR,
    SPOT,
    Account,
    Answers,
    Machine,
    Provider,
)
from tests.unit.making import node
from tests.unit.provided import provide

CENT = 0.01
STARTS = tuple(
    float(calendar.timegm(time.strptime(text, "%Y-%m-%d %H")))
    for text in ("2090-02-10 10", "2090-05-31 20", "2090-12-31 22")
)
"""In the shortest month, and where a disk's price changes on the way; no deadline is over yet by
the clock of this machine."""

ONCE_WRONG = (27, 40, 81, 90, 444, 1322, 1437)


class Life:
    """One cluster, by the commands of a person."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        account = Account(chance.choice(STARTS))
        self.account = account

        class Mine(Answers):
            account_ = account

        self.provider = Provider(Mine, lambda: account.now, lambda: "203.0.113.9")
        self.provider.account = account
        provide(monkeypatch, "ec2", self.provider)
        self.store = open_store()
        self.spot, self.private = chance.random() < 0.4, chance.random() < 0.4
        self.budget, self.disk = chance.choice((0.0, 3.0, 6.0)), chance.choice((0, 300))
        self.runtime = Runtime.DOCKER if seed % 2 else Runtime.HOST
        self.given_up = False

    @property
    def cluster(self) -> Cluster:
        return self.store.read_cluster("lab")

    def up(self, workers: int, *, killed: bool = False) -> None:
        """As `up` has it, without Terraform and nodes; `killed`: perhaps, somewhere on the way."""
        aws, old = self.account, self.store.find("lab")
        cloud = CloudSpec(
            region="us-east-1",
            spot=self.spot,
            spot_fallback=self.spot,
            private=self.private,
            budget=self.budget,
            disk=self.disk,
            idle=0.0,
            ssh_cidr="192.0.2.1/32",
        )
        groups = (NodeGroup(count=workers, family="cpu"),)
        spec = ClusterSpec(
            name="lab",
            provider="ec2",
            groups=groups,
            cloud=cloud,
            ttl=8 * HOUR,
            runtime=self.runtime,
        )
        plan = self.provider.plan(spec, old, ahead=self.store.home.path)
        assert plan.spec
        base = old or Cluster(id="lab-1", spec=plan.spec, phase=Phase.CREATING, created=aws.now)
        cluster = replace(
            base,
            spec=plan.spec,
            phase=Phase.CREATING,
            stopping=False,
            charges=plan.charges,
            deadline=plan.deadline,
            account="123456789012",
        )
        self.store.save(cluster)
        for deed in self._deeds(plan.nodes):
            if killed and self.chance.random() < 0.2:
                return
            aws.now += self.chance.uniform(1, 9)
            deed()
            self._note()
        folder = self.store.locate_folder("lab")
        nodes = tuple(replace(node(one.name), machine=one.id) for one in aws.alive)
        cluster = replace(providers.settle(cluster, folder, aws.now), nodes=nodes)
        self.store.save(replace(cluster, phase=Phase.READY))

    def _deeds(self, wanted: Sequence[str]) -> list[Any]:
        """What Terraform would do, in its order."""
        aws, chance, made = (
            self.account,
            self.chance,
            {one.name for one in self.account.alive},
        )

        def switch(one: Machine) -> None:
            stays = one.name in wanted
            one.switch("running" if stays else "terminated", aws.now)

        def launch(name: str) -> None:
            first = name == "launcher"
            zone = aws.alive[0].zone if aws.alive else chance.choice(tuple(SPOT))
            spot = self.spot and not first and not falls
            # 60 GiB beyond what the machine image of fake_ec2 takes, without --disk.
            gib, public = 30 if first else self.disk or 68, first or not self.private
            faster = self.runtime is Runtime.DOCKER and not first
            aws.launch(name, gib, public=public, spot=spot, zone=zone, faster=faster)

        def route() -> None:
            aws.gateway = aws.now

        falls = chance.random() < 0.3
        old = [one for one in aws.alive if one.name not in wanted or one.state == "stopped"]
        return [
            *([route] if self.private and aws.gateway is None else []),
            *(lambda one=one: switch(one) for one in old),
            *(lambda name=name: launch(name) for name in wanted if name not in made),
        ]

    def _note(self) -> None:
        state = ProviderState(id="lab-1", region="us-east-1")
        ec2_spec.save_state(self.store.locate_folder("lab"), state)

    def stop(self) -> None:
        aws = self.account
        lifetime.stop(self.store, "lab", lambda line: None, lambda question: True, lambda: aws.now)

    def kill_stop(self) -> None:
        self.store.save(replace(self.cluster, stopping=True))
        for one in self.account.alive:
            if self.chance.random() < 0.6 and one.state == "running":
                one.switch("stopped", self.account.now)
        self.account.now += 9

    def lose(self) -> None:
        """EC2 takes a worker, and `up` starts another. Where the budget does not last for that,
        the record goes on with the lost one, and the person gives up."""
        lost = self.chance.choice(self.account.alive[1:] or self.account.alive)
        lost.switch("terminated", self.account.now)
        assert self.cluster.deadline
        left = self.cluster.deadline - self.account.now
        self.account.now += 5000 if left > 9000 and self.chance.random() < 0.5 else 60
        try:
            self.up(self.cluster.spec.workers)
        except UsageError:
            self.given_up = True

    def extend(self) -> None:
        lifetime.extend(
            self.store,
            "lab",
            self.chance.choice((1, 3, 8)) * HOUR,
            lambda line: None,
            lambda question: True,
            lambda: self.account.now,
        )

    def step(self) -> None:
        """The next command of a person, and what a budget or a phase does not allow."""
        workers, stopped = self.chance.choice((1, 2, 3, 6)), self.cluster.phase is Phase.STOPPED
        pausing = () if stopped or any(one.spot for one in self.account.alive) else ("stop", "kill")
        more = () if stopped else ("lose", "extend")
        deed = self.chance.choice(("up", "same", "killed up", *pausing, *more))
        with suppress(UsageError):
            if deed == "up":
                self.up(workers)
            elif deed == "same":
                self.up(self.cluster.spec.workers)
            elif deed == "killed up":
                self.up(workers, killed=True)
                self.account.now += self.chance.choice((3, 100, 1000))
                self.check()
                self.up(workers)
            elif deed == "kill":
                self.kill_stop()
                self.check()
                self.chance.choice((self.stop, lambda: self.up(self.cluster.spec.workers)))()
            else:
                getattr(self, deed)()

    def check(self) -> None:
        aws = self.account
        said = status.read_status(self.store, self.cluster, clock=lambda: aws.now)
        self.compare(said.dollars, any("nobody saw" in line for line in said.warnings))
        assert said.dollars_per_hour == pytest.approx(aws.hourly(), abs=0.0001)
        spent = costs.sum_spending(self.store, 99 * HOUR, None, lambda: aws.now)
        assert spent.dollars == pytest.approx(said.dollars)
        assert sum(day.dollars for day in spent.days) == pytest.approx(said.dollars)

    def compare(self, said: float, unseen: bool) -> None:
        """What is said with the bill: where nobody saw an end, it is the most that it can be."""
        assert said >= self.account.bill() - CENT
        if not unseen:
            assert said == pytest.approx(self.account.bill(), abs=CENT)

    def down(self) -> None:
        now = self.account.now
        done = finish_down(self.store, self.cluster, lambda line: None, clock=lambda: now)
        receipt = sum(item.compute_dollars(now) for item in done.charges)
        self.compare(receipt, any(item.unseen for item in done.charges))

    def reach_deadline(self) -> None:
        """Nodes end themselves, and AWS removes the rest a minute later."""
        for one in self.account.alive:
            if one.state == "running":
                one.switch("terminated", self.account.now)
        self.account.now += 60
        self.account.end()


@pytest.mark.usefixtures("terraform")
@pytest.mark.parametrize("seed", [*range(16), *ONCE_WRONG])
def test_what_is_said_of_money_is_what_aws_charges(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(monkeypatch, seed)
    aws, chance = life.account, life.chance
    life.up(chance.choice((1, 2)))
    for _ in range(8):
        assert life.cluster.deadline
        aws.now += min(chance.choice((3, 500, 3000)), life.cluster.deadline - 3000 - aws.now)
        life.check()
        life.step()
        if life.given_up:
            break
        life.check()
        if life.cluster.deadline - aws.now < 4000:
            break
    assert life.cluster.deadline
    if not life.given_up and chance.random() < 0.6:
        aws.now = life.cluster.deadline
        life.reach_deadline()
        assert not life.budget or aws.bill() + ADDRESS / 4 <= life.budget + CENT / 2
        aws.now += chance.choice((100, 9 * HOUR))
        life.check()
    life.down()


@pytest.mark.usefixtures("terraform")
@pytest.mark.parametrize("seed", [4, 5])
def test_workers_of_an_up_that_was_killed_count_at_their_own_prices_until_the_next_removes_them(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(monkeypatch, seed)
    life.spot, life.budget = True, 0.0
    life.up(1)
    life.up(6, killed=True)
    life.account.now += 2000
    life.up(2)
    life.check()
    life.down()
