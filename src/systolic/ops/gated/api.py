"""`systolic.gated_matmul`. JAX is imported by its first call, so that `import systolic` stays quick."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from systolic.chips import Chip
from systolic.schedule import KernelConfig, Tiles

if TYPE_CHECKING:
    import numpy as np
    from jax import Array
    from jax.sharding import NamedSharding, PartitionSpec
    from jax.typing import DTypeLike
    from jaxtyping import Shaped

    from systolic.ops.engine.backend import Implementation
    from systolic.ops.quantized.array import Quantized


def gated_matmul(
    x: Shaped[Array | np.ndarray, "*batch m k"] | Quantized,
    w_gate: Shaped[Array | np.ndarray, "*batch k columns"] | Quantized,
    w_up: Shaped[Array | np.ndarray, "*batch k n"] | Quantized | None = None,
    *,
    activation: str | Callable[[Array], Array] | None = "silu",
    quantize_lhs: DTypeLike | None = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: NamedSharding | PartitionSpec | None = None,
    implementation: Implementation = None,
    chip: str | Chip | None = None,
    tiles: Tiles | KernelConfig | tuple[int, int, int] | None = None,
) -> Shaped[Array, "*batch m n"]:
    """Return `activation(x @ w_gate) · (x @ w_up)`, by one kernel on a TPU that reads x once.

    It is differentiable in both modes and to any order. In reverse mode the kernel also writes the derivatives with
    regard to both products, from which one kernel makes the gradient of x and another the gradients of both weights.

    It works under `jit`, `vmap`, `checkpoint`, `scan` and `shard_map` as `systolic.matmul` does, with tiles that
    `systolic.plan` chooses and shows for a `systolic.GatedSpec`.

    Args:
      x: [..., m, k], or [k]; dtypes as in `systolic.matmul`.
      w_gate, w_up: [..., k, n], of the same shape and dtype. Or w_gate alone, [..., k, 2n], with the columns of w_up
        after its own: then its gradient is one array too. If n is not a multiple of 256, XLA copies the two halves. Or
        a `systolic.Quantized` of such shapes, or two with scales of the same shape: then x may be quantized too, and
        there is no `precision` and no derivative in forward mode.
      activation: relu, gelu (tanh approximation), silu, sigmoid, tanh, softplus, or an elementwise function of float32.
      quantize_lhs: rows of x are quantized in the kernel, as in `systolic.matmul`.
      precision: of float32, as in `systolic.matmul`.
      preferred_element_type: of the result. Default: as in `systolic.matmul`, but float32 for integers.
      out_sharding: the cuts of the result, as in `systolic.matmul`.
      implementation, chip, tiles: as in `systolic.matmul`; a tile of n is a tile of each weight.

    Returns:
      The product as `jnp.matmul` shapes it.

    Raises:
      SpecError, UnsupportedDtypeError, IllegalTilesError: as `systolic.matmul`.
    """
    import jax

    from systolic.ops.engine.backend import backend_of
    from systolic.ops.gated.arguments import canonical
    from systolic.ops.gated.derivatives import multiply
    from systolic.ops.matmul.call import result
    from systolic.ops.quantized.api import quantized_matmul
    from systolic.ops.quantized.arguments import is_quantized

    shared: dict[str, Any] = {
        "activation": activation,
        "preferred_element_type": preferred_element_type,
        "backend": backend_of(implementation, chip, tiles),
    }
    if quantize_lhs is not None or any(map(is_quantized, (x, w_gate, w_up))):
        return quantized_matmul(
            x,
            w_gate,
            up=w_up,
            gated=True,
            quantize_lhs=quantize_lhs,
            refused={"precision": precision, "out_sharding": out_sharding},
            **shared,
        )
    call = canonical(x, w_gate, w_up, precision=precision, **shared)
    with jax.named_scope("systolic"):
        return result(multiply, call, out_sharding)
