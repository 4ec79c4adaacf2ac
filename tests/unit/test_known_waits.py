"""What a rank waits for, by the function of the kernel that it is in: their names change from one
version to the next."""

from __future__ import annotations

import pytest

from clusterctl.core.stacks import explain_kernel

FUNCTIONS = {
    "another thread or a lock": "futex_wait futex_wait_queue futex_wait_queue_me futex_do_wait"
    " __futex_wait futex_lock_pi __x64_sys_futex",
    "a socket, a pipe or another process": "ep_poll do_epoll_wait do_epoll_pwait SyS_epoll_wait"
    " do_sys_poll do_poll.constprop.0 poll_schedule_timeout.constprop.0 do_select core_sys_select"
    " __arm64_sys_ppoll eventfd_read",
    "a child process": "do_wait do_wait4 __do_wait kernel_wait4 do_waitid __do_sys_waitid"
    " __x64_sys_wait4 kernel_clone",
    "a pipe": "pipe_read pipe_write pipe_wait anon_pipe_read anon_pipe_write pipe_wait_readable",
    "another process, over a socket": "unix_stream_read_generic unix_stream_data_wait unix_accept",
    "the network": "sk_wait_data inet_csk_accept inet_stream_connect sk_stream_wait_memory"
    " __skb_wait_for_more_packets tcp_recvmsg_locked",
    "the network or a terminal": "wait_woken",
    "a terminal": "n_tty_read tty_read n_tty_write",
    "sleeping": "hrtimer_nanosleep do_nanosleep common_nsleep clock_nanosleep"
    " __x64_sys_clock_nanosleep",
    "a signal": "__do_sys_pause do_sigtimedwait sigsuspend __se_sys_rt_sigsuspend sys_pause",
    "a lock on a file": "flock_lock_inode_wait locks_lock_inode_wait posix_lock_inode_wait"
    " fcntl_setlk",
    "a network file system": "nfs_wait_bit_killable nfs4_proc_getattr rpc_wait_bit_killable"
    " request_wait_answer fuse_dev_do_read ceph_mdsc_wait_request ll_file_read p9_client_rpc"
    " cifs_readv wait_for_response",
    "a disk": "io_schedule folio_wait_bit_common wait_on_page_bit_killable jbd2_log_wait_commit"
    " xfs_log_force __iomap_dio_rw blk_mq_get_tag balance_dirty_pages ext4_sync_file",
    "a GPU": "kfd_wait_on_events nv_wait drm_syncobj_array_wait_timeout",
    "a message or a semaphore of another process": "do_msgrcv __do_semtimedop semop wq_sleep",
    "stopped": "do_signal_stop ptrace_stop __refrigerator do_freezer_trap",
}


@pytest.mark.parametrize(
    ("function", "what"),
    [(name, what) for what, names in FUNCTIONS.items() for name in names.split()],
)
def test_functions_of_linux_4_to_6(function: str, what: str) -> None:
    found = explain_kernel(function)
    assert found
    assert found.text.removeprefix("waiting for ") == what


@pytest.mark.parametrize("function", ["", "0", "do_exit", "do_wait_intr_irq", "msleep", "my_wait"])
def test_functions_that_say_nothing(function: str) -> None:
    assert explain_kernel(function) is None
