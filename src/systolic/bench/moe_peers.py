"""Public kernels for rows in groups, as their users call them; one that is not installed has a reason instead."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
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
    sizes = spec.m, spec.k, spec.n
    fixed, whole_rows, *others = peers_of(functools.partial(product_of, spec))
    for peer, tiles in ((fixed, _fitting(_TILES, *sizes)), (whole_rows, _whole_rows(*sizes, spec.groups))):
        yield replace(peer, config=f"tiles {'/'.join(map(str, tiles))}")
    yield from others


def peers_of(program: Callable[..., Any]) -> Iterator[Peer]:
    """Yield a program with each of the kernels as its product of rows in groups, which is its first argument."""
    for name, is_whole in (("megablox", False), ("megablox, whole k", True)):
        yield Peer(name=name, program=functools.partial(program, functools.partial(_megablox, is_whole)))
    is_installed = importlib.util.find_spec("tokamax") is not None
    yield Peer(
        name="tokamax v2",
        program=functools.partial(_by_tokamax, program) if is_installed else None,
        reason="" if is_installed else "tokamax is not installed",
    )


def _whole_rows(m: int, k: int, n: int, groups: int) -> tuple[int, int, int]:
    many_rows, few_rows = _WHOLE_ROWS
    rows, columns = many_rows if m >= many_rows[0] * groups else few_rows
    return _fitting((rows, k, columns), m, k, n)


def _fitting(tiles: tuple[int, int, int], m: int, k: int, n: int) -> tuple[int, int, int]:
    tile_m, tile_k, tile_n = tiles
    return min(tile_m, m), min(tile_k, k), min(tile_n, n)


@runs_user_code  # any error of a public kernel is its result
def _megablox(is_whole: bool, lhs: Array, rhs: Array, sizes: Array) -> Array:
    (m, k), (groups, _, n) = lhs.shape, rhs.shape
    tiles = _whole_rows(m, k, n, groups) if is_whole else _fitting(_TILES, m, k, n)
    return megablox.gmm(lhs, rhs, sizes, lhs.dtype, tiles)


@runs_user_code
def _by_tokamax(program: Callable[..., Any], *operands: Array) -> Any:
    tokamax = importlib.import_module("tokamax")  # raced if installed
    with tokamax.config.cross_compile(True):  # no TPU is in sight: the kernel is for another machine
        return program(functools.partial(_tokamax, tokamax), *operands)


@runs_user_code
def _tokamax(tokamax: Any, lhs: Array, rhs: Array, sizes: Array) -> Array:
    """Call tokamax's v2 kernel, which chooses its tiles; its other one is megablox, tiled for the device it finds."""
    return tokamax.ragged_dot(lhs, rhs, sizes, preferred_element_type=lhs.dtype, implementation="mosaic_tpu_v2")
