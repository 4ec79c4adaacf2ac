"""Which machines a person wants: the options of `up` as a ClusterSpec."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any

import typer

from clusterctl.cli.options import duration, life_time
from clusterctl.errors import UsageError
from clusterctl.model import CloudSpec, ClusterSpec, NodeGroup, Runtime

_EC2 = "EC2"
MAX_BUDGET = 1_000_000
"""US dollars."""

Provider = Annotated[
    str,
    typer.Option(help="Where machines come from: local, docker, ec2. Default: as options imply."),
]
Gpu = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu", metavar="FAMILY[:N]", help="GPU workers: g4dn, g4ad, g5, g6.", rich_help_panel=_EC2
    ),
]
Cpu = Annotated[
    list[str] | None,
    typer.Option("--cpu", metavar="TYPE[:N]", help="CPU workers.", rich_help_panel=_EC2),
]
InstanceType = Annotated[
    str, typer.Option(help="Any other type of the workers.", rich_help_panel=_EC2)
]
Workers = Annotated[
    int | None, typer.Option(help="How many workers, beside one launcher (default: 2).")
]
LauncherType = Annotated[
    str, typer.Option(help="Type of the launcher (default: t3.micro).", rich_help_panel=_EC2)
]
Region = Annotated[
    str, typer.Option(help="Default: as AWS's own tools choose it.", rich_help_panel=_EC2)
]
Zones = Annotated[
    str, typer.Option(metavar="A,B", help="Zones to try, in order.", rich_help_panel=_EC2)
]
Spot = Annotated[
    bool, typer.Option("--spot", help="Spot workers: cheaper, may be taken.", rich_help_panel=_EC2)
]
SpotFallback = Annotated[
    bool,
    typer.Option("--spot-fallback", help="On-demand where there is no spot.", rich_help_panel=_EC2),
]
Gpus = Annotated[
    str,
    typer.Option("--gpus", metavar="0,1|all", help="This machine's GPUs for the workers (docker)."),
]
Image = Annotated[str, typer.Option(help="Container image of the nodes.")]
RuntimeOption = Annotated[
    str,
    typer.Option(
        "--runtime", metavar="docker|host", help="Ranks in a container or on the machine."
    ),
]
Ami = Annotated[str, typer.Option(help="Machine image of the workers.", rich_help_panel=_EC2)]
Disk = Annotated[int, typer.Option(metavar="GB", help="Disk of each worker.", rich_help_panel=_EC2)]
Efa = Annotated[
    bool,
    typer.Option(
        "--efa", help="Elastic Fabric Adapters, on types with them.", rich_help_panel=_EC2
    ),
]
SshCidr = Annotated[
    str,
    typer.Option(help="Who may reach the launcher (default: you alone).", rich_help_panel=_EC2),
]
Ttl = Annotated[str, typer.Option(metavar="TIME", help="Life time (EC2: 8h). 90s, 30m, 8h, 2d.")]
Budget = Annotated[
    float | None,
    typer.Option(metavar="USD", help="Ends before it costs more.", rich_help_panel=_EC2),
]
BootTimeout = Annotated[
    str, typer.Option(metavar="TIME", help="Wait for machines to boot.", rich_help_panel=_EC2)
]


def groups(
    gpu: list[str], cpu: list[str], instance_type: str, workers: int | None, *, typed: bool
) -> tuple[NodeGroup, ...]:
    """The groups of workers. A count of 0: not said. `typed`: the number of workers is from this
    command line; where the settings say it, counts of the groups go first."""
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers}: a cluster has at least one", hint="--workers 2")
    named = [("--gpu", text) for text in gpu] + [("--cpu", text) for text in cpu]
    if instance_type and len(named) > 1:
        raise UsageError(
            "--instance-type goes with one kind of workers",
            hint="give each kind as --cpu TYPE:N, or as --gpu FAMILY:N",
        )
    if not named:
        return (NodeGroup(count=workers or 0, instance_type=instance_type),)
    counted = any(":" in text for _, text in named)
    if workers is not None and typed and (counted or len(named) > 1):
        of = "groups that say their own" if counted else f"{len(named)} groups"
        each = " ".join(f"{option} {text.partition(':')[0]}:N" for option, text in named)
        raise UsageError(
            f"--workers {workers} does not go with {of}", hint=f"write the numbers as {each}"
        )
    found = []
    for option, text in named:
        match = re.fullmatch(r"([a-z0-9.-]+)(?::([1-9]\d{0,4}))?", text)
        if match is None:
            example = {"--gpu": "g4dn:4", "--cpu": "t3.xlarge:4"}[option]
            raise UsageError(
                f"{option} {text!r} is not NAME or NAME:N", hint=f"for example {option} {example}"
            )
        name, number = match[1], int(match[2] or workers or 0)
        if option == "--gpu":
            found.append(NodeGroup(count=number, family=name, instance_type=instance_type))
        else:
            kind = instance_type or name
            found.append(NodeGroup(count=number, family="cpu", instance_type=kind))
    return tuple(found)


def runtime(text: str) -> Runtime | None:
    if text in ("", *(item.value for item in Runtime)):
        return Runtime(text) if text else None
    raise UsageError(f"--runtime {text!r} is neither docker nor host", hint="--runtime docker")


def provider(values: Mapping[str, Any]) -> str:
    """The one that is named, else the one that the machines imply; "" leaves it to the cluster that
    there is."""
    implied = "ec2" if values["gpu"] or values["cpu"] or values["instance_type"] else ""
    return values["provider"] or implied or ("docker" if values["gpus"] else "")


def indices(text: str) -> tuple[str, ...]:
    """The GPUs of --gpus."""
    found = tuple(part.strip() for part in text.split(",")) if text else ()
    if found and found != ("all",) and not all(re.fullmatch(r"\d{1,3}", part) for part in found):
        raise UsageError(f"--gpus {text!r} is neither all nor numbers", hint="--gpus 0,1")
    return found


def spec(name: str, values: Mapping[str, Any], typed: Collection[str]) -> ClusterSpec:
    """The wish. `values`: the options of `up` by parameter; `typed`: those of this command line."""
    budget, disk = values["budget"], values["disk"]
    if budget is not None and not 0 < budget <= MAX_BUDGET:
        raise UsageError(
            f"--budget {budget:,.12g}: more than 0, at most {MAX_BUDGET:,} US dollars",
            hint="--budget 20",
        )
    if disk and not 8 <= disk <= 16384:
        raise UsageError(f"--disk {disk}: 8 to 16384 GB", hint="--disk 100")
    patience = values["boot_timeout"]
    return ClusterSpec(
        name=name,
        provider=provider(values),
        groups=groups(
            values["gpu"] or [],
            values["cpu"] or [],
            values["instance_type"],
            values["workers"],
            typed="--workers" in typed,
        ),
        ttl=life_time(values["ttl"]) if values["ttl"] else 0.0,
        runtime=runtime(values["runtime"]),
        image=values["image"],
        gpus=indices(values["gpus"]),
        cloud=CloudSpec(
            region=values["region"],
            zones=tuple(zone.strip() for zone in values["zones"].split(",") if zone.strip()),
            launcher_type=values["launcher_type"],
            spot=values["spot"],
            spot_fallback=values["spot_fallback"],
            ami=values["ami"],
            disk=disk,
            efa=values["efa"],
            ssh_cidr=values["ssh_cidr"],
            budget=budget or 0.0,
            **({"boot_timeout": duration(patience, "--boot-timeout")} if patience else {}),
        ),
    )
