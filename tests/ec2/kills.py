"""SIGKILL at a seeded moment of each command, and what a person would do next.

A round is one cluster, from `up` to `down`. The seed says at which part of its usual time each
command is killed, and which command comes next: mostly the same, else another that fits. In the end
nothing may be left in the cloud, the receipt has to be what the cloud charges, and all records have
to be readable.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.ec2 import receipts
from tests.ec2.conftest import World, policy
from tests.sim.ec2.client import Ec2
from tests.sim.hub import Hub

UP = ("up", "--cpu", "t3.xlarge", "--workers", "1", "--runtime", "host", "--yes")
COMMANDS = {
    "up": UP,
    "grow": ("up", "--workers", "2", "--yes"),
    "shrink": ("up", "--workers", "1", "--yes"),
    "extend": ("extend", "--ttl", "9h", "--yes"),
    "stop": ("stop", "--yes"),
    "start": ("start", "--yes"),
    "down": ("down", "--discard", "--yes"),
}
"""What a round does, in this order."""

NEXT = {
    "up": ("up", "down"),
    "grow": ("grow", "shrink", "down"),
    "shrink": ("shrink", "grow", "down"),
    "extend": ("extend", "down"),
    "stop": ("stop", "start", "down"),
    "start": ("start", "down"),
    "down": ("down",),
}
"""What a person may do after a command was killed: six times of seven the first."""

SECONDS = {"up": 20.0, "grow": 14.0, "shrink": 9.0, "extend": 3.0, "stop": 4.0, "start": 14.0}
"""About as long each takes; measured anew with each that ends."""
USUAL = 10.0
LIMIT = 280.0


@dataclass
class Kill:
    """One command that was to be killed. `killed`: whether it still ran by then; `at`: seconds
    after its start; `wrong`: what was not as it has to be afterwards."""

    seed: int
    verb: str
    at: float
    killed: bool
    following: str
    wrong: list[str] = field(default_factory=list)


class Kills:
    """Rounds against one simulator, one after the other."""

    def __init__(self, ec2: Ec2, hub: Hub, folder: Path, initialised: Path) -> None:
        self._ec2, self._hub = ec2, hub
        self._folder, self._initialised = folder, initialised
        self._seconds = dict(SECONDS)

    def round(self, seed: int) -> list[Kill]:
        """The kills of one cluster. What is wrong in its end is noted with the last one."""
        chance = random.Random(seed)
        folder = self._folder / f"round-{seed}"
        folder.mkdir()
        self._ec2.reset()
        self._ec2.policy(policy())
        self._ec2.make_role()
        world = World(self._ec2, self._hub, folder, self._initialised)
        kills: list[Kill] = []
        try:
            kills.extend(self._commands(world, seed, chance))
            if kills[-1].following != "down":
                kills[-1].wrong += self._run(world, "down")
            kills[-1].wrong += check(world)
        except pytest.fail.Exception as hung:
            kills.append(Kill(seed, "a command", 0.0, False, "", [f"did not end: {hung}"]))
        finally:
            self._ec2.policy(None)
        return kills

    def _commands(self, world: World, seed: int, chance: random.Random) -> Iterator[Kill]:
        for verb in COMMANDS:
            at = chance.random() * self._seconds.get(verb, USUAL)
            others = NEXT[verb][1:]
            same = chance.random() < 6 / 7 or not others
            following = verb if same else chance.choice(others)
            killed = self._kill(world, verb, at)
            kill = Kill(seed, verb, round(at, 2), killed, following if killed else "")
            if killed:
                kill.wrong += self._run(world, following)
            yield kill
            if kill.following == "down" or kill.wrong:
                return

    def _kill(self, world: World, verb: str, at: float) -> bool:
        """Whether the command still ran then."""
        began = time.monotonic()
        process = world.start(*COMMANDS[verb])
        try:
            process.communicate(timeout=at)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            return process.returncode == -signal.SIGKILL
        self._seconds[verb] = time.monotonic() - began
        return False

    def _run(self, world: World, verb: str) -> list[str]:
        began = time.monotonic()
        done = world.run(*COMMANDS[verb], timeout=LIMIT)
        if done.code == 0:
            self._seconds[verb] = (self._seconds.get(verb, USUAL) + time.monotonic() - began) / 2
            return []
        return [f"`{verb}` failed with {done.code}: {done.err[-1500:]}"]


def check(world: World) -> list[str]:
    """What is not as it has to be when the cluster is down."""
    wrong = [f"left: {line}" for line in world.ec2.left()]
    wrong += [f"receipt: {line}" for line in receipts.differences(world.home, world.ec2.bill)]
    for words in (("list", "--json"), ("jobs", "--json"), ("cost", "--json")):
        done = world.run(*words)
        if done.code:
            wrong.append(f"`{words[0]}` failed with {done.code}: {done.err}")
    for path in sorted(world.home.rglob("*.json")):
        try:
            json.loads(path.read_bytes())
        except ValueError as error:
            wrong.append(f"unreadable: {path.relative_to(world.home)}: {error}")
    return wrong + [f"still on record: {path.name}" for path in world.home.glob("clusters/*")]
