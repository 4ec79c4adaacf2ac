"""Writes what docs have of measurements and of the code, and draws the demo.

    python scripts/readme.py                  # tables, from bench/results and from the code
    bash scripts/demo.sh >demo.log 2>&1; python scripts/readme.py demo.log    # the picture, too

Nothing of these tables is typed by hand: tests/unit/test_readme.py compares them with their
sources.
"""

from __future__ import annotations

import inspect
import io
import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.text import Text

from bench import scale
from clusterctl.insight.messages import load_tables
from clusterctl.options.kinds import ARGUMENTS, GENERAL, OPTIONS, Option
from clusterctl.options.verbs import VERBS

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "docs" / "demo.txt"


def cut_demo(log: str) -> str:
    """What scripts/demo.sh printed, from its first command to its last line."""
    shown = log[log.index("$ clusterctl up") :]
    return "".join(f"{line.rstrip()}\n" for line in shown.splitlines())


def figures(report: dict[str, Any]) -> str:
    """bench/results/local.json as a table."""
    rows = ["| what | measured | limit | compared with |", "|---|---|---|---|"]
    for row in report["rows"]:
        value, limit = (f"{float(row[key]):.3g} {row['unit']}" for key in ("value", "limit"))
        over = "" if row["ok"] else " (over)"
        rows.append(f"| {row['what']} | {value}{over} | {limit} | {row['against']} |")
    return "\n".join([f"{report['machine']}, {report['date']}:", "", *rows])


def peers(report: dict[str, Any]) -> str:
    """bench/results/peers.json as a table for each section."""
    parts = [f"{report['machine']}; seconds, where no other unit is named:"]
    for section in dict.fromkeys(row["section"] for row in report["rows"]):
        rows = [row for row in report["rows"] if row["section"] == section]
        tools = list(dict.fromkeys(tool for row in rows for tool in row["seconds"]))
        rounds = max(len(values) for row in rows for values in row["seconds"].values())
        when = f"{rows[0]['date']}, load average before: {rows[0]['load_before']}, rounds: {rounds}"
        parts.append(f"**{section}** ({when})")
        lines = ["| | " + " | ".join(tools) + " |", "|---" * (len(tools) + 1) + "|"]
        for row in rows:
            notes = [row["note"], *({row.get("unit", "s")} - {"s"})]
            cells = [row["what"] + "".join(f" ({note})" for note in notes if note)]
            for tool in tools:
                values = row["seconds"].get(tool)
                found = [each(values) for each in (statistics.median, min, max) if values]
                shown = [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in found]
                cells.append("{} ({}-{})".format(*shown) if shown else "")
            cells[0] = cells[0].replace("|", "\\|")  # a pipe of a command
            lines.append("| " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
        missed = [f"{row['what']}: {miss}" for row in rows for miss in row["misses"]]
        parts.append("\n".join(f"- over its limit: {line}" for line in missed))
    return "\n\n".join(filter(None, parts))


def ec2(report: dict[str, Any]) -> str:
    """bench/results/ec2.json as a table."""
    lines = ["| what | measured | limit | compared with | on |", "|---|---|---|---|---|"]
    for row in report["rows"]:
        value, limit = (f"{float(row[key]):.3g} {row['unit']}" for key in ("value", "limit"))
        side = "at least" if row["least"] else "at most"
        cells = (row["what"], value + " (missed)" * (not row["ok"]), f"{side} {limit}")
        lines.append("| " + " | ".join((*cells, row["against"], row["date"])) + " |")
    return "\n".join([f"{report['machine']}:", "", *lines])


def scale_forecast(report: dict[str, Any]) -> str:
    """The model of bench/scale.py for machines with cores of their own."""
    measured = report["runs"][str(scale.MEASURED)]
    found = {n: scale.predict(measured, n, shared=False) for n in scale.SHOWN}
    hourly = {n: scale.sum_hourly(n) for n in scale.SHOWN}
    starts = {n: scale.sum_start(found[n]) for n in scale.SHOWN}
    rows = [[f"`up`: {name}", *(f"{found[n][name]:.0f} s" for n in found)] for name in scale.UP]
    rows += [
        ["**`up`, whole**", *(f"**{seconds:.0f} s**" for seconds in starts.values())],
        ["`run`, to the end of a program that prints a line", *_seconds(found, "run")],
        ["`verify`", *_seconds(found, "verify")],
        ["`down`", *_seconds(found, "down")],
        ["an hour", *(f"${dollars:.2f}" for dollars in hourly.values())],
        ["`up` and `down` alone, at most"]
        + [f"${hourly[n] * (starts[n] + found[n]['down']) / 3600:.2f}" for n in found],
    ]
    head = ["", *(f"{n:,} workers" for n in scale.SHOWN)]
    return "\n".join([f"{_tell(report)}:", "", *_table([head, *rows])])


def _seconds(found: dict[int, dict[str, float]], name: str) -> list[str]:
    return [f"{steps[name]:.0f} s" for steps in found.values()]


def scale_check(report: dict[str, Any]) -> str:
    """What the same model says of nodes that share one machine, beside what was measured there."""
    small, large = (report["runs"][str(n)]["seconds"] for n in (scale.MEASURED, scale.CHECKED))
    found = scale.predict(report["runs"][str(scale.MEASURED)], scale.CHECKED, shared=True)
    rows = [["", f"{scale.MEASURED} workers", f"{scale.CHECKED}, predicted", "measured", ""]]
    for name, predicted in found.items():
        off = large[name] / predicted - 1
        verdict = "" if abs(off) <= scale.TOLERANCE else f"**missed: {off:+.0%}**"
        cells = [f"{value:.1f} s" for value in (small[name], predicted, large[name])]
        rows.append([f"`up`: {name}" if name in scale.UP else f"`{name}`", *cells, verdict])
    return "\n".join([f"{_tell(report)}:", "", *_table(rows)])


def scale_limits(report: dict[str, Any]) -> str:
    """What breaks or slows down, in the order in which a growing cluster meets it."""
    rows = [["what", "limit", *(f"{n:,}" for n in scale.SHOWN), "met from", "then", "source"]]
    for row in scale.list_limits(report):
        met = "–" if row.reached is None else f"{row.reached:,.0f}"
        rows.append([row.what, row.limit, *row.needs, met, row.then, row.source])
    return "\n".join(_table(rows))


def _tell(report: dict[str, Any]) -> str:
    return f"{report['machine']}, {report['date']}, load average before: {report['load_before']}"


def _table(rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]


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
    return "\n".join([f"{_tell(report)}:", "", *rows])


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
        ours, theirs = (
            f"{rate:,.0f}" if rate >= 100 else f"{rate:.2g}"
            for rate in (speed["ours"], speed["pytagi"])
        )
        rows.append(f"| {network} | {ours} | {theirs} | {speed['ratio']:.3g} |")
    return "\n".join(rows)


LINE_SECONDS, COMMAND_SECONDS = 0.1, 1.2
"""How long the picture waits before it shows another line, and another command."""


def drawing(text: str) -> str:
    """What the demo printed as an SVG picture of a terminal, in which lines appear one by one."""
    console = Console(
        record=True, width=126, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    moments: list[float] = []
    for line in text.splitlines():
        command = line.startswith("$ ")
        style = "bold" if command else RANK_STYLES.get(line[:3], "")
        console.print(Text(line, style), overflow="crop", no_wrap=True)
        pause = COMMAND_SECONDS if command and moments else LINE_SECONDS
        moments.append(moments[-1] + pause if moments else 0.0)
    svg = console.export_svg(title="clusterctl", unique_id="demo")
    # The picture loads nothing from the network, where its usual font is.
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.S)
    svg = svg.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")
    svg = svg.replace("</style>", f"{APPEAR}</style>")

    def delay(found: re.Match[str]) -> str:
        moment = moments[int(found[1])] if int(found[1]) < len(moments) else 0.0
        return f'{found[0]} style="animation-delay:{moment:.1f}s"'

    svg = re.sub(r'clip-path="url\(#demo-line-(\d+)\)"', delay, svg)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


APPEAR = """
    @keyframes appear { from { visibility: hidden } to { visibility: visible } }
    @media (prefers-reduced-motion: no-preference) {
        .demo-matrix text { animation: appear 0.01s backwards }
    }
"""
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


def reference() -> str:
    """All verbs with all of their options, as a chapter for each heading of the help."""
    lines: list[str] = []
    heading = ""
    for name, verb in VERBS.items():
        if verb.heading != heading:
            heading = verb.heading
            lines += [f"### {heading}", ""]
        options = [option for option in verb.options().values() if not option.never]
        arguments = [option.metavar for option in options if not option.flags]
        about = " ".join(inspect.cleandoc(verb.__doc__ or "").split())
        lines += [f"#### {name}", "", f"`clusterctl {' '.join([name, '[OPTIONS]', *arguments])}`"]
        lines += ["", about.replace("<", "&lt;"), ""]
        sources = [VERBS[source].options().values() for source in verb.settings_of]
        own = [option for option in options if not any(option in other for other in sources)]
        if len(own) < len(options) and sources:
            names = " and ".join(f"[{source}](#{source})" for source in verb.settings_of)
            lines += [f"Takes the options of {names}, too.", ""]
        lines += ["| option | |", "|---|---|", *list_rows(own), ""]
        lines += [*(f"    {example}" for example in verb.examples), ""] if verb.examples else []
    return "\n".join(lines).strip()


def list_rows(options: list[Option[Any]]) -> Iterator[str]:
    """Arguments first, then options under their headings, less those that all verbs have."""
    groups: dict[str, list[Option[Any]]] = {ARGUMENTS.heading: []}
    for option in options:
        groups.setdefault(option.group.heading, []).append(option)
    groups[GENERAL.heading] = groups.pop(GENERAL.heading, [])
    for heading, members in groups.items():
        if heading not in (ARGUMENTS.heading, GENERAL.heading, OPTIONS.heading):
            yield f"| **{heading}** | |"
        native = [f"`{option.flag}`" for option in members if option.group.native]
        for option in members:
            if option.help and option.flag not in ("--json", "--quiet", "--verbose"):
                flags = ", ".join(option.flags)
                cells = (f"`{f'{flags} {option.metavar}'.strip()}`", option.help)
                yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        if native:
            yield f"| {' '.join(native)} | as in the batch system |"


TABLES = (
    ("docs/performance.md", "peers", "peers.json", peers),
    ("docs/performance.md", "figures", "local.json", figures),
    ("docs/performance.md", "ec2", "ec2.json", ec2),
    ("docs/scale.md", "forecast", "scale.json", scale_forecast),
    ("docs/scale.md", "check", "scale.json", scale_check),
    ("docs/scale.md", "limits", "scale.json", scale_limits),
    ("docs/internals/programs.md", "busy", "busy.json", busy),
    ("docs/internals/programs.md", "mnist", "mnist.json", mnist),
    ("docs/internals/programs.md", "gradients", "gradients.json", gradients),
    ("docs/internals/programs.md", "mpi-sgd", "mpi_sgd.json", mpi_sgd),
    ("docs/internals/programs.md", "tagi-layers", "tagi_layers.json", tagi_layers),
    ("docs/internals/programs.md", "tagi-speed", "tagi_layers.json", tagi_speed),
)
"""Where, between which marks, from which file of bench/results."""


def table(file: str, make: Any) -> str:
    text: str = make(json.loads((ROOT / "bench" / "results" / file).read_text()))
    return text


def replace(text: str, name: str, new: str) -> str:
    """The text with this between the marks."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    head, _, rest = text.partition(start)
    _, _, tail = rest.partition(end)
    return f"{head}{start}\n{new}\n{end}{tail}"


def write_documents() -> dict[str, str]:
    """What each of them has to be, by its path in the checkout."""
    made: dict[str, str] = {}

    def read(document: str) -> str:
        return made.get(document) or (ROOT / document).read_text()

    for document, name, file, make in TABLES:
        made[document] = replace(read(document), name, table(file, make))
    guide = "docs/troubleshooting.md"
    made[guide] = replace(read(guide), "messages", messages())
    made["docs/reference.md"] = replace(read("docs/reference.md"), "commands", reference())
    made["docs/demo.svg"] = drawing(DEMO.read_text())
    return made


def main() -> None:
    if len(sys.argv) > 1:
        DEMO.write_text(cut_demo(Path(sys.argv[1]).read_text()))
    for document, text in write_documents().items():
        (ROOT / document).write_text(text)


if __name__ == "__main__":
    main()
