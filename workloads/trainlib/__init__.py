"""What the bundled training programs share: ranks, backends, data, snapshots, metrics.

Needs the standard library, torch, numpy and (for MPI) mpi4py; it knows nothing of the tool that
started the program. `backends`, `errors`, `folders`, `meeting`, `mpi`, `options`, `program`,
`ranks`, `reduction` and `signals` do not load torch, so that wrong arguments are refused, and
programs that only need MPI start, without that second. `mpi_sgd` and `tagi` are for scripts of
your own, too.
"""
