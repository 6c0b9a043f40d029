"""Statistics of logits and their gradients by Pallas kernels, with the tiles of their plans."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from systolic.kernels.interpreted import tracing_for
from systolic.ops.cross_entropy.kernel.forward import loss_statistics
from systolic.ops.cross_entropy.kernel.gradients import loss_gradients
from systolic.ops.cross_entropy.kernel.logits import IGNORED
from systolic.ops.cross_entropy.loss import Loss
from systolic.ops.cross_entropy.schedule import ROW_COLUMNS, LossSchedule
from systolic.ops.cross_entropy.spec import LossKind
from systolic.ops.engine.planned import with_plans
from systolic.ops.planner import Plans


@with_plans(static=2)
def statistics_by_pallas(
    plans: Plans, loss: Loss, keep_logits: bool, x: Array, w: Array, labels: Array
) -> tuple[Array, ...]:
    """Return log-sum-exp, the label's logit and the sum of logits of each row, as `xla.statistics_by_xla` does."""
    schedule, vmem_limit_bytes = _planned(plans, loss, x, w, "forward", keep_logits)
    labels = _longer(jnp.where(labels < 0, IGNORED, labels), schedule.rows, IGNORED)
    assert loss.backend.chip is not None  # else it is computed by XLA
    with tracing_for(loss.backend.chip):
        statistics, logits = loss_statistics(
            _operand(loss.backend.on_tpu(x), schedule.rows, schedule.depth),
            _operand(w, schedule.stored_depth, w.shape[1]),
            labels[:, None],
            schedule=schedule,
            soft_cap=loss.soft_cap,
            vmem_limit_bytes=vmem_limit_bytes,
            interpret=loss.backend.interpret,
        )
    lse, picked, total = (statistics[: x.shape[0], column] for column in range(3))
    return (lse, picked, total) if logits is None else (lse, picked, total, logits)


@with_plans(static=1)
def gradients_by_pallas(
    plans: Plans,
    loss: Loss,
    x: Array,
    w: Array,
    labels: Array,
    lse: Array,
    cotangents: tuple[Array, Array, Array],
    *logits: Array,
) -> tuple[Array, Array]:
    """Return the gradients of x and w, as `xla.gradients_by_xla` does."""
    schedule, vmem_limit_bytes = _planned(plans, loss, x, w, "gradients", bool(logits))
    columns = [jnp.where(labels < 0, IGNORED, labels).astype(jnp.float32), lse, *cotangents]
    rows = jnp.pad(jnp.stack(columns, axis=1), ((0, 0), (0, ROW_COLUMNS - len(columns))))
    assert loss.backend.chip is not None
    with tracing_for(loss.backend.chip):
        dx, dw = loss_gradients(
            _operand(loss.backend.on_tpu(x), schedule.rows, schedule.depth),
            _operand(w, schedule.stored_depth, w.shape[1]),
            _longer(rows, schedule.rows, 0),
            logits[0] if logits else None,
            schedule=schedule,
            soft_cap=loss.soft_cap,
            vmem_limit_bytes=vmem_limit_bytes,
            interpret=loss.backend.interpret,
        )
    (m, k), n = x.shape, w.shape[1]
    total = dw[0] if schedule.cores == 1 else dw.sum(0)
    return dx[:m, :k].astype(x.dtype), total[:k, :n].astype(w.dtype)


def _planned(
    plans: Plans, loss: Loss, x: Array, w: Array, kind: LossKind, keep_logits: bool
) -> tuple[LossSchedule, int]:
    chip = loss.backend.chip
    assert chip is not None
    (m, k), n = x.shape, w.shape[1]
    spec = loss.spec(m, k, n, x.dtype.name, kind, keep_logits=keep_logits)
    plan = plans(spec, chip, loss.backend.tiles)
    return LossSchedule.of(spec, plan.config, chip), plan.vmem_limit_bytes


def _operand(array: Array, rows: int, columns: int) -> Array:
    padding = ((0, rows - array.shape[0]), (0, columns - array.shape[1]))
    return jnp.pad(array, padding) if any(after for _, after in padding) else array


def _longer(array: Array, rows: int, value: Any) -> Array:
    padding = [(0, rows - array.shape[0]), *((0, 0) for _ in array.shape[1:])]
    return jnp.pad(array, padding, constant_values=value)
