"""A pool of ranks, as https://mpi4py.readthedocs.io/en/stable/mpi4py.futures.html has it."""

from mpi4py import MPI
from mpi4py.futures import MPIPoolExecutor


def square(number: int) -> tuple[int, int]:
    return number**2, MPI.COMM_WORLD.rank


if __name__ == "__main__":
    with MPIPoolExecutor() as executor:
        found = list(executor.map(square, range(20)))
    assert all(rank > 0 for _, rank in found)
    print(sum(number for number, _ in found))
