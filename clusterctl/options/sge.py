"""Grid Engine on the command line."""

from __future__ import annotations

from typing import Any

from clusterctl.options.batch import BatchOptions
from clusterctl.options.table import Group, Option, integer, text, texts


def pass_on(group: Group) -> tuple[Option[Any], ...]:
    environment = Option(
        "-pe",
        group,
        metavar="NAME SLOTS",
        empty="",
        words=2,
        check=lambda words, option: f"{words[0]} {integer(1)(words[1], option)}",
    )
    return (
        environment,
        texts("-l", group, "", "NAME=VALUE", old="resource"),
        text("--queue", group),
        text("--project", group),
    )


_GPUS = "-l gpu=N, or the name that your site uses"
_MEMORY = "-l h_vmem=SIZE (for each slot)"

OPTIONS = BatchOptions(
    title="Grid Engine",
    emits="qsub",
    passed=pass_on,
    dash_q="--queue",
    sizes=("-pe",),
    slots="request slots with -pe NAME SLOTS",
    instead={
        "--cpus-per-task": "-pe NAME SLOTS with --ranks N",
        "--gpus": _GPUS,
        "--gpus-per-node": _GPUS,
        "--mem": _MEMORY,
        "--mem-per-cpu": _MEMORY,
        "--partition": "--queue NAME",
    },
)
