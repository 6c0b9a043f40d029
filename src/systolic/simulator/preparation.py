"""Read, check and translate compiled listings: a program that is ready to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from systolic.chips import Chip
from systolic.simulator.collector import without_collector
from systolic.simulator.core_records import VmemBuffer
from systolic.simulator.errors import SimulationError, reading
from systolic.simulator.reading.blocks import split_blocks
from systolic.simulator.reading.collectives import parse_collectives
from systolic.simulator.reading.hlo import parse_hlo
from systolic.simulator.reading.listing import TOP_LEVEL, Program, parse_listing
from systolic.simulator.reading.utilization import parse_utilization
from systolic.simulator.reading.verify import check_registers
from systolic.simulator.run import PreparedProgram
from systolic.simulator.slice.facts import remote_code, slice_facts
from systolic.simulator.slice.launch import without_launch
from systolic.simulator.slice.route_pointers import without_route_pointers
from systolic.simulator.sparse_core.launch import names_by_number
from systolic.simulator.sparse_core.listing import parse_sparse_listing
from systolic.simulator.sparse_core.program import SparsePrograms
from systolic.simulator.sparse_core.translate import translate_sparse
from systolic.simulator.translating.names import Allocations
from systolic.simulator.translating.scalar import static_allocation
from systolic.simulator.translating.translate import Translation, translate

# Pointers that the runtime leaves in scalar memory, such as pointers to results, are above all others.
_RESULTS_FROM = (1 << 28) - (1 << 20)
_PREFETCH = "cross_program_prefetch_index="  # in the HLO, of the copy of an argument that begins before the call


@without_collector()
def prepare_listings(
    listings: Mapping[str, str],
    chip: Chip,
    *,
    utilization: Mapping[str, str] | None = None,
    hlo_text: str | None = None,
    vmem: Sequence[VmemBuffer] = (),
    sparse_listings: Mapping[str, str] | None = None,
    constants: bytes = b"",
) -> PreparedProgram:
    """Read, check and translate compiled listings.

    Args:
      listings: text of the final bundles of the top-level program, under "TLP", and of every operation it calls.
      utilization: the compiler's table of units for each, if there is one.
      hlo_text: the top-level HLO.
      vmem: the compiler's report of VMEM, which is passed on.
      sparse_listings: text of the final bundles of SparseCore programs, in the order of compilation.
      constants: the segment of HBM that holds the program's constants; empty: it is not known.

    Raises:
      SimulationError: a listing is not understood.
    """
    if TOP_LEVEL not in listings:
        raise SimulationError(f"no top-level program among the listings: {', '.join(listings) or 'none'}")
    sparse_programs = []
    for name, text in (sparse_listings or {}).items():
        with reading(f"the SparseCore listing of {name}"):
            sparse_programs.append(translate_sparse(parse_sparse_listing(name, text)))
    with reading("the HLO"):
        hlo = parse_hlo(hlo_text) if hlo_text is not None else None
        slice_hlo = parse_collectives(hlo_text or "")
    sliced = slice_hlo.partitions * slice_hlo.replicas > 1
    shared = chip.cores_per_device > 1 or bool(sparse_programs) or sliced
    allocations = Allocations()
    programs: dict[str, Program] = {}
    parsed: dict[str, Program] = {}  # by text: equal operations share one
    translations: dict[str, Translation] = {}
    for name, text in listings.items():
        with reading(f"the listing of {name}"):
            program = parsed[text] = replace(parsed[text], name=name) if text in parsed else parse_listing(name, text)
            program = programs[name] = (
                without_route_pointers(without_launch(program)) if sliced and name == TOP_LEVEL else program
            )
            check_registers(program, split_blocks(program, chip.machine.branch_delay_slots))
    for name, program in programs.items():
        with reading(f"the listing of {name}"):
            top_level = name == TOP_LEVEL
            remote = remote_code(program, slice_hlo, top_level=top_level) if sliced else None
            translations[name] = translate(
                program, chip.machine, allocations, shared=shared, top_level=top_level, remote=remote
            )
    with reading(f"the listing of {TOP_LEVEL}"):
        flags, pointers = runtime_words(programs[TOP_LEVEL], translations[TOP_LEVEL].addresses)
        sparse_names = names_by_number(programs[TOP_LEVEL], hlo.launches if hlo is not None else ())
    uses = {
        name: parse_utilization(name, text, translations[name].blocks)
        for name, text in (utilization or {}).items()
        if name in translations
    }
    copies = any(instruction.traits.kind == "copy" for instruction in programs[TOP_LEVEL].instructions)
    return PreparedProgram(
        translations=translations,
        flags=flags,
        pointers=pointers,
        uses=uses,
        hlo=hlo,
        vmem=tuple(vmem),
        # A slice's top-level program also copies for other reasons.
        may_prefetch=copies and (not sliced or _PREFETCH in (hlo_text or "")),
        prepared_for=chip.machine,
        sparse=SparsePrograms(
            programs=tuple(sparse_programs),
            names=sparse_names,
            images=constants if sparse_programs else b"",
        ),
        slice_facts=slice_facts(programs, translations, slice_hlo, constants, chip.machine.granule_bytes)
        if sliced
        else None,
    )


def runtime_words(program: Program, addresses: Mapping[str, int]) -> tuple[frozenset[int], dict[int, int]]:
    """Return words of scalar memory that the runtime has set: words that have to be 1, and pointers.

    The top-level program reads a few words that it never wrote. It compares one with 1, and skips everything if it
    differs. Another tells whether an argument was prefetched before the call. Others point to results, or to a table of
    them; each gets its own address.
    """
    loaded: dict[str, str] = {}
    flags: set[int] = set()
    pointers: dict[int, int] = {}
    for bundle in program.bundles:
        for instruction in bundle.instructions:
            if instruction.traits.kind == "load" and instruction.dest is not None:
                place = static_allocation(instruction.operands[0])
                if place is not None:
                    loaded["%" + instruction.dest] = place
        for instruction in bundle.instructions:
            used = (text.rsplit("] ", 1)[-1] for text in instruction.operands)
            place = next((loaded[text] for text in used if text in loaded), None)
            if place is None or place not in addresses:
                continue
            if instruction.opcode.startswith("scmp.ne") and instruction.operands[1] == "1":
                flags.add(addresses[place])
            elif instruction.opcode.startswith("int_to_ptr.hbm"):
                pointers[addresses[place]] = _RESULTS_FROM + (len(pointers) << 8)
    return frozenset(flags), pointers
