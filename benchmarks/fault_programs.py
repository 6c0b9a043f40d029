"""Mutated compiler output: the simulator returns a result or its own error, in bounded time, and runs no text."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

from fault_cases import CaseError, Section, Setting, mutated_text

from systolic.chips import CHIPS
from systolic.compiler import CompiledProgram
from systolic.simulator import SimulationError
from systolic.timing.compiled import prepare_program

# A mutated loop may run forever. Real programs of this size take a few hundred rounds.
_MAX_ITERATIONS = 20_000
_REGISTER = re.compile(r"%[\w.]+")
_BUNDLE = re.compile(r"^ *\w+ .*?:[ >]*\{ ", re.MULTILINE)


def _simulated(program: CompiledProgram) -> None:
    chip = CHIPS[program.chip]
    try:
        prepare_program(program, chip).run(chip, max_iterations=_MAX_ITERATIONS)
    except SimulationError as error:
        if not str(error):
            raise CaseError("the error says nothing") from error


def _listing(choose: random.Random, _folder: Path, setting: Setting) -> None:
    program = choose.choice(list(setting.programs.values()))
    name = choose.choice(list(program.listings))
    text = mutated_text(program.listings[name], choose)
    _simulated(replace(program, listings={**program.listings, name: text}))


def _beside(choose: random.Random, _folder: Path, setting: Setting) -> None:
    program = choose.choice(list(setting.programs.values()))
    kind = choose.randrange(3)
    if kind == 0 and program.utilization:
        name = choose.choice(list(program.utilization))
        text = mutated_text(program.utilization[name], choose)
        _simulated(replace(program, utilization={**program.utilization, name: text}))
    elif kind == 1 and program.vmem_report:
        _simulated(replace(program, vmem_report=mutated_text(program.vmem_report, choose)))
    else:
        _simulated(replace(program, top_level_hlo=mutated_text(program.top_level_hlo, choose)))


def _injected(choose: random.Random, folder: Path, setting: Setting) -> None:
    """Return Python code in place of a name; if it ran, it would create a file."""
    program = choose.choice(list(setting.programs.values()))
    sentinel = folder / "ran"
    name = choose.choice(list(program.listings))
    text = program.listings[name]
    act = f"open({str(sentinel)!r},'w').close()"
    code = choose.choice(
        (
            f"{act}",
            f"s1=0;{act};s1",
            f"x\n{act}\n",
            f"s1:={act}",
            f"f({act})",
            f"s1,_={act},0",
            f"[{act}]",
            f"#\n {act}",
        )
    )
    code = choose.choice((code, code.replace(" ", ""), f"_s1={code}", f"q_{code}"))
    result = list(_REGISTER.finditer(text))
    kind = choose.randrange(6)
    if kind > 3:  # one more instruction in a bundle; nothing reads its result
        bundles = list(_BUNDLE.finditer(text))
        at = choose.choice(bundles)
        register_name = choose.choice(("s", "p", "v")) + "31"
        opcode = choose.choice(("vpop.ccrf %9", "spop.drf %9", "smov 0", "sadd.s32 1, 2", "sld [smem:[#allocation1]]"))
        instruction = f"%q_{register_name}=0;{act};{register_name} = {opcode}"
        text = f"{text[: at.end()]}{instruction}  ;;  {text[at.end() :]}"
    elif kind < 2:  # one register, read or written
        at = choose.choice(result)
        text = f"{text[: at.start()]}%{code}{text[at.end() :]}"
    elif kind == 2:  # all places of one register
        register = choose.choice(result).group()
        text = re.sub(re.escape(register) + r"\b", lambda _: f"%q_{code}", text)
    else:  # any other word
        words = list(re.finditer(r"[\w.#$]+", text))
        at = choose.choice(words)
        text = text[: at.start()] + code + text[at.end() :]
    listings = {**program.listings, name: text}
    if choose.random() < 0.1:
        listings = {code if key == name and key != "TLP" else key: value for key, value in listings.items()}
    _simulated(replace(program, listings=listings))
    if sentinel.exists():
        raise CaseError("code from a listing was executed")


SECTIONS = (
    Section(name="listings", tries="mutated listings of the compiler", share=9, attempt=_listing),
    Section(name="reports", tries="mutated HLO, tables of units and VMEM reports", share=6, attempt=_beside),
    Section(name="injection", tries="Python in place of names in a listing", share=4, attempt=_injected),
)
