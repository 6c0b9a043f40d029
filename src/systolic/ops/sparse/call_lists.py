"""Lists of blocks in SMEM: how long one may be, and how a longer one is cut into several calls of a kernel."""

from __future__ import annotations

import dataclasses

from systolic.chips import Chip
from systolic.ops.sparse.spec import SparseSpec
from systolic.schedule.sizes import padded

INDEX_BYTES = 4
_ALIGNED_WORDS = 1024  # of an array in SMEM
_MULTIPLE = 8  # of blocks of a call, so that one copy can bring several of them


def index_words(spec: SparseSpec) -> int:
    """Words of SMEM for the lists: where each block is, and where each line begins; sorted again, each twice."""
    return _arrays(spec) * padded(spec.most_blocks, _ALIGNED_WORDS) + _line_words(spec)


def one_call(spec: SparseSpec, chip: Chip) -> SparseSpec:
    """What one call of a kernel makes of a product: all of it, the same record, if SMEM holds its list.

    Else it is a part of the list, and the parts are about equally long. Such a call makes sums as they are added up,
    or blocks of the result, and what is done to these is left to XLA. Where SMEM does not even hold where lines begin,
    it is all of the product too.
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
    """How many calls the list of a product takes."""
    return -(-spec.most_blocks // call.most_blocks)


def _arrays(spec: SparseSpec) -> int:
    return 4 if spec.is_by_columns else 2


def _line_words(spec: SparseSpec) -> int:
    return (2 if spec.is_by_columns else 1) * padded(spec.lines + 2, _ALIGNED_WORDS)
