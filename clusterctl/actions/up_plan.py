"""What `up` is going to do: from options to a complete spec, to a plan in each region; and whether
its budget is kept when that is done."""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from clusterctl.actions.common import (
    Connected,
    check_name,
    connect_or_report,
    open_pool,
    require_owned,
)
from clusterctl.core import catalog
from clusterctl.core.clock import Deadline
from clusterctl.core.model import (
    CloudSpec,
    Cluster,
    ClusterSpec,
    Consent,
    NodeGroup,
    Reporter,
    Runtime,
    shorten,
)
from clusterctl.core.text import count, format_span, format_time
from clusterctl.errors import (
    NodeUnreachable,
    ProviderError,
    RecordError,
    UsageError,
    describe_reason,
)
from clusterctl.machines import charges, providers, registry
from clusterctl.machines.protocol import (
    Features,
    Provider,
    ProviderPlan,
    RegistryLogin,
)
from clusterctl.options.kinds import DOCKER, EC2
from clusterctl.options.verbs import Up
from clusterctl.state.store import Store

# -------------------------------------------------------------------------------------------------
# Fewer workers: what goes with them is said, and asked, before they do.


def confirm_removal(
    store: Store,
    old: Cluster,
    names: Sequence[str],
    report: Reporter,
    consent: Consent,
) -> None:
    """Has a person agree to the removal of workers that cost money or have files that nobody has
    fetched, names these, and saves their logs. Raises UsageError where a job runs there, or where
    the person said no."""
    jobs = [
        job
        for job in store.list_cluster_jobs(old)
        if any(place.node in names for place in job.placement)
    ]
    if not jobs:
        _ask(old, names, consent)
        return
    from clusterctl.actions import outputs  # most plans remove nothing
    from clusterctl.actions.jobs import refresh_records, save_logs

    used = [name for name in names if any(name == p.node for job in jobs for p in job.placement)]
    with open_pool(store, old) as pool:
        open_jobs = [job for job in jobs if not job.state.ended]
        fresh = refresh_records(store, open_jobs, old, pool) if open_jobs else {}
        for job in fresh.values():
            if not job.state.ended:
                hit = sorted({place.node for place in job.placement} & set(names))
                raise UsageError(
                    f"job {job.id} has ranks on {', '.join(hit)}, which would be removed",
                    hint=f"wait for it, or `clusterctl cancel {job.id}` first",
                )
        away = connect_or_report(pool, used, report)
        for name, why in away.items():
            report(f"files on {name} cannot be saved: {why}")
        at = Connected(store, old, pool, report, away)
        going = tuple(node for node in at.here.nodes if node.name in names)
        leaving = Connected(store, replace(old, nodes=going), pool, report)
        look = Deadline(outputs.LOOK_LIMIT)
        jobs = [fresh.get(job.id, job) for job in jobs]
        loss = outputs.describe_loss(*outputs.find_unfetched(leaving, jobs, look))
        for line in loss:
            report(line)
        _ask(old, names, consent, loses=bool(loss))
        save_logs(at, jobs)


def _ask(old: Cluster, names: Sequence[str], consent: Consent, loses: bool = False) -> None:
    question = f"remove {shorten(names)}{', and lose these files' * loses}?"
    if (old.charges or loses) and not consent(question):
        raise UsageError("aborted; nothing was removed", hint="--dry-run only shows the plan")


# -------------------------------------------------------------------------------------------------
# Which image each kind of node gets: asked of the registries before anything is paid for.


class NodeImage(Struct, frozen=True):
    """`reference` is what the node's engine runs. With a `recipe`, the node builds it, on `bases`;
    else it is pulled, with `login` where the registry asks for one."""

    reference: str
    line: str
    """For people: where it comes from, and how big that is."""
    recipe: str = ""
    bases: tuple[str, ...] = ()
    login: RegistryLogin | None = None
    size: int = 0
    """Bytes that the node downloads of it, where they are known."""


def parse_images(texts: Sequence[str]) -> tuple[str, dict[str, str]]:
    """What --image says: the image of all nodes, and those of some kinds of nodes. The name of a
    recipe alone is for the nodes that it was made for."""
    everywhere, by_kind = "", dict[str, str]()
    for text in texts:
        kind, equals, image = text.partition("=")
        if not equals:
            image = text
            kind = text if text in catalog.RECIPES else ""
        elif kind not in catalog.CONTAINER_IMAGES:
            raise UsageError(
                f"--image {text!r}: no kind of node is called {kind!r}",
                hint=f"the kinds are {', '.join(catalog.CONTAINER_IMAGES)}",
            )
        if image not in catalog.RECIPES:
            registry.parse_image_name(image)
        if kind in by_kind or (everywhere and not kind):
            raise UsageError(
                f"--image names two images for {_name_nodes(kind) if kind else 'all nodes'}",
                hint="leave one of the two out",
            )
        if kind:
            by_kind[kind] = image
        else:
            everywhere = image
    return everywhere, by_kind


def resolve_node_images(
    spec: ClusterSpec,
    kinds: Sequence[str],
    known: Mapping[str, str],
    more_logins: registry.MoreLogins,
) -> dict[str, NodeImage]:
    """The images of these kinds of nodes. `known` are those that the cluster has, by digest: its
    new nodes get the same, whatever a tag means by now.

    Raises UsageError or ProviderError for what is no image, or none that we may see.
    """
    ask = cache(partial(registry.resolve_image, more_logins=more_logins))
    found = {}
    for kind, chosen in catalog.choose_images(kinds, spec.image, spec.images).items():
        if chosen in catalog.RECIPES:
            found[kind] = _resolve_recipe(kind, chosen)
        else:
            pulled = ask(known.get(kind, chosen))
            name = registry.parse_image_name(chosen).tagged
            line = f"image of {_name_nodes(kind)}: {name} {_describe(pulled)}"
            if chosen == catalog.CONTAINER_IMAGES[kind].public:
                line += ", published by the author of the seed project, not by us"
            found[kind] = NodeImage(pulled.pinned, line, login=pulled.login, size=pulled.size)
    return found


def _resolve_recipe(kind: str, recipe: str) -> NodeImage:
    listed = registry.read_downloads()
    base = registry.list_arguments(listed)["BASE"]
    tagged, _, digest = base.partition("@")
    return NodeImage(
        reference=registry.make_tag(recipe, listed),
        line=f"image of {_name_nodes(kind)}: built there from the recipe {recipe!r}, on {tagged}"
        f" ({digest[:19]})",
        recipe=recipe,
        bases=(base,),
    )


def measure_installs(
    kinds: Sequence[str], images: Mapping[str, NodeImage], runtime: Runtime | None
) -> dict[str, tuple[float, float]]:
    """GB that a new node of each kind fetches and writes, as far as that is known."""
    known = catalog.INSTALLS
    found: dict[str, tuple[float, float]] = {}
    for kind in kinds:
        image = images.get(kind)
        if runtime is Runtime.HOST and kind in known.host:
            found[kind] = known.host[kind]
        elif image and image.recipe in known.built:
            found[kind] = known.built[image.recipe]
        elif image and image.size:
            found[kind] = image.size / 1e9, image.size / 1e9 * known.pulled
    return found


def check_disk(
    disk: int, images: Mapping[str, int], installs: Mapping[str, tuple[float, float]]
) -> None:
    """Raises UsageError where --disk has no room for what new workers write. `images`: GiB of their
    machine images, by kind; of those, it is not known how much is free."""
    least = {
        kind: images[kind] + math.ceil(written * 1e9 / 2**30)
        for kind, (_, written) in installs.items()
        if kind in images
    }
    for kind, needed in least.items():
        if 0 < disk < needed:
            raise UsageError(
                f"--disk {disk} is too small for {kind} workers: their machine image takes"
                f" {images[kind]} GiB, and {installs[kind][1]:.1f} GB more are installed",
                hint=f"--disk {max(least.values())} or more",
            )


def describe_installs(
    installs: Mapping[str, tuple[float, float]], speeds: Mapping[str, float]
) -> Iterator[str]:
    """How long new nodes take, and for what. `speeds`: MB/s of faster disks, by kind."""
    known = catalog.INSTALLS
    for kind, (fetched, written) in installs.items():
        disk = speeds.get(kind, known.disk)
        seconds = known.estimate(fetched, written, disk)
        yield (
            f"installing on {_name_nodes(kind)}: {fetched:.1f} GB to fetch and {written:.1f} GB to"
            f" write on each, about {math.ceil(seconds / 60)} min (at {known.fetch:g} and"
            f" {disk:g} MB/s)"
        )


def _name_nodes(kind: str) -> str:
    return "the launcher" if kind == "launcher" else f"{kind} workers"


def _describe(found: registry.FoundImage) -> str:
    return f"({found.digest[:19]}, {found.size / 1e6:,.0f} MB)"


# -------------------------------------------------------------------------------------------------

DEFAULT_WORKERS = 2


class Intent(Struct, frozen=True):
    """What `up` is going to do about the cluster that there is, or about none."""

    old: Cluster | None
    spec: ClusterSpec
    provider: Provider
    plan: ProviderPlan
    images: Mapping[str, NodeImage]
    """By kind of node; none where ranks run on the machines themselves."""
    surplus: tuple[str, ...]
    """The workers that there are and that will go."""
    installs: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By kind of node: GB that a new one fetches, and writes."""
    others: tuple[ClusterSpec, ...] = ()
    """The same for other regions, to be tried next."""


def read_options(store: Store, name: str, given: Up, note: Reporter) -> tuple[Up, ClusterSpec]:
    """The options of `up` that have an effect on the cluster of that name, and what they ask for.
    UsageError for one that was typed and has none, as for options that make no sense."""
    old, full = resolve_options(store, name, given)
    place = f"the provider{f' of cluster {name!r}' if old else ''} is {full.provider}"
    given = given.apply_limits(find_circumstances(full), note, place)
    return given, make_spec(name, given)


def resolve_options(store: Store, name: str, given: Up) -> tuple[Cluster | None, ClusterSpec]:
    """The cluster of that name, and the options with defaults for what they leave out: these decide
    what others mean."""
    check_name(name)
    spec = make_spec(name, given)
    old = find_owned(store, spec)
    return old, complete(spec, old)


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
    return intend(first, old, others, report).plan


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


def intend(
    spec: ClusterSpec,
    old: Cluster | None,
    others: Sequence[ClusterSpec],
    report: Reporter,
    ahead: Path | None = None,
) -> Intent:
    """What `up` is going to do, with what the plan becomes in other regions, and one question for
    all: what cannot be made there is found out before money is spent here."""
    intent = _intend_here(spec, old, report, ahead)
    lines, question, here = [*intent.plan.lines], intent.plan.question, intent.spec.cloud.region
    questions = [f"{question.removesuffix('?')} in {here}"]
    for other in others if question else ():
        place = other.cloud.region
        plan = _intend_here(other, None, report).plan
        lines += [f"if {here} has no capacity, the whole cluster moves to {place}:", *plan.lines]
        questions.append(f"{plan.question.removesuffix('?')} in {place}")
        question = f"{', or else '.join(questions)}?"
    plan = replace(intent.plan, lines=tuple(lines), question=question)
    return replace(intent, plan=plan, others=tuple(others))


def _intend_here(
    spec: ClusterSpec, old: Cluster | None, report: Reporter, ahead: Path | None = None
) -> Intent:
    options = complete(spec, old)
    provider = providers.load_creator(options.provider)
    plan = provider.plan(options, old, report, ahead=ahead)
    options = plan.spec or options
    folder = [f"shared folder: {provider.features.shared_folder}"] if options.shared else []
    if options.setup:
        first = next(filter(str.strip, options.setup.splitlines()), "")
        lines = count(len(options.setup.splitlines()), "line")
        folder.append(f"as root on each node, once: {lines} of --setup, from `{first[:60]}` on")
    # What the cluster has; an --image that is given again is asked for again.
    known = old.images if old and not (spec.image or spec.images) else {}
    contained = plan.kinds if options.runtime is Runtime.DOCKER else ()
    images = {}
    if contained:  # else the provider has looked at them, or there are no containers
        images = resolve_node_images(options, contained, known, provider.find_registry_login)
    bare = [kind for kind in plan.kinds if kind not in plan.saved]
    installs = measure_installs(bare, images, options.runtime)
    if not (old and old.nodes):  # on those, everything is installed
        check_disk(options.cloud.disk, plan.disks, installs)
    there = old.workers if old else ()
    kept = plan.nodes or [node.name for node in there[: options.workers]]
    surplus = tuple(node.name for node in there if node.name not in kept)
    more = [*folder, *(image.line for image in images.values())]
    if plan.question:
        more += describe_installs(installs, plan.speeds)
    if surplus:
        more.append(f"to be removed: {shorten(surplus)}")
    elif old and old.nodes and not plan.nodes:
        more.append(_describe_additions(old, options.workers))
    plan = replace(plan, lines=(*plan.lines, *more))
    return Intent(old, options, provider, plan, images, surplus, installs)


STALE = 600.0
"""Seconds after which an answer is one to an old plan."""


def agree(
    store: Store,
    intent: Intent,
    renew: Callable[[], Intent],
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
            confirm_removal(store, intent.old, intent.surplus, report, consent)
        if intent.plan.question and not consent(intent.plan.question):
            raise UsageError("aborted; nothing was started", hint="--dry-run only shows the plan")
        took = clock() - asked
        if not intent.plan.question or took < STALE:
            return intent
        report(f"the answer took {format_span(round(took / 60) * 60)}: making the plan again")
        intent = renew()


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


def find_owned(store: Store, spec: ClusterSpec) -> Cluster | None:
    """The record of the cluster of that name, if there is one; UsageError for an attached one."""
    old = store.find(spec.name)
    return require_owned(old) if old else None


def complete(spec: ClusterSpec, old: Cluster | None) -> ClusterSpec:
    """The options; what they leave out is taken from the cluster there is, else the defaults."""
    spec = replace(spec, groups=tuple(map(catalog.name_workers, spec.groups)))
    provider = spec.provider or (old.spec.provider if old else providers.DEFAULT)
    features = providers.load_creator(provider).features
    if old and old.spec.provider != provider:
        for group in spec.groups:
            catalog.choose_instance_type(group)  # a slip is the mistake that counts
        raise RecordError(
            f"cluster {old.name!r} already exists ({old.spec.provider})",
            hint=f"`clusterctl down {old.name}` first, or choose another name",
        )
    default = NodeGroup(count=DEFAULT_WORKERS, family=features.worker_family)
    base = old.spec if old else ClusterSpec(name=spec.name, provider=provider, groups=(default,))
    pictures = spec if spec.image or spec.images else base  # one replaces all from before
    cloud = _complete_cloud(spec.cloud, base.cloud)
    groups = _complete_groups(spec, base)
    usual_runtime = features.runtime
    kinds = {catalog.guess_image_kind(group) for group in groups}
    if "amd" not in kinds and not (pictures.image or pictures.images):
        # The machine image for NVIDIA has driver and libfabric, and PyTorch's wheels bring the
        # rest: they are installed once there, and twice where a container is built of them.
        usual_runtime = Runtime.HOST if "nvidia" in kinds or cloud.efa else features.runtime
    return replace(
        spec,
        provider=provider,
        groups=groups,
        ttl=spec.ttl or base.ttl,
        runtime=spec.runtime or base.runtime or usual_runtime,
        image=pictures.image,
        images=pictures.images,
        gpus=spec.gpus or base.gpus,
        shared=_complete_shared(spec, old, features),
        setup=_complete_setup(spec, base, features),
        cloud=cloud,
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


def _complete_setup(spec: ClusterSpec, base: ClusterSpec, features: Features) -> str:
    if spec.setup and features.shares_machine:
        raise UsageError(
            "--setup does not work with this provider: its nodes are this machine",
            hint="`run --setup LINES` prepares what a job needs",
        )
    return spec.setup or base.setup


def _complete_groups(spec: ClusterSpec, base: ClusterSpec) -> tuple[NodeGroup, ...]:
    """A group that names no machines means those of `base`; a count of 0, as many as it has."""
    first = spec.groups[0]
    if not (first.family or first.instance_type):
        if first.count and len(base.groups) > 1:
            raise UsageError(
                f"cluster {spec.name} has {len(base.groups)} kinds of workers:"
                " --workers is ambiguous",
                hint="give the number of each: --gpu FAMILY:N --cpu TYPE:N",
            )
        return (replace(base.groups[0], count=first.count),) if first.count else base.groups
    have = {catalog.choose_instance_type(group): group.count for group in reversed(base.groups)}
    return tuple(
        replace(
            group,
            count=group.count or have.get(catalog.choose_instance_type(group), DEFAULT_WORKERS),
        )
        for group in spec.groups
    )


def _complete_cloud(cloud: CloudSpec, base: CloudSpec) -> CloudSpec:
    """`base` with what differs from the defaults."""
    defaults = CloudSpec()
    given = {
        name: value
        for name in CloudSpec.__struct_fields__
        if (value := getattr(cloud, name)) != getattr(defaults, name)
    }
    return replace(base, **given)


def keep_budget(
    store: Store, cluster: Cluster, report: Reporter, clock: Callable[[], float] = time.time
) -> Cluster:
    """The cluster with an earlier deadline, on its nodes too, where its budget does not last until
    the planned one. That is planned before a machine runs, and AWS may have started some in zones
    without room for the others."""
    provider = providers.load_provider(cluster.spec.provider)
    options, end, now = cluster.spec, cluster.deadline, clock()
    if not options.cloud.budget or end is None:
        return cluster
    if charges.shorten(options, cluster.charges, end, now) >= end:
        return cluster
    folder = store.locate_folder(cluster.name)
    spent = f"machines in other zones have spent a part of --budget {options.cloud.budget:g}"
    try:
        now -= provider.measure_clock(cluster, folder, report)
        sooner = charges.shorten(options, cluster.charges, end, now)
        provider.extend(cluster, folder, sooner)
        provider.label_deadline(cluster, folder, sooner)
    except (NodeUnreachable, ProviderError) as error:
        report(
            f"{spent}, which does not last until {format_time(end)}; that could not be changed"
            f" ({describe_reason(error)}): `clusterctl extend {cluster.name} --ttl …` sets an"
            " earlier end"
        )
        return cluster
    report(f"{spent}: the cluster ends at {format_time(sooner)} instead of {format_time(end)}")
    cluster = replace(cluster, deadline=sooner)
    store.save(cluster)
    return cluster


# -------------------------------------------------------------------------------------------------
# Which machines a person asks for: the options of `up` as a ClusterSpec.


def make_spec(name: str, given: Up) -> ClusterSpec:
    """What was given to `up`. Without a provider, the one that the options imply; "" leaves it to
    the cluster that exists."""
    cloud = given.gpu or given.cpu or given.instance_type
    implied = EC2.owner if cloud else DOCKER.owner if given.gpus else ""
    image, images = parse_images(given.image) if given.image else ("", {})
    return ClusterSpec(
        name=name,
        provider=given.provider or implied,
        groups=_make_groups(given),
        ttl=given.ttl,
        runtime=Runtime(given.runtime) if given.runtime else None,
        image=image,
        images=images,
        gpus=given.gpus,
        shared=given.shared,
        setup=_read_setup(given.setup) if given.setup else "",
        cloud=CloudSpec(**given.pick_fields(CloudSpec)),
    )


def _read_setup(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--setup: {path} cannot be read: {error}", hint="check it") from error
    if "\nEND_OF_FILE\n" in text or not text.strip():
        raise UsageError(f"--setup: {path} is no script", hint="it has lines for /bin/sh")
    return text if text.endswith("\n") else f"{text}\n"


def _make_groups(given: Up) -> tuple[NodeGroup, ...]:
    """The groups of workers. A count of 0: not given. A number of workers on this command line
    must not contradict the counts of the groups; one in the settings gives way to them."""
    workers, instance_type, typed = given.workers, given.instance_type, "workers" in given.typed
    named = [("--gpu", text) for text in given.gpu] + [("--cpu", text) for text in given.cpu]
    if instance_type and len(named) > 1:
        raise UsageError(
            "--instance-type works with one group of workers",
            hint="give each group as --cpu TYPE:N or --gpu FAMILY:N",
        )
    if not named:
        return (NodeGroup(count=workers, instance_type=instance_type),)
    counted = any(":" in text for _, text in named)
    if workers and typed and (counted or len(named) > 1):
        of = "groups that have their own count" if counted else f"{len(named)} groups"
        each = " ".join(f"{option} {text.partition(':')[0]}:N" for option, text in named)
        raise UsageError(
            f"--workers {workers} cannot be combined with {of}", hint=f"write the counts as {each}"
        )
    found = []
    for option, text in named:
        match = re.fullmatch(r"([A-Za-z0-9.-]+)(?::([1-9]\d{0,4}))?", text)
        if match is None:
            example = {"--gpu": "g4dn:4", "--cpu": "c7i.xlarge:4"}[option]
            raise UsageError(
                f"{option} {text!r} must be NAME or NAME:N", hint=f"for example {option} {example}"
            )
        name, number = match[1], int(match[2] or workers)
        if option == "--gpu":
            found.append(NodeGroup(count=number, family=name, instance_type=instance_type))
        else:
            kind = instance_type or name.lower()
            found.append(NodeGroup(count=number, family="cpu", instance_type=kind))
    return tuple(found)
