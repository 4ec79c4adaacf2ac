"""Names that would hide each other."""

from __future__ import annotations

from importlib import import_module

from clusterctl import cli
from clusterctl.options.verbs import VERBS


def test_no_module_of_a_verb_hides_the_function_that_runs_them() -> None:
    """Importing a module `cli.execute` would put it where the function of that name is."""
    for name in {verb.module for verb in VERBS.values()}:
        import_module(f"clusterctl.cli.{name}")
    assert callable(cli.execute)
