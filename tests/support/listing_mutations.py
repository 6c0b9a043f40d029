"""Mutates what a compiler leaves behind, as a broken disk or a stranger could: for the tests of what reads it."""

from __future__ import annotations

import ast
import gzip
import json
import math
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from systolic.chips import Chip
from systolic.compiler import CompiledProgram
from systolic.simulator import PreparedProgram, SimulatedRun, SimulationError, prepare_listings
from systolic.timing import prepare_program
from systolic.timing.contents import parameter_contents

_NUMBERS = (
    "0",
    "1",
    "-1",
    "7",
    "65536",
    "2147483648",
    "4294967295",
    "18446744073709551616",
    "1e400",
    "nan",
    "9" * 5000,
)
_REGISTERS = ("%s1_s1", "%p0_p0", "!%p0_p0", "%v1_v1", "%9", "%s1_s1_s1", "%s_s", "%_", "%s1_x1", "%s٣_s٣", "%s1_s0\0")
_NAMES = ("[#allocation99]", "[smem:[#allocation3]]", "[smem:[#allocation7_spill]]", "$region1", "(%p1_p1)", "(!0)")
_MARKS = (
    "{",
    "}",
    "/*",
    "*/",
    ";;",
    "[",
    "]",
    "(",
    ")",
    ",",
    " = ",
    "\n",
    "\0",
    "\ud800",
    "é",
    "\t",
    "%",
    "\\",
    "'",
    '"',
)
_OPCODES = ("sbr.rel", "smov", "sld", "sst", "dma.general", "dma.done.wait", "inlined_call", "sdivrem.u32", "spop.drf")
WORDS = (*_NUMBERS, *_REGISTERS, *_NAMES, *_MARKS, *_OPCODES)
_NUMBER = re.compile(r"\d+")


def mutated(text: str, chance: random.Random) -> str:
    """The text with one fault or a few in it."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        lines = text.split("\n")
        at = chance.randrange(len(lines))
        words = lines[at].split(" ")
        word, other = chance.randrange(len(words)), chance.randrange(len(words))
        match chance.randrange(12):
            case 0:
                del words[word]
            case 1:
                words.insert(word, words[other])
            case 2:
                words[word], words[other] = words[other], words[word]
            case 3 | 4:
                words[word] = chance.choice(WORDS)
            case 5:
                words.insert(word, chance.choice(WORDS))
            case 6:  # a line somewhere else
                words = lines[chance.randrange(len(lines))].split(" ")
            case 7:  # the rest is lost, or all but it
                lines = lines[: at + 1] if chance.random() < 0.5 else lines[at:]
                at, words = 0, lines[0].split(" ")
            case 8:  # one character
                line = lines[at] or " "
                place = chance.randrange(len(line))
                words = [line[:place] + chr(chance.randrange(1, 300)) + line[place + 1 :]]
            case 9:  # much of something
                words.insert(word, chance.choice(WORDS) * chance.choice((3, 100, 10_000)))
            case _:  # a number, which is a size, a trip count, an address, a place
                numbers = list(_NUMBER.finditer(lines[at]))
                if numbers:
                    found = chance.choice(numbers)
                    words = [lines[at][: found.start()] + chance.choice(_NUMBERS) + lines[at][found.end() :]]
        lines[at] = " ".join(words)
        text = "\n".join(lines)
    return text


def mutated_program(program: CompiledProgram, seed: int) -> CompiledProgram:
    """A program with faults in one of its texts, always the same for the same seed."""
    chance = random.Random(seed)

    def one_of(texts: Mapping[str, str]) -> dict[str, str]:
        name = chance.choice(sorted(texts))
        return {**texts, name: mutated(texts[name], chance)}

    match chance.randrange(6):
        case 0:
            return replace(program, utilization=one_of(program.utilization))
        case 1:
            return replace(program, top_level_hlo=mutated(program.top_level_hlo, chance))
        case 2:
            return replace(program, vmem_report=mutated(program.vmem_report, chance))
    return replace(program, listings=one_of(program.listings))


def compiled_programs() -> list[CompiledProgram]:
    """Small programs as the compiler left them, of four chips; `compile_programs.py` made them."""
    file = Path(__file__).parents[1] / "data" / "compiled_programs.json.gz"
    known = json.loads(gzip.decompress(file.read_bytes()))
    return [CompiledProgram(**{"sparse_listings": {}, **each}) for each in known]


_STATEMENTS = (ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Assign, ast.AugAssign, ast.If, ast.While)
_STATEMENTS += (ast.Return, ast.Expr, ast.Yield, ast.YieldFrom, ast.Pass)
_EXPRESSIONS = (ast.Name, ast.Constant, ast.Tuple, ast.List, ast.Starred, ast.Call, ast.Compare, ast.BinOp, ast.UnaryOp)
_EXPRESSIONS += (ast.IfExp, ast.Subscript, ast.Slice, ast.Attribute, ast.operator, ast.unaryop, ast.cmpop)
_EXPRESSIONS += (ast.expr_context,)
_REGISTER = re.compile(
    r"[spwxdnq]\d+|m_\w+|_|r|t|sequencer|block|iterations|limit|jump|nothing|vector|Unknown|Lanes|machine|cycle|computed"
    r"|lane_numbers",
    re.ASCII,
)
_CALLED = (
    "start wait blocked add put segment load store call send receive signal move word operand parameter wait_for_value "
    "pushed lap left count too_long float_compare float_from_signed float_result larger leading_zeros rounded_float "
    "signed_division signed_from_float signed_from_whole_float smaller "
    "send_descriptor set_remote start_barna_core wait_for_sparse_core "
    "general signal_any picked together apart store_on_some own on_any type int bool "
    "stream copy task barrier read_argument write_argument lanes lanes_below round tile core refuse fetch_add "
    "lanes_of_both read_flag signal_inside next_round goes_on early_wait"
)


def check_generated_code(prepared: PreparedProgram) -> None:
    """Fails where the code that was made of listings is more than arithmetic on registers and calls of the model."""
    sources = [translation.source for translation in prepared.translations.values()]
    for program in prepared.sparse.programs:
        sources += [function.source for function in (program.scs, program.tec) if function is not None]
    for source in sources:
        check_source(source)


def check_source(source: str) -> None:
    """Fails where a text of Python is more than arithmetic on registers and calls of the model."""
    called = set(_CALLED.split())
    for node in ast.walk(ast.parse(source)):
        assert isinstance(node, (*_STATEMENTS, *_EXPRESSIONS)), ast.dump(node)
        if isinstance(node, ast.Name):
            assert node.id in called or _REGISTER.fullmatch(node.id), node.id
        elif isinstance(node, ast.Constant):
            assert type(node.value) in (int, str, bool, type(None)), node.value
        elif isinstance(node, ast.Call):
            pops = isinstance(node.func, ast.Attribute) and node.func.attr == "pop"
            assert pops or (isinstance(node.func, ast.Name) and node.func.id in called), ast.dump(node)
        elif isinstance(node, ast.Attribute):
            of_sequencer = re.fullmatch(
                r"(?:sequencer|machine)\.[a-z]\w*|sequencer\.iterations\.left", ast.unparse(node), re.ASCII
            )
            assert of_sequencer or node.attr in ("pop", "__class__"), ast.dump(node)


def error_or_run(listings: Mapping[str, str], chip: Chip, **options: Any) -> str | SimulatedRun:
    """Return what is wrong with damaged listings, or their run after asserting that it can be kept."""
    try:
        prepared = prepare_listings(listings, chip, utilization=options.pop("utilization", None))
        check_generated_code(prepared)
        run = prepared.run(chip, **options)
    except SimulationError as error:
        return str(error)
    _check_run(run)
    return run


def check_damages(listings: Mapping[str, str], chip: Chip, seeds: range) -> None:
    """Assert that damaged listings are refused with a message or run, and that the intact ones then end as before."""
    intact = error_or_run(listings, chip, max_iterations=1000)
    outcomes = []
    for seed in seeds:
        chance = random.Random(seed)
        part = chance.choice(sorted(listings))
        damaged = {**listings, part: mutated(listings[part], chance)}
        outcomes.append(error_or_run(damaged, chip, max_iterations=1000))
    refusals = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert refusals
    assert all(refusal.strip() for refusal in refusals)
    assert error_or_run(listings, chip, max_iterations=1000) == intact


def read_and_run(program: CompiledProgram, chip: Chip, max_iterations: int = 2000) -> SimulatedRun:
    """Everything that reads a compiled program, then a run of it, and what a report makes of that.

    Raises:
      SimulationError: the program is not understood.
    """
    prepared = prepare_program(program, chip)
    check_generated_code(prepared)
    assert prepared.hlo is not None
    shapes = [parameter.shape for _, parameter in sorted(prepared.hlo.parameters.items())]
    values = [
        np.zeros(shape.sizes, np.int32) if shape and shape.dtype == "s32" and math.prod(shape.sizes) < 10_000 else None
        for shape in shapes
    ]
    parameters = parameter_contents(prepared.hlo, values)
    run = prepared.run(chip, parameters=parameters, max_iterations=max_iterations, spans=10)
    _check_run(run)
    return run


def _check_run(run: SimulatedRun) -> None:
    assert SimulatedRun.from_json(run.to_json()) == run
    assert all(share >= 0 for share in (*run.busy.values(), *run.stalls.values(), run.vmem_bytes, run.spill_bytes))
    assert run.cycles >= 0
