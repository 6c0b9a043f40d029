"""What a kernel keeps in VMEM and SMEM. The bytes are those that libtpu 0.0.42.1 gives for the same kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.analysis import KernelCall, kernel_calls, spilled_bytes, vmem_estimate
from systolic.checking.rules.memory import memory_findings
from systolic.chips import CHIPS, chip

KIB, MIB = 2**10, 2**20
V5E = chip("v5e")


def called(fn: Callable[..., Any], *shapes: tuple[tuple[int, ...], str]) -> KernelCall:
    (call,) = kernel_calls(
        jax.make_jaxpr(fn)(*(jax.ShapeDtypeStruct(shape, jnp.dtype(name)) for shape, name in shapes))
    )
    return call


def copy_call(
    shape: tuple[int, ...],
    block: tuple[int, ...],
    dtype: str = "float32",
    *,
    index_map: Callable[..., Any] = lambda i, j: (i, j),
    grid: tuple[int, ...] = (4, 3),
    scratch: Sequence[Any] = (),
    limit_bytes: int | None = None,
    **options: Any,
) -> KernelCall:
    def body(in_vmem, out_vmem, *scratch_refs):
        out_vmem[...] = in_vmem[...]

    def launch(array):
        return pl.pallas_call(
            body,
            out_shape=array,
            grid=grid,
            in_specs=[pl.BlockSpec(block, index_map, **options)],
            out_specs=pl.BlockSpec(block, lambda *at: (*at, 0, 0)[: len(block)]),
            scratch_shapes=scratch,
            compiler_params=pltpu.CompilerParams(vmem_limit_bytes=limit_bytes),
        )(array)

    return called(launch, (shape, dtype))


def part(call: KernelCall, name: str) -> tuple[int, int]:
    """Copies and bytes of one part."""
    (found,) = [each for each in vmem_estimate(call, V5E).buffers if each.name == name]
    return found.copies, found.size_bytes


@pytest.mark.parametrize(
    ("shape", "block", "dtype", "bytes_of_one"),
    [
        ((256, 512), (64, 128), "float32", 32 * KIB),
        ((256, 512), (64, 128), "bfloat16", 16 * KIB),
        ((256, 512), (64, 128), "int8", 8 * KIB),
        ((256, 512), (64, 128), "int4", 4 * KIB),
        ((256, 512), (64, 128), "bool", 32 * KIB),
        ((100, 512), (100, 128), "bfloat16", 26 * KIB),  # 104 rows
        ((256, 100), (64, 100), "float32", 32 * KIB),  # 128 lanes
        ((1, 512), (1, 128), "float32", KIB // 2),
        ((3, 512), (3, 128), "float32", 2 * KIB),  # four rows
        ((3, 512), (3, 128), "int8", KIB // 2),
        ((5, 512), (5, 128), "int8", KIB),  # eight rows
        ((24, 512), (8, 128), "int8", KIB),  # 24 rows are no tiles of 32
        ((2, 64, 512), (2, 8, 128), "float32", 8 * KIB),
    ],
)
def test_a_window_is_padded_to_whole_tiles(
    shape: tuple[int, ...], block: tuple[int, ...], dtype: str, bytes_of_one: int
) -> None:
    index_map = {2: lambda i, j: (i, j), 3: lambda i, j: (0, i, j)}[len(shape)]
    copies, size_bytes = part(copy_call(shape, block, dtype, index_map=index_map, grid=(4, 4)), "in_vmem")
    assert (copies, size_bytes) == (2, 2 * bytes_of_one)


def test_a_vector_is_padded_once() -> None:
    call = copy_call((1024,), (128,), index_map=lambda i: (i,), grid=(8,))
    assert part(call, "in_vmem") == (2, KIB)
    assert part(copy_call((1024,), (128,), index_map=lambda i: (0,), grid=(8,)), "in_vmem") == (1, KIB)


@pytest.mark.parametrize(
    ("index_map", "copies"),
    [
        (lambda i, j: (i, j), 2),
        (lambda i, j: (0, 0), 1),
        (lambda i, j: (1, 1), 1),
        (lambda i, j: (i * 0, 0), 1),
        (lambda i, j: (0, j - j), 1),
        (lambda i, j: (i // 100, 0), 2),  # always 0, but the compiler does not see it
        (lambda i, j: (jnp.minimum(i, 0), 0), 2),
    ],
)
def test_a_block_that_stands_still_has_one_copy(index_map: Callable[..., Any], copies: int) -> None:
    assert part(copy_call((256, 512), (64, 128), index_map=index_map), "in_vmem")[0] == copies


def test_axes_of_one_step_stand_still() -> None:
    assert part(copy_call((256, 512), (64, 128), grid=(1, 1)), "in_vmem")[0] == 1
    assert part(copy_call((256, 512), (64, 128), grid=(1, 3), index_map=lambda i, j: (i, 0)), "in_vmem")[0] == 1


def test_one_buffer_when_asked_for() -> None:
    assert part(copy_call((256, 512), (64, 128), pipeline_mode=pl.Buffered(1)), "in_vmem") == (1, 32 * KIB)
    assert part(copy_call((256, 512), (64, 128)), "out_vmem") == (2, 64 * KIB)


def test_scratch_is_counted_once_and_padded() -> None:
    call = copy_call((256, 512), (64, 128), scratch=[pltpu.VMEM((9, 100), jnp.float32), pltpu.SMEM((4,), jnp.int32)])
    scratch = [each for each in vmem_estimate(call, V5E).buffers if each.kind == "scratch"]
    assert [(each.copies, each.size_bytes) for each in scratch] == [(1, 8 * KIB)]


@pytest.mark.parametrize("name", CHIPS)
def test_the_limit_is_exact_and_no_more_than_the_chip_has(name: str) -> None:
    known = chip(name)
    default = known.scoped_vmem_bytes
    # Four windows of `rows` rows of 4 KiB.
    fits, over = default // (16 * KIB), default // (16 * KIB) + 8
    for rows, limit_bytes, refused in (
        (fits, None, False),
        (over, None, True),
        (fits, default - 1, True),
        (over, over * 16 * KIB, over * 16 * KIB > known.usable_vmem_bytes_per_core),
        (known.usable_vmem_bytes_per_core // (16 * KIB) + 8, 2**30, True),
    ):
        call = copy_call((2**15, 2**10), (rows, 2**10), index_map=lambda i: (i, 0), grid=(2,), limit_bytes=limit_bytes)
        assert [found.rule for found in memory_findings(call, known)] == ["vmem"] * refused


def test_the_finding_names_the_buffers_and_the_limit_to_set() -> None:
    call = copy_call((2**15, 2**10), (1280, 2**10), index_map=lambda i: (i, 0), grid=(2,))
    (found,) = memory_findings(call, V5E)
    assert found.value == "it needs 20.00 MiB of VMEM: in_vmem 10.00 (2 copies), out_vmem 10.00 (2 copies)"
    assert found.limit == "there are 16.00 MiB (the default of a v5e)"
    assert f"vmem_limit_bytes={20 * MIB}" in found.fix


@pytest.mark.parametrize(
    ("shape", "fits"), [((261_632,), True), ((262_144,), False), ((2000, 1), True), ((3000, 1), False)]
)
def test_scalars(shape: tuple[int, ...], fits: bool) -> None:
    def body(scalars_smem, in_vmem, out_vmem):
        out_vmem[...] = in_vmem[...]

    def launch(scalars, array):
        block = pl.BlockSpec((8, 128), lambda i, scalars_smem: (i, 0))
        spec = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(4,), in_specs=[block], out_specs=block)
        return pl.pallas_call(body, out_shape=array, grid_spec=spec)(scalars, array)

    found = memory_findings(called(launch, (shape, "int32"), ((32, 128), "float32")), V5E)
    assert [each.rule for each in found] == [] if fits else ["smem"]


def product_call(m: int, k: int, n: int, steps: int, *, scratch: bool = False, dtype: str = "bfloat16") -> KernelCall:
    """A product of one block of m × k × n, summed up over `steps` of them."""

    def body(lhs_vmem, rhs_vmem, out_vmem, *acc_vmem):
        total = acc_vmem[0] if scratch else out_vmem

        @pl.when(pl.program_id(1) == 0)
        def _():
            total[...] = jnp.zeros_like(total)

        total[...] += jnp.dot(lhs_vmem[...], rhs_vmem[...], preferred_element_type=jnp.float32)
        if scratch:

            @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
            def _():
                out_vmem[...] = total[...]

    def launch(lhs, rhs):
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((2 * m, n), jnp.float32),
            grid=(2, steps),
            in_specs=[pl.BlockSpec((m, k), lambda i, kk: (i, kk)), pl.BlockSpec((k, n), lambda i, kk: (kk, 0))],
            out_specs=pl.BlockSpec((m, n), lambda i, kk: (i, 0)),
            scratch_shapes=[pltpu.VMEM((m, n), jnp.float32)] if scratch else [],
        )(lhs, rhs)

    return called(launch, ((2 * m, steps * k), dtype), ((steps * k, n), dtype))


def test_a_sum_over_one_step_is_no_sum() -> None:
    several, one = (vmem_estimate(product_call(512, 128, 512, steps, scratch=True), V5E) for steps in (4, 1))
    assert [each.kind for each in several.buffers] == ["window"] * 3 + ["scratch"]
    assert [each.kind for each in one.buffers] == ["window"] * 3


def test_what_the_compiler_may_add_is_left_to_it() -> None:
    call = product_call(1024, 1024, 1024, 4)  # its windows are 16 MiB, all there is; the compiler says 18.37
    assert vmem_estimate(call, V5E).total_bytes == vmem_estimate(call, V5E).limit_bytes
    assert memory_findings(call, V5E) == []


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize(
    ("m", "k", "n", "registers"),
    [(64, 128, 256, 0), (256, 128, 512, 77), (512, 128, 1024, 461), (512, 256, 128, 13)],
)
def test_explain_supposes_that_51_registers_hold_sums(steps: int, m: int, k: int, n: int, registers: int) -> None:
    assert spilled_bytes(product_call(m, k, n, steps)) == registers * 4 * KIB


def test_explain_supposes_no_spills_without_a_dot() -> None:
    assert spilled_bytes(copy_call((2**10, 2**10), (256, 256))) == 0


def test_a_grid_without_steps_needs_nothing() -> None:
    assert memory_findings(copy_call((2**15, 2**12), (2**12, 2**12), grid=(0, 1)), V5E) == []
