"""Fits a plane to the points of the data file, with a part of them on each process."""

import argparse
import configparser

import numpy as np
from mpi4py import MPI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--rate", type=float, help="instead of that of the configuration")
    given = parser.parse_args()
    config = configparser.ConfigParser()
    config.read(given.config)
    rate = given.rate or config.getfloat("training", "rate")

    world = MPI.COMM_WORLD
    points = np.loadtxt(config["data"]["file"], delimiter=",")
    mine = points[world.rank :: world.size]
    inputs, targets = np.column_stack([mine[:, :-1], np.ones(len(mine))]), mine[:, -1]
    weights = np.zeros(inputs.shape[1])
    for _ in range(config.getint("training", "steps")):
        gradient = inputs.T @ (inputs @ weights - targets)
        weights -= rate / len(points) * world.allreduce(gradient)
    error = world.allreduce(((inputs @ weights - targets) ** 2).sum()) / len(points)
    if world.rank == 0:
        print(f"rate {rate:g}: mean squared error {error:.3f} on {world.size} processes")
        np.savetxt("weights.csv", weights)


if __name__ == "__main__":
    main()
