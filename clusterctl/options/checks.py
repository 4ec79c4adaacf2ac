"""How the text of an option becomes its value. Each check gets the text and what to call the
option, and raises UsageError."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.options.limits import LAUNCHER

ReadValue = Callable[[Any, str], Any]
"""Makes the value of a text, or raises UsageError; it is told what to call the option."""

MAX_BUDGET = 1_000_000
"""US dollars."""
MAX_TTL = 30 * 86400.0
"""Seconds. A cluster that nobody has looked at for so long is a forgotten one."""
MIN_IDLE = 60.0
"""Seconds of --idle."""


def path(text: str, option: str) -> Path:
    return Path(text)


def pattern(text: str, option: str) -> str:
    """A pattern for files below the working directory."""
    parts = text.split("/")
    if not text or text.startswith("/") or ".." in parts or "." in parts:
        raise UsageError(
            f"{option} {text!r}: expected a pattern below the working directory",
            hint=f"for example {option} '*.pt' or {option} 'runs/*'",
        )
    return text


def folder_or_bucket(text: str, option: str) -> str:
    """A folder of this machine, whatever the current one is later, or `s3://BUCKET/PREFIX`."""
    bucket = re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\x00-\x1f\x7f]*)?", text)
    if bucket and text.isprintable():
        return text.rstrip("/")
    if not text or "://" in text:
        raise UsageError(
            f"{option} {text!r}: expected a folder of this machine or s3://BUCKET/PREFIX",
            hint=f"for example {option} outputs, or {option} s3://your-bucket/outputs",
        )
    return os.path.abspath(os.path.expanduser(text))


_FILE_SYSTEM = re.compile(r"fs-[0-9a-f]{8,40}(:/[A-Za-z0-9_.+@/-]*)?")
_LIKE_A_FILE_SYSTEM = ("fs-", "fsap-", "arn:")


def begins_file_system(text: str) -> bool:
    """Whether a word after --shared is meant as its value, and not as a cluster or a script."""
    return text.startswith(_LIKE_A_FILE_SYSTEM)


def shared_folder(text: str, option: str) -> str:
    """LAUNCHER, or the ID of a file system of EFS or FSx, with a folder of it after a colon."""
    if text == LAUNCHER or _FILE_SYSTEM.fullmatch(text):
        return text
    raise UsageError(
        f"{option} {text!r}: expected nothing, or the ID of a file system of EFS or FSx",
        hint=f"for example {option} fs-0123456789abcdef0, or fs-0123456789abcdef0:/data for a"
        " folder of it",
    )


def _example(option: str, value: int) -> str:
    return f"for example {option} {value}" if option.startswith("-") else f"for example {value}"


def integer(least: int, most: int = 1_000_000_000) -> Callable[[str, str], int]:
    """Reads a whole number within these limits."""

    def check(text: str, option: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,12}", text):
            raise UsageError(f"{option} {text!r}: expected a number", hint=_example(option, 2))
        if not least <= int(text) <= most:
            limit = f"at least {least}" if int(text) < least else f"at most {most}"
            fits = max(least, min(2, most))
            raise UsageError(f"{option} {text}: must be {limit}", hint=_example(option, fits))
        return int(text)

    return check


def node_choice(text: str, option: str) -> str:
    """A number of nodes, or their names."""
    if re.fullmatch(r"[+-]?[\d.]*", text) and text.count(".") < 2:
        return str(integer(1)(text, option))
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(re.fullmatch(r"[\w.:@-]+", name) and name[0] != "-" for name in names):
        raise UsageError(
            f"{option} {text!r}: expected a number, or names of workers",
            hint=f"{option} 2, or {option} worker-1,worker-2",
        )
    return ",".join(names)


def decimal(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(
            f"{option} {text!r}: expected a number", hint=_example(option, 20)
        ) from None


def seconds(text: str, option: str) -> float:
    if not 0.1 <= (found := decimal(text, option)) < 1e9:
        raise UsageError(f"{option} {text}: must be 0.1 to 1e9 seconds", hint=_example(option, 20))
    return found


def budget(text: str, option: str) -> float:
    if not 0 < (found := decimal(text, option)) <= MAX_BUDGET:
        raise UsageError(
            f"{option} {found:,.12g}: must be more than 0 and at most {MAX_BUDGET:,} US dollars",
            hint="for example --budget 20",
        )
    return found


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str, option: str) -> float:
    """Seconds in `90`, `90s`, `30m`, `8h`, `1d` or a sum such as `1h30m`."""
    if not re.fullmatch(r"(?=.)(\d{1,9}(\.\d{1,9})?[smhd])*(\d{1,9}(\.\d{1,9})?)?", text):
        raise UsageError(f"{option} {text!r} is not a duration", hint="for example 90s, 30m or 8h")
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if total <= 0:
        raise UsageError(f"{option} must be longer than zero", hint="for example 90s, 30m or 8h")
    return total


def life_time(text: str, option: str) -> float:
    """Seconds in a --ttl, which needs a unit: 8 seconds instead of 8 hours would cost a cluster."""
    total = duration(text, option)
    if text[-1] not in "smhd":
        bare = not set(text) & set("smhd")
        raise UsageError(
            f"{option} {text!r} {'has no unit' if bare else 'ends without a unit'}",
            hint=f"did you mean {text}h or {text}m?" if bare else "for example 1h30m",
        )
    if total > MAX_TTL:
        raise UsageError(
            f"{option} {text!r} is more than {MAX_TTL / 86400:g} days",
            hint="`clusterctl extend --ttl` moves the deadline whenever you need longer",
        )
    return total


def idle_time(text: str, option: str) -> float:
    """Seconds, with a unit; 0 for `off`."""
    if text == "off":
        return 0.0
    total = life_time(text, option)
    if total < MIN_IDLE:
        raise UsageError(
            f"{option} {text!r} is too short: it must be at least a minute",
            hint=f"for example {option} 1h, or {option} off",
        )
    return total


def one_of(*known: str) -> Callable[[str, str], str]:
    def check(text: str, option: str) -> str:
        if text not in known:
            from difflib import get_close_matches

            close = get_close_matches(text, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"choose one of: {', '.join(known)}"
            raise UsageError(f"{option}: unknown value {text!r}", hint=hint)
        return text

    return check


def expression(text: str, option: str) -> str:
    try:
        re.compile(text.encode())
    except re.error as error:
        raise UsageError(
            f"{option} {text!r} is not a regular expression: {error}",
            hint=f"to search for this text literally: {option} {shlex.quote(re.escape(text))}",
        ) from None
    return text


def byte_size(text: str, option: str) -> int:
    """Of `500MB` or `2GB`, in decimal units."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)B?", text, re.IGNORECASE)
    power = " kMGT".lower().index(found[2].lower() or " ") if found else 0
    if not found or not (size := int(float(found[1]) * 1000**power)):
        raise UsageError(f"{option} {text!r} is not a size", hint=f"for example {option} 2GB")
    return size


def python_version(text: str, option: str) -> str:
    """`3.12`."""
    if not re.fullmatch(r"3\.\d+", text, re.ASCII):
        raise UsageError(f"{option} {text!r} is not a Python version", hint=f"{option} 3.12")
    return text


def sha256_hex(text: str, option: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise UsageError(f"{option} {text!r} is not a SHA-256 checksum", hint="64 hex digits")
    return text.lower()


def cluster_name(text: str, option: str) -> str:
    if not text:
        raise UsageError("'' is not a valid cluster name", hint="leave it out, or give a name")
    return text


def names(text: str, option: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def indices(text: str, option: str) -> tuple[str, ...]:
    """The GPUs of `up --gpus`."""
    found = tuple(part.strip() for part in text.split(",")) if text else ()
    if found and found != ("all",) and not all(re.fullmatch(r"\d{1,3}", part) for part in found):
        raise UsageError(f"{option} {text!r}: expected numbers or all", hint=f"{option} 0,1")
    return found
