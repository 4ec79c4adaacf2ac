"""Changes the code on purpose, one mutant at a time, and lists what no test notices.

    python scripts/mutation.py                    # every module of [tool.mutmut] in pyproject.toml
    python scripts/mutation.py clusterctl/core/keys.py # these modules
    python scripts/mutation.py --changed main     # those that differ from a commit
    python scripts/mutation.py --templates        # the shell templates

mutmut works in a temporary copy of the checkout. Exit code 1: a module has a survivor that
tests/mutation/survivors.toml does not list, or a score below 90 %. Survivors are printed as that
file has them. Mutants of words that are written for people are not counted.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
LISTED = ROOT / "tests" / "mutation" / "survivors.toml"
TEMPLATES = ROOT / "tests" / "mutation" / "templates.toml"
LEAST = 0.9
UNNOTICED = ("survived", "no tests", "skipped", "not checked", "check was interrupted by user")
"""What mutmut says of a mutant that has made no test fail, crash or hang."""


@dataclass(frozen=True)
class Survivor:
    """A change that no test notices: `old` and `new` are the lines of one function that differ."""

    module: str
    function: str
    old: tuple[str, ...]
    new: tuple[str, ...]

    def toml(self) -> str:
        return (
            f"[[survivor]]\nmodule = {quoted(self.module)}\nfunction = {quoted(self.function)}\n"
            f"old = {array(self.old)}\nnew = {array(self.new)}\nreason = ''\n"
        )


def quoted(text: str) -> str:
    if "'" in text:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"'{text}'"


def array(lines: Iterable[str]) -> str:
    return f"[{', '.join(map(quoted, lines))}]"


def listed(path: Path = LISTED) -> dict[Survivor, str]:
    """The survivors that the repository accepts, with the reasons."""
    rows = tomllib.loads(path.read_text())["survivor"]
    return {
        Survivor(row["module"], row["function"], tuple(row["old"]), tuple(row["new"])): row[
            "reason"
        ]
        for row in rows
    }


def settings() -> dict[str, list[str]]:
    """mutmut's own, in pyproject.toml."""
    found: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
        "mutmut"
    ]
    return found


def modules() -> list[str]:
    return settings()["only_mutate"]


def tests() -> list[str]:
    return settings()["pytest_add_cli_args_test_selection"]


def template_mutations() -> list[dict[str, str]]:
    found: list[dict[str, str]] = tomllib.loads(TEMPLATES.read_text())["mutation"]
    return found


def changed(since: str) -> set[str]:
    names = subprocess.run(
        ["git", "diff", "--name-only", since], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return set(names.stdout.splitlines())


def copy(folder: Path) -> None:
    """The files of the checkout that git knows or would add."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, names.stdout.split("\0")):
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)


def place(module: str) -> str:
    """Where a module is in the copy. The programs import their package as `trainlib`, and `src` is
    the folder whose name mutmut leaves out."""
    return re.sub(r"^workloads/trainlib\b", "src/trainlib", module)


def words(old: tuple[str, ...], new: tuple[str, ...]) -> bool:
    """Whether a mutant only rewrites a text with blanks: words for people, which tests need not
    pin."""
    literal = re.compile(r'"((?:[^"\\]|\\.)*)"')
    before, after = (literal.findall("\n".join(lines)) for lines in (old, new))
    if [literal.sub("", line) for line in old] != [literal.sub("", line) for line in new]:
        return False
    return len(before) == len(after) and all(
        " " in text for text, other in zip(before, after, strict=True) if text != other
    )


def difference(diff: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    old, new = (
        tuple(line[1:].strip() for line in lines if line.startswith(sign)) for sign in ("-", "+")
    )
    return old, new


def function_of(mutant: str) -> str:
    """`a.b.xǁClassǁmethod__mutmut_3` -> `Class.method`, `a.b.x_name__mutmut_3` -> `name`."""
    name = mutant.rpartition(".")[2].rpartition("__mutmut_")[0]
    return name[2:].replace("ǁ", ".") if name.startswith("xǁ") else name.removeprefix("x_")


@dataclass(frozen=True)
class Score:
    """What mutmut has found in a module."""

    module: str
    killed: int
    survivors: list[Survivor]

    @property
    def total(self) -> int:
        return self.killed + len(self.survivors)


KINDS: dict[str, tuple[str, str]] = {
    "programs": ("workloads/", "tests/workloads/"),  # the others need not be forked with torch
    # The tests that call them: a node's Python could not run mutants, nor what imports them.
    "agent": ("clusterctl/agent/", "tests/unit/test_agent_"),
}
"""What the names of modules begin with whose mutants run together, and those of their tests."""


def tell_kind(name: str) -> str:
    """Of a module or a test."""
    return next((kind for kind, names in KINDS.items() if name.startswith(names)), "")


def apart(wanted: list[str]) -> list[list[str]]:
    """Modules whose mutants run together."""
    parts = [[name for name in wanted if tell_kind(name) == kind] for kind in ("", *KINDS)]
    return [part for part in parts if part]


def unfit(names: Sequence[str]) -> list[str]:
    """Of all tests in these files those that pytest does not find by their name, for it takes a
    backslash for a slash: mutmut would count each mutant as killed that it runs one of them for.

    Raises SystemExit where pytest cannot list them."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return [line for line in done.stdout.splitlines() if "::" in line and "\\" in line]


def contained() -> list[str]:
    """The beginning of a command line: with process IDs of its own, and an end for all that it has
    started. Mutants start processes that nobody ends, or signal wrong ones; and mutmut ends those
    that take too long by numbers that the kernel may have given to others since.

    Nothing where this machine does not allow that."""
    for rights in ([], ["--user", "--map-current-user"]):
        argv = ["unshare", *rights, "--pid", "--fork", "--kill-child", "--mount-proc"]
        attempt = ["/bin/sh", "-c", 'exec "$@"', "sh", *argv, "true"]
        if subprocess.run(attempt, capture_output=True).returncode == 0:
            # The first process inherits orphans, and mutmut would take them for mutants of its own.
            return [*argv, "/bin/sh", "-c", '"$@"; exit $?', "sh"]
    print("Mutants can reach other processes of this machine: there are no PID namespaces here")
    return []


def run(folder: Path, wanted: list[str], jobs: int) -> list[Score]:
    """Raises SystemExit where mutmut cannot run the tests."""
    selected = [name for name in tests() if tell_kind(name) == tell_kind(wanted[0])]
    if wrong := unfit(selected):
        sys.exit("\n".join(("Give these tests names without a backslash:", *wrong)))
    copy(folder)
    shutil.copytree(folder / "workloads", folder / "src")  # data are looked for beside the package
    shutil.rmtree(folder / "workloads" / "trainlib")
    chosen = {
        # Not by arguments: mutmut would give pytest the names of all tests that see these modules.
        "only_mutate": [place(module) for module in wanted],
        "pytest_add_cli_args_test_selection": selected,
    }
    config = folder / "pyproject.toml"
    text = config.read_text()
    for key, names in chosen.items():
        row = re.compile(rf"^{key} = \[.*?^\]$", re.MULTILINE | re.DOTALL)
        text = row.sub(f"{key} = {array(names)}", text)
    config.write_text(text)
    scratch = folder / "scratch"
    scratch.mkdir()
    code = subprocess.run(
        [*contained(), sys.executable, "-m", "mutmut", "run", "--max-children", str(jobs)],
        cwd=folder,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",  # a forked process has none of torch's threads
            "TMPDIR": str(scratch),  # mutants leave temporary folders behind
        },
    ).returncode
    if code:
        sys.exit(code)
    os.chdir(folder)  # mutmut reads the configuration of the working folder when it is imported
    try:
        return [score(module) for module in wanted]
    finally:
        os.chdir(ROOT)


def score(module: str) -> Score:
    """Of mutmut's run in the working folder."""
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code

    data = SourceFileMutationData(path=Path(place(module)))
    data.load()
    survivors: list[Survivor] = []
    killed = 0
    for mutant, code in data.exit_code_by_key.items():
        old, replaced = difference(get_diff_for_mutant(mutant, path=data.path))
        if words(old, replaced):
            continue
        if status_by_exit_code[code] not in UNNOTICED:
            killed += 1
        else:
            survivors.append(Survivor(module, function_of(mutant), old, replaced))
    return Score(module, killed, survivors)


def report(scores: list[Score]) -> int:
    """Prints the scores, compared with the list; 1 where they are not as it says."""
    accepted = listed()
    failed = False
    new: list[Survivor] = []
    stale: list[Survivor] = []
    print(f"\n{'module':44} {'mutants':>7} {'killed':>7} {'listed':>7} {'new':>5}")
    for found in scores:
        unlisted = [survivor for survivor in found.survivors if survivor not in accepted]
        new += unlisted
        stale += [
            one for one in accepted if one.module == found.module and one not in found.survivors
        ]
        share = found.killed / max(found.total, 1)
        failed |= share < LEAST
        print(
            f"{found.module:44} {found.total:7} {share:7.1%}"
            f" {len(found.survivors) - len(unlisted):7} {len(unlisted):5}"
        )
    every = sum(found.total for found in scores)
    print(f"{'all':44} {every:7} {sum(found.killed for found in scores) / max(every, 1):7.1%}")
    if new:
        print("\nNo test notices these, and they are not listed:\n")
        print("\n".join(survivor.toml() for survivor in new))
    if stale:
        print("\nA test notices these now, or they are gone; remove them from survivors.toml:\n")
        print("\n".join(survivor.toml() for survivor in stale))
    return int(failed or bool(new) or bool(stale))


def templates(folder: Path) -> int:
    """Each row's change to a template has to fail the row's test."""
    copy(folder)
    survived = False
    for row in template_mutations():
        path = folder / row["template"]
        text = path.read_text()
        path.write_text(text.replace(row["old"], row["new"], 1))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", row["test"]],
            cwd=folder,
            capture_output=True,
        )
        path.write_text(text)
        noticed = done.returncode == 1  # pytest's code for tests that failed, and for nothing else
        survived |= not noticed
        print(
            f"{'killed' if noticed else 'SURVIVED':8}  {row['template']}: {row['what']}", flush=True
        )
    return int(survived)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "modules", nargs="*", metavar="MODULE", help="such as clusterctl/core/keys.py"
    )
    parser.add_argument("--changed", metavar="COMMIT", help="the modules that differ from it")
    parser.add_argument("--templates", action="store_true", help="the shell templates")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # tidies up
    for module in asked.modules:
        if module not in modules():
            parser.error(f"{module} is not in only_mutate of [tool.mutmut] in pyproject.toml")
    wanted = asked.modules or modules()
    for module in wanted:
        if not (ROOT / module).is_file():
            parser.error(
                f"{module} is gone: correct only_mutate of [tool.mutmut] in pyproject.toml"
            )
    if asked.changed:
        wanted = [module for module in wanted if module in changed(asked.changed)]
    if not wanted:
        print("none of the modules has changed")
        return 0
    if asked.templates:
        with tempfile.TemporaryDirectory(prefix="mutation-") as made:
            return templates(Path(made))
    scores: list[Score] = []
    for part in apart(wanted):
        with tempfile.TemporaryDirectory(prefix="mutation-") as made:
            scores += run(Path(made), part, asked.jobs)
    return report(scores)


if __name__ == "__main__":
    sys.exit(main())
