"""Cases of the reader and of a slice's addresses that only programs as large as a training step have."""

from __future__ import annotations

import pytest

import systolic
from systolic.chips import chip_names
from systolic.simulator.reading.calls import CallOperand
from systolic.simulator.slice.identity import assignment_at, constants_from


@pytest.mark.parametrize(
    ("dtype", "shape", "mask"),
    [
        ("s8", (1, 2, 2), 0xFFFF),  # two rows of four that share a word
        ("s8", (8, 128), 0xFFFFFFFF),
        ("s8", (1,), 0xFF),
        ("s8", (3,), 0xFF),  # in layout T(512)(128)(4,1), as the masks of tokamax' attention
        ("s8", (129,), 0xFFFF),
        ("bf16", (4, 128), 0xFFFFFFFF),
        ("bf16", (1, 128), 0xFFFF),
        ("s32", (5,), 0xFFFFFFFF),
        ("s32", (), 0xFFFFFFFF),
    ],
)
def test_padding_of_a_first_word_is_not_compared(dtype: str, shape: tuple[int, ...], mask: int) -> None:
    operand = CallOperand(
        register="s0", space="hbm", index=0, is_input=True, is_constant=True, dtype=dtype, shape=shape
    )
    assert operand.first_word_mask == mask


@pytest.mark.parametrize("name", chip_names())
def test_tables_of_a_slice_lie_behind_all_that_fits_hbm(name: str) -> None:
    chip = systolic.chip(name)
    pointer_bytes = chip.machine.hbm_pointer_bytes
    hbm_bytes = chip.hbm_bytes_per_chip // chip.devices_per_chip
    begin, table = constants_from(pointer_bytes), assignment_at(pointer_bytes)
    # Allocations begin low: what lies in one and fills HBM ends not far behind its size.
    assert begin * pointer_bytes > hbm_bytes + 2**30
    assert begin < table
    assert (table + 2**10) * pointer_bytes // 32 < 2**32  # an address that counts 32 bytes is a word
