"""Variables for the ranks, from --env and --env-file, and which of them are secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from shlex import quote

from clusterctl.core.text import read_input
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
# Which environment variables the programs that clusterctl starts may read. Pure.
#
# A person's shell, a git hook or a batch job sets variables that mean something to git, sbatch or
# mpirun, and so would change what our command lines mean. Of what a program documents as input, it
# gets what `passes` names; variables that it does not document are no input of it.


@dataclass(frozen=True, slots=True)
class Inputs:
    """Patterns of names, as a shell's `case` has them. `passes`: with the reason. `never`: not even
    where `passes` matches, with the reason."""

    reads: tuple[str, ...]
    passes: Mapping[str, str]
    never: Mapping[str, str]

    def is_foreign(self, name: str) -> bool:
        def is_among(patterns: Collection[str]) -> bool:
            return any(fnmatchcase(name, pattern) for pattern in patterns)

        return is_among(self.never) or (is_among(self.reads) and not is_among(self.passes))


def _list_inputs(
    *reads: str, passes: Mapping[str, str], never: Mapping[str, str] | None = None
) -> Inputs:
    return Inputs(reads, passes, never or {})


_GIT = {
    "GIT_CONFIG_GLOBAL": "the person's configuration, such as safe.directory",
    "GIT_CONFIG_SYSTEM": "the machine's",
    "GIT_CONFIG_NOSYSTEM": "the machine's",
    "GIT_CONFIG_COUNT": "set by people and CI; git itself hands `-c` on in GIT_CONFIG_PARAMETERS",
    "GIT_CONFIG_KEY_*": "as GIT_CONFIG_COUNT",
    "GIT_CONFIG_VALUE_*": "as GIT_CONFIG_COUNT",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM": "without it, git does not find the repository",
    "GIT_ASKPASS": "credentials",
    "GIT_TERMINAL_PROMPT": "whether git asks for them",
    "GIT_SSH*": "how to reach servers",
    "GIT_SSL_*": "certificates",
    "GIT_HTTP_*": "network",
    "GIT_PROXY_*": "network",
    "GIT_ALLOW_PROTOCOL": "network",
}
_SLURM = {
    "SLURM_CONF": "where the configuration is",
    "SLURM_CONF_SERVER": "where the configuration is",
    "SLURM_JWT": "credentials",
    "SLURM_PMIX_*": "how srun's PMIx works at this site",
    "SLURM_CLUSTERS": "the cluster of a site with several, for all commands alike",
}
SBATCH = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_WCKEY": "wckey",
}
"""Where people want their jobs to run by default, and the options of `run` that win: of the two,
sbatch would take the variable."""
_STEP = (
    *("SLURM_ACCOUNT", "SLURM_ACCTG_FREQ", "SLURM_BCAST", "SLURM_BCAST_EXCLUDE"),
    *("SLURM_BURST_BUFFER", "SLURM_CLUSTER_CONSTRAINT", "SLURM_COMPRESS"),
    *("SLURM_CONSTRAINT", "SLURM_CONTAINER", "SLURM_CORE_SPEC", "SLURM_CPU_BIND"),
    *("SLURM_CPU_FREQ_REQ", "SLURM_DEBUG", "SLURM_DEBUG_FLAGS", "SLURM_DELAY_BOOT"),
    *("SLURM_DEPENDENCY", "SLURM_DISABLE_STATUS", "SLURM_DIST_PLANESIZE", "SLURM_DISTRIBUTION"),
    *("SLURM_EPILOG", "SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_EXIT_ERROR"),
    *("SLURM_EXIT_IMMEDIATE", "SLURM_EXPORT_ENV", "SLURM_GPU_FREQ", "SLURM_GRES"),
    *("SLURM_GRES_FLAGS", "SLURM_HINT", "SLURM_HOSTFILE", "SLURM_IMMEDIATE"),
    *("SLURM_KILL_BAD_EXIT", "SLURM_LABELIO", "SLURM_MEM_BIND", "SLURM_MPI_TYPE"),
    *("SLURM_MULTI", "SLURM_NCORES_PER_SOCKET", "SLURM_NETWORK", "SLURM_NO_KILL"),
    *("SLURM_NSOCKETS_PER_NODE", "SLURM_OPEN_MODE", "SLURM_OVERCOMMIT", "SLURM_OVERLAP"),
    *("SLURM_PARTITION", "SLURM_PMI_KVS_NO_DUP_KEYS", "SLURM_POWER", "SLURM_PROFILE"),
    *("SLURM_PROLOG", "SLURM_QOS", "SLURM_REMOTE_CWD", "SLURM_REQ_SWITCH", "SLURM_RESERVATION"),
    *("SLURM_RESV_PORTS", "SLURM_SEND_LIBS", "SLURM_SIGNAL", "SLURM_SPREAD_JOB"),
    *("SLURM_SRUN_MULTI", "SLURM_SRUN_REDUCE_TASK_EXIT_MSG", "SLURM_STDERRMODE"),
    *("SLURM_STDINMODE", "SLURM_STDOUTMODE", "SLURM_STEP_GRES", "SLURM_STEP_KILLED_MSG_NODE_ID"),
    *("SLURM_TASK_EPILOG", "SLURM_TASK_PROLOG", "SLURM_TEST_EXEC", "SLURM_THREADS"),
    *("SLURM_THREAD_SPEC", "SLURM_THREADS_PER_CORE", "SLURM_TIMELIMIT", "SLURM_UNBUFFEREDIO"),
    *("SLURM_USE_MIN_NODES", "SLURM_WAIT", "SLURM_WAIT4SWITCH", "SLURM_WCKEY"),
    *("SLURM_WORKING_CLUSTER", "SLURM_WORKING_DIR", "SRUN_CONTAINER", "SRUN_CPUS_PER_TASK"),
    *("SRUN_DEBUG", "SRUN_EXPORT_ENV"),
)
"""What srun reads in a job, less what says which nodes and shares of them the job has."""
IN_JOB = "srun in a job"
_MPI_LIBRARY = (
    *("accelerator", "allocator", "bml", "btl", "coll", "common", "fbtl", "fcoll", "fs", "hook"),
    *("io", "memory", "mpi", "mpool", "mtl", "op", "opal", "osc", "part", "patcher", "pml"),
    *("rcache", "reachable", "sharedfp", "shmem", "smsc", "topo", "vprotocol"),
)

PROGRAMS: dict[str, Inputs] = {
    # git(1), ENVIRONMENT VARIABLES. Hooks, `rebase --exec` and aliases get a repository's.
    "git": _list_inputs("GIT_*", passes=_GIT),
    # ssh(1), ENVIRONMENT
    "ssh": _list_inputs(
        "SSH_*",
        passes={
            "SSH_AUTH_SOCK": "credentials",
            "SSH_ASKPASS*": "credentials",
            "SSH_SK_*": "credentials",
            "SSH_PKCS11_HELPER": "credentials",
        },
    ),
    # https://developer.hashicorp.com/terraform/cli/config/environment-variables
    "terraform": _list_inputs(
        "TF_*",
        "TOFU_*",
        "TERRAFORM_CONFIG",
        "CHECKPOINT_DISABLE",
        passes={
            "TF_CLI_CONFIG_FILE": "mirrors and credentials",
            "TERRAFORM_CONFIG": "as TF_CLI_CONFIG_FILE",
            "TF_TOKEN_*": "credentials",
            "TF_PLUGIN_CACHE_*": "where downloads are kept",
            "TF_REGISTRY_*": "network",
            "TF_PROVIDER_DOWNLOAD_RETRY": "network",
            "TF_ENCRYPTION": "of the state, with tofu",
            "TF_REATTACH_PROVIDERS": "a provider that somebody debugs",
        },
    ),
    # https://docs.docker.com/reference/cli/docker/#environment-variables, BuildKit's and Buildx's
    "docker": _list_inputs(
        *("DOCKER_*", "BUILDKIT_*", "BUILDX_*", "COMPOSE_*"),
        passes={
            "DOCKER_HOST": "which engine",
            "DOCKER_CONTEXT": "which engine",
            "DOCKER_CONFIG": "credentials",
            "DOCKER_AUTH_CONFIG": "credentials",
            "DOCKER_CERT_PATH": "credentials",
            "DOCKER_TLS": "how to reach the engine",
            "DOCKER_TLS_VERIFY": "how to reach the engine",
            "DOCKER_API_VERSION": "how to reach the engine",
            "DOCKER_CUSTOM_HEADERS": "how to reach the engine",
            "DOCKER_CONTENT_TRUST*": "which images people trust",
            "BUILDX_CONFIG": "credentials",
        },
    ),
    # https://docs.astral.sh/uv/reference/environment/
    "uv": _list_inputs(
        *("UV_*", "VIRTUAL_ENV", "CONDA_*", "PYTHONPATH", "PYTHONHOME", "RUST_*", "TRACING_*"),
        "GIT_*",
        passes={
            **_GIT,
            "UV_*INDEX*": "indexes and their credentials",
            "UV_FIND_LINKS": "indexes",
            "UV_TORCH_BACKEND": "indexes",
            "UV_KEYRING_PROVIDER": "credentials",
            "UV_CREDENTIALS_DIR": "credentials",
            "UV_GITHUB_*": "credentials",
            "UV_*_ENDPOINT_URL": "credentials",
            "UV_CONFIG_FILE": "the person's settings",
            "UV_NO_CONFIG": "the person's settings",
            "UV_CACHE_DIR": "where downloads are kept",
            "UV_NO_CACHE": "where downloads are kept",
            "UV_LINK_MODE": "where downloads are kept",
            "UV_HTTP_*": "network",
            "UV_REQUEST_TIMEOUT": "network",
            "UV_CONCURRENT_*": "network",
            "UV_OFFLINE": "network",
            "UV_INSECURE_*": "certificates",
            "UV_NATIVE_TLS": "certificates",
            "UV_SYSTEM_CERTS": "certificates",
            "UV_GIT_LFS": "network",
            "UV_NO_BUILD*": "whether foreign code may run here",
            "UV_EXCLUDE_NEWER*": "which versions people want",
            "UV_CONSTRAINT": "which versions people want",
            "UV_OVERRIDE": "which versions people want",
            "UV_BUILD_CONSTRAINT": "which versions people want",
            "UV_EXCLUDE": "which versions people want",
            "UV_PRERELEASE": "which versions people want",
            "UV_RESOLUTION": "which versions people want",
        },
    ),
    # sbatch(1), INPUT ENVIRONMENT VARIABLES, and those of squeue, scancel, scontrol, sacct, sinfo.
    # A job gets the whole environment: what was srun's input outside would be so within.
    "sbatch": _list_inputs(
        *("SBATCH_*", "SLURM_*", "SRUN_*", "SALLOC_*", "SQUEUE_*", "SCANCEL_*", "SCONTROL_*"),
        *("SACCT_*", "SINFO_*"),
        passes={**_SLURM, **SBATCH},
    ),
    # srun(1), INPUT ENVIRONMENT VARIABLES: where it asks for nodes, and IN_JOB, where it has them
    "srun": _list_inputs(
        *("SLURM_*", "SRUN_*", "SALLOC_*"),
        passes={**_SLURM, **{name.replace("SBATCH", "SLURM"): why for name, why in SBATCH.items()}},
    ),
    IN_JOB: _list_inputs(*_STEP, passes={}),
    # sge_intro(1), qsub(1), qstat(1)
    "qsub": _list_inputs(
        "SGE_*",
        passes={
            "SGE_ROOT": "where the configuration is",
            "SGE_CELL": "where the configuration is",
            "SGE_CLUSTER_NAME": "where the configuration is",
            "SGE_QMASTER_PORT": "where the configuration is",
            "SGE_EXECD_PORT": "where the configuration is",
            "SGE_ARCH": "where the programs are",
        },
    ),
    # mpirun(1): parameters by environment. Ranks inherit what passes.
    "mpirun": _list_inputs(
        *("OMPI_MCA_*", "PRTE_MCA_*", "PMIX_MCA_*", "PRTE_DEFAULT_*"),
        passes={
            f"OMPI_MCA_{name}{end}": "MPI's own, for ranks"
            for name in _MPI_LIBRARY
            for end in ("", "_*")
        },
        never={"OMPI_MCA_btl_tcp_if_exclude": "MPI refuses it beside btl_tcp_if_include, ours"},
    ),
    # What other launchers and batch systems have told whoever starts a job of ours from inside one
    # of theirs: its ranks would believe whose rank, size and servers these are.
    "ranks": _list_inputs(
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE"),
        *("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR"),
        *("MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_RANK", "PMI_SIZE", "PMI_FD", "PMI_ID"),
        *("PMI_PORT", "PMI_JOBID", "PMI_SPAWNED", "PMI_APPNUM", "PMI_PROCESS_MAPPING"),
        *("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", "PMI_UNIVERSE_SIZE", "CLUSTERCTL_RANK"),
        *("CLUSTERCTL_WORLD_SIZE", "CLUSTERCTL_POINT", "CLUSTERCTL_POINTS", "CLUSTERCTL_SWEEP_*"),
        *("TORCHELASTIC_*", "OMPI_*", "PMIX_*", "PRTE_*", "PMI_CONTROL_*", "HYDI_*"),
        *("MV2_COMM_WORLD_*", "JSM_NAMESPACE_*", "ALPS_APP_*", "PALS_*", "FLUX_*", "PBS_*"),
        *("LSB_*", "LSF_PM_*", "COBALT_*"),
        passes=dict.fromkeys(("OMPI_MCA_*", "PMIX_MCA_*", "PRTE_MCA_*"), "settings: see mpirun"),
    ),
    "ranks outside Slurm": _list_inputs("SLURM_*", "SLURMD_*", passes=_SLURM),
    "ranks outside Grid Engine": _list_inputs(
        *("JOB_ID", "PE_HOSTFILE", "NSLOTS", "NHOSTS", "NQUEUES", "SGE_TASK_*"), passes={}
    ),
    "a process without mpirun": _list_inputs("OMPI_*", "PMIX_*", "PRTE_*", passes={}),
}
_SAME = {
    **dict.fromkeys(("scp", "sftp", "ssh-keygen", "ssh-keyscan", "ssh-add"), "ssh"),
    "tofu": "terraform",
    **dict.fromkeys(("squeue", "scancel", "scontrol", "sacct", "sinfo"), "sbatch"),
    **dict.fromkeys(("qstat", "qdel", "qacct", "qrsh", "qconf"), "qsub"),
    "mpiexec": "mpirun",
}


def select(program: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What that program gets of an environment."""
    inputs = PROGRAMS.get(_SAME.get(program, program))
    if inputs is None:
        return dict(environment)
    return {name: value for name, value in environment.items() if not inputs.is_foreign(name)}


def write_unset(program: str, without: Collection[str] = ()) -> str:
    """The same as a line of sh, for scripts that start it. `without`: variables of `passes` that do
    not pass this time. It starts no process where there is nothing to remove."""
    inputs = PROGRAMS.get(program, Inputs((), {}, {}))
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
