"""The Python code of one bundle: all its reads come before all its writes."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

from systolic.simulator.errors import SimulationError
from systolic.simulator.reading.copies import CopyReader
from systolic.simulator.reading.listing import (
    Bundle,
    Instruction,
    Predicate,
    Program,
    is_call,
    is_scalar_pop,
    physical,
    registers,
)
from systolic.simulator.translating.control_flow import until
from systolic.simulator.translating.literals import number, quoted, variable
from systolic.simulator.translating.names import Names
from systolic.simulator.translating.remote import RemoteCode
from systolic.simulator.translating.scalar import IGNORED, address, choice, expression, operand, spill_slot

_EVENTS = ("vpush.ccrf", "vpop.ccrf", "vsyncadd.remote", "vsyncset.remote")
# What the compiler writes behind a wait for a SparseCore.
_SPARSE_CORE_WAIT = "sparse-core-wait"
_CALLED = re.compile(r"%([\w.\-]+) = ")
_NAMED = re.compile(r"%(\d+)", re.ASCII)

# What a division is asked for, by its comment: quotient, remainder, or both in this order.
_ASKED = {"kRem": "[1:]", "kDiv": "[:1]", "kDivAndRem": ""}

_Assign = tuple[str, str, Instruction]  # variable, value, the instruction that it is from


class BundleCode:
    """Translates bundles of one program.

    Args:
      names: addresses of what the program mentions by name.
      copies: reads its copies.
      alive: `id`s of the instructions that matter.
      followed: `id`s of the copies whose contents matter.
      shared: other cores act on the same device; see `translate`.
      remote: the program's acts on other devices; None: there are none.
    """

    def __init__(
        self,
        program: Program,
        names: Names,
        copies: CopyReader,
        alive: Set[int],
        followed: Set[int],
        *,
        shared: bool,
        remote: RemoteCode | None,
    ) -> None:
        self.program = program
        self.remote = remote
        self.copies = copies
        self.alive = alive
        self.followed = followed
        self.shared = shared
        self.names = names
        self.variables: set[str] = set()  # every one that the code mentions

    def events(self, bundle: Bundle) -> list[str]:
        """Makes code of what takes time by itself: copies, waits, calls, barriers."""
        code: list[str] = []
        for instruction in bundle.instructions:
            if id(instruction) in self.alive and self.is_event(instruction):
                code += self._guarded(instruction, self._event(instruction, bundle))
        return code

    def rest(self, bundle: Bundle) -> list[str]:
        """Makes code of everything else but the MXUs."""
        before: list[str] = []  # effects that read the registers as they were
        assigns: list[_Assign] = []
        stores: list[_Assign] = []  # behind the loads of the same bundle
        aliases: list[str] = []
        for instruction in bundle.instructions:
            if id(instruction) not in self.alive:
                _check_harmless(instruction)
            elif not self.is_event(instruction) and not is_matrix(instruction):
                self._scalar(instruction, before, assigns, stores, aliases)
        return before + self._assignments([*assigns, *stores]) + aliases

    # ---- events: what takes time by itself ----

    @staticmethod
    def is_event(instruction: Instruction) -> bool:
        """Says whether the instruction takes time by itself."""
        opcode = instruction.opcode
        return opcode.startswith(("dma.", "vwait")) or opcode in _EVENTS or is_call(instruction)

    def _event(self, instruction: Instruction, bundle: Bundle) -> list[str]:
        opcode, operands = instruction.opcode, instruction.operands
        where = quoted(f"{self.program.name}, line {bundle.line}: {instruction.text}")
        turn = ["yield t"] if self.shared else []
        if opcode in ("dma.done.wait", "vwait.ge", "vwait.ge.trace"):
            flag, granules = (self._operand(text) for text in operands[:2])
            cause = "copy" if opcode == "dma.done.wait" else "semaphore"
            if _SPARSE_CORE_WAIT in instruction.comment:
                return ["yield t", *until(f"wait_for_sparse_core(t, {flag}, {granules})", where), "t = r"]
            return [*turn, *until(f"wait(t, {flag}, {granules}, {quoted(cause)})", where), "t = r"]
        if opcode.startswith(("vwait.eq", "vwait.ne")):
            flag, value = (self._operand(text) for text in operands[:2])
            equal = opcode.startswith("vwait.eq")
            return [*turn, *until(f"wait_for_value(t, {flag}, {value}, {equal})", where), "t = r"]
        if opcode == "vsyncset.remote":
            if operands[1] != "0":  # as a SparseCore's flags are before the program
                raise SimulationError(f"not understood: {instruction.text}")
            return []
        if opcode == "vsyncadd.remote":
            signal = f"{self._operand(operands[0])}, {self._operand(operands[1])}"
            if self.remote is not None:
                return ["yield t", f"signal_any(t, {signal}, {quoted(self.remote.label(instruction))})"]
            return ["yield t", f"signal(t, {signal})"]
        if opcode == "vpush.ccrf":
            return [*turn, f"send(t, pushed({self._operand(operands[0])}))"]
        if opcode == "vpop.ccrf":
            dest = self._dest(instruction)
            return [*turn, *until("receive(t)", where), f"t, {dest or '_'} = r"]
        if is_call(instruction):
            if "<late-" in instruction.comment:
                return []  # set-up and clean-up by the runtime, before and after the program
            called = _CALLED.search(instruction.comment)
            if called is None:
                raise SimulationError(f"a call of nothing: {instruction.text} {instruction.comment}")
            passed = "".join(
                f"({quoted(physical(text))}, {self._operand(text)}), " for text in operands if text[0] == "%"
            )
            return [f"t = yield from call(t, {quoted(called.group(1))}, ({passed}))"]
        return [*turn, *self._copy(instruction)]

    def _copy(self, instruction: Instruction) -> list[str]:
        operands = instruction.operands
        ends = self.copies.ends(instruction)
        run_bytes = self.copies.run_bytes(instruction)
        between = f"{quoted(ends.source)}, {quoted(ends.destination)}"
        pieces = "None" if run_bytes is None else number(run_bytes)
        size, flag = self._operand(operands[1]), self._operand(operands[3])
        if instruction.opcode == "dma.general" and (ends.source, ends.destination) == ("smem", "hbm"):
            source, source_flag = self._operand(operands[0]), self._operand(operands[4])
            return ["yield t", f"t = send_descriptor(t, {size}, {source}, {flag}, {source_flag})"]
        if instruction.opcode == "dma.general" and self.remote is not None:
            return self._general(instruction, self.remote, f"{flag}, {size}, {between}, {pieces}", run_bytes == 0)
        source_flag = f", {self._operand(operands[4])}" if instruction.opcode == "dma.general" and self.shared else ""
        code = [f"t = start(t, {flag}, {size}, {between}, {pieces}{source_flag})"]
        if id(instruction) in self.followed:
            source, destination = self._operand(operands[0]), self._operand(operands[2])
            places = f"{quoted(ends.source)}, {source}, {quoted(ends.destination)}, {destination}"
            code.append(f"move({places}, {size}, {run_bytes == 0})")
        return code

    def _general(self, instruction: Instruction, remote: RemoteCode, copy: str, contiguous: bool) -> list[str]:
        """Makes code of a copy that says itself to which device it goes."""
        source, _, destination, _, source_flag, _, target = instruction.operands[:7]
        followed = id(instruction) in self.followed
        places = f"({self._operand(source)}, {self._operand(destination)}, {contiguous})" if followed else "None"
        label = quoted(remote.label(instruction))
        return [f"t = general(t, {copy}, {self._operand(source_flag)}, {self._operand(target)}, {places}, {label})"]

    def _guarded(self, instruction: Instruction, code: list[str]) -> list[str]:
        predicate = instruction.predicate
        if predicate is None or not code:
            return code
        if predicate.register is None:
            return [] if predicate.never else code
        return [f"if {self.condition(predicate)}:", *(f"    {line}" for line in code)]

    # ---- instructions that only compute ----

    def _scalar(
        self,
        instruction: Instruction,
        before: list[str],
        assigns: list[_Assign],
        stores: list[_Assign],
        aliases: list[str],
    ) -> None:
        opcode, operands = instruction.opcode, instruction.operands
        base = opcode.split(".")[0]
        dest = self._dest(instruction)
        if opcode == "sbr.rel":
            if instruction.predicate is not None:
                before.append(f"jump = {self.condition(instruction.predicate)}")
        elif opcode == "vsyncadd":
            before += self._guarded(instruction, [f"add({self._operand(operands[0])}, {self._operand(operands[1])})"])
        elif opcode in ("vsyncpa", "vsyncset"):
            before += self._guarded(instruction, [f"put({self._operand(operands[0])}, {self._operand(operands[1])})"])
        elif base == "sst":
            place, value = operands[0], self._operand(operands[1])
            slot = spill_slot(place)
            if slot is not None:
                self.variables.add(slot)
                assigns.append((slot, value, instruction))
            else:
                self._use(place)
                self.variables.add("_")
                stores.append(("_", f"store({address(place, self.names)}, {value})", instruction))
        elif base == "sld":
            if dest is None:
                raise SimulationError(f"a load into no register: {instruction.text}")
            slot = spill_slot(operands[0])
            if slot is not None:
                self.variables.add(slot)
            self._use(operands[0])
            value = slot or f"load({address(operands[0], self.names)}, {quoted(instruction.comment)})"
            assigns.append((dest, value, instruction))
        elif opcode == "vpush":
            assigns.append((dest or "_", f"pushed({self._operand(operands[0])})", instruction))
        elif opcode == "vmov":
            value = number(int(operands[0])) if re.fullmatch(r"\d+", operands[0], re.ASCII) else "vector"
            assigns.append((dest or "_", value, instruction))
        elif opcode == "vld":
            self._use(operands[0])
            place = address(operands[0].replace("[vmem:", "[smem:").split("] sm:")[0] + "]", self.names)
            assigns.append((dest or "_", f"word({place})", instruction))
        elif opcode == "vsyncmov":
            assigns.append((dest or "_", f"count(t, {self._operand(operands[0])})", instruction))
        elif opcode in ("sdivrem.u32", "sdivrem.s32", "spop", "spop.drf", "vpop.sfrf"):
            self._queued(instruction, assigns)
        else:
            value = expression(instruction, self.names)
            if value is None or dest is None:
                if opcode in IGNORED:
                    return
                raise SimulationError(f"not understood: {instruction.text}")
            for text in operands:
                self._use(text)
            if base == "int_to_ptr":
                if value != dest:
                    aliases += self._guarded(instruction, [f"{dest} = {value}"])
            else:
                assigns.append((dest, value, instruction))

    def _queued(self, instruction: Instruction, assigns: list[_Assign]) -> None:
        """Translates divisions and what the vector side pushes: a later instruction fetches their results."""
        dest = self._dest(instruction)
        if dest is None:
            raise SimulationError(f"a result in no register: {instruction.text}")
        if instruction.opcode.startswith("sdivrem"):
            if dest[0] != "d":
                raise SimulationError(f"a division into a register: {instruction.text}")
            a, b = (self._operand(text) for text in instruction.operands)
            both = f"[{a} // {b}, {a} % {b}]" if instruction.opcode.endswith("u32") else f"[*signed_division({a}, {b})]"
            which = _ASKED.get(instruction.comment.strip())
            if which is None:
                raise SimulationError(f"a division of which it is not said what is asked: {instruction.text}")
            assigns.append((dest, both + which, instruction))
            return
        if instruction.opcode == "spop.drf":
            left = _NAMED.fullmatch(instruction.operands[0])
            if left is None:
                raise SimulationError(f"a result of no division: {instruction.text}")
            assigns.append((dest, f"{self._variable('d' + left.group(1))}.pop(0)", instruction))
        else:
            assigns.append((dest, self._operand(instruction.operands[0]), instruction))

    def _assignments(self, assigns: Sequence[_Assign]) -> list[str]:
        """Assigns everything at once where it shows that all reads of a bundle come before its writes."""
        pairs = []
        for dest, value, instruction in assigns:
            predicate = instruction.predicate
            if predicate is not None and predicate.register is None and predicate.never:
                continue
            if predicate is not None and predicate.register is not None:
                pair = (dest, f"({value})") if predicate.negated else (f"({value})", dest)
                value = choice(self._variable(predicate.register), *pair)
            pairs.append((dest, value))
        written: set[str] = set()
        for dest, value in pairs:
            if written & set(re.findall(r"\w+", value)):
                targets = ", ".join(dest for dest, _ in pairs)
                return [f"{targets} = {', '.join(value for _, value in pairs)}"]
            written.add(dest)
        return [f"{dest} = {value}" for dest, value in pairs]

    # ---- names ----

    def _dest(self, instruction: Instruction) -> str | None:
        if instruction.dest is None:
            return None
        if "_" in instruction.dest:
            return self._variable(physical(instruction.dest))
        # What a division leaves is a list: it goes by names of its own, so that no arithmetic gets hold of it.
        return self._variable(("d" if instruction.opcode.startswith("sdivrem") else "x") + instruction.dest)

    def _variable(self, name: str) -> str:
        self.variables.add(variable(name))
        return name

    def _use(self, text: str) -> None:
        for name in registers(text):
            self._variable(name)

    def _operand(self, text: str) -> str:
        self._use(text)
        named = _NAMED.fullmatch(text)
        return self._variable(f"x{named.group(1)}") if named else operand(text, self.names)

    def condition(self, predicate: Predicate) -> str:
        """Makes code that says whether the predicate holds."""
        if predicate.register is None:
            return str(not predicate.never)
        register = self._variable(predicate.register)
        return f"not {register}" if predicate.negated else register


def is_matrix(instruction: Instruction) -> bool:
    """Says whether the instruction belongs to the MXUs."""
    return instruction.opcode.startswith(("vmatmul", "vmatpush", "vpop")) and not is_scalar_pop(instruction)


def _check_harmless(instruction: Instruction) -> None:
    """Checks that an instruction that decides nothing only writes a register or scalar memory."""
    opcode = instruction.opcode
    if instruction.dest is None and opcode not in IGNORED and opcode[0] != "v" and opcode != "sst":
        raise SimulationError(f"not understood: {instruction.text}")
