"""Of a machine and its parts: memory, disk, GPU and driver."""

from __future__ import annotations

from clusterctl.insight.known_messages.row import Message

_TORCH = "https://github.com/pytorch/pytorch/issues/"
_NCCL = "https://github.com/NVIDIA/nccl/issues/"

MESSAGES: tuple[Message, ...] = (
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
