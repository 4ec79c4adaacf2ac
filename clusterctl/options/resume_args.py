"""`--resume-args`: what a program is told beside its arguments when it goes on from a snapshot."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from fnmatch import fnmatchcase

from clusterctl.errors import UsageError

PLACES = {"snapshot": '"$cctl_snapshot"', "folder": '"${cctl_snapshot%/*}"'}
"""What may stand between braces, and what it is in templates/job/rank.sh.j2."""
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


def list_predicates(patterns: Sequence[str]) -> tuple[str, ...]:
    """What `find` is to take for snapshots, where these patterns were given to --keep-files."""
    rows = [name_predicate(glob) for glob in patterns or SNAPSHOTS]
    return ("(", *[word for row in rows for word in ("-o", *row)][1:], ")")


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Whether `find` chooses the file by one of these patterns of --keep-files."""
    name = path.rpartition("/")[2]
    return any(fnmatchcase(path if "/" in glob else name, glob) for glob in patterns)


def name_predicate(glob: str) -> tuple[str, str]:
    """How `find` chooses by a pattern of --keep-files."""
    return ("-path", f"./{glob}") if "/" in glob else ("-name", glob)
