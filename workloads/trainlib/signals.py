"""SIGTERM and Ctrl-C during training: finish the epoch, save, leave together."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from trainlib.errors import Stopped

#: Seconds between the signal and the end, if the end of the epoch is further away than that or
#: another rank is already gone and a collective waits for it: as long as the job gives its ranks.
GRACE_S = float(os.environ.get("CLUSTERCTL_GRACE") or 5)

#: Seconds in which a repeated signal is the same one: launchers pass on what the terminal has sent
#: to their ranks as well.
ECHO_S = 0.2


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
        self._wake_before = -1

    def __enter__(self) -> StopRequest:
        # Signals come through a socket, for a thread: Python runs no handler while the main thread
        # is inside of a collective, or waits for a GPU.
        self._far, self._near = socket.socketpair()
        self._near.setblocking(False)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        self._wake_before = signal.set_wakeup_fd(self._near.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, daemon=True).start()
        os.register_at_fork(after_in_child=self._leave_to_parent)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Stopped):
            return
        signal.set_wakeup_fd(self._wake_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if error is None:
            self._near.close()

    def _leave_to_parent(self) -> None:
        """A forked child has the same socket, and what ends it is no signal to us."""
        if self._near.fileno() >= 0:
            signal.set_wakeup_fd(-1)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.signum = self.signum or signum

    def _watch(self) -> None:
        signum = self._await_next()
        if not signum:
            return
        self.signum = signum
        begun = time.monotonic()
        while (left := begun + GRACE_S - time.monotonic()) > 0:
            self._far.settimeout(left)
            try:
                again = self._await_next()
            except TimeoutError:
                break
            if not again:
                return
            if time.monotonic() > begun + ECHO_S:
                signum = again
                break
        os._exit(128 + signum)

    def _await_next(self) -> int:
        """The next signal that is ours; 0 when the context was left."""
        while said := self._far.recv(1):
            if said[0] in self._before:
                return said[0]
        return 0
