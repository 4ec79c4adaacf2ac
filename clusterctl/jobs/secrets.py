"""How secrets get to the nodes of a job: in the file `env` of its folder there, which nobody else
may read. Where we run the jobs it is a link into memory. They are in no command and no record.

`user_variables` says which of a user's variables are secrets, `redaction` keeps them out of what is
shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote

from clusterctl import assets
from clusterctl.model import MEMORY

FILE = "env"
"""Holds all that a rank finds in its environment."""
MODE = 0o600
LINGER = "/var/lib/systemd/linger"
"""Has a file for every user whose processes and memory outlive their last session."""


def render_environment(variables: Mapping[str, str], secrets: Mapping[str, str]) -> str:
    """The file, as sh. A PATH that ends with the node's own goes before that."""
    rows = {**variables, **secrets}
    path = ""
    if rows.get("PATH", "").endswith(":$PATH"):
        path = rows.pop("PATH").removesuffix(":$PATH")
    return assets.render("job/env.j2", variables=sorted(rows.items()), path=path)


def keep_in_memory(data: bytes, name: str) -> str:
    """The sh that takes the file from the beginning of its stdin. `name`: the job's on the node."""
    return assets.render(
        "job/secrets.sh.j2", size=len(data), name=name, memory=MEMORY, linger=LINGER
    )


def remove(folder: str) -> str:
    """The sh that removes the file of a job which will not start, wherever it is kept."""
    path = quote(f"{folder}/{FILE}")
    return f'rm -f "$(readlink {path})" {path}'
