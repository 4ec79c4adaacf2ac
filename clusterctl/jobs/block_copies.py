"""Copies here of large files of which an older copy is here: only the blocks that have changed come
(templates/job/blocks.sh.j2)."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl import assets, unpack
from clusterctl.errors import ClusterctlError
from clusterctl.jobs import archives
from clusterctl.model import NodeResult
from clusterctl.transport import Transport

LEAST = 1 << 20
"""Bytes of a file that is copied by its blocks, at least."""
BLOCK, MOST = 1 << 18, 512
"""Bytes of a block, at least, and how many of them a file has, at most: each costs its node the
start of a program."""
DIGITS = 32
"""Hexadecimal digits of SHA-256 that tell two blocks apart."""
REMOVE_TIMEOUT = 60.0

LinkFiles = Callable[[Sequence[str]], NodeResult]
"""Makes the folder of links to these files on the node."""


@dataclass(frozen=True, slots=True)
class Sums:
    """The checksums of a file's blocks of `block` bytes, in order."""

    block: int
    size: int
    blocks: tuple[str, ...]


def render_script(reserve: int) -> str:
    """What a node needs for it. `reserve`: KiB that it leaves free on its disk."""
    return assets.render(
        "job/blocks.sh.j2", least=LEAST, block=BLOCK, most=MOST, digits=DIGITS, reserve=reserve
    )


def get(
    transport: Transport,
    link: LinkFiles,
    links: str,
    paths: Sequence[str],
    *,
    script: str,
    old: Path,
    target: Path,
    timeout: float,
) -> NodeResult:
    """Copies files of a node into the folder `target`, as `Transport.get` does with `partly`:
    `link` makes the folder `links` there of them. `old`: where older copies of them may be here;
    `script`: the path of blocks.sh there, which jobs of older versions lack."""
    linked = link(paths)
    if not linked.ok:
        return linked
    offered = _sum_large(old, paths)
    work = f"{links}.blocks"
    try:
        if not offered or not _reduce(transport, links, work, script, offered, timeout):
            got = transport.get(links, target, timeout=timeout, partly=True)
        else:
            got = transport.get(f"{work}/files", target, timeout=timeout, partly=True)
            if got.ok:
                blocks, damaged = _get_blocks(transport, work, offered, old, target, timeout)
                got = replace(blocks, stderr=got.stderr + blocks.stderr)
            if got.ok and damaged and (got := link(damaged)).ok:
                got = transport.get(links, target, timeout=timeout, partly=True)
    finally:
        with suppress(ClusterctlError, OSError):
            transport.run(f"rm -rf {shlex.quote(work)}", timeout=REMOVE_TIMEOUT)
    return replace(got, stderr=linked.stdout + got.stderr)


def _sum_large(old: Path, paths: Sequence[str]) -> dict[str, Sums]:
    """What is here of the files that are worth it."""
    found = {}
    for path in paths:
        with suppress(OSError):
            state = (old / path).lstat()
            if stat.S_ISREG(state.st_mode) and state.st_size >= LEAST:
                found[path] = _sum(old / path, _choose_block(state.st_size))
    return found


def _choose_block(size: int) -> int:
    block = BLOCK
    while block * MOST < size:
        block *= 2
    return block


def _sum(path: Path, block: int) -> Sums:
    digests = []
    with path.open("rb") as file:
        while data := file.read(block):
            digests.append(hashlib.sha256(data).hexdigest()[:DIGITS])
        return Sums(block, file.tell(), tuple(digests))


def _render(sums: Sums) -> bytes:
    return "\n".join([f"{sums.block} {sums.size} 0", *sums.blocks, ""]).encode()


def _parse(content: bytes) -> Sums:
    """Raises ValueError."""
    head, *digests = content.decode().splitlines()
    block, size, _ = head.split(" ")
    return Sums(int(block), int(size), tuple(digests))


def _reduce(
    transport: Transport,
    links: str,
    work: str,
    script: str,
    offered: Mapping[str, Sums],
    timeout: float,
) -> bool:
    """Has the node tell files of which only blocks are needed from the others: in `work`/files are
    the latter, in `work`/rest the former. False where it cannot, and `links` is as it was."""
    there, held, run = shlex.quote(work), shlex.quote(links), shlex.quote(script)
    command = (
        f"[ -e {run} ] && rm -rf {there} && mkdir {there} && tar -C {there} -xof - &&"
        f" mv {held} {there}/files && cd {there} && nice -n 19 /bin/sh {run} reduce &&"
        " rm -rf sums held && mkdir rest && mv news blocks rest"
    )
    archive = b"".join(
        archives.make_entry(f"sums/{path}", _render(sums), 0o600) for path, sums in offered.items()
    )
    return transport.run(command, stdin=archive + archives.END_OF_ARCHIVE, timeout=timeout).ok


def _get_blocks(
    transport: Transport,
    work: str,
    offered: Mapping[str, Sums],
    old: Path,
    target: Path,
    timeout: float,
) -> tuple[NodeResult, list[str]]:
    """Makes files in `target` of older ones and the blocks that have changed. Returns those, too,
    that were written to while the node read them."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix=".clusterctl-") as scratch:
        rest, whole = Path(scratch, "rest"), Path(scratch, "whole")
        got = transport.get(f"{work}/rest", rest, timeout=timeout, partly=True)
        damaged = []
        for path, sums in offered.items():
            news, blocks = rest / "news" / path, rest / "blocks" / path
            if not (news.is_file() and blocks.is_file()):
                continue  # it came whole, or did not come at all
            (whole / path).parent.mkdir(parents=True, exist_ok=True)
            try:
                if not _restore(old / path, sums, _parse(news.read_bytes()), blocks, whole / path):
                    damaged.append(path)
            except ValueError:
                damaged.append(path)
            except OSError as error:
                why = f"{target / path} cannot be written: {error.strerror}"
                return replace(got, exit_code=None, error=why), []
        if whole.is_dir():
            unpack.move_into(whole, target)
    return got, damaged


def _restore(old: Path, sums: Sums, news: Sums, blocks: Path, target: Path) -> bool:
    """False where that does not make what the node has summed up: `target` is not there then."""
    shutil.copyfile(old, target)
    with target.open("r+b") as file, blocks.open("rb") as source:
        for number, digest in enumerate(news.blocks):
            if digest != (sums.blocks[number] if number < len(sums.blocks) else ""):
                file.seek(number * news.block)
                file.write(source.read(news.block))
        file.truncate(news.size)
    if _sum(target, news.block) != news:
        target.unlink()
        return False
    state = blocks.stat()
    target.chmod(state.st_mode & 0o777)
    os.utime(target, ns=(state.st_mtime_ns, state.st_mtime_ns))
    return True
