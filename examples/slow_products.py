"""Products that are right but slower than necessary, each for one reason that `systolic explain` should find.

    systolic explain examples/slow_products.py:by_columns --arg "bf16[4096,4096]" --arg "bf16[4096,4096]" --chip v6e

    by_columns      the grid goes through rows first: the larger block is fetched again and again
    one_buffer      nothing is copied while a product is under way
    one_core        no axis of the grid is parallel, and the chip has two cores
    turned          the weight is transposed before the kernel: a separate copy
    in_the_output   the sum lives in the output block
    small_tiles     128³, what a missing entry of a table of tiles often means

Each is `product` with one keyword changed, so that the fix can be applied as the author would.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def product(
    lhs: Any,
    rhs: Any,
    *,
    tile_m: int = 256,
    tile_k: int = 256,
    tile_n: int = 256,
    grid: tuple[int, int, int] | None = None,
    order: str = "mnk",
    semantics: Sequence[Any] | None = None,
    buffers: int = 2,
    in_output: bool = False,
    turned: bool = False,
    vmem_limit_bytes: int | None = None,
) -> Any:
    """lhs [m, k] @ rhs [k, n].

    Args:
      lhs: [m, k].
      rhs: [k, n], or [n, k] if `turned`.
      tile_m: rows of a block of the output; `tile_k` and `tile_n` are sizes along k and n.
      grid: steps along m, n and k; None: the number of whole tiles.
      order: of the axes of the grid, slowest first.
      semantics: of the axes in that order.
      buffers: of each input.
      in_output: sum up in the output block, in float32, in place of scratch memory.
      turned: transpose rhs before the kernel.
      vmem_limit_bytes: VMEM that the kernel may use.
    """
    rhs = jnp.swapaxes(rhs, 0, 1) if turned else rhs
    (m, k), n = lhs.shape, rhs.shape[1]
    last = order.index("k")

    def kernel(lhs_vmem, rhs_vmem, out_vmem, *scratch):
        (acc_vmem,) = scratch or (out_vmem,)

        @pl.when(pl.program_id(last) == 0)
        def _():
            acc_vmem[...] = jnp.zeros_like(acc_vmem)

        acc_vmem[...] += jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=jnp.float32)

        if not in_output:

            @pl.when(pl.program_id(last) == pl.num_programs(last) - 1)
            def _():
                out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)

    def at(*axes: str) -> Callable[..., tuple[Any, ...]]:
        return lambda *ids: tuple(ids[order.index(axis)] for axis in axes)

    mode = None if buffers == 2 else pl.Buffered(buffers)
    steps = dict(zip("mnk", grid or (m // tile_m, n // tile_n, k // tile_k), strict=True))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32 if in_output else lhs.dtype),
        grid=tuple(steps[axis] for axis in order),
        in_specs=[
            pl.BlockSpec((tile_m, tile_k), at("m", "k"), pipeline_mode=mode),
            pl.BlockSpec((tile_k, tile_n), at("k", "n"), pipeline_mode=mode),
        ],
        out_specs=pl.BlockSpec((tile_m, tile_n), at("m", "n")),
        scratch_shapes=[] if in_output else [pltpu.VMEM((tile_m, tile_n), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=semantics, vmem_limit_bytes=vmem_limit_bytes),
        name="product",
    )(lhs, rhs)


by_columns = functools.partial(product, order="nmk", tile_m=256, tile_k=4096, tile_n=512)
one_buffer = functools.partial(product, buffers=1, tile_m=512, tile_k=512, tile_n=512)
one_core = functools.partial(product, tile_m=512, tile_k=1024, tile_n=512)
turned = functools.partial(product, turned=True, tile_m=512, tile_k=1024, tile_n=512)
in_the_output = functools.partial(product, in_output=True, tile_m=512, tile_k=512, tile_n=512)
small_tiles = functools.partial(product, tile_m=128, tile_k=128, tile_n=128)
