"""Takes the waiting out of Terraform's AWS provider: before it looks at what it has made or removed
it waits five or ten seconds. In the simulator that is done in one, so a provider that stays looks
every half second: the constants are changed in its memory.

Go's own table of functions, `pclntab`, says where they are. In a build that is made otherwise
nothing is found and nothing changed: the tests take longer then.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path

WAITS = re.compile(rb"github\.com/hashicorp/terraform-provider-aws/internal/service/ec2\.wait\w+\0")
SLOW = re.compile(b"|".join(re.escape(struct.pack("<q", n * 10**9)) for n in (5, 10)))
QUICK = struct.pack("<q", 10**9 // 2)
"""As the code has these durations: in nanoseconds."""

SINCE_GO_1_20 = 0xFFFFFFF1


def find_waits(program: Path) -> list[int]:
    """The addresses of these seconds in the functions that wait."""
    with program.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        sections = _find_sections(image) if image[:5] == b"\x7fELF\x02" else {}
        return list(_search(image, **sections)) if {"text", "gopclntab"} <= sections.keys() else []


def _find_sections(image: mmap.mmap) -> dict[str, tuple[int, int, int]]:
    """Name → address, place in the file and size."""
    [headers] = struct.unpack_from("<Q", image, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", image, 0x3A)
    rows = [struct.unpack_from("<I12xQQQ", image, headers + size * n) for n in range(count)]
    begin = rows[of_names][2]
    names = [image[begin + row[0] : image.find(b"\0", begin + row[0])].decode() for row in rows]
    return {name.lstrip("."): row[1:] for name, row in zip(names, rows, strict=True)}


def _search(
    image: mmap.mmap, text: tuple[int, int, int], gopclntab: tuple[int, int, int], **_: object
) -> Iterator[int]:
    table = gopclntab[1]
    magic, count, entry, names, files, functions = struct.unpack_from(
        "<I4xQ8xQQQ16xQ", image, table
    )
    if magic != SINCE_GO_1_20:
        return
    waits = {
        found.start() - table - names
        for found in WAITS.finditer(image, table + names, table + files)
    }
    rows = struct.unpack_from(f"<{2 * count + 1}I", image, table + functions)
    shift = entry - text[0] + text[1]
    for begin, function, end in zip(rows[::2], rows[1::2], rows[2::2], strict=False):
        [name] = struct.unpack_from("<i", image, table + functions + function + 4)
        if name in waits:
            code = image[shift + begin : shift + end]
            yield from (entry + begin + found.start() for found in SLOW.finditer(code))


def hurry(pid: int, waits: list[int]) -> None:
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        for address in waits:
            memory.seek(address)
            memory.write(QUICK)
