"""A run on a slice by hand, for tests of what draws it: the times of its parts are round numbers."""

from __future__ import annotations

import dataclasses

from explanations import a_run, an_explanation

from systolic.explaining import Communication, Explanation, Program
from systolic.simulator import CollectiveRun, DeviceClass, LinkRun, OpRun, SimulatedRun, SliceRun, Span

CLOCK_HZ = 1.75e9  # of the kept run, on v6e
GATHER, BARRIER = "all-gather.3", "barrier"


def us(time_us: float) -> int:
    """Cycles of so much time."""
    return round(time_us * CLOCK_HZ / 1e6)


def a_device(time_us: float, name: str = "scratch_matmul") -> SimulatedRun:
    """A kept run of one device, as long as is asked."""
    run = a_run(name)
    assert run.clock_hz == CLOCK_HZ
    core = run.cores[0]
    wait = Span(
        kind="stall", begin_cycles=us(time_us) - 1750.0, end_cycles=us(time_us) * 1.0, label="semaphore", amount=0
    )
    gather = OpRun(
        name=GATHER,
        scope="jit(f)/all_gather",
        calls=1,
        begin_cycles=core.cycles,
        end_cycles=us(time_us),
        cycles=us(time_us) - core.cycles,
        semaphore_stall_cycles=1750,
    )
    whole = dataclasses.replace(
        core,
        cycles=us(time_us),
        ops=(*core.ops, gather),
        semaphore_stall_cycles=1750,
        spans=tuple(sorted((*core.spans, wait), key=lambda span: (span.begin_cycles, span.kind))),
    )
    return dataclasses.replace(run, cores=(whole,))


def a_link(source: int, target: int, axis: str, megabytes: int, begin_us: float) -> LinkRun:
    """A link that is busy from one moment on, 10 µs for each megabyte."""
    busy = us(10.0 * megabytes)
    span = Span(
        kind="copy",
        begin_cycles=us(begin_us),
        end_cycles=us(begin_us) + busy,
        label=f"{source} → {target}",
        amount=megabytes * 1_000_000,
    )
    spans = (span,) if megabytes else ()
    return LinkRun(
        source=source, target=target, axis=axis, sent_bytes=megabytes * 1_000_000, busy_cycles=busy, spans=spans
    )


def a_slice(*, time_us: float = 80.0, exposed_us: float = 12.0) -> SliceRun:
    """Eight devices of a v6e 2x4, of which the two in the corners are 2 µs ahead; one all-gather, and a barrier."""
    gather = CollectiveRun(
        name=GATHER,
        kind="all-gather",
        calls=1,
        sent_bytes=3_000_000,
        begin_cycles=us(20.0),
        end_cycles=us(time_us),
        cycles=us(40.0),
        exposed_cycles=us(exposed_us),
        links=("y+", "y-"),
    )
    barrier = CollectiveRun(
        name=BARRIER,
        kind="barrier",
        calls=2,
        sent_bytes=0,
        begin_cycles=0,
        end_cycles=us(2.0),
        cycles=us(2.0),
        exposed_cycles=us(2.0),
        links=("y+",),
    )
    return SliceRun(
        chip="v6e",
        topology="2x4",
        clock_hz=CLOCK_HZ,
        assignment=(0, 1, 3, 2, 4, 5, 7, 6),
        way="all devices",
        classes=(
            DeviceClass(devices=(0, 7), run=a_device(time_us - 2.0)),
            DeviceClass(devices=(1, 2, 3, 4, 5, 6), run=a_device(time_us)),
        ),
        links=(
            a_link(0, 2, "y+", 3, 20.0),
            a_link(2, 4, "y+", 3, 22.0),
            a_link(2, 0, "y-", 1, 20.0),
            a_link(0, 1, "x+", 0, 0.0),
        ),
        collectives=(barrier, gather),
        link_bytes_per_s=100e9,
        flags={"xla_tpu_enable_async_all_gather": "true"},
        assumptions=(),
    )


def a_slice_explanation() -> Explanation:
    """The explanation of `a_slice` beside the same function on another mesh, which is faster."""
    made, run = an_explanation(), a_slice()
    flops = 40e9  # of one device
    this = Program(
        label="this function",
        role="this",
        time_us=run.time_us,
        flops=flops,
        hbm_bytes=58_720_256,
        communication=Communication.of(run),
        slice_run=run,
    )
    other = Program(
        label="mesh data=4,model=2",
        role="change",
        time_us=72.0,
        flops=flops,
        hbm_bytes=50_331_648,
        communication=Communication(exposed_us=4.0, hidden_us=30.0, link_bytes=5_000_000, link_us=50.0),
    )
    return dataclasses.replace(made, function="step.py:step", programs=(this, other), topology=run.topology)
