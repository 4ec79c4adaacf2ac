"""Numbers and sizes in the way that people read them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from clusterctl.core.text import count, fold_runs, format_bytes
from tests.unit.tables import rows


@rows("size, text", "formats.bytes_are_counted_in_decimal_units")
def test_bytes_are_counted_in_decimal_units(size: float, text: str) -> None:
    assert format_bytes(size) == text


@rows("numbers, runs", "formats.numbers_fold_to_runs_in_order_and_each_once")
def test_numbers_fold_to_runs_in_order_and_each_once(
    numbers: list[int], runs: list[list[int]]
) -> None:
    assert [[run[0], run[-1]] for run in fold_runs(numbers)] == runs


def test_one_is_singular() -> None:
    assert [count(number, "process") for number in (0, 1, 2)] == [
        "0 processes",
        "1 process",
        "2 processes",
    ]


# ------------------------------------------------------------------------------------------------
# Tables of ours are read by whoever needs one first, also in several threads.


TYPES = """
from __future__ import annotations
from dataclasses import dataclass
from typing import NamedTuple
import msgspec
class Row(NamedTuple):
    number: int
    text: str = ""
@dataclass
class Inner:
    row: Row
    more: frozenset[str] = frozenset()
class Outer(msgspec.Struct, frozen=True):
    what: str
    rows: tuple[Row, ...] = ()
    inner: tuple[Inner, ...] = ()
"""

READ = """
import sys, threading, types
from pathlib import Path
from clusterctl.core.text import decode_table
sys.setswitchinterval(1e-6)
place = Path(sys.argv[1])
told = []
for turn in range(60):
    module = sys.modules[f"m{turn}"] = types.ModuleType(f"m{turn}")
    exec((place / "types.py").read_text(), module.__dict__)
    start = threading.Barrier(8)
    def read():
        start.wait()
        told.append(decode_table(place / "table.toml", dict[str, module.Outer]))
    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
sys.exit(len(told) != 480)
"""


def test_threads_that_read_a_table_at_once_do_no_harm(tmp_path: Path) -> None:
    """msgspec crashes (SIGSEGV) where two threads learn a type at once."""
    (tmp_path / "types.py").write_text(TYPES)
    (tmp_path / "table.toml").write_text(
        '[a]\nwhat = "x"\nrows = [[1, "a"]]\ninner = [{row = [2]}]\n'
    )
    argv = [sys.executable, "-c", READ, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
