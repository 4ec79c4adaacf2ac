"""Where options have an effect: for command lines, settings and stored jobs.

An option without limits (see `options`) works wherever its verb does. One with limits is refused
(exit 2) where it would have no effect; a setting is ignored there, with a note. Circumstances are
words: a provider (`local`, `ec2`), what runs jobs (`direct`, `slurm`), what is to be done (`emit`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from clusterctl.options.provider_options import join_titles, join_words, list_takers

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
