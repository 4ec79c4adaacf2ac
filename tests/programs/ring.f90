! Hands a number round, as https://www.mpi-forum.org/docs/ has it for Fortran 2008.
program ring
    use mpi
    implicit none
    integer :: rank, ranks, total, error
    call MPI_Init(error)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
    call MPI_Allreduce(rank, total, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
    print '(i0, a, i0, a, i0)', rank, ' of ', ranks, ': sum ', total
    call MPI_Finalize(error)
end program ring
