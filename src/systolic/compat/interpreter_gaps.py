"""Make TPU interpret mode run what otherwise only a TPU runs: `jax.vmap` of kernels, empty copies, many devices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_INTERPRETER_MODULES = ("jax._src.pallas.", "systolic.")


@contextmanager
def interpreted_batches() -> Iterator[None]:
    """Give the axes that `vmap` adds to a grid their semantics, as the compiler does; jax 0.10 to 0.12 forget them."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    calls: Any = interpret_pallas_call
    before = calls.interpret_pallas_call

    @functools.wraps(before)
    def interpret(*args: Any, grid_mapping: Any, compiler_params: Any, **kw: Any) -> Any:
        semantics = getattr(compiler_params, "dimension_semantics", None)
        if semantics is not None and len(semantics) < len(grid_mapping.grid):
            remaining = iter(semantics)
            full = [
                "parallel" if axis in grid_mapping.vmapped_dims else next(remaining)
                for axis in range(len(grid_mapping.grid))
            ]
            compiler_params = dataclasses.replace(compiler_params, dimension_semantics=tuple(full))
        return before(*args, grid_mapping=grid_mapping, compiler_params=compiler_params, **kw)

    calls.interpret_pallas_call = interpret
    try:
        yield
    finally:
        calls.interpret_pallas_call = before


@contextmanager
def empty_copies() -> Iterator[None]:
    """Let a wait for a copy of no bytes end at once, also if nothing has signaled its semaphore yet.

    Kernels on ragged sizes copy the rows that exist, which may be none. With race detection, interpret mode asserts
    that the semaphore was signaled before.
    """
    from jax._src.pallas.mosaic.interpret import shared_memory

    semaphore: Any = shared_memory.Semaphore
    before = semaphore.wait

    @functools.wraps(before)
    def wait(self: Any, value: Any, *args: Any, **kw: Any) -> None:
        if int(value):
            before(self, value, *args, **kw)

    semaphore.wait = wait
    try:
        yield
    finally:
        semaphore.wait = before


@contextmanager
def operands_without_transfers() -> Iterator[None]:
    """Give the interpreter's callbacks NumPy arrays.

    JAX first puts the operands of a callback on a device. For large operands this needs a thread of the CPU client,
    which has one per device: if every device is in a callback and waits for its operands, none ever arrives.
    """
    import numpy as np
    from jax._src import callback as callbacks

    module: Any = callbacks
    before = module.io_callback_impl

    @functools.wraps(before)
    def called(*operands: Any, callback: Any, **kw: Any) -> Any:
        function = getattr(callback, "callback_func", callback)
        while isinstance(function, functools.partial):
            function = function.func
        if not (getattr(function, "__module__", None) or "").startswith(_INTERPRETER_MODULES):
            return before(*operands, callback=callback, **kw)
        # XLA's buffers are valid during the call only, and the interpreter keeps some operands.
        return [np.asarray(result) for result in callback(*map(np.array, operands))]

    module.io_callback_impl = called
    try:
        yield
    finally:
        module.io_callback_impl = before
