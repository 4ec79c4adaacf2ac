"""The command line: parse, call one action, print. Typer; no logic."""

from __future__ import annotations

import codecs
import errno
import inspect
import io
import os
import shutil
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from itertools import pairwise
from typing import Any, TextIO

import typer
import typer.main
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from clusterctl import __version__
from clusterctl.cli.console import Console, escape, has_colours
from clusterctl.core.variables import redact, redact_arguments
from clusterctl.errors import (
    ClusterctlError,
    NodeUnreachable,
    ProviderError,
    RecordError,
    UsageError,
)
from clusterctl.options import batch_systems, kinds
from clusterctl.options.kinds import ARGUMENTS, GENERAL, Common, Option, Verb
from clusterctl.options.verbs import CLUSTERS, FAMILIES, VERBS, Launch

# -------------------------------------------------------------------------------------------------
# The text of `--help`, made from the table of verbs: grouped under headings, without Rich.


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
    about = inspect.cleandoc(verb.__doc__ or "").split("\n\n")
    lines = [f"Usage: clusterctl {' '.join([name, '[OPTIONS]', *arguments])}", ""]
    lines.append("\n\n".join(textwrap.fill(text, _choose_width()) for text in about))
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
        leads = bare.get(heading, {}).items()
        others = ". ".join(f"{lead}: {' '.join(sorted(flags))}" for lead, flags in leads)
        lines += _render_section(heading, _format_table(section, column) + _wrap(others))
    known = ["clusterctl.toml", *(item.env for item in options if item.env)]
    lines.append(f"  Set defaults in {', '.join(known)}")
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


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(
        text, _choose_width(), initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )


def _choose_width() -> int:
    """Columns for plain text. Panels have their edges besides, and no indent."""
    return max(60, min(100, shutil.get_terminal_size().columns)) - 2 * _has_panels()


def _has_panels() -> bool:
    return has_colours(sys.stdout) and sys.stdout.encoding.lower() == "utf-8"


_STYLES = {
    "bold cyan": r"(?<![\w-])--[a-z][\w-]*|(?m:^)[a-z][\w-]*(?=  )",  # as Typer has them
    "bold green": r"(?<![\w-])-[a-zA-Z]\b",
    "bold yellow": r"(?<= )(?:\[[A-Z]+\.*\]|[A-Z][A-Z_=|\[\]]+)(?= |$)",
    "dim": r"\(default: [^)]*\)",
}


def _draw_panels(text: str) -> str:
    """On a terminal, the help with each section in a panel, and coloured; elsewhere as it is."""
    if not _has_panels():
        return text
    # Not for other commands: it takes as long as all else.
    from rich.console import Console as RichConsole
    from rich.panel import Panel
    from rich.text import Text

    drawing = RichConsole(force_terminal=True, color_system="standard", width=_choose_width() + 2)
    with drawing.capture() as drawn:
        for part in text.split("\n\n"):
            head, *lines = part.split("\n")
            section = bool(lines) and head.endswith(":") and lines[0].startswith("  ")
            shown = Text("\n".join(line[2:] for line in lines) if section else f"{part}\n")
            for style, pattern in _STYLES.items():
                shown.highlight_regex(pattern, style)
            panel = Panel(shown, title=head[:-1], title_align="left", border_style="dim")
            drawing.print(panel if section else shown, highlight=False)
    return drawn.get().rstrip()


# -------------------------------------------------------------------------------------------------
# What the shell offers for a value: names on record, and files.


JOBS = ("job", "first", "second", "wanted")
"""Arguments that take the number of a job."""


def make_completer(key: str) -> Callable[[Any, list[str], str], list[str]]:
    """What Typer calls for the value of the option or argument with that key: the words that begin
    as what was typed; none where the shell's own files will do."""

    def offer(context: Any, words: list[str], begun: str) -> list[str]:
        from clusterctl.actions import completions

        verb, given = getattr(context.command, "path", ""), context.params
        found: list[str] = []
        if key == "cluster" or (key == "name" and not verb.startswith(("image", "data"))):
            found = completions.list_clusters()
        elif key in JOBS:
            others = completions.list_clusters() if key == "wanted" else []
            found = completions.list_jobs() + others
        elif key == "node" or (verb, key) == ("forward", "target"):
            colon = ":" if verb == "forward" else ""
            found = [f"{name}{colon}" for name in completions.list_nodes(given.get("cluster"))]
        elif key == "names" and verb.startswith("data"):
            files = _list_files(begun) if verb == "data push" else []
            found = completions.list_data_sets() + files
        elif key == "command" and verb in ("run", "launch") and not given.get("command"):
            found = completions.list_programs() + _list_files(begun)
        return [word for word in found if word.startswith(begun)]

    return offer


def _list_files(begun: str) -> list[str]:
    """Files and folders whose path begins so."""
    import glob  # on TAB alone

    start = os.path.expanduser(begun)
    found = glob.glob(f"{glob.escape(start)}*")
    return sorted(begun + path[len(start) :] + "/" * os.path.isdir(path) for path in found)


# -------------------------------------------------------------------------------------------------
# The command line as Typer parses it, made from the table of verbs (`clusterctl.options.jobs`).
#
# Verbs are made when they are asked for, so that `--help` loads none of them. Typer only parses
# the words: settings, variables and checks of values are the same for all options, and are done
# here.


class Command(TyperCommand):
    """One verb."""

    def __init__(self, path: str) -> None:
        self.path, self.verb = path, VERBS[path]
        super().__init__(
            path.rpartition(" ")[2],
            params=[_make_parameter(option) for option in self.verb.options().values()],
            short_help=summarize(self.verb),
            context_settings={
                "help_option_names": ["-h", "--help"],
                "allow_interspersed_args": not self.verb.ends_at_argument,
                "ignore_unknown_options": self.verb.passes_options,
                "allow_extra_args": True,
            },
            rich_markup_mode=None,
        )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if ctx.resilient_parsing else self.verb.arrange(args))

    def get_help(self, ctx: Any) -> str:
        return _draw_panels(render_verb(self.path))

    def invoke(self, ctx: Any) -> None:
        given = read_options(self.path, ctx.params, ctx.args)
        with Console.get_current().show_waiting():  # on a busy machine modules take seconds to load
            module = import_module(f"clusterctl.cli.{self.verb.module}")
        function = getattr(module, self.verb.function)
        try:
            function(given, Console.get_current())
        except typer.Exit:
            _collect_launches(given)
            raise
        _collect_launches(given)


def _collect_launches(given: Verb) -> None:
    """A command about clusters or jobs that has answered goes on with what there is to collect of
    earlier launches."""
    own = isinstance(given, Launch) and given.detach
    if own or given.heading not in (CLUSTERS, kinds.JOBS) or given.values.get("dry_run"):
        return
    from clusterctl.actions import common
    from clusterctl.state import store as state_store

    store = common.open_store()
    if names := state_store.list_marked(store):
        from clusterctl.cli import launches

        launches.collect(store, names, given, Console.get_current())


class Verbs(TyperGroup):
    """All verbs, or those that begin with one word."""

    @property
    def prefix(self) -> str:
        return f"{self.name} " if self.name in FAMILIES else ""

    def list_commands(self, ctx: Any) -> list[str]:
        names = (path.removeprefix(self.prefix) for path in VERBS if path.startswith(self.prefix))
        return list(dict.fromkeys(name.partition(" ")[0] for name in names))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if not self.prefix and cmd_name in FAMILIES:
            return Verbs(
                name=cmd_name,
                short_help=FAMILIES[cmd_name],
                no_args_is_help=True,
                context_settings={"help_option_names": ["-h", "--help"]},
                rich_markup_mode=None,
            )
        path = f"{self.prefix}{cmd_name}"
        return Command(path) if path in VERBS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, *rest = args
        command = self.get_command(ctx, name)
        if name == "help" and rest and not self.prefix:
            return self.resolve_command(ctx, [*rest, "--help"])
        if command is None and not ctx.resilient_parsing:
            known = self.list_commands(ctx)
            # difflib does not know letters that have changed places.
            close = [one for one in known if sorted(one) == sorted(name)]
            close += get_close_matches(name, known, n=1)
            if name == "help" or (name == "version" and not self.prefix):  # as many tools have it
                close = [f"--{name}"]
            listed = f"`clusterctl {self.prefix}--help` lists the commands"
            raise UsageError(
                f"unknown command '{self.prefix}{name}'",
                hint=f"did you mean {self.prefix}{close[0]}?" if close else listed,
            )
        return name if command else None, command, rest

    def get_help(self, ctx: Any) -> str:
        own = [item for item in self.get_params(ctx) if "--help" not in item.opts]
        rows = [(", ".join(item.opts), getattr(item, "help", "")) for item in own]
        return _draw_panels(render_group(self.prefix.rstrip(), rows))


def make_command() -> Any:
    """The whole command line."""
    application = typer.Typer(
        name="clusterctl",
        cls=Verbs,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    application.callback()(_run_bare)
    return typer.main.get_command(application)


def group_by_word() -> dict[str, dict[str, Option[Any]]]:
    """The options that settings may have, by the first word of their verb."""
    found: dict[str, dict[str, Option[Any]]] = {}
    for path, verb in VERBS.items():
        options = {key: option for key, option in verb.options().items() if option.flags}
        found.setdefault(path.partition(" ")[0], {}).update(options)
    return found


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"clusterctl {__version__}")
        raise typer.Exit


def _run_bare(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version"
    ),
) -> None: ...


def _completes() -> bool:
    """Whether a shell asks how a command line goes on."""
    return "_CLUSTERCTL_COMPLETE" in os.environ


def _make_parameter(option: Option[Any]) -> Any:
    if option.flags:
        return TyperOption(
            param_decls=[option.key, *option.flags],
            is_flag=option.is_flag,
            multiple=option.many,
            nargs=None if option.is_flag else option.words,
            metavar=option.metavar or None,
            help=option.help if _completes() else None,  # `get_help` draws the table itself
            autocompletion=make_completer(option.key) if option.flag == "--cluster" else None,
        )
    return TyperArgument(
        param_decls=[option.key],
        nargs=-1 if option.many else 1,
        metavar=option.metavar,
        autocompletion=make_completer(option.key),
    )


def read_options(path: str, parsed: dict[str, Any], extra: list[str]) -> Verb:
    """What was given to a verb: on the command line, else by a variable, else in a settings file.
    Raises UsageError for what it does not take, after --json has had its effect."""
    verb, settings = VERBS[path], kinds.read_settings(group_by_word())
    options = verb.options()
    left = [key for key in options if parsed[key] in (None, False, ())]
    found = kinds.find_settings((path.partition(" ")[0], *verb.settings_of), left, settings)
    raw = {**parsed, **{key: setting.value for key, setting in found.items()}}
    Console.get_current().set(json=raw["json"], quiet=raw["quiet"], verbose=raw["verbose"])
    usage = f"`clusterctl {path} --help` shows its options"
    if extra:
        raise UsageError(f"unexpected argument {extra[0]!r}", hint=usage)
    return verb(
        kinds.read_values(options, raw, found, usage),
        typed={key for key in options if key not in found and raw[key] not in (None, False, ())},
        settings={key: "" if item.general else item.where for key, item in found.items()},
    )


def explain(error: BaseException, arguments: list[str]) -> tuple[str, str]:
    """What to say about a command line that Typer cannot parse, and what to do."""
    context = getattr(error, "ctx", None)
    verb = next((f" {word}" for word in arguments if not word.startswith("-")), "")
    path = context.command_path if context else f"clusterctl{verb}"
    hint = f"`{path} --help` shows its options"
    kind, option = type(error).__name__, getattr(error, "option_name", "")
    if kind == "NoSuchOption":
        command = getattr(context, "command", None)
        if not isinstance(command, Command) and option in Common.spellings():
            return f"{option} stands before the command", "write options after it"
        own = command.verb.spellings() if isinstance(command, Command) else {}
        short = batch_systems.suggest_short(option) if "--mail-type" in own else ""
        if "--mail-type" in own:
            hint += f"; an option of the site itself goes into {batch_systems.ARGUMENTS}"
        others = getattr(error, "possibilities", None) or ()
        close = get_close_matches(option, others, n=1, cutoff=0.7)
        meant = "--workers" if option == "-n" and "--workers" in own else "".join(close)
        found = short or meant
        return f"unknown option {option}", f"did you mean {found}?" if found else hint
    message = str(getattr(error, "message", error))
    if kind == "BadOptionUsage" and "does not take" in message:
        return f"option {option} takes no value", hint
    if kind == "BadOptionUsage":
        return f"option {option} needs a value", hint
    return message, hint


# -------------------------------------------------------------------------------------------------

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""A disk that takes no more: nobody's bug."""


def main() -> None:
    """Runs the command line and exits with the code that the contract promises."""
    _complete_streams()
    sys.exit(execute(sys.argv[1:]))


def _complete_streams() -> None:
    """A standard stream that the caller has closed (`>&-`) leads nowhere: else the next file that
    we open would be taken for it. What a stream's encoding does not have is escaped."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup, a terminal may close
        sys.stdout, sys.stderr = map(_survive_terminal, (sys.stdout, sys.stderr))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            utf_8 = codecs.lookup(stream.encoding).name == "utf-8"  # names of files may be no text
            stream.reconfigure(errors="surrogateescape" if utf_8 else "backslashreplace")


def _survive_terminal(stream: TextIO) -> TextIO:
    if not stream.isatty():
        return stream
    raw = _Terminal(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=stream.encoding, write_through=True, line_buffering=True
    )


class _Terminal(io.FileIO):
    """When it has closed, what is written goes nowhere."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


def execute(arguments: list[str]) -> int:
    """Runs one command line; never raises. Returns the exit code."""
    console = Console.begin(arguments)
    try:
        try:
            return _run(arguments)
        except BaseException as error:
            return _conclude(console, arguments, error)
    except OSError as error:
        if not _is_unheard(error):
            raise
        return _end_unheard()


def _run(arguments: list[str]) -> int:
    _refuse_bytes(arguments)
    if arguments[:1] == ["run"]:
        run, own = VERBS["run"], VERBS["run"].spellings()
        words, system = arguments[1:], ""
        unknown = any(word.startswith("-") and word not in own for word in words)
        unknown |= batch_systems.CONFUSED.intersection(words[:-1]) != set()
        if unknown or batch_systems.find_misread(words, run)[0]:
            system = _find_batch_system(words)
        if system:
            words = batch_systems.translate(words, system, own)
            arguments = ["run", *words]
        given, instead = batch_systems.find_misread(words, run, system)
        if given:
            unset = given.endswith(batch_systems.NOT_SET)
            raise UsageError(f"{given}{'' if unset else ' is no option of `run`'}", hint=instead)
    command = make_command()
    if _completes():
        command.main(args=arguments, prog_name="clusterctl")
    # Not main(): it would make a silent exit code of Ctrl-C.
    with command.make_context("clusterctl", list(arguments)) as context:
        command.invoke(context)
    return 0


def _find_batch_system(words: list[str]) -> str:
    """The batch system of the cluster that a command line of `run` is for, "" for none."""
    from clusterctl.actions.common import choose_cluster, open_store

    with suppress(ClusterctlError):
        store = open_store()
        pairs = [(word, value) for word, value in pairwise(words) if word in ("-c", "--cluster")]
        pairs += [(word, word.partition("=")[2]) for word in words if word.startswith("--cluster=")]
        named = [value for _, value in pairs if value in store.list_names()]
        name = named[0] if named else os.environ.get("CLUSTERCTL_CLUSTER") or None
        system = choose_cluster(store, name).system
        return system if system in batch_systems.ALL else ""
    return ""


def _conclude(console: Console, arguments: list[str], error: BaseException) -> int:
    """The exit code of a command line that an error has ended, after that has been said."""
    if isinstance(error, KeyboardInterrupt):
        # Python remembers a Ctrl-C that passed through an exec() of text, as dataclasses make while
        # they load, and would end by SIGINT instead of this code; any other exec() clears that.
        exec("")
        code: int = getattr(error, "exit_code", 130)
        name = getattr(error, "name", "Ctrl-C")
        console.error(f"stopped by {name}", console.after_interrupt, code)
        return code
    # Typer turns a broken pipe into an exit of its own.
    if _is_unheard(error.__context__ if isinstance(error, SystemExit) else error):
        return _end_unheard()
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, typer.Exit):
        return error.exit_code
    show = getattr(error, "format_message", None)
    if show and type(error).__name__ == "NoArgsIsHelpError":
        print(show(), flush=True)
        return 0
    if show and "--json" in arguments:
        console.set(json=True)  # the parser stopped before the verb could say so
    found = _explain(error, arguments)
    # What a person mistyped needs no log; what went wrong elsewhere does.
    own, trace = isinstance(error, ClusterctlError), traceback.format_exc()
    mistake = found.exit_code in (UsageError.exit_code, RecordError.exit_code) and (own or show)
    story = "\n".join((*console.story, found.message)) if own else trace
    path = "" if mistake else _log(arguments, story)
    if type(found) is ClusterctlError:
        if console.verbose:
            sys.stderr.write(trace)
        found.hint = f"details are in {path}" if path else "--verbose shows the details"
        path = ""
    console.error(found.message, found.hint, found.exit_code, path)
    return found.exit_code


def _explain(error: BaseException, arguments: list[str]) -> ClusterctlError:
    """What ended a command line as an error of ours; one of no other class is a bug."""
    if isinstance(error, ClusterctlError):
        if isinstance(error, NodeUnreachable) and error.cluster:
            from clusterctl.actions import lifetime

            return lifetime.explain_allowed(error)
        return error
    if hasattr(error, "format_message"):
        message, hint = explain(error, arguments)
        return UsageError(message, hint=hint)
    if isinstance(error, OSError) and error.errno in FULL:
        _drop_output()
        what = f"cannot write {error.filename or 'the output'}: {error.strerror}"
        if error.errno == errno.EROFS:
            return UsageError(what, hint="choose a folder that can be written to")
        return (ProviderError if error.filename else UsageError)(what, hint="free some space there")
    bug = ClusterctlError(f"a bug in clusterctl: {type(error).__name__}: {error}")
    return explain_input(error, _is_in_a_folder()) or bug


def _refuse_bytes(arguments: list[str]) -> None:
    """Records and JSON hold text: what is not UTF-8 could not come back as it was."""
    encoding = sys.getfilesystemencoding()
    for word in arguments:
        if encoding != "utf-8" and not word.isascii():
            raise UsageError(
                f"the argument '{escape(word)}' is not ASCII, and the locale is not UTF-8"
                f" ({encoding})",
                hint="choose a UTF-8 locale, for example LC_ALL=C.UTF-8",
            )
        if any("\udc80" <= char <= "\udcff" for char in word):
            raise UsageError(
                f"the argument '{escape(word)}' is not UTF-8",
                hint="rename the file, or pass the value through a file that the program reads",
            )


def _is_unheard(error: BaseException | None) -> bool:
    """Whether the reader of our output has gone: a program, or a terminal that has closed."""
    if isinstance(error, OSError) and error.errno == errno.EIO:
        return error.filename is None
    return isinstance(error, BrokenPipeError)


def _end_unheard() -> int:
    """The code is what a shell shows for SIGPIPE."""
    _drop_output()
    return 141


def _drop_output() -> None:
    """What is still in the buffers must not fail once more when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _is_in_a_folder() -> bool:
    try:
        return bool(os.getcwd())
    except OSError:
        return False


def explain_input(error: BaseException, in_a_folder: bool) -> UsageError | None:
    """What an input of the person's has done that no code has looked for; None for other errors.
    `in_a_folder`: whether the current folder still exists."""
    if isinstance(error, FileNotFoundError) and not error.filename and not in_a_folder:
        return UsageError("the current folder no longer exists", hint="cd to one that does")
    if isinstance(error, RecursionError):
        return UsageError("a file is nested too deeply to be read", hint="use a simpler one")
    if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        name = str(error.filename or "a name")
        shown = name if len(name) < 100 else f"{name[:100]}…"
        return UsageError(f"{shown}: {error.strerror}", hint="check the path")
    if isinstance(error, UnicodeDecodeError):
        return UsageError(f"a file is not {error.encoding}: {error.reason}", hint="save it anew")
    if isinstance(error, ValueError) and "embedded null" in str(error):
        return UsageError("a name contains a NUL character", hint="check the files that you gave")
    if isinstance(error, ValueError) and "integer string conversion" in str(error):
        return UsageError("a number has too many digits", hint="check the files that you gave")
    return None


def _log(arguments: list[str], text: str) -> str:
    from clusterctl.actions import common

    return common.record(f"clusterctl {' '.join(redact_arguments(arguments))}\n{redact(text)}")
