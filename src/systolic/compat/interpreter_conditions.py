"""Conditions of a run in TPU interpret mode that are known when a kernel runs, not when it is traced.

The interpreter takes them from its parameters while it traces a kernel, and most of a run's time is tracing and
compiling. Here they come from callbacks: a kernel that was compiled once runs under all of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np


class RunConditions(Protocol):
    """Attributes: the seed of the order of parallel steps, when copies are done, what unwritten memory holds."""

    @property
    def order(self) -> int: ...

    @property
    def copies(self) -> str: ...

    @property
    def memory(self) -> str: ...


@contextmanager
def conditions_of_runs(current: Callable[[], RunConditions], left_over: Callable[..., Any]) -> Iterator[None]:
    """Let `current` tell the conditions of each run, while a function is traced and while it runs.

    It also makes the interpreter as strict as a TPU: after an output's block was written back, its window holds
    anything, as the next block has another window. `left_over` makes the content of memory that was never written; see
    `checking.unkind`.
    """
    from unittest.mock import patch

    import jax
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call, utils

    calls: Any = interpret_pallas_call
    get, start = calls.get, calls._initialize_shared_memory
    hbm = calls.TPU_MEMORY_SPACE_IDXS[calls._HBM]

    def made_at_run_time(shape: Sequence[int], dtype: Any, make: Callable[[], Any]) -> Any:
        return jax.pure_callback(lambda: np.asarray(make(), dtype), jax.ShapeDtypeStruct(tuple(shape), dtype))

    def unwritten(shape: Sequence[int], dtype: Any, _: str) -> Any:
        return made_at_run_time(shape, dtype, lambda: left_over(shape, dtype, current().memory))

    def padded(value: Any, block_shape: Sequence[int], memory: str) -> Any:
        shape = [-(-size // block) * block for size, block in zip(value.shape, block_shape, strict=True)]
        if shape == list(value.shape):
            return value
        return unwritten(shape, value.dtype, memory).at[tuple(map(slice, value.shape))].set(value)

    @functools.wraps(get)
    def get_and_spoil(
        token: Any, device: Any, core: Any, memory: Any, buffer: Any, transforms: Any, *rest: Any, **kw: Any
    ) -> Any:
        content = get(token, device, core, memory, buffer, transforms, *rest, **kw)
        # A window is read whole from outside of the kernel only when its block is written back.
        if not rest and not kw and not transforms and int(memory) != hbm:
            value = content[1]
            spoiled = left_over(value.shape, value.dtype, current().memory)
            calls.store(token, device, core, memory, buffer, (), spoiled)
        return content

    @functools.wraps(start)
    def start_under_conditions(*args: Any, interpret_params: Any) -> Any:
        params = dataclasses.replace(
            interpret_params, dma_execution_mode=current().copies, uninitialized_memory=current().memory
        )
        return start(*args, interpret_params=params)

    def coordinates(grid: Sequence[Any], mosaic_params: Any, _: int | None) -> tuple[Any, ...]:
        """Return the order of steps along each parallel axis of the grid; nothing for the others."""

        def steps(axis: int, is_parallel: bool) -> Any:
            count = int(grid[axis]) if is_parallel else 0
            if count < 2:
                return jax.numpy.arange(count, dtype=np.int32)
            return made_at_run_time(
                (count,), np.int32, lambda: np.random.default_rng((current().order, axis)).permutation(count)
            )

        return tuple(map(steps, range(len(grid)), calls._get_parallel_dim_semantics(mosaic_params, len(grid))))

    # Copies of the kernel's own call what is wrapped.
    get_and_spoil.__wrapped__ = get.__wrapped__  # type: ignore[attr-defined]
    with (
        patch.multiple(
            calls,
            get=get_and_spoil,
            _initialize_shared_memory=start_under_conditions,
            _get_randomized_grid_coordinates=coordinates,
        ),
        patch.multiple(
            utils,
            get_uninitialized_value=lambda dtype, memory: left_over((), dtype, memory),
            get_uninitialized_array=unwritten,
            pad_to_block_dimension=padded,
        ),
    ):
        yield
