"""Nodes that a follower has lost its connection to, and the attempts to reach them again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from clusterctl.errors import ClusterctlError
from clusterctl.timeouts import now, run_in_background
from clusterctl.transport import Channel
from clusterctl.transport.diagnosis import FAILURES, describe_failure

ATTEMPT, PAUSE = 30.0, 3.0
"""Seconds that an attempt to connect may take, and those between its end and the next one."""
LOOK = 30.0
"""Seconds between questions to whoever has made the machines."""

FindDead = Callable[[], Mapping[str, str]]
"""Nodes whose machines are known not to run, and why: no wait brings them back. May take long;
raises ClusterctlError or OSError where that is not told."""


@dataclass(slots=True)
class _Absence:
    why: str
    """What the last attempt has shown."""
    since: float = field(default_factory=now)
    due: float = field(default_factory=now)
    attempt: Future[Channel] | None = None


class Absences:
    """The nodes that are away. Attempts to connect run in the background, one per node, until a
    node has answered: nothing here waits. `connect` raises FAILURES, within ATTEMPT seconds.
    """

    def __init__(self, connect: Callable[[str], Channel], find_dead: FindDead | None) -> None:
        self._connect = connect
        self._find_dead = find_dead
        self._away: dict[str, _Absence] = {}
        self._question: Future[Mapping[str, str]] | None = None
        self._asked = 0.0

    def __contains__(self, name: str) -> bool:
        return name in self._away

    def add(self, name: str, why: str) -> None:
        self._away[name] = _Absence(why)

    def explain(self, name: str) -> str:
        return self._away[name].why

    def count_seconds(self, name: str) -> float:
        """For how long it has been away."""
        return now() - self._away[name].since

    def take(self) -> dict[str, tuple[Channel, float]]:
        """Those that answer again, each with its channel and the seconds that it was away. They
        are away no more. Begins the attempts that are due."""
        found = {}
        for name, item in list(self._away.items()):
            if item.attempt is None:
                if now() >= item.due:
                    item.attempt = run_in_background(partial(self._connect, name))
            elif item.attempt.done():
                try:
                    found[name] = item.attempt.result(), self.count_seconds(name)
                    del self._away[name]
                except FAILURES as error:
                    item.why = describe_failure(error, ATTEMPT) or item.why
                    item.attempt, item.due = None, now() + PAUSE
        return found

    def ask(self, names: Collection[str]) -> dict[str, str]:
        """Those of `names` whose machines do not run, as far as that is known by now, and why."""
        if self._find_dead is None:
            return {}
        if self._question is None:
            if self._asked and now() - self._asked < LOOK:
                return {}
            self._question, self._asked = run_in_background(self._find_dead), now()
        if not self._question.done():
            return {}
        question, self._question = self._question, None
        with suppress(ClusterctlError, OSError):
            return {name: why for name, why in question.result().items() if name in names}
        return {}

    @property
    def asking(self) -> bool:
        return self._question is not None

    def close(self) -> None:
        """Attempts that succeed from now on are for nobody."""
        for item in self._away.values():
            if item.attempt:
                item.attempt.add_done_callback(_drop)
        self._away.clear()


def _drop(attempt: Future[Channel]) -> None:
    if attempt.exception() is None:
        attempt.result().close()
