"""`--sync s3://…`: outputs go to a bucket while a job is followed, and come back for `rerun
--resume`. S3 is moto's server; nodes are folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from clusterctl.actions import rerun
from clusterctl.core.job import Job, JobState
from clusterctl.errors import ProviderError, RecordError, UsageError
from clusterctl.jobs import fetch
from clusterctl.transport.copying import UnsafeArchive
from tests.unit.making import job
from tests.unit.staged import Staged, lab

PREFIX = "runs/a b"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    started = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    yield f"http://{host}:{port}"
    started.stop()


@pytest.fixture
def s3(server: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of it, with the empty bucket `mine`."""
    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket="mine")
    for item in client.list_objects_v2(Bucket="mine").get("Contents", ()):
        client.delete_object(Bucket="mine", Key=item["Key"])
    return client


@pytest.fixture
def site(tmp_path: Path, tree: Path, s3: Any) -> tuple[Staged, Job]:
    """Job 7 of two workers, which syncs to the bucket, with what the launcher has of it."""
    made = lab(tmp_path / "nodes")
    ran = made.job(tree)
    ran = replace(ran, spec=replace(ran.spec, sync=f"s3://mine/{PREFIX}"))
    made.store.save_job(ran)
    kept = made.work("launcher").parent / "mirror"
    for name in ("worker-1", "worker-2"):
        (kept / name).mkdir(parents=True)
        (kept / f".{name}.time").write_text("1800000000\n")
        write(kept / name / "snapshot", f"epoch 3 of {name}")
    (kept / "worker-1" / "latest").symlink_to("snapshot")
    write(kept / "worker-1" / "sub" / os.fsdecode(b"\xff odd % name"), "odd")
    return made, ran


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def follow(made: Staged, ran: Job) -> str:
    """What is said at the end of the job."""
    with (
        made.pool() as pool,
        fetch.Keeper(ran, made.where, pool, made.store.locate_job_folder(7)) as keeper,
    ):
        return keeper.finish(replace(ran, state=JobState.SUCCEEDED))


def objects(s3: Any) -> dict[str, bytes]:
    found = s3.list_objects_v2(Bucket="mine").get("Contents", ())
    return {
        item["Key"].removeprefix(f"{PREFIX}/job-7/"): s3.get_object(Bucket="mine", Key=item["Key"])[
            "Body"
        ].read()
        for item in found
    }


def test_outputs_are_in_the_bucket_as_the_job_has_them(site: tuple[Staged, Job], s3: Any) -> None:
    made, ran = site
    fetch.claim(ran, made.store.locate_job_folder(7))
    url = f"s3://mine/{PREFIX}/job-7"
    assert follow(made, ran) == f"the outputs of job 7 are in {url}"
    found = objects(s3)
    assert found.pop("job.json")
    assert [name for name in found if name.startswith(".")] == [".worker-1.json", ".worker-2.json"]
    assert {name: found[name] for name in found if not name.startswith(".")} == {
        "worker-1/snapshot": b"epoch 3 of worker-1",
        "worker-2/snapshot": b"epoch 3 of worker-2",
        "worker-1/sub/\\xff odd % name": b"odd",
    }
    kept = made.work("launcher").parent / "mirror" / "worker-1"
    (kept / "snapshot").unlink()
    write(kept / "newer", "epoch 4")
    before = s3.head_object(Bucket="mine", Key=f"{PREFIX}/job-7/worker-2/snapshot")["LastModified"]
    follow(made, ran)
    assert objects(s3)["worker-1/newer"] == b"epoch 4"
    assert "worker-1/snapshot" not in objects(s3)
    there = s3.head_object(Bucket="mine", Key=f"{PREFIX}/job-7/worker-2/snapshot")
    assert there["LastModified"] == before, "what has not changed is not sent again"


def test_a_job_is_resumed_from_the_bucket_alone(
    site: tuple[Staged, Job], tree: Path, tmp_path: Path
) -> None:
    """The cluster is gone, and so are the copies on this machine."""
    made, ran = site
    follow(made, ran)
    shutil.rmtree(fetch.locate_copies(made.store.locate_job_folder(7)))
    made.store.retire(made.where)
    shutil.rmtree(made.folder)
    new, said = lab(tmp_path / "new", name="other"), list[str]()
    planned = job(new.where, id=8)
    source = rerun.find_earlier_files(new.store, ran, planned, new.where, said.append)
    with rerun.carry_over(new.store, source, planned, new.where, said.append) as carry:
        new.job(tree, number=8, carry=carry)
    assert said[0] == f"copied the files of job 7 from s3://mine/{PREFIX}/job-7"
    for name in ("worker-1", "worker-2"):
        assert (new.work(name, 8) / "snapshot").read_text() == f"epoch 3 of {name}"
        assert (new.work(name, 8) / "sub" / os.fsdecode(b"\xff odd % name")).read_text() == "odd"


def test_a_bucket_that_cannot_be_used_ends_run_before_anything_starts(
    site: tuple[Staged, Job], s3: Any
) -> None:
    made, ran = site
    folder = made.store.locate_job_folder(7)
    other = replace(ran, spec=replace(ran.spec, sync="s3://not-there/x"))
    with pytest.raises(ProviderError, match="NoSuchBucket"):
        fetch.claim(other, folder)
    fetch.claim(ran, folder)
    with pytest.raises(UsageError, match="job-7 is not empty") as caught:
        fetch.claim(ran, folder)
    assert caught.value.hint == "move it away, or choose another --sync URL"


def test_what_a_bucket_lacks_is_said(site: tuple[Staged, Job], s3: Any) -> None:
    made, ran = site
    s3.delete_bucket(Bucket="mine")
    said = follow(made, ran)
    assert said.startswith(f"s3://mine/{PREFIX}/job-7 lacks the last outputs of job 7: ")
    assert said.endswith("; `clusterctl fetch 7` copies everything that the nodes still have")


@pytest.mark.parametrize("content", [b"{", b'{"when": 1, "files": [["../x", 1, 1]]}'])
def test_what_somebody_else_has_put_there_is_not_taken(
    site: tuple[Staged, Job], s3: Any, tmp_path: Path, content: bytes
) -> None:
    _, ran = site
    s3.put_object(Bucket="mine", Key=f"{PREFIX}/job-7/.worker-1.json", Body=content)
    with pytest.raises((RecordError, UnsafeArchive)):
        fetch.download(ran, tmp_path / "copies")
    assert not (tmp_path / "copies").exists()
