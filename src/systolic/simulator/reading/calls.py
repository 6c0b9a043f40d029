"""Operands of a called program, by their registers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from systolic.simulator.reading.listing import Program, physical

_ANNOTATION = re.compile(r"shape: (\w+)\[([\d,]*)\].*?index: (\d+), kind: (\w+)")
_ELEMENT_BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2}
# An array in memory is padded to whole tiles: the last dimension to 128, the one before to 8 at most, or to 32 rows of
# one byte.
_LANES = 128
_WORD_BYTES = 4
_ROWS_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOperand:
    """An operand of a called program, as its first bundle declares it."""

    register: str
    space: str | None  # None: the value itself
    index: int
    is_input: bool
    is_constant: bool
    dtype: str  # HLO's name: s32, bf16
    shape: tuple[int, ...]
    padded_words: int = field(init=False, repr=False, compare=False)  # that it takes in memory at most

    def __post_init__(self) -> None:
        size = _ELEMENT_BYTES.get(self.dtype, 4)
        sizes = [1, 1, *self.shape]
        rows = _ROWS_BYTES // size if len(self.shape) > 1 else 1
        sizes[-1] = -(-sizes[-1] // _LANES) * _LANES
        sizes[-2] = -(-sizes[-2] // rows) * rows
        words = size
        for length in sizes:
            words *= length
        object.__setattr__(self, "padded_words", -(-words // _WORD_BYTES))

    @property
    def first_word_mask(self) -> int:
        """Bits of its first word that hold elements, of several rows where they are narrow; others are padding."""
        size = _ELEMENT_BYTES.get(self.dtype, _WORD_BYTES)
        # 128 elements of an array of one dimension are a row.
        sizes = self.shape[-2:] if len(self.shape) != 1 else (-(-self.shape[0] // _LANES),)
        elements = min(_WORD_BYTES // size, *sizes) if sizes else 1
        return (1 << 8 * size * elements) - 1


def call_operands(program: Program) -> tuple[CallOperand, ...]:
    result = []
    for instruction in program.instructions:
        if instruction.traits.kind != "operand" or instruction.dest is None:
            continue
        annotation = _ANNOTATION.search(instruction.text)
        if annotation is None:
            continue
        dtype, shape, index, kind = annotation.groups()
        space = instruction.opcode.partition(".")[2]
        result.append(
            CallOperand(
                register=physical(instruction.dest),
                space=space if re.fullmatch(r"\w+", space) else None,
                index=int(index),
                is_input=kind != "output",
                is_constant=kind == "const",
                dtype=dtype,
                shape=tuple(int(size) for size in shape.split(",") if size),
            )
        )
    return tuple(result)
