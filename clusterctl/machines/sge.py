"""A site that runs Grid Engine: what to ask its login node, and what the answers mean."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import ClassVar
from xml.etree import ElementTree

from clusterctl.machines.attached import BatchSite
from clusterctl.machines.protocol import Queue

_GPU = ("gpu", "gpus", "ngpus")
"""What sites call the resource: Grid Engine has no name of its own for it."""


class SgeProvider(BatchSite):
    """Commands of Sun's, Son of, Univa and Open Grid Engine alike."""

    name = "sge"
    title = "Grid Engine"
    required: ClassVar = dict.fromkeys(
        ("qsub", "qstat", "qdel", "qrsh", "qconf"), "gridengine-client"
    )

    def list_questions(self) -> dict[str, str]:
        return {
            "version": "qstat -help | head -n 1",
            "pes": "qconf -spl",
        }

    def parse_site_info(self, answers: Mapping[str, str]) -> dict[str, str]:
        """`version` and the names of the parallel environments in `pes`."""
        return {
            "version": answers.get("version", "").strip(),
            "pes": " ".join(answers.get("pes", "").split()),
        }

    def build_node_command(self, words: Sequence[str], seconds: int) -> str:
        command = shlex.quote(shlex.join(words))
        return f"timeout {seconds} qrsh -now y -l h_rt=60 -N cctl-check {command} </dev/null"

    def build_status_command(self) -> str:
        return "qstat -f -F -xml"

    def parse_queues(self, text: str) -> tuple[Queue, ...]:
        """`qstat -f -F -xml`: an entry per queue and host. A state other than a calendar's or an
        owner's means that no job starts there."""
        try:
            # What qstat prints for -F is not always closed properly; then slots are all we know.
            rows = list(ElementTree.fromstring(text).iter("Queue-List"))
        except ElementTree.ParseError:
            return ()
        found: dict[str, Queue] = {}
        for row in rows:
            name = (row.findtext("name") or "").partition("@")[0]
            total, used = _read_number(row, "slots_total"), _read_number(row, "slots_used")
            up = not re.search("[aAudDEsSoc]", row.findtext("state") or "")
            gpus = sum(_round_down(r.text) for r in row.iter("resource") if r.get("name") in _GPU)
            old = found.get(name, Queue(name=name))
            found[name] = Queue(
                name=name,
                nodes=old.nodes + 1,
                free_nodes=old.free_nodes + (up and used == 0),
                slots=old.slots + total,
                free_slots=old.free_slots + (max(0, total - used) if up else 0),
                gpus=old.gpus + gpus,
                free_gpus=old.free_gpus + (gpus if up else 0),
                down=old.down + (not up),
            )
        return tuple(found.values())


def _read_number(row: ElementTree.Element, name: str) -> int:
    return _round_down(row.findtext(name))


def _round_down(text: str | None) -> int:
    match = re.match(r"\d+", (text or "").strip())
    return int(match[0]) if match else 0
