"""A row of the tables of messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """A row. `pattern` is compiled when it is first searched for, since every command loads this;
    `advice`: clauses with `; ` between them, of which those are left out that recommend what the
    job already has; `source`: where the message and its cause are described."""

    name: str
    pattern: str
    cause: str
    advice: str
    source: str
    after: bool = False


# -------------------------------------------------------------------------------------------------
# Of what PyTorch communicates with: NCCL, Gloo, c10d and DDP.


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


# -------------------------------------------------------------------------------------------------
# Of MPI and what lies below it: Open MPI, PRRTE, UCX, libfabric, the system.


_OMPI = "https://github.com/open-mpi/ompi/issues/"
_OMPI_DOCS = "https://docs.open-mpi.org/en/v5.0.x/"
_UCX = "https://github.com/openucx/ucx/issues/"

MPI_MESSAGES: tuple[Message, ...] = (
    # ----------------------------------------------------------------------- Open MPI and PRRTE
    Message(
        "mpi-slots",
        r"There are not enough slots available",
        "there are more ranks than slots",
        "use fewer ranks (--ranks) or more workers",
        f"{_OMPI}7719",
    ),
    Message(
        "mpi-daemon",
        r"(ORTE|PRTE|A daemon|One or more) .*(unexpectedly failed|unable to (reliably )?start one|"
        r"lost communication with)|lost communication with a remote daemon",
        "mpirun lost its daemon on a node: the node restarted, or the network was interrupted",
        "`clusterctl status --live` shows which node does not answer",
        f"{_OMPI}6618",
    ),
    Message(
        "mpi-not-found",
        r"mpirun was unable to (launch|find) the specified|could not be found:? .*orted"
        r"|(orted|prted): (command )?not found",
        "a program does not exist on a node",
        "check the name of the program, and that every node has it; `clusterctl up` repairs MPI",
        f"{_OMPI}8870",
    ),
    Message(
        "mpi-truncated",
        r"MPI_ERR_TRUNCATE",
        "a message is longer than the receiver's buffer: ranks call a collective with different"
        " sizes or types",
        "compare the arguments of the call on all ranks",
        "https://www.mpi-forum.org/docs/mpi-4.1/mpi41-report.pdf",
    ),
    Message(
        "mpi-tcp-address",
        r"inbound MPI TCP connection request from a peer|Source IP of socket",
        "a node has several networks, and Open MPI used a different one than it announced",
        "do not set OMPI_MCA_btl_tcp_if_*, nor on the nodes: clusterctl sets the subnet",
        f"{_OMPI}5818",
    ),
    Message(
        "mpi-tcp-connect",
        r"Open MPI failed to TCP connect to a peer|btl_tcp_endpoint.*(refused|timed out|No route)",
        "ranks on different nodes cannot reach each other over TCP",
        "check firewalls and security groups between the nodes; `clusterctl verify` tests them",
        "https://github.com/jbornschein/mpi4py-examples/issues/11",
    ),
    Message(
        "mpi-reset",
        r"mca_btl_tcp.*(Connection reset by peer|peer unexpectedly closed|recv\(\d+\) failed)",
        "another rank has ended, or the network between the nodes was interrupted",
        "look at the rank that failed first",
        f"{_OMPI}4131",
        after=True,
    ),
    Message(
        "mpi-pml",
        r"PML .* cannot be selected|No components were able to be opened in the pml framework",
        "the transport that Open MPI was told to use does not work on a node",
        "do not set OMPI_MCA_pml; `clusterctl run --dry-run` shows what clusterctl chooses",
        f"{_OMPI_DOCS}tuning-apps/networking/index.html",
    ),
    Message(
        "mpi-init",
        r"MPI_INIT failed for some reason|called before MPI_INIT was invoked|ompi_mpi_init: .*fail",
        "MPI could not be initialised",
        "check that the program was built with the Open MPI of the nodes",
        f"{_OMPI_DOCS}launching-apps/troubleshooting.html",
    ),
    Message(
        "mpi-abort",
        r"MPI_ABORT was invoked|MPI_Abort\(",
        "a rank has called MPI_Abort",
        "look at what this rank printed before",
        "https://docs.open-mpi.org/en/v5.0.x/man-openmpi/man3/MPI_Abort.3.html",
        after=True,
    ),
    Message(
        "mpi-exited",
        r"exited on signal|one or more processes|exited with non-zero|Primary job +terminated",
        "mpirun ended the other ranks after one had failed",
        "look at the rank that failed first",
        f"{_OMPI_DOCS}launching-apps/troubleshooting.html",
        after=True,
    ),
    # ------------------------------------------------------------------ UCX, libfabric, system
    Message(
        "ucx-memlock",
        r"(ibv_reg_mr|ibv_create_cq|fi_mr_reg).*Cannot allocate memory|RLIMIT_MEMLOCK",
        "the limit on locked memory is too low for RDMA",
        "set `ulimit -l unlimited` (memlock in /etc/security/limits.conf) on the nodes",
        f"{_UCX}8229",
    ),
    Message(
        "ucx-device",
        r"UCX +(WARN|ERROR) .*(network device|net device).*not available|no usable transports",
        "UCX was told to use a network device that the node does not have",
        "do not set UCX_NET_DEVICES or UCX_TLS: clusterctl sets them for each node",
        f"{_UCX}9383",
    ),
    Message(
        "efa",
        r"libfabric:\d+.*efa.*(error|fail)|EFA device .*not found|fi_getinfo.*-61",
        "the Elastic Fabric Adapter cannot be used",
        "check that the instance type has EFA and the cluster was made with --efa",
        "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa.html",
    ),
    Message(
        "no-route",
        r"No route to host|Network is unreachable",
        "a node cannot reach another one",
        "check routes, firewalls and security groups; `clusterctl verify` tests all links",
        "https://man7.org/linux/man-pages/man7/ip.7.html",
    ),
    Message(
        "name",
        r"Name or service not known|Temporary failure in name resolution",
        "a host name cannot be resolved on the node",
        "use the addresses in MASTER_ADDR and the host file; for downloads check the node's DNS",
        "https://man7.org/linux/man-pages/man3/getaddrinfo.3.html",
    ),
    Message(
        "glibc",
        r"version `(GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found",
        "the program or a package was built on a newer system than the node has",
        "build it on the nodes, or use a container image",
        "https://docs.pytorch.org/docs/stable/cpp_index.html",
    ),
    Message(
        "shadowed",
        r"partially initialized module .*circular import"
        r"|No module named .*; '\w+' is not a package",
        "two modules import each other, or a file of the project has the name of a library",
        "rename the file if it is called like a library, such as random.py, torch.py or cuda.py",
        "https://docs.python.org/3/faq/programming.html",
    ),
    Message(
        "module",
        r"(ModuleNotFoundError|ImportError|python[\d.]*): No module named",
        "a Python package is missing on a node",
        "list it in the project's `requirements.txt`, or use a container image that has it",
        "https://docs.python.org/3/library/exceptions.html#ModuleNotFoundError",
    ),
    Message(
        "spawned",
        r"multiprocessing/spawn\.py\", line \d+, in _fixup_main"
        r"|An attempt has been made to start a new process before",
        "a process that the program has spawned, as for a data loader, runs the script again from"
        " its top, and fails there",
        'put all but imports and definitions under `if __name__ == "__main__":`',
        "https://docs.python.org/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods",
    ),
    Message(
        "no-input",
        r"EOFError: EOF when reading a line",
        "the program asks for input, and ranks have none",
        "pass the answer as an argument, such as --yes; input() works only on a terminal",
        "https://docs.python.org/3/library/exceptions.html#EOFError",
    ),
    Message(
        "breakpoint",
        r"^(\[rank\d+\]: )?bdb\.BdbQuit\b",
        "it has stopped in Python's debugger, which reads from a terminal, and ranks have none",
        "remove breakpoint() or set_trace() at that line; -e PYTHONBREAKPOINT=0 skips each"
        " breakpoint()",
        "https://docs.python.org/3/library/functions.html#breakpoint",
    ),
    Message(
        "no-file",
        r"^(\[rank\d+\]: )?FileNotFoundError: ",
        "a file or a program does not exist on the node",
        "files that git ignores are not copied (--stage DIR copies another folder);"
        " `clusterctl data push` copies data; a program has to be installed on each node",
        "https://docs.python.org/3/library/exceptions.html#FileNotFoundError",
    ),
    Message(
        "library",
        r"error while loading shared libraries|cannot open shared object file",
        "a shared library is missing on a node",
        "install its package on all nodes, or set LD_LIBRARY_PATH with --env",
        "https://man7.org/linux/man-pages/man8/ld.so.8.html",
    ),
    Message(
        "exec-format",
        r"Exec format error",
        "the program was built for a different processor, or is a script without a #! line",
        "give the source file to `clusterctl run`: it is compiled on each kind of node",
        "https://man7.org/linux/man-pages/man2/execve.2.html",
    ),
    Message(
        "illegal-instruction",
        r"[Ii]llegal instruction",
        "the program uses instructions that the node's processor does not have",
        "build it on the nodes, or without -march=native",
        "https://man7.org/linux/man-pages/man7/signal.7.html",
    ),
)


# -------------------------------------------------------------------------------------------------
# Of a machine and its parts: memory, disk, GPU and driver.


MACHINE_MESSAGES: tuple[Message, ...] = (
    # ------------------------------------------------------------------------- memory and disk
    Message(
        "cuda-memory",
        r"CUDA out of memory|OutOfMemoryError: (CUDA|HIP)|HIP out of memory",
        "the GPU has too little memory",
        "use a smaller batch, gradient checkpointing or more GPUs; `nvidia-smi` on the node shows"
        " whether another process holds memory",
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
    ),
    Message(
        "cublas-memory",
        r"CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)",
        "cuBLAS could not allocate its workspace: the GPU's memory is full, or an index is out of"
        " range in an earlier kernel",
        "use a smaller batch; if that does not help, run with -e CUDA_LAUNCH_BLOCKING=1",
        "https://docs.nvidia.com/cuda/cublas/index.html#cublasstatus-t",
    ),
    Message(
        "shared-memory",
        r"NCCL WARN .*(/dev/shm|posix_fallocate|shared memory segment)",
        "/dev/shm is too small or full, and NCCL cannot connect the GPUs of one node",
        "remove stale files from /dev/shm, or give the container more (--shm-size=8g)",
        f"{_NCCL}290",
    ),
    Message(
        "loader-shared-memory",
        r"killed by signal: Bus error|insufficient shared memory \(shm\)",
        "/dev/shm is too small for the data loader's worker processes",
        "use fewer loader workers, or give the container more shared memory (--shm-size=8g)",
        f"{_TORCH}5040",
    ),
    Message(
        "loader-killed",
        r"DataLoader worker .*(is killed by signal: Killed|exited unexpectedly)",
        "a worker process of the data loader was killed, most likely because memory ran out",
        "use fewer loader workers or a node with more memory",
        "https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
    ),
    Message(
        "disk-full",
        r"No space left on device|ENOSPC|Disk quota exceeded|PytorchStreamWriter failed writing",
        "a disk is full",
        "free space on the node, or create the cluster with a larger --disk",
        "https://man7.org/linux/man-pages/man3/errno.3.html",
    ),
    Message(
        "torch-file",
        r"inline_container\.cc:\d+\] \. unexpected pos",
        "torch.save could not write its file to the end, most likely because a disk is full",
        "free space where the program saves its files, or create the cluster with a larger --disk",
        f"{_TORCH}156955",
    ),
    Message(
        "file-size",
        r"\[Errno 27\] File too large|[Ff]ile size limit exceeded",
        "a file is larger than a limit (`ulimit -f`) or its file system allows",
        "raise the limit on the node, or write several files",
        "https://man7.org/linux/man-pages/man2/setrlimit.2.html",
    ),
    Message(
        "damaged-file",
        r"PytorchStreamReader failed|pickle data was truncated|EOFError: Ran out of input"
        r"|BadZipFile: |file seems not fully written|incomplete metadata, file not fully covered",
        "a file that it reads is incomplete, damaged or of another format",
        "write such files under another name and rename them when they are complete; let the ranks"
        " wait in a barrier before they read what another one writes; fetch a download again",
        "https://github.com/togethercomputer/OpenChatKit/issues/58",
    ),
    Message(
        "host-memory",
        r"(^|\s)MemoryError\b|std::bad_alloc|DefaultCPUAllocator: can't allocate memory"
        r"|Cannot allocate memory \(errno=12\)|Unable to allocate .* for an array",
        "the node has too little memory",
        "use a smaller batch or larger nodes; use fewer ranks on each (--ranks-per-node)",
        "https://docs.python.org/3/library/exceptions.html#MemoryError",
    ),
    Message(
        "open-files",
        r"Too many open files|received 0 items of ancdata",
        "a rank has more open files than its limit allows",
        'raise the limit (`ulimit -n`), or call torch.multiprocessing.set_sharing_strategy("file_'
        'system")',
        "https://docs.pytorch.org/docs/stable/multiprocessing.html#file-descriptor-file-descriptor",
    ),
    Message(
        "processes",
        r"can't start new thread|pthread_create failed|fork: (retry: )?Resource temporarily",
        "the node's limit on processes and threads is reached",
        "set OMP_NUM_THREADS lower, use fewer loader workers, or raise `ulimit -u`",
        "https://man7.org/linux/man-pages/man2/setrlimit.2.html",
    ),
    # ---------------------------------------------------------------------------- GPU and driver
    Message(
        "driver-mismatch",
        r"Driver/library version mismatch",
        "the NVIDIA driver was updated, and the kernel still runs the old one",
        "restart the node",
        "https://github.com/NVIDIA/ubuntu-packaging-nvidia-driver/issues/3",
    ),
    Message(
        "driver-old",
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old",
        "the NVIDIA driver is older than the CUDA version of PyTorch needs",
        "install a newer driver, or a PyTorch that is built for an older CUDA",
        "https://docs.nvidia.com/deploy/cuda-compatibility/",
    ),
    Message(
        "no-driver",
        r"Found no NVIDIA driver|couldn't communicate with the NVIDIA driver",
        "there is no NVIDIA driver on the node, or it is not loaded",
        "on nodes without GPUs, use its own option for the CPU (often --device=cpu); use nodes"
        " with GPUs (`clusterctl up --gpu g4dn`), or install the driver on your own",
        "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",
    ),
    Message(
        "no-gpu",
        r"No CUDA GPUs are available|no CUDA-capable device is detected|No HIP GPUs are available",
        "the program finds no GPU",
        "check CUDA_VISIBLE_DEVICES, and that the container was started with its GPUs; use"
        " --allow-cpu for bundled programs; use the program's own option for the CPU (often"
        " --device=cpu)",
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
    ),
    Message(
        "torch-without-cuda",
        r"Torch not compiled with CUDA enabled|has no attribute '_cuda_\w+'",
        "this PyTorch is the build for CPUs, and the program wants a GPU",
        "on nodes without GPUs, use its own option for the CPU (often --device=cpu); where it has"
        " none, remove .cuda() and torch.cuda.set_device; on GPU nodes, install the build for GPUs",
        "https://pytorch.org/get-started/locally/",
    ),
    Message(
        "no-kernel",
        r"no kernel image is available for execution on the device|CUDA capability sm_\d+ is not",
        "PyTorch was not built for this generation of GPU",
        "install a PyTorch whose torch.cuda.get_arch_list() names it, or use other GPUs",
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
    ),
    Message(
        "no-code-object",
        r"hipErrorNoBinaryForGpu|Unable to find code object for all current devices"
        r"|Cannot read .*TensileLibrary",
        "ROCm has no kernels for this AMD GPU",
        "use wheels that are built for it (docs/images.md); run bundled programs with --allow-cpu",
        "https://github.com/ROCm/legacy-rocm-build/issues/1623",
    ),
    Message(
        "device-assert",
        r"device-side assert triggered",
        "a kernel found an invalid index, such as a class label that is out of range",
        "run with -e CUDA_LAUNCH_BLOCKING=1 to see the line; check the labels",
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution",
    ),
    Message(
        "illegal-access",
        r"illegal memory access was encountered",
        "a GPU kernel read or wrote outside its memory",
        "run with -e CUDA_LAUNCH_BLOCKING=1 to see which; `clusterctl verify` checks the GPU",
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
    ),
    Message(
        "gpu-lost",
        r"uncorrectable ECC error|GPU is lost|fallen off the bus|unspecified launch failure",
        "the GPU has failed",
        "stop the instance and use another one; `clusterctl verify` shows the GPU's errors",
        "https://docs.nvidia.com/deploy/xid-errors/",
    ),
    Message(
        "invalid-device",
        r"invalid device ordinal",
        "a rank asked for a GPU that its node does not have",
        "use LOCAL_RANK, not RANK, to choose the GPU; use at most one rank per GPU",
        "https://docs.pytorch.org/docs/stable/elastic/run.html",
    ),
)
