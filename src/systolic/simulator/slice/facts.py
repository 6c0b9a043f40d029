"""Facts of a program for many devices, read once before it runs on any slice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from systolic.simulator.reading.collectives import ASYNCHRONOUS, SliceHlo
from systolic.simulator.reading.listing import TOP_LEVEL, Instruction, Program
from systolic.simulator.slice.barrier_flags import barrier_flags
from systolic.simulator.slice.constants import Constants, constants_of
from systolic.simulator.slice.identity import Word, identity_words, row_words
from systolic.simulator.translating.remote import RemoteCode
from systolic.simulator.translating.translate import Translation


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceFacts:
    """Facts of a program for many devices."""

    hlo: SliceHlo  # devices and communication, from the HLO
    words: Mapping[int, Word]  # words of scalar memory that identify the device, by address
    constants: Constants  # its constants in HBM
    # Words of each operation by which it finds the device's row of a table, by address.
    rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def remote_code(program: Program, hlo: SliceHlo, *, top_level: bool) -> RemoteCode:
    """Return the labels of a program's acts on other devices; raise SimulationError if a flag is not certain."""
    labels = _labels(program, hlo) if top_level else {}
    return RemoteCode(numbered=barrier_flags(program), labels=labels, default="" if top_level else program.name)


def _labels(program: Program, hlo: SliceHlo) -> dict[int, str]:
    """Return operation names of the top-level program's own signals and copies, by instruction identity."""
    sections: list[list[Instruction]] = [[]]
    for bundle in program.bundles:
        for instruction in bundle.instructions:
            if instruction.opcode == "vtrace":  # stands where an operation begins and where it ends
                sections.append([])
            elif instruction.traits.is_remote:
                sections[-1].append(instruction)
    # The program's operations are in the order of the schedule; each permutation has one signal and one copy.
    permutes = [
        section
        for section in sections
        if sorted(instruction.traits.kind for instruction in section) == ["copy", "signal"]
    ]
    others = [section for section in sections if section and section not in permutes]
    named = [name for name in hlo.collectives if name.startswith(ASYNCHRONOUS)]
    pairs = [*zip(permutes, hlo.permutes, strict=False)] if len(permutes) == len(hlo.permutes) else []
    pairs += [*zip(others, named, strict=False)] if len(others) == len(named) else []
    return {id(instruction): name for section, name in pairs for instruction in section}


def slice_facts(
    programs: Mapping[str, Program],
    translations: Mapping[str, Translation],
    hlo: SliceHlo,
    segment: bytes,
    granule_bytes: int,
) -> SliceFacts:
    """Read the facts of a program on many devices.

    Args:
      segment: HBM bytes of the program's constants.
      granule_bytes: in which copies are counted.

    Raises:
      UnknownWordsError: a program reads more words than the runtime is known to write.
    """
    words: dict[int, Word] = {}
    rows: dict[str, tuple[int, ...]] = {}
    for name, program in programs.items():
        addresses = translations[name].addresses
        top_level = name == TOP_LEVEL
        remote = any(instruction.traits.is_remote for instruction in program.instructions)
        identities = identity_words(program, remote=remote, top_level=top_level)
        words |= {addresses[allocation]: word for allocation, word in identities.items() if allocation in addresses}
        if name in hlo.collectives:
            rows[name] = tuple(addresses[allocation] for allocation in row_words(program, identities))
    operands = {name: translation.operands for name, translation in translations.items()}
    return SliceFacts(
        hlo=hlo,
        words=words,
        constants=constants_of(
            programs[TOP_LEVEL],
            translations[TOP_LEVEL].addresses,
            words,
            operands,
            segment,
            tables=dict.fromkeys(hlo.collectives, 4 * hlo.partitions),
            granule_bytes=granule_bytes,
        ),
        rows=rows,
    )
