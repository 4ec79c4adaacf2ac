"""`[tool.poetry]` of a pyproject.toml, as lines of a requirements file. Pure.

What Poetry means by a version: https://python-poetry.org/docs/dependency-specification/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clusterctl.errors import UsageError

_VERSION = re.compile(r"(\^|~=?|[<>]=?|===?|!=)?\s*v?(\d[\w.+!-]*(?:\.\*)?|\*)")
_KINDS = ("version", "git", "url")


def list_requirements(
    poetry: Mapping[str, Any], where: str, extras: Sequence[str] = ()
) -> tuple[str, ...]:
    """What the project and these of its extras depend on. Raises UsageError for what cannot be said
    in a requirements file."""
    chosen = {
        _normalise(name) for extra in extras for name in poetry.get("extras", {}).get(extra, ())
    }
    lines: list[str] = []
    for name, given in poetry.get("dependencies", {}).items():
        if _normalise(name) == "python":
            continue
        for one in given if isinstance(given, list) else [given]:
            table = one if isinstance(one, dict) else {"version": str(one)}
            if not table.get("optional") or _normalise(name) in chosen:
                lines.append(_make_line(name, table, where))
    return tuple(lines)


def list_indexes(poetry: Mapping[str, Any]) -> tuple[str, ...]:
    """Lines that name its package indexes."""
    sources = poetry.get("source", ())
    return tuple(f"--extra-index-url {row['url']}" for row in sources if row.get("url"))


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _make_line(name: str, table: Mapping[str, Any], where: str) -> str:
    kind = next((kind for kind in _KINDS if kind in table), "")
    if not kind:
        raise UsageError(
            f"{where}: local packages are not installed: {name}",
            hint="leave it out (what is staged can be imported), or `--requirements none`",
        )
    value, place = str(table[kind]), f"{where}: {name} = {table[kind]!r}"
    if kind == "version":
        rest = ",".join(_translate(value, place))
    else:
        revision = next((table[k] for k in ("rev", "tag", "branch") if k in table), "")
        at = f"@{revision}" if revision else ""
        rest = f" @ git+{value}{at}" if kind == "git" else f" @ {value}"
    extras = f"[{','.join(table['extras'])}]" if table.get("extras") else ""
    markers = " and ".join(f"({marker})" for marker in _list_markers(table, place))
    return f"{name}{extras}{rest}" + (f" ; {markers}" if markers else "")


def _list_markers(table: Mapping[str, Any], where: str) -> Iterator[str]:
    if table.get("markers"):
        yield str(table["markers"])
    if table.get("platform"):
        yield f"sys_platform == '{table['platform']}'"
    for part in _translate(str(table.get("python", "*")), where):
        if found := re.fullmatch(r"([<>=!~]+)(.*)", part):
            yield f"python_full_version {found[1]} '{found[2]}'"


def _translate(constraint: str, where: str) -> list[str]:
    """`^1.2` as `>=1.2` and `<2`."""
    found: list[str] = []
    for part in re.split(r"\s*,\s*|(?<=[\w*])\s+(?=[\^~<>=!])", constraint.strip()):
        parsed = _VERSION.fullmatch(part)
        if parsed is None:
            raise UsageError(
                f"{where} is not understood",
                hint="write it with one of ^ ~ < > = !, or name a requirements file with"
                " --requirements",
            )
        order, version = parsed[1] or "", parsed[2]
        if version == "*":
            continue
        if order in ("^", "~"):
            found += [f">={version}", f"<{_find_limit(version, order)}"]
        else:
            found.append(f"{order or '=='}{version}")
    return found


def _find_limit(version: str, order: str) -> str:
    """The first version that a caret or a tilde leaves out."""
    numbers = [int(number) for number in re.findall(r"\d+", re.split(r"[^\d.]", version)[0])]
    if order == "~":
        place = min(1, len(numbers) - 1)
    else:
        place = next((n for n, number in enumerate(numbers) if number), len(numbers) - 1)
    return ".".join(map(str, [*numbers[:place], numbers[place] + 1]))
