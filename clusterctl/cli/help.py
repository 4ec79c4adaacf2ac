"""The text of `--help`, made from the table of verbs: grouped under headings, without Rich."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from clusterctl.config import name_prefix
from clusterctl.options.table import ARGUMENTS, GENERAL, Option, Verb
from clusterctl.options.verbs import FAMILIES, VERBS

HELP = ("-h, --help", "Show this help")
_WIDEST = 0.41
"""Of the columns, for a flag with its value; the help of a wider one begins on the next line."""
_WIDEST_OPTION = 27
"""Where further spellings or many choices make an option wider, they stand in its help."""


def render_verb(name: str) -> str:
    """The help of one verb."""
    verb = VERBS[name]
    options = [option for option in verb.options().values() if not option.never]
    arguments = [option.metavar for option in options if not option.flags]
    lines = [
        f"Usage: clusterctl {' '.join([name, '[OPTIONS]', *arguments])}",
        "",
        *_list_paragraphs(verb),
    ]
    rows: dict[str, list[tuple[str, str]]] = {ARGUMENTS.heading: []}
    bare: dict[str, dict[str, list[str]]] = {}
    for option in options:
        heading, lead = option.group.heading, option.group.lead
        rows.setdefault(heading, [])
        if of := _find_source(verb, option):
            bare.setdefault(heading, {}).setdefault(f"As for `{of}`", []).append(option.flag)
        elif option.help and not lead:
            rows[heading].append(_make_row(option))
        elif option.flags:  # the text of the verb explains an argument without a help
            bare.setdefault(heading, {}).setdefault(lead, []).append(option.flag)
    rows[GENERAL.heading] = [*rows.pop(GENERAL.heading), HELP]  # what all verbs have stands last
    column = _choose_column(row for section in rows.values() for row in section)
    for heading, section in rows.items():
        lines += _render_section(
            heading, _format_table(section, column) + _render_bare(bare.get(heading, {}))
        )
    lines += _wrap(_describe_settings(name, options))
    if len(verb.examples) == 1:
        lines.append(f"  Example: {verb.examples[0]}")
    else:
        lines += _render_section("Examples", [f"  {text}" for text in verb.examples])
    return "\n".join(lines)


def _find_source(verb: type[Verb], option: Option[Any]) -> str:
    """The other verb whose own option this is, and whose help explains it; "" for none."""
    others = {name: VERBS[name].options().values() for name in verb.settings_of}
    own = option.group not in (ARGUMENTS, GENERAL)
    return next((name for name, options in others.items() if own and option in options), "")


def render_group(name: str, rows: Iterable[tuple[str, str]]) -> str:
    """The help of clusterctl itself, or of a word that several verbs begin with; `rows` are its
    own options."""
    prefix = f"{name} " if name else ""
    sections: dict[str, list[tuple[str, str]]] = {}
    for path, verb in VERBS.items():
        if path.startswith(prefix):
            word = path.removeprefix(prefix).partition(" ")[0]
            row = (word, summarize(verb) if name else FAMILIES.get(word, summarize(verb)))
            section = sections.setdefault(verb.heading, [])
            section += [row] if row not in section else []
    about = FAMILIES.get(name, "Create a cluster, run training jobs on it, and remove it again.")
    lines = [f"Usage: clusterctl {prefix}COMMAND [OPTIONS]", "", about]
    sections["Options"] = [*rows, HELP]
    column = 4 + max(len(first) for members in sections.values() for first, _ in members)
    for heading, members in sections.items():
        lines += _render_section(heading, _format_table(members, column))
    return "\n".join([*lines, "", f"`clusterctl {prefix}COMMAND --help` shows its options."])


def _render_section(heading: str, lines: list[str]) -> list[str]:
    return ["", f"{heading}:", *lines] if lines else []


def summarize(verb: type[Verb]) -> str:
    """A verb in one line."""
    text = inspect.cleandoc(verb.__doc__ or "").replace("\n", " ")
    return text.partition(". ")[0].partition("  ")[0].rstrip(".") + "."


def _list_paragraphs(verb: type[Verb]) -> Iterator[str]:
    for number, paragraph in enumerate(inspect.cleandoc(verb.__doc__ or "").split("\n\n")):
        yield from ([""] if number else []) + textwrap.wrap(paragraph, _choose_width())


def _describe_settings(name: str, options: Iterable[Option[Any]]) -> str:
    """How an option is set for many command lines."""
    example = next(
        (o for o in options if o.metavar and o.flags and o.settable and not o.env), Verb.quiet
    )
    variable = f"{name_prefix(name.partition(' ')[0])}{example.key.upper()}"
    known = [variable, *(item.env for item in options if item.env)]
    return f"Set defaults in clusterctl.toml, {', '.join(known)}, ..."


def _make_row(option: Option[Any]) -> tuple[str, str]:
    """`-c, --cluster NAME` and its help, with room for a short flag where there is none."""
    flags, metavar, help = option.flags, option.metavar, option.help
    lead = "    " if flags and flags[0][:2] == "--" else ""
    first = lead + f"{', '.join(flags)} {metavar}".strip()
    if flags and len(first) > _WIDEST_OPTION:
        *choices, last = metavar.split("|")
        if choices:
            metavar, help = "CHOICE", f"{help}: {', '.join(choices)} or {last}"
        if others := flags[flags.index(option.flag) + 1 :]:
            flags, help = flags[: -len(others)], f"{help}; also {', '.join(others)}"
        first = lead + f"{', '.join(flags)} {metavar}"
    return first, help


def _choose_column(rows: Iterable[tuple[str, str]]) -> int:
    """Where the second column begins: where the fewest lines are needed, and else far right."""
    rows = list(rows)
    wide = {len(first) for first, _ in rows if len(first) <= _WIDEST * _choose_width()}
    return min((4 + width for width in wide), key=lambda at: (len(_format_table(rows, at)), -at))


def _format_table(rows: list[tuple[str, str]], column: int) -> list[str]:
    """Two columns, the second one wrapped."""
    lines, room = [], _choose_width() - column
    for first, second in rows:
        fits = len(second) <= room
        wrapped = [second] if fits else textwrap.wrap(second, room, break_on_hyphens=False)
        if len(first) > column - 4:
            lines.append(f"  {first}")
            first = ""
        lines += [f"  {first if not i else '':<{column - 2}}{t}" for i, t in enumerate(wrapped)]
    return lines


def _render_bare(bare: Mapping[str, list[str]]) -> list[str]:
    """Options without a help of their own."""
    return _wrap(". ".join(f"{lead}: {' '.join(sorted(flags))}" for lead, flags in bare.items()))


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(
        text, _choose_width(), initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )


def _choose_width() -> int:
    return max(60, min(100, shutil.get_terminal_size().columns))
