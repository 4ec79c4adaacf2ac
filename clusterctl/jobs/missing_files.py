"""Files that a program did not find on its node, and that are here: why they were not copied."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from clusterctl import process

_NOT_FOUND = re.compile(r"No such file or directory: '([^'\n]+)'")
"""As Python says it."""
GIT_TIMEOUT = 10.0
NO_REPOSITORY = 128
"""What git exits with there."""


def find_lines(text: str) -> list[str]:
    """Where a program's errors name such a file."""
    return [line.strip() for line in text.splitlines() if _NOT_FOUND.search(line)]


def explain(text: str) -> str:
    """What a program's errors say of the last such file, and how it gets to the nodes; "" where it
    is not here either, or was copied. Ranks start in the folder that corresponds to this one."""
    for name in reversed(_NOT_FOUND.findall(text)):
        if not os.path.exists(name):
            continue
        if os.path.isabs(name):
            return (
                f"{name} is on this machine, but not on the node\n  `clusterctl data push"
                f" {shlex.quote(str(Path(name).parent))}` copies data to $CLUSTERCTL_DATA on each"
            )
        asked = process.run(("git", "check-ignore", "-q", "--", name), timeout=GIT_TIMEOUT)
        if asked.exit_code == NO_REPOSITORY:
            whole = os.path.commonpath((os.getcwd(), os.path.abspath(name)))
            return (
                f"{name} was not copied to the nodes: outside a git repository, only the program's"
                f" folder is\n  `--stage {shlex.quote(os.path.relpath(whole))}` copies the folder"
                " that holds both"
            )
        if asked.ok:
            folder = os.path.dirname(name) or name
            return (
                f"{name} was not copied to the nodes, because git ignores it\n"
                f"  `--include {shlex.quote(folder)}` before the program copies it, too;"
                " `clusterctl data push FOLDER` copies large data, once, to $CLUSTERCTL_DATA on"
                " each node"
            )
    return ""
