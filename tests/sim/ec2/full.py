"""Full machines: a container with systemd, sshd, cloud-init and a Docker engine of its own.

The container is started without a network and gets a cable like every other machine. Its image is
made from the distribution's packages. Of the internet it sees what `tests/sim/internet.py` has, at
ports of 169.254.169.254, where the network of the VPC hands on to servers of the tests.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
from pathlib import Path

from tests.sim.ec2.dns import RESOLVER
from tests.sim.ec2.machines import Order
from tests.sim.ec2.network import IMDS, gateway

REGISTRY_PORT, PACKAGES_PORT, INDEX_PORT = 5000, 5001, 5002

_CAPABILITIES = (
    *("SYS_ADMIN", "NET_ADMIN", "NET_RAW", "SYS_PTRACE", "MKNOD", "IPC_LOCK", "SYS_NICE"),
    *("SYS_CHROOT", "DAC_READ_SEARCH"),
)
_FLAGS = (
    *(f"--cap-add={name}" for name in _CAPABILITIES),
    *("--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined"),
    *("--security-opt=systempaths=unconfined", "--cgroupns=host"),
    *("--volume=/sys/fs/cgroup:/sys/fs/cgroup:rw", "--volume=/var/lib/docker"),
    *("--tmpfs=/run", "--tmpfs=/tmp:exec", "--network=none", "--stop-signal=SIGRTMIN+3"),
)

DOCKERFILE = r"""
FROM {base}
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update && apt-get install -y --no-install-recommends \
        systemd systemd-sysv dbus libpam-systemd openssh-server cloud-init sudo iproute2 procps \
        docker.io iptables curl python3 python3-venv git kmod \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* /etc/machine-id \
    && touch /etc/machine-id \
    && systemctl mask systemd-sysctl.service systemd-remount-fs.service getty.target \
        console-getty.service systemd-networkd-wait-online.service apt-daily.timer \
        apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer \
    && rm -f /usr/sbin/policy-rc.d
RUN {files}
STOPSIGNAL SIGRTMIN+3
CMD ["/sbin/init"]
"""
"""Cloud-init's locale step would fail for want of locales, and the console needs a terminal."""

FILES = {
    "/etc/cloud/cloud.cfg.d/99-sim.cfg": json.dumps(
        {
            "datasource_list": ["NoCloud", "None"],
            "locale": False,
            "network": {"config": "disabled"},
            "apt_preserve_sources_list": True,
            "system_info": {
                "default_user": {
                    "name": "ubuntu",
                    "gecos": "Ubuntu",
                    "lock_passwd": True,
                    "sudo": ["ALL=(ALL) NOPASSWD:ALL"],
                    "groups": ["sudo"],
                    "shell": "/bin/bash",
                }
            },
        }
    ),
    "/etc/docker/daemon.json": json.dumps(
        {
            "registry-mirrors": [f"http://{IMDS}:{REGISTRY_PORT}"],
            "insecure-registries": [f"{IMDS}:{REGISTRY_PORT}"],
            "default-runtime": "nested",
            "runtimes": {
                "nested": {"path": "/usr/local/bin/nested-runc"},
                "nvidia": {"path": "/usr/local/bin/nested-runc"},
            },
        }
    ),
    "/usr/local/bin/nested-runc": (Path(__file__).parent / "inside" / "nested_runc.py").read_text(),
    "/etc/pip.conf": (
        f"[global]\nindex-url = http://{IMDS}:{INDEX_PORT}/simple\ntrusted-host = {IMDS}\n"
    ),
    # What the Deep Learning images have, and there is no GPU to ask.
    "/usr/local/bin/nvidia-ctk": "#!/bin/sh\nexit 0\n",
    "/usr/local/bin/nvidia-container-runtime-hook": "#!/bin/sh\nexit 0\n",
}


def dockerfile(base: str) -> str:
    """The recipe of the machines' image, complete in one text."""
    words = []
    for path, text in FILES.items():
        packed = base64.b64encode(text.encode()).decode()
        words.append(f"mkdir -p {os.path.dirname(path)} && echo {packed} | base64 -d > {path}")
        if "/bin/" in path:
            words.append(f"chmod 755 {path}")
    return DOCKERFILE.format(base=base, files=" \\\n    && ".join(words))


class FullMachine:
    """One container. Nothing here waits, `kill` apart."""

    def __init__(self, order: Order, image: str, host: str) -> None:
        self.order = order
        self._environment = {**os.environ, **({"DOCKER_HOST": host} if host else {})}
        seed = order.folder / "seed"
        seed.mkdir(parents=True)
        (seed / "user-data").write_text(order.user_data or "#cloud-config\n{}")
        metadata = {
            "instance-id": order.id,
            "local-hostname": order.hostname,
            "public-keys": list(order.keys),
        }
        (seed / "meta-data").write_text(json.dumps(metadata))
        self._name = f"sim-{order.id}"
        self._log = (order.folder / "console.log").open("wb")
        words = ["run", "--detach", "--name", self._name, "--hostname", order.hostname]
        words += [f"--volume={seed}:/var/lib/cloud/seed/nocloud:ro", *_FLAGS, image]
        self._start = self._docker(*words)
        self._asked: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._handle: int | None = None
        self._connected = False

    def _docker(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["docker", *words],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    @property
    def pid(self) -> int | None:
        """That of systemd; learned in two steps, each a call of the engine."""
        if self._pid is None and self._start.poll() == 0:
            if self._asked is None:
                self._asked = self._docker("inspect", "--format", "{{.State.Pid}}", self._name)
            elif self._asked.poll() == 0 and self._asked.stdout is not None:
                self._pid = int(self._asked.stdout.read())
                with contextlib.suppress(OSError):
                    self._handle = os.pidfd_open(self._pid)
        return self._pid

    def connected(self) -> None:
        order = self.order
        address = f"address add {order.private}/{order.subnet.prefixlen} broadcast + dev eth0"
        lines = [address, "link set eth0 up"]
        lines.append(f"route add default via {gateway(order.subnet)}")
        argv = ["nsenter", f"--net=/proc/{self._pid}/ns/net", "ip", "-force", "-batch", "-"]
        subprocess.run(argv, input="\n".join(lines).encode(), check=True, stderr=self._log)
        files = Path(f"/proc/{self._pid}/root/etc")
        (files / "hosts").write_text("127.0.0.1 localhost\n::1 ip6-localhost\n")
        (files / "resolv.conf").write_text(f"nameserver {RESOLVER}\nsearch ec2.internal\n")
        self._connected = True

    def restarted(self) -> None:
        """What ran in the container goes on."""

    @property
    def up(self) -> bool:
        """sshd listens: seen in the machine's own table of sockets."""
        if not (self._connected and self._pid):
            return False
        with contextlib.suppress(OSError):
            table = Path(f"/proc/{self._pid}/net/tcp").read_text()
            return any(
                line.split()[1:4:2] == ["00000000:0016", "0A"] for line in table.splitlines()
            )
        return False

    def ended(self) -> str | None:
        if self._start.poll():
            return f"the engine said no: {(self.order.folder / 'console.log').read_text()}"
        if self._pid is None:
            return None
        if self._handle is None:
            return "poweroff"
        return "poweroff" if select.select([self._handle], [], [], 0)[0] else None

    def kill(self) -> None:
        self._start.wait()
        self._docker("rm", "--force", "--volumes", self._name).wait()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        for process in (self._start, self._asked):
            if process and process.stdout:
                process.stdout.close()
        self._log.close()
        shutil.rmtree(self.order.folder, ignore_errors=True)


def control_groups() -> set[Path]:
    """Those of containers, by their engine's usual name."""
    root = Path("/sys/fs/cgroup")
    return {
        path
        for pattern in ("docker/*", "*/docker/*")
        for path in root.glob(pattern)
        if path.is_dir()
    }


def sweep(before: set[Path]) -> None:
    """Takes away the groups that containers inside of machines left: nobody else does."""
    for path in sorted(control_groups() - before, key=lambda path: -len(path.parts)):
        for folder, _, _ in os.walk(path, topdown=False):
            with contextlib.suppress(OSError):  # in use: not ours, or not yet
                os.rmdir(folder)
