"""What the bundled training programs share: ranks, backends, data, snapshots, metrics.

Needs the standard library, torch, numpy and (for MPI) mpi4py; it knows nothing of the tool that
started the program. `allreduce_benchmark`, `backends`, `ddp_options`, `errors`, `folders`, `mpi`,
`options`, `program`, `ranks`, `rendezvous` and `signals` do not load torch, so that wrong arguments
are refused, and programs that only need MPI start, without that second. `mpi_sgd` and `tagi` are
for your own scripts, too.
"""
