"""Where the ranks meet: MASTER_ADDR and MASTER_PORT, and the interface that leads there."""

from __future__ import annotations

import os
import socket
import struct
import zlib
from collections.abc import Callable, Mapping

from trainlib.errors import StartError
from trainlib.ranks import Ranks

#: torch's own default (torch.distributed.run, static rendezvous).
DEFAULT_PORT = 29500

# Ports made from a job id: below Linux' ephemeral range (32768-60999, ip_local_port_range), so
# that no outgoing connection can already hold them.
_FIRST_PORT, _PORTS = 20000, 12000

_SIOCGIFADDR = 0x8915  # linux/sockios.h


def find_master(
    ranks: Ranks,
    env: Mapping[str, str] | None = None,
    agree_port: Callable[[], int | None] | None = None,
) -> tuple[str, int]:
    """The address and port on which rank 0 listens; the same answer on every rank.

    Args:
        agree_port: Asked when all ranks are on one host and no port is given: a free port that
            all ranks know, or None if they have no way to tell each other.

    Raises:
        StartError: The ranks are on several hosts and nothing says where rank 0 is.
    """
    env = os.environ if env is None else env
    address = env.get("MASTER_ADDR", "")
    port = env.get("MASTER_PORT", "")
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        raise StartError(f"MASTER_PORT is {port!r}", "give a port number from 1 to 65535")
    if address:
        return address, int(port or DEFAULT_PORT)
    if ranks.one_host:
        address = "127.0.0.1"
    elif ranks.launcher == "srun":
        # Rank 0 runs on the step's first host; the launch node may be a login node outside it.
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
        address = name_first_host(nodes) or env.get("SLURM_LAUNCH_NODE_IPADDR", "")
    if not address:
        raise StartError(
            f"the {ranks.world} ranks are on several hosts and MASTER_ADDR is not set",
            "pass the address of rank 0's host: mpirun -x MASTER_ADDR=ADDRESS "
            f"-x MASTER_PORT={DEFAULT_PORT} ...",
        )
    if port:
        return address, int(port)
    agreed = agree_port() if agree_port and ranks.one_host else None
    return address, agreed or compute_port(env)


def compute_port(env: Mapping[str, str]) -> int:
    """A port that all ranks of one job compute alike and two jobs hardly ever share."""
    job = ".".join(
        env.get(name, "")
        for name in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "SLURM_STEP_ID")
    )
    # Without any id the ranks of one host still have the daemon that started them in common.
    return _FIRST_PORT + zlib.crc32((job.strip(".") or str(os.getppid())).encode()) % _PORTS


def find_free_port() -> int:
    """A TCP port of the loopback address that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def name_first_host(nodelist: str) -> str:
    """The first host of a Slurm host list: `gpu[07-09,11],login` gives `gpu07`."""
    prefix, bracket, rest = nodelist.partition("[")
    if "," in prefix or not bracket:
        return prefix.split(",")[0].strip()
    first, _, tail = rest.partition("]")
    return prefix.strip() + first.split(",")[0].split("-")[0] + tail.split(",")[0].strip()


def find_interface(address: str) -> str | None:
    """The name of the interface whose address this host uses to reach `address`.

    Gloo binds to whatever the node's own hostname resolves to, on many systems 127.0.0.1, and
    other hosts then get "Connection refused"; naming the interface avoids that. None where it
    cannot be told (no route, no such ioctl on this system).
    """
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # a datagram socket sends nothing on connect
            own = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode()[:15])
                try:
                    answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                except OSError:  # an interface without an IPv4 address
                    continue
                if socket.inet_ntoa(answer[20:24]) == own:
                    return name
    except (ImportError, OSError):
        return None
    return None
