"""`systolic.grouped_matmul`. JAX is imported by its first call, so that `import systolic` stays quick."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from systolic.chips import Chip
from systolic.schedule import KernelConfig, Tiles

if TYPE_CHECKING:
    import numpy as np
    from jax import Array
    from jax.typing import ArrayLike, DTypeLike
    from jaxtyping import Int, Shaped

    from systolic.ops.engine.backend import Implementation
    from systolic.ops.quantized.array import Quantized


def grouped_matmul(
    lhs: Shaped[Array | np.ndarray, "m k"],
    rhs: Shaped[Array | np.ndarray, "groups k n"] | Quantized,
    group_sizes: Int[Array | np.ndarray, " all_groups"],
    *,
    group_offset: ArrayLike | None = None,
    up: Shaped[Array | np.ndarray, "groups k n"] | Quantized | None = None,
    side_by_side: bool = False,
    bias: Shaped[Array, "groups n"] | ArrayLike | None = None,
    activation: str | Callable[[Array], Array] | None = None,
    row_scale: Shaped[Array, " m"] | ArrayLike | None = None,
    residual: Shaped[Array, "m n"] | ArrayLike | None = None,
    existing_out: Shaped[Array, "m n"] | None = None,
    transpose_rhs: bool = False,
    quantize_lhs: DTypeLike | None = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    rows_per_group: int | None = None,
    implementation: Implementation = None,
    chip: str | Chip | None = None,
    tiles: Tiles | KernelConfig | tuple[int, int, int] | None = None,
) -> Shaped[Array, "m n"]:
    """Return `activation(lhs[rows of g] @ rhs[g] + bias[g]) · row_scale + residual` for each group, by one kernel.

    With `up` it is the gated product of an MLP, `activation(lhs @ rhs[g] + bias[g]) · (lhs @ up[g]) · row_scale +
    residual`, in one kernel too, which reads lhs once.

    The first `group_sizes[0]` rows are the first group's, and so on, as `jax.lax.ragged_dot` takes them. Rows after the
    last group are zero in the result, whatever they hold, or the rows of `existing_out`; `residual` is not added there.

    It is differentiable in both modes and to any order, and works under `jit`, `vmap` (one after another),
    `checkpoint`, `scan` and `shard_map`. Arrays of a mesh with explicit axes are multiplied part by part, only under
    `jit`.

    On a TPU a Pallas kernel runs, whose tiles `systolic.plan` chooses for a `GroupedSpec`; elsewhere XLA computes the
    same. On v4 and v5p, whose device has two TensorCores, these share the columns.

    Args:
      lhs: [m, k]; dtypes as in `systolic.matmul`. If they differ, the narrower operand is converted to the other dtype
        before the kernel.
      rhs: [groups, k, n]; [groups, n, k] with `transpose_rhs`. Or a `systolic.Quantized` or `qwix.QArray`: with one
        scale for each column, for all of a group, or for blocks of a multiple of 128 of k, the kernel reads codes of
        int8, int4, e4m3 and e5m2, and multiplies sums by scales. Other formats, blocks of k on a mesh with explicit
        axes, and all formats where the product is differentiated, are dequantized before the product. The codes are
        constants.
      group_sizes: rows of each group. In a traced array, sizes below zero count as zero, and rows past m do not count.
      group_offset: number of the first group that has a matrix in `rhs`, as with experts on several devices: rows of
        other groups are zero in the result. A traced offset may be any number; matrices without a group are not used.
        None: `rhs` has all groups.
      up: a second array like rhs; the function of the first product is multiplied by lhs @ up.
      side_by_side: rhs is one array of both, [groups, k, 2n], the columns of up after the columns of rhs; [groups, 2n,
        k] with `transpose_rhs`. Its gradient is one array and takes one kernel, as does the gradient of lhs. Where n is
        no multiple of 256, XLA copies the two halves.
      bias: [groups, n].
      activation: relu, gelu (tanh approximation), silu, sigmoid, tanh, softplus, or an elementwise function of float32.
      row_scale: [m], such as a router's weights.
      residual: [m, n], added after everything else, in float32; to rows of groups of `rhs` only.
      existing_out: [m, n], which the result is written into: rows that belong to no group of `rhs` remain, in place of
        zeros. XLA copies it first if it is still needed.
      quantize_lhs: "int8", "int4", "e4m3" or "e5m2": each row is quantized to it next to a quantized rhs, with its own
        scale, by XLA. int8 rows are multiplied by codes of int8 or int4 as integers, and float8 by the same float8
        where the chip has a rate for it; else the rounded rows are multiplied as floats. The derivative ignores the
        rounding.
      precision: of float32 operands, as in `systolic.matmul`: DEFAULT, HIGH or HIGHEST, one, three or six bfloat16
        passes. None: `jax.default_matmul_precision`.
      preferred_element_type: of the result. Default: the operands' dtype, int32 for int8.
      rows_per_group: expected rows of a group that has any, for the choice of tiles. None: m / groups.
      implementation: None: Pallas on a TPU, else XLA. "pallas", "xla", or "interpret": the Pallas kernel on a CPU, in
        TPU interpret mode, or your own `pltpu.InterpretParams`.
      chip: whose tiles to use. None: the chip of the program being traced.
      tiles: rows in VMEM, k, and columns of a tile, in place of the planner's; or a whole configuration.

    Raises:
      SpecError: shapes or dtypes that do not match; known sizes of groups below zero, or above m together; a known
        group_offset at which some matrices of `rhs` have no group.
      UnsupportedDtypeError: the chip does not multiply this dtype.
      QuantizationError: quantized matrices were cast or cut so that they are not codes and scales.
      IllegalTilesError: `tiles` break rules; the message has each of them.
    """
    import jax

    from systolic.ops.engine.backend import backend_of
    from systolic.ops.grouped.arguments import canonical
    from systolic.ops.grouped.derivative import multiply, multiply_fused

    call = canonical(
        lhs,
        rhs,
        group_sizes,
        group_offset=group_offset,
        up=up,
        side_by_side=side_by_side,
        bias=bias,
        activation=activation,
        row_scale=row_scale,
        residual=residual,
        existing_out=existing_out,
        transpose_rhs=transpose_rhs,
        quantize_lhs=quantize_lhs,
        precision=precision,
        preferred_element_type=preferred_element_type,
        rows_per_group=rows_per_group,
        backend=backend_of(implementation, chip, tiles),
    )
    with jax.named_scope("systolic"):
        if call.is_plain:
            out: Any = multiply(call.product, call.lhs, call.rhs, call.grouping)
        else:
            out = multiply_fused(call.product, call.lhs, call.rhs, call.grouping, call.fused)
        return out.astype(call.dtype)
