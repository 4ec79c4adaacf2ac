"""What travels to the nodes, what does not, and where the program finds itself."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Need
from tests.e2e.cli import Cli
from tests.unit.tables import read_rows, rows

pytestmark = [pytest.mark.sshd, pytest.mark.mpi]

LIST = (
    "import json, os, pathlib, sys\n"
    "here = pathlib.Path.cwd()\n"
    "top = here\n"
    "while top.name != 'work': top = top.parent\n"
    "files = sorted(str(p.relative_to(top)) for p in top.rglob('*') if not p.is_dir())\n"
    "print(json.dumps([str(here.relative_to(top)), files, sys.argv[0]]), flush=True)\n"
)


@pytest.fixture
def repo(cli: Cli, need: Need) -> Path:
    """A git work tree with all that may be in one."""
    need("git")
    files = {
        ".gitignore": "data/\n*.bin\n/secret.env\n",
        "README.md": "tracked",
        "deleted.py": "tracked, but deleted",
        "tools/list.py": LIST,
        "sub dir/notes.txt": "untracked",
        "sub dir/deep/it's; a $file": "odd",
        "data/big.csv": "ignored",
        "model.bin": "ignored",
        "secret.env": "PASSWORD=ignored",
        "kept.bin": "ignored, but tracked",
    }
    for name, text in files.items():
        cli.script(f"repo/{name}", text)
    folder = cli.folder / "repo"
    for words in (["init", "-q"], ["add", "README.md", "deleted.py"], ["add", "-f", "kept.bin"]):
        subprocess.run(["git", *words], cwd=folder, check=True, timeout=20)
    (folder / "deleted.py").unlink()
    (folder / "link.txt").symlink_to("README.md")
    return folder


STAGED = read_rows("staging", "staged")


@rows("where, script, folder", "staging.a_git_work_tree_travels_by_gits_own_rules")
def test_a_git_work_tree_travels_by_gits_own_rules(
    cli: Cli, repo: Path, where: str, script: str, folder: str
) -> None:
    """Tracked and untracked files go, ignored ones stay, and the working directory is kept. Called
    from outside, a script runs in its own folder."""
    done = cli("run", script, cwd=cli.folder / where)
    for rank in (0, 1):
        assert json.loads(done.of(rank)[0])[:2] == [folder, STAGED]


@pytest.mark.netns
def test_what_was_not_staged_is_missing_as_on_a_real_cluster(cli: Cli) -> None:
    """Nodes hide each other's folders and the state home: no accidental shared disk."""
    roots = {node["name"]: node["root"] for node in cli.status()["nodes"]}
    cli.script(
        "looks.py",
        "import json, os, pathlib, sys\n"
        "root = pathlib.Path('.').resolve()\n"
        "(root / f'made-by-{os.environ[\"RANK\"]}').touch()\n"
        "print(json.dumps([pathlib.Path(p).exists() for p in sys.argv[1:]]))\n",
    )
    state = [cli.home / "clusters" / "default" / "cluster.json", cli.home / "jobs"]
    paths = [roots["launcher"], roots["worker-1"], roots["worker-2"], *state]
    done = cli("run", "looks.py", *paths)
    assert json.loads(done.of(0)[0]) == [False, True, False, False, False]
    assert json.loads(done.of(1)[0]) == [False, False, True, False, False]
    assert cli("ssh", "worker-1", "--", "ls", f"{roots['worker-2']}/jobs", code=2).out == ""


def test_a_large_tree_arrives_whole(cli: Cli) -> None:
    """Above what is sent in one piece with the job."""
    data = os.urandom(12_000_000)
    cli.script("a.py", "import hashlib; print(hashlib.sha256(open('d', 'rb').read()).hexdigest())")
    (cli.folder / "d").write_bytes(data)
    done = cli("run", "a.py")
    assert done.of(0) == done.of(1) == [hashlib.sha256(data).hexdigest()]


LOOKS = """\
import json, os, sys, trainlib
names = ("id", "tool", "shared", "twin")
status = {name: os.stat(name) for name in names}
found = {
    "modes": {name: oct(status[name].st_mode & 0o7777) for name in names},
    "twins": status["id"].st_ino == status["twin"].st_ino,
    "trainlib": getattr(trainlib, "MINE", "ours"),
    "stdin": sys.stdin.read(),
}
print(json.dumps(found), flush=True)
sys.exit(int(os.environ.get("CLUSTERCTL_ATTEMPT") == "1"))
"""


def test_files_and_standard_input_arrive_as_they_are(cli: Cli) -> None:
    """Once each way: a file that the shell has opened, in each attempt from its start; a pipe with
    --stdin, for a job that nobody follows, with torchrun. Rank 1 reads nothing."""
    project = cli.script("proj/scripts/main.py", LOOKS).parent.parent
    cli.script("proj/pyproject.toml", '[project]\nname = "trainlib"\nversion = "1"\n')
    cli.script("proj/src/trainlib/__init__.py", "MINE = 1")
    modes = {"id": 0o600, "tool": 0o6755, "shared": 0o664}
    for name, mode in modes.items():
        cli.script(f"proj/{name}", "x").chmod(mode)
    (project / "twin").hardlink_to(project / "id")
    given = cli.script("proj/in.nml", "&run n=5 /\n")
    with given.open("rb") as file:
        words = ("run", "--stage", ".", "--retries", 1, "scripts/main.py")
        done = cli.start(*words, cwd=project, stdin=file.fileno()).wait()
        assert file.tell() == 0, done
    expected = {
        "modes": {"id": "0o600", "tool": "0o755", "shared": "0o664", "twin": "0o600"},
        "twins": True,
        "trainlib": 1,
        "stdin": "&run n=5 /\n",
    }
    assert len(done.of(0)) == 2, done
    first, again = map(json.loads, done.of(0))
    assert first == again == expected
    assert {json.loads(line)["stdin"] for line in done.of(1)} == {""}
    options = ("--stage", ".", "--detach", "--stdin", "--launcher", "torchrun")
    reader, writer = os.pipe()
    os.write(writer, b"two\nlines")
    os.close(writer)
    cli.start("run", *options, "scripts/main.py", cwd=project, stdin=reader).wait()
    os.close(reader)
    number = max(cli.jobs())
    cli("logs", number, "-f", code=None)
    assert json.loads(cli("logs", number, "--rank", 0, code=None).of(0)[0])["stdin"] == "two\nlines"


def test_a_standard_input_that_may_be_somebody_elses_is_left_alone(cli: Cli) -> None:
    """The rest of what a loop of the shell reads: from a file, from a pipe."""
    cli.script("m.py", "import sys; print('read', repr(sys.stdin.read()))")
    lines = cli.script("list", "one\ntwo\n")
    with lines.open("rb", buffering=0) as file:
        file.read(4)
        assert cli.start("run", "m.py", stdin=file.fileno()).wait().of(0) == ["read ''"]
        assert file.tell() == 4
    reader, writer = os.pipe()
    os.write(writer, b"two")
    os.close(writer)
    done = cli.start("run", "-n", 1, "m.py", stdin=reader).wait()
    assert done.of(0) == ["read ''"]
    assert "--stdin" in done.err
    assert os.read(reader, 10) == b"two"
    os.close(reader)


def test_what_nodes_lack_is_said_before_the_start(cli: Cli) -> None:
    """The job goes on without what a link names; without an interpreter it is refused."""
    for name in ("proj/main.py", "elsewhere/x"):
        cli.script(name, "print('ran')")
    (cli.folder / "proj" / "rel").symlink_to("../elsewhere")
    assert "rel → ../elsewhere" in cli("run", "--quiet", "main.py", cwd=cli.folder / "proj").err
    for first in ("#!/home/me/.venv/bin/python3", "#!/usr/bin/env -S nosuch -u"):
        cli.script("proj/tool", f"{first}\nprint('ran')\n").chmod(0o755)
        refused = cli("run", "./tool", cwd=cli.folder / "proj", code=6)
        assert first.split()[-1 if "home" in first else 2].lstrip("#!") in refused.err
    cli.script("proj/tool", "#!/usr/bin/env python3\nprint('ran')\n").chmod(0o755)
    assert cli("run", "./tool", cwd=cli.folder / "proj").of(1) == ["ran"]
    words = ("run", "--", "/opt/no such/bin/python", "main.py")
    refused = cli(*words, cwd=cli.folder / "proj", code=6)
    assert "/opt/no such/bin/python" in refused.err
    assert "worker-[1-2]" in refused.err
    assert cli("run", "--", "/bin/echo", "ran", cwd=cli.folder / "proj").of(1) == ["ran"]
    cli.script("proj/x.sh", "#!/nowhere/bash\necho ran\n")
    assert cli("run", "bash", "x.sh", cwd=cli.folder / "proj").of(0) == ["ran"]
