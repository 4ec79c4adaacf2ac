"""What `up` is going to do: from options to a complete spec, to a plan in each region; and whether
its budget is kept when that is done."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterctl import catalog, providers
from clusterctl.actions import check_name, node_images, require_owned, shrink
from clusterctl.actions.node_images import NodeImage
from clusterctl.errors import (
    NodeUnreachable,
    ProviderError,
    RecordError,
    UsageError,
    describe_reason,
)
from clusterctl.formats import count, format_span, format_time
from clusterctl.model import CloudSpec, Cluster, ClusterSpec, Consent, NodeGroup, Reporter, Runtime
from clusterctl.node_results import shorten
from clusterctl.providers.protocol import (
    Creator,
    Expiring,
    Features,
    Labelling,
    LogsIn,
    ProviderPlan,
    Timekeeping,
)
from clusterctl.providers.shared import budget
from clusterctl.state import Store

DEFAULT_WORKERS = 2


@dataclass(frozen=True, slots=True)
class Intent:
    """What `up` is going to do about the cluster that there is, or about none."""

    old: Cluster | None
    spec: ClusterSpec
    provider: Creator
    plan: ProviderPlan
    images: Mapping[str, NodeImage]
    """By kind of node; none where ranks run on the machines themselves."""
    surplus: tuple[str, ...]
    """The workers that there are and that will go."""
    others: tuple[ClusterSpec, ...] = ()
    """The same for other regions, to be tried next."""


def resolve(store: Store, spec: ClusterSpec) -> ClusterSpec:
    """The options, with defaults for what they leave out: these decide what others mean."""
    check_name(spec.name)
    return complete(spec, find_owned(store, spec))


def find_circumstances(spec: ClusterSpec) -> set[str]:
    """What decides which options of `up` have an effect: the provider, `host` where ranks run on
    machines that would usually have containers, and `instance-connect`."""
    usual = providers.load_creator(spec.provider).features.runtime
    host = {"host"} if spec.runtime is Runtime.HOST and usual is Runtime.DOCKER else set()
    return {spec.provider, *host, *["instance-connect"] * spec.cloud.instance_connect}


def plan(store: Store, spec: ClusterSpec, report: Reporter) -> ProviderPlan:
    """What `up` would do."""
    check_name(spec.name)
    old = find_owned(store, spec)
    first, *others = find_places(spec, old)
    return add_regions(intend(first, old, report), others, report).plan


def find_places(spec: ClusterSpec, old: Cluster | None) -> list[ClusterSpec]:
    """The options for each region that the cluster may be made in, in this order. One that has
    nodes stays where it is; one that was cut off goes on there."""
    full = complete(spec, old)
    regions = full.cloud.regions
    if not regions or spec.cloud.region:
        return [spec]
    here = old.spec.cloud.region if old else ""
    if here in regions:
        at = regions.index(here)
        regions = regions[at : at + 1] if old and old.nodes else regions[at:]
    # Elsewhere there is no record that has what the options leave out.
    specs = [spec, *[full] * (len(regions) - 1)]
    return [
        replace(made, cloud=replace(made.cloud, region=region))
        for made, region in zip(specs, regions, strict=True)
    ]


def add_regions(intent: Intent, others: Sequence[ClusterSpec], report: Reporter) -> Intent:
    """With what the plan becomes in other regions, and one question for all: what cannot be made
    there is found out before money is spent here."""
    lines, questions, here = [*intent.plan.lines], [], intent.spec.cloud.region
    if intent.plan.question:
        questions.append(f"{intent.plan.question.removesuffix('?')} in {here}")
    for other in others if questions else ():
        place = other.cloud.region
        plan = intend(other, None, report).plan
        lines += [f"if {here} has no capacity, the whole cluster moves to {place}:", *plan.lines]
        questions.append(f"{plan.question.removesuffix('?')} in {place}")
    question = f"{', or else '.join(questions)}?" if questions[1:] else intent.plan.question
    plan = replace(intent.plan, lines=tuple(lines), question=question)
    return replace(intent, plan=plan, others=tuple(others))


def intend(
    spec: ClusterSpec, old: Cluster | None, report: Reporter, ahead: Path | None = None
) -> Intent:
    options = complete(spec, old)
    provider = providers.load_creator(options.provider)
    plan = provider.plan(options, old, report, ahead=ahead)
    options = plan.spec or options
    folder = [f"shared folder: {provider.features.shared_folder}"] if options.makes_folder else []
    images = _choose_images(spec, options, old, provider, plan.kinds)
    surplus = shrink.find_surplus(old, plan, options.workers) if old else ()
    more = [*folder, *(image.line for image in images.values())]
    if surplus:
        more.append(f"to be removed: {shorten(surplus)}")
    elif old and old.nodes and not plan.nodes:
        more.append(_describe_additions(old, options.workers))
    plan = replace(plan, lines=(*plan.lines, *more))
    return Intent(old, options, provider, plan, images, surplus)


STALE = 600.0
"""Seconds after which an answer is one to an old plan."""


def agree(
    store: Store,
    intent: Intent,
    renew: Callable[[Intent], Intent],
    report: Reporter,
    consent: Consent,
    clock: Callable[[], float],
) -> Intent:
    """Shows the plan and returns what was agreed to. Where the answer took long, because a laptop
    slept, say, `renew` makes the plan again, and it is asked about again: deadline, prices and
    quotas are those of its time. Raises UsageError for no."""
    while True:
        for line in intent.plan.lines:
            report(line)
        asked = clock()
        if intent.old and intent.surplus:
            shrink.confirm_removal(store, intent.old, intent.surplus, report, consent)
        if intent.plan.question and not consent(intent.plan.question):
            raise UsageError("aborted; nothing was started", hint="--dry-run only shows the plan")
        took = clock() - asked
        if not intent.plan.question or took < STALE:
            return intent
        report(f"the answer took {format_span(round(took / 60) * 60)}: making the plan again")
        intent = renew(intent)


def make_id(owner: str, name: str) -> str:
    """Of a new cluster: `ana-lab-1a2b3c4d` for user/ana, so that ids of a shared account tell whose
    a cluster is."""
    whose = owner.rpartition("/")[2].partition("@")[0].lower()
    plain = re.sub("[^a-z0-9]+", "-", whose).strip("-0123456789")[:10].strip("-")
    if f"{plain or name}-".startswith("sg-"):
        # EC2 takes no security group whose name begins like the id of one.
        plain = f"c-{plain}"[:10].strip("-")
    return "-".join(filter(None, (plain, name, secrets.token_hex(4))))


def _describe_additions(old: Cluster, workers: int) -> str:
    """Of a cluster that is there, whose provider numbers its workers from 1."""
    there = {node.name for node in old.nodes}
    wanted = [f"worker-{number}" for number in range(1, workers + 1)]
    added = [name for name in wanted if name not in there]
    if added:
        return f"to be added: {shorten(added)} (the cluster has {count(len(there), 'node')})"
    return "to be added: none (nodes of the cluster that are gone are started again)"


def _choose_images(
    given: ClusterSpec,
    options: ClusterSpec,
    old: Cluster | None,
    provider: Creator,
    kinds: Sequence[str],
) -> dict[str, NodeImage]:
    """What the nodes get. An --image that is given again is asked for again."""
    if not kinds:
        return {}
    known = old.images if old and not (given.image or given.images) else {}
    logins = provider.find_registry_login if isinstance(provider, LogsIn) else lambda host: None
    return node_images.resolve(options, kinds, known, logins)


def find_owned(store: Store, spec: ClusterSpec) -> Cluster | None:
    """The record of the cluster of that name, if there is one; UsageError for an attached one."""
    old = store.find(spec.name)
    return require_owned(old) if old else None


def complete(spec: ClusterSpec, old: Cluster | None) -> ClusterSpec:
    """The options; what they leave out is taken from the cluster there is, else the defaults."""
    spec = replace(spec, groups=tuple(map(catalog.name_workers, spec.groups)))
    provider = spec.provider or (old.spec.provider if old else providers.DEFAULT)
    if old and old.spec.provider != provider:
        raise RecordError(
            f"cluster {old.name!r} already exists ({old.spec.provider})",
            hint=f"`clusterctl down {old.name}` first, or choose another name",
        )
    features = providers.load_creator(provider).features
    usual = NodeGroup(count=DEFAULT_WORKERS, family=features.worker_family)
    base = old.spec if old else ClusterSpec(name=spec.name, provider=provider, groups=(usual,))
    return replace(
        spec,
        provider=provider,
        groups=_complete_groups(spec, base),
        ttl=spec.ttl or base.ttl,
        runtime=spec.runtime or base.runtime or features.runtime,
        **_complete_images(spec, base),
        gpus=spec.gpus or base.gpus,
        shared=_complete_shared(spec, old, features),
        cloud=_complete_cloud(spec.cloud, base.cloud),
    )


def _complete_shared(spec: ClusterSpec, old: Cluster | None, features: Features) -> bool:
    """Whether nodes share a folder. Nodes that run would have to be made anew to see one."""
    if spec.shared and not features.shared_folder:
        raise UsageError(
            "--shared does not work with this provider", hint="leave it out, or use another one"
        )
    if spec.shared and old and not old.spec.shared:
        raise UsageError(
            f"cluster {old.name} was created without --shared",
            hint=f"`clusterctl down {old.name}` first, or choose another name",
        )
    return old.spec.shared if old else spec.shared


def _complete_images(spec: ClusterSpec, base: ClusterSpec) -> dict[str, Any]:
    """One --image, of all nodes or of some, replaces those from before."""
    source = spec if spec.image or spec.images else base
    return {"image": source.image, "images": source.images}


def _complete_groups(spec: ClusterSpec, base: ClusterSpec) -> tuple[NodeGroup, ...]:
    """A group that names no machines means those of `base`; a count of 0, as many as it has."""
    first = spec.groups[0]
    if first.family or first.instance_type:
        return tuple(_set_count(group, base) for group in spec.groups)
    if not first.count:
        return base.groups
    if len(base.groups) > 1:
        raise UsageError(
            f"cluster {spec.name} has {len(base.groups)} kinds of workers: --workers is ambiguous",
            hint="give the number of each: --gpu FAMILY:N --cpu TYPE:N",
        )
    return (replace(base.groups[0], count=first.count),)


def _set_count(group: NodeGroup, base: ClusterSpec) -> NodeGroup:
    if group.count:
        return group
    kind = catalog.choose_instance_type(group)
    have = [item.count for item in base.groups if catalog.choose_instance_type(item) == kind]
    return replace(group, count=have[0] if have else DEFAULT_WORKERS)


def _complete_cloud(cloud: CloudSpec, base: CloudSpec) -> CloudSpec:
    """`base` with what differs from the defaults."""
    defaults = CloudSpec()
    given = {
        name: value
        for name in CloudSpec.__dataclass_fields__
        if (value := getattr(cloud, name)) != getattr(defaults, name)
    }
    return replace(base, **given)


def keep_budget(
    store: Store, cluster: Cluster, report: Reporter, clock: Callable[[], float] = time.time
) -> Cluster:
    """The cluster with an earlier deadline, on its nodes too, where its budget does not last until
    the planned one. That is planned before a machine runs, and AWS may have started some in zones
    without room for the others."""
    provider, options, end = providers.load(cluster.spec.provider), cluster.spec, cluster.deadline
    if not options.cloud.budget or end is None or not isinstance(provider, Expiring):
        return cluster
    if budget.shorten(options, cluster.charges, end, clock()) >= end:
        return cluster
    folder = store.locate_folder(cluster.name)
    try:
        ahead = 0.0
        if isinstance(provider, Timekeeping):
            ahead = provider.measure_clock(cluster, folder, report)
        sooner = budget.shorten(options, cluster.charges, end, clock() - ahead)
        provider.extend(cluster, folder, sooner)
        if isinstance(provider, Labelling):
            provider.label_deadline(cluster, folder, sooner)
    except (NodeUnreachable, ProviderError) as error:
        report(
            f"machines in other zones have spent a part of --budget {options.cloud.budget:g}, which"
            f" does not last until {format_time(end)}; that could not be changed"
            f" ({describe_reason(error)}): `clusterctl extend {cluster.name} --ttl …` sets an"
            " earlier end"
        )
        return cluster
    report(
        f"machines in other zones have spent a part of --budget {options.cloud.budget:g}: the"
        f" cluster ends at {format_time(sooner)} instead of {format_time(end)}"
    )
    cluster = replace(cluster, deadline=sooner)
    store.save(cluster)
    return cluster
