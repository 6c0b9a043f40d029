"""Chips that have a roofline and no target to compile for."""

from __future__ import annotations

import pytest

from systolic.chips import (
    ROOFLINE_CHIPS,
    RooflineChip,
    UnknownChipError,
    UnsupportedDtypeError,
    chip,
    known_roofline_chip,
)
from systolic.cost import roofline
from systolic.spec import MatmulSpec


@pytest.mark.parametrize("name", ["8i", "v8i", "TPU8t", "8t"])
def test_nothing_compiles_for_it_and_the_message_says_why(name: str) -> None:
    with pytest.raises(UnknownChipError, match=r"libtpu has no target for TPU 8[it]"):
        chip(name)
    announced = known_roofline_chip(name)
    assert announced is not None
    assert announced.name in name.lower()


@pytest.mark.parametrize("known", ROOFLINE_CHIPS.values(), ids=ROOFLINE_CHIPS)
def test_the_roofline_of_a_product(known: RooflineChip) -> None:
    line = roofline(MatmulSpec.of(4096, 4096, 4096, "bfloat16"), known)
    peak = known.peak_ops_per_s_per_chip["bfloat16"] / known.cores_per_chip
    assert line.mxu_us == pytest.approx(2 * 4096**3 / peak * 1e6)
    assert line.hbm_us == pytest.approx(3 * 2 * 4096**2 / (known.hbm_bytes_per_s_per_chip / known.cores_per_chip) * 1e6)


def test_a_rate_that_is_not_published() -> None:
    with pytest.raises(UnsupportedDtypeError, match="no peak of int8 is published for TPU 8i"):
        ROOFLINE_CHIPS["8i"].peak_ops_per_s("int8")


@pytest.mark.parametrize("known", ROOFLINE_CHIPS.values(), ids=ROOFLINE_CHIPS)
def test_the_numbers_are_those_of_this_jax(known: RooflineChip) -> None:
    from jax.experimental.pallas import tpu as pltpu

    version = next((version for version in pltpu.ChipVersion if str(version) == known.name), None)
    if version is None:
        pytest.skip(f"this JAX does not list TPU {known.name}")
    core = pltpu.get_tpu_info_for_chip(version, 1)
    assert core.hbm_capacity_bytes * known.cores_per_chip == known.hbm_bytes_per_chip
    assert core.mem_bw_bytes_per_second * known.cores_per_chip == known.hbm_bytes_per_s_per_chip
    assert core.bf16_ops_per_second * known.cores_per_chip == known.peak_ops_per_s_per_chip["bfloat16"]
    assert core.fp8_ops_per_second * known.cores_per_chip == known.peak_ops_per_s_per_chip["float8_e5m2"]
    assert core.vmem_capacity_bytes == known.vmem_bytes_per_core
