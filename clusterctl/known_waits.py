"""What a thread waits for, by the functions that it is in, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wait:
    """`text` goes on after a comma: what it waits for. `advice`: what to do if that never ends."""

    text: str
    advice: str = ""


SLEEP = Wait(
    "sleeping",
    "look at that line: what it waits for may never come, such as a file that another node has"
    " written into its own folder, or a download from a node without internet",
)
LOCK = Wait(
    "waiting for a lock that another thread holds",
    "find the thread that holds the lock: two threads that take two locks must take them in the"
    " same order",
)
OWN_LOCK = Wait(
    "waiting for a lock, while no other thread or process of it runs",
    "it has most likely taken this lock itself before: a threading.Lock cannot be taken twice (use"
    " threading.RLock); or what held it has ended, or was not copied by a fork",
)
CHILD = Wait(
    "waiting for a child process",
    "look at what the child does; one whose output is a pipe blocks when nothing reads it: use"
    " communicate() instead of wait()",
)
NETWORK = Wait(
    "waiting for the network",
    "check that the other end answers, and give the call a timeout; download once, before the"
    " ranks start",
)
FILE_LOCK = Wait(
    "waiting for a lock on a file",
    "find the process that holds the lock: it must release it before it waits for other ranks",
)
LOCK_FILE = Wait(
    "waiting for a lock file to be removed",
    "find the process that made it; one that was killed has left it behind: remove it (that of"
    " torch.utils.cpp_extension is `lock` in ~/.cache/torch_extensions/…)",
)
OPENING = Wait(
    "waiting to open a file",
    "a FIFO opens only when another process opens its other end; else the file system does not"
    " answer",
)
READING = Wait(
    "waiting to read or write",
    "check what is at the other end of the file, the pipe or the terminal",
)
QUEUE = Wait(
    "waiting for a queue",
    "look at the thread or process at the other end of the queue: it may have ended with an"
    " exception",
)
THREAD = Wait("waiting for another thread", "look at what that thread does, or why it has ended")
POOL = Wait(
    "waiting for a worker of a pool",
    "look at the workers: one that was killed, or that has forked while a thread held a lock, never"
    " answers",
)
LOADER = Wait(
    "waiting for a worker of its data loader",
    "look at the line of the worker; with num_workers=0 the rank itself loads the data",
)
ASYNC = Wait("waiting in an asyncio loop", "look at what the coroutine awaits")
STORE = Wait(
    "waiting for a key of PyTorch's store",
    "look at the key: `get` and `wait` end when another rank has set the same name",
)
SIGNAL = Wait("waiting for a signal", "look at what is to send the signal")
DATABASE = Wait(
    "waiting for a lock of an SQLite database",
    "another connection has a transaction open: let it commit before it waits for other ranks, or"
    " give each rank a file of its own",
)
ANYTHING = Wait("waiting for a socket, a pipe or another process")

_CALLERS = (
    (r"c10d::\w*Store::(wait|get|doWait|doGet)", STORE),
    (r"sqlite\w*Busy\w*", DATABASE),
)
"""In C: they say more than the functions that they wait in."""
_FUNCTIONS = (
    (r"(clock_)?nanosleep|(py)?time_sleep", SLEEP),
    (
        r"(lock_)?PyThread_acquire\w*|sem_(timed|clock)?wait|do_futex_wait\w*|(__)?lll_lock_wait\w*"
        r"|pthread_mutex_lock|rlock_acquire\w*",
        LOCK,
    ),
    (r"flock|lockf(64)?|fcntl_(flock|lockf)\w*", FILE_LOCK),
    (r"waitpid|wait4|waitid", CHILD),
    (r"(__)?(sigtimedwait|sigwait(info)?|sigsuspend|pause)", SIGNAL),
    (r"accept4?|recv(from|msg)?|connect|sendmsg", NETWORK),
)
"""In C."""
_UNCLEAR = (
    (r"open(64|at|at64)?", OPENING),
    (r"(__)?(read|pread64|write|pwrite64)", READING),
    (r"poll|ppoll|select|epoll_wait|epoll_pwait", ANYTHING),
)
"""In C: the kernel may know more."""
_LIBRARIES = (
    (r"\w*(wait|result)\w*", r"concurrent/futures/", THREAD),
    (r"join|wait\w*", r"/threading\.py", THREAD),
    (r"get|put", r"/queue\.py|/multiprocessing/queues\.py", QUEUE),
    (r"get|wait", r"/multiprocessing/pool\.py", POOL),
    (r"_next_data|_get_data|_try_get_data", r"torch/utils/data/dataloader\.py", LOADER),
    (r"run_until_complete|run_forever|_run_once", r"/asyncio/", ASYNC),
    (r"\w+", r"/subprocess\.py", CHILD),
    (r"join|wait|poll", r"/multiprocessing/(process|popen_fork)\.py", CHILD),
    (r"\w+", r"/http/client\.py|/ssl\.py|/urllib3/", NETWORK),
    (r"\w*acquire\w*", r"/filelock/", FILE_LOCK),
    (r"wait", r"torch/utils/file_baton\.py", LOCK_FILE),
)
"""Of Python libraries, by function and file. The outermost counts: a queue waits with a lock."""


def explain(native: Iterable[str], libraries: Iterable[tuple[str, str]]) -> Wait | None:
    """`native`: functions in C, innermost first; `libraries`: names and files of Python functions
    around them that are not the program's own, innermost first."""
    for name, file in reversed(tuple(libraries)):
        for pattern, path, wait in _LIBRARIES:
            if re.fullmatch(pattern, name.rpartition(".")[2]) and re.search(path, file):
                return wait
    names = tuple(native)
    return _find_first(names, _CALLERS) or _find_first(names, _FUNCTIONS)


def guess(native: Iterable[str]) -> Wait | None:
    """The same by functions that wait for many things."""
    return _find_first(native, _UNCLEAR)


_KERNEL = (
    (r"((do|hrtimer|clock|common|alarm_timer)_)?n(ano)?sleep", SLEEP),
    (r"(do_)?futex(_\w+)?", Wait("waiting for another thread or a lock")),
    (r"(do_sys_|do_|core_sys_)?(p?poll|p?select\d?)|poll_schedule_timeout", ANYTHING),
    (r"(do_)?ep(oll)?_p?(poll|wait)\d?|(eventfd|inotify|timerfd|signalfd|io_cqring)_\w+", ANYTHING),
    (r"(do|kernel)_wait(id|4|_pid)?|wait(id|4|pid)|wait_for_vfork_done|kernel_clone", CHILD),
    (r"(do_)?(rt_)?(sigtimedwait|sigsuspend|pause)", SIGNAL),
    (r"(pipe|anon_pipe)_\w+", Wait("waiting for a pipe", READING.advice)),
    (r"fifo_open|wait_for_partner", OPENING),
    (r"n?_?tty_\w+", Wait("waiting for a terminal", READING.advice)),
    (r"wait_woken", Wait("waiting for the network or a terminal", NETWORK.advice)),
    (r"(flock|posix|locks)_lock\w*|fcntl_setlk|break_lease", FILE_LOCK),
    (
        r"(nfs\d?|rpc|xprt|ceph|fuse|lustre|ll|ptlrpc|ldlm|osc|cl|cifs|smb2|p9|afs|fhgfs)_\w+"
        r"|request_wait_answer|wait_for_(response|free_credits)",
        Wait("waiting for a network file system", "check the server of that file system"),
    ),
    (r"unix_\w+", Wait("waiting for another process, over a socket", READING.advice)),
    (r"(sk|skb|tcp|udp|inet|inet6|sctp|smc|vsock|ib_uverbs)_\w+", NETWORK),
    (r"(nv|nvidia|uvm|kfd|amdgpu|drm|dma_fence)_\w+", Wait("waiting for a GPU")),
    (
        r"(jbd2|ext4|xfs|xlog|xfsaild|btrfs|f2fs|zfs|zil|txg|blk|blkdev|submit_bio|iomap|folio_wait"
        r"|wait_on_page|wait_on_buffer|filemap|wbt|rq_qos|balance_dirty|do_blockdev)\w*"
        r"|io_schedule|read_events|wait_transaction_locked|get_request",
        Wait("waiting for a disk", "the kernel log and `df` of the node show whether it is well"),
    ),
    (
        r"do_msg(rcv|snd)|(do_)?sem(timed)?op|do_semtimedop|wq_sleep",
        Wait("waiting for a message or a semaphore of another process", QUEUE.advice),
    ),
    (
        r"mem_cgroup_\w+|throttle_direct_reclaim|try_to_free_\w+",
        Wait("waiting for memory", "its node or a limit (cgroup) leaves it too little: use less"),
    ),
    (
        r"do_signal_stop|ptrace_stop|do_jobctl_trap|do_freezer_trap|(__)?refrigerator",
        Wait("stopped", "a signal (SIGSTOP), a debugger or a paused container holds it"),
    ),
)
"""Functions of the kernel, from Linux 4 to 6, as `wchan` has them, without what only says which
way a call came in."""
_ENTRY = re.compile(
    r"^_*((x64|ia32|arm64|s390x|se|do|compat|riscv)_)?(compat_)?(k?sys_|SyS_)?|\..*$"
)


def explain_kernel(function: str) -> Wait | None:
    """The same by the function of the kernel that a process waits in."""
    names = function.partition(".")[0], _ENTRY.sub("", function)
    return _find_first(dict.fromkeys(name.lstrip("_") for name in names), _KERNEL)


def _find_first(names: Iterable[str], rows: Iterable[tuple[str, Wait]]) -> Wait | None:
    table = tuple(rows)
    for name in names:
        for pattern, wait in table:
            if re.fullmatch(pattern, name):
                return wait
    return None
