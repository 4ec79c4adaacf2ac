"""What the jobs of bench/doctor.py run. Those that begin with START print `on` when all ranks have
met, and then break."""

START = """
import os, signal, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(4)
dist.all_reduce(tensor)
print("on", flush=True)
"""
SKIPS = "if rank == 1:\n    time.sleep(600)\ndist.all_reduce(tensor)\n"
SLOW = """
def heavy(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
for step in range(600):
    heavy(1.5 if rank == 1 else 0.01)
    dist.all_reduce(tensor)
"""
STOPS = "if rank == 1:\n    os.kill(os.getpid(), signal.SIGSTOP)\ndist.all_reduce(tensor)\n"
EATS = """
if rank == 1:
    with open(sys.argv[1] + "/cgroup.procs", "w") as file:
        file.write("0")
    eaten = bytearray(800_000_000)
time.sleep(600)
"""
# Not sys.exit: a process that ends without destroy_process_group may abort with signal 6.
LEAVES = "if rank == 1:\n    os._exit(0)\nwhile True:\n    dist.all_reduce(tensor)\n"
TAKEN = """
import socket
if rank == 1:
    first, second = socket.socket(), socket.socket()
    first.bind(("", 0))
    first.listen()
    second.bind(first.getsockname())
time.sleep(600)
"""
WRITES = """
if rank == 1:
    with open(sys.argv[1] + "/checkpoint.pt", "wb") as file:
        file.write(bytes(8_000_000))
time.sleep(600)
"""
LOOPS = "while True:\n    dist.all_reduce(tensor)\n    time.sleep(0.1)\n"
SHAPES = "dist.all_reduce(torch.ones(4 if rank == 0 else 1 << 20))\ntime.sleep(600)\n"

ORDER = """
calls = [lambda: dist.all_reduce(tensor), lambda: dist.broadcast(tensor, 0)]
for call in calls[:: 1 if rank == 0 else -1]:
    call()
time.sleep(600)
"""
FILE_LOCK = """
import fcntl
def tokenize():
    file = open("/tmp/broken-cache.lock", "w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file
if rank == 1:
    time.sleep(1)
kept = tokenize()
dist.barrier()
"""
THREADS = """
import threading
first, second = threading.Lock(), threading.Lock()
def prefetch():
    with second:
        time.sleep(0.5)
        with first:
            pass
def save():
    with first:
        time.sleep(0.5)
        with second:
            pass
if rank == 1:
    threading.Thread(target=prefetch).start()
    save()
dist.all_reduce(tensor)
"""
LOADER = """
from torch.utils.data import DataLoader, Dataset
class Images(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if rank == 1 and index == 20:
            self.decode()
        return tensor
    def decode(self):
        time.sleep(600)
for batch in DataLoader(Images(), batch_size=4, num_workers=1):
    dist.all_reduce(batch)
"""
DEAD_THREAD = """
import queue, threading
batches = queue.Queue()
def produce():
    batches.put(tensor)
    raise ValueError("cannot decode image 1")
if rank == 1:
    threading.Thread(target=produce, daemon=True).start()
while True:
    dist.all_reduce(batches.get() if rank == 1 else tensor)
"""
PIPE = """
import subprocess
if rank == 1:
    subprocess.Popen(["seq", "1000000"], stdout=subprocess.PIPE).wait()
dist.barrier()
"""
RECEIVES = """
import numpy
from mpi4py import MPI
ranks, halo = MPI.COMM_WORLD, numpy.zeros(10)
print("on", flush=True)
def exchange():
    ranks.Recv(halo, source=1 - ranks.rank)
    ranks.Send(halo, dest=1 - ranks.rank)
exchange()
"""
OTHER_PORT = """
import os
import torch.distributed as dist
print("on", flush=True)
if os.environ["RANK"] == "1":
    os.environ["MASTER_PORT"] = "29999"
dist.init_process_group("gloo")
"""
NO_BINARY = """
import subprocess
if rank == 1:
    subprocess.run(["ffmpeg-nightly", "-i", "clip.mp4"], check=True)
time.sleep(600)
"""
NAN = """
if rank == 1:
    print("loss is nan at step 3, stopping", flush=True)
    os._exit(3)
time.sleep(600)
"""
