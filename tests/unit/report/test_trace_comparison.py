"""Operations of a simulated run and of a trace are paired by name, and by kind and order where names differ."""

from __future__ import annotations

import pytest

from systolic.report.trace_comparison import ModuleError, OpTimes, compare_with_trace, module_of
from systolic.simulator import CoreRun, OpRun, SimulatedRun
from systolic.timing.traced_modules import DeviceTrace, TracedModule, TracedOp

CONVOLUTION, LOOP, COPY = "convolution fusion", "loop fusion", "data formatting"


def _run(*ops: tuple[str, str, int]) -> SimulatedRun:
    """A run at 1 MHz: a cycle is a microsecond. Operations are (name, category, cycles), in order."""
    made, now = [], 0
    for name, category, cycles in ops:
        made.append(
            OpRun(
                name=name,
                scope="",
                calls=1,
                begin_cycles=now,
                end_cycles=now + cycles,
                cycles=cycles,
                category=category,
            )
        )
        now += cycles
    core = CoreRun(
        core=0,
        cycles=now,
        ops=tuple(reversed(made)),  # pairs follow the times, not this order
        copy_stall_cycles=0,
        copy_overhead_cycles=0,
        matrix_stall_cycles=0,
        matrix_busy_cycles=0,
        hbm_read_bytes=0,
        hbm_written_bytes=0,
        copies=0,
    )
    return SimulatedRun(chip="v6e", clock_hz=1e6, cores=(core,), prefetch_cycles=0, matrix_units=2, bundles=1)


def _module(
    *ops: tuple[str, str, float], name: str = "jit_f(7)", device: int = 0, times_us: tuple[float, ...] = (100.0,)
) -> TracedModule:
    return TracedModule(
        name=name,
        device=f"/device:TPU:{device}",
        device_type="TPU v6 Lite",
        is_simulated=False,
        times_us=times_us,
        ops=tuple(TracedOp(name=op, category=category, calls=1, time_us=time_us) for op, category, time_us in ops),
    )


def _pairs(run: SimulatedRun, module: TracedModule) -> dict[str, tuple[str, str]]:
    return {op.name: (op.traced_name, op.paired_by) for op in compare_with_trace(run, module).ops}


def test_equal_names_are_paired_and_others_stand_alone() -> None:
    run = _run(("fusion.1", CONVOLUTION, 50), ("fusion.2", CONVOLUTION, 30), ("copy.9", COPY, 4))
    module = _module(("fusion.2", "output fusion", 40.0), ("fusion.1", "", 50.0), ("while.1", "while", 2.5))
    comparison = compare_with_trace(run, module)
    assert [(op.name, op.simulated_us, op.measured_us, op.ratio, op.paired_by) for op in comparison.ops] == [
        ("fusion.1", 50, 50, 1, "name"),
        ("fusion.2", 30, 40, 0.75, "name"),
        ("copy.9", 4, None, None, ""),
        ("while.1", None, 2.5, None, ""),
    ]
    assert [op.category for op in comparison.ops] == [CONVOLUTION, CONVOLUTION, COPY, "while"]
    assert (comparison.simulated_us, comparison.measured_us) == (84, 100)
    assert comparison.slower == pytest.approx(100 / 84 - 1)
    assert comparison.median_error() == pytest.approx(0.125)
    assert comparison.median_error(0.45) == 0  # of the operation with half of the time
    assert comparison.median_error(0.6) is None


def test_operations_that_another_compiler_has_numbered_are_paired_by_stem_and_order() -> None:
    run = _run(("fusion.3", CONVOLUTION, 9), ("fusion.1", CONVOLUTION, 8), ("copy", COPY, 2), ("add_fusion", LOOP, 1))
    module = _module(
        ("fusion.11", "output fusion", 9.5),
        ("fusion.10.clone.1", "output fusion", 8.5),
        ("copy.4", COPY, 2.5),
        ("multiply_add_fusion.2", LOOP, 1.5),
    )
    assert _pairs(run, module) == {
        "fusion.3": ("fusion.11", "order"),
        "fusion.1": ("fusion.10.clone.1", "order"),
        "copy": ("copy.4", "order"),
        "add_fusion": ("multiply_add_fusion.2", "order"),  # the only loop fusion left on either side
    }


def test_an_equal_name_of_another_kind_is_no_pair() -> None:
    run = _run(("fusion.1", CONVOLUTION, 9), ("copy.1", COPY, 2))
    module = _module(("fusion.1", "custom-call", 9.0), ("copy.1", "copy-start", 2.0))
    assert [op.paired_by for op in compare_with_trace(run, module).ops] == [""] * 4


def test_unequal_numbers_of_a_kind_are_not_paired() -> None:
    run = _run(("fusion.1", CONVOLUTION, 9), ("fusion.2", CONVOLUTION, 9))
    module = _module(("fusion.7", "output fusion", 9.0))
    assert {op.paired_by for op in compare_with_trace(run, module).ops} == {""}
    assert compare_with_trace(run, module).median_error() is None


def test_an_operation_that_half_of_the_executions_lack_has_no_ratio() -> None:
    (op,) = compare_with_trace(_run(("copy", COPY, 2)), _module(("copy", COPY, 0.0))).ops
    assert isinstance(op, OpTimes)
    assert (op.measured_us, op.ratio, op.paired_by) == (0, None, "name")


def test_the_program_is_found_by_the_runs_name_or_the_users_choice() -> None:
    modules = (
        _module(name="jit_f(7)", device=0, times_us=(10.0, 11.0)),
        _module(name="jit_f(7)", device=1, times_us=(12.0, 13.0)),
        _module(name="jit_g(8)", times_us=(5.0,)),
        _module(name="jit_g(9)", times_us=(6.0,)),
    )
    trace = DeviceTrace(planes=(), modules=modules)
    assert module_of(trace, ["jit_f"], None).device == "/device:TPU:1"  # the device that takes longest
    assert module_of(trace, ["jit_f"], "jit_g(9)").times_us == (6.0,)
    assert module_of(DeviceTrace(planes=(), modules=modules[:2]), ["jit_main"], None).name == "jit_f(7)"
    with pytest.raises(
        ModuleError, match=r"2 modules that may be meant: choose one by --module, from jit_g\(9\) \(1 ×"
    ):
        module_of(trace, ["jit_g"], None)
    with pytest.raises(ModuleError, match=r"no module jit_h: .* jit_f\(7\) \(2 × 10\.5 µs\), jit_g"):
        module_of(trace, ["jit_f"], "jit_h")
    with pytest.raises(ModuleError, match="3 modules that may be meant"):
        module_of(trace, [""], None)
