"""Of MPI and what lies below it: Open MPI, PRRTE, UCX, libfabric, the system."""

from __future__ import annotations

from clusterctl.insight.known_messages.row import Message

_OMPI = "https://github.com/open-mpi/ompi/issues/"
_OMPI_DOCS = "https://docs.open-mpi.org/en/v5.0.x/"
_UCX = "https://github.com/openucx/ucx/issues/"

MESSAGES: tuple[Message, ...] = (
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
