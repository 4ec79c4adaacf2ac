"""What clusterctl, the supervisor of a job and its nodes say to each other, or leave in the job's
folder for each other: named tuples that both sides import.

On a connection a message is a line of JSON, an array: a word, and the fields that belong to it.
What a node says stands behind MARK, for a login shell may say something first. Both ends of a
connection are the same version of this program. Files outlive it: they name their fields.
"""

import json
import re
import signal
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

VERSION = 1
"""Of the files."""
MARK = b"@@clusterctl "
PATIENCE = 3600
"""Seconds for which a connection may be silent: a machine that has lost its power ends none."""
OWN = "own.json"
"""What is handed in of a script of the user's own, and in which folder: OwnScript."""
EARLIER, OTHERS = "earlier.json", ""
"""Of such a script: files where output goes that lay there before the job, by path:
size, time and number of the file, and whether the job appends to it; of OTHERS the last alone."""

T = TypeVar("T")


def pack(*words: object) -> bytes:
    return json.dumps(words, separators=(",", ":")).encode() + b"\n"


def unpack(line: bytes) -> List[Any]:
    """[] for what is none of ours."""
    _, mark, text = line.partition(MARK)
    return list(json.loads(text.decode())) if mark else []


def hear(read: Callable[[], T]) -> T:
    """What comes next from whoever asks. Ends this program where nothing comes for PATIENCE."""
    signal.alarm(PATIENCE)
    try:
        return read()
    finally:
        signal.alarm(0)


def spell_out(value: Any) -> Any:
    """For JSON, with the names of fields."""
    if hasattr(value, "_asdict"):
        return {name: spell_out(part) for name, part in value._asdict().items()}
    return list(map(spell_out, value)) if isinstance(value, (list, tuple)) else value


def dump(value: Any) -> str:
    return json.dumps(spell_out(value))


def load(kind: Callable[..., T], path: str) -> T:
    """What a file says that `dump` has made. Raises OSError, too."""
    with open(path) as file:
        return read(kind, json.load(file))


def read(kind: Callable[..., T], value: Any) -> T:
    """The named tuple that JSON has in order, or by name. Arrays become tuples; fields that it does
    not know are passed over. Raises LookupError, TypeError or ValueError."""
    found: T = _read(kind, value)
    return found


def _read(kind: Any, value: Any) -> Any:
    inner = getattr(kind, "__args__", None) or [Any]
    if type(None) in inner:
        return None if value is None else _read(inner[0], value)
    if hasattr(kind, "_fields"):
        types = kind.__annotations__
        if isinstance(value, dict):
            return kind(**{key: _read(types[key], value[key]) for key in types if key in value})
        return kind(*map(_read, types.values(), value))
    if isinstance(value, list):
        return tuple(_read(inner[0], part) for part in value)
    if isinstance(value, dict):
        return {name: _read(inner[-1], part) for name, part in value.items()}
    return value


# -------------------------------------------------------------------------------------------------
# plan.json: what the supervisor of a job is told. Times are in seconds, sizes in bytes.


class PlannedNode(NamedTuple):
    """The launcher, or a node with ranks. `aliases`: what mpirun and ssh may call it besides;
    `folder`: the job's there; `here`: it shares the launcher's machine."""

    name: str
    aliases: Sequence[str]
    folder: str
    here: bool


class Holder(NamedTuple):
    """A node with ranks: the first of them, and how many they are; `address`: where others find
    it."""

    name: str
    first: int
    ranks: int
    address: str = ""


class ResumePlan(NamedTuple):
    """How the snapshot is chosen that ranks go on from. `resumes`: the first attempt, too; `files`,
    `folders`, `nothing`, `refusal`: see `snapshots.Chooser`."""

    resumes: bool
    files: bool
    folders: bool
    nothing: str
    refusal: str


class MirrorPlan(NamedTuple):
    """How outputs are copied to the launcher. `largest`: of a file that `kept` does not choose, 0:
    none; `reserve`: what stays free on a disk; `interval`: between two looks, and `longest`: at
    most, however long the last copy seems to have taken: the machine may have been asleep;
    `always`: also at the end of a job that has ended before the first."""

    largest: int
    interval: float
    always: bool
    reserve: int = 1 << 30
    longest: float = 600


class JobPlan(NamedTuple):
    """`tag`: what the environment of each of its processes has; `holders`: that of rank 0 first;
    `now`: it waits for no other; `grace`: for its programs to save; `retries`: further attempts;
    `output`, `least_output`: see `Shorten`; `restores`: nodes get back what was cut short there, at
    first from the copies of the job `rerun_of`; `mirrored`: outputs are copied; `shrinks`: after
    the loss of nodes, it goes on on the others."""

    id: int
    tag: str
    root: str
    launcher: str
    nodes: Sequence[PlannedNode]
    holders: Sequence[Holder]
    ranks: int
    now: bool
    timeout: float
    retries: int
    grace: float
    hang_timeout: float
    hang_poll: float
    output: int
    least_output: int
    kept: Sequence[str]
    restores: bool
    mirrored: bool
    mirror: MirrorPlan
    resume: Optional[ResumePlan] = None
    rerun_of: Optional[int] = None
    shrinks: bool = False
    end_poll: float = 20
    """Between two looks whether mpirun waits for ranks that have all ended."""
    confirm: float = 5
    """For mpirun to notice that."""
    hang_slack: float = 10
    """A look that takes so much longer than it may says that the machine was asleep, and nothing of
    the ranks."""
    stacks_limit: float = 32
    """For a node to read the stacks of its ranks."""
    start_limit: float = 180
    """In which the first rank has to start. A launch that hangs on the wrong network would hang for
    ever; what mpirun said until then goes with the error."""
    answer_limit: float = 25
    """Beyond `grace`, for a node to answer: one whose disk hangs never does."""
    clean_poll: float = 3
    """Between two looks behind jobs whose supervisors are dead, while it waits for its turn."""
    resume_limit: float = 1800
    """For a node to send another one the snapshot that a job goes on from."""
    version: int = VERSION


class OwnScript(NamedTuple):
    """A batch script of the user's own: the options, the script and its arguments, as they go to
    the command of that batch system in that folder; "": the job's own copy of the tree."""

    words: Sequence[str]
    folder: str
    variables: Dict[str, str]
    system: str = ""


class MpirunCall(NamedTuple):
    """How an mpirun of one major version is called; `$cctl_device`, `$cctl_cidr`: those of the
    first node's address. `by_subnet`: where that device has one address; `by_device`: where it has
    more; `without_fabric`: where the first node has no fast network; `placed`: how ranks are placed
    and bound, and what the user adds."""

    words: Sequence[str]
    by_subnet: Sequence[str]
    by_device: Sequence[str]
    without_fabric: Sequence[str]
    placed: Sequence[str]


class BatchStart(NamedTuple):
    """How the ranks of a job of a batch system are started. `starter`: `auto`, `mpirun`, `srun` or
    `once`; `mpi`: srun's, as far as that was asked for; `container`: srun's options for it;
    `variables`: srun's, unless the site sets them; `calls`: of mpirun, by major version; `clean`:
    sh that removes what that would read; `fast`: what a node with a fast network has, as patterns;
    `without_mpi`: the option for programs that use none."""

    starter: str
    ranks: int
    uses_mpi: bool
    mpi: str
    container: Sequence[str]
    variables: Dict[str, str]
    calls: Dict[str, MpirunCall]
    clean: str
    fast: Sequence[str]
    without_mpi: str


class BatchPlan(NamedTuple):
    """What the agent is told that sees a job of a batch system through, or a task of its array.
    `signals`: what the system warns by, what each means, and the one that ranks get for it, "":
    SIGTERM; `notice`: seconds that they have to save then; `warn_after`: seconds until it warns
    itself, 0: it does not; `requeues`: a job that was warned goes back into the queue; `compile`:
    sh that makes the program in `folder` of the tree, "": none is made; `built`: where it is then;
    `job`: None for a task. Its nodes are not known yet."""

    system: str
    signals: Sequence[Tuple[str, str, str]]
    notice: int
    folder: str
    compile: str
    built: str
    start: BatchStart
    warn_after: float = 0
    requeues: bool = False
    job: Optional[JobPlan] = None


# -------------------------------------------------------------------------------------------------
# Words. Of a job, nodes answer with facts, ranks say some through mpirun, and whoever runs it
# appends lines to the file `state` in its folder: a word, the time in seconds since the epoch by
# the clock there, and what belongs to it. Nobody of them judges: clusterctl/batch/verdict.py does.

WordTable = Dict[str, Tuple[Callable[[str], Any], ...]]
Fact = Tuple[Any, ...]


def _read_count(text: str) -> int:
    return -1 if text == "?" else int(text)


FACTS: WordTable = {
    "survivors": (int,),  # processes of the job that are there
    "full": (),  # its disk is
    "node": (str,),  # what has come over it
    "started": (int,),  # a rank was
    "exit": (int, int, float, int),  # rank, code, when, attempt
    "oom": (int, int),  # rank, attempt: memory ran out, and the kernel killed a process there
    "told": (int, int),  # rank, attempt: it was told to end before it did
    "alone": (int, str),  # rank, digest of its arguments: it used torch, and has joined no other
}
"""What a node answers of a job: of its ranks what `out/rank-N.WORD` has. The answers to further
questions begin with the question."""

SENT: WordTable = {"start": (int, int), "exit": FACTS["exit"], "alone": (int, str, int)}
"""What a rank says through mpirun, behind `clusterctl:`. Rank and attempt are first and last."""

STATE: WordTable = {  # a line counts for the attempt before it
    # It waits for its turn, behind the jobs of these numbers (`5,6`), or is back in the queue.
    "queued": (str,),
    "running": (int,),  # this attempt starts
    # NODE:RANKS,… in rank order: of a batch system, or those that are left after a loss.
    "placed": (str,),
    "stop": (str,),  # its ranks are told to end, for one of verdict.CAUSES
    "hung": (float,),  # its ranks are ended, for none has written anything for so many seconds
    "stack": (int, str),  # where a rank stood then: a note (see core/stacks.py)
    "launcher": (int,),  # mpirun or srun has ended with this code
    "daemon": (str,),  # mpirun has lost its daemon on that node
    "first": (int, int),  # rank, code: whose end mpirun gives as its reason: a rank's, a torchrun's
    "away": (str,),  # the node does not answer now; it may later
    "started": (int,),  # so many ranks were
    "exit": (int, int, int),  # rank or point of a sweep, code, attempt
    # Node, seconds that its clock, by which `exit` has the time, was ahead of the launcher's, give
    # or take so many.
    "clock": (str, float, float),
    "point": (int, str),  # a point of a sweep was given to that node
    # Node, processes that were left there at last; `?`: it did not answer, and what ssh ended with,
    # and its last line.
    "survivors": (str, _read_count, int, str),
    "full": (str,),  # the node's disk is
    "oom": (int, int),
    "told": (int, int),
    "alone": (int, str),  # as above
    "node": (str, str),  # a node, and one of verdict.EVENTS, which has come over it
    "dead": (),  # the supervisor is gone, and nobody else writes anything
    "absent": (),  # there is no such file: the job was never handed in, or the launcher made anew
    "ended": (),  # nothing more will happen (`survivors` may follow)
}


def read_fact(words: Sequence[str], known: WordTable = FACTS) -> Fact:
    """Raises ValueError where words are missing: a full disk may have cut them off."""
    word, *said = words
    if len(said) != len(known[word]):
        raise ValueError(f"{words}: that is not all")
    return (word, *(kind(text) for kind, text in zip(known[word], said)))


def write_line(word: str, when: object, *said: object) -> str:
    """Of `state`. `when`: a number, or as it is to stand there; None: now."""
    at = when if isinstance(when, str) else f"{time.time() if when is None else when:.9f}"
    if len(said) > len(STATE[word]):
        raise ValueError(f"{word}: that is too much")
    return " ".join([word, at, *map(str, said)])


def read_line(line: str) -> Tuple[str, float, List[Any]]:
    """The word, when, and what belongs to it, as far as it is there. The last text may have blanks.
    Raises LookupError or ValueError for a line that means nothing."""
    kinds = STATE[line.split(None, 1)[0]]
    word, at, *said = line.split(None, len(kinds) + 1)
    return word, float(at), [kind(text) for kind, text in zip(kinds, said)]


# -------------------------------------------------------------------------------------------------
# What a supervisor asks a node, and what that answers.


class FollowQuestion(NamedTuple):
    """What `watch` is asked. `known`: offsets by name of file, as far as they were not said before;
    `seconds`: to wait for news; `most`: bytes of them to send."""

    known: Dict[str, int]
    seconds: float
    most: int


class FileHeader(NamedTuple):
    """Before so many bytes of a file, from `start` on, of which there are `size` by now."""

    name: str
    start: int
    length: int
    size: int


ABANDONED, END = b"D", b"E"
"""Lines in an answer: the job's supervisor is dead; that was all."""
_HEADER = re.compile(rb"F (\S+) (\d{1,18}) (\d{1,18}) (\d{1,18})")


def pack_header(header: FileHeader) -> bytes:
    return "F {} {} {} {}\n".format(*header).encode()


def read_header(line: bytes) -> Optional[FileHeader]:
    """None for any other line."""
    match = _HEADER.fullmatch(line)
    if match is None:
        return None
    return FileHeader(match.group(1).decode(errors="replace"), *map(int, match.groups()[1:]))


# -------------------------------------------------------------------------------------------------
# What goes to a store (see relay.py), and what it says.

KindTable = Dict[str, Tuple[type, ...]]

ORDERS: KindTable = {
    "manifest": (int,),  # and so many bytes: what is to be there
    "file": (str, int, int),  # digest, size, what is there of it; `data` comes until it is whole
    "data": (int,),  # and so many bytes of that file. Other orders may come in between
    "end": (),  # of the files
    "feed": (str, list),  # pass on all of the manifest, as it comes, to that node by that command
    "stop": (str,),  # passing on to that node
    "make": (str, bool),  # the folder; whether programs only read it
}
NEWS: KindTable = {
    "missing": (str, list),  # the store's name; number in the manifest, and what is there, of each
    "end": (list,),  # digests of files that did not arrive as they were sent
    "sent": (str, int),  # to that node, so many bytes so far
    "fed": (str, str),  # that node, and why it could not be; "": it has all
    "made": (),
    "error": (str,),
}


def check_kinds(words: Sequence[Any], known: KindTable) -> Sequence[Any]:
    """Raises ValueError for a word that is not known, or that something else belongs to."""
    word, *said = words
    kinds = known.get(word)
    if kinds is None or len(said) != len(kinds) or not all(map(isinstance, said, kinds)):
        raise ValueError(f"{words}: not understood")
    return words


class SnapshotWish(NamedTuple):
    """What to choose a snapshot from and for. `patterns`: what snapshots are called; `here`: so
    many of the ranks run on that node; `others`: the snapshots that other nodes have."""

    patterns: Sequence[str]
    ranks: int
    here: int
    others: Sequence[str]
    how: ResumePlan


KnownFiles = Dict[str, Tuple[int, int]]
"""Path → (bytes, modification time in nanoseconds). The time of the last change is left out: a
further link to a file changes it."""


class MirrorWish(NamedTuple):
    """For copies of outputs. `known`: what the launcher has; `room`: bytes that may come in all;
    `largest`: bytes of a file that is chosen by its size alone, 0: none is; `patterns` choose by
    name; `reserve`: bytes that stay free on the node's disk; `left`: what is known to be left
    out, as in MirrorNote."""

    known: KnownFiles
    room: int
    largest: int
    patterns: Sequence[str]
    reserve: int
    left: Tuple[int, int] = (0, 0)


class MirrorNote(NamedTuple):
    """`files`: what the launcher has with this archive; `paths`: all that there are now; `torn`: a
    program began to write to them while they were sent; `left`: how many are left out, and their
    bytes."""

    files: KnownFiles
    paths: Sequence[str]
    torn: Sequence[str]
    left: Tuple[int, int]

    @property
    def whole(self) -> bool:
        """Whether the launcher has all that there is."""
        return not (self.torn or self.left[0]) and len(self.files) == len(self.paths)


class CopiesNote(NamedTuple):
    """mirror/.NODE.json: what the launcher has of a node's outputs. All that was there at `time`,
    in seconds since the epoch, is among the `files`, but for `left`: how many, and their bytes."""

    time: float
    files: KnownFiles
    left: Tuple[int, int] = (0, 0)
