"""Copies here of large files of which an older copy is here: only the blocks that have changed come
(templates/job/blocks.sh.j2)."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl.core import assets
from clusterctl.core.model import NodeResult
from clusterctl.errors import ClusterctlError
from clusterctl.project import tree
from clusterctl.transport import copying
from clusterctl.transport.protocol import PARTS, Transport

LEAST = 1 << 20
"""Bytes of a file that is copied by its blocks, at least."""
BLOCK, MOST = 1 << 18, 512
"""Bytes of a block, at least, and how many of them a file has, at most: each costs its node the
start of a program."""
PART_BLOCK = 1 << 22
"""Bytes of a block of a file whose beginning is here, since its copy broke off."""
CHANGED, ALL = 50, 100
"""Per cent of a file's blocks that come one by one, at most: with more, all of it comes. Of a file
that has begun to come, what is here need not come again."""
DIGITS = 32
"""Hexadecimal digits of SHA-256 that tell two blocks apart."""
REMOVE_TIMEOUT = 60.0
LINK_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Sums:
    """The checksums of a file's blocks of `block` bytes, in order."""

    block: int
    size: int
    blocks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Basis:
    """What is here of a file: an older copy of it, or its beginning."""

    path: Path
    sums: Sums
    is_part: bool


def render_script(reserve: int) -> str:
    """What a node needs for it. `reserve`: KiB that it leaves free on its disk."""
    return assets.render(
        "job/blocks.sh.j2", least=LEAST, block=BLOCK, most=MOST, digits=DIGITS, reserve=reserve
    )


def get(
    transport: Transport,
    link: str,
    links: str,
    paths: Sequence[str],
    *,
    script: str,
    old: Path,
    parts: Path,
    target: Path,
    timeout: float,
) -> NodeResult:
    """Copies files of a node into the folder `target`, as `Transport.get` does with `partly`:
    the command `link` makes the folder `links` there of those whose paths it reads, each with a
    zero byte behind it. `old`: where older copies of them may be here. `parts`: where the beginning
    of a file is kept whose copy breaks off, for the next call. `script`: the path of blocks.sh
    there, which jobs of older versions lack."""
    linked = _link(transport, link, paths)
    if not linked.ok:
        return linked
    bases = _sum_large(old, parts, paths)
    work = f"{links}.blocks"
    try:
        if not bases or not _reduce(transport, links, work, script, bases, timeout):
            got = transport.get(links, target, timeout=timeout, partly=True)
        else:
            got = transport.get(f"{work}/files", target, timeout=timeout, partly=True)
            if got.ok:
                blocks, damaged = _get_blocks(transport, work, bases, target, timeout)
                got = replace(blocks, stderr=got.stderr + blocks.stderr)
            if got.ok and damaged and (got := _link(transport, link, damaged)).ok:
                got = transport.get(links, target, timeout=timeout, partly=True)
    finally:
        with suppress(ClusterctlError, OSError):
            transport.run(f"rm -rf {shlex.quote(work)}", timeout=REMOVE_TIMEOUT)
    _keep_parts(target / PARTS, parts, got)
    return replace(got, stderr=linked.stdout + got.stderr)


def _link(transport: Transport, command: str, paths: Sequence[str]) -> NodeResult:
    names = b"".join(os.fsencode(f"./{path}") + b"\0" for path in paths)
    return transport.run(command, stdin=names, timeout=LINK_TIMEOUT)


def _keep_parts(new: Path, parts: Path, got: NodeResult) -> None:
    if got.ok or (new.is_dir() and new != parts):
        shutil.rmtree(parts, ignore_errors=True)
    if new.is_dir():
        new.rename(parts)


def _sum_large(old: Path, parts: Path, paths: Sequence[str]) -> dict[str, Basis]:
    """What is here of the files that are worth it."""
    found = {}
    for path in paths:
        for place, is_part in ((parts / path, True), (old / path, False)):
            with suppress(OSError):
                state = place.lstat()
                if stat.S_ISREG(state.st_mode) and state.st_size >= LEAST:
                    block = max(PART_BLOCK * is_part, _choose_block(state.st_size))
                    found[path] = Basis(place, _sum(place, block), is_part)
                    break
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


def _read(path: Path) -> Sums:
    """What the node has summed up; nothing fits where that is damaged."""
    with suppress(ValueError):
        head, *digests = path.read_text().splitlines()
        block, size, _ = head.split(" ")
        return Sums(int(block), int(size), tuple(digests))
    return Sums(BLOCK, -1, ())


def _reduce(
    transport: Transport,
    links: str,
    work: str,
    script: str,
    bases: Mapping[str, Basis],
    timeout: float,
) -> bool:
    """Has the node tell files of which only blocks are needed from the others: in `work`/files are
    the latter. False where it cannot, and `links` is as it was."""
    there, held, run = shlex.quote(work), shlex.quote(links), shlex.quote(script)
    share = ALL if any(basis.is_part for basis in bases.values()) else CHANGED
    command = (
        f"[ -e {run} ] && rm -rf {there} && mkdir {there} && TAR_OPTIONS= tar -C {there} -xof - &&"
        f" mv {held} {there}/files && cd {there} && nice -n 19 /bin/sh {run} reduce {share} &&"
        " rm -rf sums held"
    )
    archive = b"".join(
        tree.make_entry(f"sums/{path}", _render(basis.sums), 0o600) for path, basis in bases.items()
    )
    return transport.run(command, stdin=archive + tree.END_OF_ARCHIVE, timeout=timeout).ok


def _get_blocks(
    transport: Transport, work: str, bases: Mapping[str, Basis], target: Path, timeout: float
) -> tuple[NodeResult, list[str]]:
    """Makes files in `target` of what is here and the blocks that have changed. Returns those, too,
    that were written to while the node read them."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix=".clusterctl-") as scratch:
        news, blocks, made = (Path(scratch, name) for name in ("news", "blocks", "made"))
        got = transport.get(f"{work}/news", news, timeout=timeout)
        if got.ok:
            got = transport.get(f"{work}/blocks", blocks, timeout=timeout, partly=True)
        damaged = []
        try:
            for path, basis in bases.items():
                if not (news / path).is_file():
                    continue  # it came whole, or did not come at all
                if (blocks / path).is_file():
                    if not _restore(basis, news / path, blocks / path, made / path):
                        damaged.append(path)
                elif (blocks / PARTS / path).is_file():
                    _add(basis, _read(news / path), blocks / PARTS / path, made / PARTS / path)
            if made.is_dir():
                copying.move_into(made, target)
        except OSError as error:
            why = f"{error.filename or target} cannot be written: {error.strerror}"
            return replace(got, exit_code=None, error=why, errno=error.errno or 0), []
    return got, damaged


def _restore(basis: Basis, news: Path, blocks: Path, target: Path) -> bool:
    """False where that does not make what the node has summed up: `target` is not there then."""
    wanted = _read(news)
    _add(basis, wanted, blocks, target)
    if _sum(target, wanted.block) != wanted:
        target.unlink()
        return False
    state = blocks.stat()
    target.chmod(state.st_mode & 0o777)
    os.utime(target, ns=(state.st_mtime_ns, state.st_mtime_ns))
    return True


def _add(basis: Basis, wanted: Sums, blocks: Path, target: Path) -> None:
    """Makes `target` of the basis and the blocks that have come, which may not be all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(basis.path, target)
    known = basis.sums.blocks
    with target.open("r+b") as file, blocks.open("rb") as source:
        for number, digest in enumerate(wanted.blocks):
            if digest != (known[number] if number < len(known) else ""):
                data = source.read(wanted.block)
                if not data:
                    return
                file.seek(number * wanted.block)
                file.write(data)
        file.truncate(wanted.size)
