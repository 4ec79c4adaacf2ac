"""Measures a node and its links for `clusterctl verify`. Runs on the node, under its Python.

Reads one JSON object in each line of stdin, answers with one line behind MARK, ends with stdin.
What could take the process along (memory that runs out, a disk that does not answer) is measured by
a process of its own, within `limit` seconds. Nothing is written but one temporary file, which goes
again. Python 3.7 and the standard library; torch or numpy are used where they are. In front of it
comes probe_links.py.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

MARK = "@@probe "
CHUNK = 1 << 20
PERIOD = 0.1  # seconds after which a cgroup gives a thread time again


def times():
    """Seconds of all processors: busy with anything, and stolen by the hypervisor."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / 100.0, ticks[7] / 100.0


def best(action, seconds):
    """The shortest time of `action`, tried for so long."""
    shortest, end = float("inf"), time.perf_counter() + seconds
    while True:
        began = time.perf_counter()
        action()
        now = time.perf_counter()
        shortest = min(shortest, now - began)
        if now > end:
            return shortest


def one_core(seconds):
    """Bytes of SHA-256 per second of this thread's own time, and how much of its time it gets."""
    data, done = bytes(CHUNK), 0
    began, cpu = time.perf_counter(), time.thread_time()
    while time.perf_counter() < began + seconds:
        hashlib.sha256(data).digest()
        done += CHUNK
    used = time.thread_time() - cpu
    return done / used, used / (time.perf_counter() - began)


def hashing(threads, seconds):
    """Bytes of SHA-256 per second, which leaves Python's lock alone."""
    done, data = [0] * threads, bytes(CHUNK)

    def work(index):
        while time.perf_counter() < end:
            hashlib.sha256(data).digest()
            done[index] += CHUNK

    began = time.perf_counter()
    end = began + seconds
    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(done) / (time.perf_counter() - began)


def start(address, **_):
    """What the node has: cores, and the interface with its address."""
    device = find_device(address)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "device": device,
        "line_rate": line_rate(device),
        "shaping": shaping(device),
    }


def find_device(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode())
                found = fcntl.ioctl(asked, 0x8915, request)[20:24]  # SIOCGIFADDR
                if socket.inet_ntoa(found) == address:
                    return name
    return ""


def line_rate(device):
    """Bits per second of a piece of hardware; None where it is none, or does not say."""
    folder = "/sys/class/net/" + device
    if not device or not os.path.exists(folder + "/device"):
        return None
    try:
        with open(folder + "/speed") as file:
            speed = int(file.read())
    except (OSError, ValueError):
        return None
    return speed * 1e6 if speed > 0 else None


def shaping(device):
    """How `tc` limits what the device sends: `tbf rate 20Mbit`; else nothing."""
    try:
        said = subprocess.run(
            ["tc", "qdisc", "show", "dev", device],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=2,
        ).stdout.decode(errors="replace")
        kinds = re.findall(r"(?m)^qdisc (tbf|netem|htb|hfsc|cbq|cake)\b(.*)", said)
        if not kinds:
            return ""
        kind, rest = kinds[0]
        limits = re.findall(r"\b(?:rate|delay|loss|bandwidth) \S+", rest)
        return " ".join([kind, *limits])
    except (OSError, subprocess.SubprocessError):
        return ""


def load(**_):
    """Cores that others use while this process sleeps: all on this machine, those that the node
    shows, and the one of these that uses most."""
    before, busy, began = processes(), times()[0], time.perf_counter()
    time.sleep(0.2)
    seconds = time.perf_counter() - began
    everything, after = (times()[0] - busy) / seconds, processes()
    used = {pid: after[pid][0] - before[pid][0] for pid in after if pid in before}
    used.pop(os.getpid(), None)
    most = max(used, key=used.get, default=0)
    name = f"{after[most][1]} (process {most})" if used.get(most) else ""
    return {"load": everything, "visible": sum(used.values()) / seconds, "busiest": name}


def processes():
    """Seconds of processor time, and the name, of each process."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open("/proc/" + pid + "/stat") as file:
                begin, _, rest = file.read().rpartition(")")
            words = rest.split()
            ticks = int(words[11]) + int(words[12])
            found[int(pid)] = ticks / os.sysconf("SC_CLK_TCK"), begin.partition("(")[2]
    return found


def processor(seconds, **_):
    cores = len(os.sched_getaffinity(0))
    stolen, began = times()[1], time.perf_counter()
    before = periods()
    one, share = one_core(max(seconds, PERIOD))
    after = periods()
    passed, stopped = after[0] - before[0], after[1] - before[1]
    everything = hashing(cores, seconds)
    steal = (times()[1] - stolen) / (time.perf_counter() - began) / (os.cpu_count() or 1)
    shares = {"steal": steal, "share": share, "throttled": stopped / max(1, passed)}
    return {"core": one, "together": everything, **shares}


def periods():
    """Of the limits of this process's cgroups: those that have passed, and those in which a limit
    stopped it."""
    passed = stopped = 0
    with contextlib.suppress(OSError):
        with open("/proc/self/cgroup") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
        for _, kinds, path in groups:
            if kinds and "cpu" not in kinds.split(","):
                continue
            place = "/sys/fs/cgroup/cpu" if kinds else "/sys/fs/cgroup"
            parts = [part for part in path.split("/") if part]
            for depth in range(len(parts) + 1):
                with contextlib.suppress(OSError):
                    with open("/".join([place, *parts[:depth], "cpu.stat"])) as file:
                        found = dict(line.split() for line in file)
                    passed += int(found.get("nr_periods", 0))
                    stopped += int(found.get("nr_throttled", 0))
    return passed, stopped


def memory(seconds, **_):
    source, target = bytearray(64 << 20), bytearray(64 << 20)
    view = memoryview(source)

    def copy():
        target[:] = view

    return {"memory": 2 * len(source) / best(copy, seconds)}


def disk(folder, size, **_):
    """Bytes per second of writing until all is on the disk."""
    data = os.urandom(CHUNK)
    there = os.statvfs(folder)
    free = there.f_bavail * there.f_frsize
    if free < 2 * size:
        room = f"{free / 1e6:.0f} MB are free in {folder}"
        return {"error": f"{room}, and {2 * size / 1e6:.0f} MB are needed"}
    with tempfile.TemporaryFile(dir=folder) as file:
        began = time.perf_counter()
        for _ in range(size // CHUNK):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
        return {"disk": size / (time.perf_counter() - began)}


def load_torch(**_):
    """What takes longest of `gemm`, and may be done on several nodes of a machine at once."""
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401
    return {}


def gemm(seconds, **_):
    """Operations per second of a product of matrices, by device and precision, and why some could
    not be measured."""
    with contextlib.suppress(ImportError):
        import torch

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        wanted = [("cpu", precision, 768) for precision in ("float32", "bfloat16")]
        for index in range(torch.cuda.device_count()):
            wanted += [(f"gpu {index}", precision, 4096) for precision in ("float32", "float16")]
        rates, failed = {}, {}
        for device, precision, size in wanted:
            name = device + " " + precision
            try:
                where = device.replace("gpu ", "cuda:")
                rates[name] = torch_rate(torch, where, precision, size, seconds)
            except RuntimeError as error:
                failed[name] = (str(error).splitlines() or [repr(error)])[0]
        return {"gemm": rates, "failed": failed}
    with contextlib.suppress(ImportError):
        import numpy

        left = numpy.ones((768, 768), dtype="float32")
        shortest = best(lambda: left @ left, seconds)
        return {"gemm": {"cpu float32": 2 * 768**3 / shortest}}
    return {"gemm": {}}


def torch_rate(torch, device, precision, size, seconds):
    left = torch.ones((size, size), dtype=getattr(torch, precision), device=device)
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None

    def product():
        torch.mm(left, left)
        wait()

    product()
    return 2 * size**3 / best(product, seconds)


class Helper:
    """The process that measures what could take this one along: replaced where it has ended, or
    does not answer in time. Made by `fork`, while there is only one thread."""

    def __init__(self):
        self.pid = 0

    def ask(self, line, limit):
        if not self.pid:
            self.start()
        try:
            self.requests.write(line)
        except OSError:
            return {"error": self.end(0)}
        end, said = time.monotonic() + limit, b""
        while not said.endswith(b"\n"):
            ready = select.select([self.answers], [], [], max(0, end - time.monotonic()))[0]
            if self.answers not in ready:
                self.end(signal.SIGKILL)
                return {"error": f"no answer in {limit:.2g} s", "late": True}
            data = os.read(self.answers, 65536)
            if not data:
                return {"error": self.end(0)}
            said += data
        return json.loads(said.decode())

    def start(self):
        request_out, request_in = os.pipe()
        answer_out, answer_in = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.close(request_in)
                os.close(answer_out)
                with os.fdopen(request_out) as lines, os.fdopen(answer_in, "w") as out:
                    for line in iter(lines.readline, ""):
                        out.write(json.dumps(attempt(line)) + "\n")
                        out.flush()
            finally:
                os._exit(0)
        os.close(request_out)
        os.close(answer_in)
        self.answers, self.requests = answer_out, os.fdopen(request_in, "w", 1)

    def end(self, number):
        """Why it has ended by itself, or with a signal: one that waits for a disk does not go."""
        with contextlib.suppress(OSError):
            self.requests.close()
        os.close(self.answers)
        if number:
            os.kill(self.pid, number)
        _, status = os.waitpid(self.pid, os.WNOHANG if number else 0)
        self.pid = 0
        if not os.WIFSIGNALED(status):
            return "its process ended"
        name = signal.Signals(os.WTERMSIG(status)).name
        most = ": most likely, memory ran out" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{most}"


ACTIONS = {
    **{"start": start, "load": load, "processor": processor, "memory": memory, "disk": disk},
    **{"torch": load_torch, "gemm": gemm},
    **LINKS,  # noqa: F821
}


def attempt(line):
    given = json.loads(line)
    try:
        return ACTIONS[given.pop("do")](tell=answer, **given)
    except Exception as error:  # the other side has to hear of it, whatever it is
        return {"error": getattr(error, "strerror", None) or str(error) or repr(error)}


def answer(values):
    sys.stdout.write(MARK + json.dumps(values) + "\n")
    sys.stdout.flush()


def main():
    helper = Helper()
    for line in iter(sys.stdin.readline, ""):
        given = json.loads(line)
        if "limit" in given:
            answer(helper.ask(line, given["limit"]))
        else:
            answer(attempt(line))
    if helper.pid:
        helper.end(signal.SIGKILL)


main()
