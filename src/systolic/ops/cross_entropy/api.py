"""`systolic.linear_cross_entropy`. JAX is imported by its first call, so that `import systolic` stays quick."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from systolic.chips import Chip
from systolic.schedule import KernelConfig, Tiles

if TYPE_CHECKING:
    import numpy as np
    from jax import Array
    from jaxtyping import Float, Integer, Shaped

    from systolic.ops.engine.backend import Implementation

Reduction = Literal["none", "sum", "mean"]
Logits = Literal["recompute", "keep"] | int


def linear_cross_entropy(
    x: Shaped[Array | np.ndarray, "*tokens features"],
    w: Shaped[Array | np.ndarray, "features vocabulary"],
    labels: Integer[Array | np.ndarray, "*tokens"],
    *,
    ignore_index: int | None = -100,
    weights: Float[Array | np.ndarray, "*tokens"] | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    soft_cap: float | None = None,
    reduction: Reduction = "mean",
    logits: Logits = "recompute",
    precision: Any = None,
    implementation: Implementation = None,
    chip: str | Chip | None = None,
    tiles: Tiles | KernelConfig | tuple[int, int, int] | None = None,
) -> Float[Array, ...]:
    """Return the softmax cross entropy of the logits `x @ w`, which need not be in memory.

    On a TPU one kernel computes the loss, and one both gradients, from logits that it computes again or that the first
    one kept. All sums are float32. Elsewhere XLA computes the same in chunks of tokens.

    It is differentiable with regard to x, w and weights, in forward and reverse mode and any number of times, and works
    under `jit`, `vmap`, `checkpoint`, `scan` and `shard_map`. Only its value and its gradients come from kernels.

    The loss of a token with `lse = log Σ exp(logits)`, n logits, and the smoothing ε is

        lse - (1 - ε) · logits[label] - ε · mean(logits) + z_loss · lse²

    Args:
      x: [..., features]; bfloat16, float32 or another dtype of `systolic.matmul` that is not an integer.
      w: [features, vocabulary].
      labels: [...], columns of w. The loss of a label that is none of them is NaN.
      ignore_index: the label of tokens whose loss is zero and which `mean` does not count; None: there are none.
      weights: [...], by which losses are multiplied.
      label_smoothing: ε, the probability that is spread evenly over the vocabulary.
      z_loss: the factor of lse², which keeps logits small (PaLM has 1e-4).
      soft_cap: logits are `soft_cap · tanh(logits / soft_cap)`, as in Gemma 2; None: they are as they are.
      reduction: none: a loss for each token. sum: their sum. mean: their sum over the sum of weights of the tokens that
        are not ignored, or over their number; 0 if there is no such token.
      logits: recompute: the gradients compute float32 logits again, and none are written to memory. keep: under
        differentiation logits are rounded to the dtype of the products and stay in memory until the gradients read
        them, which saves one product of four. A number: keep them if they take at most this many bytes on a device.
      precision: of float32, as in `systolic.matmul`.
      implementation, chip: as in `systolic.matmul`.
      tiles: of the kernel of the loss, as in `systolic.matmul`; tile_k is the number of features.

    Returns:
      The loss in float32: a scalar, or with reduction none one for each token.

    Raises:
      SpecError: shapes or dtypes that do not match, an option that is none of its values; when the program is lowered,
        a kernel requested without a TPU.
      UnsupportedDtypeError: the chip does not multiply this dtype; the message names the dtypes that it takes.
      IllegalTilesError: `tiles` break rules; the message has each of them.
    """
    import jax
    import jax.numpy as jnp

    from systolic.ops.cross_entropy.arguments import canonical, check_options
    from systolic.ops.cross_entropy.sharded import statistics_on_mesh
    from systolic.ops.engine.backend import backend_of

    check_options(reduction, label_smoothing, z_loss, ignore_index)
    call = canonical(
        x,
        w,
        labels,
        weights=weights,
        soft_cap=soft_cap,
        with_total=label_smoothing > 0,
        logits=logits,
        precision=precision,
        backend=backend_of(implementation, chip, tiles),
    )
    with jax.named_scope("systolic"):
        columns, token_labels = call.w.shape[1], call.labels
        counted = jnp.ones(token_labels.shape, bool) if ignore_index is None else token_labels != ignore_index
        lse, picked, total = statistics_on_mesh(call.loss, call.x, call.w, jnp.where(counted, token_labels, -1))
        losses = lse - (1 - label_smoothing) * picked + z_loss * jnp.square(lse)
        if label_smoothing:
            losses = losses - label_smoothing / columns * total
        is_column = (token_labels >= 0) & (token_labels < columns)
        losses = jnp.where(counted, jnp.where(is_column, losses, jnp.nan), 0.0)
        shares = counted.astype(jnp.float32) if call.weights is None else jnp.where(counted, call.weights, 0.0)
        losses = losses * shares
        if reduction == "none":
            return losses.reshape(call.shape)
        if reduction == "sum":
            return losses.sum()
        total_share = shares.sum()
        return jnp.where(total_share == 0, 0.0, losses.sum() / jnp.where(total_share == 0, 1.0, total_share))
