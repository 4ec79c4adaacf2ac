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
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, overload

from clusterctl.core.text import read_toml
from clusterctl.errors import UsageError

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
# An option without limits (see `options`) works wherever its verb does. One with limits is refused
# (exit 2) where it would have no effect; a setting is ignored there, with a note. Circumstances
# are words: a provider (`local`, `ec2`), what runs jobs (`direct`, `slurm`), what is to be done
# (`emit`).


LAUNCHER = "launcher"
"""The value of `up --shared` without an ID: the folder is made with the cluster."""

LEAVE_OUT, ONE_OF_TWO = "leave it out", "leave one of the two out"


class Limit(NamedTuple):  # every command loads it: a dataclass takes twice the time
    """`only`: one of these circumstances has to hold; None: any will do. `never`: none of these
    may. `free` is a value that may be given everywhere. `says` goes on after the option's name;
    `instead` is the hint by circumstance, where one is better than `hint`."""

    says: str
    only: frozenset[str] | None = None
    never: frozenset[str] = frozenset()
    free: str = ""
    hint: str = LEAVE_OUT
    instead: Mapping[str, str] = MappingProxyType({})

    def holds(self, circumstances: Collection[str]) -> bool:
        """Whether the option means something in these."""
        wanted = self.only is None or not self.only.isdisjoint(circumstances)
        return wanted and self.never.isdisjoint(circumstances)

    def suggest_instead(self, circumstances: Collection[str]) -> str:
        """What to do about it."""
        found = (text for word, text in self.instead.items() if word in circumstances)
        return next(found, self.hint)


class ProviderLimit(NamedTuple):
    """The limit of options that one provider owns: they work with it, and with those whose row in
    PROVIDER_OPTIONS shares them. In `says` and `hint`, `{titles}` and `{names}` are all of them."""

    owner: str
    free: str = ""
    says: str = "works only with {titles}"
    hint: str = "add --provider {names}, or leave it out"
    instead: Mapping[str, str] = MappingProxyType({})

    def resolve(self, flag: str) -> Limit:
        """The limit of that option."""
        names = list_takers(self.owner, flag)
        words = {"titles": join_titles(names), "names": join_words(names, "or")}
        return Limit(
            only=frozenset(names),
            free=self.free,
            says=self.says.format(**words),
            hint=self.hint.format(**words),
            instead=self.instead,
        )


def _limit_to(*words: str, says: str, hint: str = LEAVE_OUT) -> Limit:
    return Limit(only=frozenset(words), says=says, hint=hint)


def _exclude(*words: str, says: str, hint: str = LEAVE_OUT) -> Limit:
    return Limit(never=frozenset(words), says=says, hint=hint)


EC2 = ProviderLimit(owner="ec2")
SSH_CIDR = (
    EC2,
    _exclude(
        "instance-connect",
        says="has no effect with --instance-connect, which opens SSH to no network",
        hint=ONE_OF_TWO,
    ),
)
FILE_SYSTEM = ProviderLimit(
    owner="ec2",
    free=LAUNCHER,
    says="takes an ID only with {titles}",
    hint="add --provider {names}, or leave the ID out: --shared alone makes a folder",
)
DOCKER = ProviderLimit(owner="docker", says="works only with {titles} nodes")
RUNTIME = ProviderLimit(
    owner="ec2",
    hint=LEAVE_OUT,
    instead={"docker": "leave it out; choose the image with --image"},
)
IMAGE = (
    ProviderLimit(owner="docker"),
    _exclude("host", says="needs containers, which --runtime host does not use", hint=ONE_OF_TWO),
)

DIRECT = _limit_to(
    "direct",
    says="has no effect with a batch system",
    hint="leave it out: the queue decides when a job starts",
)
COPIED = _limit_to(
    "direct", says="has no effect with a batch system, where nodes that are lost lose no files"
)
REPLACED = _limit_to("direct", says="has no effect with a batch system", hint="use --requeue")
MPIRUN = Limit(
    only=frozenset({"direct", "mpirun"}),
    never=frozenset({"torchrun", "srun", "interactive", "once"}),
    says="works only with --launcher mpirun",
    hint="add --launcher mpirun, or leave it out",
)
SRUN = _exclude(*("mpirun", "once"), says="works only where srun starts the ranks", hint=ONE_OF_TWO)
STAGED = _exclude(
    "interactive",
    says="has no effect with --interactive, which stages and records nothing",
    hint=ONE_OF_TWO,
)
SUPERVISED = _exclude(
    "emit",
    says="is not part of an emitted script, which runs without clusterctl",
    hint="leave it out, or run the job without --emit",
)

NOT_ONCE = _exclude(
    "once", says="has no effect with --once, which starts one process", hint=ONE_OF_TWO
)
NOT_TERMINAL = _exclude(
    "terminal",
    says="cannot be combined with --interactive, whose output goes to the terminal",
    hint="leave one of the two out, or add --dry-run",
)
ENDS_ONCE = _exclude("interactive", says="has no effect with --interactive")
HERE = _exclude("here", says="has no effect: this machine is the login node")
HOSTS = _limit_to(
    "hosts",
    says="works only with --hosts",
    hint="leave it out: nothing is installed on a batch system's machines",
)
WITH_JSON = _limit_to("json", says="works only with --json", hint="add --json, or leave it out")
NO_JSON = _limit_to(says="has no effect with `data index`, whose program writes a file")
NOT_ADOPT = _exclude(
    "adopt", says="cannot be combined with --adopt, which already names the cluster"
)
ATTENDED = _exclude("detach", says="needs a clusterctl that follows the job", hint=ONE_OF_TWO)
FOLLOWED = _exclude("follow", says="cannot be combined with --follow", hint=ONE_OF_TWO)
WITH_METRICS = _limit_to(
    "metrics", says="works only with --metrics", hint="add --metrics, or leave it out"
)
NOT_METRICS = _exclude("metrics", says="cannot be combined with --metrics", hint=ONE_OF_TWO)
NOT_EXPORTED = _exclude("export", says="cannot be combined with --export", hint=ONE_OF_TWO)
NOT_FOLLOWED_OR_JSON = _exclude(
    *("follow", "json"), says="cannot be combined with --follow or --json", hint=ONE_OF_TWO
)
PUSHED = _exclude("no-push", says="has no effect with --no-push", hint=ONE_OF_TWO)
URL = _limit_to("url", says="works only with a URL", hint="leave it out")
ONLY_LOCAL_DATA = _limit_to(says="has no effect: this command works on this machine")
BUILT_HERE = _limit_to(says="has no effect: images are built on this machine")
ALL_CLUSTERS = _limit_to(says="has no effect: the line is for all clusters")
FOR_A_FOLDER = _limit_to(says="has no effect: the settings are for a folder, not for a cluster")
NOT_PRINTED = _exclude("print", says="cannot be combined with --print", hint=ONE_OF_TWO)
REAL = _limit_to("real", says="works only with --real", hint="add --real, or leave it out")
ONLY_THIS_MACHINE = _limit_to(
    says="has no effect: `check` checks this machine",
    hint="leave it out; `clusterctl status --live` checks a cluster",
)


# -------------------------------------------------------------------------------------------------
# How the text of an option becomes its value. Each check gets the text and what to call the
# option, and raises UsageError.


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


# -------------------------------------------------------------------------------------------------

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


# -------------------------------------------------------------------------------------------------
# Options that several verbs have.


JOBS = "Jobs"
"""The heading of the verbs in `run` and `jobs`."""

OPTIONS = Group("Options")
YES = flag("-y --yes", GENERAL, "Do not ask for confirmation")
JSON_LINES = flag("--json", GENERAL, "Print one JSON object per line")
LAST_JOB = Option[int | None](
    "",
    ARGUMENTS,
    "Number of the job (default: the last one)",
    "[JOB]",
    empty=None,
    check=integer(0),
)
OF_JOB = cluster_option(help="Cluster of the job (default: any)")


# -------------------------------------------------------------------------------------------------
# Settings: `clusterctl.toml` (project over user) < `CLUSTERCTL_*` variables < flags.
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
    base = os.environ.get("XDG_CONFIG_HOME")
    found = []
    try:
        user = (Path(base) if base else Path.home() / ".config") / "clusterctl" / FILE
        if user.is_file():
            found.append(user)
    except (RuntimeError, OSError):
        pass  # without a home folder there are no user settings
    try:
        here = Path.cwd()
    except OSError:
        return tuple(found)
    for folder in (here, *here.parents):
        if (folder / FILE).is_file():
            found.append(folder / FILE)
            break
    return tuple(found)


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
    """What the settings files say.

    Raises UsageError naming the file for a key that no verb has, and for a value of the wrong kind.
    """
    _check_variables(verbs)
    merged: dict[str, dict[str, Setting]] = {verb: {} for verb in verbs}
    for path in find_files():
        for verb, values in _read_settings(path, verbs).items():
            merged[verb].update(values)
    return merged


def find_settings(
    verbs: Sequence[str], options: Iterable[Option[Any]], settings: Settings
) -> dict[str, Setting]:
    """By key, what is set for options that the command line does not have: for the first of
    `verbs`, else for one that it stands for, else for all verbs."""
    found: dict[str, Setting] = {}
    for option in options:
        made = [item for verb in verbs if (item := find(verb, option, settings))]
        if made:
            found[option.key] = next((item for item in made if not item.general), made[0])
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


def find(verb: str, option: Option[Any], settings: Settings) -> Setting | None:
    """An option's value where the command line has none: a variable's, else a settings file's."""
    if not option.flags:
        return None
    for name in filter(None, (option.env, *_name_variables(verb, option))):
        if text := os.environ.get(name):
            return Setting(_read_variable(name, text, option), name, general=name == option.env)
    return settings.get(verb, {}).get(option.key)


def _name_variables(verb: str, option: Option[Any]) -> list[str]:
    return [f"{name_prefix(verb)}{key.upper()}" for key in (option.key, option.old) if key]


def name_prefix(verb: str) -> str:
    """Of the variables of a verb: shells set none with a dash in its name."""
    return f"CLUSTERCTL_{verb.upper().replace('-', '_')}_"


def _read_variable(name: str, text: str, option: Option[Any]) -> Any:
    if option.many:
        return tuple(text.split(option.separator))
    if option.is_flag:
        if text.strip().lower() not in (*_TRUE, *_FALSE):
            raise UsageError(
                f"{name}={text}: expected true or false", hint=f"{name}=1, or unset it"
            )
        return text.strip().lower() in _TRUE
    if option.alone and text.strip().lower() in (*_TRUE, *_FALSE):
        return option.alone if text.strip().lower() in _TRUE else None
    return text


_TRUE, _FALSE = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")


def _check_variables(verbs: OptionsByVerb) -> None:
    """A variable CLUSTERCTL_VERB_OPTION that no verb has is a mistake like a key of the file."""
    begin = tuple(map(name_prefix, verbs))
    given = [name for name in os.environ if name.startswith(begin)]
    if not given:
        return
    known = {
        name
        for verb, options in verbs.items()
        for option in options.values()
        for name in _name_variables(verb, option)
    }
    refused = {
        name: option.flag
        for verb, options in verbs.items()
        for option in options.values()
        if not option.settable
        for name in _name_variables(verb, option)
    }
    for name in given:
        if flag := refused.get(name):
            raise UsageError(
                f"the variable {name} cannot be used: {flag} applies to a single command",
                hint=f"unset it, and give {flag} on the command line",
            )
        if name not in known:
            close = get_close_matches(name, known, n=1)
            raise UsageError(
                f"the variable {name} sets no option of clusterctl",
                hint=f"did you mean {close[0]}?" if close else "unset it",
            )


def _read_settings(path: Path, verbs: OptionsByVerb) -> dict[str, dict[str, Setting]]:
    """One file's settings per verb; a verb's own table wins over the keys outside."""
    found: dict[str, dict[str, Setting]] = {verb: {} for verb in verbs}
    tables: dict[str, dict[str, Setting]] = {}
    for key, value in read_toml(path).items():
        if isinstance(value, dict):
            _check_known(path, key, "table", set(verbs))
            options = _index_by_key(verbs[key])
            for name in value:
                _check_settable(path, f"{key}.{name}", verbs[key].get(name))
                _check_known(
                    path, f"{key}.{name}", "key", {f"{key}.{option}" for option in options}
                )
            tables[key] = {
                options[n].key: Setting(
                    _make_value(path, n, v, options[n]), f"{n} in [{key}] of {path}"
                )
                for n, v in value.items()
            }
        else:
            by_verb = {verb: _index_by_key(options) for verb, options in verbs.items()}
            _check_settable(path, key, next((o[key] for o in verbs.values() if key in o), None))
            _check_known(path, key, "key", set().union(*by_verb.values()))
            for verb, options in by_verb.items():
                if option := options.get(key):
                    checked = _make_value(path, key, value, option)
                    found[verb][option.key] = Setting(checked, f"{key} in {path}", general=True)
    for verb, table in tables.items():
        found[verb].update(table)
    return found


def _index_by_key(options: Mapping[str, Option[Any]]) -> dict[str, Option[Any]]:
    """The options of a verb, by their present and former keys."""
    found = {option.old: option for option in options.values() if option.old}
    own = {key: option for key, option in options.items() if option.flags and option.settable}
    return {**found, **own}


def _make_value(path: Path, name: str, value: Any, option: Option[Any]) -> Any:
    """The value as the command line would have it: text, but for flags and lists."""
    if option.many:
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        wanted = "a string or a list of strings"
    elif option.is_flag:
        if isinstance(value, bool):
            return value
        wanted = "true or false"
    else:
        if option.alone and isinstance(value, bool):
            return option.alone if value else None
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return str(value)
        wanted = "a string or a number"
    raise UsageError(f"{path}: {name} = {value!r} must be {wanted}", hint="correct that line")


def _check_settable(path: Path, name: str, option: Option[Any] | None) -> None:
    if option and not option.settable:
        raise UsageError(
            f"{path}: unknown key {name!r}: {option.flag} applies to a single command",
            hint=f"remove that line, and give {option.flag} on the command line",
        )


def _check_known(path: Path, name: str, what: str, known: set[str]) -> None:
    if name in known:
        return
    close = get_close_matches(name, known, n=1)
    raise UsageError(
        f"{path}: unknown {what} {name!r}",
        hint=f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}",
    )
