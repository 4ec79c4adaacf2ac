"""The commands of a light host that talk to its init, by the name that they are called by."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

SOCKET = "/run/sim/init.sock"
SCHEDULED = Path("/run/systemd/shutdown/scheduled")

PACKAGES = {
    "ca-certificates", "curl", "docker.io", "g++", "gcc", "gnupg", "jq", "libopenmpi-dev", "make",
    "nvidia-container-toolkit", "openmpi-bin", "python3", "python3-dev", "python3-pip",
    "python3-venv", "rsync", "git", "numactl", "build-essential",
}  # fmt: skip


def fail(text: str, code: int = 1) -> int:
    print(text, file=sys.stderr)
    return code


def root_only(what: str) -> None:
    if os.geteuid() != 0:
        sys.exit(fail(f"{what}: must be superuser"))


def ask(*words: str) -> tuple[int, str]:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(SOCKET)
    connection.sendall(json.dumps(words).encode() + b"\n")
    code, text = json.loads(connection.makefile().readline())
    return code, text


def systemctl(words: list[str]) -> int:
    quiet = any(one in ("-q", "--quiet") for one in words)
    now = "--now" in words
    words = [one for one in words if not one.startswith("-")]
    if not words:
        return fail("systemctl: no verb")
    verb, names = words[0], words[1:]
    if verb not in ("is-active", "is-enabled", "status"):
        root_only("systemctl")
    code, text = ask(verb, *names)
    if code == 0 and now and verb in ("enable", "disable"):
        code, text = ask("start" if verb == "enable" else "stop", *names)
    if text and not (quiet and verb.startswith("is-")):
        failed = code and not verb.startswith("is-")
        print(text, file=sys.stderr if failed else sys.stdout)
    return code


def shutdown(words: list[str]) -> int:
    """`shutdown -P now` and `shutdown -P +MINUTES`."""
    root_only("shutdown")
    way, when = words
    if way != "-P" or not (when == "now" or (when[:1] == "+" and when[1:].isdigit())):
        return fail(f"the simulator's shutdown does not know {words}")
    if when == "now":
        return end(words)
    at = time.time() + 60 * int(when)
    SCHEDULED.parent.mkdir(parents=True, exist_ok=True)
    fresh = SCHEDULED.with_suffix(".new")
    fresh.write_text(f"USEC={int(at * 1e6)}\nWARN_WALL=1\nMODE=poweroff\n")
    fresh.replace(SCHEDULED)
    return 0


def end(words: list[str]) -> int:
    root_only(NAME)
    return ask("poweroff")[0]


def cloud_init(words: list[str]) -> int:
    if words[:1] != ["status"]:
        return fail(f"the simulator's cloud-init knows only `status`, not {words}", 2)
    done = Path("/run/cloud-init/result.json")
    while "--wait" in words and not done.exists():
        time.sleep(0.1)
    if not done.exists():
        print("status: running")
        return 0
    errors = json.loads(done.read_text())["v1"]["errors"]
    print("status: error" if errors else "status: done")
    if "--long" in words:
        print("\n".join(errors))
    return 1 if errors else 0


def apt_get(words: list[str]) -> int:
    root_only("E: Could not open lock file /var/lib/dpkg/lock-frontend - apt-get")
    words = [one for one in words if not one.startswith("-") and "=" not in one]
    if words == ["update"]:
        return 0
    for package in words[1:]:
        if package not in PACKAGES:
            return fail(f"E: Unable to locate package {package}", 100)
    if "docker.io" in words:
        code, text = ask("install-docker")
        return fail(text) if code else 0
    return 0


def docker(words: list[str]) -> int:
    """The engine answers, and knows the runtime for NVIDIA's GPUs; it has no containers."""
    root_only("permission denied while trying to connect to the Docker daemon socket")
    if words[:1] != ["info"]:
        return fail(f"the simulator's docker knows only `info`, not {words}")
    code, text = ask("is-active", "docker")
    print('{"nvidia":{},"runc":{}}' if code == 0 else text)
    return code


def nothing(words: list[str]) -> int:
    return 0


COMMANDS = {
    "systemctl": systemctl,
    "shutdown": shutdown,
    "poweroff": end,
    "cloud-init": cloud_init,
    "apt-get": apt_get,
    "docker": docker,
    "journalctl": nothing,
    "modprobe": nothing,
}

NAME = os.path.basename(sys.argv[0])

if __name__ == "__main__":
    if NAME not in COMMANDS:
        sys.exit(fail(f"the simulated machine has no {NAME}", 127))
    sys.exit(COMMANDS[NAME](sys.argv[1:]))
