"""`systolic.matmul`. JAX is imported by its first call, so that `import systolic` stays quick."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from systolic.chips import Chip
from systolic.schedule import KernelConfig, Tiles

if TYPE_CHECKING:
    import numpy as np
    from jax import Array
    from jax.sharding import NamedSharding, PartitionSpec
    from jax.typing import ArrayLike, DTypeLike
    from jaxtyping import Shaped

    from systolic.ops.engine.backend import Implementation
    from systolic.ops.quantized.array import Quantized


def matmul(
    lhs: Shaped[Array | np.ndarray, "*batch m k"] | Quantized,
    rhs: Shaped[Array | np.ndarray, "*batch k n"] | Quantized,
    *,
    bias: Shaped[Array, " n"] | ArrayLike | None = None,
    activation: str | Callable[[Array], Array] | None = None,
    residual: Shaped[Array, "*batch m n"] | ArrayLike | None = None,
    out_scale: ArrayLike | None = None,
    transpose_lhs: bool = False,
    transpose_rhs: bool = False,
    lhs_fn: Callable[..., Array] | None = None,
    lhs_args: Sequence[ArrayLike] = (),
    rhs_fn: Callable[..., Array] | None = None,
    rhs_args: Sequence[ArrayLike] = (),
    quantize_lhs: DTypeLike | None = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: NamedSharding | PartitionSpec | None = None,
    implementation: Implementation = None,
    chip: str | Chip | None = None,
    tiles: Tiles | KernelConfig | tuple[int, int, int] | None = None,
) -> Shaped[Array, "*batch m n"]:
    """Return `(activation(lhs_fn(lhs) @ rhs_fn(rhs) + bias) + residual) · out_scale`, by one kernel on a TPU.

    Shapes are as in `jnp.matmul`: vectors, matrices, batch dimensions that broadcast, any size from 0 up. It is
    differentiable in both modes and to any order, and works under `jit`, `vmap`, `checkpoint` (which JAX refuses around
    interpret mode), `scan` and `shard_map`; on arrays of a mesh with explicit axes, as `jax.make_mesh` makes it, only
    under `jit`. On several devices of another mesh XLA multiplies, and a warning says so.

    On a TPU a Pallas kernel runs, whose tiles `systolic.plan` chooses and shows; elsewhere XLA computes the same.

    Args:
      lhs: [..., m, k], or [..., k, m] with `transpose_lhs`, or [k]. float32, bfloat16, int8, float8_e4m3fn or
        float8_e5m2. float16 is multiplied as float32.
      rhs: [..., k, n], or [..., n, k] with `transpose_rhs`, or [k]. Dtypes may differ: a bfloat16 lhs with an int8
        weight is multiplied in bfloat16. Or a `systolic.Quantized` of such shapes, also with a batch, or a
        `qwix.QArray`: see the page on quantized products. lhs may be quantized too, also with a plain rhs.
      bias: [n], or one element.
      activation: relu, gelu (tanh approximation), silu, sigmoid, tanh, softplus, or an elementwise function of float32.
      residual: broadcasts to the output.
      out_scale: broadcasts to the output; with quantized operands to [n].
      lhs_fn: elementwise function of lhs as it is stored, and of `lhs_args`, applied to blocks in VMEM: a cast, a
        scale, a mask. The kernel multiplies in its result's dtype.
      lhs_args: arrays that broadcast to lhs.
      rhs_fn, rhs_args: the same for rhs.
      quantize_lhs: "int8", "int4", "e4m3" or "e5m2": each row of lhs is quantized to it in the kernel, with its own
        scale.
      precision: of float32 operands. DEFAULT is one bfloat16 pass: 8 bits of each operand; HIGH is three, 16 bits;
        HIGHEST is six, nearly all 24. Or as JAX spells these: `tensorfloat32` is three passes, and so is
        `lax.DotAlgorithmPreset.BF16_BF16_F32_X3`. None: `jax.default_matmul_precision`.
      preferred_element_type: of the result. Default: the operands' dtype, int32 for int8. The sum is taken in float32
        or int32, which wraps if it is the result itself. An integer result is rounded to the nearest and saturates.
      out_sharding: the cuts of the result, as `jnp.matmul` takes them, for operands on a mesh with explicit axes. Where
        rows of lhs or the weight have to be gathered for it, or sums to be scattered over rows, one kernel sends and
        multiplies if that is faster: see the page on products across chips.
      implementation: None: Pallas on a TPU, else XLA; on a mesh with explicit axes XLA too, where its copy of a large
        weight runs during the operation before and that saves time. "pallas", "xla", or "interpret": the Pallas kernel
        on a CPU, in TPU interpret mode, or your own `pltpu.InterpretParams`.
      chip: whose tiles to use. None: the chip of the program being traced.
      tiles: (m, k, n) of a tile, in place of the planner's; or a whole configuration from `plan` or `tune`.

    Returns:
      The product as `jnp.matmul` shapes it.

    Raises:
      SpecError: shapes or dtypes that do not match, or a function that is not elementwise; when the program is lowered,
        a kernel requested without a TPU.
      UnsupportedDtypeError: the chip does not multiply this dtype; the message names the dtypes that it takes.
      IllegalTilesError: `tiles` break rules; the message has each of them.
    """
    import jax

    from systolic.ops.engine.backend import backend_of
    from systolic.ops.matmul.arguments import Given, canonical
    from systolic.ops.matmul.call import result
    from systolic.ops.matmul.jvp import multiply
    from systolic.ops.quantized.api import quantized_matmul
    from systolic.ops.quantized.arguments import is_quantized

    shared: dict[str, Any] = {
        "bias": bias,
        "residual": residual,
        "out_scale": out_scale,
        "activation": activation,
        "preferred_element_type": preferred_element_type,
        "backend": backend_of(implementation, chip, tiles),
    }
    if is_quantized(lhs) or is_quantized(rhs) or quantize_lhs is not None:
        unsupported = {
            "transpose_lhs": transpose_lhs,
            "transpose_rhs": transpose_rhs,
            "lhs_fn": lhs_fn,
            "rhs_fn": rhs_fn,
            "precision": precision,
            "out_sharding": out_sharding,
        }
        return quantized_matmul(lhs, rhs, quantize_lhs=quantize_lhs, refused=unsupported, **shared)
    call = canonical(
        Given(name="lhs", value=lhs, transposed=transpose_lhs, fn=lhs_fn, args=lhs_args),
        Given(name="rhs", value=rhs, transposed=transpose_rhs, fn=rhs_fn, args=rhs_args),
        precision=precision,
        **shared,
    )
    with jax.named_scope("systolic"):
        return result(multiply, call, out_sharding)
