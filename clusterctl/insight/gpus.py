"""What the GPUs of a node do at a moment, as `templates/insight/gpus.sh.j2` prints it. Pure."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class GpuLook:
    """`used`: part of its time, 0 to 1; None where it does not say. Memory in bytes. `jobs`: those
    that have processes on it, as far as NVIDIA's driver says so."""

    index: int
    used: float | None
    memory: int
    total: int
    jobs: tuple[int, ...] = ()


def read(text: str, cluster: str = "") -> tuple[GpuLook, ...]:
    """Lines that mean nothing, such as a login shell's, are left out. Of jobs, those of the cluster
    with that id are read."""
    found: dict[str, GpuLook] = {}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        with suppress(ValueError, RecursionError):
            if word == "gpu":
                name, gpu = _read_nvidia(rest)
                found[name] = gpu
            elif word == "rocm":
                found = {str(gpu.index): gpu for gpu in _read_rocm(rest)}
            elif word == "app":
                name, _, tag = rest.partition(" ")
                id, _, number = tag.partition("/")
                if name in found and id == cluster:
                    jobs = {*found[name].jobs, int(number.rstrip(";"))}
                    found[name] = replace(found[name], jobs=tuple(sorted(jobs)))
    return tuple(sorted(found.values(), key=lambda gpu: gpu.index))


def _read_nvidia(text: str) -> tuple[str, GpuLook]:
    """`0, 97, 10240, 15360, GPU-1a2b`: per cent and MiB; a GPU may say `[N/A]`."""
    index, used, memory, total, *name = (word.strip() for word in text.split(","))
    part = float(used) / 100 if used.isdecimal() else None
    gpu = GpuLook(int(index), part, int(memory) << 20, int(total) << 20)
    return name[0] if name else index, gpu


def _read_rocm(text: str) -> tuple[GpuLook, ...]:
    """What `rocm-smi --showuse --showmeminfo vram --json` prints."""
    found = []
    for name, card in json.loads(text[text.index("{") :]).items():
        if isinstance(card, dict) and (match := re.fullmatch(r"card(\d+)", name)):
            lower = {key.lower(): str(value) for key, value in card.items()}
            used = lower.get("gpu use (%)", "")
            memory = int(lower.get("vram total used memory (b)", 0))
            total = int(lower.get("vram total memory (b)", 0))
            part = float(used) / 100 if used.isdecimal() else None
            found.append(GpuLook(int(match[1]), part, memory, total))
    return tuple(found)
