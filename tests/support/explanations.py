"""An explanation of a real run, for tests of what draws it: no compiler is needed to make it.

The runs in tests/data are of the program that is kept there as well, and were made so:

    python tests/data/simulate_matmuls.py

Blocks, traffic and VMEM are those of that program; what only a search finds, as savings, is made up.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any
from unittest import mock

import jax

from systolic.analysis import LineOps
from systolic.chips import chip
from systolic.explaining.explanation import ChipLimits, Explanation, Program, Saving, Window
from systolic.explaining.function_analysis import FunctionAnalysis, analyse_function
from systolic.explaining.parts import LineTime, OperandTraffic, Region, VmemMap, VmemPart
from systolic.schedule import MIB
from systolic.simulator import SimulatedRun
from systolic.timing import Call

DATA = Path(__file__).parents[1] / "data"
HOSTILE = "</script><b id='hacked'>&amp;\"'[red]{{ 7*7 }}"
CAUSE = "31% of the matrix unit; limited by starting copies, for which the core waits 42% of the time"
ADVICE = "blocks 1024/1024/1024 would save 38%"
_SIZE = 2048
_FLOPS = 2.0 * _SIZE**3
_KERNEL = "scratch_matmul"


def a_run(name: str = "scratch_matmul") -> SimulatedRun:
    """`scratch_matmul` or `xla_matmul`, of 2048² in bfloat16 on a v6e."""
    return SimulatedRun.from_json((DATA / f"{name}_v6e.json").read_text(encoding="utf-8"))


def an_explanation(run: SimulatedRun | None = None) -> Explanation:
    """The explanation of `scratch_matmul` beside XLA's product, with something in every part."""
    run, xla, v6e = run or a_run(), a_run("xla_matmul"), chip("v6e")
    mine = _program("this kernel", "this", run)
    return Explanation(
        function=f"kernels.py:{_KERNEL}",
        arguments=("bf16[2048,2048]", "bf16[2048,2048]"),
        chip=v6e.name,
        chip_title=v6e.title,
        versions={"systolic": "0.3.0", "jax": "0.10.2", "libtpu": "0.0.21", "python": "3.11.7"},
        verdict=f"simulated {run.time_us:.1f} µs ± ? on v6e: {CAUSE}; {ADVICE}",
        cause=CAUSE,
        advice=ADVICE,
        programs=(
            mine,
            _program("XLA", "xla", xla),
            _change("blocks 1024/1024/1024", 31.5, 41_943_040),
            _change("blocks 512/2048/1024", 38.2, 50_331_648),
            Program(label="blocks 2048/2048/2048", role="change", time_us=None, reason="48 MiB of VMEM, limit 32 MiB"),
        ),
        roofline=ChipLimits(
            dtype="bfloat16",
            peak_flops_per_s=v6e.peak_ops_per_s("bfloat16"),
            hbm_bytes_per_s=v6e.hbm_bytes_per_s,
            simulated_hbm_bytes_per_s=v6e.machine.hbm_bytes_per_s,
        ),
        windows=_windows(run),
        traffic=(
            _operand("lhs", "input", (512, 1024), 16),
            _operand("rhs", "input", (1024, 1024), 16),
            _operand("out", "output", (512, 1024), 8),
        ),
        vmem=VmemMap(
            parts=(
                VmemPart(op="scratch_matmul.1", name="lhs", kind="window", size_bytes=2 * MIB, copies=2),
                VmemPart(op="scratch_matmul.1", name="rhs", kind="window", size_bytes=4 * MIB, copies=2),
                VmemPart(op="scratch_matmul.1", name="out", kind="window", size_bytes=2 * MIB, copies=2),
                VmemPart(op="scratch_matmul.1", name="acc", kind="scratch", size_bytes=2 * MIB, copies=1),
                VmemPart(op="scratch_matmul.1", name="registers", kind="spill", size_bytes=run.spill_bytes, copies=1),
            ),
            limit_bytes=v6e.scoped_vmem_bytes,
            capacity_bytes=v6e.vmem_bytes_per_core,
        ),
        regions=_regions(),
        lines=_lines(),
        line_times=_line_times(),
        steps=32,
        limiter="starting copies",
        savings=_savings(run.time_us),
        notes=("the blocks' index maps were evaluated for every step of the grid",),
    )


def a_faster_one() -> Explanation:
    """The explanation as it might be after its first finding was followed."""
    before = an_explanation()
    core = dataclasses.replace(before.run.cores[0], cycles=55_125, copy_stall_cycles=9_000, hbm_read_bytes=33_554_432)
    run = dataclasses.replace(before.run, cores=(core,))
    first, *others = before.savings
    del first
    return dataclasses.replace(
        before,
        programs=(_program("this kernel", "this", run), *before.programs[1:]),
        traffic=(
            _operand("lhs", "input", (1024, 1024), 8),
            _operand("rhs", "input", (1024, 1024), 8),
            before.traffic[2],
        ),
        savings=(
            *others,
            Saving(title="spills", why="w", change="c", time_us=None, saving=None, provenance="modelled"),
        ),
    )


def a_hostile_one() -> Explanation:
    """Every name in it would like to be markup or code."""
    made = an_explanation()
    run = made.run
    core = run.cores[0]
    ops = tuple(dataclasses.replace(op, name=HOSTILE, scope=HOSTILE) for op in core.ops)
    core = dataclasses.replace(core, ops=(*ops, dataclasses.replace(ops[0], name="another")))
    core = dataclasses.replace(core, spans=tuple(dataclasses.replace(span, label=HOSTILE) for span in core.spans))
    run = dataclasses.replace(run, cores=(core,), assumptions=(HOSTILE,))
    assert made.vmem is not None
    return dataclasses.replace(
        made,
        function=HOSTILE,
        arguments=(HOSTILE,),
        verdict=HOSTILE,
        cause=HOSTILE,
        advice=HOSTILE,
        programs=(dataclasses.replace(made.programs[0], label=HOSTILE, run=run), *made.programs[1:]),
        windows=tuple(dataclasses.replace(window, title=HOSTILE, words=HOSTILE) for window in made.windows),
        traffic=tuple(dataclasses.replace(each, kernel=HOSTILE, operand=HOSTILE) for each in made.traffic),
        vmem=dataclasses.replace(
            made.vmem, parts=tuple(dataclasses.replace(part, op=HOSTILE, name=HOSTILE) for part in made.vmem.parts)
        ),
        lines=tuple(dataclasses.replace(line, text=HOSTILE, where=HOSTILE) for line in made.lines),
        savings=tuple(dataclasses.replace(saving, title=HOSTILE, change=HOSTILE) for saving in made.savings),
        line_times=tuple(dataclasses.replace(line, text=HOSTILE, where=HOSTILE) for line in made.line_times),
        limiter=HOSTILE,
        notes=(HOSTILE,),
    )


def _program(label: str, role: str, run: SimulatedRun) -> Program:
    return Program(
        label=label,
        role="xla" if role == "xla" else "this",
        time_us=run.time_us,
        flops=_FLOPS,
        hbm_bytes=run.hbm_read_bytes + run.hbm_written_bytes,
        run=run,
    )


def _change(label: str, time_us: float, hbm_bytes: int) -> Program:
    return Program(label=label, role="change", time_us=time_us, flops=_FLOPS, hbm_bytes=hbm_bytes)


def _windows(run: SimulatedRun) -> tuple[Window, ...]:
    end = run.time_us
    return (
        Window(
            title="the ramp",
            begin_us=0.0,
            end_us=7.4,
            words="The first blocks of lhs and rhs cross HBM; nothing is multiplied for 3.5 µs.",
        ),
        Window(
            title="one steady step",
            begin_us=13.4,
            end_us=16.0,
            words="The copy of the next rhs block takes 2.3 µs, the product 1.3 µs: the core waits for the copy.",
        ),
        Window(title="the end", begin_us=end - 4.0, end_us=end, words="The last block of out goes to HBM."),
    )


def _operand(name: str, role: str, block: tuple[int, int], fetches: int) -> OperandTraffic:
    size = block[0] * block[1] * 2
    return OperandTraffic(
        kernel=_KERNEL,
        operand=name,
        role=role,
        shape=(_SIZE, _SIZE),
        dtype="bf16",
        block=block,
        block_bytes=size,
        fetches=fetches,
        moved_bytes=fetches * size,
        least_bytes=_SIZE * _SIZE * 2,
    )


def _regions() -> tuple[Region, ...]:
    names = (("prologue", 1, 40), ("grid step", 16, 37_152), ("when 1", 8, 2_300), ("when 2", 8, 3_200))
    return tuple(
        Region(
            op="scratch_matmul.1",
            name=name,
            bundles=max(4, cycles // executions),
            executions=executions,
            cycles=cycles,
            matrix_stall_cycles=0,
            issued={"mxu": 64_848, "load": 42_560, "store": 24_672} if name == "grid step" else {"store": cycles},
        )
        for name, executions, cycles in names
    )


def _lines() -> tuple[LineOps, ...]:
    lines = (
        ("acc_vmem[...] = jnp.zeros_like(acc_vmem)", "broadcast, swap", 8, 0.0, 0, 0, 2 * MIB),
        (
            "acc_vmem[...] += jnp.dot(lhs_vmem[...], rhs_vmem[...])",
            "dot_general, add",
            16,
            2.0**30,
            524_288,
            5 * MIB,
            0,
        ),
        ("out_vmem[...] = acc_vmem[...].astype(out_vmem.dtype)", "convert", 8, 0.0, 524_288, 2 * MIB, MIB),
    )
    return tuple(
        LineOps(
            kernel=_KERNEL,
            where=f"kernels.py:{20 + 2 * at} in kernel",
            text=text,
            operations=operations,
            executions=executions,
            matrix_flops=flops,
            vector_elements=elements,
            loaded_bytes=loaded,
            stored_bytes=stored,
        )
        for at, (text, operations, executions, flops, elements, loaded, stored) in enumerate(lines)
    )


def _line_times() -> tuple[LineTime, ...]:
    made = (("kernels.py:22", "acc_vmem[...] += jnp.dot(lhs_vmem[...], rhs_vmem[...])", 60_000), ("", "", 9_000))
    return tuple(
        LineTime(op="scratch_matmul.1", where=where, text=text, cycles=cycles, share=cycles / 80_000, bundles=at + 10.5)
        for at, (where, text, cycles) in enumerate(made)
    )


def _savings(time_us: float) -> tuple[Saving, ...]:
    return (
        Saving(
            title="larger blocks of lhs",
            why="rhs is read 4 times: 33.6 MB of the 58.7 MB that cross HBM.",
            change="BlockSpec((1024, 1024), lambda i, j, kk: (i, kk))",
            time_us=31.5,
            saving=1 - 31.5 / time_us,
            provenance="simulated",
            where="kernels.py:34",
        ),
        Saving(
            title="a longer k",
            why="each of the 16 steps costs 250 cycles of starting copies.",
            change="block_k=2048",
            time_us=38.2,
            saving=1 - 38.2 / time_us,
            provenance="simulated",
        ),
        Saving(
            title="whole matrices",
            why="nothing would be read twice.",
            change="block=(2048, 2048)",
            time_us=None,
            saving=None,
            provenance="simulated",
        ),
    )


def analysed(fn: Any, *args: Any, look_inside: bool = False) -> FunctionAnalysis:
    def traced(fn: Any, args: Any, target: Any, *, settings: Any) -> Any:
        del target, settings
        return jax.make_jaxpr(fn)(*args)

    # As for a chip, but by JAX alone: the compiler is not loaded into the tests' own process.
    with mock.patch("systolic.explaining.function_analysis.traced_jaxpr", traced):
        return analyse_function(Call.described(fn, args, chip("v5e")), look_inside=look_inside)
