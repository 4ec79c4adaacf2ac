"""What the shell offers for a value: names on record, and files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

JOBS = ("job", "first", "second", "wanted")
"""Arguments that take the number of a job."""


def make_completer(key: str) -> Callable[[Any, list[str], str], list[str]]:
    """What Typer calls for the value of the option or argument with that key."""

    def offer(context: Any, words: list[str], begun: str) -> list[str]:
        return _offer(context, key, begun)

    return offer


def _offer(context: Any, key: str, begun: str) -> list[str]:
    """The words that begin as what was typed; none where the shell's own files will do."""
    from clusterctl.actions import completions

    verb = getattr(context.command, "path", "")
    found: list[str] = []
    if key == "cluster" or (key == "name" and not verb.startswith(("image", "data"))):
        found = completions.list_clusters()
    elif key in JOBS:
        found = completions.list_jobs() + (completions.list_clusters() if key == "wanted" else [])
    elif key == "node" or (verb, key) == ("forward", "target"):
        colon = ":" if verb == "forward" else ""
        found = [f"{name}{colon}" for name in completions.list_nodes(context.params.get("cluster"))]
    elif key == "names" and verb.startswith("data"):
        found = completions.list_data_sets() + (_list_files(begun) if verb == "data push" else [])
    elif key == "command" and verb in ("run", "launch") and not context.params.get("command"):
        found = completions.list_programs() + _list_files(begun)
    return [word for word in found if word.startswith(begun)]


def _list_files(begun: str) -> list[str]:
    """Files and folders here whose path begins so."""
    folder, _, name = begun.rpartition("/")
    base = Path(folder or ("/" if begun.startswith("/") else ".")).expanduser()
    try:
        with os.scandir(base) as entries:
            found = [(entry.name, entry.is_dir()) for entry in entries]
    except OSError:
        return []
    head = f"{folder}/" if "/" in begun else ""
    shown = (item for item in found if item[0].startswith(name) and (name or item[0][0] != "."))
    return sorted(f"{head}{entry}{'/' * is_folder}" for entry, is_folder in shown)
