"""Readers of a compiled program raise their own errors, or return a result, however the text is damaged."""

from __future__ import annotations

import contextlib
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from listing_mutations import compiled_programs, error_or_run, mutated, mutated_program, read_and_run
from simulator_listings import V5E, listing, loop, shown, simulate

from systolic.chips import chip
from systolic.compiler import CompilerError, DeviceExecutions
from systolic.compiler.dump import read_dump
from systolic.simulator import HloShape, SimulatedRun, SimulationError, Unknown, parse_hlo, prepare_listings, words_of
from systolic.simulator.reading.blocks import split_blocks
from systolic.simulator.reading.listing import parse_listing
from systolic.simulator.reading.utilization import parse_utilization
from systolic.timing import vmem_buffers
from systolic.timing.contents import KernelContents, parameter_contents

PROGRAMS = compiled_programs()


def test_the_programs_themselves_run() -> None:
    assert [program.chip for program in PROGRAMS] == ["v4", "v5e", "v6e", "v7x"]
    written = [read_and_run(program, chip(program.chip)).hbm_written_bytes for program in PROGRAMS]
    assert written == [256 * 256 * 2, 32 * 128 * 4, 32 * 128 * 4, 256 * 256 * 2]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", range(0, 320, 80))
def test_a_damaged_program_is_an_error_or_a_result(start: int) -> None:
    for seed in range(start, start + 80):
        program = PROGRAMS[seed % len(PROGRAMS)]
        with contextlib.suppress(SimulationError):
            read_and_run(mutated_program(program, seed), chip(program.chip), max_iterations=500)


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_a_damaged_small_listing_is_an_error_or_a_result(start: int) -> None:
    small = listing(
        "%s7_s7 = smov 3  ;;  %s8_s8 = smov 5",
        "%9 = sdivrem.u32 %s8_s8, 3 /* kDivAndRem */",
        "%s4_s4 = spop.drf %9  ;;  %6 = sst [smem:[#allocation7_spill]] %s7_s7",
        "%7 = dma.hbm_to_vmem [thread:$0]  %s91_s91, %s7_s7, %s92_s92, [#allocation1]",
        *loop(5, "%7 = vmatmul.bf16.gmra.mxu0 %v1_v1", "%v2_v2 = vpop.f32.mrf.mxu0"),
        "%8 = dma.done.wait [#allocation1], 3",
        "%p2_p2 = scmp.eq.s32.totalorder %s4_s4, 1",
        "%s5_s5 = sld [smem:[#allocation7_spill]]",
        "%s6_s6 = smov (%p2_p2, %s5_s5), 4",
        *shown("%s6_s6"),
    )
    table = "== CAPACITY:\nMXU, SALU\n4 2\n== UTILIZATION:\n" + "1 1\n" * small.count(" : > {")
    for seed in range(start, start + 100):
        chance = random.Random(seed)
        broken, tables = (mutated(small, chance), table) if seed % 4 else (small, mutated(table, chance))
        assert error_or_run({"TLP": broken}, V5E, utilization={"TLP": tables}, max_iterations=500)


@pytest.mark.parametrize("start", range(0, 300, 100))
def test_a_damaged_dump_is_an_error_or_a_result(tmp_path: Path, start: int) -> None:
    program = PROGRAMS[2]
    page = f"<script>const DATA ={json.dumps({'hlo_breakdowns': json.loads(program.vmem_report)})};</script>"
    left = {"17-TLP-hlo.txt": program.top_level_hlo[:500], "17-TLP-03-vmem_report.html": page}
    left |= {f"17-{name}-02-final_bundles.txt": text[:3000] for name, text in program.listings.items()}
    for seed in range(start, start + 100):
        chance = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        hit = chance.choice(list(left))
        for name, text in left.items():
            content = (mutated(text, chance) if name == hit else text).encode("utf-8", "surrogatepass")
            (folder / name).write_bytes(content)
        with contextlib.suppress(CompilerError):
            for buffer in vmem_buffers(read_dump(folder).vmem_report):
                assert buffer.size_bytes >= 0


def test_a_folder_in_the_place_of_a_listing(tmp_path: Path) -> None:
    (tmp_path / "17-TLP-02-final_bundles.txt").mkdir()
    with pytest.raises(CompilerError, match="cannot be read"):
        read_dump(tmp_path)


@pytest.mark.parametrize(
    "report",
    [
        "nothing",
        "[" * 100_000,
        '{"a": ' * 100_000,
        "[1]",
        "7",
        '{"op": 7}',
        '{"op": {"blocks": 7}}',
        '{"op": {"blocks": {"a": 1}}}',
        '{"op": {"blocks": [7, [], null]}}',
        '{"op": {"blocks": [{"block_size": -1}]}}',
        '{"op": {"blocks": [{"block_size": 1e999}]}}',
        '{"op": {"blocks": [{"block_size": true}]}}',
        '{"op": {"blocks": [{"block_size": ' + "9" * 30 + "}]}}",
        '{"op": {"blocks": [{"block_size": ' + "9" * 5000 + "}]}}",
        '{"op": {"blocks": [{"allocations": 7, "block_size": []}]}}',
        '{"op": {"blocks": [{"allocations": [7, {"size": "x"}]}]}}',
    ],
)
def test_a_vmem_report_of_another_form_is_left_out(report: str) -> None:
    assert vmem_buffers(report) == []


def test_the_rest_of_a_vmem_report_is_kept() -> None:
    report = {"op": {"blocks": [7, {"block_type": "SCOPED", "allocations": [{"size": "8", "tag": "spill"}, None]}]}}
    (buffer,) = vmem_buffers(json.dumps(report))
    assert (buffer.op, buffer.kind, buffer.size_bytes, buffer.is_spill) == ("op", "SCOPED", 8, True)


@pytest.mark.parametrize("number", ["4294967295", "1", "-1", "x", "", "9" * 5000, "٣"])
def test_parameters_are_numbered_from_zero(number: str) -> None:
    text = f"ENTRY %main (x: f32[8]) -> f32[8] {{\n  %x.1 = f32[8]{{0}} parameter({number})\n}}\n"
    with pytest.raises(SimulationError, match="parameter"):
        prepare_listings({"TLP": listing("")}, V5E, hlo_text=text).run(V5E)


def test_sizes_past_all_memory() -> None:
    huge = "9" * 5000
    text = (
        "ENTRY %main (x: f32[8]) -> f32[8] {\n"
        f"  %x.1 = s32[{huge}]{{0}} parameter(0)\n"
        "  %y.1 = s32[999999999,999999999,999999999]{0} parameter(1)\n"
        '  %k.1 = s32[8]{0} custom-call(%y.1), custom_call_target="tpu_custom_call"\n}\n'
    )
    hlo = parse_hlo(text)
    assert hlo.parameters[0].shape is None
    found = parameter_contents(hlo, [np.zeros(3, np.int32)] * 2)
    assert isinstance(found[0], Unknown)
    assert KernelContents(hlo, lambda: DeviceExecutions(executions=[], local=False)).operand_words("k.1", 0, 0) is None


@pytest.mark.parametrize(
    "layout",
    [
        "0,0",
        "1,7",
        "0",
        "9" * 5000,
        "1,0:T(0,128)",
        "1,0:T(,8)",
        "1,0:T(8,999999999999)",
        f"1,0:T({'8,' * 90}8)",
        "1,0:T(8,128)" + "(2,1)" * 90,
    ],
)
def test_a_layout_of_another_form_makes_words_unknown(layout: str) -> None:
    words = words_of(np.zeros((4, 4), np.int32), HloShape(dtype="s32", sizes=(4, 4), layout=layout))
    assert isinstance(words, Unknown)


@pytest.mark.parametrize(
    "table",
    [
        "",
        "a\nMXU\n1\nb\n-1\n",
        "a\nMXU\n0\nb\n1\n",
        "a\nMXU\n1\nb\n100000\n",
        f"a\nMXU\n1\nb\n{'9' * 5000}\n",
        f"a\nMXU\n{10**400}\nb\n1\n",
        "a\nMXU, MXU\n1 1\nb\n1 1\n",
        "a\nMXU\n1\nb\n1\n1\n",
        "a\n\0\n1\nb\n1\n",
    ],
)
def test_a_table_of_units_of_another_form_is_refused(table: str) -> None:
    blocks = split_blocks(parse_listing("TLP", listing("")), 4)
    with pytest.raises(SimulationError, match="table of units"):
        parse_utilization("TLP", table, blocks)


def test_contents_that_go_to_and_fro_are_found_after_any_number_of_copies() -> None:
    wait = "%8 = dma.done.wait [#allocation8], 16  ;;  %9 = vsyncadd [#allocation8], 4294967280"
    program = (
        "%s11_s11 = scalar_parameter_address 0",
        "%s12_s12 = sshll.u32 %s11_s11, 4  ;;  %s14_s14 = smov [#allocation5]",
        "%s15_s15 = sshll.u32 %s14_s14, 4",
        *loop(
            3000,
            "%5 = dma.hbm_to_vmem %s12_s12, 16, %s15_s15, [#allocation8]",
            wait,
            "%5 = dma.vmem_to_hbm %s15_s15, 16, %s12_s12, [#allocation8]",
            wait,
        ),
        "%5 = dma.hbm_to_smem %s12_s12, 16, [#allocation7], [#allocation8]",
        wait,
        "%s18_s18 = sld [smem:[#allocation7]]",
        *shown("%s18_s18"),
    )
    hlo = "ENTRY %main (x: s32[128]) -> f32[8] {\n  %x.1 = s32[128]{0:T(128)} parameter(0)\n}\n"
    prepared = prepare_listings({"TLP": listing(*program)}, V5E, hlo_text=hlo)
    few, many = (prepared.run(V5E, parameters=[[words] * 128]).hbm_read_bytes for words in (5, 9))
    assert many - few == 4 * V5E.machine.granule_bytes


def test_a_run_of_another_form() -> None:
    for text in ("[" * 100_000, "7", '{"chip": ' * 50_000, "9" * 5000, '{"chip": 1e999}'):
        with pytest.raises(ValueError, match=r"."):
            SimulatedRun.from_json(text)


def test_a_parameter_that_is_not_there() -> None:
    with pytest.raises(SimulationError):
        simulate("%s1_s1 = scalar_parameter_address " + "9" * 5000, *shown("%s1_s1"))
    broken = replace(PROGRAMS[1], listings={**PROGRAMS[1].listings, "TLP": "\0" * 1000})
    with pytest.raises(SimulationError):
        read_and_run(broken, V5E)
