"""Public kernels for rows in groups, as their users call them; one that is not installed has a reason instead."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

from jax import Array
from jax.experimental.pallas.ops.tpu.megablox import ops as megablox

from systolic.bench.moe import MoeSpec
from systolic.bench.moe_programs import product_of
from systolic.ops.op_programs import Peer
from systolic.support.bugs import runs_user_code

# megablox's tiles, which its caller chooses: MaxText's configs/base.yml for its layers of experts, and whole rows, as
# tokamax's tuned entries for the same kernel have them, for groups of many rows and of few (rows, columns).
_TILES = (512, 1024, 1024)
_WHOLE_ROWS = ((512, 1024), (128, 1536))


def peers(spec: MoeSpec) -> Iterator[Peer]:
    """Yield kernels that multiply rows in groups, and their derivatives."""
    for name, tiles in (("megablox", _fitting(_TILES, spec)), ("megablox, whole k", _whole_rows(spec))):
        program = functools.partial(product_of, spec, functools.partial(_megablox, tiles))
        yield Peer(name=name, config=f"tiles {'/'.join(map(str, tiles))}", program=program)
    is_installed = importlib.util.find_spec("tokamax") is not None
    yield Peer(
        name="tokamax v2",
        program=functools.partial(_by_tokamax, spec) if is_installed else None,
        reason="" if is_installed else "tokamax is not installed",
    )


def _whole_rows(spec: MoeSpec) -> tuple[int, int, int]:
    many_rows, few_rows = _WHOLE_ROWS
    rows, columns = many_rows if spec.m >= many_rows[0] * spec.groups else few_rows
    return _fitting((rows, spec.k, columns), spec)


def _fitting(tiles: tuple[int, int, int], spec: MoeSpec) -> tuple[int, int, int]:
    rows, k, n = tiles
    return min(rows, spec.m), min(k, spec.k), min(n, spec.n)


@runs_user_code  # any error of a public kernel is its result
def _megablox(tiles: tuple[int, int, int], lhs: Array, rhs: Array, sizes: Array) -> Array:
    return megablox.gmm(lhs, rhs, sizes, lhs.dtype, tiles)


@runs_user_code
def _by_tokamax(spec: MoeSpec, *operands: Array) -> Array:
    tokamax = importlib.import_module("tokamax")  # raced if installed
    with tokamax.config.cross_compile(True):  # no TPU is in sight: the kernel is for another machine
        return product_of(spec, functools.partial(_tokamax, tokamax), *operands)


@runs_user_code
def _tokamax(tokamax: Any, lhs: Array, rhs: Array, sizes: Array) -> Array:
    """Call tokamax's v2 kernel, which chooses its tiles; its other one is megablox, tiled for the device it finds."""
    return tokamax.ragged_dot(lhs, rhs, sizes, preferred_element_type=lhs.dtype, implementation="mosaic_tpu_v2")
