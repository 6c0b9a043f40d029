"""Map the names of programs in published times to functions.

    xla                        XLA's own product
    ladder_v1 … ladder_v5      the rungs of the ladder
    block_matmul_f32_scratch   the kernel of JAX's matmul notebook, which is the ladder's v5: blocks, a sum of its own

`dot_general` is also XLA's. `_rhs_transposed` and `_relu` after `xla`, `ladder_v5` or `block_matmul_f32_scratch`,
one or both: rhs is stored [n, k], and negative sums become zero before they are rounded. For kernels that is
`first_matmul`, v5's body with these two holes.

`validation.foreign` rebuilds programs of other kinds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Shaped

from systolic.bench import abstract_operands, xla_matmul
from systolic.lessons.kernels.first_matmul import first_matmul, identity
from systolic.lessons.ladder import RUNGS
from systolic.schedule import Tiles
from systolic.spec import MatmulSpec
from systolic.support.choices import unknown_name
from systolic.validation.errors import OpError, Rebuilt
from systolic.validation.foreign import foreign_program, sizes_of
from systolic.validation.published import PublishedRow

_RUNG_OF = {**{f"ladder_{name}": name for name in RUNGS}, "block_matmul_f32_scratch": "v5"}
_TRANSPOSED, _RELU = "_rhs_transposed", "_relu"
_SPLITS = 4  # bands of v2 each way, as in its own command


def published_program(row: PublishedRow) -> Rebuilt:
    """Return the program that a row timed.

    Raises:
      OpError: the op is not known, the row lacks its tiles, or JAX does not multiply a dtype.
      SpecError: a dtype is not known.
    """
    if not row.kind.endswith("product"):
        return foreign_program(row)
    base, suffixes = _base_and_suffixes(row.op)
    m, k, n = sizes_of(row)
    spec = MatmulSpec(m=m, k=k, n=n, dtype_lhs=row.dtype_lhs, dtype_rhs=row.dtype_rhs, dtype_out=row.dtype_out)
    for dtype in (row.dtype_lhs, row.dtype_rhs, row.dtype_out):
        # Wider types would be traced as 32 bits, and another product would be simulated silently.
        if not jnp.issubdtype(np.dtype(dtype), jnp.number) or np.dtype(dtype).itemsize > 4:
            raise OpError(f"{dtype} is not a dtype of at most 32 bits that a TPU multiplies")
    tiles = _tiles(row, base, spec)
    kernel = _RUNG_OF.get(base, base) + "".join(suffixes)
    dtypes = f"{spec.dtype_lhs}×{spec.dtype_rhs}→{spec.dtype_out}"
    return Rebuilt(
        what=f"{kernel} {spec.m}/{spec.k}/{spec.n} {dtypes}" + (f" in {tiles}" if tiles else ""),
        function=_function(base, suffixes, spec, tiles),
        arguments=_arguments(spec, transposed=_TRANSPOSED in suffixes),
    )


def _base_and_suffixes(op: str) -> tuple[str, tuple[str, ...]]:
    base, endings = "xla" if op == "dot_general" else op, set()
    while suffix := next(
        (ending for ending in (_TRANSPOSED, _RELU) if base.endswith(ending) and ending not in endings), None
    ):
        base = base.removesuffix(suffix)
        endings.add(suffix)
    known_ops = ("xla", *_RUNG_OF)
    if base not in known_ops:
        raise OpError(
            f"{unknown_name('op', op, known_ops)}; xla, ladder_v5 and block_matmul_f32_scratch "
            f"also with {_TRANSPOSED} and {_RELU}"
        )
    if endings and base != "xla" and _RUNG_OF[base] != "v5":
        raise OpError(f"op {op!r}: {base} has neither {_TRANSPOSED} nor {_RELU}; ladder_v5 has")
    return base, tuple(suffix for suffix in (_TRANSPOSED, _RELU) if suffix in endings)


def _tiles(row: PublishedRow, base: str, spec: MatmulSpec) -> Tiles | None:
    if base == "xla":
        return None
    if row.tile_m is not None and row.tile_k is not None and row.tile_n is not None:
        return Tiles(tile_m=row.tile_m, tile_k=row.tile_k, tile_n=row.tile_n)
    rung = RUNGS[_RUNG_OF[base]]
    if rung.takes_tiles:
        raise OpError(f"op {row.op!r} needs tile_m, tile_k and tile_n, and the row lacks one of them")
    return rung.default_tiles(spec, _SPLITS)


def _function(base: str, suffixes: tuple[str, ...], spec: MatmulSpec, tiles: Tiles | None) -> Callable[..., Any]:
    transposed, relu = _TRANSPOSED in suffixes, _RELU in suffixes
    if base == "xla":
        if not suffixes:
            return xla_matmul(spec)
        return functools.partial(
            xla_variant, transposed=transposed, relu=relu, acc=spec.dtype_accumulator, dtype_out=spec.dtype_out
        )
    if not suffixes:
        return functools.partial(RUNGS[_RUNG_OF[base]].multiply, tiles=tiles, dtype_out=spec.dtype_out)
    activation = jax.nn.relu if relu else identity
    assert tiles is not None
    return functools.partial(
        first_matmul,
        bm=tiles.tile_m,
        bk=tiles.tile_k,
        bn=tiles.tile_n,
        dtype_out=spec.dtype_out,
        transpose_rhs=transposed,
        activation=activation,
    )


def xla_variant(
    lhs: Shaped[Array, "m k"],
    rhs: Shaped[Array, "k n"] | Shaped[Array, "n k"],
    *,
    transposed: bool,
    relu: bool,
    acc: str,
    dtype_out: str,
) -> Shaped[Array, "m n"]:
    """Return XLA's product with rhs either way round, and relu on sums of dtype `acc` before they are rounded."""
    contracted = ((1,), (1,)) if transposed else ((1,), (0,))
    sums = lax.dot_general(
        lhs, rhs, (contracted, ((), ())), preferred_element_type=jnp.dtype(acc if relu else dtype_out)
    )
    return (jax.nn.relu(sums) if relu else sums).astype(dtype_out)


def _arguments(spec: MatmulSpec, *, transposed: bool) -> tuple[jax.ShapeDtypeStruct, ...]:
    lhs, rhs = abstract_operands(spec)
    return (lhs, jax.ShapeDtypeStruct(rhs.shape[::-1], rhs.dtype) if transposed else rhs)
