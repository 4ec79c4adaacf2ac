"""`gc`: what runs in a cloud and belongs to no cluster that this machine knows of."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from clusterctl.actions.common import check_name
from clusterctl.core.clock import Deadline, run_in_background
from clusterctl.core.model import ID_PATTERN, Cluster, Reporter
from clusterctl.errors import ProviderError, RecordError, UsageError
from clusterctl.machines import providers
from clusterctl.machines.protocol import Resource, describe_resources
from clusterctl.state.home import name_client
from clusterctl.state.locks import ClusterLock
from clusterctl.state.store import Store


def describe_owner(owner: str, client: str) -> str:
    """Who made a cluster, and on which machine: several people may be one owner."""
    return f"{owner or 'an unknown owner'} ({client})" if client else owner or "an unknown owner"


class Orphan(Struct, frozen=True):
    """A cluster by its tags alone. `name` may be empty where the tag is gone."""

    id: str
    name: str
    region: str
    resources: tuple[Resource, ...]

    @property
    def text(self) -> str:
        whose = f", of {self.whose}" if self.owner else ""
        folder = self._find_first("shared")
        with_it = f", with the shared folder {folder}" if folder else ""
        what = f"{describe_resources(self.resources)}{with_it}"
        return f"{self.id} ({self.name or 'no name'}{whose}) in {self.region}: {what}"

    @property
    def kinds(self) -> str:
        """`2 instances, 1 volume`."""
        return describe_resources(self.resources, ids=False)

    @property
    def owner(self) -> str:
        """Who made it; "" where no tag says that."""
        return self._find_first("owner")

    @property
    def client(self) -> str:
        """From which machine, and by whom there: `ana@laptop`."""
        return self._find_first("client")

    @property
    def whose(self) -> str:
        return describe_owner(self.owner, self.client)

    def _find_first(self, name: str) -> str:
        return next(filter(None, (getattr(item, name) for item in self.resources)), "")

    @property
    def deadline(self) -> float | None:
        """The latest of its tags: an `extend` may have moved only some."""
        return max((item.deadline for item in self.resources if item.deadline), default=None)

    @property
    def made(self) -> float | None:
        """When its first machine was started."""
        return min((item.made for item in self.resources if item.made), default=None)

    @property
    def hourly(self) -> float:
        """US dollars, without what has no known price."""
        return sum(item.hourly or 0.0 for item in self.resources)

    @property
    def priced(self) -> bool:
        """Whether every price is known."""
        return all(item.hourly is not None for item in self.resources)


class FoundClusters(Struct, frozen=True):
    """`orphans`: clusters with our tag that nothing here knows of. `mine`: who we are to whoever
    bills them."""

    regions: tuple[str, ...]
    orphans: tuple[Orphan, ...]
    mine: str
    failed: tuple[ProviderError, ...] = ()
    """One for each region that could not be searched, and where it is not told which there are."""


def find_leftovers(store: Store, regions: Iterable[str] = ()) -> FoundClusters:
    """An orphan's owner may be another machine of yours, or a colleague: nothing is removed without
    being asked for."""
    regions, tagged, failed = _find_tagged(store, regions)
    known = _list_known(store)
    orphans = tuple(item for item in tagged if item.id not in known)
    return FoundClusters(regions, orphans, _find_owner(), failed)


def remove(store: Store, orphan: Orphan, report: Reporter) -> bool:
    """Removes all of it, unless it is known here by now: then it says so and returns False. Raises
    LeftoverError if something stays."""
    # A tag may hold anything, and a lock is a file.
    name = Path(orphan.name or orphan.id).name
    with ClusterLock(store.home, name, "gc", report):
        if orphan.id in _list_known(store):
            report(f"{orphan.id} now has a record here; keeping it")
            return False
        providers.load_cloud().remove(orphan.id, orphan.region, report)
    return True


def find_adoptable(store: Store, name: str, regions: Iterable[str]) -> Orphan:
    """The cluster of that name (or id) that has no record. Raises RecordError where there is none
    or the name is taken, UsageError where there are several."""
    if not ID_PATTERN.fullmatch(name):
        check_name(name)
    regions, tagged, failed = _find_tagged(store, regions)
    found = [item for item in tagged if name in (item.name, item.id)]
    recorded = _list_recorded(store)
    found = [item for item in found if item.id not in recorded]
    if not found and failed:
        raise failed[0]
    if found and name not in (item.id for item in found):
        found = _pick_own(found)
    if not found:
        raise RecordError(
            f"no cluster {name!r} without a local record was found in {', '.join(regions)}",
            hint="`clusterctl gc` lists all it finds; --region looks in another region",
        )
    if len(found) > 1:
        raise UsageError(
            f"several clusters are called {name!r}: {', '.join(item.id for item in found)}",
            hint="choose one by its id",
        )
    orphan = replace(found[0], name=found[0].name or name)
    _require_free(store, check_name(orphan.name))  # a tag may say anything
    return orphan


def _pick_own(found: list[Orphan]) -> list[Orphan]:
    """Those that are ours. Raises UsageError where there is none: people who share an account call
    their clusters alike."""
    mine = _find_owner()
    if own := [item for item in found if is_own(item, mine)]:
        return own
    theirs = found[0]
    raise UsageError(
        f"cluster {theirs.id} belongs to {theirs.whose},"
        f" and you are {describe_owner(mine, name_client())}",
        hint=f"to take it back anyway: `clusterctl gc --adopt {theirs.id}`",
    )


def is_own(orphan: Orphan, mine: str) -> bool:
    """Whether it was made by `mine`, on this machine and by this user of it: people share roles and
    log in to shared machines, and AWS knows them as one."""
    return bool(mine) and (orphan.owner, orphan.client) == (mine, name_client())


def _require_free(store: Store, name: str) -> None:
    if name in store.list_names() and (store.locate_folder(name) / "cluster.json").exists():
        raise RecordError(
            f"this machine already has a cluster {name!r}", hint=f"`clusterctl down {name}` first"
        )


def adopt(store: Store, orphan: Orphan, report: Reporter) -> Cluster:
    """Gives the cluster a record again. Raises RecordError where its name is taken by now."""
    name = orphan.name
    with ClusterLock(store.home, name, "gc", report):
        _require_free(store, name)
        cluster = providers.load_cloud().adopt(orphan.id, name, orphan.region)
        cluster = replace(cluster, deadline=orphan.deadline)
        store.save(cluster)
        store.add_event(name, "adopted", id=orphan.id)
    return cluster


def _find_owner() -> str:
    """Who we are; "" where that is not told."""
    try:
        return providers.load_cloud().find_owner()
    except ProviderError:
        return ""


SEARCH_LIMIT = 45.0
"""Seconds that a region may take to answer: others are not kept waiting by one that hangs."""

T = TypeVar("T")


def _await(answer: Future[T], limit: Deadline, region: str) -> T:
    try:
        return limit.await_result(answer)
    except TimeoutError:
        why = f"no answer from {region} within {SEARCH_LIMIT:g} s"
        raise ProviderError(why, transient=True) from None


def _find_tagged(
    store: Store, wanted: Iterable[str]
) -> tuple[tuple[str, ...], list[Orphan], tuple[ProviderError, ...]]:
    """The regions `wanted`, else all of the account, the usual one and those of the clusters on
    record, as far as they could be searched; every cluster with our tag in them, known or not; and
    an error for each of the others, and where nobody tells which regions there are. Raises the
    first where no region could be searched."""
    cloud = providers.load_cloud()
    regions, errors = tuple(dict.fromkeys(wanted)), list[ProviderError]()
    if not regions:
        usual, why = cloud.find_usual_region(), ""
        enabled: tuple[str, ...] = ()
        try:
            enabled = _await(run_in_background(cloud.list_regions), Deadline(SEARCH_LIMIT), usual)
        except ProviderError as error:
            why = error.message
        on_record = (cluster.spec.cloud.region for cluster in store.list_clusters())
        regions = tuple(dict.fromkeys((usual, *filter(None, on_record), *enabled)))
        if why:
            told = (
                f"only {', '.join(regions)} could be searched, as the others are not known: {why}"
            )
            hint = "try again, or name the others: --region eu-west-1 --region us-west-2 …"
            errors.append(ProviderError(told, hint=hint))
    asked = {region: run_in_background(partial(cloud.find, region)) for region in regions}
    limit = Deadline(SEARCH_LIMIT)
    found: list[Orphan] = []
    failed: dict[str, ProviderError] = {}
    for region, answer in asked.items():
        groups: dict[str, list[Resource]] = {}
        try:
            for resource in _await(answer, limit, region):
                groups.setdefault(resource.cluster, []).append(resource)
        except ProviderError as error:
            failed[region] = error
            what = f"region {region} could not be searched: {error.message}"
            errors.append(ProviderError(what, hint=error.hint))
        for id, mine in groups.items():
            called = next((resource.name for resource in mine if resource.name), "")
            found.append(Orphan(id, called, region, tuple(mine)))
    if failed and len(failed) == len(regions):
        raise failed[regions[0]]
    return tuple(region for region in regions if region not in failed), found, tuple(errors)


def _list_recorded(store: Store) -> set[str]:
    """Ids, to be asked for when the cloud has answered: `up` writes the record before it makes
    anything, so that no cluster which begins meanwhile is taken for an orphan."""
    return {cluster.id for cluster in store.list_clusters()}


def _list_known(store: Store) -> set[str]:
    """The same, with those whose record is damaged or gone: `down` still knows them."""
    kept, cloud = set[str](), providers.load_cloud()
    for name in store.list_names():
        with suppress(RecordError):  # nothing tells which it is: it can be found here alone
            kept |= cloud.find_ids(store.locate_folder(name))
    return _list_recorded(store) | kept
