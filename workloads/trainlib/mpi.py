"""MPI through mpi4py: starting it safely, and averaging tensors over all ranks.

torch is not imported here: a program that only needs MPI starts a second earlier without it.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import importlib
import opcode
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from trainlib import waiting
from trainlib.errors import StartError
from trainlib.ranks import Ranks

if TYPE_CHECKING:
    import torch

#: 1 or 0 overrides what the MPI library says about taking device pointers.
DEVICE_BUFFERS = "TRAINLIB_MPI_DEVICE_BUFFERS"

# Set by every launcher that offers an MPI library its wire-up: Open MPI's mpirun, srun --mpi=pmix,
# and the PMI-1/2 of MPICH's launchers and srun --mpi=pmi2.
_WIRE_UP = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


def find_launch_problem(ranks: Ranks, env: Mapping[str, str] | None = None) -> str:
    """Why MPI cannot join these ranks ("" if it can), told from the launcher alone.

    MPI_Init in a process without a launcher's wire-up makes a world of one rank, or with Open MPI
    under a plain srun ends the process: it must not be tried.
    """
    env = os.environ if env is None else env
    if ranks.launcher == "torchrun":
        return "torchrun starts no MPI, each rank would be an MPI world of its own"
    if not any(name in env for name in _WIRE_UP):
        by = {"srun": "srun started this without --mpi=pmix"}
        return by.get(ranks.launcher, "neither mpirun nor srun --mpi=pmix started this process")
    return ""


def find_import_problem() -> str:
    """Why mpi4py cannot be loaded here ("" if it can); loading does not call MPI_Init."""
    try:
        load()
    except (ImportError, RuntimeError, OSError) as error:
        # mpi4py's wheels raise RuntimeError if they find no MPI library to bind to.
        return f"mpi4py cannot be loaded ({error})"
    return ""


def load() -> Any:
    """The `mpi4py.MPI` module, without MPI_Init as a side effect of the import.

    Raises:
        ImportError, RuntimeError, OSError: There is no mpi4py, or no MPI library for it.
    """
    import mpi4py

    mpi4py.rc.initialize = False
    return importlib.import_module("mpi4py.MPI")


def start(ranks: Ranks) -> Any:
    """Call MPI_Init and return `mpi4py.MPI`; every rank of the job has to do the same.

    SERIALIZED is the level that is needed: DDP calls a communication hook from autograd's thread
    when tensors are on a GPU, while the main thread waits in backward(). MULTIPLE would cost
    locks, and would lose UCX where that is built without --enable-mt.

    Raises:
        StartError: MPI cannot be used here, or sees another world than the launcher.
    """
    todo = "start the program with mpirun or srun --mpi=pmix, or pass --backend gloo"
    problem = find_launch_problem(ranks) or find_import_problem()
    if problem:
        raise StartError(problem, todo)
    mpi = load()
    if not mpi.Is_initialized():
        mpi.Init_thread(mpi.THREAD_SERIALIZED)
        _finish_at_exit()
    size, rank = mpi.COMM_WORLD.Get_size(), mpi.COMM_WORLD.Get_rank()
    if (size, rank) != (ranks.world, ranks.rank):
        raise StartError(
            f"MPI sees rank {rank} of {size} where {ranks.launcher} started rank {ranks.rank} "
            f"of {ranks.world}: mpi4py is bound to another MPI than the launcher's",
            "install mpi4py for the launcher's MPI, or pass --backend gloo",
        )
    if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
        raise StartError("this MPI library cannot be called from threads", "pass --backend gloo")
    if size > 1:
        _end_all_with_one(mpi)
        waiting.pause_precisely()
    return mpi


def _end_all_with_one(mpi: Any) -> None:
    """A rank that an exception ends would wait for the others in MPI_Finalize, and they for it."""
    usual = sys.excepthook

    def abort_on_error(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        usual(kind, error, trace)
        sys.stdout.flush()
        sys.stderr.flush()
        if find_running() is not None:
            mpi.COMM_WORLD.Abort(1)

    sys.excepthook = abort_on_error


def _finish_at_exit() -> None:
    """mpi4py calls MPI_Finalize only where its import has called MPI_Init, and mpirun takes a rank
    that ends without it for a failed one.

    A rank that fails does end without it: MPI_Finalize would wait for the others, and they for it.
    """
    codes: list[Any] = []
    _note_exit_codes(codes.append)
    main = sys._current_frames()[threading.main_thread().ident or 0]
    while main.f_back is not None:
        main = main.f_back

    def finish_unless_failed() -> None:
        # A program that has caught a SystemExit and returned has not failed.
        last = opcode.opname[main.f_code.co_code[main.f_lasti]]
        if last.startswith("RETURN") or codes[-1:] in ([], [None], [0]):
            finish()

    atexit.register(finish_unless_failed)


def _note_exit_codes(note: Callable[[Any], None]) -> None:
    """Call `note` with the code of each sys.exit(), exit() and quit(), however it was imported.

    Exit handlers do not get the code, and `raise SystemExit(code)` itself cannot be noticed.
    """

    def note_code(function: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def leave(code: Any = None, /) -> NoReturn:
            note(code)
            function(code)

        return leave

    program = vars(sys.modules["__main__"])
    for module, name in ((sys, "exit"), (builtins, "exit"), (builtins, "quit")):
        usual = getattr(module, name, None)  # python -S has no exit() and quit()
        if usual is not None:
            leave = note_code(usual)
            setattr(module, name, leave)
            program.update({key: leave for key, value in program.items() if value is usual})


def finish() -> None:
    """MPI_Finalize, if MPI runs. Collective: only for ends that all ranks reach."""
    mpi = find_running()
    if mpi is not None:
        mpi.Finalize()


def find_running() -> Any | None:
    """`mpi4py.MPI` if it is loaded and between MPI_Init and MPI_Finalize."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    return mpi


def takes_device_pointers(vendor: str, env: Mapping[str, str] | None = None) -> bool:
    """Whether MPI can be given pointers to GPU memory. MPI has to be running.

    Asks Open MPI's and MPICH's extension `MPIX_Query_cuda_support` / `_rocm_support`, which is
    the run-time answer (https://docs.open-mpi.org/en/v5.0.x/tuning-apps/networking/cuda.html);
    the environment variable `TRAINLIB_MPI_DEVICE_BUFFERS` overrides it.

    Args:
        vendor: `nvidia` or `amd`.
    """
    env = os.environ if env is None else env
    if env.get(DEVICE_BUFFERS, "") in ("0", "1"):
        return env[DEVICE_BUFFERS] == "1"
    symbol = "MPIX_Query_rocm_support" if vendor == "amd" else "MPIX_Query_cuda_support"
    # The process itself first; mpi4py's wheels load the library privately, but under this name.
    for name in (None, "libmpi.so.40", "libmpi.so.12", "libmpi.so"):
        try:
            query = getattr(ctypes.CDLL(name), symbol)
        except (OSError, AttributeError):
            continue
        return bool(query())
    return False


_REMEMBERED = 256
"""Tensors; more tells of memory that is never the same."""

_TYPES = {
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "complex64": "C_FLOAT_COMPLEX",
    "complex128": "C_DOUBLE_COMPLEX",
    "uint8": "UINT8_T",
    "int8": "INT8_T",
    "int16": "INT16_T",
    "int32": "INT32_T",
    "int64": "INT64_T",
}
"""MPI's name of each type that torch and MPI can both add up."""

_WIDENED = ("float16", "bfloat16")
"""Types that MPI does not know, and whose sums would lose digits in them."""

_SMALL = 1 << 17
"""Bytes of an all-reduce whose time is that of waiting; above, it is that of moving data, which
goes on only while a rank polls."""


def _identify_machine() -> str:
    """The same for all ranks of one machine, in containers and namespaces with other names, too."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return socket.gethostname()


@dataclass
class Traffic:
    """All-reduces so far: how many, their bytes, and the time that this rank spent in them, which
    includes waiting for ranks that come later."""

    count: int = 0
    bytes: int = 0
    nanoseconds: int = 0

    def add(self, size: int, began: int) -> None:
        self.count += 1
        self.bytes += size
        self.nanoseconds += time.perf_counter_ns() - began

    def subtract(self, before: Traffic) -> Traffic:
        return Traffic(
            self.count - before.count,
            self.bytes - before.bytes,
            self.nanoseconds - before.nanoseconds,
        )


class Averager:
    """Replaces a tensor on every rank by its mean, or sum, over the ranks, in place.

    Args:
        mpi: The running `mpi4py.MPI`.
        device_pointers: Give MPI the addresses of GPU tensors instead of copying them to the host.
    """

    def __init__(self, mpi: Any, *, device_pointers: bool) -> None:
        self._mpi = mpi
        self._comm = mpi.COMM_WORLD
        self._world: int = mpi.COMM_WORLD.Get_size()
        self.device_pointers = device_pointers
        cores = self._comm.allgather((_identify_machine(), os.cpu_count() or 1))
        self._crowded = waiting.is_crowded(cores)
        # DDP hands over the same few buckets at every step, and malloc the same memory for large
        # gradients: what MPI wants to know about each is worked out once. An equal key means the
        # same bytes, whoever owns them now.
        self._messages: dict[tuple[int, int, torch.dtype], list[Any] | None] = {}
        self._staging: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._sums: dict[torch.dtype, Any] = {}
        self.traffic = Traffic()

    def reduce(self, tensor: torch.Tensor, *, average: bool = True) -> None:
        """All-reduce the contiguous `tensor` by sum, and divide it by the number of ranks.

        Raises:
            TypeError: MPI cannot add up tensors of this type.
        """
        if tensor.is_cuda:
            self._reduce_cuda(tensor, average)
            return
        key = (tensor.data_ptr(), tensor.numel(), tensor.dtype)
        try:
            message = self._messages[key]
        except KeyError:
            if len(self._messages) > _REMEMBERED:
                self._messages.clear()
            message = self._messages[key] = self._describe_buffer(tensor)
        if message is None:
            wide = tensor.float()
            self._reduce_all(self._describe_buffer(wide))
            tensor.copy_(wide.div_(self._world) if average else wide)
            return
        self._reduce_all(message)
        if average:
            tensor.div_(self._world)

    def reduce_compressed(self, tensor: torch.Tensor, half: torch.dtype) -> None:
        """The sum over the ranks, sent and added up in `half` precision (2 bytes a number)."""
        narrow = tensor.to(device="cpu", dtype=half)
        if half not in self._sums:
            self._sums[half] = self._mpi.Op.Create(_make_adder(half), commute=True)
        size = narrow.numel() * narrow.element_size()
        # MPI has no type for these numbers, but an operation of our own may take any of 2 bytes.
        memory = self._mpi.buffer.fromaddress(narrow.data_ptr(), size)
        message = [memory, narrow.numel(), self._mpi.SHORT]
        self._reduce_all(message, self._sums[half])
        tensor.copy_(narrow)

    def _reduce_all(self, message: Any, operation: Any = None) -> None:
        """Of host memory, by sum unless an `operation` is given."""
        operation = operation or self._mpi.SUM
        began = time.perf_counter_ns()
        if self._crowded and message[0].nbytes <= _SMALL:
            request = self._comm.Iallreduce(self._mpi.IN_PLACE, message, operation)
            waiting.wait(request.Test)
        else:
            self._comm.Allreduce(self._mpi.IN_PLACE, message, operation)
        self.traffic.add(message[0].nbytes, began)

    def _describe_buffer(self, tensor: torch.Tensor) -> list[Any] | None:
        """The tensor's memory as mpi4py wants it, None if it has to be widened before."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype in _WIDENED:
            return None
        name = _TYPES.get(dtype)
        if name is None:
            raise TypeError(f"MPI cannot add up tensors of type {dtype}; convert the tensor first")
        size = tensor.numel() * tensor.element_size()
        memory = self._mpi.buffer.fromaddress(tensor.data_ptr(), size)
        return [memory, tensor.numel(), getattr(self._mpi, name)]

    def _reduce_cuda(self, tensor: torch.Tensor, average: bool) -> None:
        import torch

        message = self._describe_buffer(tensor) if self.device_pointers else None
        if message is not None:
            # MPI knows nothing of streams: what fills the buffer must be done.
            torch.cuda.current_stream(tensor.device).synchronize()
            began = time.perf_counter_ns()
            self._comm.Allreduce(self._mpi.IN_PLACE, message)
            self.traffic.add(message[0].nbytes, began)
            if average:
                tensor.div_(self._world)
            return
        host = self._staging.get((tensor.numel(), tensor.dtype))
        if host is None:
            host = torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=True)
            self._staging[(tensor.numel(), tensor.dtype)] = host
        host.copy_(tensor.view(-1))
        self.reduce(host, average=average)
        tensor.view(-1).copy_(host)


def _make_adder(half: torch.dtype) -> Callable[[Any, Any, Any], None]:
    """What MPI calls to add one part of a message to another."""
    import torch

    def add(part: Any, total: Any, datatype: Any) -> None:
        both = (torch.frombuffer(memory, dtype=half) for memory in (part, total))
        own = next(both)
        next(both).add_(own)

    return add
