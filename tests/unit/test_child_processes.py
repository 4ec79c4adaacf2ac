"""What runs on this machine while a command waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.scripts import until

WAITING = """
import signal, sys
from clusterctl import process
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)  # nohup ignores SIGHUP, and who starts the tests may, too
try:
    process.run(["sh", "-c", "echo $$ >started; exec sleep 100"], timeout=100)
except KeyboardInterrupt as stopped:
    sys.exit(stopped.exit_code)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_a_signal_that_ends_us_ends_what_we_wait_for(number: int, tmp_path: Path) -> None:
    """A build would go on for minutes."""
    ours = subprocess.Popen([sys.executable, "-c", WAITING], cwd=tmp_path)
    started = tmp_path / "started"
    until(lambda: started.exists() and started.read_text().endswith("\n"))
    ours.send_signal(number)
    assert ours.wait(timeout=20) == 128 + number
    with pytest.raises(ProcessLookupError):
        os.killpg(int(started.read_text()), 0)
