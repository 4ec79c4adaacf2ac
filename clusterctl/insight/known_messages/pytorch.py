"""Of what PyTorch communicates with: NCCL, Gloo, c10d and DDP."""

from __future__ import annotations

from clusterctl.insight.known_messages.row import Message

_TORCH = "https://github.com/pytorch/pytorch/issues/"
_NCCL = "https://github.com/NVIDIA/nccl/issues/"
_NCCL_DOCS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/"

MESSAGES: tuple[Message, ...] = (
    # ------------------------------------------------------------------------------------- NCCL
    Message(
        "duplicate-gpu",
        r"Duplicate GPU detected",
        "two ranks use the same GPU",
        "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before init_process_group",
        "https://github.com/horovod/horovod/issues/3929",
    ),
    Message(
        "nccl-interface",
        r"[Nn]o socket interface found|connecting to address .*with family \d+ is neither",
        "NCCL found no network interface with the name in NCCL_SOCKET_IFNAME",
        "do not set it with -e, in the program or on the nodes: clusterctl sets it for each node",
        f"{_NCCL}1837",
    ),
    Message(
        "nccl-version",
        r"NCCL WARN .*(mismatched|[Mm]ismatch) .*version|wrong type \d+ != \d+",
        "the nodes have different versions of NCCL",
        "install the same PyTorch on all nodes",
        "https://github.com/NVIDIA/nccl-tests/issues/188",
    ),
    Message(
        "nccl-cuda",
        r"ncclUnhandledCudaError|unhandled cuda error",
        "a CUDA call within NCCL failed",
        "run with -e NCCL_DEBUG=WARN; the line before the error then names the call",
        f"{_NCCL_DOCS}troubleshooting.html",
    ),
    Message(
        "nccl-remote",
        r"ncclRemoteError|remote process exited or there was a network error"
        r"|NCCL WARN .*Connection closed by remote peer|socketProgress",
        "another rank has ended, or the network between the nodes was interrupted",
        "look at the rank that failed first",
        f"{_NCCL_DOCS}troubleshooting.html",
        after=True,
    ),
    Message(
        "nccl-system",
        r"ncclSystemError|unhandled system error",
        "a system call within NCCL failed: a socket, or shared memory",
        "run with -e NCCL_DEBUG=WARN; the line before the error then names the call",
        f"{_NCCL_DOCS}troubleshooting.html",
    ),
    Message(
        "nccl-timeout",
        r"Watchdog caught collective operation timeout",
        "a collective did not end in time: a rank did not take part, or was too slow",
        "run `clusterctl doctor` while it hangs: it names the rank and its line",
        f"{_TORCH}118369",
        after=True,
    ),
    Message(
        "no-nccl",
        r"Distributed package doesn't have NCCL built in|ProcessGroupNCCL is only supported with "
        r"GPUs|no GPUs found",
        "the backend NCCL needs GPUs and a PyTorch that is built with it",
        "on CPUs use --backend gloo, if the program reads CLUSTERCTL_BACKEND, as bundled ones do;"
        " if it chooses NCCL itself, use its own option after SCRIPT (often --backend=gloo);"
        " without such an option, change its init_process_group",
        "https://docs.pytorch.org/docs/stable/distributed.html#backends",
    ),
    Message(
        "no-mpi-backend",
        r"Distributed package doesn't have MPI built in",
        "PyTorch's own wheels have no MPI backend",
        "use --backend gloo; use a program with mpi4py (docs/workloads.md), or change its"
        " init_process_group",
        "https://docs.pytorch.org/docs/stable/distributed.html#backends",
    ),
    Message(
        "torchvision",
        r"operator torchvision::\w+ does not exist",
        "torchvision was built for another PyTorch than that of the nodes; PyPI's torchvision needs"
        " CUDA's PyTorch",
        "name the index of the nodes' PyTorch, which has the torchvision for it, among the indexes"
        " of the program's packages: for CPUs, https://download.pytorch.org/whl/cpu",
        "https://github.com/pytorch/vision/issues/9085",
    ),
    # --------------------------------------------------------------------- Gloo, c10d and DDP
    Message(
        "port-used",
        r"EADDRINUSE|[Aa]ddress already in use",
        "a port is taken, most likely by a process of an earlier run",
        "use the MASTER_PORT that clusterctl sets (a free one); `clusterctl cancel JOB` ends what"
        " an earlier job has left",
        f"{_TORCH}85604",
    ),
    Message(
        "store-timeout",
        r"DistStoreError|Timed out after \d+ seconds waiting for clients|client socket has timed "
        r"out|wait timeout after \d+ms|Socket Timeout",
        "not all ranks have reached init_process_group",
        "look at the rank that failed first; check that MASTER_ADDR is not set in the program",
        "https://docs.pytorch.org/docs/stable/distributed.html#initialization",
    ),
    Message(
        "gloo-interface",
        r"Unable to find address for: |makeDeviceForInterface.*unsupported",
        "Gloo found no network interface with the name in GLOO_SOCKET_IFNAME",
        "do not set it with -e, in the program or on the nodes: clusterctl sets it for each node",
        f"{_TORCH}81313",
    ),
    Message(
        "gloo-refused",
        r"gloo.*(Connection refused|connectFullMesh failed)|Gloo connectFullMesh failed",
        "Gloo on one node cannot reach the address that another node announced",
        "`clusterctl verify` tests all links; do not set GLOO_SOCKET_IFNAME: clusterctl does",
        f"{_TORCH}81313",
    ),
    Message(
        "gloo-closed",
        r"gloo/transport.*(Connection closed by peer|Connection reset by peer|Broken pipe)",
        "another rank has ended, or the network between the nodes was interrupted",
        "look at the rank that failed first",
        "https://github.com/RVC-Project/Retrieval-based-Voice-Conversion-WebUI/issues/1882",
        after=True,
    ),
    Message(
        "gloo-timeout",
        r"gloo/transport.*Timed out waiting \d+ms",
        "a collective did not end in time: a rank did not take part, or was too slow",
        "run `clusterctl doctor` while it hangs: it names the rank and its line",
        "https://docs.pytorch.org/docs/stable/distributed.html#monitored-barrier",
        after=True,
    ),
    Message(
        "gloo-size",
        r"gloo.*(op\.preamble\.length <= op\.nbytes|opcode.*nbytes)",
        "ranks have met in a collective with tensors of different sizes",
        "make the tensor's shape equal on all ranks (a last batch that is smaller?), and let the"
        " splits of an all_to_all fit; or one of them has skipped a collective, as after an"
        " exception that it has caught",
        "https://docs.pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applicati"
        "ons",
    ),
    Message(
        "collectives-differ",
        r"Detected mismatch between collectives on ranks|Collectives differ in",
        "ranks call different collectives",
        "look for a branch that only some ranks take",
        "https://docs.pytorch.org/docs/stable/distributed.html#torch-distributed-debug",
    ),
    Message(
        "unused-parameters",
        r"Expected to have finished reduction in the prior iteration",
        "parameters of the model take no part in the loss, and DDP waits for their gradients",
        "pass find_unused_parameters=True to DistributedDataParallel, or remove the parameters",
        f"{_TORCH}43259",
    ),
    Message(
        "ready-twice",
        r"Expected to mark a variable ready only once",
        "a parameter is used twice in one backward pass: shared modules, or re-entrant checkpoints",
        "use checkpoint(..., use_reentrant=False), or DistributedDataParallel(static_graph=True)",
        "https://docs.pytorch.org/docs/stable/notes/ddp.html",
    ),
    Message(
        "models-differ",
        r"DDP expects same model across all ranks|params?\[\d+\] in this process with sizes",
        "the model has different parameters or shapes on some ranks",
        "build it from the same configuration on all ranks",
        "https://docs.pytorch.org/docs/stable/notes/ddp.html",
    ),
    Message(
        "join-uneven",
        r"failed to pass monitoredBarrier|did not reach .*[bB]arrier",
        "a rank did not reach the barrier in time",
        "look at the rank that the message names",
        "https://docs.pytorch.org/docs/stable/distributed.html#monitored-barrier",
    ),
    Message(
        "cpp-thread",
        r"^terminate called without an active exception",
        "a thread of a C++ library still ran when the program ended",
        "call torch.distributed.destroy_process_group() at the end of the program, and stop threads"
        " of its own",
        "https://en.cppreference.com/w/cpp/thread/thread/~thread",
    ),
)
