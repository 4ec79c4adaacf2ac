"""Ctrl-C where an exception in the middle of things would do harm.

A KeyboardInterrupt that is raised while the main thread holds one of the SSH library's locks leaves
that lock held, and the clean-up that follows waits for it for ever. So the first Ctrl-C is noted
and raised where we choose; a second one is raised at once.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Interrupts:
    """While the context is open, `check` raises the KeyboardInterrupt that came meanwhile.

    `patient`: any further Ctrl-C is noted too, for what has a time limit of its own and must not be
    left half done.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self._patient = patient
        self._seen = False
        self._ours = False

    def check(self) -> None:
        if self._seen:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        # Whoever started us in the background has SIGINT ignored, and means it.
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._note)
            self._ours = True
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if kind is None:
            self.check()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._seen and not self._patient:
            raise KeyboardInterrupt
        self._seen = True
