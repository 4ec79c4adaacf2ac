"""A scheduler, a client and workers as ranks, as https://mpi.dask.org/en/latest/ has it."""

from dask.distributed import Client
from dask_mpi import initialize


def double(number: int) -> int:
    return 2 * number


if __name__ == "__main__":
    initialize(nthreads=1, dashboard=False, local_directory="scratch")
    with Client() as client:
        client.wait_for_workers(1, timeout=60)
        print(sum(client.gather(client.map(double, range(10)))))
