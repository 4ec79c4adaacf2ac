"""Whether the Python of a node has what a project's requirements ask for. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from clusterctl.jobs import uv
from clusterctl.jobs.package_model import Wanted
from clusterctl.model import Node, Python

_CONSTRAINTS = re.compile(r"(?m)^\s*(?:-c|--constraints?)\b")


def has_all(wanted: Wanted, nodes: Iterable[Node]) -> bool:
    """Whether nothing has to be installed on any of them, by their facts. False as well where
    only uv can tell: for extras, URLs and constraints."""
    if wanted.requirements is None or any(
        _CONSTRAINTS.search(text) for text in wanted.texts.values()
    ):
        return False
    return all(
        node.facts.python is not None and _has_all(wanted.requirements, node.facts.python, node)
        for node in nodes
    )


def _has_all(requirements: Iterable[str], python: Python, node: Node) -> bool:
    there = dict(_list_installed(python))
    # The usual answer, without the library: that takes longer than all else here.
    if any(";" not in line and uv.read_name(line.strip()) not in there for line in requirements):
        return False
    from packaging.requirements import InvalidRequirement, Requirement

    surroundings = {
        "python_version": ".".join(python.version.split(".")[:2]),
        "python_full_version": python.version,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": node.facts.arch,
        "os_name": "posix",
        "extra": "",
    }
    try:
        asked = [Requirement(line) for line in requirements]
    except InvalidRequirement:
        return False  # uv says what is wrong with it
    for one in asked:
        if one.marker and not one.marker.evaluate(surroundings):
            continue
        version = there.get(uv.read_name(one.name), "")
        if not version or one.extras or one.url:
            return False
        if not one.specifier.contains(version, prereleases=True):
            return False
    return True


def _list_installed(python: Python) -> Iterator[tuple[str, str]]:
    """Names, normalised, and versions."""
    yield from python.packages.items()
    for word in python.installed.split():
        name, _, version = word.partition("==")
        yield name, version
