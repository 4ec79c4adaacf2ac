"""What providers of `up` have on the command line, known without loading one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class ProviderOptions(NamedTuple):
    """`--provider NAME` is its name in PROVIDER_OPTIONS."""

    title: str
    """Its name for people."""
    shares: frozenset[str] = frozenset()
    """The options of other providers that have an effect with it, too, as `--region`."""
    breakable: bool = False
    """`drill` can break its nodes: see `Breakable` in `clusterctl.providers.protocol`."""


PROVIDER_OPTIONS: dict[str, ProviderOptions] = {
    "local": ProviderOptions(title="local", breakable=True),
    "docker": ProviderOptions(title="Docker", breakable=True),
    "ec2": ProviderOptions(title="EC2", shares=frozenset({"--image"})),
}
"""The row that makes a provider known. By the same name, `providers` has NAME/provider.py with a
class NameProvider."""
BREAKABLE = tuple(name for name, row in PROVIDER_OPTIONS.items() if row.breakable)
"""Those whose clusters `drill` can make."""


def list_takers(owner: str, flag: str) -> list[str]:
    """The providers with which an option has an effect: its owner, and those that share it."""
    return [name for name, row in PROVIDER_OPTIONS.items() if name == owner or flag in row.shares]


def join_titles(names: Iterable[str]) -> str:
    """Those providers, for people."""
    return join_words([PROVIDER_OPTIONS[name].title for name in names], "and")


def join_words(words: Sequence[str], last: str) -> str:
    """`A, B and C`, where `last` is the word before the last one."""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))
