"""Operands of called operations: their places in a core's memories, and their known contents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from systolic.chips import MachineModel
from systolic.simulator.device_setup import OperandWords
from systolic.simulator.errors import SimulationError
from systolic.simulator.executed_alone import OwnMemory
from systolic.simulator.hardware.iteration_budget import IterationBudget
from systolic.simulator.hardware.lanes import Lanes
from systolic.simulator.hardware.memory import ROW_WORDS, WORD_BYTES, Contents, Memory, Words
from systolic.simulator.hardware.values import COMPUTED, Unknown
from systolic.simulator.hardware.words import joined, lane
from systolic.simulator.reading.calls import CallOperand
from systolic.simulator.translating.names import ALLOCATION_SPAN


class Operands:
    """Operands of a core's calls.

    Args:
      operand_words: contents that the program's own copies do not bring.
      handed_over: called with an operation, an operand's index and the number of the call, if there are such contents.
    """

    def __init__(
        self,
        machine: MachineModel,
        memory: Memory,
        operand_words: OperandWords,
        handed_over: Callable[[str, int, int], None],
    ) -> None:
        self._machine = machine
        self._memory = memory
        self._operand_words = operand_words
        self._handed_over = handed_over

    def first_word(self, space: str, pointer: int) -> int:
        """Return the word that a pointer points to: pointers count words in some memories and rows in others."""
        if space == "hbm":
            return pointer * self._machine.hbm_pointer_bytes // WORD_BYTES
        return pointer if space == "smem" else pointer * ROW_WORDS

    def words(self, operand: CallOperand) -> int:
        """Return the words from an operand's address on that are its own.

        Addresses are made up: what lies behind an allocation's span belongs to others, even if the operand is larger.
        """
        return min(operand.padded_words, self.first_word(operand.space or "", ALLOCATION_SPAN))

    def known_pointers(
        self, operands: Iterable[CallOperand], registers: Mapping[str, Any], tables: Mapping[int, Words]
    ) -> list[tuple[CallOperand, int]]:
        """Return the operands, with their places, that an operation may know while it is executed alone.

        They lie on the chip, or are tables of the slice's devices.
        """
        places = [(operand, registers.get(operand.register)) for operand in operands]
        return [
            (operand, at)
            for operand, at in places
            if isinstance(at, int) and (operand.space in ("vmem", "cmem") or (operand.space == "hbm" and at in tables))
        ]

    def own_memory(
        self,
        pointers: Iterable[tuple[CallOperand, int]],
        identity: Mapping[int, Any],
        tables: Mapping[int, Words],
        iterations: IterationBudget,
    ) -> OwnMemory:
        """Return memory for an operation that is executed alone.

        Known are only words that identify the device, the tables, and where inputs lie on the chip.
        """
        memory = OwnMemory(iterations, identity)
        for operand, at in pointers:
            if operand.is_input and operand.space != "hbm":
                memory.hold_input(operand.space or "", self.first_word(operand.space or "", at), self.words(operand))
        for pointer, table in tables.items():
            memory.define("hbm", self.first_word("hbm", pointer), len(table), lambda table=table: table)
        return memory

    def hold_element(self, operands: Sequence[CallOperand], registers: Mapping[str, Any]) -> None:
        """Let the word be known that an operation has taken out of a list, with vectors, which are not followed.

        Devices find their part of an array by it: their numbers are indices, and the list is a constant.

        Args:
          operands: the list, the index and the result.
        """
        if len(operands) != 3 or len(operands[0].shape) != 1:
            return
        source, index, result = (registers.get(operand.register, COMPUTED) for operand in operands)
        (of, _, to), last = operands, operands[0].shape[0] - 1
        if not (isinstance(source, int) and isinstance(result, int) and isinstance(index, int | Lanes)):
            return
        begin = self.first_word(of.space or "", source)

        def taken(index: int) -> Any:
            return self._memory.word(of.space or "", begin + min(max(index, 0), last))

        if isinstance(index, Lanes):
            word = joined([lane(taken(value), device) for device, value in enumerate(index.values)])
        else:
            word = taken(index)
        self._memory.define(to.space or "", self.first_word(to.space or "", result), 1, lambda: (word,))

    def hand_over(self, name: str, call: int, operand: CallOperand, registers: dict[str, int | Unknown]) -> None:
        """Store an operand's known contents where the operation reads them."""
        contents = self._operand_words(name, call, operand.index)
        if contents is None:
            return
        self._handed_over(name, operand.index, call)
        at = registers.get(operand.register, COMPUTED)
        if operand.space is None:
            words = contents()
            registers[operand.register] = words if isinstance(words, Unknown) else words[0]
        elif not isinstance(at, Unknown):
            address = self.first_word(operand.space, at)
            self._check_first_word(name, operand, address, contents)
            self._memory.define(operand.space, address, operand.padded_words, contents, brought=False)

    def _check_first_word(self, name: str, operand: CallOperand, address: int, contents: Contents) -> None:
        """Check that the words that the program's own copies brought are the caller's contents."""
        # What an earlier call found there may still be: another core can have brought what is there now.
        brought = self._memory.brought_word(operand.space or "", address)
        if isinstance(brought, Unknown):
            return
        content, mask = contents(), operand.first_word_mask
        if isinstance(content, Unknown) or not content or isinstance(content[0], Unknown):
            return
        if content[0] & mask != brought & mask:
            raise SimulationError(
                f"operand {operand.index} of {name} begins with {content[0]} by the function's own account, with "
                f"{brought} by the program's copies: a call was taken for another"
            )
