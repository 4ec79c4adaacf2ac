"""Providers of a test, in the table where real ones have their row."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.core.model import Cluster, Thing
from clusterctl.machines import providers
from clusterctl.machines.local.provider import LocalProvider
from clusterctl.machines.protocol import Cloud


def provide(monkeypatch: pytest.MonkeyPatch, name: str, provider: object) -> None:
    """Whoever asks for the provider of that name gets this one, until the test ends."""
    module = f"provided_{name}"
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(Provider=lambda: provider))
    monkeypatch.setitem(providers.PROVIDERS, name, f"{module}:Provider")


class NothingLeft(Cloud):
    """A provider whose machines are gone, and that knows nothing of them."""

    def list_things(self, cluster: Cluster, folder: Path) -> tuple[Thing, ...]:
        return ()


class Running(LocalProvider):
    """Its nodes run, whatever the processes of this machine are."""

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        return {node.name: "running" for node in cluster.nodes}
