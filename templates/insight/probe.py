"""Measures a node and its links for `clusterctl verify`. Runs on the node, under its Python.

Reads one JSON object in each line of stdin, answers with one line behind MARK, ends with stdin.
Nothing is written but one temporary file, which goes again. Python 3.7 and the standard library;
torch or numpy are used where they are.
"""

import contextlib
import hashlib
import json
import os
import socket
import sys
import tempfile
import threading
import time

MARK = "@@probe "
CHUNK = 1 << 20
FEW = 1 << 14


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


def node(seconds, folder, size, **_):
    cores = len(os.sched_getaffinity(0))
    busy, _stolen = times()
    began = time.perf_counter()
    time.sleep(0.2)
    load = (times()[0] - busy) / (time.perf_counter() - began)
    stolen, began = times()[1], time.perf_counter()
    one, share = one_core(seconds)
    everything = hashing(cores, seconds)
    steal = (times()[1] - stolen) / (time.perf_counter() - began) / (os.cpu_count() or 1)
    source, target = bytearray(64 << 20), bytearray(64 << 20)
    view = memoryview(source)

    def copy():
        target[:] = view

    memory = 2 * len(source) / best(copy, seconds)
    return {
        "cores": cores,
        "load": load,
        "steal": steal,
        "one": one,
        "share": share,
        "all": everything,
        "memory": memory,
        "disk": disk(folder, size),
    }


def disk(folder, size):
    """Bytes per second of writing until all is on the disk; None where there is no room."""
    data = os.urandom(CHUNK)
    try:
        if os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize < 4 * size:
            return None
        with tempfile.TemporaryFile(dir=folder) as file:
            began = time.perf_counter()
            for _ in range(size // CHUNK):
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
            return size / (time.perf_counter() - began)
    except OSError:
        return None


def gemm(seconds, **_):
    """Operations per second of a product of matrices, by device and precision."""
    with contextlib.suppress(ImportError):
        import torch

        found = {}
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        for precision in ("float32", "bfloat16"):
            found["cpu " + precision] = torch_rate(torch, "cpu", precision, 768, seconds)
        for index in range(torch.cuda.device_count()):
            for precision in ("float32", "float16"):
                name = f"gpu {index} {precision}"
                found[name] = torch_rate(torch, f"cuda:{index}", precision, 4096, seconds)
        return {"rates": {name: rate for name, rate in found.items() if rate}}
    with contextlib.suppress(ImportError):
        import numpy

        left = numpy.ones((768, 768), dtype="float32")
        shortest = best(lambda: left @ left, seconds)
        return {"rates": {"cpu float32": 2 * 768**3 / shortest}}
    return {"rates": {}}


def torch_rate(torch, device, precision, size, seconds):
    try:
        left = torch.ones((size, size), dtype=getattr(torch, precision), device=device)
        wait = torch.cuda.synchronize if device != "cpu" else lambda: None

        def product():
            torch.mm(left, left)
            wait()

        product()
        return 2 * size**3 / best(product, seconds)
    except RuntimeError:
        return None


def serve(address, token, flows, seconds, **_):
    """Takes the connections of one other node: echoes the first, counts the bytes of the next, and
    sends over the last."""
    with socket.socket() as door:
        door.bind((address, 0))
        door.listen(16)
        door.settimeout(5)
        answer({"port": door.getsockname()[1]})
        calls = accept(door, token, 1)
        with calls[0] as call:
            call.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                data = call.recv(64)
                if not data:
                    break
                call.sendall(data)
        rates = []
        for count in flows:
            calls = accept(door, token, count)
            rates.append(receive(calls))
        send_all(accept(door, token, flows[-1]), seconds)
        return {"rates": rates}


def accept(door, token, count):
    """So many connections that know the token; whoever else comes is sent away."""
    calls = []
    while len(calls) < count:
        call, _ = door.accept()
        call.settimeout(5)
        with contextlib.suppress(OSError):
            if call.recv(len(token), socket.MSG_WAITALL) == token.encode():
                calls.append(call)
                continue
        call.close()
    return calls


def receive(calls):
    """Bytes per second over all of these connections together."""
    totals = [0] * len(calls)

    def work(index):
        buffer = bytearray(CHUNK)
        with calls[index] as call:
            while True:
                size = call.recv_into(buffer)
                if not size:
                    return
                totals[index] += size

    began = time.perf_counter()
    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(totals) / (time.perf_counter() - began)


def call(address, port, token, flows, seconds, **_):
    """The other side of `serve`: seconds of a round trip, and the rate of what it receives; the
    server has the other rates."""

    def connect():
        made = socket.create_connection((address, port), timeout=5)
        made.sendall(token.encode())
        return made

    with connect() as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips, end = [], time.perf_counter() + seconds / 2
        while len(trips) < 10 or (time.perf_counter() < end and len(trips) < 500):
            began = time.perf_counter()
            line.sendall(b"x")
            line.recv(64)
            trips.append(time.perf_counter() - began)
    for count in flows:
        send_all([connect() for _ in range(count)], seconds)
    back = receive([connect() for _ in range(flows[-1])])
    return {"latency": sorted(trips)[len(trips) // 2], "back": back}


def send_all(lines, seconds):
    workers = [threading.Thread(target=send, args=(line, seconds)) for line in lines]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def send(line, seconds):
    """In small pieces first: a slow link must not hold more than its time."""
    data, size, end = memoryview(bytes(CHUNK)), FEW, time.perf_counter() + seconds
    with line:
        while time.perf_counter() < end:
            began = time.perf_counter()
            line.sendall(data[:size])
            if time.perf_counter() - began < 0.01:
                size = min(CHUNK, 2 * size)


def answer(values):
    sys.stdout.write(MARK + json.dumps(values) + "\n")
    sys.stdout.flush()


def main():
    actions = {"node": node, "gemm": gemm, "serve": serve, "call": call}
    for line in iter(sys.stdin.readline, ""):
        given = json.loads(line)
        try:
            answer(actions[given.pop("do")](**given))
        except Exception as error:  # the other side has to hear of it, whatever it is
            answer({"error": getattr(error, "strerror", None) or str(error) or repr(error)})


main()
