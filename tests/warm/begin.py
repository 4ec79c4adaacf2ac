"""Begins a program in `server.py`, and stands for it: `python -IS begin.py SOCKET SCRIPT …`.

It hands on its environment, folder, standard streams and signals, and ends as the program does.
"""

import json
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

# What comes before there is somebody to hand it on to waits.
signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
order = {"argv": sys.argv[2:], "env": dict(os.environ), "cwd": os.getcwd()}
socket.send_fds(connection, [json.dumps(order).encode() + b"\n"], [0, 1, 2])
answer = connection.makefile()
pid = int(answer.readline())
for number in FORWARDED:
    signal.signal(number, lambda number, _: os.kill(pid, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
status = int(answer.readline() or signal.SIGKILL)
if os.WIFSIGNALED(status):
    signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.WEXITSTATUS(status))
