"""`systolic.moe`. JAX is imported by its first call: `import systolic` is quick."""

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
    from systolic.ops.moe.forms import MoeForm
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
    form: MoeForm | None = None,
    precision: Any = None,
    implementation: Implementation = None,
    chip: str | Chip | None = None,
) -> Shaped[Array, "*tokens d"]:
    """Return a mixture of experts: for each token the weighted sum of `(activation(x @ gate) · (x @ up)) @ down`.

    Choices are sorted by expert. Two kernels find their tokens in VMEM and add up results there; or rows are copied in
    the order of experts, multiplied by two kernels of `systolic.grouped_matmul`, and added up. Sums are in float32.

    It is differentiable in both modes with regard to x, the weights of experts and the router, and works under `jit`,
    `checkpoint`, `scan` and `shard_map`. `systolic.simulate` times it with the sizes of groups of a router that sends
    as many tokens to each expert, drawn at random, unless it knows the router's result.

    Args:
      x: [..., d], the tokens.
      routing: the router's logits, [..., experts]; or (expert_ids, weights), [..., k] each, from a router of your own.
        An id of -1 is not an expert; in a traced array so is any id out of range.
      w_gate, w_up, w_down: [experts, d, f], the same, and [experts, f, d]. Without w_up (None) the first product is not
        gated. A `systolic.Quantized` or a `qwix.QArray` is multiplied as it is stored, or dequantized before the
        product: `systolic.grouped_matmul` says which.
      top_k: experts of a token, those with the largest logits; the first of equal ones.
      renormalize: weights are a softmax of the chosen logits, and add up to one; False: of all.
      activation: of the gate, as in `systolic.grouped_matmul`.
      bias_gate, bias_up, bias_down: [experts, f], [experts, f] and [experts, d].
      shared: (w_gate, w_up, w_down) of an MLP that every token passes through, [d, n], [d, n] and [n, d].
      capacity: rows of an expert at most. Of more, the last in the order of tokens are dropped: that expert adds
        nothing to them. None: no token is dropped.
      quantize_lhs: the format to which rows of both products are quantized next to quantized experts, as in
        `systolic.grouped_matmul`; rows of `shared` are not.
      axis_name: mesh axis over which experts are cut, in `jax.shard_map`. x and routing are of this device's tokens,
        routing over the experts of all devices, matrices and biases of this device's experts; `shared` is whole.
      form: on one device "fused": tokens, and the sums of their experts' results, stay in VMEM; or "sorted": rows are
        copied in the order of experts, as always where the layer is differentiated. Over devices "all-gather": each
        device gets all tokens, by a ring of neighbors where one is known, and adds up what its experts return; or
        "all-to-all": each device sends rows to the devices of their experts, which send results back, by
        `systolic.ragged_all_to_all`. None: the faster by the arithmetic of `systolic.plan_moe`, which says why. All
        have room for all rows that may arrive at a device; `capacity` is a bound.
      precision, implementation, chip: as in `systolic.grouped_matmul`.

    Raises:
      SpecError: shapes or dtypes that do not match, known expert_ids out of range, a top_k that is not from 1 to the
        number of experts; a form that is unknown, or is of one device with axis_name or of several without it.
      IllegalTilesError: form="fused" where a kernel may run, and its kernels cannot; the message has each reason.
      UnsupportedDtypeError: the chip does not multiply this dtype.
      QuantizationError: quantized matrices were cast or cut so that they are not codes and scales.
    """
    import jax

    from systolic.ops.engine.backend import backend_of
    from systolic.ops.gated import gated_matmul
    from systolic.ops.matmul import matmul
    from systolic.ops.moe.arguments import canonical
    from systolic.ops.moe.forms import require_form
    from systolic.ops.moe.layer import Experts, on_one_device, over_devices
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
    if form is not None:
        require_form(form, over=axis_name)
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
        backend=backend_of(implementation, chip, None),
    )
    experts = Experts(w_gate, w_up, w_down, bias_gate, bias_up, bias_down)
    options = {"precision": precision, "implementation": implementation, "chip": chip}
    expert_options = {**options, "quantize_lhs": quantize_lhs}
    with jax.named_scope("moe"):
        if axis_name is None:
            out = on_one_device(call, experts, activation, expert_options, form)
        else:
            out = over_devices(call, experts, axis_name, activation, expert_options, form)
        if shared is not None:
            matrices: tuple[Any, ...] = shared
            gate, up, down = (value if is_quantized(value) else jax.numpy.asarray(value) for value in matrices)
            hidden = gated_matmul(call.x, gate, up, activation=activation, **options)
            out = matmul(hidden, down, residual=out, **options)
        return out.reshape(x.shape)
