"""The kinds of options, and what is made of a declaration; verbs.py has those of all verbs.

A declaration gives the flags, the help and its heading, how a value is checked, and where the
option has an effect (see `limits`). The command line, the settings file, environment
variables and the help are all made from it. An object of a verb's class holds what was given:
`given.spot` is the checked value of `--spot`. A value goes into the field of `CloudSpec` or
`JobSpec` that has the name of its attribute, or to the batch system as it is.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache, cached_property, partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, overload

from clusterctl.core.text import read_toml
from clusterctl.errors import UsageError
from clusterctl.options import values
from clusterctl.options.values import ReadValue, cluster_name, names, one_of

# -------------------------------------------------------------------------------------------------
# What providers of `up` have on the command line, known without loading one of them.


class ProviderOptions(NamedTuple):
    """`--provider NAME` is its name in PROVIDER_OPTIONS."""

    title: str
    """Its name for people."""
    shares: frozenset[str] = frozenset()
    """The options of other providers that have an effect with it, too, as `--region`."""


PROVIDER_OPTIONS: dict[str, ProviderOptions] = {
    "local": ProviderOptions(title="local"),
    "docker": ProviderOptions(title="Docker"),
    "ec2": ProviderOptions(title="EC2", shares=frozenset({"--image"})),
}
"""The row that makes a provider known. By the same name, `providers` has NAME/provider.py with a
class NameProvider."""


def list_takers(owner: str, flag: str) -> list[str]:
    """The providers with which an option has an effect: its owner, and those that share it."""
    return [name for name, row in PROVIDER_OPTIONS.items() if name == owner or flag in row.shares]


def join_titles(names: Iterable[str]) -> str:
    """Those providers, for people."""
    return join_words([PROVIDER_OPTIONS[name].title for name in names], "and")


def join_words(words: Sequence[str], last: str) -> str:
    """`A, B and C`, where `last` is the word before the last one."""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))


# -------------------------------------------------------------------------------------------------
# Where options have an effect: for command lines, settings and stored jobs.
#
# An option without limits works wherever its verb does. One with limits is refused (exit 2) where
# it would have no effect; a setting is ignored there, with a note. Circumstances are words: a
# provider (`local`, `ec2`), what runs jobs (`direct`, `slurm`), what is to be done (`emit`).


LEAVE_OUT, ONE_OF_TWO = "leave it out", "leave one of the two out"


class Limit(NamedTuple):
    """`only`: one of these circumstances has to hold; None: any will do. `never`: none of these
    may. `says` goes on after the option's name. `owner`: the provider whose option it is; others
    share it by their row."""

    says: str
    hint: str = LEAVE_OUT
    only: frozenset[str] | None = None
    never: frozenset[str] = frozenset()
    owner: str = ""

    def holds(self, circumstances: Collection[str]) -> bool:
        """Whether the option means something in these."""
        wanted = self.only is None or not self.only.isdisjoint(circumstances)
        return wanted and self.never.isdisjoint(circumstances)

    def name_providers(self, flag: str) -> Limit:
        """As it holds for that option: `{titles}` and `{names}` are its providers."""
        if not self.owner:
            return self
        names = list_takers(self.owner, flag)
        words = {"titles": join_titles(names), "names": join_words(names, "or")}
        says, hint = (text.format(**words) for text in (self.says, self.hint))
        return self._replace(says=says, hint=hint, only=frozenset(names))


def _make_provider_limit(owner: str) -> Limit:
    says, hint = "works only with {titles}", "add --provider {names}, or leave it out"
    return Limit(says, hint, owner=owner)


def limit_to(word: str, says: str = "", hint: str = "") -> Limit:
    """For what needs another option, unless `says` names something else."""
    hint = hint or (LEAVE_OUT if says else f"add --{word}, or leave it out")
    return Limit(says or f"works only with --{word}", hint, only=frozenset({word}))


def exclude(*words: str, says: str = "", hint: str = ONE_OF_TWO) -> Limit:
    """For what cannot be combined with other options."""
    says = says or f"cannot be combined with {join_words([f'--{word}' for word in words], 'or')}"
    return Limit(says, hint, never=frozenset(words))


EC2 = _make_provider_limit("ec2")
DOCKER = _make_provider_limit("docker")
SSH_CIDR = (EC2, exclude("instance-connect"))
IMAGE = (DOCKER, exclude("host", says="needs containers, which --runtime host does not use"))

_SYSTEM = "has no effect with a batch system"
DIRECT = limit_to("direct", _SYSTEM)
REPLACED = limit_to("direct", _SYSTEM, "use --requeue")
MPIRUN = Limit(
    "works only with --launcher mpirun",
    "add --launcher mpirun, or leave it out",
    only=frozenset({"direct", "mpirun"}),
    never=frozenset({"torchrun", "srun", "interactive", "once"}),
)
SRUN = exclude("mpirun", "once", says="works only where srun starts the ranks")
STAGED = exclude("interactive")
SUPERVISED = exclude("emit")
ATTENDED = exclude("detach")
NOT_ONCE = exclude("once")
NOT_ARRAY = exclude("array")
NOT_TERMINAL = exclude(
    "terminal",
    says="cannot be combined with --interactive",
    hint="leave one of the two out, or add --dry-run",
)
HERE = exclude("here", says="has no effect: this machine is the login node", hint=LEAVE_OUT)
NEVER = Limit("has no effect with this command", only=frozenset())


# -------------------------------------------------------------------------------------------------

T = TypeVar("T")
Given = TypeVar("Given", bound="Verb")

DEFAULT_NAME = "default"


class Group(NamedTuple):
    """Options under one heading, with what most of them have in common. `native`: they go to the
    batch system as they are."""

    heading: str
    limits: tuple[Limit, ...] = ()
    native: bool = False
    lead: str = ""
    """What the help says before those that it only names."""


class Option(Generic[T]):
    """An option, or an argument where `flags` is "". On an object of a verb it is its value.

    Args:
        flags: How it is written, where that is not its name in the class: `--name`.
        group: Its heading, where that is not the last Group above it in the class.
        named: How the help names a value where `metavar` does not.
        empty: The value where none is given.
        many: May be repeated; `words`: how many words a value has.
        env: A variable that sets it, too.
        settable: Whether settings may have it. What says what one command line does is no default.
    """

    def __init__(
        self,
        help: str = "",
        metavar: str = "",
        *,
        flags: str | None = None,
        group: Group | None = None,
        named: str = "",
        empty: T,
        check: ReadValue = lambda text, option: text,
        many: bool = False,
        words: int = 1,
        limits: Limit | tuple[Limit, ...] | None = None,
        env: str = "",
        settable: bool = True,
    ) -> None:
        self.empty, self.check, self.settable = empty, check, settable
        self.metavar, self.many, self.words, self.env = metavar or named, many, words, env
        self.is_flag = empty is False
        self.attribute = ""
        self.flags = tuple((flags or "").split())
        self.group = group or (ARGUMENTS if flags == "" else OPTIONS)
        self._seeks_flag, self._seeks_group = flags is None, group is None and flags != ""
        self._help, self._limits = help, (limits,) if isinstance(limits, Limit) else limits

    def __set_name__(self, owner: type, name: str) -> None:
        self.attribute = name
        if self._seeks_flag:
            self.flags = (f"--{name.replace('_', '-')}",)
        for item in vars(owner).values() if self._seeks_group else ():
            if item is self:
                break
            self.group = item if isinstance(item, Group) else self.group

    # These are found when they are first asked for: most commands need those of few options.

    @cached_property
    def _declared(self) -> tuple[Limit, ...]:
        return self.group.limits if self._limits is None else self._limits

    @cached_property
    def limits(self) -> tuple[Limit, ...]:
        return tuple(limit.name_providers(self.flag) for limit in self._declared)

    @cached_property
    def help(self) -> str:
        return self._help + _name_providers(self._declared, self.group, self.flag)

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

    def move(self, group: Group) -> Option[T]:
        """The same option under another heading, with its limits."""
        moved = copy.copy(self)
        moved.group, moved.limits, moved.help = group, group.limits, self.help
        return moved

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


def _name_providers(declared: Iterable[Limit], group: Group, flag: str) -> str:
    """What the help says of the providers that an option works with: those that its heading does
    not name."""
    named = {limit.owner for limit in group.limits}
    owners = [limit.owner for limit in declared if limit.owner]
    takers = dict.fromkeys(name for owner in owners for name in list_takers(owner, flag))
    others = [name for name in takers if name not in named]
    return f" ({'also ' if any(named) else ''}{join_titles(others)})" if others else ""


# ------------------------------------------------------------------------------------- kinds


def choice(help: str, *known: str, empty: str = "", **more: Any) -> Option[str]:
    check = partial(one_of, known)
    return Option(help, "|".join(known), empty=empty, check=check, **more)


flag = partial(Option[bool], empty=False)
text = partial(Option[str], empty="")
texts = partial(Option[tuple[str, ...]], empty=(), many=True)
words = partial(Option[tuple[Any, ...]], named="A,B", empty=(), check=names)
"""A list of words in one, with commas."""
maybe = partial(Option[str | None], empty=None)
"""A text that may be empty: None where it is not given."""
file = partial(Option[Path | None], named="FILE", empty=None, check=values.path)
files = partial(Option[tuple[Path, ...]], named="FILE", empty=(), many=True, check=values.path)
number = partial(Option[int], named="N", empty=0, check=values.at_least_one)
"""A whole number; 0 where there is none."""
whole = partial(Option[int | None], named="N", empty=None, check=values.at_least_zero)
"""A whole number that may be 0; None where there is none."""
amount = partial(Option[float], empty=0.0)
"""A number with a fraction: of seconds, of dollars."""
span = partial(amount, named="TIME", check=values.duration)
"""A time, in seconds."""


# ------------------------------------------------------------------------------------- verbs


GENERAL, ARGUMENTS, OPTIONS = map(Group, ("General options", "Arguments", "Options"))


class Verb:
    """What every verb has: its options, in the order of its help, and their values."""

    known: ClassVar[dict[str, type[Verb]]] = {}
    """The verbs of the command line by their names, in the order of its help."""
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

    json = flag("Print one JSON document on stdout", group=GENERAL)
    quiet = flag("Hide progress messages", flags="-q --quiet", group=GENERAL)
    verbose = flag("Show more detail on stderr", flags="-v --verbose", group=GENERAL)

    def __init_subclass__(
        cls, heading: str = "", module: str = "", function: str = "", name: str = ""
    ) -> None:
        """`module`: the one of `clusterctl.cli` that has the verb's function; `function` and
        `name`: if they are not those of the class."""
        words = name or re.sub("(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()
        cls.heading, cls.module = heading, module
        cls.function = function or words.replace(" ", "_").replace("-", "_")
        if heading:
            Verb.known[words] = cls

    def __init__(
        self,
        values: Mapping[str, Any],
        typed: Collection[str] = (),
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`values` of what was given, by key; `typed`: the keys on the command line; `settings`:
        where the others are set, "" for a setting that is for all verbs."""
        self.values = {key: option.empty for key, option in self.options().items()} | {**values}
        self.typed, self.settings = frozenset(typed), settings

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
    def list_leading(cls, words: Sequence[str]) -> list[int]:
        """Where the options among `words` stand, from the first on, and where they end."""
        found, end = [0], 0
        while end < len(words) and words[end].startswith("-") and words[end] != "--":
            end += cls.count_words(words[end])
            found.append(min(end, len(words)))
        return found

    def pick_fields(self, spec: type[Any]) -> dict[str, Any]:
        """What was given of the options that are fields of a struct, by their names."""
        names = set(spec.__struct_fields__)
        given = ((item, self.values[key]) for key, item in self.options().items())
        return {
            item.attribute: value
            for item, value in given
            # 0 is a value where nothing given is None: `--idle off`.
            if item.attribute in names and (value or value != item.empty)
        }

    def pick_options(self, verb: type[Given], **values: Any) -> Given:
        """What was given of another verb's options, by their keys, and `values` besides."""
        others = verb.options()
        taken = {
            key: self.values[key] for key, it in self.options().items() if others.get(key) is it
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
            if failing is None or not self.values[key] or key not in {*self.typed, *self.settings}:
                continue
            why = failing.says + (f"; {place}" if place and failing.only else "")
            if key in self.typed:
                raise UsageError(f"{option.flag} {why}", hint=failing.hint)
            if self.settings[key]:
                note(f"ignoring {self.settings[key]}: it {why}")
            found.values[key] = option.empty
        return found


def cluster_option(
    *limits: Limit, help: str = "Name of the cluster (default: the only one)"
) -> Option[str | None]:
    more: Any = {"group": GENERAL, "check": cluster_name, "env": "CLUSTERCTL_CLUSTER"}
    return maybe(help, "NAME", flags="-c --cluster", limits=limits, **more)


def name_argument(default: str) -> Option[str | None]:
    return maybe(
        f"Name of the cluster (default: {default})", "[NAME]", flags="", check=cluster_name
    )


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


# -------------------------------------------------------------------------------------------------
# Options that several verbs have.


JOBS = "Jobs"
"""The heading of the verbs in `run` and `jobs`."""

YES = flag("Do not ask for confirmation", flags="-y --yes", group=GENERAL)
JSON_LINES = flag("Print one JSON object per line", group=GENERAL)
LAST_JOB = whole(
    "Number of the job (default: the last one)", "[JOB]", flags="", check=values.job_number
)
OF_JOB = cluster_option(help="Cluster of the job (default: any)")


# -------------------------------------------------------------------------------------------------
# Settings: `clusterctl.toml` (project over user) < variables such as CLUSTERCTL_CLUSTER < flags.
#
# The file's tables are verbs, its keys are their long options with `_` for `-`; keys outside a
# table hold for every verb that has such an option:
#
#     cluster = "lab"
#     [run]
#     backend = "mpi"
#
# Outside the tables a key is general: where such an option has no effect, it is ignored.


FILE = "clusterctl.toml"


def find_files() -> tuple[Path, ...]:
    """The settings files there are, weakest first: the user's, then the nearest one upwards."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    folders: list[Path] = []
    with suppress(OSError):  # the current folder is gone
        folders = [Path.cwd(), *Path.cwd().parents]
    nearest = (folder / FILE for folder in folders if os.path.isfile(folder / FILE))
    return tuple(
        path
        for path in (Path(base, "clusterctl", FILE), *islice(nearest, 1))
        if os.path.isfile(path)
    )


class Setting(NamedTuple):
    """A value as the command line would have it, and where it is set: `spot in [up] of PATH`.
    `general`: for every verb."""

    value: Any
    where: str
    general: bool = False


OptionsByVerb = Mapping[str, Mapping[str, Option[Any]]]
"""Each verb's options, by key."""
Settings = Mapping[str, Mapping[str, Setting]]
"""By verb and option."""


def read_settings(verbs: OptionsByVerb) -> Settings:
    """What the settings files and the variables say.

    Raises UsageError naming the place for what no verb has, and for a value of the wrong kind.
    """
    merged: dict[str, dict[str, Setting]] = {verb: {} for verb in verbs}
    for path in find_files():
        for verb, key, setting in _read_file(path, verbs):
            merged[verb][key] = setting
    for verb, options in verbs.items():
        for key, option in options.items():
            if option.env and (text := os.environ.get(option.env)):
                merged[verb][key] = Setting(text, option.env, general=True)
    return merged


def find_settings(
    verbs: Sequence[str], keys: Iterable[str], settings: Settings
) -> dict[str, Setting]:
    """By key, what is set for options that the command line does not have: for the first of
    `verbs`, else for one that it stands for, else for all verbs."""
    found: dict[str, Setting] = {}
    for key in keys:
        made = [settings[verb][key] for verb in verbs if key in settings[verb]]
        if made:
            found[key] = next((item for item in made if not item.general), made[0])
    return found


def read_values(
    options: Mapping[str, Option[Any]],
    raw: Mapping[str, Any],
    settings: Mapping[str, Setting],
    hint: str,
) -> dict[str, Any]:
    """The checked values, by key, of what was given and of `settings`. Raises UsageError."""
    values = {}
    for key, option in options.items():
        if option.required and raw[key] in (None, ()):
            raise UsageError(f"missing argument {option.metavar}", hint=hint)
        label = option.flag or option.metavar.strip("[]")
        if key in settings:
            label = settings[key].where
        else:
            option.check_given(raw[key], label)
        values[key] = option.read(raw[key], label)
    return values


def _read_file(path: Path, verbs: OptionsByVerb) -> Iterator[tuple[str, str, Setting]]:
    """One file's settings, each with its verb and option; those of a verb's own table come after
    those for all verbs, over which they win."""
    whole = read_toml(path)
    tables = {key: value for key, value in whole.items() if isinstance(value, dict)}
    general = {key: value for key, value in whole.items() if key not in tables}
    for key in tables:
        _check_known(f"{path}: unknown table {key!r}", key, dict.fromkeys(verbs))
    for verb, table in (("", general), *tables.items()):
        begin, of = (f"{verb}.", f" in [{verb}] of") if verb else ("", " in")
        takers = {verb: verbs[verb]} if verb else verbs
        known = {f"{begin}{k}": item for options in takers.values() for k, item in options.items()}
        for key, value in table.items():
            _check_known(f"{path}: unknown key {begin + key!r}", begin + key, known)
            for taker, options in takers.items():
                if option := options.get(key):
                    made = _make_value(path, key, value, option)
                    yield taker, key, Setting(made, f"{key}{of} {path}", general=not verb)


def _make_value(path: Path, name: str, value: Any, option: Option[Any]) -> Any:
    """The value as the command line would have it: text, but for flags and lists."""
    if option.many:
        found = [value] if isinstance(value, str) else value
        if isinstance(found, list) and all(isinstance(item, str) for item in found):
            return tuple(found)
        wanted = "a string or a list of strings"
    elif option.is_flag:
        if isinstance(value, bool):
            return value
        wanted = "true or false"
    else:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return str(value)
        wanted = "a string or a number"
    raise UsageError(f"{path}: {name} = {value!r} must be {wanted}", hint="correct that line")


def _check_known(what: str, name: str, known: Mapping[str, Option[Any] | None]) -> None:
    """Raises UsageError for a name that is not among those, or whose option is no default for many
    command lines."""
    option = known.get(name)
    if option and not option.settable:
        raise UsageError(
            f"{what}: {option.flag} applies to a single command",
            hint=f"remove it, and give {option.flag} on the command line",
        )
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
        raise UsageError(what, hint=hint)
