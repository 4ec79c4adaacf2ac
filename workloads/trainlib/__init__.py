"""What the bundled training programs share: ranks, backends, data, snapshots, metrics.

Needs the standard library, torch, numpy and (for MPI) mpi4py; it knows nothing of the tool that
started the program. `data`, `metrics`, `models`, `session`, `snapshots` and `trainer` load torch;
the other modules do not, so that wrong arguments are refused, and programs that only need MPI
start, without that second.
"""
