"""Read a listing of final bundles: the text that the TPU compiler leaves behind, one VLIW bundle a line.

The format is undocumented; it is known from listings of libtpu 0.0.42 to 0.0.52. The reader fails with
the line it does not understand rather than guess.

    0x68   : > { %s1 = smov 1  ;;  %9 = sbr.rel (%p196_p1) target = $region4 } /* End region 2 */

`;;` separates the instructions of a bundle. `%s5_s20` is the virtual register s5 in the physical register s20.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

from systolic.simulator.errors import SimulationError, reading
from systolic.simulator.opcode_traits import Opcode
from systolic.simulator.opcodes import TENSOR_CORE
from systolic.simulator.reading.comments import are_simple, logical_lines, split_comments

TOP_LEVEL = "TLP"  # the program that calls the others

_BUNDLE = re.compile(r"\s*(0x[0-9a-f]+|0)\s+((?:[A-Z]{2} ?)*):([ >]*)\{", re.ASCII)
_INSTRUCTION = re.compile(r"(?:%(\S+) = )?([A-Za-z][\w.\-]*)\s*(.*)", re.ASCII | re.DOTALL)
_PREDICATE = re.compile(r"\((!?)(?:%(\w+)_(p\d+)|(\d))\)", re.ASCII)
_ANNOTATED = re.compile(r"\[resolvable:\$\w+\]$", re.ASCII)  # belongs to the operand after it
_REGION = re.compile(r"(Start/End empty|Start|End) region (\d+)")
_ACCESS = re.compile(r"\[([vcs]mem):\[#(\w+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Predicate:
    """The condition in brackets after an opcode: a predicate register, perhaps negated, or a constant."""

    register: str | None  # physical, "p3"; None for a constant
    negated: bool
    constant: bool = True
    name: str | None = None  # virtual, "p1066"

    @property
    def never(self) -> bool:
        """A constant that is false."""
        return self.register is None and self.constant == self.negated


# Not frozen as other records are: a program has a million of them, and a frozen one takes twice as long to make.
@dataclass(slots=True, unsafe_hash=True)
class Instruction:
    """One instruction. `dest` and registers in `operands` keep the listing's form `%virtual_physical`."""

    opcode: str
    dest: str | None
    operands: tuple[str, ...]
    predicate: Predicate | None
    comment: str
    text: str
    traits: Opcode = field(repr=False, compare=False)  # the opcode's entry in the table


@dataclass(slots=True, unsafe_hash=True)  # not frozen: see `Instruction`
class Bundle:
    """The instructions that issue in one cycle."""

    line: int  # of the listing, from 1
    address: str
    tags: tuple[str, ...]  # LB: loop body, PF: where a skipped region falls through, …
    depth: int  # of loops around it
    instructions: tuple[Instruction, ...]
    region_starts: tuple[int, ...]
    region_ends: tuple[int, ...]
    vector_count: int  # vector instructions, which carry no control flow and are not kept

    @property
    def empty(self) -> bool:
        """Printed as `{}`."""
        return not self.instructions and not self.vector_count


@dataclass(frozen=True, slots=True)
class Program:
    """A listing that has been read."""

    name: str
    bundles: tuple[Bundle, ...]
    region_start: dict[int, int] = field(repr=False)  # region → index of its first bundle
    spaces: dict[str, str] = field(repr=False)  # allocation → memory space, of those that are loaded from or stored to
    instructions: tuple[Instruction, ...] = field(init=False, repr=False, compare=False)  # of all bundles, in order

    def __post_init__(self) -> None:
        instructions = itertools.chain.from_iterable([bundle.instructions for bundle in self.bundles])
        object.__setattr__(self, "instructions", tuple(instructions))


# Registers in an operand: scalar and predicate registers by their physical name, vector registers by their virtual one.
_REGISTER = re.compile(r"%\w+_((?:s|p)\d+)\b|%v(\d+)_v\d+\b", re.ASCII)


def physical(register: str) -> str:
    """Return the physical register, `%s5_s20` → `s20`; for a vector register the virtual one, `%v5_v20` → `w5`.

    Most vector instructions are not kept, so that a physical vector register's contents are not known; a kept one's
    result is found under its virtual name.
    """
    virtual, number = register.rsplit("_", 1)
    return f"w{virtual.removeprefix('%')[1:]}" if number[0] == "v" and number[1:].isdigit() else number


def registers(text: str) -> list[str]:
    return [scalar or f"w{vector}" for scalar, vector in _REGISTER.findall(text)]


def parse_listing(name: str, text: str) -> Program:
    """Read the bundles of one listing; raise SimulationError for text that is none, or cut."""
    bundles: list[Bundle] = []
    region_start: dict[int, int] = {}
    instructions_of = _WITH_LOADS if " vpush " in text else _WITHOUT_LOADS
    line_number = 0
    with reading(lambda: f"{name}, line {line_number}"):
        for line_number, line in logical_lines(name, text):
            bundle = _parse_bundle(name, line_number, line, instructions_of)
            if int(bundle.address, 16) != len(bundles):
                raise SimulationError(
                    f"{name}, line {line_number}: bundle {bundle.address} where {len(bundles):#x} was due; "
                    "the listing is cut or doubled"
                )
            for region in bundle.region_starts:
                region_start.setdefault(region, len(bundles))
            bundles.append(bundle)
    if not bundles:
        raise SimulationError(f"{name}: the listing holds no bundles")
    spaces = {allocation: space for space, allocation in _ACCESS.findall(text)}
    return Program(name=name, bundles=tuple(bundles), region_start=region_start, spaces=spaces)


class _Pieces:
    """Finds the instructions of a bundle's text, without vector instructions that are not kept.

    Most instructions are such, so that one expression passes over all of them.
    """

    def __init__(self, *, loads: bool) -> None:
        self.loads = loads
        listed = [entry for entry in TENSOR_CORE.entries if entry.is_vector and (loads or entry.kind != "vector load")]
        names = (re.escape(entry.name[1:].removesuffix("*")) for entry in listed)
        left_out = rf"\s*(?:%\S+ = )?v(?!{'|'.join(names)})"
        piece = rf"(?!{left_out})([^;]*+(?:;(?!;)[^;]*+)*+)"
        self._first, self._others = re.compile(piece, re.ASCII), re.compile(f";;{piece}", re.ASCII)

    def places(self, text: str) -> list[tuple[int, int]]:
        """Return the begin and end of each instruction that may be kept; some are blank."""
        first = self._first.match(text)
        others = [piece.span(1) for piece in self._others.finditer(text)]
        return others if first is None else [first.span(1), *others]


_WITH_LOADS, _WITHOUT_LOADS = _Pieces(loads=True), _Pieces(loads=False)


def _parse_bundle(name: str, line_number: int, line: str, pieces: _Pieces) -> Bundle:
    head = _BUNDLE.match(line)
    simple = head is not None and are_simple(line)
    code, comments = (line, []) if simple else split_comments(line)
    head = head if simple else _BUNDLE.match(code)
    end = code.rfind("}")
    if head is None or end < head.end():
        raise SimulationError(f"{name}, line {line_number}: not a bundle: {line.strip()[:200]}")
    body = code[head.end() : end]
    starts: list[int] = []
    ends: list[int] = []
    if simple:
        after = split_comments(code[end:])[1] if end + 1 < len(code) else []
    else:
        after = [comment for comment in comments if comment[0] > end]
    for _, comment in after:
        for kind, region in _REGION.findall(comment):
            (ends if kind == "End" else starts).append(int(region))
    instructions = []
    blank = 0
    for begin, until in pieces.places(body):
        piece = body[begin:until]
        of_piece: list[tuple[int, str]] = []
        if not simple:
            of_piece = [text for text in comments if begin <= text[0] - head.end() < until + 2]
        elif "/*" in piece:
            piece, of_piece = split_comments(piece)
        stripped = piece.strip()
        if not stripped:
            blank += 1
            continue
        parsed = _parse_instruction(stripped)
        if parsed is None:
            raise SimulationError(f"{name}, line {line_number}: no instruction: {stripped[:200]}")
        if parsed is _VECTOR:
            continue
        dest, opcode, rest, predicate = parsed
        traits = TENSOR_CORE[opcode]
        if traits.kind == "vector load" and not pieces.loads:
            continue
        comment = " ".join([text for _, text in of_piece]).strip() if of_piece else ""
        # By position: names take a third longer, a million times.
        instructions.append(Instruction(opcode, dest, _operands(rest), predicate, comment, stripped, traits))
    vector_count = body.count(";;") + 1 - blank - len(instructions)
    # A call's operands are in their registers before its first bundle, which may write over one that nothing reads.
    if "inlined_call_operand" in body:
        instructions.sort(key=lambda instruction: instruction.traits.kind != "operand")
    return Bundle(
        line=line_number,
        address=head.group(1),
        tags=tuple(head.group(2).split()),
        depth=head.group(3).count(">"),
        instructions=tuple(instructions),
        region_starts=tuple(starts),
        region_ends=tuple(ends),
        vector_count=vector_count,
    )


_VECTOR = (None, "", "", None)


def _parse_instruction(text: str) -> tuple[str | None, str, str, Predicate | None] | None:
    match = _INSTRUCTION.match(text)
    if match is None:
        return None
    dest, opcode, rest = match.groups()
    traits = TENSOR_CORE[opcode]
    if opcode[0] == "v" and traits.kind == "unknown":  # carries no control flow
        return _VECTOR
    predicate = None
    if "(" in rest and (predicate_match := _PREDICATE.search(rest)):
        negated, name, register, constant = predicate_match.groups()
        predicate = Predicate(register, bool(negated), constant != "0", name)
        before = rest[: predicate_match.start()].rstrip().removesuffix(",").rstrip()
        after = rest[predicate_match.end() :].lstrip().removeprefix(",").lstrip()
        joint = " " if _ANNOTATED.search(before) else ", "
        rest = f"{before}{joint}{after}" if before and after else before or after
    if traits.kind in ("vector move", "vector load") and (dest is None or not _read_by_scalar_side(traits, rest)):
        return _VECTOR
    if rest.startswith("[resolvable:"):
        rest = rest.split("]", 1)[1].lstrip(" ,")
    if rest.startswith("[thread:"):
        rest = rest.split("]", 1)[1].lstrip(" ,")
    if traits.kind in ("store", "load") and "]] " in rest:
        rest = rest.replace("]] ", "]], ", 1)
    if dest is not None and "_" not in dest:
        dest = None  # a name for the instruction itself, not a register
        if traits.names_result:
            dest = text[1 : text.index(" ")]
    return dest, opcode, rest, predicate


def _read_by_scalar_side(traits: Opcode, rest: str) -> bool:
    """True if an instruction may bring a word from VMEM, or from the program's text, to the scalar side."""
    return "%" not in rest if traits.kind == "vector move" else rest.startswith("[vmem:") and rest.endswith("sm:$0xff]")


def _operands(rest: str) -> tuple[str, ...]:
    if "[" not in rest and "(" not in rest:
        return tuple([stripped for part in rest.split(",") if (stripped := part.strip())])
    parts: list[str] = []
    depth = begin = 0
    for at, char in enumerate(rest):
        if char in "[(":
            depth += 1
        elif char in "])":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(rest[begin:at].strip())
            begin = at + 1
    parts.append(rest[begin:].strip())
    return tuple(part for part in parts if part)
