"""The house rules of docs and style that a machine can hold the code against."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from import_graph import bound_names, import_circles, import_graph, module_paths, read_imports, shortest_way_round

import systolic

SOURCE = Path(__file__).parents[2] / "src" / "systolic"
HOUSE = module_paths(SOURCE, "systolic")
NAMES = bound_names(HOUSE)

# Each room may import itself and any room before it. `__init__` is the package itself, whose doors lead to the rooms
# before it.
ROOMS = [
    "support",
    "compat",
    "spec",
    "chips",
    "accuracy",
    "schedule",
    "cost",
    "kernels",
    "ops.op",
    "store",
    "ops",
    "compiler",
    "simulator",
    "timing",
    "analysis",
    "checking",
    "steps",
    "running",
    "explaining",
    "tuning",
    "bench",
    "validation",
    "report",
    "__init__",
    "cloud",
]
ROOMS += ["lessons", "installation", "pytest", "cli", "__main__"]

# Rooms of which the others import only what their `__init__` names.
DOORS = ["analysis", "checking", "explaining"]

# And within the simulator: each part may import itself and any part before it.
PARTS = [
    "errors",
    "opcode_traits",
    "opcodes",
    "reading",
    "schedule",
    "hardware",
    "mailboxes",
    "core_records",
    "records",
]
PARTS += ["collector", "results", "op_totals", "source_lines", "traits", "assumptions", "translating", "sparse_core"]
PARTS += ["other_devices", "barna_cores", "device_detours", "meeting", "rounds", "core_parts", "sequencer"]
PARTS += ["executed_alone", "repeated_calls", "device_setup", "operands"]
PARTS += ["core_results", "core", "device", "slice", "run", "preparation", "__init__"]

MAX_LINES = 300


def room_of(module: str) -> str:
    """Return the room of a module of the package.

    The package itself is a room of its own, and so is the protocol of ops, which stores know and planners build on.
    """
    if module.startswith("systolic.ops.op"):
        return "ops.op"
    return module.split(".")[1] if "." in module else "__init__"


def part_of(module: str) -> str:
    """Return the part of the simulator that a module is of; the simulator's door is one of its own."""
    return module.split(".")[2] if module.count(".") > 1 else "__init__"


def import_faults(module: str, imports: set[str]) -> Iterator[str]:
    """Say which imports of a module are against the order of rooms and parts."""
    room = room_of(module)
    if room not in ROOMS:
        yield f"{module} is in no room"
        return
    if room == "simulator" and part_of(module) not in PARTS:
        yield f"{module} is in no part of the simulator"
        return
    for target in sorted(imports):
        if target.startswith("jax._src") and room != "compat":
            yield f"{module} imports {target}"
        if target.partition(".")[0] != "systolic":
            continue
        other = room_of(target)
        if other in ROOMS and ROOMS.index(other) > ROOMS.index(room):
            yield f"{module} imports {target}, a room above it"
        if other in DOORS and other != room and target.count(".") > 1:
            yield f"{module} imports {target}, past the door of {other}"
        if room == other == "simulator":
            part = part_of(target)
            if part in PARTS and PARTS.index(part) > PARTS.index(part_of(module)):
                yield f"{module} imports {target}, a part above it"


# Unpickling runs what a file says, and so do these; elsewhere files from strangers are read.
RUNS_CODE = {
    "pickle": {
        "support/bugs",
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


def file_faults(path: Path, where: str, imports: set[str]) -> Iterator[str]:
    """Say what is against the house rules in one file; `where` is its path without its ending."""
    text = path.read_text()
    tree = ast.parse(text)
    room, name = where.split("/")[0], where.split("/")[-1]
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    for used in sorted(calls | imports):
        if where not in RUNS_CODE.get(used, {where}):
            yield f"{where} uses {used}, which runs what a file says"
    if room != "cli" and "print" in calls:
        yield f"{where} prints"
    lines = len(text.splitlines())
    if lines > MAX_LINES:
        yield f"{where} has {lines} lines"
    if name in ("utils", "common", "helpers"):
        yield f"{where} has a name that says nothing"


def faults(root: Path) -> list[str]:
    paths = module_paths(root, "systolic")
    imports = read_imports(paths, NAMES | bound_names(paths))
    found: list[str] = []
    for module, path in paths.items():
        found += import_faults(module, imports[module])
        found += file_faults(path, path.relative_to(root).with_suffix("").as_posix(), imports[module])
    graph = import_graph(imports)
    found += (f"a circle of imports: {shortest_way_round(graph, circle)}" for circle in import_circles(graph))
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
        ("chips/long.py", "x = 1\n" * 301, "301 lines"),
        ("chips/short.py", "x = 1\n" * 300, ""),
        ("chips/x.py", "if TYPE_CHECKING:\n    import systolic.cli.main", "a room above it"),
        ("chips/x.py", "from ..cli import main", "a room above it"),
        ("chips/__init__.py", "from ..cli import main", "imports systolic.cli, a room above it"),
        ("chips/x.py", "importlib.import_module('systolic')", "imports systolic, a room above it"),
        ("chips/x.py", "importlib.import_module('jax._src.core')", "imports jax._src.core"),
        ("chips/x.py", "import systolic", "imports systolic, a room above it"),
        ("nowhere/x.py", "", "in no room"),
        ("simulator/nowhere/x.py", "", "in no part"),
        ("simulator/slice/x.py", "def f():\n    from systolic.simulator.run import MAX_ITERATIONS", "a part above it"),
        ("simulator/core.py", "from systolic import simulator", "imports systolic.simulator, a part above it"),
        ("explaining/x.py", "import systolic.checking.rules.grid", "past the door of checking"),
        ("lessons/x.py", "if __name__ == '__main__':\n    from systolic.cli import main", "a room above it"),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, name: str, text: str, fault: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    found = faults(tmp_path)
    assert fault in "\n".join(found) if fault else found == []


@pytest.mark.parametrize(
    "text",
    [
        "import systolic.bench.b",
        "from systolic.bench import b",
        "from . import b",
        "from .b import f",
        "def f():\n    from systolic.bench.b import g",
        "if TYPE_CHECKING:\n    from systolic.bench.b import g",
        "importlib.import_module('systolic.bench.b')",
        "DOORS = {'systolic.bench.b': ('g',)}",
        "importlib.import_module(f'systolic.bench.{name}')",
        "names = ('b',)\nimportlib.import_module(f'systolic.bench.{name}')",
        "COMMAND = [sys.executable, '-c', 'from systolic.bench.b import main; main()']",
    ],
)
def test_a_planted_circle_is_found(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "bench"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "a.py").write_text(text)
    (folder / "b.py").write_text('"""It is not `systolic.bench.c`."""\nfrom systolic.bench.c import f')
    (folder / "c.py").write_text("from systolic.bench import a, f")
    (circle,) = faults(tmp_path)
    assert circle.startswith("a circle of imports: systolic.bench.a → systolic.bench.")
    assert circle.endswith(" → systolic.bench.a")


def undocumented(name: str) -> Iterator[str]:
    """Yield the public name, or those of its public methods and properties, that have no docstring of their own."""
    value = getattr(systolic, name)
    if not inspect.getdoc(value):
        yield name
    if not (inspect.isclass(value) and value.__module__.startswith("systolic.")):
        return
    for member, method in vars(value).items():
        method = getattr(method, "fget", None) or getattr(method, "__func__", method)
        if not member.startswith("_") and inspect.isfunction(method) and not method.__doc__:
            yield f"{name}.{member}"


def test_public_names_have_docstrings() -> None:
    names = [name for name in systolic.__all__ if name != "__version__"]
    assert [missing for name in names for missing in undocumented(name)] == []


@pytest.mark.parametrize("module", ["systolic", "systolic.cli", "systolic.report"])
def test_importing_starts_nothing(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('jax', 'libtpu', 'altair') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_two_files_of_tests_share_a_name() -> None:
    """Pytest imports them by their names alone, as their folders are not packages."""
    names = [file.name for file in SOURCE.parents[1].glob("tests/**/test_*.py")]
    assert sorted(names) == sorted(set(names))


def _hidden_names(package: Path) -> set[str]:
    """Return names that a package imports from one module while another module, once imported, takes their place."""
    modules = {path.stem for path in package.iterdir()}
    hidden: set[str] = set()
    for node in ast.parse((package / "__init__.py").read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            module = (node.module or "").rpartition(".")[2]
            if module != package.name:  # from which modules themselves are imported
                hidden |= {alias.name for alias in node.names} & (modules - {module})
    return hidden


def test_no_module_takes_the_place_of_a_name_of_its_package(tmp_path: Path) -> None:
    assert set().union(*(_hidden_names(init.parent) for init in SOURCE.rglob("__init__.py"))) == set()
    (tmp_path / "__init__.py").write_text("from house.vmem import kernel_buffers\n")
    (tmp_path / "kernel_buffers.py").touch()
    assert _hidden_names(tmp_path) == {"kernel_buffers"}
