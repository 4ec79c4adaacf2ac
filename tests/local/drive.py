"""Run as a program: one verb of the local provider in a process of its own, answered in JSON.

    drive.py VERB HOME ID WORKERS MODE [DIE_AT]

With DIE_AT it kills itself, as `kill -9` would, on reaching the DIE_AT-th line of the provider's
code that it had not reached before, or one that has DIE_AT in it; so each statement can be made the
last one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from linecache import getline
from pathlib import Path
from types import FrameType
from typing import Any

from msgspec import to_builtins

import clusterctl.machines.local
from clusterctl.errors import ClusterctlError
from clusterctl.machines.local.provider import LocalProvider
from tests.local.lab import cluster, folder_of

PROVIDER = str(Path(clusterctl.machines.local.__file__).parent)


def die_at(where: str) -> None:
    reached: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PROVIDER):
            return None
        if event == "line":
            line = frame.f_code.co_filename, frame.f_lineno
            reached.add(line)
            if str(len(reached)) == where or where in getline(*line):
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def main(verb: str, home: str, cluster_id: str, workers: str, mode: str, dies: str = "") -> Any:
    folder = folder_of(Path(home))
    wanted = cluster(cluster_id, int(workers), mode)
    provider = LocalProvider()
    if dies:
        die_at(dies)
    if verb == "plan":
        return to_builtins(provider.plan(wanted.spec))
    if verb == "up":
        return to_builtins(provider.create(wanted, folder, lambda _: None))
    if verb == "describe":
        return provider.describe(wanted, folder)
    return provider.destroy(wanted, folder, lambda _: None)


if __name__ == "__main__":
    try:
        print(json.dumps(main(*sys.argv[1:]), default=sorted))
    except ClusterctlError as error:
        print(json.dumps({"error": error.message, "hint": error.hint}))
        sys.exit(error.exit_code)
