"""Providers of a test, in the table where real ones have their row."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from clusterctl import providers


def provide(monkeypatch: pytest.MonkeyPatch, name: str, provider: object) -> None:
    """Whoever asks for the provider of that name gets this one, until the test ends."""
    module = f"provided_{name}"
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(Provider=lambda: provider))
    monkeypatch.setitem(providers.PROVIDERS, name, f"{module}:Provider")
