"""Finds the files that travel with clusterctl, in a checkout and in an installed wheel alike."""

from __future__ import annotations

import base64
import io
import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from clusterctl.core import variables
from clusterctl.core.text import decode_table

T = TypeVar("T")

_PACKAGE = Path(__file__).resolve().parents[1]


@cache
def find_folder(name: str) -> Path:
    """The folder `templates`, `workloads`, `infra` or `docker`.

    A wheel carries them inside the package; a checkout has them beside it.
    """
    inside = _PACKAGE / "_assets" / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def load_table(name: str, kind: type[T]) -> T:
    """A table of ours, the file clusterctl/NAME (TOML), as a value of that type, which its rows
    have to fit."""
    return decode_table(_PACKAGE / name, kind)


@cache
def _make_environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(find_folder("templates")),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # shell scripts and configuration files, never HTML
    )
    environment.filters["q"] = lambda value: shlex.quote(str(value))
    environment.filters["dq"] = lambda value: re.sub(r'(["$`\\])', r"\\\1", str(value))
    environment.globals["unset"] = variables.write_unset
    environment.globals["exports"] = variables.write_exports
    environment.globals["unseen"] = variables.write_unseen
    return environment


def render(template: str, **values: object) -> str:
    """Renders `templates/<template>`; an undefined name is an error.

    Filters: `q` quotes a word for sh, `dq` makes text safe between double quotes there.
    `unset(PROGRAM)` is a line of sh that removes the variables which would change what it does.
    What every `run` needs is no template: a fifth of its own time would go into loading jinja2.
    """
    text: str = _make_environment().get_template(template).render(**values)
    return text


# -------------------------------------------------------------------------------------------------
# The agent: what runs on nodes, in a Python of theirs.


PYTHONS = (
    '"$(command -v python3)" /usr/bin/python3 /usr/libexec/platform-python'
    ' "${CONDA_PREFIX:-/opt/conda}/bin/python3" ~/miniforge3/bin/python3'
    " ~/miniconda3/bin/python3 ~/anaconda3/bin/python3"
)
"""Where a node's Python is looked for, as words of sh."""


_MAIN = b"""\
import os, sys

folder = os.path.dirname(__file__)
sys.path.insert(0, folder)
# On a full disk Python would keep a part of a file of bytecode, and fail with it from then on.
room = os.statvfs(folder)
sys.dont_write_bytecode = room.f_bavail * room.f_frsize < 4000000
from agent.verbs import main

main(sys.argv[1:])
"""


@cache
def _read_agent() -> tuple[str, dict[str, bytes]]:
    """The files of clusterctl/agent, for a folder of which Python runs `__main__.py`, which is
    quicker than the folder; their digest before them."""
    import hashlib

    texts = {"__main__.py": _MAIN}
    for path in sorted((_PACKAGE / "agent").glob("*.py")):
        texts[f"agent/{path.name}"] = path.read_bytes()
    for path in sorted((find_folder("templates") / "job").glob("*.sh")):
        texts[path.name] = path.read_bytes()
    folder = find_folder("templates") / "bootstrap"
    texts["run"] = (folder / "run.sh").read_bytes()
    script = (folder / "place-agent.sh.j2").read_bytes()
    return hashlib.sha256(repr([texts, script]).encode()).hexdigest()[:16], texts


def pack(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """An archive of files, by path, each with its mode, for `tar -xz`. A folder's ends with `/`."""
    import tarfile

    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", compresslevel=6) as archive:
        for name, (data, mode) in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


@cache
def pack_agent() -> tuple[str, bytes]:
    """The agent as an archive for `tar -z`, and its digest before it."""
    digest, texts = _read_agent()
    return digest, pack({name: (text, 0o600) for name, text in texts.items()})


def locate_agent(root: str) -> str:
    """What `/bin/sh` is to run on a node for the agent."""
    return f"{root}/agent/{_read_agent()[0]}/run"


@cache
def render_agent(*pythons: str, tried: bool = False) -> str:
    """The sh that puts the agent into a node's root, the folder that it runs in. `pythons`: those
    to try first, of which the first that is there will do if they are `tried`."""
    digest, packed = pack_agent()
    words = {"digest": digest, "packed": base64.encodebytes(packed).decode(), "usual": PYTHONS}
    return render("bootstrap/place-agent.sh.j2", pythons=pythons, tried=tried, **words)
