"""From where the launcher accepts SSH: what was said, else this machine's public address alone."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network

from clusterctl.errors import UsageError

WHO_AM_I = "https://checkip.amazonaws.com"
ANYBODY = "0.0.0.0/0"
LIMIT = 3.0
"""Seconds that asking for our address may take."""


def network(option: str, text: str) -> str:
    """An IPv4 network as AWS wants it: `203.0.113.7` is `203.0.113.7/32`. UsageError names the
    option."""
    try:
        return str(IPv4Network(text, strict=False))
    except ValueError as error:
        raise UsageError(
            f"{option} {text!r} is not a network: {error}", hint="for example 203.0.113.7/32"
        ) from error


def my_address() -> str:
    """This machine's public IPv4 address. OSError, ValueError."""
    with urllib.request.urlopen(WHO_AM_I, timeout=LIMIT) as answer:
        return str(IPv4Address(answer.read(100).decode().strip()))


def resolve(said: str, before: str, ask: Callable[[], str], tell: Callable[[str], None]) -> str:
    """`said` with --ssh-cidr, else what `ask` answers, else what it was `before`: "" for nothing.
    Raises UsageError where nobody knows."""
    if said:
        wanted = network("--ssh-cidr", said)
        if wanted == ANYBODY:
            tell(
                f"the launcher's SSH is open to the whole internet ({ANYBODY}); it takes keys only"
            )
        return wanted
    try:
        return f"{ask()}/32"
    except (OSError, ValueError) as error:
        if before:
            tell(f"{WHO_AM_I} does not answer; SSH stays open to {before}")
            return before
        raise UsageError(
            f"{WHO_AM_I} did not return this machine's public address: {error}",
            hint="give it: --ssh-cidr 203.0.113.7/32",
        ) from error
