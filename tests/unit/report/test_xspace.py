"""A run written for XProf is read again by JAX's own reader, with the names of a TPU's trace."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from explanations import a_run
from jax.profiler import ProfileData
from slices import a_slice

from systolic.report import xspace
from systolic.simulator import SimulatedRun, SparseCoreRun, SparseOpRun
from systolic.timing.traced_modules import read_modules

# jaxlib's iterators give a warning on Python 3.12 and later, and abort the process if it is an error.
pytestmark = pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning")


def _named_run() -> SimulatedRun:
    run = dataclasses.replace(a_run(), module="jit_f")
    (op,) = run.cores[0].ops
    op = dataclasses.replace(op, category="custom-call", flops=2 * 1024**3)
    return dataclasses.replace(run, cores=(dataclasses.replace(run.cores[0], ops=(op,)),))


def test_a_run_has_the_planes_lines_and_stats_of_a_real_trace() -> None:
    run = _named_run()
    (op,) = run.cores[0].ops
    (plane,) = ProfileData.from_serialized_xspace(xspace(run, title="not used")).planes
    assert plane.name == "/device:TPU:0"
    stats = dict(plane.stats)
    assert stats["device_type_string"] == "TPU v6 Lite"
    assert stats["peak_teraflops_per_second"] == pytest.approx(918)
    assert stats["provenance"] == "simulated by systolic"
    lines = {line.name: list(line.events) for line in plane.lines}
    assert list(lines)[:3] == ["Steps", "XLA Modules", "XLA Ops"]
    assert {"stalls", "copies 0"} <= lines.keys()
    (module,), (call,) = lines["XLA Modules"], lines["XLA Ops"]
    assert module.name.startswith("jit_f(")
    assert dict(module.stats)["device_duration_ps"] == round(run.time_us * 1e6)
    assert call.name == f"%{op.name}"
    about = dict(call.stats)
    assert about["device_duration_ps"] == round(op.cycles / run.clock_hz * 1e12)
    assert (about["hlo_category"], about["flops"], about["tf_op"]) == ("custom-call", 2 * 1024**3, f"{op.scope}:")
    assert about["bytes_accessed"] == op.hbm_read_bytes + op.hbm_written_bytes
    assert about["symbol_id"] > 0  # XProf takes 0 for none


def test_what_is_written_is_read_as_simulated(tmp_path: Path) -> None:
    run = _named_run()
    (op,) = run.cores[0].ops
    file = tmp_path / "run.xplane.pb"
    file.write_bytes(xspace(run, title=""))
    (module,) = read_modules(file).modules
    assert module.is_simulated
    assert (module.base_name, module.time_us) == ("jit_f", pytest.approx(run.time_us, abs=1e-5))
    (traced,) = module.ops
    assert (traced.name, traced.category, traced.calls) == (op.name, "custom-call", op.calls)
    assert traced.time_us == pytest.approx(op.cycles / run.clock_hz * 1e6, abs=1e-5)


def test_hostile_names_and_unknown_chips_are_written_whole() -> None:
    name = 'a"b\\ö\n\ud800'
    run = dataclasses.replace(_named_run(), chip="mine", module="")
    (plane,) = ProfileData.from_serialized_xspace(xspace(run, title=name)).planes
    modules = next(line for line in plane.lines if line.name == "XLA Modules")
    assert next(iter(modules.events)).name.startswith('a"b\\ö\n?(')
    assert [stat for stat, _ in plane.stats] == ["provenance"]


def test_sparse_cores_and_classes_of_a_slice_have_planes_of_their_own() -> None:
    sparse = SparseCoreRun(
        core=2,
        ops=(SparseOpRun(name="gather", begin_cycles=0, end_cycles=9),),
        hbm_read_bytes=0,
        hbm_written_bytes=0,
        streams=0,
        indices=0,
        tile_stall_cycles=0,
        spans=a_run().cores[0].spans[:1],
    )
    run = dataclasses.replace(_named_run(), sparse_cores=(sparse,))
    planes = ProfileData.from_serialized_xspace(xspace(run, title="f")).planes
    assert [plane.name for plane in planes] == ["/device:TPU:0", "/device:TPU:0 SparseCore 2"]
    slice_run = a_slice()
    planes = ProfileData.from_serialized_xspace(xspace(slice_run, title="f")).planes
    assert [plane.name for plane in planes] == [f"/device:TPU:{each.devices[0]}" for each in slice_run.classes]
