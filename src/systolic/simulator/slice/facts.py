"""What is read off a program that runs on many devices, once, before it runs on any slice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from systolic.simulator.core import TOP_LEVEL
from systolic.simulator.reading.collectives import SliceHlo
from systolic.simulator.reading.copies import is_copy
from systolic.simulator.reading.listing import Instruction, Program
from systolic.simulator.slice.barrier_flags import barrier_flags
from systolic.simulator.slice.constants import Constants, constants_of
from systolic.simulator.slice.identity import Word, identity_words
from systolic.simulator.translating.remote import RemoteCode
from systolic.simulator.translating.translate import Translation


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceFacts:
    """What a program on many devices is.

    Attributes:
      hlo: what the HLO says of devices and of communication.
      words: words of scalar memory that say on which device it runs, by address.
      constants: what lies in HBM for it.
    """

    hlo: SliceHlo
    words: Mapping[int, Word]
    constants: Constants


def is_remote(instruction: Instruction) -> bool:
    """Says whether an instruction may act on another device."""
    return instruction.opcode == "vsyncadd.remote" or (is_copy(instruction) and instruction.opcode == "dma.general")


def remote_code(program: Program, hlo: SliceHlo, *, top_level: bool) -> RemoteCode:
    """What translating a program has to know of its acts on other devices.

    Raises:
      SimulationError: it is not certain which flag is signalled by number.
    """
    labels: dict[int, str] = {}
    if top_level:
        # The program comes to its permutations in the order of the schedule; each has one signal and one copy.
        for opcode in ("vsyncadd.remote", "dma.general"):
            found = [each for bundle in program.bundles for each in bundle.instructions if each.opcode == opcode]
            if len(found) == len(hlo.permutes):
                labels |= {id(each): name for each, name in zip(found, hlo.permutes, strict=True)}
    return RemoteCode(numbered=barrier_flags(program), labels=labels, default="" if top_level else program.name)


def slice_facts(
    programs: Mapping[str, Program],
    translations: Mapping[str, Translation],
    hlo: SliceHlo,
    segment: bytes,
) -> SliceFacts:
    """Reads what a program on many devices is.

    Args:
      segment: of HBM that holds the program's constants.

    Raises:
      SimulationError: there are words of which it is not known what they hold.
    """
    words: dict[int, Word] = {}
    for name, program in programs.items():
        addresses = translations[name].addresses
        top_level = name == TOP_LEVEL
        remote = any(map(is_remote, (each for bundle in program.bundles for each in bundle.instructions)))
        found = identity_words(program, remote=remote, top_level=top_level)
        words |= {addresses[allocation]: word for allocation, word in found.items() if allocation in addresses}
    operands = {name: each.operands for name, each in translations.items()}
    return SliceFacts(
        hlo=hlo,
        words=words,
        constants=constants_of(programs[TOP_LEVEL], translations[TOP_LEVEL].addresses, words, operands, segment),
    )
