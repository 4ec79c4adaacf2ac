"""The end of a rank that fails alone, while the others may wait for it in a collective for ever."""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from typing import NoReturn

import torch.distributed as dist

from trainlib import mpi
from trainlib.errors import PeerLost, WorkloadError
from trainlib.program import print_error
from trainlib.ranks import Ranks

#: Seconds that a rank waits before it reports the loss of another one, which by then has printed
#: the true cause and is the first that the launcher sees failing.
_CULPRIT_FIRST_S = 2.0

# How gloo, NCCL and MPI put it that the other side has gone away.
_PEER_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
    "MPI_ERR_PROC_FAILED",
)


def abandon(ranks: Ranks, error: BaseException | None) -> NoReturn:
    """Report this rank's own failure and end the process, without waiting for any other."""
    place = f"rank {ranks.rank} on {socket.gethostname()}"
    code = 1
    if isinstance(error, RuntimeError) and any(text in str(error) for text in _PEER_LOST):
        error = PeerLost(f"{place} lost another rank", "look for that rank's own message")
    if isinstance(error, PeerLost):
        time.sleep(_CULPRIT_FIRST_S)
    if isinstance(error, WorkloadError):
        code = error.code
        error.what = error.what if place in error.what else f"{place}: {error.what}"
        print_error(error)
    elif isinstance(error, KeyboardInterrupt):
        code = 130
    elif isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
    elif error is not None:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    if dist.is_initialized() and dist.get_backend() == "gloo":
        dist.destroy_process_group()
    module = mpi.find_running()
    if module is not None and ranks.launcher == "srun":
        # srun stops the others only if it is told; mpirun sees the exit code, and an
        # MPI_Abort would hide it behind a signal.
        module.COMM_WORLD.Abort(code)
    # No exit handlers: MPI_Finalize would wait for ranks that wait for this one, and NCCL's
    # destructors for collectives that will never end.
    os._exit(code)
