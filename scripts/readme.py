"""Writes the measured figures and the demo's output into README.md and docs, and draws the demo.

    python scripts/readme.py                  # figures, from bench/results
    bash scripts/demo.sh >demo.log 2>&1; python scripts/readme.py demo.log    # the demo, too

No figure of these tables is typed by hand: tests/unit/test_readme.py compares them with the result
files. Lines of training are left out of the demo but for the first and the last of each rank.
"""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from rich.console import Console
from rich.text import Text

from clusterctl.insight.messages import load_tables

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


def figures(report: dict[str, Any]) -> str:
    """bench/results/local.json as a table."""
    rows = ["| what | measured | limit | compared with |", "|---|---|---|---|"]
    for row in report["rows"]:
        value, limit = (f"{float(row[key]):.3g} {row['unit']}" for key in ("value", "limit"))
        over = "" if row["ok"] else " (over)"
        rows.append(f"| {row['what']} | {value}{over} | {limit} | {row['against']} |")
    return "\n".join([f"{report['machine']}, {report['date']}:", "", *rows])


def busy(report: dict[str, Any]) -> str:
    """bench/results/busy.json as a table."""
    rows = [
        "| ranks | nodes | busy processes | gloo, ms | MPI, ms | MPI ÷ gloo | MPI ÷ idle |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        ms = row["ms"]
        over = "" if row["ok"] else " (over)"
        rows.append(
            f"| {row['ranks']} | {row['hosts']} | {row['busy']} | {ms['gloo']:.3g} |"
            f" {ms['mpi']:.3g} | {row['mpi_to_gloo']:.2f} | {row['mpi_to_idle']:.2f}{over} |"
        )
    told = f"{report['machine']}, {report['date']}, load average before: {report['load_before']}"
    return "\n".join([f"{told}:", "", *rows])


def mnist(report: dict[str, Any]) -> str:
    """bench/results/mnist.json as a table."""
    rows = ["| program | ranks | epochs | test loss | test accuracy |", "|---|---|---|---|---|"]
    for command, run in report["runs"].items():
        found = run["after_each_epoch"]
        loss = f"{found['loss'][-1]:.4f}" if "loss" in found else "–"
        accuracy = found["accuracy"]
        rows.append(
            f"| `{command}` | {run['ranks']} | {len(accuracy)} | {loss} | {accuracy[-1]:.4f} |"
        )
    return "\n".join([f"{versions(report)}, {report['rows']}:", "", *rows])


def versions(report: dict[str, Any]) -> str:
    return f"Python {report['python']}, torch {report['torch']}"


def gradients(report: dict[str, Any]) -> str:
    """bench/results/gradients.json as a table."""
    rows = [f"| kind of script, {report['ranks']} ranks | over MPI | over gloo |", "|---|---|---|"]
    for kind, found in report["kinds"].items():
        rows.append(f"| {kind} | {found['mpi'] or 'same bits'} | {found['gloo'] or 'same bits'} |")
    return "\n".join([f"{versions(report)}:", "", *rows])


def mpi_sgd(report: dict[str, Any]) -> str:
    """bench/results/mpi_sgd.json as a table."""
    rows = [f"| script, {report['ranks']} ranks | largest difference of a weight |", "|---|---|"]
    rows += [f"| {name} | {value:.2g} |" for name, value in report["largest_difference"].items()]
    return "\n".join([f"{versions(report)}:", "", *rows])


def tagi_layers(report: dict[str, Any]) -> str:
    """The differences in bench/results/tagi_layers.json as a table."""
    rows = ["| network | largest relative difference |", "|---|---|"]
    found = report["largest_relative_difference"]
    rows += [f"| {network} | {value:.2g} |" for network, value in found.items()]
    return "\n".join([f"{versions(report)}, limit {report['limit']:g}:", "", *rows])


def tagi_speed(report: dict[str, Any]) -> str:
    """The speeds in bench/results/tagi_layers.json as a table."""
    rows = ["| rows per second of processor time | here | pytagi | ratio |", "|---|---|---|---|"]
    for network, speed in report["rows_per_cpu_s"].items():
        rows.append(
            f"| {network} | {speed['ours']:,.0f} | {speed['pytagi']:,.0f} | {speed['ratio']:.3g} |"
        )
    return "\n".join(rows)


def drawing(text: str) -> str:
    """The demo as an SVG picture of a terminal. `text`: what README.md shows of it."""
    lines = [line.removeprefix("    ") for line in text.splitlines()]
    console = Console(
        record=True, width=126, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    for line in lines:
        style = "bold" if line.startswith("$ ") else RANK_STYLES.get(line[:3], "")
        console.print(Text(line, style), overflow="crop", no_wrap=True)
    svg = console.export_svg(title="clusterctl", unique_id="demo")
    # The picture loads nothing from the network, where its usual font is.
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.S)
    svg = svg.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


RANK_STYLES = {"[0]": "cyan", "[1]": "magenta"}


def messages() -> str:
    """What libraries print when something is wrong, as a table, with the example of the tests."""
    cases = tomllib.loads((ROOT / "tests" / "unit" / "messages.toml").read_text())["cases"]
    rows = ["| it prints, for example | what that means | what to do |", "|---|---|---|"]
    for row in load_tables().messages:
        found = re.search(row.pattern, cases[row.name])
        assert found, row.name
        shown = found[0].strip().replace("|", "\\|")
        advice = row.advice.replace("|", "\\|")
        rows.append(f"| `{shown}` | [{row.cause}]({row.source}) | {advice} |")
    return "\n".join(rows)


TABLES = (
    ("README.md", "figures", "local.json", figures),
    ("docs/workloads.md", "busy", "busy.json", busy),
    ("docs/workloads.md", "mnist", "mnist.json", mnist),
    ("docs/workloads.md", "gradients", "gradients.json", gradients),
    ("docs/workloads.md", "mpi-sgd", "mpi_sgd.json", mpi_sgd),
    ("docs/workloads.md", "tagi-layers", "tagi_layers.json", tagi_layers),
    ("docs/workloads.md", "tagi-speed", "tagi_layers.json", tagi_speed),
)
"""Where, between which marks, from which file of bench/results."""


def table(file: str, make: Any) -> str:
    text: str = make(json.loads((ROOT / "bench" / "results" / file).read_text()))
    return text


def between(text: str, name: str) -> str:
    """What stands between `<!-- name -->` and `<!-- /name -->`."""
    _, _, rest = text.partition(f"<!-- {name} -->\n")
    found, _, _ = rest.partition(f"\n<!-- /{name} -->")
    return found


def replace(text: str, name: str, new: str) -> str:
    """The text with this between the marks."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    head, _, rest = text.partition(start)
    _, _, tail = rest.partition(end)
    return f"{head}{start}\n{new}\n{end}{tail}"


def main() -> None:
    for document, name, file, make in TABLES:
        path = ROOT / document
        path.write_text(replace(path.read_text(), name, table(file, make)))
    path = ROOT / "docs" / "troubleshooting.md"
    path.write_text(replace(path.read_text(), "messages", messages()))
    path = ROOT / "README.md"
    if len(sys.argv) > 1:
        path.write_text(replace(path.read_text(), "demo", demo(Path(sys.argv[1]).read_text())))
    (ROOT / "docs" / "demo.svg").write_text(drawing(between(path.read_text(), "demo")))


if __name__ == "__main__":
    main()
