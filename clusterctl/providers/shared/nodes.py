"""What nodes are called, whoever makes them."""

from __future__ import annotations

from clusterctl.errors import UsageError

LAUNCHER = "launcher"


def name_nodes(workers: int, *, most: int, what: str) -> tuple[str, ...]:
    """The launcher and its workers, in the order of their addresses. UsageError where `what` cannot
    have so many."""
    if not 1 <= workers <= most:
        raise UsageError(
            f"{what} has 1 to {most} workers, not {workers}",
            hint="choose another number with --workers",
        )
    return (LAUNCHER, *(f"worker-{number}" for number in range(1, workers + 1)))


def name_span(workers: int) -> str:
    """For people: `worker-1 to worker-3`."""
    return "worker-1" if workers == 1 else f"worker-1 to worker-{workers}"
