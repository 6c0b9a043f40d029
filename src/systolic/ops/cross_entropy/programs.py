"""The programs that `tune` and `bench` compile: the loss, or the loss with its gradients."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from systolic.chips import Chip
from systolic.ops.cross_entropy.api import linear_cross_entropy
from systolic.ops.cross_entropy.loss import Loss
from systolic.ops.cross_entropy.pallas import gradients_by_pallas, statistics_by_pallas
from systolic.ops.cross_entropy.spec import CrossEntropySpec
from systolic.ops.cross_entropy.xla import gradients_by_xla, statistics_by_xla
from systolic.ops.engine.backend import Backend
from systolic.ops.op_programs import Programs, RacedPrograms
from systolic.schedule import KernelConfig

_SOFT_CAP = 30.0  # of final logits of Gemma 2; its value changes no time
_SMOOTHING = 0.1
_CHUNKS = 8  # of XLA's loss in chunks: with them it moves a third fewer bytes than with all logits (v6e)


def programs_of(spec: CrossEntropySpec, chip: Chip) -> Programs:
    """Return the kernel alone, with its statistics and their cotangents as arguments if it makes gradients."""
    x, w, labels = _operands(spec)
    loss = _loss(spec, chip, None)
    if spec.kind == "forward":
        arguments, xla = (x, w, labels), functools.partial(statistics_by_xla, loss, spec.keep_logits)
    else:
        row = jax.ShapeDtypeStruct((spec.m,), jnp.float32)
        logits = (jax.ShapeDtypeStruct((spec.m, spec.n), x.dtype),) if spec.keep_logits else ()
        arguments, xla = (x, w, labels, row, (row, row, row), *logits), functools.partial(gradients_by_xla, loss)
    return Programs(computed=spec, arguments=arguments, pallas=functools.partial(_by_pallas, spec, chip), xla=xla)


def raced(spec: CrossEntropySpec, chip: Chip) -> RacedPrograms:
    """Return the call, plain JAX, and JAX in chunks; gradients come with the loss, as in a training step."""
    plain, chunked = functools.partial(_plain, spec), functools.partial(_chunked, spec)
    return RacedPrograms(
        spec=spec,
        arguments=_operands(spec),
        ours=differentiated(spec, functools.partial(_called, spec, chip)),
        xla=differentiated(spec, plain),
        xla_forms={f"{_CHUNKS} chunks": differentiated(spec, chunked)},
    )


def _operands(spec: CrossEntropySpec) -> tuple[Any, ...]:
    dtype = jnp.dtype(spec.dtype)
    return (
        jax.ShapeDtypeStruct((spec.m, spec.k), dtype),
        jax.ShapeDtypeStruct((spec.k, spec.n), dtype),
        jax.ShapeDtypeStruct((spec.m,), jnp.int32),
    )


def _loss(spec: CrossEntropySpec, chip: Chip, config: KernelConfig | None) -> Loss:
    return Loss(
        backend=Backend(implementation="pallas", chip=chip, tiles=config),
        precision=spec.precision,
        soft_cap=_SOFT_CAP if spec.soft_cap else None,
        total=spec.total,
    )


def _by_pallas(spec: CrossEntropySpec, chip: Chip, config: KernelConfig, *operands: Any) -> Any:
    loss = _loss(spec, chip, config)
    if spec.kind == "forward":
        return statistics_by_pallas(loss, spec.keep_logits, *operands)
    return gradients_by_pallas(loss, *operands)


def differentiated(spec: CrossEntropySpec, loss: Any) -> Any:
    """Return the program of a kind: the loss, or the loss and the gradients of x and w."""
    return jax.value_and_grad(loss, argnums=(0, 1)) if spec.kind == "gradients" else loss


def _called(spec: CrossEntropySpec, chip: Chip, x: Array, w: Array, labels: Array) -> Array:
    return linear_cross_entropy(
        x,
        w,
        labels,
        ignore_index=None,
        label_smoothing=_SMOOTHING if spec.total else 0.0,
        soft_cap=_SOFT_CAP if spec.soft_cap else None,
        logits="keep" if spec.keep_logits else "recompute",
        precision=spec.precision,
        implementation="pallas",
        chip=chip,
    )


def _plain(spec: CrossEntropySpec, x: Array, w: Array, labels: Array) -> Array:
    return _token_losses(spec, w, x, labels).mean()


def _chunked(spec: CrossEntropySpec, x: Array, w: Array, labels: Array) -> Array:
    chunk = jax.checkpoint(lambda operands: _token_losses(spec, w, *operands))
    chunks = math.gcd(_CHUNKS, spec.m)
    return lax.map(chunk, (x.reshape(chunks, -1, spec.k), labels.reshape(chunks, -1))).mean()


def _token_losses(spec: CrossEntropySpec, w: Array, x: Array, labels: Array) -> Array:
    # Rounded to the operands' dtype, as people write it: of float32 logits XLA moves twice the bytes.
    logits = jnp.matmul(x, w, precision=lax.Precision[spec.precision.upper()]).astype(jnp.float32)
    if spec.soft_cap:
        logits = _SOFT_CAP * jnp.tanh(logits / _SOFT_CAP)
    logs = jax.nn.log_softmax(logits, axis=-1)
    losses = -jnp.take_along_axis(logs, labels[:, None], axis=1)[:, 0]
    return (1 - _SMOOTHING) * losses - _SMOOTHING * logs.mean(1) if spec.total else losses
