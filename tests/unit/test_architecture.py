"""The layers of the house: who may import whom, who may start processes, who may use which library.

The source is parsed, not imported, so imports inside functions count, imports under TYPE_CHECKING
count, and so do strings that name one of our modules: tables of the kind "name → module" are
imports that happen later.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from clusterctl.machines.providers import PROVIDERS
from clusterctl.options.batch import BATCH_SYSTEMS
from tests.unit.tables import rows

# --------------------------------------------------------------------------------------- the rules
# A unit is a package or module directly in clusterctl/. A row: what it may import besides itself.

# From the top of the house to its ground: nothing imports what stands above it.

MAY_IMPORT: dict[str, set[str]] = {
    "__init__": {"api"},  # on first use
    "__main__": {"cli"},
    "cli": {"actions", "insight", "project", "data", "state", "process", "options", "core"},
    "api": {"actions", "jobs", "insight", "state", "options", "core"},
    "actions": {"jobs", "insight", "batch", "project", "launch", "data", "machines"}
    | {"transport", "terraform", "state", "process", "options", "core"},
    "jobs": {"agent", "batch", "launch", "project", "transport"}
    | {"state", "process", "options", "core"},
    "insight": {"batch", "core"},  # pure
    "batch": {"agent", "project", "launch", "options", "core"},  # pure
    "project": {"agent", "launch", "transport", "state", "process", "options", "core"},
    "launch": {"agent", "core"},  # pure: from values to text and argv
    "data": {"machines", "transport", "core"},  # with the client that EC2 has for AWS
    "machines": {"transport", "terraform", "state", "process", "options", "core"},
    "transport": {"agent", "process", "core"},
    "terraform": {"state", "process", "core"},
    "state": {"core"},
    "process": {"core"},
    "options": {"core"},
    "agent": set(),  # what runs on nodes
    "core": set(),
    "errors": set(),  # which everybody may raise, and scripts of people catch
}

# Libraries beyond the standard one, and the units that may use them. Nothing else may be imported;
# torch and the workloads above all: they run on nodes.
MAY_USE: dict[str, set[str]] = {
    "typer": {"cli"},
    "rich": {"cli"},
    "fabric": {"transport"},
    "paramiko": {"transport"},
    "invoke": {"transport"},
    "jinja2": {"core"},
    "cryptography": {"core", "transport"},
    "msgspec": set(MAY_IMPORT) - {"__init__", "errors"},
    "tomli": {"core"},
    "matplotlib": {"insight"},  # the extra `report`
    "tensorboard": {"actions"},  # the extra `tensorboard`
    "pathspec": {"project"},
    "packaging": {"project"},
    "uv": {"project"},
    "cloudpickle": {"jobs"},
    "python_terraform": {"terraform"},
    "boto3": {"machines", "data"},
    "botocore": {"machines", "data"},
}

STARTS_PROCESSES = ("process", "agent")  # the only units that may: here; on nodes
PROCESS_MODULES = {"subprocess", "multiprocessing", "pty"}
PROCESS_NAMES = ("exec", "fork", "posix_spawn", "spawn", "system", "popen", "startfile")  # os.<…>*
ASYNC_PROCESS_NAMES = ("create_subprocess",)  # asyncio.<…>*
# --------------------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "clusterctl"


@dataclass(frozen=True)
class Use:
    """One line of source that reaches for another module, or for `os.fork` and the like."""

    unit: str
    target: str
    where: str


@cache
def parse(path: Path) -> ast.Module:
    """The source of a module, which nobody changes meanwhile."""
    return ast.parse(path.read_text(), str(path))


def unit_of(path: Path, package: Path) -> str:
    return path.relative_to(package).parts[0].removesuffix(".py")


@cache
def units(package: Path) -> set[str]:
    return {unit_of(path, package) for path in package.rglob("*.py")}


def dotted(path: Path, package: Path) -> str:
    """The package that holds the module at `path`, against which relative imports resolve."""
    return ".".join([package.name, *path.parent.relative_to(package).parts])


def targets(
    tree: ast.AST, within: str, package: Path, tables: bool = True
) -> Iterator[tuple[str, int]]:
    """Every module that the source names, as an absolute dotted name, with its line. Without
    `tables`, those that it imports itself."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name] = alias.name
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            parts = within.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{module}.{alias.name}", node.lineno
        elif tables and isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts = node.value.partition(":")[0].split(".")
            if parts[0] == package.name and len(parts) > 1 and parts[1] in units(package):
                yield ".".join(parts), node.lineno
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = aliases.get(node.value.id, "")
            if module in ("os", "asyncio"):
                yield f"{module}.{node.attr}", node.lineno


@cache
def uses(package: Path) -> list[Use]:
    found = []
    for path in sorted(package.rglob("*.py")):
        tree = parse(path)
        for target, line in targets(tree, dotted(path, package), package):
            where = f"{path.relative_to(package.parent)}:{line}"
            found.append(Use(unit_of(path, package), target, where))
    return found


def imports(package: Path, tables: bool = True) -> dict[str, set[str]]:
    """Each of our modules (`cli.run`) and those that it imports."""
    paths = {}
    for path in package.rglob("*.py"):
        parts = [*path.relative_to(package).with_suffix("").parts]
        paths[".".join(parts[: -1 if parts[-1] == "__init__" else None])] = path
    graph: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        source = parse(path)
        for target, _ in targets(source, dotted(path, package), package, tables):
            found = target.removeprefix(f"{package.name}.") if package.name in target else ""
            while found and found not in paths:
                found = found.rpartition(".")[0]
            if found:
                graph[name].add(found)
    if tables:  # whose rows are made from the names of options
        rows = {row.partition(":")[0].removeprefix("clusterctl.") for row in PROVIDERS.values()}
        graph.get("machines.providers", set()).update(rows & set(paths))
    return graph


def starts_process(target: str) -> bool:
    module, _, name = target.partition(".")
    return (
        module in PROCESS_MODULES
        or (module == "os" and name.startswith(PROCESS_NAMES))
        or (module == "asyncio" and name.startswith(ASYNC_PROCESS_NAMES))
    )


def violations(package: Path) -> list[str]:
    """One line for each broken rule."""
    ours = units(package)
    broken = [
        f"{unit}: no row in MAY_IMPORT says what it may import"
        for unit in sorted(ours - MAY_IMPORT.keys())
    ]
    for use in uses(package):
        top, _, rest = use.target.partition(".")
        if top == package.name:
            inner = rest.partition(".")[0]
            target = inner if inner in ours else "__init__"
            allowed = MAY_IMPORT.get(use.unit, set()) | {use.unit, "__init__", "errors"}
            if target not in allowed:
                broken.append(f"{use.where}: {use.unit} may not import {target}")
        elif starts_process(use.target):
            if use.unit not in STARTS_PROCESSES:
                broken.append(f"{use.where}: only {STARTS_PROCESSES[0]} may use {use.target}")
        elif top not in sys.stdlib_module_names and use.unit not in MAY_USE.get(top, set()):
            broken.append(f"{use.where}: {use.unit} may not use {top}")
    return broken


HIDDEN = {"__init__", "__main__"}


def test_every_row_is_a_unit_that_is_there_and_shown() -> None:
    """Contributors read the table in CONTRIBUTING.md first."""
    assert set(MAY_IMPORT) == units(PACKAGE)
    shown = (ROOT / "CONTRIBUTING.md").read_text().partition("## Layers")[2].partition("\n## ")[0]
    rows = [line[4:].split("   ")[0] for line in shown.splitlines() if line.startswith("    ")]
    assert {word for row in rows for word in row.split(" · ")} == units(PACKAGE) - HIDDEN


def test_the_table_has_no_arrow_upwards() -> None:
    """Whoever changes the table cannot close a circle."""
    order = list(MAY_IMPORT)  # from the top of the house to its ground
    for unit, below in MAY_IMPORT.items():
        upwards = {target for target in below if order.index(target) < order.index(unit)}
        assert not upwards, f"{unit} → {upwards}"


@pytest.mark.parametrize("package", [PACKAGE, ROOT / "workloads" / "trainlib"])
def test_no_module_imports_one_that_imports_it(package: Path) -> None:
    TopologicalSorter(imports(package, tables=False)).prepare()  # CycleError names the circle


def provider_names(package: Path) -> list[str]:
    """Where code outside `machines` compares the name of a provider with a constant, a literal or
    a table: what differs between providers is declared in `machines/protocol.py`."""
    found = []
    for path in sorted(package.rglob("*.py")):
        if unit_of(path, package) != "machines":
            for node in ast.walk(parse(path)):
                if (
                    _names_a_provider(node)
                    if isinstance(node, ast.Compare)
                    else _is_chosen_by(node, {"provider"})
                ):
                    found.append(f"{path.relative_to(package.parent)}:{node.lineno}")
    return found


def _names_a_provider(node: ast.Compare) -> bool:
    sides = [node.left, *node.comparators]
    words = [getattr(side, "attr", getattr(side, "id", "")) for side in sides]
    fixed = (ast.Constant, ast.Tuple, ast.List, ast.Set)
    named = [side for side in sides if isinstance(side, fixed)]
    if "provider" in words:
        return bool(named) or any(word.isupper() for word in words)
    names = {getattr(leaf, "value", None) for side in named for leaf in ast.walk(side)}
    among = isinstance(node.ops[0], ast.In | ast.NotIn) and node.left in named  # a key of a table
    return not among and not names.isdisjoint(PROVIDERS)


def _is_chosen_by(node: ast.AST, names: set[str]) -> bool:
    """Whether a `match`, a table or the beginning of a word decides by one of these."""
    asked: list[ast.expr] = []
    if isinstance(node, ast.Match):
        asked = [node.subject]
    elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
        asked = [node.slice]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        of, verb = node.func.value, node.func.attr
        asked = [of] if verb in ("startswith", "endswith") else []
        asked += node.args[:1] if verb == "get" and isinstance(of, ast.Dict) else []
    return any(getattr(side, "attr", getattr(side, "id", "")) in names for side in asked)


def batch_names(package: Path) -> list[str]:
    """Where a batch system is named beside its row and its own modules."""
    found = []
    for path in sorted(package.rglob("*.py")):
        for item in ast.walk(parse(path)):
            name = getattr(item, "value", None) if isinstance(item, ast.Constant) else None
            if isinstance(name, str) and name in BATCH_SYSTEMS:
                own = {f"batch/{name}.py", "agent/queues.py", "machines/attached.py"}
                where = str(path.relative_to(package))
                if where not in {"options/batch.py", *own}:
                    found.append(f"{where}:{item.lineno}")
    return found


def test_only_data_sources_know_how_ec2_is_asked() -> None:
    """What else is particular about EC2 is a method or a fact of its provider."""
    knowing = [
        use.where
        for use in uses(PACKAGE)
        if use.target.startswith("clusterctl.machines.ec2") and use.unit not in ("machines", "data")
    ]
    assert knowing == []


JOB_SYSTEM = {"batch", "system", "scheduler"}  # what says who runs a cluster's jobs
KNOWS_JOB_SYSTEMS = ("batch/",)


def questions(package: Path) -> list[str]:
    """Where code outside the seam decides by who runs the jobs: it should ask `jobs.systems`."""
    found = []
    for path in sorted(package.rglob("*.py")):
        name = str(path.relative_to(package))
        if name.startswith(KNOWS_JOB_SYSTEMS):
            continue
        for item in ast.walk(parse(path)):
            asked = [item] if isinstance(item, ast.Attribute) and item.attr == "batch" else []
            if isinstance(item, ast.Compare):
                asked += [side for side in (item.left, *item.comparators) if _is_system(side)]
            elif _is_chosen_by(item, JOB_SYSTEM):
                asked += [item]
            found += [f"{name}:{side.lineno}" for side in asked]
    return found


def _is_system(side: ast.expr) -> bool:
    return isinstance(side, ast.Attribute) and side.attr in JOB_SYSTEM


MAY_SHARE_A_NAME = {
    "Cluster",  # `from clusterctl import Cluster` is for people, `model.Cluster` is its record
}


def shared_names(package: Path) -> list[str]:
    """Classes and types of one name in several modules: a reader of one takes it for the other."""
    places: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        for item in ast.walk(parse(path)):
            name = item.name if isinstance(item, ast.ClassDef) else _type_name(item)
            if name:
                where = f"{path.relative_to(package)}:{item.lineno}"
                places.setdefault(name, []).append(where)
    return [
        f"{name}: {', '.join(found)}"
        for name, found in sorted(places.items())
        if len(found) > 1 and name not in MAY_SHARE_A_NAME
    ]


def _type_name(item: ast.AST) -> str:
    """`Files` of `Files = dict[str, Path]`; "" of what names no type."""
    [target] = item.targets if isinstance(item, ast.Assign) and item.targets[1:] == [] else [None]
    name = target.id if isinstance(target, ast.Name) else ""
    return name if name[:1].isupper() and not name.isupper() else ""


def test_workloads_need_no_clusterctl() -> None:
    needing = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in (ROOT / "workloads").rglob("*.py")
        for target, line in targets(parse(path), "", PACKAGE)
        if target.split(".")[0] == PACKAGE.name
    ]
    assert needing == []


def test_clusterctl_imports_no_workload() -> None:
    workloads = {path.name.removesuffix(".py") for path in (ROOT / "workloads").iterdir()}
    assert [use.where for use in uses(PACKAGE) if use.target.split(".")[0] in workloads] == []


RULES = {
    "layers": violations,
    "providers": provider_names,
    "batch systems": batch_names,
    "who runs jobs": questions,
    "names": shared_names,
}


@pytest.mark.parametrize("rule", RULES)
def test_the_rules_hold(rule: str) -> None:
    assert RULES[rule](PACKAGE) == []


@rows("rule, file, source, complaint", "architecture.a_broken_rule_is_seen")
def test_a_broken_rule_is_seen(
    tmp_path: Path, rule: str, file: str, source: str, complaint: str
) -> None:
    """And what is allowed passes."""
    package = tmp_path / "clusterctl"
    for unit in MAY_IMPORT:
        (package / unit).mkdir(parents=True)
        (package / unit / "__init__.py").touch()
    path = package / file
    path.write_text(source)
    found = RULES[rule](package)
    assert [complaint in line for line in found] == [True] * bool(complaint), found


def test_the_plan_of_the_house_is_what_there_is() -> None:
    """docs/adr/0028: a row for each room, with what it may import and its files."""
    plan = (ROOT / "docs" / "adr" / "0028-fewer-rooms.md").read_text()
    rows = [row.strip("|").split(" | ") for row in plan.splitlines() if row.startswith("| ")][1:]
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {room.strip() for room, *_ in rows} == rooms
    for room, arrows, files in rows:
        name = room.strip()
        assert set(arrows.replace("nothing", "").split(", ")) - {""} == MAY_IMPORT[name], name
        there = {path.stem for path in (PACKAGE / name).rglob("*.py")} - {"__init__"}
        assert set(re.findall(r"`(\w+)`", files)) == there, name
