"""Process 1 of a light host: makes a machine of its namespaces, then is its init and cloud-init.

    python -IS light SPEC

Started in new network, mount, UTS, IPC and PID namespaces. Says "ready" on standard output, waits
for a line (our cable is plugged in), says "up" when sshd listens. A further line: it was
stopped and started. Exit code: 0 the machine was switched off, 1 it could not start.

Nothing here is imported from outside the standard library and this folder: the interpreter is the
only thing of the test run that the machine sees.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from init import Init
from system import PATH, build_root, furnish, network


def main() -> int:
    spec = json.loads(Path(sys.argv[1]).read_text())
    os.umask(0o022)
    os.environ.clear()
    os.environ.update(PATH=PATH, LANG="C.UTF-8")
    build_root(spec)
    furnish(spec)
    print("ready", flush=True)
    if not sys.stdin.readline():
        return 1
    null, cable = os.open("/dev/null", os.O_RDWR), os.dup(0)
    os.dup2(null, 0)
    network(spec)
    return Init(spec).run(cable)


if __name__ == "__main__":
    sys.exit(main())
