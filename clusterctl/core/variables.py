"""Variables for the ranks, from --env and --env-file, and which of them are secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from shlex import quote

from msgspec import Struct

from clusterctl.core.text import read_input, read_table
from clusterctl.errors import UsageError

SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
"""Names of variables whose values are nobody's business."""
NAME = r"[A-Za-z_][A-Za-z0-9_]*"
OURS = ("CLUSTERCTL_JOB", "CLUSTERCTL_NODE", "CLUSTERCTL_RANK", "CLUSTERCTL_ATTEMPT")
"""Variables by which processes of a job and of a node are found again."""
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "CLUSTERCTL_WORLD_SIZE")
"""Variables that say to each rank which one it is, and how many there are."""
STARTERS = (
    r"OMPI_COMM_WORLD_\w+|PMIX_(?!MCA_|DEBUG|PREFIX$|INSTALL_PREFIX$)\w+"
    r"|PMI_(RANK|SIZE|ID|FD|PORT|JOBID|LOCAL_RANK|LOCAL_SIZE)|MPI_LOCAL(RANKID|NRANKS)"
    r"|SLURM_(PROCID|LOCALID|NODEID)"
)
"""Variables by which mpirun and srun say the same. Others of theirs are settings: PMIX_MCA_gds."""
_NAMES = "names consist of letters, digits and _, and do not begin with a digit"


def read_variables(
    pairs: Iterable[str], files: Iterable[Path]
) -> tuple[dict[str, str], dict[str, str]]:
    """Variables and secrets: from a file, all are secrets; else the name decides."""
    variables: dict[str, str] = {}
    secrets: dict[str, str] = {}
    for path in files:
        text = read_input(
            path,
            f"--env-file {path}",
            hint="check the path and its permissions; the file is text with NAME=VALUE lines",
        )
        for number, line in enumerate(text.splitlines(), 1):
            line = line.strip().removeprefix("export ")
            if line and not line.startswith("#"):
                name, sign, value = line.partition("=")
                if not sign or not re.fullmatch(NAME, name):
                    # The line may be the secret itself: it is not repeated.
                    raise UsageError(f"{path}, line {number} is not NAME=VALUE", hint=_NAMES)
                secrets[name] = _unquote(value)
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not re.fullmatch(NAME, name):
            raise UsageError(f"--env {name!r} is not NAME=VALUE", hint=_NAMES)
        if not sign:
            if name not in os.environ:
                raise UsageError(
                    f"--env {name}: the variable is not set here", hint=f"--env {name}=VALUE"
                )
            value = os.environ[name]
        secrets.pop(name, None)
        variables.pop(name, None)
        (secrets if SECRET.search(name) else variables)[name] = value
    for name, value in (*variables.items(), *secrets.items()):
        if not value.isascii() and value != value.encode(errors="replace").decode():
            raise UsageError(f"the value of {name} is not UTF-8", hint="pass it through a file")
        if name in OURS:
            raise UsageError(f"{name} is reserved by clusterctl", hint="choose another name")
        if name in RANKS or re.fullmatch(STARTERS, name):
            raise UsageError(
                f"{name} cannot be set: every rank gets its own",
                hint="leave it out; --ranks and --ranks-per-node choose how many ranks there are",
            )
    return variables, secrets


def _unquote(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value


# -------------------------------------------------------------------------------------------------
# Which environment variables the programs that clusterctl starts may read: programs.toml.


class Inputs(Struct, frozen=True):
    """Patterns of names, as a shell's `case` has them."""

    reads: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    same: tuple[str, ...] = ()

    def is_foreign(self, name: str) -> bool:
        def is_among(patterns: Collection[str]) -> bool:
            return any(fnmatchcase(name, pattern) for pattern in patterns)

        return is_among(self.never) or (is_among(self.reads) and not is_among(self.passes))


SBATCH = {
    "SBATCH_TIMELIMIT": "time",
    **{
        f"SBATCH_{name.upper()}": name
        for name in ("account", "constraint", "partition", "qos", "reservation", "wckey")
    },
}
"""Where people want their jobs to run by default, and the options of `run` that win: of the two,
sbatch would take the variable."""


@cache
def _read_programs() -> Mapping[str, Inputs]:
    found: dict[str, Inputs] = {}
    for name, row in read_table("programs").items():
        inputs = Inputs(**{key: tuple(patterns) for key, patterns in row.items()})
        found |= dict.fromkeys((name, *inputs.same), inputs)
    return found


def select(program: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What that program gets of an environment."""
    inputs = _read_programs().get(program, Inputs())
    return {name: value for name, value in environment.items() if not inputs.is_foreign(name)}


def write_unset(program: str, without: Collection[str] = ()) -> str:
    """The same as a line of sh, for scripts that start it. `without`: variables of `passes` that do
    not pass this time. It starts no process where there is nothing to remove."""
    inputs = _read_programs().get(program, Inputs())
    names = [name for name in (*inputs.reads, *inputs.never, *without) if "*" not in name]
    patterns = [name for name in inputs.reads if "*" in name]
    seen = "|".join(f"*{quote(' ' + pattern[:-1])}*" for pattern in patterns)
    passing = "|".join(name for name in inputs.passes if name not in without)
    named = f"unset {' '.join(names)}" if names else ":"
    if not patterns:
        return named
    every = "awk 'BEGIN { for (n in ENVIRON) if (n ~ /^[A-Za-z_][A-Za-z0-9_]*$/) print n }'"
    choose = f"{passing}) ;; " if passing else ""
    choose += f'{"|".join(patterns)}) unset "$cctl_name" ;;'
    loop = f"for cctl_name in $({every}); do case $cctl_name in {choose} esac; done"
    return f"{named}; case $(export -p) in {seen}) {loop} ;; esac"


_SHELLS_OWN = (
    "BASHOPTS|BASHPID|BASH_(ALIASES|ARGC|ARGV0?|CMDS|COMMAND|COMPAT|LINENO|LOADABLES_PATH|"
    "MONOSECONDS|REMATCH|SOURCE|SUBSHELL|TRAPSIG|VERSINFO|XTRACEFD)|COMP_WORDBREAKS|DIRSTACK|"
    "EPOCH(REALTIME|SECONDS)|EUID|FUNC(NAME|NEST)|GROUPS|HISTCMD|IFS|LANG|LANGUAGE|LC_.*|LINENO|"
    "OLDPWD|OPTARG|OPTERR|OPTIND|PIPESTATUS|POSIXLY_CORRECT|PPID|PWD|RANDOM|SECONDS|SHELLOPTS|"
    "SHLVL|SRANDOM|TEXTDOMAIN|TEXTDOMAINDIR|UID|_"
)
"""A shell has uses of its own for these: it would refuse a value, change it or act on it."""


def write_exports(variables: Iterable[tuple[str, str]]) -> str:
    """Lines of sh that set them."""
    rows = [(name, value) for name, value in variables if not re.fullmatch(_SHELLS_OWN, name)]
    return "".join(f"export {name}={quote(value)}\n" for name, value in rows)


def write_unseen(variables: Iterable[tuple[str, str]]) -> str:
    """Those that no shell may see, as words for `env`."""
    rows = [(name, value) for name, value in variables if re.fullmatch(_SHELLS_OWN, name)]
    return "".join(quote(f"{name}={value}") + " " for name, value in rows)


# -------------------------------------------------------------------------------------------------
# Secrets in what is shown or kept: what gives them away, and `***` in their place. Pure.


# These are compiled when they are first used: every command loads this module, and few need it.
# Lines may be megabytes long (minified code, data): each part of a pattern has a greatest length
# or a character that begins it, so that the time goes with the length of the text.
_NAME = rf"[\w-]{{0,80}}(?:{SECRET.pattern})[\w-]{{0,80}}"
_ASSIGNMENT = rf"(?:(?<![\w-])--?[\w-]{{1,80}}=)?(?<![\w-]){_NAME}="
_OPTION = rf"(?i)((?<![\w-])--{_NAME} {{1,80}})[^\s-]\S*"
_KNOWN = (
    r"\b(AKIA|ASIA)[0-9A-Z]{16}\b([\s,:\"'=]{1,5}[A-Za-z0-9/+=]{40}(?![\w/+=]))?"
    r"|\b(ghp|gho|hf|sk|xox[bp]|glpat)[_-][\w-]{16,}|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"
    r"|\beyJ[\w-]{8,2000}\.eyJ[\w-]{8,4000}(\.[\w-]{1,2000})?"
    r"|(?<=Bearer )[\w.~+/=-]{12,4000}|(?<=Basic )[\w+/]{12,4000}={0,2}"
)
"""What is a secret by its form: keys of AWS, tokens of well-known services, passwords in URLs, web
tokens, and what an HTTP header proves its sender with."""
_KEY_FILE = r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(?:(?!-----END)[\s\S]){1,20000}"
_WORD = r"(?i)(\b(?:password|passwd|passphrase)[ \t]{0,3}:[ \t]{0,3})[^\s\"'*]\S*"
_QUOTED = rf"(?i)((?<![\w-]){_NAME}[\"']?\s{{0,80}}[:=]\s{{0,80}}[rbf]?([\"']))(?:(?!\2).)+(\2)"


def may_see_secrets(url: str) -> bool:
    """Whether what is sent to that URL is encrypted, or stays on its machine."""
    return re.match(r"(?i)https://|http://(localhost|127\.[\d.]+|\[::1\])([:/]|$)", url) is not None


def redact(text: str) -> str:
    """`NAME=value` becomes `NAME=***` where the name speaks of a secret, and so do `--name value`
    and `"name": "value"`; private keys lose what they consist of."""
    text = re.sub(_QUOTED, r"\1***\3", re.sub(_KEY_FILE, r"\1 *** ", text))
    text = re.sub(_WORD, r"\1***", text)
    text = re.sub(rf"(?i)({_ASSIGNMENT})\S+", r"\1***", text)
    return re.sub(_KNOWN, "***", re.sub(_OPTION, r"\1***", text))


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """As `redact`, for words: a value may hold blanks, or be the word after `--token`."""
    shown: list[str] = []
    hide = False
    for word in arguments:
        if found := re.match(_ASSIGNMENT, word, re.IGNORECASE):
            shown.append(f"{found[0]}***")
        else:
            shown.append(
                "***" if hide and not word.startswith("-") else re.sub(_KNOWN, "***", word)
            )
        hide = word.startswith("--") and "=" not in word and bool(SECRET.search(word))
    return shown


_SECRET_FILE = (
    r"(?i)(^|/)(\.env(\.[^/]*)?|[^/]*\.env|\.netrc|\.pgpass|\.pypirc|\.npmrc|id_(rsa|dsa|ecdsa|ed25519)"
    r"|[^/]*\.(pem|key|p12|pfx|jks|keystore|ppk)|[^/]*(credential|secret|passw)[^/]*|kubeconfig)$"
)
_PLAIN = (
    r"(?i)^([-+ ]\s{0,200}(?:export\s{1,80})?"
    r"[\w.-]{0,80}(?:TOKEN|_KEY|SECRET|PASSW|CREDENTIAL)[\w.-]{0,80}\s{0,80}[:=]\s{0,80})"
    r"(?![\s\"'({\[])[^\s()\[\]]{8,}\s*$"
)
_PRIVATE = r"-----BEGIN [A-Z ]*PRIVATE KEY-----"


def redact_patch(patch: str) -> str:
    """A patch of git without files that are there to hold secrets, and without values that are
    secrets by their name or form. Code stays as it is: `sorted(rows, key=len)`."""
    parts = re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE)
    return "".join(map(_redact_file, parts))


def _redact_file(part: str) -> str:
    head, newline, rest = part.partition("\n")
    names = re.findall(r"[ab]/(.+?)(?= b/|\"|$)", head)
    if any(re.search(_SECRET_FILE, name) for name in names) or re.search(_PRIVATE, rest):
        return f"{head}\n(left out: this file may hold secrets)\n"
    hidden = (re.sub(_QUOTED, r"\1***\3", line) for line in rest.split("\n"))
    lines = (re.sub(_PLAIN, r"\1***", line) for line in hidden)
    return head + newline + re.sub(_KNOWN, "***", "\n".join(lines))
