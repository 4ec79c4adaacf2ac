"""What a machine is to the reconcile loop."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Order:
    """A machine that an instance of moto's asks for."""

    id: str
    name: str
    private: str
    public: str | None
    subnet: IPv4Network
    keys: tuple[str, ...]
    user_data: str
    docker: bool
    folder: Path
    files: str = ""
    """An archive of what its machine image was made with."""

    @property
    def hostname(self) -> str:
        return f"ip-{self.private.replace('.', '-')}"


class Machine(Protocol):
    """A machine that was started. None of these may wait for it."""

    order: Order

    @property
    def pid(self) -> int | None:
        """A process in its network, once that exists: a cable may then be plugged in."""

    def connected(self) -> None:
        """The cable is in: go on."""

    def restarted(self) -> None:
        """It was stopped, and its cable is in again."""

    @property
    def up(self) -> bool:
        """It has come so far that sshd listens."""

    def ended(self) -> str | None:
        """None while it runs, else `poweroff` or what went wrong."""

    def kill(self) -> None:
        """At once. Safe to repeat."""
