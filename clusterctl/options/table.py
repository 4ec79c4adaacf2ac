"""The table of options: one declaration for each option of each verb.

A declaration gives the flags, the help and its heading, how a value is checked, and where the
option has an effect (see `limits`). The command line, the settings file, environment
variables and the help are all made from it. An object of a verb's class holds what was given:
`given.spot` is the checked value of `--spot`. A value goes into the field of `CloudSpec` or
`JobSpec` that has the name of its attribute, or to the batch system as it is.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, overload

from clusterctl.errors import UsageError
from clusterctl.options.checks import ReadValue, cluster_name, integer, one_of, path
from clusterctl.options.limits import Limit, ProviderLimit
from clusterctl.options.provider_options import join_titles, list_takers

AnyLimit = Limit | ProviderLimit
T = TypeVar("T")
Given = TypeVar("Given", bound="Verb")

DEFAULT_NAME = "default"


class Group(NamedTuple):
    """Options under one heading, with what most of them have in common. `native`: they go to the
    batch system as they are."""

    heading: str
    limits: tuple[AnyLimit, ...] = ()
    native: bool = False
    lead: str = ""
    """What the help says before those that it only names."""


class Option(Generic[T]):
    """An option, or an argument where `flags` is "". On an object of a verb it is its value.

    Args:
        empty: The value where none is given.
        alone: The value of one that may stand without a value, as a flag does.
        many: May be repeated; `words`: how many words a value has.
        env: A variable beside the usual CLUSTERCTL_VERB_OPTION.
        old: A former key in settings files.
        settable: Whether settings may have it. What says what one command line does is no default.
    """

    def __init__(
        self,
        flags: str,
        group: Group,
        help: str = "",
        metavar: str = "",
        *,
        empty: T,
        check: ReadValue = lambda text, option: text,
        alone: str = "",
        many: bool = False,
        words: int = 1,
        limits: AnyLimit | tuple[AnyLimit, ...] | None = None,
        env: str = "",
        old: str = "",
        settable: bool = True,
    ) -> None:
        self.flags = tuple(flags.split())
        self.group, self.empty, self.check = group, empty, check
        self.alone = alone
        self.metavar, self.many, self.words, self.env, self.old = metavar, many, words, env, old
        own = (limits,) if isinstance(limits, Limit | ProviderLimit) else limits
        declared = group.limits if own is None else own
        self.limits = tuple(
            limit.resolve(self.flag) if isinstance(limit, ProviderLimit) else limit
            for limit in declared
        )
        self.help = help + _name_providers(declared, group, self.flag)
        self.settable = settable
        self.is_flag = empty is False
        self.separator = os.pathsep if check is path else None
        """Between the values in a variable; None: blanks."""
        self.attribute = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.attribute = name

    @overload
    def __get__(self, given: None, owner: type) -> Option[T]: ...
    @overload
    def __get__(self, given: Verb, owner: type) -> T: ...
    def __get__(self, given: Verb | None, owner: type) -> Option[T] | T:
        return self if given is None else given.values[self.key]

    @cached_property
    def flag(self) -> str:
        """As people write it: the first long spelling."""
        return next((flag for flag in self.flags if flag[:2] == "--"), "".join(self.flags[:1]))

    @cached_property
    def key(self) -> str:
        """Its name in settings."""
        return self.flag.lstrip("-").replace("-", "_") if self.flags else self.attribute

    @property
    def required(self) -> bool:
        """An argument that has to be there."""
        return not self.flags and not set("[ ") & set(self.metavar)

    @property
    def never(self) -> bool:
        """It is only taken to be refused: every verb has it, and it can do nothing for this one."""
        return any(limit.only == frozenset() for limit in self.limits)

    def check_given(self, raw: Any, label: str) -> None:
        """Raises UsageError for an empty text, which would count as not given: who writes
        `--vpc "$VPC"` wants no VPC of ours where the variable is not set."""
        if raw == "" and self.flags and self.empty in ("", ()):
            raise UsageError(
                f"{label} '' is empty",
                hint="give a value, or leave it out; in a script, check that the variable is set",
            )

    def read(self, raw: Any, label: str) -> Any:
        """The value of what was given as `label`. Raises UsageError."""
        if raw is None or raw == ():
            return self.empty
        if self.is_flag:
            return raw
        if self.words > 1 and isinstance(raw, str):
            raw = raw.split()
            if len(raw) != self.words:
                raise UsageError(f"{label}: expected {self.metavar}", hint="correct the value")
        return tuple(self.check(r, label) for r in raw) if self.many else self.check(raw, label)


def _name_providers(declared: Iterable[AnyLimit], group: Group, flag: str) -> str:
    """What the help says of the providers that an option works with: those that its heading does
    not name."""
    named = {limit.owner for limit in group.limits if isinstance(limit, ProviderLimit)}
    takers = {
        name: None
        for limit in declared
        if isinstance(limit, ProviderLimit)
        for name in list_takers(limit.owner, flag)
        if name not in named
    }
    return f" ({'also ' if named else ''}{join_titles(takers)})" if takers else ""


# ------------------------------------------------------------------------------------- kinds


def flag(flags: str, group: Group, help: str = "", **more: Any) -> Option[bool]:
    return Option(flags, group, help, empty=False, **more)


def text(flags: str, group: Group, help: str = "", metavar: str = "", **more: Any) -> Option[str]:
    return Option(flags, group, help, metavar, empty="", **more)


def choice(
    flags: str, group: Group, help: str, *known: str, empty: str = "", **more: Any
) -> Option[str]:
    return Option(flags, group, help, "|".join(known), empty=empty, check=one_of(*known), **more)


def texts(
    flags: str, group: Group, help: str, metavar: str, **more: Any
) -> Option[tuple[str, ...]]:
    return Option(flags, group, help, metavar, empty=(), many=True, **more)


def maybe(flags: str, group: Group, help: str, metavar: str, **more: Any) -> Option[str | None]:
    """A text that may be empty: None where it is not given."""
    return Option(flags, group, help, metavar, empty=None, **more)


def file(
    flags: str, group: Group, help: str, metavar: str = "FILE", **more: Any
) -> Option[Path | None]:
    return Option(flags, group, help, metavar, empty=None, check=path, **more)


def files(flags: str, group: Group, help: str, metavar: str = "FILE") -> Option[tuple[Path, ...]]:
    return Option(flags, group, help, metavar, empty=(), many=True, check=path)


def number(flags: str, group: Group, help: str, metavar: str = "N", **more: Any) -> Option[int]:
    """A whole number, at least 1 unless another check is given; 0 where there is none."""
    return Option(flags, group, help, metavar, empty=0, **{"check": integer(1), **more})


def amount(
    flags: str,
    group: Group,
    help: str,
    metavar: str,
    check: ReadValue,
    empty: float = 0.0,
    **more: Any,
) -> Option[float]:
    """A number with a fraction: of seconds, of dollars."""
    return Option(flags, group, help, metavar, empty=empty, check=check, **more)


# ------------------------------------------------------------------------------------- verbs


GENERAL, ARGUMENTS = Group("General options"), Group("Arguments")


class Verb:
    """What every verb has: its options, in the order of its help, and their values."""

    heading: ClassVar[str]
    module: ClassVar[str]
    function: ClassVar[str]
    examples: ClassVar[tuple[str, ...]] = ()
    ends_at_argument: ClassVar[bool] = False
    """Options after the first argument are not ours."""
    settings_of: ClassVar[tuple[str, ...]] = ()
    """Verbs whose settings are this one's, too, where it has none of its own."""
    passes_options: ClassVar[bool] = False
    """Options that we do not know are arguments."""

    json = flag("--json", GENERAL, "Print one JSON document on stdout")
    quiet = flag("-q --quiet", GENERAL, "Hide progress messages")
    verbose = flag("-v --verbose", GENERAL, "Show more detail on stderr")

    def __init_subclass__(cls, heading: str = "", module: str = "", function: str = "") -> None:
        """`module`: the one of `clusterctl.cli` that has the verb's function; `function`: its name,
        if it is not the verb's."""
        cls.heading, cls.module, cls.function = heading, module, function

    def __init__(
        self, values: Mapping[str, Any], typed: Collection[str], settings: Mapping[str, str]
    ) -> None:
        """`values` by key; `typed`: the keys on the command line; `settings`: where the others are
        set, "" for a setting that is for all verbs."""
        self.values, self.typed, self.settings = dict(values), frozenset(typed), settings

    @classmethod
    @cache
    def options(cls) -> Mapping[str, Option[Any]]:
        """By key: arguments and the verb's own options first, what all verbs share last."""
        found: dict[str, Option[Any]] = {}
        for owner in cls.__mro__:
            for member in vars(owner).values():
                for option in member if isinstance(member, tuple) else (member,):
                    if isinstance(option, Option):
                        found.setdefault(option.key, option)
        return found

    @classmethod
    @cache
    def spellings(cls) -> Mapping[str, Option[Any]]:
        """By flag."""
        return {flag: option for option in cls.options().values() for flag in option.flags}

    @classmethod
    def arrange(cls, words: list[str]) -> list[str]:
        """The words after the verb as the parser needs them."""
        return words

    @classmethod
    def read_word(cls, word: str) -> tuple[str, bool]:
        """The last option that a word gives, and whether its value stands in the word, too:
        `-m` and False in `-qm`, `-n` and True in `-n4`."""
        flags = cls.spellings()
        if word in flags or word.startswith("--"):
            return word.partition("=")[0], "=" in word
        for at, letter in enumerate(word[1:], start=2):
            option = flags.get(f"-{letter}")
            if option is None or not option.is_flag:
                return f"-{letter}", at < len(word)
        return word[:1] + word[-1:], False

    @classmethod
    def count_words(cls, word: str) -> int:
        """How many words an option has with its value; 1 for what is none of ours."""
        flag, complete = cls.read_word(word)
        option = cls.spellings().get(flag)
        wanted = 0 if option is None or option.is_flag else option.words
        return 1 if complete else 1 + wanted

    @classmethod
    def count_leading(cls, words: list[str]) -> int:
        """How many of `words` are options with their values, from the first on."""
        end = 0
        while end < len(words) and words[end].startswith("-") and words[end] != "--":
            end += cls.count_words(words[end])
        return end

    def pick_fields(self, spec: type[Any]) -> dict[str, Any]:
        """What was given of the options that are fields of a dataclass, by their names."""
        names = {field.name for field in fields(spec)}
        given = ((item, self.values[key]) for key, item in self.options().items())
        return {
            item.attribute: value
            for item, value in given
            # 0 is a value where nothing given is None: `--idle off`.
            if item.attribute in names and (value or value != item.empty)
        }

    def pick_options(self, verb: type[Given], **values: Any) -> Given:
        """What was given of another verb's options, by their keys, and `values` besides."""
        own = self.options()
        taken = {
            key: self.values[key] if own.get(key) is item else item.empty
            for key, item in verb.options().items()
        }
        return verb({**taken, **values}, self.typed, self.settings)

    def apply_limits(
        self: Given, circumstances: Collection[str], note: Callable[[str], None], place: str = ""
    ) -> Given:
        """What was given, as it holds in these circumstances (see `limits`). An option that
        has no effect there is a UsageError. A setting is a default for many command lines: where it
        has no effect it is left out, with a note if it was made for this verb.

        Args:
            place: Says which of the circumstances are those of a cluster, for people.
        """
        found = copy.copy(self)
        found.values = dict(self.values)
        for key, option in self.options().items():
            failing = next(
                (limit for limit in option.limits if not limit.holds(circumstances)), None
            )
            if failing and failing.free and self.values[key] == failing.free:
                continue
            if failing is None or not self.values[key] or key not in {*self.typed, *self.settings}:
                continue
            why = failing.says + (f"; {place}" if place and failing.only else "")
            if key in self.typed:
                raise UsageError(
                    f"{option.flag} {why}", hint=failing.suggest_instead(circumstances)
                )
            if self.settings[key]:
                note(f"ignoring {self.settings[key]}: it {why}")
            found.values[key] = option.empty
        return found


def cluster_option(
    *limits: Limit, help: str = "Name of the cluster (default: the only one)"
) -> Option[str | None]:
    env, check = "CLUSTERCTL_CLUSTER", cluster_name
    return maybe("-c --cluster", GENERAL, help, "NAME", check=check, limits=limits, env=env)


def name_argument(default: str) -> Option[str | None]:
    help = f"Name of the cluster (default: {default})"
    return maybe("", ARGUMENTS, help, "[NAME]", check=cluster_name)


class Common(Verb):
    cluster = cluster_option()


class Named(Common):
    """A verb that also takes the cluster's name as its argument."""

    name = name_argument("the only one")

    def choose_name(self) -> str | None:
        """The cluster's name as the argument or as --cluster says it. UsageError where this command
        line has both; a name in the settings or the environment gives way to the argument."""
        name, other = self.name, self.cluster
        if name and other and name != other and "cluster" in self.typed:
            raise UsageError(
                f"two cluster names given: {name!r} and --cluster {other!r}", hint="give only one"
            )
        return name or other
