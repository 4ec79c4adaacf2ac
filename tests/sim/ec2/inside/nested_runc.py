#!/usr/bin/python3
"""runc for an engine inside of a container: takes what this machine cannot give out of the bundle.

Limits above our own and capabilities that we have not would make every container fail that asks
for them, as a real machine's root may.
"""

import json
import os
import resource
import sys

# By number: linux/capability.h.
NAMES = """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP
    LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER
    SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE
    SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP
    MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF
    CHECKPOINT_RESTORE
""".split()  # noqa: SIM905


def humble(process):
    """Takes out of a process what we cannot give it."""
    with open("/proc/self/status") as file:
        status = dict(line.rstrip().split(":\t", 1) for line in file if ":\t" in line)
    bounding = int(status["CapBnd"], 16)
    ours = {f"CAP_{name}" for number, name in enumerate(NAMES) if bounding >> number & 1}
    for kind, listed in (process.get("capabilities") or {}).items():
        process["capabilities"][kind] = [name for name in listed or [] if name in ours]
    kept = []
    for limit in process.get("rlimits") or []:
        number = getattr(resource, limit["type"], None)
        hard = resource.getrlimit(number)[1] if number is not None else 0
        if hard == resource.RLIM_INFINITY or limit["hard"] <= hard:
            kept.append(limit)
    process["rlimits"] = kept


def rewrite(path, member):
    """A bundle's process is a member of its file; that of `exec` is the whole file."""
    with open(path) as file:
        found = json.load(file)
    humble(found[member] if member else found)
    with open(path, "w") as file:
        json.dump(found, file)


words = sys.argv[1:]
if "create" in words and "--bundle" in words:
    rewrite(os.path.join(words[words.index("--bundle") + 1], "config.json"), "process")
elif "exec" in words and "--process" in words:
    rewrite(words[words.index("--process") + 1], None)
os.execv(
    "/usr/sbin/runc" if os.path.exists("/usr/sbin/runc") else "/usr/bin/runc", ["runc", *words]
)
