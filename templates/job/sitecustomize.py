"""Notes beside a rank's output whether it was alone: Python runs this file as it starts.

A program of torch whose ranks join no process group and use no MPI does all of its work once per
rank, and looks like success. `rank-N.alone` has a digest of the program's arguments, for ranks that
are told apart by these share the work; `rank-N.met` says that some process of the rank met others,
or may have. Works with every Python 3.
"""

import atexit
import os
import re
import sys
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
JOB = os.path.dirname(HERE)
BEGAN = os.environ.get("PWD", "")
MEETS = ("mpi4py.MPI", "ray", "distributed", "horovod", "jax", "tensorflow", "zmq")
"""Modules by which programs share their work; `distributed` is Dask's."""
VARIABLES = re.compile(r"""["'${}][A-Z_]*(RANK|PROCID|LOCALID|NODEID|WORLD_SIZE|MASTER_ADDR)\b""")
"""In the source of a program that may divide its work by itself: what tells ranks apart."""


def note():
    if "torch" not in sys.modules or "CLUSTERCTL_RANK" not in os.environ:
        return
    try:
        met = has_joined() or any(name in sys.modules for name in MEETS) or uses_mpi() or divides()
        path = os.path.join(JOB, "out", "rank-" + os.environ["CLUSTERCTL_RANK"])
        with open(path + (".met" if met else ".alone"), "w") as file:
            file.write(str(zlib.crc32(repr(sys.argv[1:]).encode("utf-8", "replace"))) + "\n")
    except Exception:  # a note is not worth a program's end
        pass


def has_joined():
    """Whether there was a process group, also one that was destroyed. Of a torch that keeps neither
    of these, nobody knows."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return False
    marks = ("_backend", "_default_pg_init_method")
    if not any(hasattr(c10d, mark) for mark in marks):
        return True
    return any(getattr(c10d, mark, None) not in (None, "undefined") for mark in marks)


def uses_mpi():
    with open("/proc/self/maps") as maps:
        found = re.search(r"/\S*/libmpi\.so\S*", maps.read())
    if found is None:
        return False
    import ctypes

    began = ctypes.c_int()
    ctypes.CDLL(found.group()).MPI_Initialized(ctypes.byref(began))
    return bool(began.value)


def divides():
    """Whether the program's own source mentions which rank it is, or that of a shell above it."""
    work = os.path.realpath(os.path.join(JOB, "work")) + os.sep
    names = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    # A script that has ended has no __file__ any more.
    names = [name for name in names + sys.argv[:1] if name and name.endswith(".py")]
    words = list_words_above()
    for name in names + words:
        path = os.path.realpath(os.path.join(BEGAN, name))
        if path.startswith(work) and os.path.isfile(path):
            with open(path, errors="replace") as source:
                if VARIABLES.search(source.read(1 << 20)):
                    return True
    return any(VARIABLES.search(word) for word in words)


def list_words_above():
    """The command lines of the processes that have started this one, up to the rank's wrapper."""
    wrapper = os.path.join(os.path.realpath(JOB), "rank.sh")
    found, pid = [], os.getppid()
    while pid > 1:
        place = os.path.join("/proc", str(pid))
        with open(os.path.join(place, "cmdline"), errors="replace") as file:
            words = file.read().split("\0")
        if any(os.path.realpath(word) == wrapper for word in words):
            break
        found += words
        with open(os.path.join(place, "stat"), errors="replace") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    return found


def follow_fork():
    """multiprocessing ends its children without `atexit`."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.register_after_fork(note, lambda _: util.Finalize(None, note, exitpriority=0))


def run_hidden():
    """Runs the file of this name that Python would have found without this one."""
    from importlib.machinery import PathFinder

    others = [path for path in sys.path if os.path.abspath(path or os.curdir) != HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None:
        from importlib.util import module_from_spec

        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


atexit.register(note)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=follow_fork)
run_hidden()
