"""The work of each line of a kernel."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec
from kernels import call_of, product, shape

from systolic.analysis import flops_outside_kernels, kernel_ops
from systolic.compiler import slice_mesh

BF16 = functools.partial(shape, jnp.bfloat16)
ARGS = (BF16(1024, 512), BF16(512, 768))


def test_lines_of_a_kernel_count_what_runs() -> None:
    call = call_of(product, *ARGS)
    ops = kernel_ops(call, (4, 3, 2))
    assert ops.flops == 2 * 1024 * 512 * 768
    by_text = {line.text: line for line in ops.lines}
    cleared = by_text["acc_vmem[...] = jnp.zeros_like(acc_vmem)"]
    added = next(line for text, line in by_text.items() if text.startswith("acc_vmem[...] +="))
    rounded = by_text["out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)"]
    assert (cleared.executions, added.executions, rounded.executions) == (12, 24, 12)
    assert added.matrix_flops == 2 * 256**3
    assert added.vector_elements == 256**2
    assert added.loaded_bytes == 256**2 * (4 + 2 + 2)
    assert added.stored_bytes == 256**2 * 4
    assert rounded.stored_bytes == 256**2 * 2


def test_lines_of_a_kernel_whose_grid_is_not_known() -> None:
    ops = kernel_ops(call_of(product, *ARGS), None)
    assert ops.flops is None
    assert all(line.executions is None for line in ops.lines)


@pytest.mark.parametrize("rounds", [1, 5])
def test_products_outside_of_kernels(rounds: int) -> None:
    def repeated(x: Any) -> Any:
        return jax.lax.fori_loop(0, rounds, lambda _, y: y @ y, x)

    assert flops_outside_kernels(jax.make_jaxpr(repeated)(shape(jnp.float32, 64, 64)).jaxpr) == rounds * 2 * 64**3


def test_branches_that_values_decide_are_not_counted() -> None:
    def kernel(x_vmem, out_vmem):
        @pl.when(x_vmem[0, 0] > 0)
        def _():
            out_vmem[...] = jnp.dot(x_vmem[...], x_vmem[...])

    def conditional(x: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=x, grid=(2,))(x)

    assert kernel_ops(call_of(conditional, shape(jnp.float32, 128, 128)), (2,)).flops is None


def test_products_in_loops_of_unknown_length_are_not_counted() -> None:
    def settled(x: Any) -> Any:
        return jax.lax.while_loop(lambda y: y[0, 0] < 1, lambda y: y @ y, x)

    assert flops_outside_kernels(jax.make_jaxpr(settled)(shape(jnp.float32, 64, 64)).jaxpr) is None


def test_products_between_buffers_with_a_scope_are_counted() -> None:
    def kernel(x_vmem, out_vmem):
        def scoped(acc_vmem):
            acc_vmem[...] = jnp.dot(x_vmem[...], x_vmem[...])
            out_vmem[...] = acc_vmem[...]

        pl.run_scoped(scoped, pltpu.VMEM((128, 128), jnp.float32))

    def launched(x: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=x)(x)

    assert kernel_ops(call_of(launched, shape(jnp.float32, 128, 128)), ()).flops == 2 * 128**3


def test_lines_of_a_vmapped_kernel_count_its_own_axes() -> None:
    batched = jax.vmap(functools.partial(product))
    call = call_of(batched, BF16(5, 1024, 512), BF16(5, 512, 768))
    assert (call.vmapped, call.own_axes) == ((0,), (1, 2, 3))
    ops = kernel_ops(call, (5, 4, 3, 2))
    assert ops.flops == 5 * 2 * 1024 * 512 * 768
    by_text = {line.text: line.executions for line in ops.lines}
    assert by_text["acc_vmem[...] = jnp.zeros_like(acc_vmem)"] == 5 * 4 * 3
    assert by_text["out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)"] == 5 * 4 * 3


def test_a_shard_map_counts_on_all_devices() -> None:
    mesh = slice_mesh("v6e", "2x4", data=2, model=4)
    rows, columns = PartitionSpec("data", None), PartitionSpec(None, "model")
    cut = jax.shard_map(
        jnp.matmul, mesh=mesh, in_specs=(rows, columns), out_specs=PartitionSpec("data", "model"), check_vma=False
    )
    x, w = jax.ShapeDtypeStruct((64, 32), jnp.float32), jax.ShapeDtypeStruct((32, 128), jnp.float32)
    flops = 2 * 64 * 32 * 128
    assert flops_outside_kernels(jax.make_jaxpr(jnp.matmul)(x, w).jaxpr) == flops
    assert flops_outside_kernels(jax.make_jaxpr(cut)(x, w).jaxpr) == flops
    # The other axis repeats the work on each of its devices.
    repeated = jax.shard_map(jnp.matmul, mesh=mesh, in_specs=(rows, PartitionSpec()), out_specs=rows, check_vma=False)
    assert flops_outside_kernels(jax.make_jaxpr(repeated)(x, w).jaxpr) == 4 * flops
