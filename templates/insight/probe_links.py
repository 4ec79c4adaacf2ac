"""Measures the links between two nodes: the part of probe.py that talks to another node."""

import contextlib
import socket
import threading
import time

CHUNK = 1 << 20
FEW = 1 << 14


def serve(tell, address, token, flows, seconds, patience, **_):
    """Tells its port and takes the connections of one other node: echoes the first, counts the
    bytes of the next, and sends over the last."""
    with socket.socket() as door:
        door.bind((address, 0))
        door.listen(16)
        door.settimeout(patience)
        tell({"port": door.getsockname()[1]})
        calls = accept(door, token, 1, patience)
        with calls[0] as call:
            call.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                data = call.recv(64)
                if not data:
                    break
                call.sendall(data)
        rate = receive(accept(door, token, flows, patience))
        send_all(accept(door, token, flows, patience), seconds)
        return {"rate": rate}


def accept(door, token, count, patience):
    """So many connections that know the token; whoever else comes is sent away."""
    calls = []
    while len(calls) < count:
        call, _ = door.accept()
        call.settimeout(patience)
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


def call(address, port, token, flows, seconds, patience, **_):
    """The other side of `serve`: seconds of a round trip, and the rate of what it receives; the
    server has the other rate."""

    def connect():
        made = socket.create_connection((address, port), timeout=patience)
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
    send_all([connect() for _ in range(flows)], seconds)
    back = receive([connect() for _ in range(flows)])
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


LINKS = {"serve": serve, "call": call}
