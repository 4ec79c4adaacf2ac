"""Kills of clusterctl against the simulated EC2: what was tried, and what was wrong afterwards.

    python bench/kills.py [--seed 1 …] [--count 200] [--out bench/results/kills.json]

Rounds with these seeds, then with those that follow the last one, until COUNT commands have been
killed in them. The results are added to those in the file, and the table in
docs/internals/money.md is written from all of them (`--table` writes it, and kills nothing).
`--slow-gateways SECONDS`: new NAT gateways of private clusters are pending so long.
Needs root, terraform and the extra `dev`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.ec2.kills import COMMANDS, KINDS, Kills  # noqa: E402
from tests.sim import hub as hubs  # noqa: E402
from tests.sim.ec2.client import Ec2, initialise  # noqa: E402

DOCUMENT = ROOT / "docs" / "internals" / "money.md"
BEGIN, END = "<!-- kills -->\n", "<!-- /kills -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--slow-gateways", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "kills.json")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    known = json.loads(options.out.read_text())["kills"] if options.out.exists() else []
    if options.table:
        write(known)
        return 0
    with tempfile.TemporaryDirectory(dir="/tmp") as name, hubs.running() as hub:
        folder = Path(name)
        hub.serve_bases()
        (folder / "ec2").mkdir()
        ec2 = Ec2(folder / "ec2")
        try:
            kills = Kills(ec2, hub, folder, initialise(ec2, folder), options.slow_gateways)
            count, wrong = 0, 0
            for seed in itertools.chain(options.seed, itertools.count(options.seed[-1] + 1)):
                if count >= options.count:
                    break
                print(f"{seed:5}", flush=True)
                fresh = [asdict(kill) for kill in kills.round(seed, repeat=2)]
                known += fresh
                count += sum(kill["killed"] for kill in fresh)
                wrong += sum(bool(kill["wrong"]) for kill in fresh)
                save(options.out, known)
                print(*(line(kill) for kill in fresh), sep="\n", flush=True)
        finally:
            ec2.close()
    return 1 if wrong else 0


def line(kill: dict[str, Any]) -> str:
    what = "killed" if kill["killed"] else "over before"
    place = f"{kill['seed']:5}  {kill['kind']:7}  {kill['verb']:8} {kill['at']:6.2f} s"
    said = f"{place}  {what}  then {kill['following']}"
    return said + "".join(f"\n       WRONG: {text}" for text in kill["wrong"])


def save(out: Path, kills: Iterable[dict[str, Any]]) -> None:
    machine = f"{platform.machine()}, simulated EC2"
    document = {"date": date.today().isoformat(), "machine": machine, "kills": list(kills)}
    out.write_text(json.dumps(document, indent=1) + "\n")


def write(kills: list[dict[str, Any]]) -> None:
    """The table, between its marks."""
    killed = [kill for kill in kills if kill["killed"]]
    rows = [
        f"| command | {' | '.join(KINDS)} | then all was right | wrong |",
        "|" + "---|" * (len(KINDS) + 3),
    ]
    for verb in (*COMMANDS, "all"):
        mine = [kill for kill in killed if verb in (kill["verb"].split()[0], "all")]
        kinds = (str(sum(kill["kind"] == kind for kill in mine)) for kind in KINDS)
        wrong = sum(bool(kill["wrong"]) for kill in mine)
        rows.append(f"| `{verb}` | {' | '.join(kinds)} | {len(mine) - wrong} | {wrong} |")
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    DOCUMENT.write_text(before + BEGIN + "\n".join(rows) + "\n" + END + after)


if __name__ == "__main__":
    raise SystemExit(main())
