"""Takes a local cluster down at its deadline: a process of this machine, tagged like the nodes.

What ends the cluster's processes ends it too: `down` leaves none behind, `up` starts it anew.
"""

from __future__ import annotations

import os
from pathlib import Path

from clusterctl import assets, process
from clusterctl.providers.local import processes
from clusterctl.providers.local.layout import REAPER, Site
from clusterctl.providers.shared import deadlines
from clusterctl.state.home import write_atomic

PATIENCE = 120.0
"""Seconds after the deadline in which a cluster is gone, as a rule: half of it is for saving."""


def set_deadline(site: Site, name: str, deadline: float, life: float = 0.0) -> None:
    """Sets the deadline, in seconds since the epoch, for a cluster that is to live `life` seconds,
    and sees to it that somebody minds it."""
    path = site.folder / "deadline"
    write_atomic(path, deadlines.render_file(deadline, life).encode())
    if is_running(site):
        return
    script = assets.render(
        "local/reaper.sh.j2",
        deadline=path,
        nodes=site.nodes,
        down=process.build_own_command("down", name, "--yes", "--discard"),
    )
    home = site.folder.parent.parent
    # A shell that is gone at once starts it: it is nobody's child, and no zombie when it ends.
    process.spawn(
        ["/bin/sh", "-c", '/bin/sh -c "$1" &', "reaper", script],
        log=locate_log(site),
        cwd=Path("/"),
        # Without settings, which are for what a person types, and may be wrong by then.
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("CLUSTERCTL_")},
            "CLUSTERCTL_NODE": site.make_tag(REAPER),
            "CLUSTERCTL_HOME": str(home),
            "XDG_CONFIG_HOME": str(site.folder),
        },
    ).wait()


def locate_log(site: Site) -> Path:
    return site.folder / "reaper.log"


def is_running(site: Site) -> bool:
    """Whether the process that waits for the deadline is there."""
    return any(found.node == REAPER for found in processes.scan(site))
