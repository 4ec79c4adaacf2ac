"""What libraries print when something is wrong: a pattern, its cause, and what to do next.

Rows of one group stand in the order in which they are tried. A row with `after` is what a rank
prints because another one has already gone: it explains a failure only if no other row does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TORCH = "https://github.com/pytorch/pytorch/issues/"
_NCCL = "https://github.com/NVIDIA/nccl/issues/"
_NCCL_DOCS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/"
_OMPI = "https://github.com/open-mpi/ompi/issues/"
_OMPI_DOCS = "https://docs.open-mpi.org/en/v5.0.x/"
_UCX = "https://github.com/openucx/ucx/issues/"


@dataclass(frozen=True, slots=True)
class Message:
    """A row. `pattern` is compiled when it is first searched for, since every command loads this;
    `source`: where the message and its cause are described."""

    name: str
    pattern: str
    cause: str
    advice: str
    source: str
    after: bool = False


def _row(
    name: str, pattern: str, cause: str, advice: str, source: str, after: bool = False
) -> Message:
    return Message(name, pattern, cause, advice, source, after)


MESSAGES: tuple[Message, ...] = (
    # ------------------------------------------------------------------------- memory and disk
    _row(
        "cuda-memory",
        r"CUDA out of memory|OutOfMemoryError: (CUDA|HIP)|HIP out of memory",
        "the GPU has too little memory",
        "use a smaller batch, gradient checkpointing or more GPUs; `nvidia-smi` on the node shows"
        " whether another process holds memory",
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
    ),
    _row(
        "cublas-memory",
        r"CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)",
        "cuBLAS could not allocate its workspace: the GPU's memory is full, or an index is out of"
        " range in an earlier kernel",
        "use a smaller batch; if that does not help, run with -e CUDA_LAUNCH_BLOCKING=1",
        "https://docs.nvidia.com/cuda/cublas/index.html#cublasstatus-t",
    ),
    _row(
        "shared-memory",
        r"NCCL WARN .*(/dev/shm|posix_fallocate|shared memory segment)",
        "/dev/shm is too small or full, and NCCL cannot connect the GPUs of one node",
        "remove stale files from /dev/shm, or give the container more (--shm-size=8g)",
        f"{_NCCL}290",
    ),
    _row(
        "loader-shared-memory",
        r"killed by signal: Bus error|insufficient shared memory \(shm\)",
        "/dev/shm is too small for the data loader's worker processes",
        "use fewer loader workers, or give the container more shared memory (--shm-size=8g)",
        f"{_TORCH}5040",
    ),
    _row(
        "loader-killed",
        r"DataLoader worker .*(is killed by signal: Killed|exited unexpectedly)",
        "a worker process of the data loader was killed, most likely because memory ran out",
        "use fewer loader workers or a node with more memory",
        "https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
    ),
    _row(
        "disk-full",
        r"No space left on device|ENOSPC|Disk quota exceeded|PytorchStreamWriter failed writing",
        "a disk is full",
        "free space on the node, or create the cluster with a larger --disk",
        "https://man7.org/linux/man-pages/man3/errno.3.html",
    ),
    _row(
        "torch-file",
        r"inline_container\.cc:\d+\] \. unexpected pos",
        "torch.save could not write its file to the end, most likely because a disk is full",
        "free space where the program saves its files, or create the cluster with a larger --disk",
        f"{_TORCH}156955",
    ),
    _row(
        "host-memory",
        r"(^|\s)MemoryError\b|std::bad_alloc|DefaultCPUAllocator: can't allocate memory"
        r"|Cannot allocate memory \(errno=12\)|Unable to allocate .* for an array",
        "the node has too little memory",
        "use a smaller batch, fewer ranks per node (--ranks-per-node), or larger nodes",
        "https://docs.python.org/3/library/exceptions.html#MemoryError",
    ),
    _row(
        "open-files",
        r"Too many open files|received 0 items of ancdata",
        "a rank has more open files than its limit allows",
        'raise the limit (`ulimit -n`), or call torch.multiprocessing.set_sharing_strategy("file_'
        'system")',
        "https://docs.pytorch.org/docs/stable/multiprocessing.html#file-descriptor-file-descriptor",
    ),
    _row(
        "processes",
        r"can't start new thread|pthread_create failed|fork: (retry: )?Resource temporarily",
        "the node's limit on processes and threads is reached",
        "set OMP_NUM_THREADS lower, use fewer loader workers, or raise `ulimit -u`",
        "https://man7.org/linux/man-pages/man2/setrlimit.2.html",
    ),
    # ---------------------------------------------------------------------------- GPU and driver
    _row(
        "driver-mismatch",
        r"Driver/library version mismatch",
        "the NVIDIA driver was updated, and the kernel still runs the old one",
        "restart the node",
        "https://github.com/NVIDIA/ubuntu-packaging-nvidia-driver/issues/3",
    ),
    _row(
        "driver-old",
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old",
        "the NVIDIA driver is older than the CUDA version of PyTorch needs",
        "install a newer driver, or a PyTorch that is built for an older CUDA",
        "https://docs.nvidia.com/deploy/cuda-compatibility/",
    ),
    _row(
        "no-driver",
        r"Found no NVIDIA driver|couldn't communicate with the NVIDIA driver",
        "there is no NVIDIA driver on the node, or it is not loaded",
        "use GPU nodes (`clusterctl up --gpu g4dn`); on your own hosts install the driver",
        "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",
    ),
    _row(
        "no-gpu",
        r"No CUDA GPUs are available|no CUDA-capable device is detected|No HIP GPUs are available",
        "the program finds no GPU",
        "check CUDA_VISIBLE_DEVICES, and that the container was started with its GPUs; for programs"
        " that can use a CPU: `clusterctl run --allow-cpu`",
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
    ),
    _row(
        "torch-without-cuda",
        r"Torch not compiled with CUDA enabled",
        "this PyTorch is the build for CPUs",
        "install the build for GPUs on the nodes",
        "https://pytorch.org/get-started/locally/",
    ),
    _row(
        "no-kernel",
        r"no kernel image is available for execution on the device|CUDA capability sm_\d+ is not",
        "PyTorch was not built for this generation of GPU",
        "install a PyTorch whose torch.cuda.get_arch_list() names it, or use other GPUs",
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
    ),
    _row(
        "no-code-object",
        r"hipErrorNoBinaryForGpu|Unable to find code object for all current devices"
        r"|Cannot read .*TensileLibrary",
        "ROCm has no kernels for this AMD GPU",
        "use wheels that are built for it (docs/images.md), or run on CPUs with --allow-cpu",
        "https://github.com/ROCm/legacy-rocm-build/issues/1623",
    ),
    _row(
        "device-assert",
        r"device-side assert triggered",
        "a kernel found an invalid index, such as a class label that is out of range",
        "run with -e CUDA_LAUNCH_BLOCKING=1 to see the line, and check the labels",
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution",
    ),
    _row(
        "illegal-access",
        r"illegal memory access was encountered",
        "a GPU kernel read or wrote outside its memory",
        "run with -e CUDA_LAUNCH_BLOCKING=1 to see which; `clusterctl verify` checks the GPU",
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
    ),
    _row(
        "gpu-lost",
        r"uncorrectable ECC error|GPU is lost|fallen off the bus|unspecified launch failure",
        "the GPU has failed",
        "stop the instance and use another one; `clusterctl verify` shows the GPU's errors",
        "https://docs.nvidia.com/deploy/xid-errors/",
    ),
    _row(
        "invalid-device",
        r"invalid device ordinal",
        "a rank asked for a GPU that its node does not have",
        "use LOCAL_RANK, not RANK, to choose the GPU; use at most one rank per GPU",
        "https://docs.pytorch.org/docs/stable/elastic/run.html",
    ),
    # ------------------------------------------------------------------------------------- NCCL
    _row(
        "duplicate-gpu",
        r"Duplicate GPU detected",
        "two ranks use the same GPU",
        "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before init_process_group",
        "https://github.com/horovod/horovod/issues/3929",
    ),
    _row(
        "nccl-interface",
        r"[Nn]o socket interface found|connecting to address .*with family \d+ is neither",
        "NCCL found no network interface with the name in NCCL_SOCKET_IFNAME",
        "remove your own NCCL_SOCKET_IFNAME: clusterctl sets it for each node",
        f"{_NCCL}1837",
    ),
    _row(
        "nccl-version",
        r"NCCL WARN .*(mismatched|[Mm]ismatch) .*version|wrong type \d+ != \d+",
        "the nodes have different versions of NCCL",
        "install the same PyTorch on all nodes",
        "https://github.com/NVIDIA/nccl-tests/issues/188",
    ),
    _row(
        "nccl-cuda",
        r"ncclUnhandledCudaError|unhandled cuda error",
        "a CUDA call within NCCL failed",
        "run with -e NCCL_DEBUG=WARN: the line before the error names the call",
        f"{_NCCL_DOCS}troubleshooting.html",
    ),
    _row(
        "nccl-remote",
        r"ncclRemoteError|remote process exited or there was a network error"
        r"|NCCL WARN .*Connection closed by remote peer|socketProgress",
        "another rank has ended, or the network between the nodes was interrupted",
        "look at the rank that failed first",
        f"{_NCCL_DOCS}troubleshooting.html",
        after=True,
    ),
    _row(
        "nccl-system",
        r"ncclSystemError|unhandled system error",
        "a system call within NCCL failed: a socket, or shared memory",
        "run with -e NCCL_DEBUG=WARN: the line before the error names the call",
        f"{_NCCL_DOCS}troubleshooting.html",
    ),
    _row(
        "nccl-timeout",
        r"Watchdog caught collective operation timeout",
        "a collective did not end in time: a rank did not take part, or was too slow",
        "run `clusterctl doctor` while it hangs: it names the rank and its line",
        f"{_TORCH}118369",
        after=True,
    ),
    _row(
        "no-nccl",
        r"Distributed package doesn't have NCCL built in|ProcessGroupNCCL is only supported with "
        r"GPUs|no GPUs found",
        "the backend NCCL needs GPUs and a PyTorch that is built with it",
        "use --backend gloo on CPUs",
        "https://docs.pytorch.org/docs/stable/distributed.html#backends",
    ),
    _row(
        "no-mpi-backend",
        r"Distributed package doesn't have MPI built in",
        "PyTorch's own wheels have no MPI backend",
        "use --backend gloo, or a program that uses mpi4py (docs/workloads.md)",
        "https://docs.pytorch.org/docs/stable/distributed.html#backends",
    ),
    # --------------------------------------------------------------------- Gloo, c10d and DDP
    _row(
        "port-used",
        r"EADDRINUSE|[Aa]ddress already in use",
        "a port is taken, most likely by a process of an earlier run",
        "use the MASTER_PORT that clusterctl sets (a free one); `clusterctl cancel JOB` ends what"
        " an earlier job has left",
        f"{_TORCH}85604",
    ),
    _row(
        "store-timeout",
        r"DistStoreError|Timed out after \d+ seconds waiting for clients|client socket has timed "
        r"out|wait timeout after \d+ms|Socket Timeout",
        "not all ranks have reached init_process_group",
        "look at the rank that failed first; check that MASTER_ADDR is not set in the program",
        "https://docs.pytorch.org/docs/stable/distributed.html#initialization",
    ),
    _row(
        "gloo-interface",
        r"Unable to find address for: |makeDeviceForInterface.*unsupported",
        "Gloo found no network interface with the name in GLOO_SOCKET_IFNAME",
        "remove your own GLOO_SOCKET_IFNAME: clusterctl sets it for each node",
        f"{_TORCH}81313",
    ),
    _row(
        "gloo-refused",
        r"gloo.*(Connection refused|connectFullMesh failed)|Gloo connectFullMesh failed",
        "Gloo on one node cannot reach the address that another node announced",
        "`clusterctl verify` tests all links; remove your own GLOO_SOCKET_IFNAME",
        f"{_TORCH}81313",
    ),
    _row(
        "gloo-closed",
        r"gloo/transport.*(Connection closed by peer|Connection reset by peer|Broken pipe)",
        "another rank has ended, or the network between the nodes was interrupted",
        "look at the rank that failed first",
        "https://github.com/RVC-Project/Retrieval-based-Voice-Conversion-WebUI/issues/1882",
        after=True,
    ),
    _row(
        "gloo-timeout",
        r"gloo/transport.*Timed out waiting \d+ms",
        "a collective did not end in time: a rank did not take part, or was too slow",
        "run `clusterctl doctor` while it hangs: it names the rank and its line",
        "https://docs.pytorch.org/docs/stable/distributed.html#monitored-barrier",
        after=True,
    ),
    _row(
        "gloo-size",
        r"gloo.*(op\.preamble\.length <= op\.nbytes|opcode.*nbytes)",
        "ranks have met in a collective with tensors of different sizes",
        "make the tensor's shape equal on all ranks (a last batch that is smaller?); or one of them"
        " has skipped a collective, as after an exception that it has caught",
        "https://docs.pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applicati"
        "ons",
    ),
    _row(
        "collectives-differ",
        r"Detected mismatch between collectives on ranks|Collectives differ in",
        "ranks call different collectives",
        "look for a branch that only some ranks take",
        "https://docs.pytorch.org/docs/stable/distributed.html#torch-distributed-debug",
    ),
    _row(
        "unused-parameters",
        r"Expected to have finished reduction in the prior iteration",
        "parameters of the model take no part in the loss, and DDP waits for their gradients",
        "pass find_unused_parameters=True to DistributedDataParallel, or remove the parameters",
        f"{_TORCH}43259",
    ),
    _row(
        "ready-twice",
        r"Expected to mark a variable ready only once",
        "a parameter is used twice in one backward pass: shared modules, or re-entrant checkpoints",
        "use checkpoint(..., use_reentrant=False), or DistributedDataParallel(static_graph=True)",
        "https://docs.pytorch.org/docs/stable/notes/ddp.html",
    ),
    _row(
        "models-differ",
        r"DDP expects same model across all ranks|params?\[\d+\] in this process with sizes",
        "the model has different parameters or shapes on some ranks",
        "build it from the same configuration on all ranks",
        "https://docs.pytorch.org/docs/stable/notes/ddp.html",
    ),
    _row(
        "join-uneven",
        r"failed to pass monitoredBarrier|did not reach .*[bB]arrier",
        "a rank did not reach the barrier in time",
        "look at the rank that the message names",
        "https://docs.pytorch.org/docs/stable/distributed.html#monitored-barrier",
    ),
    # ----------------------------------------------------------------------- Open MPI and PRRTE
    _row(
        "mpi-slots",
        r"There are not enough slots available",
        "there are more ranks than slots",
        "use fewer ranks (--ranks) or more workers",
        f"{_OMPI}7719",
    ),
    _row(
        "mpi-daemon",
        r"(ORTE|PRTE|A daemon|One or more) .*(unexpectedly failed|unable to (reliably )?start one|"
        r"lost communication with)|lost communication with a remote daemon",
        "mpirun lost its daemon on a node: the node restarted, or the network was interrupted",
        "`clusterctl status --live` shows which node does not answer",
        f"{_OMPI}6618",
    ),
    _row(
        "mpi-not-found",
        r"mpirun was unable to (launch|find) the specified|could not be found:? .*orted"
        r"|(orted|prted): (command )?not found",
        "a program does not exist on a node",
        "check the name of the program, and that every node has it; `clusterctl up` repairs MPI",
        f"{_OMPI}8870",
    ),
    _row(
        "mpi-truncated",
        r"MPI_ERR_TRUNCATE",
        "a message is longer than the receiver's buffer: ranks call a collective with different"
        " sizes or types",
        "compare the arguments of the call on all ranks",
        "https://www.mpi-forum.org/docs/mpi-4.1/mpi41-report.pdf",
    ),
    _row(
        "mpi-tcp-address",
        r"inbound MPI TCP connection request from a peer|Source IP of socket",
        "a node has several networks, and Open MPI used a different one than it announced",
        "remove your own OMPI_MCA_btl_tcp_if_*: clusterctl sets the subnet",
        f"{_OMPI}5818",
    ),
    _row(
        "mpi-tcp-connect",
        r"Open MPI failed to TCP connect to a peer|btl_tcp_endpoint.*(refused|timed out|No route)",
        "ranks on different nodes cannot reach each other over TCP",
        "check firewalls and security groups between the nodes; `clusterctl verify` tests them",
        "https://github.com/jbornschein/mpi4py-examples/issues/11",
    ),
    _row(
        "mpi-reset",
        r"mca_btl_tcp.*(Connection reset by peer|peer unexpectedly closed|recv\(\d+\) failed)",
        "another rank has ended, or the network between the nodes was interrupted",
        "look at the rank that failed first",
        f"{_OMPI}4131",
        after=True,
    ),
    _row(
        "mpi-pml",
        r"PML .* cannot be selected|No components were able to be opened in the pml framework",
        "the transport that Open MPI was told to use does not work on a node",
        "remove your own OMPI_MCA_pml; `clusterctl run --dry-run` shows what clusterctl chooses",
        f"{_OMPI_DOCS}tuning-apps/networking/index.html",
    ),
    _row(
        "mpi-init",
        r"MPI_INIT failed for some reason|called before MPI_INIT was invoked|ompi_mpi_init: .*fail",
        "MPI could not be initialised",
        "check that the program was built with the Open MPI of the nodes",
        f"{_OMPI_DOCS}launching-apps/troubleshooting.html",
    ),
    _row(
        "mpi-abort",
        r"MPI_ABORT was invoked|MPI_Abort\(",
        "a rank has called MPI_Abort",
        "look at what this rank printed before",
        "https://docs.open-mpi.org/en/v5.0.x/man-openmpi/man3/MPI_Abort.3.html",
        after=True,
    ),
    _row(
        "mpi-exited",
        r"exited on signal|one or more processes|exited with non-zero|Primary job +terminated",
        "mpirun ended the other ranks after one had failed",
        "look at the rank that failed first",
        f"{_OMPI_DOCS}launching-apps/troubleshooting.html",
        after=True,
    ),
    # ------------------------------------------------------------------ UCX, libfabric, system
    _row(
        "ucx-memlock",
        r"(ibv_reg_mr|ibv_create_cq|fi_mr_reg).*Cannot allocate memory|RLIMIT_MEMLOCK",
        "the limit on locked memory is too low for RDMA",
        "set `ulimit -l unlimited` (memlock in /etc/security/limits.conf) on the nodes",
        f"{_UCX}8229",
    ),
    _row(
        "ucx-device",
        r"UCX +(WARN|ERROR) .*(network device|net device).*not available|no usable transports",
        "UCX was told to use a network device that the node does not have",
        "remove your own UCX_NET_DEVICES or UCX_TLS: clusterctl sets them for each node",
        f"{_UCX}9383",
    ),
    _row(
        "efa",
        r"libfabric:\d+.*efa.*(error|fail)|EFA device .*not found|fi_getinfo.*-61",
        "the Elastic Fabric Adapter cannot be used",
        "check that the instance type has EFA and the cluster was made with --efa",
        "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa.html",
    ),
    _row(
        "no-route",
        r"No route to host|Network is unreachable",
        "a node cannot reach another one",
        "check routes, firewalls and security groups; `clusterctl verify` tests all links",
        "https://man7.org/linux/man-pages/man7/ip.7.html",
    ),
    _row(
        "name",
        r"Name or service not known|Temporary failure in name resolution",
        "a host name cannot be resolved on the node",
        "use the addresses in MASTER_ADDR and the host file; for downloads check the node's DNS",
        "https://man7.org/linux/man-pages/man3/getaddrinfo.3.html",
    ),
    _row(
        "glibc",
        r"version `(GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found",
        "the program or a package was built on a newer system than the node has",
        "build it on the nodes, or use a container image",
        "https://docs.pytorch.org/docs/stable/cpp_index.html",
    ),
    _row(
        "module",
        r"(ModuleNotFoundError|ImportError|python[\d.]*): No module named",
        "a Python package is missing on a node",
        "list it in the project's `requirements.txt`, or use a container image that has it",
        "https://docs.python.org/3/library/exceptions.html#ModuleNotFoundError",
    ),
    _row(
        "shadowed",
        r"partially initialized module .*circular import",
        "two modules import each other, or a file of the project has the name of a library",
        "rename the file if it is called like a library, such as random.py or cuda.py",
        "https://docs.python.org/3/faq/programming.html",
    ),
    _row(
        "no-input",
        r"EOFError: EOF when reading a line",
        "the program asks for input, and ranks have none",
        "pass the answer as an argument, such as --yes; input() works only on a terminal",
        "https://docs.python.org/3/library/exceptions.html#EOFError",
    ),
    _row(
        "no-file",
        r"^(\[rank\d+\]: )?FileNotFoundError: ",
        "a file or a program does not exist on the node",
        "files that git ignores are not copied (--stage DIR copies another folder);"
        " `clusterctl data push` copies data; a program has to be installed on each node",
        "https://docs.python.org/3/library/exceptions.html#FileNotFoundError",
    ),
    _row(
        "library",
        r"error while loading shared libraries|cannot open shared object file",
        "a shared library is missing on a node",
        "install its package on all nodes, or set LD_LIBRARY_PATH with --env",
        "https://man7.org/linux/man-pages/man8/ld.so.8.html",
    ),
    _row(
        "exec-format",
        r"Exec format error",
        "the program was built for a different processor, or is a script without a #! line",
        "give the source file to `clusterctl run`: it is compiled on each kind of node",
        "https://man7.org/linux/man-pages/man2/execve.2.html",
    ),
    _row(
        "illegal-instruction",
        r"[Ii]llegal instruction",
        "the program uses instructions that the node's processor does not have",
        "build it on the nodes, or without -march=native",
        "https://man7.org/linux/man-pages/man7/signal.7.html",
    ),
)


MEETINGS = frozenset({"gloo-size", "mpi-truncated"})
"""Rows that ranks print when they have met in a collective and do not fit together."""


@dataclass(frozen=True, slots=True)
class Match:
    """A row, and the line in which its pattern was found."""

    message: Message
    line: str


def find(text: str) -> Match | None:
    """The row for the first line that has one; a row that is only `after` yields to any other."""
    fallback: Match | None = None
    for line in text.splitlines():
        for message in MESSAGES:
            if re.search(message.pattern, line):
                match = Match(message, line.strip())
                if not message.after:
                    return match
                fallback = fallback or match
                break
    return fallback


EXITS = {
    137: "SIGKILL comes from the kernel when memory runs out, or from a user or a limit; use a"
    " smaller batch, fewer ranks per node (--ranks-per-node) or larger machines",
    139: "a segmentation fault is a bug in native code, or in a package built for another version;"
    " its output has the Python line at which that happened",
    127: "the program, or one that it starts, was not found on the node; check its name and PATH",
    126: "the program may not be executed there; check its mode, and what its #! line names",
}
"""What to do about exit codes of programs that have said nothing that the table knows."""


def explain_exit(code: int) -> str:
    """A hint for that exit code; "" where it says nothing."""
    return EXITS.get(code, "")
