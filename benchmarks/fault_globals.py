"""Globals that the caller has changed: a worker sees the changed values."""

from __future__ import annotations

import contextlib
import functools
import importlib
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fault_cases import CaseError, Section, Setting

from systolic.compiler import WorkerPool

_MODULE = """
import dataclasses, functools, types
import {helper} as helper
from {helper} import shared

VALUE = {value!r}
TABLE = {{"a": 1, "values": [VALUE]}}
BOUND = functools.partial(shared, 2)
SPACE = types.SimpleNamespace(size=1)

class Settings:
    size = 1
    def total(self):
        return self.size + helper.SIZE

@dataclasses.dataclass
class Record:
    size: int = 1
RECORD = Record()

def inner():
    return [VALUE, TABLE, SPACE.size, RECORD.size]

def function():
    return repr([inner(), (lambda: helper.ITEMS)(), shared(1), BOUND(1), Settings().total(), Settings.size])
"""
_HELPER = "SIZE = 2\nITEMS = [1]\nFACTOR = 3\ndef shared(*values):\n    return [FACTOR * value for value in values]\n"


@functools.cache
def _pool() -> WorkerPool:
    return WorkerPool(max_workers=1)


def _plain(choose: random.Random, depth: int = 0) -> Any:
    leaves = (None, True, 7, -1.5, float("inf"), "text", b"\xff", 2**70, 1j, "\ud800")
    if depth > 2 or choose.random() < 0.5:
        return choose.choice(leaves)
    elements = [_plain(choose, depth + 1) for _ in range(choose.randrange(4))]
    return choose.choice((elements, tuple(elements), dict(enumerate(elements))))


def _worker_globals(choose: random.Random, folder: Path, _setting: Setting) -> None:
    """Change some globals of a module, and compare a worker's result with this process's."""
    name = f"m{choose.getrandbits(60):x}"
    (folder / f"{name}_helper.py").write_text(_HELPER)
    (folder / f"{name}.py").write_text(_MODULE.format(helper=f"{name}_helper", value=choose.choice((1, "a", (1, 2)))))
    changes: tuple[Callable[[Any], Any], ...] = (
        lambda module: setattr(module, "VALUE", _plain(choose)),
        lambda module: module.TABLE.update({choose.choice("ab"): _plain(choose)}),
        lambda module: setattr(module.SPACE, "size", _plain(choose)),
        lambda module: setattr(module.RECORD, "size", _plain(choose)),
        lambda module: setattr(module.Settings, "size", choose.randrange(9)),
        lambda module: setattr(module.Settings, "total", lambda self: self.size),
        lambda module: setattr(module, "BOUND", functools.partial(module.shared, choose.randrange(9))),
        lambda module: setattr(module, "shared", lambda *values: values),
        lambda module: setattr(module, "inner", module.helper.shared),
        lambda module: setattr(module.helper, "FACTOR", choose.randrange(9)),
        lambda module: setattr(module.helper, "SIZE", choose.randrange(9)),
        lambda module: module.helper.ITEMS.append(_plain(choose)),
    )
    with _on_path(folder):
        module = importlib.import_module(name)
        for _ in range(3):  # each job sees the globals at its submission
            for change in choose.sample(changes, choose.randrange(4)):
                change(module)
            in_worker, in_caller = _pool().submit(module.function).result(), module.function()
            if in_worker != in_caller:
                raise CaseError(f"a worker has {in_worker[:300]} and the caller {in_caller[:300]}")


@contextlib.contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))


SECTIONS = (Section(name="worker-globals", tries="changed globals in workers", share=3, attempt=_worker_globals),)
