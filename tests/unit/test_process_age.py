"""How long a command has run already when it begins its work."""

from __future__ import annotations

import subprocess
import sys


def test_the_age_of_a_process_counts_from_its_start() -> None:
    """Not from where our code begins: loading it takes seconds on a busy machine."""
    program = (
        "import time; time.sleep(1.2)\n"
        "from clusterctl.core import clock; print(clock.measure_age())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert float(done.stdout) > 1.1  # the kernel counts hundredths of seconds
