"""Every number of a chip has a source, and the numbers agree with each other."""

import dataclasses

import pytest

from systolic.chips import (
    CHIPS,
    Chip,
    CodeCosts,
    Links,
    MachineModel,
    SparseCoreModel,
    UnknownChipError,
    UnsupportedDtypeError,
    chip,
)

# The operand types of the compiler's listing, by which the machine model counts rows.
LISTED = {"float32": "f32", "bfloat16": "bf16", "int8": "s8", "float8_e4m3fn": "f8", "float8_e5m2": "f8"}


@pytest.mark.parametrize("known", CHIPS.values(), ids=CHIPS)
def test_every_field_has_a_source(known: Chip) -> None:
    fields = {field.name for field in dataclasses.fields(Chip)} - {"machine", "code_costs", "sources"}
    fields -= {"clock_states", "compiler_flags"}  # a state has its own; flags are a user's
    fields |= {f"machine.{field.name}" for field in dataclasses.fields(MachineModel)}
    fields |= {f"code_costs.{field.name}" for field in dataclasses.fields(CodeCosts)}
    if known.sparse_core is not None:
        fields -= {"sparse_core"}
        fields |= {f"sparse_core.{field.name}" for field in dataclasses.fields(SparseCoreModel)}
    if known.links is not None:
        fields -= {"links"}
        fields |= {f"links.{field.name}" for field in dataclasses.fields(Links)}
    assert set(known.sources) == fields
    assert all(source.strip() for source in known.sources.values())
    assert all(state.source.strip() for state in known.clock_states)


@pytest.mark.parametrize("known", CHIPS.values(), ids=CHIPS)
def test_published_peak_is_what_the_units_do(known: Chip) -> None:
    machine = known.machine
    for dtype, peak in known.peak_ops_per_s_per_chip.items():
        rows_per_cycle = machine.mxu_rows_per_cycle[LISTED[dtype]]
        per_core = machine.mxu_count * machine.mxu_rows * machine.mxu_columns * 2 * rows_per_cycle * known.peak_clock_hz
        assert per_core * known.cores_per_chip == pytest.approx(peak, rel=0.01), dtype


@pytest.mark.parametrize("known", CHIPS.values(), ids=CHIPS)
def test_numbers_are_sane(known: Chip) -> None:
    assert known.cores_per_chip % known.cores_per_device == 0
    assert known.devices_per_chip * known.cores_per_device == known.cores_per_chip
    assert known.scoped_vmem_bytes <= known.vmem_bytes_per_core < known.hbm_bytes_per_chip
    assert known.machine.hbm_bytes_per_s <= known.hbm_bytes_per_s  # no copy engine beats the memory
    assert not set(known.emulated_dtypes) & set(known.peak_ops_per_s_per_chip)
    assert set(known.emulated_dtypes.values()) <= set(known.peak_ops_per_s_per_chip)
    for field in dataclasses.fields(MachineModel):
        value = getattr(known.machine, field.name)
        for number in value.values() if isinstance(value, dict) else [value]:
            assert number >= 0


@pytest.mark.parametrize("known", CHIPS.values(), ids=CHIPS)
def test_peak_of_a_device(known: Chip) -> None:
    for dtype, peak in known.peak_ops_per_s_per_chip.items():
        assert known.peak_ops_per_s(dtype) * known.devices_per_chip == peak
    for dtype, native in known.emulated_dtypes.items():
        assert known.peak_ops_per_s(dtype) == known.peak_ops_per_s(native)
    assert known.hbm_bytes_per_s * known.devices_per_chip == known.hbm_bytes_per_s_per_chip


@pytest.mark.parametrize(("name", "dtype"), [("v4", "int8"), ("v5e", "float16"), ("v5e", "uint8"), ("v7x", "float64")])
def test_dtype_that_a_chip_does_not_multiply(name: str, dtype: str) -> None:
    with pytest.raises(
        UnsupportedDtypeError, match=f"{name} has no matrix multiplication of {dtype}; it takes float32"
    ):
        chip(name).peak_ops_per_s(dtype)


@pytest.mark.parametrize(("name", "found"), [("v5e", "v5e"), (" V5E ", "v5e"), ("tpu7x", "v7x"), ("Trillium", "v6e")])
def test_names(name: str, found: str) -> None:
    assert chip(name).name == found


def test_a_record_is_its_own_chip() -> None:
    mine = dataclasses.replace(chip("v5e"), name="mine")
    assert chip(mine) is mine


def test_unknown_chip() -> None:
    with pytest.raises(UnknownChipError, match="chip 'v9' is unknown; choose from v4, v5e, v5p, v6e, v7x"):
        chip("v9")


def test_devices_and_topologies_are_distinct() -> None:
    assert len({known.device_kind for known in CHIPS.values()}) == len(CHIPS)
    assert len({known.topology for known in CHIPS.values()}) == len(CHIPS)
    assert {name: known.devices_per_chip for name, known in CHIPS.items()} == {
        "v4": 1, "v5e": 1, "v5p": 1, "v6e": 1, "v7x": 2,
    }  # fmt: skip
