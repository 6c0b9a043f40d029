"""Globals that the caller has changed are seen by a worker, which has imported the module anew."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from systolic.compiler import WorkerPool
from systolic.compiler.caller_globals import ChangedGlobalWarning

HELPER = """
import threading
TILE = 128
LOCK = None
UNRELATED = 1
def doubled(x):
    return 2 * x
"""
MODULE = """
import dataclasses, enum, functools, types
import numpy as np
import {name}_helper as helper
from {name}_helper import doubled

TILE = 128
NAMES = ["a", "b"]
TABLE = {{"rows": 8}}
ARRAY = np.arange(3)
FORMULA = lambda x: x + 1
BOUND = functools.partial(int, base=8)
SETTINGS = types.SimpleNamespace(rows=8)

class Mode(enum.Enum):
    SLOW = 1
    FAST = 2

MODE = Mode.SLOW

class Shape:
    rows = 8
    def area(self):
        return self.rows * TILE

@dataclasses.dataclass
class Record:
    size: int = 1

RECORD = Record()
SHAPE = Shape()
FUNCTIONS = {{"doubled": doubled}}

def wrapped(fn):
    @functools.wraps(fn)
    def call(*args):
        return fn(*args)
    return call

@wrapped
def decorated():
    return TILE

def unwrapped(fn):
    def call(*args):
        return fn(*args)
    return call

@unwrapped
def nameless():
    return TILE

MEMORY = []
def remember():
    MEMORY.append(0)
    return len(MEMORY)
def tile(): return TILE
def through_function(): return tile()
def through_closure(): return (lambda: [tile() for _ in range(1)])()[0]
def helpers(): return helper.TILE
def function(): return doubled(3)
def of_module(): return helper.doubled(3)
def names(): return list(NAMES)
def table(): return TABLE["rows"]
def array(): return ARRAY.tolist()
def formula(): return FORMULA(1)
def bound(): return BOUND("11")
def settings(): return SETTINGS.rows
def mode(): return MODE is Mode.FAST
def area(): return Shape().area()
def record(): return RECORD.size
def dispatched(): return FUNCTIONS["doubled"](3)
def inside():
    import {name}_helper
    return {name}_helper.TILE
def added(): return globals().get("ADDED", 0) or ADDED
def lock(): return helper.LOCK
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(max_workers=1) as opened:
        yield opened


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the user's, whose name no worker knows, and its helper."""
    name = f"m{os.urandom(6).hex()}"
    (tmp_path / f"{name}_helper.py").write_text(HELPER)
    (tmp_path / f"{name}.py").write_text(MODULE.format(name=name))
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module(name)


def change_record(module: Any) -> None:
    module.RECORD.size = 5


def changed(name: str, value: Any, owner: str = "") -> Callable[[Any], None]:
    def change(module: Any) -> None:
        target = module
        for part in filter(None, owner.split(".")):
            target = getattr(target, part)
        setattr(target, name, value)

    return change


CHANGES: list[tuple[str, Callable[[Any], None], Any]] = [
    ("tile", changed("TILE", 512), 512),
    ("through_function", changed("TILE", 512), 512),
    ("through_closure", changed("TILE", 512), 512),
    ("decorated", changed("TILE", 512), 512),
    ("nameless", changed("TILE", 512), 512),
    ("helpers", changed("TILE", 512, "helper"), 512),
    ("inside", changed("TILE", 512, "helper"), 512),
    ("function", changed("doubled", lambda x: 7 * x), 21),
    ("of_module", changed("doubled", lambda x: 7 * x, "helper"), 21),
    ("through_function", changed("tile", lambda: 9), 9),
    ("names", lambda module: module.NAMES.append("c"), ["a", "b", "c"]),
    ("table", lambda module: module.TABLE.update(rows=16), 16),
    ("array", lambda module: module.ARRAY.__setitem__(0, 7), [7, 1, 2]),
    ("formula", changed("FORMULA", lambda x: x + 2), 3),
    ("bound", lambda module: setattr(module, "BOUND", module.functools.partial(int, base=3)), 4),
    ("settings", changed("rows", 16, "SETTINGS"), 16),
    ("mode", lambda module: setattr(module, "MODE", module.Mode.FAST), True),
    ("area", changed("rows", 16, "Shape"), 16 * 128),
    ("area", changed("area", lambda self: 3, "Shape"), 3),
    ("record", change_record, 5),
    ("dispatched", lambda module: module.FUNCTIONS.update(doubled=module.tile), None),
    ("added", changed("ADDED", 4), 4),
]


@pytest.mark.parametrize("number", range(len(CHANGES)), ids=[f"{at}-{name}" for at, (name, _, _) in enumerate(CHANGES)])
def test_a_worker_sees_what_the_caller_has_changed(pool: WorkerPool, made: Any, number: int) -> None:
    name, change, value = CHANGES[number]
    function = getattr(made, name)
    if name not in ("dispatched", "added"):
        before = function()
        assert pool.submit(function).result() == before != value
    change(made)
    if value is None:
        with pytest.raises(TypeError):
            pool.submit(function).result()
    else:
        assert pool.submit(function).result() == value == function()


def test_only_for_that_job(pool: WorkerPool, made: Any) -> None:
    made.TILE = 512
    assert pool.submit(made.tile).result() == 512
    made.TILE = 128
    assert pool.submit(made.tile).result() == 128
    made.TILE = 256
    job = pool.submit(made.tile)
    made.TILE = 64  # as it was when the job was given
    assert job.result() == 256


def test_of_a_function_that_goes_by_value(pool: WorkerPool, made: Any) -> None:
    made.helper.TILE = 512
    made.SETTINGS.rows = 3
    assert pool.submit(lambda: (made.helpers(), made.helper.TILE, made.settings())).result() == (512, 512, 3)


def test_what_cannot_be_sent_is_said(pool: WorkerPool, made: Any) -> None:
    made.helper.LOCK = made.helper.threading.Lock()
    with pytest.warns(ChangedGlobalWarning, match=rf"{made.helper.__name__}.LOCK differs from its value"):
        assert pool.submit(made.lock).result() is None


def test_what_is_as_it_was_imported_is_left_alone(pool: WorkerPool, made: Any) -> None:
    """Also an object without a digest, and one that nobody asks for."""
    made.helper.UNRELATED = made.helper.threading.Lock()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("tile", "decorated", "nameless", "table", "mode", "area", "record", "dispatched", "helpers"):
            assert pool.submit(getattr(made, name)).result() == getattr(made, name)()


def test_what_jobs_have_made_of_a_global_stays_unless_the_caller_changed_it(pool: WorkerPool, made: Any) -> None:
    """A module's memory of what it has traced is its own."""
    assert [pool.submit(made.remember).result() for _ in range(3)] == [1, 2, 3]
    made.MEMORY.append("the caller's")
    assert [pool.submit(made.remember).result() for _ in range(2)] == [2, 2]


def test_a_large_array_is_not_looked_at(pool: WorkerPool, made: Any) -> None:
    made.ARRAY = np.zeros(2**20)
    with pytest.warns(ChangedGlobalWarning, match="ARRAY differs from its value"):
        assert pool.submit(made.array).result() == [0, 1, 2]
