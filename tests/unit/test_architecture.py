"""The house rules of docs and style that a machine can hold the code against."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "systolic"

# Each room may import itself and any room before it.
ROOMS = [
    "printable",
    "ranges",
    "summary",
    "untrusted",
    "regular_file",
    "whole_file",
    "locked_file",
    "versions",
    "call_errors",
    "extras",
    "bugs",
    "status",
    "spec",
    "chips",
    "schedule",
    "cost",
    "op",
    "kernels",
    "store",
    "ops",
    "compiler",
    "simulator",
    "timing",
    "analysis",
    "checking",
    "experiments",
    "steps",
    "explaining",
    "tuning",
    "replacing",
    "bench",
    "validation",
    "report",
    "cloud",
]
ROOMS += ["lessons", "installation", "pytest", "cli"]


# Rooms of which the others import only what their `__init__` names.
DOORS = ["analysis", "checking", "explaining"]

# And within the simulator: each part may import itself and any part before it.
PARTS = ["errors", "reading", "hardware", "translating", "records", "sequencer", "core", "traits", "run"]


def imported(tree: ast.Module) -> Iterator[str]:
    """Modules that a file imports, also inside functions and in `__main__` blocks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


# Unpickling runs what a file says, and so do these; elsewhere files from strangers are read.
RUNS_CODE = {
    "pickle": {
        "bugs",
        "compiler/caller_globals",
        "compiler/pool",
        "compiler/process",
        "compiler/worker",
    },  # between a process and its workers
    "cloudpickle": {"compiler/pickling", "compiler/worker"},
    "exec": {
        "simulator/translating/translate",
        "simulator/sparse_core/translate",
    },  # what it makes itself, of `translating/literals.py`
    **{name: set[str]() for name in ("eval", "marshal", "shelve", "dill", "joblib", "diskcache")},
}


def faults(root: Path) -> list[str]:
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        text = path.read_text()
        tree = ast.parse(text)
        where = "/".join(parts)
        for module in imported(tree):
            if module.startswith("jax._src") and parts[0] != "compat":
                found.append(f"{where} imports {module}")
            target = module.split(".")[1:2] if module.startswith("systolic.") else []
            if target and target[0] in ROOMS and parts[0] in ROOMS and ROOMS.index(target[0]) > ROOMS.index(parts[0]):
                found.append(f"{where} imports {module}, a room above it")
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        for module in sorted(modules):
            package, room, *inside = [*module.split("."), ""][:3]
            if package == "systolic" and room in DOORS and room != parts[0] and inside[0]:
                found.append(f"{where} imports {module}, past the door of {room}")
        if parts[0] == "simulator" and parts[1] in PARTS:
            for module in imported(tree):
                part = module.removeprefix("systolic.simulator.").split(".")[0]
                if part != module and part in PARTS and PARTS.index(part) > PARTS.index(parts[1]):
                    found.append(f"{where} imports {module}, a part above it")
        functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for name in {each.id for each in functions if isinstance(each, ast.Name)} | set(imported(tree)):
            if where not in RUNS_CODE.get(name, {where}):
                found.append(f"{where} uses {name}, which runs what a file says")
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
        if parts[0] != "cli" and any(call.func.id == "print" for call in calls if isinstance(call.func, ast.Name)):
            found.append(f"{where} prints")
        if len(text.splitlines()) > 400:
            found.append(f"{where} has {len(text.splitlines())} lines")
        if parts[-1] in ("utils", "common", "helpers"):
            found.append(f"{where} has a name that says nothing")
    return found


def test_house_rules() -> None:
    assert faults(SOURCE) == []


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("spec.py", "from systolic.schedule import Tiles", "a room above it"),
        ("chips/x.py", "def f():\n    from systolic.cli import main", "a room above it"),
        ("timing/x.py", "from systolic import bench", "a room above it"),
        ("simulator/reading/x.py", "from systolic.simulator.hardware import dma", "a part above it"),
        ("schedule/x.py", "import jax._src.core", "imports jax._src.core"),
        ("schedule/compat.py", "import jax._src.core", "imports jax._src.core"),
        ("compat/x.py", "import jax._src.core", ""),
        ("explaining/x.py", "from systolic.checking.rules.grid import grid_findings", "past the door of checking"),
        ("explaining/x.py", "from systolic.checking import Finding", ""),
        ("explaining/x.py", "from systolic.explaining.summary import verdict", ""),
        ("bench/x.py", "print(1)", "prints"),
        ("bench/x.py", "import pickle", "uses pickle"),
        ("compiler/pool.py", "import pickle", ""),
        ("bench/x.py", "def f():\n    return eval('1')", "uses eval"),
        ("cli/x.py", "print(1)\nfrom systolic.spec import MatmulSpec", ""),
        ("chips/utils.py", "", "says nothing"),
        ("chips/long.py", "x = 1\n" * 401, "401 lines"),
        ("lessons/x.py", "if __name__ == '__main__':\n    from systolic.cli import main", "a room above it"),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, name: str, text: str, fault: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    found = faults(tmp_path)
    assert fault in found[0] if fault else found == []


@pytest.mark.parametrize("module", ["systolic", "systolic.cli", "systolic.report"])
def test_importing_starts_nothing(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('jax', 'libtpu', 'altair') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
