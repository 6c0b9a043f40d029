"""Lists of blocks in SMEM: the longest possible list, and the cutting of a longer one into several kernel calls."""

from __future__ import annotations

import dataclasses

from systolic.chips import Chip
from systolic.ops.sparse.spec import SparseSpec
from systolic.schedule.sizes import padded

INDEX_BYTES = 4
_ALIGNED_WORDS = 1024  # of an array in SMEM
_MULTIPLE = 8  # of blocks of a call, so that one copy can bring several of them


def index_words(spec: SparseSpec) -> int:
    """Return the words of SMEM for the lists: each block's place and each line's beginning; twice if sorted again."""
    return _arrays(spec) * padded(spec.most_blocks, _ALIGNED_WORDS) + _line_words(spec)


def one_call(spec: SparseSpec, chip: Chip) -> SparseSpec:
    """Return the spec of one call of a kernel: the same record if SMEM holds the whole list.

    Else it is a part of the list, and the parts have about equal lengths. Such a call makes plain sums or blocks of the
    result, and XLA computes the epilogue. If SMEM does not even hold the beginnings of lines, it is the whole product
    too.
    """
    words = chip.usable_smem_bytes_per_core // INDEX_BYTES - _line_words(spec)
    max_blocks = words // _arrays(spec) // _ALIGNED_WORDS * _ALIGNED_WORDS
    if spec.most_blocks <= max_blocks or max_blocks <= 0:
        return spec
    calls = -(-spec.most_blocks // max_blocks)
    sums = spec.dtype_out if spec.kind == "sdd" else spec.dtype_accumulator
    return dataclasses.replace(
        spec,
        blocks=-(-spec.blocks // calls),
        most_blocks=padded(-(-spec.most_blocks // calls), _MULTIPLE),
        dtype_out=sums,
        dense_out=False,
        diagonals=False,
        bias=False,
        activation="",
    )


def calls_of(spec: SparseSpec, call: SparseSpec) -> int:
    return -(-spec.most_blocks // call.most_blocks)


def _arrays(spec: SparseSpec) -> int:
    return 4 if spec.is_by_columns else 2


def _line_words(spec: SparseSpec) -> int:
    return (2 if spec.is_by_columns else 1) * padded(spec.lines + 2, _ALIGNED_WORDS)
