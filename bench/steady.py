"""Computes in equal steps for SECONDS and prints ten lines a second; each rank's last line is the
time of its median step, in ms.

    clusterctl run bench/steady.py SECONDS
"""

import statistics
import sys
import time


def main(seconds: float) -> None:
    began = said = time.monotonic()
    steps = []
    while (at := time.monotonic()) - began < seconds:
        sum(number * number for number in range(30000))
        steps.append(time.monotonic() - at)
        if at - said >= 0.1:
            said = at
            print(f"step {len(steps)} of a training, with some figures: 0.123 0.456", flush=True)
    print(statistics.median(steps) * 1000)


if __name__ == "__main__":
    main(float(sys.argv[1]))
