"""`gc` removes what nothing here knows of, and only that. No AWS."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from clusterctl.actions import gc
from clusterctl.actions.common import open_store
from clusterctl.core.model import Cluster, Reporter
from clusterctl.errors import LeftoverError, ProviderError
from clusterctl.machines.ec2 import refusals, remove
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.provider import Ec2Provider
from clusterctl.machines.protocol import Resource
from clusterctl.state.home import name_client
from clusterctl.state.locks import ClusterLock
from tests.unit.calling import Call
from tests.unit.fake_ec2 import Cloud, FakeApi
from tests.unit.making import cluster
from tests.unit.provided import provide

DAY = 86400.0
NOW = 1.7e9


class Account(Ec2Provider):
    """One instance that carries the tag of cluster lab, until it is removed. `meanwhile` happens
    while AWS is asked; the region `hangs` does not answer. The account is ana's."""

    enabled: tuple[str, ...] = ()
    untold: ProviderError | None = None

    def __init__(self) -> None:
        super().__init__(self._in)
        self.id, self.name = cluster().id, "lab"
        self.me = self.whose = "user/ana"
        self.client = name_client()
        self.hangs = ""
        self.deadline: float | None = NOW
        self.meanwhile: Callable[[str], None] = lambda region: None
        self.removed: list[tuple[str, str]] = []
        self.adopted: list[str] = []
        self.asked: list[str] = []

    def _in(self, region: str) -> Api:
        account = self

        class Regions(Api):
            def find_account(self) -> str:
                return "123456789012"

            def list_regions(self) -> tuple[str, ...]:
                if account.untold:
                    raise account.untold
                return account.enabled

        return Regions(region)

    def find_owner(self) -> str:
        return self.me

    def find(self, region: str) -> tuple[Resource, ...]:
        self.asked.append(region)
        self.meanwhile(region)
        if region == self.hangs:
            time.sleep(60)
        machine = Resource("instance", "i-1", self.id, self.name, owner=self.whose)
        return (
            replace(
                machine, client=self.client, deadline=self.deadline, made=NOW - DAY, hourly=0.5
            ),
        )

    def remove(self, cluster_id: str, region: str, report: Reporter) -> None:
        self.removed.append((cluster_id, region))

    def adopt(self, cluster_id: str, name: str, region: str) -> Cluster:
        self.adopted.append(cluster_id)
        return cluster(account="123456789012")


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Account:
    made = Account()
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    provide(monkeypatch, "ec2", made)
    return made


def another_up(region: str = "") -> None:
    """Of another terminal: a record comes before everything that is made."""
    open_store().save(cluster())


@pytest.mark.parametrize("name", ["lab", "", "../../lab"])
def test_what_nothing_here_knows_of_goes(name: str, account: Account, call: Call) -> None:
    account.name = name
    said = call("gc", "--yes", "--json")
    assert said.document["removed"] == [cluster().id]
    assert account.removed == [(cluster().id, "us-east-1")]
    assert not list(open_store().home.path.parent.glob("lab*")), "a tag is no path"


def test_a_cluster_that_comes_while_aws_is_asked_stays(account: Account, call: Call) -> None:
    account.meanwhile = another_up
    said = call("gc", "--yes", "--json")
    assert said.document["found"] == said.document["removed"] == account.removed == []


def test_a_cluster_that_comes_before_the_answer_stays(account: Account) -> None:
    """While a person is asked."""
    told: list[str] = []
    [orphan] = gc.find_leftovers(open_store()).orphans
    assert orphan.id == cluster().id
    another_up()
    assert not gc.remove(open_store(), orphan, told.append)
    assert account.removed == []
    assert told == [f"{cluster().id} now has a record here; keeping it"]


def test_a_cluster_that_another_works_on_stays(account: Account, call: Call) -> None:
    with ClusterLock(open_store().home, "lab", "gc"):
        said = call("gc", "--yes", "--quiet")
    assert said.code == 7
    assert "'lab' is locked by another clusterctl" in said.err
    assert account.removed == []


def test_a_tag_is_no_path(account: Account, call: Call) -> None:
    account.name = "../../lab"
    said = call("gc", "--adopt", cluster().id)
    assert said.code == 2
    assert not open_store().list_names()


def test_a_region_that_answers_with_an_error_is_not_the_end(account: Account, call: Call) -> None:
    """What is found elsewhere goes; that one region was not searched is said."""

    def closed(region: str) -> None:
        if region == "me-south-1":
            raise ProviderError("AWS: OptInRequired", hint="enable the region")

    account.meanwhile = closed
    regions = ("--region", "me-south-1", "--region", "eu-west-1")
    said = call("gc", "--yes", "--json", *regions)
    assert said.code == 3
    assert sorted(account.asked) == ["eu-west-1", "me-south-1"]
    assert said.document["removed"] == [cluster().id]
    assert account.removed == [(cluster().id, "eu-west-1")]
    assert said.document["regions"] == ["eu-west-1"]
    assert "region me-south-1 could not be searched: AWS: OptInRequired" in said.err
    assert "no EC2 clusters" not in call("gc", "-c", "x", *regions).err, "it may have some"
    said = call("gc", "--adopt", "other", *regions)
    assert said.code == 3, "it may be there"
    said = call("gc", "--region", "me-south-1")
    assert (said.code, account.asked[-1]) == (3, "me-south-1")
    assert "OptInRequired" in said.err
    assert "no EC2 clusters" not in said.err, "nobody knows"


@pytest.mark.parametrize("deadline", [NOW, None])
def test_what_is_taken_back_ends_as_its_tags_say(
    deadline: float | None, account: Account, call: Call
) -> None:
    account.deadline = deadline
    said = call("gc", "--adopt", "lab", "--json")
    assert open_store().read_cluster("lab").deadline == said.document["deadline"] == deadline
    assert ("no deadline is known" in said.err) is (deadline is None)


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_dry_run_takes_nothing_back(more: list[str], account: Account, call: Call) -> None:
    said = call("gc", "--adopt", "lab", "--dry-run", *more)
    assert said.code == 0, said
    assert cluster().id in said.out
    assert not open_store().list_names()
    assert account.adopted == [], "a dry run asks for no machines"
    assert call("gc", "--adopt", "other", "--dry-run").code == 7


REGIONS = ("ap-south-1", "eu-west-1", "me-south-1", "us-east-1", "us-west-2")


def test_all_regions_of_the_account_are_searched(account: Account, call: Call) -> None:
    account.enabled = REGIONS
    said = call("gc", "--dry-run", "--json")
    assert sorted(account.asked) == sorted(said.document["regions"]) == list(REGIONS)
    found = said.document["found"]
    assert [item["region"] for item in found] == ["us-east-1", *REGIONS[:3], "us-west-2"]
    whole = {**found[0], "left": []}
    assert whole == {
        **{"id": cluster().id, "name": "lab", "region": "us-east-1", "left": []},
        **{"owner": "user/ana", "client": name_client(), "deadline": NOW, "made": NOW - DAY},
        **{"hourly": 0.5, "every_price_known": True},
    }
    assert "searched 5 regions" in call("gc", "--dry-run").err


def test_regions_that_the_account_may_have_besides_are_not_said_to_be_empty(
    account: Account, call: Call
) -> None:
    account.untold = ProviderError("describe regions: AWS did not answer", transient=True)
    known = cluster(id="ana-known-1")
    cloud = replace(known.spec.cloud, region="eu-west-1")
    open_store().save(replace(known, spec=replace(known.spec, cloud=cloud)))
    said = call("gc", "--dry-run", "--json")
    assert said.code == 3
    assert said.document["regions"] == ["us-east-1", "eu-west-1"]
    assert len(account.asked) == 2
    assert "only us-east-1, eu-west-1 could be searched" in said.err
    assert "describe regions: AWS did not answer" in said.err
    assert call("gc", "--dry-run", "--region", "us-east-1").code == 0, "nobody has to tell then"


def test_regions_that_hang_and_that_refuse_at_once_are_both_named(
    account: Account, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is found in the others is shown."""

    def closed(region: str) -> None:
        if region == "me-south-1":
            said = "You are not authorized to perform this operation. User: x is not authorized"
            raise refusals.make_refusal("describe tags", "UnauthorizedOperation", said, region)

    monkeypatch.setattr(gc, "SEARCH_LIMIT", 1.0)
    account.enabled, account.hangs, account.meanwhile = REGIONS, "ap-south-1", closed
    said = call("gc", "--dry-run", "--json")
    assert said.code == 3
    assert sorted(said.document["regions"]) == ["eu-west-1", "us-east-1", "us-west-2"]
    found = said.document["found"]
    assert {item["region"] for item in found} == {"eu-west-1", "us-east-1", "us-west-2"}
    assert "region ap-south-1 could not be searched: no answer from ap-south-1" in said.err
    assert re.search(r"region me-south-1 could not be searched: .*UnauthorizedOperation", said.err)


@pytest.mark.parametrize("whose", ["user/bob", ""], ids=["bob", "unknown"])
def test_without_being_asked_only_ones_own_clusters_go(
    whose: str, account: Account, call: Call
) -> None:
    account.whose = whose
    said = call("gc", "--yes")
    assert (said.code, account.removed) == (0, [])
    assert (
        f"belongs to {whose or 'an unknown owner'} ({name_client()}), and you are user/ana ("
        in said.err
    )
    # A name may be that of several clusters: who wants this one gives its id.
    call("gc", "--yes", "-c", "lab")
    assert account.removed == []
    call("gc", "--yes", "-c", cluster().id)
    assert account.removed == [(cluster().id, "us-east-1")]


def test_nobody_takes_over_a_cluster_of_others_by_its_name(account: Account, call: Call) -> None:
    """A cluster called `lab` may be anybody's; what was taken back, `down` would remove."""
    account.whose = "user/bob"
    said = call("gc", "--adopt", "lab")
    assert said.code == 2
    assert (
        f"cluster {cluster().id} belongs to user/bob ({name_client()}), and you are user/ana ("
        in said.err
    )
    assert f"clusterctl gc --adopt {cluster().id}" in said.err
    assert (account.adopted, open_store().list_names()) == ([], ())
    assert call("gc", "--adopt", cluster().id).code == 0


@pytest.mark.parametrize("theirs", ["bob@", ""], ids=["bob", "an earlier version"])
def test_people_who_are_one_to_aws_are_told_apart_by_their_machines_and_names_there(
    theirs: str, account: Account, call: Call
) -> None:
    """By a session without a name, say, or with that of a machine that several log in to."""
    me = name_client()
    account.whose = account.me = role = "assumed-role/Bastion/i-0123456789abcdef0"
    account.client = theirs + me.rpartition("@")[2]
    said = call("gc", "--yes")
    refused = f"belongs to {role} ({account.client}), and you are {role} ({me})"
    assert refused in said.err
    assert account.removed == []
    assert refused in call("gc", "--adopt", "lab").err
    account.client = me
    call("gc", "--yes")
    assert account.removed == [(cluster().id, "us-east-1")]


def test_the_longest_id_names_a_cluster(account: Account, call: Call) -> None:
    """Ten letters of a person, and thirty of a name."""
    account.name = f"lab-{'x' * 26}"
    account.id = f"{'a' * 10}-{account.name}-1a2b3c4d"
    account.whose = "user/bob"
    assert call("gc", "--adopt", account.id).code == 0
    assert account.adopted == [account.id]
    open_store().retire(open_store().read_cluster("lab"))
    assert call("gc", "--yes", "-c", account.id).code == 0
    assert account.removed == [(account.id, "us-east-1")]
    assert call("gc", "--adopt", "../lab").code == 2


# -------------------------------------------------------------------------------------------------
# What `down` does where AWS refuses: it says so at once, with what it costs.


DENIED = ("UnauthorizedOperation", "You are not authorized to perform this operation.")


def removed(cloud: Cloud) -> list[str]:
    told: list[str] = []
    remove.remove_cluster(FakeApi(cloud), "lab-1", told.append)
    return told


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """A launcher and a worker."""
    monkeypatch.setattr(remove, "PAUSE", 0.0)
    made = Cloud()
    made.make("lab-1", "launcher", "worker-1")
    return made


def test_all_that_carries_the_tag_goes(cloud: Cloud) -> None:
    cloud.things["vpc-2"] = ("VPC", "other-1")
    [line] = removed(cloud)
    assert line == "left over: 2 instances, 2 volumes, 1 VPC; removing"
    assert cloud.left() == ["vpc-2"]


def test_gc_says_what_aws_has_left(cloud: Cloud) -> None:
    told: list[str] = []
    provider = Ec2Provider(lambda region: FakeApi(cloud))
    provider.remove("lab-1", "us-east-1", told.append)
    assert told[-1].endswith("nothing tagged clusterctl:cluster=lab-1 is left in us-east-1")
    cloud.make("lab-1", "launcher")
    cloud.refusals = {"terminate_instances": DENIED}
    with pytest.raises(LeftoverError):
        provider.remove("lab-1", "us-east-1", told.append)
    assert "left over" in told[-1]


def test_what_costs_nothing_and_may_not_be_removed_keeps_no_machine(cloud: Cloud) -> None:
    cloud.refusals = {"delete_vpc": DENIED}
    with pytest.raises(LeftoverError, match=r"1 VPC \(vpc-1\) \(delete vpc: your AWS"):
        removed(cloud)
    assert cloud.left() == ["vpc-1"]


def test_credentials_that_end_in_between_are_no_empty_cloud(cloud: Cloud) -> None:
    cloud.refusals = {"describe_volumes": ("RequestExpired", "Request has expired.")}
    with pytest.raises(ProviderError, match="expired"):
        removed(cloud)
    assert "i-launcher" in cloud.left()


def test_what_is_found_has_its_price(cloud: Cloud) -> None:
    """A machine by its type, a disk by its size; a network costs nothing."""
    cloud.gib = 100
    found = {left.id: left.hourly for left in remove.find_priced(FakeApi(cloud))}
    assert found["i-worker-1"] == 1.0
    assert found["vol-worker-1"] == pytest.approx(0.073 * 100 / 730)
    assert found["vpc-1"] == 0
