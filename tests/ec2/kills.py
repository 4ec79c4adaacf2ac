"""SIGKILL at a seeded moment of each command, and what a person would do next.

A round is one cluster, from `up` to `down`. The seed says what kind of cluster it is, at which part
of its usual time each command is killed, and which command comes next: mostly the same, else
another that fits. In the end nothing may be left in the cloud, the receipt has to be what the cloud
charges, and all records have to be readable.

The machines of a large cluster, whose launches EC2 rations, exist as records of EC2 only and never
boot: each of its commands is killed, and the next one comes at once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.ec2 import receipts
from tests.ec2.conftest import World, policy
from tests.sim.ec2.client import Ec2
from tests.sim.hub import Hub

COMMANDS = {
    "up": ("up", "--cpu", "t3.xlarge", "--workers", "1", "--runtime", "host", "--yes"),
    "grow": ("up", "--workers", "2", "--yes"),
    "shrink": ("up", "--workers", "1", "--yes"),
    "extend": ("extend", "--ttl", "9h", "--yes"),
    "stop": ("stop", "--yes"),
    "start": ("start", "--yes"),
    "down": ("down", "--discard", "--yes"),
}
"""What a round does, in this order: `up`, the others (several times, if that is wanted), `down`."""

KINDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "small": {},
    "private": {"up": (*COMMANDS["up"], "--private")},
    "large": {
        "up": ("up", "--cpu", "t3.xlarge:25", "--runtime", "host", "--yes"),
        "up again": ("up", "--cpu", "t3.xlarge:25", "--runtime", "host", "--yes"),
        "grow": ("up", "--cpu", "t3.xlarge:55", "--runtime", "host", "--yes"),
        "down": COMMANDS["down"],
    },
}
"""What the commands of a kind of cluster are instead. Those of a large one are all that it has."""

SHARES = ("small", "large", "private", "large")
"""A round is one of these, by its seed."""

LARGE_SECONDS = {"up": 45.0, "up again": 40.0, "grow": 45.0, "down": 20.0}
"""Until all machines of a large cluster run, or have ended."""
LATE = 3.0
"""Seconds until EC2 shows what is new, in every other round with a large cluster."""

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

SECONDS = {"up": 12.0, "grow": 7.0, "shrink": 5.0, "extend": 0.8, "stop": 0.8, "start": 4.8}
"""About as long each takes; measured anew with each that ends."""
USUAL = 10.0
LIMIT = 280.0


@dataclass
class Kill:
    """One command that was to be killed. `kind`: of the cluster; `killed`: whether it still ran by
    then; `at`: seconds after its start; `wrong`: what was not as it has to be afterwards."""

    seed: int
    kind: str
    verb: str
    at: float
    killed: bool
    following: str
    wrong: list[str] = field(default_factory=list)


class Kills:
    """Rounds against one simulator, one after the other. `slow_gateways`: for so many seconds new
    NAT gateways of private clusters are `pending`."""

    def __init__(
        self,
        ec2: Ec2,
        hub: Hub,
        folder: Path,
        initialised: Path,
        slow_gateways: float = 0.0,
    ) -> None:
        self._slow_gateways = slow_gateways
        self._ec2, self._hub = ec2, hub
        self._folder, self._initialised = folder, initialised
        self._seconds = dict(SECONDS)

    def round(self, seed: int, repeat: int = 1) -> list[Kill]:
        """The kills of one cluster; `repeat`: how often it does what is between `up` and `down`,
        unless it is large. What is wrong in its end is noted with the last one."""
        kind = SHARES[seed % len(SHARES)]
        chance = random.Random(seed)
        folder = self._folder / f"round-{seed}"
        folder.mkdir()
        self._ec2.reset()
        self._ec2.grant_cpus()
        self._ec2.policy(policy())
        self._ec2.make_role()
        world = World(self._ec2, self._hub, folder, self._initialised)
        kills: list[Kill] = []
        try:
            if kind == "large":
                kills.extend(self._large(world, seed, chance))
            else:
                if kind == "private" and self._slow_gateways:
                    self._ec2.fault("slow_gateway", seconds=self._slow_gateways)
                kills.extend(self._small(world, seed, kind, chance, repeat))
            if kills[-1].following != "down":
                kills[-1].wrong += self._run(world, "down", kind)
            kills[-1].wrong += check(world)
        except pytest.fail.Exception as hung:
            kills.append(Kill(seed, kind, "a command", 0.0, False, "", [f"did not end: {hung}"]))
        finally:
            self._ec2.policy(None)
            self._ec2.clear()
        return kills

    def _small(
        self, world: World, seed: int, kind: str, chance: random.Random, repeat: int
    ) -> Iterator[Kill]:
        first, *between, last = COMMANDS
        for verb in (first, *between * repeat, last):
            at = chance.random() * self._seconds.get(verb, USUAL)
            others = NEXT[verb][1:]
            same = chance.random() < 6 / 7 or not others
            following = verb if same else chance.choice(others)
            killed = self._kill(world, verb, self._words(verb, kind), at)
            kill = Kill(seed, kind, verb, round(at, 2), killed, following if killed else "")
            if killed:
                kill.wrong += self._run(world, following, kind)
            yield kill
            if kill.following == "down" or kill.wrong:
                return

    def _large(self, world: World, seed: int, chance: random.Random) -> Iterator[Kill]:
        self._ec2.refill()
        self._ec2.fault("never_boot")
        if chance.random() < 0.5:
            self._ec2.fault("late", seconds=LATE)
        verbs, kind = list(LARGE_SECONDS), "large"
        for verb, following in zip(verbs, (*verbs[1:], "down"), strict=True):
            at = chance.random() * LARGE_SECONDS[verb]
            killed = self._kill(world, verb, self._words(verb, kind), at)
            kill = Kill(seed, kind, verb, round(at, 2), killed, following)
            if verb == following:
                kill.wrong += self._run(world, following, kind)
            yield kill

    @staticmethod
    def _words(verb: str, kind: str) -> Sequence[str]:
        return KINDS[kind].get(verb) or COMMANDS[verb]

    def _kill(self, world: World, verb: str, words: Sequence[str], at: float) -> bool:
        """Whether the command still ran then."""
        began = time.monotonic()
        process = world.start(*words)
        try:
            process.communicate(timeout=at)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            return process.returncode == -signal.SIGKILL
        self._seconds[verb] = time.monotonic() - began
        return False

    def _run(self, world: World, verb: str, kind: str) -> list[str]:
        began = time.monotonic()
        done = world.run(*self._words(verb, kind), timeout=LIMIT)
        if done.code == 0:
            if kind != "large":
                usual = self._seconds.get(verb, USUAL)
                self._seconds[verb] = (usual + time.monotonic() - began) / 2
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
