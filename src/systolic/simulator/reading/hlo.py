"""Parameters and operations of the top-level HLO: shapes, layouts, and source lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from systolic.simulator.errors import SimulationError
from systolic.simulator.reading.launches import LaunchOrder
from systolic.simulator.reading.operation_kinds import OperationKinds

_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%(\S+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$", re.ASCII)
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\](?:\{([^}]*)\})?", re.ASCII)
_OPERAND = re.compile(r"%([\w.\-]+)", re.ASCII)
_KERNEL = 'custom_call_target="tpu_custom_call"'
_WORDS = ("s32", "u32")
_MAX_DIGITS = 18  # of a size, so that it fits 64 bits
_ALIAS = re.compile(r"\{(\d{0,9})\}: \((\d{1,9}), \{\}, (?:may|must)-alias\)", re.ASCII)
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_COMPUTATION = re.compile(r"(?:ENTRY )?%([\w.\-]+) \(", re.ASCII)
_MODULE = re.compile(r"HloModule ([\w.\-]{1,1000})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class HloShape:
    """An array's element type, sizes and layout, such as `s32`, (8,), `0:T(128)`."""

    dtype: str
    sizes: tuple[int, ...]
    layout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HloParameter:
    """One of the program's arguments."""

    number: int
    name: str
    shape: HloShape | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLevelHlo:
    """The scheduled HLO of a whole program."""

    parameters: Mapping[int, HloParameter]  # the entry computation's parameters, by number
    shapes: Mapping[str, HloShape]  # the shape of every instruction that gives one array, by name
    operands: Mapping[str, tuple[str, ...]]  # names of every instruction's operands, by name
    kernels: frozenset[str]  # names of the instructions that are Pallas kernels
    elements: frozenset[str]  # names of the instructions that take one word out of a list, by an index
    scopes: Mapping[str, str]  # JAX's name stack of every instruction, by name: "jit(f)/while/body/dot_general"
    results: int | None = None  # how many arrays the program returns as a tuple; None: one, and no tuple
    # Results that take the memory of a parameter, by number, and that parameter's number.
    aliases: Mapping[int, int] = field(default_factory=dict)
    launches: tuple[str, ...] = ()  # names of the instructions that start SparseCores, as they are scheduled
    module: str = ""  # the module's name, such as "jit_f"
    kinds: OperationKinds = field(default_factory=OperationKinds)  # opcodes, and what fusions are made of

    def flops(self, instruction: str) -> int | None:
        """Return the FLOPs of one call's matrix products; None if it has none, or the text does not say."""
        return self.kinds.flops(
            instruction,
            lambda name: self.shapes[name].sizes if name in self.shapes else (),
            lambda name: self.operands.get(name, ()),
        )

    def operand_shape(self, instruction: str, index: int) -> HloShape | None:
        """Return the shape of one of an instruction's operands; None if the text does not say."""
        operands = self.operands.get(instruction, ())
        return self.shapes.get(operands[index]) if index < len(operands) else None


def parse_hlo(text: str) -> TopLevelHlo:
    """Read the parts of an HLO module that are of use here. Unrecognized parts are skipped.

    Raises:
      SimulationError: the parameters are not numbered from 0 on.
    """
    parameters: dict[int, HloParameter] = {}
    shapes: dict[str, HloShape] = {}
    operands: dict[str, tuple[str, ...]] = {}
    scopes: dict[str, str] = {}
    kernels: set[str] = set()
    elements: set[str] = set()
    results = None
    order = LaunchOrder()
    kinds = OperationKinds()
    in_entry = False
    name = ""
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        if match is None:
            header = _COMPUTATION.match(line)
            if header is not None and line.endswith("{"):
                kinds.enter(header[1])
                order.enter(header[1])
            if line.startswith("ENTRY "):
                in_entry = True
            elif line[:2].strip() == "}":
                in_entry, name = False, ""
            elif name and (scope := _OP_NAME.search(line)) is not None:
                # A kernel's description takes several lines, after which the instruction goes on.
                scopes.setdefault(name, scope.group(1))
            continue
        name, shape_text, opcode, rest = match.groups()
        if in_entry and line.lstrip().startswith("ROOT ") and shape_text.startswith("("):
            results = len(_SHAPE.findall(shape_text))
        shape = _shape(shape_text)
        if shape is not None:
            shapes[name] = shape
        operands[name] = tuple(_OPERAND.findall(rest.split(")", 1)[0]))
        kinds.add(name, opcode, rest)
        scope = _OP_NAME.search(rest)
        if scope is not None:
            scopes[name] = scope.group(1)
        if opcode == "custom-call" and _KERNEL in rest:
            kernels.add(name)
        if opcode == "dynamic-slice" and shape is not None and shape.sizes == (1,) and shape.dtype in _WORDS:
            elements.add(name)
        order.add(name, opcode, rest)
        if opcode == "parameter" and in_entry:
            digits = rest.split(")", 1)[0]
            if not re.fullmatch(r"\d{1,9}", digits, re.ASCII):
                raise SimulationError(f"a parameter without a number: {line.strip()[:200]}")
            number = int(digits)
            outer_scope = scopes.get(name, name)
            parameters[number] = HloParameter(number=number, name=outer_scope, shape=shape)
    if any(number >= len(parameters) for number in parameters):
        raise SimulationError(
            f"the HLO has {len(parameters)} parameters, of which one has the number {max(parameters)}"
        )
    module = _MODULE.match(text)
    return TopLevelHlo(
        parameters=parameters,
        shapes=shapes,
        operands=operands,
        kernels=frozenset(kernels),
        elements=frozenset(elements),
        scopes=scopes,
        results=results,
        aliases=_aliases(text.partition("\n")[0], len(parameters)),
        launches=order.launches(),
        module=module[1] if module is not None else "",
        kinds=kinds,
    )


def _aliases(header: str, parameters: int) -> dict[int, int]:
    aliases = {int(result or 0): int(number) for result, number in _ALIAS.findall(header)}
    return {result: number for result, number in aliases.items() if number < parameters}


def _shape(text: str) -> HloShape | None:
    match = _SHAPE.fullmatch(text)
    if match is None:
        return None
    dtype, sizes, layout = match.groups()
    lengths = [size for size in sizes.split(",") if size]
    if any(len(size) > _MAX_DIGITS for size in lengths):
        return None
    return HloShape(dtype=dtype, sizes=tuple(map(int, lengths)), layout=layout or "")
