"""All figures of docs/performance.md and docs/scale.md, one after the other, and then the pages.

    python -m bench [local] [peers] [ec2] [scale]

Two hours on two cores. Each says what it needs. Exit code 1: a figure is over its limit.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALL = ("local", "peers", "ec2", "scale")


def main() -> int:
    chosen = sys.argv[1:] or ALL
    if unknown := set(chosen) - set(ALL):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(ALL)}")
    codes = [subprocess.call([sys.executable, "-m", f"bench.{name}"], cwd=ROOT) for name in chosen]
    subprocess.check_call([sys.executable, str(ROOT / "scripts" / "readme.py")])
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
