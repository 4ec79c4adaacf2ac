"""Writes the real output of the demo and the measured figures into README.md.

    bash scripts/demo.sh >demo.log 2>&1; python bench/local.py; python scripts/readme.py demo.log

Lines of training are left out but for the first and the last of each rank.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def demo(log: str) -> str:
    """The demo's output from its first command on, indented."""
    lines = log[log.index("$ clusterctl up") :].splitlines()
    shown: list[str] = []
    for line in lines:
        match = re.search(r"Epoch (\d+) ", line)
        if match and match[1] not in ("0", "999"):
            if shown[-1] != "…":
                shown.append("…")
            continue
        shown.append(line)
    return "\n".join(f"    {line}".rstrip() for line in shown)


def figures(report: dict[str, list[dict[str, object]]]) -> str:
    rows = ["| what | measured | limit | compared with |", "|---|---|---|---|"]
    for row in report["rows"]:
        value, limit = (f"{float(str(row[key])):.3g} {row['unit']}" for key in ("value", "limit"))
        rows.append(f"| {row['what']} | {value} | {limit} | {row['against']} |")
    return "\n".join(rows)


def between(text: str, name: str, new: str) -> str:
    """Replaces what stands between `<!-- name -->` and `<!-- /name -->`."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    head, _, rest = text.partition(start)
    _, _, tail = rest.partition(end)
    return f"{head}{start}\n{new}\n{end}{tail}"


def main() -> None:
    path = ROOT / "README.md"
    text = path.read_text()
    text = between(text, "demo", demo(Path(sys.argv[1]).read_text()))
    report = json.loads((ROOT / "bench" / "results" / "local.json").read_text())
    path.write_text(between(text, "figures", figures(report)))


if __name__ == "__main__":
    main()
