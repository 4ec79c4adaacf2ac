#!/usr/bin/python3
"""runc for an engine inside of a container: takes what this machine cannot give out of the bundle.

Limits above our own and capabilities that we have not would make every container fail that asks
for them, as a real machine's root may.
"""

import json
import os
import resource
import sys

words = sys.argv[1:]
if "--bundle" in words and "create" in words:
    path = os.path.join(words[words.index("--bundle") + 1], "config.json")
    with open(path) as file:
        config = json.load(file)
    with open("/proc/self/status") as file:
        status = dict(line.rstrip().split(":\t", 1) for line in file if ":\t" in line)
    bounding = int(status["CapBnd"], 16)
    # By number: linux/capability.h.
    names = """
        CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP
        LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER
        SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE
        SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP
        MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF
        CHECKPOINT_RESTORE
    """.split()  # noqa: SIM905
    ours = {f"CAP_{name}" for number, name in enumerate(names) if bounding >> number & 1}
    process = config["process"]
    for kind, listed in (process.get("capabilities") or {}).items():
        process["capabilities"][kind] = [name for name in listed or [] if name in ours]
    kept = []
    for limit in process.get("rlimits") or []:
        number = getattr(resource, limit["type"], None)
        if number is not None:
            hard = resource.getrlimit(number)[1]
            if hard == resource.RLIM_INFINITY or limit["hard"] <= hard:
                kept.append(limit)
    process["rlimits"] = kept
    with open(path, "w") as file:
        json.dump(config, file)
os.execv(
    "/usr/sbin/runc" if os.path.exists("/usr/sbin/runc") else "/usr/bin/runc", ["runc", *words]
)
