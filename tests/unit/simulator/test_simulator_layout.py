"""Layouts of arrays in memory, against addresses computed element by element; facts from the HLO's text."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from systolic.simulator import HloShape, Unknown, parse_hlo, words_of


def bytes_by_hand(array: np.ndarray, minor_to_major: list[int], tiles: list[list[int]]) -> dict[int, bytes]:
    """Each element's bytes by address. Tiles cut the last dimensions of what the tile before left."""
    sizes = [array.shape[dimension] for dimension in reversed(minor_to_major)]
    found = {}
    for index in itertools.product(*map(range, array.shape)):
        place = [index[dimension] for dimension in reversed(minor_to_major)]
        lengths = list(sizes)
        for tile in tiles:
            while len(place) < len(tile):
                place, lengths = [0, *place], [1, *lengths]
            kept = len(place) - len(tile)
            outer = [at // step for at, step in zip(place[kept:], tile, strict=True)]
            inner = [at % step for at, step in zip(place[kept:], tile, strict=True)]
            counts = [-(-length // step) for length, step in zip(lengths[kept:], tile, strict=True)]
            place, lengths = [*place[:kept], *outer, *inner], [*lengths[:kept], *counts, *tile]
        address = 0
        for at, length in zip(place, lengths, strict=True):
            address = address * length + at
        found[address * array.dtype.itemsize] = array[index].tobytes()
    return found


@pytest.mark.parametrize(
    ("shape", "dtype", "layout", "order", "tiles"),
    [
        ((), np.int32, ":T(128)", [], [[128]]),
        ((8,), np.int32, "0:T(128)", [0], [[128]]),
        ((300,), np.float32, "0:T(256)S(1)", [0], [[256]]),
        ((5, 7), np.int32, "1,0", [1, 0], []),
        ((10, 200), np.int32, "1,0:T(8,128)", [1, 0], [[8, 128]]),
        ((39, 1), np.int32, "0,1:T(1,128)S(1)", [0, 1], [[1, 128]]),
        ((2, 9, 130), np.float32, "2,1,0:T(8,128)", [2, 1, 0], [[8, 128]]),
        ((10, 130), ml_dtypes.bfloat16, "1,0:T(8,128)(2,1)", [1, 0], [[8, 128], [2, 1]]),
        ((1, 8, 8), np.int8, "2,1,0:T(8,128)(4,1)", [2, 1, 0], [[8, 128], [4, 1]]),
        ((600,), np.bool_, "0:T(512)(128)(4,1)", [0], [[512], [128], [4, 1]]),
    ],
)
def test_words_against_addresses_by_hand(shape, dtype, layout, order, tiles) -> None:
    rng = np.random.default_rng(0)
    array = rng.integers(-100, 100, shape).astype(dtype)
    words = words_of(array, HloShape(dtype="", sizes=shape, layout=layout))
    assert not isinstance(words, Unknown)
    raw = np.array(words, np.uint32).tobytes()
    for address, expected in bytes_by_hand(array, order, tiles).items():
        assert raw[address : address + len(expected)] == expected


@pytest.mark.parametrize(
    ("array", "layout"),
    [(np.zeros(3, np.int32), "0:X(4)"), (np.zeros(3, np.int32), "1,0"), (np.zeros(3, np.float64), "0")],
)
def test_a_layout_that_is_not_understood_is_unknown(array, layout) -> None:
    assert isinstance(words_of(array, HloShape(dtype="", sizes=(3,), layout=layout)), Unknown)


MODULE = """HloModule jit_f, is_scheduled=true

%fused (p: s32[4]) -> s32[4] {
  %p = s32[4]{0:T(128)} parameter(0)
  ROOT %add.1 = s32[4]{0:T(128)} add(%p, %p), metadata={op_name="jit(f)/inner" stack_frame_id=4}
}

ENTRY %main.1 (idx.1: s32[4], x.1: bf16[16,256]) -> (bf16[16,256], s32[4]) {
  %x.1 = bf16[16,256]{1,0:T(8,128)(2,1)} parameter(1), metadata={op_name="x"}
  %idx.1 = s32[4]{0:T(128)} parameter(0), sharding={replicated}
  %fusion = s32[4]{0:T(128)S(1)} fusion(%idx.1), kind=kLoop, calls=%fused, metadata={op_name="jit(f)/add"}
  %mine.2 = bf16[16,256]{1,0:T(8,128)(2,1)} custom-call(%fusion, %x.1), custom_call_target="tpu_custom_call", a={}
  %other = u32[8]{0} custom-call(), custom_call_target="AllocateBuffer"
  ROOT %tuple.5 = (bf16[16,256]{1,0:T(8,128)(2,1)}, s32[4]{0:T(128)}) tuple(%mine.2, %fusion)
}
"""


def test_hlo() -> None:
    found = parse_hlo(MODULE)
    assert {number: parameter.name for number, parameter in found.parameters.items()} == {0: "idx.1", 1: "x"}
    assert found.parameters[1].shape == HloShape(dtype="bf16", sizes=(16, 256), layout="1,0:T(8,128)(2,1)")
    assert found.kernels == {"mine.2"}
    assert found.operand_shape("mine.2", 0) == HloShape(dtype="s32", sizes=(4,), layout="0:T(128)S(1)")
    assert found.operand_shape("mine.2", 5) is None
    assert found.scopes["fusion"] == "jit(f)/add"
    assert "tuple.5" not in found.shapes
    assert found.operands["tuple.5"] == ("mine.2", "fusion")


def test_an_instruction_that_takes_several_lines_keeps_its_scope() -> None:
    kernel = """ENTRY %main.1 (x.1: s32[4], y.1: s32[4]) -> s32[4] {
  %x.1 = s32[4]{0} parameter(0)
  %mine.2 = s32[4]{0} custom-call(%x.1), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{}"
}}, metadata={op_name="jit(f)/attention/pallas_call"}
  %y.1 = s32[4]{0} parameter(1), metadata={op_name="y"}
}
"""
    found = parse_hlo(kernel)
    assert found.scopes["mine.2"] == "jit(f)/attention/pallas_call"
    assert [found.parameters[number].name for number in (0, 1)] == ["x.1", "y"]
