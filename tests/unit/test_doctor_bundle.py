"""What `doctor --bundle` writes of a job whose cluster is gone: no secret that it can tell."""

from __future__ import annotations

import tarfile
from pathlib import Path

from clusterctl.actions.common import open_store
from clusterctl.core.job import JobState, RankFailure
from tests.unit.calling import Call
from tests.unit.making import job

KEY = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAE"


def test_lines_that_a_finding_quotes_from_within_a_private_key(call: Call, tmp_path: Path) -> None:
    """The line that tells what they are is not among them."""
    store = open_store()
    failure = RankFailure(rank=0, node="worker-1", exit_code=3)
    made = job(id=7, state=JobState.FAILED, started=1.0, finished=2.0, failure=failure)
    store.save_job(made)
    folder = store.home.make(store.locate_job_folder(7) / "out" / "worker-1")
    printed = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{KEY}\n-----END OPENSSH PRIVATE KEY-----\n"
    (folder / "rank-0.err").write_text(printed)
    (folder.parent / ".complete").touch()

    bundle = tmp_path / "seen.tar.gz"
    said = call("doctor", "7", "--bundle", str(bundle)).out
    assert KEY in said, "the terminal shows what the program printed"
    with tarfile.open(bundle) as archive:
        files = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        texts = {name: file.read().decode() for name, file in files.items() if file}
    assert "ended with code 3" in texts["seen/findings.json"]
    assert [name for name, text in texts.items() if KEY in text] == []
