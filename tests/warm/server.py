"""A Python that has imported modules, and forks a process for each program that is to be run.

    python server.py SOCKET MODULE…       until its standard input ends

`package.*` is a module and all below it. Programs are begun by `begin.py` or by `client.py`.
The import takes longer than most programs.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

C = ctypes.CDLL(None)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not data.endswith(b"\n"):
        more = connection.recv(1 << 20)
        if not more:
            raise EOFError  # whoever asks was killed
        data += more
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
        with suppress(OSError):  # whoever began it was killed: `serve` is told so
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
                    try:
                        pid, order = fork(connection)
                    except EOFError:
                        connection.close()
                        continue
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
                elif found := begun.get(key.data):  # whoever began it was killed
                    os.kill(key.data, signal.SIGKILL)
                    selector.unregister(found)
                    found.close()
                    begun[key.data] = None


def has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def become(order: dict[str, Any]) -> None:
    """Runs the script, or the module after `-m`, as a fresh Python would."""
    os.setpgid(0, 0)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        old = getattr(sys, name)  # of the server's own: a file perhaps, where this is a pipe
        lines = 1 if name == "stderr" else -1
        setattr(sys, name, os.fdopen(number, mode, lines, old.encoding, old.errors, closefd=False))
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    first, *more = order["argv"]
    path = order["env"].get("PYTHONPATH")
    beside = os.getcwd() if first == "-m" else os.path.dirname(first)
    sys.path[0:1] = [beside, *(path.split(os.pathsep) if path else [])]
    if first == "-m":
        sys.argv[:] = more
        runpy.run_module(more[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = order["argv"]
        runpy.run_path(first, run_name="__main__")


@contextmanager
def noted(codes: list[int]) -> Iterator[None]:
    """Notes the exit code that Python has for what the program raises, which goes on: programs look
    at how they end (`trainlib.mpi`)."""
    try:
        yield
    except SystemExit as end:
        usual = end.code is None or isinstance(end.code, int)
        codes.append(int(end.code or 0) if usual else 1)
        raise
    except BaseException as raised:
        codes.append(-signal.SIGINT if isinstance(raised, KeyboardInterrupt) else 1)
        raise
    codes.append(0)


def finalize_mpi() -> None:
    """What mpi4py has Python do at the very end; mpirun takes a rank that leaves without it for
    one that has failed."""
    mpi = sys.modules.get("mpi4py.MPI")
    if not mpi:
        return
    rc = sys.modules["mpi4py"].rc
    # Where the import has not called MPI_Init, it is the program's own business.
    wanted = rc.initialize if rc.finalize is None else rc.finalize
    if wanted and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()


def leave(codes: list[int]) -> None:
    """The last thing that Python does at exit, when threads have been waited for. It leaves objects
    where they are: to take them apart would copy every page that is shared with the server, which
    takes longer than most programs. `codes`: the exit code; empty in the server itself."""
    if not codes:
        return
    code = codes[0]
    for stream in (sys.stdout, sys.stderr):
        try:
            if not stream.closed:
                stream.flush()
        except OSError:  # nobody reads
            code = code or 120  # as Python has it
    finalize_mpi()
    C.fflush(None)
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def load(name: str) -> None:
    module = importlib.import_module(name.removesuffix(".*"))
    if name.endswith(".*"):
        for found in pkgutil.walk_packages(module.__path__, f"{module.__name__}."):
            if not found.name.endswith(".__main__"):
                importlib.import_module(found.name)


def main() -> None:
    codes: list[int] = []
    atexit.register(leave, codes)  # before all others, so it is called after them
    for name in sys.argv[2:]:
        load(name)
    gc.freeze()  # nobody looks for garbage in what all processes share, and seldom in the rest
    gc.set_threshold(100_000)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{sys.argv[1]}.new")
        listener.listen(64)
        os.rename(f"{sys.argv[1]}.new", sys.argv[1])  # who finds it can connect
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
    with noted(codes):
        become(order)


if __name__ == "__main__":
    main()
