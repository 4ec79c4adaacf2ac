"""A Python that has imported torch, and forks a process for each program that is to be run.

    python warm.py SOCKET       until its standard input ends
    python -IS begin.py SOCKET SCRIPT ARGUMENTS

`begin.py` stands for the program that it begins: it hands on its environment, folder, standard
streams and signals, and ends as the program does. The import takes longer than most tests.
"""

from __future__ import annotations

import json
import os
import runpy
import selectors
import signal
import socket
import sys
from contextlib import suppress
from typing import Any


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not data.endswith(b"\n"):
        data += connection.recv(1 << 20)
    return json.loads(data), streams


def fork(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """The process and what it is to do; 0 in the process itself."""
    order, streams = receive(connection)
    pid = os.fork()
    for target, stream in enumerate(streams):
        if pid == 0:
            os.dup2(stream, target)
        os.close(stream)
    if pid:
        connection.sendall(b"%d\n" % pid)
    return pid, order


def serve(listener: socket.socket, ended: socket.socket) -> dict[str, Any]:
    """Returns in each new process, with what that is to do."""
    begun: dict[int, socket.socket | None] = {}
    with selectors.DefaultSelector() as selector:
        for source in (sys.stdin, ended, listener):
            selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    sys.exit()
                elif key.fileobj is listener:
                    connection, _ = listener.accept()
                    pid, order = fork(connection)
                    if pid == 0:
                        return order
                    begun[pid] = connection
                    selector.register(connection, selectors.EVENT_READ, pid)
                elif key.fileobj is ended:
                    ended.recv(4096)
                    for pid in [one for one in begun if has_ended(one)]:
                        _, status = os.waitpid(pid, 0)
                        if found := begun.pop(pid):
                            selector.unregister(found)
                            with found, suppress(OSError):
                                found.sendall(b"%d\n" % status)
                elif found := begun.get(key.data):  # `begin.py` was killed
                    os.kill(key.data, signal.SIGKILL)
                    selector.unregister(found)
                    found.close()
                    begun[key.data] = None


def has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def become(order: dict[str, Any]) -> None:
    """Runs the script as a fresh Python would."""
    os.setpgid(0, 0)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv[:] = order["argv"]
    path = order["env"].get("PYTHONPATH")
    sys.path[0:1] = [os.path.dirname(sys.argv[0]), *(path.split(os.pathsep) if path else [])]
    runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    import torch.distributed  # noqa: F401

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        ended, wake = socket.socketpair()
        ended.setblocking(False)
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        order = serve(listener, ended)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ended.close()
    wake.close()
    become(order)


if __name__ == "__main__":
    main()
