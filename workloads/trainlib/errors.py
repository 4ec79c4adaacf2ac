"""Mistakes that end a program with one line and an exit code that a script can rely on."""

from __future__ import annotations

EXIT_USAGE = 2
EXIT_CANNOT_START = 6


class WorkloadError(Exception):
    """What is wrong and what to do about it, printed as one line `what; todo`.

    Args:
        what: The fact, with the file, host or rank that it is about.
        todo: The next step for the person.
        everywhere: Every rank raises the same error, so one of them is enough to print it.
    """

    code = 1

    def __init__(self, what: str, todo: str, *, everywhere: bool = False) -> None:
        super().__init__(f"{what}; {todo}")
        self.what = what
        self.todo = todo
        self.everywhere = everywhere
        self.said = False

    @property
    def line(self) -> str:
        """The message on exactly one line, whatever an operating system put into it."""
        return " ".join(f"{self.what}; {self.todo}".split())


class UsageError(WorkloadError):
    """An argument or a file of the person is wrong (exit 2)."""

    code = EXIT_USAGE


class StartError(WorkloadError):
    """The program cannot start here: no GPU, no such backend, no launcher (exit 6)."""

    code = EXIT_CANNOT_START


class PeerLost(WorkloadError):
    """A collective failed because another rank is gone; that rank has the message that matters."""


class Diverged(WorkloadError):
    """Loss or weights are no finite numbers any more, and no later step can mend that."""

    def __init__(self, epoch: int, todo: str, *, everywhere: bool = True) -> None:
        super().__init__(
            f"the training has diverged: after epoch {epoch} its numbers are not finite",
            todo,
            everywhere=everywhere,
        )


class Stopped(SystemExit):
    """All ranks agreed to stop because of a signal; the exit code is 128 + its number."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.signum = signum
