"""Functions on their way to a worker."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType
from typing import Any

import jax
import pytest

from systolic.compiler.pickling import dumps


def doubled(x: Any) -> Any:
    return 2 * x


def with_derivative(module: str) -> Any:
    fn = jax.custom_vjp(doubled)
    fn.defvjp(lambda x: (2 * x, None), lambda _, g: (3 * g,))
    fn.__module__, fn.__qualname__ = module, "with_rule"
    return fn


def test_a_module_that_the_worker_cannot_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("only_here")
    module.with_rule = with_derivative("only_here")
    with monkeypatch.context() as here:
        here.setitem(sys.modules, "only_here", module)
        pickled = dumps(module.with_rule)
    with pytest.raises(ImportError, match=r"a worker process cannot import with_rule from only_here .*PYTHONPATH"):
        pickle.loads(pickled)


def test_a_function_of_the_main_module_is_sent_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as here:
        fn = with_derivative("__main__")
        here.setattr(sys.modules["__main__"], "with_rule", fn, raising=False)
        pickled = dumps(fn)
    sent = pickle.loads(pickled)
    assert float(sent(1.5)) == 3.0
    assert float(jax.grad(sent)(1.5)) == 3.0
