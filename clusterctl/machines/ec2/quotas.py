"""What an account may have at once in a region: vCPUs of a kind of machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from clusterctl.core import catalog
from clusterctl.core.clock import run_in_background
from clusterctl.core.model import ClusterSpec, Reporter, Runtime
from clusterctl.core.text import count
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2.api import Api, Instance, InstanceType
from clusterctl.machines.ec2.spec import PlannedMachine
from clusterctl.machines.protocol import LAUNCHER


def check_quotas(
    api: Api,
    options: ClusterSpec,
    machines: Sequence[PlannedMachine],
    types: Mapping[str, InstanceType],
    present: Mapping[str, str],
    running: Future[list[Instance]],
    report: Reporter,
) -> None:
    """Every quota that the new machines count towards, against what runs in the account."""
    needed: dict[tuple[str, str], int] = {}
    for machine in machines:
        if machine.name in present or (options.cloud.reservation and machine.name != LAUNCHER):
            continue  # what is reserved was counted when it was reserved
        row = catalog.find_quota(machine.instance_type)
        if row is None:
            continue
        spot = options.cloud.spot and machine.name != LAUNCHER
        if spot and not row.spot:
            continue
        name = (
            f"All {row.spot_name or row.name} Spot Instance Requests"
            if spot
            else _name_quota(row.name)
        )
        key = (name, row.spot if spot else row.on_demand)
        needed[key] = needed.get(key, 0) + types[machine.instance_type].vcpus
    if not needed:
        return
    limits = {code: run_in_background(partial(api.find_quota, code)) for _, code in needed}
    taken_by_code = _count_used(api, running, report)
    for (name, code), vcpus in needed.items():
        try:
            limit = limits[code].result()
        except ProviderError as error:
            report(f"the quota {name} is not known: {error.message}")
            continue
        taken = taken_by_code.get(code, 0)
        if taken + vcpus > limit:
            raise ProviderError(
                f"the quota {name!r} ({code}) in {api.region} is {limit:g} vCPUs, of which {taken}"
                f" are in use; this cluster needs {count(vcpus, 'vCPU')} more",
                hint=render_request(code, taken + vcpus),
            )


def render_request(code: str, value: int) -> str:
    """The command that asks AWS for a larger quota."""
    return (
        "request more: aws service-quotas request-service-quota-increase"
        f" --service-code ec2 --quota-code {code} --desired-value {value}"
    )


def _name_quota(name: str) -> str:
    return f"Running On-Demand {name} instances"


def _count_used(api: Api, running: Future[list[Instance]], report: Reporter) -> dict[str, int]:
    try:
        return count_used(api, running.result())
    except ProviderError as error:
        report(f"could not list the running instances: {error.message}")
        return {}


def count_used(api: Api, running: Sequence[Instance]) -> dict[str, int]:
    """vCPUs of these instances, by quota code."""
    kinds = api.list_instance_types({item.type for item in running}) if running else {}
    vcpus: dict[str, int] = {}
    for item in running:
        row = catalog.find_quota(item.type)
        if row and item.type in kinds:
            code = row.spot if item.spot else row.on_demand
            vcpus[code] = vcpus.get(code, 0) + kinds[item.type].vcpus
    return vcpus


# -------------------------------------------------------------------------------------------------
# What instance types cannot do, before it costs money: EC2 and the first program say it later.


_TOO_OLD = frozenset({"K520", "K80", "M60", "V100"})
"""NVIDIA's GPUs before Turing, as EC2 names them. The driver of the Deep Learning image begins with
Turing (https://github.com/NVIDIA/open-gpu-kernel-modules), and so do PyTorch's wheels for CUDA 13
(https://github.com/pytorch/pytorch/issues/159779)."""


def check_types(api: Api, options: ClusterSpec, types: Mapping[str, InstanceType]) -> None:
    """Raises UsageError for the first type that does not fit."""
    workers = sorted({catalog.choose_instance_type(group) for group in options.groups})
    lacking = [name for name in workers if options.cloud.efa and not types[name].efa]
    if lacking:
        # All of them need it: one without would leave the others waiting.
        families = sorted({name.partition(".")[0] for name in lacking})
        others = ", ".join(api.list_efa_types(families)) or f"none of {', '.join(families)}"
        raise UsageError(
            f"--efa: {', '.join(lacking)} has no Elastic Fabric Adapter",
            hint=f"types that have one: {others}; choose with --instance-type, or leave --efa out",
        )
    for name in workers:
        for trouble, hint in _list_troubles(options, types[name], api.region):
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
    if kind.gpu_maker.lower() == "amd" and options.runtime is Runtime.HOST:
        # https://github.com/ROCm/rocm-libraries/issues/4347
        yield (
            f"{name} does not work with --runtime host: PyTorch's ROCm wheels have no code for its"
            f" GPU ({catalog.FAMILIES['g4ad'].arch})",
            "name a container image whose PyTorch has it (--image amd=IMAGE), or choose --gpu g4dn",
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
    if market not in kind.markets and not cloud.reservation:
        yield (
            f"EC2 does not sell {name} {'as spot instances' if cloud.spot else 'on demand'} in"
            f" {region}",
            "leave --spot out, or choose another type"
            if cloud.spot
            else "--spot or --reservation, or choose another type",
        )
