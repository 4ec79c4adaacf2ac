/* A small MPI program: every rank says who it is and where.
 *
 *     mpicc hello.c -o hello && mpirun -np 4 ./hello
 *
 * Ends with 1 if a rank is missing: rank 0 counts the answers that it gets.
 */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int rank, size, length, one = 1, present = 0;
    char host[MPI_MAX_PROCESSOR_NAME];

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(host, &length);
    printf("Hello from rank %d of %d on %s\n", rank, size, host);
    fflush(stdout);

    MPI_Allreduce(&one, &present, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("ok: %d of %d ranks answered\n", present, size);
    MPI_Finalize();
    return present == size ? 0 : 1;
}
