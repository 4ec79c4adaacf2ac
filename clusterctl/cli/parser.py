"""The command line as Typer parses it, made from the table of verbs (`clusterctl.options.verbs`).

Verbs are made when they are asked for, so that `--help` loads none of them. Typer only parses the
words: settings, variables and checks of values are the same for all options, and are done here.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any

import typer
import typer.main
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from clusterctl import __version__, config
from clusterctl.cli import completion, help
from clusterctl.cli.console import Console
from clusterctl.errors import UsageError
from clusterctl.options.table import Common, Option, Verb
from clusterctl.options.verbs import FAMILIES, VERBS


class Command(TyperCommand):
    """One verb."""

    def __init__(self, path: str) -> None:
        self.path, self.verb = path, VERBS[path]
        super().__init__(
            path.rpartition(" ")[2],
            params=[_make_parameter(option) for option in self.verb.options().values()],
            short_help=help.summarize(self.verb),
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
        return help.render_verb(self.path)

    def invoke(self, ctx: Any) -> Any:
        given = read(self.path, ctx.params, ctx.args)
        with Console.get_current().show_waiting():  # on a busy machine modules take seconds to load
            module = import_module(f"clusterctl.cli.{self.verb.module}")
        function = getattr(module, self.verb.function or self.path.replace(" ", "_"))
        from clusterctl.cli import detached_launches

        with detached_launches.collect_afterwards(given, Console.get_current()):
            return function(given, Console.get_current())


class Verbs(TyperGroup):
    """All verbs, or those that begin with one word."""

    @property
    def prefix(self) -> str:
        return f"{self.name} " if self.name in FAMILIES else ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What all verbs take may also stand before the verb."""
        shared = Common.spellings()
        end = 0
        while end < len(args) and args[end].partition("=")[0] in shared:
            end += Common.count_words(args[end])
        ahead, rest = args[:end], args[end:]
        if ahead and rest and not rest[0].startswith("-"):
            args = [rest[0], *ahead, *rest[1:]]
        elif ahead and not rest and not ctx.resilient_parsing:
            known = f"`clusterctl {self.prefix}--help` lists the commands"
            raise UsageError(f"no command after {' '.join(ahead)}", hint=known)
        return super().parse_args(ctx, args)

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
        if command is None and not ctx.resilient_parsing:
            close = get_close_matches(name, self.list_commands(ctx), n=1)
            if name == "version" and not self.prefix:  # a command of many other tools
                close = ["--version"]
            known = f"`clusterctl {self.prefix}--help` lists the commands"
            raise UsageError(
                f"unknown command '{self.prefix}{name}'",
                hint=f"did you mean {self.prefix}{close[0]}?" if close else known,
            )
        return name if command else None, command, rest

    def get_help(self, ctx: Any) -> str:
        own = [item for item in self.get_params(ctx) if "--help" not in item.opts]
        rows = [(", ".join(item.opts), getattr(item, "help", "")) for item in own]
        return help.render_group(self.prefix.rstrip(), rows)


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
        found.setdefault(path.partition(" ")[0], {}).update(
            {key: option for key, option in verb.options().items() if option.flags}
        )
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


def _make_parameter(option: Option[Any]) -> Any:
    if option.flags:
        return TyperOption(
            param_decls=[option.key, *option.flags],
            is_flag=option.is_flag,
            multiple=option.many,
            nargs=None if option.is_flag else option.words,
            metavar=option.metavar or None,
            help=option.help,
            autocompletion=completion.make_completer(option.key)
            if option.flag == "--cluster"
            else None,
        )
    return TyperArgument(
        param_decls=[option.key],
        nargs=-1 if option.many else 1,
        metavar=option.metavar,
        autocompletion=completion.make_completer(option.key),
    )


def read(path: str, parsed: dict[str, Any], extra: list[str]) -> Verb:
    """What was given to a verb: on the command line, else by a variable, else in a settings file.
    Raises UsageError for what it does not take, after --json has had its effect."""
    verb, settings = VERBS[path], config.read(group_by_word())
    options = verb.options()
    found = {
        key: setting
        for key, option in options.items()
        if parsed[key] in (None, False, ())
        and (setting := _find_setting(verb, path.partition(" ")[0], option, settings))
    }
    raw = {**parsed, **{key: setting.value for key, setting in found.items()}}
    Console.get_current().set(json=raw["json"], quiet=raw["quiet"], verbose=raw["verbose"])
    usage = f"`clusterctl {path} --help` shows its options"
    if extra:
        raise UsageError(f"unexpected argument {extra[0]!r}", hint=usage)
    values = {}
    for key, option in options.items():
        if option.required and raw[key] in (None, ()):
            raise UsageError(f"missing argument {option.metavar}", hint=usage)
        label = found[key].where if key in found else option.flag or option.metavar.strip("[]")
        if key not in found:
            option.check_given(raw[key], label)
        values[key] = option.read(raw[key], label)
    return verb(
        values,
        typed={key for key in options if key not in found and raw[key] not in (None, False, ())},
        settings={key: "" if item.general else item.where for key, item in found.items()},
    )


def _find_setting(
    verb: type[Verb], word: str, option: Option[Any], settings: config.Settings
) -> config.Setting | None:
    """One made for the verb, else for a verb that it stands for, else for all verbs."""
    found = [config.find(name, option, settings) for name in (word, *verb.settings_of)]
    made = [setting for setting in found if setting]
    return next((setting for setting in made if not setting.general), made[0] if made else None)


def explain(error: Exception, arguments: list[str]) -> tuple[str, str]:
    """What to say about a command line that Typer cannot parse, and what to do."""
    context = getattr(error, "ctx", None)
    verb = next((f" {word}" for word in arguments if not word.startswith("-")), "")
    path = context.command_path if context else f"clusterctl{verb}"
    hint = f"`{path} --help` shows its options"
    kind, option = type(error).__name__, getattr(error, "option_name", "")
    if kind == "NoSuchOption":
        if path.endswith(" up") and option == "-n":
            return f"unknown option {option}", "did you mean --workers?"
        close = get_close_matches(option, getattr(error, "possibilities", None) or (), n=1)
        return f"unknown option {option}", f"did you mean {close[0]}?" if close else hint
    message = str(getattr(error, "message", error))
    if kind == "BadOptionUsage" and "does not take" in message:
        return f"option {option} takes no value", hint
    if kind == "BadOptionUsage":
        return f"option {option} needs a value", hint
    return message, hint
