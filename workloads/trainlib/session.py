"""The ranks of a job as one group: meeting, agreeing, communicating, and ending together.

    with Session(discover()) as session:
        task = session.agree(lambda: load_task(...))      # a mistake on any rank ends all, once
        session.open("auto")
        model = session.data_parallel(model)

A backend may be left unopened by programs that bring their own communication.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import json
import os
import socket
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar, cast

# Of torch's C++ warnings none is for the person who starts a program ("the hostname of the client
# socket cannot be retrieved", retries of a connect that then works); read when torch is loaded.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch
import torch.distributed as dist

from trainlib import backends, collectives, ddp_hooks, mpi
from trainlib.errors import PeerLost, StartError, Stopped, UsageError, WorkloadError
from trainlib.lone_failure import abandon
from trainlib.program import end_start, print_error, print_line
from trainlib.ranks import Ranks
from trainlib.store import RankStore

T = TypeVar("T")

_ERRORS: dict[int, type[WorkloadError]] = {2: UsageError, 6: StartError}

_BUCKET_MB = 25
"""torch's own default, which it keeps to from the first bucket on if it is said."""


class Session(contextlib.AbstractContextManager["Session"]):
    """The group of all ranks; use it as a context manager, which also ends it.

    On the way out the process group is always destroyed (a process that ends without that may
    abort in one of gloo's threads). An error of one rank alone ends that process at once with a
    non-zero code: the launcher then stops the others, which may wait in a collective for ever.

    Args:
        over_mpi: Meet by MPI alone and never use torch.distributed; there is not a backend to open.

    Raises:
        StartError: The ranks do not find each other, or MPI is asked for and not to be had.
    """

    def __init__(self, ranks: Ranks, *, over_mpi: bool = False) -> None:
        end_start()
        self.ranks = ranks
        self.device = torch.device("cpu")
        self.backend = "none"
        self.description = "one rank, nothing to exchange"
        self.communicator: collectives.Communicator = collectives.Alone()
        self._averager: mpi.Averager | None = None
        self._wrappers: weakref.WeakSet[ddp_hooks.Parallel] = weakref.WeakSet()
        self._alone = ranks.world == 1
        self._store: RankStore | None = None
        self.mpi: Any = None
        """`mpi4py.MPI`, for programs that send messages themselves (see `over_mpi`)."""
        if over_mpi and not self._alone:
            self._meet_over_mpi()
        elif not self._alone:
            self._store = RankStore(ranks)

    def exchange(self, text: str) -> list[str]:
        """One text per rank, in the order of the ranks; works before a backend is open."""
        if self._store is not None:
            return self._store.exchange(text)
        if self.mpi is not None:
            texts: list[str] = self.mpi.COMM_WORLD.allgather(text)
            return texts
        return [text]

    def agree(self, action: Callable[[], T]) -> T:
        """Do something on every rank that may be a mistake on some of them.

        Raises:
            WorkloadError: On all ranks alike, printed once, if it failed on any.
        """
        result: list[T] = []
        problem = ""
        try:
            result.append(action())
        except WorkloadError as error:
            problem = json.dumps(
                {
                    "what": error.what,
                    "todo": error.todo,
                    "code": error.code,
                    "host": socket.gethostname(),
                }
            )
        problems = self.exchange(problem)
        failed = [rank for rank, text in enumerate(problems) if text]
        if not failed:
            return result[0]
        first = json.loads(problems[failed[0]])
        what = first["what"]
        if len(failed) < self.ranks.world:
            what = f"rank {failed[0]} on {first['host']}: {what}"
        agreed = _ERRORS.get(first["code"], WorkloadError)(what, first["todo"], everywhere=True)
        if self.ranks.rank == 0:
            print_error(agreed)
        # Rank 0 has printed when this returns: the launcher kills it when another rank ends.
        # It may be gone by then, and the store with it.
        with contextlib.suppress(PeerLost):
            self.exchange("said")
            if self._store is not None:
                self._store.leave_last()
        agreed.said = True
        raise agreed

    def on_rank0(self, action: Callable[[], bytes]) -> bytes:
        """What rank 0's `action` returns, on every rank.

        Raises:
            WorkloadError: On all ranks, if rank 0 raised one.
        """
        payload = self.agree(lambda: action() if self.ranks.rank == 0 else b"")
        return self.communicator.broadcast(payload)

    def use_gpus(self, *, allow_cpu: bool) -> None:
        """Put tensors on GPUs if every rank has one.

        Raises:
            StartError: A rank has none, and the CPU is not allowed instead.
        """
        count = self.agree(lambda: backends.count_gpus(allow_cpu))
        everyone = all(int(text) > 0 for text in self.exchange(str(count)))
        self.device = backends.pick_device(self.ranks, everyone)
        if self.mpi is not None:
            self._averager = self._make_mpi_averager(self.mpi, backends.name_vendor(self.device))

    def open(self, wanted: str = "auto") -> None:
        """Open the backend, after the device is known (see `backends.choose`).

        Raises:
            StartError: On all ranks, if it is not possible.
        """
        capability = backends.probe(self.ranks, wanted, self.device)
        name, passed_over = self._choose(wanted, capability)
        module = None
        if name == "mpi" and not self._alone and not capability.mpi_native:
            # MPI_Init waits for all ranks, so it is called only now that all of them can; what
            # it then sees may still be another world than the launcher's.
            try:
                module = mpi.start(self.ranks)
            except StartError as error:
                capability = replace(capability, mpi_problem=error.what)
            name, passed_over = self._choose(wanted, capability)
        self.backend = name
        if self._alone:
            return
        if passed_over and wanted == "auto" and name != "nccl" and self.ranks.rank == 0:
            print_line(f"Note: over {name}, which GPUs are slower with than NCCL: {passed_over}")
        if name == "mpi" and capability.mpi_native:
            self._open_native_mpi()
            return
        group = "nccl" if name == "nccl" else "gloo"
        # Its functions have the group of that moment as a default, and DDP imports it later: then
        # they would keep the group and its threads until the interpreter ends.
        importlib.import_module("torch.distributed.nn")
        try:
            dist.init_process_group(
                group,
                store=cast(RankStore, self._store).make_part("group"),
                rank=self.ranks.rank,
                world_size=self.ranks.world,
                device_id=self.device if name == "nccl" else None,
            )
        except RuntimeError as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            variable = f"{group.upper()}_SOCKET_IFNAME"
            raise StartError(
                f"{group} cannot connect the ranks ({reason})",
                f"set {variable} on each host to the interface that leads to the others (here it "
                f"is {os.environ.get(variable, 'not set')})",
            ) from error
        device = self.device if name == "nccl" else torch.device("cpu")
        self.communicator = collectives.OverTorch(device)
        self.description = "TCP"
        if name == "nccl":
            self.description = "RCCL" if capability.vendor == "amd" else "NCCL"
        if name == "mpi":
            self.communicator = collectives.OverMpi(module)
            self._averager = self._make_mpi_averager(module, capability.vendor)
            buffers = "device" if self._averager.device_pointers else "host"
            self.description = f"mpi4py hook, {buffers} buffers"

    def data_parallel(
        self,
        model: torch.nn.Module,
        *,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        hook: bool = True,
        compress: str = "none",
    ) -> torch.nn.Module:
        """The model in a DistributedDataParallel: backward() leaves mean gradients on all ranks.

        Parameters and buffers are rank 0's afterwards. Buffers are not sent at every step.

        Args:
            find_unused_parameters: DistributedDataParallel's own: for steps without some of the
                parameters.
            static_graph: The same.
            hook: False leaves the gradients to torch's process group even where MPI would carry
                them, to compare the two in one run.
            compress: `bf16` or `fp16`: gradients are divided by the number of ranks, rounded to
                that, added up in it, and widened again: half the bytes, fewer digits.
        """
        if self._alone:
            return ddp_hooks.Alone(model)
        # Renamed in torch 2.13; the old name warns there.
        names = inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters
        buffers = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
        options: dict[str, Any] = {
            buffers: False,
            "gradient_as_bucket_view": True,
            "find_unused_parameters": find_unused_parameters,
            "static_graph": static_graph,
        }
        if self.device.type == "cuda":
            options["device_ids"] = [self.device.index]
        averager = self._averager if hook else None
        if averager is not None:
            # The hook waits: a small first bucket, there for the sake of overlap, is one more wait.
            options["bucket_cap_mb"] = _BUCKET_MB
        wrapped = ddp_hooks.Parallel(model, **options)
        self._wrappers.add(wrapped)
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(compress)
        if averager is not None:
            state = ddp_hooks.OverMpi(averager, self.ranks.world, wrapped.uneven, half)
            wrapped.register_comm_hook(state, ddp_hooks.average_over_mpi)
        elif half is not None:
            wrapped.register_comm_hook(
                ddp_hooks.Compressed(half, wrapped.uneven), ddp_hooks.average_compressed
            )
        return wrapped

    @property
    def traffic(self) -> mpi.Traffic | None:
        """All-reduces of this rank so far, where each ends before the next line of the program:
        over MPI, and of one rank, which has none. None elsewhere: torch's group works while the
        program computes, and nobody can say which of the two a moment belongs to."""
        if self._averager is not None:
            return replace(self._averager.traffic)
        return mpi.Traffic() if self._alone else None

    def split_time(self, seconds: float, before: mpi.Traffic | None) -> dict[str, float]:
        """How the ranks have spent these seconds since `before`, on the mean, as metrics; {} where
        that is not known. All ranks have to call it.

        The rank that comes last to every all-reduce waits for nobody: its time there is what
        communication takes, and the rest of the others' time is waiting for it.
        """
        now = self.traffic
        if now is None or before is None:
            return {}
        mine = now.subtract(before)
        least = -self.communicator.maximum(-mine.nanoseconds) / 1e9
        total = self.communicator.sum([mine.nanoseconds / 1e9, seconds])
        spent, took = (value / self.ranks.world for value in total)
        return {
            "compute_seconds": took - spent,
            "communication_seconds": least,
            "waiting_seconds": spent - least,
            "allreduces": mine.count,
            "allreduce_bytes": mine.bytes,
        }

    def reduce(self, tensor: torch.Tensor, *, average: bool) -> None:
        """Replace the contiguous tensor on every rank by the sum over the ranks, or the mean."""
        if self._alone:
            return
        if self._averager is not None:
            self._averager.reduce(tensor, average=average)
            return
        # Only NCCL is at home on GPUs, and torch's MPI backend takes them where MPI does.
        carried = tensor if self.backend == "nccl" else tensor.cpu()
        dist.all_reduce(carried)
        if average:
            carried.div_(self.ranks.world)
        if carried is not tensor:
            tensor.copy_(carried)

    def average_buffers(self, model: torch.nn.Module) -> None:
        """Give all ranks the mean of what batch norm has seen on each of them."""
        buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        if self._alone or not buffers:
            return
        together = torch.cat([buffer.detach().flatten() for buffer in buffers])
        self.reduce(together, average=True)
        parts = together.split([buffer.numel() for buffer in buffers])
        for buffer, part in zip(buffers, parts, strict=True):
            buffer.copy_(part.view_as(buffer))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        together = error is None or isinstance(error, Stopped)
        if together or (isinstance(error, WorkloadError) and error.everywhere):
            if together:
                # Nobody leaves while others still send, and rank 0 holds the store.
                self.communicator.barrier()
            if dist.is_initialized():
                # A DDP wrapper would keep the group and its threads alive behind the back of
                # destroy_process_group until the interpreter ends: one that a variable of the
                # script holds, and one in a cycle of references.
                for wrapped in self._wrappers:
                    wrapped.leave_group()
                gc.collect()
                dist.destroy_process_group()
            mpi.finish()
        elif not self._alone:
            abandon(self.ranks, error)

    def _meet_over_mpi(self) -> None:
        try:
            self.mpi = mpi.start(self.ranks)
        except StartError as error:
            # What is missing is missing on all ranks, by the way they were started.
            todo = "start the program with mpirun or srun --mpi=pmix"
            raise StartError(error.what, todo, everywhere=True) from error
        self.backend, self.description = "mpi", "mpi4py"
        self.communicator = collectives.OverMpi(self.mpi)
        self._averager = self._make_mpi_averager(self.mpi, "")

    def _make_mpi_averager(self, module: Any, vendor: str) -> mpi.Averager:
        pointers = self.device.type == "cuda" and mpi.takes_device_pointers(vendor)
        return mpi.Averager(module, device_pointers=pointers)

    def _choose(self, wanted: str, own: backends.Capability) -> tuple[str, str]:
        """The backend, and why it is not NCCL."""
        texts = self.exchange(own.to_json())
        capabilities = [backends.Capability.from_json(text) for text in texts]
        name = self.agree(lambda: backends.choose(wanted, capabilities))
        return name, backends.explain_no_nccl(capabilities)

    def _open_native_mpi(self) -> None:
        # The rank and size that this backend takes are MPI's own; given ones are ignored.
        dist.init_process_group("mpi")
        found = (dist.get_rank(), dist.get_world_size())
        if found != (self.ranks.rank, self.ranks.world):
            raise StartError(
                f"torch's MPI sees rank {found[0]} of {found[1]} where {self.ranks.launcher} "
                f"started rank {self.ranks.rank} of {self.ranks.world}",
                "use the mpirun of the MPI that torch was built with, or pass --backend gloo",
            )
        self.communicator = collectives.OverTorch(torch.device("cpu"))
        self.description = "torch's own MPI"
