"""`report`: what it says, that the page stands alone, and how a browser lays it out."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.actions import verify
from clusterctl.actions.common import open_store
from clusterctl.core.job import JobState, Provenance, RankFailure
from clusterctl.core.model import Charge, Cluster
from clusterctl.insight import report as insight_report
from clusterctl.insight import scaling
from clusterctl.insight.metrics import MetricPoint
from clusterctl.insight.report import MOST_PLOTS, describe_metrics
from clusterctl.insight.scaling import Curve, Curves, HardwareLimit
from clusterctl.insight.verify import Measurements, Verdict
from tests.conftest import Need
from tests.unit.calling import Call
from tests.unit.making import cluster, job, program, spec

NAMES = ("worker-1", "worker-2")


def recorded(ranks: int = 1) -> Cluster:
    """A cluster with two jobs that have metrics, measurements, phases and charges."""
    store = open_store()
    charge = Charge(
        node="worker-1", part="instance", item="g4dn.xlarge", hourly=0.5, source="", since=1000.0
    )
    where = cluster(charges=(charge.end_at(4600.0),), created=1000.0)
    store.save(where)
    what = spec(program=program("--lr", "0.1", "--token", "hunter2", "a<b>|c"))
    for number, name in ((7, "first"), (8, "second")):
        made = job(where, what, id=number, state=JobState.SUCCEEDED, program_exit_code=0)
        store.save_job(replace(made, started=1100.0 * number, finished=1100.0 * number + 90))
        folder = store.home.make(store.locate_job_folder(number) / "out" / "worker-1")
        for rank in range(ranks):
            lines = (
                {"step": s, "loss": 2 / (s + number), "samples_per_second": 4e4 + s, "time": s}
                for s in range(10)
            )
            text = "".join(json.dumps({"clusterctl": line}) + "\n" for line in lines)
            (folder / f"rank-{rank}.out").write_text(text)
        (folder.parent / ".complete").touch()
        store.save_provenance(number, Provenance(commit="c0ffee" * 7, branch=name))
    verdicts = (Verdict("worker-1", "GEMM", "low", "61% of the median: too hot"),)
    verify.keep(store, where, "verify", Measurements((), (), verdicts, 4.0, time=1200.0))
    verify.keep(store, where, "bench allreduce", curves())
    verify.keep(store, where, "bench scaling", scaled())
    return where


def curves() -> Curves:
    rows = []
    for backend, rate in (("gloo", 2e8), ("mpi", 9e8)):
        for size in (8, 512, 32768, 2097152):
            points = [
                MetricPoint(0, {"bytes": size, "seconds": (2e-5 + size / rate) * by})
                for by in (1.0, 1.3, 2.0)
            ]
            rows += scaling.make_rows(backend, 2, [[point] for point in points])
    limit = HardwareLimit(1.1e9, "link worker-1 – worker-2")
    return Curves(tuple(rows), limit, 3, {"nccl": "no GPU"}, 1300.0)


def scaled() -> Curve:
    runs = []
    for ranks in (1, 2, 4):
        for by in (1.0, 1.1, 1.4):
            seconds = (8 / ranks + 0.5) * by
            split = {"compute_seconds": 8 / ranks, "communication_seconds": 0.3}
            values = {"epoch": 0, "seconds": seconds, **split, "waiting_seconds": 0.2}
            nodes = NAMES[:ranks]
            runs.append(scaling.read_run(ranks, ranks, nodes, 60, [MetricPoint(0, values)]))
    curve = scaling.make_curve("train.py", runs)
    return replace(curve, time=1400.0)


def test_a_page_about_a_cluster(call: Call, need: Need) -> None:
    recorded()
    said = call("report", "lab")
    assert (said.code, said.out) == (0, "")
    assert "wrote report-lab.html" in said.err
    assert "wrote report-lab.html" in call("report").err, "the only one"
    page = Path("report-lab.html").read_text()
    for title in ("Overview", "Nodes", "Jobs", "Metrics", "Cost", "Measurements"):
        assert f"<h2>{title}</h2>" in page
    for title in ("Loss", "Samples/second"):
        assert re.search(f"<figcaption>{title}.*?</figcaption><svg ", page), title
    for title in ("All-reduce: bus bandwidth", "Time by number of ranks", "Efficiency"):
        assert re.search(f"<figcaption>{title}.*?</figcaption><svg ", page), title
    assert "Fastest: 4 ranks." in page
    assert "Limit: 1.1 GB/s (link worker-1 – worker-2)." in page
    assert "61% of the median: too hot" in page
    assert "$0.5000" in page
    assert "a&lt;b&gt;|c" in page
    assert "hunter2" not in page


def test_it_loads_nothing(call: Call) -> None:
    recorded()
    call("report", "7")
    page = Path("report-7.html").read_text()
    spaces = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink")
    assert set(re.findall(r"https?://[^\"' )]+", page)) <= set(spaces)
    assert not re.search(r"<(script|link|img|iframe)\b|@import|url\((?!#)", page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert {name[1:] for name in re.findall(r'href="(#[^"]+)"', page)} <= set(ids)


def test_a_page_about_a_job(call: Call) -> None:
    recorded()
    page = call("report", "8", "--output", "-").out
    cells = re.findall(r"<td[^>]*>(.*?)</td>", page)
    assert "c0ffeec0ffee (second)" in cells
    assert "train.py --lr 0.1 --token *** &#39;a&lt;b&gt;|c&#39;" in cells
    curve = ["8", "loss", "0", "10", "0.25", "0.117647", "0.117647", "0.25"]
    assert "61% of the median: too hot" in cells
    assert curve in [cells[at : at + len(curve)] for at in range(len(cells))]


def test_a_cluster_that_is_gone(call: Call) -> None:
    where = recorded()
    open_store().retire(where)
    said = call("report", "lab", "--output", "-")
    assert said.code == 0, said.err
    assert "<h2>Measurements</h2>" in said.out


def test_without_anything_to_report(call: Call) -> None:
    assert call("report").code == 7
    assert call("report", "9").code == 7
    assert call("report", "nope").code == 7


def test_a_cluster_without_jobs(call: Call) -> None:
    open_store().save(cluster())
    assert call("report", "lab").code == 0
    assert "<svg" not in Path("report-lab.html").read_text(), "no empty plot"


def test_a_file_that_cannot_be_written(call: Call) -> None:
    recorded()
    said = call("report", "7", "--output", "nowhere/page.html")
    assert said.code == 2
    assert "nowhere/page.html" in said.err


def test_the_name_of_a_metric_is_text() -> None:
    """A program may call one as it likes: neither markup nor a formula."""
    name = '$\\frac$ "><script>'
    svg = insight_report.draw_curves({name: [(0, 1), (1, 2)], "loss": [(0, 1)]}, x="step", y=name)
    assert "<script" not in svg
    assert 'aria-label="$\\frac$ &quot;&gt;' in svg


def test_of_many_metrics_the_first_are_drawn_and_all_are_in_the_table() -> None:
    """500 plots would take a minute, and 17 MB."""
    names = [f"layer{number}" for number in range(500)]
    points = [
        MetricPoint(0, {"epoch": e, **dict.fromkeys(names, 1.0 + e), "loss": 1.0}) for e in range(3)
    ]
    section = describe_metrics({7: points})
    assert len(section.rows) == 501
    titles = [title for title, _ in section.plots]
    assert titles == ["Loss", *(f"Layer{number}" for number in range(MOST_PLOTS - 1))]
    assert section.text == f"Curves of {MOST_PLOTS} of 501 metrics; the table has all of them."


def test_sizes_are_no_formulas() -> None:
    """Text is drawn as paths, with a comment that says what it is."""
    svg = insight_report.draw_curves(
        {"mpi": [(8, 0.001), (32768, 2.0)]}, x="bytes", y="GB/s", log=True
    )
    drawn = set(re.findall(r"<!-- (.*?) -->", svg))
    assert {"8 B", "32.8 kB", "0.01", "1"} <= drawn
    assert not any("$" in text for text in drawn)


def test_many_lines_and_points_are_thinned() -> None:
    lines = {f"job {n}": [(x, x * n) for x in range(10_000)] for n in range(20)}
    svg = insight_report.draw_curves(lines, x="step", y="loss")
    assert len(svg) < 600_000
    assert "--c7" in svg


LOOK = """
<iframe id="page" style="width: WIDTHpx; height: 800px; border: 0" srcdoc="SOURCE"></iframe>
<script>
document.getElementById("page").onload = event => {
  const page = event.target.contentDocument, root = page.documentElement;
  const found = {scroll: root.scrollWidth, width: root.clientWidth, plots: [], ink: [],
    paper: event.target.contentWindow.getComputedStyle(page.body).backgroundColor};
  for (const svg of page.querySelectorAll("svg")) {
    const outer = svg.getBoundingClientRect(), plot = {clipped: [], overlaps: [], text: 0};
    const boxes = [...svg.querySelectorAll('g[id*="text_"]')].map(
      group => [group.id, group.getBoundingClientRect()]).filter(([_, box]) => box.width);
    for (const [name, box] of boxes) {
      plot.text = Math.max(plot.text, box.height);
      if (box.left < outer.left - 1 || box.right > outer.right + 1 ||
          box.top < outer.top - 1 || box.bottom > outer.bottom + 1) plot.clipped.push(name);
      for (const [other, second] of boxes)
        if (name < other && box.left < second.right && second.left < box.right &&
            box.top < second.bottom && second.top < box.bottom) plot.overlaps.push([name, other]);
    }
    plot.size = [outer.width, outer.height];
    plot.labels = boxes.length;
    found.plots.push(plot);
  }
  document.title = JSON.stringify(found);
};
</script>
"""


def laid_out(chromium: str, page: str, width: int, *options: str) -> dict[str, Any]:
    """What a browser of that width makes of the page."""
    source = html.escape(page, quote=True)
    Path("look.html").write_text(LOOK.replace("WIDTH", str(width)).replace("SOURCE", source))
    done = subprocess.run(
        [
            chromium,
            *("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"),
            *("--user-data-dir=browser", "--window-size=1300,900", "--dump-dom", *options),
            Path("look.html").absolute().as_uri(),
        ],
        capture_output=True,
        timeout=120,
        check=True,
    )
    title = re.search(r"<title>(.*?)</title>", done.stdout.decode(), re.DOTALL)
    assert title, done.stderr
    found: dict[str, Any] = json.loads(html.unescape(title[1]))
    return found


def test_the_page_of_a_failed_job_says_which_rank_failed(call: Call) -> None:
    where = recorded()
    failure = RankFailure(rank=3, node="worker-2", exit_code=139)
    made = job(where, id=9, state=JobState.FAILED, program_exit_code=139, failure=failure)
    open_store().save_job(replace(made, started=1.0, finished=2.0))
    open_store().save_provenance(9, Provenance(typed=("run", "-e", "TOKEN=***", "train.py")))
    folder = open_store().locate_job_folder(9) / "out" / "worker-2"
    folder.mkdir(parents=True)
    (folder / "rank-3.out").write_text("".join(f"step {n}\n" for n in range(100)))
    (folder / "rank-3.err").write_text("login with api_key=abc123def\n")
    (folder / "rank-2.out").write_text("another rank\n")
    said = call("report", "9", "--output", "-").out
    assert "failed: rank 3 on worker-2 was killed by SIGSEGV" in said
    assert "clusterctl run -e &#39;TOKEN=***&#39; train.py" in said
    cells = re.findall(r"<td[^>]*>(.*?)</td>", said)
    assert [c for c in cells if c.startswith("step")] == [f"step {n}" for n in range(85, 100)]
    assert not {"another rank", "login with api_key=abc123def"}.intersection(cells)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(360, 0), (1280, 1)], ids=["phone", "desk"])
def test_in_a_browser(call: Call, need: Need, tmp_path: Path, width: int, scheme: int) -> None:
    """No overlap, no clipped label, no page wider than the screen; dark where that is wanted."""
    chromium = need("chromium")
    recorded(ranks=3)
    call("report", "lab")
    page = Path("report-lab.html").read_text()
    found = laid_out(chromium, page, width, f"--blink-settings=preferredColorScheme={scheme}")
    assert found["scroll"] <= found["width"]
    assert found["paper"] == ("rgb(20, 23, 28)" if scheme == 0 else "rgb(255, 255, 255)")
    assert len(found["plots"]) == 7
    for plot in found["plots"]:
        assert plot["labels"] >= 4
        assert plot["clipped"] == []
        assert plot["overlaps"] == []
        assert plot["size"][0] > 280
        assert plot["text"] > 7
