"""A tree of 100 MB on eight local nodes: seconds, and bytes that leave this machine.

    python bench/send_once.py [--other CHECKOUT] [--rounds N] [--out bench/results/send_once.json]

`first`: no node has any of it. `changed`: one small file is another one. `same`: nothing is.
`empty`: a tree of that small file alone; the bytes of the others are those beyond its own. `push`:
the same by `data push`, of other content. --other
takes turns with another checkout of clusterctl, on a cluster of its own. Bytes are those that the
kernel has sent to the nodes; needs root, so that they have a network of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FILES, SIZE = 200, 500_000
WORKERS = 8
LIMIT_SENT = 200_000
"""Bytes that may be sent where one small file has changed."""


@dataclass
class Variant:
    """One checkout, with a cluster of its own."""

    name: str
    checkout: Path
    scratch: Path
    seconds: dict[str, list[float]] = field(default_factory=dict)
    sent: dict[str, list[int]] = field(default_factory=dict)
    device: str = ""

    def call(self, *words: str, folder: Path | None = None) -> str:
        env = {
            **os.environ,
            "PYTHONPATH": str(self.checkout),
            "CLUSTERCTL_HOME": str(self.scratch / self.name),
        }
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        return subprocess.run(
            [sys.executable, "-m", "clusterctl", *words],
            check=True,
            cwd=folder or self.scratch,
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    def start(self) -> None:
        self.call("up", "--workers", str(WORKERS), "--quiet")
        record = self.scratch / self.name / "clusters" / "default" / "cluster.json"
        nodes = json.loads(record.read_text())["nodes"]
        route = subprocess.check_output(["ip", "-j", "route", "get", nodes[1]["address"]])
        self.device = json.loads(route)[0]["dev"]

    def stop(self) -> None:
        self.call("down", "--discard", "--yes", "--force", "--quiet")

    def count_sent(self) -> int:
        return int(Path(f"/sys/class/net/{self.device}/statistics/tx_bytes").read_text())

    def measure(self, what: str, folder: Path, *words: str) -> None:
        before, began = self.count_sent(), time.monotonic()
        self.call(*(words or ("run", "--quiet", "hi.py")), folder=folder)
        self.seconds.setdefault(what, []).append(time.monotonic() - began)
        self.sent.setdefault(what, []).append(self.count_sent() - before)


def write_tree(folder: Path) -> None:
    for number in range(FILES):
        (folder / f"{number}.bin").write_bytes(os.urandom(SIZE))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--other", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "send_once.json")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ctl-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        here = Variant("here", HERE.parent, scratch)
        variants = [here, *([Variant("other", asked.other, scratch)] if asked.other else [])]
        empty, tree = scratch / "empty", scratch / "tree"
        for folder in (empty, tree):
            folder.mkdir()
        try:
            for variant in variants:
                variant.start()
            for number in range(asked.rounds):
                shutil.rmtree(tree)
                tree.mkdir()
                write_tree(tree)
                for folder in (empty, tree):
                    (folder / "hi.py").write_text(f"print('hi', {number})\n")
                for variant in variants:
                    variant.measure("empty", empty)
                    variant.measure("first", tree)
                (tree / "hi.py").write_text(f"print('hi again', {number})\n")
                for what in ("changed", "same"):
                    for variant in variants:
                        variant.measure(what, tree)
                shutil.rmtree(tree)
                tree.mkdir()
                write_tree(tree)
                for what in ("push", "push again"):
                    for variant in variants:
                        variant.measure(what, scratch, "data", "push", "--quiet", "tree")
        finally:
            for variant in variants:
                variant.stop()
    rows: list[dict[str, Any]] = [
        {
            "variant": variant.name,
            "what": what,
            "seconds": round(statistics.median(seconds), 3),
            "over_empty": round(
                statistics.median(seconds) - statistics.median(variant.seconds["empty"]), 3
            ),
            "sent": round(
                statistics.median(variant.sent[what]) - statistics.median(variant.sent["empty"])
            ),
        }
        for variant in variants
        for what, seconds in variant.seconds.items()
    ]
    asked.out.parent.mkdir(exist_ok=True)
    asked.out.write_text(json.dumps(rows, indent=2) + "\n")
    for row in rows:
        print(
            "{variant:6} {what:10} {seconds:7.2f} s {over_empty:+7.2f} s {sent:>12,} B more".format(
                **row
            )
        )
    changed = next(row for row in rows if (row["variant"], row["what"]) == ("here", "changed"))
    return 0 if changed["sent"] < LIMIT_SENT else 1


if __name__ == "__main__":
    sys.exit(main())
