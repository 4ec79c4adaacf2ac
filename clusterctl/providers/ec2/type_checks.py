"""What instance types cannot do, before it costs money: EC2 and the first program say it later."""

from __future__ import annotations

from collections.abc import Mapping

from clusterctl import catalog
from clusterctl.errors import UsageError
from clusterctl.model import ClusterSpec, Runtime
from clusterctl.providers.ec2.answers import InstanceType
from clusterctl.providers.ec2.api import Api

_TOO_OLD = frozenset({"K520", "K80", "M60", "V100"})
"""NVIDIA's GPUs before Turing, as EC2 names them. The driver of the Deep Learning image begins with
Turing (https://github.com/NVIDIA/open-gpu-kernel-modules), and so do PyTorch's wheels for CUDA 13
(https://github.com/pytorch/pytorch/issues/159779)."""


def check(api: Api, options: ClusterSpec, types: Mapping[str, InstanceType]) -> None:
    """Raises UsageError for the first type that does not fit."""
    _check_efa(api, options, types)
    _check_amd(options, types)
    _check_old_gpus(options, types)
    _check_architectures(types)
    _check_ebs(types)
    _check_markets(api, options, types)


def _check_efa(api: Api, options: ClusterSpec, types: Mapping[str, InstanceType]) -> None:
    """--efa is for types that have it, all of them: one without would leave the others waiting.
    With several network cards they are private: EC2 gives no public address to a machine with
    several interfaces."""
    workers = sorted({catalog.choose_instance_type(group) for group in options.groups})
    lacking = [name for name in workers if not types[name].efa]
    if not options.cloud.efa:
        return
    if not lacking:
        several = [name for name in workers if len(types[name].efa) > 1]
        if several and not options.cloud.private:
            name = several[0]
            raise UsageError(
                f"--efa: {name} has {len(types[name].efa)} network cards, and EC2 gives no public"
                " address to a machine that uses several",
                hint="add --private: the workers then reach the internet through a NAT gateway,"
                " whose price is in the plan",
            )
        return
    families = sorted({name.partition(".")[0] for name in lacking})
    others = ", ".join(api.list_efa_types(families)) or f"none of {', '.join(families)}"
    raise UsageError(
        f"--efa: {', '.join(lacking)} has no Elastic Fabric Adapter",
        hint=f"types that have one: {others}; choose with --instance-type, or leave --efa out",
    )


def _check_amd(options: ClusterSpec, types: Mapping[str, InstanceType]) -> None:
    """--runtime host installs PyTorch's own wheels, which have no code for the GPU of g4ad
    (https://github.com/ROCm/rocm-libraries/issues/4347): its GPUs would cost money and do nothing.
    """
    workers = {catalog.choose_instance_type(group) for group in options.groups}
    amd = sorted(name for name in workers if types[name].gpu_maker.lower() == "amd")
    if amd and options.runtime is Runtime.HOST:
        raise UsageError(
            f"{amd[0]} does not work with --runtime host: PyTorch's ROCm wheels have no code for"
            f" its GPU ({catalog.FAMILIES['g4ad'].arch})",
            hint="name a container image whose PyTorch has it (--image amd=IMAGE), or choose"
            " --gpu g4dn",
        )


def _check_old_gpus(options: ClusterSpec, types: Mapping[str, InstanceType]) -> None:
    """With a machine image and a container image of their own, people know what they do."""
    if options.cloud.ami and (options.image or options.images.get("nvidia")):
        return
    for name in sorted({catalog.choose_instance_type(group) for group in options.groups}):
        if (gpu := types[name].gpu) in _TOO_OLD:
            raise UsageError(
                f"{name} has {gpu} GPUs, which neither the driver of the machine image nor PyTorch"
                " for CUDA 13 supports: both begin with the T4",
                hint="choose a newer type, such as --gpu g4dn; or give an --ami with a driver for"
                " it and an --image whose PyTorch has code for it",
            )


def _check_ebs(types: Mapping[str, InstanceType]) -> None:
    for name, kind in types.items():
        # infra/ec2 does not ask for it on T2.
        if not kind.ebs_optimized and not name.startswith("t2."):
            raise UsageError(
                f"{name} is too old: EC2 has no EBS optimization for it, which machines are started"
                " with",
                hint=f"choose another type, such as {catalog.FAMILIES['cpu'].instance_type}",
            )


def _check_architectures(types: Mapping[str, InstanceType]) -> None:
    for name, kind in types.items():
        if "x86_64" not in kind.architectures:
            raise UsageError(
                f"{name} has a processor of another architecture ({', '.join(kind.architectures)}):"
                " clusterctl's machine and container images are for x86_64",
                hint=f"choose another type, such as {catalog.FAMILIES['cpu'].instance_type}",
            )


def _check_markets(api: Api, options: ClusterSpec, types: Mapping[str, InstanceType]) -> None:
    """Types that are not sold in the way that is asked for: EC2 says so when the launcher runs."""
    market, said = (
        ("spot", "as spot instances") if options.cloud.spot else ("on-demand", "on demand")
    )
    workers = {catalog.choose_instance_type(group) for group in options.groups}
    lacking = sorted(name for name in workers if market not in types[name].markets)
    if lacking and not options.cloud.reservation:
        names = ", ".join(lacking)
        raise UsageError(
            f"EC2 does not sell {names} {said} in {api.region}",
            hint="leave --spot out, or choose another type"
            if options.cloud.spot
            else "--spot or --reservation, or choose another type",
        )
