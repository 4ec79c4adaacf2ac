"""`run --interactive`: a shell or a command of a batch system that takes over the terminal."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from clusterctl import process
from clusterctl.actions import require_ready
from clusterctl.actions.access import start_ssh
from clusterctl.job_model import JobSpec
from clusterctl.jobs import systems
from clusterctl.model import Cluster
from clusterctl.state import Store


@dataclass(frozen=True, slots=True)
class Terminal:
    """A command that takes over this terminal, and the folder that it starts in."""

    argv: tuple[str, ...]
    folder: Path

    @property
    def text(self) -> str:
        """The same for a shell."""
        return f"cd {shlex.quote(str(self.folder))} && {shlex.join(self.argv)}"

    def open(self) -> int:
        """Hands the terminal over; returns the command's exit code."""
        return process.run_in_foreground(self.argv, cwd=self.folder)


def plan_terminal(store: Store, cluster: Cluster, spec: JobSpec, words: list[str]) -> Terminal:
    """A shell, or `words`, on nodes that the batch system gives for it. Nothing is staged and
    nothing recorded."""
    argv = systems.load(require_ready(cluster)).make_interactive_argv(spec, words)
    if cluster.launcher.here:
        return Terminal(argv, Path.cwd())
    argv = (*start_ssh(cluster, cluster.launcher, "-t"), shlex.join(argv))
    return Terminal(argv, store.locate_folder(cluster.name) / "ssh")
