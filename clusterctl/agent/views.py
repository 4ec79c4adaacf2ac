"""What a node shows of a job at a moment, for `doctor`, `top` and `status`: facts, each a line of
words, which clusterctl/insight reads. Nothing is changed. Where there is no time for all of them,
those count that were printed: what the ranks have left comes first.
"""

import base64
import contextlib
import glob
import os
import re
import shutil
import signal
import sys
import time
from typing import Dict, Generator, Iterator, List, Sequence, Set, Tuple

from . import processes, stacks
from .processes import read_text

ShownFacts = Generator[Tuple[object, ...], None, None]

KERNEL = re.compile(
    r"Out of memory: Kill|[Mm]emory cgroup out of memory|NVRM: Xid|amdgpu.*(GPU reset|timeout)"
    r"|I/O error|EXT4-fs error|XFS .*error|NETDEV WATCHDOG|nf_conntrack: table full"
    r"|Machine check|Hardware Error"
)
"""Lines of the kernel's log that say that something failed."""
WRITABLE = re.compile(
    r"(ext[234]|xfs|btrfs|zfs|f2fs|tmpfs|overlay|9p|virtiofs|nfs4?|lustre|ceph|beegfs|gpfs|fuse\..*)$"
)
"""File systems that programs write to."""
METRICS, LONGEST = 262_144, 2000
"""Bytes of output that are searched for metrics, of all ranks together so that any number of them
costs the same; and those of a line that may hold some."""
MOST_DISKS, MOST_LOCKS, MOST_LINES = 100, 200, 50
"""ShownFacts of a kind that are told."""
ANSWER = 5.0
"""Seconds for another program to answer."""
DISK_ANSWER = 3.0
"""The same for file systems: a server that does not answer must not keep the rest waiting."""
METADATA = "http://169.254.169.254/latest/"
"""EC2's, of the machine that asks."""


def write(facts: ShownFacts) -> None:
    """At once, each: somebody may wait no longer for the next one. What was made for it goes again,
    whoever ends this program."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    with contextlib.closing(facts):
        for fact in facts:
            line = " ".join(map(str, fact)).replace("\n", " ")
            sys.stdout.buffer.write(line.encode(errors="surrogateescape") + b"\n")
            sys.stdout.buffer.flush()


def _read_end(path: str, size: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size)
    except OSError:
        return b""


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _run(*words: str, seconds: float = ANSWER) -> str:
    """What a program prints; "" where it fails."""
    return processes.call(*words, limit=seconds).out


def _list_ranks(job: str, suffix: str) -> Iterator[Tuple[str, str]]:
    """(rank, path without the suffix) of those with such a file."""
    for path in sorted(glob.glob(os.path.join(glob.escape(job), "out", "rank-*" + suffix))):
        base = path[: -len(suffix)]
        yield os.path.basename(base)[len("rank-") :], base


def _list_processes(tag: str) -> Iterator[Tuple[int, str, processes.ProcessStat]]:
    """(process, rank, what it is)."""
    for pid in processes.list_living(tag):
        rank, stat = processes.read_rank(pid), processes.read_stat(pid)
        if rank and stat:
            yield pid, rank, stat


def _show_memory() -> ShownFacts:
    for line in read_text("/proc/meminfo").splitlines():
        if line.startswith(("MemTotal:", "MemAvailable:")):
            yield ("memory", *line.split()[:2])


def show_gpus(job: str, of_jobs: bool, seconds: float = ANSWER) -> ShownFacts:
    """Use and memory of each GPU, and which job has processes on it. One that has failed may not
    answer at all."""
    if shutil.which("nvidia-smi"):
        columns = "--query-gpu=index,utilization.gpu,memory.used,memory.total,uuid"
        csv = "--format=csv,noheader,nounits"
        for line in _run("nvidia-smi", columns, csv, seconds=seconds).splitlines():
            yield "gpu", line
        apps = ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader")
        for line in _run(*apps, seconds=seconds).splitlines() if of_jobs else ():
            uuid, _, pid = line.partition(", ")
            environment = read_text(f"/proc/{pid.strip()}/environ").split("\0")
            for tag in [item for item in environment if item.startswith("CLUSTERCTL_JOB=")][:1]:
                yield "app", uuid, tag.partition("=")[2]
    elif shutil.which("rocm-smi"):
        words = ("rocm-smi", "--showuse", "--showmeminfo", "vram", "--json")
        yield "rocm", _run(*words, seconds=seconds)


# --------------------------------------------------------------------------------------- top


def show_use(job: str, tag: str, device: str, marks: str) -> ShownFacts:
    """What the node and the ranks on it use at this moment, and the last lines that may hold their
    metrics: those of ours, or with one of these marks."""
    yield "time", time.time()
    ticks = list(map(int, read_text("/proc/stat").split()[1:9]))
    yield "cpu", sum(ticks), ticks[3] + ticks[4]
    yield from _show_memory()
    for line in read_text("/proc/net/dev").splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == device:
            yield "net", counters.split()[0], counters.split()[8]
    yield from show_gpus(job, of_jobs=False)
    for pid, rank, stat in _list_processes(tag):
        if stat.state not in "ZX":
            yield "process", rank, pid, stat.used
        yield "resident", rank, processes.read_status(pid, "VmRSS") or 0
    files = [(r, base + end) for end in (".out", ".err") for r, base in _list_ranks(job, end)]
    for rank, path in files:
        yield "metrics", rank, ""
        text = _read_end(path, METRICS // len(files)).decode(errors="surrogateescape")
        lines = text.replace("\r", "\n").split("\n")
        found = [line for line in lines if line.startswith('{"clusterctl"')] or [
            line for line in lines if len(line) <= LONGEST and re.search(marks, line.lower())
        ]
        for line in found[-MOST_LINES:]:
            yield "metrics", rank, line
    yield ("done",)


# ------------------------------------------------------------------------------------ doctor


def show(job: str, tag: str, python_folder: str, tail: int, spot: bool, peer: str) -> ShownFacts:
    """What there is to see of a job. `tail`: bytes of each file of output; `peer`: another node to
    reach, "" for none."""
    root = os.path.dirname(os.path.dirname(job))
    if not os.path.isdir(job):
        yield ("absent",)
    yield "uptime", read_text("/proc/uptime").split()[0], time.time()
    yield from _show_output(job, tail)
    yield from _show_machine(root, python_folder)
    for pid, rank, stat in _list_processes(tag):
        # A program may call itself as it likes: what it runs counts.
        python = re.search(r"/python[\d.]*$", processes.read_link(f"/proc/{pid}/exe"))
        command = "python" if python else stat.command
        yield "process", rank, pid, stat.parent, stat.state, stat.started, command
        yield "waits", pid, read_text(f"/proc/{pid}/wchan")
        for silent in _list_silent(pid):
            yield ("silent", rank, *silent)
    yield from _show_exits(job)  # who has ended meanwhile has no process
    yield ("processes",)
    yield from _show_disks("disk", "-Pk", _list_mounts(job + "/"))
    yield from _show_disks("elsewhere", "-Pk", _list_mounts("/", os.path.dirname(job) + "/"))
    notice = _ask_spot() if spot else ""
    if notice:
        yield "spot", notice
    if peer:
        yield "peer", peer, _reach(root, peer)
    yield ("done",)


def _show_output(job: str, tail: int) -> ShownFacts:
    for rank, base in _list_ranks(job, ".pid"):
        yield "rank", rank
        paths = [base + suffix for suffix in (".out", ".err", ".pid")]
        yield "written", rank, int(max(os.stat(p).st_mtime for p in paths if os.path.exists(p)))
        yield "out", rank, _encode(_read_end(base + ".out", tail))
        yield "err", rank, _encode(_read_end(base + ".err", tail))
    yield from _show_exits(job)
    mpirun = os.path.join(job, "mpirun.")
    if os.path.exists(mpirun + "err"):
        said = processes.read(mpirun + "out") + processes.read(mpirun + "err")
        said = re.sub(rb"(?m)^clusterctl: (start|exit) .*\n?", b"", said.replace(b"\0", b""))
        yield "launcher", _encode(said[-tail:])


def _show_exits(job: str) -> ShownFacts:
    for rank, base in _list_ranks(job, ".exit"):
        yield "exit", rank, read_text(base + ".exit")


def _show_machine(root: str, python_folder: str) -> ShownFacts:
    places = [root, os.path.join(root, "jobs"), "/tmp"]
    yield from _show_disks("disk", "-Pk", [*places, "/dev/shm"])
    yield from _show_disks("inodes", "-Pi", places)
    yield from _show_memory()
    yield "ptrace", os.getuid(), read_text("/proc/sys/kernel/yama/ptrace_scope")
    spy = stacks.locate_spy(python_folder)
    if spy:
        yield "spy", spy
    journal = ("journalctl", "-k", "-b", "--no-pager", "-o", "short-monotonic")
    commands = (("dmesg",), ("sudo", "-n", "dmesg"), journal)
    log = next(filter(None, (_run(*words) for words in commands)), "")
    for line in list(filter(KERNEL.search, log.splitlines()))[-MOST_LINES:]:
        yield "kernel", line
    holders: Dict[str, str] = {}
    for words in [line.split() for line in read_text("/proc/locks").splitlines()[:MOST_LOCKS]]:
        if words[1] == "->":
            yield "lock", words[5], holders.get(words[0], "")
        else:
            holders[words[0]] = words[4]


def _show_disks(word: str, option: str, places: Sequence[str]) -> ShownFacts:
    said = _run("df", option, *places, seconds=DISK_ANSWER) if places else ""
    for line in said.splitlines()[1:]:
        _, size, _, free, _, mount = line.split(None, 5)
        yield word, free, size, mount


def _list_mounts(folder: str, but: str = "") -> List[str]:
    """Of file systems that programs may write to, below a folder. A name with a blank has a code
    for it here, and is left out by df."""
    found = []
    for line in read_text("/proc/self/mounts").splitlines():
        _, mount, kind, options = line.split(" ")[:4]
        ours = mount.startswith(folder) and not (but and mount.startswith(but))
        if ours and options.split(",")[0] == "rw" and WRITABLE.match(kind):
            found.append(mount)
    return found[:MOST_DISKS]


def _list_silent(pid: int) -> Iterator[Tuple[str, str, str]]:
    """Its connections on which it has sent more than once and got no answer: where to, the state,
    and how often."""
    own: Set[str] = set()
    for name in ("tcp", "tcp6"):
        for line in read_text(f"/proc/{pid}/net/{name}").splitlines()[1:]:
            _, _, remote, state, _, _, tries, _, _, inode = line.split()[:10]
            if (state == "02" and int(tries, 16)) or (state == "01" and int(tries, 16) >= 3):
                own = own or _list_sockets(pid)
                if inode in own:
                    yield remote, state, tries


def _list_sockets(pid: int) -> Set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}")[len("socket:[") : -1])
    return found


def _ask_spot() -> str:
    """EC2's notice that it takes the machine back; "" for none."""
    curl, token = ("curl", "-sf", "-m", "2", "-H"), "X-aws-ec2-metadata-token"
    got = _run(*curl, f"{token}-ttl-seconds: 60", "-X", "PUT", METADATA + "api/token")
    return _run(*curl, f"{token}: {got}", METADATA + "meta-data/spot/instance-action")


def _reach(root: str, peer: str) -> str:
    """`ok`, or why no connection comes about. A log-in takes its time on a busy node; and a banner
    or a start file there that has spoken says that one did."""
    ssh = ("ssh", "-F", "config", "-o", "ConnectTimeout=4", peer, "true")
    said = processes.call(*ssh, limit=ANSWER, folder=os.path.join(root, "ssh"))
    lines = (said.out + said.err).splitlines()
    if said.code != 255 or not lines or " banner exchange" in said.err:
        return "ok"
    return lines[-1]
