"""Verbs about data sets: data get, push, list, index."""

from __future__ import annotations

from typing import Any

import typer

from clusterctl.actions import common, data, images, machine_images
from clusterctl.cli.console import Console, format_table, pick
from clusterctl.core.model import CloudSpec, Runtime
from clusterctl.core.text import format_bytes
from clusterctl.data import sources
from clusterctl.errors import UsageError
from clusterctl.options.verbs import DataGet, DataIndex, DataList, DataPush, ImageAmi, ImageBuild


class Download:
    """Counts what is downloaded, beside what is copied (see `data.Progress`)."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._name, self._before, self._done, self._size = "", 0, 0, 0

    def __call__(self, name: str, done: int, size: int) -> None:
        if name != self._name:
            self._name, self._before = name, self._before + self._done
            self._console.step(f"downloading {name}")
        self._done, self._size = done, size

    def count(self) -> tuple[int, int | None]:
        copied, left = common.count_copied()
        rest = max(0, self._size - self._done) or None
        return copied + self._before + self._done, rest if left is None else left


def data_get(given: DataGet, console: Console) -> None:
    urls = [name for name in given.names if sources.is_url(name)]
    words = {"url"} if urls else set()
    given = given.apply_limits({*words, "no-push"} if given.no_push else words, console.note)
    if len(given.names) > 1 and (given.name or given.sha256):
        option = "--name" if given.name else "--sha256"
        raise UsageError(f"{option} works with one URL", hint="get them one by one")
    store, download = common.open_store(), Download(console)
    with console.show_waiting(moved=download.count):
        got = [
            (data.download_on_nodes if name in urls else data.get)(
                store, name, given, download, console.report
            )
            for name in given.names
        ]
    _report(console, got)


def data_push(given: DataPush, console: Console) -> None:
    if given.name is not None and len(given.names) > 1:
        raise UsageError("--name works with one folder", hint="push the folders one by one")
    store, name, cluster = common.open_store(), given.name, given.cluster
    with console.show_waiting(moved=common.count_copied):
        got = [data.push(store, n, name, cluster, console.report) for n in given.names]
    _report(console, got)


def _report(console: Console, copies: list[Any]) -> None:
    for copy in copies:
        console.result(f"{copy.name}: {copy.path}")
    console.document(data=copies)


def data_list(given: DataList, console: Console) -> None:
    given.apply_limits((), console.note)
    found = data.list_data(common.open_store())
    console.result(
        format_table(
            (entry.name, format_bytes(entry.size), "here" if entry.here else "-", entry.title)
            for entry in found
        )
    )
    console.document(data=list(found))


def data_index(given: DataIndex, console: Console) -> None:
    given.apply_limits((), console.note)
    raise typer.Exit(data.write_index(list(given.words)))


# -------------------------------------------------------------------------------------------------
# The verb about images.


def image_build(given: ImageBuild, console: Console) -> None:
    given.apply_limits((), console.note)
    with console.show_waiting():
        built = images.build(given.name, push=given.push, base=given.base, on_line=console.step)
    console.result(built.reference)
    done = "built and pushed" if built.pushed else "built"
    use = f"--image {built.kind}={built.reference}" if built.kind else f"--image {built.reference}"
    console.note(f"{done}: {format_bytes(built.size)}; use it with {use}")
    console.document(**pick(built, "reference", "id", "size", "pushed"))


def image_ami(given: ImageAmi, console: Console) -> None:
    does = {"kind"} if given.kind else set[str]()
    does |= {"remove"} if given.remove else set()
    does |= {"making"} if given.kind and not given.remove else set()
    # Settings of `up` are for the images that are made.
    note = console.note if "making" in does else lambda line: None
    given = given.apply_limits(does, note)
    consent = (lambda question: True) if given.yes else console.consent
    store = common.open_store()
    machine_images.report_left(store, console.report)
    if given.kind is None:
        found = machine_images.list_images(given.region)
    elif given.remove:
        found = machine_images.remove_images(
            given.kind, given.region, console.report, consent, everyones=given.everyones
        )
    else:
        runtime = given.values["runtime"]
        made = machine_images.make_image(
            store,
            given.kind,
            runtime=Runtime(runtime) if runtime else None,
            cloud=CloudSpec(**given.pick_fields(CloudSpec)),
            report=console.report,
            consent=consent,
        )
        found = (made,)
    rows = (
        (
            *(i.name, i.id, i.state, i.made[:10], f"{i.gib} GiB"),
            "?" if i.monthly is None else f"up to ${i.monthly:.2f} a month",
            i.owner,
        )
        for i in found
    )
    console.result(format_table(rows) if found else "no machine image of your own")
    console.document(
        images=[pick(i, "name", "id", "kind", "state", "made", "gib", "owner") for i in found]
    )
