"""What can be known in seconds, before anything costs money: what the account may start, types,
images, zones and networks; and `check`, which shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from math import inf

from msgspec import Struct, field
from msgspec.structs import replace

from clusterctl.core import catalog
from clusterctl.core.clock import Deadline, run_in_background
from clusterctl.core.model import Cluster, ClusterSpec, NodeGroup, Reporter, Runtime
from clusterctl.core.text import count
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2 import api as ec2_api
from clusterctl.machines.ec2 import network as ec2_network
from clusterctl.machines.ec2 import refusals, saved, spec, tunnels
from clusterctl.machines.ec2.api import (
    Api,
    Image,
    Instance,
    InstanceType,
    choose_region,
    find_instances,
)
from clusterctl.machines.ec2.network import ZoneSubnets
from clusterctl.machines.ec2.spec import PlannedMachine
from clusterctl.machines.ec2.tunnels import Existing
from clusterctl.machines.protocol import LAUNCHER, CheckRow, QuotaExceeded


def check_quotas(
    api: Api,
    options: ClusterSpec,
    machines: Sequence[PlannedMachine],
    types: Mapping[str, InstanceType],
    present: Mapping[str, str],
    running: Future[list[Instance]],
    report: Reporter,
) -> None:
    """Every quota that the new machines count towards, against what runs in the account. Raises
    QuotaExceeded, with the largest cluster that fits."""
    needed = Counter[tuple[str, str]]()
    for machine in machines:
        row, worker = catalog.find_quota(machine.instance_type), machine.name != LAUNCHER
        if row is None or machine.name in present:
            continue
        key = (f"Running On-Demand {row.name} instances", row.on_demand)
        if options.cloud.spot and worker:
            key = (f"All {row.spot_name or row.name} Spot Instance Requests", row.spot)
        if key[1]:
            needed[key] += types[machine.instance_type].vcpus
    if not needed:
        return
    limits = {code: run_in_background(partial(api.find_quota, code)) for _, code in needed}
    used: Mapping[str, int] = {}
    try:
        used = count_used(api, running.result())
    except ProviderError as error:
        report(f"could not list the running instances: {error.message}")
    room: dict[str, float] = {}
    for name, code in needed:
        try:
            room[code] = limits[code].result() - used.get(code, 0)
        except ProviderError as error:
            report(f"the quota {name} is not known: {error.message}")
    for (name, code), vcpus in needed.items():
        if vcpus <= room.get(code, inf):
            continue
        taken = used.get(code, 0)
        command, fits = ("", 0) if present else _find_fitting(api, options, types, room)
        excess = QuotaExceeded(
            f"the quota {name!r} ({code}) in {api.region} is {room[code] + taken:g} vCPUs, of which"
            f" {taken} are in use; this cluster needs {count(vcpus, 'vCPU')} more",
            hint=render_fitting(command) + render_request(api.region, code, taken + vcpus),
        )
        excess.fits = fits
        raise excess


def _find_fitting(
    api: Api, options: ClusterSpec, types: Mapping[str, InstanceType], room: Mapping[str, float]
) -> tuple[str, int]:
    """The command for the largest new cluster that fits, with the same workers or else with small
    ones without GPUs; and how many of the same workers fit. `room`: vCPUs by quota."""
    launcher, spot = types[spec.choose_launcher_type(options)], options.cloud.spot
    same = [
        (_render_group(group), types[catalog.choose_instance_type(group)])
        for group in options.groups[:1]
        if len(options.groups) == 1
    ]
    words, fits = choose_fitting(launcher, same, options.workers, room, spot=spot)
    if not words:
        with suppress(ProviderError):
            small = _list_small(api.list_instance_types(catalog.SMALL_WORKERS))
            words, _ = choose_fitting(launcher, small, options.workers, room)
    return (f"clusterctl up {options.name} {words}" if words else ""), fits


def _list_small(known: Mapping[str, InstanceType]) -> list[tuple[str, InstanceType]]:
    """As `choose_fitting` takes them."""
    return [(f"--cpu {n}:{{}}", known[n]) for n in catalog.SMALL_WORKERS if n in known]


def choose_fitting(
    launcher: InstanceType,
    workers: Iterable[tuple[str, InstanceType]],
    most: int,
    room: Mapping[str, float],
    *,
    spot: bool = False,
) -> tuple[str, int]:
    """The option for the first kind of workers of which at least one fits beside the launcher, and
    how many do. `workers`: options with a gap for the number; `room`: vCPUs that are free, by
    quota; what is not there is not limited."""
    free = dict(room)
    own = _find_code(launcher, spot=False)
    free[own] = free.get(own, inf) - launcher.vcpus
    for option, kind in workers:
        beside = free.get(_find_code(kind, spot=spot), inf)
        number = int(min(most, beside // kind.vcpus))
        if free[own] >= 0 and number > 0:
            return option.format(number), number
    return "", 0


def _find_code(kind: InstanceType, *, spot: bool) -> str:
    row = catalog.find_quota(kind.name)
    return "" if row is None else row.spot if spot else row.on_demand


def _render_group(group: NodeGroup) -> str:
    """How `up` is asked for such workers, with a gap for their number."""
    kind = catalog.choose_instance_type(group)
    if group.family in ("", "cpu"):
        return f"--cpu {kind}:{{}}"
    return f"--gpu {group.family}:{{}}" + f" --instance-type {kind}" * bool(group.instance_type)


def render_fitting(command: str) -> str:
    """The beginning of a hint: what can be started now."""
    return f"`{command}` fits now; " if command else ""


def render_request(region: str, code: str, value: int) -> str:
    """The command that asks AWS for a larger quota."""
    return (
        "request more: aws service-quotas request-service-quota-increase"
        f" --region {region} --service-code ec2 --quota-code {code} --desired-value {value}"
    )


def check_account_plan(
    api: Api, options: ClusterSpec, types: Mapping[str, InstanceType], free: Future[bool]
) -> None:
    """Raises ProviderError where the account is on AWS's free plan and a type is not in it: a dry
    run does not show that. Where AWS does not say which plan it is, only the launch does."""
    lacking = sorted(name for name, kind in types.items() if not kind.free_plan)
    try:
        if not lacking or not free.result():
            return
    except ProviderError:
        return
    offered = {
        name: kind
        for name, kind in api.list_free_types().items()
        if "x86_64" in kind.architectures and kind.gpus == 0
    }
    small = next((name for name in catalog.SMALL_WORKERS if name in offered), "")
    raise ProviderError(
        f"your account is on AWS's free plan, which does not have {', '.join(lacking)}",
        hint=f"`clusterctl up {options.name} --cpu {small}:1` fits it; " * bool(small)
        + f"{refusals.UPGRADE} (it has {', '.join(sorted(offered))})",
    )


def count_used(api: Api, running: Sequence[Instance]) -> Mapping[str, int]:
    """vCPUs of these instances, by quota code."""
    kinds = api.list_instance_types({item.type for item in running}) if running else {}
    vcpus = Counter[str]()
    for item in running:
        row = catalog.find_quota(item.type)
        if row and item.type in kinds:
            vcpus[row.spot if item.spot else row.on_demand] += kinds[item.type].vcpus
    return vcpus


# -------------------------------------------------------------------------------------------------
# What instance types cannot do, before it costs money: EC2 and the first program say it later.


_TOO_OLD = frozenset({"K520", "K80", "M60", "V100"})
"""NVIDIA's GPUs before Turing, as EC2 names them. The driver of the Deep Learning image begins with
Turing (https://github.com/NVIDIA/open-gpu-kernel-modules), and so do PyTorch's wheels for CUDA 13
(https://github.com/pytorch/pytorch/issues/159779)."""


def check_types(region: str, options: ClusterSpec, types: Mapping[str, InstanceType]) -> None:
    """Raises UsageError for the first type that does not fit."""
    workers = sorted({catalog.choose_instance_type(group) for group in options.groups})
    lacking = [name for name in workers if options.cloud.efa and not types[name].efa]
    if lacking:
        # All of them need it: one without would leave the others waiting.
        raise UsageError(
            f"--efa: {', '.join(lacking)} has no Elastic Fabric Adapter",
            hint="leave --efa out, or choose an --instance-type of those that `aws ec2"
            " describe-instance-types --filters Name=network-info.efa-supported,Values=true` lists",
        )
    for name in workers:
        for trouble, hint in _list_troubles(options, types[name], region):
            raise UsageError(trouble, hint=hint)
    for name, kind in types.items():
        if "x86_64" not in kind.architectures:
            raise UsageError(
                f"{name} has a processor of another architecture ({', '.join(kind.architectures)}):"
                " clusterctl's machine and container images are for x86_64",
                hint=f"choose another type, such as {catalog.FAMILIES['cpu'].instance_type}",
            )


def _list_troubles(
    options: ClusterSpec, kind: InstanceType, region: str
) -> Iterator[tuple[str, str]]:
    """What keeps workers of this type from working, and what to do."""
    name, cloud = kind.name, options.cloud
    if cloud.efa and len(kind.efa) > 1 and not cloud.private:
        yield (
            f"--efa: {name} has {len(kind.efa)} network cards, and EC2 gives no public address to a"
            " machine that uses several",
            "add --private: the workers then reach the internet through a NAT gateway, whose price"
            " is in the plan",
        )
    # Without libfabric, the adapters would be paid for and not used.
    image = {"nvidia": "nvidia", "amd": "amd"}.get(kind.gpu_maker.lower(), "cpu")
    chosen = options.images.get(image) or options.image or image
    if cloud.efa and options.runtime is Runtime.DOCKER and chosen in catalog.RECIPES:
        yield (
            f"--efa: the container image {chosen!r} has no libfabric, so ranks would not use it",
            f"use --runtime host, or an image that has it: --image {image}=IMAGE",
        )
    if cloud.efa and options.runtime is Runtime.HOST and image != "nvidia" and not cloud.ami:
        yield (
            f"--efa: the machine image of {name} has no libfabric, so ranks would not use it",
            f"give an --ami with AWS's EFA installer, or a container image: --image {image}=IMAGE",
        )
    if kind.gpu_maker.lower() == "amd" and options.runtime is Runtime.HOST:
        # https://github.com/ROCm/rocm-libraries/issues/4347
        yield (
            f"{name} does not work with --runtime host: PyTorch's ROCm wheels have no code for its"
            f" GPU ({catalog.FAMILIES['g4ad'].arch})",
            "leave --runtime host out: the container image of AMD workers has a PyTorch with it",
        )
    # With a machine image and a container image of their own, people know what they do.
    own = cloud.ami and (options.image or options.images.get("nvidia"))
    if kind.gpu in _TOO_OLD and not own:
        yield (
            f"{name} has {kind.gpu} GPUs, which neither the driver of the machine image nor PyTorch"
            " for CUDA 13 supports: both begin with the T4",
            "choose a newer type, such as --gpu g4dn; or give an --ami with a driver for it and an"
            " --image whose PyTorch has code for it",
        )
    market = "spot" if cloud.spot else "on-demand"
    if market not in kind.markets:
        yield (
            f"EC2 does not sell {name} {'as spot instances' if cloud.spot else 'on demand'} in"
            f" {region}",
            "leave --spot out, or choose another type"
            if cloud.spot
            else "add --spot, or choose another type",
        )


# -------------------------------------------------------------------------------------------------
# Machine images: the newest of each kind, or the one of --ami, looked at before it costs money.


_FREE = "Linux/UNIX"
"""What `PlatformDetails` says where the system costs nothing, whichever Linux it is:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-info-fields.html"""

_ALLOWED = (
    "images that your account does not allow are not shown: `aws ec2 get-allowed-images-settings`"
)
"""Source: EC2 User Guide, "Allowed AMIs"."""


def choose_image(
    api: Api, options: ClusterSpec, machines: Sequence[PlannedMachine]
) -> dict[str, Image]:
    """The images by kind. Raises ProviderError or UsageError for one that cannot serve."""
    known: dict[object, Image | None] = {}
    found: dict[str, Image] = {}
    for machine in machines:
        row = catalog.MACHINE_IMAGES[machine.image]
        ami = options.cloud.ami if machine.image != LAUNCHER else ""
        key = ami or machine.image
        if key not in known:
            own = None
            if not ami and machine.name != LAUNCHER:
                own = api.find_image("self", saved.name_image(options, machine.image))
            usual = partial(api.find_image, row.owner, row.name)
            known[key] = api.read_image(ami) if ami else own or usual()
        image = known[key]
        if image is None and ami:
            raise UsageError(
                f"no machine image {ami!r} in {api.region}",
                hint=f"images have a different id in each region: correct --ami; {_ALLOWED}",
            )
        if image is None:
            instead = ", or name one with --ami" if machine.image != LAUNCHER else ""
            raise ProviderError(
                f"no machine image {row.name!r} of {row.owner} is in {api.region}",
                hint=f"choose another --region{instead}; {_ALLOWED}",
            )
        _check_image(machine, image)
        found[machine.image] = image
    return found


def find_saved(options: ClusterSpec, images: Mapping[str, Image]) -> frozenset[str]:
    """The kinds of nodes that get a machine image of the user's own with all that is installed."""
    kinds = (kind for kind in images if kind != LAUNCHER)
    return frozenset(k for k in kinds if images[k].name == saved.name_image(options, k))


def _check_image(machine: PlannedMachine, image: Image) -> None:
    """Raises UsageError for a disk that is smaller than what is copied to it, and for an image of
    another architecture or system."""
    if image.architecture != "x86_64":
        raise UsageError(
            f"--ami {image.id}: its architecture is {image.architecture}, and that of"
            f" {machine.instance_type} is x86_64",
            hint="choose another image",
        )
    if image.platform not in ("", _FREE) and not image.platform.startswith("Ubuntu"):
        raise UsageError(
            f"--ami {image.id}: it runs {image.platform}",
            hint="choose an image of Ubuntu, with its user `ubuntu`",
        )
    if 0 < machine.disk < image.disk:
        raise UsageError(
            f"the disk of {machine.name}, {machine.disk} GiB, is smaller than the snapshot of image"
            f" {image.id}: {image.disk} GiB",
            hint=f"--disk {image.disk} or more",
        )


# -------------------------------------------------------------------------------------------------
# What can be known in seconds, before anything costs money: tools, credentials, limits, images.


class Survey(Struct, frozen=True, kw_only=True):
    """What AWS has for us. `zones` are to be tried in this order, `amis` are by kind of node,
    `placement` are the types that may be in a cluster placement group; `subnets` are by zone, none
    where the cluster makes a network of its own; `instances` are those that there are."""

    account: str
    options: ClusterSpec
    api: Api
    machines: tuple[PlannedMachine, ...]
    types: Mapping[str, InstanceType]
    zones: tuple[str, ...]
    amis: Mapping[str, Image]
    placement: frozenset[str]
    owner: str = ""
    subnets: Mapping[str, ZoneSubnets] = field(default_factory=dict)
    saved: frozenset[str] = frozenset()
    """The kinds of nodes whose machine image is the user's own, with all that is installed."""
    nat: bool = False
    """Whether the cluster makes a NAT gateway, for workers without public addresses."""
    endpoint: Existing | None = None
    """What SSH comes through, where somebody else keeps it."""
    instances: tuple[Instance, ...] = ()
    engine: str = ""
    """What makes the machines, for people."""
    address: Callable[[], str] = lambda: ""
    """This machine's, as the internet sees it; "" where nobody has to know."""


def survey(api: Api, options: ClusterSpec, current: Cluster | None, report: Reporter) -> Survey:
    """What there is and what there may be, by AWS: a record may have been cut off. Raises
    ProviderError or UsageError for the first thing that will not work."""
    account = api.find_account()  # it tells soonest that nobody answers
    if current:
        spec.check_account(current, account)
    running = find_instances(api, current.id) if current else []
    instances = tuple(item for item in running if item.node)
    present = {item.node: item.type for item in instances}
    nodes = current.nodes if current else ()
    # An `up` that was cut off may still leave for a zone where there is room.
    begun = instances[0].zone if instances else ""
    zone, there = (begun, {item.subnet for item in instances}) if nodes else ("", set[str]())
    if current and instances:
        spec.check_settings(options, current, zone)
    hidden, asked = options.cloud.private and not options.cloud.instance_connect, options
    if there and (options.cloud.vpc or options.cloud.subnet) and not hidden:
        # Further machines go where the others are.
        asked = replace(options, cloud=replace(options.cloud, subnet=tuple(there)))
    charges = current.charges if current else ()
    disks = spec.read_disks(charge for charge in charges if charge.node in present)
    if options.cloud.spot_fallback and not options.cloud.spot:
        report("--spot-fallback does nothing without --spot: the workers are on-demand")
    # Asked at the same time; what is wrong is said in the order in which it matters.
    free_plan = run_in_background(api.has_free_plan)
    known = run_in_background(lambda: _find_types(api, options))
    counted = run_in_background(lambda: api.list_instances(states=("pending", "running")))
    zones = run_in_background(lambda: (zone,) if zone else _choose_zones(api, options))
    types = known.result()
    makers = {name: kind.gpu_maker for name, kind in types.items()}
    machines = spec.plan_machines(options, makers, spec.read_present(present), disks)
    check_types(api.region, options, types)
    spec.check_kept(options, machines, present)
    check_account_plan(api, options, types, free_plan)
    amis = run_in_background(lambda: choose_image(api, options, machines))
    new = [machine for machine in machines if machine.name not in present]

    def size(these: Sequence[PlannedMachine]) -> tuple[PlannedMachine, ...]:
        images = amis.result()
        return spec.size_disks(these, images, find_saved(options, images), present)

    settled, where = bool(present), (asked.cloud, len(new), there)
    subnets = run_in_background(partial(ec2_network.choose_network, api, *where, name=options.name))
    id = current.id if current else ""
    endpoint = run_in_background(partial(tunnels.check_endpoints, api, asked, id, there=settled))
    made = partial(ec2_network.check_new_network, api, options, there=settled)
    network = run_in_background(made) if new else None
    rights = run_in_background(
        lambda: _check_rights(api, options, size(new), amis.result(), subnets.result())
    )
    check_quotas(api, options, machines, types, present, counted, report)
    found_subnets = subnets.result()
    found_zones, found_amis = _keep_with_subnet(zones.result(), found_subnets), amis.result()
    rights.result()
    if network:
        network.result()
    return Survey(
        account=account,
        options=options,
        api=api,
        owner=api.owner,
        machines=size(machines),
        types=types,
        zones=tuple(sorted(found_zones, key=lambda other: other != begun)),
        amis=found_amis,
        saved=find_saved(options, found_amis),
        placement=frozenset(name for name, kind in types.items() if kind.clusters),
        subnets=found_subnets,
        nat=options.cloud.private and not found_subnets,
        endpoint=endpoint.result(),
        instances=instances,
    )


NOTICED = 30.0
"""Seconds that a clock may be wrong before it is said."""
_EXACT = 2.0
"""Seconds that an answer may take, and that its date is rounded by."""


def check_clock(ahead: float, report: Reporter = lambda line: None) -> float:
    """Seconds to take off this machine's clock, to have AWS's time: `ahead`, unless that is next to
    nothing. Raises ProviderError beyond what AWS accepts."""
    if abs(ahead) > refusals.SKEW:
        raise ProviderError(refusals.describe_skew(ahead), hint=refusals.CLOCK)
    if abs(ahead) > NOTICED:
        report(f"{refusals.describe_skew(ahead)}: the deadline is computed with AWS's time")
    return ahead if abs(ahead) > _EXACT else 0.0


def _find_types(api: Api, options: ClusterSpec) -> dict[str, InstanceType]:
    names = spec.list_types(options)
    types = api.list_instance_types(names)
    for name in names:
        if name not in types:
            raise UsageError(
                f"EC2 has no instance type {name!r} in {api.region}",
                hint="check its name; not every region has every type: choose another, or another"
                " --region",
            )
    return types


def _check_rights(
    api: Api,
    options: ClusterSpec,
    new: Sequence[PlannedMachine],
    amis: Mapping[str, Image],
    subnets: Mapping[str, ZoneSubnets],
) -> None:
    """Raises ProviderError where AWS would not let us start a machine of one of these kinds."""
    asked = []
    place = next(iter(subnets.values()), ZoneSubnets("", ""))
    # Each kind once: EC2 takes two launches a second, and dry runs count.
    for machine in {(one.name == LAUNCHER, one.instance_type): one for one in new}.values():
        worker = machine.name != LAUNCHER
        spot = options.cloud.spot and worker
        public = not options.cloud.private or not (worker or options.cloud.instance_connect)
        ask = partial(
            api.check_launch_right,
            machine.instance_type,
            amis[machine.image],
            disk=machine.disk,
            spot=spot,
            cluster=options.name,
            subnet=place.workers if worker else place.launcher,
            public=public,
            more_tags=ec2_api.parse_tags(options.cloud.tag),
        )
        asked.append(run_in_background(ask))
    for answer in asked:
        answer.result()


def _choose_zones(api: Api, options: ClusterSpec) -> tuple[str, ...]:
    names = ", ".join(spec.list_types(options))
    offering = api.list_zones(spec.list_types(options))
    if not offering:
        raise ProviderError(
            f"no zone of {api.region} offers all of {names}",
            hint="choose another --region or --instance-type",
        )
    wanted = options.cloud.zones or offering
    if others := [zone for zone in wanted if zone not in offering]:
        raise UsageError(
            f"--zones {','.join(others)}: not an availability zone of {api.region} that"
            f" offers all of {names}",
            hint=f"zones that do: {', '.join(offering)}; or name another --region",
        )
    return tuple(wanted)


def _keep_with_subnet(zones: Sequence[str], subnets: Mapping[str, ZoneSubnets]) -> tuple[str, ...]:
    """The zones in which the cluster can be, in the order of the subnets. Raises UsageError."""
    if not subnets:
        return tuple(zones)
    both = tuple(zone for zone in subnets if zone in zones)
    if not both:
        where = ", ".join(f"{place.workers} in {zone}" for zone, place in subnets.items())
        raise UsageError(
            f"no subnet is in a zone that offers all machines of the cluster: {where}",
            hint=f"zones that do: {', '.join(zones)}",
        )
    return both


# -------------------------------------------------------------------------------------------------
# `check` for EC2: what `up` would look at, as rows for people. Nothing is made.
#
# Every question has one short attempt, and all of them together a deadline: without a network this
# is told, not waited for.


LIMIT = 12.0
"""Seconds for everything together."""

WORKERS = 2
"""As many as `up` makes where nobody says it."""


def diagnose() -> tuple[CheckRow, ...]:
    """Credentials; then the quotas of the families, and the zones and machine image of each."""
    end = Deadline(LIMIT)
    try:
        api, account = end.await_result(run_in_background(_identify))
    except (ProviderError, TimeoutError) as error:
        row = _explain("AWS", error)
        return (replace(row, text=f"{row.text}; needed for clusters on EC2"),)
    names = {row.instance_type for row in catalog.FAMILIES.values()}
    names |= {catalog.LAUNCHER_TYPE, *catalog.SMALL_WORKERS}
    types = run_in_background(partial(api.list_instance_types, names))
    used = run_in_background(
        lambda: count_used(api, api.list_instances(states=("pending", "running")))
    )
    asked: dict[str, Callable[[], CheckRow]] = {"AWS plan": partial(_check_plan, api)}
    for quota in catalog.QUOTAS:
        if any(catalog.find_quota(name) == quota for name in names):
            subject = f"quota {quota.name.partition(' (')[0]}"
            asked[subject] = partial(_check_quota, api, quota, types, used, subject)
    for family in catalog.FAMILIES.values():
        subject = f"EC2 {family.name}"
        asked[subject] = partial(_check_family, api, family, subject)
    answers = {subject: run_in_background(ask) for subject, ask in asked.items()}
    found = [CheckRow("ok", "AWS", f"account {account}, {api.region}")]
    for subject, answer in answers.items():
        try:
            found.append(end.await_result(answer))
        except (ProviderError, TimeoutError) as error:
            found.append(_explain(subject, error))
    return tuple(found)


def _identify() -> tuple[Api, str]:
    api = Api(choose_region(), hurried=True)
    return api, api.find_account()


def _explain(subject: str, error: ProviderError | TimeoutError) -> CheckRow:
    if isinstance(error, ProviderError):
        return CheckRow("warning", subject, error.message, error.hint)
    return CheckRow("warning", subject, f"AWS did not answer within {LIMIT:g} s", refusals.NETWORK)


def _check_quota(
    api: Api,
    quota: catalog.Quota,
    types: Future[dict[str, InstanceType]],
    used: Future[Mapping[str, int]],
    subject: str,
) -> CheckRow:
    """Whether the smallest of the default clusters would fit whose workers count towards it."""
    vcpus = api.find_quota(quota.on_demand)
    taken = used.result().get(quota.on_demand, 0)
    command, needs = min(
        _list_defaults(quota, types.result()), key=lambda row: row[1], default=("", 0)
    )
    text = f"{vcpus:g} vCPUs in {api.region}, {taken} in use"
    if taken + needs <= vcpus:
        return CheckRow("ok", subject, text)
    launcher, known = catalog.LAUNCHER_TYPE, types.result()
    fits = ""
    if launcher in known and catalog.find_quota(launcher) == quota:
        room = {quota.on_demand: vcpus - taken}
        fits, _ = choose_fitting(known[launcher], _list_small(known), WORKERS, room)
    hint = render_fitting(f"clusterctl up {fits}" if fits else "")
    hint += render_request(api.region, quota.on_demand, taken + needs)
    return CheckRow("warning", subject, f"{text}; `{command}` takes {needs}", hint)


def _check_plan(api: Api) -> CheckRow:
    if not api.has_free_plan():
        return CheckRow("ok", "AWS plan", "paid")
    types = sorted(name for name, kind in api.list_free_types().items() if not kind.gpus)
    text = f"free: of all instance types it has only {', '.join(types)}"
    return CheckRow("warning", "AWS plan", text, refusals.UPGRADE)


def _list_defaults(
    quota: catalog.Quota, known: dict[str, InstanceType]
) -> Iterable[tuple[str, int]]:
    """What a person would type, and the vCPUs that it counts towards this quota."""
    rows = (row for row in catalog.FAMILIES.values() if row.instance_type in known)
    mine = (row for row in rows if catalog.find_quota(row.instance_type) == quota)
    for family in mine:
        option = f"--cpu {family.instance_type}" if family.name == "cpu" else f"--gpu {family.name}"
        counted = [
            number * known[name].vcpus
            for name, number in ((family.instance_type, WORKERS), (catalog.LAUNCHER_TYPE, 1))
            if name in known and catalog.find_quota(name) == quota
        ]
        yield f"clusterctl up {option}", sum(counted)


def _check_family(api: Api, family: catalog.Family, subject: str) -> CheckRow:
    image = catalog.MACHINE_IMAGES[family.image]
    ami = run_in_background(partial(api.find_image, image.owner, image.name))
    offering = api.list_zones((family.instance_type, catalog.LAUNCHER_TYPE))
    if not offering:
        text = f"no zone of {api.region} offers {family.instance_type}"
        return CheckRow("warning", subject, text, "choose another --region or --instance-type")
    where = f"{family.instance_type} in {', '.join(offering)}"
    found = ami.result()
    if not found:
        text = f"{where}, but no machine image {image.name!r} of {image.owner}"
        return CheckRow("warning", subject, text, "name one with --ami, or choose another --region")
    return CheckRow("ok", subject, f"{where}; image {found.id}")
