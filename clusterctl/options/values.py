"""How the text of an option becomes its value.

Each check gets the text and what to call the option, and raises UsageError.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError

ReadValue = Callable[[Any, str], Any]
"""Makes the value of a text, or raises UsageError; it is told what to call the option."""

MAX_BUDGET = 1_000_000
"""US dollars."""
MAX_TTL = 30 * 86400.0
"""Seconds. A cluster that nobody has looked at for so long is a forgotten one."""
MIN_IDLE = 60.0
"""Seconds of --idle."""


def _refuse(text: str, option: str, expected: str, example: str) -> UsageError:
    """The error for a text that is something else; the example is what to write."""
    label = option if option.startswith("-") else ""
    hint = f"for example {label} {example}".replace("  ", " ")
    return UsageError(f"{option} {text!r}: expected {expected}", hint=hint)


def path(text: str, option: str) -> Path:
    return Path(text)


def pattern(text: str, option: str) -> str:
    """A pattern for files below the working directory."""
    parts = text.split("/")
    if not text or text.startswith("/") or ".." in parts or "." in parts:
        raise _refuse(text, option, "a pattern below the working directory", "'runs/*.pt'")
    return text


def local_folder(text: str, option: str) -> str:
    """A folder of this machine, whatever the current one is later."""
    if not text or "://" in text:
        raise _refuse(text, option, "a folder of this machine", "./outputs")
    return os.path.abspath(os.path.expanduser(text))


def integer(least: int, most: int = 1_000_000_000, example: int = 2) -> Callable[[str, str], int]:
    """Reads a whole number within these limits."""

    def check(text: str, option: str) -> int:
        fits = str(max(least, min(example, most)))
        if not re.fullmatch(r"[+-]?\d{1,12}", text):
            raise _refuse(text, option, "a number", fits)
        if not least <= int(text) <= most:
            limit = f"at least {least}" if int(text) < least else f"at most {most}"
            hint = _refuse(text, option, "", fits).hint
            raise UsageError(f"{option} {text}: must be {limit}", hint=hint)
        return int(text)

    return check


at_least_one, at_least_zero = integer(1), integer(0)


def job_number(text: str, option: str) -> int:
    """That of a job, or the name of the folder that `fetch` makes for it."""
    return at_least_zero(re.sub(r"^job-(?=\d)", "", text), option)


def node_choice(text: str, option: str) -> str:
    """A number of nodes, or their names."""
    if re.fullmatch(r"[+-]?[\d.]*", text) and text.count(".") < 2:
        return str(at_least_one(text, option))
    found = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(re.fullmatch(r"[\w.:@][\w.:@-]*", name) for name in found):
        raise _refuse(text, option, "a number, or names of workers", "worker-1,worker-2")
    return ",".join(found)


def decimal(least: float, most: float, of: str) -> Callable[[str, str], float]:
    """Reads a number within these limits; `of`: what it is a number of."""

    def check(text: str, option: str) -> float:
        try:
            found = float(text)
        except ValueError:
            raise _refuse(text, option, "a number", "20") from None
        if not least <= found <= most:
            raise UsageError(
                f"{option} {found:,.12g}: must be {least:g} to {most:,.12g} {of}",
                hint=f"for example {option} 20",
            )
        return found

    return check


seconds = decimal(0.1, 1e9, "seconds")
budget = decimal(0.01, MAX_BUDGET, "US dollars")

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str, option: str) -> float:
    """Seconds in `90`, `90s`, `30m`, `8h`, `1d` or a sum such as `1h30m`."""
    if not re.fullmatch(r"(?=.)(\d{1,9}(\.\d{1,9})?[smhd])*(\d{1,9}(\.\d{1,9})?)?", text):
        raise _refuse(text, option, "a duration", "90s, 30m or 8h")
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
        raise _refuse(text, option, "at least a minute", f"1h, or {option} off")
    return total


def one_of(known: Sequence[str], text: str, option: str) -> str:
    if text not in known:
        close = get_close_matches(text, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose one of: {', '.join(known)}"
        raise UsageError(f"{option}: unknown value {text!r}", hint=hint)
    return text


def byte_size(text: str, option: str) -> int:
    """Of `500MB` or `2GB`, in decimal units."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)B?", text, re.IGNORECASE)
    power = " kmgt".index(found[2].lower() or " ") if found else 0
    if not found or not (size := int(float(found[1]) * 1000**power)):
        raise _refuse(text, option, "a size", "2GB")
    return size


def python_version(text: str, option: str) -> str:
    if not re.fullmatch(r"3\.\d+", text, re.ASCII):
        raise _refuse(text, option, "a Python version", "3.12")
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
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if text and not found:
        raise _refuse(text, option, "names", "A,B")
    return found


def not_blank(text: str, option: str) -> str:
    if text and not text.strip():
        raise _refuse(text, option, "something to run", "'make -C kernels'")
    return text


def indices(text: str, option: str) -> tuple[str, ...]:
    """The GPUs of `up --gpus`; also as `docker run` takes them: `"device=0, 1"`."""
    listed = text.strip('"').removeprefix("device=")
    found = tuple(part.strip() for part in listed.split(",")) if text else ()
    if found and found != ("all",) and not all(re.fullmatch(r"\d{1,3}", part) for part in found):
        raise _refuse(text, option, "numbers or all", "0,1")
    return found


# -------------------------------------------------------------------------------------------------
# `--resume-args`: what a program is told beside its arguments when it goes on from a snapshot.


PLACES = {"snapshot": '"$cctl_snapshot"', "folder": '"${cctl_snapshot%/*}"'}
"""What may stand between braces, and what it is in templates/job/rank.sh."""
SNAPSHOTS = ("*.pt", "*.pth", "*.ckpt", "*.safetensors")
"""Outputs that are taken for snapshots, by their names."""

_PLACE = rf"\{{({'|'.join(PLACES)})\}}"


def check_resume_args(text: str, option: str) -> str:
    """Raises UsageError for what is not understood."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"{option} {text!r}: {str(error).lower()}", hint="quote it as in a shell"
        ) from error
    if not words:
        raise UsageError(f"{option} is empty", hint=f"for example {option} '--resume {{snapshot}}'")
    for name in re.findall(r"\{([a-z_]+)\}", text):
        if name not in PLACES:
            raise UsageError(
                f"{option}: unknown placeholder {{{name}}}",
                hint="{snapshot} stands for the newest snapshot, {folder} for the folder it is in",
            )
    return text


def quote_words(text: str) -> str:
    """The arguments for sh, in which the path of the snapshot is `$cctl_snapshot`."""
    return " ".join(_quote_word(word) for word in shlex.split(text))


def _quote_word(word: str) -> str:
    parts = re.split(_PLACE, word)  # every second one is the name of a place
    texts = [PLACES[part] if index % 2 else shlex.quote(part) for index, part in enumerate(parts)]
    return "".join(text for part, text in zip(parts, texts, strict=True) if part or len(parts) == 1)


def are_given(text: str, arguments: Sequence[str]) -> bool:
    """Whether `arguments` name the option with which these arguments begin."""
    option = shlex.split(text)[0].partition("=")[0]
    return any(word.partition("=")[0] == option for word in arguments)


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Whether `find` chooses the file by one of these patterns of --keep-files."""
    name = path.rpartition("/")[2]
    return any(fnmatchcase(path if "/" in glob else name, glob) for glob in patterns)
