"""The VMEM that a kernel needs. The bytes are those that libtpu 0.0.42.1 gives for the same kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from kernels import copy_call, product_call

from systolic.analysis import KernelCall, spilled_bytes, vmem_estimate
from systolic.chips import chip

KIB = 2**10
V5E = chip("v5e")


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
        ((24, 512), (8, 128), "int8", KIB),  # 24 rows are not tiles of 32
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


def test_scratch_of_four_bits_takes_a_byte_for_each_element() -> None:
    """libtpu 0.0.42.1 refuses it on v5e, v6e and v7x; blocks of windows are packed."""
    call = copy_call((256, 512), (64, 128), "int4", scratch=[pltpu.VMEM((64, 128), jnp.int4)])
    assert [one.size_bytes for one in vmem_estimate(call, V5E).buffers if one.kind == "scratch"] == [8 * KIB]
    assert part(call, "in_vmem") == (2, 8 * KIB)


def test_a_sum_over_one_step_is_no_sum() -> None:
    several, one = (vmem_estimate(product_call(512, 128, 512, steps, scratch=True), V5E) for steps in (4, 1))
    assert [each.kind for each in several.buffers] == ["window"] * 3 + ["scratch"]
    assert [each.kind for each in one.buffers] == ["window"] * 3


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize(
    ("m", "k", "n", "registers"),
    [(64, 128, 256, 0), (256, 128, 512, 77), (512, 128, 1024, 461), (512, 256, 128, 13)],
)
def test_explain_supposes_that_51_registers_hold_sums(steps: int, m: int, k: int, n: int, registers: int) -> None:
    assert spilled_bytes(product_call(m, k, n, steps)) == registers * 4 * KIB


def test_explain_supposes_no_spills_without_a_dot() -> None:
    assert spilled_bytes(copy_call((2**10, 2**10), (256, 256))) == 0
