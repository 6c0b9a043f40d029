"""Products across chips, for use in `jax.shard_map`. JAX is imported by the first call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from systolic.chips import Chip

if TYPE_CHECKING:
    import numpy as np
    from jax import Array
    from jax.typing import ArrayLike, DTypeLike
    from jaxtyping import Shaped

    from systolic.ops.collective.choice import RingChoice
    from systolic.ops.collective.product import Kind
    from systolic.ops.engine.backend import Implementation
    from systolic.ops.quantized.array import Quantized


def all_gather_matmul(
    x: Shaped[Array | np.ndarray, "rows *between k"],
    w: Shaped[Array | np.ndarray, "k columns"] | Quantized,
    *,
    axis_name: str,
    bias: Shaped[Array, " columns"] | ArrayLike | None = None,
    activation: str | Callable[[Array], Array] | None = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    wire_dtype: DTypeLike | None = None,
    ring: Sequence[int] | None = None,
    collective_id: int | None = None,
    implementation: Implementation = None,
    chip: str | Chip | None = None,
) -> Shaped[Array, "all_rows *between columns"]:
    """Return `activation(all_gather(x) @ w + bias)`: the rows of all devices of a mesh axis times this device's w.

    In a Pallas kernel rows travel round a ring of devices both ways, while those that have arrived are multiplied. It
    runs on a TPU if operands are bfloat16 or float32, k and columns are multiples of 128, w and rows fit in VMEM, and
    arithmetic, or `tune`, expects that it is faster. Otherwise XLA gathers and multiplies; `plan_across_chips` says
    which and why. Any number of rows is padded in the call.

    Call it in `jax.shard_map`. It is differentiable in both modes, to any order: the cotangent of x is a
    `matmul_reduce_scatter`. Under `vmap` one call follows another.

    Args:
      x: [rows, ..., k], this device's part; parts are gathered along the first dimension. Dtypes as in
        `systolic.matmul`.
      w: [k, columns], such as this device's columns of a weight. Or a `systolic.Quantized` of int8 or float8 with a
        scale for each column, cut as its values, which the kernel reads as it is stored and scales in float32; XLA
        dequantizes others. x is bfloat16 or float32 then. Values have no derivative; x and scales do.
      axis_name: the mesh axis over which x is gathered.
      bias: [columns].
      activation: relu, gelu (tanh approximation), silu, sigmoid, tanh, softplus, or an elementwise function of float32.
      precision: for float32 operands. The kernel supports DEFAULT and HIGHEST, one and six bfloat16 passes.
      preferred_element_type: dtype of the result. Default: the dtype of the operands. Sums are float32.
      wire_dtype: "int8", "float8_e4m3fn" or "float8_e5m2" sends each row of x in eight bits with a scale, half the
        bytes of bfloat16. A value of x as int8 is then off by up to 1/252 of the largest magnitude in its row, and an
        element of the product by up to that times the sum of magnitudes in its column of w. A value as float8_e4m3fn is
        off by up to 1/16 of its own magnitude, or 1/450,000 of the row's largest if that is more; as float8_e5m2 by up
        to 1/8. Cotangents travel in their own dtype. A w of the same dtype is multiplied without a conversion. With it
        the kernel runs where it can, whatever arithmetic says. None: x's own dtype.
      ring: axis indices in the order of a ring. Any order is right; a copy between devices that are not neighbors takes
        longer. None: a ring of neighbors by the devices' coordinates, if there is one.
      collective_id: the number of the kernel's barrier, which kernels over one axis may share. None: 8 and the position
        of the axis in the mesh.
      implementation: None: Pallas on a TPU where it is the faster one, else XLA. "pallas", "xla", or "interpret": the
        Pallas kernel on virtual devices of a CPU, in TPU interpret mode, or your own `pltpu.InterpretParams`.
      chip: its VMEM and links decide how rows are cut. None: the chip of the program that is traced.

    Raises:
      SpecError: axis_name is not an axis of the surrounding `shard_map`, shapes or dtypes do not match, or ring is not
        an order of the axis.
      QuantizationError: scales do not go with the values of this device's w.
      IllegalTilesError: implementation="pallas" or "interpret", and the kernel cannot compute it; the message has each
        reason.
    """
    return _computed(
        "gather",
        x,
        w,
        implementation,
        chip,
        axis_name=axis_name,
        bias=bias,
        activation=activation,
        precision=precision,
        preferred_element_type=preferred_element_type,
        wire_dtype=wire_dtype,
        ring=ring,
        collective_id=collective_id,
    )


def matmul_reduce_scatter(
    x: Shaped[Array | np.ndarray, "all_rows *between k"],
    w: Shaped[Array | np.ndarray, "k columns"] | Quantized,
    *,
    axis_name: str,
    bias: Shaped[Array, " columns"] | ArrayLike | None = None,
    activation: str | Callable[[Array], Array] | None = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    wire_dtype: DTypeLike | None = None,
    ring: Sequence[int] | None = None,
    collective_id: int | None = None,
    implementation: Implementation = None,
    chip: str | Chip | None = None,
) -> Shaped[Array, "rows *between columns"]:
    """Return this device's rows of `activation(sum over devices of x @ w + bias)`.

    In a Pallas kernel sums go round a ring of devices both ways, and each device adds its product to those that have
    arrived. It runs under the same conditions as the kernel of `all_gather_matmul`; otherwise XLA multiplies and
    reduces.

    Sums travel in the dtype of the result, as XLA's do: a device adds in float32 and rounds what it sends. For bfloat16
    on 8 devices the relative error is √3 times the error of rounding once; preferred_element_type=float32 avoids it
    and doubles the bytes that are sent, and `wire_dtype` halves them.

    Call it in `jax.shard_map`. It is differentiable in both modes, to any order: the cotangent of x is an
    `all_gather_matmul`. Under `vmap` one call follows another.

    Args:
      x: [all_rows, ..., k], this device's part of k; the sum's rows are scattered along the first dimension, which the
        devices of the axis divide. Dtypes as in `systolic.matmul`.
      w: [k, columns], such as this device's rows of a weight. Or a `systolic.Quantized`, as in `all_gather_matmul`,
        with a scale for each column of the whole weight or of this device's rows.
      axis_name: the mesh axis over which products are summed.
      bias: [columns], added once, to the sum of all devices.
      wire_dtype: "int8", "float8_e4m3fn" or "float8_e5m2" sends sums in eight bits with a scale for each row of a block
        of columns, half the bytes of bfloat16. A device adds in float32. On N devices a sum is rounded up to h = N // 2
        times on its way. As int8 it is then off by up to (253/252)^h - 1, for N = 8 1/62, of the sum over devices of
        the largest magnitude in their row of the product; as float8_e4m3fn by up to (17/16)^h - 1 of the sum over
        devices of the magnitudes of its element. XLA rounds each device's product once. Cotangents travel in their own
        dtype. None: the dtype of the result.
      activation, precision, preferred_element_type, ring, collective_id, implementation, chip: as in
        `all_gather_matmul`.

    Raises:
      SpecError, QuantizationError, IllegalTilesError: as `all_gather_matmul`; also if all_rows do not divide among the
        devices.
    """
    return _computed(
        "scatter",
        x,
        w,
        implementation,
        chip,
        axis_name=axis_name,
        bias=bias,
        activation=activation,
        precision=precision,
        preferred_element_type=preferred_element_type,
        wire_dtype=wire_dtype,
        ring=ring,
        collective_id=collective_id,
    )


def matmul_all_reduce(
    x: Shaped[Array | np.ndarray, "rows *between k"],
    w: Shaped[Array | np.ndarray, "k columns"] | Quantized,
    *,
    axis_name: str,
    bias: Shaped[Array, " columns"] | ArrayLike | None = None,
    activation: str | Callable[[Array], Array] | None = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    wire_dtype: DTypeLike | None = None,
    ring: Sequence[int] | None = None,
    collective_id: int | None = None,
    implementation: Implementation = None,
    chip: str | Chip | None = None,
) -> Shaped[Array, "rows *between columns"]:
    """Return `activation(sum over devices of x @ w + bias)`, the same on all devices of a mesh axis.

    It is `matmul_reduce_scatter`, whose rows are then gathered by XLA; or XLA's all-reduce, where arithmetic expects
    that to be faster, as with few rows. Any number of rows is padded in the call. With a `wire_dtype` the rows are
    gathered in eight bits too, and so rounded once more.

    Args:
      x: [rows, ..., k], this device's part of k.
      w: [k, columns], such as this device's rows of a weight.
      axis_name: the mesh axis over which products are summed.
      wire_dtype: of sums, and of the results that are gathered, as in `matmul_reduce_scatter`.
      bias, activation, precision, preferred_element_type, ring, collective_id, implementation, chip: as in
        `matmul_reduce_scatter`.

    Raises:
      SpecError, QuantizationError, IllegalTilesError: as `matmul_reduce_scatter`.
    """
    import jax
    import jax.numpy as jnp

    from systolic.ops.collective.arguments import axis_size, canonical
    from systolic.ops.collective.derivative import all_reduced
    from systolic.ops.engine.backend import backend_of
    from systolic.ops.engine.dtypes import operand

    x = operand(x, "x")
    padding = -x.shape[0] % axis_size(axis_name) if x.ndim else 0
    with jax.named_scope("systolic"):
        call = canonical(
            "scatter",
            jnp.pad(x, [(0, padding), *[(0, 0)] * (x.ndim - 1)]) if padding else x,
            w,
            axis_name=axis_name,
            bias=bias,
            activation=activation,
            precision=precision,
            preferred_element_type=preferred_element_type,
            ring=ring,
            collective_id=collective_id,
            backend=backend_of(implementation, chip, None),
            wire_dtype=wire_dtype,
        )
        return all_reduced(call, x.shape[:-1], bias)


def plan_across_chips(fn: Callable[..., Any], *args: Any) -> tuple[RingChoice, ...]:
    """Return the choice for each product of a function that a kernel could compute across chips, in traced order.

    These are products of `systolic.matmul` and `systolic.gated_matmul`, and of their gradients, whose operands are cut
    over a mesh with explicit axes so that rows or weights of all devices are gathered, or sums of all devices added;
    and the products of `all_gather_matmul`, `matmul_reduce_scatter` and `matmul_all_reduce` in `jax.shard_map`, if the
    call has no `implementation`. A product of one device's parts that is left to XLA has a choice of its own.

    Args:
      fn: the function, as it is called under `jit`.
      args: its arguments, or `jax.ShapeDtypeStruct`s of them; for choices under `jit` with shardings on a mesh with
        explicit axes. A `jax.shard_map` without `mesh=` needs a mesh that `jax.set_mesh` has set.
    """
    from systolic.compat.mesh_values import mesh_set_of
    from systolic.ops.collective.noted import choices_of

    with mesh_set_of(args):
        return choices_of(fn, *args)


def _computed(
    kind: Kind, x: Any, w: Any, implementation: Implementation, chip: str | Chip | None, **options: Any
) -> Any:
    import jax

    from systolic.ops.collective.arguments import canonical
    from systolic.ops.collective.derivative import computed
    from systolic.ops.engine.backend import backend_of

    with jax.named_scope("systolic"):
        return computed(canonical(kind, x, w, backend=backend_of(implementation, chip, None), **options))
