"""`systolic.moe` and `systolic.ragged_all_to_all`. JAX is imported by their first call: `import systolic` is quick."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from systolic.chips import Chip

if TYPE_CHECKING:
    import numpy as np
    from jax import Array
    from jax.typing import ArrayLike, DTypeLike
    from jaxtyping import Float, Int, Shaped

    from systolic.ops.engine.backend import Implementation
    from systolic.ops.quantized.array import Quantized


def moe(
    x: Shaped[Array | np.ndarray, "*tokens d"],
    routing: Float[Array | np.ndarray, "*tokens experts"]
    | tuple[Int[Array | np.ndarray, "*tokens k"], Float[Array | np.ndarray, "*tokens k"]],
    w_gate: Shaped[Array | np.ndarray, "experts d f"] | Quantized,
    w_up: Shaped[Array | np.ndarray, "experts d f"] | Quantized | None,
    w_down: Shaped[Array | np.ndarray, "experts f d"] | Quantized,
    *,
    top_k: int | None = None,
    renormalize: bool = True,
    activation: str | Callable[[Array], Array] | None = "silu",
    bias_gate: ArrayLike | None = None,
    bias_up: ArrayLike | None = None,
    bias_down: ArrayLike | None = None,
    shared: tuple[ArrayLike | Quantized, ArrayLike | Quantized, ArrayLike | Quantized] | None = None,
    capacity: int | None = None,
    quantize_lhs: DTypeLike | None = None,
    axis_name: str | None = None,
    precision: Any = None,
    implementation: Implementation = None,
    chip: str | Chip | None = None,
) -> Shaped[Array, "*tokens d"]:
    """Return a mixture of experts: for each token the weighted sum of `(activation(x @ gate) · (x @ up)) @ down`.

    Rows are sorted by expert and multiplied by two kernels of `systolic.grouped_matmul`, then added up in float32.

    It is differentiable in both modes with regard to x, the weights of experts and the router, and works under `jit`,
    `checkpoint`, `scan` and `shard_map`. `systolic.simulate` times it with the sizes of groups of a router that sends
    as many tokens to each expert, drawn at random, unless it knows the router's result.

    Args:
      x: [..., d], the tokens.
      routing: the router's logits, [..., experts]; or (expert_ids, weights), [..., k] each, from a router of your own.
        An id of -1 is not an expert; in a traced array so is any id out of range.
      w_gate, w_up, w_down: [experts, d, f], the same, and [experts, f, d]. Without w_up (None) the first product is not
        gated. A `systolic.Quantized` or a `qwix.QArray` goes to `systolic.grouped_matmul`, which says what it
        multiplies as it is stored, and what it dequantizes before the product.
      top_k: experts of a token, those with the largest logits; the first of equal ones.
      renormalize: weights are a softmax of the chosen logits, and add up to one; False: of all.
      activation: of the gate, as in `systolic.grouped_matmul`.
      bias_gate, bias_up, bias_down: [experts, f], [experts, f] and [experts, d].
      shared: (w_gate, w_up, w_down) of an MLP that every token passes through, [d, n], [d, n] and [n, d].
      capacity: rows of an expert at most. Of more, the last in the order of tokens are dropped: that expert adds
        nothing to them. None: no token is dropped.
      quantize_lhs: the format to which rows of both products are quantized next to quantized experts, as in
        `systolic.grouped_matmul`; not those of `shared`.
      axis_name: mesh axis over which experts are cut, in `jax.shard_map`. x and routing are of this device's tokens,
        routing over the experts of all devices, matrices and biases of this device's experts; `shared` is whole.
      precision, implementation, chip: as in `systolic.grouped_matmul`.

    Raises:
      SpecError: shapes or dtypes that do not match, known expert_ids out of range, or a top_k that is not from 1 to the
        number of experts.
      UnsupportedDtypeError: the chip does not multiply this dtype.
      QuantizationError: quantized matrices were cast or cut so that they are not codes and scales.
    """
    import jax

    from systolic.ops.gated import gated_matmul
    from systolic.ops.matmul import matmul
    from systolic.ops.moe.arguments import canonical
    from systolic.ops.moe.layer import Experts, experts_sum, over_devices
    from systolic.ops.moe.weights import checked
    from systolic.ops.quantized.arguments import is_quantized
    from systolic.spec import SpecError

    w_gate, w_up, w_down = (
        checked(value, name, x) for name, value in (("w_gate", w_gate), ("w_up", w_up), ("w_down", w_down))
    )
    if quantize_lhs is not None and not all(value is None or is_quantized(value) for value in (w_gate, w_up, w_down)):
        raise SpecError(
            f"quantize_lhs={quantize_lhs!r} without quantized experts; quantize all of them, or leave it out"
        )
    call = canonical(
        x,
        routing,
        w_gate,
        w_up,
        w_down,
        top_k=top_k,
        renormalize=renormalize,
        capacity=capacity,
        axis=axis_name,
    )
    experts = Experts(w_gate, w_up, w_down, bias_gate, bias_up, bias_down)
    options = {"precision": precision, "implementation": implementation, "chip": chip}
    expert_options = {**options, "quantize_lhs": quantize_lhs}
    with jax.named_scope("moe"):
        if axis_name is None:
            out = experts_sum(call, experts, activation, expert_options)
        else:
            out = over_devices(call, experts, axis_name, activation, expert_options)
        if shared is not None:
            matrices: tuple[Any, ...] = shared
            gate, up, down = (value if is_quantized(value) else jax.numpy.asarray(value) for value in matrices)
            hidden = gated_matmul(call.x, gate, up, activation=activation, **options)
            out = matmul(hidden, down, residual=out, **options)
        return out.reshape(x.shape)


def ragged_all_to_all(
    operand: Shaped[Array | np.ndarray, "rows ..."],
    output: Shaped[Array | np.ndarray, "out_rows ..."],
    input_offsets: Int[Array | np.ndarray, " slices"],
    send_sizes: Int[Array | np.ndarray, " slices"],
    output_offsets: Int[Array | np.ndarray, " slices"],
    recv_sizes: Int[Array | np.ndarray, " slices"],
    *,
    axis_name: str,
    recv_offsets: Int[Array | np.ndarray, " slices"] | None = None,
    collective_id: int | None = None,
    implementation: Implementation = None,
    chip: str | Chip | None = None,
) -> Shaped[Array, "out_rows ..."]:
    """Send slices of rows from each device of a mesh axis to each, as `jax.lax.ragged_all_to_all` does.

    With s slices for each device, slice i goes to device `i // s`: rows `input_offsets[i]` and following of this
    device's operand become rows `output_offsets[i]` and following of the receiver's result. All other rows of the
    result are those of its output.

    A Pallas kernel sends rows from and to the layouts that XLA's products have, where XLA copies operand and result to
    other layouts and back. It runs on a TPU if values have 16 or 32 bits and a row is a multiple of 128 of them. XLA
    runs otherwise; on a CPU by an all-gather, because it has no ragged all-to-all there. Numbers of rows that are no
    multiple of 8 cost a copy of the operand or of the output.

    Call it in `jax.shard_map`. It is differentiable in both modes with regard to operand and output, to any order, if
    slices of the operand do not overlap: the cotangent of operand is a ragged all-to-all in which rows travel back.
    Under `vmap` one call follows another.

    Args:
      operand: [rows, ...], the rows that are sent.
      output: [out_rows, ...], of the same dtype. The kernel writes into it, so XLA copies it if it is used again.
      input_offsets, send_sizes: of the slices that this device sends, in its operand.
      output_offsets: where they begin at their receivers. Slices that a device gets must not overlap.
      recv_sizes: of the slices that this device gets, in the order of senders. They have to be the senders'
        `send_sizes`, and all slices have to be within their arrays. As in JAX nothing checks that when the program
        runs: otherwise the result is undefined, and devices may wait forever.
      axis_name: the mesh axis over which rows are sent.
      recv_offsets: where the slices that this device gets begin in its output, in the order of senders. None: the
        devices tell each other, by a small all-to-all of `output_offsets`.
      collective_id: the number of the kernel's barrier, as in `systolic.all_gather_matmul`.
      implementation, chip: as in `systolic.all_gather_matmul`.

    Raises:
      SpecError: axis_name is not an axis of the surrounding `jax.shard_map`, rows of operand and output differ in shape
        or dtype, or offsets and sizes are not whole numbers, equally many, and a multiple of the number of devices.
      IllegalTilesError: implementation="pallas" or "interpret", and the kernel cannot send these rows.
    """
    import jax

    from systolic.ops.engine.backend import backend_of
    from systolic.ops.moe.exchange import computed

    with jax.named_scope("systolic"):
        return computed(
            backend_of(implementation, chip, None),
            operand,
            output,
            input_offsets,
            send_sizes,
            output_offsets,
            recv_sizes,
            recv_offsets,
            axis_name=axis_name,
            collective_id=collective_id,
        )
