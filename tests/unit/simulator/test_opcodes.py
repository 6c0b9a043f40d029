"""The table of opcodes: how an entry is found, and what follows from it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from simulator_listings import listing, simulate

import systolic.simulator
from systolic.chips import chip
from systolic.simulator import SimulationError
from systolic.simulator.opcode_traits import Opcode, OpcodeTable
from systolic.simulator.opcodes import SPARSE_CORE, TENSOR_CORE
from systolic.simulator.reading.listing import parse_listing

HOUSE = Path(systolic.simulator.__file__).parent


def test_the_longest_name_that_an_opcode_begins_with_counts() -> None:
    table = OpcodeTable(
        [Opcode(name="a*", kind="load"), Opcode(name="a.b*", kind="store"), Opcode(name="a.b.c", kind="copy")]
    )
    kinds = {opcode: table[opcode].kind for opcode in ("a", "a.x", "a.b", "a.b.cd", "a.b.c", "b")}
    assert kinds == {"a": "load", "a.x": "load", "a.b": "store", "a.b.cd": "store", "a.b.c": "copy", "b": "unknown"}


def test_a_table_does_not_grow_without_end() -> None:
    table = OpcodeTable([Opcode(name="a*", kind="load")])
    for number in range(1 << 15):
        assert table[f"a{number}"].kind == "load"
    assert len(table) <= 1 << 14


@pytest.mark.parametrize(
    ("opcode", "flags", "latency", "is_remote"),
    [
        ("dma.hbm_to_vmem", ("3",), "event", False),
        ("dma.general", ("3", "4"), "event", True),
        ("dma.done.wait", ("0",), "event", False),
        ("vsyncadd.remote", ("0",), "event", True),
        ("vsyncadd", ("0",), "issue", False),
        ("scalar_lea.sflag", ("0",), "issue", False),
        ("scalar_lea.hbm", (), "issue", False),
        ("vmatmul.bf16.gmra.mxu0", (), "matrix", False),
        ("vpop.sfrf", (), "issue", False),
    ],
)
def test_traits(opcode: str, flags: tuple[str, ...], latency: str, is_remote: bool) -> None:
    traits = TENSOR_CORE[opcode]
    assert (tuple("012345"[traits.flags]), traits.latency, traits.is_remote) == (flags, latency, is_remote)


def test_a_vector_instruction_in_no_entry_is_not_kept_and_one_that_may_wait_is_an_error() -> None:
    (bundle,) = parse_listing("TLP", listing("%v1_v1 = vadd.f32 %v2_v2, %v3_v3")).bundles
    assert (bundle.instructions, bundle.vector_count) == ((), 1)
    for text in ("%1 = vwait.other [#allocation1], 1", "%1 = vsyncother [#allocation1], 1"):
        with pytest.raises(SimulationError, match="not understood"):
            simulate(text)


@pytest.mark.parametrize(
    "copy",
    [
        "%9 = dma.vmem_to_host_iova %s1_s1, 0, %s2_s2, [#allocation1], %s3_s3",
        "%9 = dma.host_iova_to_vmem %s1_s1, 0, %s2_s2, [#allocation1], %s3_s3",
    ],
)
def test_the_size_of_a_copy_with_the_host_may_be_in_a_register(copy: str) -> None:
    # In a called program, whose copies to VMEM nobody follows.
    run = simulate(
        "%1 = inlined_call %s5_s5 /* %called = f32[] custom-call() */",
        called={"called": ("%s3_s3 = smov 64", copy, "%9 = dma.done.wait [#allocation1], 64")},
    )
    (core,) = run.cores
    assert core.host_bytes == 64 * chip("v5e").machine.granule_bytes


def test_no_other_module_lists_opcodes() -> None:
    """A new instruction is one entry: whoever needs a set of opcodes asks for a trait."""
    names = {name for table in (TENSOR_CORE, SPARSE_CORE) for name in table} - {"call", "task"}
    lists: list[str] = []
    for path in sorted(HOUSE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            elements = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else ()
            elements = node.keys if isinstance(node, ast.Dict) else elements
            listed = [each.value for each in elements if isinstance(each, ast.Constant) and each.value in names]
            if len(listed) > 1 and path.name != "opcodes.py":
                lists.append(f"{path.relative_to(HOUSE)}: {', '.join(map(str, listed))}")
    assert lists == []
