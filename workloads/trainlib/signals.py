"""SIGTERM and Ctrl-C during training: finish the epoch, save, leave together."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from trainlib.errors import Stopped

#: Seconds between the signal and the end, if the end of the epoch is further away than that or
#: another rank is already gone and a collective waits for it.
GRACE_S = 5.0


class StopRequest(contextlib.AbstractContextManager["StopRequest"]):
    """Turns the first SIGTERM or SIGINT into a number to look at, `signum` (0 before).

    A second signal, or `GRACE_S`, ends the process at once with 128 + signum. Outside of the
    context signals do what they did before; leaving it without an error stops that clock. Leaving
    it by `Stopped` keeps both: the ranks agreed to end, and the signal that told another rank so
    may reach this one only now, when dying of it would leave the others alone in MPI_Finalize.
    """

    def __init__(self) -> None:
        self.signum = 0
        self._before: dict[int, Any] = {}
        self._timer: threading.Timer | None = None

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Stopped):
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._timer is not None and error is None:
            self._timer.cancel()

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum:
            os._exit(128 + signum)
        self.signum = signum
        # A thread: Python runs no signal handler while the main thread is inside a collective.
        self._timer = threading.Timer(GRACE_S, os._exit, (128 + signum,))
        self._timer.daemon = True
        self._timer.start()
