"""What simulated batch systems have in common: hosts of ours, the first of them to log in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tests.conftest import require
from tests.sim.machines import Machine, Machines

NODES = ("c1", "c2")


@dataclass
class Batch(ABC):
    """`login` runs the controller and takes jobs, `c1` and `c2` run them."""

    machines: Machines
    folder: Path
    programs: ClassVar[tuple[str, ...]]

    @property
    def login(self) -> Machine:
        return self.machines.hosts["login"]

    @classmethod
    def start(cls, folder: Path) -> Batch:
        for program in cls.programs:
            require(program)
        machines = Machines(folder)
        system = cls(machines, folder)
        try:
            system._start()
        except BaseException:
            machines.stop()
            raise
        return system

    @abstractmethod
    def _start(self) -> None: ...

    def stop(self) -> None:
        self.machines.stop()
