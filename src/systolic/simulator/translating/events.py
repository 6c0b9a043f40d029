"""Translate instructions that take time of their own: copies, waits, signals, calls, barriers."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

from systolic.simulator.errors import SimulationError
from systolic.simulator.reading.calls import call_operands
from systolic.simulator.reading.copies import CopyReader
from systolic.simulator.reading.listing import Bundle, Instruction, Program, physical
from systolic.simulator.translating.control_flow import until
from systolic.simulator.translating.literals import number, quoted
from systolic.simulator.translating.mentions import Mentions
from systolic.simulator.translating.remote import RemoteCode

# The compiler's comment after a wait for a SparseCore.
_SPARSE_CORE_WAIT = "sparse-core-wait"
_CALLED = re.compile(r"%([\w.\-]+) = ")


class EventCode:
    """Translates the events of one program.

    Args:
      mentions: makes code of registers, names and predicates.
      copies: reads the program's copies.
      followed: `id`s of the copies whose contents matter.
      shared: other cores act on the same device; see `translate`.
      remote: the program's acts on other devices; None: there are none.
    """

    def __init__(
        self,
        program: Program,
        mentions: Mentions,
        copies: CopyReader,
        followed: Set[int],
        *,
        shared: bool,
        remote: RemoteCode | None,
    ) -> None:
        self._program = program
        self._mentions = mentions
        self._operand, self._own, self._dest = mentions.operand, mentions.own, mentions.dest
        self._copies = copies
        self._followed = followed
        self._shared = shared
        self._remote = remote
        starts_barna_cores = any(code.traits.kind == "start a BarnaCore" for code in program.instructions)
        operands = call_operands(program) if starts_barna_cores else ()
        self._barna_spaces = {operand.register: operand.space or "" for operand in operands}

    def guarded(self, instruction: Instruction, bundle: Bundle) -> list[str]:
        """Make code of an instruction with its predicate."""
        traits = instruction.traits
        is_own = traits.is_wait or (
            traits.kind == "copy" and not traits.is_remote and id(instruction) not in self._followed
        )
        is_sent = traits.kind == "copy" and traits.is_remote
        return self._mentions.guarded(instruction, self._code(instruction, bundle), is_own=is_own, is_sent=is_sent)

    def _code(self, instruction: Instruction, bundle: Bundle) -> list[str]:
        kind, operands = instruction.traits.kind, instruction.operands
        where = quoted(f"{self._program.name}, line {bundle.line}: {instruction.text}")
        turn = ["yield t"] if self._shared else []
        if kind in ("wait for copy", "wait"):
            flag, granules = (self._own(text) for text in operands[:2])
            cause = "copy" if kind == "wait for copy" else "semaphore"
            if _SPARSE_CORE_WAIT in instruction.comment:
                return ["yield t", *until(f"wait_for_sparse_core(t, {flag}, {granules})", where), "t = r"]
            attempt = f"wait(t, {flag}, {granules}, {quoted(cause)})"
            if self._remote is None:
                return [*turn, *until(attempt, where), "t = r"]
            return [*_before_turn(f"early_{attempt}", until(attempt, where)), "t = r"]
        if kind == "wait for value":
            flag, value = (self._own(text) for text in operands[:2])
            relation = quoted(instruction.opcode.split(".")[1])
            return [*turn, *until(f"wait_for_value(t, {flag}, {value}, {relation})", where), "t = r"]
        if kind == "set remote flag":
            return self._set_remote(instruction, turn)
        if kind == "start a BarnaCore":
            return [*turn, f"t = start_barna_core(t, {self._operand(operands[0])})"]
        if kind == "signal":
            signal = f"{self._operand(operands[0])}, {self._operand(operands[1])}"
            if self._remote is not None:
                return ["yield t", f"signal_any(t, {signal}, {quoted(self._remote.label(instruction))})"]
            return ["yield t", f"signal(t, {signal})"]
        if kind == "send":
            return [*turn, f"send(t, pushed({self._operand(operands[0])}))"]
        if kind == "receive":
            dest = self._dest(instruction)
            return [*turn, *until("receive(t)", where), f"t, {dest or '_'} = r"]
        if kind == "call":
            if "<late-" in instruction.comment:
                return []  # set-up and clean-up by the runtime, before and after the program
            called = _CALLED.search(instruction.comment)
            if called is None:
                raise SimulationError(f"a call of nothing: {instruction.text} {instruction.comment}")
            passed = "".join(
                f"({quoted(physical(text))}, {self._operand(text)}), " for text in operands if text[0] == "%"
            )
            return [f"t = yield from call(t, {quoted(called.group(1))}, ({passed}))"]
        if kind == "copy":
            return self._copy(instruction, turn)
        raise SimulationError(f"not understood: {instruction.text}")

    def _set_remote(self, instruction: Instruction, turn: Sequence[str]) -> list[str]:
        flag, value = instruction.operands[:2]
        if not self._barna_spaces:
            if value != "0":  # as a SparseCore's flags are before the program
                raise SimulationError(f"not understood: {instruction.text}")
            return []
        space = quoted(self._barna_spaces.get(physical(value), "") if value[0] == "%" else "")
        return [*turn, f"set_remote(t, {self._operand(flag)}, {self._operand(value)}, {space})"]

    def _copy(self, instruction: Instruction, turn: Sequence[str]) -> list[str]:
        operands = instruction.operands
        ends = self._copies.ends(instruction)
        run_bytes = self._copies.run_bytes(instruction)
        between = f"{quoted(ends.source)}, {quoted(ends.destination)}"
        pieces = "None" if run_bytes is None else number(run_bytes)
        size, flag = self._operand(self._copies.size(instruction)), self._operand(operands[3])
        is_general = instruction.traits.is_remote  # says itself to which device it goes
        if is_general and (ends.source, ends.destination) == ("smem", "hbm"):
            source, source_flag = self._operand(operands[0]), self._operand(operands[4])
            return [*turn, "yield t", f"t = send_descriptor(t, {size}, {source}, {flag}, {source_flag})"]
        if is_general and self._remote is not None:
            return self._general(instruction, self._remote, f"{flag}, {size}, {between}, {pieces}", run_bytes == 0)
        source_flag = f", {self._operand(operands[4])}" if is_general and self._shared else ""
        code = [*turn, f"t = start(t, {self._own(operands[3])}, {size}, {between}, {pieces}{source_flag})"]
        # Copies to the host are lost; contents of copies from there are not known.
        if id(instruction) in self._followed and ends.destination != "host":
            source, destination = self._operand(operands[0]), self._operand(operands[0 if ends.source == "host" else 2])
            places = f"{quoted(ends.source)}, {source}, {quoted(ends.destination)}, {destination}"
            code.append(f"move({places}, {size}, {run_bytes == 0})")
        return code

    def _general(self, instruction: Instruction, remote: RemoteCode, copy: str, contiguous: bool) -> list[str]:
        """Make code of a copy that names its target device."""
        source, _, destination, _, source_flag, _, target = instruction.operands[:7]
        followed = id(instruction) in self._followed
        places = f"({self._operand(source)}, {self._operand(destination)}, {contiguous})" if followed else "None"
        label = quoted(remote.label(instruction))
        words = f"{copy}, {self._operand(source_flag)}, {self._operand(target)}, {places}, {label}"
        if followed:
            return ["yield t", f"t = general(t, True, {words})"]
        return [*_before_turn(f"general(t, False, {words})", [f"r = general(t, True, {words})"]), "t = r"]


def _before_turn(attempt: str, in_turn: Sequence[str]) -> list[str]:
    """Make code that acts before the program's turn if that makes no difference: turns take most of the time."""
    return [f"r = {attempt}", "if r is None:", "    yield t", *(f"    {line}" for line in in_turn)]
