"""The rules on VMEM and SMEM."""

from __future__ import annotations

import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from kernels import called, copy_call, product_call

from systolic.analysis import vmem_estimate
from systolic.checking.rules.memory import memory_findings
from systolic.chips import CHIPS, chip

KIB, MIB = 2**10, 2**20
V5E = chip("v5e")


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


def test_what_the_compiler_may_add_is_left_to_it() -> None:
    call = product_call(1024, 1024, 1024, 4)  # its windows are 16 MiB, all there is; the compiler says 18.37
    assert vmem_estimate(call, V5E).total_bytes == vmem_estimate(call, V5E).limit_bytes
    assert memory_findings(call, V5E) == []


def test_a_grid_without_steps_needs_nothing() -> None:
    assert memory_findings(copy_call((2**15, 2**12), (2**12, 2**12), grid=(0, 1)), V5E) == []
