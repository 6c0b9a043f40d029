"""`systolic.ragged_all_to_all`. JAX is imported by its first call: `import systolic` is quick."""

from __future__ import annotations

from typing import TYPE_CHECKING

from systolic.chips import Chip

if TYPE_CHECKING:
    import numpy as np
    from jax import Array
    from jaxtyping import Int, Shaped

    from systolic.ops.engine.backend import Implementation


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
    result are the rows of its `output`.

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
    from systolic.ops.exchange.exchange import computed

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
