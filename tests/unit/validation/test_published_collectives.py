"""Published collectives: how their rows are read, and the programs that they stand for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from slices import a_slice

from systolic.chips import chip
from systolic.lessons.published_ops import published_program
from systolic.report.trust import TrustFacts, trust_pages
from systolic.simulator.core_records import SparseCoreRun
from systolic.timing import Measurement
from systolic.validation.errors import (
    PublishedProgram,
    collective_statistics,
    compared,
    program_or_reason,
    statistics_by_chip,
)
from systolic.validation.published import PublishedRow, read_published
from systolic.validation.stated_flags import stated_flags

HEADER = "source,chip,topology,kind,op,m,k,n,batch,dtype_lhs,dtype_rhs,dtype_out,shape_note,tiles,time_us,timing"
HEADER += ",software,notes"
PERMUTE = "me,{chip},{topology},collective,ppermute (ring neighbour),,,,,,,,{bytes} bytes per device,,17,device,,"
GATHER = 'me,v7x,2x2x1 chips (8 devices),collective,"all_gather (shard_map, tiled, dim0)",,,,group 4,float32,,float32,'
GATHER += '"per-device f32[64,8,128] -> f32[256,8,128]; same core of each",,21.9,device,{software},'
SUM = (
    'me,v6e,v6e-256 16x16 torus,collective,psum over 256,8,,8,,bfloat16,,bfloat16,"replicated bf16[64,128]",,9,device,,'
)


def read(folder: Path, line: str, **values: object) -> PublishedRow:
    filled = line.format_map({"chip": "v6e", "topology": "v6e-8 (8 chips)", "bytes": 16384, "software": "", **values})
    (folder / "t.csv").write_text(f"{HEADER}\n{filled}\n")
    return read_published(folder / "t.csv")[0]


def program(row: PublishedRow) -> PublishedProgram:
    found = program_or_reason(row, published_program)
    assert isinstance(found, PublishedProgram), found
    return found


def sharding(found: PublishedProgram) -> NamedSharding:
    (argument,) = found.arguments
    assert isinstance(argument.sharding, NamedSharding)
    return argument.sharding


def mesh_of(found: PublishedProgram) -> Mesh:
    mesh = sharding(found).mesh
    assert isinstance(mesh, Mesh)
    return mesh


def ids(devices: np.ndarray | None) -> list[int]:
    return [device.id for device in np.ravel(np.asarray(devices))]


@pytest.mark.parametrize(("chip", "named", "topology"), [("v6e", "v6e-8", "2x4"), ("v5p", "v5p-8 (4 chips)", "2x2x1")])
def test_a_permute_in_a_loop(tmp_path: Path, chip: str, named: str, topology: str) -> None:
    row = read(tmp_path, PERMUTE, chip=chip, topology=named, bytes=1 << 20)
    found = program(row)
    assert (found.topology, row.device_bytes, row.sizes) == (topology, 1 << 20, "1,048,576 B")
    (argument,) = found.arguments
    mesh = mesh_of(found)
    assert ids(mesh.devices) == list(range(mesh.size))
    assert argument.size * 4 == (1 << 20) * mesh.size
    # One round's time is what was published.
    measured = Measurement(chip=chip, provenance="simulated", time_us=17.0 * found.repeats)
    assert found.repeats > 1
    assert compared(row, found, measured, dispatch_us=0.0).error == pytest.approx(0)


def test_a_gather_over_chips(tmp_path: Path) -> None:
    found = program(read(tmp_path, GATHER, software='"SparseCore offload AG on, dvfs_p_state=7"'))
    assert (found.chip, found.topology) == ("v7x@p7", "2x2x1")
    assert found.flags == (("xla_tpu_enable_sparse_core_collective_offload_all_gather", "true"),)
    # Along the axis there are cores of the same number, one of each chip.
    assert list(mesh_of(found).shape.values()) == [4, 2]
    assert ids(np.asarray(mesh_of(found).devices)[:, 0]) == [0, 2, 4, 6]
    assert found.arguments[0].shape == (4 * 64, 8, 128)


def test_a_sum_over_all_devices(tmp_path: Path) -> None:
    row = read(tmp_path, SUM)
    found = program(row)
    assert (found.topology, row.device_bytes) == ("16x16", 64 * 128 * 2)
    assert sharding(found).mesh.size == 256
    assert sharding(found).spec == PartitionSpec()


@pytest.mark.parametrize(
    ("line", "values", "what"),
    [
        (PERMUTE, {"topology": "some chips"}, "names no slice"),
        (PERMUTE, {"topology": "3x4"}, "3x4"),
        (PERMUTE.replace("{bytes} bytes", "a few bytes"), {}, "bytes of a device"),
        (PERMUTE.replace("ppermute", "broadcast"), {}, "choose from all_gather, psum, ppermute"),
        (GATHER.replace("same core of each", ""), {}, "same core of each"),
        (SUM.replace("bf16[64,128]", "everything"), {}, "array of a device"),
    ],
)
def test_rows_without_a_program(tmp_path: Path, line: str, values: dict[str, str], what: str) -> None:
    found = program_or_reason(read(tmp_path, line, **values), published_program)
    assert isinstance(found, str)
    assert what in found


def test_flags_of_collectives_on_sparse_cores() -> None:
    name = "xla_tpu_enable_sparse_core_collective_offload_{}"
    assert stated_flags("flags of Dec 2025 (SC offload AR)") == {name.format("all_reduce"): "true"}
    assert stated_flags("SparseCore offload AG (1/2/3D) on") == {name.format("all_gather"): "true"}
    assert stated_flags("sunk dcn allreduce flags") == {}


@pytest.mark.parametrize(
    ("source", "on_sparse_cores", "notes", "waits_alone"),
    [
        ("me", True, "", False),
        ("me", True, "device call-done event", True),
        ("somebody/accelerator-microbenchmarks issue#71", True, "", True),
        # Without SparseCores a trace has no such event.
        ("somebody/accelerator-microbenchmarks issue#71", False, "", False),
    ],
)
def test_the_wait_for_sparse_cores_is_what_some_sources_time(
    tmp_path: Path, source: str, on_sparse_cores: bool, notes: str, waits_alone: bool
) -> None:
    run = a_slice(time_us=80.0, exposed_us=12.0)
    if on_sparse_cores:
        core = SparseCoreRun(
            core=0, ops=(), hbm_read_bytes=0, hbm_written_bytes=0, streams=0, indices=0, tile_stall_cycles=0
        )
        classes = [replace(group, run=replace(group.run, sparse_cores=(core,))) for group in run.classes]
        run = replace(run, classes=tuple(classes))
    row = read(tmp_path, GATHER.replace("me,", f"{source},", 1) + notes, software='"dvfs_p_state=7"')
    measured = Measurement(chip="v7x@p7", provenance="simulated", time_us=run.time_us, run=run.slowest, slice_run=run)
    expected_us = run.exposed_us if waits_alone else run.time_us
    assert compared(row, program(row), measured, dispatch_us=0.0).error == pytest.approx(expected_us / 21.9 - 1)


def test_small_and_large_ones_have_their_own_statistics(tmp_path: Path) -> None:
    rows = []
    for size, predicted in ((1 << 14, 17 * 1.5), (1 << 20, 17 * 1.1), (1 << 26, 17 * 0.8)):
        row = read(tmp_path, PERMUTE, bytes=size)
        found = program(row)
        rows.append(compared(row, found, predicted * found.repeats, dispatch_us=0.0))
    small, large = sorted(collective_statistics(rows).values(), key=lambda each: each.rows)
    assert (small.rows, small.median_error) == (1, pytest.approx(0.5))
    assert (large.rows, large.median_error) == (2, pytest.approx(0.15))
    assert collective_statistics([]) == {}


def test_the_page_has_collectives_apart(tmp_path: Path) -> None:
    rows = []
    for size, predicted in ((16384, 25.5), (1 << 20, "too many copies")):
        row = read(tmp_path, PERMUTE, bytes=size)
        found = program(row)
        told = predicted if isinstance(predicted, str) else predicted * found.repeats
        rows.append(compared(row, found, told, dispatch_us=0.0))
    facts = TrustFacts(
        command="systolic validate t.csv",
        versions={},
        dispatch_us=0.0,
        rows=rows,
        statistics=statistics_by_chip(rows),
        chips=[chip("v6e")],
        constants=None,
        plot=None,
    )
    pages = trust_pages(facts)
    page, table = pages["trust.md"], pages["trust/collectives.md"]
    assert "| v6e | v6e-8 (8 chips) | ppermute (ring neighbour) | 16,384 B | device | 17.0 | 25.5 | +50.0 % |" in table
    assert "- 1 row is not counted: too many copies" in table
    assert "](trust/collectives.md)" in page
    assert "No row could be compared." in page  # of one device
    assert "| v6e, all |" not in page
