"""What programs on nodes print for `verify`, read: nvidia-smi, rocm-smi, reduce_all.py. Pure."""

from __future__ import annotations

import json
import re
from contextlib import suppress

from clusterctl.insight.figures import Gpu, Reduction

_THROTTLED = {
    0x08: "hardware slowdown",
    0x20: "too hot",
    0x40: "too hot",
    0x80: "power brake",
}
"""Bits of clocks_throttle_reasons.active that are no ordinary work of the GPU:
https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html"""
GPU_FIELDS = (
    *("index", "name", "driver_version", "temperature.gpu", "clocks.sm", "clocks.max.sm"),
    *("pcie.link.width.current", "pcie.link.width.max"),
    *("ecc.errors.uncorrected.volatile.total", "clocks_throttle_reasons.active"),
    *("memory.used", "memory.total", "utilization.gpu"),
)
"""Asked of nvidia-smi, in this order."""


def read_nvidia_smi(text: str) -> tuple[Gpu, ...]:
    """The lines of `nvidia-smi --query-gpu=GPU_FIELDS --format=csv,noheader,nounits`."""
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) != len(GPU_FIELDS) or not words[0].isdecimal():
            continue
        given = dict(zip(GPU_FIELDS, words, strict=True))
        active = 0
        with suppress(ValueError):
            active = int(given["clocks_throttle_reasons.active"], 16)
        reasons = dict.fromkeys(text for bit, text in _THROTTLED.items() if active & bit)
        found.append(
            Gpu(
                index=int(given["index"]),
                name=given["name"],
                driver=given["driver_version"],
                temperature=_read_number(given["temperature.gpu"]),
                width=_read_number(given["pcie.link.width.current"]),
                width_most=_read_number(given["pcie.link.width.max"]),
                errors=_read_number(given["ecc.errors.uncorrected.volatile.total"]),
                throttled=", ".join(reasons),
                memory_used=_read_number(given["memory.used"]),
                utilization=_read_number(given["utilization.gpu"]),
            )
        )
    return tuple(found)


def read_rocm_smi(text: str) -> tuple[Gpu, ...]:
    """What `rocm-smi --showproductname --showtemp --showuse --showdriverversion --json` prints."""
    try:
        read = json.loads(text[text.index("{") :])
    except (ValueError, RecursionError):
        return ()
    cards = {name: card for name, card in read.items() if isinstance(card, dict)}
    driver = str(cards.get("system", {}).get("Driver version", ""))
    found = []
    for name, card in sorted(cards.items()):
        if not (match := re.fullmatch(r"card(\d+)", name)):
            continue
        lower = {key.lower(): str(value) for key, value in card.items()}
        series = next((value for key, value in lower.items() if "card series" in key), "AMD GPU")
        hottest = [
            degrees
            for key, value in lower.items()
            if "temperature" in key and (degrees := _read_number(value)) is not None
        ]
        found.append(
            Gpu(
                index=int(match[1]),
                name=series,
                driver=driver,
                temperature=max(hottest, default=None),
                utilization=_read_number(lower.get("gpu use (%)", "")),
            )
        )
    return tuple(found)


def _read_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # `[N/A]`
        return None


def read_reduction(backend: str, text: str) -> Reduction:
    """The table that reduce_all.py prints: bytes, µs, algorithm and bus bandwidth in GB/s."""
    rows = [line.split() for line in text.splitlines()]
    table = [row for row in rows if len(row) == 4 and None not in map(_read_number, row)]
    ranks = re.search(r"^ok: (\d+) ranks", text, re.MULTILINE)
    if not table or not ranks:
        said = [line for line in text.splitlines() if line.strip()]
        return Reduction(backend, error=said[-1] if said else "no rank printed anything")
    latency, rate = float(table[0][1]) / 1e6, float(table[-1][3]) * 1e9
    return Reduction(backend, int(ranks[1]), latency, rate)
